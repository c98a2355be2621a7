"""Replicas and micro-batches compute what one device computes with the whole batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import ModelConfig
from keras_transformer.losses import LabelSmoothedCrossEntropy
from keras_transformer.metrics import Perplexity, Tally, TokenAccuracy
from keras_transformer.model import Transformer

VOCAB, PAD, BOS, EOS = 23, 0, 1, 2
SOURCE_LEN, TARGET_LEN = 6, 7


def drawn(weight, rng):
    """A value for a weight, kernels of about their usual size, all others off theirs too."""
    value = rng.normal(size=weight.shape).astype("float32")
    if len(weight.shape) == 2:
        return value * max(weight.shape) ** -0.5
    return 0.2 * value + (weight.name == "gamma")


def rows(seed, lengths):
    """((source, target), labels): one row for each number of labels, 0 for an empty one."""
    rng = np.random.default_rng(seed)
    source = rng.integers(4, VOCAB, (len(lengths), SOURCE_LEN), dtype="int32")
    labels = np.full((len(lengths), TARGET_LEN), PAD, "int32")
    for row, length in zip(labels, lengths, strict=True):
        if length:
            row[: length - 1] = rng.integers(4, VOCAB, length - 1)
            row[length - 1] = EOS
    target = np.concatenate([np.full((len(lengths), 1), BOS, "int32"), labels[:, :-1]], axis=1)
    source[np.array(lengths) == 0] = PAD
    return (source, target), labels


# Unequal tokens for two replicas, an odd number of rows, and one row: nothing for the second.
UNEVEN = [rows(1, (7, 7, 6, 1)), rows(2, (5, 1, 2)), rows(3, (4,)), rows(4, (7, 1, 1, 1, 2))]


def stream(batches):
    spec = tf.TensorSpec((None, None), tf.int32)
    return tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=((spec, spec), spec))


def in_micro_batches(batch, count):
    """The same rows as (count, rows, length), with empty ones where they do not fit."""
    (source, target), labels = batch
    missing = -len(labels) % count
    target_pad = np.pad(target, ((0, missing), (0, 0)))
    target_pad[len(target) :, 0] = BOS
    shaped = [
        each.reshape(count, -1, each.shape[1])
        for each in (
            np.pad(source, ((0, missing), (0, 0))),
            target_pad,
            np.pad(labels, ((0, missing), (0, 0))),
        )
    ]
    return (shaped[0], shaped[1]), shaped[2]


def make_model(strategy, optimizer, **compile_arguments):
    changes = compile_arguments.pop("model", {})
    with strategy.scope():
        arguments = {
            "source_vocab_size": VOCAB,
            "target_vocab_size": VOCAB,
            "num_encoder_layers": 1,
            "num_decoder_layers": 1,
            "d_model": 12,
            "d_ff": 17,
            "num_heads": 3,
            "residual_dropout": 0.0,
            "embedding_dropout": 0.0,
        }
        model = Transformer(ModelConfig(**{**arguments, **changes}))
        rng = np.random.default_rng(0)
        model.set_weights([drawn(weight, rng) for weight in model.weights])
        model.compile(
            optimizer(),
            LabelSmoothedCrossEntropy(0.1),
            [TokenAccuracy(), Perplexity(), Tally()],
            **compile_arguments,
        )
    return model


def one_device():
    return tf.distribute.get_strategy()


def two_devices():
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def fit(strategy, batches, optimizer, *, micro_batches=0, **compile_arguments):
    """Trains on the batches in order; returns the weights and what was logged at the end."""
    model = make_model(strategy, optimizer, **compile_arguments)
    if micro_batches:
        spec = tf.TensorSpec((None, None, None), tf.int32)
        # Elements go to the replicas in turn.
        replicas = strategy.num_replicas_in_sync
        pieces = []
        for (source, target), labels in batches:
            for replica in range(replicas):
                part = (source[replica::replicas], target[replica::replicas]), labels[replica::replicas]
                if not len(part[1]):
                    part = rows(0, (0,))
                pieces.append(in_micro_batches(part, micro_batches))
        dataset = tf.data.Dataset.from_generator(
            lambda: iter(pieces), output_signature=((spec, spec), spec)
        ).repeat()
        if replicas > 1:
            dataset = strategy.distribute_datasets_from_function(lambda context, made=dataset: made)
        history = model.fit(dataset, steps_per_epoch=len(batches), shuffle=False, verbose=0)
    else:
        # The first epoch of a stream of unknown length ends with a warning.
        count = tf.data.experimental.assert_cardinality(len(batches))
        history = model.fit(stream(batches).apply(count), shuffle=False, verbose=0)
    return model, {name: values[0] for name, values in history.history.items()}


OPTIMIZERS = {
    "sgd": (lambda: keras.optimizers.SGD(0.5), 1e-6),
    "adam": (lambda: keras.optimizers.Adam(0.01, beta_2=0.98, epsilon=1e-9), 1e-4),
    "clipped": (lambda: keras.optimizers.SGD(0.5, global_clipnorm=0.1), 1e-6),
    "decayed": (lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1), 1e-4),
}


@pytest.mark.parametrize("micro_batches", [0, 4])
@pytest.mark.parametrize("strategy", [one_device, two_devices])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_ten_steps_are_those_of_one_device_with_whole_batches(strategy, micro_batches, name):
    if strategy is one_device and not micro_batches:
        pytest.skip("the same twice")
    optimizer, tolerance = OPTIMIZERS[name]
    batches = [rows(seed, UNEVEN_LENGTHS[seed % 4]) for seed in range(10)]
    whole, logs = fit(one_device(), batches, optimizer)
    parted, found = fit(strategy(), batches, optimizer, micro_batches=micro_batches)
    for one, other in zip(whole.weights, parted.weights, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), atol=tolerance, rtol=0, err_msg=one.path)
    for key in ("loss", "token_accuracy", "perplexity", "gradient_norm", "target_tokens", "source_tokens"):
        assert found[key] == pytest.approx(logs[key], rel=1e-5), key
    assert found["steps"] == 10
    assert found["skipped"] == 0


UNEVEN_LENGTHS = [(7, 7, 6, 1), (5, 1, 2), (4,), (7, 1, 1, 1, 2)]
