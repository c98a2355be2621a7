"""Whether a new run can begin in a folder, and what a first start leaves there that is refused or killed."""

import contextlib
import errno
import os
import pathlib
import shutil

from keras_transformer.files import nearest_folder, process_lock

CONFIG = "config.json"
LOCK = "lock"
CORPUS = "corpus"
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
    known = leftover_files(path) | _leftover_corpus(path)
    if os.path.exists(path) and (not path.is_dir() or set(path.iterdir()) - known):
        raise ValueError(f"{path}: exists and is not a run folder. Choose another --run-dir")
    missing = [folder for folder in (path, *path.absolute().parents) if not os.path.exists(folder)]
    nearest = path if not missing else nearest_folder(path)
    try:
        # The only sure way to know.
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise ValueError(
            f"{path}: cannot write in {nearest} ({error.strerror}). Choose another --run-dir"
        ) from error
    finally:
        for folder in missing:
            with contextlib.suppress(OSError):
                folder.rmdir()


@contextlib.contextmanager
def lock_folder(path):
    """Holds the folder of a run for this process. It is made, and nothing of it left if the run is refused.

    Args:
        path: an existing run folder, or what `check_unused` accepts.

    Raises:
        ValueError: as `check_unused`, or another process holds it.
    """
    path = pathlib.Path(path)
    missing = [folder for folder in (path, *path.absolute().parents) if not os.path.exists(folder)]
    if is_new := not (path / CONFIG).exists():
        check_unused(path)
        path.mkdir(parents=True, exist_ok=True)
    with process_lock(path / LOCK):
        try:
            yield
        except BaseException as error:
            if is_new and not (path / CONFIG).exists():
                if isinstance(error, ValueError):
                    for left in _leftover_corpus(path):
                        shutil.rmtree(left)
                if set(path.iterdir()) == {path / LOCK}:
                    (path / LOCK).unlink()
                    for folder in missing:
                        folder.rmdir()
            raise


def leftover_files(path):
    """The files of a run folder that is being made, before it has its configuration.

    The lock is the first of them: a vocabulary in a folder without it is somebody else's.
    """
    lock = path / LOCK
    if not os.path.isfile(lock):  # which a path that is too long does not raise from
        return set()
    patterns = (*_VOCABULARY, ".tokenizer.*", f".{CONFIG}.*.tmp", ".*.sha256.*.tmp")
    return {lock, *(file for pattern in patterns for file in path.glob(pattern) if file.is_file())}


def _leftover_corpus(path):
    """The text that a run has prepared, and what a killed process was about to remove of it."""
    if not os.path.isfile(path / LOCK):
        return set()
    return {folder for folder in (path / CORPUS, *path.glob(f".{CORPUS}.*.tmp")) if folder.is_dir()}
