"""Greedy search, beam search and sampling, for any model that gives next-token logits.

The caller passes `step(ids, position, state) -> Step`, which decodes one position:

- `ids`: int32, shape `(rows,)`, the last token of each row; `first_ids` (bos) at position 0;
- `position`: int32 scalar, number of tokens decoded so far;
- `state`: nested structure of tensors (caches), or `()`. The returned state has the same
  structure and dtypes.

Each sentence has n hypotheses, in slots 0 to n - 1 (not the slots of a key-value cache); `rows = batch * n`,
row `sentence * n + slot` belongs to the hypothesis in that slot. Two optional functions rearrange the state:

- `reorder(state, parents)`: slot i of each sentence continues the hypothesis in slot
  `parents[:, i]`; `parents` is int32, shape `(batch, n)`;
- `select_sentences(state, sentences)`: keeps only the sentences of the batch with these indices, int32, shape
  `(num_kept,)`.

Without these functions, the search gathers rows, so every tensor of `state` must have `rows` rows.

Beam slots by example: two beams, `n_best=2`, no length penalty, tokens `<s>`, `a`, `b` and eos, written
`$`. The model gives these probabilities of the next token::

    after      $     a     b
    <s>     0.10  0.50  0.40
    <s>a    0.30  0.20  0.50
    <s>b    0.10  0.80  0.10
    <s>ab   0.50  0.40  0.10
    <s>ba   0.75  0.20  0.05

Slot 1 starts empty (probability 0). If it started with probability 1, like slot 0, both slots would have the
same continuations. The candidates of each position are the 4 best continuations (2 * beams)::

    position  candidates                       finished         live slots 0, 1  parents  beam_of_position
    0         a .5, b .4, $ .1, (empty)        $ .1             a, b             0, 0     [0], [0]
    1         ba .32, ab .25, a$ .15, aa .1    a$ .15, $ .1     ba, ab           1, 0     [0 1], [0 0]
    2         ba$ .24, ab$ .125, aba .1,       ba$ .24, a$ .15  aba, baa         1, 0     [0 0 1], [0 1 0]
              baa .064

The search ends after position 2: no live hypothesis can become more probable than 0.1, and both finished
ones are more probable. The last column is `DecoderState.beam_of_position` of a `Transformer`, one list
for each live hypothesis: the slots in which its positions 0, 1 and so on were computed. Reordering moves
these lists and copies no cache.

Axes: `batch, beams (= beam_size), n_best, max_length, vocab_size, rows`.
"""

import math
import numbers
from typing import Any, NamedTuple

from keras import ops

from keras_transformer.config.types import Tensor
from keras_transformer.model.kernels.tensor_ops import gather, merge_slots, take_along, write_at
from keras_transformer.translation.constraints import divide_beam, first_in_order
from keras_transformer.translation.decoding_loop import decode, gather_rows, keep_where_done, make_sentences
from keras_transformer.translation.hypotheses import (
    Beams,
    ScoredHypotheses,
    merge_finished,
    pad_empty_slots,
    select_n_best,
)
from keras_transformer.translation.hypotheses import Hypotheses as Hypotheses  # what a search returns
from keras_transformer.translation.rules import NEG_INF, Rules, StateFunction, StepFunction
from keras_transformer.translation.rules import Step as Step  # a search takes steps


def greedy_search(
    step: StepFunction, state: Any, first_ids: Tensor, rules: Rules, *,
    max_lengths: Tensor, max_length: Tensor, prefix_ids: Tensor | None = None,
    reorder: StateFunction | None = None, select_sentences: StateFunction | None = None,
) -> Hypotheses:  # fmt: skip
    """Greedy search: takes the most probable token at every position.

    Returns the same as `beam_search` with `beam_size=1`, and never reorders `state`.

    Args:
        step: `step(ids, position, state) -> Step`, see the top of this module.
        state: nested structure of tensors, for `batch` rows.
        first_ids: int32, shape `(batch,)`, input of the first step (bos).
        rules: `Rules`. The penalties change only the score.
        max_lengths: int32, shape `(batch,)`, maximum number of target tokens per sentence, eos included. The
            result for a sentence with limit 0 is the empty hypothesis with score 0.
        max_length: int or int32 scalar, size of the last axis of the returned `ids`. Larger `max_lengths` are
            clipped to it.
        prefix_ids: int32, shape `(batch, prefix_length)`, tokens that every hypothesis of a
            sentence starts with, padded at the end; or `None`. The score includes them.
        reorder: not used; accepted so that all searches take the same arguments.
        select_sentences: see the top of this module.

    Returns:
        `Hypotheses` with `n_best = 1`.
    """
    sentences = make_sentences(max_lengths, max_length, prefix_ids, rules)

    def select_token(log_probs, ids, position, sentences):
        best = ops.argmax(log_probs, axis=-1)  # a forbidden token, with -inf, may come before the best
        return tuple(take_along(x, best[:, None])[:, 0] for x in (log_probs, ids))

    return _decode_independently(
        step, state, first_ids, rules, sentences, max_length, select_token, select_sentences, k=1, n=1
    )


def sample(
    step: StepFunction, state: Any, first_ids: Tensor, rules: Rules, *,
    uniforms: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0,
    max_lengths: Tensor, max_length: Tensor, prefix_ids: Tensor | None = None,
    reorder: StateFunction | None = None, select_sentences: StateFunction | None = None,
) -> Hypotheses:  # fmt: skip
    """Samples `n_best` independent hypotheses of each sentence.

    Token t of hypothesis i is drawn by inverse transform sampling: of the tokens in the order of the
    vocabulary (sorted by probability with `top_k` or `top_p`), the first one whose cumulative
    probability exceeds `uniforms[sentence, i, t]` is taken. If the caller derives `uniforms` from
    the sentence, the samples do not depend on the batch.

    `log_probs` and `scores` are those of the model, before temperature, top-k and top-p.

    Args:
        state: nested structure of tensors, for `batch * n_best` rows.
        uniforms: float32, shape `(batch, n_best, max_length)`, in [0, 1).
        temperature: float of at least 1e-30, divides the logits.
        top_k: int, samples from the k most probable tokens only; 0 for all.
        top_p: float in (0, 1], samples from the smallest set of most probable tokens whose
            total probability (after `temperature` and `top_k`) is at least `top_p`; 1 for all.
        first_ids, rules, max_lengths, max_length, prefix_ids, select_sentences: as in `greedy_search`.

    Returns:
        `Hypotheses`, in the order of `uniforms`.
    """
    if not (math.isfinite(temperature) and temperature >= 1e-30):  # smaller ones are 0 in float32
        raise ValueError(f"`temperature` must be at least 1e-30. Received: temperature={temperature}")
    if not isinstance(top_k, numbers.Integral) or top_k < 0:
        raise ValueError(f"`top_k` must be an integer of at least 0. Received: top_k={top_k}")
    if not 0 < top_p <= 1:
        raise ValueError(f"`top_p` must be above 0 and at most 1. Received: top_p={top_p}")
    uniforms = ops.convert_to_tensor(uniforms, "float32")
    n_best = uniforms.shape[1]
    sentences = make_sentences(max_lengths, max_length, prefix_ids, rules, uniforms)

    def select_token(log_probs, ids, position, sentences):
        if top_k or top_p < 1:
            # Sort again: forbidden tokens, with -inf, move to the end.
            order = ops.cast(ops.argsort(-log_probs, axis=-1), "int32")
            log_probs, ids = take_along(log_probs, order), take_along(ids, order)
        top = log_probs if not top_k else log_probs[:, :top_k]
        weights = ops.exp((top - ops.max(top, axis=-1, keepdims=True)) / temperature)
        weights = ops.where(top > NEG_INF, weights, 0.0)
        if top_p < 1:
            mass_before = ops.cumsum(weights, axis=-1) - weights
            weights = ops.where(mass_before < top_p * ops.sum(weights, axis=-1, keepdims=True), weights, 0.0)
        cumulative = ops.cumsum(weights, axis=-1)
        uniform = ops.reshape(gather(sentences.uniforms, position, axis=2), (-1, 1))
        skipped = cumulative <= uniform * cumulative[:, -1:]
        positions = ops.arange(ops.shape(top)[1], dtype="int32")
        last = ops.max(ops.where(weights > 0, positions, 0), axis=-1)  # rounding errors may skip all tokens
        index = ops.minimum(ops.sum(ops.cast(skipped, "int32"), axis=-1), last)
        return tuple(take_along(x, index[:, None])[:, 0] for x in (log_probs, ids))

    k = top_k or None  # all tokens
    return _decode_independently(
        step, state, first_ids, rules, sentences, max_length, select_token, select_sentences, k=k, n=n_best
    )


def beam_search(
    step: StepFunction, state: Any, first_ids: Tensor, rules: Rules, *,
    beam_size: int = 4, n_best: int = 1, early_stop: bool = False,
    max_lengths: Tensor, max_length: Tensor, prefix_ids: Tensor | None = None,
    reorder: StateFunction | None = None, select_sentences: StateFunction | None = None,
) -> Hypotheses:  # fmt: skip
    """Beam search that stops when no live hypothesis can still overtake the finished ones.

    At each position the candidates are the best `2 * beam_size` continuations of the live
    hypotheses, as in Tensor2Tensor, the paper's code. Candidates that end in eos compete for
    `beam_size` finished slots by score; the best `beam_size` others become the live
    hypotheses. (With one beam there is one candidate: greedy search.)

    A sentence is done at its length limit, when no hypothesis is live, or when the score of its `n_best`-th
    finished hypothesis has reached a bound: the best live log-probability, divided by the length penalty at
    the length limit. No live hypothesis can score above this bound, because a log-probability is at most 0
    and never rises, and the penalty never falls. With a coverage penalty the bound is the same: what it adds
    to a score is at most 0, and a live hypothesis may still reach 0. Finished hypotheses have less,
    so the search takes more steps.

    A coverage penalty changes which finished hypotheses win, not which hypotheses stay live.

    Among equal scores, the hypothesis that finished earlier comes first, then the one from the better slot,
    then the one with the lower token id.

    Args:
        state: nested structure of tensors, for `batch * beam_size` rows.
        beam_size: int, number of live hypotheses per sentence. It may exceed the vocabulary.
        n_best: int, number of hypotheses returned per sentence, at most `beam_size`.
        early_stop: bool. If true, a sentence is done as soon as `beam_size` hypotheses have finished, and a
            candidate with eos counts only if it is among the best `beam_size` candidates, as in fairseq.
            Faster, but may miss better hypotheses.
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
    num_candidates = 2 * beam_size if beam_size > 1 else 1

    def advance(position, sentences, beams, state):
        # Decode one position of all live hypotheses --> logits [batch * beams, vocab_size]
        output = step(ops.reshape(beams.live_last_ids, (-1,)), position, state)
        # The best allowed tokens of each hypothesis --> [batch * beams, width]
        forced_ids = sentences.forced_ids(position, beam_size)
        ids = merge_slots(beams.live_ids)
        log_probs, next_ids = rules.continuations(output, ids, position, forced_ids, num_candidates)
        width = log_probs.shape[-1]
        # The best candidates of each sentence; those of an empty slot have -inf --> [batch, 2 * beams]
        total = ops.reshape(beams.live_log_probs, (-1, 1)) + log_probs
        total = every_total = ops.reshape(total, (-1, beam_size * width))
        next_ids = ops.reshape(next_ids, (-1, beam_size * width))
        total, best_index = ops.top_k(total, min(num_candidates, beam_size * width))
        best_index = ops.cast(best_index, "int32")
        divides = output.demands is not None and output.demands.num_wanted
        if divides:
            total, best_index = divide_beam(output.demands, every_total, next_ids, best_index, beam_size)
        parents = best_index // width
        next_ids = take_along(next_ids, best_index)
        # --> [batch, 2 * beams, max_length]
        ids = write_at(take_along(beams.live_ids, parents), next_ids, position)

        # Candidates with eos compete with the finished hypotheses --> [batch, beams]
        is_eos = next_ids == rules.eos_id
        # With `early_stop`, an improbable eos must not fill a finished slot: full slots end the search.
        accepted = is_eos & (ops.arange(ops.shape(total)[1]) < beam_size) if early_stop else is_eos
        ended_log_probs = ops.where(accepted, total, NEG_INF)
        coverage = ops.reshape(output.coverage, (-1, beam_size)) if rules.covers else ()
        ended_coverage = take_along(coverage, parents) if rules.covers else ()
        scores = rules.score(ended_log_probs, position + 1, ended_coverage)
        lengths = ops.zeros_like(next_ids) + position + 1
        finished = merge_finished(beams.finished, ScoredHypotheses(ids, scores, ended_log_probs, lengths))

        # The best candidates without eos stay live --> [batch, beams]
        live_log_probs = ops.where(is_eos, NEG_INF, total)
        live_log_probs = first_in_order(live_log_probs, beam_size) if divides else live_log_probs
        live_log_probs, live_index = ops.top_k(live_log_probs, beam_size)
        live_index = ops.cast(live_index, "int32")
        live_parents = take_along(parents, live_index)
        state = reorder(output.state, live_parents)
        live_coverage = take_along(coverage, live_parents) if rules.covers else ()

        # Stop when the n-th best finished score reaches the bound of the live ones --> [batch]
        bound = rules.score(live_log_probs[:, 0], sentences.limits)
        done = (finished.scores[:, n_best - 1] >= bound) | (position + 1 >= sentences.limits)
        if early_stop:
            done |= finished.scores[:, -1] > NEG_INF
        live_last_ids, live_ids = take_along(next_ids, live_index), take_along(ids, live_index)
        return Beams(live_last_ids, live_ids, live_log_probs, live_coverage, finished), done, state

    batch = ops.shape(first_ids)[0]
    padding = ops.full((batch, beam_size, max_length), rules.pad_id, dtype="int32")
    empty = ops.full((batch, beam_size), NEG_INF, dtype="float32")
    beams = Beams(
        live_last_ids=ops.tile(ops.convert_to_tensor(first_ids, "int32")[:, None], (1, beam_size)),
        live_ids=padding,
        # All slots but 0 start empty (log-probability -inf): otherwise all would have the same continuations.
        live_log_probs=ops.where(ops.arange(beam_size) == 0, 0.0, empty),
        live_coverage=ops.zeros_like(empty) if rules.covers else (),
        finished=ScoredHypotheses(padding, empty, empty, ops.zeros((batch, beam_size), dtype="int32")),
    )
    beams = decode(advance, beams, sentences, state, beam_size, select_sentences)
    return select_n_best(beams, sentences.limits, n_best, rules)


class _IndependentHypotheses(NamedTuple):
    """Greedy search and sampling: n independent hypotheses of each sentence."""

    last_ids: Any  # int32, (batch, n)
    ids: Any  # int32, (batch, n, max_length)
    log_probs: Any  # float32, (batch, n)
    lengths: Any  # int32, (batch, n)
    coverage: Any  # float32, (batch, n), of a coverage penalty, else ()
    done: Any  # bool, (batch, n)


def _decode_independently(
    step, state, first_ids, rules, sentences, max_length, select_token, select_sentences, *, k, n
):
    """Decodes `n` independent hypotheses of each sentence; `select_token` chooses each token.

    Args:
        select_token: function, `(log_probs, ids, position, sentences)` -> `(log_prob, id)`, both `(rows,)`.
            `log_probs` and `ids`, both `(rows, width)`, are the `k` best allowed tokens or more, best first;
            all tokens in the order of the vocabulary if `k` is `None`. Forbidden tokens, with
            log-probability -inf, may stand between them.
    """

    def advance(position, sentences, old, state):
        output = step(ops.reshape(old.last_ids, (-1,)), position, state)
        forced_ids = sentences.forced_ids(position, n)
        continuations = rules.continuations(output, merge_slots(old.ids), position, forced_ids, k)
        log_probs, ids = (ops.reshape(x, (-1, n)) for x in select_token(*continuations, position, sentences))
        new = _IndependentHypotheses(
            last_ids=ids,
            ids=write_at(old.ids, ids, position),
            log_probs=old.log_probs + log_probs,
            lengths=old.lengths + 1,
            coverage=ops.reshape(output.coverage, (-1, n)) if rules.covers else (),
            done=(ids == rules.eos_id) | (log_probs == NEG_INF),
        )
        new = keep_where_done(old.done, old, new)
        return new, ops.all(new.done, axis=1) | (position + 1 >= sentences.limits), output.state

    batch = ops.shape(first_ids)[0]
    result = _IndependentHypotheses(
        last_ids=ops.tile(ops.convert_to_tensor(first_ids, "int32")[:, None], (1, n)),
        ids=ops.full((batch, n, max_length), rules.pad_id, dtype="int32"),
        log_probs=ops.zeros((batch, n), dtype="float32"),
        lengths=ops.zeros((batch, n), dtype="int32"),
        coverage=ops.zeros((batch, n), dtype="float32") if rules.covers else (),
        done=ops.zeros((batch, n), dtype="bool"),
    )
    result = decode(advance, result, sentences, state, n, select_sentences)
    return pad_empty_slots(
        ids=result.ids,
        scores=rules.score(result.log_probs, result.lengths, result.coverage),
        log_probs=result.log_probs,
        lengths=result.lengths,
        finished=(result.last_ids == rules.eos_id) & (result.lengths > 0),
        pad_id=rules.pad_id,
    )
