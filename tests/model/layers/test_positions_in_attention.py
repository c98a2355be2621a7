"""Relative and rotary positions within self-attention, against their formulas in NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_transformer.model.layers.attention import MultiHeadAttention
from keras_transformer.model.layers.decoder import DecoderLayer
from keras_transformer.model.layers.encoder import EncoderLayer
from keras_transformer.model.layers.masks import causal_mask
from keras_transformer.model.layers.relative_attention import RelativeAttention
from keras_transformer.model.layers.rotary_attention import RotaryAttention, rotate

BATCH, HEADS, LENGTH, D_MODEL, KEY_DIM, VALUE_DIM, FARTHEST = 2, 3, 11, 13, 6, 5, 4
KINDS = {
    "plain": (MultiHeadAttention, {}),
    "relative": (RelativeAttention, {"max_relative_position": FARTHEST}),
    "rotary": (RotaryAttention, {}),
}
with_positions = pytest.mark.parametrize("kind", ["relative", "rotary"])


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def built(kind, **changes):
    cls, arguments = KINDS[kind]
    layer = cls(HEADS, KEY_DIM, value_dim=VALUE_DIM, **arguments, **changes)
    layer.build((None, None, D_MODEL), (None, None, D_MODEL))
    layer.set_weights([normal(i, *weight.shape) * 0.5 for i, weight in enumerate(layer.weights)])
    return layer


def rotated(x, position):
    """Su et al., equation 15: every pair (x_2i, x_2i+1) of one vector, multiplied by its 2 x 2 matrix."""
    found = np.empty(len(x))
    for i in range(len(x) // 2):
        angle = position * 10000.0 ** (-2 * i / len(x))
        matrix = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        found[2 * i : 2 * i + 2] = matrix @ x[2 * i : 2 * i + 2]
    return found


def reference(kind, layer, x, mask):
    """Self-attention of one sentence in float64: one head, one query and one key after another."""
    x = x.astype("float64")
    w_q, w_k, w_v, w_o = (
        getattr(layer, f"{name}_projection").kernel.numpy() for name in ("query", "key", "value", "output")
    )
    outputs = np.zeros((len(x), HEADS * VALUE_DIM))
    for head in range(HEADS):
        of_keys = slice(head * KEY_DIM, (head + 1) * KEY_DIM)
        of_values = slice(head * VALUE_DIM, (head + 1) * VALUE_DIM)
        q, k, v = (x @ w_q)[:, of_keys], (x @ w_k)[:, of_keys], (x @ w_v)[:, of_values]
        for i in range(len(x)):
            visible = [j for j in range(len(x)) if mask[i, j]]
            scores, values = [], []
            for j in visible:
                key, value, query = k[j], v[j], q[i]
                if kind == "relative":  # Shaw et al., equations 3 and 4
                    row = max(-FARTHEST, min(FARTHEST, j - i)) + FARTHEST
                    key = key + layer.distance_keys.numpy()[row]
                    value = value + layer.distance_values.numpy()[row]
                if kind == "rotary":
                    query, key = rotated(query, i), rotated(key, j)
                scores.append(query @ key / np.sqrt(KEY_DIM))
                values.append(value)
            weights = np.exp(np.array(scores) - max(scores))
            outputs[i, of_values] = weights / weights.sum() @ np.array(values)
    return outputs @ w_o


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [False, True])
def test_is_the_formula(kind, causal):
    layer, x = built(kind), normal(9, BATCH, LENGTH, D_MODEL)
    mask = np.tri(LENGTH, dtype=bool) if causal else np.random.default_rng(0).random((LENGTH,) * 2) < 0.7
    mask |= np.eye(LENGTH, dtype=bool)
    found = layer(x, x, attention_mask=mask[None])
    for row in range(BATCH):
        np.testing.assert_allclose(found[row], reference(kind, layer, x[row], mask), atol=1e-5)


def test_rotation_is_the_formula_and_keeps_lengths():
    x = normal(1, 2, 3, LENGTH, KEY_DIM)
    positions = np.arange(LENGTH) + 1000
    found = rotate(x, positions).numpy()
    np.testing.assert_allclose(np.linalg.norm(found, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-5)
    for i, position in enumerate(positions):
        np.testing.assert_allclose(found[1, 2, i], rotated(x[1, 2, i], position), atol=1e-3)
    np.testing.assert_array_equal(rotate(x, np.zeros(LENGTH, int)), x)


def test_rotation_is_computed_in_float32():
    # bfloat16 has no number between 256 and 258.
    x = ops.ones((1, 1, 4, 2), "bfloat16")
    found = rotate(x, np.arange(255, 259))
    assert found.dtype == tf.bfloat16
    wanted = [rotated(np.ones(2), position) for position in range(255, 259)]
    np.testing.assert_allclose(ops.cast(found, "float32")[0, 0], wanted, atol=2**-7)


def steps(layer, x, first, *, n=1, order=None):
    """Outputs of cached steps in which the first position is `first`; hypothesis i sees its own slots."""
    rows, length = len(x) // n, x.shape[1]
    slots = (first + length + 2) * n  # room left over must not be seen
    cache = layer.empty_cache(rows, slots)
    cache = type(cache)(*(ops.ones_like(part) * 7.0 for part in cache))
    outputs = []
    for position in range(length):
        place = np.arange(slots)
        seen = (place // n >= first) & (place // n <= first + position)
        mask = np.stack([seen & (place % n == i) for i in range(n)])[None].repeat(rows, 0)
        first_slot = tf.constant((first + position) * n)
        output, cache = layer.step(x[:, position], cache, mask, num_hypotheses=n, first_slot=first_slot)
        outputs.append(output)
    return np.stack(outputs, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_cached_steps_equal_causal_attention(kind):
    n, layer = 3, built(kind)
    x = normal(8, BATCH * n, LENGTH, D_MODEL)
    expected = layer(x, x, attention_mask=causal_mask(LENGTH)).numpy()
    np.testing.assert_allclose(steps(layer, x, 0, n=n), expected, atol=1e-5)
    cache = layer.empty_cache(BATCH, 0)  # grows
    for position in range(LENGTH):
        place = np.arange((position + 1) * n)
        mask = np.stack([place % n == i for i in range(n)])[None].repeat(BATCH, 0)
        output, cache = layer.step(x[:, position], cache, mask, num_hypotheses=n)
        np.testing.assert_allclose(output, expected[:, position], atol=1e-5)


@with_positions
def test_a_shift_of_all_positions_does_not_matter(kind):
    layer, x = built(kind), normal(7, BATCH, LENGTH, D_MODEL)
    np.testing.assert_allclose(steps(layer, x, 23), steps(layer, x, 0), atol=2e-5)


@with_positions
def test_distance_matters(kind):
    # The last query sees the first key and itself; the key moves farther away.
    layer, plain, x = built(kind), built("plain"), normal(6, 1, 2, D_MODEL)
    found = []
    for distance in (1, 2, 3, 9, 10):
        apart = np.zeros((1, distance + 1, D_MODEL), "float32")
        apart[:, [0, -1]] = x
        mask = np.zeros((1, 1, distance + 1), bool)
        mask[..., [0, -1]] = True
        found.append(layer(apart, apart, attention_mask=mask).numpy()[0, -1])
        np.testing.assert_allclose(
            plain(apart, apart, attention_mask=mask).numpy()[0, -1],
            plain(x, x).numpy()[0, -1],
            atol=1e-5,
        )
    changes = [np.abs(a - b).max() for a, b in zip(found, found[1:], strict=False)]
    assert min(changes[:3]) > 1e-2
    # Beyond the largest distance all are alike, if it has one.
    assert (changes[3] < 1e-6) == (kind == "relative")


def test_rows_of_distances_that_do_not_occur_do_not_matter():
    layer, x = built("relative"), normal(5, BATCH, 3, D_MODEL)
    before = layer(x, x).numpy()
    for matrix in (layer.distance_keys, layer.distance_values):
        for row in range(2 * FARTHEST + 1):
            value = matrix.numpy()
            matrix.assign(value + 2 * (np.arange(len(value)) == row)[:, None] * normal(4, value.shape[1]))
            change = np.abs(layer(x, x).numpy() - before).max()
            assert (change > 1e-3) == (abs(row - FARTHEST) <= 2), row
            matrix.assign(value)


@with_positions
def test_gradients_reach_every_weight(kind):
    layer, x = built(kind), normal(3, BATCH, LENGTH, D_MODEL)
    with tf.GradientTape() as tape:
        loss = ops.sum(layer(x, x) * normal(2, BATCH, LENGTH, D_MODEL))
    for weight, gradient in zip(
        layer.trainable_weights, tape.gradient(loss, layer.trainable_weights), strict=True
    ):
        assert np.abs(tf.convert_to_tensor(gradient)).max(-1).min() > 0, weight.path


@with_positions
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_is_near_float32(kind, policy):
    exact, mixed, x = built(kind), built(kind, dtype=policy), normal(1, BATCH, LENGTH, D_MODEL)
    assert {weight.dtype for weight in mixed.weights} == {"float32"}
    found = mixed(x, x, attention_mask=causal_mask(LENGTH))
    assert found.dtype == policy.removeprefix("mixed_")
    expected = exact(x, x, attention_mask=causal_mask(LENGTH)).numpy()
    tolerance = 0.01 if policy == "mixed_float16" else 0.1
    np.testing.assert_allclose(ops.cast(found, "float32"), expected, atol=tolerance * np.abs(expected).max())
    cache = mixed.empty_cache(BATCH, LENGTH)
    output, cache = mixed.step(ops.cast(x[:, 0], found.dtype), cache, None, first_slot=0)
    assert output.dtype == cache.key.dtype == found.dtype


@with_positions
def test_layers_keep_their_settings(kind):
    cls, arguments = KINDS[kind]
    layer = built(kind)
    held = layer.get_config()
    assert arguments.items() <= held.items()
    assert cls.from_config(held).get_config() == held
    for whole in (EncoderLayer, DecoderLayer):
        made = whole(num_heads=3, key_dim=4, d_ff=5, positions=kind, max_relative_position=7)
        held = made.get_config()
        assert (held["positions"], held["max_relative_position"]) == (kind, 7)
        assert type(whole.from_config(held).self_attention) is cls
        assert type(made.self_attention) is cls
        assert kind == "rotary" or made.self_attention.max_relative_position == 7
        if whole is DecoderLayer:
            assert type(made.cross_attention) is MultiHeadAttention


@with_positions
def test_lengths_may_be_unknown_in_a_graph(kind):
    layer, x = built(kind), normal(1, BATCH, LENGTH, D_MODEL)
    graph = tf.function(lambda x: layer(x, x), input_signature=[tf.TensorSpec((None, None, D_MODEL))])
    for length in (LENGTH, 1, 3):
        np.testing.assert_allclose(graph(x[:, :length]), layer(x[:, :length], x[:, :length]), atol=1e-6)
    inputs = keras.Input((None, D_MODEL))
    model = keras.Model(inputs, layer(inputs, inputs))
    assert model.output_shape == (None, None, D_MODEL)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: RelativeAttention(3, 5, max_relative_position=0),
            "`max_relative_position` must be at least 1. Received: max_relative_position=0",
        ),
        (
            lambda: RotaryAttention(3, 5).build((None, None, 7), (None, None, 7)),
            "`key_dim` must be even for rotary positions. Received: key_dim=5",
        ),
        (
            lambda: EncoderLayer(num_heads=3, key_dim=4, d_ff=5, positions="halves"),
            "`positions` must be one of .None, 'relative', 'rotary'.. Received: 'halves'",
        ),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ValueError, match=message):
        make()
