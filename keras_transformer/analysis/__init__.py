"""What the notebooks measure and draw: heads, alignments, costs."""

from keras_transformer import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "complexity": ("products", "reach"),
        "heads": ("attention_maps", "sure_links", "without_heads"),
    },
)
