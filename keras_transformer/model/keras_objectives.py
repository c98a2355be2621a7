"""Adapts Keras' losses and metrics, given by name or as objects, to means over tokens (TensorFlow).

Keras weights a batch by its number of rows. Here Keras' metrics get flat arrays of tokens instead, so every
real token has the same weight. After each step, each of n replicas holds 1 / n of the totals in its metric
variables, like the metrics of this package.
"""

import keras
import tensorflow as tf

from keras_transformer.model.loss import LabelSmoothedCrossEntropy, token_statistics
from keras_transformer.model.metrics import StepCounters, TokenLoss, TokenMean

_CROSS_ENTROPY = ("crossentropy", "ce", "sparse_categorical_crossentropy", "SparseCategoricalCrossentropy")


class TokenWiseLoss(LabelSmoothedCrossEntropy):
    """Wraps another loss; every real token has the same weight.

    Args:
        loss: function of labels and logits that returns one number per token, or a `keras.losses.Loss` whose
            `call` does so.
        pad_id: id of padding, which is ignored.
    """

    def __init__(self, loss, *, pad_id):
        is_object = isinstance(loss, keras.losses.Loss)
        reduction = {"reduction": loss.reduction} if is_object else {}
        super().__init__(0.0, pad_id=pad_id, name=_name(loss), **reduction)
        self.function = loss.call if is_object else loss
        self.loss_dtype = loss.dtype if is_object else keras.config.floatx()

    def per_token(self, labels, logits):
        """Returns the loss of every token, padding included; like Keras, casts labels and logits to float."""
        return self.function(tf.cast(labels, self.loss_dtype), tf.cast(logits, self.loss_dtype))

    def statistics(self, y_true, y_pred):
        """Returns the `TokenStatistics` of a batch; `loss` is that of the wrapped loss."""
        statistics = token_statistics(y_true, y_pred, pad_id=self.pad_id)
        loss = tf.cast(self.per_token(y_true, y_pred), "float32")
        return statistics._replace(loss=tf.where(statistics.weight > 0, loss, 0.0))


class _MeanOf(keras.metrics.Mean):
    """Metric: mean over real tokens of a function that returns a number per token."""

    def __init__(self, function, name):
        super().__init__(name=name)
        self.function = function

    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(self.function(y_true, y_pred), sample_weight=sample_weight)


def token_loss(loss, *, pad_id, vocab_size):
    """Converts the argument `loss` of `compile` to a loss per token.

    Args:
        loss: `LabelSmoothedCrossEntropy`; or a Keras loss (name, function or object) or a function of labels
            and logits; `None` means the loss of the paper.
        pad_id: id of padding, which is ignored.
        vocab_size: size of the last axis of the logits.

    Returns:
        `LabelSmoothedCrossEntropy`, or its subclass `TokenWiseLoss`.

    Raises:
        ValueError: the loss does not accept logits, does not return one number per token, or has another
            `pad_id`.
    """
    ours = LabelSmoothedCrossEntropy
    if loss is None:
        return ours(pad_id=pad_id)
    if isinstance(loss, ours):
        _check_pad_id(loss, "loss", pad_id)
        _check_call(loss)
        overrides_only_call = type(loss).call is not ours.call and type(loss).statistics is ours.statistics
        if not overrides_only_call:
            return loss
    name = "sparse_categorical_crossentropy" if loss in ("crossentropy", "ce") else loss
    try:
        base = keras.losses.get(name)
    except (ValueError, TypeError) as error:
        raise ValueError(
            "`loss` must be a LabelSmoothedCrossEntropy or a Keras loss (name, function or object). "
            f"Received: {loss!r}"
        ) from error
    if base is keras.losses.sparse_categorical_crossentropy:
        return ours(0.0, pad_id=pad_id, name="sparse_categorical_crossentropy")
    if type(base) is keras.losses.SparseCategoricalCrossentropy:
        if not isinstance(loss, str):
            _check_from_logits(base, "loss")
        if base.ignore_class not in (None, pad_id):
            raise ValueError(
                f"`loss`: ignore_class={base.ignore_class}, but padding, which is left out in any case, has "
                f"the id {pad_id}. Remove it, or give such labels a `sample_weight` of 0"
            )
        return ours(0.0, pad_id=pad_id, name=base.name, reduction=base.reduction)
    if not callable(base):
        raise ValueError(f"`loss` must be callable. Received: {loss!r}")
    _check_call(base)
    token_wise = TokenWiseLoss(base, pad_id=pad_id)
    problem = _per_token_problem(token_wise.per_token, *_trial_inputs(vocab_size)[:2])
    if problem:
        raise ValueError(
            "`loss` must give one number for each token, shape (batch, length), for labels of that shape "
            f"and logits of shape (batch, length, vocab_size). Received: {_name(base)}, which {problem}"
        )
    return token_wise


def standard_metrics(metrics, weighted_metrics, *, pad_id, vocab_size, num_replicas):
    """Converts the metric arguments of `compile` to metric objects with unique names.

    Args:
        metrics: list of Keras metrics (names, functions or objects), or `None`.
        weighted_metrics: the same, for metrics that use sample weights.
        pad_id: id of padding, which is ignored.
        vocab_size: size of the last axis of the logits.
        num_replicas: number of replicas of the strategy.

    Returns:
        Two lists of `keras.metrics.Metric`.

    Raises:
        ValueError: a metric cannot be computed per token, or has another `pad_id`.
    """
    lists = []
    for argument, value in (("metrics", metrics), ("weighted_metrics", weighted_metrics)):
        if value and not isinstance(value, (list, tuple, dict)):
            raise ValueError(
                f"`{argument}` must be a list, such as {argument}=[TokenAccuracy()]. Received: {value!r}"
            )
        lists.append([_metric(metric, argument) for metric in keras.tree.flatten(value or [])])
        for metric in lists[-1]:
            if isinstance(metric, TokenMean):
                _check_pad_id(metric, argument, pad_id)
            elif needs_logits(metric):
                _check_metric(metric, argument, vocab_size, num_replicas)
    _make_names_unique(*lists)
    return lists


def needs_logits(metric):
    """Whether a metric needs logits. This package's metrics only need the sums behind the loss."""
    return not isinstance(metric, (TokenMean, StepCounters))


def update_metric(metric, labels, logits, weights):
    """Updates a metric with the batch of one replica.

    Args:
        metric: `keras.metrics.Metric`.
        labels: int, shape `(batch, length)`.
        logits: float, shape `(batch, length, vocab_size)`.
        weights: float32, shape `(batch, length)`; 0 for padding.
    """
    logits = tf.cast(logits, tf.float32)
    if isinstance(metric, _MeanOf) or type(metric).__module__.startswith("keras."):
        # As flat arrays of tokens: a mean over rows of row means would not weight tokens equally.
        labels, weights = tf.reshape(labels, (-1,)), tf.reshape(weights, (-1,))
        logits = tf.reshape(logits, (-1, logits.shape[-1]))
    metric.update_state(labels, logits, sample_weight=weights)


def share_over_replicas(metrics, before, finite, sum_over_replicas, num_replicas):
    """Replaces each replica's metric updates of a step by an equal share of all replicas' updates.

    Args:
        metrics: list of `keras.metrics.Metric`, already updated by the step.
        before: list of tensors, the metrics' variables before the step.
        finite: bool scalar; if False, the variables are reset to `before`. `None` means always True.
        sum_over_replicas: function that sums a list of tensors over the replicas.
        num_replicas: int.
    """
    variables = [variable for metric in metrics for variable in metric.variables]
    if not variables or (num_replicas == 1 and finite is None):
        return
    after = [tf.identity(variable) for variable in variables]
    if num_replicas > 1:
        added = [new - old for new, old in zip(after, before, strict=True)]
        after = [old + new / num_replicas for old, new in zip(before, sum_over_replicas(added), strict=True)]
    for variable, old, new in zip(variables, before, after, strict=True):
        variable.assign(new if finite is None else tf.where(finite, new, old))


def _metric(value, argument):
    """Returns the metric object for an item of `metrics` or `weighted_metrics`."""
    if isinstance(value, StepCounters) and argument != "metrics":
        raise ValueError(
            "`weighted_metrics`: StepCounters counts steps, which have no weight. Pass it in `metrics`"
        )
    if isinstance(value, (TokenMean, StepCounters)):
        bases = TokenMean, TokenLoss, StepCounters
        if type(value).update_state not in [base.update_state for base in bases]:
            raise ValueError(
                f"`{argument}`: {type(value).__name__} changes `update_state`, which the token-weighted step "
                "does not call. Subclass keras.metrics.Metric"
            )
        return value
    if isinstance(value, str) and value in _CROSS_ENTROPY:
        return keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name=value)
    if value in ("accuracy", "acc"):
        return keras.metrics.SparseCategoricalAccuracy(name=value)
    try:
        metric = keras.metrics.get(value)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"`{argument}` must hold token means such as TokenAccuracy() or Perplexity(), or "
            f"Keras metrics (names, functions or objects). Received: {value!r}"
        ) from error
    if type(metric) is keras.metrics.SparseCategoricalCrossentropy:
        _check_from_logits(metric, argument)
    name = value if isinstance(value, str) else None
    if not isinstance(metric, keras.metrics.Metric):
        return _MeanOf(metric, name=name or getattr(metric, "__name__", "metric"))
    metric.name = name or metric.name
    return metric


def _check_pad_id(objective, argument, pad_id):
    """Raises an error for a loss or metric of this package whose `pad_id` is not that of the model."""
    if objective.pad_id != pad_id:
        raise ValueError(
            f"`{argument}`: {objective.name} has pad_id={objective.pad_id}, but padding has the id {pad_id} "
            f"in this model. Use {type(objective).__name__}(..., pad_id={pad_id})"
        )


def _check_call(loss):
    """Raises an error for a loss that overrides `__call__`."""
    supported_calls = keras.losses.Loss.__call__, LabelSmoothedCrossEntropy.__call__
    if isinstance(loss, keras.losses.Loss) and type(loss).__call__ not in supported_calls:
        raise ValueError(
            f"`loss`: {type(loss).__name__} changes `__call__`, which the token-weighted step does not use. "
            "Change `call`, which gives the loss of every token"
        )


def _check_from_logits(cross_entropy, argument):
    """Raises an error for a Keras `SparseCategoricalCrossentropy`, loss or metric, with from_logits=False."""
    if not cross_entropy.from_logits:
        module = "losses" if isinstance(cross_entropy, keras.losses.Loss) else "metrics"
        raise ValueError(
            f"`{argument}`: from_logits=False. The model gives logits, not probabilities: use "
            f"keras.{module}.SparseCategoricalCrossentropy(from_logits=True), "
            'or the name "sparse_categorical_crossentropy"'
        )


class _TracedUpdate(keras.Operation):
    """A metric update that is only traced: it builds the metric but adds nothing to it."""

    def __init__(self, metric):
        super().__init__()
        self.metric = metric

    def call(self, labels, logits, weights):
        update_metric(self.metric, labels, logits, weights)
        return labels


def _check_metric(metric, argument, vocab_size, num_replicas):
    """Raises an error for a metric that cannot be computed per token, or cannot be shared by replicas."""
    inputs, problem = _trial_inputs(vocab_size), None
    if isinstance(metric, _MeanOf):
        problem = _per_token_problem(metric.function, *inputs[:2])
    elif isinstance(metric, keras.metrics.MeanMetricWrapper):
        problem = _per_token_problem(lambda *inputs: metric._fn(*inputs, **metric._fn_kwargs), *inputs[:2])
    try:
        if not problem:
            _TracedUpdate(metric).compute_output_spec(*inputs)
    except Exception as error:
        problem = _failure(error)
    if problem:
        raise ValueError(
            f"`{argument}`: {metric.name} must take labels of shape (tokens,), logits of shape (tokens, "
            f"vocab_size) and `sample_weight`, 0 for padding, and count every token; it {problem}"
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


def _trial_inputs(vocab_size):
    """Returns symbolic labels, logits and weights; all axes differ, so nothing broadcasts by accident."""
    shape = 3, 5 if vocab_size != 5 else 7
    specs = (shape, "int32"), ((*shape, vocab_size), "float32"), (shape, "float32")
    return [keras.KerasTensor(*spec) for spec in specs]


def _per_token_problem(function, labels, logits):
    """Traces a function; returns `None` if it returns a number per token, else what it does instead."""
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in (labels, logits)]
    try:
        shape = tf.function(function, autograph=False).get_concrete_function(*specs).output_shapes
        if getattr(shape, "rank", None) == 2 and shape.is_compatible_with(labels.shape):
            return None
        return f"gives shape {tuple(shape)} for labels of {tuple(labels.shape)}"
    except Exception as error:
        return _failure(error)


def _failure(error):
    """Returns the first line of an exception, for an error message."""
    return f"fails: {str(error).strip().splitlines()[0]}"


def _name(loss):
    return getattr(loss, "name", None) or getattr(loss, "__name__", type(loss).__name__)


def _make_names_unique(metrics, weighted):
    """Renames metrics whose name another metric has, as Keras does: adds "weighted_" or a number."""
    counts = {}
    for metric in (*metrics, *weighted):
        name = metric.name
        if name in counts and metric in weighted and f"weighted_{name}" not in counts:
            metric.name = f"weighted_{name}"
        elif name in counts:
            metric.name = f"{name}_{counts[name]}"
        counts[name] = counts.get(name, 0) + 1
        counts.setdefault(metric.name, 1)
