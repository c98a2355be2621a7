"""Measurements and plots for the notebooks: attention heads, word alignments, costs of layers."""

from keras_transformer import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "complexity": (
            "best_seconds",
            "convolutional",
            "products",
            "reach",
            "recurrent",
            "restricted_self_attention",
            "self_attention",
        ),
        "heads": (
            "AttentionMaps",
            "AttentionMass",
            "Head",
            "all_heads",
            "attention_maps",
            "attention_mass",
            "link_pattern",
            "offset_pattern",
            "place_pattern",
            "relative_entropy",
            "repeat_pattern",
            "sure_links",
            "token_similarity",
            "without_heads",
        ),
        "trees": ("closings", "opening_pattern", "word_pattern"),
    },
)
