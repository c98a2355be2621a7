"""Normalization rules for SentencePiece's trainer, which become a part of the model."""

import contextlib
import pathlib
import tempfile
import unicodedata

from keras_transformer.tokenizers.base import SPACE


@contextlib.contextmanager
def normalization_rules(normalization):
    """Context manager: arguments of SentencePiece's trainer for a normalization, with a temporary file.

    Args:
        normalization: `"nfc"`, `"identity"` or `"nfkc"`.
    """
    if normalization == "nfkc":
        yield {"normalization_rule_name": "nmt_nfkc"}
        return
    rules = {SPACE: " "} | (_nfc_rules() if normalization == "nfc" else {})  # runs of SPACE become one space
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "rules.tsv")
        sides = ((" ".join(f"{ord(char):X}" for char in side) for side in rule) for rule in rules.items())
        path.write_text("".join("\t".join(rule) + "\n" for rule in sides), encoding="ascii")
        yield {"normalization_rule_tsv": str(path)}


def _nfc_rules():
    """Returns the composition rules of NFC, for all characters with a canonical decomposition.

    Up to three rules per character, Hangul syllables included: from the full decomposition, from the
    decomposition of only the last mark, and from the character itself if NFC replaces it
    (the Kelvin sign becomes K). The roughly 24,000 rules add 170 kB to a model.

    Returns:
        dict from a sequence of characters to its composition.
    """
    rules = {}
    for code in range(0x110000):
        character = chr(code)
        decomposed = unicodedata.normalize("NFD", character)
        if decomposed == character:
            continue
        composed = unicodedata.normalize("NFC", character)
        one_step = unicodedata.normalize("NFC", decomposed[:-1]) + decomposed[-1]
        for sequence in (character, decomposed, one_step):
            if sequence != composed and unicodedata.normalize("NFC", sequence) == composed:
                rules[sequence] = composed
    return rules
