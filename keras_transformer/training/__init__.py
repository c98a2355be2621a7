"""Training runs: data, devices, callbacks, checkpoints, validation and recovery from failures (TensorFlow).

`train(config, folder)` does a whole run, from configuration to final weights; `compile_model` only compiles
a model with the paper's optimizer, schedule and loss.
"""

from keras_transformer import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "devices": ("mirrored",),
        "fit": ("compile_model",),
        "run": ("Result", "train"),
    },
)
