"""Reads a prepared corpus: a folder of encoded sentences in sharded files, with a manifest.

The files of the folder::

    manifest.json          counts, settings, and the SHA-256 of every other file
    tokenizer.model        the vocabulary (or tokenizer.source.model, tokenizer.target.model)
    train-00000.en.npy     ids of one shard's source sentences, an end-of-sentence id after each
    train-00000.de.npy     ids of their translations
    validation.en, ...     the other splits, as text
    report.txt             number of pairs that cleaning kept, and that each filter dropped

The arrays are plain NumPy files of 16 or 32 bits per id. They are memory-mapped: several processes share one
copy, and a corpus may be larger than memory.
"""

import concurrent.futures
import hashlib
import io
import json
import pathlib
from typing import Any

import numpy as np

from keras_transformer.batches.ids import IdPairs, Sequences
from keras_transformer.config import programs
from keras_transformer.config.extras import MissingExtraError
from keras_transformer.config.fields import with_earlier_defaults
from keras_transformer.config.sections import TREES, VOCABULARY, DataConfig
from keras_transformer.config.types import PathLike
from keras_transformer.files import from_checked_json, write_atomically
from keras_transformer.text.cleaning import CleaningReport
from keras_transformer.text.languages import SAMPLE_SIZE, check_languages
from keras_transformer.text.lines import DataError, Pairs, decode_lines
from keras_transformer.tokenizers.tokenizer_pair import Tokenizers, load_tokenizers

MANIFEST = "manifest.json"
PROGRESS = "progress"  # folder for the records of finished shards, until the preparation ends
FORMAT = "keras_transformer prepared corpus, 1"
_AGAIN = "Remove the folder and prepare the corpus again"


def is_prepared(dataset):
    """Returns whether `dataset` is the path of a prepared corpus."""
    return (pathlib.Path(dataset) / MANIFEST).is_file()


def settings_of_prepared(dataset):
    """Returns the settings that a corpus was prepared with, a dict: `data`, `cleaning` and others.

    Raises:
        DataError: the manifest is damaged.
    """
    return _read_manifest(pathlib.Path(dataset))["settings"]


def check_not_prepared(dataset):
    """Checks that the datasets `"A,B"` include no prepared or partly prepared folder.

    Raises:
        DataError: they include one.
    """
    for name in (part.strip() for part in dataset.split(",")):
        if is_prepared(name):
            raise DataError(
                f"{name}: a prepared corpus cannot be combined with others. Prepare them together, "
                f"{programs.command('prepare')} A,B OUT, and train on OUT"
            )
        if (pathlib.Path(name) / PROGRESS / "settings.json").is_file():
            raise DataError(
                f"{name}: the preparation was interrupted. Run the same command again to continue"
            )


def evenly_spaced(num_pairs, number):
    """Returns up to `number` evenly spaced indices of `num_pairs` pairs, a list of int."""
    return np.unique(np.linspace(0, num_pairs - 1, min(number, num_pairs)).astype(int)).tolist()


def write_file(folder, name, data):
    """Writes one file of a prepared corpus atomically.

    Returns:
        its manifest entry, a dict: name, size in bytes, SHA-256.
    """
    write_atomically(pathlib.Path(folder) / name, data)
    return file_entry(name, data)


def file_entry(name, data):
    """Returns the manifest entry of a file, a dict."""
    return {"name": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def write_array(folder, name, array):
    """Writes a `.npy` file atomically; returns its manifest entry."""
    return write_file(folder, name, array_bytes(array))


def array_bytes(array):
    """Returns the content of a `.npy` file, bytes."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def write_json(path, values):
    """Writes a dict as a JSON file, atomically."""
    write_file(path.parent, path.name, (json.dumps(values, indent=1, ensure_ascii=False) + "\n").encode())


class PreparedCorpus:
    """Opens a prepared folder and verifies its files; source and target may be swapped.

    Args:
        path: the folder.
        source: source language; `None` for the source of the preparation.
        target: target language; `None` for the target of the preparation.

    Raises:
        DataError: the folder is not a prepared corpus, it has other languages, or a file is missing,
            truncated or changed (the SHA-256 of every file is checked).
    """

    def __init__(self, path: PathLike, source: str | None = None, target: str | None = None) -> None:
        self.path = pathlib.Path(path)
        self.manifest = _read_manifest(self.path)
        languages = tuple(self.manifest["languages"])
        direction = (source or languages[0], target or languages[1])
        if set(direction) != set(languages):
            raise DataError(
                f"{self.path}: the languages are {languages[0]} and {languages[1]}. "
                f"Received: source {direction[0]!r}, target {direction[1]!r}"
            )
        self.languages = direction
        # The manifest's names of our source and target; swapped in the reverse direction.
        self._sides = ("source", "target") if direction == languages else ("target", "source")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            list(pool.map(self._verify_file, _files(self.manifest)))

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the preparation, a dict."""
        return self.manifest["settings"]

    @property
    def sha256(self) -> str:
        """Hexadecimal SHA-256 over all shards; it identifies the training text."""
        digest = hashlib.sha256()
        for shard in self.manifest["shards"]:
            for side in self._sides:
                digest.update(shard[side]["sha256"].encode())
        return digest.hexdigest()

    @property
    def sizes(self) -> list[int]:
        """Number of training pairs of each dataset, a list of int."""
        shards = self.manifest["shards"]
        number = len(self.settings["data"]["dataset"].split(","))
        return [sum(shard["num_pairs"] for shard in shards if shard["dataset"] == i) for i in range(number)]

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits stored as text (all but training), a tuple of str."""
        return tuple(self.manifest["texts"])

    @property
    def report(self) -> CleaningReport:
        """`CleaningReport` of the training text."""
        return CleaningReport.from_dict(self.manifest["report"])

    def warnings(self, pairs: IdPairs, tokenizers: Tokenizers) -> list[str]:
        """Returns warnings about likely mistakes in the training text, a list of str.

        Args:
            pairs: `IdPairs` of the corpus.
            tokenizers: its `Tokenizers`.
        """
        if self.settings["data"]["dataset"].startswith("cldr/") or TREES in self.languages:
            return self.report.warnings()  # the languages are known
        numbers = evenly_spaced(pairs.num_pairs, SAMPLE_SIZE)
        texts = [
            tokenizer.decode([sequences[i].tolist() for i in numbers])
            for sequences, tokenizer in zip(pairs, tokenizers, strict=True)
        ]
        try:
            seen = check_languages(*texts, *self.languages).warnings()  # type: ignore[call-arg]
        except MissingExtraError as error:
            seen = [str(error)]
        return [*self.report.warnings(), *seen]

    def load_tokenizers(self) -> Tokenizers:
        """Returns the `Tokenizers`, source and target."""
        loaded = load_tokenizers(self.path)
        return loaded if self._sides[0] == "source" else Tokenizers(loaded.target, loaded.source)

    def load_pairs(self) -> IdPairs:
        """Returns the training pairs as memory-mapped `IdPairs`.

        Raises:
            DataError: the number of sentences of a shard differs from the manifest.
        """
        ends = [tokenizer.special.eos for tokenizer in self.load_tokenizers()]
        shards = self.manifest["shards"]
        sides = zip(self._sides, ends, strict=True)
        return IdPairs(
            *(
                Sequences([self._load_part(shard[side], shard["num_pairs"], end) for shard in shards])
                for side, end in sides
            )
        )

    def load_text(self, split: str) -> Pairs:
        """Returns the `Pairs` of a split that is stored as text."""
        texts = self.manifest["texts"]
        if split not in texts:
            raise DataError(f"{self.path}: no split {split!r}. Choose from: {', '.join(texts)}")
        sides = []
        for side in self._sides:
            path = self.path / texts[split][side]["name"]
            lines = io.BytesIO(path.read_bytes()).readlines()
            sides.append(decode_lines(lines, name=str(path))[0])
        return Pairs(*sides)

    def _load_part(self, entry, num_pairs, eos_id):
        """Returns (ids, starts) of one side of a shard, for `Sequences`."""
        path = self.path / entry["name"]
        # Read once to find the ends of the sentences, then mapped: unread pages of a mapping take no memory.
        ends = np.flatnonzero(np.load(path, allow_pickle=False) == eos_id)
        if len(ends) != num_pairs:
            raise DataError(f"{path}: {len(ends)} sentences instead of {num_pairs}. {_AGAIN}")
        return np.load(path, mmap_mode="r", allow_pickle=False), np.concatenate([[0], ends + 1])

    def _verify_file(self, entry):
        """Raises `DataError` if the SHA-256 of a file is not that of its manifest entry."""
        path = self.path / entry["name"]
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}. {_AGAIN}") from error
        if digest != entry["sha256"]:
            raise DataError(f"{path}: changed or damaged: its SHA-256 differs from the manifest. {_AGAIN}")


def _read_manifest(folder):
    """Returns the manifest of a prepared folder, a dict; raises `DataError` if it is missing or damaged."""
    path = folder / MANIFEST
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{folder}: not a prepared corpus ({MANIFEST}: {error.strerror}). "
            "Prepare it, or run the interrupted preparation again"
        ) from error
    try:
        manifest = from_checked_json(content, remedy=_AGAIN)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error
    if manifest.get("format") != FORMAT:
        raise DataError(f"{path}: the format is not {FORMAT!r}. {_AGAIN}")
    try:
        _check_structure(manifest)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DataError(f"{path}: damaged ({error!r}). {_AGAIN}") from error
    return manifest


def _check_structure(manifest):
    """Checks the values of a manifest by using them; adds the settings that earlier versions did not have."""
    source, target = manifest["languages"]
    settings, files = manifest["settings"], _files(manifest)
    settings["data"] = with_earlier_defaults(DataConfig, settings["data"])
    names, digests = [file["name"] for file in files], [file["sha256"] for file in files]
    numbers = [shard[name] for shard in manifest["shards"] for name in ("num_pairs", "dataset")]
    for text in (source, target, settings["data"]["dataset"], *names, *digests, *settings["cleaning"].keys()):
        text.strip()
    if any(pathlib.PurePath(name).name != name for name in names) or min(numbers) < 0:
        raise ValueError("a path or a number below 0")
    if missing := set(VOCABULARY) - set(settings["data"]):
        raise KeyError(*missing)


def _files(manifest):
    """Returns the manifest entries of all files."""
    entries = [*manifest["texts"].values(), *manifest["shards"]]
    return [*manifest["tokenizers"], *(entry[side] for entry in entries for side in ("source", "target"))]
