"""Records a beam search and returns it as a tree of hypotheses.

The search is `search.beam_search` itself, in a compiled graph, and only its continuations are recorded. The
tree follows from them: the candidates of a position are the best `2 * beam_size` continuations of the live
hypotheses, and the best `beam_size` candidates without the end of sentence stay live. The result of the
search says which hypotheses with the end of sentence kept a slot.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.config.settings import SearchConfig
from keras_transformer.model.transformer import Transformer
from keras_transformer.translation.ensemble import Ensemble, max_target_lengths
from keras_transformer.translation.rules import NEG_INF, Rules, length_penalty
from keras_transformer.translation.search import Hypotheses, beam_search


class Node(NamedTuple):
    """One candidate of a beam search: a token after the tokens of its parents.

    Attributes:
        parent: int, index of the parent in the list of nodes; `None` for the root (begin of sentence).
        position: int, of the token, from 0; -1 for the root.
        token: int, its id.
        log_prob: float, natural log-probability of the token.
        total: float, the sum from the root.
        score: float, as if a hypothesis ended here: `total` / length penalty, plus the coverage penalty.
        rank: int, place among the candidates of the position, from 0.
        forced: bool, whether the token belongs to the prefix.
        state: `"live"`: kept in the beam; `"pruned"`: not kept; `"finished"`: ends a hypothesis of the
            result; `"dropped"`: ends a hypothesis that was not among the best finished ones; `"cut"`: live at
            the length limit.
        died_at: int, position of the last descendants of a live node of which nothing is left; else `None`.
    """

    parent: int | None
    position: int
    token: int
    log_prob: float
    total: float
    score: float
    rank: int
    forced: bool
    state: str
    died_at: int | None = None


class Trace(NamedTuple):
    """A beam search of one sentence.

    Attributes:
        hypotheses: list of `Hypothesis`, best first.
        nodes: list of `Node`; the first is the root, and parents come before their children.
        steps: int, number of positions that were searched.
    """

    hypotheses: list
    nodes: list
    steps: int


class Hypothesis(NamedTuple):
    """One hypothesis of the result.

    Attributes:
        ids: list of int, with the end of sentence if it has one.
        score: float, see `Rules.score`.
        log_prob: float, natural logarithm.
        finished: bool, whether it has an end of sentence.
        node: int, index of its last token in the list of nodes.
    """

    ids: list
    score: float
    log_prob: float
    finished: bool
    node: int


class Tracer:
    """Searches sentences with a model; one graph for each beam size, for all sentences and lengths.

    Not safe for threads: one search at a time.

    Args:
        model: a `Transformer`.
        forbidden_ids: ids of tags, which no translation has.
    """

    def __init__(self, model: Transformer, forbidden_ids: Iterable[int] = ()) -> None:
        self._model = model
        self._forbidden_ids = tuple(forbidden_ids)
        self._compiled = {}
        self._steps = []  # (position, log_probs, ids, coverage) of the search that runs

    def __call__(self, source_ids: list[int], prefix: list[int], config: SearchConfig) -> Trace:
        """Returns the `Trace` of one sentence.

        Args:
            source_ids: list of int, ending with the end of sentence.
            prefix: list of int, ids that each translation starts with; may be empty.
            config: `SearchConfig`, without sampling. All hypotheses are returned: `n_best` counts as
                `beam_size`.
        """
        sources, prefixes = np.array([source_ids], np.int32), np.array([prefix], np.int32)
        limits = max_target_lengths([self._model], sources, config, prefixes)
        alpha = np.float32(config.alpha)
        self._steps.clear()
        found = Hypotheses(*(x.numpy()[0] for x in self._search(config)(sources, prefixes, limits, alpha)))
        steps = [continuations for _, *continuations in sorted(self._steps, key=lambda step: step[0])]
        return _grow(steps, found, config, self._model.special, len(prefix), int(limits[0]))

    def _search(self, config):
        key = (
            config.beam_size, config.early_stop, config.min_length, config.no_repeat_ngram,
            config.length_penalty, config.coverage_penalty,
        )  # fmt: skip
        if key not in self._compiled:
            row, limit = tf.TensorSpec((1, None), tf.int32), tf.TensorSpec((1,), tf.int32)
            self._compiled[key] = tf.function(
                lambda *inputs: self._beam_search(config, *inputs),
                input_signature=[row, row, limit, tf.TensorSpec((), tf.float32)],
                autograph=False,  # the loop is `ops.while_loop`
            )
        return self._compiled[key]

    def _beam_search(self, config, source_ids, prefix_ids, max_lengths, alpha):
        special = self._model.special
        rules = _RecordingRules(
            eos_id=special.eos,
            pad_id=special.pad,
            forbidden_ids=(special.pad, special.bos, special.unk, *self._forbidden_ids),
            min_length=config.min_length,
            no_repeat_ngram=config.no_repeat_ngram,
            alpha=alpha,
            penalty=config.length_penalty,
            coverage_penalty=config.coverage_penalty,
        )
        rules.record = lambda *step: self._steps.append(step)
        decoder = Ensemble([self._model], grows=True, covers=rules.covers)
        state = decoder.start(source_ids, max_length=max_lengths[0], num_hypotheses=config.beam_size)
        return tuple(beam_search(
            decoder.step, state, tf.fill((1,), special.bos), rules,
            beam_size=config.beam_size, n_best=config.beam_size, early_stop=config.early_stop,
            max_lengths=max_lengths, max_length=max_lengths[0], prefix_ids=prefix_ids,
            reorder=decoder.reorder,
        ))  # fmt: skip


class _RecordingRules(Rules):
    """`Rules` that hand the continuations of each position to the function `record`."""

    def continuations(self, step, ids, position, forced_ids, number):
        log_probs, ids = super().continuations(step, ids, position, forced_ids, number)
        coverage = step.coverage if self.covers else tf.zeros(tf.shape(ids)[0])
        tf.numpy_function(self.record, [position, log_probs, ids, coverage], [], stateful=True)
        return log_probs, ids


def _grow(steps, found, config, special, num_forced, limit):
    """Returns the `Trace` of a search.

    Args:
        steps: list of (log_probs, ids, coverage), for each position: the best continuations of the live
            hypotheses, float32 and int32, shape `(beam_size, width)`, and `Step.coverage`.
        found: `Hypotheses` of the sentence, without the axis `batch`.
        config: `SearchConfig`.
        special: `SpecialIds` of the target.
        num_forced: int, number of tokens of the prefix.
        limit: int, largest number of tokens.
    """
    rows = [tuple(row[:length].tolist()) for row, length in zip(found.ids, found.lengths, strict=True)]
    node_of = {row: None for row, score in zip(rows, found.scores, strict=True) if np.isfinite(score)}
    penalties = length_penalty(np.arange(1, len(steps) + 1), config.alpha, config.length_penalty)
    nodes = [Node(None, -1, special.bos, 0.0, 0.0, 0.0, 0, False, "live")]
    live = [((), 0, np.float32(0))]  # (row, node, total), best first: the slots of the beam
    for position, (step, penalty) in enumerate(zip(steps, np.asarray(penalties), strict=True)):
        log_probs, ids, coverage = step
        kept = []
        totals = np.array([total for *_, total in live], np.float32)[:, None] + log_probs[: len(live)]
        # As `ops.top_k`: of equal sums, the one of the better slot comes first, then the better token.
        order = np.argsort(-totals, axis=None, kind="stable")[: 2 * config.beam_size]
        for rank, (slot, column) in enumerate(zip(*np.unravel_index(order, totals.shape), strict=True)):
            (row, parent, _), total = live[slot], totals[slot, column]
            if total == NEG_INF:
                break
            token = int(ids[slot, column])
            row = (*row, token)
            # Greedy search has one candidate; the second one is only shown.
            if token == special.eos:
                state = "finished" if row in node_of else "dropped"
            elif len(kept) < config.beam_size and (rank == 0 or config.beam_size > 1):
                state = "live" if position + 1 < limit else "cut"
                kept.append((row, len(nodes), total))
            else:
                state = "pruned"
            if row in node_of:
                node_of[row] = len(nodes)
            log_prob = float(log_probs[slot, column])
            score = float(total / penalty + np.float32(config.coverage_penalty) * coverage[slot])
            forced = position < num_forced
            nodes.append(Node(parent, position, token, log_prob, float(total), score, rank, forced, state))
        live = kept
    hypotheses = [
        Hypothesis(list(row), float(score), float(log_prob), bool(finished), node_of[row])
        for row, score, log_prob, finished in zip(
            rows, found.scores, found.log_probs, found.finished, strict=True
        )
        if row in node_of
    ]
    return Trace(hypotheses, _with_ends(nodes, len(steps)), len(steps))


def _with_ends(nodes, num_steps):
    """Returns the nodes with `died_at`."""
    last = [node.position for node in nodes]  # of the descendants
    # What is live when the search stops was never pruned.
    survives = [
        node.state in ("finished", "cut") or (node.state == "live" and node.position == num_steps - 1)
        for node in nodes
    ]
    for index in range(len(nodes) - 1, 0, -1):
        parent = nodes[index].parent
        last[parent] = max(last[parent], last[index])
        survives[parent] |= survives[index]
    return [
        node._replace(died_at=end) if node.state == "live" and not survivor else node
        for node, end, survivor in zip(nodes, last, survives, strict=True)
    ]
