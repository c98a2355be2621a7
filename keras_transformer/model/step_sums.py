"""What a training step adds up: the batch of a replica, and the sums over its tokens (TensorFlow)."""

from typing import NamedTuple

import keras
import tensorflow as tf

from keras_transformer.model.inputs import LABELS_AS_TARGETS, check_shapes, pair, refuse_ragged
from keras_transformer.model.loss import TokenStatistics


class Batch(NamedTuple):
    """A batch, or micro-batches, of one replica; `sample_weight` may be `None`."""

    source_ids: object
    target_ids: object
    labels: object
    sample_weight: object

    @classmethod
    def of(cls, data):
        """Takes apart what `fit` gives to a step; refuses ragged ids and labels of another shape."""
        inputs, labels, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        refuse_ragged("labels", labels)
        source_ids, target_ids = pair(inputs)
        check_shapes(target_ids, labels, sample_weight)
        if None in tuple(labels.shape):  # not compared yet
            labels = tf.reshape(labels, tf.shape(target_ids), name=LABELS_AS_TARGETS)
        return cls(source_ids, target_ids, labels, sample_weight)

    @property
    def has_micro_batches(self):
        """Whether the shapes are `(micro_batches, rows, length)`."""
        return len(self.labels.shape) == 3

    def micro_batch(self, number):
        """Returns one of them as a `Batch`."""
        return Batch(*(None if each is None else each[number] for each in self))


class Whole(NamedTuple):
    """What a loss is divided by to be a share of that of the whole update; scalars.

    Attributes:
        tokens: of all replicas and micro-batches, or what the loss is divided by in their place.
        parts: number of replicas times number of micro-batches.
    """

    tokens: object
    parts: object


class Sums(NamedTuple):
    """Sums over the rows of a replica, or of all; scalars.

    Attributes:
        weighted: the same as `statistics`, each token times its `sample_weight`; `()` without.
        extra: share of what is added to the loss of the whole update, such as regularization; `()` for
            nothing.
    """

    statistics: TokenStatistics
    source_tokens: object
    positions: object
    weighted: object = ()
    extra: object = ()

    @classmethod
    def of(cls, statistics, source_ids, labels, pad_id):
        """Adds up the `TokenStatistics` of a batch."""
        source_tokens = tf.math.count_nonzero(source_ids != pad_id, dtype=tf.float32)
        positions = tf.cast(tf.size(source_ids) + tf.size(labels), tf.float32)
        return cls(TokenStatistics(*map(tf.reduce_sum, statistics)), source_tokens, positions)

    @classmethod
    def zeros(cls, has_weights):
        """Makes those of no batch."""
        none = TokenStatistics(*[tf.zeros(())] * 4)
        return cls(none, tf.zeros(()), tf.zeros(()), none if has_weights else (), tf.zeros(()))

    @property
    def counted(self):
        """`TokenStatistics` in which each token counts what it is to count in the loss."""
        return self.weighted or self.statistics


def over_replicas(values):
    """Returns the sum over all replicas; `values` where there is one."""
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return values
    return replica.all_reduce(tf.distribute.ReduceOp.SUM, values)
