"""Texts over the length limit: split at ends of sentences or clauses, or cut.

Nothing here imports Keras or TensorFlow.
"""

from typing import NamedTuple

import regex

# Punctuation of scripts that write no space after it.
_NO_SPACE_AFTER = frozenset("。！？｡．、，；：､")
_SENTENCE_END = regex.compile(r"(?<![\p{STerm}…])[\p{STerm}…]++[\p{Pe}\p{Pf}\"'»”]*+")
_CLAUSE_END = regex.compile(
    r"[,;:\u060c\u061b\u3001\uff0c\uff1b\uff1a\uff64\u2013\u2014][\p{Pe}\p{Pf}\"'»”]*+"
)
_CHARACTER = regex.compile(r"\X")
_SPACES = regex.compile(r"[ \t\u3000]+")
_ABBREVIATION = regex.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|No|Nr|vs|[0-9]{1,2}|\p{Lu})|\p{L}\.\s?\p{L})\.$")
# A sentence of fewer bytes is joined to the next one: often it is the end of an abbreviation.
_MIN_SENTENCE_BYTES = 25
# Distance from the middle of a text within which it may be split between two characters.
_SPLIT_WINDOW = 64
# Chinese and Japanese scripts, and the languages that CLDR writes in them by default. CLDR is not read here,
# because translations must not depend on an optional package.
_WITHOUT_SPACES = (
    "hani hira kana hans hant jpan ain ams cdo chi cjy cmn cnp cpx csp czh gan hak hnm how hsn ja jpn ltc "
    "luh lzh mnp nan oko ryu sjc swi wuu yoi yue zch zeh zgb zgm zgn zh zhd zho zlj zln zlq zqe zyg zyn "
    "zzj"
)


class EncodedText(NamedTuple):
    """One text as rows of ids, each short enough for the model.

    Attributes:
        rows: list of lists of int, ids of each part, without end of sentence; empty for a
            blank text.
        is_cut: bool, whether the end of the text was left out.
    """

    rows: list
    is_cut: bool


def encode_texts(texts, encode, *, limit, long_lines):
    """Encodes texts and splits or cuts those over the limit.

    A text is split into sentences. A sentence that is still too long is halved
    until its parts fit: at the end of a clause near its middle, else at the space nearest to
    the middle, else between two characters. The time is O(n log n).

    Args:
        texts: list of str.
        encode: function, list of str -> list of lists of int.
        limit: int, maximum number of tokens of a row, at least 1.
        long_lines: `"split"` or `"cut"`.

    Returns:
        list of `EncodedText`, one per text.
    """

    def fit(text, row):
        if len(row) <= limit:
            return EncodedText([row] if row else [], False)
        if long_lines == "cut":
            return EncodedText([row[:limit]], True)
        return EncodedText(*_encode_parts(sentences(_SPACES.sub(" ", text)), encode, limit))

    return [fit(text, row) for text, row in zip(texts, encode(texts), strict=True)]


def sentences(text, min_bytes=_MIN_SENTENCE_BYTES):
    """Splits a text into sentences.

    A sentence ends with a character of Unicode's class `Sentence_Terminal`, such as a full
    stop, and any closing quotes and brackets after it. A space that is not followed by a
    lower-case letter must come next, except in scripts that write no spaces. The full stop of
    an initial, a number of up to two digits or a title (`Dr.`) ends no sentence. A very short
    sentence is joined to the next one.

    Args:
        text: str.
        min_bytes: int, a sentence of fewer bytes of UTF-8 is joined to the next one.

    Returns:
        list of str, stripped. `" ".join(...)` restores the text, except for runs of spaces and
        for scripts without spaces.
    """
    parts, begin = [], 0
    for match in _SENTENCE_END.finditer(text):
        end = match.end()
        if _ends_here(text, match) and len(text[begin:end].strip().encode()) >= min_bytes:
            parts.append(text[begin:end])
            begin = end
    parts.append(text[begin:])
    return [part.strip() for part in parts if part.strip()]


def sentence_separator(language):
    """Returns the separator of sentences in a language: a space, or "" for Chinese and Japanese.

    Args:
        language: str, its code. Unknown languages get a space.
    """
    name, *rest = regex.split("[-_]", language.lower())
    script = next((part for part in rest if regex.fullmatch("[a-z]{4}", part)), "")
    return "" if (script or name) in _WITHOUT_SPACES.split() else " "


def _ends_here(text, match):
    if _NO_SPACE_AFTER.intersection(match[0]):
        return True
    following = text[match.end() : match.end() + 2]
    if not following[:1].isspace() or following[1:].islower():
        return False
    before = text[max(0, match.end() - 8) : match.end()]
    return not _ABBREVIATION.search(before)


def _encode_parts(parts, encode, limit):
    """Encodes parts and halves those over the limit; returns the rows and whether a character was cut."""
    rows, is_cut = [], False
    for part, row in zip(parts, encode(parts), strict=True):
        if len(row) <= limit:
            rows += [row] if row else []
        elif len(part) == 1:  # one character with more tokens than the limit
            rows.append(row[:limit])
            is_cut = True
        else:
            more, cut = _encode_parts([half for half in _halves(part) if half], encode, limit)
            rows += more
            is_cut |= cut
    return rows, is_cut


def _halves(text):
    """Splits a text of at least two characters into two, near its middle."""
    middle, quarter = len(text) // 2, len(text) // 4
    clauses = [
        match.end()
        for match in _CLAUSE_END.finditer(text, quarter, len(text) - quarter)
        if match[0][0] in _NO_SPACE_AFTER or text[match.end() : match.end() + 1].isspace()
    ]
    spaces = [index for index in (text.rfind(" ", 0, middle), text.find(" ", middle)) if index > 0]
    # Only near the middle: a character with combining marks may be as long as the text.
    window = max(0, middle - _SPLIT_WINDOW), min(len(text), middle + _SPLIT_WINDOW)
    characters = [match.end() for match in _CHARACTER.finditer(text, *window)][:-1]
    end = min(clauses or spaces or characters or [middle], key=lambda end: abs(end - middle))
    return text[:end].strip(), text[end:].strip()
