"""The Transformer of "Attention Is All You Need", in TensorFlow and Keras 3.

Names are imported at first use: layers, model, loss, schedule and search need only Keras, and
programs that prepare text need neither Keras nor TensorFlow.
"""

import importlib
import sys

__version__ = "0.1.0"


def lazy_names(package, modules):
    """Returns `__all__`, `__getattr__` and `__dir__` for a package whose names are imported at first use.

    Args:
        package: `__name__` of the package.
        modules: dict from the name of a module within the package to the names that it exports.
    """
    module_of = {name: module for module, names in modules.items() for name in names}

    def get(name):
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = importlib.import_module(f"{package}.{module_of[name]}")
        except ModuleNotFoundError as error:
            raise ImportError(f"{package}.{name} needs {error.name}, not installed") from error
        value = getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    names = sorted(module_of)
    return names, get, lambda: names


__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "batches": ("EpochPlanner", "PreparedCorpus", "encode_pairs", "prepare", "token_batches"),
        "checkpoints": ("RunFolder",),
        "config": (
            "CleaningConfig",
            "Config",
            "DataConfig",
            "ModelConfig",
            "PRESETS",
            "SearchConfig",
            "SpecialIds",
            "TrainingConfig",
            "preset",
        ),
        "evaluation": ("compare", "corpus_scores"),
        "explorer": ("explore",),
        "export": ("export_saved_model", "load_exported"),
        "model": (
            "LabelSmoothedCrossEntropy",
            "Perplexity",
            "TokenAccuracy",
            "Transformer",
            "TransformerSchedule",
            "layer_from_keras_hub",
            "layer_to_keras_hub",
        ),
        "model.layers": (
            "DecoderLayer",
            "EncoderLayer",
            "FeedForward",
            "MultiHeadAttention",
            "PositionalEmbedding",
            "causal_mask",
            "padding_mask",
            "scaled_dot_product_attention",
            "sinusoids",
        ),
        "text": ("Cleaner", "CleaningReport", "load_corpus", "write_corpus"),
        "tokenizers": (
            "SubwordTokenizer",
            "Tokenizers",
            "WordPieceTokenizer",
            "load_tokenizer",
            "tokenizer_from_keras_hub",
            "train_tokenizer",
        ),
        "training": ("compile_model", "train"),
        "translation": (
            "Rules",
            "Scorer",
            "Translator",
            "beam_search",
            "greedy_search",
            "hard_alignment",
            "sample",
            "soft_alignment",
        ),
    },
)
