"""Kernels for products with weights: x W, its gradient, and the products of a decoding step."""

import math

from keras import ops

from keras_transformer.model.kernels.switch import (
    custom_gradient,
    in_decoding_step,
    in_exported_graph,
    kernel,
    transposed_copy,
    uses_fast_forms,
)
from keras_transformer.model.kernels.tensor_ops import on_cpu, reads_matrices_in_place

# In a decoding step on a CPU, a product of at most so many rows with a matrix of at least so many elements is
# computed as two halves.
FEW_ROWS = 16
LARGE_MATRIX = 2**18
# Matrices are copied transposed at the start of a search if its first step has more rows than this. With
# fewer, the copies cost more than they save.
COPIED_FROM_ROWS = 32
MAX_COPIED_ELEMENTS = 2**25  # 134 MB; `base` has 12.6 million in its decoder's feed-forward networks
_CONFLICTING = 512  # a matrix is slow if its number of columns is a multiple of this, see `transposed_copies`
_ALIGNED = 32  # rows of a slice that TensorFlow does not copy start at multiples of 64 bytes
# Without AVX-512, oneDNN reads both operands of a product in place if 1 / height + 1 / width of the result is
# at least this.
_SMALL_RESULT = 0.0038
_PADDING = 16
_PADDED_MULTIPLE = 256  # operands that are a multiple of this wide are padded, see `weight_gradient`
_MAX_PADDED_WIDTH = 8192  # not the probabilities of a vocabulary: a copy would need much memory


@kernel
def product(rows, weights, *, transposed=False):
    """Computes `rows @ weights`.

    Args:
        rows: float, shape `(rows, features)`.
        weights: float, shape `(features, units)`.
        transposed: `weights` has the shape `(units, features)` instead.

    Returns:
        float, shape `(rows, units)`.
    """
    return ops.matmul(rows, ops.transpose(weights) if transposed else weights)


@product.fast_form
def _product(rows, weights, *, transposed=False):
    """Fast form of `product`: chooses the form whose weight gradient is cheaper; in decoding, see `_halves`.

    TensorFlow differentiates `x @ W` to `x.T @ g`, and `x @ (W.T).T` to `g.T @ x`. The second form is up to
    a seventh faster on a CPU if W has more rows than columns; the double transpose itself costs nothing. On
    CPUs without AVX-512, `weight_gradient` is faster than both for some matrices.
    """
    import tensorflow as tf

    if in_decoding_step() and _is_large(weights) and on_cpu():
        return _step_product(rows, weights, transposed)
    if not transposed and not in_decoding_step() and pads_operands(rows.dtype, *weights.shape):
        return _padded_product(rows, tf.convert_to_tensor(weights))
    if transposed or weights.shape[0] <= weights.shape[1]:
        return ops.matmul(rows, ops.transpose(weights) if transposed else weights)
    return tf.matmul(rows, tf.transpose(tf.convert_to_tensor(weights)), transpose_b=True)


def _padded_product(rows, weights):
    """Computes `product`, and its weight gradient as `weight_gradient` does."""
    import tensorflow as tf

    @custom_gradient
    def forward(rows, weights):
        def gradient(upstream):
            of_rows = tf.matmul(upstream, weights, transpose_b=True)
            return of_rows, weight_gradient(rows, upstream, weights.shape)

        return tf.matmul(rows, weights), gradient

    return forward(rows, weights)


def pads_operands(dtype, features, units):
    """Returns whether `weight_gradient` pads its operands here, for weights of shape `(features, units)`."""
    return (
        dtype == "float32"
        and 1 / features + 1 / units >= _SMALL_RESULT
        and any(_is_padded(width) for width in (features, units))
        and reads_matrices_in_place()
        and on_cpu()
    )


def _is_padded(width):
    return width % _PADDED_MULTIPLE == 0 and width <= _MAX_PADDED_WIDTH


def weight_gradient(rows, upstream, shape):
    """Computes `rows.T @ upstream`, the gradient of the weights in `rows @ weights`, in TensorFlow.

    Without AVX-512, oneDNN reads the operands in place if the result is small. If the rows of an operand are
    a multiple of 1 KB long, the elements of a column share a few lines of the cache. So such operands are
    copied with 16 more columns of zeros: on a Zen 3, 1.1 to 1.8 times as fast, copies included.

    Args:
        rows: float, shape `(rows, features)`.
        upstream: float, shape `(rows, units)`.
        shape: `(features, units)`, ints.

    Returns:
        float, shape `(features, units)`.
    """
    import tensorflow as tf

    if not pads_operands(rows.dtype, *shape):
        return tf.matmul(rows, upstream, transpose_a=True)
    zeros = tf.zeros((tf.shape(rows)[0], _PADDING))
    padded = [
        tf.concat([operand, zeros], axis=1) if _is_padded(width) else operand
        for operand, width in zip((rows, upstream), shape, strict=True)
    ]
    return tf.matmul(*padded, transpose_a=True)[: shape[0], : shape[1]]


def _is_large(weights):
    # Square matrices are products of attention: a step has several side by side, so they need no halves, and
    # a choice between two forms costs more than it saves.
    return math.prod(weights.shape) >= LARGE_MATRIX and weights.shape[0] != weights.shape[1]


def _step_product(rows, weights, transposed):
    """Computes `product` in a decoding step: few rows in halves, more by the transposed copy, if any."""
    import tensorflow as tf

    copy, weights = transposed_copy(weights), tf.convert_to_tensor(weights)

    def whole():
        return tf.matmul(rows, weights, transpose_b=transposed)

    def by_copy():
        result = tf.matmul(rows, copy, transpose_b=True)
        result.set_shape((None, weights.shape[1]))
        return result

    return tf.cond(
        tf.shape(rows)[0] <= FEW_ROWS,
        lambda: _halves(rows, weights, transposed),
        whole if copy is None else lambda: tf.cond(tf.shape(copy)[0] > 0, by_copy, whole),
    )


def _halves(rows, weights, transposed):
    """Computes `product` as two independent products, which TensorFlow runs on two cores.

    With few rows, reading the weights takes most of the time, and one core does not use the whole memory
    bandwidth. Two cores that share one product (intra-op threads) were slower than one core.
    """
    import tensorflow as tf

    half = weights.shape[0] // 2 // _ALIGNED * _ALIGNED
    first, last = weights[:half], weights[half:]
    if transposed:
        parts = [tf.matmul(rows, part, transpose_b=True) for part in (first, last)]
        return tf.concat(parts, axis=-1)
    return tf.matmul(rows[:, :half], first) + tf.matmul(rows[:, half:], last)


def transposed_copies(matrices, num_rows):
    """Returns transposed copies of matrices, for the products of many decoding steps.

    Without AVX-512, oneDNN reads the matrix of a product of fewer than about 350 rows in place. If the rows
    of that matrix are a multiple of 2 KB long, the elements of a column share a few lines of the cache, and
    the product takes 1.2 to 1.8 times as long as by the transposed matrix.

    Args:
        matrices: list of Keras variables, float32, shape `(features, units)`.
        num_rows: int32, scalar, rows of the first step.

    Returns:
        dict, id of a matrix -> tensor, shape `(units, features)`, for `reading_copies`; `(0, features)` if
        there are too few rows. It has only the matrices for which this helps here, none if they are more than
        `MAX_COPIED_ELEMENTS` together, and none in a graph that is exported.
    """
    if not uses_fast_forms() or in_exported_graph() or not on_cpu() or not reads_matrices_in_place():
        return {}
    import tensorflow as tf

    chosen = [matrix for matrix in matrices if _is_large(matrix) and matrix.shape[1] % _CONFLICTING == 0]
    if not chosen or sum(math.prod(matrix.shape) for matrix in chosen) > MAX_COPIED_ELEMENTS:
        return {}
    copies = tf.cond(
        tf.convert_to_tensor(num_rows) > COPIED_FROM_ROWS,
        lambda: [tf.transpose(tf.convert_to_tensor(matrix)) for matrix in chosen],
        lambda: [tf.zeros((0, matrix.shape[0])) for matrix in chosen],
    )
    return {id(matrix): copy for matrix, copy in zip(chosen, copies, strict=True)}
