"""Models that the server can run: run folders, SavedModels and CTranslate2 exports, with one interface."""

import json
import pathlib
import threading
from typing import Any, NamedTuple

from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.config import programs
from keras_transformer.config.cores import usable_cores
from keras_transformer.config.settings import SearchConfig, replace
from keras_transformer.export.engines import EngineChoice, choose_engine
from keras_transformer.export.versions import CARD, METADATA, load_exported
from keras_transformer.translation.long_texts import sentence_separator
from keras_transformer.translation.texts import NBest, Translation

# Settings of search that a request may change. Others change the memory needed or the limits.
REQUEST_SETTINGS: tuple[str, ...] = (
    "beam_size", "n_best", "alpha", "coverage_penalty", "max_length_offset", "no_repeat_ngram", "min_length"
)  # fmt: skip
# Settings of search that a server may have for all its run folders and CTranslate2 exports.
SERVER_SEARCH_SETTINGS: tuple[str, ...] = (
    *(name for name in REQUEST_SETTINGS if name != "n_best"),
    "length_penalty",
    "early_stop",
    "max_length_ratio",
)
WARMUP_TEXTS = ("1 2 3", "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20.")
_BYTES_PER_TOKEN = 3


class Languages(NamedTuple):
    """Codes of the languages of a model, such as `("en", "de")`."""

    source: str
    target: str


class Engine:
    """A loaded model that translates lists of sentences in any thread.

    Attributes:
        path: `pathlib.Path` it was loaded from.
        languages: `Languages`.
        search: `SearchConfig`, the default settings.
        request_settings: tuple of str, the settings that a request may change.
        max_n_best: int, most translations of a sentence; `None` for any up to the beam size.
        own_n_best: int, translations per sentence for `translate_nbest` without `n_best`; 1: the whole beam.
        is_explorable: bool, whether `explorable` returns a translator.
    """

    is_explorable = False
    request_settings = REQUEST_SETTINGS
    max_n_best: int | None = None
    own_n_best = 1
    translator: Any = None

    def __init__(self, path, languages, search):
        self.path, self.languages, self.search = pathlib.Path(path), Languages(*languages), search
        self.separator = sentence_separator(self.languages.target)

    def count_tokens(self, texts):
        """Returns the number of source tokens of each text, with the end of sentence: a list of int."""
        encode = self.translator.tokenizers.source.encode
        return [len(row) + 1 for row in encode(list(texts))]

    def translate(self, texts, settings):
        """Translates sentences.

        Args:
            texts: list of str.
            settings: dict, search settings that differ from `search`.

        Returns:
            list of `NBest`.
        """
        return self.translator.n_best(list(texts), **settings)

    def explorable(self):
        """Returns the `Translator` that the explorer shows; `None` for an exported model."""
        return None

    def warm_up(self):
        """Translates a short and a longer text, so that the first request does not wait for a compilation."""
        self.translate(list(WARMUP_TEXTS), {})

    def check_settings(self, settings):
        """Returns the `SearchConfig` of a request.

        Raises:
            ValueError: a setting is out of range or fixed in this model.
        """
        for name in settings:
            if name not in self.request_settings:
                allowed = ", ".join(self.request_settings) or "none"
                raise ValueError(f"`{name}` cannot be set for this model. Settings that can: {allowed}")
        return replace(self.search, **settings) if settings else self.search


class RunEngine(Engine):
    """A run folder, with this package's search.

    Args:
        path: of the run folder.
        checkpoint: as in `RunFolder.load_weights`.
        search: dict, search settings that replace those of the run.
        precision: as in `Translator.load`.
    """

    is_explorable = True

    def __init__(self, path, *, checkpoint="final", search=None, precision=None):
        from keras_transformer.translation.translator import Translator

        config = RunFolder(path).config
        self.translator = Translator.load(path, checkpoint=checkpoint, precision=precision)
        self.own_n_best = self.translator.search.n_best
        self.translator.search = replace(self.translator.search, **{"n_best": 1, **(search or {})})
        super().__init__(path, (config.data.source, config.data.target), self.translator.search)

    def explorable(self):
        """As `Engine.explorable`: the run."""
        return self.translator


class CTranslate2Engine(Engine):
    """A CTranslate2 export.

    Args:
        path: of the export.
        workers: int, batches in parallel.
        search: dict, search settings that replace those of the export.
    """

    request_settings = tuple(name for name in REQUEST_SETTINGS if name != "coverage_penalty")

    def __init__(self, path, *, workers=1, search=None):
        translator, languages = self._load(pathlib.Path(path), workers)
        self.own_n_best = translator.search.n_best
        translator.search = translator.checked({"n_best": 1, **(search or {})})
        self.translator = translator
        super().__init__(path, languages, translator.search)

    def _load(self, path, workers):
        """Returns (`CTranslate2Translator`, (source language, target language))."""
        from keras_transformer.export.ctranslate2 import CTranslate2Translator

        languages = json.loads((path / METADATA).read_text(encoding="utf-8"))["languages"]
        cores = max(1, usable_cores() // workers)
        translator = CTranslate2Translator(path, inter_threads=workers, intra_threads=cores)
        return translator, (languages["source"], languages["target"])

    def check_settings(self, settings):
        """As `Engine.check_settings`."""
        super().check_settings(settings)
        return self.translator.checked(settings)


class ConvertedRunEngine(CTranslate2Engine):
    """A run folder that CTranslate2 translates with, by a conversion that is kept in the folder.

    Args:
        path: of the run folder.
        checkpoint: as in `RunFolder.load_weights`.
        workers, search: as in `CTranslate2Engine`.
    """

    is_explorable = True

    def __init__(self, path, *, checkpoint="final", workers=1, search=None):
        self._checkpoint, self._explorable = checkpoint, None
        super().__init__(path, workers=workers, search=search)

    def _load(self, path, workers):
        from keras_transformer.export.conversions import load_conversion

        run = RunFolder(path)
        data = run.config.data
        return load_conversion(run, self._checkpoint, threads=workers), (data.source, data.target)

    def explorable(self):
        """As `Engine.explorable`; loads the run with TensorFlow when it is first called."""
        with _loading:
            if self._explorable is None:
                self._explorable = RunEngine(self.path, checkpoint=self._checkpoint).translator
                self._explorable.search = self.search
        return self._explorable


class SavedModelEngine(Engine):
    """A SavedModel of this package. Its search settings are fixed, except those that are inputs."""

    def __init__(self, path):
        path = pathlib.Path(path)
        try:
            card = json.loads((path / CARD).read_text(encoding="utf-8"))
            languages, search, limits = card["languages"], card["search"], card["limits"]
            names = set(SearchConfig.__dataclass_fields__)
            config = SearchConfig(**{name: value for name, value in search.items() if name in names})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path / CARD}: missing or damaged ({error}). Export the model again with "
                f"{programs.command('export')}"
            ) from error
        if "serving_default" not in card["signatures"] or "translate_nbest" not in card["signatures"]:
            raise ValueError(
                f"{path}: no model that translates texts. Its signatures: {', '.join(card['signatures'])}"
            )
        self._model = load_exported(path)
        self.max_n_best = search["n_best"]
        self.request_settings = ("n_best", *card["inputs"])
        self._max_texts = limits["sentences"]
        self._inputs = {name: getattr(config, name) for name in card["inputs"]}
        super().__init__(path, (languages["source"], languages["target"]), replace(config, n_best=1))

    def count_tokens(self, texts):
        """As `Engine.count_tokens`, estimated from the number of bytes: the tokenizer is in the graph."""
        return [len(text.encode()) // _BYTES_PER_TOKEN + 2 for text in texts]

    def check_settings(self, settings):
        """As `Engine.check_settings`; `n_best` is at most that of the export."""
        n_best = settings.get("n_best", 1)
        if isinstance(n_best, int):
            if n_best > self.max_n_best:
                raise ValueError(
                    f"This model has at most {self.max_n_best} translations. Received: n_best={n_best}"
                )
            # The beam size is part of the graph, and need not be that of `translate_nbest`.
            settings = {**settings, "n_best": min(n_best, self.search.beam_size)}
        return super().check_settings(settings)

    def translate(self, texts, settings):
        """As `Engine.translate`, in calls of at most as many texts as the graph takes."""
        parts = [texts[i : i + self._max_texts] for i in range(0, len(texts), self._max_texts)]
        return [result for part in parts for result in self._translate(part, settings)]

    def _translate(self, texts, settings):
        import tensorflow as tf

        n_best = settings.get("n_best", 1)
        inputs = {name: settings.get(name, value) for name, value in self._inputs.items()}
        dtypes = {"alpha": tf.float32, "max_length_offset": tf.int32}
        inputs = {name: tf.constant(value, dtypes[name]) for name, value in inputs.items()}
        name = "serving_default" if n_best == 1 else "translate_nbest"
        outputs = self._model.signatures[name](text=tf.constant(texts), **inputs)
        outputs = {key: value.numpy() for key, value in outputs.items()}
        plural = "" if n_best == 1 else "s"
        columns = [outputs[f"translation{plural}"], outputs[f"score{plural}"], outputs[f"log_prob{plural}"]]
        columns.append(outputs["finished"])
        results = []
        for row, text in enumerate(texts):
            fields = [column[row : row + 1] if n_best == 1 else column[row][:n_best] for column in columns]
            best = [
                Translation(words.decode(), float(score), float(log_prob), [], [], bool(finished))
                for words, score, log_prob, finished in zip(*fields, strict=True)
                if score > tf.float32.min
            ]
            best = best or [Translation("", 0.0, 0.0, [], [], True)]
            results.append(NBest(best, [], int(bool(text.strip())), bool(outputs["truncated"][row])))
        return results


_loading = threading.Lock()  # Keras builds models in one thread at a time


def load_engine(path, *, checkpoint="final", workers=1, engine="tensorflow", search=None, precision=None):
    """Loads the model in a folder and translates a text with it.

    Args:
        path: a run folder, a CTranslate2 export or a version of a SavedModel.
        checkpoint: weights of a run folder, as in `RunFolder.load_weights`.
        workers: int, batches in parallel, for CTranslate2's threads.
        engine: str, what translates with a run folder, as in `export.choose_engine`.
        search: dict, those of `SERVER_SEARCH_SETTINGS` that replace the settings of a run folder or of a
            CTranslate2 export.
        precision: str, of the weights of a run folder that TensorFlow translates with, as in
            `Translator.load`.

    Returns:
        `Engine`.

    Raises:
        ValueError: none of these, a parser, or damaged; `search` for a SavedModel; or CTranslate2 lacks
            something that is needed. One line with the path.
    """
    kind = translated_by(path, engine, search, precision).name
    with _loading:
        if kind == "savedmodel":
            loaded = SavedModelEngine(path)
        elif kind_of(path) == "ctranslate2":
            loaded = CTranslate2Engine(path, workers=workers, search=search)
        elif kind == "ctranslate2":
            loaded = ConvertedRunEngine(path, checkpoint=checkpoint, workers=workers, search=search)
        else:
            loaded = RunEngine(path, checkpoint=checkpoint, search=search, precision=precision)
        loaded.warm_up()
    return loaded


def translated_by(path, engine="tensorflow", search=None, precision=None):
    """Returns what translates with the model in a folder, an `EngineChoice`, without loading it.

    Its name is `"tensorflow"`, `"ctranslate2"` or `"savedmodel"`.

    Args:
        path, engine, search, precision: as in `load_engine`.

    Raises:
        ValueError: as `load_engine`.
    """
    kind, search = kind_of(path), search or {}
    if kind == "savedmodel" and search:
        raise ValueError(
            f"{path}: the search settings of a SavedModel are fixed. Received: "
            f"{', '.join(f'{name}={value}' for name, value in search.items())}. Export it again with them"
        )
    if kind == "ctranslate2" and search.get("coverage_penalty"):
        raise ValueError(f"{path}: CTranslate2 has no coverage penalty. Leave out --coverage-penalty")
    if kind != "run":
        replace(SearchConfig(), **search)  # raises if a value is out of range
        return EngineChoice(kind, "")
    if engine == "tensorflow" and not search:
        return EngineChoice(engine, "")
    run = RunFolder(path)
    changed = replace(run.config.search, **{"n_best": 1, **search})
    uses = (f"--precision {precision}",) if precision == "bfloat16" else ()
    try:
        return choose_engine(engine, [run], changed, uses=uses)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def kind_of(path):
    """Returns what a folder has, `"run"`, `"ctranslate2"` or `"savedmodel"`, without loading it.

    Raises:
        ValueError: the folder has no model; the message says what can be served.
    """
    path = pathlib.Path(path)
    if (path / "saved_model.pb").is_file():
        return "savedmodel"
    if (path / METADATA).is_file():
        if (path / "model.bin").is_file():
            return "ctranslate2"
        raise ValueError(
            f"{path}: a Keras export. Serve the run folder, or export it as savedmodel or ctranslate2"
        )
    if (path / "config.json").is_file():
        return "run"
    raise ValueError(
        f"{path}: no model. Give a run folder, or a folder written by {programs.command('export')}"
    )
