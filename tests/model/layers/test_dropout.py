"""Dropout: the rate, the scale, the random numbers."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.model.layers.basics import Dropout

SHAPE = (509, 257)


def dropped(rate, seed=3, shape=SHAPE, dtype="float32"):
    layer = Dropout(rate, seed=seed, dtype=dtype)
    return tf.cast(layer(tf.ones(shape, dtype), training=True), tf.float32).numpy()


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.9])
def test_the_rate_is_within_five_standard_deviations(rate):
    share = (dropped(rate) == 0).mean()
    assert abs(share - rate) < 5 * (rate * (1 - rate) / np.prod(SHAPE)) ** 0.5


def test_neighbours_that_share_a_random_number_are_independent():
    # Two elements are decided by the halves of one 32-bit number.
    pairs = (dropped(0.5).reshape(-1)[: 2 * (np.prod(SHAPE) // 2)] > 0).reshape(-1, 2)
    counts = np.array([[(pairs == (a, b)).all(1).sum() for b in (0, 1)] for a in (0, 1)])
    expected = len(pairs) / 4
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 16.3  # 3 degrees of freedom, p = 0.001


@pytest.mark.parametrize("shape", [(1,), (3,), (7, 1), (1, 1, 1), (0, 5), (5, 3, 7)])
def test_any_number_of_elements(shape):
    assert dropped(0.5, shape=shape).shape == shape


def test_a_seed_is_reproducible_and_each_call_draws_new_numbers():
    layer, again, other = (Dropout(0.5, seed=seed) for seed in (3, 3, 4))
    ones = tf.ones(SHAPE)
    first, second = (layer(ones, training=True).numpy() for _ in range(2))
    np.testing.assert_array_equal(first, again(ones, training=True))
    assert abs((first == second).mean() - 0.5) < 0.01
    assert abs((first == other(ones, training=True).numpy()).mean() - 0.5) < 0.01


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_draw_the_same(dtype):
    np.testing.assert_array_equal(dropped(0.5), dropped(0.5, dtype=dtype))
