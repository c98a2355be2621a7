"""A model of a few hundred weights, its batches and its run."""

import json
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config.settings import Config, DataConfig, ModelConfig, TrainingConfig
from keras_transformer.model.loss import LabelSmoothedCrossEntropy
from keras_transformer.model.metrics import Perplexity, StepCounters, TokenAccuracy
from keras_transformer.model.transformer import Transformer

VOCAB, PAD, BOS, EOS = 23, 0, 1, 2


class Run:
    """What callbacks ask of a run folder."""

    def __init__(self, path, config=None, *, writes=True):
        self.path, self.config, self.writes = path, config, writes
        self.path.mkdir(exist_ok=True)
        self.history = []
        self.updates = []  # number of records at each update of the best

    def append_history(self, record):
        self.history.append(json.loads(json.dumps(record)))

    def read_history(self):
        return list(self.history)

    def keep_best(self, model):
        self.updates.append((model, len(self.history)))

    def of_kind(self, kind):
        return [record for record in self.history if record["kind"] == kind]


def tiny_config(*, model=None, **training):
    sizes = {
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
    return Config(
        model=ModelConfig(**{**sizes, **(model or {})}),
        data=DataConfig(vocab_size=VOCAB, max_length=40, batch_tokens=640),
        training=TrainingConfig(**training),
    )


def tiny_model(config, rate=0.01):
    """A compiled model, the same at every call."""
    keras.utils.set_random_seed(1)
    model = Transformer(config.model)
    model.compile(
        keras.optimizers.Adam(rate),
        LabelSmoothedCrossEntropy(),
        [TokenAccuracy(), Perplexity(), StepCounters()],
    )
    return model


def state_of(model):
    """All that a checkpoint holds of a model in training."""
    variables = [*model.variables, *model.optimizer.variables]
    return [variable.numpy() for variable in variables], model.interval_sums()


def restore(model, state):
    """Puts back what `state_of` returned."""
    values, sums = state
    for variable, value in zip([*model.variables, *model.optimizer.variables], values, strict=True):
        variable.assign(value)
    model.set_interval_sums(sums)


def tiny_batch(seed, source_lengths, target_lengths):
    """((source, target), labels): rows of so many tokens, padded to the longest."""
    rng = np.random.default_rng(seed)
    source = np.full((len(source_lengths), max(source_lengths)), PAD, "int32")
    labels = np.full((len(target_lengths), max(target_lengths)), PAD, "int32")
    for array, lengths in ((source, source_lengths), (labels, target_lengths)):
        for row, length in zip(array, lengths, strict=True):
            row[: length - 1] = rng.integers(4, VOCAB, length - 1)
            row[length - 1] = EOS
    target = np.concatenate([np.full((len(labels), 1), BOS, "int32"), labels[:, :-1]], axis=1)
    return (source, np.where(target == EOS, PAD, target)), labels


def tiny_stream(batches):
    spec = tf.TensorSpec((None, None), tf.int32)
    made = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=((spec, spec), spec))
    return made.apply(tf.data.experimental.assert_cardinality(len(batches)))


def events_in(folder):
    """{(tag, step): number, or text as bytes} of all event files, without histograms."""
    found = {}
    for path in sorted(folder.glob("events.*")):
        for serialised in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(serialised.numpy())
            for value in event.summary.value:
                array = tf.make_ndarray(value.tensor)
                if array.size == 1:  # no histogram
                    found[value.tag, event.step] = array.item()
    return found


@pytest.fixture(scope="session")
def tiny():
    """The parts above, by name."""
    return types.SimpleNamespace(
        Run=Run,
        config=tiny_config,
        model=tiny_model,
        state_of=state_of,
        restore=restore,
        batch=tiny_batch,
        stream=tiny_stream,
        events_in=events_in,
    )
