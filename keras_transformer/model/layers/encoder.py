"""One layer of the encoder (section 3.1)."""

import keras

from keras_transformer.model.layers.attention import Attention
from keras_transformer.model.layers.dense import PACKAGE
from keras_transformer.model.layers.transformer_layer import TransformerLayer, attend


@keras.saving.register_keras_serializable(package=PACKAGE)
class EncoderLayer(TransformerLayer):
    """Self-attention, then feed-forward, each within a residual connection.

    Args: those of `TransformerLayer`.

    Call arguments:
        inputs: float, shape `(batch, length, d_model)`.
        attention_mask: bool, of three axes, broadcastable to `(batch, length, length)`; True is
            visible; `None` shows everything.
        mask: bool, shape `(batch, length)`; what it hides is hidden, too, whatever
            `attention_mask` shows. `None` is the implicit mask of `inputs`, if there is one.

    Returns:
        float, shape as `inputs`, with the mask of `inputs`.
    """

    def build(self, inputs_shape):
        self.self_attention.build(inputs_shape, inputs_shape)
        self.self_attention_residual.build(inputs_shape)
        self.feed_forward.build(inputs_shape)
        self.feed_forward_residual.build(inputs_shape)

    def call(self, inputs, attention_mask=None, mask=None, training=None):
        return self.attend(inputs, attention_mask, mask, training=training).output

    def attend(self, inputs, attention_mask=None, mask=None, *, return_weights=False, training=None):
        """Does what a call does, and also returns the attention if asked to.

        Returns:
            `Attention(output, weights)`; `weights` has shape
            `(batch, num_heads, length, length)`.
        """
        x = inputs
        y = self.self_attention_residual.enter(x)
        how = {"return_weights": return_weights, "training": training}
        attended = attend(
            self.self_attention, y, y, query_mask=mask, value_mask=mask, attention_mask=attention_mask, **how
        )
        x = self.self_attention_residual.leave(x, attended.output, training=training)

        y = self.feed_forward_residual.enter(x)
        y = self.feed_forward(y, training=training)
        return Attention(self.feed_forward_residual.leave(x, y, training=training), attended.weights)

    def compute_output_shape(self, inputs_shape):
        return inputs_shape
