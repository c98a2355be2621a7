import { element, oneTabStop, pieceSpans, roveFocus, shortened, textWidth, vector, watchWidth } from "./dom.js";

const TOKEN_SIZE = 13;
const GAP = 8;
const THINNEST = 0.015;
const DEPTH = 250;
const ROW = 25;
const COLUMN = 120;

/** Places both rows of tokens side by side as lines of text if they fit in the width, else as two columns. */
function layout({ keys, queries }, width) {
  const widths = (texts) => texts.map((text) => Math.min(COLUMN, textWidth(text, TOKEN_SIZE)) + 14);
  const sizes = { keys: widths(keys), queries: widths(queries) };
  const length = (list) => list.reduce((sum, each) => sum + each + GAP, -GAP);
  const longest = Math.max(length(sizes.keys), length(sizes.queries));
  if (longest + 4 <= width) return lines(sizes, width, longest);
  return columns(sizes, width);
}

function lines(sizes, width) {
  const place = (list, y) => {
    const spare = width - 4 - list.reduce((sum, each) => sum + each, 0);
    const gap = Math.min(38, spare / Math.max(1, list.length - 1));
    let x = 2 + (width - 4 - list.reduce((sum, each) => sum + each, 0) - gap * (list.length - 1)) / 2;
    return list.map((size) => {
      const box = { x, y, width: size, height: ROW };
      x += size + gap;
      return box;
    });
  };
  const top = 24;
  const bottom = top + ROW + DEPTH;
  return {
    keys: place(sizes.keys, top),
    queries: place(sizes.queries, bottom),
    width,
    height: bottom + ROW + 24,
    flat: true,
    titles: [
      [2, 14],
      [2, bottom + ROW + 17],
    ],
  };
}

function columns(sizes, width) {
  const space = Math.max(...sizes.keys, ...sizes.queries);
  const total = Math.max(240, Math.min(width, 2 * space + 420));
  const place = (list, right) =>
    list.map((size, i) => ({
      x: right ? total - space : space - size,
      y: 24 + i * (ROW + 2),
      width: size,
      height: ROW,
    }));
  const height = 24 + Math.max(sizes.keys.length, sizes.queries.length) * (ROW + 2) + 4;
  return {
    keys: place(sizes.keys, false),
    queries: place(sizes.queries, true),
    width: total,
    height,
    flat: false,
    titles: [
      [0, 14],
      [total, 14],
    ],
  };
}

function ends(from, to, flat) {
  if (flat) return [from.x + from.width / 2, from.y + from.height + 2, to.x + to.width / 2, to.y - 2];
  return [from.x + from.width + 3, from.y + from.height / 2, to.x - 3, to.y + to.height / 2];
}

function curve([x1, y1, x2, y2], flat) {
  const middle = flat ? (y1 + y2) / 2 : (x1 + x2) / 2;
  return flat
    ? `M${x1} ${y1}C${x1} ${middle} ${x2} ${middle} ${x2} ${y2}`
    : `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`;
}

/**
 * Makes the picture with a line from each query to each key; the thicker, the larger the weight.
 * @param events {hover({query} or {key}) or hover(null), select(axis, index), clear()}
 * @returns {{element: HTMLElement, draw: function, mark: function, svg: function}}
 */
export function createArcs(events) {
  const place = element("div", { class: "canvas-scroll arcs" });
  const widthOf = watchWidth(place, () => draw(picture));
  let picture = null;
  let root = null;
  let drawn = [];
  let tokens = [];
  roveFocus(place, ".token-box");

  function lineOf(weight, query, key, plan) {
    const path = vector("path", {
      d: curve(ends(plan.keys[key], plan.queries[query], plan.flat), plan.flat),
      class: "arc",
      "stroke-width": (0.4 + 7 * weight).toFixed(2),
      "stroke-opacity": (0.12 + 0.78 * weight).toFixed(2),
    });
    drawn.push({ path, query, key });
    return path;
  }

  function allLines(plan) {
    const found = [];
    drawn = [];
    for (let query = 0; query < picture.rows; query += 1) {
      for (let key = 0; key < picture.columns; key += 1) {
        const weight = picture.values[query * picture.columns + key];
        if (weight >= THINNEST) found.push(lineOf(weight, query, key, plan));
      }
    }
    return found;
  }

  function linkLines(plan) {
    return picture.links.map(([key, query]) => {
      const at = { query, key };
      const path = vector("path", {
        d: curve(ends(plan.keys[key], plan.queries[query], plan.flat), plan.flat),
        class: "link",
      });
      drawn.push({ path, ...at });
      return path;
    });
  }

  function tokenBox(axis, i, box, row, flat) {
    const text = (axis === "keys" ? picture.keys : picture.queries)[i];
    const at = axis === "keys" ? { key: i } : { query: i };
    const choose = (event) => {
      if (event.type === "keydown" && event.key === "Escape") events.clear();
      if (event.type === "keydown" && event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      events.select(axis, i);
    };
    const chosen = picture.selected[axis].has(i);
    const node = vector(
      "g",
      {
        class: chosen ? "token-box chosen" : "token-box",
        role: "button",
        tabindex: "-1",
        "aria-pressed": String(chosen),
        "aria-label": `${axis === "keys" ? "key" : "query"} ${i + 1}: ${text}`,
        "data-key": `${axis}-${i}`,
        "data-row": flat ? row : i,
        "data-column": flat ? i : row,
        click: choose,
        keydown: choose,
        pointerenter: () => events.hover(at),
        pointerleave: () => events.hover(null),
        focus: () => events.hover(at),
        blur: () => events.hover(null),
      },
      vector("rect", { ...box, rx: 6 }),
      vector("title", {}, text),
    );
    tokens.push({ node, axis, index: i });
    return [
      node,
      vector(
        "text",
        {
          x: box.x + box.width / 2,
          y: box.y + box.height / 2 + 0.5,
          "text-anchor": "middle",
          "dominant-baseline": "central",
          class: "token-text",
          "aria-hidden": "true",
        },
        pieceSpans(shortened(text, COLUMN, TOKEN_SIZE)),
      ),
    ];
  }

  function passes(query, key) {
    const { queries, keys } = picture.selected;
    return (!queries.size || queries.has(query)) && (!keys.size || keys.has(key));
  }

  function fits(at, query, key) {
    return (at.query === undefined || at.query === query) && (at.key === undefined || at.key === key);
  }

  function mark(at) {
    for (const { path, query, key } of drawn) {
      path.classList.toggle("dim", !(at ? fits(at, query, key) : passes(query, key)));
    }
    for (const { node, axis, index } of tokens) {
      const marked = at && (axis === "keys" ? at.key === index : at.query === index);
      node.classList.toggle("marked", Boolean(marked));
    }
  }

  function draw(given) {
    picture = given;
    tokens = [];
    const plan = layout(picture, Math.max(240, widthOf() || 560));
    const title = ([x, y], text, end) =>
      vector("text", { x, y, class: "axis-title", "text-anchor": end ? "end" : "start" }, text);
    root = vector(
      "svg",
      {
        width: plan.width,
        height: plan.height,
        viewBox: `0 0 ${plan.width} ${plan.height}`,
        class: `picture ${picture.kind}`,
        role: "group",
        "aria-label": `${picture.name}, lines between tokens`,
      },
      title(plan.titles[0], picture.keyTitle),
      title(plan.titles[1], picture.queryTitle, !plan.flat),
      vector("g", {}, allLines(plan), linkLines(plan)),
      picture.keys.map((_, i) => tokenBox("keys", i, plan.keys[i], 0, plan.flat)),
      picture.queries.map((_, i) => tokenBox("queries", i, plan.queries[i], 1, plan.flat)),
    );
    place.replaceChildren(root);
    oneTabStop(place, ".token-box");
    mark(null);
  }

  return {
    element: place,
    draw,
    mark,
    /** Shows which tokens are selected now. */
    select() {
      for (const { node, axis, index } of tokens) {
        const chosen = picture.selected[axis].has(index);
        node.classList.toggle("chosen", chosen);
        node.setAttribute("aria-pressed", String(chosen));
      }
      mark(null);
    },
    svg: () => root,
  };
}
