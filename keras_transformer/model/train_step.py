"""The token-weighted training step, under `model.fit` and any distribution strategy (TensorFlow).

Stock Keras weights the loss of a replica by its sentences, computes every metric from the
logits again, clips before the replicas' gradients are added, and applies an update that is
not a number. Here a gradient is the sum over all target tokens of an update, divided by
their number, whatever the number of replicas and micro-batches; what is shown is a true mean
over real target tokens of all replicas; and a step without a finite gradient changes nothing.
What else Keras' own step honours, from `sample_weight` to `add_loss`, this one honours or refuses.
"""

import contextlib
import functools
import inspect
import types
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.model.inputs import (
    LABELS_AS_TARGETS,
    check_data,
    check_inputs,
    check_shapes,
    in_one_line,
    pair,
    refuse_ragged,
)
from keras_transformer.model.loss import TokenStatistics, projected_statistics, token_weights
from keras_transformer.model.metrics import Tally, TokenLoss, TokenMean
from keras_transformer.model.optimizer import Adam
from keras_transformer.model.recompute import recomputed
from keras_transformer.model.standard_losses import token_loss
from keras_transformer.model.standard_metrics import needs_logits, share, standard_metrics, update
from keras_transformer.model.updating import refuse_optimizer, update_weights

REQUESTS = 3  # things that a worker may ask all others to do after a step


class _Batch(NamedTuple):
    """A batch, or micro-batches, of one replica; `sample_weight` may be `None`."""

    source_ids: object
    target_ids: object
    labels: object
    sample_weight: object

    @classmethod
    def of(cls, data):
        inputs, labels, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        refuse_ragged("labels", labels)
        source_ids, target_ids = pair(inputs)
        check_shapes(target_ids, labels, sample_weight)
        if None in tuple(labels.shape):  # not compared yet
            labels = tf.reshape(labels, tf.shape(target_ids), name=LABELS_AS_TARGETS)
        return cls(source_ids, target_ids, labels, sample_weight)

    @property
    def has_micro_batches(self):
        return len(self.labels.shape) == 3

    def micro_batch(self, number):
        return _Batch(*(None if each is None else each[number] for each in self))


class _Whole(NamedTuple):
    """What a loss is divided by to be a share of that of the whole update; scalars.

    Attributes:
        tokens: of all replicas and micro-batches, or what the loss is divided by in their place.
        parts: number of replicas times number of micro-batches.
    """

    tokens: object
    parts: object


class _Sums(NamedTuple):
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
        source_tokens = tf.math.count_nonzero(source_ids != pad_id, dtype=tf.float32)
        positions = tf.cast(tf.size(source_ids) + tf.size(labels), tf.float32)
        return cls(TokenStatistics(*map(tf.reduce_sum, statistics)), source_tokens, positions)

    @classmethod
    def zeros(cls, has_weights):
        none = TokenStatistics(*[tf.zeros(())] * 4)
        return cls(none, tf.zeros(()), tf.zeros(()), none if has_weights else (), tf.zeros(()))

    @property
    def counted(self):
        """`TokenStatistics` in which each token counts what it is to count in the loss."""
        return self.weighted or self.statistics


class TokenWeightedStep:
    """Mix-in for a `keras.Model` whose outputs are logits over a vocabulary.

    A batch is `((source_ids, target_ids), labels)`, int, of shapes `(rows, length)`, or
    `(micro_batches, rows, length)`: then the gradients of the micro-batches are summed
    before the one update.
    """

    def compile(
        self,
        optimizer="adam",
        loss=None,
        metrics=None,
        *,
        weighted_metrics=None,
        loss_weights=None,
        ema_decay=0.0,
        recompute=False,
        **kwargs,
    ):
        """Prepares the model for `fit` and `evaluate`.

        Args:
            optimizer: a Keras optimizer, or its name; `"adam"` is this package's. Its clipping is
                applied to the whole gradient, after the replicas' are added.
            loss: a `LabelSmoothedCrossEntropy`; `None` is one with the paper's 0.1. Or a name, function
                or object of Keras', or one's own, which gives a number for each token from int labels
                and logits: padding is left out, and the mean is over tokens.
            metrics: list of token means, such as `TokenAccuracy()` and `Perplexity()`, and of
                a `Tally()` for training; or of metrics as Keras takes them, which need the logits and
                so a slower step. `sample_weight` is nothing to them.
            weighted_metrics: list of metrics for which a token counts its `sample_weight`.
            loss_weights: a number by which the loss is multiplied, or a list of one.
            ema_decay: decay of an exponential moving average of the weights, kept in
                `ema_weights`; 0 for none.
            recompute: keeps only what enters each layer, and computes the rest again for the
                gradient.
            **kwargs: as in `keras.Model.compile`. `jit_compile` is off unless given:
                XLA compiles once per shape, and batches have many.

        Raises:
            ValueError: for a loss or metric that is not one of tokens; or for what Keras cannot do
                under a strategy.
        """
        vocab_size = self.config.target_vocab_size
        loss = _the_only("loss", loss)
        found = token_loss(loss, pad_id=self.special.pad, vocab_size=vocab_size)
        factor = _the_only("loss_weights", loss_weights)
        if not 0 <= ema_decay < 1:
            raise ValueError(f"`ema_decay` must be at least 0 and below 1. Received: {ema_decay}")
        if type(self).compute_metrics is not keras.Model.compute_metrics:
            raise ValueError(
                f"{type(self).__name__} overrides `compute_metrics`, which the token-weighted step does not "
                "call. Give metrics to `compile`, or override `train_step` and `test_step`"
            )
        strategy = self.distribute_strategy
        several = strategy.num_replicas_in_sync > 1
        optimizer = Adam() if optimizer == "adam" else keras.optimizers.get(optimizer)
        refuse_optimizer(optimizer, strategy, self.dtype_policy.name)
        if _num_workers(strategy) > 1:
            _refuse_with_workers(kwargs)
        xla = kwargs.pop("jit_compile", False)
        with strategy.scope():
            plain, weighted = standard_metrics(
                metrics,
                weighted_metrics,
                vocab_size=vocab_size,
                num_replicas=strategy.num_replicas_in_sync,
            )
            # One replica is compiled as a whole; of several, what they do by themselves.
            given = found if loss is None else loss
            super().compile(optimizer=optimizer, loss=given, jit_compile=xla and not several, **kwargs)
            self.loss = found
            self.optimizer.build(self.trainable_variables)
            # A namespace, as Keras tracks lists and a built model takes no new members.
            self._in_training = types.SimpleNamespace(
                metrics=[TokenLoss(pad_id=found.pad_id), *plain, *weighted],
                weighted=weighted,
                given={
                    "metrics": metrics,
                    "weighted_metrics": weighted_metrics,
                    "loss_weights": loss_weights,
                },
                factor=1.0 if factor is None else float(factor),
                whole=None,
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
            config.update(keras.saving.serialize_keras_object(self._in_training.given))
            config["ema_decay"] = self._in_training.ema_decay
            config["recompute"] = self._in_training.recompute
        return config

    def compile_from_config(self, config):
        # Keras' own declines, with a warning, where `compile` is overridden.
        self.compile(**keras.saving.deserialize_keras_object(config))

    @functools.wraps(keras.Model.fit)
    def fit(self, *args, **kwargs):
        """As in Keras; refuses what it cannot honour."""
        with self._checked(keras.Model.fit, args, kwargs):
            history = super().fit(*args, **kwargs)
        if history.epoch and not history.history:
            raise ValueError("the dataset gave no batch: nothing was trained")
        return history

    @functools.wraps(keras.Model.evaluate)
    def evaluate(self, *args, **kwargs):
        """As in Keras; refuses what it cannot honour."""
        with self._checked(keras.Model.evaluate, args, kwargs):
            found = super().evaluate(*args, **kwargs)
        if isinstance(found, (dict, list)) and not found:
            raise ValueError("the dataset gave no batch: nothing was evaluated")
        return found

    @functools.wraps(keras.Model.train_on_batch)
    def train_on_batch(self, *args, **kwargs):
        """As in Keras; refuses what it cannot honour."""
        with self._checked(keras.Model.train_on_batch, args, kwargs):
            return super().train_on_batch(*args, **kwargs)

    @functools.wraps(keras.Model.test_on_batch)
    def test_on_batch(self, *args, **kwargs):
        """As in Keras; refuses what it cannot honour."""
        with self._checked(keras.Model.test_on_batch, args, kwargs):
            return super().test_on_batch(*args, **kwargs)

    @functools.wraps(keras.Model.predict)
    def predict(self, *args, **kwargs):
        """As in Keras; refuses ids of which there are no logits."""
        with self._checked(keras.Model.predict, args, kwargs):
            return super().predict(*args, **kwargs)

    @functools.wraps(keras.Model.predict_on_batch)
    def predict_on_batch(self, *args, **kwargs):
        """As in Keras; refuses ids of which there are no logits."""
        with self._checked(keras.Model.predict_on_batch, args, kwargs):
            return super().predict_on_batch(*args, **kwargs)

    @contextlib.contextmanager
    def _checked(self, method, args, kwargs):
        """Refuses what a method is given, and says in one line what TensorFlow says of ids and labels."""
        signature = inspect.signature(method)
        given = signature.bind(self, *args, **kwargs).arguments
        sizes = self.config.source_vocab_size, self.config.target_vocab_size
        if "y" in signature.parameters:
            wanted = ("x", "y", "sample_weight", "class_weight")
            check_data(*map(given.get, wanted), sizes)
        else:
            check_inputs(given.get("x"), sizes)
        try:
            yield
        except tf.errors.InvalidArgumentError as error:
            reason = in_one_line(error)
            if reason is None:
                raise
            raise reason from None

    def train_step(self, data):
        batch = _Batch.of(data)
        whole = self._whole(batch)
        before = self._metric_state()
        gradients, sums, logits = self._in_training.gradients(batch, whole)
        self._update_metrics(batch, logits)
        gradients, sums, requests = _over_replicas((gradients, sums, self._own_requests()))

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
        if _num_workers(self.distribute_strategy) > 1:
            logs["requests"] = requests
        return logs

    def test_step(self, data):
        batch = _Batch.of(data)
        before = self._metric_state()
        whole = self._whole(batch) if self._has_own_loss() else _Whole(None, self._num_parts(batch))
        if batch.has_micro_batches:
            _, sums = self._over_micro_batches(batch, whole, training=False)
        else:
            sums, logits = self._sums(batch, whole, training=False)
            self._update_metrics(batch, logits)
        sums = _over_replicas(sums)
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
        if self.train_function is not None and not force:
            return self.train_function
        if _num_workers(self.distribute_strategy) > 1:
            self.train_function = self._distributed(self.train_step)
        else:
            self.train_function = self._for_each_rank("train_function", super().make_train_function)
        return self.train_function

    def make_test_function(self, force=False):
        """As `make_train_function`."""
        if self.test_function is not None and not force:
            return self.test_function
        if _num_workers(self.distribute_strategy) > 1:
            self.test_function = self._distributed(self.test_step)
        else:
            self.test_function = self._for_each_rank("test_function", super().make_test_function)
        return self.test_function

    def _for_each_rank(self, name, make):
        """Returns a function of an iterator that takes a step, in one graph for all shapes of as many axes.

        Keras would use one graph for all, where nobody knows how many axes weights or labels have.
        """
        made = {}

        def take(iterator):
            if hasattr(iterator, "element_spec"):
                batch = iterator.element_spec
            else:  # what Keras makes of one batch
                batch = next(iterator)
                iterator = iter([batch])
            ranks = tuple(
                each.shape.rank if isinstance(each, tf.TensorSpec) else np.ndim(each)
                for each in tf.nest.flatten(batch, expand_composites=True)
            )
            if ranks not in made:
                make(force=True)  # leaves it in the attribute
                made[ranks] = getattr(self, name)
                setattr(self, name, take)
            return made[ranks](iterator)

        return take

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

    def _num_parts(self, batch):
        replicas = self.distribute_strategy.num_replicas_in_sync
        if not batch.has_micro_batches:
            return float(replicas)
        return tf.cast(replicas * tf.shape(batch.labels)[0], tf.float32)

    def _whole(self, batch):
        """Returns the `_Whole` of a batch; replicas call it together."""
        parts, pad_id = self._num_parts(batch), self.loss.pad_id
        if self.loss.reduction == "sum":
            return _Whole(tf.ones(()), parts)
        if self.loss.reduction == "mean_with_sample_weight" and batch.sample_weight is not None:
            weights = token_weights(batch.sample_weight, batch.labels, pad_id)
            total = _over_replicas(tf.reduce_sum(weights))
            return _Whole(tf.where(total > 0, total, 1.0), parts)
        real = tf.math.count_nonzero(batch.labels != pad_id, dtype=tf.float32)
        return _Whole(tf.maximum(_over_replicas(real), 1.0), parts)

    def _gradients(self, batch, whole):
        """Returns the gradients, scaled against underflow where the precision asks for it, `_Sums`, logits.

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
            (0, zeros, _Sums.zeros(batches.sample_weight is not None)),
            parallel_iterations=1,  # one micro-batch's activations at a time
        )
        return gradients, sums if has_extra else sums._replace(extra=())

    def _sums(self, batch, whole, training):
        """Returns `_Sums`, and the logits where a metric needs them, else `None`."""
        inputs, labels = (batch.source_ids, batch.target_ids), batch.labels
        logits = None
        if self._needs_logits():
            logits = self(inputs, training=training)
            statistics = self.loss.statistics(labels, logits)
        else:
            self._clear_losses()  # as a call of the model does
            statistics = self.statistics(inputs, labels, training=training)
        sums = _Sums.of(statistics, batch.source_ids, labels, self.loss.pad_id)
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

    def _objective(self, sums, whole):
        """Returns this replica's share of the loss of the whole update."""
        if self._has_own_loss():
            return sums.extra
        loss = sums.counted.loss / whole.tokens
        if self._in_training.factor != 1:
            loss *= self._in_training.factor
        return loss if isinstance(sums.extra, tuple) else loss + sums.extra

    def _shown(self, sums):
        """Returns `TokenStatistics` whose `loss / weight` is the loss of the whole update.

        Args:
            sums: `_Sums` over all replicas.
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

    def _loss_scale(self):
        if isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
            return self.optimizer.scale_loss(tf.ones(()))
        return 1.0

    def _own_requests(self):
        return tf.identity(self.requests) if _num_workers(self.distribute_strategy) > 1 else tf.zeros(0)

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
        share(filter(needs_logits, metrics), before, finite, _over_replicas, num_replicas)

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


def _with_all(loss, losses):
    """Returns the sum of a loss and of others, as Keras adds them; a float32 scalar."""
    return tf.cast(loss, tf.float32) + sum(tf.cast(tf.reduce_sum(each), tf.float32) for each in losses)


def _the_only(name, given):
    """Returns what there is for the one output, where Keras takes lists and dicts for several."""
    if not isinstance(given, (list, tuple)) and not (isinstance(given, dict) and "class_name" not in given):
        return given
    values = list(given.values()) if isinstance(given, dict) else list(given)
    if len(values) != 1:
        raise ValueError(f"`{name}` must be for one output, the logits. Received: {given!r}")
    return values[0]


def _refuse_with_workers(arguments):
    """Refuses what Keras' functions do and those for several workers do not."""
    for name, usual in (("run_eagerly", False), ("steps_per_execution", 1)):
        if arguments.get(name, usual) != usual:
            raise ValueError(
                f"`{name}={arguments[name]}` does not work with several workers. Use {name}={usual}"
            )
