"""Files that are complete under their final name, or not there at all; JSON that is whole."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import pathlib
import secrets
import shutil
import tempfile
import zlib

_SUM = "sha256"
_LINE_SUM = "crc32"
# What the storage says when it has no more room, whoever has set the limit.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# TensorFlow looks for the files of a checkpoint with patterns. Within brackets a pattern is another name.
_WILDCARDS = frozenset("[]\\")


def write_atomically(path, data):
    """Writes a file under a temporary name beside it, then renames it.

    Args:
        path: the final name; its folder exists.
        data: bytes.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    with open_atomically(path) as file:
        file.write(data)


def fsync_path(path):
    """Waits until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def open_atomically(path):
    """Opens a binary file that gets its name when all of it is written, piece by piece.

    What is no plain file, such as `/dev/null` or a named pipe, is written to as it is.

    Args:
        path: the final name; its folder exists.

    Raises:
        OSError: it cannot be written; the error has the path. After this or any other
            exception nothing is left behind.
    """
    path = pathlib.Path(path)
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    temporary = temporary_path(path)
    with _named(path, temporary):
        # Not `tempfile`, whose files are private: these are as open as the user's umask says.
        file = temporary.open("xb")
        try:
            with file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise


def temporary_path(path):
    """Returns a path beside another, of nothing yet; those who clean up know such names, `.*.tmp`."""
    path = pathlib.Path(path)
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


@contextlib.contextmanager
def _named(path, temporary):
    """Gives errors of writing the name that the user knows: a full disk has none of its own."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(temporary)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


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


def check_new_folder(path):
    """Returns the real path of a folder that is to be made; refuses one that is not empty.

    Raises:
        ValueError: there is something under that name.
    """
    path = pathlib.Path(os.path.realpath(path))
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise _in_use(path)
    return path


def _in_use(path):
    return ValueError(f"{path}: exists and is not an empty folder. Remove it, or name another")


@contextlib.contextmanager
def create_folder_atomically(path):
    """Makes a folder that gets its name when all of it is written.

    Args:
        path: the final name, of nothing or of an empty folder; folders above it are made.

    Yields:
        `pathlib.Path` of the folder as long as it is written. After an exception within the
        block nothing is left behind.

    Raises:
        ValueError: there is something under the final name.
    """
    path = check_new_folder(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_path(path)
    with _named(path, temporary):
        temporary.mkdir()
    try:
        yield temporary
        try:
            os.rename(temporary, path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            raise _in_use(path) from error  # another process was quicker
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


@contextlib.contextmanager
def process_lock(path):
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


def nearest_folder(path):
    """Returns the folder of a path, or the nearest one above it that exists."""
    return next(each for each in pathlib.Path(path).absolute().parents if each.exists())


def explain_write_error(error, path):
    """Says in a sentence why a file could not be written, and what to do about it.

    Args:
        error: `OSError`.
        path: what was being written.

    Returns:
        (str, the reason; str, the remedy), without full stops.
    """
    number, reason = error.errno, error.strerror or str(error)
    folder = nearest_folder(path)
    if number == errno.ENOENT:
        reason = f"its folder is gone, {folder} is what is left of the path"
    remedies = {
        errno.ENOENT: "Was it renamed or removed? Put it back, or name it as it is called now",
        errno.ENOSPC: "Make room",
        errno.EDQUOT: "Make room",
        errno.EFBIG: "Raise the limit on the size of files (ulimit -f)",
        errno.EACCES: f"See to the permissions of {folder}",
        errno.EPERM: f"See to the permissions of {folder}",
        errno.EROFS: "Make the file system writable",
    }
    return reason, f"{remedies.get(number, 'See to the storage')}, then start again"


@contextlib.contextmanager
def wildcard_free_path(folder):
    """Gives a folder a path that TensorFlow does not take for a pattern.

    TensorFlow finds no checkpoint in a folder with brackets or a backslash in its path.

    Args:
        folder: an existing folder.

    Yields:
        `pathlib.Path`: the folder itself, or a link to it that is there within the block.
    """
    folder = pathlib.Path(folder)
    if not _WILDCARDS & set(str(folder)):
        yield folder
        return
    with tempfile.TemporaryDirectory() as temporary:
        link = pathlib.Path(temporary) / "link"
        link.symlink_to(folder.absolute(), target_is_directory=True)
        yield link


def to_checked_json(values):
    """Returns JSON text that has its own checksum.

    Args:
        values: dict without the name `sha256`.
    """
    return json.dumps({_SUM: _sum_of(values), **values}, indent=2) + "\n"


def from_checked_json(content, *, remedy="Put it back from a copy"):
    """Returns the dict of a JSON file, if it is as `sealed` wrote it.

    Files of earlier versions have no checksum, and begin with another thing than one. So no bit
    that flips makes a new file pass for an old one.

    Args:
        content: bytes of the file.
        remedy: sentence about what to do.

    Raises:
        ValueError: not JSON, no object, or not what the checksum says.
    """
    try:
        values = _json_object(content)
    except ValueError as error:
        raise ValueError(f"{error}. {remedy}") from error
    if _SUM not in values and _is_hexadecimal(next(iter(values.values()), None), 64):
        raise ValueError(f"the name of its checksum is damaged ({_SUM}). {remedy}")
    found = values.pop(_SUM, None)
    if found is not None and found != _sum_of(values):
        raise ValueError(f"its content is not what its checksum says ({_SUM}). {remedy}")
    return values


def to_checked_line(record):
    """Returns one line of JSON that has its own checksum, as bytes.

    Args:
        record: dict without the name `crc32`.
    """
    body = json.dumps(record)
    comma = ", " if record else ""
    return f'{{"{_LINE_SUM}": "{zlib.crc32(body.encode()):08x}"{comma}{body[1:]}\n'.encode()


def from_checked_line(line):
    """Returns the record of a line, if it is as `to_checked_line` wrote it.

    Lines of earlier versions have no checksum.

    Args:
        line: bytes, without the newline.

    Raises:
        ValueError: not JSON, no object, or not what the checksum says.
    """
    record = _json_object(line)
    name, value = next(iter(record.items()), (None, None))
    if name == _LINE_SUM:
        del record[name]
        if to_checked_line(record) != line + b"\n":
            raise ValueError("not what its checksum says")
    elif _LINE_SUM in record or _is_hexadecimal(value, 8):
        # A line of earlier versions begins with another thing than a checksum under a damaged name.
        raise ValueError("the name of its checksum is damaged")
    return record


def _sum_of(values):
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _is_hexadecimal(value, length):
    return isinstance(value, str) and len(value) == length and set(value) <= set("0123456789abcdef")


def _json_object(content):
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise ValueError(f"not JSON ({reason})") from error
    if not isinstance(values, dict):
        raise ValueError("no JSON object")
    return values
