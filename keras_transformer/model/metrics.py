"""Metrics: means over real target tokens, stored as a sum and a count.

Sums and counts can be added over batches, replicas and workers; means cannot.
"""

from typing import Any

import keras
from keras import ops

from keras_transformer.config.types import Tensor
from keras_transformer.model.loss import TokenStatistics, token_statistics

PACKAGE = "keras_transformer"


class TokenMean(keras.metrics.Metric):
    """Base class: the sum of one field of `TokenStatistics`, divided by the number of real tokens.

    Args:
        pad_id: id of padding, which is ignored.
        name: `None` means the default name of the class.
    """

    statistic: str  # the field of `TokenStatistics` that is averaged
    default_name: str | None = None

    def __init__(self, *, pad_id: int = 0, name: str | None = None, **kwargs: Any) -> None:
        super().__init__(name=name or self.default_name, **kwargs)
        self.pad_id = pad_id
        self.total = self.add_variable((), "zeros", dtype=_sum_dtype(), name="total")
        self.count = self.add_variable((), "zeros", dtype=_sum_dtype(), name="count")

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> None:
        """Adds a batch.

        Args:
            y_true: int labels, shape `(batch, length)`.
            y_pred: float logits, shape `(batch, length, vocab_size)`.
            sample_weight: must be `None`; padding is recognised by the labels.
        """
        if sample_weight is not None:
            raise ValueError("`sample_weight` is not supported: padding is derived from the labels.")
        self.add(token_statistics(y_true, y_pred, pad_id=self.pad_id))

    def add(self, statistics: TokenStatistics) -> None:
        """Adds the `TokenStatistics` of a batch, or sums of them; needs no logits."""
        total = ops.sum(getattr(statistics, self.statistic))
        self.total.assign_add(ops.cast(total, self.total.dtype))
        self.count.assign_add(ops.cast(ops.sum(statistics.weight), self.count.dtype))

    def result(self) -> Tensor:
        count = ops.convert_to_tensor(self.count)
        # A positive count can be below 1, because each replica holds a share of it.
        return self.total / ops.where(count > 0, count, ops.ones_like(count))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "pad_id": self.pad_id}


@keras.saving.register_keras_serializable(package=PACKAGE)
class TokenLoss(TokenMean):
    """Mean training loss per real token, including label smoothing."""

    statistic = "loss"
    default_name = "loss"

    def update_state(
        self, y_true: Tensor, y_pred: Tensor = None, sample_weight: Tensor | None = None
    ) -> None:
        """Adds a batch, as every token mean; or a mean loss, as a `train_step` of your own does in Keras.

        Args:
            y_true: int labels, shape `(batch, length)`; or the loss, a scalar, if there is no `y_pred`.
            y_pred: float logits, shape `(batch, length, vocab_size)`, or `None`.
            sample_weight: how often the loss counts, such as the number of its sentences; else `None`.
        """
        if y_pred is not None:
            super().update_state(y_true, y_pred, sample_weight)
            return
        weight = ops.cast(1 if sample_weight is None else sample_weight, self.count.dtype)
        self.total.assign_add(ops.cast(y_true, self.total.dtype) * weight)
        self.count.assign_add(weight)


@keras.saving.register_keras_serializable(package=PACKAGE)
class TokenAccuracy(TokenMean):
    """Fraction of real tokens whose label has the largest logit (teacher forcing)."""

    statistic = "correct"
    default_name = "token_accuracy"
    _direction = "up"  # for Keras' callbacks with mode="auto"


@keras.saving.register_keras_serializable(package=PACKAGE)
class Perplexity(TokenMean):
    """Perplexity per sub-word token: exp of the mean cross-entropy without smoothing (Table 3)."""

    statistic = "cross_entropy"
    default_name = "perplexity"
    _direction = "down"

    def result(self) -> Tensor:
        return ops.exp(super().result())


@keras.saving.register_keras_serializable(package=PACKAGE)
class StepCounters(keras.metrics.Metric):
    """Counters of the training steps since the last reset.

    The result is a dict of totals: `steps`; `skipped`, the steps without a finite gradient and loss;
    `source_tokens` and `target_tokens`, without padding; `positions` of both sides, including padding; and
    `gradient_norm`, which is a mean over the steps that were not skipped.
    """

    NAMES = ("steps", "skipped", "source_tokens", "target_tokens", "positions", "gradient_norm")

    def __init__(self, *, name="tally", **kwargs):
        super().__init__(name=name, **kwargs)
        self.totals = {
            name: self.add_variable((), "zeros", dtype=_sum_dtype(), name=name) for name in self.NAMES
        }

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Does nothing: the training step calls `add` instead."""

    def add(self, counts):
        """Adds a dict of scalars, with `NAMES` as its keys."""
        for name, total in self.totals.items():
            total.assign_add(ops.cast(counts[name], total.dtype))

    def result(self):
        totals = {name: total + 0.0 for name, total in self.totals.items()}
        applied = totals["steps"] - totals["skipped"]
        applied = ops.where(applied > 0, applied, 1.0)
        return {**totals, "gradient_norm": totals["gradient_norm"] / applied}


def set_directions(callbacks: Any, metrics: list[Any]) -> None:
    """Sets `mode` of `EarlyStopping` and others from "auto" to that of the metric that they monitor.

    Keras itself finds the direction of metrics in its own container of metrics only.

    Args:
        callbacks: Keras callbacks as in `fit`, or `None`.
        metrics: list of `keras.metrics.Metric`.
    """
    directions = {metric.name: getattr(metric, "_direction", None) for metric in metrics}
    for callback in keras.tree.flatten(callbacks):
        if isinstance(callback, keras.callbacks.CallbackList):
            set_directions(callback.callbacks, metrics)
        elif isinstance(callback, (keras.callbacks.EarlyStopping, keras.callbacks.ModelCheckpoint)):
            direction = directions.get(callback.monitor.removeprefix("val_"))
            if callback.mode == "auto" and direction:
                callback.mode = "max" if direction == "up" else "min"


def _sum_dtype():
    # float32 counts exactly up to 2**24 only; one epoch of WMT has more tokens.
    return "float64" if keras.backend.backend() == "tensorflow" else "float32"
