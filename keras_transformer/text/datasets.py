"""Where pairs of sentences come from: a name becomes an object with splits and blocks.

Built in, a folder of files, an archive of such files, or TensorFlow Datasets. All give
the same: `splits`, `blocks(split, num_pairs)`, `fingerprint(split)`.
"""

import functools
import importlib.metadata
import pathlib
import re
import shutil
import tempfile
import weakref

from keras_transformer.text import tfds
from keras_transformer.text.archives import ENDINGS, is_archive, unpack
from keras_transformer.text.cldr import corpus as cldr
from keras_transformer.text.folders import VALIDATION_NAMES, FolderDataset, file_identity
from keras_transformer.text.lines import BLOCK_LINES, DataError
from keras_transformer.text.parallel import Block

# OWNER/NAME of the Hugging Face Hub, as far as it is no name of TensorFlow Datasets.
_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def open_dataset(dataset, source, target, *, data_dir=None, manual_dir=None):
    """Finds a dataset by name.

    Args:
        dataset: str, one of
            `cldr/SOURCE-TARGET`, the built-in corpus;
            the path of a folder of parallel files (see `folders`);
            the path of a `.zip`, `.tar`, `.tgz` or `.tar.xz` archive of such files;
            `NAME/CONFIG` or `NAME/CONFIG:VERSION` of TensorFlow Datasets, such as
            `wmt14_translate/de-en`, downloaded where it is not prepared yet.
        source: source language, as in the names of files or features.
        target: target language.
        data_dir: folder of the prepared sets of TensorFlow Datasets and, in `unpacked`,
            of unpacked archives. `None`: TensorFlow Datasets' own folder, and a
            temporary folder for an archive.
        manual_dir: folder of files downloaded by hand, for TensorFlow Datasets.

    Returns:
        An object with
        `name`, what messages call it;
        `splits`, tuple of str;
        `blocks(split, num_pairs=50_000)`, a generator of `Block` in constant memory;
        `fingerprint(split)`, JSON-able, which changes when the data do.

    Raises:
        DataError: there is no such dataset, or it does not hold the two languages, or
            it cannot be read, unpacked or downloaded.
        ValueError: an unknown locale of the built-in corpus.
    """
    check_dataset(dataset, data_dir)
    if dataset.startswith("cldr/"):
        return CldrDataset(dataset, source, target)
    path = pathlib.Path(dataset)
    if path.is_dir():
        return FolderDataset(path, source, target)
    if is_archive(path):
        return ArchiveDataset(path, source, target, data_dir)
    return tfds.TfdsDataset(dataset, source, target, data_dir=data_dir, manual_dir=manual_dir)


def check_dataset(dataset, data_dir=None):
    """Refuses the name of what is no dataset; neither reads nor downloads one.

    Args:
        dataset: str, as `open_dataset` takes it.
        data_dir: folder of prepared sets of TensorFlow Datasets, as of `open_dataset`.

    Raises:
        DataError: the message says what a dataset is.
    """
    path = pathlib.Path(dataset)
    if dataset.startswith("cldr/") or path.is_dir() or is_archive(path):
        return
    if path.is_file():
        raise DataError(f"{dataset}: is neither a folder nor an archive ({', '.join(ENDINGS)})")
    near = []
    if tfds.is_name(dataset):
        near = tfds.nearest_names(dataset, data_dir)
        if near == [re.match(r"\w+", dataset)[0]]:
            return
    elif _HUB.fullmatch(dataset):
        raise DataError(
            f"{dataset}: no such folder, and sets of the Hugging Face Hub are not read by name. Write its "
            "splits to a folder, one sentence a line (train.en, train.de, valid.en, valid.de), and name that "
            "folder; or name a set of TensorFlow Datasets, such as wmt14_translate/de-en"
        )
    hint = f" Nearest there: {', '.join(near)}" if near else ""
    raise DataError(
        f"{dataset}: no such folder. A dataset is cldr/SOURCE-TARGET (built in), a folder or archive of "
        f"parallel files, or a name of TensorFlow Datasets such as wmt14_translate/de-en.{hint}"
    )


def find_split(dataset, split):
    """Returns the name under which a dataset holds a split, or `None`.

    `"validation"`, `"valid"`, `"val"` and `"dev"` find each other, and `"test"` finds the
    first name that starts with `test`.
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
    """Returns (source, target) that a dataset's name tells, or `None`."""
    # pt-BR and zh-Hans hold a hyphen, too: what follows it starts with a capital.
    locale = r"([a-z]{2,}(?:[-_][A-Z]\w+)*)"
    match = re.fullmatch(f"cldr/{locale}-{locale}", dataset)
    return match.groups() if match else None


class CldrDataset:
    """The built-in corpus; see `open_dataset` for what a dataset is."""

    splits = cldr.Splits._fields

    def __init__(self, dataset, source, target):
        named = languages_of(dataset)
        if named is None:
            raise DataError(f"{dataset}: the built-in corpus is named cldr/SOURCE-TARGET")
        if {source, target} != set(named):
            raise DataError(
                f"{dataset} holds {named[0]} and {named[1]}. Received: source {source!r}, target {target!r}"
            )
        self.name = dataset
        self._languages = source, target

    @functools.cached_property
    def _pairs(self):
        return cldr.make_pairs(*self._languages)

    def blocks(self, split, num_pairs=BLOCK_LINES):
        """Yields `Block`s of a split."""
        self._check_split(split)
        pairs = getattr(self._pairs, split)
        name = f"{self.name} {split}"
        for begin in range(0, len(pairs), num_pairs):
            sides = zip(*pairs[begin : begin + num_pairs], strict=True)
            source, target = ([text.encode() + b"\n" for text in side] for side in sides)
            yield Block(source, target, name, name, begin + 1)

    def fingerprint(self, split):
        """Returns name, languages and the versions of the two libraries that it is made by."""
        self._check_split(split)
        versions = {name: importlib.metadata.version(name) for name in ("Babel", "num2words")}
        return {"name": self.name, "languages": list(self._languages), "split": split, **versions}

    def _check_split(self, split):
        if split not in self.splits:
            raise DataError(f"{self.name}: no split {split!r}. Known: {', '.join(self.splits)}")


class ArchiveDataset(FolderDataset):
    """The parallel files in one archive.

    They are unpacked into `data_dir`, to be found there the next time, or into a
    temporary folder that goes with this object.
    """

    def __init__(self, path, source, target, data_dir=None):
        if data_dir:
            parent = pathlib.Path(data_dir) / "unpacked"
        else:
            parent = pathlib.Path(tempfile.mkdtemp(prefix="keras_transformer."))
            weakref.finalize(self, shutil.rmtree, parent, ignore_errors=True)
        folder = unpack(path, parent)
        super().__init__(folder, source, target, name=str(path), identity=[file_identity(path)])
