"""Sampling against the distribution that it is to follow, counted."""

import numpy as np
import pytest
from keras import ops

from keras_transformer.translation.rules import Rules
from keras_transformer.translation.search import Step, sample

PAD, BOS, EOS = 0, 1, 2
P = np.array([0.02, 0.03, 0.1, 0.3, 0.05, 0.25, 0.15, 0.1])
N = 20_011


def constant(ids, position, state):
    """The same distribution after every token."""
    return Step(ops.tile(ops.array(np.log(P), "float32")[None], (ops.shape(ids)[0], 1)), state)


def draw(uniforms, *, length=1, rules=Rules(EOS, PAD), step=constant, **settings):
    uniforms = np.asarray(uniforms, "float32")
    batch = uniforms.shape[0]
    found = sample(
        step, (), np.full(batch, BOS), rules, uniforms=uniforms,
        max_lengths=np.full(batch, length), max_length=length, **settings,
    )  # fmt: skip
    return type(found)(*(ops.convert_to_numpy(x) for x in found))


def chi_square(counts, expected):
    """Pearson's statistic; every category with probability 0 must be empty."""
    possible = expected > 0
    assert not counts[~possible].any()
    expected = expected[possible] * counts.sum()
    return ((counts[possible] - expected) ** 2 / expected).sum()


def wanted(temperature=1.0, top_k=0, top_p=1.0, forbidden=()):
    """The distribution, by the definitions, in NumPy."""
    p = P.copy()
    p[list(forbidden)] = 0
    p = np.where(p > 0, p, 0) ** (1 / temperature)
    order = np.argsort(-p, kind="stable")
    keep = order[: top_k or len(p)]
    p = np.where(np.isin(np.arange(len(p)), keep), p, 0)
    p /= p.sum()
    number = np.searchsorted(np.cumsum(p[order]), top_p - 1e-9) + 1
    p = np.where(np.isin(np.arange(len(p)), order[:number]), p, 0)
    return p / p.sum()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.0},
        {"top_k": 3},
        {"top_p": 0.6},
        {"top_k": 5, "top_p": 0.8, "temperature": 1.5},
        {"forbidden": (3, PAD)},
        {"forbidden": (7, 6, PAD), "temperature": 0.7},
    ],
    ids=str,
)
def test_frequencies_are_those_of_the_distribution(settings):
    uniforms = np.random.default_rng(7).random((N, 1, 1))
    rules = Rules(EOS, PAD, forbidden_ids=settings.get("forbidden", ()))
    drawn = {name: value for name, value in settings.items() if name != "forbidden"}
    found = draw(uniforms, rules=rules, **drawn)
    counts = np.bincount(found.ids[:, 0, 0], minlength=len(P))
    # 7 degrees of freedom: 24.3 is exceeded once in a thousand times.
    assert chi_square(counts, wanted(**settings)) < 24.3
    if settings:
        assert chi_square(counts[P > 0], P) > 100 or not counts.all()


def test_the_tokens_of_one_sentence_and_its_samples_are_independent():
    uniforms = np.random.default_rng(8).random((N, 2, 3))
    # Without an end, so that all three tokens are drawn.
    ids = draw(uniforms, length=3, rules=Rules(EOS, PAD, forbidden_ids=(PAD,), min_length=3)).ids
    p = np.where(np.isin(np.arange(8), [PAD, EOS]), 0, P)
    p /= p.sum()
    for a, b in (((0, 0), (0, 1)), ((0, 1), (0, 2)), ((0, 0), (1, 0)), ((0, 2), (1, 1))):
        pairs = np.bincount(8 * ids[:, a[0], a[1]] + ids[:, b[0], b[1]], minlength=64)
        # 35 degrees of freedom: 66.6 is exceeded once in a thousand times.
        assert chi_square(pairs, np.outer(p, p).ravel()) < 66.6


def test_scores_are_those_of_the_model_whatever_is_drawn_from():
    uniforms = np.random.default_rng(9).random((31, 2, 5))
    rules = Rules(EOS, PAD, alpha=1.0, penalty="average")
    found = draw(uniforms, length=5, rules=rules, temperature=0.7, top_k=4)
    for row, place in np.ndindex(found.lengths.shape):
        ids = found.ids[row, place, : found.lengths[row, place]]
        np.testing.assert_allclose(found.log_probs[row, place], np.log(P[ids]).sum(), rtol=1e-5)
        np.testing.assert_allclose(found.scores[row, place], np.log(P[ids]).mean(), rtol=1e-5)
        assert found.finished[row, place] == (ids[-1] == EOS)
        assert not found.ids[row, place, len(ids) :].any()


def test_what_is_drawn_depends_on_the_numbers_of_the_sentence_alone():
    uniforms = np.random.default_rng(10).random((11, 3, 7))
    together = draw(uniforms, length=7)
    alone = draw(uniforms[4:5], length=7)
    np.testing.assert_array_equal(together.ids[4:5], alone.ids)
    longer = np.concatenate([uniforms, np.random.default_rng(11).random((11, 3, 6))], axis=2)
    np.testing.assert_array_equal(draw(longer, length=7).ids, together.ids)


def test_a_low_temperature_and_a_single_candidate_are_greedy():
    uniforms = np.random.default_rng(12).random((13, 2, 3))
    for settings in ({"temperature": 1e-3}, {"top_k": 1}, {"top_p": 1e-6}):
        assert (draw(uniforms, length=3, **settings).ids == 3).all()


def test_extreme_numbers_draw_the_first_and_the_last_token():
    largest = np.nextafter(np.float32(1), np.float32(0))
    found = draw([[[0.0]], [[largest]]])
    assert found.ids[:, 0, 0].tolist() == [0, 7]  # of the vocabulary
    found = draw([[[0.0]], [[largest]]], top_k=8)
    assert found.ids[:, 0, 0].tolist() == [3, 0]  # the most and the least probable


@pytest.mark.parametrize(("settings", "last"), [({}, 7), ({"top_k": 3}, 6), ({"top_p": 0.5}, 5)])
def test_a_number_that_rounds_to_1_draws_the_last_token_that_may_be_drawn(settings, last):
    assert np.float32(1 - 1e-9) == 1
    assert draw([[[1 - 1e-9]]], **settings).ids.item() == last
    rules = Rules(EOS, PAD, forbidden_ids=(PAD, BOS, 4))
    assert draw([[[1 - 1e-9]]], rules=Rules(EOS, PAD, forbidden_ids=(7, 6))).ids.item() == 5
    if settings:
        assert draw([[[1 - 1e-9]]], rules=rules, **settings).ids.item() == last


def test_a_prefix_is_not_drawn():
    uniforms = np.random.default_rng(13).random((3, 2, 4))
    prefix_ids = [[4, 7], [6, PAD], [PAD, PAD]]
    rules = Rules(EOS, PAD, forbidden_ids=(7,), min_length=9)
    ids = draw(uniforms, length=4, rules=rules, prefix_ids=prefix_ids).ids
    assert (ids[0, :, :2] == [4, 7]).all()
    assert (ids[1, :, 0] == 6).all()
    assert not (ids[:, :, 2:] == 7).any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0.0}, r"`temperature`.*temperature=0\.0"),
        ({"temperature": float("nan")}, "`temperature`.*temperature=nan"),
        ({"top_k": -1}, "`top_k`.*top_k=-1"),
        ({"top_p": 0.0}, r"`top_p`.*top_p=0\.0"),
        ({"top_p": 1.5}, r"`top_p`.*top_p=1\.5"),
    ],
)
def test_refuses_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        draw(np.zeros((1, 1, 1)), **settings)
