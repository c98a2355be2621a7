"""Weights and sizes of a model in the form of CTranslate2."""

import numpy as np

from keras_transformer.config.extras import needs
from keras_transformer.model.layers.basics import LayerNormalization
from keras_transformer.model.layers.embedding import sinusoids
from keras_transformer.model.layers.gated_feed_forward import GatedFeedForward
from keras_transformer.model.layers.relative_attention import RelativeAttention
from keras_transformer.translation.alignment import default_alignment_choice


def specification(model, max_positions):
    """Returns a `TransformerSpec` with the weights of a model, float32."""
    with needs("ctranslate2", "CTranslate2"):
        from ctranslate2.specs import common_spec, transformer_spec

    config = model.config
    width = max(config.d_key, config.d_value)
    sizes = {"num_heads": config.num_heads, "pre_norm": config.norm_first, "head_dim": width}
    activation = {
        "relu": common_spec.Activation.RELU,
        "swiglu": common_spec.Activation.SWISH,
        "geglu": common_spec.Activation.GELU,
    }[config.activation]
    sizes |= {"activation": activation, "ffn_glu": config.activation != "relu"}
    sizes["rms_norm"] = config.norm == "rms"
    if config.positions == "relative":
        sizes["relative_position"] = True
    elif config.positions == "rotary":
        sizes |= {"rotary_dim": config.d_key, "rotary_interleave": True}
    encoder = transformer_spec.TransformerEncoderSpec(config.num_encoder_layers, **sizes)
    decoder = transformer_spec.TransformerDecoderSpec(
        config.num_decoder_layers,
        alignment_layer=default_alignment_choice(config.num_decoder_layers).layer,
        alignment_heads=config.num_heads,  # their mean
        **sizes,
    )

    encoder.embeddings[0].weight = _array(model.source_embedding.embeddings)
    decoder.embeddings.weight = _array(model.target_embedding.embeddings)
    # CTranslate2 adds no positions to the embeddings if self-attention has them.
    if config.attention_positions is None:
        for spec, embedding in ((encoder, model.source_embedding), (decoder, model.target_embedding)):
            spec.position_encodings.encodings = _positions(embedding, max_positions)
    if config.norm_first:
        _set_norm(encoder.layer_norm, model.encoder_norm)
        _set_norm(decoder.layer_norm, model.decoder_norm)

    for spec, layer in zip(encoder.layer, model.encoder_layers, strict=True):
        _set_attention(spec.self_attention, layer.self_attention, layer.self_attention_residual, joined=3)
        _set_feed_forward(spec.ffn, layer)
    for spec, layer in zip(decoder.layer, model.decoder_layers, strict=True):
        _set_attention(spec.self_attention, layer.self_attention, layer.self_attention_residual, joined=3)
        _set_attention(spec.attention, layer.cross_attention, layer.cross_attention_residual, joined=2)
        _set_feed_forward(spec.ffn, layer)

    decoder.projection.weight = decoder.embeddings.weight
    if model.output_projection is not None:
        decoder.projection.weight = _array(model.output_projection.kernel).T.copy()
    if model.output_bias is not None:
        decoder.projection.bias = _array(model.output_bias)
    return transformer_spec.TransformerSpec(encoder, decoder)


def _array(variable):
    return variable.numpy().astype("float32", copy=True)


def _positions(embedding, number):
    """Returns the position encodings, float32, shape `(positions, d_model)`.

    CTranslate2 could compute sinusoids, but only in the layout of two halves and starting at position 1.
    """
    if embedding.positions == "learned":
        return _array(embedding.position_embeddings)
    return _array(sinusoids(np.arange(number), embedding.d_model, embedding.positions))


def _set_attention(spec, attention, residual, *, joined):
    """Sets the weights of an attention sublayer.

    CTranslate2 has one head size for keys and values, so the smaller ones are padded with zeros.

    Args:
        joined: int, number of projections in one matrix: 3 for queries, keys and values, 2 for keys
            and values.
    """
    width = max(attention.key_dim, attention.value_dim)

    def pad_heads(rows):
        """`(num_heads * d, n)` -> `(num_heads * width, n)`: each head's rows, then zeros."""
        heads = rows.reshape(attention.num_heads, -1, rows.shape[1])
        missing = width - heads.shape[1]
        return np.pad(heads, ((0, 0), (0, missing), (0, 0))).reshape(attention.num_heads * width, -1)

    layers = [attention.query_projection, attention.key_projection, attention.value_projection]
    groups = [[layer] for layer in layers[:-joined]] + [layers[-joined:]]
    for linear, group in zip(spec.linear, groups, strict=False):
        linear.weight = np.concatenate([pad_heads(_array(layer.kernel).T) for layer in group])
        if group[0].bias is not None:
            linear.bias = np.concatenate([pad_heads(_array(layer.bias)[:, None])[:, 0] for layer in group])
    output = attention.output_projection
    _set_linear(spec.linear[-1], pad_heads(_array(output.kernel)).T, output.bias, residual.alpha)
    spec.queries_scale = np.float32(attention.key_dim**-0.5)
    _set_norm(spec.layer_norm, residual.norm)
    if isinstance(attention, RelativeAttention):
        for name in ("keys", "values"):
            matrix = _array(getattr(attention, f"distance_{name}"))
            padded = np.pad(matrix, ((0, 0), (0, width - matrix.shape[1])))
            setattr(spec, f"relative_position_{name}", padded)


def _set_feed_forward(spec, layer):
    inner, outer = layer.feed_forward.inner, layer.feed_forward.outer
    _set_linear(spec.linear_0, _array(inner.kernel).T, inner.bias)
    if isinstance(layer.feed_forward, GatedFeedForward):
        linear = layer.feed_forward.linear
        _set_linear(spec.linear_0_noact, _array(linear.kernel).T, linear.bias)
    _set_linear(spec.linear_1, _array(outer.kernel).T, outer.bias, layer.feed_forward_residual.alpha)
    _set_norm(spec.layer_norm, layer.feed_forward_residual.norm)


def _set_linear(spec, matrix, bias, alpha=1.0):
    """Sets a matrix and a bias, both divided by `alpha` of the residual connection that follows.

    LayerNorm(alpha x + f(x)) = LayerNorm(x + f(x) / alpha), but for its epsilon, which should then be divided
    by alpha^2: CTranslate2 has one epsilon for all layers.
    """
    spec.weight = np.ascontiguousarray(matrix / np.float32(alpha))
    if bias is not None:
        spec.bias = _array(bias) / np.float32(alpha)


def _set_norm(spec, norm):
    spec.gamma = _array(norm.gamma)
    if isinstance(norm, LayerNormalization):
        spec.beta = _array(norm.beta)
