"""`Translator`: text to text with tokenizers, one model or an ensemble, and search."""

import concurrent.futures
import dataclasses
import importlib
import os
import pathlib
import tempfile
import threading
import types
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.checkpoints.pretrained import pretrained_folder
from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.checkpoints.weights import write_model_weights
from keras_transformer.config.sections import MAX_LENGTH, TREES, DataConfig
from keras_transformer.config.settings import Config, SearchConfig, differences, replace
from keras_transformer.config.types import PathLike
from keras_transformer.files import create_folder_atomically
from keras_transformer.model.transformer import Transformer
from keras_transformer.tokenizers.base import Tokenizer
from keras_transformer.tokenizers.symbols import TreeTokenizer
from keras_transformer.tokenizers.tags import tags_of
from keras_transformer.tokenizers.tokenizer_pair import Tokenizers, as_tokenizers, check_vocabularies
from keras_transformer.translation.alignment import default_alignment_choice, hard_alignment
from keras_transformer.translation.ensemble import search_ids
from keras_transformer.translation.minimum_bayes_risk import by_utility, sampling_settings
from keras_transformer.translation.phrases import Phrases
from keras_transformer.translation.scorer import ForcedDecoder, pad_rows
from keras_transformer.translation.search_inputs import batches_of_parts, pad_phrases, uniforms
from keras_transformer.translation.texts import TextTranslator, check_precision
from keras_transformer.translation.tree_grammar import TreeGrammar

# Settings that are inputs of a compiled search, so that another value does not compile it again; and values
# that stand for any in the settings of the graph.
_SCALARS = {"alpha": np.float32, "max_length_offset": np.int32, "max_length_ratio": np.float32}
_SCALARS |= {"max_length": np.int32, "coverage_penalty": np.float32}
_ANY = {"alpha": 1.0, "max_length_offset": 1, "max_length_ratio": 1.0, "max_length": MAX_LENGTH}
# Searches with different settings that a translator keeps compiled; each takes 20 to 50 MB.
MAX_COMPILED = 16
# Pairs of which the attention is held at a time.
_PAIRS = 256


class Translator(TextTranslator):
    """Translates sentences with one model or an ensemble.

    Args:
        models: a `Transformer`, or a list of them, whose log-probabilities are averaged.
        tokenizers: a tokenizer with the models' vocabulary, or `Tokenizers`: the source's
            encodes, the target's decodes.
        search: `SearchConfig`, the defaults of `translate`.
        target_language: str, its code. It decides whether the translated parts of a long line
            are joined by spaces.
        threads: int, number of batches that are searched in parallel. On a CPU the fastest is one
            thread per core after `tf.config.threading.set_intra_op_parallelism_threads(1)`.

    Raises:
        ValueError: a vocabulary and a model differ in size or special ids, there are two
            vocabularies for a model with one embedding matrix, or Keras' backend is not TensorFlow.
    """

    def __init__(
        self,
        models: Transformer | list[Transformer],
        tokenizers: Tokenizer | Tokenizers,
        search: SearchConfig | None = None,
        *,
        target_language: str = "",
        threads: int = 1,
    ) -> None:
        super().__init__(as_tokenizers(tokenizers), search or SearchConfig(), target_language)
        self.models = list(models) if isinstance(models, (list, tuple)) else [models]
        if not self.models:
            raise ValueError("`models` must hold at least one model. Received: none")
        for model in self.models:
            check_vocabularies(self.tokenizers, model.config, special=model.special)
        self._decoders = [ForcedDecoder(model, self.search.batch_tokens) for model in self.models]
        if threads < 1:
            raise ValueError(f"`threads` must be at least 1. Received: {threads}")
        self._threads = threads
        self._run_config = None  # that of the run that was loaded
        self._target_language = target_language
        self._compiled = {}
        self._compiling = threading.Lock()

    @classmethod
    def load(
        cls, run_dirs: PathLike | list[PathLike], *,
        checkpoint: str = "final", threads: int = 1, engine: str = "tensorflow",
        precision: str | None = None,
    ) -> Any:  # fmt: skip
        """Loads the model of a run folder, or an ensemble from several.

        Args:
            run_dirs: path of a run folder, or name of a model that comes with the package; or a list of
                them. The search settings are those of the first.
            checkpoint: the weights to load, as in `RunFolder.load_weights`.
            threads: as in `Translator`.
            engine: `"tensorflow"`, `"ctranslate2"` or `"auto"`, as in `export.choose_engine`. CTranslate2
                gives a `CTranslate2Translator`, which has `translate` and `n_best` only.
            precision: `"float32"`, or `"bfloat16"`, whose weights are half as large and rounded; `None` for
                Keras' global dtype policy. A translation of few sentences waits for the weights, so
                bfloat16 is faster on a CPU with bfloat16 products.

        Raises:
            ValueError: a path is no run folder, it has no such weights, the runs have different
                vocabularies, or CTranslate2 lacks something that the run needs.
        """
        if engine != "tensorflow":
            # The folder of exports imports this one, so it is found by name.
            engines = importlib.import_module("keras_transformer.export.engines")
            return engines.load_translator(
                run_dirs, engine=engine, checkpoint=checkpoint, threads=threads, precision=precision
            )
        check_precision(precision)
        run_dirs = [run_dirs] if isinstance(run_dirs, (str, os.PathLike)) else list(run_dirs)
        runs = [RunFolder(run_dir) for run_dir in run_dirs]
        if not runs:
            raise ValueError("`run_dirs` must name at least one run folder. Received: none")
        tokenizers = runs[0].load_tokenizers()
        for run in runs[1:]:
            for side, first, other in zip(tokenizers._fields, tokenizers, run.load_tokenizers(), strict=True):
                if first.sha256 != other.sha256 or first.special != other.special:
                    raise ValueError(
                        f"{run.path}: the {side} vocabulary differs from that of {runs[0].path}. "
                        "The models of an ensemble need the same vocabularies"
                    )
        models = [run.load_model(checkpoint=checkpoint, precision=precision) for run in runs]
        config = runs[0].config
        language = config.data.target
        translator = cls(models, tokenizers, config.search, target_language=language, threads=threads)
        translator._run_config = config
        return translator

    @classmethod
    def pretrained(cls, name: str = "en-de-tatoeba", **options: Any) -> Any:
        """Loads a model that comes with the package.

        Args:
            name: str, one of `pretrained_models()`.
            **options: `threads`, `engine` and `precision` of `load`.

        Raises:
            ValueError: there is no such model; the message lists all.
        """
        return cls.load(pretrained_folder(name), **options)

    def save(
        self, path: PathLike, *, config: Config | None = None, weight_dtype: str = "float32"
    ) -> pathlib.Path:
        """Writes a run folder with the weights as `final`: for `load`, all programs and `--init-from`.

        Args:
            path: a new or empty folder. It appears only when it is complete.
            config: `Config` of which the languages and data are kept, for model cards; `None` for that of the
                run that was loaded. Without one, the languages are called `source` and `target`.
            weight_dtype: `"float32"`, or `"float16"` for half the size, rounded.

        Returns:
            `pathlib.Path` of the folder.

        Raises:
            ValueError: an ensemble, rounded weights, a folder in use, `config` has other sizes than the
                model, or a weight is above the largest float16.
            StorageError: the disk is full or not writable.
        """
        if len(self.models) > 1:
            raise ValueError("`save` writes one model. Received: an ensemble. Save each of its models")
        (model,) = self.models
        if (dtype := model.dtype_policy.variable_dtype) != "float32":
            raise ValueError(f'the weights were rounded to {dtype}. Load the run with precision="float32"')
        config = replace(config or self._run_config or self._default_config(), search=self.search)
        if config.model != model.config:
            changed = ", ".join(path for path, *_ in differences(config, replace(config, model=model.config)))
            raise ValueError(f"`config` differs from the model in {changed}. Pass replace(config, model=...)")
        with create_folder_atomically(path) as folder:
            write_model_weights(RunFolder.create(folder, config, self.tokenizers), model, weight_dtype)
        return pathlib.Path(path)

    def export(
        self, path: PathLike, format: str = "savedmodel", *, config: Config | None = None, **options: Any
    ) -> Any:
        """Exports the model for other programs, as `export_model.py` does.

        Args:
            path: folder to write, for a SavedModel the folder of its versions.
            format: `"savedmodel"`, `"ctranslate2"` or `"keras"`.
            config: as in `save`.
            **options: those of `export_saved_model` (such as `settings`, `name`), `export_ctranslate2`
                (`search`, `quantization`) or `export_keras` (`search`, `weights_only`).

        Returns:
            `Exported` for a SavedModel; else the path that was written.

        Raises:
            ValueError: an unknown format, or as `save` and the function of the format.
        """
        # The folder of exports imports this one, so it is found by name.
        exports = importlib.import_module("keras_transformer.export.in_memory")
        path = pathlib.Path(path)
        with tempfile.TemporaryDirectory(prefix="export-") as folder:
            run = self.save(pathlib.Path(folder, path.name or "model"), config=config)
            return exports.export_run(RunFolder(run), path, format, **options)

    def _default_config(self):
        (model,) = self.models
        length = DataConfig().max_length
        if model.config.positions == "learned":
            length = min(length, model.config.max_positions)
        source, target = self.languages
        data = {
            "dataset": "not stated",
            "source": source,
            "target": target,
            "vocab_size": self.tokenizers.target.vocab_size,
            "separate_vocabularies": not self.tokenizers.shared,
            "max_length": length,
        }
        if isinstance(self.tokenizers.target, TreeTokenizer):
            data |= {"target": TREES, "keep_tags": self.tokenizers.target.keep_tags}
        return replace(Config(), model=model.config, data=data)

    @property
    def languages(self) -> tuple[str, str]:
        """Pair of str, source and target language; `"source"` and `"target"` where they are unknown."""
        if self._run_config:
            return self._run_config.data.source, self._run_config.data.target
        return "source", self._target_language or "target"

    def max_source_length(self, config: SearchConfig) -> int:
        """Returns the maximum number of source tokens with the end of sentence, for a `SearchConfig`."""
        return min([config.max_source_length, *self._learned_positions()])

    def max_target_length(self, config: SearchConfig) -> int:
        """Returns the maximum number of target tokens with the end of sentence, for a `SearchConfig`."""
        return min([config.max_length, *self._learned_positions()])

    def _learned_positions(self):
        return [model.config.max_positions for model in self.models if model.config.positions == "learned"]

    def _translate_parts(self, parts, config, details):
        search = sampling_settings(config) if config.mbr else config

        def elements_per_row(source_length):
            return sum(model.config.numbers_in_search(source_length, search) for model in self.models)

        def translate(indices):
            found = self._translate_batch([parts[index] for index in indices], search)
            if config.mbr:
                language = self._target_language or None
                found = [by_utility(each, config.utility, language)[: config.n_best] for each in found]
            return found

        translations = [None] * len(parts)
        batches = batches_of_parts(parts, config.batch_tokens, elements_per_row, self._threads)
        for indices, results in zip(batches, self._map(translate, batches), strict=True):
            for index, n_best in zip(indices, results, strict=True):
                translations[index] = n_best
        return self._add_details(parts, translations, config) if details else translations

    def _map(self, function, batches):
        """`map(function, batches)` in `threads` threads."""
        if min(self._threads, len(batches)) < 2:
            yield from map(function, batches)
            return
        pool = concurrent.futures.ThreadPoolExecutor(self._threads)
        try:
            yield from pool.map(function, batches)
        finally:
            pool.shutdown(cancel_futures=True)  # an interrupt waits for running batches only

    def _translate_batch(self, parts, config):
        special = self.tokenizers.source.special
        source_ids = pad_rows([[*part.row, special.eos] for part in parts], special.pad)
        arguments = {}
        if any(part.prefix for part in parts):
            arguments["prefix_ids"] = pad_rows([part.prefix for part in parts], special.pad)
        if config.sampling:
            arguments["uniforms"] = uniforms(parts, config)
        if config.tree_grammar:
            arguments["num_words"] = np.array([part.num_words for part in parts], np.int32)
        if any(part.phrases for part in parts):
            arguments["phrases"] = pad_phrases([part.phrases for part in parts], special.pad)
        hypotheses = self._search(config, arguments)(source_ids, **arguments, **_scalars(config))
        ids, scores, log_probs, lengths, finished = (values.numpy() for values in hypotheses)
        exists = np.isfinite(scores)
        exists[:, 0] = True  # every sentence has a translation, even if no hypothesis is possible
        rows = [row[:length].tolist() for row, length in zip(ids[exists], lengths[exists], strict=True)]
        translations = iter(self._translations(rows, scores[exists], log_probs[exists], finished[exists]))
        return [[next(translations) for _ in range(number)] for number in exists.sum(axis=1)]

    def _add_details(self, parts, translations, config):
        """Adds token log-probabilities and an alignment to each `Translation`, by forced decoding.

        An ensemble's log-probabilities and attention are the means over its models.
        """
        pairs = [(part, item) for part, n_best in zip(parts, translations, strict=True) for item in n_best]
        slices = (pairs[first : first + _PAIRS] for first in range(0, len(pairs), _PAIRS))
        detailed = (item for some in slices for item in self._detailed(some, config.batch_tokens))
        return [[next(detailed) for _ in n_best] for n_best in translations]

    def _detailed(self, pairs, batch_tokens):
        """Yields each `Translation` of pairs (part, `Translation`) with details."""
        source_rows = [[*part.row, self.tokenizers.source.special.eos] for part, _ in pairs]
        target_rows = [item.ids for _, item in pairs]
        layers = [default_alignment_choice(model.config.num_decoder_layers).layer for model in self.models]
        by_model = [
            decoder(source_rows, target_rows, layers=[layer], batch_tokens=batch_tokens)
            for decoder, layer in zip(self._decoders, layers, strict=True)
        ]
        for (part, item), *forced in zip(pairs, *by_model, strict=True):
            attention = np.mean([result.attention[0] for result in forced], axis=0)
            pieces = self._pieces(self.tokenizers.source, part.row), item.pieces
            links = hard_alignment(attention, *pieces, convention="output", unit="pieces")
            log_probs = np.mean([result.log_probs for result in forced], axis=0)
            yield item._replace(token_log_probs=log_probs.tolist(), alignment=links)

    def _search(self, config, arguments):
        """Returns the search as one compiled graph for any batch size and length."""
        # Settings that do not change the graph must not cause another compilation.
        config = replace(config, seed=1, long_lines="split", batch_tokens=1, max_source_length=2, **_ANY)
        covers = float(config.coverage_penalty > 0)
        config = replace(config, coverage_penalty=covers, samples=1, utility="chrf")
        key = (config, *arguments)
        compiled = self._compiled.get(key)
        if compiled is None:
            with self._compiling:  # searches with other settings do not wait
                compiled = self._compiled.get(key) or self._compile(config, arguments)
                for oldest in list(self._compiled)[: max(0, len(self._compiled) + 1 - MAX_COMPILED)]:
                    self._compiled.pop(oldest, None)
        self._compiled.pop(key, None)
        self._compiled[key] = compiled  # as the one used last
        return compiled

    def _compile(self, config, arguments):
        target, scalars = self.tokenizers.target, _scalars(config)
        if config.tree_grammar and not isinstance(target, TreeTokenizer):
            raise ValueError("`tree_grammar` needs a model trained on trees. Received: tree_grammar=True")
        specs = {
            "prefix_ids": tf.TensorSpec((None, None), tf.int32),
            "uniforms": tf.TensorSpec((None, config.n_best, None), tf.float32),
            "num_words": tf.TensorSpec((None,), tf.int32),
            "phrases": tf.TensorSpec((None, None, None), tf.int32),
        }

        def search(source_ids, **arguments):
            inputs = {name: arguments.pop(name) for name in scalars}
            settings = types.SimpleNamespace(**{**dataclasses.asdict(config), **inputs})
            if config.tree_grammar:
                arguments["constraint"] = TreeGrammar.of(target, arguments.pop("num_words"))
            if "phrases" in arguments:
                arguments["constraint"] = Phrases(
                    arguments.pop("phrases"), vocab_size=target.vocab_size,
                    eos_id=target.special.eos, pad_id=target.special.pad,
                )  # fmt: skip
            arguments["forbidden_ids"] = tags_of(target).values()
            return tuple(search_ids(self.models, source_ids, settings, **arguments))

        # AutoGraph is not needed: the loop is `ops.while_loop`.
        return tf.function(search, autograph=False).get_concrete_function(
            tf.TensorSpec((None, None), tf.int32, name="source_ids"),
            **{name: specs[name] for name in arguments},
            **{name: tf.TensorSpec((), scalar.dtype) for name, scalar in scalars.items()},
        )


def _scalars(config):
    """Returns the settings that are inputs of a compiled search; a coverage penalty of 0 costs nothing."""
    names = [name for name in _SCALARS if name != "coverage_penalty" or config.coverage_penalty]
    return {name: np.array(getattr(config, name), _SCALARS[name]) for name in names}
