import { requestKey } from "./answers.js";

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

/** Collects the answers that a saved page needs: those shown, and inspections of the other hypotheses. */
export async function collectAnswers(choices, client) {
  const answers = { models: [], searches: {}, inspections: {} };
  let size = 0;

  function keep(holder, kind, asked, answer) {
    const key = requestKey(kind, asked);
    const length = JSON.stringify(answer).length;
    if (answers[holder][key] || size + length > PAGE_LIMIT) return;
    size += length;
    answers[holder][key] = answer;
  }

  async function keepSide(side, plain) {
    const asked = searchRequest(choices, side, plain);
    const search = await client.search(asked);
    keep("searches", "search", asked, search);
    const targets = search.hypotheses.map((each) => each.ids);
    for (const target of plain ? targets.slice(0, 1) : [targetOf(side, search), ...targets]) {
      const inspected = inspectRequest(choices, side, target, plain);
      keep("inspections", "inspect", inspected, await client.inspect(inspected));
    }
  }

  for (const side of choices.sides) {
    if (!answers.models.includes(side.info)) answers.models.push(side.info);
    await keepSide(side, true);
    await keepSide(side, false);
  }
  return answers;
}
