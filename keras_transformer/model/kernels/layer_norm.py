"""Layer normalization over the last axis (section 3.1)."""

from keras import ops

from keras_transformer.model.kernels.switch import kernel
from keras_transformer.model.kernels.tensor_ops import flatten_leading_axes, restore_leading_axes


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
