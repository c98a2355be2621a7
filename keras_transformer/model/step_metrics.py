"""The metrics of a training step: from the sums behind the loss, over all replicas (TensorFlow).

Every replica holds an equal share of the totals, and Keras adds up the replicas. So what is shown is a true
mean over the real target tokens of all of them.
"""

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.model.loss import TokenStatistics, token_weights
from keras_transformer.model.metrics import Tally, TokenLoss, TokenMean
from keras_transformer.model.standard_metrics import needs_logits, share, update
from keras_transformer.model.step_sums import over_replicas


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
        # Every replica adds its share of the total, and Keras adds up the replicas.
        num_replicas = self.distribute_strategy.num_replicas_in_sync
        replicas = tf.cast(num_replicas, tf.float64)

        def shares(totals):
            return tf.nest.map_structure(lambda total: tf.cast(total, tf.float64) / replicas, totals)

        def counted(statistics):
            return (
                statistics
                if finite is None
                else TokenStatistics(*(tf.where(finite, each, 0.0) for each in statistics))
            )

        counts = shares(sums._replace(weighted=(), extra=()))
        plain = weighted = counted(counts.statistics)
        if sums.weighted:
            weighted = counted(shares(sums.weighted))
        loss = plain if shown is sums.statistics else counted(shares(shown))
        metrics = self._in_training.metrics
        if finite is not None and not any(isinstance(metric, Tally) for metric in metrics):
            loss = loss._replace(loss=self._or_nan(loss.loss, shown.loss, finite))
        one = 1.0 / replicas
        for metric in metrics:
            if isinstance(metric, TokenLoss):
                metric.add(loss)
            elif isinstance(metric, TokenMean):
                metric.add(weighted if metric in self._in_training.weighted else plain)
            elif isinstance(metric, Tally) and finite is not None:
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

    def _or_nan(self, loss, found, finite):
        """Returns a loss that tells of a skipped step where no `Tally` does, as `TerminateOnNaN` expects."""
        if isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
            finite = tf.math.is_finite(found)  # it finds its scale by gradients that overflow
        return tf.where(finite, loss, tf.constant(np.nan, loss.dtype))

    def _results(self, only=(TokenMean, Tally)):
        """Returns what the metrics are over all replicas: each replica holds a share of the sums."""
        found = {}
        replicas = self.distribute_strategy.num_replicas_in_sync
        for metric in self.metrics:
            if isinstance(metric, TokenMean) and TokenMean in only:
                found[metric.name] = metric.result()
            elif isinstance(metric, Tally) and Tally in only:
                totals = metric.result()
                norm = totals.pop("gradient_norm")
                found.update({name: total * replicas for name, total in totals.items()}, gradient_norm=norm)
            elif needs_logits(metric):
                result = metric.result()
                found.update(result if isinstance(result, dict) else {metric.name: result})
        return found


def _metric_variables(metrics):
    return [variable for metric in metrics for variable in metric.variables]
