from keras_transformer.tokenizers.base import Tokenizer as Tokenizer
from keras_transformer.tokenizers.inspection import Inspection as Inspection
from keras_transformer.tokenizers.inspection import inspect_vocabulary as inspect_vocabulary
from keras_transformer.tokenizers.keras_hub import KerasHubTokenizer as KerasHubTokenizer
from keras_transformer.tokenizers.keras_hub import tokenizer_from_keras_hub as tokenizer_from_keras_hub
from keras_transformer.tokenizers.sentencepiece import SubwordTokenizer as SubwordTokenizer
from keras_transformer.tokenizers.symbols import TreeTokenizer as TreeTokenizer
from keras_transformer.tokenizers.tokenizer_pair import Tokenizers as Tokenizers
from keras_transformer.tokenizers.tokenizer_pair import load_tokenizer as load_tokenizer
from keras_transformer.tokenizers.tokenizer_pair import train_tokenizer as train_tokenizer
from keras_transformer.tokenizers.wordpiece import WordPieceTokenizer as WordPieceTokenizer

__all__ = [
    "Inspection",
    "KerasHubTokenizer",
    "SubwordTokenizer",
    "Tokenizer",
    "Tokenizers",
    "TreeTokenizer",
    "WordPieceTokenizer",
    "inspect_vocabulary",
    "load_tokenizer",
    "tokenizer_from_keras_hub",
    "train_tokenizer",
]
