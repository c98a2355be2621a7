"""Layers of keras-hub, converted with their weights: `layer_from_keras_hub` and `layer_to_keras_hub`.

A converted layer computes the same as the original. Initializers are not carried over, because the weights
are copied.
"""

from typing import Any

from keras import activations, ops

from keras_transformer.config.extras import needs
from keras_transformer.model.layers.attention import MultiHeadAttention
from keras_transformer.model.layers.decoder import DecoderLayer
from keras_transformer.model.layers.encoder import EncoderLayer
from keras_transformer.model.layers.feed_forward import FeedForward


def layer_from_keras_hub(layer: Any) -> EncoderLayer | DecoderLayer:
    """Converts a `TransformerEncoder` or `TransformerDecoder` of keras-hub, with a copy of its weights.

    Args:
        layer: the built layer; a decoder must have been built with cross-attention.

    Returns:
        `EncoderLayer` or `DecoderLayer`, built, with the same name and dtype policy. keras-hub's `dropout` is
        the rate of both `residual_dropout` and `attention_dropout`.

    Raises:
        TypeError: another layer, or a subclass.
        ValueError: the layer is not built, or has something that our layers lack.
    """
    kinds = {theirs: ours for ours, theirs in _kinds().items()}
    _check(layer, kinds)
    activation = activations.serialize(layer.activation)
    if not isinstance(activation, str):
        raise ValueError(f"`activation` must be one of Keras' own. Received: {layer.activation!r}")
    theirs = _weights_by_name(layer)
    if kinds[type(layer)] is DecoderLayer and "cross_attention/key/kernel" not in theirs:
        raise ValueError("The decoder layer was built without cross-attention: DecoderLayer always has it")
    d_model, _, key_dim = theirs["self_attention/query/kernel"].shape
    ours = kinds[type(layer)](
        num_heads=layer.num_heads,
        key_dim=key_dim,
        d_ff=layer.intermediate_dim,
        residual_dropout=layer.dropout,
        attention_dropout=layer.dropout,
        activation=activation,
        norm_first=layer.normalize_first,
        layer_norm_epsilon=layer.layer_norm_epsilon,
        attention_bias=True,
        name=layer.name,
        dtype=layer.dtype_policy,
        trainable=layer.trainable,
    )
    ours.build(*_shapes(theirs, d_model))
    _copy(theirs, _weights_by_role(ours))
    return ours


def layer_to_keras_hub(layer: EncoderLayer | DecoderLayer, *, dropout: float | None = None) -> Any:
    """Converts an `EncoderLayer` or `DecoderLayer` to keras-hub's layer, with a copy of its weights.

    Attention without biases becomes attention whose biases are 0.

    Args:
        layer: the built layer.
        dropout: the one rate of keras-hub's layer, used for attention weights and sublayer outputs; `None`
            takes the rates of `layer`, which must then be equal.

    Returns:
        `keras_hub.layers.TransformerEncoder` or `TransformerDecoder`, built, with the same name and dtype
        policy.

    Raises:
        TypeError: another layer, or a subclass.
        ValueError: the layer is not built, or has something that keras-hub's layers lack.
    """
    kinds = _kinds()
    _check(layer, kinds)
    ours = _weights_by_role(layer)
    d_model = ours["self_attention/query/kernel"].shape[0]
    rates = {name: getattr(layer, f"{name}_dropout") for name in ("residual", "attention", "relu")}
    if dropout is None and (rates["residual"] != rates["attention"] or rates["relu"]):
        raise ValueError(
            "keras-hub has one rate for residual_dropout and attention_dropout and no relu_dropout: pass "
            f"`dropout`. Received: {rates}"
        )
    sizes = layer.key_dim, layer.key_dim if layer.value_dim is None else layer.value_dim
    if set(sizes) != {d_model // layer.num_heads}:
        raise ValueError(
            f"keras-hub's `key_dim` and `value_dim` are d_model // num_heads = {d_model // layer.num_heads}. "
            f"Received: key_dim={sizes[0]}, value_dim={sizes[1]}"
        )
    if layer.depth_scale[0] != 1:
        raise ValueError(f"keras-hub cannot scale residual connections. Received: {layer.depth_scale[0]}")
    others = [getattr(layer, name) for name in (*layer.attentions, "feed_forward")]
    if others := [type(x).__name__ for x in others if type(x) not in (MultiHeadAttention, FeedForward)]:
        raise ValueError(f"The sublayers must be MultiHeadAttention and FeedForward. Received: {others[0]}")
    if layer.qk_norm:
        raise ValueError("keras-hub's layers do not normalize queries and keys. Received: qk_norm=True")
    if layer.norm != "layer":
        raise ValueError(f"keras-hub's layers have LayerNorm. Received: norm={layer.norm!r}")
    theirs = kinds[type(layer)](
        intermediate_dim=layer.d_ff,
        num_heads=layer.num_heads,
        dropout=rates["residual"] if dropout is None else dropout,
        activation=layer.activation,
        layer_norm_epsilon=layer.layer_norm_epsilon,
        normalize_first=layer.norm_first,
        name=layer.name,
        dtype=layer.dtype_policy,
        trainable=layer.trainable,
    )
    theirs.build(*_shapes(ours, d_model))
    _copy(ours, _weights_by_name(theirs))
    return theirs


def _kinds():
    with needs("keras-hub", "A layer of keras-hub"):
        import keras_hub

    layers = keras_hub.layers
    return {EncoderLayer: layers.TransformerEncoder, DecoderLayer: layers.TransformerDecoder}


def _check(layer, kinds):
    if type(layer) not in kinds:
        names = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"`layer` must be {names}, and no subclass. Received: {type(layer).__name__}")
    if not layer.built:
        raise ValueError("`layer` must be built, so that it has weights: call it once")


def _shapes(weights, d_model):
    """Returns the shapes for `build`: of the inputs, and of the encoder's output if there is one."""
    cross = weights.get("cross_attention/key/kernel")
    return [(None, None, d_model)] + ([] if cross is None else [(None, None, cross.shape[0])])


def _copy(source, target):
    """Assigns weights by name, in the shape of the target."""
    biases = [name for name in target if "attention/" in name and name.endswith("/bias")]
    if others := set(source) ^ set(target) - (set(biases) - set(source)):
        raise ValueError(f"`layer` must have the weights of its class only. Received: {sorted(others)[0]}")
    for name, weight in source.items():
        target[name].assign(ops.reshape(weight, target[name].shape))
    for name in set(biases) - set(source):
        target[name].assign(ops.zeros_like(target[name]))


def _weights_by_role(layer):
    """Returns {keras-hub's name: variable} of one of our layers."""
    parts = {"feedforward_layer_norm": layer.feed_forward_residual.norm}
    for role, name in (("inner", "intermediate"), ("outer", "output")):
        parts[f"feedforward_{name}_dense"] = getattr(layer.feed_forward, role)
    for name in layer.attentions:
        parts[f"{name}_layer_norm"] = getattr(layer, f"{name}_residual").norm
        for role in ("query", "key", "value", "output"):
            part = "attention_output" if role == "output" else role
            parts[f"{name}/{part}"] = getattr(getattr(layer, name), f"{role}_projection")
    return {f"{name}/{weight.name}": weight for name, part in parts.items() for weight in part.weights}


def _weights_by_name(layer):
    """Returns {name: variable} of one of keras-hub's layers; the name is that of the path in the layer."""
    weights = {}
    for weight in layer.weights:
        parts = weight.path.split("/")
        begins = [
            i for i, part in enumerate(parts) if part.startswith(("self_att", "cross_att", "feedforward"))
        ]
        name = "/".join(parts[begins[-1] :] if begins else parts[-2:])
        # The encoder's sublayer has another name than the decoder's.
        weights[name.replace("self_attention_layer/", "self_attention/")] = weight
    return weights
