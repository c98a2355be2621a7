"""The weights of a run as a CTranslate2 model, for the fastest translation on CPUs.

A folder holds what CTranslate2 reads (`model.bin`, `config.json`, vocabularies), the files of
our vocabularies, and `manifest.json`; the run is not needed any more.
"""

import dataclasses
import pathlib

import keras
import numpy as np

from keras_transformer.config import ModelConfig, SearchConfig
from keras_transformer.data.vocabulary import save_tokenizers
from keras_transformer.export.packages import written_package
from keras_transformer.layers.embedding import sinusoids

QUANTIZATIONS = ("float32", "int16", "int8")
FORMAT = "ctranslate2"

# What becomes of each setting of a model; one that is not here is refused by its name.
_EXPRESSED = {
    "source_vocab_size", "target_vocab_size", "num_encoder_layers", "num_decoder_layers", "d_model", "d_ff",
    "num_heads", "key_dim", "value_dim", "residual_dropout", "embedding_dropout", "attention_dropout",
    "relu_dropout", "norm_first", "layer_norm_epsilon", "positions", "max_positions", "sharing",
    "attention_bias", "output_bias",
}  # fmt: skip
_POSITIONS = ("interleaved", "halves", "learned")
# What is searched otherwise than `search_ids` does it, and what CTranslate2 calls it.
_SPECIAL_TOKENS = {"pad": "<pad>", "bos": "<s>", "eos": "</s>", "unk": "<unk>"}


def export_ctranslate2(run, out, *, weights="averaged", quantization="float32"):
    """Writes a model of CTranslate2's: the folder is complete, or it does not appear.

    Args:
        run: `RunFolder`.
        out: a folder that does not exist or is empty.
        weights: as `RunFolder.load_weights` takes it.
        quantization: how matrices are stored and multiplied: `"float32"`, `"int16"` or
            `"int8"`, a scale for each row. Biases, norms and positions stay float32.

    Returns:
        `pathlib.Path` of the folder.

    Raises:
        ValueError: ctranslate2 is not installed; `out` is in use; the weights are missing; or
            the model has what CTranslate2 cannot hold.
    """
    import_ctranslate2()
    check_expressible(run.config.model)
    if quantization not in QUANTIZATIONS:
        raise ValueError(f"`quantization` must be one of {list(QUANTIZATIONS)}. Received: {quantization!r}")
    run.check_weights(weights)
    tokenizers = run.load_tokenizers()
    facts = {
        "weights": weights,
        "quantization": quantization,
        "source": run.config.data.source,
        "target": run.config.data.target,
        "model": dataclasses.asdict(run.config.model),
        "search": dataclasses.asdict(run.config.search),
    }
    with written_package(out, FORMAT, facts) as folder:
        model = run.load_model(weights=weights)
        save_model(folder, model, tokenizers, run.config.search, quantization=quantization)
        save_tokenizers(folder, tokenizers)
    return pathlib.Path(out)


def save_model(folder, model, tokenizers, search=None, *, quantization="float32"):
    """Writes CTranslate2's own files.

    Args:
        folder: an existing folder.
        model: a `Transformer`.
        tokenizers: `Tokenizers`.
        search: `SearchConfig`, whose longest sentences have positions.
        quantization: as `export_ctranslate2` takes it.
    """
    spec = _specification(model, SearchConfig() if search is None else search)
    special = {role: _SPECIAL_TOKENS[role] for role in ("bos", "eos", "unk")}
    for role, token in special.items():
        setattr(spec.config, f"{role}_token", token)
    spec.config.decoder_start_token = special["bos"]
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


def vocabulary_tokens(tokenizer):
    """Returns the name of each id, a list of str without repetition.

    It is the piece, where no other id has that name already: a text may hold a piece
    that reads `<s>`.
    """
    names, taken = [None] * tokenizer.vocab_size, set()
    order = sorted(range(tokenizer.vocab_size), key=lambda number: tokenizer.entries[number][0] != "special")
    for number in order:
        kind, text = tokenizer.entries[number]
        name = _SPECIAL_TOKENS[text] if kind == "special" else text
        while name in taken:
            name += f"#{number}"
        names[number] = name
        taken.add(name)
    return names


def import_ctranslate2():
    """Returns the module.

    Raises:
        ValueError: it is not installed.
    """
    try:
        import ctranslate2
    except ImportError as error:
        raise ValueError(
            "CTranslate2 is not installed. Install it: pip install 'keras-transformer[ctranslate2]'"
        ) from error
    return ctranslate2


def _specification(model, search):
    """Returns a `TransformerSpec` with the weights of a model, float32."""
    from ctranslate2.specs import transformer_spec

    config = model.config
    sizes = {"num_heads": config.num_heads, "pre_norm": config.norm_first, "head_dim": _head_width(config)}
    encoder = transformer_spec.TransformerEncoderSpec(config.num_encoder_layers, **sizes)
    decoder = transformer_spec.TransformerDecoderSpec(config.num_decoder_layers, **sizes)
    length = max(search.max_source_length, search.max_length)

    encoder.embeddings[0].weight = _array(model.source_embedding.embeddings)
    decoder.embeddings.weight = _array(model.target_embedding.embeddings)
    for spec, embedding in ((encoder, model.source_embedding), (decoder, model.target_embedding)):
        spec.position_encodings.encodings = _positions(embedding, length)
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
    return np.array(keras.ops.convert_to_numpy(variable), np.float32)


def _positions(embedding, length):
    """What is added to the embeddings, float32, shape `(positions, d_model)`.

    CTranslate2 can make sinusoids itself: halves alone, and from position 1.
    """
    if embedding.positions == "learned":
        return _array(embedding.position_embeddings)
    return _array(sinusoids(np.arange(length), embedding.d_model, embedding.positions))


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
