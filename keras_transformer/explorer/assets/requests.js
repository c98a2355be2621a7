import { AnswerError, requestKey } from "./answers.js";

const PAGE_LIMIT = 7_500_000;

/** Returns the request for one side's search; `plain` leaves out what a reader changed. */
export function searchRequest(choices, side, plain) {
  const { beam_size, alpha } = choices.settings;
  const asked = { model: side.model, text: choices.text, beam_size: Math.min(beam_size, side.info.max_beam), alpha };
  return plain ? asked : { ...asked, prefix: side.prefix, heads_off: side.heads_off };
}

/** Returns the request for the inspection of a target. */
export function inspectRequest(choices, side, target, plain) {
  return { model: side.model, text: choices.text, target, heads_off: plain ? [] : side.heads_off };
}

/** Returns the target that a side shows: a reader's own, or the ids of the chosen hypothesis. */
export function targetOf(side, search) {
  side.hypothesis = Math.min(side.hypothesis, Math.max(0, search.hypotheses.length - 1));
  return side.target ?? search.hypotheses[side.hypothesis]?.ids ?? [];
}

/**
 * Collects the answers that a saved page needs: those shown, and inspections of the other hypotheses while they fit.
 * @throws {AnswerError} those shown are too large for a page
 */
export async function collectAnswers(choices, client) {
  const answers = { models: [], searches: {}, inspections: {} };
  let size = 0;

  function keep(holder, kind, asked, answer, isShown) {
    const key = requestKey(kind, asked);
    if (answers[holder][key]) return;
    const length = JSON.stringify(answer).length;
    if (size + length > PAGE_LIMIT) {
      if (isShown) throw new AnswerError("The page would be too large. Take a shorter sentence.");
      return;
    }
    size += length;
    answers[holder][key] = answer;
  }

  async function keepInspection(side, target, plain, isShown) {
    const asked = inspectRequest(choices, side, target, plain);
    keep("inspections", "inspect", asked, await client.inspect(asked), isShown);
  }

  /** Keeps a search and the inspection that belongs to it; returns its hypotheses. */
  async function keepShown(side, plain) {
    const asked = searchRequest(choices, side, plain);
    const search = await client.search(asked);
    keep("searches", "search", asked, search, true);
    await keepInspection(side, plain ? search.hypotheses[0].ids : targetOf(side, search), plain, true);
    return search.hypotheses;
  }

  const others = [];
  for (const side of choices.sides) {
    if (!answers.models.includes(side.info)) answers.models.push(side.info);
    await keepShown(side, true);
    others.push([side, await keepShown(side, false)]);
  }
  for (const [side, hypotheses] of others) {
    for (const { ids } of hypotheses) await keepInspection(side, ids, false, false);
  }
  return answers;
}
