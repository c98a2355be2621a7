import { AnswerError, createClient } from "./answers.js";
import { createInput, drawPageControls } from "./controls.js";
import { announce } from "./dom.js";
import { shown } from "./numbers.js";
import { createPanels } from "./panels.js";
import { collectAnswers, inspectRequest, searchRequest, targetOf } from "./requests.js";
import { copyText, download } from "./share.js";
import { fragmentToState, inlinedState, stateToFragment } from "./state.js";
import { changesOf, freshChanges, isChanged, readState, writeState } from "./state.js";

const DEBOUNCE = 250;

const inlined = inlinedState();
const client = createClient(inlined?.answers ?? null, (text) => input.showProblem(text));
const input = createInput({ setText, set: setSettings });
const pastChanges = [[], []];
let models = [];
let choices = null;
let turn = 0;
let controller = null;
let timer = null;

const actions = {
  change: changeSide,
  look,
  hover: (index, at) => panels.hover(index, at),
  undo,
  reset,
  setTarget,
  chooseModel,
  compareWith,
  copyLink,
  savePage,
  recolour: () => panels.drawAttention(choices, true),
};
const panels = createPanels(input, actions);

function infoOf(side) {
  return models.find((model) => model.name === side.model);
}

/** Changes what a reader chose for one side; `remember` lets it be undone. */
function changeSide(index, patch, remember = true) {
  const side = choices.sides[index];
  if (remember) pastChanges[index].push(changesOf(side));
  Object.assign(side, patch);
  if (patch.heads_off) panels.markHeads(index, patch.heads_off);
  refresh();
}

function undo(index) {
  const past = pastChanges[index].pop();
  if (!past) return;
  Object.assign(choices.sides[index], past);
  refresh();
}

function reset(index) {
  changeSide(index, freshChanges());
}

function setTarget(index, text) {
  choices.sides[index].target = text;
  refreshSoon();
}

function setText(text, now = false) {
  if (!choices) return;
  choices.text = text;
  choices.sides.forEach((side, index) => {
    Object.assign(side, { prefix: [], target: null, hypothesis: 0 });
    pastChanges[index] = [];
  });
  Object.assign(choices.view, { queries: [], keys: [] });
  if (now) refresh();
  else refreshSoon();
}

function setSettings(patch) {
  Object.assign(choices.settings, patch);
  choices.sides.forEach((side) => {
    side.hypothesis = 0;
  });
  refreshSoon();
}

function chooseModel(name) {
  choices.sides[0] = { model: name, ...freshChanges() };
  pastChanges[0] = [];
  refresh();
}

function compareWith(name) {
  choices.sides = name ? [choices.sides[0], { model: name, ...freshChanges() }] : [choices.sides[0]];
  pastChanges[1] = [];
  panels.build(choices.sides.length);
  refresh();
}

function look(patch) {
  const kind = choices.view.kind;
  Object.assign(choices.view, patch);
  if (patch.kind && patch.kind !== kind) Object.assign(choices.view, { queries: [], keys: [] });
  keepLink();
  const changed = Object.keys(patch);
  if (changed.every((name) => name === "queries" || name === "keys")) panels.select(choices);
  else if (changed.every((name) => name === "pruned")) panels.drawTrees(choices);
  else panels.drawAttention(choices, false);
}

function draw() {
  choices.sides.forEach((side, i) => {
    side.canUndo = pastChanges[i].length > 0;
  });
  return panels.draw(choices, client.saved);
}

function clear(side) {
  Object.assign(side, { search: null, inspection: null, plain: null, tokens: [] });
}

async function loadSide(side, signal, isLate) {
  side.info = infoOf(side);
  const search = await client.search(searchRequest(choices, side, false), signal);
  if (isLate()) return;
  const target = targetOf(side, search);
  const inspection = await client.inspect(inspectRequest(choices, side, target, false), signal);
  if (isLate()) return;
  const plain = await loadPlain(side, inspection, signal);
  if (isLate()) return;
  Object.assign(side, { search, inspection, plain, good: changesOf(side) });
}

/** Gets the inspection of the model's own best translation, with all heads on, to compare with. */
async function loadPlain(side, inspection, signal) {
  if (!isChanged(side) && side.hypothesis === 0) return inspection;
  try {
    const search = await client.search(searchRequest(choices, side, true), signal);
    return await client.inspect(inspectRequest(choices, side, search.hypotheses[0].ids, true), signal);
  } catch (error) {
    if (error instanceof AnswerError && client.saved) return null;
    throw error;
  }
}

function refreshSoon() {
  clearTimeout(timer);
  controller?.abort();
  keepLink();
  timer = setTimeout(refresh, DEBOUNCE);
}

function tooLong() {
  const limit = Math.min(...choices.sides.map((side) => infoOf(side).max_bytes));
  return new TextEncoder().encode(choices.text.trim()).length > limit ? limit : 0;
}

/** Asks for what the choices need and draws it; a later call overtakes an earlier one. */
async function refresh() {
  clearTimeout(timer);
  controller?.abort();
  controller = new AbortController();
  const mine = (turn += 1);
  const isLate = () => mine !== turn;
  keepLink();
  choices.sides.forEach((side) => {
    side.info = infoOf(side);
  });
  input.showProblem("");
  if (!choices.text.trim() || tooLong()) {
    choices.sides.forEach(clear);
    settle();
    draw();
    if (tooLong()) input.showProblem(`This text is too long: the model takes at most ${tooLong()} bytes.`);
    return;
  }
  choices.sides.forEach((side) => {
    side.loading = true;
  });
  if (!choices.sides.every((side) => side.search)) draw();
  input.showBusy(true);
  document.body.classList.add("waiting");
  document.getElementById("main").setAttribute("aria-busy", "true");
  try {
    // All: the answer of one side is also drawn if the other has none.
    const loaded = await Promise.allSettled(choices.sides.map((side) => loadSide(side, controller.signal, isLate)));
    if (isLate()) return;
    const failed = loaded.find((each) => each.status === "rejected");
    if (failed) throw failed.reason;
    input.showProblem("");
    choices.sides.forEach((side) => {
      side.loading = false;
    });
    await draw();
    if (isLate()) return;
    settle();
    tell();
  } catch (error) {
    if (isLate() || error.name === "AbortError") return;
    settle();
    fail(error);
  }
}

function settle() {
  choices.sides.forEach((side) => {
    side.loading = false;
  });
  input.showBusy(false);
  document.body.classList.remove("waiting");
  document.getElementById("main").removeAttribute("aria-busy");
}

/** Says what went wrong. A saved page goes back to the answers it has. */
function fail(error) {
  const known = error instanceof AnswerError;
  if (!known) console.error(error);
  const text = known ? error.message : "The page could not show the answer.";
  if (client.saved) choices.sides.forEach((side) => Object.assign(side, side.good));
  draw();
  input.showProblem(text, known && error.retry ? refresh : null);
}

function tell() {
  const said = choices.sides.map((side) => {
    const name = choices.sides.length > 1 ? `${side.model}: ` : "Translation: ";
    const { log_prob } = side.target === null ? side.search.hypotheses[side.hypothesis] : side.inspection;
    return `${name}${side.inspection.target_text}, log-probability ${shown(log_prob)}`;
  });
  announce(said.join(". "));
}

function keepLink() {
  try {
    history.replaceState(null, "", choices.text ? stateToFragment(writeState(choices)) : "#");
  } catch {
    // Frames of notebooks have no address of their own.
  }
}

function copyLink() {
  keepLink();
  copyText(location.href, "Link copied.");
}

async function savePage() {
  if (!choices.sides.every((side) => side.search)) {
    input.showProblem("Type a sentence first: the page keeps what is on the screen.");
    return;
  }
  try {
    announce("Saving the page …");
    // What is on the screen now: it may change while answers are collected.
    const kept = { ...choices, settings: { ...choices.settings }, view: { ...choices.view } };
    kept.sides = choices.sides.map((side) => ({ ...side }));
    const page = await client.page({ ...writeState(kept), answers: await collectAnswers(kept, client) });
    input.showProblem("");
    download("translation-explorer.html", "text/html", page);
    announce("Saved translation-explorer.html");
  } catch (error) {
    input.showProblem(error instanceof AnswerError ? error.message : "The page could not be saved.", savePage);
  }
}

async function start() {
  input.showProblem("");
  try {
    models = await client.models();
  } catch (error) {
    document.querySelector(".top").replaceChildren(input.element);
    input.showProblem(error.message, start);
    return;
  }
  if (!models.length) {
    document.querySelector(".top").replaceChildren(input.element);
    input.showProblem("This server has exported models only. The explorer shows run folders.");
    return;
  }
  begin(fragmentToState(location.hash) ?? inlined);
  addEventListener("hashchange", () => {
    const state = fragmentToState(location.hash);
    if (state) begin(state);
  });
  addEventListener("online", () => refresh());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => panels.drawAttention(choices, true));
}

function begin(state) {
  const typed = choices ? "" : input.text();
  choices = readState(state, models);
  choices.text ||= typed;
  pastChanges.forEach((_, i) => {
    pastChanges[i] = [];
  });
  drawPageControls(document.getElementById("page-controls"), models, choices, actions, client.saved);
  panels.build(choices.sides.length);
  input.forget();
  refresh();
}

start();
