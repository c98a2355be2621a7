"""Computations that stay in float32 under mixed precision, against float64 and the float32 model."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_transformer.config.settings import ModelConfig
from keras_transformer.model.layers.attention import scaled_dot_product_attention
from keras_transformer.model.layers.embedding import PositionalEmbedding
from keras_transformer.model.layers.residual import Residual
from keras_transformer.model.loss import LabelSmoothedCrossEntropy
from keras_transformer.model.transformer import Transformer

# Relative distance of neighbouring numbers: 10 bits after the point, and 7.
STEP = {"mixed_float16": 2.0**-10, "mixed_bfloat16": 2.0**-7}
POLICIES = sorted(STEP)
VOCAB, PAD = 23, 0
SMALL = {
    "source_vocab_size": VOCAB,
    "target_vocab_size": VOCAB,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "d_model": 12,
    "d_ff": 20,
    "num_heads": 3,
    "residual_dropout": 0.0,
    "embedding_dropout": 0.0,
}
RNG = np.random.default_rng(0)
SOURCE = RNG.integers(4, VOCAB, (4, 5))
TARGET = RNG.integers(4, VOCAB, (4, 7))
LABELS = RNG.integers(4, VOCAB, (4, 7))
# A source, a target and both that are nothing but padding.
SOURCE[1], SOURCE[3] = PAD, PAD
TARGET[2], TARGET[3], LABELS[2], LABELS[3] = PAD, PAD, PAD, PAD
SOURCE[0, 3:], TARGET[0, 4:], LABELS[0, 4:] = PAD, PAD, PAD

each_policy = pytest.mark.parametrize("policy", POLICIES)


def half(policy):
    return policy.removeprefix("mixed_")


def single(x):
    """Any tensor as float32 NumPy."""
    return ops.convert_to_numpy(ops.cast(x, "float32"))


def rounded(x, policy):
    """(tensor in half precision, the same numbers in float64)."""
    x = ops.cast(x, half(policy))
    return x, single(x).astype("float64")


def drawn(weight, rng):
    """A value that depends on nothing but `rng`: kernels of about their usual size, none at its start."""
    value = rng.normal(size=weight.shape)
    if len(weight.shape) == 2:
        return value * weight.shape[-1] ** -0.5
    if weight.path.endswith("inner/bias"):
        # Far from where the ReLU bends: rounding must not turn one unit's gradient on or off.
        return 5.0 * (-1.0) ** np.arange(weight.shape[0])
    return 0.1 * value + (weight.name == "gamma")


def both(policy, **changes):
    """The float32 model and the one of a policy, with equal weights."""
    config = ModelConfig(**{**SMALL, **changes})
    rng = np.random.default_rng(1)
    exact, mixed = Transformer(config), Transformer(config, dtype=policy)
    weights = [drawn(weight, rng) for weight in exact.weights]
    exact.set_weights(weights)
    mixed.set_weights(weights)
    return exact, mixed


def loss_and_gradient(model):
    with tf.GradientTape() as tape:
        logits = model((SOURCE, TARGET), training=True)
        loss = LabelSmoothedCrossEntropy(0.1)(LABELS, logits)
    gradients = tape.gradient(loss, model.trainable_weights)
    assert loss.dtype == tf.float32
    assert {gradient.dtype for gradient in gradients} == {tf.float32}
    return float(loss), np.concatenate([tf.convert_to_tensor(g).numpy().ravel() for g in gradients])


@each_policy
def test_neighbouring_positions_stay_apart(policy):
    # bfloat16 has no number between 256 and 258.
    layer = PositionalEmbedding(VOCAB, 12, dtype=policy)
    layer.build()
    layer.embeddings.assign(ops.zeros_like(layer.embeddings))
    found = single(layer(np.zeros((1, 4), int), first_position=255))[0]
    wanted = np.sin(np.arange(255, 259))
    np.testing.assert_allclose(found[:, 0], wanted, atol=STEP[policy] / 2)
    assert np.abs(np.diff(found[:, 0])).min() > 0.3


@each_policy
def test_embeddings_are_scaled_in_float32(policy):
    # With d_model 1024 the factor is 32; the product of two rounded numbers errs by more than
    # half a step.
    layer = PositionalEmbedding(VOCAB, 1024, dtype=policy)
    layer.build()
    layer.embeddings.assign(50 * layer.embeddings)
    found = layer(np.arange(VOCAB)[None])
    assert found.dtype == half(policy)
    position, pair = np.arange(VOCAB)[:, None], np.arange(512)
    angle = position / 10000 ** (2 * pair / 1024)
    wanted = 32 * layer.embeddings.numpy().astype("float64")
    wanted[:, 0::2] += np.sin(angle)
    wanted[:, 1::2] += np.cos(angle)
    assert np.abs(wanted).max() > 100
    np.testing.assert_allclose(single(found)[0], wanted, rtol=0.51 * STEP[policy], atol=1e-5)


@each_policy
@pytest.mark.parametrize("offset", [0.0, 300.0])
def test_layer_norm_has_float32_statistics(policy, offset):
    # The squares of numbers round 300 are above the largest float16, and their sum above
    # what bfloat16 can hold to a whole number.
    layer = Residual(dropout=0.0, dtype=policy)
    layer.build((None, None, 64))
    x, exact = rounded(np.random.default_rng(2).normal(size=(2, 3, 64)) + offset, policy)
    found = single(layer(x, ops.zeros_like(x)))
    mean, variance = exact.mean(-1, keepdims=True), exact.var(-1, keepdims=True)
    wanted = (exact - mean) / np.sqrt(variance + 1e-6)
    np.testing.assert_allclose(found, wanted, rtol=STEP[policy], atol=1e-3)


@each_policy
def test_scores_above_the_largest_float16_give_no_nan(policy):
    # 32 * 32 * 64 = 65,536, and 8,192 once it is divided by the root of 64.
    query = ops.full((1, 1, 1, 64), 32.0, half(policy))
    key = np.zeros((1, 1, 3, 64), "float32")
    key[:, :, 1] = 32.0
    value = ops.cast(np.arange(12.0).reshape(1, 1, 3, 4), half(policy))
    found = scaled_dot_product_attention(query, ops.cast(key, half(policy)), value)
    np.testing.assert_array_equal(single(found.output)[0, 0, 0], [4, 5, 6, 7])


@each_policy
def test_hidden_scores_are_finite_and_hidden(policy):
    # -1e9 in float16 would be minus infinity, and a row of those no probabilities.
    query, key, value = (
        ops.cast(np.random.default_rng(seed).normal(size=(2, 3, 5, 8)), half(policy)) for seed in (3, 4, 5)
    )
    mask = np.ones((2, 5, 5), bool)
    mask[0, 2] = False
    mask[1, :, 3:] = False
    with tf.GradientTape() as tape:
        tape.watch(query)
        found = scaled_dot_product_attention(query, key, value, mask)
    assert found.weights.dtype == tf.float32
    sums = np.ones((2, 3, 5))
    sums[0, :, 2] = 0
    np.testing.assert_allclose(ops.sum(found.weights, axis=-1), sums, rtol=1e-6)
    assert np.all(single(found.weights)[1, :, :, 3:] == 0)
    gradient = single(tape.gradient(found.output, query))
    assert np.all(np.isfinite(gradient))
    assert np.all(gradient[0, :, 2] == 0)


@pytest.mark.slow_after(1)
@each_policy
@pytest.mark.parametrize("norm_first", [False, True])
def test_loss_and_gradient_are_those_of_float32(policy, norm_first):
    exact, mixed = both(policy, norm_first=norm_first, output_bias=True, attention_bias=True)
    loss, gradient = loss_and_gradient(exact)
    mixed_loss, mixed_gradient = loss_and_gradient(mixed)
    np.testing.assert_allclose(mixed_loss, loss, rtol=STEP[policy] / 2)
    error = np.linalg.norm(mixed_gradient - gradient) / np.linalg.norm(gradient)
    assert error < 3 * STEP[policy]


@pytest.mark.slow_after(1)
@each_policy
def test_rows_of_padding_give_no_nan_and_change_no_other_row(policy):
    _, mixed = both(policy)
    found = single(mixed((SOURCE, TARGET)))
    assert np.all(np.isfinite(found))
    np.testing.assert_allclose(found[:1], single(mixed((SOURCE[:1], TARGET[:1]))), atol=8 * STEP[policy])
    assert np.all(np.isfinite(loss_and_gradient(mixed)[1]))


@each_policy
def test_the_loss_of_very_many_tokens_does_not_overflow(policy):
    # 12,800 tokens of 20 nats each: the sum, 256,000, is above the largest float16; and in
    # bfloat16 it would stop growing at 20 * 2**8.
    logits = np.zeros((100, 128, 11), "float32")
    logits[..., 3] = 20.0
    loss = LabelSmoothedCrossEntropy(0.0)
    found = loss.statistics(np.full((100, 128), 5), ops.cast(logits, half(policy)))
    each = 20 + np.log1p(10 * np.exp(-20.0))
    np.testing.assert_allclose(ops.sum(found.loss), 12_800 * each, rtol=1e-5)
    np.testing.assert_allclose(loss(np.full((100, 128), 5), ops.cast(logits, half(policy))), each, rtol=1e-5)


@pytest.mark.slow_after(1)
@each_policy
@pytest.mark.parametrize("tie_embeddings", ["all", "none"])
def test_all_computations_of_logits_agree_and_have_the_compute_dtype(policy, tie_embeddings):
    _, mixed = both(policy, tie_embeddings=tie_embeddings, output_bias=True)
    logits = mixed((SOURCE, TARGET))
    encoded = mixed.encode(SOURCE)
    step = mixed.step(TARGET[:, 0], 0, mixed.start(encoded, max_length=3))
    for found, wanted in ((mixed.decode(TARGET, encoded), logits), (step.logits, logits[:, 0])):
        assert found.dtype == half(policy)
        np.testing.assert_allclose(single(found), single(wanted), atol=8 * STEP[policy])


@pytest.mark.slow_after(1)
@each_policy
def test_weights_and_optimizer_state_are_float32(policy):
    _, mixed = both(policy)
    optimizer = keras.optimizers.Adam()
    optimizer.build(mixed.trainable_variables)
    assert {weight.dtype for weight in mixed.weights} == {"float32"}
    slots = [slot for slot in optimizer.variables if slot.path.endswith(("momentum", "velocity"))]
    assert len(slots) == 2 * len(mixed.weights)
    assert {slot.dtype for slot in slots} == {"float32"}
