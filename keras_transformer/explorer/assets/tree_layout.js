import { shortened, textWidth } from "./dom.js";

const NODE_HEIGHT = 34;
const ROW_STEP = 41;
const COLUMN_GAP = 30;
const WIDEST = 120;

/** Marks of the states, so that colour is not needed to tell them apart. */
export const STATE_MARKS = { live: "", pruned: "✕", finished: "✓", dropped: "✕", cut: "…" };

/** The states in words. */
export const STATE_WORDS = {
  live: "kept in the beam",
  pruned: "pruned",
  finished: "finished hypothesis",
  dropped: "finished, but not among the best",
  cut: "stopped at the length limit",
};

function childrenOf(nodes, first) {
  const children = new Map(nodes.map((node) => [node.id, []]));
  for (const node of nodes) if (node.parent !== null) children.get(node.parent).push(node);
  for (const list of children.values()) list.sort((a, b) => first.has(b.id) - first.has(a.id) || a.rank - b.rank);
  return children;
}

/** Returns the nodes of each step; those of one parent stand together, so that no lines cross. */
function stepsOf(nodes, children) {
  const steps = [[nodes[0]]];
  while (steps.at(-1).length) steps.push(steps.at(-1).flatMap((node) => children.get(node.id)));
  return steps.slice(0, -1);
}

/** Gives a step's nodes the rows of their parents, or the next free ones; no row lies below the fullest step's last. */
function placeRows(list, count, at) {
  let free = 0;
  list.forEach((node, i) => {
    const row = Math.min(Math.max(free, at.get(node.parent) ?? 0), count - list.length + i);
    at.set(node.id, row);
    free = row + 1;
  });
}

function nodeWidth(node, text) {
  const mark = STATE_MARKS[node.state] || node.forced ? 18 : 0;
  const death = node.died_at === null || node.died_at === undefined ? 0 : 22;
  return Math.max(76 + death, textWidth(text, 13) * 1.06 + mark + 20);
}

/** Returns the ids of the nodes from the root to a node. */
export function pathTo(nodes, id) {
  const path = new Set();
  for (let node = nodes[id]; node; node = node.parent === null ? null : nodes[node.parent]) path.add(node.id);
  return path;
}

/** Returns the target ids that lead to a node. */
export function idsTo(nodes, id) {
  return [...pathTo(nodes, id)]
    .reverse()
    .slice(1)
    .map((each) => nodes[each].token);
}

/**
 * Places the nodes of a search: a column for each step.
 * @param nodes of a search
 * @param pruned whether pruned and dropped nodes are shown
 * @param first ids of the nodes on the best hypothesis' path, which is drawn as a straight line on top
 * @returns {{boxes: Map, steps: object[], width: number, height: number}} a box for each shown node, by its id
 */
export function layoutTree(nodes, pruned, first) {
  const visible = nodes.filter((node) => pruned || !["pruned", "dropped"].includes(node.state));
  const children = childrenOf(visible, first);
  const steps = stepsOf(visible, children);
  const at = new Map();
  const count = Math.max(...steps.map((list) => list.length));
  steps.forEach((list) => placeRows(list, count, at));
  const boxes = new Map();
  let x = 8;
  const marks = [];
  steps.forEach((list, step) => {
    const texts = list.map((node) => shortened(node.piece, WIDEST, 13));
    const width = Math.max(...list.map((node, i) => nodeWidth(node, texts[i])));
    list.forEach((node, i) =>
      boxes.set(node.id, {
        node,
        text: texts[i],
        x,
        y: 26 + at.get(node.id) * ROW_STEP,
        width,
        height: NODE_HEIGHT,
        step,
        row: i,
      }),
    );
    marks.push({ x, width, position: step - 1 });
    x += width + COLUMN_GAP;
  });
  const bottom = Math.max(...[...boxes.values()].map((box) => box.y + box.height));
  return { boxes, steps: marks, width: Math.ceil(x - COLUMN_GAP + 10), height: Math.ceil(bottom + 16) };
}
