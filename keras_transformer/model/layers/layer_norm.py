"""Layer normalization (section 3.1)."""

import keras
from keras import ops

from keras_transformer.model.kernels.layer_norm import layer_norm
from keras_transformer.model.layers.dense import PACKAGE


@keras.saving.register_keras_serializable(package=PACKAGE)
class LayerNormalization(keras.layers.LayerNormalization):
    """Keras' own over the last axis: its weights, configuration and values, computed by a kernel.

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
        dtype = keras.backend.result_type(inputs.dtype, "float32")
        x, gamma, beta = (ops.cast(each, dtype) for each in (inputs, self.gamma, self.beta))
        return ops.cast(layer_norm(x, gamma, beta, self.epsilon), self.compute_dtype)

    def get_config(self):
        return {**keras.layers.Layer.get_config(self), "epsilon": self.epsilon}
