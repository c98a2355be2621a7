"""Keras' metrics, by name or object, over real tokens of all replicas (TensorFlow).

Keras gives every batch the weight of its rows; and a metric that a replica holds is not a share of
a total. Here Keras' own metrics see tokens in a row, so that each counts alike; and after each step every
replica holds 1 / n of what all n have added, as those of this package do.
"""

import keras
import tensorflow as tf

from keras_transformer.model.metrics import Tally, TokenMean
from keras_transformer.model.standard_losses import refuse_probabilities

_CROSS_ENTROPY = ("crossentropy", "ce", "sparse_categorical_crossentropy", "SparseCategoricalCrossentropy")


class _MeanOf(keras.metrics.Mean):
    """Mean over real tokens of what a function gives for each."""

    def __init__(self, function, name):
        super().__init__(name=name)
        self.function = function

    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(self.function(y_true, y_pred), sample_weight=sample_weight)


def standard_metrics(metrics, weighted_metrics, *, vocab_size, num_replicas):
    """Returns the metrics of `compile` as objects with names of their own; two lists.

    Args:
        metrics: list of objects, functions and names, as Keras takes them, or `None`.
        weighted_metrics: the same.
        vocab_size: of the logits.
        num_replicas: that a total is divided among.

    Raises:
        ValueError: one cannot be computed of tokens.
    """
    found = []
    for argument, given in (("metrics", metrics), ("weighted_metrics", weighted_metrics)):
        if given and not isinstance(given, (list, tuple, dict)):
            raise ValueError(
                f"`{argument}` must be a list, such as {argument}=[TokenAccuracy()]. Received: {given!r}"
            )
        found.append([_metric(each, argument) for each in keras.tree.flatten(given or [])])
        for metric in found[-1]:
            if needs_logits(metric):
                _try_out(metric, argument, vocab_size, num_replicas)
    _name_apart(*found)
    return found


def needs_logits(metric):
    """Whether a metric is none of this package, which need only the sums behind the loss."""
    return not isinstance(metric, (TokenMean, Tally))


def update(metric, labels, logits, weights):
    """Adds the batch of one replica.

    Args:
        metric: `keras.metrics.Metric`.
        labels: int, shape `(batch, length)`.
        logits: float, shape `(batch, length, vocab_size)`.
        weights: float32, shape `(batch, length)`; 0 for padding.
    """
    logits = tf.cast(logits, tf.float32)
    if isinstance(metric, _MeanOf) or type(metric).__module__.startswith("keras."):
        # A mean over rows of means over columns would give long batches less weight.
        labels, weights = tf.reshape(labels, (-1,)), tf.reshape(weights, (-1,))
        logits = tf.reshape(logits, (-1, logits.shape[-1]))
    metric.update_state(labels, logits, sample_weight=weights)


def share(metrics, before, finite, over_replicas, num_replicas):
    """Gives every replica the same share of what all have added in a step.

    Args:
        metrics: list of `keras.metrics.Metric`, updated by the step.
        before: list of tensors, their variables before it.
        finite: bool scalar, whether the step counts; `None` where each does.
        over_replicas: function that sums a list of tensors over the replicas.
        num_replicas: int.
    """
    variables = [variable for metric in metrics for variable in metric.variables]
    if not variables:
        return
    if num_replicas > 1:
        added = [variable - old for variable, old in zip(variables, before, strict=True)]
        after = [old + new / num_replicas for old, new in zip(before, over_replicas(added), strict=True)]
    elif finite is None:
        return
    else:
        after = [tf.identity(variable) for variable in variables]
    for variable, old, new in zip(variables, before, after, strict=True):
        variable.assign(new if finite is None else tf.where(finite, new, old))


def _metric(given, argument):
    if isinstance(given, TokenMean) or (isinstance(given, Tally) and argument == "metrics"):
        return given
    if isinstance(given, Tally):
        raise ValueError(
            "`weighted_metrics`: a Tally counts steps, which have no weight. Give it in `metrics`"
        )
    if isinstance(given, str) and given in _CROSS_ENTROPY:
        return keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name=given)
    if given in ("accuracy", "acc"):
        return keras.metrics.SparseCategoricalAccuracy(name=given)
    try:
        found = keras.metrics.get(given)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"`{argument}` must hold token means such as TokenAccuracy() or Perplexity(), or names, "
            f"functions or objects of metrics as Keras has them. Received: {given!r}"
        ) from error
    if type(found) is keras.metrics.SparseCategoricalCrossentropy:
        refuse_probabilities(found, argument)
    if isinstance(found, keras.metrics.Metric):
        if isinstance(given, str):
            found.name = given
        return found
    return _MeanOf(found, name=given if isinstance(given, str) else getattr(found, "__name__", "metric"))


class _Trial(keras.Operation):
    """An update that is traced and leaves nothing behind but built metrics."""

    def __init__(self, metric):
        super().__init__()
        self.metric = metric

    def call(self, labels, logits, weights):
        update(self.metric, labels, logits, weights)
        return labels


def _try_out(metric, argument, vocab_size, num_replicas):
    rows, length = 3, 5 if vocab_size != 5 else 7
    labels = keras.KerasTensor((rows, length), "int32")
    weights = keras.KerasTensor((rows, length), "float32")
    logits = keras.KerasTensor((rows, length, vocab_size), "float32")
    reason = None
    try:
        if isinstance(metric, (_MeanOf, keras.metrics.MeanMetricWrapper)):
            reason = _shape_reason(metric, labels, logits)
        if not reason:
            _Trial(metric).compute_output_spec(labels, logits, weights)
    except Exception as error:
        reason = f"fails: {str(error).strip().splitlines()[0]}"
    if reason:
        raise ValueError(
            f"`{argument}`: {metric.name} must take labels of shape (tokens,), logits of shape (tokens, "
            f"vocab_size) and `sample_weight`, 0 for padding, and count every token; it {reason}"
        )
    created_here = tf.distribute.get_strategy().extended.variable_created_in_scope
    if not all(created_here(variable.value) for variable in metric.variables):
        raise ValueError(
            f"`{argument}`: {metric.name} was made outside of the strategy's scope, where replicas overwrite "
            "each other's counts. Make it within `strategy.scope()`"
        )
    if num_replicas > 1 and any(not variable.dtype.startswith("float") for variable in metric.variables):
        raise ValueError(
            f"`{argument}`: {metric.name} counts in whole numbers, of which {num_replicas} replicas cannot "
            "hold a share each. Use one replica, or variables of a float type"
        )


def _shape_reason(metric, *inputs):
    function = metric.function if isinstance(metric, _MeanOf) else metric._fn
    how = {} if isinstance(metric, _MeanOf) else metric._fn_kwargs
    traced = tf.function(lambda *inputs: function(*inputs, **how), autograph=False)
    # Of two axes: what takes labels as one-hot would broadcast with one.
    specs = [tf.TensorSpec(each.shape, each.dtype) for each in inputs]
    shape, wanted = traced.get_concrete_function(*specs).output_shapes, inputs[0].shape
    if shape.rank == 2 and shape.is_compatible_with(wanted):
        return None
    return f"gives shape {tuple(shape)} for labels of {tuple(wanted)}"


def _name_apart(metrics, weighted):
    """Gives metrics of one name others, as Keras does."""
    taken = {}
    for metric in (*metrics, *weighted):
        name = metric.name
        if name in taken and metric in weighted and f"weighted_{name}" not in taken:
            metric.name = f"weighted_{name}"
        elif name in taken:
            metric.name = f"{name}_{taken[name]}"
        taken[name] = taken.get(name, 0) + 1
        taken.setdefault(metric.name, 1)
