"""TensorFlow checkpoint files: written atomically, and verified before any value is used.

The checkpoint PREFIX has the files PREFIX.index and PREFIX.data-*. They are written under temporary names
and renamed, the index last: without its index a checkpoint does not exist. Every tensor has a checksum,
and all checksums are verified before a value is used.

A checkpoint holds a tree of variables: {part: {name: tf.Variable}} or {part: tf.Variable}.

Only functions that read or write tensors import TensorFlow, so that programs can reject a wrong path quickly.
"""

import contextlib
import errno
import hashlib
import os
import pathlib
import re
import shutil

import numpy as np

from keras_transformer.config.programs import StorageError
from keras_transformer.files import FULL, explain_write_error, fsync_path, nearest_folder, wildcard_free_path

_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


class DamagedError(ValueError):
    """The files of a checkpoint are damaged: missing, truncated, or not matching their checksums."""


def exists(prefix):
    """Whether a checkpoint exists, damaged or not."""
    return _index(prefix).exists()


def steps_in(folder):
    """Returns the N of every `step-N` in a folder, ascending."""
    return sorted(
        int(path.stem.removeprefix("step-"))
        for path in pathlib.Path(folder).glob("step-*.index")
        if path.stem.removeprefix("step-").isdecimal()
    )


def check_step(folder, step):
    """Raises `ValueError` if a folder has no `step-N` of this number; `None` is accepted."""
    saved = steps_in(folder)
    if step is not None and step not in saved:
        raise ValueError(f"{folder}: no checkpoint of step {step}. {available(saved)}")


def available(steps):
    """Returns the end of a message, with the steps of the checkpoints."""
    names = ", ".join(f"step-{step}" for step in steps)
    return f"Available: {names}." if steps else "There is no checkpoint."


def by_path(variables, owner=None):
    """Returns {path: tf.Variable} of Keras or TensorFlow variables.

    Args:
        variables: list of `keras.Variable` or `tf.Variable` with a `path`.
        owner: name that replaces the first part of each path, which Keras may have numbered.

    Raises:
        ValueError: two variables have the same path.
    """
    import keras

    variable_of = {}
    for variable in variables:
        name = variable.path
        if owner is not None:
            name = f"{owner}/{name.partition('/')[2]}"
        if name in variable_of:
            raise ValueError(f"Two variables have the path {name!r}.")
        variable_of[name] = variable.value if isinstance(variable, keras.Variable) else variable
    return variable_of


def flat(tree):
    """Flattens a tree to {"part" or "part/name": tf.Variable}."""
    variables = {}
    for part, value in tree.items():
        if isinstance(value, dict):
            variables.update({f"{part}/{name}": variable for name, variable in value.items()})
        else:
            variables[part] = value
    return variables


def write(tree, prefix, *, kept=""):
    """Writes a checkpoint; an earlier one of the same prefix stays until the new one is complete.

    Args:
        tree: variables to write.
        prefix: path prefix; its folder is created.
        kept: sentence for the error message that names what is still available.

    Raises:
        StorageError: the disk is full or not writable; no partial files remain.
    """
    import tensorflow as tf

    prefix = pathlib.Path(prefix)
    temporary = prefix.with_name(f"{prefix.name}_temp")
    size = sum(variable.shape.num_elements() * variable.dtype.size for variable in flat(tree).values())
    with storage_errors(prefix, size=size, kept=kept):
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            # No parents: if the run folder was renamed, they would recreate it under its old name.
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
    """Context manager that turns errors of writing `path` into a `StorageError` of one line.

    Args:
        path: path being written.
        size: number of bytes needed, for the message; 0 leaves it out.
        kept: sentence for the message that names what is still available.
    """
    import tensorflow as tf

    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        os_error = _as_os_error(error)
        reason, remedy = explain_write_error(os_error, path)
        room = f"It needs {size / 1e6:,.1f} MB." if size and os_error.errno in FULL else ""
        if room and os_error.errno == errno.ENOSPC:
            free = shutil.disk_usage(nearest_folder(path)).free
            room = f"It needs {size / 1e6:,.1f} MB; {free / 1e6:,.1f} MB are free."
        sentences = [f"{path}: cannot be written: {reason}.", room, kept, remedy]
        raise StorageError(" ".join(filter(None, sentences))) from error


def _as_os_error(error):
    """Returns the `OSError` behind an error of TensorFlow."""
    if isinstance(error, OSError):
        return error
    reason = _reason(error)
    # TensorFlow's message ends with that of the system, which is more precise than TensorFlow's class.
    text = reason.rpartition("; ")[2]
    number = next((number for number in errno.errorcode if os.strerror(number) == text), None)
    return OSError(reason) if number is None else OSError(number, text)


def load(tree, prefix, *, optional=()):
    """Restores a tree of variables; no variable changes unless everything matches.

    Checksums, names, shapes and dtypes are checked first.

    Args:
        tree: variables to assign.
        prefix: path prefix of the checkpoint.
        optional: prefixes of names that may be missing in the tree or in the checkpoint.

    Returns:
        set of str, the names in the checkpoint, in the form of `flat`.

    Raises:
        DamagedError: the files are damaged.
        ValueError: names, shapes or dtypes differ.
    """
    variables = flat(tree)
    expected = {name: (variable.shape.as_list(), variable.dtype) for name, variable in variables.items()}
    with _open_reader(prefix) as (stored, value_of):
        _check_same(prefix, expected, stored, optional)
        for name in stored:
            value_of(name)
        for name in expected.keys() & stored.keys():
            variables[name].assign(value_of(name))
    return set(stored)


def verify(prefix):
    """Verifies the checksums of all tensors of a checkpoint.

    Raises:
        DamagedError: the files are damaged.
    """
    with _open_reader(prefix) as (stored, value_of):
        for name in stored:
            value_of(name)


def sha256(prefix):
    """Returns the SHA-256 of a checkpoint's index, which has the name, shape and CRC-32C of every tensor.

    So it identifies the values without reading them: other values have, but for chance, another index.
    """
    return hashlib.sha256(_index(prefix).read_bytes()).hexdigest()


def names_of(prefix):
    """Returns the set of names in a checkpoint.

    Raises:
        DamagedError: the index is damaged.
    """
    with _open_reader(prefix) as (stored, _):
        return set(stored)


def read(prefix, part):
    """Returns {name: NumPy array} of one part of a checkpoint; empty if it has no such part.

    Raises:
        DamagedError: the files are damaged.
    """
    with _open_reader(prefix) as (stored, value_of):
        names = [name for name in stored if name.startswith(f"{part}/")]
        return {name.removeprefix(f"{part}/"): value_of(name) for name in names}


def assign(variables, values, prefix):
    """Assigns values to variables; no variable changes if names or shapes differ.

    Args:
        variables: {name: tf.Variable}.
        values: {name: NumPy array}, cast to the dtypes of the variables.
        prefix: origin of the values, for the error message.

    Raises:
        ValueError: names or shapes differ.
    """
    expected = {name: variable.shape.as_list() for name, variable in variables.items()}
    _check_same(prefix, expected, {name: list(value.shape) for name, value in values.items()})
    for name, variable in variables.items():
        variable.assign(values[name].astype(variable.dtype.as_numpy_dtype))


def delete(prefix):
    """Removes the files of a checkpoint, the index first; a missing checkpoint is ignored."""
    _index(prefix).unlink(missing_ok=True)
    for path in _files(prefix):
        path.unlink()


def move(prefix, folder):
    """Moves the files of a checkpoint into a folder, which is created."""
    folder.mkdir(exist_ok=True)
    for path in _files(prefix):
        os.replace(path, folder / path.name)


def clean(folder, *, kept=()):
    """Removes temporary and partial files of a killed process from a folder.

    Args:
        folder: path, which need not exist.
        kept: names of checkpoints to leave alone even if their index is missing.
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
    """Context manager: {name: (shape, dtype)} of a checkpoint, and a function that reads a tensor by name."""
    import tensorflow as tf

    @contextlib.contextmanager
    def damage_errors():
        try:
            yield
        except (IndexError, RuntimeError, ValueError, tf.errors.OpError) as error:
            reason = _reason(error)
            if "newer version" in reason:  # TensorFlow's guess about a damaged index
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
        # TensorFlow escapes a slash within a name as `.S` and a dot as `..`.
        keys = {
            re.sub(r"\.([.S])", lambda match: "/" if match[1] == "S" else ".", key.removesuffix(_VALUE)): key
            for key in shapes
            if key.endswith(_VALUE) and not key.startswith("save_counter/")
        }
        yield {name: (shapes[key], dtypes[key]) for name, key in keys.items()}, value_of


def _check_same(prefix, expected, stored, optional=()):
    """Raises `ValueError` unless {name: shape, or (shape, dtype)} is the same in the run and in the files."""
    for name in sorted({*expected, *stored}):
        if name not in expected or name not in stored:
            if not name.startswith(tuple(optional)):
                has, lacks = ("file", "run") if name in stored else ("run", "file")
                raise ValueError(
                    f"{prefix}: a different model: {name} is in the {has} but not in the {lacks}"
                )
        elif stored[name] != expected[name]:
            raise ValueError(
                f"{prefix}: a different model: {name} is {stored[name]} in the file and "
                f"{expected[name]} in this run"
            )


def _reason(error):
    """Returns the first line of an error without the names of operations and temporary files."""
    line = (str(error) or type(error).__name__).splitlines()[0]
    line = re.sub(r"\{\{.*?\}\} | \[Op:\w+\]", "", line)
    return re.sub(r"^\S+; ", "", line).rstrip(".")


def _index(prefix):
    return pathlib.Path(f"{prefix}.index")


def _files(prefix):
    return [path for end in ("data-*", "index") for path in prefix.parent.glob(f"{prefix.name}.{end}")]
