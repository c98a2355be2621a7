import { button, element, keepFocus } from "./dom.js";
import { isChanged, switchedHeads } from "./state.js";

const SHORT = { encoder: "encoder", decoder: "decoder", cross: "cross" };

/** Returns the name of a head as shown: numbers count from 1. */
export function headName({ kind, layer, head }) {
  return `${SHORT[kind]} ${layer + 1}.${head + 1}`;
}

function forcedPieces(side) {
  const forced = (side.search?.nodes ?? []).filter((node) => node.forced && node.state !== "pruned");
  return side.prefix.map((id, i) => forced.find((node) => node.position === i && node.token === id)?.piece ?? `#${id}`);
}

function chip(text, label, remove, key, kind) {
  return element(
    "button",
    {
      type: "button",
      class: `chip ${kind}`,
      click: remove,
      "aria-label": label,
      "data-key": key,
      title: label,
    },
    element("bdi", {}, text),
    element("span", { "aria-hidden": "true" }, "×"),
  );
}

function prefixChips(side, index, actions) {
  const pieces = forcedPieces(side);
  return pieces.map((piece, i) => {
    const label = `Forced token ${i + 1}: ${piece}. Remove it and what follows`;
    return chip(
      piece,
      label,
      () => actions.change(index, { prefix: side.prefix.slice(0, i), hypothesis: 0 }),
      `prefix-${i}`,
      "forced",
    );
  });
}

function headChips(side, index, actions) {
  return side.heads_off.map((head) => {
    const switchOn = () => actions.change(index, { heads_off: switchedHeads(side.heads_off, head) });
    return chip(
      headName(head),
      `Head ${headName(head)} is off. Switch it on`,
      switchOn,
      `head-${headName(head)}`,
      head.kind,
    );
  });
}

function group(title, chips) {
  return chips.length ? element("span", { class: "chips" }, element("span", { class: "what" }, title), chips) : null;
}

/**
 * Shows what a reader changed: forced tokens, heads that are off, an own target; each can be taken back.
 * @param place container
 * @param which "all", "prefix" or "heads"
 */
export function drawChanges(place, side, index, actions, which) {
  const prefix = which === "heads" ? [] : prefixChips(side, index, actions);
  const heads = which === "prefix" ? [] : headChips(side, index, actions);
  const own =
    which === "all" && side.target !== null
      ? [
          chip(
            "own target",
            "Own target text. Follow the search again",
            () => actions.change(index, { target: null }),
            "own",
            "own",
          ),
        ]
      : [];
  const any = prefix.length + heads.length + own.length > 0;
  const reset =
    which === "heads"
      ? button("All heads on", () => actions.change(index, { heads_off: [] }), { class: "tool", "data-key": "reset" })
      : button("Undo all", () => actions.reset(index), { class: "tool", "data-key": "reset" });
  const undo =
    side.canUndo && which !== "heads"
      ? button("Undo", () => actions.undo(index), { class: "tool", "data-key": "undo" })
      : null;
  keepFocus(place, () =>
    place.replaceChildren(
      ...[group("Forced:", prefix), group("Heads off:", heads), group("Target:", own)].filter(Boolean),
      ...[undo, any || (which === "all" && isChanged(side)) ? reset : null].filter(Boolean),
    ),
  );
}
