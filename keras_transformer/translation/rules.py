"""Constraints on the next token, and length penalties.

Axes: `rows, vocab_size, max_length, prefix_length`.
"""

import math
import numbers
from collections.abc import Callable
from typing import Any, NamedTuple

from keras import ops

from keras_transformer.config.sections import LENGTH_PENALTIES
from keras_transformer.config.types import Tensor
from keras_transformer.model.kernels.tensor_ops import gather, take_along

NEG_INF = -math.inf  # log-probability of a forbidden token, and of an empty slot
_SMALLEST = 2.0**-126  # the smallest normal float32: its logarithm is finite


class Step(NamedTuple):
    """Output of a step function."""

    logits: Any  # float, (rows, vocab_size)
    state: Any  # nested structure of tensors
    normalized: bool = False  # whether the logits are log-probabilities
    demands: Any = None  # `Demands` of a constraint, see `constraints`
    coverage: Any = None  # float32, (rows,), `coverage_score` after the next token; for a coverage penalty


# (ids, position, state) -> `Step`, and (state, indices) -> state: see `search`.
StepFunction = Callable[[Tensor, Tensor, Any], Step]
StateFunction = Callable[[Any, Tensor], Any]


class Rules(NamedTuple):
    """Decoding settings shared by greedy search, beam search and sampling, for all sentences.

    Attributes:
        eos_id: int, ends a hypothesis.
        pad_id: int, fills `ids` after eos.
        forbidden_ids: ints, tokens that are never produced, except by a prefix. The other
            probabilities are not renormalized: scores stay those of the model.
        min_length: int, minimum number of tokens before eos.
        no_repeat_ngram: int, forbids repeating any n-gram of this size; 0 disables.
        alpha: float or scalar tensor, see `length_penalty`. Tensors are not checked.
        penalty: `"gnmt"`, `"average"` or `"none"`, see `length_penalty`.
        coverage_penalty: float or scalar tensor, at least 0: beta, the factor of `Step.coverage` in the score
            of a hypothesis; 0 disables. Tensors are not checked.

    Raises:
        ValueError: a value is out of range; raised by `check`, which every search calls.
    """

    eos_id: int
    pad_id: int
    forbidden_ids: tuple = ()
    min_length: int = 0
    no_repeat_ngram: int = 0
    alpha: float = 0.6
    penalty: str = "gnmt"
    coverage_penalty: float = 0.0

    def check(self) -> None:
        """Raises ValueError if a value is out of range."""
        for name in ("alpha", "coverage_penalty"):
            value = getattr(self, name)
            if not ops.is_tensor(value) and not (math.isfinite(value) and value >= 0):
                raise ValueError(f"`{name}` must be finite and at least 0. Received: {name}={value}")
        for name in ("min_length", "no_repeat_ngram"):
            value = getattr(self, name)
            if not isinstance(value, numbers.Integral) or value < 0:
                raise ValueError(f"`{name}` must be an integer of at least 0. Received: {name}={value}")
        if self.eos_id in self.forbidden_ids:
            raise ValueError(
                "`forbidden_ids` must not contain `eos_id`. "
                f"Received: forbidden_ids={self.forbidden_ids}, eos_id={self.eos_id}"
            )
        length_penalty(1, self.alpha, self.penalty)  # raises ValueError for an unknown name

    @property
    def covers(self) -> bool:
        """Whether there is a coverage penalty."""
        return has_coverage(self.coverage_penalty)

    def score(self, log_probs: Tensor, lengths: Tensor, coverage: Tensor = ()) -> Tensor:
        """Returns the score of hypotheses, float32: log-probability / length penalty + beta * coverage.

        This is equation 14 of Wu et al. (2016).

        Args:
            log_probs: float32; -inf stays -inf.
            lengths: int32, broadcastable to `log_probs`, number of tokens with eos.
            coverage: float32, same shape as `log_probs`, of `coverage_score`; `()` without a penalty,
                and for an upper bound of the score.
        """
        # The penalty may overflow at an extreme alpha, and -inf / inf is NaN.
        score = log_probs / length_penalty(lengths, self.alpha, self.penalty)
        if not isinstance(coverage, tuple):
            score = score + ops.cast(self.coverage_penalty, "float32") * coverage
        return ops.where(log_probs > NEG_INF, score, NEG_INF)

    def continuations(
        self, step: Step, ids: Tensor, position: Tensor, forced_ids: Tensor | None, number: int | None
    ) -> tuple[Tensor, Tensor]:
        """Returns the most probable next tokens that the rules allow.

        Args:
            step: `Step`. NaN logits count as forbidden tokens.
            ids: int32, shape `(rows, max_length)`, tokens so far.
            position: int32 scalar, number of tokens so far.
            forced_ids: int32, shape `(rows,)`, the only allowed token (of a prefix), or `pad_id`
                where any token is allowed; `None` if no row has a forced token.
            number: int, number of tokens to return for each row; `None` for the whole vocabulary, unsorted.

        Returns:
            `(log_probs, ids)`, float32 and int32, shape `(rows, width)`. `width` is at least
            `number`, or the vocabulary size if that is smaller. Allowed tokens are sorted, best
            first, unless `number` is `None`; forbidden tokens may stand between them and have
            log-probability -inf.
        """
        logits, normalized = ops.cast(step.logits, "float32"), step.normalized
        demands, unmasked = step.demands, logits
        if self.no_repeat_ngram:
            unmasked = logits if normalized else ops.log_softmax(logits, axis=-1)
            logits = without_repeated_ngrams(unmasked, ids, position, self.no_repeat_ngram)
            if forced_ids is not None:  # forced tokens may repeat n-grams
                logits = ops.where((forced_ids == self.pad_id)[:, None], logits, unmasked)
            normalized = True
        # Take more tokens than needed, so that enough remain: cheaper than masking the whole vocabulary.
        width = None if number is None else min(number + len(self.forbidden_ids) + 1, logits.shape[-1])
        if demands is None and width is not None:
            best, ids = _top_k(logits, width)  # --> [rows, width]
            max_logit, top_id = best[:, :1], ids[:, :1]
        else:
            top_id = ops.cast(ops.argmax(unmasked, axis=-1), "int32")[:, None]
            max_logit = take_along(unmasked, top_id)
            best, ids = (
                _top_k(logits, width)
                if demands is None
                else self._demanded(logits, unmasked, top_id, position, demands, width)
            )
        max_log_prob = 0.0
        if normalized:
            max_logit = 0.0
        else:
            # softmax takes half the time of log_softmax; the largest probability cannot underflow.
            max_log_prob = ops.log(take_along(ops.softmax(unmasked, axis=-1), top_id))
            best = (best - max_logit) + max_log_prob
        allowed = best > NEG_INF  # False for NaN
        for forbidden in self.forbidden_ids:
            allowed &= ids != forbidden
        if self.min_length and demands is None:
            allowed &= ~((ids == self.eos_id) & (position < self.min_length))
        if forced_ids is None:
            return ops.where(allowed, best, NEG_INF), ids

        forced = (forced_ids != self.pad_id)[:, None]
        first = ops.arange(best.shape[-1])[None] == 0
        forced_log_probs = (take_along(unmasked, forced_ids[:, None]) - max_logit) + max_log_prob
        best = ops.where(forced, forced_log_probs, best)
        allowed = ops.where(forced, first & (forced_log_probs > NEG_INF), allowed)
        return ops.where(allowed, best, NEG_INF), ops.where(forced, forced_ids[:, None], ids)

    def _demanded(self, logits, unmasked, top_id, position, demands, width):
        """Returns the best tokens that a constraint and these rules allow, as `continuations` does.

        Args:
            logits: float32, shape `(rows, vocab_size)`; -inf for tokens that would repeat an n-gram.
            unmasked: the same without -inf for those.
            top_id: int32, shape `(rows, 1)`, the most probable token.
            demands: `Demands`. The last `num_wanted` columns of the result are the best wanted tokens, unless
                they are in the first column, and the columns between have -inf in their place.
        """
        tokens = ops.arange(logits.shape[-1], dtype="int32")[None]
        allowed = demands.allowed
        for forbidden in self.forbidden_ids:
            allowed &= tokens != forbidden
        if self.min_length or self.no_repeat_ngram:
            # The constraint comes first: where these rules leave nothing, they do not apply.
            left = allowed & (logits > NEG_INF) & ((tokens != self.eos_id) | (position >= self.min_length))
            allowed = _unless_empty(left, allowed)
        if demands.wanted is not None and not demands.num_wanted:
            # Without a beam to divide: the hypothesis would go on at random until the length limit.
            would_end = (top_id == self.eos_id) & ~demands.allowed[:, self.eos_id, None]
            allowed = ops.where(would_end, _unless_empty(allowed & demands.wanted, allowed), allowed)
        best, ids = _top_k(ops.where(allowed, unmasked, NEG_INF), width)
        if not demands.num_wanted:
            return best, ids
        number = min(demands.num_wanted, logits.shape[-1])
        more, more_ids = _top_k(ops.where(allowed & demands.wanted, unmasked, NEG_INF), number)
        # No token twice: the best one of all stays in the first column, others move to the wanted ones.
        more = ops.where(more_ids == ids[:, :1], NEG_INF, more)
        moved = (ids[:, :, None] == more_ids[:, None, :]) & (more > NEG_INF)[:, None, :]
        best = ops.where(ops.any(moved, axis=2), NEG_INF, best)
        return ops.concatenate([best, more], axis=1), ops.concatenate([ids, more_ids], axis=1)


def _unless_empty(mask, other):
    """Returns the rows of `mask`, bool, that allow a token, and those of `other` instead of the rest."""
    return ops.where(ops.any(mask, axis=-1, keepdims=True), mask, other)


def length_penalty(length, alpha, formula="gnmt"):
    """Length penalty: the score of a hypothesis is its log-probability divided by it.

    Systems use different formulas under the same name, so an alpha is not comparable between them:

    - `"gnmt"`: `((5 + length) / 6) ** alpha`, equation 14 of Wu et al. (2016), to which
      section 6.1 of the paper refers for its `alpha = 0.6` (Tensor2Tensor, OpenNMT-tf);
    - `"average"`: `length ** alpha`; alpha = 1 gives the mean log-probability per token
      (fairseq, Marian, CTranslate2);
    - `"none"`: 1.

    No formula decreases with the length; the stopping rule of beam search relies on that.

    Args:
        length: int, any shape, number of tokens with eos, as in Tensor2Tensor. `"average"` takes
            0 as 1.
        alpha: float or scalar tensor, at least 0; 0 disables the penalty.
        formula: `"gnmt"`, `"average"` or `"none"`.

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


def coverage_score(attention):
    """How much of the source is covered: the sum over its tokens i of log(min(sum_j p_ij, 1)).

    p_ij is the attention of target token j to source token i. The sum is 0 if the attention to every source
    token, over all target tokens, is at least 1; otherwise negative. It never falls when a target token is
    added: the stopping rule of beam search relies on that.

    Equation 14 of Wu et al. (2016), without its factor beta.

    Args:
        attention: float32, shape `(..., source_len)`, sum over target tokens; 1 for padding. A value of 0,
            or less than the smallest normal float32, counts as this.

    Returns:
        float32, shape `(...)`.
    """
    return ops.sum(ops.log(ops.clip(attention, _SMALLEST, 1.0)), axis=-1)


def has_coverage(coverage_penalty):
    """Whether a coverage penalty, a float or a scalar tensor, is on: tensors always are."""
    return ops.is_tensor(coverage_penalty) or coverage_penalty > 0


def without_repeated_ngrams(log_probs, ids, position, size):
    """Sets the log-probability of tokens that would repeat an n-gram of their row to -inf.

    Args:
        log_probs: float32, shape `(rows, vocab_size)`.
        ids: int32, shape `(rows, max_length)`; only the first `position` tokens are used.
        position: int32 scalar, number of tokens so far.
        size: int, n of the n-grams, at least 1.

    Returns:
        float32, shape `(rows, vocab_size)`.
    """
    rows, length = ops.shape(ids)
    starts = ops.arange(length, dtype="int32")
    # repeated[r, s]: the n-gram at s is complete and begins with the last n - 1 tokens of row r.
    repeated = ops.broadcast_to((starts + size <= position)[None], (rows, length))
    for i in range(size - 1):
        last = gather(ids, ops.maximum(position - size + 1 + i, 0), axis=1)
        repeated &= ops.roll(ids, -i, axis=1) == last[:, None]
    ends = ops.roll(ids, 1 - size, axis=1)
    row = ops.broadcast_to(ops.arange(rows, dtype="int32")[:, None], (rows, length))
    indices = ops.reshape(ops.stack([row, ends], axis=-1), (-1, 2))
    hits = ops.scatter(indices, ops.reshape(ops.cast(repeated, "int32"), (-1,)), ops.shape(log_probs))
    return ops.where(hits > 0, NEG_INF, log_probs)


def _top_k(values, k):
    """`ops.top_k` for long rows in two steps: first the k best blocks, then the k best values in them.

    The maximum of each block is one vectorized pass; the sorted list that `ops.top_k` keeps is not. If `k` is
    `None`, returns all values, unsorted.
    """
    width = values.shape[-1]
    if k is None:
        return values, ops.zeros_like(values, dtype="int32") + ops.arange(width, dtype="int32")
    block = next((size for size in range(64, 257) if width % size == 0), width)
    if width // block <= k:
        best, ids = ops.top_k(values, k)
        return best, ops.cast(ids, "int32")
    blocks = ops.reshape(values, (-1, width // block, block))
    _, chosen = ops.top_k(ops.max(blocks, axis=-1), k)
    chosen = ops.sort(ops.cast(chosen, "int32"), axis=-1)  # ties: the lower id comes first
    candidates = ops.reshape(take_along(blocks, chosen), (-1, k * block))
    best, indices = ops.top_k(candidates, k)
    indices = ops.cast(indices, "int32")
    return best, take_along(chosen, indices // block) * block + indices % block
