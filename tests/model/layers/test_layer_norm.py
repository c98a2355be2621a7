"""Layer normalisation and its gradient against the formula in float64 and against Keras' own."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.model.layers.basics import LayerNormalization

ROWS, LENGTH, D_MODEL, EPSILON = 3, 5, 23, 1e-3
RNG = np.random.default_rng(0)
X = (RNG.normal(size=(ROWS, LENGTH, D_MODEL)) * 3 + 7).astype("float32")
UPSTREAM = RNG.normal(size=X.shape).astype("float32")


def made(cls, epsilon=EPSILON):
    layer = cls(epsilon=epsilon)
    layer.build((None, None, D_MODEL))
    rng = np.random.default_rng(1)
    layer.set_weights([rng.normal(size=weight.shape) for weight in layer.weights])
    return layer


def value_and_gradients(layer, x):
    x = tf.convert_to_tensor(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x)
    gradients = tape.gradient(y, [x, *(w.value for w in layer.trainable_variables)], tf.constant(UPSTREAM))
    return [y, *gradients]


@pytest.mark.parametrize("in_graph", [False, True])
def test_the_gradient_is_the_slope_of_the_formula(in_graph):
    layer = made(LayerNormalization)
    gamma, beta = (weight.numpy().astype("float64") for weight in layer.weights)

    def total(x, gamma, beta):
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (((x - mean) / np.sqrt(variance + EPSILON) * gamma + beta) * UPSTREAM).sum()

    def slope(function, at):
        found = np.zeros_like(at)
        for index in np.ndindex(at.shape):
            step = np.zeros_like(at)
            step[index] = 1e-5
            found[index] = (function(at + step) - function(at - step)) / 2e-5
        return found

    x = X.astype("float64")
    find = tf.function(value_and_gradients) if in_graph else value_and_gradients
    _, of_x, of_gamma, of_beta = find(layer, X)
    np.testing.assert_allclose(of_x, slope(lambda at: total(at, gamma, beta), x), atol=1e-4)
    np.testing.assert_allclose(of_gamma, slope(lambda at: total(x, at, beta), gamma), atol=1e-4)
    np.testing.assert_allclose(of_beta, slope(lambda at: total(x, gamma, at), beta), atol=1e-4)


def test_a_constant_row_becomes_beta_and_has_a_finite_gradient():
    layer = made(LayerNormalization)
    y, of_x, *_ = value_and_gradients(layer, np.full_like(X, 4.0))
    np.testing.assert_allclose(y, np.broadcast_to(layer.beta.numpy(), X.shape), atol=1e-6)
    assert np.isfinite(of_x).all()


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16", "mixed_bfloat16"])
def test_every_type_gives_what_keras_gives(dtype):
    ours, theirs = (
        cls(epsilon=EPSILON, dtype=dtype) for cls in (LayerNormalization, keras.layers.LayerNormalization)
    )
    one, other = (layer(X) for layer in (ours, theirs))
    assert one.dtype == other.dtype
    tolerance = {"float64": 1e-6, "float16": 2e-3}.get(dtype, 2e-2)
    np.testing.assert_allclose(tf.cast(one, "float64"), tf.cast(other, "float64"), atol=tolerance)


def test_other_arguments_of_keras_are_refused():
    with pytest.raises(TypeError, match="axis"):
        LayerNormalization(axis=1)


def test_weights_and_their_names_are_those_of_keras():
    ours, theirs = made(LayerNormalization), made(keras.layers.LayerNormalization)
    assert [w.name for w in ours.weights] == [w.name for w in theirs.weights]
    assert ours.epsilon == theirs.epsilon == EPSILON
