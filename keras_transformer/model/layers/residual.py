"""The residual connection and normalisation round every sublayer (section 3.1)."""

import keras

from keras_transformer.model.layers.basics import PACKAGE, Dropout, Layer, LayerNormalization


@keras.saving.register_keras_serializable(package=PACKAGE)
class Residual(Layer):
    """LayerNorm(x + Dropout(Sublayer(x))), or x + Dropout(Sublayer(LayerNorm(x))).

    Used in two moves, so that a sublayer may return more than its output:

    ```python
    y = sublayer(residual.pre(x))
    x = residual.post(x, y, training=training)
    ```

    Args:
        dropout: rate on the sublayer's output (section 5.4).
        norm_first: normalises the sublayer's input instead of the sum.
        epsilon: added to the variance.
    """

    arguments = ("dropout", "norm_first", "epsilon")

    def __init__(self, *, dropout=0.1, norm_first=False, epsilon=1e-6, **kwargs):
        super().__init__(**kwargs)
        self.dropout = dropout
        self.norm_first = norm_first
        self.epsilon = epsilon
        self.norm = LayerNormalization(epsilon=epsilon, name="norm", dtype=self.dtype_policy)
        self.residual_dropout = Dropout(dropout, name="dropout", dtype=self.dtype_policy)

    def build(self, inputs_shape):
        self.norm.build(inputs_shape)

    def pre(self, x):
        """Returns the sublayer's input; float, shape `(batch, length, d_model)`."""
        return self.norm(x) if self.norm_first else x

    def post(self, x, output, training=None):
        """Returns `x` and the sublayer's `output` joined; shape as `x`."""
        total = x + self.residual_dropout(output, training=training)
        return total if self.norm_first else self.norm(total)

    def call(self, inputs, output, training=None):
        return self.post(inputs, output, training=training)

    def compute_output_shape(self, inputs_shape, output_shape):
        return inputs_shape
