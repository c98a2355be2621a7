"""The token-weighted training step, for `model.fit` and any distribution strategy (TensorFlow).

The loss of an update is the sum over all its target tokens divided by their number, for any number of
replicas and micro-batches. The gradient is that of this loss. The step differs from Keras' own in three ways:

- Keras averages the mean losses of the replicas, so tokens of replicas with few tokens weigh more.
- Keras computes every metric from the logits again; here loss and metrics share one pass.
- Keras applies NaN gradients; here a step without a finite gradient and loss changes no weight.

Other features of Keras' step, such as `sample_weight` and `add_loss`, work here too or raise an error.

`step_metrics.py` sums up metrics, `weight_update.py` updates the weights, and `keras_workarounds.py` adapts
`compile` and `fit`.
"""

from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from keras_transformer.config.types import Tensor
from keras_transformer.model.keras_objectives import needs_logits
from keras_transformer.model.keras_workarounds import KerasWorkarounds, num_workers
from keras_transformer.model.loss import TokenStatistics, token_weights
from keras_transformer.model.metrics import TokenMean
from keras_transformer.model.step_metrics import Batch, Normalizer, StepMetrics, Sums, sum_over_replicas
from keras_transformer.model.weight_update import update_weights


class TokenWeightedStep(KerasWorkarounds, StepMetrics):
    """Mix-in for a `keras.Model` whose outputs are logits over a vocabulary.

    A batch is `((source_ids, target_ids), labels)`, int, with shapes `(rows, length)`. With shapes
    `(micro_batches, rows, length)`, the gradients of the micro-batches are summed before a single update.
    """

    if TYPE_CHECKING:  # what `keras.Model` has

        def __getattr__(self, name: str) -> Any: ...
        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def train_step(self, data):
        self._compiled_state.own_step_ran = True
        batch = Batch.from_data(data)
        normalizer = self._normalizer(batch)  # the number of target tokens of the whole update
        metric_state = self._metric_state()
        # Gradients of (sum of this replica's losses) / (tokens of all replicas), so replicas are summed.
        gradients, sums, logits = self._compiled_state.gradients(batch, normalizer)
        self._update_logit_metrics(batch, logits)
        gradients, sums, requests = sum_over_replicas((gradients, sums, self._worker_requests()))

        scale = self._loss_scale()
        norm = tf.linalg.global_norm(gradients) / scale
        logged = self._logged_statistics(sums)
        finite = tf.math.is_finite(norm) & tf.math.is_finite(logged.loss)
        unused = getattr(self._compiled_state, "unused", ())
        update_weights(
            self.optimizer,
            [weight for index, weight in enumerate(self.trainable_variables) if index not in unused],
            [gradient for index, gradient in enumerate(gradients) if index not in unused],
            norm,
            finite=finite,
            has_tokens=sums.statistics.weight > 0,  # false for the batch that only probes the memory
            averages=self._compiled_state.averages,
            decay=self._compiled_state.ema_decay,
        )
        self._add_to_metrics(sums, logged, metric_state, norm, finite)
        logs = self._metric_results()
        if num_workers(self.distribute_strategy) > 1:
            logs["requests"] = requests
        return logs

    def _normalizer(self, batch):
        """Returns the `Normalizer` of the whole update; all replicas must call it."""
        pad_id = self.loss.pad_id
        if self.loss.reduction == "sum":
            return Normalizer(tf.ones(()), self._num_parts(batch))
        if self.loss.reduction == "mean_with_sample_weight" and batch.sample_weight is not None:
            weights = token_weights(batch.sample_weight, batch.labels, pad_id)
            total = sum_over_replicas(tf.reduce_sum(weights))
            return Normalizer(tf.where(total > 0, total, 1.0), self._num_parts(batch))
        tokens = tf.math.count_nonzero(batch.labels != pad_id, dtype=tf.float32)
        return Normalizer(tf.maximum(sum_over_replicas(tokens), 1.0), self._num_parts(batch))

    def _gradients(self, batch, normalizer):
        """Returns this replica's gradients (times the loss scale, with float16), its `Sums` and its logits.

        The logits are `None` if no metric needs them any more.
        """
        if batch.has_micro_batches:
            return *self._sum_micro_batches(batch, normalizer, training=True), None
        return self._sum_towers(self._tower_gradients, batch, normalizer)

    def _sum_towers(self, compute, batch, normalizer):
        """Computes the towers of a batch, parts that do not wait for each other, and adds their results.

        Args:
            compute: function, `(Batch, Normalizer)` -> `(gradients, Sums, logits)`.
            batch: `Batch` with axes `(rows, length)`.
            normalizer: `Normalizer` of the whole update.

        Returns:
            `(gradients, Sums, logits)`, as `compute`, of the whole batch.
        """
        towers = self._compiled_state.towers
        if towers == 1:
            return compute(batch, normalizer)
        rows = tf.cast(tf.shape(batch.labels)[0], tf.float32)
        used = tf.clip_by_value(rows, 1.0, towers)  # towers that are not empty
        normalizer = normalizer._replace(num_parts=used * normalizer.num_parts)
        results = [compute(part, normalizer) for part in batch.split(towers)]
        gradients, sums, logits = zip(*results, strict=True)
        gradients, sums = tf.nest.map_structure(
            lambda *parts: tf.add_n(parts), *zip(gradients, sums, strict=True)
        )
        return gradients, sums, None if logits[0] is None else tf.concat(logits, axis=0)

    def _tower_gradients(self, batch, normalizer):
        """As `_gradients`, of a batch or a part of one that is computed at once."""
        weights = self.trainable_variables
        with tf.GradientTape() as tape:
            sums, logits = self._sums(batch, normalizer, training=True)
            loss = self._replica_loss(sums, normalizer) * self._loss_scale()
        gradients = tape.gradient(loss, weights)
        if self._overrides_compute_loss() and all(gradient is None for gradient in gradients):
            raise ValueError("`compute_loss` has no gradient for any weight: compute it from `y_pred`")
        # As in Keras, weights that the loss does not depend on are not updated, nor do they decay.
        unused = {index for index, gradient in enumerate(gradients) if gradient is None}
        self._compiled_state.unused = unused & getattr(self._compiled_state, "unused", unused)
        gradients = [
            tf.zeros(weight.shape, weight.dtype) if gradient is None else gradient
            for weight, gradient in zip(weights, gradients, strict=True)
        ]
        return list(map(tf.convert_to_tensor, gradients)), sums, logits

    def _tower_sums(self, batch, normalizer):
        """As `_tower_gradients`, for evaluation: without gradients or dropout."""
        return [], *self._sums(batch, normalizer, training=False)

    def _replica_loss(self, sums, normalizer):
        """Returns this replica's share of the loss of the whole update."""
        if self._overrides_compute_loss():
            return sums.extra
        loss = sums.loss_statistics.loss / normalizer.denominator
        if self._compiled_state.loss_factor != 1:
            loss *= self._compiled_state.loss_factor
        return loss if isinstance(sums.extra, tuple) else loss + sums.extra

    def _num_parts(self, batch):
        """Returns the number of micro-batches of all replicas that have rows, at least 1; float scalar.

        All replicas must call it. A batch without micro-batches counts as one.
        """
        *micro_batches, rows, _ = tf.unstack(tf.shape(batch.labels))
        parts = tf.where(rows > 0, micro_batches[0] if micro_batches else 1, 0)
        return tf.maximum(sum_over_replicas(tf.cast(parts, tf.float32)), 1.0)

    def _sum_micro_batches(self, batches, normalizer, training):
        """Returns gradients and `Sums`, summed over micro-batches; in evaluation, no gradients or dropout."""
        has_extra = False

        def body(index, gradients, sums):
            nonlocal has_extra
            batch = batches.micro_batch(index)
            if training:
                new_gradients, new_sums, logits = self._gradients(batch, normalizer)
            else:
                new_sums, logits = self._sums(batch, normalizer, training=False)
                new_gradients = []
            self._update_logit_metrics(batch, logits)
            if isinstance(new_sums.extra, tuple):
                new_sums = new_sums._replace(extra=tf.zeros(()))
            else:
                has_extra = True
            new = new_gradients, new_sums
            return index + 1, *tf.nest.map_structure(tf.add, (gradients, sums), new)

        count = tf.shape(batches.labels)[0]
        zeros = [tf.zeros(weight.shape, weight.dtype) for weight in self.trainable_variables if training]
        _, gradients, sums = tf.while_loop(
            lambda index, *_: index < count,
            body,
            (0, zeros, Sums.zeros(batches.sample_weight is not None)),
            parallel_iterations=1,  # keeps the activations of only one micro-batch in memory
        )
        return gradients, sums if has_extra else sums._replace(extra=())

    def _sums(self, batch, normalizer, training):
        """Returns `Sums`, and the logits if a metric needs them, else `None`."""
        inputs, labels = (batch.source_ids, batch.target_ids), batch.labels
        logits = None
        if self._needs_logits():
            logits = self(inputs, training=training)
            statistics = self.loss.statistics(labels, logits)
        else:
            self._clear_losses()  # `__call__`, which is bypassed here, does this too
            statistics = self.statistics(inputs, labels, training=training)
        sums = Sums.from_statistics(statistics, batch.source_ids, labels, self.loss.pad_id)
        if batch.sample_weight is not None:
            weights = token_weights(batch.sample_weight, labels, self.loss.pad_id)
            sums = sums._replace(
                weighted=TokenStatistics(*(tf.reduce_sum(values * weights) for values in statistics))
            )
        extra = self._extra_loss(inputs, batch, logits, normalizer, training)
        if extra is not None:
            # The mean over the rows of an empty tower or replica would be NaN.
            extra = tf.where(tf.shape(labels)[0] > 0, extra / normalizer.num_parts, 0.0)
            sums = sums._replace(extra=extra)
        return sums, logits if any(map(needs_logits, self._compiled_state.metrics)) else None

    def _extra_loss(self, inputs, batch, logits, normalizer, training):
        """Returns the loss of an overridden `compute_loss`, else the sum of `losses`, else `None`."""
        if not self._overrides_compute_loss():
            losses = self.losses
            return _add_losses(0.0, losses) if losses else None
        self._compiled_state.normalizer = normalizer
        try:
            loss = self._compute_loss(
                x=inputs, y=batch.labels, y_pred=logits, sample_weight=batch.sample_weight, training=training
            )
        finally:
            self._compiled_state.normalizer = None
        loss = tf.convert_to_tensor(loss)
        if loss.shape.rank != 0:
            raise ValueError(f"`compute_loss` must return a scalar. Received: shape {tuple(loss.shape)}")
        return tf.cast(loss, tf.float32)

    def test_step(self, data):
        batch = Batch.from_data(data)
        metric_state = self._metric_state()
        overrides = self._overrides_compute_loss()
        normalizer = self._normalizer(batch) if overrides else Normalizer(None, self._num_parts(batch))
        if batch.has_micro_batches:
            _, sums = self._sum_micro_batches(batch, normalizer, training=False)
        else:
            _, sums, logits = self._sum_towers(self._tower_sums, batch, normalizer)
            self._update_logit_metrics(batch, logits)
        sums = sum_over_replicas(sums)
        self._add_to_metrics(sums, self._logged_statistics(sums), metric_state, None, None)
        return self._metric_results(only=(TokenMean,))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """Returns the loss of a batch, a scalar. Override it to change the loss; the override may call it.

        Inside a step it is called once per replica and micro-batch, and the step takes the mean of the
        results, also of an override's, without parts that have no rows. The result is scaled so that this
        mean is the loss of the whole update, in which every token has the same weight.

        Args:
            x: pair `(source_ids, target_ids)`.
            y: int labels, shape `(batch, length)`.
            y_pred: float logits, shape `(batch, length, vocab_size)`.
            sample_weight: float, shape `(batch, length)` or `(batch,)`, or `None`.
            training: whether the loss is for a gradient.
        """
        normalizer = self._compiled_state.normalizer
        if normalizer is None:
            loss = self.loss(y, y_pred, sample_weight)
        else:
            token_losses = self.loss.statistics(y, y_pred).loss
            if sample_weight is not None:
                token_losses *= token_weights(sample_weight, y, self.loss.pad_id)
            loss = tf.reduce_sum(token_losses) / normalizer.denominator * normalizer.num_parts
        return _add_losses(self._compiled_state.loss_factor * loss, self.losses)

    def statistics(self, inputs: Any, labels: Tensor, training: bool | None = None) -> TokenStatistics:
        """Returns the `TokenStatistics` of a batch."""
        return self.loss.statistics(labels, self(inputs, training=training))

    @property
    def ema_weights(self) -> list[Any]:
        """List of `tf.Variable`, moving averages of the variables that `compile` found trainable.

        It is empty without `ema_decay`.
        """
        if self._compiled_state.averages_are_stale:
            self.reset_ema()
            # Keras reads every property while it loads a file, before all weights are loaded. So the
            # averages follow the weights until training starts.
            self._compiled_state.averages_are_stale = True
        return [averaged for _, averaged in self._compiled_state.averages]

    def reset_ema(self) -> None:
        """Resets the moving averages to the current weights."""
        for weight, averaged in self._compiled_state.averages:
            averaged.assign(weight.value)
        self._compiled_state.averages_are_stale = False

    @property
    def requests(self) -> Tensor:
        """`tf.Variable`, float32, shape `(REQUESTS,)`: requests of this worker to all workers.

        With several workers, the logs of each step contain their sum over all workers as `"requests"`.
        """
        return self._compiled_state.requests

    def _worker_requests(self):
        """Returns `requests` as a tensor to sum over workers; empty with one worker."""
        return tf.identity(self.requests) if num_workers(self.distribute_strategy) > 1 else tf.zeros(0)

    def _overrides_compute_loss(self):
        return type(self).compute_loss is not TokenWeightedStep.compute_loss

    def _needs_logits(self):
        """Whether a step needs logits or a full call of the model, so the fused loss is not enough."""
        layers = self._flatten_layers()
        return (
            self._overrides_compute_loss()
            or any(map(needs_logits, self._compiled_state.metrics))
            # A layer called twice, such as a tied embedding, keeps the activity loss of the last call only.
            or any(getattr(layer, "activity_regularizer", None) is not None for layer in layers)
        )

    def _loss_scale(self):
        """Returns the factor of a `LossScaleOptimizer` (float16), else 1."""
        if isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
            return self.optimizer.scale_loss(tf.ones(()))
        return 1.0


def _add_losses(loss, losses):
    """Adds `losses`, as of `add_loss` and regularizers, to `loss`, as Keras does; a float32 scalar."""
    return tf.cast(loss, tf.float32) + sum(tf.cast(tf.reduce_sum(extra), tf.float32) for extra in losses)
