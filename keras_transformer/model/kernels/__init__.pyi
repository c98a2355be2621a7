from keras_transformer.model.kernels.switch import kernel as kernel
from keras_transformer.model.kernels.switch import uses_fast_forms as uses_fast_forms

__all__ = [
    "kernel",
    "uses_fast_forms",
]
