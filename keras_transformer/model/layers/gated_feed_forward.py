"""Feed-forward network with a gated linear unit (Shazeer, 2020, https://arxiv.org/abs/2002.05202)."""

from typing import Any

import keras

from keras_transformer.config.types import Shape, Tensor
from keras_transformer.model.layers.basics import PACKAGE
from keras_transformer.model.layers.feed_forward import FeedForward

# Keras' activation of the gate. GELU is exact, x times the normal distribution function.
GATES = {"swiglu": "silu", "geglu": "gelu"}


@keras.saving.register_keras_serializable(package=PACKAGE)
class GatedFeedForward(FeedForward):
    """Position-wise feed-forward network: (gate(x W1 + b1) * (x V + c)) W2 + b2.

    It has three matrices: with two thirds of `d_ff` it has as many weights as `FeedForward`.

    Args: those of `FeedForward`, with
        activation: `"swiglu"`, whose gate is x sigmoid(x), or `"geglu"`, whose gate is GELU.

    Raises:
        ValueError: another `activation`.
    """

    def __init__(self, d_ff: int, *, activation: str = "swiglu", **kwargs: Any) -> None:
        if activation not in GATES:
            raise ValueError(f"`activation` must be one of {list(GATES)}. Received: {activation!r}")
        super().__init__(d_ff, activation=GATES[activation], **kwargs)
        self.activation = activation
        self.linear = self._projection(d_ff, "linear")

    def build(self, inputs_shape: Shape) -> None:
        self.linear.build(inputs_shape)
        super().build(inputs_shape)

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        gated = self.inner(inputs) * self.linear(inputs)
        return self.outer(self.relu_dropout(gated, training=training))
