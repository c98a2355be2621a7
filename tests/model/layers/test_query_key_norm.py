"""Attention with normalized queries and keys against its formula in NumPy."""

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_transformer.model.layers.attention import MultiHeadAttention
from keras_transformer.model.layers.decoder import DecoderLayer
from keras_transformer.model.layers.masks import causal_mask
from keras_transformer.model.layers.query_key_norm import QueryKeyNorm
from keras_transformer.model.layers.relative_attention import RelativeAttention
from keras_transformer.model.layers.rotary_attention import RotaryAttention

BATCH, HEADS, TARGET, SOURCE, D_MODEL, KEY_DIM, VALUE_DIM = 2, 3, 5, 7, 13, 6, 5


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def built(cls=MultiHeadAttention, **changes):
    layer = cls(HEADS, KEY_DIM, value_dim=VALUE_DIM, **{"qk_norm": True, **changes})
    layer.build((None, None, D_MODEL), (None, None, D_MODEL))
    values = [normal(i, *weight.shape) for i, weight in enumerate(layer.weights)]
    layer.set_weights(values)
    layer.query_key_norm.scale.assign(3.7)
    return layer


def formula(layer, query, value, mask):
    """Henry et al., equation 6: softmax(g Q K^T) V, where every row of Q and K has the length 1."""
    w_q, w_k, w_v, w_o = (
        getattr(layer, f"{name}_projection").kernel.numpy().astype("float64")
        for name in ("query", "key", "value", "output")
    )
    heads, found = [], []
    for head in range(HEADS):
        q, k = ((x @ w)[..., head * KEY_DIM : (head + 1) * KEY_DIM] for x, w in ((query, w_q), (value, w_k)))
        q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
        scores = np.where(mask, 3.7 * q @ np.swapaxes(k, 1, 2), -np.inf)
        weights = np.exp(scores)
        weights /= weights.sum(-1, keepdims=True)
        heads.append(weights @ (value @ w_v)[..., head * VALUE_DIM : (head + 1) * VALUE_DIM])
        found.append(weights)
    return np.concatenate(heads, -1) @ w_o, np.stack(found, 1)


def test_is_the_formula():
    layer, query, value = built(), normal(8, BATCH, TARGET, D_MODEL), normal(9, BATCH, SOURCE, D_MODEL)
    mask = np.random.default_rng(0).random((BATCH, TARGET, SOURCE)) < 0.6
    mask[..., 0] = True
    found = layer(query, value, attention_mask=mask, return_attention_scores=True)
    for one, expected in zip(found, formula(layer, query, value, mask), strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-4, atol=1e-5)


def test_lengths_of_queries_and_keys_do_not_matter_and_the_scale_does():
    layer, x = built(), normal(8, BATCH, TARGET, D_MODEL)
    before = layer(x, x).numpy()
    for projection in (layer.query_projection, layer.key_projection):
        projection.kernel.assign(5.0 * projection.kernel)
    np.testing.assert_allclose(layer(x, x), before, rtol=1e-4, atol=1e-5)
    layer.query_key_norm.scale.assign(1.0)
    assert np.abs(layer(x, x) - before).max() > 0.1


@pytest.mark.parametrize("cls", [MultiHeadAttention, RelativeAttention, RotaryAttention])
def test_cached_steps_equal_causal_attention(cls):
    layer, x = built(cls), normal(8, BATCH, TARGET, D_MODEL)
    expected = layer(x, x, attention_mask=causal_mask(TARGET))
    cache = layer.empty_cache(BATCH, 0)
    for position in range(TARGET):
        output, cache = layer.step(x[:, position], cache)
        np.testing.assert_allclose(output, expected[:, position], rtol=1e-4, atol=1e-5)


def test_cross_steps_equal_whole_attention():
    layer, query, value = built(), normal(8, BATCH, TARGET, D_MODEL), normal(9, BATCH, SOURCE, D_MODEL)
    queries, visible = query.reshape(-1, D_MODEL), np.ones((BATCH, 1, SOURCE), bool)
    found = layer.cross_step(queries, layer.project(value), visible, num_hypotheses=TARGET)
    expected = layer(query, value).numpy().reshape(-1, D_MODEL)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_lengths_are_computed_in_float32(policy):
    norm = QueryKeyNorm(dtype=policy)
    norm.build()
    norm.scale.assign(2.0)
    x = tf.cast(np.full((1, 1, 1, 4), 300.0), policy.removeprefix("mixed_"))  # 300^2 exceeds float16
    assert norm.key(x).dtype == norm.query(x).dtype == x.dtype
    np.testing.assert_allclose(ops.cast(norm.key(x), "float32").numpy().ravel(), [0.5] * 4)
    np.testing.assert_allclose(ops.cast(norm.query(x), "float32").numpy().ravel(), [2.0] * 4)


def test_a_zero_vector_has_a_finite_gradient():
    norm = QueryKeyNorm()
    norm.build()
    assert float(norm.scale) == 10
    x = tf.zeros((1, 1, 2, 3))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = norm.query(x)
    assert not y.numpy().any()
    assert np.isfinite(tape.gradient(y, x)).all()


def test_both_attentions_of_a_decoder_layer_have_it():
    layer = DecoderLayer(num_heads=3, key_dim=4, d_ff=5, qk_norm=True)
    layer.build((None, None, 7), (None, None, 7))
    assert [w.path for w in layer.weights if w.path.endswith("qk_norm/scale")] == [
        f"{layer.name}/{name}/qk_norm/scale" for name in ("self_attention", "cross_attention")
    ]
