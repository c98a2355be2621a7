"""The Transformer of "Attention Is All You Need", in TensorFlow and Keras 3.

Every name is imported when it is first used: layers, model, loss, schedule and search
need Keras alone, and programs that prepare text need neither Keras nor TensorFlow.
"""

import importlib

from keras_transformer.version import VERSION

__version__ = VERSION

_MODULES = {
    "alignment": ("hard_alignment", "soft_alignment"),
    "comparison": ("compare",),
    "config": (
        "CleaningConfig",
        "Config",
        "DataConfig",
        "ModelConfig",
        "SearchConfig",
        "SpecialIds",
        "TrainingConfig",
    ),
    "data.batching": ("TokenBatches",),
    "data.cleaning": ("Cleaner",),
    "data.cleaning_report": ("CleaningReport",),
    "data.corpus": ("load_corpus",),
    "data.planning": ("EpochPlanner",),
    "data.prepared": ("PreparedCorpus",),
    "data.preparing": ("prepare",),
    "data.sequences": ("encode_pairs",),
    "data.tokenizer": ("SubwordTokenizer",),
    "data.vocabulary": ("Tokenizers", "load_tokenizer", "train_tokenizer"),
    "data.wordpiece": ("WordPieceTokenizer",),
    "evaluation": ("corpus_scores",),
    "export.loading": ("load_exported",),
    "export.saved_model": ("export_saved_model",),
    "layers.attention": ("MultiHeadAttention", "scaled_dot_product_attention"),
    "layers.decoder": ("DecoderLayer",),
    "layers.embedding": ("PositionalEmbedding", "sinusoids"),
    "layers.encoder": ("EncoderLayer",),
    "layers.feed_forward": ("FeedForward",),
    "losses": ("LabelSmoothedCrossEntropy",),
    "masks": ("causal_mask", "padding_mask"),
    "metrics": ("Perplexity", "TokenAccuracy"),
    "model": ("Transformer",),
    "presets": ("PRESETS", "preset"),
    "schedules": ("TransformerSchedule",),
    "scoring": ("Scorer",),
    "search": ("Rules", "beam_search", "greedy_search", "sample"),
    "training.run_folder": ("RunFolder",),
    "training.fitting": ("compile_model",),
    "training.run": ("train",),
    "translator": ("Translator",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name):
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{_MODULE_OF[name]}")
    except ModuleNotFoundError as error:
        raise ImportError(f"{__name__}.{name} needs {error.name}, not installed") from error
    found = getattr(module, name)
    globals()[name] = found
    return found


def __dir__():
    return __all__
