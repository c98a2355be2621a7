const VIEW = { kind: "cross", layer: 0, head: 0, queries: [], keys: [], alignment: true, pruned: true };

/** Returns what a reader chose for one side; a side also holds answers. */
export function changesOf({ prefix, heads_off, target, hypothesis }) {
  return { prefix, heads_off, target, hypothesis };
}

/** Returns what a reader changed about one model's translation: nothing. */
export function freshChanges() {
  return { prefix: [], heads_off: [], target: null, hypothesis: 0 };
}

function isRecord(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function integers(value) {
  return Array.isArray(value) ? value.filter((each) => Number.isInteger(each) && each >= 0) : [];
}

function headList(value) {
  const isHead = (each) => isRecord(each) && Number.isInteger(each.layer) && Number.isInteger(each.head);
  const kinds = ["encoder", "decoder", "cross"];
  return Array.isArray(value) ? value.filter((each) => isHead(each) && kinds.includes(each.kind)) : [];
}

function readChanges(record, hypothesis) {
  const target = typeof record.target === "string" ? record.target : null;
  return {
    prefix: integers(record.prefix),
    heads_off: headList(record.heads_off),
    target: Array.isArray(record.target) ? integers(record.target) : target,
    hypothesis: Number.isInteger(hypothesis) && hypothesis >= 0 ? hypothesis : 0,
  };
}

function readView(view) {
  const kinds = ["encoder", "decoder", "cross"];
  const pooled = ["mean", "max", "rollout"];
  return {
    kind: kinds.includes(view.kind) ? view.kind : VIEW.kind,
    layer: view.layer === "all" || (Number.isInteger(view.layer) && view.layer >= 0) ? view.layer : VIEW.layer,
    head: pooled.includes(view.head) || (Number.isInteger(view.head) && view.head >= 0) ? view.head : VIEW.head,
    queries: integers(view.queries),
    keys: integers(view.keys),
    alignment: view.alignment !== false,
    pruned: view.pruned !== false,
  };
}

function readNumber(value, lowest, highest, otherwise) {
  return typeof value === "number" && value >= lowest && value <= highest ? value : otherwise;
}

/**
 * Returns what the page shows: text, settings, view, and one side for each model.
 * @param state of a link or a saved page; null and nonsense are replaced by defaults
 * @param models that can be asked
 */
export function readState(state, models) {
  const given = isRecord(state) ? state : {};
  const view = isRecord(given.view) ? given.view : {};
  const known = (name) => models.some((model) => model.name === name);
  const names = (Array.isArray(given.models) ? given.models.filter(known) : []).slice(0, 2);
  if (!names.length) names.push(models[0].name);
  const first = models.find((model) => model.name === names[0]);
  const settings = isRecord(given.settings) ? given.settings : {};
  const sides = [{ model: names[0], ...readChanges(given, view.hypothesis) }];
  if (names[1]) {
    const second = isRecord(view.second) ? view.second : {};
    sides.push({ model: names[1], ...readChanges(second, second.hypothesis) });
  }
  return {
    text: typeof given.text === "string" ? given.text : "",
    settings: {
      beam_size: Math.round(readNumber(settings.beam_size, 1, first.max_beam, first.beam_size)),
      alpha: readNumber(settings.alpha, 0, 5, first.alpha),
    },
    view: readView({ layer: first.decoder_layers - 1, ...view }),
    sides,
  };
}

/** Returns the state that a link or a saved page keeps. */
export function writeState(choices) {
  const [{ hypothesis, ...changes }, second] = choices.sides.map(changesOf);
  const view = { ...choices.view, hypothesis };
  if (second) view.second = second;
  return {
    version: 1,
    models: choices.sides.map((side) => side.model),
    text: choices.text,
    settings: choices.settings,
    ...changes,
    view,
  };
}

/** Returns the URL fragment of a state: base64url of its JSON. */
export function stateToFragment(state) {
  let bytes = "";
  for (const byte of new TextEncoder().encode(JSON.stringify(state))) bytes += String.fromCharCode(byte);
  return `#s=${btoa(bytes).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "")}`;
}

/** Returns the state of a URL fragment, or null. */
export function fragmentToState(fragment) {
  if (!fragment.startsWith("#s=")) return null;
  try {
    const text = atob(fragment.slice(3).replaceAll("-", "+").replaceAll("_", "/"));
    return JSON.parse(new TextDecoder().decode(Uint8Array.from(text, (letter) => letter.charCodeAt(0))));
  } catch {
    return null;
  }
}

/** Returns the state that came with the page, or null. */
export function inlinedState() {
  try {
    return JSON.parse(document.getElementById("state").textContent);
  } catch {
    return null;
  }
}

/** Whether a reader changed anything about a side's translation, apart from choosing a hypothesis. */
export function isChanged(side) {
  return side.prefix.length > 0 || side.heads_off.length > 0 || side.target !== null;
}

/** Whether two entries name the same head. */
export function sameHead(a, b) {
  return a.kind === b.kind && a.layer === b.layer && a.head === b.head;
}

/** Returns the list of heads that are off after one of them was switched. */
export function switchedHeads(headsOff, head) {
  const rest = headsOff.filter((each) => !sameHead(each, head));
  return rest.length < headsOff.length ? rest : [...headsOff, head];
}
