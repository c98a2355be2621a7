"""Position-wise feed-forward network (section 3.3)."""

from typing import Any

import keras

from keras_transformer.config.types import Shape, Tensor
from keras_transformer.model.layers.basics import PACKAGE, Dropout, Layer, Projection


@keras.saving.register_keras_serializable(package=PACKAGE)
class FeedForward(Layer):
    """Position-wise feed-forward network: max(0, x W1 + b1) W2 + b2 (equation 2).

    Args:
        d_ff: inner width.
        dropout: dropout rate after the ReLU (0 in the paper).
        activation: name of the Keras activation in place of max(0, ...); ReLU in the paper.
        gain: factor on the initial matrices.

    Input and output: float, shape `(batch, length, d_model)`.
    """

    arguments = ("d_ff", "dropout", "activation", "gain")

    def __init__(
        self, d_ff: int, *, dropout: float = 0.0, activation: str = "relu", gain: float = 1.0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        if d_ff < 1:
            raise ValueError(f"`d_ff` must be at least 1. Received: d_ff={d_ff}")
        if not isinstance(activation, str):
            raise ValueError(f"`activation` must be the name of a Keras activation. Received: {activation!r}")
        self.d_ff = d_ff
        self.dropout = dropout
        self.activation = activation
        self.gain = gain
        self.inner = self._projection(d_ff, "inner", activation)
        self.relu_dropout = Dropout(dropout, name="dropout", dtype=self.dtype_policy)
        self.outer: Any = None  # made in `build`, which knows the width of the input

    def build(self, inputs_shape: Shape) -> None:
        self.inner.build(inputs_shape)
        self.outer = self._projection(inputs_shape[-1], "outer")
        self.outer.build((*inputs_shape[:-1], self.d_ff))

    def _projection(self, units, name, activation=None):
        return Projection(
            units, use_bias=True, activation=activation, gain=self.gain, name=name, dtype=self.dtype_policy
        )

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        return self.outer(self.relu_dropout(self.inner(inputs), training=training))
