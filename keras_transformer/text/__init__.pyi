from keras_transformer.text.cleaning import Cleaner as Cleaner
from keras_transformer.text.cleaning import CleaningReport as CleaningReport
from keras_transformer.text.datasets import Corpus as Corpus
from keras_transformer.text.datasets import OpenSplit as OpenSplit
from keras_transformer.text.datasets import load_corpus as load_corpus
from keras_transformer.text.datasets import load_split as load_split
from keras_transformer.text.datasets import open_dataset as open_dataset
from keras_transformer.text.folders import write_corpus as write_corpus
from keras_transformer.text.languages import check_languages as check_languages
from keras_transformer.text.linearised import delinearise as delinearise
from keras_transformer.text.linearised import linearise as linearise
from keras_transformer.text.linearised import mend as mend
from keras_transformer.text.lines import DataError as DataError
from keras_transformer.text.lines import Pairs as Pairs
from keras_transformer.text.lines import read_lines as read_lines
from keras_transformer.text.noise import Noise as Noise
from keras_transformer.text.parallel import Block as Block
from keras_transformer.text.trees import Tree as Tree
from keras_transformer.text.trees import read_tree as read_tree
from keras_transformer.text.trees import read_trees as read_trees
from keras_transformer.text.trees import tags as tags
from keras_transformer.text.trees import words as words
from keras_transformer.text.trees import write_tree as write_tree

__all__ = [
    "Block",
    "Cleaner",
    "CleaningReport",
    "Corpus",
    "DataError",
    "Noise",
    "OpenSplit",
    "Pairs",
    "Tree",
    "check_languages",
    "delinearise",
    "linearise",
    "load_corpus",
    "load_split",
    "mend",
    "open_dataset",
    "read_lines",
    "read_tree",
    "read_trees",
    "tags",
    "words",
    "write_corpus",
    "write_tree",
]
