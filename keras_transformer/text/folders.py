"""Datasets in folders and archives of parallel files.

Names of files:

- `SPLIT.LANGUAGE`, or `SPLIT.SOURCE-TARGET.LANGUAGE` as in OPUS and WMT, two files for a split;
- `SPLIT.tsv` or `SPLIT.SOURCE-TARGET.tsv`, one file with two columns; without languages in the name, the
  first column is the source.

SOURCE-TARGET may be in either order, and `.gz`, `.xz` or `.bz2` may follow. Files of other languages are
ignored.

A split is one such file or pair of files, or a subfolder with the name of the split and any number of them.
The training split may also be numbered parts, such as `train.1.en` or `train-00.en` (`test.2016` and
`test.2017` are two test splits). Files are read in the order of their names, numbered parts in the order of
their numbers. If nothing is called `train`, all files are training files, such as `Europarl.de-en.*` of an
OPUS archive, except those whose names begin like a validation or test split.
"""

import contextlib
import functools
import gzip
import hashlib
import lzma
import os
import pathlib
import re
import shutil
import stat
import tarfile
import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Iterable

from keras_transformer.config.types import PathLike
from keras_transformer.files import temporary_path
from keras_transformer.text.lines import DataError
from keras_transformer.text.parallel import BLOCK_LINES, FilePair, TabSeparatedFile, check_split, make_blocks

VALIDATION_NAMES = ("valid", "validation", "val", "dev")
TRAIN = "train"

_COMPRESSION = re.compile(r"\.(gz|xz|bz2)$")
_LOCALE = r"[a-z]{2,3}(?:[-_](?:[A-Z]\w*|\d{3}))*"
_PART = re.compile(rf"{TRAIN}[.-](\d+)")
_HELD_OUT = re.compile("val|dev|test|eval|newstest|newsdev", re.IGNORECASE)

# Limits against archive bombs. Text compresses to about a fifth; only repetition compresses to a hundredth.
MAX_RATIO = 200
SMALL_BYTES = 2**26  # unpacked size up to which any ratio is allowed
MAX_BYTES = 2**38
MAX_MEMBERS = 1_000_000
ENDINGS = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.xz", ".txz", ".tar.bz2", ".tbz2")

_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


class FolderDataset:
    """The parallel files of one folder as a dataset; see `open_dataset` for the interface.

    Args:
        folder: the folder.
        source: source language.
        target: target language.

    Raises:
        DataError: two files have the same split and side.
    """

    def __init__(self, folder, source, target):
        self.folder = pathlib.Path(folder)
        self.source = source
        self.target = target
        self.name = str(folder)
        self._files = self._find_files(self.folder)

    @property
    def splits(self):
        """Names of the splits, a tuple in alphabetical order."""
        names = {name for name in self._files if not _PART.fullmatch(name)} | self._subfolders()
        return tuple(sorted(names | ({TRAIN} if self._numbered_parts() or self.training_names else set())))

    @property
    def training_names(self):
        """Names of the files, sorted, that are the training split where nothing is called `train`."""
        if TRAIN in self._files or self._numbered_parts() or TRAIN in self._subfolders():
            return []
        return [name for name in sorted(self._files) if not _HELD_OUT.match(name)]

    def blocks(self, split, num_pairs=BLOCK_LINES):
        """Yields the pairs of a split, in order; see `make_blocks`.

        Raises:
            DataError: there is no such split, one of its sides is missing, or it cannot be read.
        """
        # `yield from` keeps this object, and so its temporary folder, while the files are read.
        yield from make_blocks(self.files(split), num_pairs)

    def fingerprint(self, split):
        """Returns the identity of the files of a split.

        Returns:
            list of dict with `path` (absolute), `size` (bytes) and `mtime_ns`.

        Raises:
            DataError: see `files`.
        """
        return [file_identity(path) for file in self.files(split) for path in file.paths]

    def files(self, split):
        """Returns the files of a split in reading order.

        Returns:
            list of `FilePair` and `TabSeparatedFile`.

        Raises:
            DataError: there is no such split, it occurs in two forms, or one side of a file is missing.
        """
        # A split has one of these forms: file, numbered parts, files without a split's name, subfolder.
        forms = [[self._files[split]] if split in self._files else []]
        if split == TRAIN:
            forms += [self._numbered_parts(), [self._files[name] for name in self.training_names]]
        if split in self._subfolders():
            files = self._find_files(self.folder / split)
            forms.append([files[name] for name in sorted(files)])
        forms = [[self._file_of(sides) for sides in form] for form in forms if form]
        if self.splits:
            check_split(self, split)
        if not forms:
            path = self.folder / split
            raise DataError(
                f"{self.name}: no files of {self.source} and {self.target}: no such file as "
                f"{path}.{self.source} with {path}.{self.target}, or {split}.tsv"
            )
        if len(forms) > 1:
            places = ", ".join(str(form[0].paths[0]) for form in forms)
            raise DataError(f"{self.name}: the split {split!r} exists twice. Keep one of: {places}")
        return forms[0]

    def _numbered_parts(self):
        """Returns the numbered parts of the training split, in numerical order."""
        names = sorted((int(part[1]), part[0]) for part in map(_PART.fullmatch, self._files) if part)
        return [self._files[name] for _, name in names]

    def _subfolders(self):
        folders = (path for path in self.folder.iterdir() if path.is_dir() and not _is_hidden(path))
        return {folder.name for folder in folders if any(map(self._parse_name, folder.iterdir()))}

    def _find_files(self, folder):
        """Returns {split: {side: path}} for the files of a folder; see `_parse_name` for the sides."""
        splits = {}
        for path in sorted(folder.iterdir()):
            split, side = self._parse_name(path) or (None, None)
            if split is None:
                continue
            sides = splits.setdefault(split, {})
            for other, first in sides.items():
                if {side, other} != {"source", "target"}:
                    raise DataError(f"{first} and {path} are the same split twice. Keep one of the two")
            sides[side] = path
        return splits

    def _file_of(self, sides):
        """Returns a `FilePair` or `TabSeparatedFile` of {side: path}."""
        ((side, path), *more) = sides.items()
        if side in ("columns", "swapped columns"):
            return TabSeparatedFile(path, int(side == "swapped columns"))
        if not more:
            stem = _COMPRESSION.sub("", str(path)).rpartition(".")[0]
            missing = f"{stem}.{self.target if side == 'source' else self.source}"
            raise DataError(f"{missing}: no such file. It must contain the other side of {path.name}")
        return FilePair(sides["source"], sides["target"])

    def _parse_name(self, path):
        """Parses the name of a file; returns (split, side), or `None` if it is not of these languages.

        A side is `"source"`, `"target"`, `"columns"` or `"swapped columns"`.
        """
        stem, _, ending = _COMPRESSION.sub("", path.name).rpartition(".")
        if ending not in (self.source, self.target, "tsv") or _is_hidden(path) or not path.is_file():
            return None
        sides = {self.source: "source", self.target: "target", "tsv": "columns"}
        split, side = stem, sides[ending]
        front, _, languages = stem.rpartition(".")
        pair = re.fullmatch(f"({_LOCALE})-({_LOCALE})", languages)
        if front and languages in (f"{self.source}-{self.target}", f"{self.target}-{self.source}"):
            split = front
            if ending == "tsv" and languages == f"{self.target}-{self.source}":
                side = "swapped columns"
        elif front and pair and ending in ("tsv", *pair.groups()):
            return None  # another pair of languages
        return (split, side) if split else None


def write_corpus(folder: PathLike, source: str, target: str, **splits: Iterable[tuple[str, str]]) -> None:
    """Writes pairs of texts as a new folder of parallel files, which can be named as a dataset.

    Args:
        folder: the folder; its parent must exist.
        source: source language.
        target: target language.
        **splits: `train`, `valid` and perhaps `test`: each an iterable of (source text, target text), such
            as a generator, or `zip(frame["en"], frame["de"])` of a pandas DataFrame. It is read once, in
            constant memory. A newline within a text becomes a space.

    Raises:
        DataError: the folder exists, a split has no pairs, or a pair is not two texts. No folder is left.
        OSError: the files cannot be written. No folder is left.
    """
    folder = pathlib.Path(folder)
    if folder.exists():
        raise DataError(f"{folder}: exists already. Choose a new folder")
    temporary = temporary_path(folder)
    temporary.mkdir()
    try:
        for split, pairs in splits.items():
            paths = [temporary / f"{split}.{language}" for language in (source, target)]
            with open(paths[0], "wb") as source_file, open(paths[1], "wb") as target_file:
                number = 0
                for number, pair in enumerate(pairs, start=1):
                    lines = _lines_of(pair, f"{split}: pair {number}")
                    source_file.write(lines[0])
                    target_file.write(lines[1])
            if not number:
                raise DataError(f"{split}: no pairs")
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _lines_of(pair, name):
    """Returns the two lines of a pair of texts, bytes."""
    # A DataFrame yields the names of its columns, and two letters are a pair, too.
    sides = list(pair) if hasattr(pair, "__iter__") and not isinstance(pair, (str, bytes)) else []
    if len(sides) != 2 or not all(isinstance(text, str) for text in sides):
        raise DataError(f"{name}: must be (source text, target text), two str. Received: {pair!r}")
    try:
        return [text.replace("\n", " ").encode() + b"\n" for text in sides]
    except UnicodeEncodeError as error:
        raise DataError(f"{name}: cannot be written as UTF-8: {error}") from error


class ArchiveDataset(FolderDataset):
    """The parallel files of one archive as a dataset; see `open_dataset` for the interface.

    The archive is unpacked into `data_dir`, where later calls find it. Without `data_dir` it is unpacked into
    a temporary folder that is removed with this object.
    """

    def __init__(self, path, source, target, data_dir=None):
        if data_dir:
            parent = pathlib.Path(data_dir) / "unpacked"
        else:
            parent = pathlib.Path(tempfile.mkdtemp(prefix="keras_transformer."))
            weakref.finalize(self, shutil.rmtree, parent, ignore_errors=True)
        super().__init__(unpack(path, parent), source, target)
        self.name = str(path)

    def fingerprint(self, split):
        """Returns a list of one dict: `path`, `size` and `mtime_ns` of the archive."""
        self.files(split)  # raises DataError if there is no such split
        return [file_identity(self.name)]


def file_identity(path):
    """Returns a dict with `path` (absolute), `size` (bytes) and `mtime_ns` of a file."""
    path = pathlib.Path(path).resolve()
    status = path.stat()
    return {"path": str(path), "size": status.st_size, "mtime_ns": status.st_mtime_ns}


# Archives are not trusted: a member outside the folder, a link, a device or an implausible size makes the
# whole archive invalid. Unpacking is atomic: the folder of unpacked files is complete or does not exist.


def is_archive(path):
    """Returns whether a path is a file with the ending of an archive."""
    path = pathlib.Path(path)
    return path.is_file() and path.name.lower().endswith(ENDINGS)


def unpack(path, parent):
    """Unpacks an archive into a new subfolder of `parent`, or finds the subfolder of an earlier call.

    Args:
        path: a `.zip`, `.tar`, `.tgz`, `.tar.xz`, ... file.
        parent: the parent folder. The name of the subfolder is derived from the path, size and
            modification time of the archive.

    Returns:
        `pathlib.Path` of the subfolder. If it contains a single folder that is not a split, that folder.

    Raises:
        DataError: the archive is damaged, encrypted or too large for text, or a member is a link, a device
            or outside the folder.
    """
    path, parent = pathlib.Path(path), pathlib.Path(parent)
    status = path.stat()
    identity = f"{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}"
    folder = parent / f"{path.name}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
    if not folder.exists():
        parent.mkdir(parents=True, exist_ok=True)
        temporary = temporary_path(folder)
        temporary.mkdir()
        try:
            _unpack_into(path, temporary, min(MAX_BYTES, max(SMALL_BYTES, MAX_RATIO * status.st_size)))
            with contextlib.suppress(OSError):
                temporary.rename(folder)  # another process may have been faster
            if not folder.exists():
                raise DataError(f"{path}: cannot be unpacked into {folder}")
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    while True:
        inside = [entry for entry in folder.iterdir() if not entry.name.startswith((".", "__MACOSX"))]
        if len(inside) != 1 or not inside[0].is_dir() or re.match("train$|val|dev|test", inside[0].name):
            return folder
        folder = inside[0]


def _unpack_into(path, folder, max_bytes):
    """Unpacks all members of an archive into a folder; raises `DataError` at the first invalid member."""
    num_bytes = 0
    try:
        for number, (name, size, open_member) in enumerate(_members(path), start=1):
            parts = re.split(r"[/\\]", name)
            if ".." in parts or parts[0] == "" or re.match("[A-Za-z]:", name) or "\0" in name:
                raise DataError(f"{path}: {name!r} points outside the folder. Nothing was unpacked")
            num_bytes += size
            if num_bytes > max_bytes or number > MAX_MEMBERS:
                raise DataError(
                    f"{path}: unpacks to over {max_bytes:,} bytes or {MAX_MEMBERS:,} files, more than text "
                    "does. Nothing was unpacked; if you trust it, unpack it and name the folder"
                )
            os.makedirs(folder / name if open_member is None else (folder / name).parent, exist_ok=True)
            if open_member is not None:
                with open_member() as packed, open(folder / name, "wb") as file:
                    shutil.copyfileobj(packed, file, 2**20)
    except NotImplementedError as error:  # an unusual compression
        raise DataError(f"{path}: {error}. Unpack it and name the folder") from error
    except _DAMAGED as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"{path}: damaged, truncated or not an archive ({reason}). Download it again"
        ) from error
    except OSError as error:
        raise DataError(f"{path}: cannot be unpacked into {folder.parent}: {error.strerror}") from error


def _members(path):
    """Yields (name, size in bytes, function that opens it, or `None` for a folder) for each member."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                kind = stat.S_IFMT(member.external_attr >> 16)
                _check_kind(path, member.filename, kind in (0, stat.S_IFREG, stat.S_IFDIR))
                if member.flag_bits & 1:
                    raise DataError(f"{path}: protected by a password. Unpack it and name the folder")
                open_member = None if member.is_dir() else functools.partial(archive.open, member)
                yield member.filename, member.file_size, open_member
    else:
        with tarfile.open(path) as archive:
            for member in archive:
                _check_kind(path, member.name, member.isreg() or member.isdir())
                open_member = None if member.isdir() else functools.partial(archive.extractfile, member)
                yield member.name, member.size, open_member
            # Read to the end, because the checksum of a gzip file comes after the last member.
            while archive.fileobj.read(2**20):
                pass


def _check_kind(path, name, is_file_or_folder):
    if not is_file_or_folder:
        raise DataError(
            f"{path}: {name!r} is a link or device. Nothing was unpacked; if you trust it, unpack it and "
            "name the folder"
        )


def _is_hidden(path):
    """Whether a file or folder is no part of a corpus: it is hidden, or macOS puts it into archives."""
    return path.name.startswith(".") or path.name == "__MACOSX"
