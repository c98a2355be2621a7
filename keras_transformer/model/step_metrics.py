"""Sums and metrics of a training step, over all replicas (TensorFlow).

The sums of a step are added over all replicas first. Then every replica stores 1 / num_replicas of the totals
in its metric variables, because Keras sums these variables over replicas when it reads them. So each metric
is a true mean over the real target tokens of all replicas.
"""

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.model.inputs import LABELS_AS_TARGETS, batch_pair, check_shapes
from keras_transformer.model.keras_objectives import needs_logits, share_over_replicas, update_metric
from keras_transformer.model.loss import TokenStatistics, token_statistics, token_weights
from keras_transformer.model.metrics import StepCounters, TokenLoss, TokenMean


class Batch(NamedTuple):
    """The batch of one replica, possibly split into micro-batches; `sample_weight` may be `None`."""

    source_ids: Any
    target_ids: Any
    labels: Any
    sample_weight: Any

    @classmethod
    def from_data(cls, data):
        """Unpacks the data that `fit` passes to a step.

        Raises:
            TypeError, ValueError: the ids are ragged, or the labels have another shape than the target ids.
        """
        inputs, labels, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        source_ids, target_ids = batch_pair(inputs, labels)
        check_shapes(target_ids, labels, sample_weight)
        if None in tuple(labels.shape):  # the shapes can only be compared when the step runs
            labels = tf.reshape(labels, tf.shape(target_ids), name=LABELS_AS_TARGETS)
        return cls(source_ids, target_ids, labels, sample_weight)

    @property
    def has_micro_batches(self):
        """Whether the shapes are `(micro_batches, rows, length)`."""
        return len(self.labels.shape) == 3

    def micro_batch(self, index):
        """Returns one micro-batch as a `Batch`."""
        return Batch(*(None if array is None else array[index] for array in self))

    def split(self, number):
        """Splits a batch with axes `(rows, length)` into `number` batches with nearly equal numbers of rows.

        With fewer rows than batches, some are empty.

        Returns:
            list of `Batch`.
        """
        rows = tf.shape(self.labels)[0]
        bounds = [rows * index // number for index in range(number + 1)]
        return [
            Batch(*(None if array is None else array[begin:end] for array in self))
            for begin, end in itertools.pairwise(bounds)
        ]


class Normalizer(NamedTuple):
    """Scalars by which a sum of losses is divided to give a share of the loss of the whole update.

    Attributes:
        denominator: number of target tokens of all replicas and micro-batches; 1 or the sum of the sample
            weights for other reductions of the loss.
        num_parts: number of micro-batches of all replicas, without those that have no rows; at least 1.
    """

    denominator: Any
    num_parts: Any


class Sums(NamedTuple):
    """Sums over the batch of one replica, or over all replicas; scalars.

    Attributes:
        statistics: `TokenStatistics`, each summed over tokens.
        source_tokens: number of real source tokens.
        positions: number of positions on both sides, padding included.
        weighted: like `statistics`, with each token times its `sample_weight`; `()` without sample weights.
        extra: share of the loss that is not from tokens, such as regularization; `()` if there is none.
    """

    statistics: TokenStatistics
    source_tokens: Any
    positions: Any
    weighted: Any = ()
    extra: Any = ()

    @classmethod
    def from_statistics(cls, statistics, source_ids, labels, pad_id):
        """Sums the `TokenStatistics` of a batch."""
        source_tokens = tf.math.count_nonzero(source_ids != pad_id, dtype=tf.float32)
        positions = tf.cast(tf.size(source_ids) + tf.size(labels), tf.float32)
        return cls(TokenStatistics(*map(tf.reduce_sum, statistics)), source_tokens, positions)

    @classmethod
    def zeros(cls, has_weights):
        """Returns all sums as 0, to start an accumulation."""
        zeros = TokenStatistics(*[tf.zeros(())] * 4)
        return cls(zeros, tf.zeros(()), tf.zeros(()), zeros if has_weights else (), tf.zeros(()))

    @property
    def loss_statistics(self):
        """The `TokenStatistics` that the loss uses: with sample weights if there are any."""
        return self.weighted or self.statistics


def sum_over_replicas(values):
    """Returns the sum of `values` over all replicas; `values` itself if there is only one."""
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return values
    return replica.all_reduce(tf.distribute.ReduceOp.SUM, values)


class StepMetrics:
    """Mix-in of `TokenWeightedStep`: updates and reads the metrics."""

    if TYPE_CHECKING:  # what `keras.Model` has

        def __getattr__(self, name: str) -> Any: ...

    @property
    def metrics(self):
        compiled = list(self._compiled_state.metrics) if hasattr(self, "_compiled_state") else []
        return [*compiled, *_metrics_of_layers(self)]

    @property
    def _loss_tracker(self):
        """Metric of the mean loss, under the name by which a copy of Keras' `train_step` updates it."""
        if hasattr(self, "_compiled_state"):
            return self._compiled_state.metrics[0]
        return self.__dict__.get("_loss_tracker_of_keras")

    @_loss_tracker.setter
    def _loss_tracker(self, tracker):
        self.__dict__["_loss_tracker_of_keras"] = tracker  # not tracked, and not used by our own steps

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        """Updates the metrics of `compile`, for a `train_step` or `test_step` of your own.

        The mean loss is updated by `self._loss_tracker.update_state(loss)`, as in Keras.

        Args:
            x: pair `(source_ids, target_ids)`; not used.
            y: int labels, shape `(batch, length)`.
            y_pred: float logits, shape `(batch, length, vocab_size)`.
            sample_weight: float, shape `(batch, length)` or `(batch,)`, or `None`.

        Returns:
            dict from name to result.

        Raises:
            ValueError: `StepCounters` is among the metrics.
        """
        state, pad_id = self._compiled_state, self.loss.pad_id
        plain = weighted = token_statistics(y, y_pred, pad_id=pad_id)
        if sample_weight is not None:
            weights = token_weights(sample_weight, y, pad_id)
            weighted = TokenStatistics(*(values * weights for values in plain))
        for metric in state.metrics[1:]:
            if isinstance(metric, StepCounters):
                raise ValueError(
                    "StepCounters counts the steps of the package's own `train_step`. Leave it out of "
                    "`metrics`, or call `super().train_step(data)`"
                )
            if isinstance(metric, TokenMean):
                metric.add(weighted if metric in state.weighted_metrics else plain)
        self._update_logit_metrics(Batch(None, None, y, sample_weight), y_pred)
        return self.get_metrics_result()

    def interval_sums(self) -> dict[str, float]:
        """Returns the sums behind the metrics, over all replicas: {name: float}."""
        sums = {}
        for variable in _metric_variables(self.metrics):
            # One local replica is enough, as all hold equal shares. Reading the sum would need all workers.
            local = self.distribute_strategy.experimental_local_results(variable.value)[0]
            sums[variable.path] = float(local) * self.distribute_strategy.num_replicas_in_sync
        return sums

    def set_interval_sums(self, sums: dict[str, float]) -> None:
        """Restores the result of `interval_sums`."""
        strategy = self.distribute_strategy
        for variable in _metric_variables(self.metrics):
            # Assigns each local replica, because assigning the distributed variable would need all workers.
            share = np.asarray(sums[variable.path] / strategy.num_replicas_in_sync, variable.dtype)
            for local in strategy.experimental_local_results(variable.value):
                local.assign(share)

    def _metric_state(self):
        """Returns copies of the current variables of the metrics that need logits."""
        metrics = filter(needs_logits, self._compiled_state.metrics)
        return [tf.identity(variable) for variable in _metric_variables(metrics)]

    def _update_logit_metrics(self, batch, logits):
        """Updates the metrics that need logits with the batch of one replica."""
        if logits is None:
            return
        unweighted = tf.cast(batch.labels != self.loss.pad_id, tf.float32)
        weighted = unweighted
        if batch.sample_weight is not None:
            weighted = token_weights(batch.sample_weight, batch.labels, self.loss.pad_id)
        for metric in filter(needs_logits, self._compiled_state.metrics):
            weights = weighted if metric in self._compiled_state.weighted_metrics else unweighted
            update_metric(metric, batch.labels, logits, weights)

    def _logged_statistics(self, sums):
        """Returns `TokenStatistics` whose `loss / weight` is the loss of the whole update.

        Args:
            sums: `Sums` over all replicas.
        """
        statistics, has_extra = sums.loss_statistics, not isinstance(sums.extra, tuple)
        reduction, factor = self.loss.reduction, self._compiled_state.loss_factor
        if not has_extra and factor == 1 and reduction != "sum" and not sums.weighted:
            return sums.statistics
        if reduction == "sum":
            denominator = tf.ones(())
        elif reduction == "mean_with_sample_weight":
            denominator = statistics.weight
        else:
            denominator = sums.statistics.weight
        loss = statistics.loss if factor == 1 else factor * statistics.loss
        if self._overrides_compute_loss():
            loss = sums.extra * denominator
        elif has_extra:
            loss += sums.extra * denominator
        return statistics._replace(loss=loss, weight=denominator)

    def _add_to_metrics(self, sums, logged, metric_state, norm, finite):
        """Adds this replica's share of the totals to the metrics.

        Args:
            sums: `Sums` over all replicas.
            logged: `TokenStatistics` from `_logged_statistics`.
            metric_state: list of tensors, the result of `_metric_state` before the step.
            norm: scalar, global norm of the gradient; `None` in evaluation.
            finite: bool scalar; a step that is not finite changes only the counts of `StepCounters`.
                `None` in evaluation.
        """
        num_replicas = self.distribute_strategy.num_replicas_in_sync
        replicas = tf.cast(num_replicas, tf.float64)

        def shares(totals):
            return tf.nest.map_structure(lambda total: tf.cast(total, tf.float64) / replicas, totals)

        def zero_if_skipped(statistics):
            if finite is None:
                return statistics
            return TokenStatistics(*(tf.where(finite, total, 0.0) for total in statistics))

        counts = shares(sums._replace(weighted=(), extra=()))
        plain = weighted = zero_if_skipped(counts.statistics)
        if sums.weighted:
            weighted = zero_if_skipped(shares(sums.weighted))
        loss = plain if logged is sums.statistics else zero_if_skipped(shares(logged))
        metrics = self._compiled_state.metrics
        if finite is not None and not any(isinstance(metric, StepCounters) for metric in metrics):
            # Without a counter of skipped steps, the loss becomes NaN, as `TerminateOnNaN` expects. With loss
            # scaling, overflowing gradients are normal, so then only the loss itself decides.
            has_scale = isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer)
            valid = tf.math.is_finite(logged.loss) if has_scale else finite
            loss = loss._replace(loss=tf.where(valid, loss.loss, tf.constant(np.nan, loss.loss.dtype)))
        step_share = 1.0 / replicas
        for metric in metrics:
            if isinstance(metric, TokenLoss):
                metric.add(loss)
            elif isinstance(metric, TokenMean):
                metric.add(weighted if metric in self._compiled_state.weighted_metrics else plain)
            elif isinstance(metric, StepCounters) and finite is not None:
                metric.add(
                    {
                        "steps": step_share,
                        "skipped": tf.where(finite, tf.zeros_like(step_share), step_share),
                        "source_tokens": counts.source_tokens,
                        "target_tokens": counts.statistics.weight,  # includes skipped steps
                        "positions": counts.positions,
                        "gradient_norm": tf.where(finite, tf.cast(norm, tf.float64), 0.0) / replicas,
                    }
                )
        logit_metrics = filter(needs_logits, metrics)
        share_over_replicas(logit_metrics, metric_state, finite, sum_over_replicas, num_replicas)

    def _metric_results(self, only=(TokenMean, StepCounters)):
        """Returns a dict of the metrics over all replicas, from this replica's share of the sums."""
        results = {}
        replicas = self.distribute_strategy.num_replicas_in_sync
        for metric in self.metrics:
            if isinstance(metric, TokenMean) and TokenMean in only:
                results[metric.name] = metric.result()
            elif isinstance(metric, StepCounters) and StepCounters in only:
                totals = metric.result()
                norm = totals.pop("gradient_norm")
                results.update({name: total * replicas for name, total in totals.items()}, gradient_norm=norm)
            elif needs_logits(metric):
                result = metric.result()
                results.update(result if isinstance(result, dict) else {metric.name: result})
        return results


def check_overrides(model, *, recompute, towers):
    """Checks that the step calls what a subclass overrides, and counts what its layers count.

    Raises:
        ValueError: names the method, or the metric.
    """
    for method, base in (("compute_metrics", StepMetrics), ("get_metrics_result", keras.Model)):
        if getattr(type(model), method) is not getattr(base, method):
            raise ValueError(
                f"{type(model).__name__} overrides `{method}`, which the token-weighted step does not "
                "call. Give metrics to `compile`, or override `train_step` and `test_step`"
            )
    several = recompute or towers > 1 or model.distribute_strategy.num_replicas_in_sync > 1
    metrics = _metrics_of_layers(model)
    if several and metrics:
        raise ValueError(
            f"a layer updates the metric {metrics[0].name!r} itself, once for each replica, tower and "
            "recomputation. Use one device, towers=1 and recompute=False, or give the metric to `compile`"
        )


def _metrics_of_layers(model):
    """Returns the metrics that are attributes of the model or of its layers, which their calls update."""
    return list(
        {id(metric): metric for layer in model._flatten_layers() for metric in layer._metrics}.values()
    )


def _metric_variables(metrics):
    return [variable for metric in metrics for variable in metric.variables]
