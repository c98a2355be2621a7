"""The loss against dense one-hot labels in NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.model.loss import LabelSmoothedCrossEntropy, token_statistics
from keras_transformer.model.metrics import Perplexity, TokenAccuracy

BATCH, LENGTH, VOCAB, PAD = 3, 5, 11, 0
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(scale=2, size=(BATCH, LENGTH, VOCAB)).astype("float32")
# 5, 3 and 1 real tokens: the mean over tokens is not the mean over sentences.
LABELS = np.array([[4, 10, 1, 2, 7], [9, 3, 2, 0, 0], [2, 0, 0, 0, 0]], "int32")
REAL = LABELS != PAD
FORMULAS = ["t2t", "uniform"]


def wanted_distribution(labels, vocab_size, smoothing, formula):
    """Dense distributions, as Tensor2Tensor and as Keras (and section 5.4) make them."""
    one_hot = np.eye(vocab_size)[labels]
    if formula == "t2t":
        return one_hot * (1 - smoothing) + (1 - one_hot) * smoothing / (vocab_size - 1)
    return one_hot * (1 - smoothing) + smoothing / vocab_size


def log_softmax(logits):
    logits = logits.astype("float64")
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def dense(labels, logits, smoothing=0.0, formula="t2t"):
    wanted = wanted_distribution(labels, logits.shape[-1], smoothing, formula)
    return -(wanted * log_softmax(logits)).sum(-1) * (labels != PAD)


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_every_token_has_the_cross_entropy_with_the_target_distribution(formula, smoothing):
    found = token_statistics(LABELS, LOGITS, label_smoothing=smoothing, formula=formula)
    np.testing.assert_allclose(found.loss, dense(LABELS, LOGITS, smoothing, formula), rtol=1e-5)


def test_the_two_formulas_differ():
    losses = [
        token_statistics(LABELS, LOGITS, label_smoothing=0.3, formula=formula).loss for formula in FORMULAS
    ]
    assert np.abs(losses[0] - losses[1]).max() > 0.01


def test_the_uniform_formula_is_keras_label_smoothing():
    theirs = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1, reduction=None)(
        np.eye(VOCAB)[LABELS], LOGITS
    )
    found = token_statistics(LABELS, LOGITS, label_smoothing=0.1, formula="uniform").loss
    np.testing.assert_allclose(found, theirs * REAL, rtol=1e-5)


@pytest.mark.parametrize("formula", FORMULAS)
def test_without_smoothing_it_is_keras_sparse_cross_entropy(formula):
    theirs = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=PAD)
    per_token = keras.ops.sparse_categorical_crossentropy(LABELS, LOGITS, from_logits=True)
    loss = LabelSmoothedCrossEntropy(0.0, formula=formula)
    np.testing.assert_allclose(loss(LABELS, LOGITS), np.sum(per_token * REAL) / REAL.sum(), rtol=1e-6)
    np.testing.assert_allclose(loss(LABELS, LOGITS), theirs(LABELS, LOGITS), rtol=1e-6)


def test_the_papers_smoothing_is_the_default():
    np.testing.assert_allclose(
        LabelSmoothedCrossEntropy()(LABELS, LOGITS),
        dense(LABELS, LOGITS, 0.1, "t2t").sum() / REAL.sum(),
        rtol=1e-6,
    )


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_gradient_is_softmax_minus_target_over_the_number_of_tokens(formula, smoothing):
    logits = tf.constant(LOGITS)
    loss = LabelSmoothedCrossEntropy(smoothing, formula=formula)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        value = loss(LABELS, logits)
    wanted = np.exp(log_softmax(LOGITS)) - wanted_distribution(LABELS, VOCAB, smoothing, formula)
    wanted = wanted * REAL[..., None] / REAL.sum()
    np.testing.assert_allclose(tape.gradient(value, logits), wanted, atol=1e-7)


def test_gradient_of_a_token_is_scaled_by_the_upstream_gradient():
    logits = tf.constant(LOGITS)
    upstream = RNG.normal(size=(BATCH, LENGTH)).astype("float32")
    with tf.GradientTape() as tape:
        tape.watch(logits)
        value = token_statistics(LABELS, logits, label_smoothing=0.1).loss * upstream
    wanted = np.exp(log_softmax(LOGITS)) - wanted_distribution(LABELS, VOCAB, 0.1, "t2t")
    wanted = wanted * (REAL * upstream)[..., None]
    np.testing.assert_allclose(tape.gradient(value, logits), wanted, atol=1e-6)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("formula", FORMULAS)
def test_loss_and_gradient_are_the_same_in_a_graph(formula):
    loss = LabelSmoothedCrossEntropy(0.1, formula=formula)

    @tf.function(
        input_signature=[
            tf.TensorSpec((None, None), tf.int32),
            tf.TensorSpec((None, None, VOCAB), tf.float32),
        ]
    )
    def graph(labels, logits):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            value = loss(labels, logits)
        return value, tape.gradient(value, logits)

    value, gradient = graph(LABELS, LOGITS)
    np.testing.assert_allclose(value, dense(LABELS, LOGITS, 0.1, formula).sum() / REAL.sum(), rtol=1e-6)
    wanted = np.exp(log_softmax(LOGITS)) - wanted_distribution(LABELS, VOCAB, 0.1, formula)
    np.testing.assert_allclose(gradient, wanted * REAL[..., None] / REAL.sum(), atol=1e-7)


def test_the_mean_is_over_all_tokens_not_over_sentences():
    per_token = dense(LABELS, LOGITS, 0.1)
    over_tokens = per_token.sum() / 9
    over_sentences = np.mean(per_token.sum(1) / [5, 3, 1])
    assert abs(over_tokens - over_sentences) > 0.05
    np.testing.assert_allclose(LabelSmoothedCrossEntropy(0.1)(LABELS, LOGITS), over_tokens, rtol=1e-6)


def test_logits_of_padding_do_not_matter_and_those_of_tokens_do():
    loss = LabelSmoothedCrossEntropy(0.1)
    before = loss(LABELS, LOGITS)
    of_padding = np.where(REAL[..., None], LOGITS, 50 * RNG.normal(size=LOGITS.shape))
    assert loss(LABELS, of_padding.astype("float32")) == before
    of_token = LOGITS.copy()
    of_token[1, 2, 3] += 1
    assert abs(loss(LABELS, of_token) - before) > 1e-3


def test_padding_may_have_any_id():
    # Ids turned round, 0 <-> 10, with pad_id 10: nothing else changes.
    turned = LabelSmoothedCrossEntropy(0.1, pad_id=VOCAB - 1)
    np.testing.assert_allclose(
        turned(VOCAB - 1 - LABELS, LOGITS[..., ::-1]),
        LabelSmoothedCrossEntropy(0.1)(LABELS, LOGITS),
        rtol=1e-6,
    )


def test_call_gives_the_loss_of_every_token():
    loss = LabelSmoothedCrossEntropy(0.1)
    np.testing.assert_allclose(loss.call(LABELS, LOGITS), dense(LABELS, LOGITS, 0.1), rtol=1e-5)


@pytest.mark.parametrize("offset", [0.0, 1e4, -1e4])
def test_large_logits_are_stable(offset):
    # Multiples of 1/64, so that adding 10,000 in float32 loses nothing.
    logits = (np.round(LOGITS * 64) / 64 + offset).astype("float32")
    found = token_statistics(LABELS, logits, label_smoothing=0.1)
    wanted = dense(LABELS, logits - np.float32(offset), 0.1)
    np.testing.assert_allclose(found.loss, wanted, atol=0.02)
    np.testing.assert_allclose(found.cross_entropy, dense(LABELS, logits - np.float32(offset)), atol=0.002)


def test_far_apart_logits_are_finite_with_a_finite_gradient():
    logits = tf.constant(LOGITS * 1e4)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        value = LabelSmoothedCrossEntropy(0.1)(LABELS, logits)
    np.testing.assert_allclose(value, dense(LABELS, LOGITS * 1e4, 0.1).sum() / 9, rtol=1e-5)
    assert np.all(np.isfinite(tape.gradient(value, logits)))


def test_a_large_vocabulary_is_precise():
    logits = RNG.normal(size=(1, 2, 37_003)).astype("float32")
    labels = np.array([[36_001, 5]])
    found = token_statistics(labels, logits, label_smoothing=0.1).loss
    log_p = log_softmax(logits)
    of_label = np.take_along_axis(log_p, labels[..., None], -1)[..., 0]
    wanted = -0.9 * of_label - 0.1 / 37_002 * (log_p.sum(-1) - of_label)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_bfloat16_logits_give_a_float32_loss_and_a_bfloat16_gradient():
    logits = tf.cast(LOGITS, tf.bfloat16)
    rounded = tf.cast(logits, tf.float32).numpy()
    with tf.GradientTape() as tape:
        tape.watch(logits)
        value = LabelSmoothedCrossEntropy(0.1)(LABELS, logits)
    assert value.dtype == tf.float32
    np.testing.assert_allclose(value, dense(LABELS, rounded, 0.1).sum() / 9, rtol=1e-5)
    gradient = tape.gradient(value, logits)
    assert gradient.dtype == tf.bfloat16
    wanted = np.exp(log_softmax(rounded)) - wanted_distribution(LABELS, VOCAB, 0.1, "t2t")
    np.testing.assert_allclose(tf.cast(gradient, tf.float32), wanted * REAL[..., None] / 9, atol=1e-3)


def test_statistics_hold_the_unsmoothed_cross_entropy():
    found = token_statistics(LABELS, LOGITS, label_smoothing=0.3)
    np.testing.assert_allclose(found.cross_entropy, dense(LABELS, LOGITS), rtol=1e-5, atol=1e-6)


def test_statistics_mark_tokens_whose_label_is_the_argmax():
    labels = LABELS.copy()
    labels[0, 1], labels[1, 0] = LOGITS[0, 1].argmax(), LOGITS[1, 0].argmax()
    assert (labels[:2, :2] != PAD).all()
    logits = LOGITS.copy()
    logits[2, 0, labels[2, 0]] = np.delete(logits[2, 0], labels[2, 0]).max() - 1e-3
    found = token_statistics(labels, logits)
    wanted = (logits.argmax(-1) == labels) & (labels != PAD)
    assert wanted.sum() >= 2
    np.testing.assert_array_equal(found.correct, wanted)


def test_statistics_count_real_tokens():
    np.testing.assert_array_equal(token_statistics(LABELS, LOGITS).weight, REAL)


@pytest.mark.parametrize("field", ["cross_entropy", "correct", "weight"])
def test_only_the_loss_has_a_gradient(field):
    logits = tf.constant(LOGITS)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        value = tf.reduce_sum(getattr(token_statistics(LABELS, logits), field))
    gradient = tape.gradient(value, logits)
    assert gradient is None or not np.any(gradient)


def test_a_batch_without_real_tokens_has_loss_and_gradient_0():
    logits = tf.constant(LOGITS)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        value = LabelSmoothedCrossEntropy(0.1)(np.zeros_like(LABELS), logits)
    assert value == 0
    np.testing.assert_array_equal(tape.gradient(value, logits), np.zeros_like(LOGITS))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LabelSmoothedCrossEntropy(1.0), "below 1. Received: label_smoothing=1.0"),
        (lambda: LabelSmoothedCrossEntropy(-0.1), "below 1. Received: label_smoothing=-0.1"),
        (lambda: LabelSmoothedCrossEntropy(formula="T2T"), "`formula` must be .*'T2T'"),
        (lambda: token_statistics(LABELS, LOGITS, formula="x"), "`formula` must be .*'x'"),
        (
            lambda: LabelSmoothedCrossEntropy()(LABELS, LOGITS, sample_weight=REAL[:, :-1]),
            "sample_weight",
        ),
    ],
)
def test_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_what_an_implicit_mask_hides_does_not_count(smoothing):
    """As in Keras, whose loss is a mean over what the mask of the predictions shows."""
    keras.utils.set_random_seed(1)
    ids = np.array([[3, 5, 0, 7, 0], [2, 0, 9, 9, 1]])
    labels = np.array([[4, 1, 8, 2, 3], [6, 7, 5, 1, 10]])
    inputs = keras.Input((5,), dtype="int32")
    embedded = keras.layers.Embedding(VOCAB, 7, mask_zero=True)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(VOCAB)(embedded))
    model.compile(
        loss=LabelSmoothedCrossEntropy(smoothing, pad_id=-1),
        metrics=[TokenAccuracy(pad_id=-1), Perplexity(pad_id=-1)],
        run_eagerly=True,
    )
    found = model.evaluate(ids, labels, verbose=0, return_dict=True)
    logits, shown = model(ids).numpy(), ids != 0
    assert found["loss"] == pytest.approx(dense(labels, logits, smoothing)[shown].mean(), rel=1e-5)
    assert found["perplexity"] == pytest.approx(np.exp(dense(labels, logits)[shown].mean()), rel=1e-5)
    assert found["token_accuracy"] == pytest.approx((logits.argmax(-1) == labels)[shown].mean())
    if smoothing == 0:
        theirs = keras.Model(inputs, model.outputs)
        theirs.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        assert theirs.evaluate(ids, labels, verbose=0) == pytest.approx(found["loss"], rel=1e-5)
