"""Greedy and beam search over any step function; knows no model.

The caller supplies `step(ids, position, state) -> Step`, which turns the last
token of every row into the logits of the next one:

- `ids`: int32, shape `(rows,)`, the last token of every row;
- `position`: int32 scalar, 0 at the first call, when `ids` are the `first_ids`;
- `state`: any nested structure of tensors with leading axis `rows`, in the same
  structure, shapes and dtypes as it came in (`()` where there is none).

`rows` is `batch` for greedy search and `batch * beam_size` for beam search, where
row `sentence * beam_size + beam` belongs to that beam of that sentence. The first
`state` already has `rows` rows. What is the same for all beams of a sentence and
never changes, such as the keys and values of the encoder output, belongs in the
closure of `step` (repeated to `rows`, once) and not in `state`: beam search
reorders every tensor of `state` at every position.

A sentence is frozen as soon as it is done, so its result depends neither on its
neighbours in the batch nor on how long the loop runs for them.

Axes: `batch, beam_size, n_best, max_length, vocab_size, rows`.
"""

import math
import numbers
from typing import NamedTuple

import keras
from keras import ops

NEVER = -math.inf  # the log-probability of what cannot happen: an empty place


class Step(NamedTuple):
    """What a step function returns."""

    logits: object  # float, (rows, vocab_size)
    state: object  # nested tensors, (rows, ...)


class Hypotheses(NamedTuple):
    """The best hypotheses of every sentence, best first.

    Hypotheses that ended come before those cut off at the length limit, whatever
    their scores. A place left empty, where a sentence has fewer than `n_best`
    hypotheses, has score -inf, length 0 and only padding.
    """

    ids: object  # int32, (batch, n_best, max_length): eos included, pad_id after it
    scores: object  # float32, (batch, n_best): log-probability / length_penalty
    lengths: object  # int32, (batch, n_best): tokens, eos included
    finished: object  # bool, (batch, n_best): ended with eos, not at the limit


def length_penalty(length, alpha):
    """Divides the log-probability of a hypothesis: `((5 + length) / 6) ** alpha`.

    Equation 14 of Wu et al. (2016), to which section 6.1 of the paper refers for
    its `alpha = 0.6`. `length` counts eos, as in Tensor2Tensor.

    Args:
        length: int, any shape.
        alpha: float, at least 0; 0 turns the penalty off.

    Returns:
        float32, same shape as `length`.
    """
    return ops.power((5.0 + ops.cast(length, "float32")) / 6.0, float(alpha))


def greedy_search(
    step, state, first_ids, *,
    max_lengths, max_length, eos_id, pad_id, alpha=0.6, forbidden_ids=(),
):  # fmt: skip
    """Takes the most probable token at every position.

    Returns what `beam_search` with `beam_size=1` returns, without its top-k and
    its reordering of `state`. `alpha` changes only the score.

    Args:
        step: `step(ids, position, state) -> Step`, see the top of this module.
        state: nested tensors, shape `(batch, ...)`.
        first_ids: int32, shape `(batch,)`, what the first step sees (bos).
        max_lengths: int32, shape `(batch,)`, most tokens per sentence, eos
            included. A sentence with limit 0 gets the empty hypothesis, score 0.
        max_length: int or int32 scalar, length of the `ids` that are returned; at
            least every one of `max_lengths`, which are cut to it.
        eos_id: int, ends a hypothesis.
        pad_id: int, fills the places after the end.
        alpha: float, see `length_penalty`.
        forbidden_ids: ints, tokens that are never produced. Their probability is
            not shared out among the others: scores stay those of the model.

    Returns:
        `Hypotheses` with `n_best = 1`.
    """
    _check(alpha, max_length, eos_id, forbidden_ids)
    first_ids = ops.convert_to_tensor(first_ids, "int32")
    limits = ops.minimum(ops.convert_to_tensor(max_lengths, "int32"), max_length)
    batch = ops.shape(first_ids)[0]

    def advance(position, path, state):
        logits, state = step(path.last_ids, position, state)
        log_probs = _extend(path.log_probs, logits, forbidden_ids)
        ids = ops.cast(ops.argmax(log_probs, axis=-1), "int32")
        path = _Path(
            last_ids=ids,
            ids=_write(path.ids, ids, position),
            log_probs=ops.max(log_probs, axis=-1),
            lengths=path.lengths + 1,
        )
        done = (ids == eos_id) | (path.log_probs == NEVER)
        return path, done | (path.lengths >= limits), state

    path = _Path(
        last_ids=first_ids,
        ids=ops.full((batch, max_length), pad_id, dtype="int32"),
        log_probs=ops.zeros((batch,), dtype="float32"),
        lengths=ops.zeros((batch,), dtype="int32"),
    )
    path = _run(advance, path, limits < 1, state)
    return _blank_empty_places(
        ids=path.ids[:, None],
        scores=_score(path.log_probs, path.lengths, alpha)[:, None],
        lengths=path.lengths[:, None],
        finished=((path.last_ids == eos_id) & (path.lengths > 0))[:, None],
        pad_id=pad_id,
    )


def beam_search(
    step, state, first_ids, *,
    beam_size=4, alpha=0.6, max_lengths, max_length, eos_id, pad_id,
    n_best=1, forbidden_ids=(),
):  # fmt: skip
    """Keeps the `beam_size` most probable hypotheses at every position.

    At each position the best `beam_size` continuations of all alive hypotheses
    are taken. Those that end in eos leave the beam for the list of the best
    `beam_size` finished ones, ranked by score; the places they leave are filled
    again at the next position, from the continuations of the others. A sentence is done
    when nothing is alive, at its limit, or when the `n_best`-th finished score is
    at least the best that any alive hypothesis can still reach: log-probabilities
    only fall and the penalty only grows, so that is the best alive
    log-probability over the penalty of the sentence's limit. Stopping there loses
    no better hypothesis.

    Among equal scores the earlier one comes first, then the better beam, then the
    lower token id.

    Args:
        step: `step(ids, position, state) -> Step`, see the top of this module.
        state: nested tensors, shape `(batch * beam_size, ...)`.
        first_ids: int32, shape `(batch,)`, what the first step sees (bos).
        beam_size: int, hypotheses kept alive per sentence. It may exceed the
            vocabulary.
        alpha: float, see `length_penalty`.
        max_lengths: int32, shape `(batch,)`, as in `greedy_search`.
        max_length: int or int32 scalar, as in `greedy_search`.
        eos_id: int, ends a hypothesis.
        pad_id: int, fills the places after the end.
        n_best: int, hypotheses returned per sentence, at most `beam_size`.
        forbidden_ids: ints, as in `greedy_search`.

    Returns:
        `Hypotheses`.
    """
    _check(alpha, max_length, eos_id, forbidden_ids)
    if not isinstance(beam_size, numbers.Integral) or beam_size < 1:
        raise ValueError(f"`beam_size` must be a positive integer. Received: beam_size={beam_size}")
    if not isinstance(n_best, numbers.Integral) or not 1 <= n_best <= beam_size:
        raise ValueError(
            "`n_best` must be an integer from 1 to `beam_size`. "
            f"Received: n_best={n_best}, beam_size={beam_size}"
        )
    first_ids = ops.convert_to_tensor(first_ids, "int32")
    limits = ops.minimum(ops.convert_to_tensor(max_lengths, "int32"), max_length)
    batch = ops.shape(first_ids)[0]

    def advance(position, beams, state):
        logits, state = step(ops.reshape(beams.last_ids, (-1,)), position, state)
        vocab_size = ops.shape(logits)[-1]
        log_probs = _extend(ops.reshape(beams.log_probs, (-1,)), logits, forbidden_ids)
        log_probs = ops.reshape(log_probs, (batch, beam_size * vocab_size))
        log_probs, best = ops.top_k(log_probs, beam_size)
        parents = ops.cast(best // vocab_size, "int32")
        last_ids = ops.cast(best % vocab_size, "int32")
        ids = _write(_take(beams.ids, parents), last_ids, position)
        rows = ops.reshape(_rows(parents, beam_size), (-1,))
        state = keras.tree.map_structure(lambda x: ops.take(x, rows, axis=0), state)

        ends = last_ids == eos_id
        ended_log_probs = ops.where(ends, log_probs, NEVER)
        ended_lengths = ops.zeros_like(last_ids) + position + 1
        finished = _best_finished(
            beams.finished,
            _Finished(ids, _score(ended_log_probs, position + 1, alpha), ended_lengths),
        )
        log_probs = ops.where(ends, NEVER, log_probs)
        bound = _score(ops.max(log_probs, axis=-1), limits, alpha)
        done = (finished.scores[:, n_best - 1] >= bound) | (position + 1 >= limits)
        return _Beams(last_ids, ids, log_probs, finished), done, state

    pads = ops.full((batch, beam_size, max_length), pad_id, dtype="int32")
    nothing = ops.full((batch, beam_size), NEVER, dtype="float32")
    beams = _Beams(
        last_ids=ops.tile(first_ids[:, None], (1, beam_size)),
        ids=pads,
        # One hypothesis to begin with: equal ones would fill the beam with copies.
        log_probs=ops.where(ops.arange(beam_size) == 0, 0.0, nothing),
        finished=_Finished(pads, nothing, ops.zeros((batch, beam_size), dtype="int32")),
    )
    beams = _run(advance, beams, limits < 1, state)
    return _n_best(beams, limits, n_best, alpha, pad_id)


class _Path(NamedTuple):
    """Greedy search: the one hypothesis of every sentence."""

    last_ids: object  # int32, (batch,)
    ids: object  # int32, (batch, max_length)
    log_probs: object  # float32, (batch,)
    lengths: object  # int32, (batch,)


class _Finished(NamedTuple):
    ids: object  # int32, (batch, beam_size, max_length)
    scores: object  # float32, (batch, beam_size), best first; NEVER: empty place
    lengths: object  # int32, (batch, beam_size)


class _Beams(NamedTuple):
    """Beam search: the alive hypotheses of every sentence and the finished ones."""

    last_ids: object  # int32, (batch, beam_size)
    ids: object  # int32, (batch, beam_size, max_length)
    log_probs: object  # float32, (batch, beam_size); NEVER: empty place
    finished: _Finished


class _Loop(NamedTuple):
    position: object  # int32, scalar
    done: object  # bool, (batch,)
    found: object  # _Path or _Beams
    state: object  # nested tensors, (rows, ...)


def _run(advance, found, done, state):
    """Calls `advance` until every sentence is done; a done one no longer changes."""

    def body(loop):
        found, done, state = advance(loop.position, loop.found, loop.state)
        found = keras.tree.map_structure(
            lambda old, new: ops.where(_columns(loop.done, old), old, new),
            loop.found,
            found,
        )
        new = _Loop(loop.position + 1, loop.done | done, found, state)
        return (keras.tree.map_structure(_with_shape_of, loop, new),)

    loop = _Loop(ops.zeros((), dtype="int32"), done, found, state)
    loop = keras.tree.map_structure(ops.convert_to_tensor, loop)
    (loop,) = ops.while_loop(lambda loop: ops.logical_not(ops.all(loop.done)), body, (loop,))
    return loop.found


def _with_shape_of(old, new):
    # TensorFlow's loop refuses a variable that loses a statically known size.
    return ops.reshape(new, ops.shape(old))


def _columns(flags, values):
    """Gives flags, shape `(batch,)`, as many axes as `values` has."""
    return ops.reshape(flags, (-1,) + (1,) * (len(values.shape) - 1))


def _extend(log_probs, logits, forbidden_ids):
    """Log-probability of every hypothesis with every token appended.

    Args:
        log_probs: float32, shape `(rows,)`.
        logits: float, shape `(rows, vocab_size)`. Where they allow no token, all
            -inf or not a number, the hypothesis has no continuation.
        forbidden_ids: ints.

    Returns:
        float32, shape `(rows, vocab_size)`.
    """
    next_log_probs = ops.log_softmax(ops.cast(logits, "float32"), axis=-1)
    total = log_probs[:, None] + next_log_probs
    # NaN > NEVER is false, so this also removes what is not a number.
    possible = (next_log_probs > NEVER) & (log_probs[:, None] > NEVER)
    if forbidden_ids:
        token = ops.arange(ops.shape(logits)[-1], dtype="int32")[:, None]
        possible &= ops.all(token != ops.array(forbidden_ids, dtype="int32"), axis=-1)
    return ops.where(possible, total, NEVER)


def _score(log_probs, lengths, alpha):
    # The penalty may overflow at an extreme alpha, and -inf / inf is NaN.
    score = log_probs / length_penalty(lengths, alpha)
    return ops.where(log_probs > NEVER, score, NEVER)


def _write(ids, new_ids, position):
    """Writes `new_ids`, shape `(...)`, at `position` of `ids`, `(..., max_length)`."""
    here = ops.arange(ops.shape(ids)[-1], dtype="int32") == position
    return ops.where(here, new_ids[..., None], ids)


def _rows(index, width):
    """Row numbers, in `(batch * width, ...)`, of indices `(batch, n)` below `width`."""
    first = ops.arange(ops.shape(index)[0], dtype="int32") * width
    return first[:, None] + index


def _take(values, index):
    """Picks along axis 1, per sentence.

    Args:
        values: shape `(batch, width, ...)`.
        index: int32, shape `(batch, n)`.

    Returns:
        Shape `(batch, n, ...)`.
    """
    _, width, *rest = ops.shape(values)
    values = ops.reshape(values, (-1, *rest))
    return ops.take(values, _rows(index, width), axis=0)


def _best_finished(old, new):
    """Merges two lists of `beam_size` finished hypotheses into one."""
    both = keras.tree.map_structure(lambda *x: ops.concatenate(x, axis=1), old, new)
    scores, best = ops.top_k(both.scores, old.scores.shape[1])
    best = ops.cast(best, "int32")
    return _Finished(_take(both.ids, best), scores, _take(both.lengths, best))


def _n_best(beams, limits, n_best, alpha, pad_id):
    """Takes finished hypotheses first, then those that the limit cut off.

    A sentence that stopped below its limit has `n_best` finished ones or nothing
    alive, so what is alive here and wanted was cut off at the limit.
    """
    beam_size = beams.log_probs.shape[1]
    log_probs, best = ops.top_k(beams.log_probs, beam_size)
    cut_off = _Finished(
        ids=_take(beams.ids, ops.cast(best, "int32")),
        scores=_score(log_probs, limits[:, None], alpha),
        lengths=ops.zeros_like(beams.last_ids) + limits[:, None],
    )
    # Chosen by counting, for one rank of both would need offsets on the scores.
    place = ops.arange(n_best, dtype="int32")[None]
    num_finished = ops.sum(ops.cast(beams.finished.scores > NEVER, "int32"), axis=1, keepdims=True)
    finished = place < num_finished
    index = ops.where(finished, place, beam_size + place - num_finished)
    ids, scores, lengths = (
        _take(ops.concatenate(pair, axis=1), index) for pair in zip(beams.finished, cut_off, strict=True)
    )
    return _blank_empty_places(ids, scores, lengths, finished, pad_id)


def _blank_empty_places(ids, scores, lengths, finished, pad_id):
    exists = scores > NEVER
    return Hypotheses(
        ids=ops.where(exists[..., None], ids, pad_id),
        scores=scores,
        lengths=ops.where(exists, lengths, 0),
        finished=finished & exists,
    )


def _check(alpha, max_length, eos_id, forbidden_ids):
    if not (math.isfinite(alpha) and alpha >= 0):
        raise ValueError(f"`alpha` must be finite and at least 0. Received: alpha={alpha}")
    if isinstance(max_length, numbers.Integral) and max_length < 1:
        raise ValueError(f"`max_length` must be at least 1. Received: max_length={max_length}")
    if eos_id in forbidden_ids:
        raise ValueError(
            "`forbidden_ids` must not contain `eos_id`, or nothing would end. "
            f"Received: forbidden_ids={forbidden_ids}, eos_id={eos_id}"
        )
