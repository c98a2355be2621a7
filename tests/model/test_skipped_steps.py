"""Logged metrics exclude skipped steps and the loss scale."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config.settings import ModelConfig
from keras_transformer.model.metrics import Perplexity, StepCounters, TokenAccuracy
from keras_transformer.model.transformer import Transformer

VOCAB, EOS = 23, 2
SPOILED = 20  # a token that no other batch has


def batch(seed, rows, *, length=5, spoiled=False):
    """((source, target), labels) without padding; a spoiled one gives no finite loss."""
    rng = np.random.default_rng(seed)
    source, labels = rng.integers(4, SPOILED, (2, rows, length), dtype="int32")
    labels[:, -1] = EOS
    if spoiled:
        source[0, 1] = SPOILED
    return (source, np.roll(labels, 1, axis=1)), labels


def stream(batches):
    shape = (None,) * batches[0][1].ndim
    spec = tf.TensorSpec(shape, tf.int32)
    made = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=((spec, spec), spec))
    return made.apply(tf.data.experimental.assert_cardinality(len(batches)))


def make_model(optimizer, **changes):
    """A model that gives no number for sentences with `SPOILED`."""
    keras.utils.set_random_seed(3)
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 12, "d_ff": 17, "num_heads": 3}
    sizes |= {"source_vocab_size": VOCAB, "target_vocab_size": VOCAB, "tie_embeddings": "none"}
    sizes |= {"residual_dropout": 0.0, "embedding_dropout": 0.0}
    model = Transformer(ModelConfig(**{**sizes, **changes}))
    embeddings = model.source_embedding.embeddings
    embeddings.assign(np.where(np.arange(VOCAB)[:, None] == SPOILED, np.nan, embeddings.numpy()))
    # Eagerly, as making a graph takes longer than all steps.
    model.compile(optimizer, metrics=[TokenAccuracy(), Perplexity(), StepCounters()], run_eagerly=True)
    return model


def shown(batches, optimizer, **changes):
    """(model, what one epoch over the batches shows)."""
    model = make_model(optimizer, **changes)
    history = model.fit(stream(batches), shuffle=False, verbose=0).history
    return model, {name: value for name, (value,) in history.items()}


def still():
    """An optimizer that does not move the weights."""
    return keras.optimizers.SGD(0.0)


def test_a_skipped_step_is_in_no_logged_mean():
    good, worse = batch(1, 3), batch(2, 5)
    alone = [shown([each], still())[1] for each in (good, worse)]
    _, found = shown([good, batch(3, 7, spoiled=True), worse], still())
    assert (found["steps"], found["skipped"]) == (3, 1)
    for name in ("loss", "token_accuracy"):
        assert found[name] == pytest.approx(
            np.average([one[name] for one in alone], weights=[3, 5]), rel=1e-5
        )
    logs = [np.log(one["perplexity"]) for one in alone]
    assert np.log(found["perplexity"]) == pytest.approx(np.average(logs, weights=[3, 5]), rel=1e-5)
    # Of two steps, not of three.
    norms = [one["gradient_norm"] for one in alone]
    assert found["gradient_norm"] == pytest.approx(np.mean(norms), rel=1e-5)
    # All that was read is counted.
    assert found["target_tokens"] == found["source_tokens"] == 5 * (3 + 7 + 5)


@pytest.mark.slow
def test_an_epoch_of_skipped_steps_logs_finite_numbers():
    _, found = shown([batch(3, 2, spoiled=True)] * 2, still())
    assert (found["steps"], found["skipped"]) == (2, 2)
    assert np.isfinite(list(found.values())).all()


def test_the_logged_gradient_norm_excludes_the_loss_scale():
    _, plain = shown([batch(1, 3)], still())
    scaled = keras.optimizers.LossScaleOptimizer(still(), initial_scale=2.0**7)
    _, found = shown([batch(1, 3)], scaled)
    assert found["gradient_norm"] == pytest.approx(plain["gradient_norm"], rel=1e-4)
    assert found["loss"] == pytest.approx(plain["loss"], rel=1e-6)


def test_an_overflow_with_loss_scaling_counts_as_a_step_and_changes_no_weight():
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=2.0**7)
    model, found = shown([batch(1, 3, spoiled=True), batch(2, 3, spoiled=True)], optimizer)
    assert (found["steps"], found["skipped"]) == (2, 2)
    assert int(optimizer.iterations.numpy()) == int(optimizer.inner_optimizer.iterations.numpy()) == 2
    assert float(optimizer.dynamic_scale.numpy()) == 2.0**5
    for weight, before in zip(model.weights, make_model("sgd").weights, strict=True):
        np.testing.assert_array_equal(weight.numpy(), before.numpy())


@pytest.mark.slow
def test_validation_has_no_dropout_in_micro_batches_either():
    whole = batch(1, 4)
    parted = tf.nest.map_structure(lambda ids: ids.reshape(2, 2, -1), whole)
    found, wanted = (
        make_model("sgd", residual_dropout=0.5, embedding_dropout=0.5).evaluate(
            stream([each]), verbose=0, return_dict=True
        )
        for each in (parted, whole)
    )
    assert found == pytest.approx(wanted, rel=1e-5)
