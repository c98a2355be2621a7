"""The Transformer of "Attention Is All You Need", in TensorFlow and Keras 3.

Layers, model, loss, schedule and search import without TensorFlow; what needs it
(`Translator`, tokenizer, batches, training) is imported when it is first used.
"""

import importlib

from keras_transformer.config import (
    CleaningConfig,
    Config,
    DataConfig,
    ModelConfig,
    SearchConfig,
    SpecialIds,
    TrainingConfig,
)
from keras_transformer.layers.attention import MultiHeadAttention, scaled_dot_product_attention
from keras_transformer.layers.decoder import DecoderLayer
from keras_transformer.layers.embedding import PositionalEmbedding, sinusoids
from keras_transformer.layers.encoder import EncoderLayer
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.losses import LabelSmoothedCrossEntropy
from keras_transformer.masks import causal_mask, padding_mask
from keras_transformer.metrics import Perplexity, TokenAccuracy
from keras_transformer.model import Transformer
from keras_transformer.presets import PRESETS, preset
from keras_transformer.schedules import TransformerSchedule
from keras_transformer.search import beam_search, greedy_search
from keras_transformer.version import VERSION

__version__ = VERSION

_LAZY = {
    "Cleaner": "keras_transformer.data.cleaning",
    "CleaningReport": "keras_transformer.data.cleaning_report",
    "RunFolder": "keras_transformer.training.checkpoints",
    "SubwordTokenizer": "keras_transformer.data.tokenizer",
    "Tokenizers": "keras_transformer.data.vocabulary",
    "TokenBatches": "keras_transformer.data.batching",
    "Translator": "keras_transformer.translator",
    "WordPieceTokenizer": "keras_transformer.data.wordpiece",
    "compile_model": "keras_transformer.training.run",
    "corpus_scores": "keras_transformer.evaluation",
    "encode_pairs": "keras_transformer.data.sequences",
    "load_corpus": "keras_transformer.data.corpus",
    "load_tokenizer": "keras_transformer.data.vocabulary",
    "train": "keras_transformer.training.run",
    "train_tokenizer": "keras_transformer.data.vocabulary",
}

__all__ = [
    "PRESETS",
    "CleaningConfig",
    "Config",
    "DataConfig",
    "DecoderLayer",
    "EncoderLayer",
    "FeedForward",
    "LabelSmoothedCrossEntropy",
    "ModelConfig",
    "MultiHeadAttention",
    "Perplexity",
    "PositionalEmbedding",
    "SearchConfig",
    "SpecialIds",
    "TokenAccuracy",
    "TrainingConfig",
    "Transformer",
    "TransformerSchedule",
    "beam_search",
    "causal_mask",
    "greedy_search",
    "padding_mask",
    "preset",
    "scaled_dot_product_attention",
    "sinusoids",
    *_LAZY,
]


def __getattr__(name):
    if name in _LAZY:
        try:
            module = importlib.import_module(_LAZY[name])
        except ModuleNotFoundError as error:
            raise ImportError(f"keras_transformer.{name} needs {error.name}, not installed") from error
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
