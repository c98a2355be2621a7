"""The weights of a run as a CTranslate2 model, for the fastest translation on CPUs.

The folder holds what CTranslate2 reads (`model.bin`, `config.json`, vocabularies), the files of
our vocabularies, `keras_transformer.json` with what the model is, and a manifest. The run is not
needed any more.
"""

import pathlib

import numpy as np

from keras_transformer.export.ctranslate2_translator import (
    KIND,
    SPECIAL_TOKENS,
    import_ctranslate2,
    vocabulary_tokens,
)
from keras_transformer.export.model_card import with_search, write_facts
from keras_transformer.export.versions import write_manifest
from keras_transformer.files import folder_written_atomically
from keras_transformer.tokenizers.tokenizer_pair import save_tokenizers

QUANTIZATIONS = ("float32", "int16", "int8")

# The settings of a model that `_specification` expresses; of another it knows nothing.
_EXPRESSED = frozenset({
    "source_vocab_size", "target_vocab_size", "num_encoder_layers", "num_decoder_layers", "d_model", "d_ff",
    "num_heads", "key_dim", "value_dim", "residual_dropout", "embedding_dropout", "attention_dropout",
    "relu_dropout", "norm_first", "layer_norm_epsilon", "positions", "max_positions", "sharing",
    "attention_bias", "output_bias",
})  # fmt: skip
_POSITIONS = ("interleaved", "halves", "learned")


def export_ctranslate2(run, out, *, weights="final", search=None, quantization="float32"):
    """Writes a model of CTranslate2's: the folder is complete, or it does not appear.

    Args:
        run: `RunFolder`.
        out: a folder that does not exist or is empty.
        weights: as `RunFolder.load_weights` takes it.
        search: dict, settings of search that are not to be as the run has them.
        quantization: how matrices are stored: `"float32"`; `"int16"`, with a scale for each
            matrix; or `"int8"`, with a scale for each row. They are multiplied in that type
            where the CPU has it (`conversion_on_load`). Biases, norms and positions stay float32.

    Returns:
        `pathlib.Path` of the folder.

    Raises:
        ValueError: ctranslate2 is not installed; `out` is in use; the weights are missing; or
            the model has what CTranslate2 cannot hold.
    """
    ctranslate2 = import_ctranslate2()
    if quantization not in QUANTIZATIONS:
        raise ValueError(f"`quantization` must be one of {list(QUANTIZATIONS)}. Received: {quantization!r}")
    config = with_search(run.config, search)
    check_expressible(config.model)
    tokenizers = run.load_tokenizers()
    model = run.load_model(weights=weights)
    with folder_written_atomically(out) as folder:
        save_model(
            folder,
            model,
            tokenizers,
            max_positions=max_positions(config),
            quantization=quantization,
        )
        save_tokenizers(folder, tokenizers)
        write_facts(
            folder,
            KIND,
            config,
            weights=weights,
            versions={"ctranslate2": ctranslate2.__version__},
            quantization=quantization,
            max_positions=max_positions(config),
        )
        write_manifest(folder)
    return pathlib.Path(out)


def conversion_on_load(quantization):
    """Returns a sentence on what CTranslate2 computes in on this CPU, `""` where it is `quantization`.

    Args:
        quantization: as `export_ctranslate2` takes it.
    """
    supported = import_ctranslate2().get_supported_compute_types("cpu")
    if quantization in supported:
        return ""
    computed = "int8" if quantization == "int16" and "int8" in supported else "another type"
    where = ", as on all but Intel's" if quantization == "int16" else ""
    return (
        f"CTranslate2 does not multiply {quantization} on this CPU{where}: "
        f"it converts the weights to {computed} when it loads them"
    )


def max_positions(config):
    """Returns how long a sentence may be, in tokens: as long as search in the run allows.

    Args:
        config: `Config`.
    """
    if config.model.positions == "learned":
        return config.model.max_positions
    return max(config.search.max_source_length, config.search.max_length)


def save_model(folder, model, tokenizers, *, max_positions, quantization="float32"):
    """Writes CTranslate2's own files.

    Args:
        folder: an existing folder.
        model: a `Transformer`.
        tokenizers: `Tokenizers`.
        max_positions: int, how many positions there are; that of a model that learned them.
        quantization: as `export_ctranslate2` takes it.
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


def check_expressible(config):
    """Refuses by name what CTranslate2's Transformer has no place for.

    Args:
        config: `ModelConfig`.

    Raises:
        ValueError: one line with the setting.
    """
    unknown = sorted(set(type(config).__dataclass_fields__) - _EXPRESSED)
    if unknown:
        raise ValueError(f"CTranslate2 cannot hold model.{unknown[0]}={getattr(config, unknown[0])!r}")
    if config.positions not in _POSITIONS:
        raise ValueError(
            f"CTranslate2 cannot hold model.positions={config.positions!r}. It holds {list(_POSITIONS)}"
        )


def _specification(model, max_positions):
    """Returns a `TransformerSpec` with the weights of a model, float32."""
    from ctranslate2.specs import transformer_spec

    config = model.config
    sizes = {"num_heads": config.num_heads, "pre_norm": config.norm_first, "head_dim": _head_width(config)}
    encoder = transformer_spec.TransformerEncoderSpec(config.num_encoder_layers, **sizes)
    decoder = transformer_spec.TransformerDecoderSpec(config.num_decoder_layers, **sizes)

    encoder.embeddings[0].weight = _array(model.source_embedding.embeddings)
    decoder.embeddings.weight = _array(model.target_embedding.embeddings)
    for spec, embedding in ((encoder, model.source_embedding), (decoder, model.target_embedding)):
        spec.position_encodings.encodings = _positions(embedding, max_positions)
    if config.norm_first:
        _set_norm(encoder.layer_norm, model.encoder_norm)
        _set_norm(decoder.layer_norm, model.decoder_norm)

    for spec, layer in zip(encoder.layer, model.encoder_layers, strict=True):
        _set_self_attention(spec.self_attention, layer.self_attention, layer.self_attention_residual)
        _set_feed_forward(spec.ffn, layer)
    for spec, layer in zip(decoder.layer, model.decoder_layers, strict=True):
        _set_self_attention(spec.self_attention, layer.self_attention, layer.self_attention_residual)
        _set_cross_attention(spec.attention, layer.cross_attention, layer.cross_attention_residual)
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
    """What is added to the embeddings, float32, shape `(positions, d_model)`.

    CTranslate2 can make sinusoids itself: halves alone, and from position 1.
    """
    if embedding.positions == "learned":
        return _array(embedding.position_embeddings)
    from keras_transformer.model.layers.embedding import (
        sinusoids,
    )  # Keras: a program refuses before it waits for that

    return _array(sinusoids(np.arange(number), embedding.d_model, embedding.positions))


def _head_width(config):
    """CTranslate2 has one width of a head, for keys and values: the narrower ones get zeros."""
    return max(config.d_key, config.d_value)


def _set_self_attention(spec, attention, residual):
    _set_linear(spec.linear[0], *_joined(_inputs(attention)))
    _set_attention_rest(spec, attention, residual)


def _set_cross_attention(spec, attention, residual):
    query, key, value = _inputs(attention)
    _set_linear(spec.linear[0], *query)
    _set_linear(spec.linear[1], *_joined([key, value]))
    _set_attention_rest(spec, attention, residual)


def _set_attention_rest(spec, attention, residual):
    width = max(attention.key_dim, attention.value_dim)
    output = attention.output_projection
    kernel = _widened(_array(output.kernel), attention.num_heads, width)
    _set_linear(spec.linear[-1], kernel.T.copy(), None if output.bias is None else _array(output.bias))
    spec.queries_scale = np.float32(attention.key_dim**-0.5)
    _set_norm(spec.layer_norm, residual.norm)


def _inputs(attention):
    """(matrix, bias or None) of queries, keys and values: rows are outputs, heads equally wide."""
    width = max(attention.key_dim, attention.value_dim)
    found = []
    for layer in (attention.query_projection, attention.key_projection, attention.value_projection):
        bias = None
        if layer.bias is not None:
            bias = _widened(_array(layer.bias)[:, None], attention.num_heads, width)[:, 0]
        found.append((_widened(_array(layer.kernel).T, attention.num_heads, width), bias))
    return found


def _widened(rows, num_heads, width):
    """`(num_heads * d, n)` -> `(num_heads * width, n)`: each head's rows, then zeros."""
    heads = rows.reshape(num_heads, -1, rows.shape[1])
    missing = width - heads.shape[1]
    return np.pad(heads, ((0, 0), (0, missing), (0, 0))).reshape(num_heads * width, -1)


def _joined(layers):
    matrices, biases = zip(*layers, strict=True)
    return np.concatenate(matrices), None if biases[0] is None else np.concatenate(biases)


def _set_feed_forward(spec, layer):
    for linear, projection in (
        (spec.linear_0, layer.feed_forward.inner),
        (spec.linear_1, layer.feed_forward.outer),
    ):
        _set_linear(linear, _array(projection.kernel).T.copy(), _array(projection.bias))
    _set_norm(spec.layer_norm, layer.feed_forward_residual.norm)


def _set_linear(spec, matrix, bias):
    spec.weight = np.ascontiguousarray(matrix)
    if bias is not None:
        spec.bias = bias


def _set_norm(spec, norm):
    spec.gamma, spec.beta = _array(norm.gamma), _array(norm.beta)
