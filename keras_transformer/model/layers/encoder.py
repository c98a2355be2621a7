"""Encoder layer, and the base class that it shares with the decoder layer (section 3.1)."""

import functools
from typing import Any

import keras

from keras_transformer.config.types import Shape, Tensor
from keras_transformer.model.layers.attention import Attention, MultiHeadAttention
from keras_transformer.model.layers.basics import PACKAGE, Layer
from keras_transformer.model.layers.feed_forward import FeedForward
from keras_transformer.model.layers.gated_feed_forward import GATES, GatedFeedForward
from keras_transformer.model.layers.other_names import accepts_other_names
from keras_transformer.model.layers.relative_attention import RelativeAttention
from keras_transformer.model.layers.residual import Residual
from keras_transformer.model.layers.rotary_attention import RotaryAttention
from keras_transformer.model.layers.scaling import STACKED, DepthScale


class TransformerLayer(Layer):
    """Base class: attention sublayers, then feed-forward, each with a residual connection.

    Args:
        num_heads: h.
        key_dim: d_k of each head.
        value_dim: d_v of each head; `None` means `key_dim`.
        d_ff: inner width of the feed-forward network.
        residual_dropout: dropout rate of each sublayer's output.
        attention_dropout: dropout rate of the attention weights (0 in the paper).
        relu_dropout: dropout rate inside the feed-forward network (0 in the paper).
        activation: name of the Keras activation of the feed-forward network (ReLU in the paper), or
            `"swiglu"` or `"geglu"` (see `GatedFeedForward`).
        norm_first: pre-norm: normalises the input of each sublayer, not the residual sum.
        layer_norm_epsilon: added to the variance.
        attention_bias: whether the attention projections have biases (not in the paper).
        attention_init: `"stacked"` draws the initial matrices W^Q, W^K and W^V of self-attention as parts of
            one Glorot matrix, and W^K and W^V of cross-attention as parts of another; `"stacked_all"` adds
            W^Q of cross-attention to the latter; `"separate"` draws each on its own.
        depth_scale: `DepthScale`, or its three numbers.
        positions: positions in self-attention, `"relative"` (see `RelativeAttention`) or `"rotary"` (see
            `RotaryAttention`); `None` if the inputs have their positions, as in the paper.
        max_relative_position: see `RelativeAttention`.
        norm: `"layer"`, or `"rms"` for RMSNorm in place of LayerNorm.
        qk_norm: whether queries and keys are normalized (see `QueryKeyNorm`).

    Attributes:
        attentions: names of the attention sublayers, in the order of computation.
    """

    arguments: tuple[str, ...] = (
        "num_heads", "key_dim", "d_ff", "value_dim", "residual_dropout", "attention_dropout", "relu_dropout",
        "activation", "norm_first", "layer_norm_epsilon", "attention_bias", "attention_init", "depth_scale",
        "positions", "max_relative_position", "norm", "qk_norm",
    )  # fmt: skip
    attentions: tuple[str, ...] = ("self_attention",)

    @accepts_other_names
    def __init__(
        self,
        *,
        num_heads: int,
        key_dim: int,
        d_ff: int,
        value_dim: int | None = None,
        residual_dropout: float = 0.1,
        attention_dropout: float = 0.0,
        relu_dropout: float = 0.0,
        activation: str = "relu",
        norm_first: bool = False,
        layer_norm_epsilon: float = 1e-6,
        attention_bias: bool = False,
        attention_init: str = "stacked",
        depth_scale: DepthScale | list[float] = DepthScale(),
        positions: str | None = None,
        max_relative_position: int = 16,
        norm: str = "layer",
        qk_norm: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if attention_init not in STACKED:
            raise ValueError(f"`attention_init` must be one of {list(STACKED)}. Received: {attention_init!r}")
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.d_ff = d_ff
        self.residual_dropout = residual_dropout
        self.attention_dropout = attention_dropout
        self.relu_dropout = relu_dropout
        self.activation = activation
        self.norm_first = norm_first
        self.layer_norm_epsilon = layer_norm_epsilon
        self.attention_bias = attention_bias
        self.attention_init = attention_init
        self.depth_scale = list(depth_scale)
        self.positions = positions
        self.max_relative_position = max_relative_position
        self.norm = norm
        self.qk_norm = qk_norm
        alpha, gain, value_gain = depth_scale

        policy = self.dtype_policy
        residual = {
            "dropout": residual_dropout,
            "norm_first": norm_first,
            "epsilon": layer_norm_epsilon,
            "alpha": alpha,
            "norm_kind": norm,
            "dtype": policy,
        }
        self_attention = _self_attention(positions, max_relative_position)
        for name in self.attentions:
            attention = (self_attention if name == "self_attention" else MultiHeadAttention)(
                num_heads,
                key_dim,
                value_dim=value_dim,
                dropout=attention_dropout,
                use_bias=attention_bias,
                stacked=STACKED[attention_init][name],  # type: ignore[index]
                gain=gain,
                value_gain=value_gain,
                qk_norm=qk_norm,
                name=name,
                dtype=policy,
            )
            setattr(self, name, attention)
            setattr(self, f"{name}_residual", Residual(name=f"{name}_residual", **residual))
        feed_forward = GatedFeedForward if activation in GATES else FeedForward
        self.feed_forward = feed_forward(
            d_ff,
            dropout=relu_dropout,
            activation=activation,
            gain=value_gain,
            name="feed_forward",
            dtype=policy,
        )
        self.feed_forward_residual = Residual(name="feed_forward_residual", **residual)

    def build(self, inputs_shape: Shape, *value_shapes: Shape) -> None:
        for name, value_shape in zip(self.attentions, (inputs_shape, *value_shapes), strict=True):
            getattr(self, name).build(inputs_shape, value_shape)
            getattr(self, f"{name}_residual").build(inputs_shape)
        self.feed_forward.build(inputs_shape)
        self.feed_forward_residual.build(inputs_shape)


@keras.saving.register_keras_serializable(package=PACKAGE)
class EncoderLayer(TransformerLayer):
    """Encoder layer: self-attention, then feed-forward, each with a residual connection.

    Args: those of `TransformerLayer`.

    Call arguments:
        inputs: float, shape `(batch, length, d_model)`.
        attention_mask: bool with three axes, broadcastable to `(batch, length, length)`; True means visible.
            `None` makes all positions visible.
        mask: bool, shape `(batch, length)`; hides its False positions in addition to `attention_mask`.
            `None` means the implicit mask of `inputs`, if there is one.

    Returns:
        float, same shape and implicit mask as `inputs`.
    """

    def call(
        self,
        inputs: Tensor,
        attention_mask: Tensor | None = None,
        mask: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        return self.attend(inputs, attention_mask, mask, training=training).output

    def attend(
        self,
        inputs: Tensor,
        attention_mask: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        training: bool | None = None,
    ) -> Attention:
        """Computes the layer and also returns its attention weights.

        Returns:
            `Attention(output, weights)`; `weights` has the shape `(batch, num_heads, length, length)`.
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


def _self_attention(positions, max_relative_position):
    """Returns the constructor of self-attention."""
    kinds = {
        None: MultiHeadAttention,
        "relative": functools.partial(RelativeAttention, max_relative_position=max_relative_position),
        "rotary": RotaryAttention,
    }
    if positions not in kinds:
        raise ValueError(f"`positions` must be one of {list(kinds)}. Received: {positions!r}")
    return kinds[positions]
