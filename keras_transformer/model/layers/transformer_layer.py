"""What the layers of the encoder and of the decoder have in common (section 3.1)."""

import keras

from keras_transformer.model.layers.attention import Attention, MultiHeadAttention
from keras_transformer.model.layers.feed_forward import FeedForward
from keras_transformer.model.layers.residual import Residual


class TransformerLayer(keras.layers.Layer):
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
        self.supports_masking = True

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

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "d_ff": self.d_ff,
            "residual_dropout": self.residual_dropout,
            "attention_dropout": self.attention_dropout,
            "relu_dropout": self.relu_dropout,
            "norm_first": self.norm_first,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "attention_bias": self.attention_bias,
        }


def attend(attention, query, value, *, return_weights, **how):
    """Calls a `MultiHeadAttention`; returns `Attention` whether weights are asked for or not."""
    found = attention(query, value, return_attention_scores=return_weights, **how)
    return Attention(*found) if return_weights else Attention(found, None)
