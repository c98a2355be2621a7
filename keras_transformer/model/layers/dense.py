"""A linear map over the last axis."""

import keras
from keras import ops

from keras_transformer.model.layers.tensor_ops import as_rows, unflattened

PACKAGE = "keras_transformer"


def add_bias(matrix, bias):
    """Adds a vector to every row; TensorFlow sums its gradient quickest by an operation of its own.

    Which sums bfloat16 in bfloat16, and so loses what is left to add to a sum of many rows.
    """
    if keras.backend.backend() == "tensorflow" and matrix.dtype != "bfloat16":
        import tensorflow as tf

        return tf.nn.bias_add(matrix, tf.convert_to_tensor(bias))
    return matrix + bias


def _product(rows, kernel):
    """The rows times the kernel, so that the gradient of the kernel is found the quickest way.

    TensorFlow leaves out a transposition of a transposition, and of x W has the gradient x^T g of W,
    of x (W^T)^T the gradient g^T x of W^T. A CPU is up to a seventh quicker where fewer columns
    of the result come from the wider matrix.
    """
    if keras.backend.backend() == "tensorflow" and kernel.shape[0] > kernel.shape[1]:
        import tensorflow as tf

        return tf.matmul(rows, tf.transpose(tf.convert_to_tensor(kernel)), transpose_b=True)
    return ops.matmul(rows, kernel)


@keras.saving.register_keras_serializable(package=PACKAGE)
class Projection(keras.layers.Layer):
    """x W, or x W + b, for every position.

    The kernel is two-dimensional, so Glorot's fans are those of the whole map, for all
    heads together. All positions go through one matrix product: twice as fast on a CPU
    as a product with a batch axis.

    Args:
        units: width of the output.
        use_bias: adds b.
        activation: name of a Keras activation, or `None`.

    Input: float, shape `(..., features)`. Output: float, shape `(..., units)`.
    """

    def __init__(self, units, *, use_bias=False, activation=None, **kwargs):
        super().__init__(**kwargs)
        if units < 1:
            raise ValueError(f"`units` must be at least 1. Received: units={units}")
        self.units = units
        self.use_bias = use_bias
        self.activation = activation
        self.supports_masking = True
        self._activate = keras.activations.get(activation)

    def build(self, inputs_shape):
        self.kernel = self.add_weight(
            name="kernel",
            shape=(inputs_shape[-1], self.units),
            initializer=keras.initializers.GlorotUniform(),
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(name="bias", shape=(self.units,), initializer="zeros")

    def call(self, inputs):
        outputs = _product(as_rows(inputs), self.kernel)
        if self.bias is not None:
            outputs = add_bias(outputs, self.bias)
        return unflattened(self._activate(outputs), inputs)

    def compute_output_shape(self, inputs_shape):
        return (*inputs_shape[:-1], self.units)

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "use_bias": self.use_bias,
            "activation": self.activation,
        }
