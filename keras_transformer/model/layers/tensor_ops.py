"""Reshaping and gathering in as few operations as it takes.

A step of decoding is a thousand small operations, and a third of them would take shapes apart and
put them together again, or look for negative indices.
"""

import keras
from keras import ops


def reshaped(x, shape):
    """`ops.reshape`, which need not find out one size that is not known when the graph is made.

    Args:
        x: tensor.
        shape: tuple of ints and scalar tensors, as `ops.shape` gives them.
    """
    unknown = [axis for axis, size in enumerate(shape) if not isinstance(size, int)]
    if len(unknown) == 1 and 0 not in shape[: unknown[0]] + shape[unknown[0] + 1 :]:
        shape = tuple(-1 if axis in unknown else size for axis, size in enumerate(shape))
    return ops.reshape(x, shape)


def as_rows(x):
    """Shape `(..., features)` -> `(rows, features)`, by no operation where it is that already."""
    return x if len(x.shape) == 2 else ops.reshape(x, (-1, x.shape[-1]))


def unflattened(rows, like):
    """Gives rows, made from those of `as_rows(like)`, the axes of `like` again."""
    return rows if len(like.shape) == 2 else reshaped(rows, (*ops.shape(like)[:-1], rows.shape[-1]))


def gathered(x, indices, axis=0):
    """`ops.take` of indices that are never negative.

    Args:
        x: tensor.
        indices: int tensor.
        axis: int.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.gather(x, indices, axis=axis)
    return ops.take(x, indices, axis=axis)


def product_transposed(x, y):
    """Matrix product of `x` and `y` transposed; no operation, nor one of its gradient, transposes.

    Args:
        x: float, shape `(..., rows, features)`.
        y: float, shape `(..., columns, features)`.

    Returns:
        Shape `(..., rows, columns)`.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.matmul(x, y, transpose_b=True)
    return ops.matmul(x, ops.swapaxes(y, -1, -2))


def picked(x, indices):
    """Picks along axis 1, for each row its own, by indices that are never negative.

    Args:
        x: tensor, shape `(rows, width, ...)`.
        indices: int32, shape `(rows, n)`.

    Returns:
        Shape `(rows, n, ...)`.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.gather(x, indices, axis=1, batch_dims=1)
    rows, width, *rest = ops.shape(x)
    first = ops.arange(rows, dtype="int32") * width
    return ops.take(ops.reshape(x, (-1, *rest)), first[:, None] + indices, axis=0)
