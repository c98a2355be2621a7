"""Opens parallel corpora by name: built in, folders, archives, TensorFlow Datasets, Hugging Face datasets.

All datasets have the same interface: `name`, `splits`, `blocks(split, num_pairs)` and `fingerprint(split)`.
`load_corpus` concatenates one or several datasets in memory.
"""

import functools
import importlib.metadata
import pathlib
import re
from typing import Any, NamedTuple

from keras_transformer.config.extras import MissingExtraError
from keras_transformer.config.fields import did_you_mean
from keras_transformer.config.sections import TREES
from keras_transformer.config.types import PathLike
from keras_transformer.text import hugging_face, tfds
from keras_transformer.text.folders import (
    ENDINGS,
    TRAIN,
    VALIDATION_NAMES,
    ArchiveDataset,
    FolderDataset,
    is_archive,
)
from keras_transformer.text.lines import DataError, Pairs
from keras_transformer.text.parallel import (
    BLOCK_LINES,
    NamedPairs,
    check_split,
    decode_blocks,
    drop_empty,
    make_blocks,
)
from keras_transformer.text.treebanks import open_treebank

# OWNER/NAME of the Hugging Face Hub; tried after the names of TensorFlow Datasets.
_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def open_dataset(dataset, source, target, *, data_dir=None, manual_dir=None):
    """Opens a dataset by name.

    Args:
        dataset: str, one of
            `cldr/SOURCE-TARGET`, the built-in corpus;
            the path of a folder of parallel files (see `folders`);
            the path of a `.zip`, `.tar`, `.tgz` or `.tar.xz` archive of such files;
            `NAME/CONFIG` or `NAME/CONFIG:VERSION` of TensorFlow Datasets, such as
            `wmt14_translate/de-en`; downloaded and prepared if necessary;
            `hf:NAME`, `hf:NAME/CONFIG` or `hf:./FOLDER` of the library `datasets` (see `hugging_face`).
        source: source language, as in the names of files or features.
        target: target language, or `trees`: bracketed trees, whose words are the source.
        data_dir: folder of prepared TensorFlow Datasets, of unpacked archives in its subfolder `unpacked`,
            and of Hugging Face datasets in `hugging_face`. `None` uses the default folders of the libraries,
            and a temporary folder for an archive.
        manual_dir: folder of files downloaded by hand, for TensorFlow Datasets.

    Returns:
        An object with
        `name`, its name in messages;
        `splits`, a tuple of str;
        `blocks(split, num_pairs=50_000)`, a generator of `Block` in constant memory;
        `fingerprint(split)`, a JSON value that changes when the data change.

    Raises:
        DataError: there is no such dataset; it lacks one of the languages; or
            it cannot be read, unpacked or downloaded.
        ValueError: a locale of the built-in corpus is unknown.
        MissingExtraError: the packages that generate the built-in corpus, or read those of Hugging Face, are
            not installed.
    """
    check_dataset(dataset, data_dir)
    if target == TREES:
        return open_treebank(dataset, source, data_dir)
    if dataset.startswith(hugging_face.PREFIX):
        return hugging_face.HuggingFaceDataset(dataset, source, target, data_dir=data_dir)
    if dataset.startswith("cldr/"):
        return CldrDataset(dataset, source, target)
    path = pathlib.Path(dataset)
    if path.is_dir():
        return FolderDataset(path, source, target)
    if is_archive(path):
        return ArchiveDataset(path, source, target, data_dir)
    return tfds.TfdsDataset(dataset, source, target, data_dir=data_dir, manual_dir=manual_dir)


def check_dataset(dataset, data_dir=None):
    """Checks that a dataset of this name exists; neither reads nor downloads it.

    Args:
        dataset: str, see `open_dataset`.
        data_dir: folder of prepared TensorFlow Datasets, see `open_dataset`.

    Raises:
        DataError: it does not exist; the message lists the kinds of datasets.
        MissingExtraError: the packages that generate the built-in corpus, or read those of Hugging Face, are
            not installed.
    """
    path = pathlib.Path(dataset)
    if dataset.startswith("cldr/"):
        _import_cldr()
        return
    if dataset.startswith(hugging_face.PREFIX):
        hugging_face.check_name(dataset)
        return
    if path.is_dir() or is_archive(path):
        return
    if path.is_file():
        raise DataError(f"{dataset}: is neither a folder nor an archive ({', '.join(ENDINGS)})")
    try:
        near, hint = tfds.nearest_names(dataset, data_dir), ""
    except MissingExtraError as error:
        near, hint = [], f" {error}"
    if near and near == [re.match(r"\w+", dataset)[0]]:
        return
    meant = did_you_mean(path.name, _corpora_in(path.parent), lambda name: str(path.parent / name))
    if near is None and not meant and _HUB.fullmatch(dataset):
        raise DataError(
            f"{dataset}: no such folder. For this name on the Hugging Face Hub, write hf:{dataset}"
        )
    hint = f" Nearest there: {', '.join(near)}" if near else hint
    raise DataError(
        f"{dataset}: no such folder. {meant and meant + ' '}A dataset is cldr/SOURCE-TARGET (built in), a "
        "folder or archive of parallel files, a name of TensorFlow Datasets such as wmt14_translate/de-en, "
        f"or hf:NAME of the Hugging Face Hub.{hint}"
    )


def _corpora_in(folder):
    """Returns the names of a folder's subfolders and archives; none if it cannot be read."""
    try:
        return [path.name for path in sorted(folder.iterdir()) if path.is_dir() or is_archive(path)]
    except OSError:
        return []


def find_split(dataset, split):
    """Returns the dataset's own name of a split, or `None`.

    `"validation"`, `"valid"`, `"val"` and `"dev"` are synonyms. `"test"` finds the first name, in
    alphabetical order, that starts with `test`.
    """
    names = dataset.splits
    if split in names:
        return split
    if split in VALIDATION_NAMES:
        return next((name for name in VALIDATION_NAMES if name in names), None)
    if split == "test":
        return next((name for name in sorted(names) if name.startswith("test")), None)
    return None


def languages_of(dataset):
    """Returns (source, target) of a name `cldr/SOURCE-TARGET`, or `None` for other datasets."""
    # Locales such as pt-BR, zh-Hans and es-419 contain a hyphen too; a capital letter or a number follows it.
    locale = r"([a-z]{2,}(?:[-_](?:[A-Z]\w+|\d{3}))*)"
    match = re.fullmatch(f"cldr/{locale}-{locale}", dataset)
    return match.groups() if match else None


def _import_cldr():
    from keras_transformer.text import cldr  # needs the extra `data`

    return cldr


class CldrDataset:
    """The built-in corpus as a dataset; see `open_dataset` for the interface."""

    def __init__(self, dataset, source, target):
        languages = languages_of(dataset)
        if languages is None:
            raise DataError(f"{dataset}: the built-in corpus must be cldr/SOURCE-TARGET")
        if {source, target} != set(languages):
            raise DataError(
                f"{dataset}: the languages are {languages[0]} and {languages[1]}. "
                f"Received: source {source!r}, target {target!r}"
            )
        self.name = dataset
        self.splits = _import_cldr().Splits._fields
        self._languages = source, target

    @functools.cached_property
    def _pairs(self):
        return _import_cldr().make_pairs(*self._languages)

    def blocks(self, split, num_pairs=BLOCK_LINES):
        """Yields the `Block`s of a split."""
        check_split(self, split)
        lines = ([f"{text}\n".encode() for text in pair] for pair in getattr(self._pairs, split))
        return make_blocks([NamedPairs(f"{self.name} {split}", lines)], num_pairs, keep_blank_end=True)

    def fingerprint(self, split):
        """Returns a dict: name, languages, split, and the versions of Babel and num2words."""
        check_split(self, split)
        versions = {name: importlib.metadata.version(name) for name in ("Babel", "num2words")}
        return {"name": self.name, "languages": list(self._languages), "split": split, **versions}


class Corpus(NamedTuple):
    """The splits of a corpus of one or several datasets.

    Attributes:
        train: `Pairs` without blank sides, one dataset after the other.
        validation: `Pairs`.
        test: `Pairs`, or `None` if no dataset has a test split.
        test_name: name of the test split, such as `"test_2016_flickr"`, or "".
        num_blank: number of training pairs dropped because a side was blank.
        sizes: tuple of int, training pairs of each dataset, in order; 0 for one without a training split.
    """

    train: Pairs
    validation: Pairs
    test: Pairs | None
    test_name: str
    num_blank: int
    sizes: tuple


class OpenSplit(NamedTuple):
    """One split of an open dataset.

    Attributes:
        dataset: a dataset returned by `open_dataset`.
        name: str, one of its `splits`.
    """

    dataset: Any
    name: str

    @property
    def paths(self):
        """Paths of the files of the split in a folder, or of its archive; empty for other datasets."""
        files = self.dataset.fingerprint(self.name)
        return [file["path"] for file in files] if isinstance(files, list) else []

    def load(self, *, on_bad_utf8="refuse"):
        """Reads the split, blank lines included.

        Returns:
            `Pairs`.

        Raises:
            DataError: the split cannot be read or is empty, or its sides have different numbers of lines.
        """
        label = f"{self.dataset.name} {self.name}"
        pairs = decode_blocks(self.dataset.blocks(self.name), label, on_bad_utf8=on_bad_utf8)
        if not pairs.source:
            raise DataError(f"{label}: the split is empty")
        return pairs


def dataset_names(dataset):
    """Splits a comma-separated list of datasets, `"A,B"`, into names.

    Returns:
        list of str.

    Raises:
        ValueError: a name is empty.
    """
    names = [name.strip() for name in dataset.split(",")]
    if not all(names):
        raise ValueError(
            f"`dataset` must be a name or several names separated by commas. Received: {dataset!r}"
        )
    return names


def open_datasets(dataset, source, target, *, data_dir=None, manual_dir=None):
    """Opens each dataset of `"A,B"`; see `open_dataset`.

    Returns:
        list of datasets.
    """
    return [
        open_dataset(name, source, target, data_dir=data_dir, manual_dir=manual_dir)
        for name in dataset_names(dataset)
    ]


def first_split(datasets, split):
    """Returns the `OpenSplit` of the first dataset that has a split, or `None`."""
    for dataset in datasets:
        name = find_split(dataset, split)
        if name is not None:
            return OpenSplit(dataset, name)
    return None


def load_corpus(
    dataset: str,
    source: str,
    target: str,
    *,
    data_dir: PathLike | None = None,
    manual_dir: PathLike | None = None,
    on_bad_utf8: str = "refuse",
) -> Corpus:
    """Reads the training, validation and test pairs of a corpus.

    Training pairs come from all datasets, validation and test pairs from the first dataset that
    has such a split. In a folder, these splits are called `valid` (or `validation`, `val`, `dev`) and `test`
    (or the first name that starts with `test`).

    Args:
        dataset: name of a dataset (see `open_dataset`), or several, `"A,B"`.
        source: source language, as in the names of files or features.
        target: target language.
        data_dir: see `open_dataset`.
        manual_dir: see `open_dataset`.
        on_bad_utf8: `"refuse"` or `"replace"`.

    Returns:
        `Corpus`.

    Raises:
        DataError: a dataset or file is missing, empty or not UTF-8; the two sides have different
            numbers of lines; or there is no training or no validation split.
        ValueError: a locale is unknown.
    """
    datasets = open_datasets(dataset, source, target, data_dir=data_dir, manual_dir=manual_dir)
    check_splits(dataset, datasets, source, target)
    validation, test = first_split(datasets, "validation"), first_split(datasets, "test")
    train, sizes, num_blank = Pairs([], []), [], 0
    for opened in datasets:
        if TRAIN not in opened.splits:
            sizes.append(0)
            continue
        pairs, num_dropped = drop_empty(OpenSplit(opened, TRAIN).load(on_bad_utf8=on_bad_utf8))
        train.source.extend(pairs.source)
        train.target.extend(pairs.target)
        sizes.append(len(pairs.source))
        num_blank += num_dropped
    return Corpus(
        train,
        validation.load(on_bad_utf8=on_bad_utf8),
        test.load(on_bad_utf8=on_bad_utf8) if test else None,
        test.name if test else "",
        num_blank,
        tuple(sizes),
    )


def check_splits(dataset, datasets, source, target):
    """Raises `DataError`, with the files to add, if the training or the validation split is missing."""
    for split, is_there, names in (
        (TRAIN, any(TRAIN in opened.splits for opened in datasets), ""),
        ("valid", first_split(datasets, "validation"), " (valid, validation, val or dev)"),
    ):
        if not is_there:
            files = f"{split}.{target}" if target == TREES else f"{split}.{source} and {split}.{target}"
            there = ", ".join(dict.fromkeys(name for opened in datasets for name in opened.splits))
            raise DataError(
                f"{dataset}: no {'training' if split == TRAIN else 'validation'} split. Add {files}{names}, "
                f"or a further --dataset that has them{there and '. The splits are: '}{there}"
            )


def open_split(dataset, split, source, target, *, data_dir=None, manual_dir=None):
    """Opens one split of a corpus, from the first dataset that has it.

    Args:
        dataset: name of a dataset (see `open_dataset`), or several, `"A,B"`.
        split: `"train"`, `"validation"`, `"test"`, or the dataset's own name of a split;
            `"validation"` and `"test"` are looked up like in `find_split`.
        source: source language.
        target: target language.
        data_dir: see `open_dataset`.
        manual_dir: see `open_dataset`.

    Returns:
        `OpenSplit`.

    Raises:
        DataError: there is no such dataset or split.
    """
    datasets = open_datasets(dataset, source, target, data_dir=data_dir, manual_dir=manual_dir)
    opened_split = first_split(datasets, split)
    if opened_split is None:
        known = dict.fromkeys(name for opened in datasets for name in opened.splits)
        raise DataError(f"{dataset}: no split {split!r}. Choose from: {', '.join(known)}")
    return opened_split


def load_split(dataset, split, source, target, *, data_dir=None, manual_dir=None, on_bad_utf8="refuse"):
    """Reads one split of a corpus, blank lines included; see `open_split`.

    Returns:
        `Pairs`.

    Raises:
        DataError: see `open_split` and `OpenSplit.load`.
    """
    opened = open_split(dataset, split, source, target, data_dir=data_dir, manual_dir=manual_dir)
    return opened.load(on_bad_utf8=on_bad_utf8)
