"""What is computed of translations: every measure, and the form of text that it counts."""

from typing import NamedTuple

from sacrebleu.metrics import CHRF, TER

from keras_transformer.evaluation.bleu import bleu_scorer, token_scorer
from keras_transformer.evaluation.moses import (
    hide_unicode_spaces,
    replace_unicode_punctuation,
    split_compounds,
    tokenize,
)

TOKENS = ("moses", "given")


class Measure(NamedTuple):
    """One way to score."""

    key: str  # in JSON
    label: str  # in tables
    scorer: object  # of `sacrebleu.metrics`
    form: str  # what it counts: "raw", "tokens" or "compounds"
    steps: str  # how that form is made; "" where the signature of the scorer says all


def all_measures(language, tokens, *, ter=True):
    """Returns the list of `Measure`, each with a scorer of its own.

    Args:
        language: of the translations, such as `"de"`, or `None`.
        tokens: what tokenised BLEU counts, one of `TOKENS`.
        ter: also translation edit rate.
    """
    split = "tokens as given" if tokens == "given" else f"Moses tokens ({language})"
    normalized = "" if tokens == "given" else "Unicode punctuation replaced, "
    asian = language in ("ja", "zh")
    edits = {"normalized": asian, "asian_support": asian}
    found = [
        Measure("bleu", "BLEU", bleu_scorer(language, force=True), "raw", ""),
        Measure(
            "bleu_lowercase", "  lower case", bleu_scorer(language, lowercase=True, force=True), "raw", ""
        ),
        Measure("chrf", "chrF2", CHRF(), "raw", ""),
        Measure("chrf_lowercase", "  lower case", CHRF(lowercase=True), "raw", ""),
    ]
    if ter:
        found += [
            Measure("ter", "TER (low is good)", TER(case_sensitive=True, **edits), "raw", ""),
            Measure("ter_lowercase", "  lower case", TER(**edits), "raw", ""),
        ]
    return [
        *found,
        Measure(
            "tokenized_bleu", "tokenised BLEU", token_scorer(), "tokens", f"multi-bleu of {split}, cased"
        ),
        Measure(
            "tokenized_bleu_lowercase",
            "  lower case",
            token_scorer(lowercase=True),
            "tokens",
            f"multi-bleu of {split}, lower-cased",
        ),
        Measure(
            "paper_bleu",
            "  compounds split",
            token_scorer(),
            "compounds",
            f"the paper's: multi-bleu of {normalized}{split}, hyphens split (##AT##-##AT##), cased",
        ),
    ]


def forms_of(lines, tokens, language):
    """Returns lines as the measures take them.

    `"compounds"` follows the script that scored the paper's English-German translations,
    Tensor2Tensor's `get_ende_bleu.sh`, on both sides: Unicode punctuation is replaced, the
    text tokenized, and words split at hyphens. Where tokens are given, the first two are
    taken as done.

    Args:
        lines: list of str.
        tokens: one of `TOKENS`.
        language: such as `"de"`, or `None`, with which Moses cannot tokenize.

    Returns:
        dict from the name of a form to lines, of the forms that can be made.
    """
    if tokens == "given":
        made = lines, lines
    elif language:
        made = tokenize(lines, language), tokenize(replace_unicode_punctuation(lines), language)
    else:
        return {"raw": lines}
    return {
        "raw": lines,
        "tokens": hide_unicode_spaces(made[0]),
        "compounds": hide_unicode_spaces(split_compounds(made[1])),
    }
