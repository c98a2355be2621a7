"""Multi-head scaled dot-product attention (section 3.2).

Axes in einsum strings: b batch, h heads, t target (query) positions, s source (key) positions, d features of
one head. The base model of the paper has 8 heads of 64 features.
"""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.config.types import Shape, Tensor
from keras_transformer.model.kernels.attention import masked_softmax, scaled_scores
from keras_transformer.model.kernels.tensor_ops import reshape_static
from keras_transformer.model.layers.basics import PACKAGE, Dropout, Layer, Projection
from keras_transformer.model.layers.masks import combine_call_masks
from keras_transformer.model.layers.query_key_norm import QueryKeyNorm


class Attention(NamedTuple):
    """Output and weights of attention.

    Attributes:
        output: float, shape `(batch, target_len, d_model)`.
        weights: float32, shape `(batch, num_heads, target_len, source_len)`, before dropout.
    """

    output: Any
    weights: Any


class KeyValue(NamedTuple):
    """Projected keys and values, split into heads.

    Attributes:
        key: float, shape `(batch, num_heads, source_len, key_dim)`.
        value: float, shape `(batch, num_heads, source_len, value_dim)`.
    """

    key: Any
    value: Any


class CachedStep(NamedTuple):
    """Result of one decoding step of an attention layer or a decoder layer.

    Attributes:
        output: float, shape `(batch * n, d_model)`, with n hypotheses per sentence.
        cache: `KeyValue` of self-attention, including the new position.
    """

    output: Any
    cache: KeyValue


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: Callable[..., Tensor] | None = None,
    *,
    training: bool | None = None,
    no_empty_rows: bool = False,
) -> Attention:
    """Computes softmax(Q K^T / sqrt(d_k)) V (equation 1) for all heads at once.

    Args:
        query: float, shape `(batch, num_heads, target_len, key_dim)`.
        key: float, shape `(batch, num_heads, source_len, key_dim)`.
        value: float, shape `(batch, num_heads, source_len, value_dim)`.
        mask: bool, broadcastable to `(batch, target_len, source_len)`; True means visible. `None` makes
            all keys visible. The output is 0 for a query that sees no key.
        dropout: function applied to the weights, or `None`.
        training: whether gradients are needed; decides only where the scale 1 / sqrt(d_k) is applied, for
            speed.
        no_empty_rows: promises that every query sees at least one key, so that no row of the mask is empty;
            skips the check for empty rows.

    Returns:
        `Attention`, whose output has the shape `(batch, num_heads, target_len, value_dim)`.
    """
    scores = scaled_scores(query, key, training)  # Q K^T / sqrt(d_k)
    weights = masked_softmax(scores, mask, no_empty_rows)
    dropped = weights if dropout is None else dropout(weights)
    output = ops.einsum("bhts,bhsd->bhtd", ops.cast(dropped, value.dtype), value)
    return Attention(output, weights)


@keras.saving.register_keras_serializable(package=PACKAGE)
class MultiHeadAttention(Layer):
    """Multi-head attention: Concat(head_1, ..., head_h) W^O (section 3.2.2).

    Args:
        num_heads: h.
        key_dim: d_k, width of each head's queries and keys.
        value_dim: d_v, width of each head's values; `None` means `key_dim`.
        dropout: dropout rate of the attention weights (0 in the paper).
        use_bias: whether the four projections have biases (not in the paper).
        stacked: names of the projections (`"query"`, `"key"`, `"value"`) whose initial matrices are drawn as
            parts of one Glorot matrix. Their values are then smaller, by a factor of 0.71 if all three are
            stacked and square.
        gain: factor on the initial matrices W^Q and W^K.
        value_gain: factor on the initial matrices W^V and W^O.
        qk_norm: whether queries and keys are normalized (not in the paper, see `QueryKeyNorm`).

    Call arguments:
        query: float, shape `(batch, target_len, d_model)`.
        value: float, shape `(batch, source_len, features)`.
        key: float, shape `(batch, source_len, features)`; `None` means `value`.
        query_mask: bool, shape `(batch, target_len)`; a query with False sees no key.
        value_mask: bool, shape `(batch, source_len)`; a position with False is hidden from all queries.
        key_mask: like `value_mask`, for `key`.
        attention_mask: bool with three axes, broadcastable to `(batch, target_len, source_len)`; True
            means visible.
        return_attention_scores: also return the weights.

    Returns:
        float, same shape as `query`. With `return_attention_scores`, a pair of this output and the weights;
        the weights are float32, shape `(batch, num_heads, target_len, source_len)`.

    Raises:
        ValueError: a mask has the wrong number of axes, or `stacked` another name.

    The masks work as in `keras.layers.MultiHeadAttention`. They are combined with AND: a key is visible only
    if all masks allow it. If a query sees no key, all its heads are 0, and its output is 0, or the bias of
    W^O if there is one. A missing `query_mask`, `value_mask` or `key_mask` defaults to the implicit mask of
    its tensor, as made by `Embedding(mask_zero=True)`. The output has the implicit mask of `query`.
    """

    arguments: tuple[str, ...] = (
        "num_heads", "key_dim", "value_dim", "dropout", "use_bias", "stacked", "gain", "value_gain", "qk_norm"
    )  # fmt: skip

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        *,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = False,
        stacked: Collection[str] = (),
        gain: float = 1.0,
        value_gain: float = 1.0,
        qk_norm: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = key_dim if value_dim is None else value_dim
        for name in ("num_heads", "key_dim", "value_dim"):
            size = getattr(self, name)
            if size < 1:
                raise ValueError(f"`{name}` must be at least 1. Received: {name}={size}")
        self.dropout = dropout
        self.use_bias = use_bias
        self.stacked = list(stacked)
        self.gain = gain
        self.value_gain = value_gain
        self.qk_norm = qk_norm
        if unknown := set(stacked) - {"query", "key", "value"}:
            raise ValueError(f"`stacked` may contain query, key and value. Received: {sorted(unknown)}")

        self.query_projection = self._projection("query", num_heads * self.key_dim)
        self.key_projection = self._projection("key", num_heads * self.key_dim)
        self.value_projection = self._projection("value", num_heads * self.value_dim)
        self.weights_dropout = Dropout(dropout, dtype="float32", name="dropout")
        self.query_key_norm = QueryKeyNorm(name="qk_norm", dtype=self.dtype_policy) if qk_norm else None
        self.output_projection: Any = None  # made in `build`, which knows the width of the queries

    def _projection(self, name, units):
        gain = self.gain if name in ("query", "key") else self.value_gain
        return Projection(units, use_bias=self.use_bias, gain=gain, name=name, dtype=self.dtype_policy)

    def build(self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None = None) -> None:
        inputs = {"query": query_shape, "key": key_shape or value_shape, "value": value_shape}
        total = sum(getattr(self, f"{name}_projection").units for name in self.stacked)
        for name, shape in inputs.items():
            projection = getattr(self, f"{name}_projection")
            if name in self.stacked:
                # Scales Glorot's variance of this matrix, 2 / (features + units), to that of the stacked one.
                projection.gain *= ((shape[-1] + projection.units) / (shape[-1] + total)) ** 0.5
            projection.build(shape)
        self.output_projection = self._projection("output", query_shape[-1])
        self.output_projection.build((*query_shape[:-1], self.num_heads * self.value_dim))
        if self.query_key_norm is not None:
            self.query_key_norm.build()

    def call(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None = None,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Tensor:
        mask = combine_call_masks(
            query_mask=query_mask, value_mask=value_mask, key_mask=key_mask, attention_mask=attention_mask
        )
        attention = self.attend(query, self.project(value, key), mask, training=training)
        return tuple(attention) if return_attention_scores else attention.output

    def compute_output_shape(
        self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None = None
    ) -> Shape:
        return query_shape

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        # Traces `call` and ignores `compute_output_shape`, because the number of outputs depends on
        # `return_attention_scores`.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def project(self, value: Tensor, key: Tensor | None = None) -> KeyValue:
        """Projects keys and values and splits them into heads.

        Cross-attention calls this once per translation and reuses the result at every decoding step.

        Args:
            value: float, shape `(batch, source_len, features)`.
            key: float, shape `(batch, source_len, features)`; `None` means `value`.

        Returns:
            `KeyValue`.
        """
        key = value if key is None else key
        batch, length = ops.shape(value)[:2]
        return KeyValue(
            self._keys(key, batch, length),
            self._split_heads(self.value_projection(value), batch, length),
        )

    def attend(
        self,
        query: Tensor,
        key_value: KeyValue,
        attention_mask: Tensor | None = None,
        *,
        training: bool | None = None,
    ) -> Attention:
        """Computes attention over projected keys and values.

        Args:
            query: float, shape `(batch, target_len, d_model)`.
            key_value: `KeyValue` from `project`.
            attention_mask: bool, broadcastable to `(batch, target_len, source_len)`.
            training: whether dropout is applied.

        Returns:
            `Attention`.
        """

        def drop(weights):
            return self.weights_dropout(weights, training=training)

        batch, length = ops.shape(query)[:2]
        query, dropout = self._queries(query, batch, length), drop if self.dropout else None
        heads = self._attention(query, key_value, attention_mask, dropout, training=training)
        return Attention(self.output_projection(self._join_heads(heads.output, batch, length)), heads.weights)

    def empty_cache(self, batch_size: Tensor, max_slots: Tensor) -> KeyValue:
        """Returns an empty self-attention cache for step-by-step decoding.

        A slot is one index of the cache's third axis and holds the key and the value of one position of one
        hypothesis. (The slots of beam search are something else: the places in the beam.)

        Args:
            batch_size: int or scalar tensor, number of sentences.
            max_slots: number of slots per sentence; 0 for a cache that grows at each step, which only
                TensorFlow's loops support.

        Returns:
            `KeyValue` of zeros, with `max_slots` as its `source_len`.
        """
        shape = (batch_size, self.num_heads, max_slots)
        return KeyValue(
            ops.zeros((*shape, self.key_dim), dtype=self.compute_dtype),
            ops.zeros((*shape, self.value_dim), dtype=self.compute_dtype),
        )

    def step(
        self,
        query: Tensor,
        cache: KeyValue,
        mask: Tensor | None = None,
        *,
        num_hypotheses: int = 1,
        first_slot: Tensor | None = None,
    ) -> CachedStep:
        """Computes self-attention for one new position of every hypothesis.

        All n hypotheses of a sentence share one cache, and its slots are never moved. The mask selects the
        slots that belong to each hypothesis, so reordering the hypotheses changes only the mask.

        Args:
            query: float, shape `(batch * n, d_model)`.
            cache: `KeyValue` from `empty_cache` or from the previous step.
            mask: bool, shape `(batch, n, slots)`; True means visible. It covers the n new slots too: each
                hypothesis sees its own. `None` makes all slots visible.
            num_hypotheses: int, n, hypotheses per sentence.
            first_slot: scalar int, index at which the n new slots are written; `None` appends them.

        Returns:
            `CachedStep`; its output has the shape of `query`.
        """
        position = (ops.shape(cache.key)[2] if first_slot is None else first_slot) // num_hypotheses
        # The n hypotheses of a sentence take the place of n target positions.
        value = self._split_heads(self.value_projection(query), -1, num_hypotheses)
        pairs = zip(cache, (self._keys(query, -1, num_hypotheses, position), value), strict=True)
        if first_slot is None:
            cache = KeyValue(*(ops.concatenate(pair, axis=2) for pair in pairs))
        else:
            start = (0, 0, first_slot, 0)
            cache = KeyValue(*(ops.slice_update(slots, start, new) for slots, new in pairs))
        query = self._queries(query, -1, num_hypotheses, position)
        heads = self._attention(query, cache, mask, position=position, no_empty_rows=True)
        return CachedStep(self.output_projection(self._join_heads(heads.output, -1)), cache)

    def cross_step(
        self, query: Tensor, key_value: KeyValue, mask: Tensor | None = None, *, num_hypotheses: int = 1
    ) -> Tensor:
        """Computes cross-attention for one new position of every hypothesis.

        Args:
            query: float, shape `(batch * n, d_model)`.
            key_value: `KeyValue` from `project`, shared by the n hypotheses of a sentence.
            mask: bool, broadcastable to `(batch, n, source_len)`; True means visible.
            num_hypotheses: int, n, hypotheses per sentence.

        Returns:
            float, same shape as `query`.
        """
        return self.cross_attend(query, key_value, mask, num_hypotheses=num_hypotheses).output

    def cross_attend(
        self, query: Tensor, key_value: KeyValue, mask: Tensor | None = None, *, num_hypotheses: int = 1
    ) -> Attention:
        """As `cross_step`, but returns `Attention`, with weights `(batch, num_heads, n, source_len)`."""
        query = self._queries(query, -1, num_hypotheses)
        heads = scaled_dot_product_attention(query, *key_value, mask)
        return Attention(self.output_projection(self._join_heads(heads.output, -1)), heads.weights)

    def _queries(self, x, batch, length, position=None):
        """Projects queries and splits them into heads; arguments as of `_split_heads` and `_place`."""
        query = self._split_heads(self.query_projection(x), batch, length)
        if self.query_key_norm is not None:
            query = self.query_key_norm.query(query)
        return self._place(query, position)

    def _keys(self, x, batch, length, position=None):
        """Projects keys and splits them into heads, like `_queries`."""
        key = self._split_heads(self.key_projection(x), batch, length)
        if self.query_key_norm is not None:
            key = self.query_key_norm.key(key)
        return self._place(key, position)

    def _place(self, x, position=None):
        """Returns queries or keys with their positions: as they are, because the embeddings have them.

        Subclasses override it, or `_attention`, for positions within attention.

        Args:
            x: float, shape `(batch, num_heads, length, key_dim)`.
            position: scalar int, position of all of them; `None` for the positions 0 to length - 1.
        """
        return x

    def _attention(self, query, key_value, mask, dropout=None, *, position=None, **options):
        """Returns `scaled_dot_product_attention`; in a step, all queries are at `position`."""
        return scaled_dot_product_attention(query, *key_value, mask, dropout, **options)

    def _split_heads(self, x, batch, length):
        """Splits `batch * length` rows of `num_heads * d` features -> (batch, num_heads, length, d)."""
        width = x.shape[-1] // self.num_heads
        if isinstance(length, int) and length == 1:  # one position: no axes to swap
            return reshape_static(x, (batch, self.num_heads, 1, width))
        return _swap_middle_axes(reshape_static(x, (batch, length, self.num_heads, width)))

    def _join_heads(self, x, *leading):
        """Concatenates the heads: (batch, num_heads, length, d) -> (*leading, num_heads * d)."""
        if x.shape[2] != 1:
            x = _swap_middle_axes(x)
        return reshape_static(x, (*leading, self.num_heads * x.shape[-1]))


def _swap_middle_axes(x):
    """Transposes axes 1 and 2 of a tensor with four axes.

    Uses einsum: for the small tensors of a decoding step, oneDNN's transpose is several times slower.
    """
    return ops.einsum("bijd->bjid", x)
