"""Residual connection, dropout and normalisation around a sublayer (section 3.1)."""

import keras

from keras_transformer.model.layers.basics import PACKAGE, Dropout, Layer
from keras_transformer.model.layers.rms_norm import normalization


@keras.saving.register_keras_serializable(package=PACKAGE)
class Residual(Layer):
    """Residual connection with dropout and layer normalisation.

    Post-norm, as in the paper, computes LayerNorm(x + Dropout(Sublayer(x))). Pre-norm computes
    x + Dropout(Sublayer(LayerNorm(x))).

    It is called before and after the sublayer, so a sublayer may return more than one output:

    ```python
    y = sublayer(residual.pre(x))
    x = residual.post(x, y, training=training)
    ```

    Args:
        dropout: dropout rate of the sublayer's output (section 5.4).
        norm_first: pre-norm: normalises the sublayer's input instead of the sum.
        epsilon: added to the variance by the layer normalisation.
        alpha: factor on x in the sum, 1 in the paper (see `DepthScale`).
        norm_kind: `"layer"`, or `"rms"` for RMSNorm in place of LayerNorm.
    """

    arguments = ("dropout", "norm_first", "epsilon", "alpha", "norm_kind")

    def __init__(
        self, *, dropout=0.1, norm_first=False, epsilon=1e-6, alpha=1.0, norm_kind="layer", **kwargs
    ):
        super().__init__(**kwargs)
        self.dropout = dropout
        self.norm_first = norm_first
        self.epsilon = epsilon
        self.alpha = alpha
        self.norm_kind = norm_kind
        self.norm = normalization(norm_kind, epsilon=epsilon, name="norm", dtype=self.dtype_policy)
        self.residual_dropout = Dropout(dropout, name="dropout", dtype=self.dtype_policy)

    def build(self, inputs_shape):
        self.norm.build(inputs_shape)

    def pre(self, x):
        """Returns the sublayer's input: `x`, normalised if pre-norm; shape as `x`."""
        return self.norm(x) if self.norm_first else x

    def post(self, x, output, training=None):
        """Adds the sublayer's `output`, after dropout, to `x`; normalises the sum if post-norm."""
        total = (x if self.alpha == 1 else self.alpha * x) + self.residual_dropout(output, training=training)
        return total if self.norm_first else self.norm(total)

    def call(self, inputs, output, training=None):
        return self.post(inputs, output, training=training)

    def compute_output_shape(self, inputs_shape, output_shape):
        return inputs_shape
