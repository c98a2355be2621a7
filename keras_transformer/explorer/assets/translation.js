import { directionOf, element, keepFocus, oneTabStop, pieceText, roveFocus, setAttribute } from "./dom.js";
import { doubt, percent, shown } from "./numbers.js";
import { drawChanges } from "./changes.js";
import { languageName, languageTag } from "./controls.js";
import { pictureTools, sideName } from "./share.js";

const INTRO = [
  "How sure the model was of each token, and which others it weighed",
  "What every attention head looks at, layer by layer",
  "The tree of its beam search; any branch can be forced",
  "What changes without a head, with your own words, or in another model",
];

/** Returns the tokens of a hypothesis with their log-probabilities, from the nodes of the search. */
function searchTokens(search, hypothesis) {
  const tokens = [];
  for (let node = search.nodes[hypothesis.node]; node && node.parent !== null; node = search.nodes[node.parent]) {
    tokens.unshift({ id: node.token, piece: node.piece, log_prob: node.log_prob });
  }
  return tokens;
}

function tokenTable(side) {
  const rows = (side.tokens ?? []).map((token, i) => [
    `${i + 1}`,
    token.piece,
    shown(token.log_prob, 3),
    token.rank ? `${token.rank}` : "",
    token.entropy === undefined ? "" : shown(token.entropy, 3),
    (token.alternatives ?? []).map((each) => `${each.piece} ${shown(each.log_prob, 3)}`).join(", "),
  ]);
  const head = ["Position", "Token", "Log-probability", "Rank", "Entropy", "Alternatives"];
  return { caption: "Tokens of the translation", head, rows };
}

/**
 * Makes one model's translation: text, tokens, alternatives and hypotheses.
 * @param index of the side
 * @returns {{element: HTMLElement, draw: function, mark: function}}
 */
export function createTranslation(index, actions) {
  const name = element("h3", { class: "side-name" });
  const language = element("p", { class: "eyebrow" });
  const text = element("p", { class: "translation", dir: "auto" });
  const intro = element(
    "ul",
    { class: "intro" },
    INTRO.map((line) => element("li", {}, line)),
  );
  const summary = element("p", { class: "note numbers" });
  const changes = element("div", { class: "changes" });
  const tokens = element("div", { class: "tokens", role: "group" });
  const alternatives = element("div", { class: "alternatives" });
  const hypotheses = element("div", { class: "hypotheses", role: "radiogroup", "aria-label": "Hypotheses" });
  const hypothesesCard = element(
    "div",
    { class: "card hypotheses-card" },
    element("h3", {}, "Hypotheses"),
    element("p", { class: "note" }, "Best first: score = log-probability ÷ length penalty."),
    hypotheses,
  );
  let side = null;
  let chosen = 0;
  let pinned = null;
  const tools = pictureTools({
    name: sideName("tokens", index),
    svg: () => null,
    file: () => "tokens",
    table: () => tokenTable(side),
  });
  tools.buttons.querySelector(".svg-save").remove();
  const legend = element(
    "div",
    { class: "legend", "aria-hidden": "true" },
    element("span", {}, "certain"),
    element("span", { class: "ramp" }),
    element("span", {}, "unlikely"),
  );
  const main = element(
    "div",
    { class: "card translation-card" },
    name,
    language,
    text,
    intro,
    summary,
    changes,
    tokens,
    element("div", { class: "below-tokens" }, legend, tools.buttons),
    alternatives,
    tools.place,
  );
  roveFocus(tokens, ".token");
  roveFocus(hypotheses, "[role=radio]");

  function showAlternatives(position) {
    chosen = Math.min(position, side.tokens.length - 1);
    for (const item of tokens.children) item.classList.toggle("chosen", Number(item.dataset.index) === chosen);
    const token = side.tokens[chosen];
    keepFocus(alternatives, () => alternatives.replaceChildren(...alternativesOf(token, chosen)));
  }

  function alternativesOf(token, position) {
    if (!token) return [];
    const facts = token.rank ? ` · rank ${token.rank} · entropy ${shown(token.entropy)} nats` : "";
    const title = element(
      "h3",
      {},
      `Position ${position + 1}: `,
      element("bdi", { class: "piece" }, token.piece),
      element("span", { class: "soft" }, facts),
    );
    const rows = (token.alternatives ?? []).map((each) => alternative(each, token, position));
    return [title, element("ul", { "aria-label": `Alternatives at position ${position + 1}` }, rows)];
  }

  function alternative(each, token, position) {
    const own = each.id === token.id;
    const bar = element("span", { class: "bar" }, element("span", { class: "fill" }));
    bar.firstChild.style.inlineSize = `${100 * Math.exp(each.log_prob)}%`;
    const content = [
      element("bdi", { class: "piece" }, pieceText(each.piece)),
      bar,
      element("span", { class: "number" }, percent(Math.exp(each.log_prob))),
      element("span", { class: "number" }, shown(each.log_prob)),
    ];
    const fixed = (note) => element("div", { class: "row" }, content, element("span", { class: "force" }, note));
    if (own) return element("li", { class: "own" }, fixed("chosen"));
    const isEnd = each.id === side.search.source.at(-1).id;
    // Nothing may follow the end, and no translation has padding or a begin within.
    if (isEnd || ["<pad>", "<s>"].includes(each.piece)) return element("li", {}, fixed(""));
    const prefix = [...side.tokens.slice(0, position).map((other) => other.id), each.id];
    const force = () => actions.change(index, { prefix, target: null, hypothesis: 0 });
    return element(
      "li",
      {},
      element(
        "button",
        {
          type: "button",
          class: "row",
          click: force,
          "data-key": `alternative-${each.id}`,
        },
        content,
        element("span", { class: "force" }, "force"),
      ),
    );
  }

  function tokenButton(token, i) {
    const item = element(
      "button",
      {
        type: "button",
        class: "token",
        "data-index": i,
        "data-key": `token-${i}`,
        "aria-pressed": String(pinned === i),
        pointerenter: () => look(i, pinned === null),
        focus: () => look(i, true),
        pointerleave: () => actions.hover(index, null),
        blur: () => actions.hover(index, null),
        click: () => pin(i),
      },
      element("bdi", { class: "piece" }, pieceText(token.piece)),
      element("span", { class: "number" }, shown(token.log_prob)),
    );
    item.style.setProperty("--doubt", `${Math.round(100 * doubt(token.log_prob))}%`);
    return item;
  }

  function look(i, show) {
    if (show) showAlternatives(i);
    actions.hover(index, { target: i });
  }

  /** Keeps the alternatives of a token while the pointer moves on; a second time lets go. */
  function pin(i) {
    pinned = pinned === i ? null : i;
    for (const item of tokens.children)
      item.setAttribute("aria-pressed", String(Number(item.dataset.index) === pinned));
    look(i, true);
  }

  function drawTokens() {
    const hypothesis = side.search.hypotheses[side.hypothesis];
    side.tokens =
      side.inspection?.tokens ?? (side.target === null && hypothesis ? searchTokens(side.search, hypothesis) : []);
    if (pinned !== null && pinned >= side.tokens.length) pinned = null;
    keepFocus(tokens, () => {
      tokens.replaceChildren(...side.tokens.map(tokenButton));
      oneTabStop(tokens, ".token", tokens.children[chosen]);
    });
    tokens.dir = directionOf(text.textContent);
    tokens.setAttribute("aria-label", "Tokens of the translation with log-probabilities; arrow keys move");
    chosen = Math.max(0, Math.min(chosen, side.tokens.length - 1));
    if (side.tokens.length) showAlternatives(chosen);
    else alternatives.replaceChildren();
  }

  function hypothesisRow(each, i) {
    const checked = side.target === null && i === side.hypothesis;
    const choose = () => actions.change(index, { hypothesis: i, target: null }, false);
    return element(
      "button",
      {
        type: "button",
        role: "radio",
        "aria-checked": String(checked),
        class: "hypothesis",
        click: choose,
        "data-key": `hypothesis-${i}`,
      },
      element("span", { class: "rank" }, `${i + 1}`),
      element(
        "span",
        { class: "text", dir: "auto", lang: languageTag(side.info.target) },
        each.text || "(empty)",
        each.finished ? null : element("span", { class: "flag" }, "not finished"),
      ),
      element("span", { class: "number" }, element("span", { class: "what" }, "score "), shown(each.score)),
      element("span", { class: "number" }, element("span", { class: "what" }, "log-prob "), shown(each.log_prob)),
    );
  }

  function drawHypotheses() {
    keepFocus(hypotheses, () => {
      hypotheses.replaceChildren(...side.search.hypotheses.map(hypothesisRow));
      oneTabStop(hypotheses, "[role=radio]", hypotheses.children[side.hypothesis]);
    });
  }

  function drawText(saved) {
    const hypothesis = side.search.hypotheses[side.hypothesis];
    const shownText = side.target === null ? hypothesis?.text : side.inspection?.target_text;
    setAttribute(text, "lang", languageTag(side.info.target));
    text.textContent = shownText || (side.target === null ? "(The model ends the translation at once.)" : "…");
    const logProb = side.target === null ? hypothesis?.log_prob : side.inspection?.log_prob;
    const numbers = [];
    if (side.target === null && hypothesis) numbers.push(`score ${shown(hypothesis.score)}`);
    if (logProb !== undefined) numbers.push(`log-probability ${shown(logProb)}`);
    const time = saved ? "" : ` in ${Math.round(side.search.milliseconds)} ms`;
    numbers.push(`${side.search.steps} steps of the search${time}`);
    summary.textContent = numbers.join(" · ");
  }

  return {
    element: element("div", { class: "side" }, main, hypothesesCard),
    draw(given, compared, saved) {
      side = given;
      name.hidden = !compared;
      name.textContent = `${"AB"[index]} · ${side.model}`;
      language.textContent =
        side.target === null ? `${languageName(side.info.target)} translation` : "Your own translation";
      const ready = Boolean(side.search);
      main.classList.toggle("empty", !ready);
      main.classList.toggle("loading", !ready && Boolean(side.loading));
      hypothesesCard.hidden = !ready;
      intro.hidden = ready || Boolean(side.loading);
      for (const part of [summary, tokens, alternatives, legend, tools.buttons]) part.hidden = !ready;
      drawChanges(changes, side, index, actions, "all");
      if (!ready) {
        text.textContent = side.loading ? "…" : "The translation appears here while you type.";
        return;
      }
      drawText(saved);
      drawTokens();
      drawHypotheses();
      tools.redraw();
    },
    /** Marks the target token that is looked at elsewhere. */
    mark(target) {
      for (const item of tokens.children) item.classList.toggle("marked", Number(item.dataset.index) === target);
    },
  };
}
