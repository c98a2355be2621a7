"""Batches cut for devices: the same rows, whatever the number of workers and replicas.

A batch is one update. Its rows go to workers, replicas and micro-batches in turn, as cards
are dealt, so all have equal shapes and almost equal work; rows that are missing at the end
are padding, which counts for nothing.
"""

import tensorflow as tf

from keras_transformer.batches.token_batches import id_dataset


class Portions:
    """The part of every batch that one worker trains on.

    Args:
        batches: `TokenBatches` of the whole update.
        num_workers: how many processes read the same batches.
        worker: number of this one.
        num_replicas: devices of this worker.
        device_tokens: budget of one device in padded tokens, for source and for target each;
            a larger part is cut into micro-batches. 0 for no limit, and no micro-batches.

    An element is the part of one replica; those of a batch follow each other. Its arrays have
    shape `(rows, length)`, or with a budget `(micro_batches, rows, length)`.
    """

    def __init__(self, batches, *, num_workers=1, worker=0, num_replicas=1, device_tokens=0):
        self.batches = batches
        self.num_workers = num_workers
        self.worker = worker
        self.num_replicas = num_replicas
        self.device_tokens = device_tokens

    def forever(self, start=0):
        """Returns an endless `tf.data.Dataset`.

        Args:
            start: number of batches of the whole run that are skipped, unmade.
        """
        dataset = self._dataset(lambda: self.batches.plans(start))
        return dataset.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))

    def once(self):
        """Returns a `tf.data.Dataset` of every pair once, in the order of epoch 0."""
        dataset = self._dataset(lambda: iter(self.batches.plan(0)))
        count = self.batches.per_epoch * self.num_replicas
        return dataset.apply(tf.data.experimental.assert_cardinality(count))

    def shape(self, plan):
        """Returns (micro_batches, rows, source_len, target_len) of each replica's part of a batch."""
        replicas = self.num_workers * self.num_replicas
        micro_batches = 1
        if self.device_tokens:
            fitting = self.device_tokens // max(plan.source_len, plan.target_len)
            micro_batches = -(-plan.rows // (replicas * fitting))
        return micro_batches, -(-plan.rows // (replicas * micro_batches)), plan.source_len, plan.target_len

    def parts(self, plans):
        """Yields the parts of this worker's replicas, batch after batch.

        Args:
            plans: iterator of `BatchPlan`s of whole batches.
        """
        shapes = []

        def own():
            for plan in plans:
                shape = self.shape(plan)
                shapes.append(shape)
                rows = shape[0] * shape[1] * self.num_replicas
                yield plan._replace(rows=rows, part=(self.worker, self.num_workers))

        for inputs, labels in self.batches.batches(own()):
            shape = shapes.pop(0)
            dealt = [self._dealt(array, *shape[:2]) for array in (*inputs, labels)]
            for source_ids, target_ids, its_labels in zip(*dealt, strict=True):
                yield (source_ids, target_ids), its_labels

    def _dataset(self, make_plans):
        return id_dataset(lambda: self.parts(make_plans()), axes=3 if self.device_tokens else 2)

    def _dealt(self, array, micro_batches, rows):
        """Returns an array of shape `(replicas, [micro_batches,] rows, length)`."""
        dealt = array.reshape(rows, self.num_replicas, micro_batches, -1).transpose(1, 2, 0, 3)
        return dealt if self.device_tokens else dealt[:, 0]
