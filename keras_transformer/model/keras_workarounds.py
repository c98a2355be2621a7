"""What Keras' trainer and optimizers get wrong, and what is done in its place (TensorFlow).

The faults, measured with keras 3.15; `tests/training/test_strategies.py` fails where Keras changes a private
part that is replaced:

- **Symbolic build** (`_maybe_symbolic_build`). `fit` builds a model on the mean of the replicas' first
  batches, which fails where they differ in rows or length, and with several workers (keras#20585); and it
  starts the dataset twice. Here it does nothing: constructor and `compile` have built model and optimizer.
- **Logs of several workers** (`make_train_function`). Keras concatenates the logs of the replicas, which
  fails for scalars (keras#20585, keras#20329). Here every replica returns the same logs, and one is taken.
- **Number of axes** (`make_train_function`). Keras uses one graph for all batches; where their numbers of
  axes differ, it does not know how many weights or labels have. Here each has its own graph.
- **Optimizers** (`_refuse_optimizer`; `weight_update.py` clips). Keras clips each replica's gradient before
  they are added; accumulation and averages fail under a strategy (keras#20582); loss scaling looks at the
  first replica only.
- **Empty datasets, wrong ids** (`fit`, `evaluate`, ...). An empty dataset trains without an error, and an id
  outside the vocabulary gives a page of TensorFlow's messages.
- **Losses and metrics** (`compile`). Keras averages them over a replica's sentences. `keras_objectives.py`
  makes each one over tokens.
- **Saving** (`compile_from_config`). Keras declines, with a warning, where `compile` is overridden.
- **Recomputation** (`run_layer`). Keras' `RematScope` draws other dropout the second time, and so takes the
  gradient of another function.
"""

import contextlib
import functools
import inspect
import types

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.model.inputs import check_data, check_inputs, in_one_line
from keras_transformer.model.keras_objectives import standard_metrics, token_loss
from keras_transformer.model.layers.basics import Dropout
from keras_transformer.model.metrics import TokenLoss
from keras_transformer.model.optimizer import Adam

REQUESTS = 3  # things that a worker may ask all others to do after a step


def _checked(method, *, empty=None):
    """Returns a method of `keras.Model` that refuses in one line what it cannot honour.

    Args:
        method: the method.
        empty: what to say where it found no batch; `None` for nothing.
    """
    signature = inspect.signature(method)

    @functools.wraps(method)
    def checked(self, *args, **kwargs):
        given = signature.bind(self, *args, **kwargs).arguments
        sizes = self.config.source_vocab_size, self.config.target_vocab_size
        if "y" in signature.parameters:
            check_data(*map(given.get, ("x", "y", "sample_weight", "class_weight")), sizes)
        else:
            check_inputs(given.get("x"), sizes)
        try:
            found = method(self, *args, **kwargs)
        except tf.errors.InvalidArgumentError as error:
            reason = in_one_line(error)
            if reason is None:
                raise
            raise reason from None
        if isinstance(found, keras.callbacks.History):
            found_none = found.epoch and not found.history
        else:
            found_none = isinstance(found, (dict, list)) and not found
        if empty and found_none:
            raise ValueError(f"the dataset gave no batch: nothing was {empty}")
        return found

    return checked


class KerasWorkarounds:
    """Mix-in of `TokenWeightedStep`: `compile`, `fit` and what is between them and the step."""

    fit = _checked(keras.Model.fit, empty="trained")
    evaluate = _checked(keras.Model.evaluate, empty="evaluated")
    train_on_batch = _checked(keras.Model.train_on_batch)
    test_on_batch = _checked(keras.Model.test_on_batch)
    predict = _checked(keras.Model.predict)
    predict_on_batch = _checked(keras.Model.predict_on_batch)

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
                a `StepCounters()` for training; or of metrics as Keras takes them, which need the logits and
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
        given = {"metrics": metrics, "weighted_metrics": weighted_metrics, "loss_weights": loss_weights}
        strategy, vocab_size = self.distribute_strategy, self.config.target_vocab_size
        num_replicas = strategy.num_replicas_in_sync
        loss, factor = _the_only("loss", loss), _the_only("loss_weights", loss_weights)
        found = token_loss(loss, pad_id=self.special.pad, vocab_size=vocab_size)
        if not 0 <= ema_decay < 1:
            raise ValueError(f"`ema_decay` must be at least 0 and below 1. Received: {ema_decay}")
        if type(self).compute_metrics is not keras.Model.compute_metrics:
            raise ValueError(
                f"{type(self).__name__} overrides `compute_metrics`, which the token-weighted step does not "
                "call. Give metrics to `compile`, or override `train_step` and `test_step`"
            )
        optimizer = Adam() if optimizer == "adam" else keras.optimizers.get(optimizer)
        _refuse_optimizer(optimizer, strategy, self.dtype_policy.name)
        if num_workers(strategy) > 1:
            for name, usual in (("run_eagerly", False), ("steps_per_execution", 1)):
                if kwargs.get(name, usual) != usual:
                    raise ValueError(
                        f"`{name}={kwargs[name]}` does not work with several workers. Use {name}={usual}"
                    )
        # One replica is compiled as a whole; of several, what they do by themselves.
        xla = kwargs.pop("jit_compile", False)
        xla_step, xla_gradients = xla and num_replicas == 1, xla and num_replicas > 1
        with strategy.scope():
            plain, weighted = standard_metrics(
                metrics, weighted_metrics, vocab_size=vocab_size, num_replicas=num_replicas
            )
            loss = found if loss is None else loss
            super().compile(optimizer=optimizer, loss=loss, jit_compile=xla_step, **kwargs)
            self.loss = found
            weights = self.trainable_variables
            self.optimizer.build(weights)
            # A namespace, as Keras tracks lists and a built model takes no new members.
            self._in_training = types.SimpleNamespace(
                metrics=[TokenLoss(pad_id=found.pad_id), *plain, *weighted],
                weighted=weighted,
                given=given,
                factor=1.0 if factor is None else float(factor),
                whole=None,
                ema_decay=ema_decay,
                recompute=recompute,
                ema_weights=[
                    tf.Variable(each.value, trainable=False, name="ema") for each in weights if ema_decay
                ],
            )
        # What this process asks of the others; not one variable for all of them.
        self._in_training.requests = tf.Variable(tf.zeros(REQUESTS), trainable=False)
        self._in_training.gradients = (
            tf.function(self._gradients, jit_compile=True) if xla_gradients else self._gradients
        )

    def get_compile_config(self):
        config = super().get_compile_config()
        if config and self.compiled:
            config.update(keras.saving.serialize_keras_object(self._in_training.given))
            config["ema_decay"] = self._in_training.ema_decay
            config["recompute"] = self._in_training.recompute
        return config

    def compile_from_config(self, config):
        self.compile(**keras.saving.deserialize_keras_object(config))

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        return

    def make_train_function(self, force=False):
        """As in Keras, which cannot reduce the logs of several workers."""
        if self.train_function is None or force:
            several = num_workers(self.distribute_strategy) > 1
            take = self._for_each_rank("train_function", super().make_train_function)
            self.train_function = self._distributed(self.train_step) if several else take
        return self.train_function

    def make_test_function(self, force=False):
        """As `make_train_function`."""
        if self.test_function is None or force:
            several = num_workers(self.distribute_strategy) > 1
            take = self._for_each_rank("test_function", super().make_test_function)
            self.test_function = self._distributed(self.test_step) if several else take
        return self.test_function

    def run_layer(self, layer, *inputs, training=None, **constants):
        """Calls a layer; keeps what it computes for the gradient, unless that is computed again.

        Args:
            layer: `keras.layers.Layer`.
            *inputs: float tensors.
            **constants: what else the layer takes and has no gradient.

        Raises:
            ValueError: `recompute` of a layer that draws random numbers in another way, or adds to the loss.
        """
        if training and hasattr(self, "_in_training") and self._in_training.recompute:
            return _recomputed(layer, *inputs, **constants)
        return layer(*inputs, **constants, training=training)

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


def num_workers(strategy):
    """Returns the number of processes of a strategy."""
    resolver = strategy.cluster_resolver
    if resolver is None or not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return 1
    return max(1, len(resolver.cluster_spec().as_dict().get("worker", ())))


def _the_only(name, given):
    """Returns what there is for the one output, where Keras takes lists and dicts for several."""
    if not isinstance(given, (list, tuple)) and not (isinstance(given, dict) and "class_name" not in given):
        return given
    values = list(given.values()) if isinstance(given, dict) else list(given)
    if len(values) != 1:
        raise ValueError(f"`{name}` must be for one output, the logits. Received: {given!r}")
    return values[0]


def _refuse_optimizer(optimizer, strategy, policy):
    """Refuses what Keras gets wrong, before it does.

    Args:
        optimizer: a Keras optimizer.
        strategy: `tf.distribute.Strategy`.
        policy: name of the model's dtype policy.

    Raises:
        ValueError: with the reason.
    """
    if getattr(optimizer, "gradient_accumulation_steps", None):
        raise ValueError(
            "`gradient_accumulation_steps` weights micro-batches alike, however many tokens they have, "
            "and fails under a strategy (keras#20582). Give batches of shape (micro_batches, rows, length)"
        )
    if getattr(optimizer, "use_ema", False):
        raise ValueError(
            "`use_ema` fails under a strategy (keras#20582) and replaces the weights at the end of every "
            "`fit`. Use compile(..., ema_decay=...)"
        )
    if isinstance(strategy, tf.distribute.experimental.ParameterServerStrategy):
        raise ValueError(
            "ParameterServerStrategy has no code path in Keras 3 (keras#20585). Use MirroredStrategy or "
            "MultiWorkerMirroredStrategy"
        )
    if strategy.num_replicas_in_sync > 1 and (
        policy == "mixed_float16" or isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    ):
        raise ValueError(
            "float16 needs loss scaling, which Keras checks on one replica only: an overflow on another "
            "would be applied. Use mixed_bfloat16, or one device"
        )


def _recomputed(layer, *inputs, **constants):
    """Calls a layer in training; of what it computes, only `inputs` are kept for the gradient.

    Its dropout drops the same elements both times: the seeds are drawn before.

    Args:
        layer: `keras.layers.Layer`.
        *inputs: float tensors.
        **constants: what else the layer takes and has no gradient, such as masks.

    Returns:
        float tensor.

    Raises:
        ValueError: the layer has others within that draw random numbers; or one adds to the loss.
    """
    within = [each for each in layer._flatten_layers() if getattr(each, "seed_generator", None) is not None]
    dropouts = [each for each in within if isinstance(each, Dropout)]
    if len(dropouts) < len(within):
        other = next(each for each in within if each not in dropouts)
        raise ValueError(
            f"`recompute` would draw other random numbers the second time in {type(other).__name__} "
            f"{other.name!r}. Use keras_transformer's Dropout, or recompute=False"
        )
    seeds = [dropout.draw_seed() for dropout in dropouts]

    @tf.recompute_grad
    def compute(*inputs):
        with contextlib.ExitStack() as stack:
            for dropout, seed in zip(dropouts, seeds, strict=True):
                stack.enter_context(dropout.fixed(seed))
            return layer(*inputs, **constants, training=True)

    output = compute(*inputs)
    for each in layer._flatten_layers():
        if each._losses:
            raise ValueError(
                f"`recompute` would leave out the gradient of what {type(each).__name__} {each.name!r} adds "
                "to the loss, as an activity_regularizer does. Use recompute=False"
            )
    return output
