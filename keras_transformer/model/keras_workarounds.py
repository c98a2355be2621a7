"""Workarounds for faults of Keras' trainer and optimizers (TensorFlow).

Each item names the fault, the function that works around it, and what it does instead. The faults were
measured with Keras 3.15. `tests/training/test_strategies.py` fails if Keras changes a private method that is
overridden here.

- **Symbolic build** (`_maybe_symbolic_build`): before training, `fit` builds the model on the mean of the
  replicas' first batches. This fails if the batches differ in shape, and with several workers (keras#20585),
  and it starts the dataset twice. Here the method does nothing, because the constructor and `compile` have
  already built model and optimizer.
- **Logs of several workers** (`make_train_function`, `_distributed`): Keras concatenates the logs of the
  replicas, which fails for scalars (keras#20585, keras#20329). Here all replicas return the same logs, and
  the step returns those of the first one.
- **Number of axes** (`make_train_function`, `_one_graph_per_rank`): Keras uses one graph for all batches. If
  batches differ in their number of axes, that graph does not know the rank of labels and sample weights. Here
  every combination of ranks has its own graph.
- **Nested graphs** (`_make_function`): Keras traces the step as a `tf.function` inside another, which keeps
  the graph twice: 60 MB more for a model of 3 + 3 layers, 90 MB for `base`. Here it is one function.
- **Optimizers** (`check_optimizer`): Keras clips the gradient of each replica before it adds them up
  (`weight_update.py` clips the sum). Gradient accumulation and moving averages fail under a strategy
  (keras#20582), and loss scaling checks the first replica only. `check_optimizer` raises an error for these.
- **Empty datasets and wrong ids** (`_with_checks`, around `fit`, `evaluate`, ...): Keras trains on an empty
  dataset without an error, and an id outside the vocabulary gives a page of TensorFlow messages. Here both
  give an error of one line.
- **XLA** (`compile`, `_resolve_auto_jit_compile`): `jit_compile="auto"` compiles once per shape, and batches
  have many shapes. Here `"auto"` means off, also in a `predict` without `compile`.
- **Losses and metrics** (`compile`): Keras averages them over the sentences of a replica.
  `keras_objectives.py` turns them into means over tokens.
- **Saving** (`compile_from_config`): Keras does not restore the compiled state of a model that overrides
  `compile`, and only warns. Here it is restored.
- **Direction of metrics** (`fit`): `EarlyStopping` and `ModelCheckpoint` do not see which direction of these
  metrics is better. Here they are told (`metrics.set_directions`).
- **Recomputation** (`run_layer`): see `recomputation.py`.
"""

import functools
import inspect
import types
from typing import Any, cast

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.config.types import Tensor
from keras_transformer.model.inputs import check_data, check_inputs, shorten_error
from keras_transformer.model.keras_objectives import standard_metrics, token_loss
from keras_transformer.model.metrics import TokenLoss, set_directions
from keras_transformer.model.optimizer import Adam
from keras_transformer.model.recomputation import call_with_recompute
from keras_transformer.model.step_metrics import check_overrides
from keras_transformer.model.weight_update import build_optimizer, check_optimizer, start_at_weights

REQUESTS = 3  # number of kinds of requests that a worker can send to all workers after a step


def _with_checks(method, *, empty=None):
    """Wraps a method of `keras.Model`: wrong inputs raise an error of one line.

    Args:
        method: the method.
        empty: verb for the error about an empty dataset, such as "trained"; `None` for no such check.
    """
    signature = inspect.signature(method)

    @functools.wraps(method)
    def checked(self, *args, **kwargs):
        arguments = signature.bind(self, *args, **kwargs).arguments
        sizes = self.config.source_vocab_size, self.config.target_vocab_size
        if "y" in signature.parameters:
            check_data(*map(arguments.get, ("x", "y", "sample_weight", "class_weight")), sizes)
        else:
            check_inputs(arguments.get("x"), sizes)
        set_directions(arguments.get("callbacks"), self.metrics)
        try:
            result = method(self, *args, **kwargs)
        except tf.errors.InvalidArgumentError as error:
            short_error = shorten_error(error, self.config)
            if short_error is None:
                raise
            raise short_error from None
        except UnboundLocalError as error:
            # Keras' `predict` joins the outputs of the last batch, even if there was none.
            if not empty or "batch_outputs" not in str(error):
                raise
            result = []
        if isinstance(result, keras.callbacks.History):
            had_no_batch = result.epoch and not result.history
        else:
            had_no_batch = isinstance(result, (dict, list)) and not result
        if empty and had_no_batch:
            raise ValueError(f"the dataset has no batches: nothing was {empty}")
        return result

    return checked


class KerasWorkarounds:
    """Mix-in of `TokenWeightedStep`: overrides `compile`, `fit` and the methods between them and the step."""

    fit = _with_checks(keras.Model.fit, empty="trained")
    evaluate = _with_checks(keras.Model.evaluate, empty="evaluated")
    train_on_batch = _with_checks(keras.Model.train_on_batch)
    test_on_batch = _with_checks(keras.Model.test_on_batch)
    predict = _with_checks(keras.Model.predict, empty="predicted")
    predict_on_batch = _with_checks(keras.Model.predict_on_batch)

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
        towers=1,
        **kwargs,
    ):
        """Configures the model for `fit` and `evaluate`, like `keras.Model.compile`.

        Args:
            optimizer: a Keras optimizer or its name; `"adam"` is the Adam of this package. Clipping applies
                to the gradient summed over all replicas. `None`: the model is evaluated only.
            loss: a `LabelSmoothedCrossEntropy`; `None` is one with the smoothing of the paper, 0.1. Or a
                Keras loss (name, function or object), or a function of int labels and logits, that returns a
                loss for each token. Padding is ignored, and the mean is over tokens.
            metrics: list of token means, such as `TokenAccuracy()` and `Perplexity()`, `StepCounters()`, and
                Keras metrics, which need the logits and so make the step slower. They all ignore
                `sample_weight`.
            weighted_metrics: list of metrics that weight each token by its `sample_weight`.
            loss_weights: factor on the loss: a number, or a list of one number.
            ema_decay: decay of an exponential moving average of the weights, stored in `ema_weights`; 0
                disables it.
            recompute: gradient checkpointing: keeps only the inputs of each layer in memory, and recomputes
                the other activations for the gradient.
            towers: number of parts of each batch whose gradients are computed side by side. On a CPU, one
                tower for each core, with one thread for each operation, is faster than one tower.
            **kwargs: see `keras.Model.compile`. `jit_compile` is off by default, and with `"auto"`, because
                XLA compiles once per shape, and batches have many shapes.

        Raises:
            ValueError: a loss or metric cannot be computed per token, or Keras does not support the settings
                under the distribution strategy.
        """
        arguments = {"metrics": metrics, "weighted_metrics": weighted_metrics, "loss_weights": loss_weights}
        strategy, vocab_size = self.distribute_strategy, self.config.target_vocab_size
        num_replicas = strategy.num_replicas_in_sync
        loss, factor = _single_output("loss", loss), _single_output("loss_weights", loss_weights)
        per_token = token_loss(loss, pad_id=self.special.pad, vocab_size=vocab_size)
        if not 0 <= ema_decay < 1:
            raise ValueError(f"`ema_decay` must be at least 0 and below 1. Received: {ema_decay}")
        xla = kwargs.pop("jit_compile", False) not in (False, None, "auto")
        if towers < 1 or (towers > 1 and xla):
            raise ValueError(f"`towers` must be at least 1, and 1 with `jit_compile`. Received: {towers}")
        check_overrides(self, recompute=recompute, towers=towers)
        optimizer = Adam() if optimizer == "adam" else keras.optimizers.get(optimizer)
        check_optimizer(optimizer, strategy, self.dtype_policy.name)
        if num_workers(strategy) > 1:
            for name, default in (("run_eagerly", False), ("steps_per_execution", 1)):
                if kwargs.get(name, default) != default:
                    raise ValueError(
                        f"`{name}={kwargs[name]}` does not work with several workers. Use {name}={default}"
                    )
        # With one replica XLA compiles the whole step; with several, only the gradients of each replica.
        xla_step, xla_gradients = xla and num_replicas == 1, xla and num_replicas > 1
        with strategy.scope():
            plain, weighted = standard_metrics(
                metrics,
                weighted_metrics,
                pad_id=self.special.pad,
                vocab_size=vocab_size,
                num_replicas=num_replicas,
            )
            loss = per_token if loss is None else loss
            super().compile(optimizer=optimizer, loss=loss, jit_compile=xla_step, **kwargs)
            self.loss = per_token
            weights = self.trainable_variables
            build_optimizer(self.optimizer, weights)
            # In a namespace, because Keras tracks lists and forbids new ones in a built model.
            self._compiled_state = types.SimpleNamespace(
                metrics=[TokenLoss(pad_id=per_token.pad_id), *plain, *weighted],
                weighted_metrics=weighted,
                arguments=arguments,
                loss_factor=1.0 if factor is None else float(factor),
                normalizer=None,
                ema_decay=ema_decay,
                recompute=recompute,
                towers=towers,
                averages=[
                    (weight, tf.Variable(weight.value, trainable=False, name="ema"))
                    for weight in weights
                    if ema_decay
                ],
                averages_are_stale=False,
                own_step_ran=False,
                jit_compile=xla,
            )
        # Created outside the strategy's scope: each process has its own variable.
        self._compiled_state.requests = tf.Variable(tf.zeros(REQUESTS), trainable=False)
        self._compiled_state.gradients = (
            tf.function(self._gradients, jit_compile=True) if xla_gradients else self._gradients
        )

    def get_compile_config(self):
        config = super().get_compile_config()
        if config and self.compiled:
            config.update(keras.saving.serialize_keras_object(self._compiled_state.arguments))
            for name in ("ema_decay", "recompute", "towers", "jit_compile"):
                config[name] = getattr(self._compiled_state, name)
            config["trainable_layers"] = [layer.trainable for layer in self._flatten_layers()]
        return config

    def compile_from_config(self, config):
        layers = self._flatten_layers()  # each layer precedes its sublayers, which it freezes, too
        for index in config.pop("frozen_layers", ()):  # in files of earlier versions
            layers[index].trainable = False
        for layer, trainable in zip(layers, config.pop("trainable_layers", ()), strict=False):
            if layer.trainable != trainable:
                layer.trainable = trainable
        self.compile(**keras.saving.deserialize_keras_object(config))
        self._compiled_state.averages_are_stale = True  # the weights are loaded after this

    def load_weights(self, filepath: Any, skip_mismatch: bool = False, **kwargs: Any) -> None:
        """Like Keras' method; moving averages begin again at the loaded weights."""
        cast(Any, super()).load_weights(filepath, skip_mismatch=skip_mismatch, **kwargs)
        if hasattr(self, "_compiled_state"):
            cast(Any, self).reset_ema()

    def quantize(self, *args: Any, **kwargs: Any) -> None:
        """Raises `NotImplementedError`: Keras would quantize no layer of the model."""
        raise NotImplementedError(
            "the model has no layer that Keras can quantize. Export it with `export_model.py --format "
            "ctranslate2 --quantization int8`"
        )

    def _resolve_auto_jit_compile(self):
        return False

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        return

    def make_train_function(self, force=False):
        """Like Keras' method, but with a graph per rank and with logs that work for several workers."""
        if self.optimizer is None:
            raise ValueError("`compile(optimizer=None)` is for evaluation: give an optimizer to train")
        is_first = int(self.optimizer.iterations.numpy()) == 0
        if is_first or self._compiled_state.averages_are_stale:
            self.reset_ema()
        if is_first:
            start_at_weights(self.optimizer)
        if self.train_function is None or force:
            several = num_workers(self.distribute_strategy) > 1
            run_step = self._one_graph_per_rank("train_function", super().make_train_function)
            self.train_function = self._distributed(self.train_step) if several else run_step
        return self.train_function

    def make_test_function(self, force=False):
        """See `make_train_function`."""
        if self.test_function is None or force:
            several = num_workers(self.distribute_strategy) > 1
            run_step = self._one_graph_per_rank("test_function", super().make_test_function)
            self.test_function = self._distributed(self.test_step) if several else run_step
        return self.test_function

    def _make_function(self, step_function):
        """Like Keras' method, but one graph; for XLA, several steps or replicas and eager mode, Keras'."""
        strategy = self.distribute_strategy
        several = self.steps_per_execution > 1 or strategy.num_replicas_in_sync > 1
        if several or self.run_eagerly or self.jit_compile:
            return super()._make_function(step_function)
        convert = getattr(self, "_autoconvert_optionals", lambda step: step)  # Keras 3.10 has none
        step = convert(lambda batch: strategy.run(step_function, args=(batch,)))
        graph = functools.partial(tf.function, reduce_retracing=True, autograph=False)
        on_batch, on_iterator = graph(step), graph(lambda iterator: step(iterator.get_next()))

        def run_step(iterator):
            is_dataset = isinstance(iterator, (tf.data.Iterator, tf.distribute.DistributedIterator))
            return on_iterator(iterator) if is_dataset else on_batch(next(iterator))

        return run_step

    def run_layer(
        self, layer: Any, *inputs: Tensor, training: bool | None = None, **constants: Any
    ) -> Tensor:
        """Calls a layer; with `recompute`, its activations are recomputed for the gradient.

        Args:
            layer: `keras.layers.Layer`.
            *inputs: float tensors.
            training: whether dropout is applied.
            **constants: other arguments of the layer, without a gradient, such as masks.

        Raises:
            ValueError: see `call_with_recompute`.
        """
        if training and hasattr(self, "_compiled_state") and self._compiled_state.recompute:
            return call_with_recompute(layer, *inputs, **constants)
        return layer(*inputs, **constants, training=training)

    def _one_graph_per_rank(self, name, make):
        """Returns a train or test function with a separate graph for each combination of ranks in a batch.

        Args:
            name: attribute in which Keras stores the function, such as "train_function".
            make: method of Keras that makes the function and stores it in this attribute.
        """
        functions, trains = {}, name == "train_function"

        def run_step(iterator):
            if hasattr(iterator, "element_spec"):
                batch = iterator.element_spec
            else:  # a plain iterator, as from `train_on_batch`
                batch = next(iterator)
                iterator = iter([batch])
            ranks = tuple(
                array.shape.rank if isinstance(array, tf.TensorSpec) else np.ndim(array)
                for array in tf.nest.flatten(batch, expand_composites=True)
            )
            if ranks not in functions:
                make(force=True)
                functions[ranks] = getattr(self, name)
                setattr(self, name, run_step)
            logs = functions[ranks](iterator)
            state = getattr(self, "_compiled_state", None)
            if trains and state and not state.own_step_ran and (state.ema_decay or state.towers > 1):
                raise ValueError(
                    f"{type(self).__name__} overrides `train_step` without `super().train_step(data)`, so "
                    "`ema_decay` and `towers` would have no effect. Leave them out of `compile`"
                )
            return logs

        return run_step

    def _distributed(self, step):
        """Returns a train or test function for several workers; it returns the logs of one replica."""
        strategy = self.distribute_strategy
        functions = {}

        def replicated_step(data):
            logs = strategy.run(step, args=(data,))
            return tf.nest.map_structure(lambda log: strategy.experimental_local_results(log)[0], logs)

        def run_step(iterator):
            spec = iterator.element_spec
            if spec not in functions:
                # One graph for all shapes, as with one worker: the choice of a graph must not depend on the
                # shapes that a process has seen, or the workers would run different graphs.
                functions[spec] = tf.function(replicated_step, input_signature=[spec], autograph=False)
            return functions[spec](next(iterator))

        return run_step


def num_workers(strategy):
    """Returns the number of worker processes of a `tf.distribute.Strategy`."""
    resolver = strategy.cluster_resolver
    if resolver is None or not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return 1
    return max(1, len(resolver.cluster_spec().as_dict().get("worker", ())))


def _single_output(name, value):
    """Unwraps an argument of `compile` that Keras also accepts as a list or dict with an item per output."""
    if not isinstance(value, (list, tuple)) and not (isinstance(value, dict) and "class_name" not in value):
        return value
    values = list(value.values()) if isinstance(value, dict) else list(value)
    if len(values) != 1:
        raise ValueError(f"`{name}` must be for one output, the logits. Received: {value!r}")
    return values[0]
