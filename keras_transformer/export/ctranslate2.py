"""CTranslate2 models, the fastest translation on CPUs: exported from a run, and translating.

The folder holds what CTranslate2 reads (`model.bin`, `config.json`, vocabularies), the files of
our vocabularies, `keras_transformer.json` with the settings, and a manifest. It translates without the run,
Keras and TensorFlow.
"""

import pathlib
import shlex

import numpy as np

from keras_transformer.config import programs
from keras_transformer.config.fields import from_values
from keras_transformer.config.settings import SearchConfig, replace
from keras_transformer.export.versions import check_manifest, exported_folder, read_facts, with_search
from keras_transformer.tokenizers.tokenizer_pair import load_tokenizers
from keras_transformer.translation.texts import TextTranslator, batches_by_length

KIND = "ctranslate2"
QUANTIZATIONS = ("float32", "int16", "int8")
SPECIAL_TOKENS = {"pad": "<pad>", "bos": "<s>", "eos": "</s>", "unk": "<unk>"}

# CTranslate2 ends a sentence when this many times `beam_size` hypotheses have ended, whether or not
# a better one can follow; 1 is our rule "first". With 2, Multi30k's translations are those of the exact
# rule, which it has only without a length penalty: then the first end that is the best of the beam is
# the best of all.
_PATIENCE = 2.0
# Beyond it length ** alpha is no number that can be computed with.
_MAX_ALPHA = 20


def export_ctranslate2(run, out, *, checkpoint="final", search=None, quantization="float32"):
    """Writes a model of CTranslate2's: the folder is complete, or it does not appear.

    Args:
        run: `RunFolder`.
        out: a folder that does not exist or is empty.
        checkpoint: which weights, as `RunFolder.load_weights` takes it.
        search: dict, settings of search that are not to be as the run has them.
        quantization: how matrices are stored: `"float32"`; `"int16"`, with a scale for each
            matrix; or `"int8"`, with a scale for each row. They are multiplied in that type
            where the CPU has it, else CTranslate2 converts them when it loads them, and warns.
            Biases, norms and positions stay float32.

    Returns:
        `pathlib.Path` of the folder.

    Raises:
        ValueError: ctranslate2 is not installed; `out` is in use; or the weights are missing.
    """
    ctranslate2 = import_ctranslate2()
    if quantization not in QUANTIZATIONS:
        raise ValueError(f"`quantization` must be one of {list(QUANTIZATIONS)}. Received: {quantization!r}")
    config = with_search(run.config, search)
    positions = max_positions(config)
    facts = {"checkpoint": checkpoint, "quantization": quantization, "max_positions": positions}
    versions = {"ctranslate2": ctranslate2.__version__}
    with exported_folder(run, out, KIND, config, versions=versions, **facts) as (folder, model, tokenizers):
        save_model(folder, model, tokenizers, max_positions=positions, quantization=quantization)
    return pathlib.Path(out)


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


class CTranslate2Translator(TextTranslator):
    """Translates sentences with a folder that `export_ctranslate2` wrote.

    Without `early_stop` a search ends when twice `beam_size` hypotheses have ended. The longest text of a
    batch decides how long its translations may get; and there are neither prefixes nor `details`.

    Args:
        folder: its path.
        inter_threads: batches that are translated at the same time.
        intra_threads: threads of each; 0 for as many as CTranslate2 thinks fit.

    Attributes:
        tokenizers: `Tokenizers`.
        search: `SearchConfig`, the defaults of `translate`: those of the run, but for the
            length penalty, of which CTranslate2 knows length ** alpha alone.

    Raises:
        ValueError: ctranslate2 is not installed; or the folder is no such model, or a file of
            it was changed, removed or added.
    """

    def __init__(self, folder, *, inter_threads=1, intra_threads=0):
        ctranslate2 = import_ctranslate2()
        folder = pathlib.Path(folder)
        if (folder / "checkpoints").is_dir():
            raise ValueError(
                f"{folder}: a run. Export it first: {programs.command('export')} "
                f"{shlex.quote(str(folder))} OUT --format ctranslate2"
            )
        check_manifest(folder)
        facts = read_facts(folder, (KIND,))
        search = from_values(SearchConfig, facts["search"])
        if search.length_penalty == "gnmt":
            search = replace(search, length_penalty="average")
        super().__init__(load_tokenizers(folder), search, facts["languages"]["target"])
        self._max_positions = facts["max_positions"]
        self._source_tokens, self._target_tokens = map(vocabulary_tokens, self.tokenizers)
        self._target_ids = {token: number for number, token in enumerate(self._target_tokens)}
        try:
            self._model = ctranslate2.Translator(
                str(folder), device="cpu", inter_threads=inter_threads, intra_threads=intra_threads
            )
        except RuntimeError as error:
            raise ValueError(f"{folder}: CTranslate2 cannot read it ({error}). Export it again") from error

    def _max_source_length(self, config):
        return min(config.max_source_length, self._max_positions)

    def _config(self, search):
        config = super()._config(search)
        if config.sampling:
            raise ValueError("CTranslate2 models are searched here, not sampled. Received: sampling=True")
        if config.alpha > _MAX_ALPHA:
            raise ValueError(
                f"CTranslate2 takes an alpha of at most {_MAX_ALPHA}. Received: alpha={config.alpha:g}"
            )
        if config.max_source_length > max(self._max_positions, self.search.max_source_length):
            raise ValueError(
                f"The model was exported with {self._max_positions} positions. "
                f"Received: max_source_length={config.max_source_length}"
            )
        if config.length_penalty == "gnmt":
            raise ValueError(
                "CTranslate2 knows the length penalties 'average' and 'none'. Received: length_penalty='gnmt'"
            )
        return config

    def _translate_parts(self, parts, config, details):
        if details or any(part.prefix for part in parts):
            raise ValueError("CTranslate2 models are used here without prefixes and without `details`")
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
            # Only so does the length in the penalty count the end of sentence, as ours does.
            "return_end_token": True,
            "asynchronous": True,
        }

        def fits(size, longest):
            return size * longest <= config.batch_tokens

        lengths = [(len(part.row) + 1,) for part in parts]
        waiting = [None] * len(parts)
        for numbers in batches_by_length(lengths, fits):
            (longest,) = lengths[numbers[-1]]
            length = int(longest * config.max_length_ratio) + config.max_length_offset
            length = min(length, config.max_length, self._max_positions)
            tokens = [[self._source_tokens[one] for one in parts[number].row] for number in numbers]
            limits = {"max_decoding_length": length, "min_decoding_length": min(config.min_length, length)}
            results = self._model.translate_batch(tokens, **limits, **options)
            for number, result in zip(numbers, results, strict=True):
                waiting[number] = result
        return [self._from_result(result.result(), alpha) for result in waiting]

    def _from_result(self, result, alpha):
        rows = [[self._target_ids[token] for token in tokens] for tokens in result.hypotheses]
        log_probs = [
            score * max(len(row), 1) ** alpha for row, score in zip(rows, result.scores, strict=True)
        ]
        eos = self.tokenizers.target.special.eos
        return self._translations(rows, result.scores, log_probs, [row[-1:] == [eos] for row in rows])


def import_ctranslate2():
    """Returns the module.

    Raises:
        ValueError: it is not installed.
    """
    try:
        import ctranslate2
    except ImportError as error:
        raise ValueError(
            "CTranslate2 is not installed. Install it: pip install -e '.[ctranslate2]' in the folder with "
            "setup.cfg, or pip install ctranslate2"
        ) from error
    return ctranslate2


def vocabulary_tokens(tokenizer):
    """Returns what CTranslate2 calls each id, a list of str without repetition.

    It is the piece, unless another id is called so: a text may have a piece `<s>`.
    """
    is_special = [kind == "special" for kind, _ in tokenizer.entries]
    names, taken = {}, set()
    for number in sorted(range(tokenizer.vocab_size), key=lambda number: not is_special[number]):
        text = tokenizer.entries[number][1]
        name = SPECIAL_TOKENS[text] if is_special[number] else text
        while name in taken:
            name += f"#{number}"
        taken.add(name)
        names[number] = name
    return [names[number] for number in range(tokenizer.vocab_size)]


def beam_options(search):
    """Returns CTranslate2's `length_penalty` and `patience` for a `SearchConfig`."""
    alpha = search.alpha if search.length_penalty == "average" else 0.0
    return alpha, 1.0 if search.early_stop else _PATIENCE


def search_notes(search):
    """Says which settings of search CTranslate2 takes otherwise, and which give translations equal to ours.

    Args:
        search: `SearchConfig` of a run.

    Returns:
        list of str; empty where translations are equal: greedy search, no length penalty with the
        default rule of stopping, or length ** alpha with `early_stop`; to rounding, and where none is cut
        off at the limit of length, which is that of the longest sentence in a batch.
    """
    if search.beam_size == 1:
        return []
    if search.length_penalty == "none" or search.alpha == 0:
        if not search.early_stop:
            return []
        return [
            "early_stop=true of the run does not carry over: without a length penalty CTranslate2 searches "
            "as early_stop=false does",
            "equal to the program translate with --no-early-stop",
        ]
    notes = []
    if search.length_penalty == "gnmt":
        notes.append(
            f"length_penalty=gnmt of the run does not carry over: here it is length^{search.alpha:g}"
        )
    if not search.early_stop:
        notes.append(
            "early_stop=false of the run does not carry over: here a sentence ends when "
            f"{round(_PATIENCE * search.beam_size)} hypotheses have ended, though a better one may follow"
        )
    if notes:
        notes.append(
            "equal to the program translate with --length-penalty average --early-stop if this folder is "
            "translated with the same two"
        )
    return notes


def _specification(model, max_positions):
    """Returns a `TransformerSpec` with the weights of a model, float32."""
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
    """What is added to the embeddings, float32, shape `(positions, d_model)`.

    CTranslate2 can make sinusoids itself: halves alone, and from position 1.
    """
    if embedding.positions == "learned":
        return _array(embedding.position_embeddings)
    from keras_transformer.model.layers.embedding import sinusoids  # translating needs no Keras

    return _array(sinusoids(np.arange(number), embedding.d_model, embedding.positions))


def _set_attention(spec, attention, residual, *, joined):
    """Sets one attention sublayer.

    CTranslate2 has one width of a head, for keys and values: the narrower ones get zeros.

    Args:
        joined: how many of queries, keys and values, from the last on, are one matrix.
    """
    width = max(attention.key_dim, attention.value_dim)

    def widened(rows):
        """`(num_heads * d, n)` -> `(num_heads * width, n)`: each head's rows, then zeros."""
        heads = rows.reshape(attention.num_heads, -1, rows.shape[1])
        missing = width - heads.shape[1]
        return np.pad(heads, ((0, 0), (0, missing), (0, 0))).reshape(attention.num_heads * width, -1)

    layers = [attention.query_projection, attention.key_projection, attention.value_projection]
    groups = [[layer] for layer in layers[:-joined]] + [layers[-joined:]]
    for linear, group in zip(spec.linear, groups, strict=False):
        linear.weight = np.concatenate([widened(_array(layer.kernel).T) for layer in group])
        if group[0].bias is not None:
            linear.bias = np.concatenate([widened(_array(layer.bias)[:, None])[:, 0] for layer in group])
    output = attention.output_projection
    _set_linear(spec.linear[-1], widened(_array(output.kernel)).T, output.bias)
    spec.queries_scale = np.float32(attention.key_dim**-0.5)
    _set_norm(spec.layer_norm, residual.norm)


def _set_feed_forward(spec, layer):
    inner, outer = layer.feed_forward.inner, layer.feed_forward.outer
    _set_linear(spec.linear_0, _array(inner.kernel).T, inner.bias)
    _set_linear(spec.linear_1, _array(outer.kernel).T, outer.bias)
    _set_norm(spec.layer_norm, layer.feed_forward_residual.norm)


def _set_linear(spec, matrix, bias):
    spec.weight = np.ascontiguousarray(matrix)
    if bias is not None:
        spec.bias = _array(bias)


def _set_norm(spec, norm):
    spec.gamma, spec.beta = _array(norm.gamma), _array(norm.beta)
