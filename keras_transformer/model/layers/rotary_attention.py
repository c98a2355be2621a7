"""Self-attention with rotary positions (Su et al., 2021: RoFormer, https://arxiv.org/abs/2104.09864)."""

import keras
from keras import ops

from keras_transformer.config.types import Shape, Tensor
from keras_transformer.model.kernels.tensor_ops import reshape_static
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
    sin, cos = waves[..., 0], waves[..., 1]
    pairs = reshape_static(ops.cast(x, "float32"), (*ops.shape(x)[:-1], width // 2, 2))
    even, odd = pairs[..., 0], pairs[..., 1]
    rotated = ops.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
    return ops.cast(reshape_static(rotated, ops.shape(x)), x.dtype)


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
