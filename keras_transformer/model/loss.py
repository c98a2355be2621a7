"""Label-smoothed cross-entropy over real tokens (section 5.4)."""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.config.types import Tensor
from keras_transformer.model.inputs import check_weights
from keras_transformer.model.kernels.losses import projected_losses, token_losses

FORMULAS = ("t2t", "uniform")
REDUCTIONS = ("sum_over_batch_size", "mean", "mean_with_sample_weight", "sum")


class TokenStatistics(NamedTuple):
    """Loss and metrics of every target token, computed together in one pass over the logits.

    All fields are float32, shape `(batch, length)`, and 0 where the label is padding.

    Attributes:
        loss: label-smoothed cross-entropy, in nats; the only field with a gradient.
        cross_entropy: -log p(label), in nats, without smoothing.
        correct: 1 where the label has the largest logit.
        weight: 1 for a real token.
    """

    loss: Any
    cross_entropy: Any
    correct: Any
    weight: Any

    @classmethod
    def from_flat(cls, labels, loss, cross_entropy, correct, *, pad_id, shape):
        """Makes them from arrays of shape `(batch * length,)`: masks padding and reshapes to `shape`."""
        weight = ops.cast(ops.not_equal(labels, pad_id), "float32")
        return cls(
            ops.reshape(loss * weight, shape),
            ops.reshape(ops.stop_gradient(cross_entropy) * weight, shape),
            ops.reshape(ops.stop_gradient(correct) * weight, shape),
            ops.reshape(weight, shape),
        )


def smoothed_targets(vocab_size, label_smoothing, formula):
    """Returns the smoothed target distribution: probability of the label, and of each other token.

    Args:
        vocab_size: int.
        label_smoothing: float, at least 0 and below 1.
        formula: `"t2t"` or `"uniform"`; see `token_statistics`.

    Raises:
        ValueError: unknown formula.
    """
    if formula == "t2t":
        p_other = label_smoothing / (vocab_size - 1)
    elif formula == "uniform":
        p_other = label_smoothing / vocab_size
    else:
        raise ValueError(f"`formula` must be one of {FORMULAS}. Received: {formula!r}")
    return 1.0 - p_other * (vocab_size - 1), p_other


def token_statistics(labels, logits, *, label_smoothing=0.0, formula="t2t", pad_id=0):
    """Computes the loss and the metrics of every token from logits.

    The target distribution depends on `formula`. With V tokens and smoothing e, `"t2t"` (Tensor2Tensor) gives
    1 - e to the label and e / (V - 1) to each other token; `"uniform"` gives 1 - e + e / V and e / V.

    The loss is the cross-entropy with this distribution. Its minimum is the entropy of the distribution, not
    0, because that constant is not subtracted.

    Args:
        labels: int, shape `(batch, length)`.
        logits: float, shape `(batch, length, vocab_size)`. Positions that their implicit Keras mask hides are
            ignored, too.
        label_smoothing: e, at least 0 and below 1.
        formula: `"t2t"` or `"uniform"`.
        pad_id: id of padding, which is ignored.

    Returns:
        `TokenStatistics`.
    """
    vocab_size, mask = logits.shape[-1], getattr(logits, "_keras_mask", None)
    targets = smoothed_targets(vocab_size, label_smoothing, formula)
    shape = ops.shape(labels)
    labels = ops.cast(ops.reshape(labels, (-1,)), "int32")
    # The reshape fails if the number of logits differs from the number of labels; else it would broadcast.
    logits = ops.cast(ops.reshape(logits, (ops.size(labels), vocab_size)), "float32")
    losses = token_losses(labels, logits, *targets)
    statistics = TokenStatistics.from_flat(labels, *losses, pad_id=pad_id, shape=shape)
    if mask is None:
        return statistics
    mask = ops.cast(ops.reshape(mask, shape), "float32")
    return TokenStatistics(*(values * mask for values in statistics))


def projected_statistics(
    labels, hidden, matrix, bias=None, *, transposed=False, label_smoothing=0.0, formula="t2t", pad_id=0
):
    """Output projection followed by `token_statistics`, fused: logits = hidden @ matrix.T + bias.

    Args:
        labels: int, shape `(batch, length)`.
        hidden: float32 or bfloat16, shape `(batch, length, d_model)`. The product is computed in this dtype,
            all else in float32.
        matrix: float32, shape `(vocab_size, d_model)`.
        bias: float32, shape `(vocab_size,)`, or `None`.
        transposed: `matrix` has the shape `(d_model, vocab_size)` instead.
        label_smoothing: e, at least 0 and below 1.
        formula: `"t2t"` or `"uniform"`; see `token_statistics`.
        pad_id: id of padding, which is ignored.

    Returns:
        `TokenStatistics`.
    """
    targets = smoothed_targets(matrix.shape[1 if transposed else 0], label_smoothing, formula)
    shape = ops.shape(labels)
    labels = ops.cast(ops.reshape(labels, (-1,)), "int32")
    hidden = ops.reshape(hidden, (ops.size(labels), hidden.shape[-1]))
    losses = projected_losses(labels, hidden, matrix, bias, *targets, transposed=transposed)
    return TokenStatistics.from_flat(labels, *losses, pad_id=pad_id, shape=shape)


def token_weights(sample_weight, labels, pad_id):
    """Returns the weight of every token: float32, shape as `labels`; 0 for padding.

    Args:
        sample_weight: float; shape as `labels` for a weight per token, or without the last axis for a weight
            per sentence.
        labels: int, shape `(batch, length)` or `(micro_batches, rows, length)`.
        pad_id: id of padding.

    Raises:
        ValueError: `sample_weight` has another shape.
    """
    sample_weight = ops.cast(ops.convert_to_tensor(sample_weight), "float32")
    check_weights(tuple(sample_weight.shape), tuple(labels.shape))
    if len(sample_weight.shape) == len(labels.shape) - 1:
        sample_weight = sample_weight[..., None]
    return sample_weight * ops.cast(ops.not_equal(labels, pad_id), "float32")


@keras.saving.register_keras_serializable(package="keras_transformer")
class LabelSmoothedCrossEntropy(keras.losses.Loss):
    """Mean label-smoothed cross-entropy of the real target tokens of a batch.

    The mean is over real tokens: the sum over all tokens of the batch, without padding, divided by their
    number. It is never a mean of sentence means.

    Args:
        label_smoothing: epsilon_ls of section 5.4.
        formula: `"t2t"` or `"uniform"`; see `token_statistics`.
        pad_id: id of padding, which is ignored.
        reduction: `"sum_over_batch_size"` and `"mean"` divide the (weighted) sum by the number of real
            tokens; `"mean_with_sample_weight"` divides by the sum of the weights; `"sum"` does not divide.

    Call arguments:
        y_true: int, shape `(batch, length)`.
        y_pred: float logits, shape `(batch, length, vocab_size)`.
        sample_weight: float, shape `(batch, length)` or `(batch,)`, or `None`.
    """

    def __init__(
        self,
        label_smoothing: float = 0.1,
        *,
        formula: str = "t2t",
        pad_id: int = 0,
        name: str = "label_smoothed_cross_entropy",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        if not 0 <= label_smoothing < 1:
            raise ValueError(
                "`label_smoothing` must be at least 0 and below 1. "
                f"Received: label_smoothing={label_smoothing}"
            )
        if formula not in FORMULAS:
            raise ValueError(f"`formula` must be one of {FORMULAS}. Received: {formula!r}")
        if self.reduction not in REDUCTIONS:
            raise ValueError(f"`reduction` must be one of {REDUCTIONS}. Received: {self.reduction!r}")
        self.label_smoothing = label_smoothing
        self.formula = formula
        self.pad_id = pad_id

    def statistics(self, y_true: Tensor, y_pred: Tensor) -> TokenStatistics:
        """Returns the `TokenStatistics` of a batch."""
        return token_statistics(y_true, y_pred, **self._settings())

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return self.statistics(y_true, y_pred).loss

    def projected_statistics(
        self,
        labels: Tensor,
        hidden: Tensor,
        matrix: Tensor,
        bias: Tensor | None = None,
        *,
        transposed: bool = False,
    ) -> TokenStatistics:
        """Calls the function `projected_statistics` with the settings of this loss."""
        return projected_statistics(labels, hidden, matrix, bias, transposed=transposed, **self._settings())

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        statistics = self.statistics(y_true, y_pred)
        loss, weight = statistics.loss, ops.sum(statistics.weight)
        if sample_weight is not None:
            weights = token_weights(sample_weight, y_true, self.pad_id)
            loss = loss * weights
            if self.reduction == "mean_with_sample_weight":
                weight = ops.sum(weights)
        if self.reduction == "sum":
            return ops.sum(loss)
        # The loss of a batch without real tokens is 0, not 0 / 0.
        return ops.sum(loss) / ops.where(weight > 0, weight, ops.ones_like(weight))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **self._settings()}

    def _settings(self):
        return {"label_smoothing": self.label_smoothing, "formula": self.formula, "pad_id": self.pad_id}
