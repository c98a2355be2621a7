"""Constrained search against exhaustive enumeration, and beam allocation against lists."""

import itertools
import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from test_ensemble import VOCAB, make_model, sources
from test_search import BOS, EOS, PAD, Listed, Toy, check_equal, check_same, ranked, to_numpy

from keras_transformer.config.settings import SearchConfig
from keras_transformer.translation import constraints, ensemble, search
from keras_transformer.translation import rules as rules_module
from keras_transformer.translation.constraints import Constrained, Constraint, divide_beam, first_in_order
from keras_transformer.translation.ensemble import search_ids
from keras_transformer.translation.rules import Rules
from keras_transformer.translation.search import beam_search, greedy_search, sample


class Everything(Constraint):
    """Allows every token, with a state of rank 2."""

    def __init__(self, vocab_size):
        self.vocab_size = vocab_size

    def start(self, limits, n):
        return {"limits": ops.repeat(limits, n), "more": [ops.ones((ops.size(limits) * n, 3))]}

    def advance(self, state, ids):
        return {"limits": state["limits"], "more": [state["more"][0] + ops.cast(ids[:, None], "float32")]}

    def allowed(self, state, position):
        return ops.ones((ops.size(state["limits"]), self.vocab_size), dtype="bool")


class NoEcho(Constraint):
    """The example of the module, word for word."""

    def __init__(self, vocab_size):
        self.vocab_size = vocab_size

    def start(self, limits, n):
        return ops.zeros_like(ops.repeat(limits, n)) - 1  # the last token, (rows,)

    def advance(self, state, ids):
        return ids

    def allowed(self, state, position):
        return ops.arange(self.vocab_size, dtype="int32") != state[:, None]


class Numbers(Constraint):
    """Each sentence has a number; a token must occur exactly as often, and eos only then."""

    def __init__(self, vocab_size, numbers, token=3):
        self.vocab_size, self.numbers, self.token = vocab_size, numbers, token

    def length_limits(self, limits, prefix_lengths):
        return ops.maximum(limits, ops.convert_to_tensor(self.numbers, "int32") + prefix_lengths + 1)

    def start(self, limits, n):
        number = ops.repeat(ops.convert_to_tensor(self.numbers, "int32"), n)
        return {"number": number, "seen": ops.zeros_like(number), "limit": ops.repeat(limits, n)}

    def advance(self, state, ids):
        return {**state, "seen": state["seen"] + ops.cast(ids == self.token, "int32")}

    def allowed(self, state, position):
        missing = (state["number"] - state["seen"])[:, None]
        token = ops.arange(self.vocab_size, dtype="int32")[None]
        hurry = (state["limit"] - position)[:, None] <= missing + 1
        allowed = ((token != self.token) | (missing > 0)) & ((token != EOS) | (missing == 0))
        return allowed & ((token == self.token) | ~(hurry & (missing > 0)))

    def wanted(self, state):
        token = ops.arange(self.vocab_size, dtype="int32")[None]
        return (token == self.token) & (state["seen"] < state["number"])[:, None]

    def progress(self, state):
        return state["seen"]


def run(toy, sentences, limits, constraint, *, beam_size=None, rules=(), **settings):
    """Greedy search, or beam search where there is a beam size, under a constraint."""
    n = beam_size or 1
    constrained = Constrained(constraint, toy.step, n, divides=n > 1)
    limits = ops.array(limits, "int32")
    find = greedy_search
    if beam_size is not None:
        find, settings["beam_size"] = beam_search, beam_size
    return to_numpy(
        find(
            constrained.step, constrained.start(toy.state(sentences, n), limits),
            ops.full((len(sentences),), BOS, dtype="int32"), Rules(EOS, PAD, **dict(rules)),
            max_lengths=limits, max_length=int(max(limits)), reorder=constrained.reorder,
            select_sentences=constrained.select_sentences, **settings,
        )
    )  # fmt: skip


def every(toy, sentence, limit, alpha, is_allowed):
    """Every hypothesis that a predicate of whole sequences allows, ranked."""
    words = [t for t in range(toy.vocab_size) if t != EOS]
    ended = [(*head, EOS) for n in range(limit) for head in itertools.product(words, repeat=n)]
    cut_off = list(itertools.product(words, repeat=limit))
    return ranked(
        Listed(tokens[-1] == EOS, toy.score(sentence, tokens, alpha), tokens)
        for tokens in ended + cut_off
        if is_allowed(tokens)
    )


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_wide_beam_lists_every_hypothesis_that_a_constraint_allows(alpha):
    toy, sentences, limits = Toy(2, 4), [0, 5], [4, 3]
    found = run(
        toy, sentences, limits, NoEcho(4), beam_size=4**4, n_best=4**4, rules={"alpha": alpha}
    )  # fmt: skip
    for row, limit in enumerate(limits):
        expected = every(
            toy, sentences[row], limit, alpha, lambda t: all(a != b for a, b in itertools.pairwise(t))
        )
        assert len(expected) > 20
        check_same(found, row, expected)


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_wide_beam_with_banks_lists_every_hypothesis_that_a_constraint_allows(alpha):
    toy, sentences, limits, numbers = Toy(3, 4), [0, 5, 9], [4, 3, 4], [2, 0, 3]
    found = run(
        toy, sentences, limits, Numbers(4, numbers), beam_size=4**4, n_best=4**4, rules={"alpha": alpha}
    )  # fmt: skip
    for row, (limit, number) in enumerate(zip(limits, numbers, strict=True)):
        # A hypothesis that is cut off has met the constraint one step before.
        expected = every(
            toy, sentences[row], limit, alpha,
            lambda t, n=number: t.count(3) == n and (t[-1] == EOS or t[:-1].count(3) == n),
        )  # fmt: skip
        assert len(expected) > 2
        check_same(found, row, expected)


@pytest.mark.parametrize("beam_size", [None, 1, 2, 3, 5])
def test_the_best_hypothesis_obeys_and_scores_as_the_model_says(beam_size):
    toy, sentences, limits = Toy(4, 6), list(range(7)), [9, 3, 5, 8, 2, 9, 6]
    numbers = [1, 2, 0, 3, 1, 4, 2]
    n_best = beam_size or 1
    settings = {} if beam_size is None else {"n_best": n_best}
    found = run(toy, sentences, limits, Numbers(6, numbers), beam_size=beam_size, **settings)
    for row, place in np.ndindex(len(sentences), n_best):
        tokens = tuple(found.ids[row, place, : found.lengths[row, place]])
        if place == 0 or tokens:
            assert tokens.count(3) == numbers[row]
            score = toy.score(row, tokens, 0.6)
            np.testing.assert_allclose(found.scores[row, place], score, rtol=2e-6, atol=2e-6)


def divided_on_lists(toy, sentence, limit, alpha, beam_size, number):
    """Beam search on lists whose beam is divided by the number of tokens 3."""

    def allowed(tokens):
        if tokens.count(3) > number or (tokens[-1] == EOS and tokens.count(3) < number):
            return False
        return tokens.count(3) == number or limit - len(tokens) >= number - tokens.count(3) + 1

    alive, finished = [(0.0, ())], []
    for _ in range(limit):
        per_hypothesis = [
            sorted(
                ((total + p, (*tokens, token)) for token, p in enumerate(toy.log_probs(sentence, tokens))),
                reverse=True,
            )
            for total, tokens in alive
        ]
        per_hypothesis = [[c for c in several if allowed(c[1])] for several in per_hypothesis]
        pool = sorted(itertools.chain(*per_hypothesis), reverse=True)[: 2 * beam_size]
        for several in per_hypothesis:
            pool += several[:1] + [c for c in several if c[1][-1] == 3 and c[1].count(3) <= number]
        banks = {}
        for candidate in sorted(set(pool), reverse=True):
            banks.setdefault(candidate[1].count(3), []).append(candidate)
        turns = itertools.zip_longest(*(banks[key] for key in sorted(banks, reverse=True)))
        candidates = [c for c in itertools.chain(*turns) if c is not None][: 2 * beam_size]
        finished += [Listed(True, toy.score(sentence, t, alpha), t) for _, t in candidates if t[-1] == EOS]
        alive = sorted([c for c in candidates if c[1][-1] != EOS][:beam_size], reverse=True)
    cut_off = [Listed(False, toy.score(sentence, t, alpha), t) for _, t in alive]
    return ranked(finished)[:beam_size] + ranked(cut_off)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("alpha", [0.0, 0.6])
@pytest.mark.parametrize("beam_size", [2, 3, 5])
def test_the_beam_is_divided_as_on_lists(beam_size, alpha):
    sentences, limits = list(range(8)), [11, 3, 4, 7, 11, 5, 9, 11]
    numbers = [1, 2, 0, 3, 5, 4, 0, 2]
    for seed, vocab_size in [(5, 7), (6, 5)]:
        toy = Toy(seed, vocab_size)
        toy.table[:, 3] -= 3.0  # what must occur is improbable
        found = run(
            toy, sentences, limits, Numbers(vocab_size, numbers),
            beam_size=beam_size, n_best=beam_size, rules={"alpha": alpha},
        )  # fmt: skip
        for row, limit in enumerate(limits):
            check_same(found, row, divided_on_lists(toy, row, limit, alpha, beam_size, numbers[row]))


@pytest.mark.slow
def test_a_divided_beam_finds_better_translations_than_the_length_limit_enforces():
    toy, sentences, limits, numbers = Toy(5, 9), list(range(12)), [12] * 12, [2] * 12
    toy.table[:, 3] -= 4.0
    toy.table[:, EOS] += 1.0
    divided = run(toy, sentences, limits, Numbers(9, numbers), beam_size=4)
    plain = Numbers(9, numbers)
    plain.wanted = lambda state: None
    plain = run(toy, sentences, limits, plain, beam_size=4)
    assert divided.finished.all()
    assert (divided.scores >= plain.scores - 1e-6).all()
    assert np.mean(divided.scores) > np.mean(plain.scores) + 0.5


def test_the_order_of_the_candidates_is_a_round_robin():
    rng = np.random.default_rng(0)
    beam_size, width, num_wanted, batch = 3, 5, 2, 40
    log_probs = rng.integers(-6, 0, (batch, beam_size * width)).astype("float32")  # many are equal
    log_probs[rng.random(log_probs.shape) < 0.3] = -math.inf
    ids = rng.integers(0, 4, log_probs.shape).astype("int32")
    best = np.argsort(-log_probs, axis=1, kind="stable")[:, :6].astype("int32")

    def progress_of(parents, ids):
        return (parents * 2 + ids) % 3

    demands = constraints.Demands(None, None, num_wanted, progress_of)
    found_log_probs, found = (
        np.asarray(x)
        for x in divide_beam(demands, ops.array(log_probs), ops.array(ids), ops.array(best), beam_size)
    )
    for row in range(batch):
        pool = [*best[row], *(slot * width + column for slot in range(3) for column in (0, 3, 4))]
        pool = [i for i in dict.fromkeys(pool) if log_probs[row, i] > -math.inf]
        banks = {}
        for i in sorted(pool, key=lambda i: (-log_probs[row, i], pool.index(i))):
            banks.setdefault(int(progress_of(i // width, ids[row, i])), []).append(i)
        turns = itertools.zip_longest(*(banks[key] for key in sorted(banks, reverse=True)))
        expected = [i for i in itertools.chain(*turns) if i is not None][:6]
        assert found[row, : len(expected)].tolist() == expected
        np.testing.assert_array_equal(found_log_probs[row, : len(expected)], log_probs[row, expected])
        assert (found_log_probs[row, len(expected) :] == -math.inf).all()


def test_only_the_first_in_order_are_kept():
    inf = -math.inf
    kept = first_in_order(ops.array([[-3.0, inf, -1.0, -2.0], [inf, inf, inf, -4.0]]), 2)
    assert np.asarray(kept).tolist() == [[-3.0, inf, -1.0, inf], [inf, inf, inf, -4.0]]


def in_graph(model, config, constraint, shape=(None, None), **fixed):
    """Compiled for sources of a shape; `constraint` makes the constraint of the batch."""

    @tf.function(input_signature=[tf.TensorSpec(shape, tf.int32)], autograph=False)
    def graph(ids):
        return search_ids(model, ids, config, constraint=constraint(ids), **fixed)

    return lambda ids: to_numpy(graph(ids))


CONFIGS = {
    "greedy": SearchConfig(beam_size=1, max_length_offset=7),
    "beam": SearchConfig(beam_size=4, n_best=4, max_length_offset=7, no_repeat_ngram=2, min_length=2),
    "wide": SearchConfig(beam_size=21, max_length_offset=5, length_penalty="average"),
    "early": SearchConfig(beam_size=3, n_best=2, early_stop=True, max_length_offset=3),
    "sampling": SearchConfig(sampling=True, n_best=3, max_length_offset=7),
}


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("greedy", 1),
        ("beam", 1),
        ("sampling", 1),
        *(
            pytest.param(*slow, marks=pytest.mark.very_slow)
            for slow in [("wide", 1), ("early", 1), ("beam", 2)]
        ),
    ],
)
def test_a_constraint_that_allows_everything_changes_no_bit(name, size):
    models, config = [make_model(3), make_model(4)][:size], CONFIGS[name]
    ids = sources()
    arguments = {"prefix_ids": np.array([[5, 7], [8, 0], [0, 0], [9, 4], [0, 0], [6, 0]], np.int32)}
    if config.sampling:
        uniforms = np.random.default_rng(1).random((len(ids), 3, 30)).astype("float32")
        arguments["uniforms"] = uniforms
    without = to_numpy(search_ids(models, ids, config, **arguments))
    eager = to_numpy(search_ids(models, ids, config, constraint=Everything(VOCAB), **arguments))
    for ours, expected in zip(eager, without, strict=True):
        np.testing.assert_array_equal(ours, expected)
    if config.sampling:
        return  # random numbers of a fixed number of sentences
    for shape in [(None, None), ids.shape]:
        graphs = [
            in_graph(models, config, lambda ids, given=given: given)(ids)
            for given in (None, Everything(VOCAB))
        ]
        for ours, expected in zip(*graphs, strict=True):
            np.testing.assert_array_equal(ours, expected, err_msg=str(shape))


@pytest.mark.slow
def test_without_a_constraint_no_code_of_constraints_runs(monkeypatch):
    def fail(*args, **kwargs):
        raise AssertionError("called without a constraint")

    monkeypatch.setattr(ensemble, "Constrained", fail)
    for name in ("divide_beam", "first_in_order"):
        monkeypatch.setattr(search, name, fail)
    monkeypatch.setattr(rules_module.Rules, "_demanded", fail)
    model = make_model(3)
    graphs = {}
    for given in (None, Everything(VOCAB)):
        if given is not None:
            monkeypatch.undo()
        graph = tf.function(
            lambda ids, given=given: tuple(search_ids(model, ids, CONFIGS["beam"], constraint=given)),
            autograph=False,
        ).get_concrete_function(tf.TensorSpec((None, None), tf.int32))
        graphs[given is None] = num_operations(graph)
    assert graphs[True] < graphs[False]


def num_operations(function):
    """Operations of a concrete function and of the bodies of its loops."""
    definition = function.graph.as_graph_def()
    return len(definition.node) + sum(len(each.node_def) for each in definition.library.function)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    "name",
    ["greedy", "beam", *(pytest.param(name, marks=pytest.mark.very_slow) for name in ("wide", "early"))],
)
def test_a_graph_of_any_shape_gives_what_eager_gives(name):
    model, config, ids = make_model(5, end=1.0), CONFIGS[name], sources()
    numbers = np.array([1, 3, 0, 2, 9, 4], np.int32)

    def constraint(ids):
        return Numbers(VOCAB, tf.constant(numbers)[: tf.shape(ids)[0]], token=7)

    eager = to_numpy(search_ids(model, ids, config, constraint=Numbers(VOCAB, numbers, token=7)))
    for row, number in enumerate(numbers):
        assert list(eager.ids[row, 0]).count(7) == number
    for shape in [(None, None), ids.shape]:
        check_equal(in_graph(model, config, constraint, shape)(ids), eager)
    alone = in_graph(model, config, constraint)(ids[:1])  # neighbours change nothing
    length = alone.ids.shape[2]
    first = eager._replace(ids=eager.ids[:, :, :length])
    check_equal(alone, type(alone)(*(x[:1] for x in first)))


@pytest.mark.parametrize("beam_size", [None, 3])
@pytest.mark.parametrize("rules", [{"min_length": 6}, {"no_repeat_ngram": 1}], ids=str)
def test_other_rules_give_way_to_the_constraint(rules, beam_size):
    # By hand: 3 must come next until the limit, then eos; both rules forbid that.
    class Threes(Constraint):
        def start(self, limits, n):
            return ops.repeat(limits, n)

        def advance(self, state, ids):
            return state

        def allowed(self, state, position):
            token = ops.arange(5, dtype="int32")[None]
            return token == ops.where(position < state[:, None] - 1, 3, EOS)

    found = run(Toy(1, 5), [0, 1], [3, 4], Threes(), beam_size=beam_size, rules=rules)
    assert found.ids[:, 0].tolist() == [[3, 3, EOS, PAD], [3, 3, 3, EOS]]
    assert found.finished[:, 0].all()


def test_forbidden_tokens_stay_forbidden_under_a_constraint():
    toy = Toy(2, 5)
    found = run(toy, [0], [4], NoEcho(5), beam_size=5**4, n_best=5**4, rules={"forbidden_ids": (3,)})
    expected = every(
        toy, 0, 4, 0.6, lambda t: 3 not in t and all(a != b for a, b in itertools.pairwise(t))
    )  # fmt: skip
    check_same(found, 0, expected)


def step_of(rows):
    """Step function with the given probabilities at positions 0, 1, ...; the last row repeats."""

    def step(ids, position, state):
        index = ops.minimum(position, len(rows) - 1)
        logits = ops.log(ops.take(ops.array(rows, "float32"), index, axis=0))
        return search.Step(ops.tile(logits[None], (ops.shape(ids)[0], 1)), state)

    return step


def test_greedy_search_takes_a_wanted_token_where_it_would_end():
    # By hand: 4 is best, then eos. Token 3 must occur once, and eos is best again after it.
    step = step_of([[0.1, 0.1, 0.1, 0.1, 0.6], [0.1, 0.1, 0.5, 0.1, 0.2]])
    for find, settings in [(greedy_search, {}), (sample, {"uniforms": np.zeros((1, 1, 9)), "top_k": 5})]:
        constrained = Constrained(Numbers(5, [1]), step, 1)
        state = constrained.start((), [9])
        found = to_numpy(
            find(constrained.step, state, [BOS], Rules(EOS, PAD), max_lengths=[9], max_length=9, **settings)
        )
        assert found.ids[0, 0, :4].tolist() == [4, 3, EOS, PAD]
        np.testing.assert_allclose(found.log_probs[0, 0], np.log(0.6 * 0.1 * 0.5), rtol=1e-6)


def test_sampling_obeys_and_draws_as_often_as_the_model_says():
    # Token 3 may not follow itself: after it, 1 and 4 are drawn at 1 : 3.
    step = step_of([[0, 0, 0, 1.0, 0], [0, 0.1, 0, 0.6, 0.3], [0, 0, 1.0, 0, 0]])
    n = 4000
    constrained = Constrained(NoEcho(5), step, n)
    uniforms = np.random.default_rng(0).random((1, n, 3)).astype("float32")
    found = to_numpy(
        sample(
            constrained.step, constrained.start((), [3]), [BOS], Rules(EOS, PAD),
            uniforms=uniforms, max_lengths=[3], max_length=3,
        )
    )  # fmt: skip
    second = found.ids[0, :, 1]
    assert set(second) == {1, 4}
    np.testing.assert_allclose(np.mean(second == 4), 0.75, atol=0.03)
    np.testing.assert_allclose(np.exp(found.log_probs[0, second == 4]), 0.3, rtol=1e-5)


@pytest.mark.slow
def test_limits_are_raised_and_a_prefix_comes_first():
    model = make_model(5)
    config = SearchConfig(beam_size=3, max_length_offset=1, max_length=4)
    prefix_ids = np.array([[7, 8, 9]], np.int32)
    ids = sources((3,))
    constraint = Numbers(VOCAB, [5], token=7)
    found = to_numpy(search_ids(model, ids, config, prefix_ids=prefix_ids, constraint=constraint))
    tokens = found.ids[0, 0, : found.lengths[0, 0]].tolist()
    assert tokens[:3] == [7, 8, 9]
    assert tokens.count(7) == 5
    assert len(tokens) <= 3 + 5 + 1


def test_a_constraint_that_allows_nothing_leaves_no_hypothesis():
    class Nothing(NoEcho):
        def allowed(self, state, position):
            return ops.zeros((ops.size(state), self.vocab_size), dtype="bool")

    for beam_size in (None, 3):
        found = run(Toy(1, 5), [0, 1], [3, 4], Nothing(5), beam_size=beam_size)
        assert (found.scores == -math.inf).all()
        assert (found.lengths == 0).all()


@pytest.mark.parametrize("method", ["start", "advance", "allowed"])
def test_a_subclass_must_define_the_rules(method):
    with pytest.raises(NotImplementedError):
        getattr(Constraint(), method)(None, None)
    assert keras.tree.flatten(Constraint().wanted(())) == [None]
