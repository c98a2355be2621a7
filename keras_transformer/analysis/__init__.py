"""Measurements and plots for the notebooks: attention heads, word alignments, costs of layers."""

from keras_transformer import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "complexity": ("products", "reach"),
        "heads": ("attention_maps", "relative_entropy", "sure_links", "token_similarity", "without_heads"),
    },
)
