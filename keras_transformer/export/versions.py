"""Folders of numbered versions, as TensorFlow Serving reads them: complete or invisible."""

import contextlib
import os
import pathlib
import shutil
from typing import NamedTuple

from keras_transformer.files import only_process

# Folder, among the versions, of the versions for ids alone.
IDS = "ids"
_LOCK = ".lock"
_PARTIAL = ".partial"
_MAX_VERSION = 2**63 - 1


class NewVersion(NamedTuple):
    """A version that is being written.

    Attributes:
        number: int.
        folders: list of `pathlib.Path`, temporary folders, one for each that was asked for.
    """

    number: int
    folders: list


@contextlib.contextmanager
def new_version(folders, version=None):
    """Makes one version in several folders; each gets its number as its name at the end.

    TensorFlow Serving takes a folder whose name is a number for a version that it may load
    at once, and passes over all others. What an earlier process left half written is removed.

    Args:
        folders: list of paths of the folders of versions, the last to be renamed first in the list.
        version: int, or `None` for the one after the highest that any of them has.

    Yields:
        `NewVersion`. After an exception within the block nothing is left behind.

    Raises:
        ValueError: the version is no number or there already, a folder has something else than
            versions, or another process exports there.
    """
    folders = [pathlib.Path(folder) for folder in folders]
    free_version(folders, version)
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    with only_process(folders[0] / _LOCK):
        version = free_version(folders, version)
        for folder in folders:
            for left in folder.glob(f".*{_PARTIAL}"):
                shutil.rmtree(left)
        partial = [folder / f".{version}{_PARTIAL}" for folder in folders]
        try:
            for path in partial:
                path.mkdir()
            yield NewVersion(version, partial)
            for folder, path in reversed(list(zip(folders, partial, strict=True))):
                os.rename(path, folder / str(version))
                _sync(folder)
        except BaseException:
            for path in partial:
                shutil.rmtree(path, ignore_errors=True)
            raise


def free_version(folders, version=None):
    """Returns the number that a new version gets; writes nothing.

    Args:
        folders: list of `pathlib.Path` of the folders of versions.
        version: int, or `None` for the one after the highest that any of them has.

    Raises:
        ValueError: as `new_version`, but for other processes.
    """
    if version is not None and not (type(version) is int and 0 < version <= _MAX_VERSION):
        raise ValueError(f"A version must be a whole number from 1 to {_MAX_VERSION}. Received: {version!r}")
    for folder in folders:
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder}: not a folder. Name another to export to")
        if foreign := _foreign(folder):
            raise ValueError(
                f"{folder}: holds {foreign}, which is no version of a served model. Name another folder"
            )
    taken = {number for folder in folders for number in versions(folder)}
    if version in taken:
        raise ValueError(
            f"{folders[0] / str(version)}: this version is there. Choose another --version, "
            f"or leave it out for {max(taken) + 1}"
        )
    if version is None:
        version = max(taken, default=0) + 1
        if version > _MAX_VERSION:
            raise ValueError(
                f"{folders[0]}: {max(taken)} is the highest version there can be. Name another folder"
            )
    return version


def versions(folder):
    """Returns the numbers of the versions in a folder, ascending; none where there is no folder."""
    folder = pathlib.Path(folder)
    if not folder.is_dir():
        return []
    names = [path.name for path in folder.iterdir() if path.is_dir()]
    return sorted(int(name) for name in names if name.isascii() and name.isdecimal())


def _foreign(folder):
    """The name of something in a folder that no export put there, or `None`."""
    if not folder.is_dir():
        return None
    for path in sorted(folder.iterdir()):
        name = path.name
        if not (name in (_LOCK, IDS) or name.endswith(_PARTIAL) or (name.isascii() and name.isdecimal())):
            return name
    return None


def _sync(folder):
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
