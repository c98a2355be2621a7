"""What may follow a hypothesis, against sorting and counting by hand."""

import numpy as np
import pytest
from keras import ops

from keras_transformer.translation.rules import NEG_INF, Rules, without_repeated_ngrams
from keras_transformer.translation.search import Step

PAD, EOS = 0, 2


def continuations(log_probs, number, *, forced=(), blocked=(), eos_too_early=False, normalized=True):
    rules = Rules(eos_id=EOS, pad_id=PAD, forbidden_ids=blocked, min_length=3)
    step = Step(ops.array(log_probs, "float32"), (), normalized)
    forced_ids = None if forced is None else ops.array(forced or [PAD] * len(log_probs), "int32")
    found = rules.continuations(step, None, 2 if eos_too_early else 3, forced_ids, number)
    return tuple(ops.convert_to_numpy(x) for x in found)


def by_sorting(row, number, blocked):
    """The best of a row, the lower id first among equals."""
    allowed = [i for i in range(len(row)) if i not in blocked and row[i] > NEG_INF]
    best = sorted(allowed, key=lambda i: (-row[i], i))[:number]
    return [float(row[i]) for i in best], best


# 960 falls into blocks of 64; 1,009 is prime and is taken whole; 31 is short.
@pytest.mark.parametrize("vocab_size", [31, 960, 1009, 8192])
@pytest.mark.parametrize("number", [1, 8])
def test_the_best_are_those_of_sorting(vocab_size, number):
    rng = np.random.default_rng(vocab_size)
    rows = rng.normal(0, 1, (7, vocab_size))
    rows[3] = np.round(rows[3])  # many equals
    rows[4] = -3.0  # all equal
    rows[5, rng.permutation(vocab_size)[: vocab_size - 5]] = NEG_INF  # few that are possible
    rows = rows.astype("float32")
    blocked = (1, int(rows[0].argmax()), int(rows[1].argmax()))
    found, ids = continuations(rows, number, blocked=blocked)
    for row, log_probs, chosen in zip(rows, found, ids, strict=True):
        allowed = log_probs > NEG_INF
        wanted = by_sorting(row, number, blocked)
        assert (log_probs[allowed][:number].tolist(), chosen[allowed][:number].tolist()) == wanted


def test_among_equals_the_lower_id_comes_first_whichever_block_has_the_larger_token():
    # Blocks of 64: ids 5, 70 and 135 are in the first, second and third.
    row = np.full(960, -9.0)
    row[[5, 70, 135, 199]] = -2.0
    row[[6, 73, 140]] = [-1.5, -1.0, -0.5]
    found, ids = continuations([row], 6)
    assert ids[0, :6].tolist() == [140, 73, 6, 5, 70, 135]
    assert found[0, :6].tolist() == [-0.5, -1.0, -1.5, -2.0, -2.0, -2.0]


@pytest.mark.parametrize("scale", [1, 40, 3000])
@pytest.mark.parametrize("vocab_size", [31, 960])
def test_log_probabilities_are_those_of_all_tokens_also_of_blocked_ones(vocab_size, scale):
    logits = np.random.default_rng(vocab_size).normal(0, scale, (7, vocab_size)).astype("float32")
    exact = logits.astype("float64")
    exact -= exact.max(axis=1, keepdims=True)
    exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
    least = 4 + logits[:, 4:].argmin(axis=1)  # no special token
    forced = [PAD] * 5 + least[5:].tolist()
    blocked = (1, int(logits[0].argmax()), int(logits[1].argmax()))
    found, ids = continuations(logits, 3, forced=forced, blocked=blocked, normalized=False)
    for row in range(7):
        allowed = found[row] > NEG_INF
        assert allowed.any()
        np.testing.assert_allclose(found[row][allowed], exact[row][ids[row][allowed]], rtol=2e-7, atol=2e-6)
    assert ids[5:, 0].tolist() == least[5:].tolist()


def test_without_prefixes_and_a_least_length_all_is_as_with_empty_ones():
    logits = np.random.default_rng(7).normal(0, 1, (5, 31)).astype("float32")
    with_empty = continuations(logits, 3, blocked=(1, 3))
    without = continuations(logits, 3, blocked=(1, 3), forced=None)
    free = Rules(eos_id=EOS, pad_id=PAD, forbidden_ids=(1, 3))
    no_minimum = free.continuations(Step(ops.array(logits), (), True), None, 0, None, 3)
    for one, other, third in zip(with_empty, without, no_minimum, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(one, ops.convert_to_numpy(third))


def test_a_row_that_is_not_a_number_has_no_continuation():
    rows = np.full((2, 960), np.nan, "float32")
    rows[1] = np.linspace(-9, -1, 960)
    for normalized in (True, False):
        found, ids = continuations(rows, 2, normalized=normalized)
        assert (found[0] == NEG_INF).all()
        assert ids[1, :2].tolist() == [959, 958]


def test_an_end_is_blocked_while_it_is_too_early():
    rows = [[-4.0, -3.0, -1.0, -2.0, -5.0]]
    for too_early, wanted in ((False, [2, 3]), (True, [3, 1])):
        found, ids = continuations(rows, 2, eos_too_early=too_early)
        assert ids[0][found[0] > NEG_INF][:2].tolist() == wanted


def test_a_forced_token_is_the_only_one_even_if_it_is_blocked():
    rows = [[-4.0, -3.0, -1.0, -2.0, -5.0]] * 3
    found, ids = continuations(rows, 2, forced=[4, PAD, 1], blocked=(1,))
    assert [ids[i][found[i] > NEG_INF].tolist()[:2] for i in range(3)] == [[4], [2, 3], [1]]
    assert found[0][0] == -5.0


@pytest.mark.parametrize(
    ("size", "tokens", "blocked"),
    [
        (1, [], []),
        (1, [3, 5, 3], [3, 5]),
        (2, [3], []),
        (2, [3, 5, 3], [5]),
        (2, [3, 5, 4], []),
        (2, [3, 3], [3]),
        (2, [3, 5, 3, 4, 3], [4, 5]),
        (3, [3, 5, 4, 3, 5], [4]),
        (3, [3, 5, 4, 3], []),
        (3, [3, 3, 3], [3]),
        (4, [3, 5], []),
    ],
)
def test_tokens_that_would_repeat_an_ngram_by_hand(size, tokens, blocked):
    ids = np.full((2, 7), 6, "int32")  # what stands behind the tokens is not one of them
    ids[1, : len(tokens)] = tokens
    found = without_repeated_ngrams(ops.zeros((2, 7)), ops.array(ids), len(tokens), size)
    assert np.flatnonzero(ops.convert_to_numpy(found)[1] == NEG_INF).tolist() == blocked
