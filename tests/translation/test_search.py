"""Search against exhaustive enumeration and against a beam search on Python lists."""

import itertools
import math
from typing import NamedTuple

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.translation.rules import Rules, length_penalty
from keras_transformer.translation.search import Hypotheses, Step, beam_search, greedy_search

PAD, BOS, EOS = 0, 1, 2
WEIGHTS = np.array([3, 17, 5, 29, 11, 2, 23, 19, 7, 13, 31, 37], "int32")
SIZE = 991  # rows of the toy table, a prime


class Toy:
    """A language model whose logits depend on all the tokens so far.

    The state holds the history twice, as a hash and as the ids themselves, so a
    state that is not reordered with its hypotheses gives other logits. Nothing is
    hashed at the first step but the number of the sentence.
    """

    def __init__(self, seed, vocab_size, sharpness=1.5):
        rng = np.random.default_rng(seed)
        self.vocab_size = vocab_size
        self.table = rng.normal(0, sharpness, (SIZE, vocab_size)).astype("float32")

    def state(self, sentences, beam_size=1):
        sentences = np.repeat(np.array(sentences, "int32"), beam_size)
        history = np.zeros((len(sentences), len(WEIGHTS)), "int32")
        return {"hash": ops.array(sentences), "more": [ops.array(history)]}

    def step(self, ids, position, state):
        hashed = (state["hash"] * 31 + ids * 7 + 1) % SIZE
        here = ops.arange(len(WEIGHTS), dtype="int32") == position
        history = ops.where(here, ids[:, None], state["more"][0])
        index = hashed + ops.sum(history * ops.array(WEIGHTS), axis=1) + 13 * position
        logits = ops.take(ops.array(self.table), index % SIZE, axis=0)
        return Step(logits, {"hash": hashed, "more": [history]})

    def log_probs(self, sentence, tokens):
        """The next token's, in NumPy, float64: shape `(vocab_size,)`."""
        seen = [BOS, *tokens]
        hashed = sentence
        for token in seen:
            hashed = (hashed * 31 + token * 7 + 1) % SIZE
        index = hashed + int(np.dot(seen, WEIGHTS[: len(seen)])) + 13 * len(tokens)
        logits = self.table[index % SIZE].astype("float64")
        return logits - np.log(np.sum(np.exp(logits)))

    def score(self, sentence, tokens, alpha, penalty="gnmt"):
        total = sum(self.log_probs(sentence, tokens[:i])[tokens[i]] for i in range(len(tokens)))
        n = len(tokens)
        return total / {"gnmt": ((5 + n) / 6) ** alpha, "average": n**alpha, "none": 1.0}[penalty]


class Listed(NamedTuple):
    """One hypothesis in an oracle."""

    finished: bool
    score: float
    tokens: tuple


class Allowed(NamedTuple):
    """The rules in an oracle: which token may come next."""

    forbidden: tuple = ()
    prefix: tuple = ()
    min_length: int = 0
    no_repeat: int = 0

    def __call__(self, tokens, token):
        n, size = len(tokens), self.no_repeat
        if n < len(self.prefix):
            return token == self.prefix[n]
        if token in self.forbidden or (token == EOS and n < self.min_length):
            return False
        longer = (*tokens, token)
        grams = [longer[i : i + size] for i in range(len(longer) - size + 1)]
        return not size or grams[-1:] == [] or grams[-1] not in grams[:-1]


def ranked(hypotheses):
    """Finished ones first, then by score."""
    return sorted(hypotheses, key=lambda h: (not h.finished, -h.score))


def enumerate_all(toy, sentence, limit, alpha, forbidden=(), penalty="gnmt", **rules):
    """Every hypothesis there is."""
    allowed = Allowed(forbidden, **rules)
    words = [t for t in range(toy.vocab_size) if t != EOS]
    ended = [(*head, EOS) for n in range(limit) for head in itertools.product(words, repeat=n)]
    cut_off = list(itertools.product(words, repeat=limit))
    return ranked(
        Listed(tokens[-1] == EOS, toy.score(sentence, tokens, alpha, penalty), tokens)
        for tokens in ended + cut_off
        if all(allowed(tokens[:i], tokens[i]) for i in range(len(tokens)))
    )


def list_beam_search(
    toy, sentence, limit, alpha, beam_size, forbidden=(), penalty="gnmt", early_stop=False, **rules
):
    """Beam search with Python lists, which stops at the limit, or at `beam_size` ended hypotheses."""
    allowed = Allowed(forbidden, **rules)
    alive, finished = [(0.0, ())], []
    for _ in range(limit):
        candidates = [
            (total + log_prob, (*tokens, token))
            for total, tokens in alive
            for token, log_prob in enumerate(toy.log_probs(sentence, tokens))
            if allowed(tokens, token)
        ]
        candidates = sorted(candidates, key=lambda candidate: -candidate[0])
        candidates = candidates[: 2 * beam_size if beam_size > 1 else 1]
        finished += [
            Listed(True, toy.score(sentence, tokens, alpha, penalty), tokens)
            for _, tokens in candidates[: beam_size if early_stop else None]
            if tokens[-1] == EOS
        ]
        if early_stop and len(finished) >= beam_size:
            return ranked(finished)
        alive = [candidate for candidate in candidates if candidate[1][-1] != EOS][:beam_size]
    cut_off = [Listed(False, toy.score(sentence, t, alpha, penalty), t) for _, t in alive]
    return ranked(finished)[:beam_size] + ranked(cut_off)


RULES = set(Rules._fields)


def search(toy, sentences, limits, *, beam_size=None, max_length=None, **settings):
    """Runs greedy search, or beam search where there is a beam size."""
    rules = {name: settings.pop(name) for name in RULES & settings.keys()}
    rules = Rules(EOS, PAD, **rules)
    settings = {
        "max_lengths": ops.array(limits, dtype="int32"),
        "max_length": max(limits) if max_length is None else max_length,
        **settings,
    }
    first_ids = ops.full((len(sentences),), BOS, dtype="int32")
    if beam_size is None:
        found = greedy_search(toy.step, toy.state(sentences), first_ids, rules, **settings)
    else:
        state = toy.state(sentences, beam_size)
        found = beam_search(toy.step, state, first_ids, rules, beam_size=beam_size, **settings)
    return to_numpy(found)


def to_numpy(found):
    return Hypotheses(*(ops.convert_to_numpy(x) for x in found))


def check_same(found, sentence, expected):
    """Compares the list of one sentence with that of an oracle, all of it."""
    n_best = found.scores.shape[1]
    expected = expected[:n_best]
    empty = n_best - len(expected)
    tokens = [h.tokens for h in expected] + [()] * empty
    padded = [(*t, *[PAD] * (found.ids.shape[2] - len(t))) for t in tokens]
    np.testing.assert_array_equal(found.ids[sentence], padded)
    np.testing.assert_array_equal(found.lengths[sentence], [len(t) for t in tokens])
    np.testing.assert_array_equal(found.finished[sentence], [h.finished for h in expected] + [False] * empty)
    np.testing.assert_allclose(
        found.scores[sentence],
        [h.score for h in expected] + [-math.inf] * empty,
        rtol=2e-6,
        atol=2e-6,
    )


def check_equal(left, right):
    """Ids, lengths and flags the same; scores to rounding."""
    np.testing.assert_array_equal(left.ids, right.ids)
    np.testing.assert_array_equal(left.lengths, right.lengths)
    np.testing.assert_array_equal(left.finished, right.finished)
    np.testing.assert_allclose(left.scores, right.scores, rtol=1e-6)


@pytest.mark.parametrize(
    ("length", "alpha", "expected"),
    [
        (1, 0.6, 1.0),  # (6 / 6) ** anything
        (7, 0.0, 1.0),
        (7, 1.0, 2.0),  # 12 / 6
        (7, 0.6, 1.5157166),  # 2 ** 0.6
        (13, 2.0, 9.0),  # (18 / 6) ** 2
        (19, 0.5, 2.0),  # (24 / 6) ** 0.5
        (49, 1.0, 9.0),
    ],
)
def test_length_penalty_is_that_of_wu_et_al(length, alpha, expected):
    ours = ops.convert_to_numpy(length_penalty(length, alpha))
    assert ours.dtype == "float32"
    np.testing.assert_allclose(ours, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("formula", "length", "alpha", "expected"),
    [
        ("average", 1, 0.7, 1.0),
        ("average", 7, 1.0, 7.0),
        ("average", 9, 0.5, 3.0),
        ("average", 0, 0.5, 1.0),  # an empty hypothesis has no score to divide
        ("average", 31, 0.0, 1.0),
        ("none", 31, 0.7, 1.0),
    ],
)
def test_other_length_penalties_by_hand(formula, length, alpha, expected):
    ours = ops.convert_to_numpy(length_penalty(length, alpha, formula))
    np.testing.assert_allclose(ours, expected, rtol=1e-6)


EVERY_RULE = [
    {},
    {"min_length": 2},
    {"no_repeat": 1},
    {"no_repeat": 2},
    {"prefix": (3, 1)},
    {"prefix": (3, 3), "no_repeat": 1, "forbidden": (3,)},
    {"prefix": (1,), "min_length": 3, "no_repeat": 2, "forbidden": (PAD,)},
]


def as_settings(rules, sentences, penalty, alpha):
    """The words of the oracle in those of `search`."""
    settings = {"penalty": penalty, "alpha": alpha, "forbidden_ids": rules.get("forbidden", ())}
    settings["min_length"] = rules.get("min_length", 0)
    settings["no_repeat_ngram"] = rules.get("no_repeat", 0)
    if "prefix" in rules:
        settings["prefix_ids"] = [rules["prefix"]] * len(sentences)
    return settings


@pytest.mark.parametrize("rules", EVERY_RULE, ids=str)
@pytest.mark.parametrize(("penalty", "alpha"), [("gnmt", 0.6), ("average", 1.0), ("none", 0.0)])
def test_wide_beam_lists_every_hypothesis_that_the_rules_allow(penalty, alpha, rules):
    toy = Toy(2, 4)
    width, sentences = 4**4, [0, 5]
    settings = as_settings(rules, sentences, penalty, alpha)
    found = search(toy, sentences, [4, 3], beam_size=width, n_best=width, **settings)
    for row, limit in enumerate([4, 3]):
        expected = enumerate_all(toy, sentences[row], limit, alpha, penalty=penalty, **rules)
        assert 1 < len(expected) <= width
        check_same(found, row, expected)


@pytest.mark.parametrize("rules", EVERY_RULE, ids=str)
@pytest.mark.parametrize(("penalty", "alpha"), [("gnmt", 0.6), ("average", 1.0), ("none", 0.0)])
@pytest.mark.parametrize("beam_size", [1, 3])
def test_stopping_early_loses_nothing_under_any_rule(beam_size, penalty, alpha, rules):
    # "average" gives long hypotheses a better bound than gnmt: the stop must know.
    toy = Toy(5, 7)
    sentences, limits = list(range(8)), [11, 3, 4, 7, 11, 5, 9, 11]
    settings = as_settings(rules, sentences, penalty, alpha)
    for n_best in {1, beam_size}:
        found = search(toy, sentences, limits, beam_size=beam_size, n_best=n_best, **settings)
        for row, limit in enumerate(limits):
            expected = list_beam_search(toy, row, limit, alpha, beam_size, penalty=penalty, **rules)
            check_same(found, row, expected)
    if beam_size == 1:
        check_equal(search(toy, sentences, limits, **settings), found)


def test_prefixes_of_different_lengths_share_a_batch():
    toy = Toy(2, 4)
    prefixes = [(3, 1, 3), (1, PAD, PAD), (PAD, PAD, PAD)]
    found = search(toy, [4, 5, 6], [5, 5, 5], beam_size=4**5, prefix_ids=prefixes)
    for row, prefix in enumerate([(3, 1, 3), (1,), ()]):
        check_same(found, row, enumerate_all(toy, 4 + row, 5, 0.6, prefix=prefix))


def test_the_first_rule_stops_once_a_beam_of_hypotheses_has_ended():
    # By hand, a beam of 2: eos is second at first (0.3) and ends one. The other, 3, ends with 0.24
    # then; what goes on from 3 with 0.36 would end with 0.324, but two have ended.
    def step(ids, position, state):
        rows = [[0.05, 0.05, 0.3, 0.6], [0.0, 0.0, 0.4, 0.6], [0.04, 0.03, 0.9, 0.03]]
        logits = ops.log(ops.take(ops.array(rows, "float32"), ops.minimum(position, 2), axis=0))
        return Step(ops.tile(logits[None], (ops.shape(ids)[0], 1)), state)

    settings = {"beam_size": 2, "max_lengths": [9], "max_length": 9}
    rules = Rules(EOS, PAD, penalty="none")
    exact = to_numpy(beam_search(step, (), [BOS], rules, **settings))
    first = to_numpy(beam_search(step, (), [BOS], rules, early_stop=True, **settings))
    assert exact.ids[0, 0].tolist() == [3, 3, EOS, *[PAD] * 6]
    assert first.ids[0, 0].tolist() == [EOS, *[PAD] * 8]
    np.testing.assert_allclose([exact.scores[0, 0], first.scores[0, 0]], np.log([0.324, 0.3]), rtol=1e-6)


def test_with_early_stop_an_end_below_the_beam_does_not_count():
    # A beam of 2: eos is third at first, and third and fourth at second.
    def step(ids, position, state):
        rows = [[0.3, 0.05, 0.25, 0.4], [0.4, 0.0, 0.25, 0.35], [0.0, 0.05, 0.9, 0.05]]
        logits = ops.log(ops.take(ops.array(rows, "float32"), ops.minimum(position, 2), axis=0))
        return Step(ops.tile(logits[None], (ops.shape(ids)[0], 1)), state)

    settings = {"beam_size": 2, "n_best": 2, "max_lengths": [9], "max_length": 9, "early_stop": True}
    found = to_numpy(beam_search(step, (), [BOS], Rules(EOS, PAD, penalty="none"), **settings))
    assert found.ids[0, :, :3].tolist() == [[3, 0, EOS], [3, 3, EOS]]
    np.testing.assert_allclose(found.scores[0], np.log([0.144, 0.126]), rtol=1e-6)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@pytest.mark.parametrize(("beam_size", "n_best"), [(1, 1), (2, 1), (3, 3), (4, 1), (4, 2)])
def test_early_stop_is_that_of_a_search_on_lists(beam_size, n_best, alpha):
    limits = [11, 3, 1, 7, 11, 2, 5, 11, 9, 4, 10, 11]
    for seed, vocab_size in [(0, 5), (1, 7), (2, 11)]:
        toy = Toy(seed, vocab_size)
        settings = {"beam_size": beam_size, "n_best": n_best, "alpha": alpha, "early_stop": True}
        found = search(toy, list(range(12)), limits, **settings)
        for row, limit in enumerate(limits):
            check_same(found, row, list_beam_search(toy, row, limit, alpha, beam_size, early_stop=True))


@pytest.mark.parametrize("beam_size", [None, 3])
def test_the_log_probability_is_the_score_without_its_penalty(beam_size):
    toy = Toy(4, 6)
    found = search(toy, [1, 2, 3], [4, 7, 2], beam_size=beam_size, alpha=0.9)
    for row, sentence in enumerate([1, 2, 3]):
        tokens = tuple(found.ids[row, 0, : found.lengths[row, 0]])
        np.testing.assert_allclose(found.log_probs[row, 0], toy.score(sentence, tokens, 0.0), rtol=2e-6)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize(("seed", "vocab_size", "limit"), [(1, 3, 4), (2, 4, 4), (3, 5, 3)])
def test_wide_beam_lists_every_hypothesis_there_is(seed, vocab_size, limit, alpha):
    toy = Toy(seed, vocab_size)
    width = vocab_size**limit
    sentences, limits = [0, 5, 11], [limit, 1, limit - 1]
    found = search(toy, sentences, limits, beam_size=width, n_best=width, alpha=alpha)
    assert found.ids.shape == (3, width, limit)
    for row, (sentence, limit) in enumerate(zip(sentences, limits, strict=True)):
        check_same(found, row, enumerate_all(toy, sentence, limit, alpha))


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("seed", range(4))
def test_wide_beam_finds_the_best_hypothesis_of_all(seed, alpha):
    toy = Toy(seed, 4)
    found = search(toy, [0, 5, 11], [4, 4, 4], beam_size=4**4, alpha=alpha)
    for row, sentence in enumerate([0, 5, 11]):
        check_same(found, row, enumerate_all(toy, sentence, 4, alpha))


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize(("beam_size", "n_best"), [(2, 1), (2, 2), (3, 1), (4, 1), (4, 3)])
def test_stopping_early_loses_nothing(beam_size, n_best, alpha):
    forbidden = (PAD, BOS)
    sentences = list(range(12))
    limits = [11, 3, 1, 7, 11, 2, 5, 11, 9, 4, 10, 11]
    for seed, vocab_size in [(0, 5), (1, 7), (2, 11)]:
        toy = Toy(seed, vocab_size)
        found = search(
            toy,
            sentences,
            limits,
            beam_size=beam_size,
            n_best=n_best,
            alpha=alpha,
            forbidden_ids=forbidden,
        )
        for row, limit in enumerate(limits):
            expected = list_beam_search(toy, row, limit, alpha, beam_size, forbidden)
            check_same(found, row, expected)


@pytest.mark.parametrize("beam_size", [1, 2, 3, 4])
def test_score_is_that_of_the_ids_and_at_most_the_best_of_all(beam_size):
    alpha = 0.6
    toy = Toy(7, 4)
    sentences, limits = [2, 3, 5, 7, 11], [4, 3, 4, 2, 4]
    found = search(toy, sentences, limits, beam_size=beam_size, n_best=beam_size, alpha=alpha)
    for row, (sentence, limit) in enumerate(zip(sentences, limits, strict=True)):
        assert found.finished[row, 0] >= found.finished[row, -1]
        for place in range(beam_size):
            length = found.lengths[row, place]
            tokens = tuple(found.ids[row, place, :length])
            if length:
                score = toy.score(sentence, tokens, alpha)
                np.testing.assert_allclose(found.scores[row, place], score, rtol=2e-6, atol=2e-6)
                best = enumerate_all(toy, sentence, limit, alpha)
                same = [h.score for h in best if h.finished == found.finished[row, place]]
                assert found.scores[row, place] <= same[0] + 1e-6
            else:
                assert found.scores[row, place] == -math.inf


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("alpha", [0.0, 0.6])
@pytest.mark.parametrize("seed", range(5))
def test_beam_of_one_is_greedy_search(seed, alpha):
    toy = Toy(seed, 7)
    toy.table[:, EOS] -= 1.0  # so that some reach their limit
    sentences, limits = list(range(9)), [12, 1, 5, 12, 3, 8, 2, 12, 10]
    settings = {"alpha": alpha, "forbidden_ids": (PAD,)}
    greedy = search(toy, sentences, limits, **settings)
    beam = search(toy, sentences, limits, beam_size=1, **settings)
    check_equal(greedy, beam)
    assert [x.dtype for x in greedy] == [x.dtype for x in beam]
    for row, limit in enumerate(limits):
        check_same(greedy, row, list_beam_search(toy, row, limit, alpha, 1, (PAD,)))
    assert greedy.finished.any()
    assert not greedy.finished.all()


@pytest.mark.parametrize(("beam_size", "n_best"), [(None, 1), (3, 1), (3, 3)])
def test_neighbours_in_the_batch_change_nothing(beam_size, n_best):
    toy = Toy(4, 6)
    sentences, limits = [13, 1, 8, 6, 21], [12, 3, 1, 7, 9]
    settings = {"beam_size": beam_size, "max_length": 12}
    if beam_size is not None:
        settings["n_best"] = n_best
    together = search(toy, sentences, limits, **settings)
    for row, (sentence, limit) in enumerate(zip(sentences, limits, strict=True)):
        alone = search(toy, [sentence], [limit], **settings)
        check_equal(alone, Hypotheses(*(x[row : row + 1] for x in together)))


@pytest.mark.parametrize("beam_size", [None, 4])
def test_longer_array_adds_only_padding(beam_size):
    toy = Toy(4, 6)
    short = search(toy, [1, 2, 3], [4, 5, 2], beam_size=beam_size)
    long = search(toy, [1, 2, 3], [4, 5, 2], beam_size=beam_size, max_length=11)
    check_equal(short, long._replace(ids=long.ids[:, :, :5]))
    assert (long.ids[:, :, 5:] == PAD).all()


@pytest.mark.parametrize("beam_size", [None, 2, 4])
def test_only_padding_follows_the_end_and_forbidden_ids_never_appear(beam_size):
    toy = Toy(9, 6, sharpness=0.5)
    toy.table[:, [PAD, BOS]] += 3.0  # what the model likes best is forbidden
    toy.table[:, EOS] -= 0.0 if beam_size is None else 2.0  # a beam finds an end more often
    limits = [9, 2, 7, 5, 9, 9, 8]
    settings = {} if beam_size is None else {"n_best": beam_size}
    found = search(
        toy,
        range(7),
        limits,
        beam_size=beam_size,
        forbidden_ids=(PAD, BOS),
        **settings,
    )
    assert found.finished.any()
    assert not found.finished.all()
    for row, place in np.ndindex(found.lengths.shape):
        ids, length = found.ids[row, place], found.lengths[row, place]
        assert length <= limits[row]
        assert (ids[length:] == PAD).all()
        assert not np.isin(ids[:length], [PAD, BOS]).any()
        if found.finished[row, place]:
            assert list(ids).count(EOS) == 1
            assert ids[length - 1] == EOS
        else:
            assert EOS not in ids


def test_forbidding_changes_no_score():
    toy = Toy(3, 5)
    width = 5**3
    settings = {"beam_size": width, "n_best": width, "forbidden_ids": (PAD, 4)}
    found = search(toy, [3], [3], **settings)
    expected = enumerate_all(toy, 3, 3, 0.6, forbidden=(PAD, 4))
    check_same(found, 0, expected)
    assert np.isfinite(found.scores).sum() == 1 + 2 + 4 + 8


def test_loop_ends_as_soon_as_nothing_better_can_come():
    def step(ids, position, state):
        logits = np.array([-9.0, -9.0, 3.0, 0.0], "float32")  # eos: 0.95
        positions.append(int(position))
        return Step(ops.tile(ops.array(logits)[None], (ops.shape(ids)[0], 1)), state)

    settings = {"max_lengths": [50, 50], "max_length": 50}
    rules = Rules(EOS, PAD)
    if keras.backend.backend() != "tensorflow":
        pytest.skip("other backends trace the loop, so calls cannot be counted")
    for run, calls in [
        (lambda: greedy_search(step, (), [BOS, BOS], rules, **settings), 1),
        # log(0.047) / penalty(50) = -0.78 is below log(0.953) = -0.05.
        (lambda: beam_search(step, (), [BOS, BOS], rules, **settings), 1),
        # The second best, "3 eos", scores -3.10 / penalty(2) = -2.82 at the second
        # call; n times log(0.047) / penalty(50) is below that from n = 4 on.
        (lambda: beam_search(step, (), [BOS, BOS], rules, n_best=2, **settings), 4),
    ]:
        positions = []
        found = to_numpy(run())
        assert positions == list(range(calls))
        assert found.ids[0, 0, 0] == EOS
        assert found.finished.all()


@pytest.mark.parametrize("beam_size", [None, 3])
def test_limit_of_zero_gives_the_empty_hypothesis(beam_size):
    toy = Toy(3, 5)
    found = search(toy, [3, 4], [0, 5], beam_size=beam_size)
    assert found.scores[0, 0] == 0.0
    assert found.lengths[0, 0] == 0
    assert not found.finished[0, 0]
    assert (found.ids[0, 0] == PAD).all()
    alone = search(toy, [4], [5], beam_size=beam_size)
    check_equal(alone, Hypotheses(*(x[1:] for x in found)))


@pytest.mark.parametrize("nothing", [-math.inf, math.nan])
@pytest.mark.parametrize("beam_size", [None, 1, 3])
def test_sentence_without_any_continuation_has_no_hypothesis(beam_size, nothing):
    toy = Toy(3, 5)

    def step(ids, position, state):
        logits, state, *_ = Toy.step(toy, ids, position, state)
        dead = ops.arange(ops.shape(ids)[0]) < (beam_size or 1)  # the first sentence
        return Step(ops.where(dead[:, None], nothing, logits), state)

    whole = search(toy, [3, 4], [5, 5], beam_size=beam_size)
    toy.step = step
    found = search(toy, [3, 4], [5, 5], beam_size=beam_size)
    assert found.scores[0, 0] == -math.inf
    assert found.lengths[0, 0] == 0
    assert not found.finished[0, 0]
    assert (found.ids[0, 0] == PAD).all()
    check_equal(*(Hypotheses(*(x[1:] for x in h)) for h in (found, whole)))


@pytest.mark.parametrize("nothing", [-math.inf, math.nan])
def test_hypothesis_without_continuation_leaves_the_others_alone(nothing):
    toy = Toy(3, 5)

    def step(ids, position, state):
        logits, state, *_ = Toy.step(toy, ids, position, state)
        return Step(ops.where(ids[:, None] == 3, nothing, logits), state)

    expected = enumerate_all(toy, 7, 3, 0.6)
    expected = [h for h in expected if 3 not in h.tokens[:-1]]
    toy.step = step
    check_same(search(toy, [7], [3], beam_size=5**3, n_best=5**3), 0, expected)


def test_the_worked_example_of_the_module():
    eos, a, b = 1, 2, 3
    table = {
        "": [0.10, 0.50, 0.40],
        "a": [0.30, 0.20, 0.50],
        "b": [0.10, 0.80, 0.10],
        "ab": [0.50, 0.40, 0.10],
        "ba": [0.75, 0.20, 0.05],
    }
    prefixes, parents, slots = [[], []], [], [[], []]

    def step(ids, position, state):
        if position:
            for prefix, token in zip(prefixes, ids.numpy().tolist(), strict=True):
                prefix.append({a: "a", b: "b"}[token])
        for slot in range(2):
            slots[slot].append(slot)  # as `CachedDecoding.step` does
        probabilities = [[0.0, *table["".join(prefix)]] for prefix in prefixes]
        return Step(ops.log(ops.array(probabilities)), state, normalized=True)

    def reorder(state, new):
        (new,) = new.numpy().tolist()
        parents.append(new)
        prefixes[:] = [list(prefixes[slot]) for slot in new]
        slots[:] = [list(slots[slot]) for slot in new]
        return state

    rules = Rules(eos, pad_id=0, penalty="none")
    found = beam_search(
        step, (), ops.array([0], "int32"), rules,
        beam_size=2, n_best=2, max_lengths=ops.array([4], "int32"), max_length=4, reorder=reorder,
    )  # fmt: skip
    assert parents == [[0, 0], [1, 0], [1, 0]]
    assert slots == [[0, 0, 1], [0, 1, 0]]
    assert found.ids[0].numpy().tolist() == [[b, a, eos, 0], [a, eos, 0, 0]]
    np.testing.assert_allclose(np.exp(found.scores[0]), [0.24, 0.15], rtol=1e-6)


def test_lower_token_comes_first_among_equal_scores():
    def step(ids, position, state):
        logits = np.array([-9.0, -9.0, -9.0, 1.0, 1.0], "float32")
        return Step(ops.tile(ops.array(logits)[None], (ops.shape(ids)[0], 1)), state)

    rules = Rules(EOS, PAD)
    found = beam_search(step, (), [BOS], rules, beam_size=2, n_best=2, max_lengths=[1], max_length=1)
    assert ops.convert_to_numpy(found.ids).tolist() == [[[3], [4]]]


@pytest.mark.parametrize("beam_size", [None, 3])
def test_half_logits_give_float32_scores(beam_size):
    toy = Toy(3, 5)
    toy.table = np.round(toy.table * 4) / 4  # exact in bfloat16
    whole = search(toy, [3, 4], [5, 5], beam_size=beam_size)

    def step(ids, position, state):
        logits, state, *_ = Toy.step(toy, ids, position, state)
        return Step(ops.cast(logits, "bfloat16"), state)

    toy.step = step
    half = search(toy, [3, 4], [5, 5], beam_size=beam_size)
    assert half.scores.dtype == "float32"
    check_equal(whole, half)


@pytest.mark.slow_after(1)
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="tf.function is TensorFlow's")
@pytest.mark.parametrize("beam_size", [None, 1, 3])
@pytest.mark.parametrize("known_batch", [True, False])
@pytest.mark.parametrize("known_length", [True, False])
def test_graph_gives_what_eager_gives(beam_size, known_batch, known_length):
    import tensorflow as tf

    toy = Toy(6, 6)
    sizes = [5] if known_batch else [5, 1, 2]
    batch = 5 if known_batch else None

    def step(ids, position, state):
        logits, state, *_ = toy.step(ids, position, state)
        history = state["more"][0][:, : 12 + 0 * position]  # size no longer known
        return Step(logits, {**state, "more": [history]})

    @tf.function(
        input_signature=[
            tf.TensorSpec([batch], "int32"),
            tf.TensorSpec([batch], "int32"),
            tf.TensorSpec([], "int32"),
        ]
    )
    def graph(sentences, limits, max_length):
        repeated = ops.repeat(sentences, beam_size or 1)
        zeros = ops.zeros((ops.shape(repeated)[0], len(WEIGHTS)), dtype="int32")
        state = {"hash": repeated, "more": [zeros]}
        settings = {"max_lengths": limits, "max_length": 12 if known_length else max_length}
        first_ids = ops.full_like(sentences, BOS)
        rules = Rules(EOS, PAD)
        if beam_size is None:
            return greedy_search(step, state, first_ids, rules, **settings)
        settings |= {"beam_size": beam_size, "n_best": beam_size}
        return beam_search(step, state, first_ids, rules, **settings)

    for size in sizes:
        sentences, limits = [13, 1, 8, 6, 21][:size], [12, 3, 1, 7, 9][:size]
        found = to_numpy(graph(tf.constant(sentences), tf.constant(limits), 12))
        settings = {} if beam_size is None else {"n_best": beam_size}
        eager = search(toy, sentences, limits, beam_size=beam_size, max_length=12, **settings)
        check_equal(found, eager)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beam_size": 0}, "`beam_size`.*beam_size=0"),
        ({"beam_size": 2.0}, r"`beam_size`.*beam_size=2\.0"),
        ({"n_best": 0}, "`n_best`.*n_best=0, beam_size=4"),
        ({"n_best": 5}, "`n_best`.*n_best=5, beam_size=4"),
        ({"alpha": -0.1}, r"`alpha`.*alpha=-0\.1"),
        ({"alpha": math.nan}, "`alpha`.*alpha=nan"),
        ({"alpha": math.inf}, "`alpha`.*alpha=inf"),
        ({"max_length": 0}, "`max_length`.*max_length=0"),
        ({"min_length": -1}, "`min_length`.*min_length=-1"),
        ({"no_repeat_ngram": 0.5}, r"`no_repeat_ngram`.*no_repeat_ngram=0\.5"),
        ({"penalty": "gmnt"}, "`formula` must be one of .*'gmnt'"),
        ({"forbidden_ids": (PAD, EOS)}, r"`forbidden_ids`.*\(0, 2\), eos_id=2"),
    ],
)
def test_refuses_bad_settings(settings, message):
    toy = Toy(3, 5)
    rules = {name: settings[name] for name in RULES & settings.keys()}
    rules = Rules(EOS, PAD, **rules)
    arguments = {name: value for name, value in settings.items() if name not in RULES}
    arguments = {"max_lengths": [5], "max_length": 5, **arguments}
    with pytest.raises(ValueError, match=message):
        beam_search(toy.step, toy.state([3], 4), [BOS], rules, **arguments)
    if not settings.keys() & {"beam_size", "n_best", "early_stop"}:
        with pytest.raises(ValueError, match=message):
            greedy_search(toy.step, toy.state([3]), [BOS], rules, **arguments)
