"""TensorFlow checkpoint files: complete or invisible, and whole or refused.

The files of a prefix are PREFIX.index and PREFIX.data-*. They appear by renaming, the index
last: without its index a prefix does not exist. Every tensor has a checksum, and all of them
are looked at before a value is used.

TensorFlow is imported by what reads and writes tensors, not by what looks for files: a program may so refuse
a run that is not there at once.

A tree is what is written: {part: {name: tf.Variable}} or {part: tf.Variable}.
"""

import contextlib
import errno
import os
import pathlib
import re
import shutil

import numpy as np

from keras_transformer.config.programs import StorageError
from keras_transformer.files import FULL, explain_write_error, fsync_path, nearest_folder, wildcard_free_path

_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


class DamagedError(ValueError):
    """Files that are not as they were written."""


def exists(prefix):
    """Whether there are files of `prefix`, whole or not."""
    return _index(prefix).exists()


def steps_in(folder):
    """Returns the N of every `step-N` in a folder, ascending."""
    return sorted(
        int(path.stem.removeprefix("step-"))
        for path in pathlib.Path(folder).glob("step-*.index")
        if path.stem.removeprefix("step-").isdecimal()
    )


def by_path(variables, owner=None):
    """Returns {path: tf.Variable} of Keras or TensorFlow variables.

    Args:
        variables: list of `keras.Variable` or `tf.Variable` with a `path`.
        owner: stands for the path's first part, as Keras numbers it.

    Raises:
        ValueError: two have the same path.
    """
    import keras

    found = {}
    for variable in variables:
        name = variable.path
        if owner is not None:
            name = f"{owner}/{name.partition('/')[2]}"
        if name in found:
            raise ValueError(f"Two variables have the path {name!r}.")
        found[name] = variable.value if isinstance(variable, keras.Variable) else variable
    return found


def flat(tree):
    """Returns {"part" or "part/name": tf.Variable} of a tree."""
    found = {}
    for part, value in tree.items():
        if isinstance(value, dict):
            found.update({f"{part}/{name}": variable for name, variable in value.items()})
        else:
            found[part] = value
    return found


def write(tree, prefix, *, kept=""):
    """Writes a tree; until all of it is written, what `prefix` held before is there.

    Args:
        tree: variables to write.
        prefix: path; its folder is made.
        kept: sentence for the error, about what is still there.

    Raises:
        StorageError: there is no room or no permission; nothing of it is left behind.
    """
    import tensorflow as tf

    prefix = pathlib.Path(prefix)
    temporary = prefix.with_name(f"{prefix.name}_temp")
    size = sum(variable.shape.num_elements() * variable.dtype.size for variable in flat(tree).values())
    with storage_errors(prefix, size=size, kept=kept):
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            # Not the folders above: where the run was renamed they would begin another one.
            prefix.parent.mkdir(exist_ok=True)
            temporary.mkdir()
            tf.train.Checkpoint(**tree).write(str(temporary / prefix.name))
            written = sorted(temporary.glob(f"{prefix.name}.*"))
            for path in written:
                fsync_path(path)
            delete(prefix)
            for path in written:  # the index is the last one in alphabetical order
                os.replace(path, prefix.with_name(path.name))
            fsync_path(prefix.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def storage_errors(path, *, size=0, kept=""):
    """Turns failures to write `path` into a `StorageError` of one line.

    Args:
        path: what is being written.
        size: bytes it needs; 0 where that is not worth saying.
        kept: sentence about what is still there.
    """
    import tensorflow as tf

    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        failed = _as_os_error(error)
        reason, remedy = explain_write_error(failed, path)
        room = f"It needs {size / 1e6:,.1f} MB." if size and failed.errno in FULL else ""
        if room and failed.errno == errno.ENOSPC:
            free = shutil.disk_usage(nearest_folder(path)).free
            room = f"It needs {size / 1e6:,.1f} MB, {free / 1e6:,.1f} MB are free."
        said = [f"{path}: cannot be written: {reason}.", room, kept, remedy]
        raise StorageError(" ".join(filter(None, said))) from error


def _as_os_error(error):
    """What the system said, of an error of TensorFlow's."""
    if isinstance(error, OSError):
        return error
    reason = _reason(error)
    # TensorFlow's classes tell less than the words of the system, which end the message.
    words = reason.rpartition("; ")[2]
    number = next((number for number in errno.errorcode if os.strerror(number) == words), None)
    return OSError(reason) if number is None else OSError(number, words)


def load(tree, prefix, *, optional=()):
    """Reads a tree. Checksums, names, shapes and dtypes are all compared before anything changes.

    Args:
        tree: variables to fill.
        prefix: path.
        optional: parts, or beginnings of names, that may be missing on either side.

    Returns:
        set of str, the names (as `flat` has them) that the files hold.

    Raises:
        DamagedError: the files are not whole.
        ValueError: they hold something else.
    """
    variables = flat(tree)
    wanted = {name: (variable.shape.as_list(), variable.dtype) for name, variable in variables.items()}
    with _open_reader(prefix) as (stored, value_of):
        _check_same(prefix, wanted, stored, optional)
        for name in stored:
            value_of(name)
        for name in wanted.keys() & stored.keys():
            variables[name].assign(value_of(name))
    return set(stored)


def verify(prefix):
    """Looks at every checksum.

    Raises:
        DamagedError: the files are not whole.
    """
    with _open_reader(prefix) as (stored, value_of):
        for name in stored:
            value_of(name)


def names_of(prefix):
    """Returns the set of names that the files of `prefix` hold.

    Raises:
        DamagedError: the index is not whole.
    """
    with _open_reader(prefix) as (stored, _):
        return set(stored)


def read(prefix, part):
    """Returns {name: NumPy array} of one part of a tree; empty where there is no such part.

    Raises:
        DamagedError: the files are not whole.
    """
    with _open_reader(prefix) as (stored, value_of):
        names = [name for name in stored if name.startswith(f"{part}/")]
        return {name.removeprefix(f"{part}/"): value_of(name) for name in names}


def assign(variables, values, prefix):
    """Puts values into variables, all or none.

    Args:
        variables: {name: tf.Variable}.
        values: {name: NumPy array}; they are cast.
        prefix: where the values are from, for the error.

    Raises:
        ValueError: names or shapes differ.
    """
    wanted = {name: variable.shape.as_list() for name, variable in variables.items()}
    _check_same(prefix, wanted, {name: list(value.shape) for name, value in values.items()})
    for name, variable in variables.items():
        variable.assign(values[name].astype(variable.dtype.as_numpy_dtype))


def delete(prefix):
    """Removes the files of `prefix`, the index first; it may be missing."""
    _index(prefix).unlink(missing_ok=True)
    for path in _files(prefix):
        path.unlink()


def move(prefix, folder):
    """Moves the files of `prefix` into a folder, which is made."""
    folder.mkdir(exist_ok=True)
    for path in _files(prefix):
        os.replace(path, folder / path.name)


def clean(folder, *, kept=()):
    """Removes what a killed process left in a folder.

    Args:
        folder: path; it may be missing.
        kept: names of prefixes that are left alone.
    """
    folder = pathlib.Path(folder)
    for pattern in ("*_temp*", ".*.tmp", "checkpoint.tmp*"):
        for path in folder.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in folder.glob("*.data-*"):
        name = path.name.rpartition(".data-")[0]
        if name not in kept and not exists(folder / name):
            path.unlink()


@contextlib.contextmanager
def _open_reader(prefix):
    """Yields {name: (shape, dtype)} of the tensors of `prefix`, and a function that reads one by name."""
    import tensorflow as tf

    @contextlib.contextmanager
    def damage_errors():
        try:
            yield
        except (IndexError, RuntimeError, ValueError, tf.errors.OpError) as error:
            reason = _reason(error)
            if "newer version" in reason:  # TensorFlow's guess of why it cannot read an index
                reason = "its index cannot be read"
            raise DamagedError(f"{prefix}: damaged: {reason}") from error

    def value_of(name):
        with damage_errors():
            return np.asarray(reader.get_tensor(keys[name]))

    prefix = pathlib.Path(prefix)
    with wildcard_free_path(prefix.parent) as folder:
        with damage_errors():
            reader = tf.train.load_checkpoint(str(folder / prefix.name))
            shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
            reader.get_tensor("_CHECKPOINTABLE_OBJECT_GRAPH")
        # TensorFlow writes `.S` for a slash within a name, and `..` for a dot.
        keys = {
            re.sub(r"\.([.S])", lambda found: "/" if found[1] == "S" else ".", key.removesuffix(_VALUE)): key
            for key in shapes
            if key.endswith(_VALUE) and not key.startswith("save_counter/")
        }
        yield {name: (shapes[key], dtypes[key]) for name, key in keys.items()}, value_of


def _check_same(prefix, wanted, stored, optional=()):
    """Compares {name: shape, or shape and dtype} of the run with that of the files."""
    for name in sorted({*wanted, *stored}):
        if name not in wanted or name not in stored:
            if not name.startswith(tuple(optional)):
                has, lacks = ("file", "run") if name in stored else ("run", "file")
                raise ValueError(f"{prefix}: of another model: the {has} has {name}, the {lacks} has not")
        elif stored[name] != wanted[name]:
            raise ValueError(
                f"{prefix}: of another model: {name} is {stored[name]} in the file, "
                f"{wanted[name]} in this run"
            )


def _reason(error):
    """The first line of an error, without the operation and the temporary file that met it."""
    line = (str(error) or type(error).__name__).splitlines()[0]
    line = re.sub(r"\{\{.*?\}\} | \[Op:\w+\]", "", line)
    return re.sub(r"^\S+; ", "", line).rstrip(".")


def _index(prefix):
    return pathlib.Path(f"{prefix}.index")


def _files(prefix):
    return [path for end in ("data-*", "index") for path in prefix.parent.glob(f"{prefix.name}.{end}")]
