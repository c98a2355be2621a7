"""Attention mass against hand counts; attention maps against the model's own attention weights."""

import numpy as np
import pytest

from keras_transformer.analysis.heads import (
    attention_maps,
    attention_mass,
    link_pattern,
    offset_pattern,
    place_pattern,
    repeat_pattern,
)
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
