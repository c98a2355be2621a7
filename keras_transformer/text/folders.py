"""A folder of parallel files as a corpus with splits.

The name of a file is SPLIT.LANGUAGE, SPLIT.SOURCE-TARGET.LANGUAGE as OPUS and WMT write
it, or SPLIT.tsv and SPLIT.SOURCE-TARGET.tsv with two columns (without the languages in
its name, the source comes first). The pair of languages stands in either order, and
`.gz`, `.xz` or `.bz2` may follow. Files of other languages are passed over.

A split is one such file or pair of files; or a folder of that name with any number of
them; or, for training only, numbered parts such as `train.1.en` or `train-00.en`
(`test.2016` and `test.2017` are two test sets, not two parts of one). Several are read
in the order of their names, numbered parts in that of their numbers. Where nothing is
called `train`, all that is called neither validation nor test is for training:
`Europarl.de-en.*` of an OPUS archive is.
"""

import pathlib
import re
from typing import NamedTuple

from keras_transformer.text.lines import DataError
from keras_transformer.text.parallel import BLOCK_LINES, FilePair, TabSeparatedFile, make_blocks

VALIDATION_NAMES = ("valid", "validation", "val", "dev")
TRAIN = "train"

_COMPRESSION = re.compile(r"\.(gz|xz|bz2)$")
_LOCALE = r"[a-z]{2,3}(?:[-_][A-Z]\w*)*"
_PART = re.compile(rf"{TRAIN}[.-]\d+")
_HELD_OUT = re.compile("val|dev|test|eval|newstest|newsdev", re.IGNORECASE)


class FolderDataset:
    """The parallel files of one folder.

    Args:
        folder: the folder.
        source: source language.
        target: target language.
        name: what messages call the dataset; the folder's path by default.
        identity: what `fingerprint` returns; by default, what tells the files of a
            split from others.

    Raises:
        DataError: two files claim to be the same split.
    """

    def __init__(self, folder, source, target, *, name=None, identity=None):
        self.folder = pathlib.Path(folder)
        self.source = source
        self.target = target
        self.name = name or str(folder)
        self._identity = identity
        self._files = _find(self.folder, source, target)

    @property
    def splits(self):
        """Names of the splits, a tuple in alphabetical order."""
        names = {name for name in self._files if not _PART.fullmatch(name)} | self._subfolders()
        if self._parts() or self._unnamed():
            names.add(TRAIN)
        return tuple(sorted(names))

    def blocks(self, split, num_pairs=BLOCK_LINES):
        """Yields the pairs of a split, in order; see `make_blocks`.

        Raises:
            DataError: there is no such split, it lacks a side, or it cannot be read.
        """
        # A generator of this object: files that go with it stay while they are read.
        yield from make_blocks(self.files(split), num_pairs)

    def fingerprint(self, split):
        """Returns what changes when the files of a split do.

        Returns:
            list of dict with `path` (absolute), `size` (bytes) and `mtime_ns`.

        Raises:
            DataError: as `blocks`.
        """
        paths = [path for file in self.files(split) for path in file.paths]
        return self._identity or [file_identity(path) for path in paths]

    def files(self, split):
        """Returns the files of a split in the order in which they are read.

        Returns:
            list of `FilePair` and `TabSeparatedFile`.

        Raises:
            DataError: there is no such split, a file of it lacks its other side, or it
                is there in two forms.
        """
        forms = []  # (where it stands, what was found there)
        if split in self._files:
            forms.append((self._files[split].file.paths[0], [self._files[split]]))
        if split == TRAIN and self._parts():
            forms.append((self._parts()[0].file.paths[0], self._parts()))
        if split in self._subfolders():
            found = _find(self.folder / split, self.source, self.target)
            forms.append((self.folder / split, [file for _, file in sorted(found.items())]))
        if not forms and split == TRAIN:
            forms += [(self.folder, self._unnamed())] if self._unnamed() else []
        if not forms:
            self._refuse_missing(split)
        if len(forms) > 1:
            places = ", ".join(str(place) for place, _ in forms)
            raise DataError(f"{self.name}: the split {split!r} is there twice. Keep one of: {places}")
        return [found.whole() for found in forms[0][1]]

    def _parts(self):
        names = filter(_PART.fullmatch, self._files)
        # By number, so that part 10 follows part 9, with or without leading zeros.
        names = sorted(names, key=lambda name: (int(re.search(r"\d+$", name)[0]), name))
        return [self._files[name] for name in names]

    def _unnamed(self):
        if TRAIN in self._files or self._parts() or TRAIN in self._subfolders():
            return []
        return [found for name, found in sorted(self._files.items()) if not _HELD_OUT.match(name)]

    def _subfolders(self):
        return {
            folder.name
            for folder in self.folder.iterdir()
            if folder.is_dir() and any(_named(path, self.source, self.target) for path in folder.iterdir())
        }

    def _refuse_missing(self, split):
        if self.splits:
            raise DataError(f"{self.name}: no split {split!r}. Known: {', '.join(self.splits)}")
        raise DataError(
            f"{self.name}: no files of {self.source} and {self.target}: no such file as "
            f"{self.folder / split}.{self.source} with {self.folder / split}.{self.target}, or {split}.tsv"
        )


class _Name(NamedTuple):
    split: str
    side: str


class _Found(NamedTuple):
    """A file or pair of files, and the path that is missing from it, or `None`."""

    file: FilePair | TabSeparatedFile
    missing: str | None = None

    def whole(self):
        if self.missing is not None:
            name = self.file.paths[0].name
            raise DataError(f"{self.missing}: no such file. {name} needs it as its other side")
        return self.file


def _find(folder, source, target):
    """Returns {split: `_Found`} of the files of a folder."""
    sides = {}
    for path in sorted(folder.iterdir()):
        name = _named(path, source, target)
        if name is None:
            continue
        known = sides.setdefault(name.split, {})
        tabs = {"columns", "swapped columns"}
        clash = known if name.side in tabs else known.keys() & {name.side, *tabs}
        if clash:
            first = known[next(iter(clash))]
            raise DataError(f"{first} and {path} are the same split twice. Keep one of the two")
        known[name.side] = path
    return {split: _join(known, source, target) for split, known in sides.items()}


def _join(known, source, target):
    if "columns" in known:
        return _Found(TabSeparatedFile(known["columns"], 0))
    if "swapped columns" in known:
        return _Found(TabSeparatedFile(known["swapped columns"], 1))
    if len(known) == 2:
        return _Found(FilePair(known["source"], known["target"]))
    path = next(iter(known.values()))
    stem = _COMPRESSION.sub("", str(path)).rpartition(".")[0]
    return _Found(FilePair(path, path), f"{stem}.{target if 'source' in known else source}")


def _named(path, source, target):
    """Returns what the name of a file says, or `None` for anything else."""
    stem, _, ending = _COMPRESSION.sub("", path.name).rpartition(".")
    if ending not in (source, target, "tsv") or not path.is_file():
        return None
    split, side = stem, "columns"
    front, _, languages = stem.rpartition(".")
    if front and languages in (f"{source}-{target}", f"{target}-{source}"):
        split = front
        side = "columns" if languages == f"{source}-{target}" else "swapped columns"
    elif front and _is_pair(languages, ending):
        return None  # the name says that it is of another pair of languages
    if ending != "tsv":
        side = "source" if ending == source else "target"
    return _Name(split, side) if split else None


def _is_pair(languages, ending):
    pair = re.fullmatch(f"({_LOCALE})-({_LOCALE})", languages)
    return pair is not None and (ending == "tsv" or ending in pair.groups())


def file_identity(path):
    """Returns a dict with `path` (absolute), `size` (bytes) and `mtime_ns` of a file."""
    status = pathlib.Path(path).stat()
    return {
        "path": str(pathlib.Path(path).resolve()),
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
    }
