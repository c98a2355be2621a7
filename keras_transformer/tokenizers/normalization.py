"""Rules of Unicode normalization for SentencePiece's trainer."""

import contextlib
import pathlib
import tempfile
import unicodedata

from keras_transformer.tokenizers.base import SPACE


@contextlib.contextmanager
def normalization_rules(normalization):
    """Trainer arguments for a normalization; the rule file lives as long as the block.

    Args:
        normalization: `"nfc"`, `"nfkc"` or `"identity"`.

    Yields:
        dict of arguments of SentencePiece's trainer.
    """
    if normalization == "nfkc":
        yield {"normalization_rule_name": "nmt_nfkc"}
        return
    rules = {SPACE: " "}  # so that runs of it, too, become one space
    if normalization == "nfc":
        rules.update(nfc_rules())
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "rules.tsv")
        path.write_text(
            "".join(f"{_hexadecimal(old)}\t{_hexadecimal(new)}\n" for old, new in rules.items()),
            encoding="ascii",
        )
        yield {"normalization_rule_tsv": str(path)}


def nfc_rules():
    """What NFC makes of each character that has a canonical decomposition.

    Three spellings each, Hangul syllables included: the full decomposition, the one
    that leaves only the last mark apart, and the character itself where NFC replaces it
    (the Kelvin sign becomes K). About 24,000 rules; they add 170 kB to a model.

    Returns:
        dict, sequence of characters to its composition.
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


def _hexadecimal(text):
    return " ".join(f"{ord(character):X}" for character in text)
