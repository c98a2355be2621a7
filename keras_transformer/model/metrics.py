"""Means over real target tokens, kept as a sum and a count.

Sums and counts may be added over batches, replicas and workers; means may not.
"""

import keras
from keras import ops

from keras_transformer.model.loss import token_statistics

PACKAGE = "keras_transformer"


class TokenMean(keras.metrics.Metric):
    """Sum of one of the `TokenStatistics` over the number of real tokens.

    Args:
        pad_id: label that counts for nothing.
        name: `None` for the usual one.
    """

    statistic = None  # the field of `TokenStatistics` that is averaged
    default_name = None

    def __init__(self, *, pad_id=0, name=None, **kwargs):
        super().__init__(name=name or self.default_name, **kwargs)
        self.pad_id = pad_id
        self.total = self.add_variable((), "zeros", dtype=_sum_dtype(), name="total")
        self.count = self.add_variable((), "zeros", dtype=_sum_dtype(), name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Adds a batch.

        Args:
            y_true: int labels, shape `(batch, length)`.
            y_pred: float logits, shape `(batch, length, vocab_size)`.
            sample_weight: must be `None`: padding is found from the labels.
        """
        if sample_weight is not None:
            raise ValueError("Padding is found from the labels; give no `sample_weight`.")
        self.add(token_statistics(y_true, y_pred, pad_id=self.pad_id))

    def add(self, statistics):
        """Adds the `TokenStatistics` of a batch, or their sums, without a look at the logits."""
        total = ops.sum(getattr(statistics, self.statistic))
        self.total.assign_add(ops.cast(total, self.total.dtype))
        self.count.assign_add(ops.cast(ops.sum(statistics.weight), self.count.dtype))

    def result(self):
        count = ops.convert_to_tensor(self.count)
        # One replica's share of a count may be below 1.
        return self.total / ops.where(count > 0, count, ops.ones_like(count))

    def get_config(self):
        return {**super().get_config(), "pad_id": self.pad_id}


@keras.saving.register_keras_serializable(package=PACKAGE)
class TokenLoss(TokenMean):
    """The training loss per real token, smoothing included."""

    statistic = "loss"
    default_name = "loss"


@keras.saving.register_keras_serializable(package=PACKAGE)
class TokenAccuracy(TokenMean):
    """Share of real tokens whose logit is the largest."""

    statistic = "correct"
    default_name = "token_accuracy"


@keras.saving.register_keras_serializable(package=PACKAGE)
class Perplexity(TokenMean):
    """exp of the mean cross-entropy without smoothing, per sub-word token (Table 3)."""

    statistic = "cross_entropy"
    default_name = "perplexity"

    def result(self):
        return ops.exp(super().result())


@keras.saving.register_keras_serializable(package=PACKAGE)
class StepCounters(keras.metrics.Metric):
    """Counts of the training steps since the last reset: what was read, what was left out.

    Its result is a dict of totals: `steps`, `skipped` (steps without a finite gradient),
    `source_tokens` and `target_tokens` (real ones), `positions` (of both sides, padding
    included); and `gradient_norm`, the mean over the steps that were not skipped.
    """

    NAMES = ("steps", "skipped", "source_tokens", "target_tokens", "positions", "gradient_norm")

    def __init__(self, *, name="tally", **kwargs):
        super().__init__(name=name, **kwargs)
        self.totals = {
            each: self.add_variable((), "zeros", dtype=_sum_dtype(), name=each) for each in self.NAMES
        }

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Adds nothing: only a training step knows its counts."""

    def add(self, counts):
        """Adds a dict of scalars, one for each of `NAMES`."""
        for name, total in self.totals.items():
            total.assign_add(ops.cast(counts[name], total.dtype))

    def result(self):
        found = {name: total + 0.0 for name, total in self.totals.items()}
        applied = found["steps"] - found["skipped"]
        applied = ops.where(applied > 0, applied, 1.0)
        return {**found, "gradient_norm": found["gradient_norm"] / applied}


def _sum_dtype():
    # float64, as a count of tokens passes 2**24 within one epoch of WMT.
    return "float64" if keras.backend.backend() == "tensorflow" else "float32"
