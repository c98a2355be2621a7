"""A prepared corpus: encoded once, in sharded files with a manifest, and read fast.

    manifest.json          what is there: counts, settings, SHA-256 of every other file
    tokenizer.model        the vocabulary (or tokenizer.source.model, tokenizer.target.model)
    train-00000.en.npy     ids of one shard's sentences, an end-of-sentence id after each
    train-00000.de.npy     the same of their translations
    validation.en, ...     the other splits, as text
    report.txt             what cleaning kept and dropped, and why

The arrays are plain NumPy files of 16 or 32 bits an id. They are mapped, not read, so
several processes share one copy and a corpus may be larger than memory.
"""

import concurrent.futures
import hashlib
import io
import json
import pathlib

import numpy as np

from keras_transformer.batches.ids import IdPairs, Sequences
from keras_transformer.config import programs
from keras_transformer.config.sections import VOCABULARY
from keras_transformer.files import from_checked_json, write_atomically
from keras_transformer.text.cleaning import CleaningReport
from keras_transformer.text.languages import SAMPLE_SIZE, check_languages
from keras_transformer.text.lines import DataError, Pairs, decode_lines
from keras_transformer.tokenizers.tokenizer_pair import Tokenizers, load_tokenizers

MANIFEST = "manifest.json"
PROGRESS = "progress"  # folder of what an interrupted preparation has finished
FORMAT = "keras_transformer prepared corpus, 1"
_AGAIN = "Remove the folder and prepare the corpus again"


def is_prepared(dataset):
    """Returns whether a dataset's name is that of a prepared folder."""
    return (pathlib.Path(dataset) / MANIFEST).is_file()


def settings_of(dataset):
    """Returns a dict, the settings of the section `data` with which a folder was prepared.

    Raises:
        DataError: its manifest is damaged.
    """
    return _read_manifest(pathlib.Path(dataset))["settings"]["data"]


def refuse_prepared(dataset):
    """Refuses names of datasets, `"A,B"`, of which one is a prepared or half prepared folder.

    Raises:
        DataError: names the folder.
    """
    for name in (part.strip() for part in dataset.split(",")):
        if is_prepared(name):
            raise DataError(
                f"{name}: is prepared and stands alone. Prepare the corpora together, as "
                f"{programs.command('prepare')} A,B OUT, and train on OUT"
            )
        if (pathlib.Path(name) / PROGRESS / "settings.json").is_file():
            raise DataError(f"{name}: the preparation was interrupted. Run it again, it continues")


def spread(num_pairs, number):
    """Returns the numbers of some pairs, spread evenly, a list of int."""
    return np.unique(np.linspace(0, num_pairs - 1, min(number, num_pairs)).astype(int)).tolist()


def write_file(folder, name, data):
    """Writes one file of a prepared corpus: complete, or not at all.

    Returns:
        dict for the manifest: name, size in bytes, SHA-256.
    """
    write_atomically(pathlib.Path(folder) / name, data)
    return file_entry(name, data)


def file_entry(name, data):
    """Returns the dict of a file for the manifest."""
    return {"name": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def write_array(folder, name, array):
    """Writes a `.npy` file as `write_file` does."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return write_file(folder, name, buffer.getvalue())


def write_json(path, values):
    """Writes what an interrupted preparation has finished."""
    write_file(path.parent, path.name, (json.dumps(values, indent=1, ensure_ascii=False) + "\n").encode())


class PreparedCorpus:
    """Reads a prepared folder, in either direction.

    Args:
        path: the folder.
        source: source language; `None` for that of the preparation.
        target: target language.

    Raises:
        DataError: not a prepared folder, other languages, or a file is missing, cut
            short or changed: every file is compared with its SHA-256.
    """

    def __init__(self, path, source=None, target=None):
        self.path = pathlib.Path(path)
        self.manifest = _read_manifest(self.path)
        languages = tuple(self.manifest["languages"])
        wanted = (source or languages[0], target or languages[1])
        if set(wanted) != set(languages):
            raise DataError(
                f"{self.path} holds {languages[0]} and {languages[1]}. "
                f"Received: source {wanted[0]!r}, target {wanted[1]!r}"
            )
        self.languages = wanted
        # Which side of the preparation is this source, this target.
        self._sides = ("source", "target") if wanted == languages else ("target", "source")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            list(pool.map(self._verify_file, _files(self.manifest)))

    @property
    def settings(self):
        """dict, the settings of the preparation."""
        return self.manifest["settings"]

    @property
    def sha256(self):
        """SHA-256 of all shards together, in hexadecimal: the identity of the training text."""
        digest = hashlib.sha256()
        for shard in self.manifest["shards"]:
            for side in self._sides:
                digest.update(shard[side]["sha256"].encode())
        return digest.hexdigest()

    @property
    def sizes(self):
        """list of int, the number of training pairs of each dataset."""
        shards = self.manifest["shards"]
        number = len(self.settings["data"]["dataset"].split(","))
        return [sum(shard["num_pairs"] for shard in shards if shard["dataset"] == i) for i in range(number)]

    @property
    def splits(self):
        """tuple of str, the splits that are there as text."""
        return tuple(self.manifest["texts"])

    @property
    def report(self):
        """`CleaningReport` of the training text."""
        return CleaningReport.from_dict(self.manifest["report"])

    def warnings(self, pairs, tokenizers):
        """Returns a list of str: what looks wrong in the training text.

        Args:
            pairs: `IdPairs` of the corpus.
            tokenizers: its `Tokenizers`.
        """
        if self.settings["data"]["dataset"].startswith("cldr/"):
            return self.report.warnings()  # its languages are what they say
        numbers = spread(pairs.num_pairs, SAMPLE_SIZE)
        texts = [
            tokenizer.decode([sequences[i].tolist() for i in numbers])
            for sequences, tokenizer in zip(pairs, tokenizers, strict=True)
        ]
        return [*self.report.warnings(), *check_languages(*texts, *self.languages).warnings()]

    def load_tokenizers(self):
        """Returns the `Tokenizers`, source and target."""
        loaded = load_tokenizers(self.path)
        return loaded if self._sides[0] == "source" else Tokenizers(loaded.target, loaded.source)

    def load_pairs(self):
        """Returns the training pairs as `IdPairs`, mapped from the files.

        Raises:
            DataError: a shard does not hold as many sentences as the manifest says.
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

    def load_text(self, split):
        """Returns the `Pairs` of a split that is there as text."""
        texts = self.manifest["texts"]
        if split not in texts:
            raise DataError(f"{self.path}: no split {split!r}. Known: {', '.join(texts)}")
        sides = []
        for side in self._sides:
            path = self.path / texts[split][side]["name"]
            lines = io.BytesIO(path.read_bytes()).readlines()
            sides.append(decode_lines(lines, name=str(path))[0])
        return Pairs(*sides)

    def _load_part(self, entry, num_pairs, eos_id):
        path = self.path / entry["name"]
        # Read to find the ends, and mapped for later: what is mapped and not read yet takes no memory.
        ends = np.flatnonzero(np.load(path, allow_pickle=False) == eos_id)
        if len(ends) != num_pairs:
            raise DataError(f"{path}: {len(ends)} sentences instead of {num_pairs}. {_AGAIN}")
        return np.load(path, mmap_mode="r", allow_pickle=False), np.concatenate([[0], ends + 1])

    def _verify_file(self, entry):
        path = self.path / entry["name"]
        try:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}. {_AGAIN}") from error
        if found != entry["sha256"]:
            raise DataError(f"{path}: its SHA-256 is not that of the manifest: changed or damaged. {_AGAIN}")


def _read_manifest(folder):
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
        raise DataError(f"{path}: is not of the format {FORMAT!r}. {_AGAIN}")
    try:
        _check_structure(manifest)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DataError(f"{path}: damaged ({error!r}). {_AGAIN}") from error
    return manifest


def _check_structure(manifest):
    """Looks at every value that is used; manifests of earlier versions have no checksum."""
    source, target = manifest["languages"]
    settings, files = manifest["settings"], _files(manifest)
    names, digests = [file["name"] for file in files], [file["sha256"] for file in files]
    numbers = [shard[name] for shard in manifest["shards"] for name in ("num_pairs", "dataset")]
    for text in (source, target, settings["data"]["dataset"], *names, *digests, *settings["cleaning"].keys()):
        text.strip()
    if any(pathlib.PurePath(name).name != name for name in names) or min(numbers) < 0:
        raise ValueError("a path or a number below 0")
    if missing := set(VOCABULARY) - set(settings["data"]):
        raise KeyError(*missing)


def _files(manifest):
    """The entries of all files."""
    entries = [*manifest["texts"].values(), *manifest["shards"]]
    return [*manifest["tokenizers"], *(entry[side] for entry in entries for side in ("source", "target"))]
