"""Multi-head scaled dot-product attention (section 3.2).

Axes in einsum: b batch, h heads, t target (query) position, s source (key) position,
d features of one head.
"""

from typing import NamedTuple

import keras
from keras import ops

from keras_transformer.model.kernels.attention import masked_softmax, scaled_scores
from keras_transformer.model.kernels.tensor_ops import reshape_static
from keras_transformer.model.layers.basics import PACKAGE, Dropout, Layer, Projection
from keras_transformer.model.layers.masks import merged


class Attention(NamedTuple):
    """What attention computes.

    Attributes:
        output: float, shape `(batch, target_len, d_model)`.
        weights: float32, shape `(batch, num_heads, target_len, source_len)`.
    """

    output: object
    weights: object


class KeyValue(NamedTuple):
    """Keys and values, projected and split into heads.

    Attributes:
        key: float, shape `(batch, num_heads, source_len, key_dim)`.
        value: float, shape `(batch, num_heads, source_len, value_dim)`.
    """

    key: object
    value: object


class CachedStep(NamedTuple):
    """What one step of decoding returns, of attention or of a whole layer.

    Attributes:
        output: float, shape `(batch * n, d_model)`.
        cache: `KeyValue` of self-attention with this position filled in.
    """

    output: object
    cache: KeyValue


def scaled_dot_product_attention(
    query, key, value, mask=None, dropout=None, *, training=None, no_empty_rows=False
):
    """Equation 1, softmax(Q K^T / sqrt(d_k)) V, for every head at once.

    Args:
        query: float, shape `(batch, num_heads, target_len, key_dim)`.
        key: float, shape `(batch, num_heads, source_len, key_dim)`.
        value: float, shape `(batch, num_heads, source_len, value_dim)`.
        mask: bool, broadcastable to `(batch, target_len, source_len)`; True is visible.
            `None` shows everything. A row with nothing visible gives zeros.
        dropout: function applied to the weights, or `None`.
        training: whether there will be a gradient.
        no_empty_rows: every query attends to at least one key, so the check is skipped.

    Returns:
        `Attention`; its output has shape `(batch, num_heads, target_len, value_dim)`.
    """
    scores = scaled_scores(query, key, training)  # Q K^T / sqrt(d_k)
    weights = masked_softmax(scores, mask, no_empty_rows)
    mixing = weights if dropout is None else dropout(weights)
    output = ops.einsum("bhts,bhsd->bhtd", ops.cast(mixing, value.dtype), value)
    return Attention(output, weights)


@keras.saving.register_keras_serializable(package=PACKAGE)
class MultiHeadAttention(Layer):
    """Concat(head_1, ..., head_h) W^O of section 3.2.2.

    Args:
        num_heads: h.
        key_dim: d_k, width of each head's queries and keys.
        value_dim: d_v, width of each head's values; `None` is `key_dim`.
        dropout: rate on the attention weights (0 in the paper).
        use_bias: adds biases to the four projections (none in the paper).

    Call arguments:
        query: float, shape `(batch, target_len, d_model)`.
        value: float, shape `(batch, source_len, features)`.
        key: float, shape `(batch, source_len, features)`; `None` is `value`.
        query_mask: bool, shape `(batch, target_len)`; a query where it is False sees nothing.
        value_mask: bool, shape `(batch, source_len)`; nobody sees a value where it is False.
        key_mask: as `value_mask`, where `key` is given.
        attention_mask: bool, of three axes, broadcastable to `(batch, target_len, source_len)`; True
            is visible. A query that sees nothing gets zeros (before W^O).
        return_attention_scores: also returns the weights.

    Returns:
        float, shape as `query`; with `return_attention_scores` the pair of that and of the weights,
        float32, shape `(batch, num_heads, target_len, source_len)`.

    Raises:
        ValueError: a mask has another number of axes.

    Names and meaning of the masks are those of Keras' own layer: where `query_mask`, `value_mask` or
    `key_mask` is not given, it is the implicit mask of its tensor (as `Embedding(mask_zero=True)` makes
    it), and what one of the masks hides is hidden. The output has the mask of `query`; the masks of the
    inputs stay as they are.
    """

    arguments = ("num_heads", "key_dim", "value_dim", "dropout", "use_bias")

    def __init__(self, num_heads, key_dim, *, value_dim=None, dropout=0.0, use_bias=False, **kwargs):
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

        def projection(width, name):
            return Projection(num_heads * width, use_bias=use_bias, name=name, dtype=self.dtype_policy)

        self.query_projection = projection(self.key_dim, "query")
        self.key_projection = projection(self.key_dim, "key")
        self.value_projection = projection(self.value_dim, "value")
        self.weights_dropout = Dropout(dropout, dtype="float32", name="dropout")
        self.output_projection = None  # as wide as the queries, so made in `build`

    def build(self, query_shape, value_shape, key_shape=None):
        self.query_projection.build(query_shape)
        self.key_projection.build(key_shape or value_shape)
        self.value_projection.build(value_shape)
        self.output_projection = Projection(
            query_shape[-1], use_bias=self.use_bias, name="output", dtype=self.dtype_policy
        )
        self.output_projection.build((*query_shape[:-1], self.num_heads * self.value_dim))

    def call(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
    ):
        mask = _visible(
            query_mask=query_mask, value_mask=value_mask, key_mask=key_mask, attention_mask=attention_mask
        )
        attended = self.attend(query, self.project(value, key), mask, training=training)
        return tuple(attended) if return_attention_scores else attended.output

    def compute_output_shape(self, query_shape, value_shape, key_shape=None):
        return query_shape

    def compute_output_spec(self, *args, **kwargs):
        # One output or two: found by tracing a call.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def project(self, value, key=None):
        """Projects what is attended to: once for a whole translation in cross-attention.

        Args:
            value: float, shape `(batch, source_len, features)`.
            key: float, shape `(batch, source_len, features)`; `None` is `value`.

        Returns:
            `KeyValue`.
        """
        key = value if key is None else key
        batch, length = ops.shape(value)[:2]
        return KeyValue(
            self._split_heads(self.key_projection(key), batch, length),
            self._split_heads(self.value_projection(value), batch, length),
        )

    def attend(self, query, key_value, attention_mask=None, *, training=None):
        """Attends to keys and values that `project` made.

        Args:
            query: float, shape `(batch, target_len, d_model)`.
            key_value: `KeyValue`.
            attention_mask: bool, broadcastable to `(batch, target_len, source_len)`.

        Returns:
            `Attention`.
        """

        def drop(weights):
            return self.weights_dropout(weights, training=training)

        batch, length = ops.shape(query)[:2]
        query = self._split_heads(self.query_projection(query), batch, length)
        heads = scaled_dot_product_attention(
            query, *key_value, attention_mask, drop if self.dropout else None, training=training
        )
        return Attention(self.output_projection(self._join_heads(heads.output, batch, length)), heads.weights)

    def empty_cache(self, batch_size, max_slots):
        """Makes room for keys and values that are computed one position after another.

        A slot is one position of one hypothesis of a sentence.

        Args:
            batch_size: int or scalar tensor, number of sentences.
            max_slots: how many slots of each sentence there is room for; 0 for a cache that
                grows, which needs a backend whose loops allow that (TensorFlow).

        Returns:
            `KeyValue` of zeros, `max_slots` long.
        """
        shape = (batch_size, self.num_heads, max_slots)
        return KeyValue(
            ops.zeros((*shape, self.key_dim), dtype=self.compute_dtype),
            ops.zeros((*shape, self.value_dim), dtype=self.compute_dtype),
        )

    def step(self, query, cache, mask=None, *, num_hypotheses=1, first_slot=None):
        """Self-attention of one new position of every hypothesis.

        The hypotheses of a sentence share one cache, in which nothing ever moves: which of
        its slots a hypothesis goes back to is in the mask.

        Args:
            query: float, shape `(batch * n, d_model)`.
            cache: `KeyValue` from `empty_cache` or from the step before.
            mask: bool, shape `(batch, n, slots)`, with the n new slots, of which every hypothesis
                sees its own; `None` shows all.
            num_hypotheses: int, n of each sentence.
            first_slot: int, scalar, where the new slots are written; `None` appends them.

        Returns:
            `CachedStep`, its output of the shape of `query`.
        """
        projections = self.query_projection, self.key_projection, self.value_projection
        query, *new = (self._split_heads(each(query), -1, num_hypotheses) for each in projections)
        if first_slot is None:
            cache = KeyValue(*(ops.concatenate(pair, axis=2) for pair in zip(cache, new, strict=True)))
        else:
            start = (0, 0, first_slot, 0)
            cache = KeyValue(*(ops.slice_update(old, start, x) for old, x in zip(cache, new, strict=True)))
        heads = scaled_dot_product_attention(query, *cache, mask, no_empty_rows=True)
        return CachedStep(self.output_projection(self._join_heads(heads.output, -1)), cache)

    def attend_step(self, query, key_value, mask=None, *, num_hypotheses=1):
        """Attends to keys and values that `project` made from one position of every hypothesis.

        Args:
            query: float, shape `(batch * n, d_model)`.
            key_value: `KeyValue`.
            mask: bool, broadcastable to `(batch, n, source_len)`.
            num_hypotheses: int, n of each sentence.

        Returns:
            float, of the shape of `query`.
        """
        query = self._split_heads(self.query_projection(query), -1, num_hypotheses)
        heads = scaled_dot_product_attention(query, *key_value, mask)
        return self.output_projection(self._join_heads(heads.output, -1))

    def _split_heads(self, x, batch, length):
        """Rows of `num_heads * d` features, `batch * length` of them -> (batch, num_heads, length, d)."""
        width = x.shape[-1] // self.num_heads
        if isinstance(length, int) and length == 1:
            return reshape_static(x, (batch, self.num_heads, 1, width))
        return _swapped(reshape_static(x, (batch, length, self.num_heads, width)))

    def _join_heads(self, x, *rows):
        """(batch, num_heads, length, d) -> (*rows, num_heads * d)."""
        if x.shape[2] != 1:
            x = _swapped(x)
        return reshape_static(x, (*rows, self.num_heads * x.shape[-1]))


def _visible(**masks):
    """Merges the masks of a call into one of three axes; `None` where there is none."""
    visible = []
    for name, mask in masks.items():
        if mask is None:
            continue
        axes = "(batch, target_len, source_len)" if name == "attention_mask" else "(batch, length)"
        if len(mask.shape) != len(axes.split(",")):
            raise ValueError(f"`{name}` must have the axes {axes}. Received: shape {tuple(mask.shape)}")
        if name != "attention_mask":
            mask = ops.expand_dims(mask, 2 if name == "query_mask" else 1)
        visible.append(mask)
    return merged(*visible)


def _swapped(x):
    """Swaps the two axes in the middle.

    As an einsum: oneDNN's transposition takes several times as long for small tensors, of
    which decoding has many.
    """
    return ops.einsum("bijd->bjid", x)
