import { createAttention } from "./attention.js";
import { element } from "./dom.js";
import { createTranslation } from "./translation.js";
import { createTree } from "./tree.js";
import { createWhatIf } from "./what_if.js";

const PARTS = { attention: "attention", search: "tree", "what-if": "whatIf" };

function createViews(index, actions) {
  return {
    translation: createTranslation(index, actions),
    attention: createAttention(index, actions),
    tree: createTree(index, actions),
    whatIf: createWhatIf(index, actions),
  };
}

function sidesElement(views, part) {
  const sides = views.map((view) => view[part].element);
  return element("div", { class: "sides" }, sides);
}

/**
 * Makes the panels of the page, each with a part for each side.
 * @param input the card with the sentence
 * @param actions what the panels call
 */
export function createPanels(input, actions) {
  let views = [];

  function drawAttention(choices, recolour) {
    const start = performance.now();
    const compared = choices.sides.length > 1;
    choices.sides.forEach((side, i) => views[i].attention.draw(side, choices, compared, recolour));
    performance.measure("explorer-attention", { start, end: performance.now() });
  }

  return {
    drawAttention,
    /** Makes the parts anew, after the number of sides changed. */
    build(count) {
      views = Array.from({ length: count }, (_, index) => createViews(index, actions));
      document.body.classList.toggle("compared", count > 1);
      document.querySelector(".top").replaceChildren(input.element, sidesElement(views, "translation"));
      for (const [id, part] of Object.entries(PARTS)) {
        const panel = document.getElementById(id);
        panel.replaceChildren(panel.firstElementChild, sidesElement(views, part));
      }
    },
    /** Draws the translation and the attention, and after a pause for the browser to show them, the rest. */
    async draw(choices, saved) {
      const start = performance.now();
      input.draw(choices, choices.sides[0].info, choices.sides, saved);
      const ready = choices.sides.some((side) => side.search);
      for (const id of Object.keys(PARTS)) document.getElementById(id).hidden = !ready;
      drawAttention(choices, false);
      choices.sides.forEach((side, i) => views[i].translation.draw(side, choices.sides.length > 1));
      performance.measure("explorer-draw", { start, end: performance.now() });
      await new Promise((resolve) => {
        setTimeout(resolve);
      });
      choices.sides.forEach((side, i) => {
        views[i].tree.draw(side, choices, choices.sides.length > 1);
        views[i].whatIf.draw(side, choices.sides.length > 1, saved);
      });
    },
    drawTrees(choices) {
      choices.sides.forEach((side, i) => views[i].tree.draw(side, choices, choices.sides.length > 1));
    },
    /** Shows which queries and keys are selected. */
    select(choices) {
      views.forEach((view) => view.attention.select(choices.view));
    },
    /** Shows at once which heads are off, before the answers are there. */
    markHeads(index, headsOff) {
      views[index].attention.markHeads(headsOff);
    },
    /** Marks what is pointed at in one side: {target}, or {query, key} of a kind of attention; null marks nothing. */
    hover(index, at) {
      const { attention, translation } = views[index];
      attention.mark(at);
      if (at?.kind !== undefined) translation.mark(at.kind === "encoder" ? undefined : at.query);
      else if (!at) translation.mark(undefined);
    },
  };
}
