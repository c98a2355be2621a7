import { drawChanges } from "./changes.js";
import { languageTag } from "./controls.js";
import { button, element, pieceText, setAttribute } from "./dom.js";
import { doubt, shown, signed } from "./numbers.js";
import { pictureTools, sideName } from "./share.js";

/** Returns pairs of positions (before or null, now or null) of two rows of tokens: a longest common subsequence. */
function paired(before, now) {
  const lengths = Array.from({ length: before.length + 1 }, () => new Uint16Array(now.length + 1));
  for (let i = before.length - 1; i >= 0; i -= 1) {
    for (let j = now.length - 1; j >= 0; j -= 1) {
      lengths[i][j] =
        before[i].id === now[j].id ? 1 + lengths[i + 1][j + 1] : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
    }
  }
  const pairs = [];
  let [i, j] = [0, 0];
  while (i < before.length || j < now.length) {
    if (i < before.length && j < now.length && before[i].id === now[j].id) pairs.push([i++, j++]);
    else if (j >= now.length || (i < before.length && lengths[i + 1][j] >= lengths[i][j + 1])) pairs.push([i++, null]);
    else pairs.push([null, j++]);
  }
  return pairs;
}

function tokenCell(token) {
  return element(
    "td",
    { class: "piece-cell", dir: "auto" },
    token ? element("bdi", { class: "piece" }, pieceText(token.piece)) : "",
  );
}

function numberCell(token) {
  if (!token) return element("td", { class: "number soft" }, "–");
  const bar = element("span", { class: "doubt-bar", "aria-hidden": "true" });
  bar.style.inlineSize = `${Math.round(70 * doubt(token.log_prob))}px`;
  return element("td", { class: "number" }, bar, shown(token.log_prob));
}

function changeCell(before, now) {
  if (!before || !now) return element("td", { class: "number soft" }, before ? "gone" : "new");
  const change = now.log_prob - before.log_prob;
  const arrow = Math.abs(change) < 0.005 ? "" : change > 0 ? "▲ " : "▼ ";
  return element("td", { class: `number ${arrow && (change > 0 ? "better" : "worse")}` }, `${arrow}${signed(change)}`);
}

function texts(before, now) {
  const rows = paired(before.tokens, now.tokens).map(([i, j]) => {
    const [old, own] = [before.tokens[i], now.tokens[j]];
    const change = old && own ? signed(own.log_prob - old.log_prob) : old ? "gone" : "new";
    return [(own ?? old).piece, old ? shown(old.log_prob, 3) : "", own ? shown(own.log_prob, 3) : "", change];
  });
  rows.push(["sum", shown(before.log_prob, 3), shown(now.log_prob, 3), signed(now.log_prob - before.log_prob)]);
  return { caption: "Log-probabilities before and now", head: ["Token", "Before", "Now", "Change"], rows };
}

/**
 * Makes the panel in which a reader writes another target, and compares it with the model's own translation.
 * @returns {{element: HTMLElement, draw: function}}
 */
export function createWhatIf(index, actions) {
  const name = element("h3", { class: "side-name" });
  const area = element("textarea", {
    id: `target-${index}`,
    rows: "2",
    dir: "auto",
    spellcheck: "false",
    input: () => actions.setTarget(index, area.value),
  });
  const pin = button(
    "Keep this target",
    () => actions.change(index, { target: side.inspection.target.map((piece) => piece.id) }),
    {
      class: "tool",
      title: "It stays when heads are switched off",
    },
  );
  const follow = button("Follow the search", () => actions.change(index, { target: null }), { class: "tool" });
  const changes = element("div", { class: "changes" });
  const hint = element("p", { class: "note" });
  const place = element("div", {
    class: "scroll comparison",
    tabindex: "0",
    role: "region",
    "aria-label": sideName("Log-probabilities before and now", index),
  });
  let side = null;
  const tools = pictureTools({
    name: sideName("log-probabilities before and now", index),
    svg: () => null,
    file: () => "",
    table: () => texts(side.plain, side.inspection),
  });
  tools.buttons.querySelector(".svg-save").remove();

  function comparison(before, now) {
    const body = paired(before.tokens, now.tokens).map(([i, j]) => {
      const [old, own] = [before.tokens[i], now.tokens[j]];
      const kind = old && own ? "same" : old ? "gone" : "new";
      return element(
        "tr",
        { class: kind },
        tokenCell(old),
        numberCell(old),
        tokenCell(own),
        numberCell(own),
        changeCell(old, own),
      );
    });
    const change = now.log_prob - before.log_prob;
    const foot = element(
      "tr",
      {},
      element("th", { scope: "row" }, "Sum"),
      element("td", { class: "number" }, shown(before.log_prob)),
      element("td", {}),
      element("td", { class: "number" }, shown(now.log_prob)),
      element("td", { class: "number" }, signed(change)),
    );
    const head = ["Before", "log-prob", "Now", "log-prob", "change"].map((text) =>
      element("th", { scope: "col" }, text),
    );
    return element(
      "table",
      { class: "compare" },
      element("thead", {}, element("tr", {}, head)),
      element("tbody", {}, body),
      element("tfoot", {}, foot),
    );
  }

  return {
    element: element(
      "div",
      { class: "side" },
      element(
        "div",
        {},
        name,
        element("label", { for: `target-${index}`, class: "eyebrow" }, "Target"),
        area,
        element("div", { class: "tool-row" }, pin, follow, changes),
        hint,
      ),
      element("div", {}, place, tools.buttons, tools.place),
    ),
    draw(given, compared, saved) {
      side = given;
      name.hidden = !compared;
      name.textContent = `${"AB"[index]} · ${side.model}`;
      const ready = Boolean(side.inspection);
      area.readOnly = saved;
      setAttribute(area, "lang", languageTag(side.info.target));
      if (ready && document.activeElement !== area) area.value = side.inspection.target_text;
      follow.hidden = side.target === null;
      pin.hidden = side.target !== null || !ready || saved;
      drawChanges(changes, side, index, actions, "heads");
      const comparable = ready && side.plain && side.plain !== side.inspection;
      place.hidden = !comparable;
      tools.buttons.hidden = !comparable;
      if (!comparable) {
        tools.close();
        hint.textContent =
          "Change a word of the target, force a token, choose another hypothesis or switch off a head: " +
          "the log-probabilities before and now appear here.";
        return;
      }
      hint.textContent = "Before: the model's own best translation with all heads on. Now: what is shown above.";
      place.replaceChildren(comparison(side.plain, side.inspection));
      tools.redraw();
    },
  };
}
