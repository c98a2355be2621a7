"""Kernels for biases, normalization, dropout, tied embeddings and the update of Adam."""

import keras
from keras import ops

from keras_transformer.model.kernels.switch import custom_gradient, kernel
from keras_transformer.model.kernels.tensor_ops import add_to_rows, flatten_leading_axes, restore_leading_axes


@kernel
def add_bias(rows, bias):
    """Adds `bias`, shape `(units,)`, to every row of a matrix of shape `(rows, units)`."""
    return rows + bias


@add_bias.fast_form
def _add_bias(rows, bias):
    """Fast form of `add_bias`: `tf.nn.bias_add`, whose gradient sums the rows faster than broadcasting.

    Not used in bfloat16: there it also sums in bfloat16, which loses small terms in a sum of many rows.
    """
    if rows.dtype == "bfloat16":
        return rows + bias
    import tensorflow as tf

    return tf.nn.bias_add(rows, tf.convert_to_tensor(bias))


@kernel
def layer_norm(x, gamma, beta, epsilon):
    """Computes (x - mean) / sqrt(variance + epsilon) * gamma + beta over the last axis.

    Args:
        x: float, shape `(..., features)`.
        gamma: float, shape `(features,)`, same dtype as `x`.
        beta: like `gamma`.
        epsilon: float.

    Returns:
        float, same shape as `x`.
    """
    centred = x - ops.mean(x, axis=-1, keepdims=True)
    variance = ops.mean(centred * centred, axis=-1, keepdims=True)
    return centred * ops.rsqrt(variance + epsilon) * gamma + beta


@layer_norm.fast_form
def _layer_norm(x, gamma, beta, epsilon):
    """Fast form of `layer_norm`, with a hand-written gradient.

    Faster because the gradient that TensorFlow derives has many operations, and each of them reads and
    writes the whole array.
    """
    import tensorflow as tf

    @custom_gradient
    def forward(x, gamma, beta):
        centred = x - ops.mean(x, axis=-1, keepdims=True)
        variance = ops.mean(centred * centred, axis=-1, keepdims=True)
        inverse = ops.rsqrt(variance + epsilon)
        normalized = centred * inverse

        def gradient(upstream):
            # With u = upstream * gamma, the gradient of x is
            # (u - mean(u) - normalized * mean(u * normalized)) * inverse.
            # Means and sums are matrix products, the fastest way to reduce a matrix.
            upstream_normalized = upstream * normalized
            to_means = (gamma / x.shape[-1])[:, None]
            means = ops.matmul(upstream, to_means), ops.matmul(upstream_normalized, to_means)
            grad_x = (upstream * gamma - means[0] - normalized * means[1]) * inverse
            ones = ops.ones((1, ops.shape(x)[0]), dtype=x.dtype)
            grad_gamma, grad_beta = (ops.matmul(ones, rows)[0] for rows in (upstream_normalized, upstream))
            return grad_x, grad_gamma, grad_beta

        return normalized * gamma + beta, gradient

    # As tensors: a custom gradient that uses variables must return their gradients separately.
    gamma, beta = map(tf.convert_to_tensor, (gamma, beta))
    return restore_leading_axes(forward(flatten_leading_axes(x), gamma, beta), x)


@kernel
def rms_norm(x, gamma, epsilon):
    """Computes x / sqrt(mean(x^2) + epsilon) * gamma over the last axis.

    Args:
        x: float, shape `(..., features)`.
        gamma: float, shape `(features,)`, same dtype as `x`.
        epsilon: float.

    Returns:
        float, same shape as `x`.
    """
    return x * ops.rsqrt(ops.mean(x * x, axis=-1, keepdims=True) + epsilon) * gamma


@rms_norm.fast_form
def _rms_norm(x, gamma, epsilon):
    """Fast form of `rms_norm`, with a hand-written gradient; faster for the reason given for `layer_norm`."""
    import tensorflow as tf

    @custom_gradient
    def forward(x, gamma):
        inverse = ops.rsqrt(ops.mean(x * x, axis=-1, keepdims=True) + epsilon)
        normalized = x * inverse

        def gradient(upstream):
            # With u = upstream * gamma, the gradient of x is
            # (u - normalized * mean(u * normalized)) * inverse.
            upstream_normalized = upstream * normalized
            mean = ops.matmul(upstream_normalized, (gamma / x.shape[-1])[:, None])
            ones = ops.ones((1, ops.shape(x)[0]), dtype=x.dtype)
            grad_x = (upstream * gamma - normalized * mean) * inverse
            return grad_x, ops.matmul(ones, upstream_normalized)[0]

        return normalized * gamma, gradient

    return restore_leading_axes(forward(flatten_leading_axes(x), tf.convert_to_tensor(gamma)), x)


@kernel
def dropout(inputs, rate, seed):
    """Sets each input to 0 with probability `rate` and divides the others by 1 - rate.

    Args:
        inputs: float, any shape.
        rate: float, above 0 and below 1.
        seed: int tensor, shape `(2,)`; the same seed drops the same elements.

    Returns:
        float, same shape as `inputs`.
    """
    draws = keras.random.uniform(ops.shape(inputs), dtype="float32", seed=_FixedSeed(seed))
    return ops.where(draws >= rate, inputs / (1 - rate), 0)


@dropout.fast_form
def _dropout(inputs, rate, seed):
    """Fast form of `dropout`: 16 random bits per element, half of what Keras draws; a one-product gradient.

    The rate is therefore rounded to a multiple of 1 / 65,536, and the inputs are scaled for the rounded rate.
    The values equal those of the plain form in distribution only: the random numbers differ.
    """
    import tensorflow as tf

    dropped = min(round(rate * 65536), 65535)
    shape = ops.shape(inputs)
    size = tf.reduce_prod(shape)
    words = tf.random.stateless_uniform(
        ((size + 1) // 2,), tf.cast(seed, tf.int32), minval=None, maxval=None, dtype=tf.uint32
    )
    draws = tf.reshape(tf.bitcast(words, tf.uint16), (-1,))[:size]
    keep_mask = tf.cast(tf.reshape(draws, shape) >= tf.constant(dropped, tf.uint16), inputs.dtype)
    return inputs * (keep_mask * (65536 / (65536 - dropped)))


class _FixedSeed(keras.random.SeedGenerator):
    """Seed generator that always returns the given seed."""

    def __init__(self, seed):
        self._seed = seed

    def next(self, ordered=True):
        return self._seed


@kernel
def copies(matrix, number):
    """Copies a matrix that is used several times, such as a tied embedding; the gradients are summed.

    Args:
        matrix: float, shape `(vocab_size, d_model)`.
        number: number of copies. The first one is for a use with a dense gradient (the output projection),
            the others are for lookups of rows.

    Returns:
        List of `number` tensors equal to `matrix`.
    """
    return [ops.copy(matrix) for _ in range(number)]


@copies.fast_form
def _copies(matrix, number):
    """Fast form of `copies`: adds the gradients of all lookups to the dense gradient in one pass.

    Faster because TensorFlow would turn the gradient of every lookup into an array as large as the matrix and
    add those.
    """
    import tensorflow as tf

    @custom_gradient
    def forward(matrix):
        def gradient(total, *lookup_gradients):
            for dense in lookup_gradients:
                if not isinstance(dense, tf.IndexedSlices):  # an unused copy, or a lookup inside a loop
                    total += dense
            slices = [sparse for sparse in lookup_gradients if isinstance(sparse, tf.IndexedSlices)]
            if not slices:
                return total
            # One type: sources may be int64 and targets int32, which Keras accepts.
            ids = tf.concat([tf.cast(tf.reshape(s.indices, (-1,)), tf.int32) for s in slices], axis=0)
            rows = tf.concat([tf.reshape(s.values, (-1, matrix.shape[-1])) for s in slices], axis=0)
            return add_to_rows(total, ids, rows)

        return [tf.identity(matrix) for _ in range(number)], gradient

    return forward(tf.convert_to_tensor(matrix))


@kernel
def adam_update(weight, momentum, velocity, gradient, *, rate, step, beta_1, beta_2, epsilon):
    """Updates a weight with Adam, as Keras does.

    weight -= rate * sqrt(1 - beta_2^t) / (1 - beta_1^t) * momentum / (sqrt(velocity) + epsilon)

    Args:
        weight: `tf.Variable`, float32, updated in place.
        momentum: `tf.Variable`, same shape and dtype; updated in place.
        velocity: `tf.Variable`, same shape and dtype; updated in place.
        gradient: float32, same shape as `weight`.
        rate: float32 scalar, learning rate.
        step: float32 scalar, t, the number of the update, from 1.
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
    """Fast form of `adam_update`: one operation, not ten that each read and write a whole weight."""
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
