"""Atomic file writes, process locks, and JSON with checksums."""

import contextlib
import errno
import fcntl
import glob
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
# Error numbers of a full disk, an exceeded quota and a file beyond the size limit.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# TensorFlow finds the files of a checkpoint by glob patterns, in which these characters are special.
_WILDCARDS = frozenset("[]\\")


def write_atomically(path, data):
    """Writes a file under a temporary name in the same folder, then renames it.

    Args:
        path: the final path; its folder exists.
        data: bytes.

    Raises:
        OSError: the file cannot be written; no temporary file remains.
    """
    with open_atomically(path) as file:
        file.write(data)


def fsync_path(path):
    """Calls `fsync` on a file or a folder: waits until its content is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def open_atomically(path):
    """Context manager that opens a temporary binary file and renames it to `path` at the end.

    An existing `path` that is not a regular file, such as `/dev/null` or a named pipe, is opened directly,
    and so is `/dev/stdout`. If `path` is a symbolic link, the file that it names is replaced.

    Args:
        path: the final path; its folder exists.

    Raises:
        OSError: the file cannot be written; the error names `path`. After any exception no temporary
            file remains.
    """
    path = pathlib.Path(path)
    if _is_stream(path):
        with path.open("ab") as file:  # `wb` would empty what the shell's `>>` appends to
            yield file
        return
    if path.is_symlink():
        path = pathlib.Path(os.path.realpath(path))
    temporary = temporary_path(path)
    with _named(path, temporary):
        # Not `tempfile`, which ignores the user's umask and makes private files.
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
    """Returns an unused path in the same folder, `.NAME.RANDOM.tmp`; cleaning up removes `.*.tmp`."""
    path = pathlib.Path(path)
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


@contextlib.contextmanager
def _named(path, temporary):
    """Context manager that puts the final path into an `OSError` with the temporary path, or without one."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(temporary)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def _is_stream(path):
    """Whether an existing path is opened directly, not replaced."""
    is_link = path.is_symlink() and os.path.abspath(path).startswith(("/dev/", "/proc/"))
    return path.exists() and (is_link or not path.is_file())


def check_output(path, *inputs):
    """Raises `ValueError` if an output file cannot be written, or is one of the inputs.

    Raises:
        ValueError: its folder does not exist or is not writable, it is a folder, or it is one of `inputs`.
    """
    path = pathlib.Path(path)
    if not path.parent.is_dir():
        raise ValueError(f"{path}: its folder does not exist. Create it first")
    if path.is_dir():
        raise ValueError(f"{path} is a folder. Choose a file in it")
    if not _is_stream(path) and not os.access(os.path.dirname(os.path.realpath(path)), os.W_OK):
        raise ValueError(f"{path}: its folder is not writable. Choose another")
    for other in inputs:
        if path.is_file() and os.path.exists(other) and os.path.samefile(path, other):
            raise ValueError(f"{path} is also an input. Write to another file")


def write_text(path, text):
    """Writes UTF-8 text atomically; see `write_atomically`.

    Raises:
        OSError: the file cannot be written; no temporary file remains.
    """
    write_atomically(path, text.encode("utf-8"))


def check_new_folder(path):
    """Checks that a folder does not exist or is empty; returns its path with symbolic links resolved.

    Raises:
        ValueError: the path is a file or a folder that is not empty.
    """
    path = pathlib.Path(os.path.realpath(path))
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise _in_use(path)
    return path


def _in_use(path):
    return ValueError(f"{path}: exists and is not an empty folder. Delete it, or choose another")


@contextlib.contextmanager
def create_folder_atomically(path):
    """Context manager that creates a temporary folder and renames it to `path` at the end.

    All files are on the disk before the folder has its final name, so a power cut leaves no truncated ones.

    Args:
        path: the final path; missing or an empty folder. Its parents are created.

    Yields:
        `pathlib.Path` of the temporary folder. It is removed after an exception within the block.

    Raises:
        ValueError: the path is a file or a folder that is not empty.
    """
    path = check_new_folder(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_path(path)
    with _named(path, temporary):
        temporary.mkdir()
    try:
        yield temporary
        for child in temporary.rglob("*"):
            fsync_path(child)
        fsync_path(temporary)
        try:
            os.rename(temporary, path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            raise _in_use(path) from error  # another process has created it meanwhile
        fsync_path(path.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def remove_leftover_folders(path):
    """Removes the temporary folders that killed calls of `create_folder_atomically` left for `path`.

    Call it only where no other process creates the same folder.
    """
    path = pathlib.Path(path)
    for left in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 8}.tmp"):
        if left.is_dir():
            shutil.rmtree(left)


@contextlib.contextmanager
def process_lock(path, *, waits=False):
    """Context manager that locks a file; the lock is released when the process ends, even if killed.

    Args:
        path: the lock file, created if missing.
        waits: whether to wait for another process that holds the lock.

    Yields:
        The open lock file.

    Raises:
        ValueError: another process holds the lock.
    """
    path = pathlib.Path(path)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except BlockingIOError:
            raise ValueError(
                f"{path.parent}: another process is using this folder. Wait for it, or choose another folder"
            ) from None
        yield file


def nearest_folder(path):
    """Returns the nearest parent folder of a path that exists."""
    return next(parent for parent in pathlib.Path(path).absolute().parents if parent.exists())


def explain_write_error(error, path):
    """Explains why a file could not be written, for error messages.

    Args:
        error: `OSError`.
        path: path being written.

    Returns:
        (str, the reason; str, the remedy), without full stops.
    """
    number, reason = error.errno, error.strerror or str(error)
    folder = nearest_folder(path)
    if number == errno.ENOENT:
        reason = f"its folder no longer exists; of the path only {folder} does"
    remedies = {
        errno.ENOENT: "If it was renamed, use the new name; if it was deleted, restore it",
        errno.ENOSPC: "Free disk space",
        errno.EDQUOT: "Free disk space",
        errno.EFBIG: "Raise the limit on file sizes (ulimit -f)",
        errno.EACCES: f"Check the permissions of {folder}",
        errno.EPERM: f"Check the permissions of {folder}",
        errno.EROFS: "Make the file system writable",
    }
    return reason, f"{remedies.get(number, 'Check the storage')}, then run the command again"


@contextlib.contextmanager
def wildcard_free_path(folder):
    """Context manager: a path of a folder without special characters of glob patterns.

    TensorFlow finds no checkpoint in a folder with brackets or a backslash in its path.

    Args:
        folder: an existing folder.

    Yields:
        `pathlib.Path`: the folder itself, or a temporary symbolic link to it.
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
    """Returns JSON text with a checksum of its content under the key `sha256`.

    Args:
        values: dict without the key `sha256`.
    """
    return json.dumps({_SUM: _sum_of(values), **values}, indent=2) + "\n"


def from_checked_json(content, *, remedy="Restore it from a copy"):
    """Returns the dict of a JSON file that `to_checked_json` wrote, after verifying its checksum.

    Files of earlier versions have no checksum; their first value never looks like one. So a file whose
    key `sha256` is damaged cannot pass for an earlier one.

    Args:
        content: bytes of the file.
        remedy: sentence for the error message.

    Raises:
        ValueError: the content is not a JSON object, or does not match its checksum.
    """
    try:
        values = _json_object(content)
    except ValueError as error:
        raise ValueError(f"{error}. {remedy}") from error
    if _SUM not in values and _is_hexadecimal(next(iter(values.values()), None), 64):
        raise ValueError(f"the field of its checksum is damaged ({_SUM}). {remedy}")
    checksum = values.pop(_SUM, None)
    if checksum is not None and checksum != _sum_of(values):
        raise ValueError(f"its content does not match its checksum ({_SUM}). {remedy}")
    return values


def to_checked_line(record):
    """Returns one line of JSON, bytes, with a checksum of its content under the key `crc32`.

    Args:
        record: dict without the key `crc32`.
    """
    body = json.dumps(record)
    comma = ", " if record else ""
    return f'{{"{_LINE_SUM}": "{zlib.crc32(body.encode()):08x}"{comma}{body[1:]}\n'.encode()


def from_checked_line(line):
    """Returns the record of a line that `to_checked_line` wrote, after verifying its checksum.

    Lines of earlier versions have no checksum.

    Args:
        line: bytes, without the newline.

    Raises:
        ValueError: the line is not a JSON object, or does not match its checksum.
    """
    record = _json_object(line)
    name, value = next(iter(record.items()), (None, None))
    if name == _LINE_SUM:
        del record[name]
        if to_checked_line(record) != line + b"\n":
            raise ValueError("does not match its checksum")
    elif _LINE_SUM in record or _is_hexadecimal(value, 8):
        # The first value of an earlier version's line never looks like a checksum.
        raise ValueError("the field of its checksum is damaged")
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
        raise ValueError("not a JSON object")
    return values
