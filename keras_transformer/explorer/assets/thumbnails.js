import { element, oneTabStop, roveFocus, setAttribute, vector } from "./dom.js";
import { attentionMatrix, KIND_NAMES, sharpness, shown } from "./numbers.js";
import { sameHead, switchedHeads } from "./state.js";

const RESOLUTION = 64;

// How opaque a weight is shown: a table, as there are many weights.
const OPACITY = Uint8ClampedArray.from({ length: 1025 }, (_, i) => 255 * (i / 1024) ** 0.7);

const colours = new Map();

function colourOf(kind) {
  if (!colours.has(kind)) {
    const colour = getComputedStyle(document.documentElement).getPropertyValue(`--${kind}-rgb`).trim();
    colours.set(kind, colour.split(" ").map(Number));
  }
  return colours.get(kind);
}

function paint(canvas, matrix, rows, columns, [red, green, blue]) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  for (let i = 0; i < matrix.length; i += 1) {
    image.data[4 * i] = red;
    image.data[4 * i + 1] = green;
    image.data[4 * i + 2] = blue;
    image.data[4 * i + 3] = OPACITY[Math.round(1024 * Math.min(1, matrix[i]))];
  }
  context.putImageData(image, 0, 0);
  canvas.classList.toggle("pixels", rows < RESOLUTION && columns < RESOLUTION);
}

function cellName(kind, layer, head) {
  const where = layer === "all" ? "all layers" : `layer ${layer + 1}`;
  if (typeof head === "number") return `${where}, head ${head + 1}`;
  return head === "rollout" ? "attention rollout over all layers" : `${where}, ${head} over heads`;
}

/** Returns what the large picture of a head, or of pooled heads, is called. */
export function viewName({ kind, layer, head }) {
  return `${KIND_NAMES[kind]}: ${cellName(kind, layer, head)}`;
}

function cellsOf(kind, attention) {
  const cells = [];
  for (let layer = 0; layer < attention.layers; layer += 1) {
    for (let head = 0; head < attention.heads; head += 1) cells.push({ kind, layer, head });
    cells.push({ kind, layer, head: "mean" }, { kind, layer, head: "max" });
  }
  cells.push({ kind, layer: "all", head: "mean" }, { kind, layer: "all", head: "max" });
  if (kind !== "cross") cells.push({ kind, layer: "all", head: "rollout" });
  return cells;
}

function gridColumn(cell, heads) {
  if (typeof cell.head === "number") return cell.head;
  if (cell.head === "rollout") return heads - 1;
  return cell.head === "mean" ? heads : heads + 1;
}

/**
 * Makes the thumbnails of one kind of attention: a row for each layer, then the pooled ones.
 * @returns {{element: HTMLElement, draw: function, paint: function, svg: function, table: function}}
 */
export function createThumbnails(kind, index, actions) {
  const grid = element("div", { class: "thumbnails", role: "grid", "aria-label": `${KIND_NAMES[kind]}, heads` });
  const figure = element("div", { class: `kind ${kind}` }, element("h3", {}, KIND_NAMES[kind]), grid);
  let items = [];
  let shape = "";
  let painted = null;
  let attention = null;
  roveFocus(grid, ".thumbnail");
  let headsOff = [];

  function toggle(cell) {
    actions.change(index, { heads_off: switchedHeads(headsOff, cell) });
  }

  function makeItem(cell) {
    const canvas = element("canvas", { "aria-hidden": "true" });
    const single = typeof cell.head === "number";
    const row = cell.layer === "all" ? attention.layers : cell.layer;
    const column = gridColumn(cell, attention.heads);
    const open = element(
      "button",
      {
        type: "button",
        class: "thumbnail",
        "data-row": row,
        "data-column": column,
        "data-key": `${kind}-${cell.layer}-${cell.head}`,
        click: () => actions.look(cell),
        keydown: (event) => {
          if (!single || !["x", "Delete"].includes(event.key) || event.ctrlKey || event.metaKey) return;
          event.preventDefault();
          toggle(cell);
        },
      },
      canvas,
    );
    const power = single
      ? element("button", { type: "button", class: "power", tabindex: "-1", click: () => toggle(cell) })
      : null;
    const node = element("div", { role: "gridcell", class: single ? "cell" : "cell pooled" }, open, power);
    node.style.gridColumn = String(column + 2);
    return { cell, node, open, canvas, power, row };
  }

  function header(text, column) {
    const node = element("span", { class: "grid-label", role: "columnheader" }, text);
    node.style.gridColumn = String(column + 2);
    return node;
  }

  function build() {
    items = cellsOf(kind, attention).map(makeItem);
    grid.style.setProperty("--columns", String(attention.heads + 2));
    const heads = [...Array(attention.heads).keys()].map((head) => header(`${head + 1}`, head));
    const corner = element(
      "span",
      { class: "grid-label", role: "columnheader" },
      element("span", { class: "unseen" }, "Layer"),
    );
    const top = [corner, ...heads, header("mean", attention.heads), header("max", attention.heads + 1)];
    const rows = [...Array(attention.layers + 1).keys()].map((row) =>
      element(
        "div",
        { role: "row", class: "grid-row" },
        element("span", { class: "grid-label", role: "rowheader" }, row < attention.layers ? `${row + 1}` : "all"),
        items.filter((item) => item.row === row).map((item) => item.node),
      ),
    );
    if (kind !== "cross") rows.at(-1).children[1].before(rolloutLabel());
    grid.replaceChildren(element("div", { role: "row", class: "grid-row head" }, top), ...rows);
    items.filter((item) => item.cell.head === "rollout").forEach((item) => rows.at(-1).children[1].after(item.node));
  }

  function rolloutLabel() {
    const label = element("span", { class: "grid-label rollout-label", role: "presentation" }, "rollout");
    label.style.gridColumn = `2 / ${attention.heads + 1}`;
    return label;
  }

  function describe(item, view) {
    const off = headsOff.some((each) => sameHead(each, item.cell));
    item.node.classList.toggle("off", off);
    const name = cellName(kind, item.cell.layer, item.cell.head);
    item.open.setAttribute("aria-label", off ? `${name}, switched off` : name);
    item.open.title = item.power ? `${name} – x switches it ${off ? "on" : "off"}` : name;
    const current = view.kind === kind && view.layer === item.cell.layer && view.head === item.cell.head;
    setAttribute(item.open, "aria-current", current ? "true" : null);
    if (!item.power) return;
    item.power.setAttribute("aria-pressed", String(off));
    item.power.setAttribute("aria-label", `Switch ${name} ${off ? "on" : "off"}`);
    item.power.textContent = off ? "○" : "×";
  }

  return {
    element: figure,
    /** Shows which head is current and which are off; `paint` then draws the weights. */
    draw(inspection, view, off) {
      attention = inspection.attention[kind];
      headsOff = off;
      const wanted = `${attention.layers} ${attention.heads}`;
      if (wanted !== shape) build();
      shape = wanted;
      items.forEach((item) => describe(item, view));
      const current = items.find((item) => item.open.hasAttribute("aria-current"));
      if (!grid.contains(document.activeElement)) oneTabStop(grid, ".thumbnail", current?.open);
    },
    /** Draws the weights of all heads, unless they are drawn already. */
    paint(recolour) {
      if (recolour) colours.delete(kind);
      else if (painted === attention) return;
      painted = attention;
      for (const { canvas, cell } of items) {
        const matrix = attentionMatrix(attention, cell.layer, cell.head);
        paint(canvas, matrix, attention.rows, attention.columns, colourOf(kind));
      }
    },
    markHeads(view, off) {
      headsOff = off;
      items.forEach((item) => describe(item, view));
    },
    /** Returns the thumbnails as an SVG group that starts at a height, and the height after it. */
    svg(top, size) {
      const group = vector("g", {}, vector("text", { x: 0, y: top + 12, class: "picture-title" }, KIND_NAMES[kind]));
      for (const item of items) {
        const x = 30 + gridColumn(item.cell, attention.heads) * (size + 4);
        const y = top + 22 + item.row * (size + 4);
        group.append(
          vector("rect", { x, y, width: size, height: size, class: "frame" }),
          vector("image", {
            x,
            y,
            width: size,
            height: size,
            href: item.canvas.toDataURL(),
            preserveAspectRatio: "none",
          }),
        );
      }
      const width = 30 + (attention.heads + 2) * (size + 4);
      return { group, width, bottom: top + 30 + (attention.layers + 1) * (size + 4) };
    },
    /** Returns a row of texts for each thumbnail. */
    table() {
      return items.map(({ cell }) => {
        const matrix = attentionMatrix(attention, cell.layer, cell.head);
        const { entropy, largest } = sharpness(matrix, attention.rows, attention.columns);
        const off = headsOff.some((each) => sameHead(each, cell));
        const layer = cell.layer === "all" ? "all" : `${cell.layer + 1}`;
        const head = typeof cell.head === "number" ? `${cell.head + 1}` : cell.head;
        return [KIND_NAMES[kind], layer, head, off ? "off" : "on", shown(entropy), shown(largest)];
      });
    },
  };
}
