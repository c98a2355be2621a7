"""Creating a run folder: which folders may be used, locking, and cleaning up after a failed start."""

import contextlib
import errno
import os
import pathlib
import shutil

from keras_transformer.files import nearest_folder, process_lock

CONFIG = "config.json"
LOCK = "lock"
CORPUS = "corpus"
# Files that are written before the configuration.
_VOCABULARY = ("tokenizer.model", "tokenizer.*.model", "tokenizer.sha256", "corpus.sha256")


def check_unused(path):
    """Raises `ValueError` unless a new run can be created in a folder.

    Files left by a first start that was killed are ignored: `RunFolder.create` removes them.

    Args:
        path: path of the folder, which need not exist.

    Raises:
        ValueError: the folder has other files, or cannot be created or written; nothing has changed.
    """
    path = pathlib.Path(path)
    known = leftover_files(path) | _leftover_corpus(path)
    if os.path.exists(path) and (not path.is_dir() or set(path.iterdir()) - known):
        raise ValueError(f"{path}: exists and is not a run folder. Choose another --run-dir")
    missing = [folder for folder in (path, *path.absolute().parents) if not os.path.exists(folder)]
    nearest = path if not missing else nearest_folder(path)
    try:
        # Trying is the only reliable check.
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
    """Context manager that creates and locks a run folder; removes a new one if the run cannot start.

    Args:
        path: an existing run folder, or a folder that `check_unused` accepts.

    Raises:
        ValueError: as in `check_unused`, or another process holds the lock.
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
                    for folder in _leftover_corpus(path):
                        shutil.rmtree(folder)
                if set(path.iterdir()) == {path / LOCK}:
                    (path / LOCK).unlink()
                    for folder in missing:
                        folder.rmdir()
            raise


def leftover_files(path):
    """Returns the files of a start that has not written the configuration: lock, vocabulary, checksums.

    The lock is written first. A vocabulary in a folder without a lock does not belong to a run, so then
    the set is empty.
    """
    lock = path / LOCK
    if not os.path.isfile(lock):  # unlike `Path.is_file`, it accepts a path that is too long
        return set()
    patterns = (*_VOCABULARY, ".tokenizer.*", f".{CONFIG}.*.tmp", ".*.sha256.*.tmp")
    return {lock, *(file for pattern in patterns for file in path.glob(pattern) if file.is_file())}


def _leftover_corpus(path):
    """Returns the folders of prepared text of a run, including one whose removal was interrupted."""
    if not os.path.isfile(path / LOCK):
        return set()
    return {folder for folder in (path / CORPUS, *path.glob(f".{CORPUS}.*.tmp")) if folder.is_dir()}
