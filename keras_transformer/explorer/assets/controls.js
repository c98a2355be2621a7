import { button, element, setAttribute } from "./dom.js";

const THEMES = { system: "System colours", light: "Light", dark: "Dark" };
const EXAMPLES = {
  en: ["A man is riding a horse through the snow.", "I have never been to the sea.", "Where did you leave the keys?"],
  de: ["Ein Mann reitet auf einem Pferd durch den Schnee.", "Ich war noch nie am Meer."],
  fr: ["Un homme monte à cheval dans la neige."],
};

/** Returns the name of a language in English, or its code. */
export function languageName(code) {
  try {
    return new Intl.DisplayNames(["en"], { type: "language" }).of(code);
  } catch {
    return code;
  }
}

/** Returns a model's language as the value of `lang`; null for a name that is no code, such as "target". */
export function languageTag(code) {
  return /^[a-z]{2,3}(-[a-z0-9]+)*$/i.test(code) ? code : null;
}

function storedTheme() {
  try {
    return localStorage.getItem("explorer-theme") ?? "system";
  } catch {
    return "system";
  }
}

function applyTheme(theme) {
  setAttribute(document.documentElement, "data-theme", theme === "system" ? null : theme);
  try {
    localStorage.setItem("explorer-theme", theme);
  } catch {
    // A saved page or a frame may have no storage; the choice holds until it is closed.
  }
}

function select(label, options, chosen, change, name) {
  const list = element(
    "select",
    { name, change: () => change(list.value) },
    Object.entries(options).map(([value, text]) => element("option", { value, selected: value === chosen }, text)),
  );
  return element("label", { class: "field" }, element("span", {}, label), list);
}

/** Fills the head of the page: models, colours, link and page to share. */
export function drawPageControls(place, models, choices, actions, saved) {
  const names = Object.fromEntries(models.map((model) => [model.name, model.name]));
  const theme = storedTheme();
  applyTheme(theme);
  place.replaceChildren(
    select("Model", names, choices.sides[0].model, actions.chooseModel, "model"),
    select("Compare with", { "": "nothing", ...names }, choices.sides[1]?.model ?? "", actions.compareWith, "second"),
    select(
      "Colours",
      THEMES,
      theme,
      (value) => {
        applyTheme(value);
        actions.recolour();
      },
      "theme",
    ),
    element(
      "div",
      { class: "share" },
      location.protocol === "about:" ? null : button("Copy link", actions.copyLink, { class: "tool" }),
      saved
        ? null
        : button("Save page", actions.savePage, { class: "tool", title: "One HTML file that needs no server" }),
    ),
  );
}

function numberField(label, name, value, limits, change) {
  const input = element("input", {
    type: "number",
    name,
    value,
    ...limits,
    input: () => {
      const number = input.valueAsNumber;
      if (number >= limits.min && number <= limits.max) change(number);
    },
    change: () => {
      const given = Math.min(limits.max, Math.max(limits.min, input.valueAsNumber || limits.min));
      const number = limits.step === 1 ? Math.round(given) : given;
      input.value = number;
      change(number);
    },
  });
  return element("label", { class: "field" }, element("span", {}, label), input);
}

/**
 * Makes the card with the sentence and the settings of the search.
 * @returns {{element: HTMLElement, draw: function, showProblem: function, showBusy: function}}
 */
export function createInput(actions) {
  const area = element("textarea", {
    id: "source",
    rows: "3",
    dir: "auto",
    spellcheck: "false",
    autocomplete: "off",
    "aria-describedby": "source-note source-problem",
    placeholder: "Type a sentence …",
    input: () => actions.setText(area.value),
  });
  const label = element("label", { for: "source", class: "eyebrow" }, "Sentence");
  const note = element("p", { id: "source-note", class: "note" });
  const problem = element("div", { id: "source-problem", class: "problem", role: "alert", hidden: true });
  const settings = element("div", { class: "settings" });
  const examples = element("div", { class: "examples" });
  const bar = element("div", { class: "busy-bar", "aria-hidden": "true" });
  const card = element("div", { class: "card input-card" }, bar, label, area, note, problem, settings, examples);
  let drawnFor = "";

  function drawSettings(model, choices) {
    settings.replaceChildren(
      numberField(
        "Beam size",
        "beam_size",
        choices.settings.beam_size,
        { min: 1, max: model.max_beam, step: 1 },
        (value) => actions.set({ beam_size: Math.round(value) }),
      ),
      numberField("Length penalty α", "alpha", choices.settings.alpha, { min: 0, max: 5, step: 0.1 }, (value) =>
        actions.set({ alpha: value }),
      ),
    );
  }

  function drawExamples(model, saved) {
    const texts = saved ? [] : (EXAMPLES[model.source] ?? []);
    const title = texts.length ? [element("span", { class: "eyebrow" }, "For example")] : [];
    examples.replaceChildren(
      ...title,
      ...texts.map((text) =>
        button(
          text,
          () => {
            area.value = text;
            actions.setText(text, true);
            area.focus();
          },
          { class: "example", lang: languageTag(model.source), dir: "auto" },
        ),
      ),
    );
  }

  function drawNote(model, choices, sides, saved) {
    const bytes = new TextEncoder().encode(choices.text).length;
    const tokens = sides[0]?.search?.source.length;
    const parts = [];
    if (saved) parts.push("A saved page: it shows the answers it was saved with.");
    if (bytes > 0.8 * model.max_bytes) parts.push(`${bytes} of at most ${model.max_bytes} bytes.`);
    if (choices.text.trim() && tokens) parts.push(`${tokens} source tokens.`);
    if (sides.some((side) => side.search?.cut)) {
      parts.push(`The sentence is too long for the model: only its first ${tokens - 1} tokens were translated.`);
    }
    note.textContent = parts.join(" ");
    note.classList.toggle("over-limit", bytes > model.max_bytes || sides.some((side) => side.search?.cut));
  }

  return {
    element: card,
    draw(choices, model, sides, saved) {
      if (area.value !== choices.text) area.value = choices.text;
      setAttribute(area, "lang", languageTag(model.source));
      area.readOnly = saved;
      label.textContent = `${languageName(model.source)} sentence`;
      const key = JSON.stringify([model.name, saved]);
      if (drawnFor !== key) {
        drawSettings(model, choices);
        drawExamples(model, saved);
        settings.classList.toggle("frozen", saved);
        settings.querySelectorAll("input").forEach((input) => setAttribute(input, "disabled", saved));
      }
      drawnFor = key;
      examples.hidden = choices.text.trim() !== "";
      drawNote(model, choices, sides, saved);
    },
    text: () => area.value,
    /** Has the next drawing make the fields anew, with the values of the choices. */
    forget() {
      drawnFor = "";
    },
    showBusy(busy) {
      card.classList.toggle("busy", busy);
    },
    /** Shows what went wrong, in words, or nothing. */
    showProblem(text, retry) {
      problem.hidden = !text;
      problem.replaceChildren();
      if (!text) return;
      problem.append(element("span", {}, text));
      if (retry) problem.append(button("Try again", retry, { class: "tool" }));
    },
  };
}
