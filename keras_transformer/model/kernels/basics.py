"""x W + b, layer normalization, dropout, the matrix that embeddings and output share, and Adam's update."""

import keras
from keras import ops

from keras_transformer.model.kernels.switch import kernel
from keras_transformer.model.kernels.tensor_ops import flatten_leading_axes, restore_leading_axes


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


@kernel
def layer_norm(x, gamma, beta, epsilon):
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta.

    Args:
        x: float, shape `(..., features)`.
        gamma: float, shape `(features,)`, of the type of `x`.
        beta: the same.
        epsilon: float.

    Returns:
        float, shape as `x`.
    """
    centred = x - ops.mean(x, axis=-1, keepdims=True)
    variance = ops.mean(centred * centred, axis=-1, keepdims=True)
    return centred * ops.rsqrt(variance + epsilon) * gamma + beta


@layer_norm.fast_form
def _layer_norm(x, gamma, beta, epsilon):
    """With the gradient written down.

    TensorFlow derives it operation by operation, each of which reads and writes all of the array.
    """
    import tensorflow as tf

    @tf.custom_gradient
    def forward(x, gamma, beta):
        centred = x - ops.mean(x, axis=-1, keepdims=True)
        variance = ops.mean(centred * centred, axis=-1, keepdims=True)
        inverse = ops.rsqrt(variance + epsilon)
        normalized = centred * inverse

        def gradient(upstream):
            # With u the gradient of the normalised rows, that of x is
            # (u - mean(u) - normalized * mean(u * normalized)) * inverse.
            # Sums are matrix products, the quickest way to read a matrix once.
            by_normalized = upstream * normalized
            to_means = (gamma / x.shape[-1])[:, None]
            means = ops.matmul(upstream, to_means), ops.matmul(by_normalized, to_means)
            grad_x = (upstream * gamma - means[0] - normalized * means[1]) * inverse
            ones = ops.ones((1, ops.shape(x)[0]), dtype=x.dtype)
            grad_gamma, grad_beta = (ops.matmul(ones, rows)[0] for rows in (by_normalized, upstream))
            return grad_x, grad_gamma, grad_beta

        return normalized * gamma + beta, gradient

    # Tensors: TensorFlow wants custom gradients to know of the variables that they use.
    gamma, beta = map(tf.convert_to_tensor, (gamma, beta))
    return restore_leading_axes(forward(flatten_leading_axes(x), gamma, beta), x)


@kernel
def dropout(inputs, rate, seed):
    """Sets a share of the inputs to 0 and divides the others by 1 - rate.

    Args:
        inputs: float, any shape.
        rate: that share, float, above 0 and below 1.
        seed: int tensor, shape `(2,)`; the same seed drops the same elements.

    Returns:
        float, shape as `inputs`.
    """
    draws = keras.random.uniform(ops.shape(inputs), dtype="float32", seed=_Drawn(seed))
    return ops.where(draws >= rate, inputs / (1 - rate), 0)


@dropout.fast_form
def _dropout(inputs, rate, seed):
    """Decides by 16 random bits, half of what Keras draws; the gradient is one multiplication.

    So the share is the nearest multiple of 1 / 65,536, and what is left is scaled for that.
    """
    import tensorflow as tf

    dropped = min(round(rate * 65536), 65535)
    shape = ops.shape(inputs)
    size = tf.reduce_prod(shape)
    words = tf.random.stateless_uniform(
        ((size + 1) // 2,), tf.cast(seed, tf.int32), minval=None, maxval=None, dtype=tf.uint32
    )
    draws = tf.reshape(tf.bitcast(words, tf.uint16), (-1,))[:size]
    kept = tf.cast(tf.reshape(draws, shape) >= tf.constant(dropped, tf.uint16), inputs.dtype)
    return inputs * (kept * (65536 / (65536 - dropped)))


class _Drawn(keras.random.SeedGenerator):
    """Gives Keras a seed that is drawn already."""

    def __init__(self, seed):
        self._seed = seed

    def next(self, ordered=True):
        return self._seed


@kernel
def copies(matrix, number):
    """A matrix for several uses, whose gradients are added up.

    Args:
        matrix: float, shape `(vocab_size, d_model)`.
        number: of uses; the gradient of the first is as large as the matrix, the others look up rows.

    Returns:
        List of tensors, all equal to `matrix`.
    """
    return [ops.copy(matrix) for _ in range(number)]


@copies.fast_form
def _copies(matrix, number):
    """Adds the rows of all lookups to the gradient of the first use in one pass.

    TensorFlow makes of every lookup a gradient as large as the matrix, and adds those.
    """
    import tensorflow as tf

    @tf.custom_gradient
    def forward(matrix):
        def gradient(total, *others):
            for each in others:
                if not isinstance(each, tf.IndexedSlices):  # of a lookup that was not made, or in a loop
                    total += each
            slices = [each for each in others if isinstance(each, tf.IndexedSlices)]
            if not slices:
                return total
            ids = tf.concat([tf.reshape(each.indices, (-1,)) for each in slices], axis=0)
            rows = [tf.reshape(each.values, (-1, matrix.shape[-1])) for each in slices]
            return tf.tensor_scatter_nd_add(total, ids[:, None], tf.concat(rows, axis=0))

        return [tf.identity(matrix) for _ in range(number)], gradient

    return forward(tf.convert_to_tensor(matrix))


@kernel
def adam_update(weight, momentum, velocity, gradient, *, rate, step, beta_1, beta_2, epsilon):
    """Moves a weight by rate * sqrt(1 - beta_2^t) / (1 - beta_1^t) * momentum / (sqrt(velocity) + epsilon).

    Args:
        weight: `tf.Variable`, float32, which changes in place.
        momentum: the same, of the shape of `weight`.
        velocity: the same.
        gradient: float32, of the shape of `weight`.
        rate: float32 scalar, learning rate.
        step: float32 scalar, t; 1 for the first update.
        beta_1: float.
        beta_2: float.
        epsilon: float.
    """
    momentum.assign_add((1 - beta_1) * (gradient - momentum))
    velocity.assign_add((1 - beta_2) * (ops.square(gradient) - velocity))
    rate = rate * ops.sqrt(1 - beta_2**step) / (1 - beta_1**step)
    weight.assign_sub(rate * momentum / (ops.sqrt(velocity) + epsilon))


@adam_update.fast_form
def _adam_update(weight, momentum, velocity, gradient, *, rate, step, beta_1, beta_2, epsilon):
    """One operation, where the formula takes ten, each of which reads and writes all of a weight."""
    import tensorflow as tf

    tf.raw_ops.ResourceApplyAdam(
        var=weight.handle,
        m=momentum.handle,
        v=velocity.handle,
        beta1_power=beta_1**step,
        beta2_power=beta_2**step,
        lr=rate,
        beta1=beta_1,
        beta2=beta_2,
        epsilon=epsilon,
        grad=gradient,
    )
