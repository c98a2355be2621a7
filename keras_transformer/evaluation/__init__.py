"""Scores of translations: sacreBLEU, the paper's tokenized BLEU, chrF2 and TER; comparison of systems.

Scores of parses: evalb's bracket scores.
"""

from keras_transformer import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "bleu": (
            "Scores",
            "bleu_scorer",
            "check_lines",
            "corpus_scores",
            "exact_match",
            "multi_bleu",
            "token_bleu",
            "token_scorer",
        ),
        "brackets": ("BracketScores", "LabelScore", "SentenceScore", "TreeScores", "bracket_scores"),
        "report": ("Comparison", "Figure", "NamedLines", "compare"),
        "tree_report": ("NamedTrees", "TreeComparison", "compare_trees"),
    },
)
