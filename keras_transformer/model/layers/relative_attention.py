"""Self-attention with relative positions (Shaw et al., 2018, https://arxiv.org/abs/1803.02155).

Axes in einsum strings are those of `attention`.
"""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer.config.types import Shape, Tensor
from keras_transformer.model.kernels.attention import masked_softmax, scaled_scores
from keras_transformer.model.kernels.tensor_ops import gather
from keras_transformer.model.layers.attention import Attention, MultiHeadAttention
from keras_transformer.model.layers.basics import PACKAGE


def relative_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    distance_keys: Tensor,
    distance_values: Tensor,
    mask: Tensor | None = None,
    dropout: Callable[..., Tensor] | None = None,
    *,
    training: bool | None = None,
    no_empty_rows: bool = False,
) -> Attention:
    """Computes attention in which every key and every value is added to an embedding of its distance.

    With a^K and a^V for the distance from query i to key j, the score is q_i (k_j + a^K)^T / sqrt(d_k), and
    the output is the sum of weight_ij (v_j + a^V) over j (Shaw et al., equations 3 and 4).

    Args:
        query: float, shape `(batch, num_heads, target_len, key_dim)`.
        key: float, shape `(batch, num_heads, source_len, key_dim)`.
        value: float, shape `(batch, num_heads, source_len, value_dim)`.
        distance_keys: float, a^K, shape `(target_len, source_len, key_dim)`, or `(source_len, key_dim)` for
            queries at one position.
        distance_values: float, a^V; like `distance_keys`, with `value_dim`.
        mask: see `scaled_dot_product_attention`, also for the following arguments.
        dropout: see there.
        training: see there.
        no_empty_rows: see there.

    Returns:
        `Attention`, whose output has the shape `(batch, num_heads, target_len, value_dim)`.
    """
    pair = "tsd" if len(distance_keys.shape) == 3 else "sd"
    of_distances = ops.einsum(f"bhtd,{pair}->bhts", query / key.shape[-1] ** 0.5, distance_keys)
    scores = scaled_scores(query, key, training) + ops.cast(of_distances, "float32")
    weights = masked_softmax(scores, mask, no_empty_rows)
    dropped = ops.cast(weights if dropout is None else dropout(weights), value.dtype)
    output = ops.einsum("bhts,bhsd->bhtd", dropped, value)
    return Attention(output + ops.einsum(f"bhts,{pair}->bhtd", dropped, distance_values), weights)


@keras.saving.register_keras_serializable(package=PACKAGE)
class RelativeAttention(MultiHeadAttention):
    """Multi-head self-attention with learned embeddings of the distance between query and key.

    All heads of a layer share two matrices with a row for each distance j - i from -k to k; larger distances
    have the rows of -k and k.

    Args: those of `MultiHeadAttention`, and
        max_relative_position: k.

    Raises:
        ValueError: `max_relative_position` is below 1.
    """

    arguments: tuple[str, ...] = (*MultiHeadAttention.arguments, "max_relative_position")

    def __init__(self, *args: Any, max_relative_position: int = 16, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if max_relative_position < 1:
            raise ValueError(
                "`max_relative_position` must be at least 1. "
                f"Received: max_relative_position={max_relative_position}"
            )
        self.max_relative_position = max_relative_position

    def build(self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None = None) -> None:
        super().build(query_shape, value_shape, key_shape)
        rows = 2 * self.max_relative_position + 1
        self.distance_keys = self.add_weight(name="distance_keys", shape=(rows, self.key_dim))
        self.distance_values = self.add_weight(name="distance_values", shape=(rows, self.value_dim))

    def _attention(self, query, key_value, mask, dropout=None, *, position=None, **options):
        length, k = ops.shape(query)[2], self.max_relative_position
        keys, queries = ops.arange(ops.shape(key_value.key)[2]), ops.arange(length)[:, None]
        if position is not None:  # in a step, the cache has a slot for each query at every position
            keys, queries = keys // length, position
        rows = ops.clip(keys - queries, -k, k) + k
        embeddings = (
            gather(ops.cast(matrix, query.dtype), rows)
            for matrix in (self.distance_keys, self.distance_values)
        )
        return relative_attention(query, *key_value, *embeddings, mask, dropout, **options)
