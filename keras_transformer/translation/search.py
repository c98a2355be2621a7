"""Greedy search, beam search and sampling over any step function; knows no model.

The caller supplies `step(ids, position, state) -> Step`, which turns the last
token of every row into the logits of the next one:

- `ids`: int32, shape `(rows,)`, the last token of every row;
- `position`: int32 scalar, 0 at the first call, when `ids` are the `first_ids`;
- `state`: any nested structure of tensors, of the same structure and dtypes as it came in
  (`()` where there is none).

`rows` is `batch * n` for n hypotheses of each sentence, and row `sentence * n + i` belongs
to hypothesis i of that sentence. Two more functions say what happens to the state:

- `reorder(state, parents)`, where hypothesis i of each sentence goes on from `parents[:, i]`,
  int32, shape `(batch, n)`;
- `select_sentences(state, sentences)`, where only some sentences are left, int32, shape `(left,)`.

Without them every tensor of `state` must have `rows` rows, which are gathered.

Axes: `batch, beam_size, n_best, max_length, vocab_size, rows`.
"""

import math
import numbers
from typing import NamedTuple

import keras
from keras import ops

from keras_transformer.model.kernels.tensor_ops import gather, take_along
from keras_transformer.translation.decoding_loop import decode, gather_rows, keep_where_done, make_sentences
from keras_transformer.translation.rules import NEVER


class Step(NamedTuple):
    """What a step function returns."""

    logits: object  # float, (rows, vocab_size)
    state: object  # nested tensors
    normalized: bool = False  # the logits are log-probabilities


class Hypotheses(NamedTuple):
    """The best hypotheses of every sentence, best first (sampled ones as they were drawn).

    Hypotheses that ended come before those cut off at the length limit, whatever
    their scores. A place left empty, where a sentence has fewer than `n_best`
    hypotheses, has score -inf, length 0 and only padding.
    """

    ids: object  # int32, (batch, n_best, max_length): eos included, pad_id after it
    scores: object  # float32, (batch, n_best): log-probability / length_penalty
    log_probs: object  # float32, (batch, n_best): of all tokens, eos included
    lengths: object  # int32, (batch, n_best): tokens, eos included
    finished: object  # bool, (batch, n_best): ended with eos, not at the limit


def greedy_search(
    step, state, first_ids, rules, *,
    max_lengths, max_length, prefix_ids=None, reorder=None, select_sentences=None,
):  # fmt: skip
    """Takes the most probable token at every position.

    Returns what `beam_search` with `beam_size=1` returns, without its reordering of `state`.

    Args:
        step: `step(ids, position, state) -> Step`, see the top of this module.
        state: nested tensors, for `batch` rows.
        first_ids: int32, shape `(batch,)`, what the first step sees (bos).
        rules: `Rules`. The penalty changes only the score.
        max_lengths: int32, shape `(batch,)`, most tokens per sentence, eos
            included. A sentence with limit 0 gets the empty hypothesis, score 0.
        max_length: int or int32 scalar, length of the `ids` that are returned; at
            least every one of `max_lengths`, which are cut to it.
        prefix_ids: int32, shape `(batch, prefix_length)`, tokens with which the hypotheses
            of each sentence begin, padded at the end; or `None`. They count in the score.
        reorder: not used.
        select_sentences: see the top of this module.

    Returns:
        `Hypotheses` with `n_best = 1`.
    """
    sentences = make_sentences(max_lengths, max_length, prefix_ids, rules)

    def choose(log_probs, ids, position, sentences):
        best = ops.argmax(log_probs, axis=-1)  # blocked tokens may stand before it
        return tuple(take_along(x, best[:, None])[:, 0] for x in (log_probs, ids))

    return _decode_independently(
        step, state, first_ids, rules, sentences, max_length, choose, 1, 1, select_sentences
    )


def sample(
    step, state, first_ids, rules, *,
    uniforms, temperature=1.0, top_k=0, top_p=1.0,
    max_lengths, max_length, prefix_ids=None, reorder=None, select_sentences=None,
):  # fmt: skip
    """Draws each token at random, for `n_best` independent hypotheses of each sentence.

    Token t of hypothesis i of a sentence is the first whose cumulative probability, most
    probable token first, exceeds `uniforms[sentence, i, t]`: with numbers that belong to
    the sentence, what is drawn does not depend on its batch.

    `log_probs` and `scores` are those of the model, whatever was drawn from.

    Args:
        state: nested tensors, for `batch * n_best` rows.
        uniforms: float32, shape `(batch, n_best, max_length)`, at least 0 and below 1.
        temperature: float above 0, which logits are divided by.
        top_k: int, only so many most probable tokens are drawn from; 0 for all.
        top_p: float above 0, only the fewest most probable tokens whose probability (after
            `temperature` and `top_k`) is at least this together are drawn from; 1 for all.
        first_ids, rules, max_lengths, max_length, prefix_ids, select_sentences: as in `greedy_search`.

    Returns:
        `Hypotheses`, in the order of `uniforms`.
    """
    if not (math.isfinite(temperature) and temperature > 0):
        raise ValueError(f"`temperature` must be above 0. Received: temperature={temperature}")
    if not isinstance(top_k, numbers.Integral) or top_k < 0:
        raise ValueError(f"`top_k` must be an integer of at least 0. Received: top_k={top_k}")
    if not 0 < top_p <= 1:
        raise ValueError(f"`top_p` must be above 0 and at most 1. Received: top_p={top_p}")
    uniforms = ops.convert_to_tensor(uniforms, "float32")
    n_best = uniforms.shape[1]
    sentences = make_sentences(max_lengths, max_length, prefix_ids, rules, uniforms)

    def choose(log_probs, ids, position, sentences):
        # Best first, but for what is blocked.
        order = ops.cast(ops.argsort(-log_probs, axis=-1), "int32")
        log_probs, ids = take_along(log_probs, order), take_along(ids, order)
        drawn = log_probs if not top_k else log_probs[:, :top_k]
        weights = ops.exp((drawn - drawn[:, :1]) / temperature)
        weights = ops.where(drawn > NEVER, weights, 0.0)
        before = ops.cumsum(weights, axis=-1) - weights
        weights = ops.where(before < top_p * ops.sum(weights, axis=-1, keepdims=True), weights, 0.0)
        cumulative = ops.cumsum(weights, axis=-1)
        uniform = ops.reshape(gather(sentences.uniforms, position, axis=2), (-1, 1))
        passed = cumulative <= uniform * cumulative[:, -1:]
        last = ops.sum(ops.cast(weights > 0, "int32"), axis=-1) - 1  # rounding may pass them all
        index = ops.minimum(ops.sum(ops.cast(passed, "int32"), axis=-1), ops.maximum(last, 0))
        return tuple(take_along(x, index[:, None])[:, 0] for x in (log_probs, ids))

    number = top_k or 10**9
    return _decode_independently(
        step, state, first_ids, rules, sentences, max_length, choose, number, n_best, select_sentences
    )


def beam_search(
    step, state, first_ids, rules, *,
    beam_size=4, n_best=1, early_stop=False,
    max_lengths, max_length, prefix_ids=None, reorder=None, select_sentences=None,
):  # fmt: skip
    """Keeps the `beam_size` most probable hypotheses at every position.

    As in Tensor2Tensor, with which the paper was made: at each position the best
    `2 * beam_size` continuations of all live hypotheses are its candidates. Those that end in
    eos enter the list of the best `beam_size` finished ones, ranked by score; the best
    `beam_size` of the others stay alive. (A beam of one has one candidate, and is greedy
    search.) A sentence is done when nothing is alive, at its
    limit, or when the `n_best`-th finished score is at least the best that any live
    hypothesis can still reach: log-probabilities only fall and the penalty never does, so
    that is the best live log-probability over the penalty of the sentence's limit. Stopping
    there loses no better hypothesis.

    Among equal scores the earlier one comes first, then the better beam, then the
    lower token id.

    Args:
        state: nested tensors, for `batch * beam_size` rows.
        beam_size: int, hypotheses kept alive per sentence. It may exceed the
            vocabulary.
        n_best: int, hypotheses returned per sentence, at most `beam_size`.
        early_stop: bool. A sentence is done as soon as `beam_size` hypotheses have finished, and only
            ends among the best `beam_size` continuations of a position count, as in fairseq. Faster;
            may miss better hypotheses.
        reorder: see the top of this module.
        first_ids, rules, max_lengths, max_length, prefix_ids, select_sentences: as in `greedy_search`.

    Returns:
        `Hypotheses`.
    """
    if not isinstance(beam_size, numbers.Integral) or beam_size < 1:
        raise ValueError(f"`beam_size` must be a positive integer. Received: beam_size={beam_size}")
    if not isinstance(n_best, numbers.Integral) or not 1 <= n_best <= beam_size:
        raise ValueError(
            "`n_best` must be an integer from 1 to `beam_size`. "
            f"Received: n_best={n_best}, beam_size={beam_size}"
        )
    sentences = make_sentences(max_lengths, max_length, prefix_ids, rules)
    reorder = gather_rows if reorder is None else reorder
    candidates = 2 * beam_size if beam_size > 1 else 1

    def advance(position, sentences, beams, state):
        # Logits of the next token of every live hypothesis --> [rows, vocab_size]
        taken = step(ops.reshape(beams.live_last_ids, (-1,)), position, state)
        # Its best tokens that the rules allow --> [rows, width]
        forced_ids = sentences.forced_ids(position, beam_size)
        ids = _flat(beams.live_ids)
        added, next_ids = rules.continuations(taken, ids, position, forced_ids, candidates)
        width = added.shape[-1]
        # The best candidates of each sentence; those of an empty place have -inf --> [batch, candidates]
        total = ops.reshape(beams.live_log_probs, (-1, 1)) + added
        total = ops.reshape(total, (-1, beam_size * width))
        total, best = ops.top_k(total, min(candidates, beam_size * width))
        best = ops.cast(best, "int32")
        parents = best // width
        next_ids = take_along(ops.reshape(next_ids, (-1, beam_size * width)), best)
        # --> [batch, candidates, length]
        ids = _write(take_along(beams.live_ids, parents), next_ids, position)

        # Those that end now and those that ended before: the best by score are kept.
        ends = next_ids == rules.eos_id
        # With `early_stop`, improbable ends would otherwise fill the finished list and stop the search.
        counted = ends & (ops.arange(ops.shape(total)[1]) < beam_size) if early_stop else ends
        ended_log_probs = ops.where(counted, total, NEVER)
        scores = rules.score(ended_log_probs, position + 1)
        lengths = ops.zeros_like(next_ids) + position + 1
        finished = _best_finished(beams.finished, _Finished(ids, scores, ended_log_probs, lengths))

        # The best of the others stay alive --> [batch, beam_size]
        live_log_probs, live = ops.top_k(ops.where(ends, NEVER, total), beam_size)
        live = ops.cast(live, "int32")
        state = reorder(taken.state, take_along(parents, live))

        enough = finished.scores[:, n_best - 1]
        bound = rules.score(live_log_probs[:, 0], sentences.limits)
        done = (enough >= bound) | (position + 1 >= sentences.limits)
        if early_stop:
            done |= finished.scores[:, -1] > NEVER
        beams = _Beams(take_along(next_ids, live), take_along(ids, live), live_log_probs, finished)
        return beams, done, state

    batch = ops.shape(first_ids)[0]
    pads = ops.full((batch, beam_size, max_length), rules.pad_id, dtype="int32")
    nothing = ops.full((batch, beam_size), NEVER, dtype="float32")
    beams = _Beams(
        live_last_ids=ops.tile(ops.convert_to_tensor(first_ids, "int32")[:, None], (1, beam_size)),
        live_ids=pads,
        # One hypothesis to begin with: equal ones would fill the beam with copies.
        live_log_probs=ops.where(ops.arange(beam_size) == 0, 0.0, nothing),
        finished=_Finished(pads, nothing, nothing, ops.zeros((batch, beam_size), dtype="int32")),
    )
    beams = decode(advance, beams, sentences, state, beam_size, select_sentences)
    return _n_best(beams, sentences.limits, n_best, rules)


class _Paths(NamedTuple):
    """Greedy search and sampling: n independent hypotheses of every sentence."""

    last_ids: object  # int32, (batch, n)
    ids: object  # int32, (batch, n, max_length)
    log_probs: object  # float32, (batch, n)
    lengths: object  # int32, (batch, n)
    done: object  # bool, (batch, n)


class _Finished(NamedTuple):
    ids: object  # int32, (batch, beam_size, max_length)
    scores: object  # float32, (batch, beam_size), best first; NEVER: empty place
    log_probs: object  # float32, (batch, beam_size)
    lengths: object  # int32, (batch, beam_size)


class _Beams(NamedTuple):
    """Beam search: the live hypotheses of every sentence and the finished ones."""

    live_last_ids: object  # int32, (batch, beam_size)
    live_ids: object  # int32, (batch, beam_size, max_length)
    live_log_probs: object  # float32, (batch, beam_size), best first; NEVER: empty place
    finished: _Finished


def _decode_independently(
    step, state, first_ids, rules, sentences, max_length, choose, number, n, select_sentences
):
    """Decodes `n` hypotheses of each sentence one token at a time, each token taken by `choose`.

    Args:
        choose: takes `(log_probs, ids)`, both `(rows, m)`, of the `number` best tokens that
            are allowed, the position and the `Sentences`; returns both of one, `(rows,)`.
    """

    def advance(position, sentences, path, state):
        taken = step(ops.reshape(path.last_ids, (-1,)), position, state)
        forced_ids = sentences.forced_ids(position, n)
        allowed = rules.continuations(taken, _flat(path.ids), position, forced_ids, number)
        log_probs, ids = (ops.reshape(x, (-1, n)) for x in choose(*allowed, position, sentences))
        new = _Paths(
            last_ids=ids,
            ids=_write(path.ids, ids, position),
            log_probs=path.log_probs + log_probs,
            lengths=path.lengths + 1,
            done=(ids == rules.eos_id) | (log_probs == NEVER),
        )
        path = keep_where_done(path.done, path, new)
        return path, ops.all(path.done, axis=1) | (position + 1 >= sentences.limits), taken.state

    batch = ops.shape(first_ids)[0]
    path = _Paths(
        last_ids=ops.tile(ops.convert_to_tensor(first_ids, "int32")[:, None], (1, n)),
        ids=ops.full((batch, n, max_length), rules.pad_id, dtype="int32"),
        log_probs=ops.zeros((batch, n), dtype="float32"),
        lengths=ops.zeros((batch, n), dtype="int32"),
        done=ops.zeros((batch, n), dtype="bool"),
    )
    path = decode(advance, path, sentences, state, n, select_sentences)
    return _blank_empty_places(
        ids=path.ids,
        scores=rules.score(path.log_probs, path.lengths),
        log_probs=path.log_probs,
        lengths=path.lengths,
        finished=(path.last_ids == rules.eos_id) & (path.lengths > 0),
        pad_id=rules.pad_id,
    )


def _flat(ids):
    """`(batch, n, max_length)` -> `(rows, max_length)`."""
    return ops.reshape(ids, (-1, ops.shape(ids)[2]))


def _write(ids, new_ids, position):
    """Writes `new_ids`, shape `(...)`, at `position` of `ids`, `(..., max_length)`."""
    here = ops.arange(ops.shape(ids)[-1], dtype="int32") == position
    return ops.where(here, new_ids[..., None], ids)


def _best_finished(old, new):
    """Merges two lists of finished hypotheses into one, as long as the first."""
    both = keras.tree.map_structure(lambda *x: ops.concatenate(x, axis=1), old, new)
    scores, best = ops.top_k(both.scores, old.scores.shape[1])
    best = ops.cast(best, "int32")
    return _Finished(
        take_along(both.ids, best), scores, take_along(both.log_probs, best), take_along(both.lengths, best)
    )


def _n_best(beams, limits, n_best, rules):
    """Takes finished hypotheses first, then those that the limit cut off.

    A sentence that stopped below its limit has `n_best` finished ones or nothing
    alive, so what is alive here and wanted was cut off at the limit.
    """
    beam_size = beams.live_log_probs.shape[1]
    cut_off = _Finished(
        ids=beams.live_ids,
        scores=rules.score(beams.live_log_probs, limits[:, None]),
        log_probs=beams.live_log_probs,
        lengths=ops.zeros_like(beams.live_last_ids) + limits[:, None],
    )
    # Chosen by counting, for one rank of both would need offsets on the scores.
    place = ops.arange(n_best, dtype="int32")[None]
    num_finished = ops.sum(ops.cast(beams.finished.scores > NEVER, "int32"), axis=1, keepdims=True)
    finished = place < num_finished
    index = ops.where(finished, place, beam_size + place - num_finished)
    ids, scores, log_probs, lengths = (
        take_along(ops.concatenate(pair, axis=1), index) for pair in zip(beams.finished, cut_off, strict=True)
    )
    return _blank_empty_places(ids, scores, log_probs, lengths, finished, rules.pad_id)


def _blank_empty_places(ids, scores, log_probs, lengths, finished, pad_id):
    exists = scores > NEVER
    return Hypotheses(
        ids=ops.where(exists[..., None], ids, pad_id),
        scores=scores,
        log_probs=log_probs,
        lengths=ops.where(exists, lengths, 0),
        finished=finished & exists,
    )
