"""x W + b, for many rows at once."""

from keras import ops

from keras_transformer.model.kernels.switch import kernel


@kernel
def product(rows, weights):
    """Rows times a weight matrix.

    Args:
        rows: float, shape `(rows, features)`.
        weights: float, shape `(features, units)`.

    Returns:
        float, shape `(rows, units)`.
    """
    return ops.matmul(rows, weights)


@product.fast_form
def _product(rows, weights):
    """Takes the form whose gradient of the weights is cheapest.

    TensorFlow differentiates `x @ W` to `x.T @ g`, and `x @ (W.T).T`, where it transposes nothing, to
    `g.T @ x`. A CPU is up to a seventh quicker where fewer columns come from the wider matrix.
    """
    if weights.shape[0] <= weights.shape[1]:
        return ops.matmul(rows, weights)
    import tensorflow as tf

    return tf.matmul(rows, tf.transpose(tf.convert_to_tensor(weights)), transpose_b=True)


@kernel
def add_bias(rows, bias):
    """Adds a vector, shape `(units,)`, to every row of a matrix, shape `(rows, units)`."""
    return rows + bias


@add_bias.fast_form
def _add_bias(rows, bias):
    """By an operation whose gradient is summed quickest.

    In bfloat16 it sums in bfloat16, which loses what is left to add to a sum of many rows.
    """
    if rows.dtype == "bfloat16":
        return rows + bias
    import tensorflow as tf

    return tf.nn.bias_add(rows, tf.convert_to_tensor(bias))
