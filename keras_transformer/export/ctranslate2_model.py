"""CTranslate2's files of a model: weights and vocabularies, in its own format."""

import numpy as np

from keras_transformer.config.extras import needs
from keras_transformer.translation.alignment import default_alignment_choice

SPECIAL_TOKENS = {"pad": "<pad>", "bos": "<s>", "eos": "</s>", "unk": "<unk>"}


def import_ctranslate2():
    """Returns the module `ctranslate2`.

    Raises:
        MissingExtraError: ctranslate2 is not installed.
    """
    with needs("ctranslate2", "CTranslate2"):
        import ctranslate2
    return ctranslate2


def vocabulary_tokens(tokenizer):
    """Returns the CTranslate2 token of each id, a list of str without duplicates.

    The token is the piece, with a suffix if the name is already used: a text may have a piece `<s>`.
    """
    is_special = [kind == "special" for kind, _ in tokenizer.entries]
    names, used = {}, set()
    for number in sorted(range(tokenizer.vocab_size), key=lambda number: not is_special[number]):
        text = tokenizer.entries[number][1]
        name = SPECIAL_TOKENS[text] if is_special[number] else text
        while name in used:
            name += f"#{number}"
        used.add(name)
        names[number] = name
    return [names[number] for number in range(tokenizer.vocab_size)]


def save_model(folder, model, tokenizers, *, max_positions, quantization="float32"):
    """Writes the files of CTranslate2.

    Args:
        folder: path of an existing folder.
        model: a `Transformer`.
        tokenizers: `Tokenizers`.
        max_positions: int, number of position encodings; with learned positions that of the model.
        quantization: as in `export_ctranslate2`.
    """
    spec = _specification(model, max_positions)
    for role in ("bos", "eos", "unk"):
        setattr(spec.config, f"{role}_token", SPECIAL_TOKENS[role])
    spec.config.decoder_start_token = SPECIAL_TOKENS["bos"]
    spec.config.add_source_bos = False
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = model.config.layer_norm_epsilon
    spec.register_source_vocabulary(vocabulary_tokens(tokenizers.source))
    spec.register_target_vocabulary(vocabulary_tokens(tokenizers.target))
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(folder))


def _specification(model, max_positions):
    """Returns a `TransformerSpec` with the weights of a model, float32."""
    with needs("ctranslate2", "CTranslate2"):
        from ctranslate2.specs import transformer_spec

    config = model.config
    width = max(config.d_key, config.d_value)
    sizes = {"num_heads": config.num_heads, "pre_norm": config.norm_first, "head_dim": width}
    encoder = transformer_spec.TransformerEncoderSpec(config.num_encoder_layers, **sizes)
    decoder = transformer_spec.TransformerDecoderSpec(
        config.num_decoder_layers,
        alignment_layer=default_alignment_choice(config.num_decoder_layers).layer,
        alignment_heads=config.num_heads,  # their mean
        **sizes,
    )

    encoder.embeddings[0].weight = _array(model.source_embedding.embeddings)
    decoder.embeddings.weight = _array(model.target_embedding.embeddings)
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
    from keras_transformer.model.layers.embedding import sinusoids  # translating needs no Keras

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


def _set_feed_forward(spec, layer):
    inner, outer = layer.feed_forward.inner, layer.feed_forward.outer
    _set_linear(spec.linear_0, _array(inner.kernel).T, inner.bias)
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
    spec.gamma, spec.beta = _array(norm.gamma), _array(norm.beta)
