import { announce, button, element, keepFocus, vector, watchWidth } from "./dom.js";
import { createArcs } from "./arcs.js";
import { createMatrix } from "./matrix.js";
import { attentionMatrix, KINDS, shown } from "./numbers.js";
import { pictureTools, sideName } from "./share.js";
import { sameHead, switchedHeads } from "./state.js";
import { createThumbnails, viewName } from "./thumbnails.js";

const LONG = 20;
const READING = {
  encoder: "Each source token (query) attends to source tokens (keys).",
  cross: "The step that produces a target token (query) attends to source tokens (keys).",
  decoder: "The step that produces a target token (query) attends to the tokens written before it (keys).",
};
const TITLES = {
  encoder: ["source: keys", "source: queries"],
  cross: ["source: keys", "target: queries"],
  decoder: ["target so far: keys", "target: queries"],
};

/** Fits a view to a model that may have fewer layers or heads. */
function fitted(view, attention) {
  const layer = view.layer === "all" ? "all" : Math.min(view.layer, attention.layers - 1);
  const head = typeof view.head === "number" ? Math.min(view.head, attention.heads - 1) : view.head;
  return { kind: view.kind, layer: typeof head === "number" && layer === "all" ? 0 : layer, head };
}

function selectedIn(view, { rows, columns }) {
  const inside = (list, size) => new Set(list.filter((i) => i < size));
  return { queries: inside(view.queries, rows), keys: inside(view.keys, columns) };
}

function pictureOf(inspection, view) {
  const attention = inspection.attention[view.kind];
  const { kind, layer, head } = fitted(view, attention);
  const source = inspection.source.map((piece) => piece.text);
  const target = inspection.target.map((piece) => piece.text);
  const keys = kind === "decoder" ? ["<s>", ...target].slice(0, target.length) : source;
  return {
    kind,
    layer,
    head,
    name: viewName({ kind, layer, head }),
    rows: attention.rows,
    columns: attention.columns,
    values: attentionMatrix(attention, layer, head),
    keys,
    queries: kind === "encoder" ? source : target,
    links: kind === "cross" && view.alignment ? inspection.alignment : [],
    selected: selectedIn(view, attention),
    keyTitle: TITLES[kind][0],
    queryTitle: TITLES[kind][1],
  };
}

function matrixTable({ name, keys, queries, values, columns }) {
  const rows = queries.map((text, row) => [text, ...keys.map((_, i) => shown(values[row * columns + i], 3))]);
  return { caption: `${name}: weights`, head: ["query \\ key", ...keys], rows };
}

function arcTable({ name, keys, queries, values, columns, links, rows: count }) {
  const linked = new Set(links.map(([key, query]) => query * columns + key));
  const found = [];
  for (let at = 0; at < count * columns; at += 1) {
    if (values[at] >= 0.05 || linked.has(at)) found.push(at);
  }
  found.sort((a, b) => values[b] - values[a]);
  const rows = found.map((at) => [
    queries[Math.floor(at / columns)],
    keys[at % columns],
    shown(values[at], 3),
    linked.has(at) ? "yes" : "",
  ]);
  return { caption: `${name}: weights from 0.05, largest first`, head: ["Query", "Key", "Weight", "Aligned"], rows };
}

function drawing(title, picture, tools) {
  return element(
    "div",
    { class: "drawing" },
    element("div", { class: "drawing-head" }, element("h4", {}, title), tools.buttons),
    picture.element,
    tools.place,
  );
}

/**
 * Makes the attention of one model: thumbnails of all heads, and one of them large.
 * @returns {{element: HTMLElement, draw: function, paint: function, mark: function}}
 */
export function createAttention(index, actions) {
  const thumbnails = Object.fromEntries(KINDS.map((kind) => [kind, createThumbnails(kind, index, actions)]));
  const title = element("h3", {});
  const reading = element("p", { class: "note" });
  const power = button("", () => actions.change(index, { heads_off: switchedHeads(side.heads_off, current) }), {
    class: "tool switch",
    "data-key": "power",
  });
  const align = element("input", { type: "checkbox", change: () => actions.look({ alignment: align.checked }) });
  const alignLabel = element("label", { class: "check" }, align, "alignment");
  const clear = button("Clear the selection", () => actions.look({ queries: [], keys: [] }), { class: "tool" });
  const readout = element("p", { class: "readout" });
  let side = null;
  let current = null;
  let picture = null;
  let view = null;

  const events = {
    hover: (at) => actions.hover(index, at && { ...at, kind: current.kind }),
    select(axis, i) {
      const rest = view[axis].filter((each) => each !== i);
      actions.look({ [axis]: rest.length < view[axis].length ? rest : [...rest, i] });
    },
    clear: () => actions.look({ queries: [], keys: [] }),
    say: (at) => announce(weightText(at)),
  };
  const matrix = createMatrix(events);
  const arcs = createArcs(events);
  const counted = (number) => (typeof number === "number" ? number + 1 : number);
  const fileName = (what) => () => `${what}-${current.kind}-${counted(current.layer)}-${counted(current.head)}`;
  const tools = {
    all: pictureTools({
      name: sideName("all heads", index),
      svg: overviewPicture,
      file: () => "attention-heads",
      table: overviewTable,
    }),
    matrix: pictureTools({
      name: sideName("matrix", index),
      svg: () => matrix.svg(),
      file: fileName("matrix"),
      table: () => matrixTable(picture),
    }),
    arcs: pictureTools({
      name: sideName("lines", index),
      svg: () => arcs.svg(),
      file: fileName("lines"),
      table: () => arcTable(picture),
    }),
  };

  /** Makes the thumbnails as large as the place for three kinds, or for one on a narrow screen, allows. */
  function setThumbnailSize() {
    const columns = Math.max(...KINDS.map((kind) => side.inspection.attention[kind].heads)) + 2;
    const width = widthOf() || 900;
    const room = (kinds) => (width - (kinds - 1) * 24) / kinds - 32;
    const size = Math.floor(room(room(3) / columns < 26 ? 1 : 3) / columns) - 4;
    overview.style.setProperty("--thumb", `${Math.max(24, Math.min(54, size))}px`);
  }

  function overviewTable() {
    const head = ["Kind", "Layer", "Head", "State", "Mean entropy (nats)", "Largest weight"];
    return { caption: "All heads", head, rows: KINDS.flatMap((kind) => thumbnails[kind].table()) };
  }

  function overviewPicture() {
    const root = vector("svg", { class: "picture unseen" });
    let [top, width] = [6, 0];
    for (const kind of KINDS) {
      const part = thumbnails[kind].svg(top, 56);
      root.append(part.group);
      width = Math.max(width, part.width);
      top = part.bottom + 14;
    }
    root.setAttribute("width", width);
    root.setAttribute("height", top);
    document.body.append(root);
    setTimeout(() => root.remove());
    return root;
  }

  function weightText(at) {
    if (!picture || !at) return "";
    const query = picture.queries[at.query];
    const key = picture.keys[at.key];
    if (query !== undefined && key !== undefined) {
      const weight = picture.values[at.query * picture.columns + at.key];
      return `${query} attends to ${key}: ${shown(weight, 3)}`;
    }
    if (query !== undefined)
      return `${query} attends most to ${strongest(picture.keys, (i) => at.query * picture.columns + i)}`;
    return key === undefined
      ? ""
      : `${key} gets most from ${strongest(picture.queries, (i) => i * picture.columns + at.key)}`;
  }

  function strongest(texts, place) {
    const weights = texts.map((text, i) => [text, picture.values[place(i)]]).sort((a, b) => b[1] - a[1]);
    return weights
      .slice(0, 3)
      .map(([text, weight]) => `${text} (${shown(weight)})`)
      .join(", ");
  }

  /** Draws the line above the large picture. */
  function drawHead() {
    title.textContent = picture.name;
    reading.textContent = READING[picture.kind];
    const single = typeof current.head === "number";
    const off = single && side.heads_off.some((each) => sameHead(each, current));
    power.hidden = !single;
    power.textContent = off ? "Head is off: switch it on" : "Switch this head off";
    power.setAttribute("aria-pressed", String(off));
    alignLabel.hidden = picture.kind !== "cross";
    align.checked = view.alignment;
    clear.hidden = !picture.selected.queries.size && !picture.selected.keys.size;
  }

  const pictures = element(
    "div",
    { class: "pictures" },
    drawing("Matrix", matrix, tools.matrix),
    drawing("Lines", arcs, tools.arcs),
  );
  const detail = element(
    "div",
    { class: "detail" },
    element("div", { class: "detail-head" }, title, power, alignLabel, clear),
    reading,
    pictures,
    readout,
  );
  const overview = element(
    "div",
    { class: "overview" },
    KINDS.map((kind) => thumbnails[kind].element),
  );
  const widthOf = watchWidth(overview, () => setThumbnailSize());
  const name = element("h3", { class: "side-name" });
  const root = element("div", { class: "side" }, name, overview, tools.all.buttons, tools.all.place, detail);

  return {
    element: root,
    /** Draws all but the weights in the thumbnails, which `paint` draws. */
    draw(given, choices, compared) {
      side = given;
      view = choices.view;
      name.hidden = !compared;
      name.textContent = `${"AB"[index]} · ${side.model}`;
      if (!side.inspection) return;
      picture = pictureOf(side.inspection, view);
      current = { kind: picture.kind, layer: picture.layer, head: picture.head };
      setThumbnailSize();
      for (const kind of KINDS) thumbnails[kind].draw(side.inspection, current, side.heads_off);
      drawHead();
      pictures.classList.toggle("even", picture.columns > LONG);
      matrix.draw(picture);
      keepFocus(arcs.element, () => arcs.draw(picture));
      readout.textContent = "Point at a token or a cell to read its weights.";
      Object.values(tools).forEach((each) => each.redraw());
    },
    /** Draws the weights of one kind of attention in the thumbnails, if they changed. */
    paint(kind, recolour) {
      if (side?.inspection) thumbnails[kind].paint(recolour);
    },
    /** Shows which queries and keys are selected. */
    select(given) {
      if (!picture) return;
      view = given;
      picture.selected = selectedIn(view, picture);
      drawHead();
      matrix.select();
      arcs.select();
    },
    /** Shows at once which heads are off, before the answers are there. */
    markHeads(headsOff) {
      if (side?.inspection) KINDS.forEach((kind) => thumbnails[kind].markHeads(current, headsOff));
    },
    /** Marks a query and a key of the shown kind, or a target token. */
    mark(at) {
      if (!picture) return;
      let found = at;
      if (at?.target !== undefined) found = picture.kind === "encoder" ? null : { query: at.target };
      matrix.mark(found);
      arcs.mark(found);
      if (found) readout.textContent = weightText(found);
    },
  };
}
