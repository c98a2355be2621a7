"""What several tests of run folders share: models that say when they were saved."""

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.model.loss import LabelSmoothedCrossEntropy
from keras_transformer.model.metrics import Perplexity, StepCounters, TokenAccuracy
from keras_transformer.model.transformer import Transformer

STEPS = (3, 6, 9, 12)
TEXTS = ["The dog reads a text.", "Der Hund liest einen Text.", "A dog and a text."]


class Training:
    """A model whose weights say when they were saved; nothing is trained."""

    def __init__(self, run, *, ema_decay=0.0, loss_scale=False):
        self.model = Transformer(run.config.model)
        optimizer = keras.optimizers.Adam()
        if loss_scale:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        metrics = [TokenAccuracy(), Perplexity(), StepCounters()]
        self.model.compile(optimizer, LabelSmoothedCrossEntropy(), metrics, ema_decay=ema_decay)
        self.optimizer = optimizer
        self.checkpoints = run.checkpoints(self.model, optimizer)

    def draw(self, step):
        """Values that follow from the step alone, and are those of no other."""
        rng = np.random.default_rng(step)
        moments = getattr(self.optimizer, "inner_optimizer", self.optimizer).variables[2:]
        for variable in [*self.model.trainable_variables, *moments, *self.model.ema_weights]:
            variable.assign(rng.normal(size=variable.shape))
        self.model.set_interval_sums({name: float(rng.integers(99)) for name in self.model.interval_sums()})
        self.optimizer.iterations.assign(step)

    def save(self, step, seconds=0.0, *, on_schedule=True):
        self.draw(step)
        self.checkpoints.save(seconds, on_schedule=on_schedule)

    def values(self):
        """All that a state holds, but time and place: list of arrays."""
        variables = [*self.model.variables, *self.optimizer.variables, *self.model.ema_weights]
        return [variable.numpy() for variable in variables] + [
            np.array(value) for _, value in sorted(self.model.interval_sums().items())
        ]


def assert_same(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


def weights_of_step(run, step, part="weights", folder="checkpoints"):
    """{name: array} of one checkpoint, read without a model."""
    return weights_in(tf.train.load_checkpoint(str(run.path / folder / f"step-{step}")), part)


def weights_in(reader, part="weights"):
    start, end = f"{part}/", "/.ATTRIBUTES/VARIABLE_VALUE"
    return {
        name.removeprefix(start).removesuffix(end).replace(".S", "/"): reader.get_tensor(name)
        for name in reader.get_variable_to_shape_map()
        if name.startswith(start) and name.endswith(end)
    }


def steps_on_disk(run, folder="checkpoints"):
    """Steps of which there is a whole checkpoint."""
    return sorted(int(path.stem.split("-")[1]) for path in (run.path / folder).glob("step-*.index"))


def flip_a_byte(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x40
    path.write_bytes(data)


def data_of(run, step, folder="checkpoints"):
    return run.path / folder / f"step-{step}.data-00000-of-00001"
