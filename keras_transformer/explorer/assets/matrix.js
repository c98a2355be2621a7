import { element, hasModifier, pieceSpans, shortened, textWidth, vector, watchWidth } from "./dom.js";

const LEVELS = 20;
const LABEL = 110;
const SIZE = 12;

function labelSpace(labels) {
  return Math.min(LABEL, Math.max(...labels.map((label) => textWidth(label, SIZE)))) + 10;
}

function cellPaths({ values, rows, columns }, side, left, top) {
  const paths = Array.from({ length: LEVELS + 1 }, () => []);
  for (let row = 0; row < rows; row += 1) {
    for (let column = 0; column < columns; column += 1) {
      const level = Math.round(LEVELS * Math.min(1, values[row * columns + column]) ** 0.7);
      if (level) paths[level].push(`M${left + column * side} ${top + row * side}h${side - 1}v${side - 1}h${1 - side}z`);
    }
  }
  return paths.flatMap((parts, level) =>
    parts.length
      ? [vector("path", { d: parts.join(""), class: "weight", "fill-opacity": (level / LEVELS).toFixed(2) })]
      : [],
  );
}

function veils({ rows, columns, selected }, side, left, top) {
  const veil = (x, y, width, height) => vector("rect", { x, y, width, height, class: "veil" });
  const found = [];
  for (let row = 0; selected.queries.size && row < rows; row += 1) {
    if (!selected.queries.has(row)) found.push(veil(left, top + row * side, columns * side, side));
  }
  for (let column = 0; selected.keys.size && column < columns; column += 1) {
    if (!selected.keys.has(column)) found.push(veil(left + column * side, top, side, rows * side));
  }
  return found;
}

function rings({ links }, side, left, top) {
  return links.map(([key, query]) =>
    vector("circle", {
      cx: left + (key + 0.5) * side - 0.5,
      cy: top + (query + 0.5) * side - 0.5,
      r: side / 2 - 2,
      class: "ring",
    }),
  );
}

/**
 * Makes the attention matrix: a row for each query, a column for each key.
 * @param events {hover({query, key}) or hover(null), select(axis, index), clear(), say(query, key)}
 * @returns {{element: HTMLElement, draw: function, mark: function, svg: function}}
 */
export function createMatrix(events) {
  const place = element("div", { class: "canvas-scroll" });
  const frame = element(
    "div",
    {
      class: "matrix",
      tabindex: "0",
      role: "application",
      "aria-roledescription": "attention matrix",
    },
    place,
  );
  const widthOf = watchWidth(place, () => draw(picture));
  let picture = null;
  let root = null;
  let marks = null;
  let filter = null;
  let geometry = null;
  let cursor = { query: 0, key: 0 };

  function labels(axis) {
    const { left, top, side } = geometry;
    const texts = axis === "queries" ? picture.queries : picture.keys;
    return texts.map((text, i) => {
      const label = vector(
        "text",
        { class: "label", "data-axis": axis, "data-index": i },
        pieceSpans(shortened(text, LABEL, SIZE)),
        vector("title", {}, text),
      );
      if (axis === "queries") {
        const at = { x: left - 6, y: top + (i + 0.5) * side, "text-anchor": "end", "dominant-baseline": "central" };
        Object.entries(at).forEach(([name, value]) => label.setAttribute(name, value));
      } else {
        const x = left + (i + 0.5) * side;
        label.setAttribute("transform", `translate(${x} ${top - 6}) rotate(-60)`);
        label.setAttribute("dominant-baseline", "central");
      }
      return label;
    });
  }

  function measure() {
    const width = Math.max(240, widthOf() || 480);
    const left = labelSpace(picture.queries);
    const slope = labelSpace(picture.keys);
    const top = Math.ceil(slope * 0.9) + 10;
    const right = Math.ceil(slope * 0.5) + 4;
    const side = Math.floor(Math.min(34, Math.max(13, (width - left - right) / picture.columns)));
    geometry = { left, top, side, right };
    return { width: Math.ceil(left + picture.columns * side + right), height: top + picture.rows * side + 4 };
  }

  function cellAt(event) {
    const box = root.getBoundingClientRect();
    const key = Math.floor((event.clientX - box.left - geometry.left) / geometry.side);
    const query = Math.floor((event.clientY - box.top - geometry.top) / geometry.side);
    const inside = key >= 0 && query >= 0 && key < picture.columns && query < picture.rows;
    return inside ? { query, key } : null;
  }

  function labelAt(event) {
    const { axis, index } = event.target.dataset ?? {};
    return axis ? { axis, index: Number(index) } : null;
  }

  function press(event) {
    const label = labelAt(event);
    const cell = cellAt(event);
    if (label) events.select(label.axis, label.index);
    else if (cell) events.select("queries", cell.query);
  }

  function hover(event) {
    const label = labelAt(event);
    if (label) events.hover(label.axis === "queries" ? { query: label.index } : { key: label.index });
    else events.hover(cellAt(event));
  }

  frame.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (hasModifier(event)) return;
    if (event.key === "Escape") events.clear();
    else if (event.key === "Enter" || event.key === " ")
      events.select(event.shiftKey ? "keys" : "queries", event.shiftKey ? cursor.key : cursor.query);
    else if (steps[event.key]) {
      const [down, right] = steps[event.key];
      cursor = {
        query: Math.min(picture.rows - 1, Math.max(0, cursor.query + down)),
        key: Math.min(picture.columns - 1, Math.max(0, cursor.key + right)),
      };
      events.hover(cursor);
      events.say(cursor);
    } else return;
    event.preventDefault();
  });
  frame.addEventListener("focus", () => {
    if (frame.matches(":focus-visible")) events.hover(cursor);
  });
  frame.addEventListener("blur", () => events.hover(null));

  function draw(given) {
    picture = given;
    cursor = { query: Math.min(cursor.query, picture.rows - 1), key: Math.min(cursor.key, picture.columns - 1) };
    const { width, height } = measure();
    const { left, top, side } = geometry;
    const frameSize = { x: left - 1, y: top - 1, width: picture.columns * side + 1, height: picture.rows * side + 1 };
    marks = vector("g", {});
    filter = vector("g", {});
    root = vector(
      "svg",
      {
        width,
        height,
        viewBox: `0 0 ${width} ${height}`,
        class: `picture ${picture.kind}`,
        "aria-hidden": "true",
        click: press,
        pointermove: hover,
        pointerleave: () => events.hover(null),
      },
      vector("rect", { ...frameSize, class: "frame" }),
      cellPaths(picture, side, left, top),
      rings(picture, side, left, top),
      filter,
      marks,
      labels("queries"),
      labels("keys"),
    );
    place.replaceChildren(root);
    select();
    const keys = "Arrow keys move from cell to cell, Enter selects the query, Shift and Enter the key, Escape clears.";
    frame.setAttribute("aria-label", `${picture.name}. ${keys}`);
  }

  /** Shows which queries and keys are selected now. */
  function select() {
    filter.replaceChildren(...veils(picture, geometry.side, geometry.left, geometry.top));
    for (const label of root.querySelectorAll(".label")) {
      label.classList.toggle("chosen", picture.selected[label.dataset.axis].has(Number(label.dataset.index)));
    }
  }

  return {
    element: frame,
    draw,
    select,
    /** Marks a row, a column, or both; null marks nothing. */
    mark(at) {
      if (!root) return;
      const { left, top, side } = geometry;
      const found = [];
      if (at?.query !== undefined && at.query < picture.rows) {
        found.push(
          vector("rect", {
            x: left - 1,
            y: top + at.query * side - 1,
            width: picture.columns * side + 1,
            height: side + 1,
            class: "mark-line",
          }),
        );
      }
      if (at?.key !== undefined && at.key < picture.columns) {
        found.push(
          vector("rect", {
            x: left + at.key * side - 1,
            y: top - 1,
            width: side + 1,
            height: picture.rows * side + 1,
            class: "mark-line",
          }),
        );
      }
      marks.replaceChildren(...found);
      if (at) cursor = { query: at.query ?? cursor.query, key: at.key ?? cursor.key };
    },
    svg: () => root,
  };
}
