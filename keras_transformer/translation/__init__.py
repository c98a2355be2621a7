"""Text in, text out: search, limits, ensembles, scores and alignments of translations.

`Translator` joins tokenizers, models and search; `beam_search`, `greedy_search` and `sample` work with any
step function and know no model; `Scorer` gives the probability of translations that exist already.
"""

from keras_transformer import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "alignment": ("hard_alignment", "soft_alignment"),
        "rules": ("Rules",),
        "scorer": ("Scorer",),
        "search": ("beam_search", "greedy_search", "sample"),
        "texts": ("NBest", "Translation"),
        "translator": ("Translator",),
    },
)
