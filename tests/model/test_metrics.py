"""Metrics against means over all real tokens in NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from test_train_step import BATCHES, saves_files, small_model

from keras_transformer.model.loss import LabelSmoothedCrossEntropy, token_statistics
from keras_transformer.model.metrics import Perplexity, TokenAccuracy, TokenLoss

VOCAB, PAD = 13, 0


def batches(pad_id=PAD):
    """Three batches of 9, 2 and 4 real tokens."""
    rng = np.random.default_rng(0)
    lengths = [(5, 3, 1), (2,), (1, 3)]
    made = []
    for rows in lengths:
        labels = np.full((len(rows), 5), pad_id, "int32")
        for row, length in zip(labels, rows, strict=True):
            row[:length] = rng.integers(1, VOCAB - 1, length)
        logits = rng.normal(size=(*labels.shape, VOCAB)).astype("float32")
        # About half of the labels get the largest logit; later batches are harder.
        for place in np.argwhere(labels != pad_id):
            if rng.random() < 0.5:
                logits[(*place, labels[tuple(place)])] += 5 / len(made) if made else 5
        made.append((labels, logits))
    return made


def negative_log_likelihoods(made):
    """-log p(label) of every real token of all batches, in float64."""
    found = []
    for labels, logits in made:
        logits = logits.astype("float64")
        log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        of_label = np.take_along_axis(log_p, labels[..., None], -1)[..., 0]
        found.append(-of_label[labels != PAD])
    return np.concatenate(found)


def hits(made):
    return np.concatenate([(logits.argmax(-1) == labels)[labels != PAD] for labels, logits in made])


def updated(metric, made):
    for labels, logits in made:
        metric.update_state(labels, logits)
    return float(metric.result())


def test_accuracy_is_the_share_of_real_tokens_over_unequal_batches():
    made = batches()
    wanted = hits(made).mean()
    mean_of_means = np.mean([hits([batch]).mean() for batch in made])
    assert abs(wanted - mean_of_means) > 0.01
    np.testing.assert_allclose(updated(TokenAccuracy(), made), wanted, rtol=1e-6)


def test_perplexity_is_exp_of_the_mean_over_all_tokens():
    made = batches()
    wanted = np.exp(negative_log_likelihoods(made).mean())
    mean_of_perplexities = np.mean([np.exp(negative_log_likelihoods([batch]).mean()) for batch in made])
    assert abs(wanted - mean_of_perplexities) > 0.1
    np.testing.assert_allclose(updated(Perplexity(), made), wanted, rtol=1e-5)


def test_perplexity_of_a_model_that_knows_nothing_is_the_vocabulary_size():
    labels = np.array([[3, 5, 0]])
    np.testing.assert_allclose(
        updated(Perplexity(), [(labels, np.zeros((1, 3, VOCAB), "float32"))]), VOCAB, rtol=1e-6
    )


def test_loss_includes_smoothing_and_perplexity_does_not():
    made = batches()
    loss, perplexity, total = TokenLoss(), Perplexity(), 0.0
    for labels, logits in made:
        statistics = token_statistics(labels, logits, label_smoothing=0.3)
        loss.add(statistics)
        perplexity.add(statistics)
        log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        one_hot = np.eye(VOCAB)[labels]
        wanted = 0.7 * one_hot + 0.3 / (VOCAB - 1) * (1 - one_hot)
        total += (-(wanted * log_p).sum(-1) * (labels != PAD)).sum()
    np.testing.assert_allclose(loss.result(), total / 15, rtol=1e-5)
    np.testing.assert_allclose(perplexity.result(), np.exp(negative_log_likelihoods(made).mean()), rtol=1e-5)


@pytest.mark.parametrize("cls", [TokenLoss, TokenAccuracy, Perplexity])
def test_padding_does_not_matter(cls):
    made = batches()
    changed = []
    for labels, logits in made:
        noise = np.random.default_rng(1).normal(scale=30, size=logits.shape)
        real = (labels != PAD)[..., None]
        changed.append((labels, np.where(real, logits, noise).astype("float32")))
    assert updated(cls(), changed) == updated(cls(), made)


def test_padding_may_have_any_id():
    made = [(labels[:, ::-1], logits[:, ::-1]) for labels, logits in batches()]
    other = VOCAB - 1  # used by no label
    moved = [(np.where(labels == PAD, other, labels), logits) for labels, logits in made]
    assert updated(TokenAccuracy(pad_id=other), moved) == updated(TokenAccuracy(), made)


@pytest.mark.parametrize("cls", [TokenLoss, TokenAccuracy, Perplexity])
def test_reset_forgets_everything(cls):
    made = batches()
    metric = cls()
    updated(metric, made[:1])
    metric.reset_state()
    assert updated(metric, made[1:]) == updated(cls(), made[1:])


@pytest.mark.parametrize(("cls", "nothing"), [(TokenLoss, 0.0), (TokenAccuracy, 0.0), (Perplexity, 1.0)])
def test_result_before_any_token_is_finite(cls, nothing):
    assert float(cls().result()) == nothing
    assert updated(cls(), [(np.zeros((1, 3), int), np.ones((1, 3, VOCAB)))]) == nothing


def test_counts_stay_exact_beyond_float32():
    metric = TokenAccuracy()
    metric.count.assign(2.0**24)
    metric.total.assign(2.0**24)
    logits = np.zeros((1, 1, VOCAB), "float32")
    logits[0, 0, 5] = 1
    updated(metric, [(np.array([[5]]), logits)])
    assert int(metric.count.numpy()) == 2**24 + 1
    assert int(metric.total.numpy()) == 2**24 + 1


def test_result_is_the_same_in_a_graph():
    metric = Perplexity()
    graph = tf.function(
        metric.update_state,
        input_signature=[
            tf.TensorSpec((None, None), tf.int32),
            tf.TensorSpec((None, None, VOCAB), tf.float32),
        ],
    )
    made = batches()
    for labels, logits in made:
        graph(labels, logits)
    wanted = np.exp(negative_log_likelihoods(made).mean())
    np.testing.assert_allclose(metric.result(), wanted, rtol=1e-5)


@pytest.mark.parametrize("cls", [TokenLoss, TokenAccuracy, Perplexity])
def test_refuses_sample_weights(cls):
    labels, logits = batches()[0]
    with pytest.raises(ValueError, match="`sample_weight` is not supported"):
        cls().update_state(labels, logits, sample_weight=np.ones(labels.shape))


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(("metric", "operator"), [(TokenAccuracy, "greater"), (Perplexity, "less")])
def test_early_stopping_knows_which_direction_is_better(metric, operator):
    callback = keras.callbacks.EarlyStopping(f"val_{metric().name}", patience=1)
    model = keras.Sequential([keras.layers.Embedding(11, 11)])
    model.compile("sgd", LabelSmoothedCrossEntropy(0.1), metrics=[metric()])
    ids = np.arange(1, 11, dtype="int32").reshape(2, 5)
    model.fit(ids, ids, validation_data=(ids, ids), callbacks=[callback], verbose=0)
    assert callback.monitor_op is getattr(keras.ops, operator)


@pytest.mark.slow_after(1)
@saves_files
@pytest.mark.parametrize(
    ("monitor", "better"), [("val_token_accuracy", 2.0), ("val_perplexity", 0.5), ("val_accuracy", 2.0)]
)
def test_callbacks_know_which_direction_of_a_transformer_is_better(monitor, better, tmp_path):
    model = small_model()
    model.compile("sgd", metrics=[TokenAccuracy(), Perplexity(), "accuracy"], run_eagerly=True)
    stop = keras.callbacks.EarlyStopping(monitor, patience=1)
    best = keras.callbacks.ModelCheckpoint(
        tmp_path / "best.weights.h5", monitor=monitor, save_best_only=True, save_weights_only=True
    )
    model.fit(*BATCHES[0], validation_data=BATCHES[0], callbacks=[stop, best], verbose=0)
    for callback in (stop, best):
        assert bool(callback.monitor_op(better, 1.0))
        assert not bool(callback.monitor_op(1.0, better))
