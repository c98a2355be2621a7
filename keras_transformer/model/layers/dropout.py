"""Dropout that differs between the replicas of a distribution strategy."""

import contextlib

import keras
from keras import ops

from keras_transformer.model.kernels.dropout import dropout
from keras_transformer.model.layers.dense import PACKAGE


class SeedGenerator(keras.random.SeedGenerator):
    """Keras' own, with the number of the replica folded into what it draws.

    Keras gives all replicas the same seeds, and so the same masks for other sentences.
    Its state stays the same on all of them; on one device it draws what Keras' does.
    """

    def next(self, ordered=True):
        """Returns the seed of the next draw, and moves on."""
        return _fold_in_replica(super().next(ordered))


@keras.saving.register_keras_serializable(package=PACKAGE)
class Dropout(keras.layers.Layer):
    """Sets a share of the inputs to 0 in training, others on every replica.

    Args:
        rate: that share, at least 0 and below 1; what is left is scaled by 1 / (1 - rate). The
            fast form takes the nearest multiple of 1 / 65,536.
        seed: int; `None` draws one.
    """

    def __init__(self, rate, *, seed=None, **kwargs):
        super().__init__(**kwargs)
        if not 0 <= rate < 1:
            raise ValueError(f"`rate` must be at least 0 and below 1. Received: rate={rate}")
        self.rate = rate
        self.seed = seed
        self.supports_masking = True
        self._seed = None
        if rate > 0:
            self.seed_generator = SeedGenerator(seed)

    def build(self, inputs_shape=None):
        """Has no weights."""

    def call(self, inputs, training=None):
        if not training or self.rate == 0:
            return inputs
        return dropout(inputs, self.rate, self.draw_seed() if self._seed is None else self._seed)

    def draw_seed(self):
        """Returns the seed that the next call would draw, which draws the one after it."""
        return self.seed_generator.next()

    @contextlib.contextmanager
    def fixed(self, seed):
        """While this lasts, calls use a seed of `draw_seed`."""
        self._seed = seed
        try:
            yield
        finally:
            self._seed = None

    def compute_output_shape(self, inputs_shape):
        return inputs_shape

    def get_config(self):
        return {**super().get_config(), "rate": self.rate, "seed": self.seed}


def _fold_in_replica(seed):
    if keras.backend.backend() != "tensorflow":
        return seed
    import tensorflow as tf

    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return seed
    number = tf.cast(replica.replica_id_in_sync_group, tf.int32)
    folded = tf.random.experimental.stateless_fold_in(ops.cast(seed, "int64"), number)
    return ops.cast(folded, seed.dtype)
