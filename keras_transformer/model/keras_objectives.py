"""Keras' losses and metrics, by name or object, as losses and metrics of tokens (TensorFlow).

Keras gives every batch the weight of its rows; and a metric that a replica holds is not a share of
a total. Here Keras' own metrics see tokens in a row, so that each counts alike; and after each step every
replica holds 1 / n of what all n have added, as those of this package do.
"""

import keras
import tensorflow as tf

from keras_transformer.model.loss import LabelSmoothedCrossEntropy, token_statistics
from keras_transformer.model.metrics import StepCounters, TokenMean

_CROSS_ENTROPY = ("crossentropy", "ce", "sparse_categorical_crossentropy", "SparseCategoricalCrossentropy")


class TokenWiseLoss(LabelSmoothedCrossEntropy):
    """Another loss, of which every real token counts alike.

    Args:
        loss: function of labels and logits that gives one number for each token, or a
            `keras.losses.Loss` whose `call` does.
        pad_id: label that counts for nothing.
    """

    def __init__(self, loss, *, pad_id):
        is_object = isinstance(loss, keras.losses.Loss)
        reduction = {"reduction": loss.reduction} if is_object else {}
        super().__init__(0.0, pad_id=pad_id, name=_name(loss), **reduction)
        self.function = loss.call if is_object else loss
        self.given_dtype = loss.dtype if is_object else keras.config.floatx()

    def of_tokens(self, labels, logits):
        """Returns the loss of every token, padding included; as Keras, gives floats."""
        return self.function(tf.cast(labels, self.given_dtype), tf.cast(logits, self.given_dtype))

    def statistics(self, y_true, y_pred):
        """Returns the `TokenStatistics` of a batch; all but `loss` are those of the logits."""
        found = token_statistics(y_true, y_pred, pad_id=self.pad_id)
        loss = tf.cast(self.of_tokens(y_true, y_pred), "float32")
        return found._replace(loss=tf.where(found.weight > 0, loss, 0.0))


class _MeanOf(keras.metrics.Mean):
    """Mean over real tokens of what a function gives for each."""

    def __init__(self, function, name):
        super().__init__(name=name)
        self.function = function

    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(self.function(y_true, y_pred), sample_weight=sample_weight)


def token_loss(loss, *, pad_id, vocab_size):
    """Returns the loss of `compile` as one that has `statistics`.

    Args:
        loss: `LabelSmoothedCrossEntropy`; name, function or object of Keras' or one's own; `None` for
            the paper's.
        pad_id: label that counts for nothing.
        vocab_size: of the logits.

    Returns:
        `LabelSmoothedCrossEntropy`, or `TokenWiseLoss`.

    Raises:
        ValueError: it takes no logits, or gives something else than a number for each token.
    """
    ours = LabelSmoothedCrossEntropy
    if loss is None:
        return ours(pad_id=pad_id)
    if isinstance(loss, ours):
        changes_call_alone = type(loss).call is not ours.call and type(loss).statistics is ours.statistics
        if not changes_call_alone:
            return loss
    name = "sparse_categorical_crossentropy" if loss in ("crossentropy", "ce") else loss
    try:
        found = keras.losses.get(name)
    except (ValueError, TypeError) as error:
        raise ValueError(
            "`loss` must be a LabelSmoothedCrossEntropy, or a name, function or object of a loss as Keras "
            f"has them. Received: {loss!r}"
        ) from error
    if found is keras.losses.sparse_categorical_crossentropy:
        return ours(0.0, pad_id=pad_id, name="sparse_categorical_crossentropy")
    if type(found) is keras.losses.SparseCategoricalCrossentropy:
        if not isinstance(loss, str):
            _refuse_probabilities(found, "loss")
        if found.ignore_class not in (None, pad_id):
            raise ValueError(
                f"`loss`: ignore_class={found.ignore_class}, but padding, which is left out in any case, has "
                f"the id {pad_id}. Leave it away, or give such labels a `sample_weight` of 0"
            )
        return ours(0.0, pad_id=pad_id, name=found.name, reduction=found.reduction)
    if not callable(found):
        raise ValueError(f"`loss` must be callable. Received: {loss!r}")
    calls = keras.losses.Loss.__call__, ours.__call__
    if isinstance(found, keras.losses.Loss) and type(found).__call__ not in calls:
        raise ValueError(
            f"`loss`: {type(found).__name__} changes `__call__`, which the token-weighted step does not use. "
            "Change `call`, which gives the loss of every token"
        )
    made = TokenWiseLoss(found, pad_id=pad_id)
    reason = _not_token_wise(made.of_tokens, *_trial_inputs(vocab_size)[:2])
    if reason:
        raise ValueError(
            "`loss` must give one number for each token, shape (batch, length), for labels of that shape "
            f"and logits of shape (batch, length, vocab_size). Received: {_name(found)}, which {reason}"
        )
    return made


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
        for metric in filter(needs_logits, found[-1]):
            _try_out(metric, argument, vocab_size, num_replicas)
    _name_apart(*found)
    return found


def needs_logits(metric):
    """Whether a metric is none of this package, which need only the sums behind the loss."""
    return not isinstance(metric, (TokenMean, StepCounters))


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
    if not variables or (num_replicas == 1 and finite is None):
        return
    after = [tf.identity(variable) for variable in variables]
    if num_replicas > 1:
        added = [new - old for new, old in zip(after, before, strict=True)]
        after = [old + new / num_replicas for old, new in zip(before, over_replicas(added), strict=True)]
    for variable, old, new in zip(variables, before, after, strict=True):
        variable.assign(new if finite is None else tf.where(finite, new, old))


def _metric(given, argument):
    if isinstance(given, StepCounters) and argument != "metrics":
        raise ValueError(
            "`weighted_metrics`: a StepCounters counts steps, which have no weight. Give it in `metrics`"
        )
    if isinstance(given, (TokenMean, StepCounters)):
        return given
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
        _refuse_probabilities(found, argument)
    name = given if isinstance(given, str) else None
    if not isinstance(found, keras.metrics.Metric):
        return _MeanOf(found, name=name or getattr(found, "__name__", "metric"))
    found.name = name or found.name
    return found


def _refuse_probabilities(found, argument):
    """Refuses a `SparseCategoricalCrossentropy`, loss or metric, that takes no logits."""
    if not found.from_logits:
        module = "losses" if isinstance(found, keras.losses.Loss) else "metrics"
        raise ValueError(
            f"`{argument}`: from_logits=False. The model gives logits, not probabilities: use "
            f"keras.{module}.SparseCategoricalCrossentropy(from_logits=True), "
            'or the name "sparse_categorical_crossentropy"'
        )


class _Trial(keras.Operation):
    """An update that is traced and leaves nothing behind but built metrics."""

    def __init__(self, metric):
        super().__init__()
        self.metric = metric

    def call(self, labels, logits, weights):
        update(self.metric, labels, logits, weights)
        return labels


def _try_out(metric, argument, vocab_size, num_replicas):
    """Refuses a metric that is not one of tokens, or that replicas cannot share."""
    inputs, reason = _trial_inputs(vocab_size), None
    if isinstance(metric, _MeanOf):
        reason = _not_token_wise(metric.function, *inputs[:2])
    elif isinstance(metric, keras.metrics.MeanMetricWrapper):
        reason = _not_token_wise(lambda *inputs: metric._fn(*inputs, **metric._fn_kwargs), *inputs[:2])
    try:
        if not reason:
            _Trial(metric).compute_output_spec(*inputs)
    except Exception as error:
        reason = _failure(error)
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


def _trial_inputs(vocab_size):
    """Returns labels, logits and weights of two axes and more, which differ and so broadcast by no chance."""
    shape = 3, 5 if vocab_size != 5 else 7
    specs = (shape, "int32"), ((*shape, vocab_size), "float32"), (shape, "float32")
    return [keras.KerasTensor(*spec) for spec in specs]


def _not_token_wise(function, labels, logits):
    """Returns what a function does other than give a number for each token; `None` where it does that."""
    specs = [tf.TensorSpec(each.shape, each.dtype) for each in (labels, logits)]
    try:
        shape = tf.function(function, autograph=False).get_concrete_function(*specs).output_shapes
        if getattr(shape, "rank", None) == 2 and shape.is_compatible_with(labels.shape):
            return None
        return f"gives shape {tuple(shape)} for labels of {tuple(labels.shape)}"
    except Exception as error:
        return _failure(error)


def _failure(error):
    return f"fails: {str(error).strip().splitlines()[0]}"


def _name(loss):
    return getattr(loss, "name", None) or getattr(loss, "__name__", type(loss).__name__)


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
