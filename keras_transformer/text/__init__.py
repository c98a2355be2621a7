"""From files, TensorFlow Datasets or Unicode CLDR to clean pairs of text.

`open_dataset(name)` finds the pairs of a name; `Cleaner` drops the pairs that would harm a model and
counts why; `read_lines` has the one definition of a line. No Keras here, and TensorFlow only for
TensorFlow Datasets.
"""

from keras_transformer import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "cleaning": ("Cleaner", "CleaningReport"),
        "datasets": ("Corpus", "load_corpus", "load_split", "open_dataset"),
        "languages": ("check_languages",),
        "lines": ("DataError", "Pairs", "read_lines"),
    },
)
