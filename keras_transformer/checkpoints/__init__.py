"""The run folder: configuration, vocabulary, checkpoints, averaged, best and final weights, history.

`RunFolder` reads and writes all of them. Every file is written atomically and verified when it is read.
"""

from keras_transformer import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "averaging": ("write_average",),
        "pretrained": ("pretrained_models",),
        "run_folder": ("RunFolder",),
    },
)
