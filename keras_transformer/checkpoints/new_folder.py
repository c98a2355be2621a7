"""Whether a new run can begin in a folder, and what a first start that was killed has left in it."""

import contextlib
import os
import pathlib

from keras_transformer.files import temporary_beside

CONFIG = "config.json"
LOCK = "lock"
# What is there before the configuration is.
_VOCABULARY = ("tokenizer.model", "tokenizer.*.model", "tokenizer.sha256", "corpus.sha256")


def check_unused(path):
    """Refuses a folder in which no new run can begin.

    What a first start leaves that was killed is no hindrance: `RunFolder.create` removes it.

    Args:
        path: of nothing, or of a folder.

    Raises:
        ValueError: it holds something else, or cannot be made or written in; nothing is changed.
    """
    path = pathlib.Path(path)
    if os.path.exists(path) and (not path.is_dir() or set(path.iterdir()) - unfinished(path) - _probes(path)):
        raise ValueError(f"{path}: exists and is not a run folder. Choose another --run-dir")
    try:
        _try_to_make(path)
    except OSError as error:
        nearest = next(folder for folder in (path, *path.absolute().parents) if os.path.exists(folder))
        raise ValueError(
            f"{path}: cannot write in {nearest} ({error.strerror}). Choose another --run-dir"
        ) from error


def unfinished(path):
    """The files of a run folder that is being made, before it has its configuration.

    The lock is the first of them: a vocabulary in a folder without it is somebody else's.
    """
    lock = path / LOCK
    if not lock.is_file():
        return set()
    patterns = (*_VOCABULARY, ".tokenizer.*", f".{CONFIG}.*.tmp", ".*.sha256.*.tmp")
    return {lock, *(file for pattern in patterns for file in path.glob(pattern) if file.is_file())}


def _probes(path):
    """Empty folders that a process left which was killed in `_try_to_make`."""
    return {probe for probe in path.glob(".probe.*.tmp") if probe.is_dir() and not any(probe.iterdir())}


def _try_to_make(path):
    """Makes a folder, and one within, and removes what it has made. It is the only sure way to know."""
    missing = [folder for folder in (path, *path.absolute().parents) if not os.path.exists(folder)]
    probe = temporary_beside(path / "probe")
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe.mkdir()
    finally:
        for folder in (probe, *_probes(path), *missing):
            with contextlib.suppress(OSError):
                folder.rmdir()
