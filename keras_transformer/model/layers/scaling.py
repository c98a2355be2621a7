"""Sizes of the initial attention matrices, and scaling of a layer by its depth.

The paper gives no initial matrices. `docs/choices.md` compares those of other implementations.
"""

from typing import NamedTuple

# Projections whose initial matrices are parts of one Glorot matrix, for each value of `attention_init`.
STACKED = {
    "stacked": {"self_attention": ("query", "key", "value"), "cross_attention": ("key", "value")},
    "stacked_all": {
        "self_attention": ("query", "key", "value"),
        "cross_attention": ("query", "key", "value"),
    },
    "separate": {"self_attention": (), "cross_attention": ()},
}


class DepthScale(NamedTuple):
    """Factors on the residual connections and initial matrices of one layer, by its depth.

    Attributes:
        alpha: factor on x in LayerNorm(alpha x + Sublayer(x)).
        gain: factor on the initial W^Q and W^K.
        value_gain: factor on the initial W^V, W^O, W1 and W2.
    """

    alpha: float = 1.0
    gain: float = 1.0
    value_gain: float = 1.0


def depth_scale(scaling, index, num_encoder_layers, num_decoder_layers, *, decoder):
    """Returns the `DepthScale` of one layer.

    With N encoder and M decoder layers, DeepNorm (Wang et al., 2022) has in the encoder
    alpha = 0.81 (N^4 M)^(1/16) and value_gain = 0.87 (N^4 M)^(-1/16), in the decoder alpha = (3 M)^(1/4) and
    value_gain = (12 M)^(-1/4). DS-Init (Zhang, Titov and Sennrich, 2019) divides all matrices of layer l,
    counted from 1, by sqrt(l).

    Args:
        scaling: `"none"`, `"ds_init"` or `"deepnorm"`.
        index: int, number of the layer in its stack, from 0.
        num_encoder_layers: int, N.
        num_decoder_layers: int, M.
        decoder: bool, whether the layer is in the decoder.
    """
    if scaling == "ds_init":
        return DepthScale(1.0, (index + 1) ** -0.5, (index + 1) ** -0.5)
    if scaling == "deepnorm" and decoder:
        return DepthScale((3 * num_decoder_layers) ** 0.25, 1.0, (12 * num_decoder_layers) ** -0.25)
    if scaling == "deepnorm":
        layers = (num_encoder_layers**4 * num_decoder_layers) ** (1 / 16)
        return DepthScale(0.81 * layers, 1.0, 0.87 / layers)
    return DepthScale()
