"""Self-attention with rotary positions (Su et al., 2021: RoFormer, https://arxiv.org/abs/2104.09864)."""

import keras
import numpy as np
from keras import ops

from keras_transformer.config.types import Shape, Tensor
from keras_transformer.model.layers.attention import MultiHeadAttention
from keras_transformer.model.layers.basics import PACKAGE
from keras_transformer.model.layers.embedding import sinusoids


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Rotates each pair of features by an angle proportional to the position.

    At position pos, the pair (x_2i, x_2i+1) of a head with d features is rotated by pos / 10000^(2i / d), the
    angle of the paper's sinusoids. The dot product of a rotated query and a rotated key depends on their
    positions only by the distance.

    Args:
        x: float, shape `(batch, num_heads, length, d)`; d is even.
        positions: int, shape `(length,)`, or `(1,)` if all are at the same position.

    Returns:
        float, same shape and dtype as `x`; computed in float32.
    """
    width = x.shape[-1]
    waves = ops.reshape(sinusoids(positions, width), (-1, width // 2, 2))
    sin, cos = (ops.repeat(waves[..., i], 2, axis=-1) for i in range(2))
    # A rotation of (a, b) is cos * (a, b) + sin * (-b, a). The product with a constant matrix takes less time
    # than to divide `x` into a and b and to join them again.
    floats = ops.cast(x, "float32")
    turned = ops.matmul(floats, quarter_turns(width))
    return ops.cast(floats * cos + turned * sin, x.dtype)


def quarter_turns(width):
    """Returns the matrix that turns each pair of features (a, b) of a row vector into (-b, a).

    Args:
        width: even int.

    Returns:
        float32 NumPy array, shape `(width, width)`.
    """
    return np.kron(np.eye(width // 2, dtype="float32"), np.array([[0, 1], [-1, 0]], "float32"))


@keras.saving.register_keras_serializable(package=PACKAGE)
class RotaryAttention(MultiHeadAttention):
    """Multi-head self-attention whose queries and keys are rotated by their positions.

    Pairs of features are neighbours, as in RoFormer. Other code, such as LLaMA's, pairs feature i with
    feature i + d / 2: the same function for matrices with other columns. The cache holds rotated keys.

    Args: those of `MultiHeadAttention`.

    Raises:
        ValueError: `key_dim` is odd.
    """

    def build(self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None = None) -> None:
        if self.key_dim % 2:
            raise ValueError(f"`key_dim` must be even for rotary positions. Received: key_dim={self.key_dim}")
        super().build(query_shape, value_shape, key_shape)

    def _place(self, x, position=None):
        return rotate(x, ops.arange(ops.shape(x)[2]) if position is None else ops.reshape(position, (1,)))
