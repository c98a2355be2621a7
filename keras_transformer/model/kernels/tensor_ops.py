"""Cheaper forms of `ops.take` and `ops.reshape`: a decoding step calls them hundreds of times."""

import functools
import pathlib

import keras
from keras import ops


def gather(x, indices, axis=0):
    """Like `ops.take`, but without support for negative indices (an error in TensorFlow on a CPU).

    Args:
        x: tensor.
        indices: int tensor, not negative.
        axis: int.
    """
    if keras.backend.backend() != "tensorflow":
        return ops.take(x, indices, axis=axis)
    import tensorflow as tf

    return tf.gather(x, indices, axis=axis)


def take_along(x, indices):
    """Takes elements along axis 1, with separate indices for each row: `out[i, j] = x[i, indices[i, j]]`.

    Args:
        x: tensor, shape `(rows, width, ...)`.
        indices: int32, shape `(rows, n)`, not negative.

    Returns:
        Shape `(rows, n, ...)`.
    """
    if keras.backend.backend() != "tensorflow":
        # Not with indices into the reshaped `x`: `rows * width` can exceed int32.
        indices = ops.reshape(indices, (*ops.shape(indices), *[1] * (len(x.shape) - 2)))
        return ops.take_along_axis(x, indices, axis=1)
    import tensorflow as tf

    return tf.gather(x, indices, axis=1, batch_dims=1)


def reshape_static(x, shape):
    """Like `ops.reshape`, but passes -1 for a single unknown size, so the graph need not compute it.

    Args:
        x: tensor.
        shape: tuple of ints and scalar tensors, as from `ops.shape`.
    """
    unknown = [axis for axis, size in enumerate(shape) if not isinstance(size, int)]
    if len(unknown) == 1 and 0 not in shape[: unknown[0]] + shape[unknown[0] + 1 :]:
        shape = tuple(-1 if axis in unknown else size for axis, size in enumerate(shape))
    return ops.reshape(x, shape)


def merge_slots(ids):
    """Reshapes `(batch, n, length)` to `(batch * n, length)`."""
    return ops.reshape(ids, (-1, ops.shape(ids)[2]))


def write_at(ids, new_ids, position):
    """Writes `new_ids`, shape `(...)`, to index `position` of `ids`, `(..., length)`."""
    here = ops.arange(ops.shape(ids)[-1], dtype="int32") == position
    return ops.where(here, new_ids[..., None], ids)


def flatten_leading_axes(x):
    """Reshapes `(..., features)` to `(rows, features)`; no operation if `x` already has two axes."""
    return x if len(x.shape) == 2 else ops.reshape(x, (-1, x.shape[-1]))


def restore_leading_axes(rows, like):
    """Undoes `flatten_leading_axes`: gives `rows` the leading axes of `like`."""
    if len(like.shape) == 2:
        return rows
    return reshape_static(rows, (*ops.shape(like)[:-1], rows.shape[-1]))


def on_cpu():
    """Returns whether TensorFlow has no GPU, for kernels that are faster, or correct, on a CPU only."""
    import tensorflow as tf

    return not tf.config.list_physical_devices("GPU")


@functools.cache
def reads_matrices_in_place(cpuinfo="/proc/cpuinfo"):
    """Returns whether oneDNN's products of few rows read a matrix where it is, without packing it.

    They do so on x86 processors without AVX-512. `False` if the file that describes the processors is absent.
    """
    path = pathlib.Path(cpuinfo)
    flags = set(path.read_text(encoding="utf-8").split()) if path.is_file() else set()
    return "avx2" in flags and "avx512f" not in flags


def owned(x):
    """Returns `x` in memory that only the caller uses, for an update in place.

    Copies only if something else may still read `x`. TensorFlow computes equal operations once, and constants
    before the first call: their memory would be shared. It does neither for what depends on `Empty`, an
    operation with state. The update must not be inside a `tf.while_loop`: there, the memory of constants is
    shared all the same (seen with TensorFlow 2.21).

    Args:
        x: TensorFlow tensor with at least one axis.
    """
    import tensorflow as tf

    zero = tf.raw_ops.Empty(shape=[], dtype=tf.int32, init=True)
    first, *others = tf.unstack(tf.shape(x), num=len(x.shape))
    result = tf.raw_ops.Snapshot(input=tf.reshape(x, (first + zero, *others)))
    result.set_shape(x.shape)
    return result


def set_rows(x, rows, values):
    """Sets `x[rows]` to `values` in the memory of `x`, on a CPU.

    Args:
        x: TensorFlow tensor, result of `owned` or of `set_rows`; it may only be used through the result. (A
            scatter operation copies the whole of it.)
        rows: int32, shape `(n,)`.
        values: same dtype as `x`, shape `(n, ...)`.
    """
    import tensorflow as tf

    return tf.raw_ops.InplaceUpdate(x=x, i=rows, v=values)


def add_to_rows(x, rows, values):
    """Returns `x` with `values` added to `x[rows]`; a row may be listed several times.

    On a CPU, in the memory of `x` if nothing else may still read it.

    Args:
        x: TensorFlow tensor, at least two axes.
        rows: int32, shape `(n,)`.
        values: same dtype as `x`, shape `(n, ...)`.
    """
    import tensorflow as tf

    if on_cpu():
        return tf.raw_ops.InplaceAdd(x=owned(x), i=rows, v=values)
    return tf.tensor_scatter_nd_add(x, rows[:, None], values)
