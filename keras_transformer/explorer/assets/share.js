import { announce, button, element, vector } from "./dom.js";

const STYLES = [
  "fill",
  "fill-opacity",
  "stroke",
  "stroke-width",
  "stroke-opacity",
  "stroke-dasharray",
  "stroke-linecap",
  "opacity",
  "font-family",
  "font-size",
  "font-weight",
  "text-anchor",
  "dominant-baseline",
  "unicode-bidi",
  "direction",
];

function isHidden(node) {
  const style = getComputedStyle(node);
  return style.display === "none" || style.visibility === "hidden";
}

/** Returns a picture as the text of an SVG file that needs no style sheet. */
export function svgText(picture) {
  const copy = picture.cloneNode(true);
  const originals = [picture, ...picture.querySelectorAll("*")];
  const hidden = [];
  [copy, ...copy.querySelectorAll("*")].forEach((node, i) => {
    if (isHidden(originals[i])) hidden.push(node);
    const style = getComputedStyle(originals[i]);
    for (const name of STYLES) {
      const value = style.getPropertyValue(name);
      if (value) node.setAttribute(name, value);
    }
    for (const name of ["class", "style", "tabindex", "role", "data-key"]) node.removeAttribute(name);
  });
  hidden.forEach((node) => node.remove());
  const [width, height] = ["width", "height"].map((name) => Number(picture.getAttribute(name)));
  const paper = getComputedStyle(document.body).getPropertyValue("--surface").trim();
  copy.prepend(vector("rect", { width, height, fill: paper }));
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return new XMLSerializer().serializeToString(copy);
}

/** Offers a text to the reader as a file. */
export function download(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = element("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** Copies a text and says so. */
export async function copyText(text, message) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = element("textarea", { class: "unseen" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  announce(message);
}

function tableElement({ caption, head, rows }) {
  return element(
    "table",
    {},
    element("caption", {}, caption),
    element(
      "thead",
      {},
      element(
        "tr",
        {},
        head.map((text) => element("th", { scope: "col", dir: "auto" }, text)),
      ),
    ),
    element(
      "tbody",
      {},
      rows.map(([first, ...rest]) =>
        element(
          "tr",
          {},
          element("th", { scope: "row", dir: "auto" }, first),
          rest.map((text) => element("td", { dir: "auto" }, text)),
        ),
      ),
    ),
  );
}

function tabSeparated({ head, rows }) {
  const plain = (text) =>
    String(text)
      .replace(/[\t\r\n]+/g, " ")
      .replaceAll("−", "-");
  return [head, ...rows].map((row) => row.map(plain).join("\t")).join("\n");
}

/** Returns a name that differs between the two sides. */
export function sideName(name, index) {
  return index ? `${name}, second model` : name;
}

/**
 * Makes the buttons of a picture: its table, and its file.
 * @param name of the picture, in words
 * @param svg function that returns the picture as an SVG element
 * @param table function that returns {caption, head, rows} of texts
 * @param file function that returns the name of the file
 * @returns {{buttons: HTMLElement, place: HTMLElement, redraw: function, close: function}} the table is in `place`
 */
export function pictureTools({ name, svg, table, file }) {
  const place = element("div", { class: "table-place", hidden: true });
  const toggle = button(
    "Table",
    () => {
      open(place.hidden);
      redraw();
    },
    { "aria-expanded": "false", "aria-label": `Table: ${name}`, class: "tool table-toggle" },
  );
  const save = button(
    "SVG",
    () => {
      download(`${file()}.svg`, "image/svg+xml", svgText(svg()));
      announce(`Saved ${file()}.svg`);
    },
    { "aria-label": `Save as SVG: ${name}`, class: "tool svg-save" },
  );

  function open(isOpen) {
    place.hidden = !isOpen;
    toggle.setAttribute("aria-expanded", String(isOpen));
  }

  function redraw() {
    if (place.hidden) return;
    const content = table();
    place.replaceChildren(
      button("Copy the table", () => copyText(tabSeparated(content), "Table copied."), { class: "tool" }),
      element(
        "div",
        { class: "scroll", tabindex: "0", role: "region", "aria-label": `Table: ${name}` },
        tableElement(content),
      ),
    );
  }

  return { buttons: element("div", { class: "tools" }, toggle, save), place, redraw, close: () => open(false) };
}
