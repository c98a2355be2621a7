"""Attention against equation 1 in NumPy and against Keras' own layer."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_transformer.model.layers.attention import (
    KeyValue,
    MultiHeadAttention,
    scaled_dot_product_attention,
)
from keras_transformer.model.layers.masks import causal_mask

BATCH, HEADS, TARGET, SOURCE = 2, 3, 5, 7
D_MODEL, KEY_DIM, VALUE_DIM, SOURCE_FEATURES = 13, 4, 6, 11


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def visible(seed, *shape):
    """A random mask whose every row shows at least the first position."""
    mask = np.random.default_rng(seed).random(shape) < 0.6
    mask[..., 0] = True
    assert not mask.all()
    return mask


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def equation_1(query, key, value, mask=None):
    """softmax(Q K^T / sqrt(d_k)) V in float64; returns the output and the weights."""
    query, key, value = (x.astype("float64") for x in (query, key, value))
    scores = query @ np.swapaxes(key, -1, -2) / np.sqrt(key.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    weights = softmax(scores)
    return weights @ value, weights


def multi_head(layer, query, key, value, mask=None):
    """Concat(head_1, ..., head_h) W^O, one head after the other, with the layer's weights."""
    names = ("query", "key", "value", "output")
    projections = (
        layer.query_projection,
        layer.key_projection,
        layer.value_projection,
        layer.output_projection,
    )
    w = {name: p.kernel.numpy() for name, p in zip(names, projections, strict=True)}
    b = {name: 0.0 if p.bias is None else p.bias.numpy() for name, p in zip(names, projections, strict=True)}
    q, k, v = (x @ w[name] + b[name] for name, x in zip(names[:3], (query, key, value), strict=True))
    heads, weights = [], []
    for i in range(layer.num_heads):
        of_keys = slice(i * layer.key_dim, (i + 1) * layer.key_dim)
        of_values = slice(i * layer.value_dim, (i + 1) * layer.value_dim)
        output, weight = equation_1(q[..., of_keys], k[..., of_keys], v[..., of_values], mask)
        heads.append(output)
        weights.append(weight)
    return np.concatenate(heads, -1) @ w["output"] + b["output"], np.stack(weights, 1)


def built(**changes):
    """A layer for queries of width 13 and keys and values of width 11, random biases."""
    arguments = {"num_heads": HEADS, "key_dim": KEY_DIM, "value_dim": VALUE_DIM, **changes}
    layer = MultiHeadAttention(**arguments)
    layer.build((BATCH, TARGET, D_MODEL), (BATCH, SOURCE, SOURCE_FEATURES))
    for i, weight in enumerate(layer.weights):
        if weight.name == "bias":
            weight.assign(normal(100 + i, *weight.shape))
    return layer


def self_attention(seed=0, **changes):
    layer = MultiHeadAttention(**{"num_heads": HEADS, "key_dim": KEY_DIM, "value_dim": VALUE_DIM, **changes})
    x = normal(seed, BATCH, TARGET, D_MODEL)
    layer.build(x.shape, x.shape)
    return layer, x


@pytest.fixture
def query():
    return normal(1, BATCH, TARGET, D_MODEL)


@pytest.fixture
def value():
    return normal(2, BATCH, SOURCE, SOURCE_FEATURES)


class TestScaledDotProductAttention:
    query = normal(3, BATCH, HEADS, TARGET, KEY_DIM)
    key = normal(4, BATCH, HEADS, SOURCE, KEY_DIM)
    value = normal(5, BATCH, HEADS, SOURCE, VALUE_DIM)

    def test_is_equation_1(self):
        found = scaled_dot_product_attention(self.query, self.key, self.value)
        output, weights = equation_1(self.query, self.key, self.value)
        np.testing.assert_allclose(found.output, output, atol=1e-6)
        np.testing.assert_allclose(found.weights, weights, atol=1e-6)

    @pytest.mark.parametrize(
        "shape",
        [(BATCH, TARGET, SOURCE), (BATCH, 1, SOURCE), (1, TARGET, SOURCE), (1, 1, SOURCE)],
    )
    def test_masks_are_broadcast_over_batch_heads_and_queries(self, shape):
        mask = visible(6, *shape)
        found = scaled_dot_product_attention(self.query, self.key, self.value, mask)
        output, weights = equation_1(self.query, self.key, self.value, mask[:, None])
        np.testing.assert_allclose(found.output, output, atol=1e-6)
        np.testing.assert_allclose(found.weights, weights, atol=1e-6)

    def test_hidden_positions_have_weight_exactly_0(self):
        mask = visible(7, BATCH, TARGET, SOURCE)
        weights = scaled_dot_product_attention(self.query, self.key, self.value, mask).weights
        hidden = np.broadcast_to(~mask[:, None], weights.shape)
        assert np.all(weights.numpy()[hidden] == 0)
        assert np.all(weights.numpy()[~hidden] > 0)

    def test_hidden_positions_do_not_matter_and_visible_ones_do(self):
        mask = np.ones((1, 1, SOURCE), bool)
        mask[..., 4] = False

        def output(changed):
            key, value = self.key.copy(), self.value.copy()
            key[:, :, changed], value[:, :, changed] = 9.0, 9.0
            return scaled_dot_product_attention(self.query, key, value, mask).output.numpy()

        before = scaled_dot_product_attention(self.query, self.key, self.value, mask).output
        np.testing.assert_array_equal(output(changed=4), before)
        assert np.abs(output(changed=3) - before).max() > 0.1

    def test_a_row_that_sees_nothing_gives_zeros(self):
        mask = visible(8, BATCH, TARGET, SOURCE)
        mask[1, 2] = False
        found = scaled_dot_product_attention(self.query, self.key, self.value, mask)
        assert np.all(found.output[1, :, 2] == 0)
        assert np.all(found.weights[1, :, 2] == 0)
        assert np.all(np.isfinite(found.output))
        assert np.all(np.abs(found.output[0]) > 0)

    @pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
    def test_softmax_is_float32_for_half_types(self, dtype):
        # 3,001 equal scores: the sum of as many half numbers would stop growing.
        source = 3001
        query = ops.zeros((1, 1, 2, KEY_DIM), dtype)
        key = ops.zeros((1, 1, source, KEY_DIM), dtype)
        value = ops.ones((1, 1, source, 1), dtype)
        weights = scaled_dot_product_attention(query, key, value).weights
        assert weights.dtype == tf.float32
        np.testing.assert_allclose(weights, np.full(weights.shape, 1 / source), rtol=1e-5)

    def test_large_scores_stay_finite(self):
        found = scaled_dot_product_attention(1e3 * self.query, 1e3 * self.key, self.value)
        assert np.all(np.isfinite(found.output))

    def test_dropout_does_not_change_the_returned_weights(self):
        mask = visible(9, BATCH, TARGET, SOURCE)
        found = scaled_dot_product_attention(
            self.query, self.key, self.value, mask, dropout=lambda weights: 3.0 * weights
        )
        output, weights = equation_1(self.query, self.key, self.value, mask[:, None])
        np.testing.assert_allclose(found.output, 3 * output, atol=1e-5)
        np.testing.assert_allclose(found.weights, weights, atol=1e-6)


@pytest.mark.parametrize("use_bias", [False, True])
def test_multi_head_attention_is_section_3_2_2(query, value, use_bias):
    layer = built(use_bias=use_bias)
    key = normal(10, *value.shape)
    mask = visible(11, BATCH, TARGET, SOURCE)
    found = layer(query, value, key, attention_mask=mask, return_attention_scores=True)
    output, weights = multi_head(layer, query, key, value, mask)
    np.testing.assert_allclose(found[0], output, atol=1e-5)
    np.testing.assert_allclose(found[1], weights, atol=1e-5)


def test_keys_are_the_values_unless_given(query, value):
    layer = built()
    output, _ = multi_head(layer, query, value, value)
    np.testing.assert_allclose(layer(query, value), output, atol=1e-5)


@pytest.mark.parametrize("use_bias", [False, True])
def test_equals_keras_multi_head_attention(query, value, use_bias):
    ours = built(use_bias=use_bias)
    theirs = keras.layers.MultiHeadAttention(HEADS, KEY_DIM, value_dim=VALUE_DIM, use_bias=use_bias)
    theirs.build(query.shape, value.shape)
    widths = (KEY_DIM, KEY_DIM, VALUE_DIM)
    copied = []
    for weight, shape in zip(ours.get_weights(), [w.shape for w in theirs.weights], strict=True):
        copied.append(weight.reshape(shape))
    theirs.set_weights(copied)
    assert [w.shape[-1] for w in theirs.weights if w.name == "kernel"][:3] == list(widths)

    key = normal(12, *value.shape)
    mask = visible(13, BATCH, TARGET, SOURCE)
    asked = {"attention_mask": mask, "return_attention_scores": True}
    found = ours(query, value, key, **asked)
    for one, wanted in zip(found, theirs(query, value, key, **asked), strict=True):
        np.testing.assert_allclose(one, wanted, atol=1e-5)


def test_weights_come_only_when_asked_for(query, value):
    layer = built()
    alone = layer(query, value)
    output, weights = layer(query, value, return_attention_scores=True)
    assert tf.is_tensor(alone)
    np.testing.assert_array_equal(output, alone)
    assert weights.shape == (BATCH, HEADS, TARGET, SOURCE)


@pytest.mark.parametrize(("policy", "tolerance"), [("mixed_bfloat16", 0.1), ("mixed_float16", 0.01)])
def test_mixed_precision_is_close_with_float32_weights(query, value, policy, tolerance):
    exact, mixed = built(), built(dtype=policy)
    mixed.set_weights(exact.get_weights())
    mask = visible(14, BATCH, TARGET, SOURCE)
    mask[0, 1] = False
    output, weights = mixed(query, value, attention_mask=mask, return_attention_scores=True)
    assert output.dtype == policy.removeprefix("mixed_")
    assert weights.dtype == tf.float32
    assert {w.dtype for w in mixed.weights} == {"float32"}
    np.testing.assert_allclose(
        ops.cast(output, "float32"),
        exact(query, value, attention_mask=mask),
        atol=tolerance,
    )


def test_attention_dropout_acts_in_training_only(query, value):
    layer, without = built(dropout=0.5), built()
    without.set_weights(layer.get_weights())
    expected = without(query, value, training=True)
    np.testing.assert_array_equal(layer(query, value, training=False), expected)
    np.testing.assert_array_equal(layer(query, value), expected)
    assert np.abs(layer(query, value, training=True) - expected).max() > 0.01


def test_attention_dropout_has_the_rate_asked_for():
    # One-dimensional equal weights: the output is the share kept, over 1 - rate.
    source = 10_007
    layer = MultiHeadAttention(1, 1, dropout=0.3)
    layer.build((1, 1, 1), (1, source, 1))
    layer.set_weights([np.ones((1, 1), "float32")] * 4)
    x = np.ones((1, source, 1), "float32")
    kept = float(layer(x[:, :1], x, training=True)[0, 0, 0]) * 0.7
    assert abs(kept - 0.7) < 0.03
    assert kept != 0.7


@pytest.mark.parametrize("use_bias", [False, True])
def test_cached_steps_equal_causal_attention(use_bias):
    layer, x = self_attention(use_bias=use_bias)
    expected = layer(x, x, attention_mask=causal_mask(TARGET))
    cache = layer.empty_cache(BATCH, TARGET + 2)  # room left over must not be seen
    grown = layer.empty_cache(BATCH, 0)
    for position in range(TARGET):
        query = x[:, position]
        seen = (np.arange(TARGET + 2) <= position)[None, None]
        output, cache = layer.step(query, cache, seen, first_slot=position)
        np.testing.assert_allclose(output, expected[:, position], atol=1e-6)
        output, grown = layer.step(query, grown)
        np.testing.assert_allclose(output, expected[:, position], atol=1e-6)
        assert grown.key.shape[2] == position + 1


def test_an_empty_cache_has_room_for_keys_and_values_of_their_own_widths():
    layer, _ = self_attention(dtype="mixed_bfloat16")
    cache = layer.empty_cache(BATCH, 19)
    assert isinstance(cache, KeyValue)
    assert cache.key.shape == (BATCH, HEADS, 19, KEY_DIM)
    assert cache.value.shape == (BATCH, HEADS, 19, VALUE_DIM)
    assert cache.key.dtype == cache.value.dtype == tf.bfloat16


def test_projecting_once_and_attending_twice_equals_two_calls(query, value):
    layer = built()
    key = normal(15, *value.shape)
    projected = layer.project(value, key)
    for x in (query, query[:, :2] + 1.0):
        np.testing.assert_array_equal(layer.attend(x, projected).output, layer(x, value, key))


def test_kernels_start_within_the_glorot_limit_of_all_heads_together():
    d_model, heads, width = 101, 7, 17
    layer = MultiHeadAttention(heads, width)
    layer.build((None, None, d_model), (None, None, d_model))
    limit = np.sqrt(6 / (d_model + heads * width))
    assert len(layer.weights) == 4
    for weight in layer.get_weights():
        assert 0.99 * limit < np.abs(weight).max() <= limit
        assert abs(weight.mean()) < 0.05 * limit


@pytest.mark.parametrize("stacked", [(), ("key", "value"), ("query", "key", "value")])
def test_stacked_matrices_start_as_parts_of_one_glorot_matrix(stacked):
    d_model, heads, key_dim, value_dim = 101, 7, 17, 13
    keras.utils.set_random_seed(3)
    layer = MultiHeadAttention(heads, key_dim, value_dim=value_dim, stacked=stacked, gain=0.9, value_gain=0.8)
    layer.build((None, None, d_model), (None, None, d_model))
    units = {"query": heads * key_dim, "key": heads * key_dim, "value": heads * value_dim}
    gains = {"query": 0.9, "key": 0.9, "value": 0.8}
    for name, own in units.items():
        # Glorot's limit by the paper's formula, of the matrix that is drawn.
        columns = sum(units[part] for part in stacked) if name in stacked else own
        limit = gains[name] * np.sqrt(6 / (d_model + columns))
        kernel = getattr(layer, f"{name}_projection").kernel.numpy()
        assert 0.99 * limit < np.abs(kernel).max() <= limit * (1 + 1e-6)
        assert kernel.std() == pytest.approx(limit / np.sqrt(3), rel=0.03)
    limit = 0.8 * np.sqrt(6 / (heads * value_dim + d_model))
    assert 0.99 * limit < np.abs(layer.output_projection.kernel.numpy()).max() <= limit * (1 + 1e-6)


def test_separate_matrices_are_those_of_keras_with_the_same_seed():
    keras.utils.set_random_seed(5)
    layer = MultiHeadAttention(3, 5)
    layer.build((None, None, 11), (None, None, 11))
    keras.utils.set_random_seed(5)
    for kernel, shape in zip(layer.get_weights(), [(11, 15), (11, 15), (11, 15), (15, 11)], strict=True):
        np.testing.assert_array_equal(kernel, keras.initializers.GlorotUniform()(shape))


def test_only_query_key_and_value_can_be_stacked():
    with pytest.raises(ValueError, match="`stacked` may contain query, key and value. Received: .'output'."):
        MultiHeadAttention(3, 5, stacked=("query", "output"))


def test_projections_have_no_biases_unless_asked_for():
    kernels = HEADS * (D_MODEL * KEY_DIM + SOURCE_FEATURES * (KEY_DIM + VALUE_DIM))
    kernels += HEADS * VALUE_DIM * D_MODEL
    assert [w.name for w in built().weights] == ["kernel"] * 4
    assert built().count_params() == kernels
    biases = HEADS * (2 * KEY_DIM + VALUE_DIM) + D_MODEL
    assert built(use_bias=True).count_params() == kernels + biases


def test_values_are_as_wide_as_keys_unless_given():
    layer = MultiHeadAttention(HEADS, KEY_DIM)
    layer.build((None, None, D_MODEL), (None, None, D_MODEL))
    assert layer.value_projection.kernel.shape == (D_MODEL, HEADS * KEY_DIM)


@pytest.mark.slow
def test_batch_and_lengths_may_be_unknown_in_a_graph(query, value):
    layer = built()
    mask = visible(16, BATCH, 1, SOURCE)
    traces = []

    @tf.function(
        input_signature=[
            tf.TensorSpec((None, None, D_MODEL)),
            tf.TensorSpec((None, None, SOURCE_FEATURES)),
            tf.TensorSpec((None, 1, None), tf.bool),
        ]
    )
    def graph(query, value, mask):
        traces.append(query.shape)
        return layer(query, value, attention_mask=mask)

    for rows, target, source in ((2, 5, 7), (1, 3, 5)):
        q, v, m = query[:rows, :target], value[:rows, :source], mask[:rows, :, :source]
        expected = layer(q, v, attention_mask=m)
        np.testing.assert_allclose(graph(q, v, m), expected, atol=1e-6)
    assert len(traces) == 1


@pytest.mark.slow
def test_a_step_may_run_in_a_loop_of_the_graph():
    layer, x = self_attention()
    expected = layer(x, x, attention_mask=causal_mask(TARGET))

    @tf.function
    def graph(x):
        outputs = tf.TensorArray(tf.float32, size=tf.shape(x)[1])
        cache = layer.empty_cache(tf.shape(x)[0], tf.shape(x)[1])
        for position in tf.range(tf.shape(x)[1]):
            seen = (tf.range(tf.shape(x)[1]) <= position)[None, None]
            output, cache = layer.step(x[:, position], cache, seen, first_slot=position)
            outputs = outputs.write(position, output)
        return tf.transpose(outputs.stack(), (1, 0, 2))

    np.testing.assert_allclose(graph(x), expected, atol=1e-6)


def test_with_weights_works_as_a_layer_of_a_functional_model(query, value):
    layer = built()
    inputs = [keras.Input((None, D_MODEL)), keras.Input((None, SOURCE_FEATURES))]
    model = keras.Model(inputs, layer(*inputs, return_attention_scores=True))
    assert model.output_shape == [(None, None, D_MODEL), (None, HEADS, None, None)]
    wanted = layer(query, value, return_attention_scores=True)
    for found, one in zip(model([query, value]), wanted, strict=True):
        np.testing.assert_allclose(found, one, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_heads": 0, "key_dim": 5}, "`num_heads` must be at least 1. .*num_heads=0"),
        ({"num_heads": 3, "key_dim": -2}, "`key_dim` must be at least 1. .*key_dim=-2"),
        ({"num_heads": 3, "key_dim": 5, "value_dim": 0}, "`value_dim` .*value_dim=0"),
    ],
)
def test_refuses_sizes_below_1(arguments, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(**arguments)
