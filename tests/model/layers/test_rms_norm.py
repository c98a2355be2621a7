"""RMSNorm and its gradient against the formula in float64 and against Keras' own layer."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.model.layers.basics import LayerNormalization
from keras_transformer.model.layers.encoder import EncoderLayer
from keras_transformer.model.layers.residual import Residual
from keras_transformer.model.layers.rms_norm import RMSNormalization, normalization

ROWS, LENGTH, D_MODEL, EPSILON = 3, 5, 23, 1e-1  # large, so that another epsilon would show
RNG = np.random.default_rng(0)
X = (RNG.normal(size=(ROWS, LENGTH, D_MODEL)) * 3 + 7).astype("float32")
UPSTREAM = RNG.normal(size=X.shape)
GAMMA = RNG.normal(size=D_MODEL)


def made(cls=RMSNormalization, **changes):
    layer = cls(epsilon=EPSILON, **changes)
    layer.build((None, None, D_MODEL))
    layer.set_weights([GAMMA])
    return layer


def formula(x, gamma):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPSILON) * gamma


def test_is_the_formula_and_its_gradient_is_the_slope():
    layer, x = made(), tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x)
        total = tf.reduce_sum(y * UPSTREAM.astype("float32"))
    np.testing.assert_allclose(y, formula(X.astype("float64"), GAMMA), atol=1e-5)
    of_x, of_gamma = tape.gradient(total, [x, layer.gamma.value])
    for found, at, function in (
        (of_x, X.astype("float64"), lambda x: formula(x, GAMMA)),
        (of_gamma, GAMMA, lambda gamma: formula(X.astype("float64"), gamma)),
    ):
        for index in list(np.ndindex(at.shape))[::7]:
            step = np.zeros(at.shape)
            step[index] = 1e-5
            slope = ((function(at + step) - function(at - step)) * UPSTREAM).sum() / 2e-5
            np.testing.assert_allclose(found.numpy()[index], slope, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "mixed_bfloat16"])
def test_every_type_gives_what_keras_gives(dtype):
    ours, theirs = made(dtype=dtype), made(keras.layers.RMSNormalization, dtype=dtype)
    assert theirs.scale.shape == ours.gamma.shape
    one, other = ours(X), theirs(X)
    assert one.dtype == other.dtype
    tolerance = {"float32": 1e-5, "float64": 1e-6, "float16": 4e-3}.get(dtype, 4e-2)
    np.testing.assert_allclose(tf.cast(one, "float64"), tf.cast(other, "float64"), atol=tolerance)


def test_is_computed_in_float32():
    # The square of 300 exceeds the largest float16.
    layer = RMSNormalization(dtype="mixed_float16")
    found = layer(tf.fill((1, D_MODEL), tf.constant(300, "float16")))
    np.testing.assert_allclose(tf.cast(found, "float32"), np.ones((1, D_MODEL)), rtol=1e-3)


def test_gamma_is_not_rounded_under_mixed_precision():
    x = tf.cast(X, "bfloat16")
    np.testing.assert_array_equal(
        made(dtype="mixed_bfloat16")(x), tf.cast(made()(tf.cast(x, "float32")), x.dtype)
    )


def test_the_mean_is_kept_and_the_length_is_not():
    layer = RMSNormalization(epsilon=1e-12)
    np.testing.assert_allclose(layer(5 * X), layer(X), rtol=1e-5)
    assert layer(X).numpy().mean(-1).min() > 0.5  # LayerNorm's is 0
    np.testing.assert_allclose((layer(X).numpy() ** 2).mean(-1), 1, rtol=1e-5)


@pytest.mark.parametrize("norm_first", [False, True])
def test_residual_connections_have_it(norm_first):
    residual = Residual(dropout=0.0, norm_first=norm_first, epsilon=EPSILON, norm_kind="rms")
    residual.build(X.shape)
    residual.norm.set_weights([GAMMA])
    x, gamma = X.astype("float64"), GAMMA
    np.testing.assert_allclose(residual.pre(X), formula(x, gamma) if norm_first else x, atol=1e-5)
    expected = x + 2 * x if norm_first else formula(x + 2 * x, gamma)
    np.testing.assert_allclose(residual.post(X, 2 * X), expected, rtol=1e-5, atol=1e-5)


def test_every_norm_of_a_layer_is_of_the_kind():
    for kind, cls, names in (
        ("layer", LayerNormalization, ["gamma", "beta"] * 2),
        ("rms", RMSNormalization, ["gamma"] * 2),
    ):
        layer = EncoderLayer(num_heads=3, key_dim=5, d_ff=7, norm=kind)
        layer.build((None, None, D_MODEL))
        assert type(layer.self_attention_residual.norm) is type(layer.feed_forward_residual.norm) is cls
        assert [weight.name for weight in layer.weights if weight.name in ("gamma", "beta")] == names
    with pytest.raises(ValueError, match="one of .'layer', 'rms'.. Received: 'batch'"):
        normalization("batch")
