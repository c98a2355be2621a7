"""The token-weighted training step, under `model.fit` and any distribution strategy (TensorFlow).

The loss of an update is the sum over all its target tokens, divided by their number, whatever the number of
replicas and micro-batches; so is its gradient. Keras' own step takes a mean of the replicas' means, computes
every metric from the logits again, and applies an update that is not a number. Here a step without a finite
gradient changes nothing. What else Keras' own step honours, from `sample_weight` to `add_loss`, this one
honours or refuses.

`step_metrics.py` has what is added up and shown, `weight_update.py` the update of the weights, and
`keras_workarounds.py` what makes `compile` and `fit` do all that.
"""

import keras
import tensorflow as tf

from keras_transformer.model.keras_objectives import needs_logits
from keras_transformer.model.keras_workarounds import KerasWorkarounds, num_workers
from keras_transformer.model.loss import TokenStatistics, token_weights
from keras_transformer.model.metrics import TokenMean
from keras_transformer.model.step_metrics import Batch, StepMetrics, Sums, Whole, over_replicas
from keras_transformer.model.weight_update import update_weights


class TokenWeightedStep(KerasWorkarounds, StepMetrics):
    """Mix-in for a `keras.Model` whose outputs are logits over a vocabulary.

    A batch is `((source_ids, target_ids), labels)`, int, of shapes `(rows, length)`, or
    `(micro_batches, rows, length)`: then the gradients of the micro-batches are summed
    before the one update.
    """

    def train_step(self, data):
        batch = Batch.of(data)
        whole = self._whole(batch)  # number of target tokens of all replicas and micro-batches
        before = self._metric_state()
        # Of this replica's sum of losses / that number; added up they are those of the whole update.
        gradients, sums, logits = self._in_training.gradients(batch, whole)
        self._update_metrics(batch, logits)
        gradients, sums, requests = over_replicas((gradients, sums, self._own_requests()))

        scale = self._loss_scale()
        norm = tf.linalg.global_norm(gradients) / scale
        shown = self._shown(sums)
        finite = tf.math.is_finite(norm) & tf.math.is_finite(shown.loss)
        # A batch without a real token trains nothing; it tries out the memory.
        update_weights(
            self.optimizer,
            self.trainable_variables,
            gradients,
            norm,
            finite=finite,
            trains=sums.statistics.weight > 0,
            averages=self._in_training.ema_weights,
            decay=self._in_training.ema_decay,
        )
        self._add_to_metrics(sums, shown, before, norm, finite)
        logs = self._results()
        if num_workers(self.distribute_strategy) > 1:
            logs["requests"] = requests
        return logs

    def _whole(self, batch):
        """Returns the `Whole` of a batch; replicas call it together."""
        parts, pad_id = self._num_parts(batch), self.loss.pad_id
        if self.loss.reduction == "sum":
            return Whole(tf.ones(()), parts)
        if self.loss.reduction == "mean_with_sample_weight" and batch.sample_weight is not None:
            weights = token_weights(batch.sample_weight, batch.labels, pad_id)
            total = over_replicas(tf.reduce_sum(weights))
            return Whole(tf.where(total > 0, total, 1.0), parts)
        real = tf.math.count_nonzero(batch.labels != pad_id, dtype=tf.float32)
        return Whole(tf.maximum(over_replicas(real), 1.0), parts)

    def _gradients(self, batch, whole):
        """Returns the gradients, scaled against underflow where the precision asks for it, `Sums`, logits.

        The logits are `None` where no metric needs them, or has had them.
        """
        if batch.has_micro_batches:
            return *self._over_micro_batches(batch, whole, training=True), None
        weights = self.trainable_variables
        with tf.GradientTape() as tape:
            sums, logits = self._sums(batch, whole, training=True)
            loss = self._objective(sums, whole) * self._loss_scale()
        gradients = tape.gradient(loss, weights)
        if self._has_own_loss():
            if all(gradient is None for gradient in gradients):
                raise ValueError("`compute_loss` has no gradient of any weight: compute it from `y_pred`")
            gradients = [
                tf.zeros(weight.shape) if gradient is None else gradient
                for weight, gradient in zip(weights, gradients, strict=True)
            ]
        return list(map(tf.convert_to_tensor, gradients)), sums, logits

    def _objective(self, sums, whole):
        """Returns this replica's share of the loss of the whole update."""
        if self._has_own_loss():
            return sums.extra
        loss = sums.counted.loss / whole.tokens
        if self._in_training.factor != 1:
            loss *= self._in_training.factor
        return loss if isinstance(sums.extra, tuple) else loss + sums.extra

    def _num_parts(self, batch):
        replicas = self.distribute_strategy.num_replicas_in_sync
        if not batch.has_micro_batches:
            return float(replicas)
        return tf.cast(replicas * tf.shape(batch.labels)[0], tf.float32)

    def _over_micro_batches(self, batches, whole, training):
        """Adds up gradients and sums; only the sums, without dropout, unless in training."""
        has_extra = False

        def body(number, gradients, sums):
            nonlocal has_extra
            batch = batches.micro_batch(number)
            if training:
                new_gradients, new, logits = self._gradients(batch, whole)
            else:
                new, logits = self._sums(batch, whole, training=False)
                new_gradients = []
            self._update_metrics(batch, logits)
            if isinstance(new.extra, tuple):
                new = new._replace(extra=tf.zeros(()))
            else:
                has_extra = True
            new = new_gradients, new
            return number + 1, *tf.nest.map_structure(tf.add, (gradients, sums), new)

        count = tf.shape(batches.labels)[0]
        zeros = [tf.zeros(weight.shape) for weight in self.trainable_variables] if training else []
        _, gradients, sums = tf.while_loop(
            lambda number, *_: number < count,
            body,
            (0, zeros, Sums.zeros(batches.sample_weight is not None)),
            parallel_iterations=1,  # one micro-batch's activations at a time
        )
        return gradients, sums if has_extra else sums._replace(extra=())

    def _sums(self, batch, whole, training):
        """Returns `Sums`, and the logits where a metric needs them, else `None`."""
        inputs, labels = (batch.source_ids, batch.target_ids), batch.labels
        logits = None
        if self._needs_logits():
            logits = self(inputs, training=training)
            statistics = self.loss.statistics(labels, logits)
        else:
            self._clear_losses()  # as a call of the model does
            statistics = self.statistics(inputs, labels, training=training)
        sums = Sums.of(statistics, batch.source_ids, labels, self.loss.pad_id)
        if batch.sample_weight is not None:
            weights = token_weights(batch.sample_weight, labels, self.loss.pad_id)
            sums = sums._replace(
                weighted=TokenStatistics(*(tf.reduce_sum(each * weights) for each in statistics))
            )
        extra = self._extra_loss(inputs, batch, logits, whole, training)
        if extra is not None:
            sums = sums._replace(extra=extra / whole.parts)
        return sums, logits if any(map(needs_logits, self._in_training.metrics)) else None

    def _extra_loss(self, inputs, batch, logits, whole, training):
        """Returns what an override of `compute_loss` gives, else the sum of `losses`; `None` for nothing."""
        if not self._has_own_loss():
            losses = self.losses
            return _with_all(0.0, losses) if losses else None
        self._in_training.whole = whole
        try:
            loss = self._compute_loss(
                x=inputs, y=batch.labels, y_pred=logits, sample_weight=batch.sample_weight, training=training
            )
        finally:
            self._in_training.whole = None
        loss = tf.convert_to_tensor(loss)
        if loss.shape.rank != 0:
            raise ValueError(f"`compute_loss` must return a scalar. Received: shape {tuple(loss.shape)}")
        return tf.cast(loss, tf.float32)

    def test_step(self, data):
        batch = Batch.of(data)
        before = self._metric_state()
        whole = self._whole(batch) if self._has_own_loss() else Whole(None, self._num_parts(batch))
        if batch.has_micro_batches:
            _, sums = self._over_micro_batches(batch, whole, training=False)
        else:
            sums, logits = self._sums(batch, whole, training=False)
            self._update_metrics(batch, logits)
        sums = over_replicas(sums)
        self._add_to_metrics(sums, self._shown(sums), before, None, None)
        return self._results(only=(TokenMean,))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """Returns the loss of a batch, a scalar, for those who override this and call it.

        Within a step it is that of one replica and micro-batch; the mean over all of them is the loss
        of the whole update, in which each token counts alike. The same is done to what an override
        returns.

        Args:
            x: pair `(source_ids, target_ids)`.
            y: int labels, shape `(batch, length)`.
            y_pred: float logits, shape `(batch, length, vocab_size)`.
            sample_weight: float, shape `(batch, length)` or `(batch,)`, or `None`.
            training: whether it is for a gradient.
        """
        whole = self._in_training.whole
        if whole is None:
            loss = self.loss(y, y_pred, sample_weight)
        else:
            each = self.loss.statistics(y, y_pred).loss
            if sample_weight is not None:
                each *= token_weights(sample_weight, y, self.loss.pad_id)
            loss = tf.reduce_sum(each) / whole.tokens * whole.parts
        return _with_all(self._in_training.factor * loss, self.losses)

    def statistics(self, inputs, labels, training=None):
        """Returns the `TokenStatistics` of a batch."""
        return self.loss.statistics(labels, self(inputs, training=training))

    @property
    def ema_weights(self):
        """List of `tf.Variable`, averages of the trainable variables; empty where none are kept."""
        return list(self._in_training.ema_weights)

    def reset_ema(self):
        """Lets the moving averages begin at the present weights."""
        for weight, averaged in zip(self.trainable_variables, self.ema_weights, strict=False):
            averaged.assign(weight.value)

    @property
    def requests(self):
        """`tf.Variable`, float32, shape `(REQUESTS,)`: what this worker asks of all.

        The sum over all workers is in the logs of each step as `"requests"`, if there are
        several workers.
        """
        return self._in_training.requests

    def _own_requests(self):
        return tf.identity(self.requests) if num_workers(self.distribute_strategy) > 1 else tf.zeros(0)

    def _has_own_loss(self):
        return type(self).compute_loss is not TokenWeightedStep.compute_loss

    def _needs_logits(self):
        """Whether more than the statistics of the loss is asked of the model."""
        layers = self._flatten_layers()
        return (
            self._has_own_loss()
            or any(map(needs_logits, self._in_training.metrics))
            # A layer that is called twice, such as an embedding, forgets the first call's losses.
            or any(getattr(layer, "activity_regularizer", None) is not None for layer in layers)
        )

    def _loss_scale(self):
        if isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
            return self.optimizer.scale_loss(tf.ones(()))
        return 1.0


def _with_all(loss, losses):
    """Returns the sum of a loss and of others, as Keras adds them; a float32 scalar."""
    return tf.cast(loss, tf.float32) + sum(tf.cast(tf.reduce_sum(each), tf.float32) for each in losses)
