"""Label-smoothed cross-entropy over real tokens (section 5.4)."""

from typing import NamedTuple

import keras
from keras import ops

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


def wanted_probabilities(vocab_size, label_smoothing, formula):
    """Returns what the smoothed distribution wants of the label and of each other token.

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
    its constant entropy taken off. Neither one-hot labels nor log-probabilities of all
    tokens are ever made, and the gradient is written down rather than derived: one array
    as large as the logits, not four.

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
    label, others = wanted_probabilities(vocab_size, label_smoothing, formula)
    shape = ops.shape(labels)
    labels = ops.reshape(labels, (-1,))
    # As many as labels, so that no other number of logits is broadcast.
    flat_logits = ops.cast(ops.reshape(logits, (ops.size(labels), vocab_size)), "float32")

    @ops.custom_gradient
    def forward(logits):
        largest = ops.max(logits, axis=-1)
        exponentials = ops.exp(logits - largest[:, None])
        total = ops.sum(exponentials, axis=-1)
        log_total = largest + ops.log(total)
        of_label = ops.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
        loss = log_total - (label - others) * of_label
        if others:
            loss = loss - others * ops.sum(logits, axis=-1)
        correct = ops.cast(of_label >= largest, "float32")

        def gradient(*args, upstream=None):
            upstream = args if upstream is None else upstream
            # Of the loss, the first output: TensorFlow gives an argument for each
            # output, JAX one tuple of all.
            upstream = upstream[0][0] if len(upstream) == 1 else upstream[0]
            # d loss / d logits = softmax - wanted distribution.
            scaled = exponentials * (upstream / total)[:, None]
            if others:
                scaled = scaled - (others * upstream)[:, None]
            where = ops.stack([ops.arange(ops.shape(labels)[0]), labels], axis=-1)
            return _add_at(scaled, where, -(label - others) * upstream)

        return (loss, log_total - of_label, correct), gradient

    labels = ops.cast(labels, "int32")
    loss, cross_entropy, correct = forward(flat_logits)
    return TokenStatistics.of(labels, loss, cross_entropy, correct, pad_id=pad_id, shape=shape)


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


def check_weights(shape, of_labels):
    """Refuses weights that are neither one for each token nor one for each sentence.

    Args:
        shape: tuple of int, or of `None` where a size is not known.
        of_labels: the same.

    Raises:
        ValueError: with both shapes.
    """
    sizes = shape if len(shape) != len(of_labels) - 1 else (*shape, 1)
    if len(sizes) != len(of_labels) or any(
        None not in pair and pair[0] != pair[1]
        for pair in zip(sizes, of_labels[:-1] + (1 if sizes[-1] == 1 else of_labels[-1],), strict=True)
    ):
        raise ValueError(
            "`sample_weight` must have the shape of the labels, a weight for each token, or that shape "
            "without its last axis, a weight for each sentence. "
            f"Received: {shape} for labels of {of_labels}"
        )


def _add_at(matrix, indices, values):
    """Adds `values` to the elements of `matrix` at `indices`, in place where it can."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.tensor_scatter_nd_add(matrix, indices, values)
    return ops.scatter_update(matrix, indices, matrix[indices[:, 0], indices[:, 1]] + values)


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
        self,
        label_smoothing=0.1,
        *,
        formula="t2t",
        pad_id=0,
        name="label_smoothed_cross_entropy",
        **kwargs,
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
        return token_statistics(
            y_true,
            y_pred,
            label_smoothing=self.label_smoothing,
            formula=self.formula,
            pad_id=self.pad_id,
        )

    def call(self, y_true, y_pred):
        return self.statistics(y_true, y_pred).loss

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
        return {
            **super().get_config(),
            "label_smoothing": self.label_smoothing,
            "formula": self.formula,
            "pad_id": self.pad_id,
        }
