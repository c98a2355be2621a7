from typing import Any

from keras_transformer.batches.dataset import token_batches as token_batches
from keras_transformer.batches.ids import encode_pairs as encode_pairs
from keras_transformer.batches.planning import EpochPlanner as EpochPlanner
from keras_transformer.batches.prepared import PreparedCorpus as PreparedCorpus
from keras_transformer.batches.preparing import prepare as prepare
from keras_transformer.checkpoints.run_folder import RunFolder as RunFolder
from keras_transformer.config.presets import PRESETS as PRESETS
from keras_transformer.config.presets import preset as preset
from keras_transformer.config.sections import CleaningConfig as CleaningConfig
from keras_transformer.config.sections import DataConfig as DataConfig
from keras_transformer.config.sections import ModelConfig as ModelConfig
from keras_transformer.config.sections import SearchConfig as SearchConfig
from keras_transformer.config.settings import Config as Config
from keras_transformer.config.settings import SpecialIds as SpecialIds
from keras_transformer.config.training import TrainingConfig as TrainingConfig
from keras_transformer.evaluation.bleu import corpus_scores as corpus_scores
from keras_transformer.evaluation.report import compare as compare
from keras_transformer.explorer.page import explore as explore
from keras_transformer.export.saved_model import export_saved_model as export_saved_model
from keras_transformer.export.versions import load_exported as load_exported
from keras_transformer.model.keras_hub import layer_from_keras_hub as layer_from_keras_hub
from keras_transformer.model.keras_hub import layer_to_keras_hub as layer_to_keras_hub
from keras_transformer.model.layers.attention import MultiHeadAttention as MultiHeadAttention
from keras_transformer.model.layers.attention import scaled_dot_product_attention as scaled_dot_product_attention
from keras_transformer.model.layers.decoder import DecoderLayer as DecoderLayer
from keras_transformer.model.layers.embedding import PositionalEmbedding as PositionalEmbedding
from keras_transformer.model.layers.embedding import sinusoids as sinusoids
from keras_transformer.model.layers.encoder import EncoderLayer as EncoderLayer
from keras_transformer.model.layers.feed_forward import FeedForward as FeedForward
from keras_transformer.model.layers.masks import causal_mask as causal_mask
from keras_transformer.model.layers.masks import padding_mask as padding_mask
from keras_transformer.model.loss import LabelSmoothedCrossEntropy as LabelSmoothedCrossEntropy
from keras_transformer.model.metrics import Perplexity as Perplexity
from keras_transformer.model.metrics import TokenAccuracy as TokenAccuracy
from keras_transformer.model.optimizer import TransformerSchedule as TransformerSchedule
from keras_transformer.model.transformer import Transformer as Transformer
from keras_transformer.text.cleaning import Cleaner as Cleaner
from keras_transformer.text.cleaning import CleaningReport as CleaningReport
from keras_transformer.text.datasets import load_corpus as load_corpus
from keras_transformer.text.folders import write_corpus as write_corpus
from keras_transformer.tokenizers.keras_hub import tokenizer_from_keras_hub as tokenizer_from_keras_hub
from keras_transformer.tokenizers.sentencepiece import SubwordTokenizer as SubwordTokenizer
from keras_transformer.tokenizers.tokenizer_pair import Tokenizers as Tokenizers
from keras_transformer.tokenizers.tokenizer_pair import load_tokenizer as load_tokenizer
from keras_transformer.tokenizers.tokenizer_pair import train_tokenizer as train_tokenizer
from keras_transformer.tokenizers.wordpiece import WordPieceTokenizer as WordPieceTokenizer
from keras_transformer.training.fit import compile_model as compile_model
from keras_transformer.training.run import train as train
from keras_transformer.translation.alignment import hard_alignment as hard_alignment
from keras_transformer.translation.alignment import soft_alignment as soft_alignment
from keras_transformer.translation.rules import Rules as Rules
from keras_transformer.translation.scorer import Scorer as Scorer
from keras_transformer.translation.search import beam_search as beam_search
from keras_transformer.translation.search import greedy_search as greedy_search
from keras_transformer.translation.search import sample as sample
from keras_transformer.translation.translator import Translator as Translator

__version__: str

def lazy_names(package: str, modules: dict[str, tuple[str, ...]]) -> Any: ...

__all__ = [
    "Cleaner",
    "CleaningConfig",
    "CleaningReport",
    "Config",
    "DataConfig",
    "DecoderLayer",
    "EncoderLayer",
    "EpochPlanner",
    "FeedForward",
    "LabelSmoothedCrossEntropy",
    "ModelConfig",
    "MultiHeadAttention",
    "PRESETS",
    "Perplexity",
    "PositionalEmbedding",
    "PreparedCorpus",
    "Rules",
    "RunFolder",
    "Scorer",
    "SearchConfig",
    "SpecialIds",
    "SubwordTokenizer",
    "TokenAccuracy",
    "Tokenizers",
    "TrainingConfig",
    "Transformer",
    "TransformerSchedule",
    "Translator",
    "WordPieceTokenizer",
    "beam_search",
    "causal_mask",
    "compare",
    "compile_model",
    "corpus_scores",
    "encode_pairs",
    "explore",
    "export_saved_model",
    "greedy_search",
    "hard_alignment",
    "layer_from_keras_hub",
    "layer_to_keras_hub",
    "load_corpus",
    "load_exported",
    "load_tokenizer",
    "padding_mask",
    "prepare",
    "preset",
    "sample",
    "scaled_dot_product_attention",
    "sinusoids",
    "soft_alignment",
    "token_batches",
    "tokenizer_from_keras_hub",
    "train",
    "train_tokenizer",
    "write_corpus",
]
