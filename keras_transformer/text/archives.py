"""Archives of text files, as OPUS and WMT give them, unpacked with suspicion.

A member that would land outside the folder, a link, a device, or a size that no text has
refuses the whole archive. A folder of unpacked files is complete or does not exist.
"""

import contextlib
import gzip
import hashlib
import lzma
import os
import pathlib
import re
import shutil
import stat
import tarfile
import zipfile
import zlib

from keras_transformer.files import temporary_beside
from keras_transformer.text.lines import DataError

# Text shrinks to a fifth or so; what shrinks to a hundredth says the same over and over.
MAX_RATIO = 200
SMALL_BYTES = 2**26  # up to this size an archive may unpack whatever its ratio
MAX_BYTES = 2**38
MAX_MEMBERS = 1_000_000
ENDINGS = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.xz", ".txz", ".tar.bz2", ".tbz2")

_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


def is_archive(path):
    """Returns whether a path is a file whose name says that it is an archive."""
    path = pathlib.Path(path)
    return path.is_file() and path.name.lower().endswith(ENDINGS)


def unpack(path, parent):
    """Unpacks an archive into a folder of its own.

    Args:
        path: a `.zip`, `.tar`, `.tgz`, `.tar.xz`, ... file.
        parent: the folder in which to make that folder. If it is there already, it
            holds this very archive (path, size and time of change) and is used as is.

    Returns:
        `pathlib.Path` of the folder; where the archive holds nothing beside one folder,
        and that is no split of a corpus, of this inner folder.

    Raises:
        DataError: the archive is damaged, or holds what a corpus does not: a path that
            leads outside, a link, a device, a password, far more bytes than text shrinks to.
    """
    path, parent = pathlib.Path(path), pathlib.Path(parent)
    status = path.stat()
    identity = f"{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}"
    folder = parent / f"{path.name}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
    if not folder.exists():
        parent.mkdir(parents=True, exist_ok=True)
        temporary = temporary_beside(folder)
        temporary.mkdir()
        try:
            _unpack_into(path, temporary, _Budget(path, status.st_size))
            with contextlib.suppress(OSError):
                temporary.rename(folder)  # unless another process was faster
            if not folder.exists():
                raise DataError(f"{path}: cannot be unpacked into {folder}")
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return _innermost(folder)


def _unpack_into(path, folder, budget):
    try:
        if zipfile.is_zipfile(path):
            _unzip(path, folder, budget)
        else:
            _untar(path, folder, budget)
    except _DAMAGED as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{path}: is damaged, cut short or no archive ({reason}). Get it anew") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be unpacked into {folder.parent}: {error.strerror}") from error


def _untar(path, folder, budget):
    with tarfile.open(path) as archive:
        for member in archive:
            _check_name(path, member.name)
            if not (member.isreg() or member.isdir()):
                _refuse_kind(path, member.name)
            budget.spend(member.size)
            archive.extract(member, folder, filter="data")
        # The checksum of a gzip file stands behind all that a tar file needs.
        while archive.fileobj.read(2**20):
            pass


def _unzip(path, folder, budget):
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            _check_name(path, member.filename)
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                _refuse_kind(path, member.filename)
            if member.flag_bits & 1:
                raise DataError(f"{path}: is protected by a password. Unpack it and name the folder")
            budget.spend(member.file_size)
            target = folder / member.filename
            if member.is_dir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                with archive.open(member) as packed, target.open("wb") as file:
                    shutil.copyfileobj(packed, file, 2**20)
            except NotImplementedError as error:
                raise DataError(f"{path}: {error}. Unpack it and name the folder") from error


class _Budget:
    """How much an archive may still unpack."""

    def __init__(self, path, size):
        self._path = path
        self._max_bytes = min(MAX_BYTES, max(SMALL_BYTES, MAX_RATIO * size))
        self._num_bytes = 0
        self._num_members = 0

    def spend(self, size):
        self._num_bytes += size
        self._num_members += 1
        if self._num_bytes > self._max_bytes or self._num_members > MAX_MEMBERS:
            raise DataError(
                f"{self._path}: unpacks to over {self._max_bytes:,} bytes or {MAX_MEMBERS:,} files, more "
                "than text does. Nothing was unpacked; if you trust it, unpack it and name the folder"
            )


def _check_name(path, name):
    parts = re.split(r"[/\\]", name)
    if ".." in parts or parts[0] == "" or re.match("[A-Za-z]:", name) or "\0" in name:
        raise DataError(f"{path}: {name!r} leads outside the folder. Nothing was unpacked")


def _refuse_kind(path, name):
    raise DataError(
        f"{path}: {name!r} is a link or device. Nothing was unpacked; if you trust it, unpack it and name "
        "the folder"
    )


def _innermost(folder):
    while True:
        inside = [entry for entry in os.scandir(folder) if not entry.name.startswith((".", "__MACOSX"))]
        if len(inside) != 1 or not inside[0].is_dir(follow_symlinks=False):
            return folder
        if re.match("train$|val|dev|test", inside[0].name):
            return folder
        folder = folder / inside[0].name
