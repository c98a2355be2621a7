"""Files that are complete under their final name, or not there at all."""

import contextlib
import errno
import fcntl
import os
import pathlib
import shutil
import tempfile


def write_atomically(path, data):
    """Writes a file under a temporary name beside it, then renames it.

    Args:
        path: the final name; its folder exists.
        data: bytes.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    with written_atomically(path) as file:
        file.write(data)


@contextlib.contextmanager
def written_atomically(path):
    """Opens a binary file that gets its name when all of it is written, piece by piece.

    What is no plain file, such as `/dev/null` or a named pipe, is written to as it is.

    Args:
        path: the final name; its folder exists.

    Raises:
        OSError: it cannot be written. After this or any other exception nothing is left
            behind.
    """
    path = pathlib.Path(path)
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp makes it private
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def check_output(path, *inputs):
    """Refuses an output file that cannot be written, or that is one of the inputs.

    Raises:
        ValueError: its folder does not exist, it is a folder, or it is one of `inputs`.
    """
    path = pathlib.Path(path)
    if not path.parent.is_dir():
        raise ValueError(f"{path}: its folder does not exist. Make it first")
    if path.is_dir():
        raise ValueError(f"{path} is a folder. Name a file in it")
    for other in inputs:
        if path.is_file() and os.path.exists(other) and os.path.samefile(path, other):
            raise ValueError(f"{path} is also read from. Write to another file")


def write_text(path, text):
    """Writes UTF-8 text as `write_atomically` writes bytes.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    write_atomically(path, text.encode("utf-8"))


@contextlib.contextmanager
def folder_written_atomically(path):
    """Makes a folder that gets its name when all of it is written.

    Args:
        path: the final name, of nothing or of an empty folder; folders above it are made.

    Yields:
        `pathlib.Path` of the folder as long as it is written. After an exception within the
        block nothing is left behind.

    Raises:
        ValueError: there is something under the final name.
    """
    path = pathlib.Path(os.path.realpath(path))
    refusal = f"{path}: exists and is not an empty folder. Remove it, or name another"
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(refusal)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        temporary = pathlib.Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp"))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    try:
        yield temporary
        temporary.chmod(0o755)  # mkdtemp makes it private
        try:
            os.rename(temporary, path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            raise ValueError(refusal) from error  # another process was quicker
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


@contextlib.contextmanager
def only_process(path):
    """Holds a lock file; the lock goes when the process ends, however it ends.

    Args:
        path: the lock file, made if it is missing.

    Raises:
        ValueError: another process holds it.
    """
    path = pathlib.Path(path)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"{path.parent}: another process is working in this folder. "
                "Wait for it, or name another folder"
            ) from None
        yield
