"""CTranslate2, the fastest inference on CPUs: exports a run and translates with the exported model.

The exported folder has CTranslate2's files (`model.bin`, `config.json`, vocabularies), this package's
vocabularies, `keras_transformer.json` with the settings, and a manifest. Translating needs neither the run
folder nor Keras and TensorFlow.
"""

import contextlib
import itertools
import pathlib
import shlex
import threading

from keras_transformer.config import programs
from keras_transformer.config.fields import from_values
from keras_transformer.config.settings import SearchConfig, replace
from keras_transformer.export.ctranslate2_model import (
    SPECIAL_TOKENS,
    import_ctranslate2,
    save_model,
    vocabulary_tokens,
)
from keras_transformer.export.ctranslate2_search import MAX_ALPHA, beam_options, length_penalty, ranked
from keras_transformer.export.versions import (
    check_manifest,
    check_translates,
    exported_folder,
    read_metadata,
    with_search,
)
from keras_transformer.tokenizers.tokenizer_pair import load_tokenizers
from keras_transformer.translation.alignment import default_alignment_choice, hard_alignment
from keras_transformer.translation.texts import TextTranslator, batches_by_length

KIND = "ctranslate2"
QUANTIZATIONS = ("float32", "int16", "int8")


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
        ValueError: ctranslate2 is not installed; the run has `model.qk_norm`; CTranslate2 lacks a search
            setting; `out` is in use; or the weights are missing.
    """
    check_translates(run)
    check_search(with_search(run.config, search).search)
    return convert(run, out, checkpoint=checkpoint, search=search, quantization=quantization)


def convert(run, out, *, checkpoint="final", search=None, quantization="float32"):
    """`export_ctranslate2` without its check of the search settings, which a caller may still override."""
    ctranslate2 = import_ctranslate2()
    if quantization not in QUANTIZATIONS:
        raise ValueError(f"`quantization` must be one of {list(QUANTIZATIONS)}. Received: {quantization!r}")
    check_translates(run)
    if run.config.model.qk_norm:
        raise ValueError(
            f"{run.path}: CTranslate2 cannot compute model.qk_norm=true: it normalizes the queries of "
            "cross-attention over all heads together. Use --format savedmodel or --format keras"
        )
    config = with_search(run.config, search)
    positions = max_positions(config)
    entries = {"checkpoint": checkpoint, "quantization": quantization, "max_positions": positions}
    entries["alignment_layer"] = default_alignment_choice(config.model.num_decoder_layers).layer
    versions = {"ctranslate2": ctranslate2.__version__}
    with exported_folder(run, out, KIND, config, versions=versions, **entries) as (folder, model, tokenizers):
        save_model(folder, model, tokenizers, max_positions=positions, quantization=quantization)
    return pathlib.Path(out)


def check_search(search):
    """Raises `ValueError` for a `SearchConfig` that needs something which CTranslate2 lacks."""
    for name, kind in (
        ("sampling", "Sampling"),
        ("mbr", "Minimum Bayes risk decoding"),
        ("tree_grammar", "The tree grammar"),
    ):
        if getattr(search, name):
            raise ValueError(
                f"{kind} is not available for CTranslate2 models here. Received: {name}=True. Set it to "
                f"false: --no-{name.replace('_', '-')}"
            )
    if search.alpha > MAX_ALPHA:
        raise ValueError(
            f"CTranslate2 needs an alpha of at most {MAX_ALPHA}. Received: alpha={search.alpha:g}"
        )


def max_positions(config):
    """Returns the maximum sentence length in tokens that the run's model and search settings allow.

    Args:
        config: `Config`.
    """
    if config.model.positions == "learned":
        return config.model.max_positions
    return max(config.search.max_source_length, config.search.max_length)


def _results_of(futures):
    """Returns the results of asynchronous calls, a list; Ctrl-C and other signals end the wait at once.

    `result` waits in C++, where Python handles no signal, so another thread calls it. Asking `done` again and
    again would take time from the translation: 8 % for a short sentence.
    """
    if threading.current_thread() is threading.main_thread():
        finished = threading.Event()

        def wait():
            with contextlib.suppress(Exception):  # the main thread is given it
                for future in futures:
                    future.result()
            finished.set()

        threading.Thread(target=wait, daemon=True).start()
        finished.wait()
    return [future.result() for future in futures]


class CTranslate2Translator(TextTranslator):
    """Translates sentences with a model that `export_ctranslate2` wrote.

    Differences from `Translator`: those of `ctranslate2_search.search_notes`. Prefixes and constraints are
    not supported.

    Args:
        folder: path of the exported folder.
        inter_threads: int, number of batches that are translated in parallel.
        intra_threads: int, threads per batch; 0 for CTranslate2's default.

    Attributes:
        tokenizers: `Tokenizers`.
        search: `SearchConfig`, the defaults of `translate`: those of the run, without a coverage penalty.
        has_details: bool, whether `n_best` takes `details=True`; exports of early versions lack it.

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
        search = replace(from_values(SearchConfig, metadata["search"]), coverage_penalty=0.0)
        super().__init__(load_tokenizers(folder), search, metadata["languages"]["target"])
        self._max_positions = metadata["max_positions"]
        # They limit the lengths, as in `Translator`; a larger setting is no error.
        self._has_learned_positions = metadata["model"].get("positions") == "learned"
        self.has_details = "alignment_layer" in metadata
        self._source_tokens, self._target_tokens = map(vocabulary_tokens, self.tokenizers)
        self._target_ids = {token: number for number, token in enumerate(self._target_tokens)}
        tags = [self._target_tokens[number] for number in self.tokenizers.target.tags.values()]
        self._forbidden = [[token] for token in (SPECIAL_TOKENS["pad"], SPECIAL_TOKENS["bos"], *tags)]
        try:
            self._model = ctranslate2.Translator(
                str(folder), device="cpu", inter_threads=inter_threads, intra_threads=intra_threads
            )
        except RuntimeError as error:
            raise ValueError(f"{folder}: CTranslate2 cannot read it ({error}). Export it again") from error

    def max_source_length(self, config):
        """Returns the maximum number of source tokens, with the end of sentence."""
        return min(config.max_source_length, self._max_positions)

    def checked(self, search):
        """Returns the `SearchConfig` with the settings of a dict.

        Raises:
            ValueError: a setting is invalid, or CTranslate2 does not have it.
        """
        return self._config(search)

    def _config(self, search):
        config = super()._config(search)
        check_search(config)
        if config.coverage_penalty:
            raise ValueError(
                "A coverage penalty is not available for CTranslate2 models here. "
                f"Received: coverage_penalty={config.coverage_penalty:g}"
            )
        for name in () if self._has_learned_positions else ("max_source_length", "max_length"):
            if getattr(config, name) > self._max_positions:
                raise ValueError(
                    f"`{name}` exceeds {self._max_positions}, the positions of the exported model. Received: "
                    f"{name}={getattr(config, name)}. Export the model with --{name.replace('_', '-')} N"
                )
        return config

    def _translate_parts(self, parts, config, details):
        if any(part.prefix or part.phrases for part in parts):
            raise ValueError(
                "CTranslate2 models do not support prefixes and constraints here. Load the run with the "
                "engine tensorflow"
            )
        if details and not self.has_details:
            raise ValueError("`details` needs a model that was exported by this version. Export it again")
        lengths = [(len(part.row) + 1,) for part in parts]
        share = config.batch_tokens
        if (threads := self._model.num_translators) > 1:  # a few texts are distributed evenly
            longest = max(lengths, default=(1,))[0]
            share = min(share, -(-sum(length for (length,) in lengths) // (threads * longest)) * longest)

        def fits(size, longest):
            return size * longest <= share

        def limit(indices):
            longest = max(lengths[index] for index in indices)[0]
            length = int(longest * config.max_length_ratio) + config.max_length_offset
            return min(length, config.max_length, self._max_positions)

        batches = batches_by_length(lengths, fits)
        results = self._search(parts, batches, limit, config, details)
        # The limit of a batch is that of its longest text. Texts beyond their own limit are searched again.
        late = []
        for batch in batches:
            beyond = [i for i in batch if max(map(len, results[i].hypotheses)) > limit([i])]
            equal = itertools.groupby(sorted(beyond, key=lambda i: limit([i])), lambda i: limit([i]))
            late += [list(group) for _, group in equal]
        results |= self._search(parts, late, limit, config, details)
        first = self._first_attention(parts, batches) if details and config.beam_size > 1 else {}
        translations = [
            self._from_result(part, results[i], config, details, first.get(i)) for i, part in enumerate(parts)
        ]
        return self._add_log_probs(parts, translations, config) if details else translations

    def _search(self, parts, batches, limit, config, details):
        """Returns {index of a part: result of CTranslate2}."""
        options = {
            "beam_size": config.beam_size,
            **beam_options(config),
            "no_repeat_ngram_size": config.no_repeat_ngram,
            "disable_unk": True,
            "suppress_sequences": self._forbidden,
            "max_input_length": 0,
            "return_scores": True,
            "return_attention": details,
            # The length penalty then counts the end of sentence, as in this package.
            "return_end_token": True,
            "asynchronous": True,
        }
        futures = {}
        for indices in batches:
            length = limit(indices)
            tokens = [self._named(parts[index]) for index in indices]
            limits = {"max_decoding_length": length, "min_decoding_length": min(config.min_length, length)}
            results = self._model.translate_batch(tokens, **limits, **options)
            futures.update(zip(indices, results, strict=True))
        return dict(zip(futures, _results_of(list(futures.values())), strict=True))

    def _first_attention(self, parts, batches):
        """Returns {index of a part: attention weights of the first step}, of batches of several sentences.

        CTranslate2's beam search (4.8.5) gives a sentence those of another sentence of the batch; greedy
        search does not. All hypotheses have the same.
        """
        options = {"beam_size": 1, "max_decoding_length": 1, "max_input_length": 0, "return_attention": True}
        futures = {}
        for indices in (batch for batch in batches if len(batch) > 1):
            tokens = [self._named(parts[index]) for index in indices]
            results = self._model.translate_batch(tokens, **options, return_end_token=True, asynchronous=True)
            futures.update(zip(indices, results, strict=True))
        results = _results_of(list(futures.values()))
        return {index: result.attention[0][0] for index, result in zip(futures, results, strict=True)}

    def _named(self, part):
        return [self._source_tokens[token] for token in part.row]

    def _from_result(self, part, result, config, details, first_attention=None):
        rows = [[self._target_ids[token] for token in tokens] for tokens in result.hypotheses]
        finished = [row[-1:] == [self.tokenizers.target.special.eos] for row in rows]
        order, *values = zip(*ranked(list(map(len, rows)), result.scores, finished, config), strict=True)
        found = self._translations([rows[i] for i in order], *values, [finished[i] for i in order])
        if not details:
            return found
        source = self._pieces(self.tokenizers.source, part.row)
        attention = result.attention
        if first_attention is not None:
            attention = [[first_attention, *rows[1:]] for rows in attention]
        links = [
            hard_alignment(attention[i], source, item.pieces, convention="output", unit="pieces")
            for i, item in zip(order, found, strict=True)
        ]
        return [item._replace(alignment=each) for item, each in zip(found, links, strict=True)]

    def _add_log_probs(self, parts, translations, config):
        """Adds token log-probabilities to each `Translation`, by forced decoding, and the score from them."""
        eos = self.tokenizers.target.special.eos
        pairs = [(part, item) for part, n_best in zip(parts, translations, strict=True) for item in n_best]
        sources = [self._named(part) for part, _ in pairs]
        targets = [[self._target_tokens[i] for i in item.ids if i != eos] for _, item in pairs]
        limits = {"max_batch_size": config.batch_tokens, "batch_type": "tokens", "max_input_length": 0}
        scored = iter(self._model.score_batch(sources, targets, **limits))

        def detailed(item):
            values = next(scored).log_probs[: len(item.ids)]
            score = sum(values) / length_penalty(len(values), config)
            return item._replace(token_log_probs=values, log_prob=sum(values), score=score)

        return [[detailed(item) for item in n_best] for n_best in translations]
