"""Cheaper forms of `ops.take` and `ops.reshape`: a decoding step calls them hundreds of times."""

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
