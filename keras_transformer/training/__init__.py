"""A run, from a configuration to the weights that it delivers: data, devices, callbacks, faults (TensorFlow).

`train(config, folder)` is all of it; `compile_model` gives a model its optimizer, schedule and loss.
"""

from keras_transformer import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "fit": ("compile_model",),
        "run": ("train",),
    },
)
