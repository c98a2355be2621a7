"""Lexical constraints against all sequences: every hypothesis contains its phrases."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from test_constraints import every, run
from test_ensemble import VOCAB, make_model, sources
from test_search import EOS, PAD, Toy, check_same, to_numpy

from keras_transformer.config.settings import SearchConfig
from keras_transformer.translation.ensemble import search_ids
from keras_transformer.translation.phrases import Phrases


def padded(rows, number=0, length=1):
    """int32, shape `(batch, num_phrases, phrase_length)`, of lists of phrases."""
    number = max(number, *map(len, rows))
    length = max(length, *(len(phrase) for row in rows for phrase in row))
    rows = [[[*phrase, *[PAD] * (length - len(phrase))] for phrase in row] for row in rows]
    return np.array([[*row, *[[PAD] * length] * (number - len(row))] for row in rows], np.int32)


def phrases_of(rows, vocab_size, **padding):
    return Phrases(padded(rows, **padding), vocab_size=vocab_size, eos_id=EOS, pad_id=PAD)


def contains(tokens, phrase):
    """Whether a tuple of tokens has a phrase somewhere."""
    return any(tokens[i : i + len(phrase)] == phrase for i in range(len(tokens) - len(phrase) + 1))


def keeps_the_rules(tokens, phrases, limit):
    """The rules of the docstring, on the strings themselves."""
    for place, token in enumerate(tokens):
        unmet = {tuple(p) for p in phrases if not contains(tokens[:place], tuple(p))}
        if not unmet:
            return True
        begun = [p[:i] for p in unmet for i in range(len(p) + 1)]
        longest = max(len(begin) for begin in begun if tokens[: place + 1][place + 1 - len(begin) :] == begin)
        needed = sum(map(len, unmet)) - longest
        if token == EOS or needed + 1 > limit - place - 1:
            return False
    return False


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_a_wide_beam_lists_exactly_the_hypotheses_that_keep_the_rules(alpha):
    toy, limit = Toy(3, 4), 5
    rows = [[[3]], [[3, 3, 1]], [[3, 1], [1, 3]], [[1, 1], [1, 1]], [[], []], [[1, 3, 1], [1]], [[3, 1], [1]]]
    found = run(
        toy, range(len(rows)), [limit] * len(rows), phrases_of(rows, 4),
        beam_size=4**4, n_best=4**4, rules={"alpha": alpha, "forbidden_ids": (PAD,)},
    )  # fmt: skip
    for row, phrases in enumerate(rows):
        expected = every(
            toy, row, limit, alpha, lambda t, p=phrases: PAD not in t and keeps_the_rules(t, p, limit)
        )
        assert len(expected) >= 4
        check_same(found, row, expected)


@pytest.mark.slow
def test_a_wide_beam_finds_the_best_of_all_that_contain_the_phrases():
    # Phrases without a common token: the rules then exclude nothing that contains them and ends.
    toy, limit = Toy(7, 5), 5
    rows = [[[3]], [[4], [3, 3]], [[3, 4]], [[3], [4]], [[4, 4, 4]]]
    found = run(
        toy, range(len(rows)), [limit] * len(rows), phrases_of(rows, 5),
        beam_size=4**4, rules={"alpha": 0.6, "forbidden_ids": (PAD,)},
    )  # fmt: skip
    for row, phrases in enumerate(rows):
        expected = every(
            toy, row, limit, 0.6,
            lambda t, p=phrases: PAD not in t and t[-1] == EOS and all(contains(t, tuple(x)) for x in p),
        )  # fmt: skip
        assert len(expected) > 2
        check_same(found, row, expected[:1])


CONFIGS = {
    "greedy": SearchConfig(beam_size=1, max_length_offset=7),
    "beam": SearchConfig(beam_size=4, n_best=3, max_length_offset=7, no_repeat_ngram=2, min_length=2),
    "short": SearchConfig(beam_size=5, n_best=5, max_length_offset=1, max_length_ratio=0.0),
    "wide": SearchConfig(beam_size=13, n_best=7, max_length_offset=5, length_penalty="average"),
    "early": SearchConfig(beam_size=3, n_best=2, early_stop=True, max_length_offset=3),
    "sampling": SearchConfig(sampling=True, n_best=3, max_length_offset=7, temperature=2.0),
}


def random_phrases(seed, batch=6):
    """Up to 4 phrases of up to 3 tokens for each sentence, of few tokens, so that many overlap."""
    rng = np.random.default_rng(seed)
    return [
        [rng.integers(4, 8, rng.integers(0, 4)).tolist() for _ in range(rng.integers(0, 5))]
        for _ in range(batch)
    ]


def check_phrases(found, rows):
    """All hypotheses contain their phrases; returns how many have ended."""
    for row, phrases in enumerate(rows):
        assert found.lengths[row, 0] > 0
        for place in range(found.scores.shape[1]):
            ids = tuple(found.ids[row, place, : found.lengths[row, place]].tolist())
            if place == 0 or np.isfinite(found.scores[row, place]):
                assert all(contains(ids, tuple(phrase)) for phrase in phrases), (ids, phrases)
    return found.finished.sum()


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("has_prefix", [pytest.param(False, marks=pytest.mark.very_slow), True])
def test_random_models_give_only_hypotheses_with_all_phrases(name, has_prefix):
    config, arguments, ended = CONFIGS[name], {}, 0
    if has_prefix:
        arguments["prefix_ids"] = np.array([[5, 7], [4, 0], [0, 0], [4, 4], [0, 0], [6, 0]], np.int32)
    if config.sampling:
        arguments["uniforms"] = np.random.default_rng(1).random((6, 3, 37)).astype("float32")
    for seed in range(2):
        rows = random_phrases(3 * seed + has_prefix)
        model = make_model(seed, end=12.0 - 9 * seed, num_decoder_layers=1)
        found = to_numpy(
            search_ids(model, sources(), config, constraint=phrases_of(rows, VOCAB), **arguments)
        )
        ended += check_phrases(found, rows)
        if has_prefix:
            begins = [[5, 7], [4], [], [4, 4], [], [6]]
            for ids, begin in zip(found.ids[:, 0], begins, strict=True):
                assert ids[: len(begin)].tolist() == begin
    assert ended >= 2


def in_graph(model, config, shape=(None, None), batch=None):
    """Compiled for any number, length and padding of phrases."""
    spec = [tf.TensorSpec(shape, tf.int32), tf.TensorSpec((batch, None, None), tf.int32)]

    def search(ids, phrases):
        constraint = Phrases(phrases, vocab_size=VOCAB, eos_id=EOS, pad_id=PAD)
        return search_ids(model, ids, config, constraint=constraint)

    graph = tf.function(search, input_signature=spec, autograph=False)
    return lambda ids, phrases: to_numpy(graph(ids, phrases))


def check_equal(left, right):
    for ours, expected in zip(left, right, strict=True):
        if expected.dtype == np.float32:
            np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)  # another order of sums
        else:
            np.testing.assert_array_equal(ours, expected)


def same_of(found, rows, length):
    """Some rows of hypotheses, with as many tokens."""
    return type(found)(found.ids[rows][:, :, :length], *(x[rows] for x in found[1:]))


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("greedy", marks=pytest.mark.very_slow), "beam", "early"])
def test_neither_graph_nor_padding_nor_neighbours_matter(name):
    model, config = make_model(1, num_decoder_layers=1), CONFIGS[name]
    ids, rows = sources(), random_phrases(2)
    assert any(rows)
    assert not all(any(phrases) for phrases in rows)
    eager = to_numpy(search_ids(model, ids, config, constraint=phrases_of(rows, VOCAB)))
    check_phrases(eager, rows)
    graph = in_graph(model, config)
    check_equal(graph(ids, padded(rows)), eager)
    check_equal(graph(ids, padded(rows, number=7, length=5)), eager)
    check_equal(in_graph(model, config, ids.shape, len(ids))(ids, padded(rows)), eager)
    few = graph(ids[3:5], padded(rows[3:5]))
    check_equal(few, same_of(eager, slice(3, 5), few.ids.shape[2]))
    unused = graph(ids, np.zeros((len(ids), 0, 0), np.int32))
    free = to_numpy(search_ids(model, ids, config))
    check_equal(unused, free)
    for row, phrases in enumerate(rows):  # without phrases, as without a constraint
        if not any(phrases):
            length = min(eager.ids.shape[2], free.ids.shape[2])
            row = slice(row, row + 1)
            check_equal(same_of(eager, row, length), same_of(free, row, length))
    assert eager.ids.shape != free.ids.shape or (eager.ids != free.ids).any()


def states(constraint, tokens, limit):
    """The states after 0, 1, ... tokens of one hypothesis."""
    state = constraint.start(np.array([limit], np.int32), 1)
    yield state
    for token in tokens:
        state = constraint.advance(state, np.array([token], np.int32))
        yield state


def test_phrases_that_overlap_themselves_are_found_as_in_strings():
    rng = np.random.default_rng(3)
    for _ in range(7):
        phrases = [tuple(rng.integers(4, 6, rng.integers(1, 5)).tolist()) for _ in range(5)]
        tokens = tuple(rng.integers(4, 6, 11).tolist())
        constraint = phrases_of([phrases], 7)
        for length, state in enumerate(states(constraint, tokens, 90)):
            expected = [contains(tokens[:length], phrase) for phrase in phrases]
            for place, phrase in enumerate(phrases):  # a phrase that is given twice is met once
                if phrase not in phrases[:place]:
                    assert bool(state["met"][0, place]) == expected[place]


def test_wanted_tokens_and_progress_by_hand():
    constraint = phrases_of([[[4, 4, 5], [5, 6], [6]]], 7)
    found = [
        (np.flatnonzero(constraint.wanted(state)[0]).tolist(), int(constraint.progress(state)[0]))
        for state in states(constraint, [4, 4, 4, 5, 6, 3], 90)
    ]
    assert found == [
        ([4, 5, 6], 0),
        ([4, 5, 6], 1),  # 4 extends "4 4 5" and begins it
        ([4, 5, 6], 2),
        ([4, 5, 6], 2),  # the third 4 ends another "4 4"
        ([5, 6], 4),  # "4 4 5", and "5" of "5 6"
        ([], 6),
        ([], 6),
    ]


def test_near_the_limit_only_what_leads_to_the_phrases_is_allowed():
    constraint = phrases_of([[[4, 5], [6]]], 7)
    allowed = [
        np.flatnonzero(constraint.allowed(state, position)[0]).tolist()
        for position, state in enumerate(states(constraint, [3, 4, 5, 6, 3], 5))
    ]
    # 3 + 1 tokens of 5 are needed: one is free. Then 4 must be followed by 5.
    assert allowed[:4] == [[0, 1, 3, 4, 5, 6], [4, 6], [5], [6]]
    assert allowed[4] == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_limits_are_raised_to_what_the_phrases_need():
    limits = phrases_of([[[4, 5], [6], [4, 5]], [], [[4]]], 7).length_limits(
        np.array([2, 2, 9], np.int32), np.array([3, 3, 3], np.int32)
    )
    assert np.asarray(limits).tolist() == [7, 2, 9]
    config = SearchConfig(beam_size=3, n_best=3, max_length=4, max_length_offset=1)
    rows = [[[7, 8, 9], [11, 12, 13, 14]]]
    for prefix, length in [([], 8), ([9, 9], 10)]:
        arguments = {"prefix_ids": np.array([prefix], np.int32), "constraint": phrases_of(rows, VOCAB)}
        found = to_numpy(search_ids(make_model(5), sources((3,)), config, **arguments))
        check_phrases(found, rows)
        assert found.lengths.max() <= length


@pytest.mark.slow
def test_tokens_of_a_prefix_count():
    config = SearchConfig(beam_size=1, max_length_offset=1)
    found = to_numpy(
        search_ids(
            make_model(5, end=99.0), sources((3,)), config,
            prefix_ids=np.array([[7, 8, 9]], np.int32), constraint=phrases_of([[[7, 8], [9, 4]]], VOCAB),
        )
    )  # fmt: skip
    assert found.ids[0, 0, :5].tolist() == [7, 8, 9, 4, EOS]


@pytest.mark.slow
def test_too_many_tokens_for_learned_positions_have_no_hypothesis():
    model = make_model(2, positions="learned", max_positions=13)
    rows = [[[4, 5, 6]] + [[token, 9, token] for token in (10, 11, 12)], [[4, 5, 6, 7]]]
    for beam_size, more in [(1, []), (1, [20]), (3, []), (3, [20])]:
        config = SearchConfig(beam_size=beam_size, max_length_offset=1)
        constraint = phrases_of([[*rows[0], more], rows[1]], VOCAB)
        found = to_numpy(search_ids(model, sources((3, 4)), config, constraint=constraint))
        if more:
            assert found.scores[0, 0] == -np.inf
            assert found.lengths[0, 0] == 0
        else:  # 12 tokens and eos fit
            check_phrases(found, rows)
            assert found.scores[0, 0] > -np.inf
        check_phrases(type(found)(*(x[1:] for x in found)), rows[1:])


@pytest.mark.slow
def test_the_divided_beam_finds_better_translations_than_the_limit_enforces():
    toy, limits = Toy(5, 9), [13] * 12
    toy.table[:, 5:] -= 4.0  # what must occur is improbable
    toy.table[:, EOS] += 1.0
    rows = [[[5, 6], [7]], [[8, 8]], [[6], [7]]] * 4
    divided = run(toy, range(12), limits, phrases_of(rows, 9), beam_size=5)
    plain = phrases_of(rows, 9)
    plain.wanted = lambda state: None
    plain = run(toy, range(12), limits, plain, beam_size=5)
    for found in (divided, plain):
        check_phrases(found, rows)
    assert divided.finished.all()
    assert np.mean(divided.scores) > np.mean(plain.scores) + 0.5


def test_refuses_phrases_without_three_axes():
    with pytest.raises(ValueError, match=r"Received: shape \(2, 3\)"):
        Phrases(np.zeros((2, 3)), vocab_size=7, eos_id=EOS, pad_id=PAD)


def test_the_oracle_by_hand():
    assert contains((4, 5, 6), (5, 6))
    assert contains((4,), ())
    assert not contains((4, 5), (5, 4))
    assert keeps_the_rules((3, 4, EOS), [[4]], 3)
    assert not keeps_the_rules((3, 3, 4, EOS), [[4]], 3)
    assert not keeps_the_rules((3, EOS), [[4]], 3)
    assert list(itertools.chain(*random_phrases(0)))
