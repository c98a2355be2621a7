const SVG = "http://www.w3.org/2000/svg";

function complete(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Makes an HTML element; functions among the attributes are event listeners, texts among the children text nodes. */
export function element(name, attributes, ...children) {
  return complete(document.createElement(name), attributes, children);
}

/** Makes an SVG element, as `element` does. */
export function vector(name, attributes, ...children) {
  return complete(document.createElementNS(SVG, name), attributes, children);
}

/** Makes a button with a text. */
export function button(text, click, attributes) {
  return element("button", { type: "button", click, ...attributes }, text);
}

/** Sets or removes a boolean or text attribute. */
export function setAttribute(node, name, value) {
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else node.setAttribute(name, value === true ? "" : value);
}

/** Shows a vocabulary entry; the mark of a word's start is set in a softer colour. */
export function pieceText(piece) {
  if (!piece.startsWith("▁") || piece.length < 2) return [piece];
  return [element("span", { class: "mark" }, "▁"), piece.slice(1)];
}

/** Shows a vocabulary entry in a picture, as `pieceText` does on the page. */
export function pieceSpans(piece) {
  if (!piece.startsWith("▁") || piece.length < 2) return [piece];
  return [vector("tspan", { class: "mark" }, "▁"), piece.slice(1)];
}

/** Returns the direction of a text, that of its first letter. */
export function directionOf(text) {
  const letter = /\p{L}/u.exec(text)?.[0] ?? "";
  return /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/.test(letter) ? "rtl" : "ltr";
}

/** Redraws a container and gives the focus back to the element with the same data-key, or to the first one. */
export function keepFocus(container, redraw) {
  const active = document.activeElement;
  const inside = active && active !== container && container.contains(active);
  const key = inside ? active.dataset.key : undefined;
  redraw();
  if (!inside || container.contains(document.activeElement)) return;
  const again = key && [...container.querySelectorAll("[data-key]")].find((node) => node.dataset.key === key);
  (again || container.querySelector('[tabindex="0"], button, input, textarea'))?.focus({ preventScroll: true });
}

function setTabStop(items, chosen) {
  for (const item of items) item.setAttribute("tabindex", item === chosen ? "0" : "-1");
}

/** Leaves one of the items of a container in the tab order: the current one, or the first. */
export function oneTabStop(container, selector, current) {
  const items = [...container.querySelectorAll(selector)];
  setTabStop(items, items.find((item) => item === current) ?? items[0]);
}

function neighbour(items, from, key) {
  const at = items.indexOf(from);
  if (key === "Home") return items[0];
  if (key === "End") return items.at(-1);
  if (from.dataset.row === undefined) {
    return items[at + (key === "ArrowRight" || key === "ArrowDown" ? 1 : -1)];
  }
  const [row, column] = [Number(from.dataset.row), Number(from.dataset.column)];
  if (key === "ArrowLeft" || key === "ArrowRight") {
    const wanted = column + (key === "ArrowRight" ? 1 : -1);
    return items.find((item) => Number(item.dataset.row) === row && Number(item.dataset.column) === wanted);
  }
  const next = row + (key === "ArrowDown" ? 1 : -1);
  const distance = (item) => Math.abs(Number(item.dataset.column) - column);
  const line = items.filter((item) => Number(item.dataset.row) === next);
  return line.sort((a, b) => distance(a) - distance(b))[0];
}

/** Whether a key was pressed with one that makes it a command of the browser. */
export function hasModifier(event) {
  return event.ctrlKey || event.altKey || event.metaKey;
}

/** Lets the arrow keys, Home and End move the focus among a container's items: along data-row and data-column, if any. */
export function roveFocus(container, selector) {
  const keys = new Set(["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"]);
  container.addEventListener("keydown", (event) => {
    const from = event.target.closest?.(selector);
    if (!from || !keys.has(event.key) || hasModifier(event)) return;
    event.preventDefault();
    const items = [...container.querySelectorAll(selector)];
    const next = neighbour(items, from, event.key);
    if (!next) return;
    setTabStop(items, next);
    next.focus();
  });
  container.addEventListener("focusin", (event) => {
    const item = event.target.closest?.(selector);
    if (item) setTabStop(container.querySelectorAll(selector), item);
  });
}

/** Says a text in the page's live region. */
export function announce(text) {
  document.getElementById("announcements").textContent = text;
}

/**
 * Returns a function that gives the inner width of an element without a layout of the page.
 * @param changed called when the width of what was drawn already changes
 */
export function watchWidth(node, changed) {
  let width = 0;
  let used = false;
  new ResizeObserver(() => {
    if (node.clientWidth === width || !node.clientWidth) return;
    width = node.clientWidth;
    if (used) changed();
  }).observe(node);
  return () => {
    used = true;
    width ||= node.clientWidth;
    return width;
  };
}

const rulers = new Map();

function rulerOf(size) {
  if (!rulers.has(size)) {
    const ruler = document.createElement("canvas").getContext("2d");
    ruler.font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
    rulers.set(size, ruler);
  }
  return rulers.get(size);
}

/** Returns the width of a text in pixels. */
export function textWidth(text, size = 13) {
  return rulerOf(size).measureText(text).width;
}

/** Shortens a text to a width in pixels. */
export function shortened(text, width, size = 13) {
  if (textWidth(text, size) <= width) return text;
  const letters = [...text];
  while (letters.length > 1 && textWidth(`${letters.join("")}…`, size) > width) letters.pop();
  return `${letters.join("")}…`;
}
