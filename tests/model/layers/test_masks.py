"""Masks against masks written by hand."""

import numpy as np
import tensorflow as tf

from keras_transformer.model.layers.masks import causal_mask, padding_mask


def test_padding_mask_shows_real_tokens_only():
    ids = np.array([[5, 3, 0, 0, 0], [0, 7, 0, 2, 1], [0, 0, 0, 0, 0]])
    wanted = [[[1, 1, 0, 0, 0]], [[0, 1, 0, 1, 1]], [[0, 0, 0, 0, 0]]]
    np.testing.assert_array_equal(padding_mask(ids, pad_id=0), np.array(wanted, bool))


def test_padding_mask_takes_any_pad_id():
    ids = np.array([[0, 1, 3], [3, 3, 2]])
    wanted = [[[True, True, False]], [[False, False, True]]]
    np.testing.assert_array_equal(padding_mask(ids, pad_id=3), wanted)


def test_causal_mask_shows_a_position_itself_and_those_before():
    wanted = [[[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]]
    np.testing.assert_array_equal(causal_mask(4), np.array(wanted, bool))


def test_masks_are_boolean():
    assert padding_mask(np.ones((2, 3), "int32"), 0).dtype == tf.bool
    assert causal_mask(3).dtype == tf.bool


def test_causal_mask_takes_a_length_known_only_in_the_graph():
    @tf.function(input_signature=[tf.TensorSpec((), tf.int32)])
    def masked(length):
        return causal_mask(length)

    np.testing.assert_array_equal(masked(3)[0], np.tri(3, dtype=bool))
