"""Label-smoothed cross-entropy over real tokens (section 5.4)."""

from typing import NamedTuple

import keras
from keras import ops

from keras_transformer.model.inputs import check_weights
from keras_transformer.model.kernels.losses import projected_losses, token_losses

FORMULAS = ("t2t", "uniform")
REDUCTIONS = ("sum_over_batch_size", "mean", "mean_with_sample_weight", "sum")


class TokenStatistics(NamedTuple):
    """What the logits say about every label; one pass over the logits serves all.

    All are float32, shape `(batch, length)`, and 0 where the label is padding.

    Attributes:
        loss: label-smoothed cross-entropy, in nats; the only one with a gradient.
        cross_entropy: -log p(label), in nats, without smoothing.
        correct: 1 where the label has the largest logit.
        weight: 1 for a real token.
    """

    loss: object
    cross_entropy: object
    correct: object
    weight: object

    @classmethod
    def of(cls, labels, loss, cross_entropy, correct, *, pad_id, shape):
        """Makes them from flat ones, shape `(batch * length,)`, that count padding, too."""
        weight = ops.cast(ops.not_equal(labels, pad_id), "float32")
        return cls(
            ops.reshape(loss * weight, shape),
            ops.reshape(ops.stop_gradient(cross_entropy) * weight, shape),
            ops.reshape(ops.stop_gradient(correct) * weight, shape),
            ops.reshape(weight, shape),
        )


def smoothed_targets(vocab_size, label_smoothing, formula):
    """Returns the target probability of the label, and of each other token.

    Args:
        vocab_size: int.
        label_smoothing: float, at least 0 and below 1.
        formula: `"t2t"` or `"uniform"`.

    Raises:
        ValueError: for another formula.
    """
    if formula == "t2t":
        others = label_smoothing / (vocab_size - 1)
    elif formula == "uniform":
        others = label_smoothing / vocab_size
    else:
        raise ValueError(f"`formula` must be one of {FORMULAS}. Received: {formula!r}")
    return 1.0 - others * (vocab_size - 1), others


def token_statistics(labels, logits, *, label_smoothing=0.0, formula="t2t", pad_id=0):
    """Computes the loss of every token and what the metrics need.

    With V tokens and e the smoothing, `"t2t"` wants probability 1 - e for the label and
    e / (V - 1) for each other token, as Tensor2Tensor does; `"uniform"` wants
    1 - e + e / V and e / V. The loss is the cross-entropy with that distribution, without
    its constant entropy taken off.

    Args:
        labels: int, shape `(batch, length)`.
        logits: float, shape `(batch, length, vocab_size)`.
        label_smoothing: e, at least 0 and below 1.
        formula: `"t2t"` or `"uniform"`.
        pad_id: label that counts for nothing.

    Returns:
        `TokenStatistics`.
    """
    vocab_size = logits.shape[-1]
    targets = smoothed_targets(vocab_size, label_smoothing, formula)
    shape = ops.shape(labels)
    labels = ops.cast(ops.reshape(labels, (-1,)), "int32")
    # As many as labels, so that no other number of logits is broadcast.
    logits = ops.cast(ops.reshape(logits, (ops.size(labels), vocab_size)), "float32")
    return TokenStatistics.of(labels, *token_losses(labels, logits, *targets), pad_id=pad_id, shape=shape)


def projected_statistics(
    labels, hidden, matrix, bias=None, *, transposed=False, label_smoothing=0.0, formula="t2t", pad_id=0
):
    """Does what `token_statistics` does to the logits that `hidden` projected by `matrix` would give.

    Args:
        labels: int, shape `(batch, length)`.
        hidden: float32 or bfloat16, shape `(batch, length, d_model)`; the product is computed in its type,
            all else in float32.
        matrix: float32, shape `(vocab_size, d_model)`.
        bias: float32, shape `(vocab_size,)`, or `None`.
        transposed: `matrix` has shape `(d_model, vocab_size)`.
        label_smoothing: e, at least 0 and below 1.
        formula: `"t2t"` or `"uniform"`.
        pad_id: label that counts for nothing.

    Returns:
        `TokenStatistics`.
    """
    targets = smoothed_targets(matrix.shape[1 if transposed else 0], label_smoothing, formula)
    shape = ops.shape(labels)
    labels = ops.cast(ops.reshape(labels, (-1,)), "int32")
    hidden = ops.reshape(hidden, (ops.size(labels), hidden.shape[-1]))
    found = projected_losses(labels, hidden, matrix, bias, *targets, transposed=transposed)
    return TokenStatistics.of(labels, *found, pad_id=pad_id, shape=shape)


def token_weights(sample_weight, labels, pad_id):
    """Returns what every token counts: float32, of the shape of `labels`, and 0 for padding.

    Args:
        sample_weight: float, of the shape of `labels`, or of that shape without its last axis: one
            for each sentence.
        labels: int, shape `(batch, length)` or `(micro_batches, rows, length)`.
        pad_id: label that counts for nothing.

    Raises:
        ValueError: for weights of another shape.
    """
    sample_weight = ops.cast(ops.convert_to_tensor(sample_weight), "float32")
    check_weights(tuple(sample_weight.shape), tuple(labels.shape))
    if len(sample_weight.shape) == len(labels.shape) - 1:
        sample_weight = sample_weight[..., None]
    return sample_weight * ops.cast(ops.not_equal(labels, pad_id), "float32")


@keras.saving.register_keras_serializable(package="keras_transformer")
class LabelSmoothedCrossEntropy(keras.losses.Loss):
    """Mean label-smoothed cross-entropy of the real target tokens of a batch.

    The mean is over tokens, never over sentences or padding: sum / number of tokens.
    See `token_statistics` for the formulas.

    Args:
        label_smoothing: epsilon_ls of section 5.4.
        formula: `"t2t"` or `"uniform"`.
        pad_id: label that counts for nothing.
        reduction: `"sum_over_batch_size"` or `"mean"`: sum over real tokens / number of real tokens,
            also where they have weights; `"mean_with_sample_weight"`: sum / sum of the weights;
            `"sum"`: not divided.

    Call arguments:
        y_true: int, shape `(batch, length)`.
        y_pred: float logits, shape `(batch, length, vocab_size)`.
        sample_weight: float, shape `(batch, length)` or `(batch,)`, or `None`.
    """

    def __init__(
        self, label_smoothing=0.1, *, formula="t2t", pad_id=0, name="label_smoothed_cross_entropy", **kwargs
    ):
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

    def statistics(self, y_true, y_pred):
        """Returns the `TokenStatistics` of a batch."""
        return token_statistics(y_true, y_pred, **self._settings())

    def call(self, y_true, y_pred):
        return self.statistics(y_true, y_pred).loss

    def projected_statistics(self, labels, hidden, matrix, bias=None, *, transposed=False):
        """Returns what the function `projected_statistics` does with the settings of this loss."""
        return projected_statistics(labels, hidden, matrix, bias, transposed=transposed, **self._settings())

    def __call__(self, y_true, y_pred, sample_weight=None):
        found = self.statistics(y_true, y_pred)
        loss, weight = found.loss, ops.sum(found.weight)
        if sample_weight is not None:
            each = token_weights(sample_weight, y_true, self.pad_id)
            loss = loss * each
            if self.reduction == "mean_with_sample_weight":
                weight = ops.sum(each)
        if self.reduction == "sum":
            return ops.sum(loss)
        # A batch without a real token has loss 0, not 0 / 0.
        return ops.sum(loss) / ops.where(weight > 0, weight, ops.ones_like(weight))

    def get_config(self):
        return {**super().get_config(), **self._settings()}

    def _settings(self):
        return {"label_smoothing": self.label_smoothing, "formula": self.formula, "pad_id": self.pad_id}
