"""The feed-forward network against equation 2."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.model.kernels.basics import add_bias
from keras_transformer.model.layers.feed_forward import FeedForward

BATCH, LENGTH, D_MODEL, D_FF = 2, 5, 13, 29
X = np.random.default_rng(0).normal(size=(BATCH, LENGTH, D_MODEL)).astype("float32")


def built(**arguments):
    layer = FeedForward(D_FF, **arguments)
    layer.build((None, None, D_MODEL))
    rng = np.random.default_rng(1)
    layer.set_weights([rng.normal(size=w.shape).astype("float32") for w in layer.weights])
    return layer


def equation_2(layer, x, keep=1.0):
    w1, b1, w2, b2 = layer.get_weights()
    return (np.maximum(0, x @ w1 + b1) * keep) @ w2 + b2


def test_is_equation_2():
    layer = built()
    np.testing.assert_allclose(layer(X), equation_2(layer, X), rtol=1e-4, atol=1e-4)


def test_has_two_matrices_and_two_biases():
    shapes = [tuple(w.shape) for w in built().weights]
    assert shapes == [(D_MODEL, D_FF), (D_FF,), (D_FF, D_MODEL), (D_MODEL,)]


def test_is_the_same_for_every_position():
    layer = built()
    order = [3, 0, 4, 1, 2]
    np.testing.assert_allclose(layer(X[:, order]), layer(X).numpy()[:, order], atol=1e-5)


def test_biases_start_at_0_and_kernels_within_the_glorot_limit():
    layer = FeedForward(211)
    layer.build((None, None, 101))
    w1, b1, w2, b2 = layer.get_weights()
    limit = np.sqrt(6 / (101 + 211))
    for kernel in (w1, w2):
        assert 0.99 * limit < np.abs(kernel).max() <= limit
    assert not b1.any()
    assert not b2.any()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_gradient_of_a_bias_is_summed_over_many_rows_without_loss(dtype):
    upstream = tf.cast(np.random.default_rng(0).normal(0.3, 1.0, (2048, 31)), dtype)
    bias = tf.zeros(31, dtype)
    with tf.GradientTape() as tape:
        tape.watch(bias)
        sums = add_bias(tf.zeros((2048, 31), dtype), bias)
    found = tf.cast(tape.gradient(sums, bias, upstream), "float64")
    np.testing.assert_allclose(found, tf.cast(upstream, "float64").numpy().sum(0), rtol=0.01)


def test_relu_dropout_acts_in_training_only():
    layer = built(dropout=0.4)
    np.testing.assert_allclose(layer(X), equation_2(layer, X), rtol=1e-4, atol=1e-4)
    assert np.abs(layer(X, training=True) - layer(X)).max() > 0.1


def test_relu_dropout_is_between_the_relu_and_the_second_matrix():
    # With W2 = I the output shows the dropped activations: 0, or enlarged by 1 / (1 - p).
    layer = FeedForward(D_MODEL, dropout=0.4)
    layer.build((None, None, D_MODEL))
    w1, b1, _, b2 = layer.get_weights()
    layer.set_weights([w1, b1 + 0.1, np.eye(D_MODEL, dtype="float32"), b2])
    x = np.tile(X, (13, 1, 1))
    active = np.maximum(0, x @ w1 + b1 + 0.1)
    found = layer(x, training=True).numpy()
    kept = found != 0
    np.testing.assert_allclose(found[kept], active[kept] / 0.6, rtol=1e-4, atol=1e-5)
    assert abs(kept[active > 0].mean() - 0.6) < 0.06


def test_batch_and_length_may_be_unknown_in_a_graph():
    layer = built()
    graph = tf.function(layer, input_signature=[tf.TensorSpec((None, None, D_MODEL))])
    np.testing.assert_allclose(graph(X[:1, :3]), layer(X[:1, :3]), atol=1e-5)


def test_refuses_a_width_below_1():
    with pytest.raises(ValueError, match="`d_ff` must be at least 1. Received: d_ff=0"):
        FeedForward(0)
