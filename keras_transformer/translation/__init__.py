"""Translation: search, length limits, ensembles, scores and alignments.

`Translator` combines tokenizers, models and search. `beam_search`, `greedy_search` and `sample` work with any
step function. `Scorer` computes the probability of given translations. A `Constraint` says which tokens may
follow each hypothesis.
"""

from keras_transformer import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "alignment": ("format_pharaoh", "hard_alignment", "soft_alignment", "word_numbers"),
        "constraints": ("Constraint",),
        "ensemble": ("search_ids",),
        "parser": ("Parsed", "Parser"),
        "phrase_texts": ("PhrasesError",),
        "phrases": ("Phrases",),
        "rules": ("Rules", "length_penalty"),
        "scorer": ("Scored", "Scorer", "perplexity"),
        "search": ("Hypotheses", "Step", "beam_search", "greedy_search", "sample"),
        "texts": ("NBest", "Translation"),
        "translator": ("Translator",),
        "tree_grammar": ("TreeGrammar",),
    },
)
