import { createAttention } from "./attention.js";
import { element } from "./dom.js";
import { KINDS } from "./numbers.js";
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

/** Lets the browser do something else before what follows. */
function nextTask() {
  return new Promise((resolve) => {
    setTimeout(resolve);
  });
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
  let turn = 0;

  /** Does something with each side and its parts. */
  function task(name, choices, act) {
    const start = performance.now();
    choices.sides.forEach((side, i) => act(side, views[i]));
    performance.measure(`explorer-${name}`, { start, end: performance.now() });
  }

  return {
    /** Draws the attention; the weights of all heads only if their answers or colours changed. */
    drawAttention(choices, recolour) {
      task("attention", choices, (side, { attention }) => {
        attention.draw(side, choices, choices.sides.length > 1);
        KINDS.forEach((kind) => attention.paint(kind, recolour));
      });
    },
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
    /** Draws all, in several tasks: between them the browser shows what is there and listens to the reader. */
    async draw(choices, saved) {
      const compared = choices.sides.length > 1;
      const mine = (turn += 1);
      input.draw(choices, choices.sides[0].info, choices.sides, saved);
      const ready = choices.sides.some((side) => side.search);
      for (const id of Object.keys(PARTS)) document.getElementById(id).hidden = !ready;
      task("draw", choices, (side, { attention, translation }) => {
        translation.draw(side, compared, saved);
        attention.draw(side, choices, compared);
      });
      const rest = {
        ...Object.fromEntries(KINDS.map((kind) => [kind, (_, { attention }) => attention.paint(kind, false)])),
        tree: (side, { tree }) => tree.draw(side, choices, compared),
        "what-if": (side, { whatIf }) => whatIf.draw(side, compared, saved),
      };
      for (const [name, act] of Object.entries(rest)) {
        await nextTask();
        if (mine !== turn) return; // a later call draws all
        task(name, choices, act);
      }
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
