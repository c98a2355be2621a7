const SEARCH_FIELDS = ["model", "text", "beam_size", "alpha", "max_length", "prefix", "heads_off"];
const INSPECT_FIELDS = ["model", "text", "target", "heads_off", "alternatives"];
const FIELDS = { search: SEARCH_FIELDS, inspect: INSPECT_FIELDS };
const HOLDERS = { search: "searches", inspect: "inspections" };
const KEPT_CHARACTERS = 100e6; // of all answers: attention to long sentences is megabytes
const RETRIES = 3;

/** A request without an answer; the message is for the reader. */
export class AnswerError extends Error {
  constructor(message, retry = false) {
    super(message);
    this.retry = retry;
  }
}

/** Returns a request with its fields in the agreed order; what is empty is left out. */
function canonical(kind, request) {
  const result = {};
  for (const field of FIELDS[kind]) {
    const value = request[field];
    const empty =
      value === undefined || value === null || (Array.isArray(value) && field !== "target" && !value.length);
    if (!empty && !(field === "alternatives" && value === 5)) result[field] = value;
  }
  if (typeof result.text === "string") result.text = result.text.trim().replace(/\s*[\r\n]\s*/g, " ");
  if (result.heads_off) {
    result.heads_off = result.heads_off.map(({ kind: part, layer, head }) => ({ kind: part, layer, head }));
  }
  return result;
}

/** Returns the text under which the answer to a request is kept. */
export function requestKey(kind, request) {
  return JSON.stringify(canonical(kind, request));
}

/** Returns the requests with all settings spelled out to which an answer is the answer. */
function requestsFor(kind, answer) {
  if (kind === "search") return [answer];
  const ids = answer.target.map((piece) => piece.id);
  const isFinished = ids.at(-1) === answer.source.at(-1).id;
  return (isFinished ? [ids, ids.slice(0, -1)] : [ids]).map((target) => ({ ...answer, target }));
}

function keptAnswers(answers) {
  const kept = { search: new Map(), inspect: new Map() };
  for (const kind of ["search", "inspect"]) {
    for (const [key, answer] of Object.entries(answers?.[HOLDERS[kind]] ?? {})) {
      for (const request of requestsFor(kind, answer)) kept[kind].set(requestKey(kind, request), answer);
    }
    for (const [key, answer] of Object.entries(answers?.[HOLDERS[kind]] ?? {})) {
      kept[kind].set(requestKey(kind, JSON.parse(key)), answer);
    }
  }
  return kept;
}

function refusal(response, message) {
  const plain = {
    413: "This text is too long for the server.",
    429: "The server is busy.",
  }[response.status];
  const text = plain ?? message ?? `The server answered with an error (${response.status}).`;
  return new AnswerError(text, response.status === 429 || response.status >= 500);
}

async function send(address, body, signal) {
  let response;
  try {
    const headers = { "Content-Type": "application/json" };
    response = await fetch(
      address,
      body ? { method: "POST", headers, body: JSON.stringify(body), signal } : { signal },
    );
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new AnswerError("No connection to the server.", true);
  }
  if (response.ok) return response;
  const message = await response.json().then(
    (answer) => answer.error,
    () => undefined,
  );
  const error = refusal(response, typeof message === "string" ? message : undefined);
  const seconds = Number(response.headers.get("Retry-After"));
  error.wait = response.status === 429 || response.status === 503 ? Math.min(10, seconds > 0 ? seconds : 1) : null;
  throw error;
}

function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, 1000 * seconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new DOMException("aborted", "AbortError"));
    });
  });
}

/**
 * Gets answers from the server, or from those that came with the page.
 * @param answers `answers` of a saved page's state, or null
 * @param waiting called with a text while a busy server is asked again
 */
export function createClient(answers, waiting) {
  const kept = keptAnswers(answers);
  const saved = Boolean(answers?.models);
  const sizes = new Map(); // [kind, key] -> characters, oldest first
  let total = 0;

  /** Keeps an answer, and forgets the oldest ones if they are too large together. */
  function keep(kind, key, answer, size) {
    kept[kind].set(key, answer);
    sizes.set([kind, key], size);
    total += size;
    for (const [place, length] of sizes) {
      if (total <= KEPT_CHARACTERS || sizes.size === 1) break;
      kept[place[0]].delete(place[1]);
      sizes.delete(place);
      total -= length;
    }
  }

  async function ask(kind, request, signal) {
    const key = requestKey(kind, request);
    if (kept[kind].has(key)) return kept[kind].get(key);
    if (saved) {
      throw new AnswerError("This saved page does not hold that answer. It needs a running explorer.");
    }
    for (let attempt = 0; ; attempt += 1) {
      try {
        const response = await send(`explorer/${kind}`, canonical(kind, request), signal);
        const text = await response.text();
        const answer = JSON.parse(text);
        keep(kind, key, answer, text.length);
        return answer;
      } catch (error) {
        if (!error.wait || attempt >= RETRIES) throw error;
        waiting(`${error.message.replace(/\.?$/, ".")} Asking again …`);
        await pause(error.wait, signal);
      }
    }
  }

  return {
    /** Whether the answers came with the page, and there is no server to ask. */
    saved,
    /** Returns the models that can be asked. */
    async models() {
      if (saved) return answers.models;
      return (await (await send("explorer/models")).json()).models;
    },
    search: (request, signal) => ask("search", request, signal),
    inspect: (request, signal) => ask("inspect", request, signal),
    /** Returns the text of a page that holds a state. */
    async page(state) {
      return (await send("explorer/page", { state })).text();
    },
  };
}
