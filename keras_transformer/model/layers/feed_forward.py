"""Position-wise feed-forward network (section 3.3)."""

import keras

from keras_transformer.model.layers.basics import PACKAGE, Dropout, Layer, Projection


@keras.saving.register_keras_serializable(package=PACKAGE)
class FeedForward(Layer):
    """Position-wise feed-forward network: max(0, x W1 + b1) W2 + b2 (equation 2).

    Args:
        d_ff: inner width.
        dropout: dropout rate after the ReLU (0 in the paper).

    Input and output: float, shape `(batch, length, d_model)`.
    """

    arguments = ("d_ff", "dropout")

    def __init__(self, d_ff, *, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        if d_ff < 1:
            raise ValueError(f"`d_ff` must be at least 1. Received: d_ff={d_ff}")
        self.d_ff = d_ff
        self.dropout = dropout
        self.inner = Projection(d_ff, use_bias=True, activation="relu", name="inner", dtype=self.dtype_policy)
        self.relu_dropout = Dropout(dropout, name="dropout", dtype=self.dtype_policy)
        self.outer = None  # made in `build`, which knows the width of the input

    def build(self, inputs_shape):
        self.inner.build(inputs_shape)
        self.outer = Projection(inputs_shape[-1], use_bias=True, name="outer", dtype=self.dtype_policy)
        self.outer.build((*inputs_shape[:-1], self.d_ff))

    def call(self, inputs, training=None):
        return self.outer(self.relu_dropout(self.inner(inputs), training=training))
