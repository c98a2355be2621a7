"""The token-weighted training step, under `model.fit` and any distribution strategy (TensorFlow).

Stock Keras weights the loss of a replica by its sentences, computes every metric from the
logits again, clips before the replicas' gradients are added, and applies an update that is
not a number. Here a gradient is the sum over all target tokens of an update, divided by
their number, whatever the number of replicas and micro-batches; what is shown is a true mean
over real target tokens of all replicas; and a step without a finite gradient changes nothing.
"""

import types
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.losses import LabelSmoothedCrossEntropy, TokenStatistics
from keras_transformer.metrics import Tally, TokenLoss, TokenMean
from keras_transformer.projected_loss import projected_statistics
from keras_transformer.training.optimizers import Adam
from keras_transformer.training.recomputation import recomputed
from keras_transformer.training.updating import refuse_optimizer, update_weights

REQUESTS = 3  # things that a worker may ask all others to do after a step


class _Sums(NamedTuple):
    """Sums over the rows of a replica, or of all; scalars."""

    statistics: TokenStatistics
    source_tokens: object
    positions: object

    @classmethod
    def of(cls, statistics, source_ids, labels, pad_id):
        source_tokens = tf.math.count_nonzero(source_ids != pad_id, dtype=tf.float32)
        positions = tf.cast(tf.size(source_ids) + tf.size(labels), tf.float32)
        return cls(TokenStatistics(*map(tf.reduce_sum, statistics)), source_tokens, positions)

    @classmethod
    def zeros(cls):
        return cls(TokenStatistics(*[tf.zeros(())] * 4), tf.zeros(()), tf.zeros(()))


class TokenWeightedStep:
    """Mix-in for a `keras.Model` whose outputs are logits over a vocabulary.

    A batch is `((source_ids, target_ids), labels)`, int, of shapes `(rows, length)`, or
    `(micro_batches, rows, length)`: then the gradients of the micro-batches are summed
    before the one update.
    """

    def compile(self, optimizer="adam", loss=None, metrics=None, *, ema_decay=0.0, recompute=False, **kwargs):
        """Prepares the model for `fit` and `evaluate`.

        Args:
            optimizer: a Keras optimizer, or its name; `"adam"` is this package's. Its clipping is
                applied to the whole gradient, after the replicas' are added.
            loss: a `LabelSmoothedCrossEntropy`; `None` is one with the paper's 0.1.
            metrics: list of token means, such as `TokenAccuracy()` and `Perplexity()`, and of
                a `Tally()` for training.
            ema_decay: decay of an exponential moving average of the weights, kept in
                `ema_weights`; 0 for none.
            recompute: keeps only what enters each layer, and computes the rest again for the
                gradient.
            **kwargs: as in `keras.Model.compile`. `jit_compile` is off unless given:
                XLA compiles once per shape, and batches have many.

        Raises:
            ValueError: for another loss or metric, as its mean would not be over tokens; or
                for what Keras cannot do under a strategy.
        """
        loss = LabelSmoothedCrossEntropy() if loss is None else loss
        if not isinstance(loss, LabelSmoothedCrossEntropy):
            raise ValueError(f"`loss` must be a LabelSmoothedCrossEntropy. Received: {loss!r}")
        metrics = list(metrics or ())
        for metric in metrics:
            if not isinstance(metric, (TokenMean, Tally)):
                raise ValueError(
                    "`metrics` must be token means such as TokenAccuracy() or Perplexity(). "
                    f"Received: {metric!r}"
                )
        if not 0 <= ema_decay < 1:
            raise ValueError(f"`ema_decay` must be at least 0 and below 1. Received: {ema_decay}")
        strategy = self.distribute_strategy
        several = strategy.num_replicas_in_sync > 1
        optimizer = Adam() if optimizer == "adam" else keras.optimizers.get(optimizer)
        refuse_optimizer(optimizer, strategy, self.dtype_policy.name)
        xla = kwargs.pop("jit_compile", False)
        with strategy.scope():
            # One replica is compiled as a whole; of several, what they do by themselves.
            super().compile(optimizer=optimizer, loss=loss, jit_compile=xla and not several, **kwargs)
            self.optimizer.build(self.trainable_variables)
            # A namespace, as Keras tracks lists and a built model takes no new members.
            self._in_training = types.SimpleNamespace(
                metrics=[TokenLoss(pad_id=loss.pad_id), *metrics],
                ema_decay=ema_decay,
                recompute=recompute,
                ema_weights=_copies(self.trainable_variables) if ema_decay else [],
            )
        # What this process asks of the others; not one variable for all of them.
        self._in_training.requests = tf.Variable(tf.zeros(REQUESTS), trainable=False)
        compiled = several and xla
        self._in_training.gradients = (
            tf.function(self._gradients, jit_compile=True) if compiled else self._gradients
        )

    @property
    def metrics(self):
        return list(self._in_training.metrics) if hasattr(self, "_in_training") else []

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

    def get_compile_config(self):
        config = super().get_compile_config()
        if config and self.compiled:
            config["metrics"] = [keras.saving.serialize_keras_object(metric) for metric in self.metrics[1:]]
            config["ema_decay"] = self._in_training.ema_decay
            config["recompute"] = self._in_training.recompute
        return config

    def compile_from_config(self, config):
        # Keras' own declines, with a warning, where `compile` is overridden.
        self.compile(**keras.saving.deserialize_keras_object(config))

    def train_step(self, data):
        (source_ids, target_ids), labels, _ = keras.utils.unpack_x_y_sample_weight(data)
        real = tf.math.count_nonzero(labels != self.loss.pad_id, dtype=tf.float32)
        num_tokens = tf.maximum(_over_replicas(real), 1.0)
        gradients, sums = self._in_training.gradients(source_ids, target_ids, labels, num_tokens)
        gradients, sums, requests = _over_replicas((gradients, sums, self._own_requests()))

        scale = self._loss_scale()
        norm = tf.linalg.global_norm(gradients) / scale
        finite = tf.math.is_finite(norm) & tf.math.is_finite(sums.statistics.loss)
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
        self._add_to_metrics(sums, norm, finite)
        logs = self._results()
        if _num_workers(self.distribute_strategy) > 1:
            logs["requests"] = requests
        return logs

    def test_step(self, data):
        (source_ids, target_ids), labels, _ = keras.utils.unpack_x_y_sample_weight(data)
        if len(labels.shape) == 3:
            _, sums = self._over_micro_batches(source_ids, target_ids, labels, None)
        else:
            sums = self._sums(source_ids, target_ids, labels, training=False)
        sums = _over_replicas(sums)
        self._add_to_metrics(sums, None, None)
        return self._results(only=(TokenMean,))

    def statistics(self, inputs, labels, training=None):
        """Returns the `TokenStatistics` of a batch."""
        return self.loss.statistics(labels, self(inputs, training=training))

    def run_layer(self, layer, *inputs, training=None, **constants):
        """Calls a layer; keeps what it computes for the gradient, unless that is computed again.

        Args:
            layer: `keras.layers.Layer`.
            *inputs: float tensors.
            **constants: what else the layer takes and has no gradient.
        """
        if training and hasattr(self, "_in_training") and self._in_training.recompute:
            return recomputed(layer, *inputs, **constants)
        return layer(*inputs, **constants, training=training)

    def projected_statistics(self, labels, hidden, matrix, bias=None, *, transposed=False):
        """Returns the `TokenStatistics` of what is not projected onto the vocabulary yet.

        Takes what the function `projected_statistics` takes.
        """
        return projected_statistics(
            labels,
            hidden,
            matrix,
            bias,
            transposed=transposed,
            label_smoothing=self.loss.label_smoothing,
            formula=self.loss.formula,
            pad_id=self.loss.pad_id,
        )

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        # Keras builds models on the mean of the replicas' batches: with rows in other numbers
        # there is none. This model is built when it is made, its optimizer by `compile`.
        return

    def make_train_function(self, force=False):
        """As in Keras, which cannot reduce the logs of several workers."""
        if _num_workers(self.distribute_strategy) == 1:
            return super().make_train_function(force)
        if self.train_function is None or force:
            self.train_function = self._distributed(self.train_step)
        return self.train_function

    def make_test_function(self, force=False):
        """As `make_train_function`."""
        if _num_workers(self.distribute_strategy) == 1:
            return super().make_test_function(force)
        if self.test_function is None or force:
            self.test_function = self._distributed(self.test_step)
        return self.test_function

    def _distributed(self, step):
        """Returns a function of an iterator that takes a step; its logs are the same on all replicas."""
        strategy = self.distribute_strategy
        traced = {}

        def one_step(data):
            logs = strategy.run(step, args=(data,))
            return tf.nest.map_structure(lambda log: strategy.experimental_local_results(log)[0], logs)

        def take(iterator):
            spec = iterator.element_spec
            if spec not in traced:
                # One graph for all shapes, as where there is one worker: which graph is used
                # must not depend on the shapes that a process has seen.
                traced[spec] = tf.function(one_step, input_signature=[spec], autograph=False)
            return traced[spec](next(iterator))

        return take

    def _gradients(self, source_ids, target_ids, labels, num_tokens):
        """Returns the gradients, scaled against underflow where the precision asks for it, and `_Sums`."""
        if len(labels.shape) == 3:
            return self._over_micro_batches(source_ids, target_ids, labels, num_tokens)
        weights = self.trainable_variables
        with tf.GradientTape() as tape:
            sums = self._sums(source_ids, target_ids, labels, training=True)
            loss = sums.statistics.loss / num_tokens * self._loss_scale()
        gradients = tape.gradient(loss, weights)
        return list(map(tf.convert_to_tensor, gradients)), sums

    def _over_micro_batches(self, source_ids, target_ids, labels, num_tokens):
        """Adds up gradients and sums; only the sums, without dropout, where `num_tokens` is `None`."""
        training = num_tokens is not None

        def body(number, gradients, sums):
            batch = source_ids[number], target_ids[number], labels[number]
            if training:
                new = self._gradients(*batch, num_tokens)
            else:
                new = [], self._sums(*batch, training=False)
            return number + 1, *tf.nest.map_structure(tf.add, (gradients, sums), new)

        count = tf.shape(labels)[0]
        zeros = [tf.zeros(weight.shape) for weight in self.trainable_variables] if training else []
        _, gradients, sums = tf.while_loop(
            lambda number, *_: number < count,
            body,
            (0, zeros, _Sums.zeros()),
            parallel_iterations=1,  # one micro-batch's activations at a time
        )
        return gradients, sums

    def _sums(self, source_ids, target_ids, labels, training):
        statistics = self.statistics((source_ids, target_ids), labels, training=training)
        return _Sums.of(statistics, source_ids, labels, self.loss.pad_id)

    def _loss_scale(self):
        if isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
            return self.optimizer.scale_loss(tf.ones(()))
        return 1.0

    def _own_requests(self):
        return tf.identity(self.requests) if _num_workers(self.distribute_strategy) > 1 else tf.zeros(0)

    def _add_to_metrics(self, sums, norm, finite):
        # Every replica adds its share of the total, and Keras adds up the replicas.
        replicas = tf.cast(self.distribute_strategy.num_replicas_in_sync, tf.float64)
        counts = tf.nest.map_structure(lambda total: tf.cast(total, tf.float64) / replicas, sums)
        one = 1.0 / replicas
        target_tokens = counts.statistics.weight
        if finite is not None:
            statistics = [tf.where(finite, each, 0.0) for each in counts.statistics]
            counts = counts._replace(statistics=TokenStatistics(*statistics))
        for metric in self.metrics:
            if isinstance(metric, TokenMean):
                metric.add(counts.statistics)
            elif finite is not None:
                metric.add(
                    {
                        "steps": one,
                        "skipped": tf.where(finite, tf.zeros_like(one), one),
                        "source_tokens": counts.source_tokens,
                        "target_tokens": target_tokens,  # those of skipped steps, too
                        "positions": counts.positions,
                        "gradient_norm": tf.where(finite, tf.cast(norm, tf.float64), 0.0) / replicas,
                    }
                )

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
        return found


def _over_replicas(values):
    """Returns the sum over all replicas; `values` where there is one."""
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return values
    return replica.all_reduce(tf.distribute.ReduceOp.SUM, values)


def _num_workers(strategy):
    resolver = strategy.cluster_resolver
    if resolver is None or not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return 1
    return max(1, len(resolver.cluster_spec().as_dict().get("worker", ())))


def _copies(weights):
    return [tf.Variable(weight.value, trainable=False, name="ema") for weight in weights]


def _metric_variables(metrics):
    return [variable for metric in metrics for variable in metric.variables]
