"""Feed-forward networks with gated linear units against their formulas in NumPy."""

import math

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.model.layers.encoder import EncoderLayer
from keras_transformer.model.layers.feed_forward import FeedForward
from keras_transformer.model.layers.gated_feed_forward import GatedFeedForward

BATCH, LENGTH, D_MODEL, D_FF = 2, 5, 13, 29
X = np.random.default_rng(0).normal(size=(BATCH, LENGTH, D_MODEL)).astype("float32")
GATES = {
    "swiglu": lambda x: x / (1 + np.exp(-x)),
    "geglu": np.vectorize(lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2),
}
every_kind = pytest.mark.parametrize("kind", GATES)


def built(kind, **arguments):
    layer = GatedFeedForward(D_FF, activation=kind, **arguments)
    layer.build((None, None, D_MODEL))
    rng = np.random.default_rng(1)
    layer.set_weights([rng.normal(size=w.shape).astype("float32") for w in layer.weights])
    return layer


def formula(kind, layer, x):
    w, b, v, c, w_2, b_2 = (weight.astype("float64") for weight in layer.get_weights())
    return GATES[kind](x @ w + b) * (x @ v + c) @ w_2 + b_2


@every_kind
def test_is_the_formula(kind):
    layer = built(kind)
    assert [tuple(w.shape) for w in layer.weights] == [(D_MODEL, D_FF), (D_FF,)] * 2 + [
        (D_FF, D_MODEL),
        (D_MODEL,),
    ]
    expected = formula(kind, layer, X)
    np.testing.assert_allclose(layer(X), expected, rtol=1e-4, atol=1e-4)
    order = [3, 0, 4, 1, 2]
    np.testing.assert_allclose(layer(X[:, order]), expected[:, order], rtol=1e-4, atol=1e-4)
    others = [other for name, other in GATES.items() if name != kind]
    w, b, v, c, w_2, b_2 = layer.get_weights()
    for other in (*others, lambda x: np.maximum(0, x)):
        assert np.abs(other(X @ w + b) * (X @ v + c) @ w_2 + b_2 - expected).max() > 0.1


@every_kind
def test_all_matrices_start_alike_and_all_have_gradients(kind):
    layer = GatedFeedForward(211, activation=kind, gain=0.7)
    layer.build((None, None, 101))
    limit = 0.7 * np.sqrt(6 / (101 + 211))
    for weight in layer.get_weights():
        if weight.ndim == 2:
            assert 0.99 * limit < np.abs(weight).max() <= limit * (1 + 1e-6)
        else:
            assert not weight.any()
    with tf.GradientTape() as tape:
        y = layer(np.random.default_rng(2).normal(size=(7, 3, 101)).astype("float32"))
    for gradient in tape.gradient(y, layer.trainable_weights):
        assert np.abs(gradient).max() > 1e-3


@every_kind
def test_dropout_is_between_the_product_and_the_last_matrix(kind):
    layer = built(kind, dropout=0.4)
    w, b, v, c, _, b_2 = layer.get_weights()
    last = np.eye(D_FF, D_MODEL, dtype="float32")  # shows the dropped products
    layer.set_weights([w, b, v, c, last, np.zeros_like(b_2)])
    product = formula(kind, layer, np.tile(X, (13, 1, 1)))
    found = layer(np.tile(X, (13, 1, 1)), training=True).numpy()
    kept = found != 0
    np.testing.assert_allclose(found[kept], product[kept] / 0.6, rtol=1e-3, atol=1e-3)
    assert abs(kept.mean() - 0.6) < 0.06


@every_kind
def test_layers_have_it_by_name(kind):
    layer = EncoderLayer(num_heads=3, key_dim=5, d_ff=7, activation=kind)
    assert type(layer.feed_forward) is GatedFeedForward
    assert layer.feed_forward.activation == kind
    again = EncoderLayer.from_config(layer.get_config())
    assert type(again.feed_forward) is GatedFeedForward
    assert type(EncoderLayer(num_heads=3, key_dim=5, d_ff=7).feed_forward) is FeedForward


def test_other_activations_are_refused():
    with pytest.raises(ValueError, match="`activation` must be one of .'swiglu', 'geglu'.. Received: 'relu'"):
        GatedFeedForward(5, activation="relu")
