"""What a run leaves on the disk: `RunFolder`, its training states, averages and best weights.

Every file appears complete under its final name, or not at all, and is checked when it is read.
"""

from keras_transformer import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "averaging": ("write_average",),
        "run_folder": ("RunFolder",),
    },
)
