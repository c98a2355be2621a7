"""Constrained search: which tokens may follow each hypothesis, and which it still needs.

A `Constraint` describes a set of target sequences. `search_ids(..., constraint=...)` then finds only
hypotheses of this set, by greedy search, beam search or sampling. Scores stay those of the model: forbidden
tokens get log-probability -inf, and the others are not renormalized. Example, a constraint that forbids the
same token twice in a row::

    class NoEcho(Constraint):
        def __init__(self, vocab_size):
            self.vocab_size = vocab_size

        def start(self, limits, n):
            return ops.zeros_like(ops.repeat(limits, n)) - 1  # the last token, (rows,)

        def advance(self, state, ids):
            return ids

        def allowed(self, state, position):
            return ops.arange(self.vocab_size, dtype="int32") != state[:, None]

If something must occur before eos, plain beam search fails: hypotheses that have not begun with it are more
probable and fill the beam until the end. Dynamic beam allocation (Post and Vilar, 2018) divides the beam
among hypotheses by how much of the constraint they have met. A constraint asks for it by `wanted` and
`progress`.

Axes: `batch, n` hypotheses of each sentence, `rows = batch * n, vocab_size`; `candidates` of a sentence.
"""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.model.kernels.tensor_ops import gather, take_along
from keras_transformer.translation.decoding_loop import gather_rows, select_rows
from keras_transformer.translation.rules import NEG_INF


class Constraint:
    """Base class of constraints; a subclass defines `start`, `advance` and `allowed`.

    The state is a nested structure of tensors with `rows` rows each, or `()`: the data of the sentence,
    repeated for each of its hypotheses, and how far each hypothesis has come. The search reorders it with
    the hypotheses and removes the rows of finished sentences. Its shapes and dtypes must not change. All
    methods use `keras.ops` only, because they are part of the graph.

    The methods are also called with rows that the search ignores: empty slots, and hypotheses that have
    ended. They must accept any token there; what they return for such a row does not matter.
    """

    def length_limits(self, limits, prefix_lengths):
        """Returns the length limits of the search, raised to what the constraint needs.

        Args:
            limits: int32, shape `(batch,)`, maximum number of tokens, eos included.
            prefix_lengths: int32, shape `(batch,)`, number of tokens of the given prefixes; 0 without.

        Returns:
            int32, shape `(batch,)`. A sentence with limit 0 is not searched.
        """
        return limits

    def start(self, limits, n):
        """Returns the state before the first token.

        Args:
            limits: int32, shape `(batch,)`, length limits of the search, eos included.
            n: int, number of hypotheses of each sentence.
        """
        raise NotImplementedError

    def advance(self, state, ids):
        """Returns the state after one more token of each hypothesis.

        Args:
            state: as `start` returned it, or this function.
            ids: int32, shape `(rows,)`, in the vocabulary.
        """
        raise NotImplementedError

    def allowed(self, state, position):
        """Returns which tokens may come next, bool, shape `(rows, vocab_size)`.

        Tokens of a prefix come next in any case. If `SearchConfig.min_length` and `no_repeat_ngram` forbid
        all of the allowed tokens, they do not apply.

        Args:
            state: as in `advance`.
            position: int32 scalar, number of tokens so far; at most `limit - position` more can follow.
        """
        raise NotImplementedError

    def wanted(self, state):
        """Returns which tokens fulfil more of the constraint, bool, shape `(rows, vocab_size)`; or `None`.

        Beam search adds them to the candidates, even if they are improbable. In greedy search and sampling,
        one of them comes next where eos is the most probable token but not allowed.
        """
        return None

    def progress(self, state):
        """Returns how much of the constraint is met, int32, shape `(rows,)`, at least 0; or `None`.

        Beam search divides the beam among candidates of different progress. `None` if and only if `wanted`
        returns `None`.
        """
        return None


class Demands(NamedTuple):
    """What a constraint demands at one position; part of a `Step` of `search`.

    Attributes:
        allowed: bool, shape `(rows, vocab_size)`.
        wanted: bool, shape `(rows, vocab_size)`; or `None`.
        num_wanted: int, number of wanted tokens of each hypothesis that beam search adds to the candidates;
            0 if it does not divide the beam.
        progress_of: function, `(parents, ids)` -> int32, all `(batch, candidates)`: the progress of
            hypothesis `parents[b, i]` of sentence b after token `ids[b, i]`.
    """

    allowed: Any
    wanted: Any
    num_wanted: int
    progress_of: Any


class Constrained:
    """The functions that `search` calls, for hypotheses that obey a constraint.

    Its state is a pair: that of `step`, and that of the constraint. ::

        constrained = Constrained(constraint, step, beam_size, divides=True)
        beam_search(
            constrained.step, constrained.start(state, limits), first_ids, rules,
            beam_size=beam_size, max_lengths=limits, max_length=max_length,
            reorder=constrained.reorder, select_sentences=constrained.select_sentences,
        )

    Args:
        constraint: `Constraint`.
        step, reorder, select_sentences: see `search`.
        n: int, number of hypotheses of each sentence.
        divides: bool, for beam search: divides the beam if the constraint reports progress.
    """

    def __init__(self, constraint, step, n, *, reorder=None, select_sentences=None, divides=False):
        self._constraint = constraint
        self._step = step
        self._n = n
        self._reorder = gather_rows if reorder is None else reorder
        self._select_rows = select_rows(n)
        self._select_sentences = self._select_rows if select_sentences is None else select_sentences
        self._divides = divides

    def start(self, state, limits):
        """Returns the state before the first step.

        Args:
            state: the initial state of `step`.
            limits: int32, shape `(batch,)`, length limits of the search.
        """
        return state, self._constraint.start(ops.convert_to_tensor(limits, "int32"), self._n)

    def step(self, ids, position, state):
        """Decodes one position; the returned `Step` has `Demands`."""
        constraint = self._constraint
        inner, before = state
        output = self._step(ids, position, inner)
        # At position 0, `ids` is bos, which is no token of the hypothesis.
        after = keras.tree.map_structure(
            lambda new, old: ops.where(position > 0, new, old), constraint.advance(before, ids), before
        )

        def progress_of(parents, ids):
            batch, candidates = ops.shape(parents)
            rows = ops.reshape(ops.arange(batch, dtype="int32")[:, None] * self._n + parents, (-1,))
            state = keras.tree.map_structure(lambda x: gather(x, rows, axis=0), after)
            progress = constraint.progress(constraint.advance(state, ops.reshape(ids, (-1,))))
            return ops.reshape(progress, (-1, candidates))

        allowed, wanted = constraint.allowed(after, position), constraint.wanted(after)
        divides = self._divides and wanted is not None
        num_wanted = min(self._n, allowed.shape[-1]) if divides else 0
        demands = Demands(allowed, wanted, num_wanted, progress_of)
        return output._replace(state=(output.state, after), demands=demands)

    def reorder(self, state, parents):
        """Moves hypotheses to other slots, see `search`."""
        return self._reorder(state[0], parents), gather_rows(state[1], parents)

    def select_sentences(self, state, sentences):
        """Keeps some sentences of the batch, see `search`."""
        return self._select_sentences(state[0], sentences), self._select_rows(state[1], sentences)


def divide_beam(demands, log_probs, ids, best, beam_size):
    """Dynamic beam allocation: orders the candidates so that each bank gets its share of the beam.

    The candidates of a sentence are its best continuations, the best one of each hypothesis, and the wanted
    ones. A bank is the set of candidates with equal progress. The order is a round-robin: the best candidate
    of each bank, banks with more progress first, then the second best of each, and so on. With one bank, it
    is the order of the log-probabilities, and the search is the usual one.

    Section 3 of Post and Vilar (2018), "Fast lexically constrained decoding with dynamic beam allocation for
    neural machine translation".

    Args:
        demands: `Demands`, with `num_wanted` above 0.
        log_probs: float32, shape `(batch, beam_size * width)`, of the continuations of each hypothesis; the
            first is its best, the last `num_wanted` are wanted. -inf for those that do not exist.
        ids: int32, same shape, their tokens.
        best: int32, shape `(batch, number)`, indices of the best continuations of each sentence.
        beam_size: int.

    Returns:
        `(log_probs, index)`, float32 and int32, shape `(batch, number)`: the first candidates in this order.
    """
    width, number = log_probs.shape[1] // beam_size, best.shape[1]
    columns = [0, *range(width - demands.num_wanted, width)]
    more = ops.array([[slot * width + column for slot in range(beam_size) for column in columns]], "int32")
    is_new = ops.logical_not(ops.any(more[:, :, None] == best[:, None, :], axis=2))
    more = ops.zeros_like(best[:, :1]) + more
    index = ops.concatenate([best, more], axis=1)  # --> [batch, candidates]
    totals = take_along(log_probs, best), ops.where(is_new, take_along(log_probs, more), NEG_INF)
    totals = ops.concatenate(totals, axis=1)
    progress = demands.progress_of(index // width, take_along(ids, index))
    progress = ops.where(totals > NEG_INF, progress, -1)  # all that do not exist form the last bank

    # rank: number of better candidates in the same bank --> [batch, candidates]
    place = ops.arange(index.shape[1])
    better = totals[:, None, :] > totals[:, :, None]
    better |= (totals[:, None, :] == totals[:, :, None]) & (place[None, None, :] < place[None, :, None])
    better &= progress[:, None, :] == progress[:, :, None]
    rank = ops.sum(ops.cast(better, "int32"), axis=2)
    num_banks = ops.max(progress) + 2
    order = rank * num_banks + num_banks - 1 - progress
    order = ops.where(progress < 0, order + num_banks * index.shape[1], order)
    _, chosen = ops.top_k(-order, number)
    chosen = ops.cast(chosen, "int32")
    return take_along(totals, chosen), take_along(index, chosen)


def first_in_order(log_probs, number):
    """Sets all but the first `number` log-probabilities of each row to -inf, not counting those with -inf."""
    count = ops.cumsum(ops.cast(log_probs > NEG_INF, "int32"), axis=1)
    return ops.where(count <= number, log_probs, NEG_INF)
