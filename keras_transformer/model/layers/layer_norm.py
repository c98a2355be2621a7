"""Layer normalisation (section 3.1) in few passes over memory."""

import keras
from keras import ops

from keras_transformer.model.layers.dense import PACKAGE
from keras_transformer.model.layers.tensor_ops import as_rows, unflattened


@keras.saving.register_keras_serializable(package=PACKAGE)
class LayerNormalization(keras.layers.LayerNormalization):
    """Keras' own over the last axis, with the gradient written down rather than derived.

    Weights, configuration and values are Keras'. TensorFlow derives the gradient operation by
    operation, each of which reads and writes all of it (figures: docs/speed.md).

    Args:
        epsilon: added to the variance.

    Input and output: float, shape `(..., features)`; computed in float32 at least.
    """

    def __init__(self, *, epsilon=1e-6, **kwargs):
        unknown = kwargs.keys() - {"name", "dtype", "trainable"}
        if unknown:
            raise TypeError(
                f"unexpected arguments {sorted(unknown)}; only `epsilon` differs from the paper's"
            )
        super().__init__(epsilon=epsilon, **kwargs)

    def call(self, inputs):
        if keras.backend.backend() != "tensorflow":
            return super().call(inputs)
        dtype = keras.backend.result_type(inputs.dtype, "float32")
        x = ops.cast(inputs, dtype)
        gamma, beta = (ops.cast(_read(weight), dtype) for weight in (self.gamma, self.beta))
        normalized = _layer_norm(as_rows(x), gamma, beta, self.epsilon)
        return ops.cast(unflattened(normalized, x), self.compute_dtype)

    def get_config(self):
        return {**keras.layers.Layer.get_config(self), "epsilon": self.epsilon}


def _read(weight):
    """A tensor, as TensorFlow wants custom gradients to know of the variables that they use."""
    import tensorflow as tf

    return tf.convert_to_tensor(weight)


def _layer_norm(x, gamma, beta, epsilon):
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta for every row of `(rows, features)`."""

    @ops.custom_gradient
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
            of_rows = ops.matmul(upstream, to_means), ops.matmul(by_normalized, to_means)
            of_x = (upstream * gamma - of_rows[0] - normalized * of_rows[1]) * inverse
            ones = ops.ones((1, ops.shape(x)[0]), dtype=x.dtype)
            of_gamma, of_beta = (ops.matmul(ones, each)[0] for each in (by_normalized, upstream))
            return of_x, of_gamma, of_beta

        return normalized * gamma + beta, gradient

    return forward(x, gamma, beta)
