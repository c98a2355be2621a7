"""What a training step adds up, over all replicas, and the metrics that it shows (TensorFlow).

Every replica holds an equal share of the totals, and Keras adds up the replicas. So what is shown is a true
mean over the real target tokens of all of them.
"""

from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.model.inputs import LABELS_AS_TARGETS, batch_pair, check_shapes
from keras_transformer.model.keras_objectives import needs_logits, share, update
from keras_transformer.model.loss import TokenStatistics, token_weights
from keras_transformer.model.metrics import StepCounters, TokenLoss, TokenMean


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
        source_ids, target_ids = batch_pair(inputs, labels)
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


class StepMetrics:
    """Mix-in of `TokenWeightedStep`: its metrics, and what is read from them."""

    @property
    def metrics(self):
        return list(self._in_training.metrics) if hasattr(self, "_in_training") else []

    def interval_sums(self):
        """Returns the sums behind the metrics, over all replicas: {name: float}."""
        found = {}
        for variable in _metric_variables(self.metrics):
            # All replicas hold the same; to read a sum over workers, all would have to.
            local = self.distribute_strategy.experimental_local_results(variable.value)[0]
            found[variable.path] = float(local) * self.distribute_strategy.num_replicas_in_sync
        return found

    def set_interval_sums(self, sums):
        """Puts back what `interval_sums` returned."""
        strategy = self.distribute_strategy
        for variable in _metric_variables(self.metrics):
            # Assigned as a whole it would be read again, over all workers; here each acts alone.
            share = np.asarray(sums[variable.path] / strategy.num_replicas_in_sync, variable.dtype)
            for local in strategy.experimental_local_results(variable.value):
                local.assign(share)

    def _metric_state(self):
        """Returns the variables of the metrics that need logits, as they are now."""
        return [
            tf.identity(each) for each in _metric_variables(filter(needs_logits, self._in_training.metrics))
        ]

    def _update_metrics(self, batch, logits):
        """Adds what one replica finds to the metrics that need logits."""
        if logits is None:
            return
        real = tf.cast(batch.labels != self.loss.pad_id, tf.float32)
        weighted = real
        if batch.sample_weight is not None:
            weighted = token_weights(batch.sample_weight, batch.labels, self.loss.pad_id)
        for metric in filter(needs_logits, self._in_training.metrics):
            weights = weighted if metric in self._in_training.weighted else real
            update(metric, batch.labels, logits, weights)

    def _shown(self, sums):
        """Returns `TokenStatistics` whose `loss / weight` is the loss of the whole update.

        Args:
            sums: `Sums` over all replicas.
        """
        counted, has_extra = sums.counted, not isinstance(sums.extra, tuple)
        reduction, factor = self.loss.reduction, self._in_training.factor
        if not has_extra and factor == 1 and reduction != "sum" and not sums.weighted:
            return sums.statistics
        if reduction == "sum":
            tokens = tf.ones(())
        elif reduction == "mean_with_sample_weight":
            tokens = counted.weight
        else:
            tokens = sums.statistics.weight
        loss = counted.loss if factor == 1 else factor * counted.loss
        if self._has_own_loss():
            loss = sums.extra * tokens
        elif has_extra:
            loss += sums.extra * tokens
        return counted._replace(loss=loss, weight=tokens)

    def _add_to_metrics(self, sums, shown, before, norm, finite):
        """Adds this replica's share of the totals; where the step is not `finite`, only to its counts."""
        num_replicas = self.distribute_strategy.num_replicas_in_sync
        replicas = tf.cast(num_replicas, tf.float64)

        def shares(totals):
            return tf.nest.map_structure(lambda total: tf.cast(total, tf.float64) / replicas, totals)

        def counted(statistics):
            if finite is None:
                return statistics
            return TokenStatistics(*(tf.where(finite, each, 0.0) for each in statistics))

        counts = shares(sums._replace(weighted=(), extra=()))
        plain = weighted = counted(counts.statistics)
        if sums.weighted:
            weighted = counted(shares(sums.weighted))
        loss = plain if shown is sums.statistics else counted(shares(shown))
        metrics = self._in_training.metrics
        if finite is not None and not any(isinstance(metric, StepCounters) for metric in metrics):
            # Nobody counts the skipped step, so the loss shows it, as `TerminateOnNaN` expects. But a scale
            # of the loss is found by gradients that overflow.
            scaled = isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer)
            shows = tf.math.is_finite(shown.loss) if scaled else finite
            loss = loss._replace(loss=tf.where(shows, loss.loss, tf.constant(np.nan, loss.loss.dtype)))
        one = 1.0 / replicas
        for metric in metrics:
            if isinstance(metric, TokenLoss):
                metric.add(loss)
            elif isinstance(metric, TokenMean):
                metric.add(weighted if metric in self._in_training.weighted else plain)
            elif isinstance(metric, StepCounters) and finite is not None:
                metric.add(
                    {
                        "steps": one,
                        "skipped": tf.where(finite, tf.zeros_like(one), one),
                        "source_tokens": counts.source_tokens,
                        "target_tokens": counts.statistics.weight,  # those of skipped steps, too
                        "positions": counts.positions,
                        "gradient_norm": tf.where(finite, tf.cast(norm, tf.float64), 0.0) / replicas,
                    }
                )
        share(filter(needs_logits, metrics), before, finite, over_replicas, num_replicas)

    def _results(self, only=(TokenMean, StepCounters)):
        """Returns what the metrics are over all replicas: each replica holds a share of the sums."""
        found = {}
        replicas = self.distribute_strategy.num_replicas_in_sync
        for metric in self.metrics:
            if isinstance(metric, TokenMean) and TokenMean in only:
                found[metric.name] = metric.result()
            elif isinstance(metric, StepCounters) and StepCounters in only:
                totals = metric.result()
                norm = totals.pop("gradient_norm")
                found.update({name: total * replicas for name, total in totals.items()}, gradient_norm=norm)
            elif needs_logits(metric):
                result = metric.result()
                found.update(result if isinstance(result, dict) else {metric.name: result})
        return found


def _metric_variables(metrics):
    return [variable for metric in metrics for variable in metric.variables]
