"""Pairs of id sequences to token-bucketed batches.

`EpochPlanner` says which pairs share a batch; here they are gathered and padded, and
handed to TensorFlow. A run that continues at batch k of epoch e makes none of the batches
before it. Rows left over in a batch are padding, which the loss does not count, so no
pair is lost.
"""

import itertools

import numpy as np
import tensorflow as tf

from keras_transformer.batches.planning import EpochPlanner

_BATCHES_AHEAD = 2


class TokenBatches:
    """Token-bucketed batches of one set of pairs.

    Args:
        pairs: `IdPairs`.
        special: `SpecialIds`.
        **plan: `batch_tokens`, `seed`, `padding` and so on, as `EpochPlanner` takes them.

    A batch is `((source_ids, target_ids), labels)`, int32: source ids and labels end with
    eos, target ids start with bos and lag one token behind the labels.
    """

    def __init__(self, pairs, *, special, **plan):
        self.pairs = pairs
        self.special = special
        self.planner = EpochPlanner(*self._planned_lengths(), **plan)

    def _planned_lengths(self):
        return self.pairs.source.lengths, self.pairs.target.lengths

    @property
    def per_epoch(self):
        """Number of batches of the first epoch; later ones have about as many."""
        return self.planner.num_batches(0)

    def plan(self, epoch):
        """Returns the `BatchPlan`s of one epoch, in order."""
        return self.planner.plan(epoch)

    def batch(self, plan):
        """Returns the batch of one `BatchPlan`, int32 NumPy arrays.

        Returns:
            `((source_ids, target_ids), labels)`, of shapes `(rows, source_len)`,
            `(rows, target_len)` and `(rows, target_len)`.
        """
        source_ids, labels = (
            sequences.padded(indices, plan.rows, length, self.special.pad)
            for (sequences, indices), length in zip(
                self._sequences(plan), (plan.source_len, plan.target_len), strict=True
            )
        )
        return self.with_target_ids(source_ids, labels)

    def with_target_ids(self, source_ids, labels):
        """Returns a batch, with the decoder's input made from the labels."""
        target_ids = np.empty_like(labels)
        target_ids[:, 0] = self.special.bos
        target_ids[:, 1:] = labels[:, :-1]
        return (source_ids, target_ids), labels

    def batches(self, plans):
        """Yields the batch of each of some plans, in order."""
        return map(self.batch, plans)

    def _sequences(self, plan):
        """Yields for each side the sequences, and which of them the batch holds."""
        for sequences in self.pairs:
            yield sequences, plan.own

    def plans(self, start=0):
        """Yields the `BatchPlan`s of the endless stream.

        Args:
            start: number of batches of the whole run that are skipped, unmade.
        """
        first_epoch, skipped = self.planner.locate(start)
        for epoch in itertools.count(first_epoch):
            yield from self.plan(epoch)[skipped:]
            skipped = 0

    def forever(self, start=0):
        """Returns an endless `tf.data.Dataset`, epoch after epoch.

        Args:
            start: number of batches of the whole run that are skipped, unmade.
        """
        dataset = id_dataset(lambda: self.batches(self.plans(start)), axes=2)
        return dataset.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))

    def once(self):
        """Returns a `tf.data.Dataset` of every pair once, in the order of epoch 0."""
        dataset = id_dataset(lambda: self.batches(iter(self.plan(0))), axes=2)
        return dataset.apply(tf.data.experimental.assert_cardinality(self.per_epoch))


def id_dataset(make_batches, *, axes):
    """Returns a `tf.data.Dataset` of `((source_ids, target_ids), labels)`, int32.

    Args:
        make_batches: function of no argument that returns an iterator of them.
        axes: their number of axes.
    """
    ids = tf.TensorSpec((None,) * axes, tf.int32)
    made = tf.data.Dataset.from_generator(make_batches, output_signature=((ids, ids), ids))
    return untuned(made.prefetch(_BATCHES_AHEAD))


def untuned(dataset):
    """Returns a `tf.data.Dataset` without the thread that tunes it, for which its end would wait.

    That thread looks every 10 ms at first, then half as often each time, every 60 s in the end.
    When its iterator is deleted, TensorFlow wakes it before it says that it is over, so that it
    may fall asleep once more: the deletion, and with it the whole process, waits for up to a
    minute. There is nothing to tune in a queue of two batches that are made in Python.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)
