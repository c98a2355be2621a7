"""Attention mass against hand counts; attention maps against the model's own attention weights."""

import types

import keras
import numpy as np
import pytest

from keras_transformer.analysis.heads import (
    attention_maps,
    attention_mass,
    link_pattern,
    offset_pattern,
    place_pattern,
    relative_entropy,
    repeat_pattern,
    token_similarity,
)
from keras_transformer.config.presets import preset
from keras_transformer.config.settings import ModelConfig
from keras_transformer.model.transformer import Transformer


def test_attention_mass_is_the_mean_over_the_queries_that_have_a_marked_key():
    # One layer of two heads, three queries, two keys.
    weights = np.array([[[[0.9, 0.1], [0.4, 0.6], [1.0, 0.0]], [[0.5, 0.5], [0.2, 0.8], [0.3, 0.7]]]])
    pattern = np.array([[True, False], [False, False], [True, True]])
    mass = attention_mass([weights], [pattern])
    np.testing.assert_allclose(mass.heads, [[(0.9 + 1.0) / 2, (0.5 + 1.0) / 2]])
    assert mass.uniform == (1 / 2 + 2 / 2) / 2
    assert mass.num_queries == 2
    assert mass.best == (0, 0)


def test_queries_of_all_sentences_have_the_same_weight():
    short, long = np.full((1, 1, 1, 1), 1.0), np.full((1, 1, 3, 4), 0.25)
    mass = attention_mass([short, long], [np.ones((1, 1), bool), place_pattern(3, 4, -1)])
    np.testing.assert_allclose(mass.heads, [[(1 + 3 * 0.25) / 4]])
    assert mass.uniform == (1 + 3 / 4) / 4


def test_the_uniform_head_of_a_decoder_sees_no_later_position():
    weights = np.tri(3)[None, None] / np.arange(1, 4)[:, None]  # the uniform head itself
    pattern = np.array([[True, True, True], [False, False, True], [True, False, True]])
    mass = attention_mass([weights], [pattern], causal=True)
    # Only queries 0 and 2 count: the marked key of query 1 is in its future.
    assert mass.num_queries == 2
    np.testing.assert_allclose(mass.uniform, (1 + 2 / 3) / 2)
    np.testing.assert_allclose(mass.heads, [[mass.uniform]])


def test_a_pattern_without_a_marked_key_has_mass_0():
    mass = attention_mass([np.ones((2, 3, 1, 1))], [np.zeros((1, 1), bool)])
    assert mass.num_queries == mass.uniform == mass.heads.max() == 0
    assert mass.heads.shape == (2, 3)


def test_patterns_mark_the_expected_keys():
    assert offset_pattern(3, 3, -1).astype(int).tolist() == [[0, 0, 0], [1, 0, 0], [0, 1, 0]]
    assert offset_pattern(2, 3, 1).astype(int).tolist() == [[0, 1, 0], [0, 0, 1]]
    assert place_pattern(2, 3, -1).astype(int).tolist() == [[0, 0, 1], [0, 0, 1]]
    assert repeat_pattern(["a", "b", "a"]).astype(int).tolist() == [[0, 0, 1], [0, 0, 0], [1, 0, 0]]
    assert link_pattern(3, 2, {(1, 0), (0, 0)}).astype(int).tolist() == [[1, 1], [0, 0], [0, 0]]
    assert link_pattern(3, 2, {(1, 0)}, shift=1).astype(int).tolist() == [[0, 0], [0, 1], [0, 0]]


def test_a_pattern_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"\(2, 3\). Received: \(3, 2\)"):
        attention_mass([np.ones((1, 1, 2, 3))], [np.ones((3, 2), bool)])


@pytest.mark.slow
def test_maps_are_those_of_the_model_for_each_pair_alone():
    config = ModelConfig(
        source_vocab_size=23, target_vocab_size=23, num_encoder_layers=2, num_decoder_layers=3, d_model=12,
        d_ff=17, num_heads=2,
    )  # fmt: skip
    model = Transformer(config)
    sources, targets = [[5, 6, 7, 2], [9, 2]], [[11, 2], [12, 13, 14, 2]]
    maps = attention_maps(model, sources, targets)
    assert [one.shape for one in maps.encoder] == [(2, 2, 4, 4), (2, 2, 2, 2)]
    assert [one.shape for one in maps.decoder] == [(3, 2, 2, 2), (3, 2, 4, 4)]
    assert [one.shape for one in maps.cross] == [(3, 2, 2, 4), (3, 2, 4, 2)]
    read = np.array([[model.special.bos, 12, 13, 14]])
    attended = model.attend((np.array([[9, 2]]), read), cross=[2], decoder=[0], encoder=[1])
    np.testing.assert_array_equal(maps.cross[1][2], attended.cross[2][0])
    np.testing.assert_array_equal(maps.decoder[1][0], attended.decoder[0][0])
    np.testing.assert_array_equal(maps.encoder[1][1], attended.encoder[1][0])


class FixedEncoder:
    """Encodes token id i as the i-th row of a table."""

    def __init__(self, table):
        self.table = np.array(table, np.float32)

    def encode(self, ids):
        return types.SimpleNamespace(output=self.table[ids])


def test_token_similarity_is_the_mean_cosine_over_pairs_of_positions_then_over_sentences():
    # Rows 0 and 1 are at a right angle, row 2 at 45 degrees to both, row 3 opposite to row 0.
    model = FixedEncoder([[2, 0], [0, 3], [5, 5], [-7, 0]])
    half = 0.5**0.5
    assert token_similarity(model, [[0, 1]]) == pytest.approx(0)
    assert token_similarity(model, [[0, 3]]) == pytest.approx(-1)
    assert token_similarity(model, [[0, 1, 2]]) == pytest.approx(2 * half / 3)
    assert token_similarity(model, [[0, 1, 2], [2], [1, 1]]) == pytest.approx((2 * half / 3 + 1) / 2)
    with pytest.raises(ValueError, match="at least two ids"):
        token_similarity(model, [[1]])


def test_relative_entropy_of_attention_whose_entropy_is_known():
    uniform, sure = np.full((2, 8), 1 / 8), np.eye(8)[:2]
    half = np.repeat([[0.5, 0, 0, 0.5, 0, 0, 0, 0]], 2, axis=0)  # one of three bits
    weights = np.stack([uniform, sure, half])[None]
    np.testing.assert_allclose(relative_entropy([weights]), [[1, 0, 1 / 3]], atol=1e-12)
    # Queries have equal weights: 2 of them with 8 keys and 3 with 4 keys; one key alone says nothing.
    more = np.broadcast_to(np.eye(4)[0], (1, 3, 3, 4))
    found = relative_entropy([weights, more, np.ones((1, 3, 5, 1))])
    np.testing.assert_allclose(found, [[2 / 5, 0, 2 / 15]], atol=1e-12)


def similarity(seed, **changes):
    """Token similarity of an untrained model with 4 + 4 layers of Multi30k's size."""
    keras.utils.set_random_seed(seed)
    sizes = {"source_vocab_size": 997, "target_vocab_size": 997}
    model = Transformer(preset("multi30k_tiny", **sizes, **changes).model)
    rows = np.random.default_rng(seed).integers(4, 997, (7, 14))
    return token_similarity(model, rows)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.very_slow)])
def test_tokens_look_more_alike_the_larger_the_initial_matrices_are(seed):
    separate = similarity(seed, attention_init="separate")
    stacked = similarity(seed)
    ds_init = similarity(seed, depth_scaling="ds_init")
    deepnorm = similarity(seed, depth_scaling="deepnorm")
    # Over seeds: 0.88, 0.73, 0.43 and 0.20, each within 0.07.
    assert deepnorm + 0.05 < ds_init < stacked - 0.1
    assert 0.5 < stacked < separate - 0.06 < 0.92
    assert similarity(seed, norm_first=True) < stacked
