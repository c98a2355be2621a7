"""Reshaping and gathering, of which a step of decoding has hundreds."""

import keras
from keras import ops


def gather(x, indices, axis=0):
    """`ops.take`, but TensorFlow on a CPU refuses negative indices, where `ops.take` counts from the end.

    Args:
        x: tensor.
        indices: int tensor.
        axis: int.
    """
    if keras.backend.backend() != "tensorflow":
        return ops.take(x, indices, axis=axis)
    import tensorflow as tf

    return tf.gather(x, indices, axis=axis)


def take_along(x, indices):
    """Picks along axis 1, for each row its own; TensorFlow on a CPU refuses negative indices, as in `gather`.

    Args:
        x: tensor, shape `(rows, width, ...)`.
        indices: int32, shape `(rows, n)`, not negative.

    Returns:
        Shape `(rows, n, ...)`.
    """
    if keras.backend.backend() != "tensorflow":
        rows, width, *rest = ops.shape(x)
        first = ops.arange(rows, dtype="int32") * width
        return ops.take(ops.reshape(x, (-1, *rest)), first[:, None] + indices, axis=0)
    import tensorflow as tf

    return tf.gather(x, indices, axis=1, batch_dims=1)


def reshape_static(x, shape):
    """`ops.reshape` that need not find out one size that is not known when the graph is made.

    Args:
        x: tensor.
        shape: tuple of ints and scalar tensors, as `ops.shape` gives them.
    """
    unknown = [axis for axis, size in enumerate(shape) if not isinstance(size, int)]
    if len(unknown) == 1 and 0 not in shape[: unknown[0]] + shape[unknown[0] + 1 :]:
        shape = tuple(-1 if axis in unknown else size for axis, size in enumerate(shape))
    return ops.reshape(x, shape)


def flatten_leading_axes(x):
    """Shape `(..., features)` -> `(rows, features)`, by no operation where it is that already."""
    return x if len(x.shape) == 2 else ops.reshape(x, (-1, x.shape[-1]))


def restore_leading_axes(rows, like):
    """Gives rows, made from those of `flatten_leading_axes(like)`, the axes of `like` again."""
    if len(like.shape) == 2:
        return rows
    return reshape_static(rows, (*ops.shape(like)[:-1], rows.shape[-1]))
