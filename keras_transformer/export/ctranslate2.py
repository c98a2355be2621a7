"""CTranslate2, the fastest inference on CPUs: exports a run and translates with the exported model.

The exported folder has CTranslate2's files (`model.bin`, `config.json`, vocabularies), this package's
vocabularies, `keras_transformer.json` with the settings, and a manifest. Translating needs neither the run
folder nor Keras and TensorFlow.
"""

import pathlib
import shlex

import numpy as np

from keras_transformer.config import programs
from keras_transformer.config.extras import needs
from keras_transformer.config.fields import from_values
from keras_transformer.config.settings import SearchConfig, replace
from keras_transformer.export.versions import (
    check_manifest,
    check_translates,
    exported_folder,
    read_metadata,
    with_search,
)
from keras_transformer.tokenizers.tokenizer_pair import load_tokenizers
from keras_transformer.translation.texts import TextTranslator, batches_by_length

KIND = "ctranslate2"
QUANTIZATIONS = ("float32", "int16", "int8")
SPECIAL_TOKENS = {"pad": "<pad>", "bos": "<s>", "eos": "</s>", "unk": "<unk>"}

# CTranslate2 ends a sentence when patience * beam_size hypotheses have finished, even if a better one could
# follow; 1.0 is `early_stop`. With 2.0, the translations of Multi30k equal those of exact search. Without a
# length penalty CTranslate2 is always exact: the first finished hypothesis that leads the beam is the best.
_PATIENCE = 2.0
# CTranslate2 derives the limit from the longest sentence of the batch, so what is cut off differs.
_UNLESS_CUT = ", up to rounding and for translations that end before the length limit"
# With a larger alpha, length ** alpha overflows.
_MAX_ALPHA = 20


def export_ctranslate2(run, out, *, checkpoint="final", search=None, quantization="float32"):
    """Exports a run as a CTranslate2 model, atomically: the folder is complete or does not appear.

    Args:
        run: `RunFolder`.
        out: path of a new or empty folder.
        checkpoint: the weights to export, as in `RunFolder.load_weights`.
        search: dict, search settings that override those of the run.
        quantization: type of stored matrices: `"float32"`; `"int16"`, with one scale per matrix; or
            `"int8"`, with one scale per row. Products use this type if the CPU supports it;
            otherwise CTranslate2 converts the matrices when it loads them, and warns. Biases,
            norms and positions stay float32.

    Returns:
        `pathlib.Path` of the folder.

    Raises:
        ValueError: ctranslate2 is not installed; `out` is in use; or the weights are missing.
    """
    ctranslate2 = import_ctranslate2()
    if quantization not in QUANTIZATIONS:
        raise ValueError(f"`quantization` must be one of {list(QUANTIZATIONS)}. Received: {quantization!r}")
    check_translates(run)
    config = with_search(run.config, search)
    positions = max_positions(config)
    entries = {"checkpoint": checkpoint, "quantization": quantization, "max_positions": positions}
    versions = {"ctranslate2": ctranslate2.__version__}
    with exported_folder(run, out, KIND, config, versions=versions, **entries) as (folder, model, tokenizers):
        save_model(folder, model, tokenizers, max_positions=positions, quantization=quantization)
    return pathlib.Path(out)


def max_positions(config):
    """Returns the maximum sentence length in tokens that the run's model and search settings allow.

    Args:
        config: `Config`.
    """
    if config.model.positions == "learned":
        return config.model.max_positions
    return max(config.search.max_source_length, config.search.max_length)


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


class CTranslate2Translator(TextTranslator):
    """Translates sentences with a model that `export_ctranslate2` wrote.

    Differences from `Translator`: without `early_stop`, a search ends when `2 * beam_size` hypotheses have
    finished; the longest text of a batch sets the length limit of all its translations; prefixes,
    constraints and `details` are not supported.

    Args:
        folder: path of the exported folder.
        inter_threads: int, number of batches that are translated in parallel.
        intra_threads: int, threads per batch; 0 for CTranslate2's default.

    Attributes:
        tokenizers: `Tokenizers`.
        search: `SearchConfig`, the defaults of `translate`: those of the run, except that the
            length penalty `"gnmt"` becomes `"average"`, because CTranslate2 only has length ** alpha.

    Raises:
        ValueError: ctranslate2 is not installed, the folder is no exported CTranslate2 model, or a
            file of it was changed, removed or added.
    """

    def __init__(self, folder, *, inter_threads=1, intra_threads=0):
        ctranslate2 = import_ctranslate2()
        folder = pathlib.Path(folder)
        if (folder / "checkpoints").is_dir():
            raise ValueError(
                f"{folder} is a run folder. Export it first: {programs.command('export')} "
                f"{shlex.quote(str(folder))} OUT --format ctranslate2"
            )
        check_manifest(folder)
        metadata = read_metadata(folder, (KIND,))
        search = from_values(SearchConfig, metadata["search"])
        if search.length_penalty == "gnmt":
            search = replace(search, length_penalty="average")
        super().__init__(load_tokenizers(folder), search, metadata["languages"]["target"])
        self._max_positions = metadata["max_positions"]
        self._source_tokens, self._target_tokens = map(vocabulary_tokens, self.tokenizers)
        self._target_ids = {token: number for number, token in enumerate(self._target_tokens)}
        try:
            self._model = ctranslate2.Translator(
                str(folder), device="cpu", inter_threads=inter_threads, intra_threads=intra_threads
            )
        except RuntimeError as error:
            raise ValueError(f"{folder}: CTranslate2 cannot read it ({error}). Export it again") from error

    def max_source_length(self, config):
        """Returns the maximum number of source tokens, with the end of sentence."""
        return min(config.max_source_length, self._max_positions)

    def _config(self, search):
        config = super()._config(search)
        if config.sampling:
            raise ValueError("Sampling is not available for CTranslate2 models here. Received: sampling=True")
        if config.alpha > _MAX_ALPHA:
            raise ValueError(
                f"CTranslate2 needs an alpha of at most {_MAX_ALPHA}. Received: alpha={config.alpha:g}"
            )
        if config.max_source_length > max(self._max_positions, self.search.max_source_length):
            raise ValueError(
                f"`max_source_length` exceeds {self._max_positions}, the positions of the exported model. "
                f"Received: max_source_length={config.max_source_length}"
            )
        if config.length_penalty == "gnmt":
            raise ValueError("Use 'average' or 'none' for CTranslate2. Received: length_penalty='gnmt'")
        return config

    def _translate_parts(self, parts, config, details):
        if details or any(part.prefix or part.phrases for part in parts):
            raise ValueError("CTranslate2 models do not support prefixes, constraints and `details` here")
        alpha, patience = beam_options(config)
        options = {
            "beam_size": config.beam_size,
            "num_hypotheses": config.n_best,
            "length_penalty": alpha,
            "patience": patience,
            "no_repeat_ngram_size": config.no_repeat_ngram,
            "disable_unk": True,
            "suppress_sequences": [[SPECIAL_TOKENS["pad"]], [SPECIAL_TOKENS["bos"]]],
            "max_input_length": 0,
            "return_scores": True,
            # The length penalty then counts the end of sentence, as in this package.
            "return_end_token": True,
            "asynchronous": True,
        }

        def fits(size, longest):
            return size * longest <= config.batch_tokens

        lengths = [(len(part.row) + 1,) for part in parts]
        futures = [None] * len(parts)
        for indices in batches_by_length(lengths, fits):
            (longest,) = lengths[indices[-1]]
            length = int(longest * config.max_length_ratio) + config.max_length_offset
            length = min(length, config.max_length, self._max_positions)
            tokens = [[self._source_tokens[token] for token in parts[index].row] for index in indices]
            limits = {"max_decoding_length": length, "min_decoding_length": min(config.min_length, length)}
            results = self._model.translate_batch(tokens, **limits, **options)
            for index, future in zip(indices, results, strict=True):
                futures[index] = future
        return [self._from_result(future.result(), alpha) for future in futures]

    def _from_result(self, result, alpha):
        rows = [[self._target_ids[token] for token in tokens] for tokens in result.hypotheses]
        log_probs = [
            score * max(len(row), 1) ** alpha for row, score in zip(rows, result.scores, strict=True)
        ]
        eos = self.tokenizers.target.special.eos
        return self._translations(rows, result.scores, log_probs, [row[-1:] == [eos] for row in rows])


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


def beam_options(search):
    """Returns CTranslate2's `length_penalty` and `patience` for a `SearchConfig`."""
    alpha = search.alpha if search.length_penalty == "average" else 0.0
    return alpha, 1.0 if search.early_stop else _PATIENCE


def search_notes(search):
    """Returns notes on search settings that CTranslate2 handles differently.

    Translations equal those of `Translator`, up to rounding, for greedy search, for no length penalty
    without `early_stop`, and for length ** alpha with `early_stop`; unless one reaches the length limit,
    which CTranslate2 derives from the longest sentence of the batch.

    Args:
        search: `SearchConfig` of a run.

    Returns:
        list of str; empty if translations are equal.
    """
    if search.beam_size == 1:
        return []
    if search.length_penalty == "none" or search.alpha == 0:
        if not search.early_stop:
            return []
        return [
            "early_stop=true of the run has no effect: without a length penalty CTranslate2 searches "
            "as early_stop=false does",
            f"equal to the program translate with --no-early-stop{_UNLESS_CUT}",
        ]
    notes = []
    if search.length_penalty == "gnmt":
        notes.append(f"length_penalty=gnmt of the run is replaced by length^{search.alpha:g}")
    if not search.early_stop:
        notes.append(
            "early_stop=false of the run is approximated: here a sentence ends when "
            f"{round(_PATIENCE * search.beam_size)} hypotheses have ended, though a better one may follow"
        )
    if notes:
        notes.append(
            "equal to the program translate with --length-penalty average --early-stop if this folder is "
            f"translated with the same two{_UNLESS_CUT}"
        )
    return notes


def _specification(model, max_positions):
    """Returns a `TransformerSpec` with the weights of a model, float32."""
    with needs("ctranslate2", "CTranslate2"):
        from ctranslate2.specs import transformer_spec

    config = model.config
    width = max(config.d_key, config.d_value)
    sizes = {"num_heads": config.num_heads, "pre_norm": config.norm_first, "head_dim": width}
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
