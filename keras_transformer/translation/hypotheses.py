"""Hypotheses of beam search, live and finished, and the n best of them.

Axes: `batch, beams (= beam_size), slots, n_best, max_length`.
"""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.model.kernels.tensor_ops import take_along
from keras_transformer.translation.rules import NEG_INF


class Hypotheses(NamedTuple):
    """N-best hypotheses of each sentence, best first (samples in the order drawn).

    In beam search, hypotheses that end in eos come before those cut off at the length limit, regardless of
    their scores, and empty slots come last. An empty slot has score -inf, length 0 and only padding.
    """

    ids: Any  # int32, (batch, n_best, max_length): with eos, then padding
    scores: Any  # float32, (batch, n_best): see `Rules.score`
    log_probs: Any  # float32, (batch, n_best): sum over the tokens, with eos
    lengths: Any  # int32, (batch, n_best): number of tokens, with eos
    finished: Any  # bool, (batch, n_best): ends in eos; False if cut off at the limit


class ScoredHypotheses(NamedTuple):
    """Beam search: hypotheses of each sentence with their scores; an empty slot has score -inf."""

    ids: Any  # int32, (batch, slots, max_length)
    scores: Any  # float32, (batch, slots)
    log_probs: Any  # float32, (batch, slots)
    lengths: Any  # int32, (batch, slots)


class Beams(NamedTuple):
    """Beam search: the live and the finished hypotheses of each sentence."""

    live_last_ids: Any  # int32, (batch, beam_size)
    live_ids: Any  # int32, (batch, beam_size, max_length)
    live_log_probs: Any  # float32, (batch, beam_size), best first; -inf in empty slots
    live_coverage: Any  # float32, (batch, beam_size), `Step.coverage`, for a coverage penalty, else ()
    finished: ScoredHypotheses  # (batch, beam_size), best first


def merge_finished(old, new):
    """Returns the best of the old and new finished hypotheses, best first, in as many slots as `old` has."""
    both = keras.tree.map_structure(lambda *x: ops.concatenate(x, axis=1), old, new)
    scores, best = ops.top_k(both.scores, old.scores.shape[1])
    best = ops.cast(best, "int32")
    return ScoredHypotheses(
        take_along(both.ids, best), scores, take_along(both.log_probs, best), take_along(both.lengths, best)
    )


def select_n_best(beams, limits, n_best, rules):
    """Returns `Hypotheses`: the finished ones, then the live ones that the length limit cut off.

    A sentence that was done before its limit has `n_best` finished hypotheses or no live one, so every live
    hypothesis that is returned was cut off at the limit.
    """
    beam_size = beams.live_log_probs.shape[1]
    cut_off = ScoredHypotheses(
        ids=beams.live_ids,
        scores=rules.score(beams.live_log_probs, limits[:, None], beams.live_coverage),
        log_probs=beams.live_log_probs,
        lengths=ops.zeros_like(beams.live_last_ids) + limits[:, None],
    )
    if rules.covers:  # they were sorted by log-probability
        _, best = ops.top_k(cut_off.scores, beam_size)
        best = ops.cast(best, "int32")
        cut_off = ScoredHypotheses(*(take_along(x, best) for x in cut_off))
    # The finished hypotheses fill the first slots of the result, live ones the others --> [batch, n_best]
    slot = ops.arange(n_best, dtype="int32")[None]
    num_finished = ops.sum(ops.cast(beams.finished.scores > NEG_INF, "int32"), axis=1, keepdims=True)
    finished = slot < num_finished
    index = ops.where(finished, slot, beam_size + slot - num_finished)
    ids, scores, log_probs, lengths = (
        take_along(ops.concatenate(pair, axis=1), index) for pair in zip(beams.finished, cut_off, strict=True)
    )
    return pad_empty_slots(ids, scores, log_probs, lengths, finished, rules.pad_id)


def pad_empty_slots(ids, scores, log_probs, lengths, finished, pad_id):
    """Returns `Hypotheses`; those with score -inf get length 0 and only padding."""
    exists = scores > NEG_INF
    return Hypotheses(
        ids=ops.where(exists[..., None], ids, pad_id),
        scores=scores,
        log_probs=log_probs,
        lengths=ops.where(exists, lengths, 0),
        finished=finished & exists,
    )
