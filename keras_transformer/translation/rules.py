"""Which tokens may come next, and how the length of a hypothesis changes its score.

Axes: `rows, vocab_size, max_length, prefix_length`.
"""

import math
import numbers
from typing import NamedTuple

from keras import ops

from keras_transformer.config.sections import LENGTH_PENALTIES
from keras_transformer.model.kernels.tensor_ops import gather, take_along

NEVER = -math.inf  # the log-probability of what cannot happen: an empty place


class Rules(NamedTuple):
    """Settings that are the same for all sentences and every kind of search.

    Attributes:
        eos_id: int, ends a hypothesis.
        pad_id: int, fills the places after the end.
        forbidden_ids: ints, tokens that are never produced, unless a prefix has them. Their
            probability is not shared out among the others: scores stay those of the model.
        min_length: int, fewest tokens before eos.
        no_repeat_ngram: int, forbids repeating any n-gram of this size; 0 disables.
        alpha: float or scalar tensor, see `length_penalty`. A tensor's value is not checked.
        penalty: `"gnmt"`, `"average"` or `"none"`, see `length_penalty`.

    Raises:
        ValueError: from a search, for values out of range.
    """

    eos_id: int
    pad_id: int
    forbidden_ids: tuple = ()
    min_length: int = 0
    no_repeat_ngram: int = 0
    alpha: float = 0.6
    penalty: str = "gnmt"

    def check(self):
        """Raises ValueError for values out of range."""
        if not ops.is_tensor(self.alpha) and not (math.isfinite(self.alpha) and self.alpha >= 0):
            raise ValueError(f"`alpha` must be finite and at least 0. Received: alpha={self.alpha}")
        for name in ("min_length", "no_repeat_ngram"):
            value = getattr(self, name)
            if not isinstance(value, numbers.Integral) or value < 0:
                raise ValueError(f"`{name}` must be an integer of at least 0. Received: {name}={value}")
        if self.eos_id in self.forbidden_ids:
            raise ValueError(
                "`forbidden_ids` must not contain `eos_id`, or nothing would end. "
                f"Received: forbidden_ids={self.forbidden_ids}, eos_id={self.eos_id}"
            )
        length_penalty(1, self.alpha, self.penalty)  # refuses an unknown name

    def score(self, log_probs, lengths):
        """Returns log-probability over penalty, float32; `NEVER` stays."""
        # The penalty may overflow at an extreme alpha, and -inf / inf is NaN.
        score = log_probs / length_penalty(lengths, self.alpha, self.penalty)
        return ops.where(log_probs > NEVER, score, NEVER)

    def continuations(self, step, ids, position, forced_ids, number):
        """The most probable next tokens which the rules allow each row.

        Args:
            step: `Step`; its logits may be NaN, where the model gave none.
            ids: int32, shape `(rows, max_length)`, tokens so far.
            position: int32 scalar, how many they are.
            forced_ids: int32, shape `(rows,)`, the one allowed token, of a prefix, or `pad_id` for
                any; or `None`, any for all.
            number: int, how many are wanted.

        Returns:
            `(log_probs, ids)`, float32 and int32, shape `(rows, n)`, the best first where allowed;
            `n` is at least `number`, or the vocabulary's size. The places of tokens that are not
            allowed have `NEVER`.
        """
        logits, normalized = ops.cast(step.logits, "float32"), step.normalized
        if self.no_repeat_ngram:
            logits = logits if normalized else ops.log_softmax(logits, axis=-1)
            free = without_repeated_ngrams(logits, ids, position, self.no_repeat_ngram)
            if forced_ids is not None:
                free = ops.where((forced_ids == self.pad_id)[:, None], free, logits)
            logits, normalized = free, True
        # More than are wanted, so that enough are left: cheaper than masking all of them.
        number = min(number + len(self.forbidden_ids) + 1, logits.shape[-1])
        best, ids = _largest(logits, number)  # --> [rows, number]
        top, of_top = 0.0, 0.0
        if not normalized:
            # The probability of the best is never too small for its logarithm, and softmax takes
            # half the time of log_softmax.
            top = best[:, :1]
            of_top = ops.log(take_along(ops.softmax(logits, axis=-1), ids[:, :1]))
            best = (best - top) + of_top
        allowed = best > NEVER  # NaN is not greater
        for forbidden in self.forbidden_ids:
            allowed &= ids != forbidden
        if self.min_length:
            allowed &= ~((ids == self.eos_id) & (position < self.min_length))
        if forced_ids is None:
            return ops.where(allowed, best, NEVER), ids

        forced = (forced_ids != self.pad_id)[:, None]
        first = ops.arange(number)[None] == 0
        forced_log_probs = (take_along(logits, forced_ids[:, None]) - top) + of_top
        best = ops.where(forced, forced_log_probs, best)
        allowed = ops.where(forced, first & (forced_log_probs > NEVER), allowed)
        return ops.where(allowed, best, NEVER), ops.where(forced, forced_ids[:, None], ids)


def length_penalty(length, alpha, formula="gnmt"):
    """Divides the log-probability of a hypothesis.

    Systems give different formulas one name, so that one alpha means different things:

    - `"gnmt"`: `((5 + length) / 6) ** alpha`, equation 14 of Wu et al. (2016), to which
      section 6.1 of the paper refers for its `alpha = 0.6` (Tensor2Tensor, OpenNMT-tf);
    - `"average"`: `length ** alpha`; with 1, the mean over tokens (fairseq, Marian, CTranslate2);
    - `"none"`: 1.

    None of them falls with the length, on which the stop of beam search rests.

    Args:
        length: int, any shape, with eos, as in Tensor2Tensor. 0 counts as 1 in `"average"`.
        alpha: float or scalar tensor, at least 0; 0 turns the penalty off.
        formula: one of the three names.

    Returns:
        float32, same shape as `length`.
    """
    if formula not in LENGTH_PENALTIES:
        raise ValueError(f"`formula` must be one of {list(LENGTH_PENALTIES)}. Received: {formula!r}")
    length = ops.cast(length, "float32")
    if formula == "gnmt":
        return ops.power((5.0 + length) / 6.0, ops.cast(alpha, "float32"))
    if formula == "average":
        return ops.power(ops.maximum(length, 1.0), ops.cast(alpha, "float32"))
    return ops.ones_like(length)


def without_repeated_ngrams(log_probs, ids, position, size):
    """Blocks each token which would end an n-gram that the row already has.

    Args:
        log_probs: float32, shape `(rows, vocab_size)`.
        ids: int32, shape `(rows, max_length)`, whose first `position` tokens count.
        position: int32 scalar.
        size: n, at least 1.

    Returns:
        float32, shape `(rows, vocab_size)`, `NEVER` for what is blocked.
    """
    rows, length = ops.shape(ids)
    starts = ops.arange(length, dtype="int32")
    # An n-gram that starts here ends in a token that is there already.
    repeated = ops.broadcast_to((starts + size <= position)[None], (rows, length))
    for i in range(size - 1):
        last = gather(ids, ops.maximum(position - size + 1 + i, 0), axis=1)
        repeated &= ops.roll(ids, -i, axis=1) == last[:, None]
    ends = ops.roll(ids, 1 - size, axis=1)
    row = ops.broadcast_to(ops.arange(rows, dtype="int32")[:, None], (rows, length))
    where = ops.reshape(ops.stack([row, ends], axis=-1), (-1, 2))
    hits = ops.scatter(where, ops.reshape(ops.cast(repeated, "int32"), (-1,)), ops.shape(log_probs))
    return ops.where(hits > 0, NEVER, log_probs)


def _largest(values, number):
    """`ops.top_k` of long rows, in two steps: first the blocks that can hold any of them.

    Finding the largest of each block is one pass that vectorises; keeping a sorted list of
    the best so far is not.
    """
    width = values.shape[-1]
    block = next((size for size in range(64, 257) if width % size == 0), width)
    if width // block <= number:
        best, ids = ops.top_k(values, number)
        return best, ops.cast(ids, "int32")
    blocks = ops.reshape(values, (-1, width // block, block))
    _, chosen = ops.top_k(ops.max(blocks, axis=-1), number)
    chosen = ops.sort(ops.cast(chosen, "int32"), axis=-1)  # among equals, the lower id first
    held = ops.reshape(take_along(blocks, chosen), (-1, number * block))
    best, places = ops.top_k(held, number)
    places = ops.cast(places, "int32")
    return best, take_along(chosen, places // block) * block + places % block
