"""One layer of the encoder, and what it has in common with one of the decoder (section 3.1)."""

import keras

from keras_transformer.model.layers.attention import Attention, MultiHeadAttention
from keras_transformer.model.layers.basics import PACKAGE, Layer
from keras_transformer.model.layers.feed_forward import FeedForward
from keras_transformer.model.layers.residual import Residual


class TransformerLayer(Layer):
    """Attention, of one kind or two, then feed-forward, each within a residual connection.

    Args:
        num_heads: h.
        key_dim: d_k of each head.
        value_dim: d_v of each head; `None` is `key_dim`.
        d_ff: inner width of the feed-forward network.
        residual_dropout: rate on each sublayer's output.
        attention_dropout: rate on attention weights (0 in the paper).
        relu_dropout: rate inside the feed-forward network (0 in the paper).
        norm_first: normalises before each sublayer rather than after it.
        layer_norm_epsilon: added to the variance.
        attention_bias: biases in the attention projections (none in the paper).

    Attributes:
        attentions: names of its attention sublayers, in their order.
    """

    arguments = (
        "num_heads", "key_dim", "d_ff", "value_dim", "residual_dropout", "attention_dropout", "relu_dropout",
        "norm_first", "layer_norm_epsilon", "attention_bias",
    )  # fmt: skip
    attentions = ("self_attention",)

    def __init__(
        self,
        *,
        num_heads,
        key_dim,
        d_ff,
        value_dim=None,
        residual_dropout=0.1,
        attention_dropout=0.0,
        relu_dropout=0.0,
        norm_first=False,
        layer_norm_epsilon=1e-6,
        attention_bias=False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.d_ff = d_ff
        self.residual_dropout = residual_dropout
        self.attention_dropout = attention_dropout
        self.relu_dropout = relu_dropout
        self.norm_first = norm_first
        self.layer_norm_epsilon = layer_norm_epsilon
        self.attention_bias = attention_bias

        policy = self.dtype_policy
        residual = {
            "dropout": residual_dropout,
            "norm_first": norm_first,
            "epsilon": layer_norm_epsilon,
            "dtype": policy,
        }
        for name in self.attentions:
            attention = MultiHeadAttention(
                num_heads,
                key_dim,
                value_dim=value_dim,
                dropout=attention_dropout,
                use_bias=attention_bias,
                name=name,
                dtype=policy,
            )
            setattr(self, name, attention)
            setattr(self, f"{name}_residual", Residual(name=f"{name}_residual", **residual))
        self.feed_forward = FeedForward(d_ff, dropout=relu_dropout, name="feed_forward", dtype=policy)
        self.feed_forward_residual = Residual(name="feed_forward_residual", **residual)

    def build(self, inputs_shape, *value_shapes):
        for name, value_shape in zip(self.attentions, (inputs_shape, *value_shapes), strict=True):
            getattr(self, name).build(inputs_shape, value_shape)
            getattr(self, f"{name}_residual").build(inputs_shape)
        self.feed_forward.build(inputs_shape)
        self.feed_forward_residual.build(inputs_shape)


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

    def call(self, inputs, attention_mask=None, mask=None, training=None):
        return self.attend(inputs, attention_mask, mask, training=training).output

    def attend(self, inputs, attention_mask=None, mask=None, *, training=None):
        """Does what a call does, and also returns the attention.

        Returns:
            `Attention(output, weights)`; `weights` has shape
            `(batch, num_heads, length, length)`.
        """
        x = inputs
        y = self.self_attention_residual.pre(x)
        y, weights = self.self_attention(
            y,
            y,
            query_mask=mask,
            value_mask=mask,
            attention_mask=attention_mask,
            return_attention_scores=True,
            training=training,
        )
        x = self.self_attention_residual.post(x, y, training=training)

        y = self.feed_forward_residual.pre(x)
        y = self.feed_forward(y, training=training)
        return Attention(self.feed_forward_residual.post(x, y, training=training), weights)
