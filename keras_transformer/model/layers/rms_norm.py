"""RMSNorm (Zhang and Sennrich, 2019, https://arxiv.org/abs/1910.07467) as a choice in place of LayerNorm."""

from typing import Any

import keras
from keras import ops

from keras_transformer.config.types import Shape, Tensor
from keras_transformer.model.kernels.basics import rms_norm
from keras_transformer.model.layers.basics import PACKAGE, Layer, LayerNormalization


@keras.saving.register_keras_serializable(package=PACKAGE)
class RMSNormalization(Layer):
    """Root mean square normalization: x / sqrt(mean(x^2) + epsilon) * gamma.

    Unlike layer normalization it subtracts no mean and has no beta.

    Args:
        epsilon: added to the mean square.

    Input and output: float, shape `(..., features)`; computed in at least float32.
    """

    arguments = ("epsilon",)

    def __init__(self, *, epsilon: float = 1e-6, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def build(self, inputs_shape: Shape) -> None:
        shape = (inputs_shape[-1],)
        self.gamma = self.add_weight(name="gamma", shape=shape, initializer="ones", autocast=False)

    def call(self, inputs: Tensor) -> Tensor:
        dtype = keras.backend.result_type(inputs.dtype, "float32")
        x, gamma = ops.cast(inputs, dtype), ops.cast(self.gamma, dtype)
        return ops.cast(rms_norm(x, gamma, self.epsilon), self.compute_dtype)


def normalization(kind: str, **arguments: Any) -> Any:
    """Returns a normalization layer.

    Args:
        kind: `"layer"` for `LayerNormalization` (the paper), `"rms"` for `RMSNormalization`.
        **arguments: those of the layer.

    Raises:
        ValueError: another `kind`.
    """
    kinds = {"layer": LayerNormalization, "rms": RMSNormalization}
    if kind not in kinds:
        raise ValueError(f"The normalization must be one of {list(kinds)}. Received: {kind!r}")
    return kinds[kind](**arguments)
