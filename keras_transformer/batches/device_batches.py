"""The share of every batch that one worker trains on, cut for its devices.

A batch is one update. Its rows go to workers, replicas and micro-batches in turn, as cards
are dealt, so all have equal shapes and almost equal work; rows that are missing at the end
are padding, which counts for nothing.
"""

from typing import NamedTuple

import tensorflow as tf


class DeviceShare(NamedTuple):
    """What one worker takes of every batch; the default is the whole batch in one piece.

    Attributes:
        num_workers: number of processes that read the same batches.
        worker: number of this one.
        num_replicas: devices of this worker.
        device_tokens: budget of one device in padded tokens, for source and for target each;
            a larger part is cut into micro-batches. 0 for no limit, and no micro-batches.
    """

    num_workers: int = 1
    worker: int = 0
    num_replicas: int = 1
    device_tokens: int = 0

    def shape(self, plan):
        """Returns (micro_batches, rows, source_len, target_len) of each replica's part of a `BatchPlan`."""
        replicas = self.num_workers * self.num_replicas
        micro_batches = 1
        if self.device_tokens:
            fitting = self.device_tokens // max(plan.source_len, plan.target_len)
            micro_batches = -(-plan.rows // (replicas * fitting))
        return micro_batches, -(-plan.rows // (replicas * micro_batches)), plan.source_len, plan.target_len

    def own(self, rows):
        """Returns the rows of a batch that are this worker's: every n-th of an array, tensor or list."""
        return rows[self.worker :: self.num_workers]

    def deal(self, ids, micro_batches, rows):
        """Deals this worker's rows to its replicas, in the graph.

        Args:
            ids: int32 tensor of shape `(number, length)`, the replicas' rows together, padding included.
            micro_batches: number of micro-batches, a scalar tensor.
            rows: rows of one micro-batch of one replica, a scalar tensor.

        Returns:
            int32 tensor of shape `(num_replicas, rows, length)`, or with `device_tokens`
            `(num_replicas, micro_batches, rows, length)`.
        """
        parts = self.num_replicas * micro_batches
        # Row r of part p is row `r * parts + p` of all.
        order = tf.range(rows)[None, :] * parts + tf.range(parts)[:, None]
        dealt = tf.gather(ids, tf.reshape(order, [-1]))
        length = tf.shape(ids, tf.int64)[1]
        if not self.device_tokens:
            return tf.reshape(dealt, [self.num_replicas, rows, length])
        return tf.reshape(dealt, [self.num_replicas, micro_batches, rows, length])
