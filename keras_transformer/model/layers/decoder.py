"""Decoder layer (section 3.1)."""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.config.types import Shape, Tensor
from keras_transformer.model.layers.attention import CachedStep, KeyValue
from keras_transformer.model.layers.basics import PACKAGE
from keras_transformer.model.layers.encoder import TransformerLayer
from keras_transformer.model.layers.masks import causal_mask


class DecoderAttention(NamedTuple):
    """Output and attention weights of a decoder layer.

    Attributes:
        output: float, shape `(batch, target_len, d_model)`.
        self_weights: float32, shape `(batch, num_heads, target_len, target_len)`.
        cross_weights: float32, shape `(batch, num_heads, target_len, source_len)`.
    """

    output: Any
    self_weights: Any
    cross_weights: Any


class DecoderStep(NamedTuple):
    """Result of one decoding step of a decoder layer, with attention weights.

    Attributes:
        output: float, shape `(batch * n, d_model)`, with n hypotheses per sentence.
        cache: `KeyValue` of self-attention, including the new position.
        cross_weights: float32, shape `(batch, num_heads, n, source_len)`.
    """

    output: Any
    cache: KeyValue
    cross_weights: Any


@keras.saving.register_keras_serializable(package=PACKAGE)
class DecoderLayer(TransformerLayer):
    """Decoder layer: self-attention, cross-attention, feed-forward, each with a residual connection.

    Args: those of `TransformerLayer`.

    Call arguments:
        inputs: float, shape `(batch, target_len, d_model)`.
        encoder_output: float, shape `(batch, source_len, d_model)`.
        self_attention_mask: bool with three axes, broadcastable to `(batch, target_len, target_len)`; True
            means visible. `None` means the causal mask, so no position sees later positions.
        cross_attention_mask: bool with three axes, broadcastable to `(batch, target_len, source_len)`.
            `None` makes all source positions visible.
        inputs_mask: bool, shape `(batch, target_len)`; hides its False positions in addition to
            `self_attention_mask`. `None` means the implicit mask of `inputs`, if there is one.
        encoder_output_mask: the same for `encoder_output`; shape `(batch, source_len)`.

    Returns:
        float, same shape and implicit mask as `inputs`.
    """

    attentions = ("self_attention", "cross_attention")

    def build(self, inputs_shape: Shape, encoder_output_shape: Shape) -> None:
        super().build(inputs_shape, encoder_output_shape)

    def call(
        self,
        inputs: Tensor,
        encoder_output: Tensor,
        self_attention_mask: Tensor | None = None,
        cross_attention_mask: Tensor | None = None,
        inputs_mask: Tensor | None = None,
        encoder_output_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        return self.attend(
            inputs,
            encoder_output,
            self_attention_mask,
            cross_attention_mask,
            inputs_mask,
            encoder_output_mask,
            training=training,
        ).output

    def attend(
        self,
        inputs: Tensor,
        encoder_output: Tensor,
        self_attention_mask: Tensor | None = None,
        cross_attention_mask: Tensor | None = None,
        inputs_mask: Tensor | None = None,
        encoder_output_mask: Tensor | None = None,
        *,
        training: bool | None = None,
    ) -> DecoderAttention:
        """Computes the layer and also returns its attention weights.

        Returns:
            `DecoderAttention`.
        """
        if self_attention_mask is None:
            self_attention_mask = causal_mask(ops.shape(inputs)[1])
        x = inputs
        y = self.self_attention_residual.pre(x)
        y, self_weights = self.self_attention(
            y,
            y,
            query_mask=inputs_mask,
            value_mask=inputs_mask,
            attention_mask=self_attention_mask,
            return_attention_scores=True,
            training=training,
        )
        x = self.self_attention_residual.post(x, y, training=training)

        y = self.cross_attention_residual.pre(x)
        y, cross_weights = self.cross_attention(
            y,
            encoder_output,
            query_mask=inputs_mask,
            value_mask=encoder_output_mask,
            attention_mask=cross_attention_mask,
            return_attention_scores=True,
            training=training,
        )
        x = self.cross_attention_residual.post(x, y, training=training)

        y = self.feed_forward_residual.pre(x)
        y = self.feed_forward(y, training=training)
        output = self.feed_forward_residual.post(x, y, training=training)
        return DecoderAttention(output, self_weights, cross_weights)

    def step(
        self,
        inputs: Tensor,
        cache: KeyValue,
        encoder_key_value: KeyValue,
        mask: Tensor | None = None,
        cross_attention_mask: Tensor | None = None,
        *,
        num_hypotheses: int = 1,
        first_slot: Tensor | None = None,
    ) -> CachedStep:
        """Computes one new position of every hypothesis, using the caches; without dropout.

        The n hypotheses of a sentence share the encoder's keys and values, which are not copied.

        Args:
            inputs: float, shape `(batch * n, d_model)`.
            cache: `KeyValue` of this layer's self-attention.
            encoder_key_value: `KeyValue` from `cross_attention.project`.
            mask: bool, shape `(batch, n, slots)`; see `MultiHeadAttention.step`.
            cross_attention_mask: bool, broadcastable to `(batch, 1, source_len)`.
            num_hypotheses: int, n, hypotheses per sentence.
            first_slot: see `MultiHeadAttention.step`.

        Returns:
            `CachedStep`.
        """

        def attend(query):
            y = self.cross_attention.cross_step(
                query, encoder_key_value, cross_attention_mask, num_hypotheses=num_hypotheses
            )
            return y, None

        output, cache, _ = self._step(inputs, cache, attend, mask, num_hypotheses, first_slot)
        return CachedStep(output, cache)

    def attend_step(
        self,
        inputs: Tensor,
        cache: KeyValue,
        encoder_key_value: KeyValue,
        mask: Tensor | None = None,
        cross_attention_mask: Tensor | None = None,
        *,
        num_hypotheses: int = 1,
        first_slot: Tensor | None = None,
    ) -> DecoderStep:
        """As `step`, and also returns the weights of cross-attention.

        Returns:
            `DecoderStep`.
        """

        def attend(query):
            return self.cross_attention.cross_attend(
                query, encoder_key_value, cross_attention_mask, num_hypotheses=num_hypotheses
            )

        return DecoderStep(*self._step(inputs, cache, attend, mask, num_hypotheses, first_slot))

    def _step(self, inputs, cache, attend_to_source, mask, num_hypotheses, first_slot):
        """Returns output, cache and weights of a step; `attend_to_source(query)` is its cross-attention."""
        x = inputs
        y = self.self_attention_residual.pre(x)
        y, cache = self.self_attention.step(
            y, cache, mask, num_hypotheses=num_hypotheses, first_slot=first_slot
        )
        x = self.self_attention_residual.post(x, y)

        y = self.cross_attention_residual.pre(x)
        y, cross_weights = attend_to_source(y)
        x = self.cross_attention_residual.post(x, y)

        y = self.feed_forward(self.feed_forward_residual.pre(x))
        return self.feed_forward_residual.post(x, y), cache, cross_weights

    def compute_output_shape(self, inputs_shape: Shape, encoder_output_shape: Shape) -> Shape:
        return inputs_shape
