import { drawChanges } from "./changes.js";
import { element, hasModifier, keepFocus, oneTabStop, pieceSpans, roveFocus, vector } from "./dom.js";
import { shown } from "./numbers.js";
import { pictureTools, sideName } from "./share.js";
import { idsTo, layoutTree, pathTo, STATE_MARKS, STATE_WORDS } from "./tree_layout.js";

function edge(from, to, classes) {
  const [x1, y1] = [from.x + from.width, from.y + from.height / 2];
  const [x2, y2] = [to.x, to.y + to.height / 2];
  const middle = (x1 + x2) / 2;
  return vector("path", { d: `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`, class: `edge ${classes}` });
}

function isBranchEnd(search, node) {
  if (node.died_at === null || node.died_at === undefined) return false;
  const parent = search.nodes[node.parent];
  return !parent || parent.died_at === null || parent.died_at === undefined;
}

function describe(search, node) {
  if (node.parent === null) return "Start of the translation";
  const facts = [
    `${node.piece}, position ${node.position + 1}`,
    `log-probability ${shown(node.log_prob)}`,
    `sum ${shown(node.total)}`,
    `score ${shown(node.score)}`,
    `candidate ${node.rank + 1}`,
    STATE_WORDS[node.state],
  ];
  if (node.forced) facts.push("forced");
  if (node.state === "live" && node.died_at !== null && node.died_at !== undefined) {
    facts.push(`last continuation pruned at position ${node.died_at + 1}`);
  }
  const finished = search.hypotheses.findIndex((each) => each.node === node.id);
  if (finished >= 0) facts.push(`hypothesis ${finished + 1}`);
  return facts.join(" · ");
}

function treeTable(search) {
  const head = ["Position", "Token", "Tokens before", "Log-probability", "Sum", "Score", "State", "Died at position"];
  const rows = search.nodes
    .filter((node) => node.parent !== null)
    .map((node) => [
      `${node.position + 1}`,
      node.piece,
      [...pathTo(search.nodes, node.parent)]
        .reverse()
        .slice(1)
        .map((id) => search.nodes[id].piece)
        .join(" "),
      shown(node.log_prob, 3),
      shown(node.total, 3),
      shown(node.score, 3),
      node.forced ? "forced" : STATE_WORDS[node.state],
      node.died_at === null || node.died_at === undefined ? "" : `${node.died_at + 1}`,
    ]);
  return { caption: "Nodes of the search", head, rows };
}

function legendItem(state, text) {
  const mark = STATE_MARKS[state] ? `${STATE_MARKS[state]} ` : "";
  return element("span", { class: `key ${state}` }, `${mark}${text}`);
}

/**
 * Makes the tree of one model's beam search.
 * @returns {{element: HTMLElement, draw: function}}
 */
export function createTree(index, actions) {
  const name = element("h3", { class: "side-name" });
  const changes = element("div", { class: "changes" });
  const place = element("div", { class: "canvas-scroll tree", role: "group", "aria-label": "Beam search" });
  const readout = element("p", { class: "readout" });
  const pruned = element("input", { type: "checkbox", change: () => actions.look({ pruned: pruned.checked }) });
  const legend = element(
    "div",
    { class: "legend tree-legend" },
    legendItem("best", "chosen hypothesis"),
    legendItem("live", "kept in the beam"),
    legendItem("finished", "finished"),
    legendItem("pruned", "pruned"),
    element("span", { class: "key" }, "†n: its last continuation was pruned at position n"),
    element("span", { class: "key" }, "numbers: log-probability of the token · score so far"),
  );
  let side = null;
  let root = null;
  let plan = null;
  let drawnFor = [];
  const tools = pictureTools({
    name: sideName("beam search", index),
    svg: () => root,
    file: () => "beam-search",
    table: () => treeTable(side.search),
  });
  const options = element(
    "div",
    { class: "tree-options" },
    element("label", { class: "check" }, pruned, "show pruned candidates"),
    changes,
    tools.buttons,
  );
  roveFocus(place, ".node");
  place.addEventListener("keydown", followBranch, true);

  /** Left goes to the parent, right to the best continuation; up and down stay in the step. */
  function followBranch(event) {
    const from = event.target.closest?.(".node");
    if (!from || hasModifier(event) || (event.key !== "ArrowLeft" && event.key !== "ArrowRight")) return;
    event.preventDefault();
    event.stopPropagation();
    const { node } = plan.boxes.get(Number(from.dataset.id));
    const children = [...plan.boxes.values()].filter((box) => box.node.parent === node.id);
    const next =
      event.key === "ArrowLeft" ? node.parent : children.sort((a, b) => a.node.rank - b.node.rank)[0]?.node.id;
    place.querySelector(`.node[data-id="${next}"]`)?.focus();
  }

  function choose(node) {
    const finished = side.search.hypotheses.findIndex((each) => each.node === node.id);
    if (finished >= 0) actions.change(index, { hypothesis: finished, target: null }, false);
    else if (node.state === "dropped" || node.state === "finished")
      actions.change(index, { target: idsTo(side.search.nodes, node.id) });
    else actions.change(index, { prefix: idsTo(side.search.nodes, node.id), target: null, hypothesis: 0 });
  }

  function point(node) {
    readout.textContent = describe(side.search, node);
    const path = node ? pathTo(side.search.nodes, node.id) : new Set();
    for (const part of root.querySelectorAll(".edge"))
      part.classList.toggle("pointed", path.has(Number(part.dataset.to)));
  }

  function nodeGroup(box, best) {
    const { node } = box;
    const classes = [node.state, best.has(node.id) ? "best" : "", node.forced ? "forced" : ""]
      .filter(Boolean)
      .join(" ");
    const act = (event) => {
      if (event.type === "keydown" && event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      choose(node);
    };
    const group = vector(
      "g",
      {
        class: `node ${classes}`,
        role: "treeitem",
        tabindex: "-1",
        "aria-level": box.step + 1,
        "aria-selected": String(best.has(node.id)),
        "aria-label": describe(side.search, node),
        "data-id": node.id,
        "data-key": `node-${idsTo(side.search.nodes, node.id).join("-")}`,
        "data-row": box.row,
        "data-column": box.step,
        click: act,
        keydown: act,
        pointerenter: () => point(node),
        focus: () => point(node),
      },
      vector("rect", { x: box.x, y: box.y, width: box.width, height: box.height, rx: 8 }),
      vector("title", {}, node.piece),
    );
    if (node.state === "finished")
      group.append(
        vector("rect", {
          x: box.x + 2.5,
          y: box.y + 2.5,
          width: box.width - 5,
          height: box.height - 5,
          rx: 6,
          class: "inner",
        }),
      );
    return [group, vector("g", { class: `node-text ${classes}`, "aria-hidden": "true" }, nodeTexts(box))];
  }

  function nodeTexts(box) {
    const { node } = box;
    const mark = node.forced ? "⊢" : STATE_MARKS[node.state];
    const middle = box.x + box.width / 2;
    const found = [
      vector(
        "text",
        { x: middle, y: box.y + 14, class: "piece", "text-anchor": "middle" },
        mark ? `${mark} ` : null,
        pieceSpans(box.text),
      ),
    ];
    const numbers = node.parent === null ? "start" : `${shown(node.log_prob)} · ${shown(node.score)}`;
    const death = isBranchEnd(side.search, node)
      ? vector("tspan", { class: "death", dx: 5 }, `†${node.died_at + 1}`)
      : null;
    found.push(vector("text", { x: middle, y: box.y + 27, class: "number", "text-anchor": "middle" }, numbers, death));
    return found;
  }

  function edges(best) {
    return [...plan.boxes.values()]
      .filter(({ node }) => node.parent !== null)
      .map((box) => {
        const { node } = box;
        const part = edge(plan.boxes.get(node.parent), box, best.has(node.id) ? `${node.state} best` : node.state);
        part.dataset.to = node.id;
        return part;
      });
  }

  function drawTree() {
    const chosen = side.target === null ? side.search.hypotheses[side.hypothesis] : null;
    const best = chosen ? pathTo(side.search.nodes, chosen.node) : new Set();
    const first = side.search.hypotheses[0];
    plan = layoutTree(side.search.nodes, pruned.checked, first ? pathTo(side.search.nodes, first.node) : new Set());
    const heads = plan.steps
      .slice(1)
      .map(({ x, position }) => vector("text", { x, y: 14, class: "axis-title" }, `${position + 1}`));
    root = vector(
      "svg",
      {
        width: plan.width,
        height: plan.height,
        viewBox: `0 0 ${plan.width} ${plan.height}`,
        class: "picture",
        role: "tree",
        "aria-label": "Search tree. Arrow keys follow the branches; Enter forces the translation through a token.",
        pointerleave: () => {
          readout.textContent = "";
        },
      },
      heads,
      edges(best),
      [...plan.boxes.values()].map((box) => nodeGroup(box, best)),
    );
    keepFocus(place, () => {
      place.replaceChildren(root);
      oneTabStop(place, ".node");
    });
  }

  return {
    element: element("div", { class: "side" }, name, options, place, readout, legend, tools.place),
    draw(given, choices, compared) {
      side = given;
      name.hidden = !compared;
      name.textContent = `${"AB"[index]} · ${side.model}`;
      pruned.checked = choices.view.pruned;
      drawChanges(changes, side, index, actions, "prefix");
      if (!side.search) return;
      const wanted = [side.search, pruned.checked, side.hypothesis, side.target === null];
      if (!wanted.every((each, i) => each === drawnFor[i])) drawTree();
      drawnFor = wanted;
      tools.redraw();
    },
  };
}
