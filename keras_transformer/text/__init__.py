"""Reads and cleans parallel text from files, TensorFlow Datasets, Hugging Face or CLDR.

`open_dataset(name)` opens a dataset by its name. `Cleaner` finds the pairs to drop from training, with a
reason for each. `read_lines` and its relatives define what a line of text is. `read_trees` reads constituency
trees, `linearise` makes the target text of a parser of them. Nothing here imports Keras;
TensorFlow is imported for TensorFlow Datasets only.
"""

from keras_transformer import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "cleaning": ("Cleaner", "CleaningReport"),
        "datasets": ("Corpus", "OpenSplit", "load_corpus", "load_split", "open_dataset"),
        "folders": ("write_corpus",),
        "languages": ("check_languages",),
        "linearised": ("delinearise", "linearise", "mend"),
        "lines": ("DataError", "Pairs", "read_lines"),
        "noise": ("Noise",),
        "parallel": ("Block",),
        "trees": ("Tree", "read_tree", "read_trees", "tags", "words", "write_tree"),
    },
)
