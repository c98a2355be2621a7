"""Texts that are longer than the model takes: split where it harms least, or cut."""

from typing import NamedTuple

import regex

from keras_transformer.text.languages import expected_scripts

# Ends of sentences and clauses of scripts that put no space after them.
_NO_SPACE_AFTER = frozenset("。！？｡．、，；：､")
_SENTENCE_END = regex.compile(r"(?<![\p{STerm}…])[\p{STerm}…]++[\p{Pe}\p{Pf}\"'»”]*+")
_CLAUSE_END = regex.compile(
    r"[,;:\u060c\u061b\u3001\uff0c\uff1b\uff1a\uff64\u2013\u2014][\p{Pe}\p{Pf}\"'»”]*+"
)
_CHARACTER = regex.compile(r"\X")
_SPACES = regex.compile(r"[ \t\u3000]+")
_ABBREVIATION = regex.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|No|Nr|vs|[0-9]{1,2}|\p{Lu})|\p{L}\.\s?\p{L})\.$")
# A sentence of fewer bytes is joined to the next: often it is the rest of an abbreviation.
_SHORT = 25
# A grapheme may be as long as its text; round the middle, so many characters are looked at.
_NEIGHBOURHOOD = 64
_WITHOUT_SPACES = frozenset({"Hani", "Hira", "Kana", "Hans", "Hant", "Jpan"})


class EncodedText(NamedTuple):
    """One text as the model takes it.

    Attributes:
        rows: list of lists of int, the ids of each of its parts, without end of sentence;
            none for a blank text.
        is_cut: bool, whether its end was left out.
    """

    rows: list
    is_cut: bool


def encode_texts(texts, encode, *, limit, long_lines):
    """Encodes texts; those over the limit are split or cut.

    A text is split at all its ends of sentences. A sentence that is still too long is
    halved until its parts fit: at the mark of a clause about its middle, or else at the
    space that is nearest to the middle, or else between two characters. The time is
    proportional to the length, but for a logarithm.

    Args:
        texts: list of str.
        encode: function, list of str -> list of lists of int.
        limit: most tokens of a row, at least 1.
        long_lines: `"split"` or `"cut"`.

    Returns:
        list of `EncodedText`, one for each text.
    """
    encoded = []
    for text, row in zip(texts, encode(texts), strict=True):
        if len(row) <= limit:
            encoded.append(EncodedText([row] if row else [], False))
        elif long_lines == "cut":
            encoded.append(EncodedText([row[:limit]], True))
        else:
            encoded.append(_split(text, encode, limit))
    return encoded


def sentences(text):
    """Splits a text at the ends of its sentences.

    An end is a full stop or the like, as Unicode's `Sentence_Terminal` says, with closing
    quotes and brackets; after it come a space and no lower-case letter, or anything where
    a script writes no spaces. Initials, numbers of up to two digits and a few titles are
    no ends; and what is very short stays with what follows.

    Returns:
        list of str, without spaces at their ends; joined by spaces they are the text again,
        but for its runs of spaces and where no space stood.
    """
    found, begin = [], 0
    for match in _SENTENCE_END.finditer(text):
        end = match.end()
        if _ends_here(text, match, _NO_SPACE_AFTER) and len(text[begin:end].strip().encode()) >= _SHORT:
            found.append(text[begin:end])
            begin = end
    found.append(text[begin:])
    return [one.strip() for one in found if one.strip()]


def joint(language):
    """Returns what goes between sentences of a language: nothing for Chinese and Japanese.

    Args:
        language: its code; an unknown one is taken to write spaces.
    """
    try:
        scripts = expected_scripts(language)
    except ValueError:
        return " "
    return "" if scripts <= _WITHOUT_SPACES else " "


def _ends_here(text, match, no_space_after):
    if any(character in no_space_after for character in match[0]):
        return True
    following = text[match.end() : match.end() + 2]
    if not following[:1].isspace() or following[1:].islower():
        return False
    before = text[max(0, match.end() - 8) : match.end()]
    return not _ABBREVIATION.search(before)


def _split(text, encode, limit):
    """Returns the `EncodedText` of a text that is too long."""
    parts = sentences(_SPACES.sub(" ", text))
    rows = encode(parts)
    is_cut = False
    while any(len(row) > limit for row in rows):
        halves, halved_rows = [], []
        for part, row in zip(parts, rows, strict=True):
            if len(row) <= limit:
                halves.append(part)
                halved_rows.append(row)
            elif len(part) == 1:  # one character of more bytes than fit
                is_cut = True
                halves.append(part)
                halved_rows.append(row[:limit])
            else:
                new = [half for half in _halves(part) if half]
                halves += new
                halved_rows += encode(new)
        parts, rows = halves, halved_rows
    return EncodedText([row for row in rows if row], is_cut)


def _halves(text):
    """Cuts a text of at least two characters in two, near its middle."""
    middle = len(text) // 2
    first, last = len(text) // 4, len(text) - len(text) // 4
    ends = [
        match.end()
        for match in _CLAUSE_END.finditer(text, first, last)
        if match[0][0] in _NO_SPACE_AFTER or text[match.end() : match.end() + 1].isspace()
    ]
    if ends:
        end = min(ends, key=lambda end: abs(end - middle))
    else:
        spaces = [at for at in (text.rfind(" ", 0, middle), text.find(" ", middle)) if at > 0]
        end = min(spaces, key=lambda at: abs(at - middle)) if spaces else _between_characters(text, middle)
    return text[:end].strip(), text[end:].strip()


def _between_characters(text, middle):
    """Returns the end of a character, with its marks, near the middle; 0 < end < len(text)."""
    begin = max(0, middle - _NEIGHBOURHOOD)
    ends = [
        match.end() for match in _CHARACTER.finditer(text, begin, min(len(text), middle + _NEIGHBOURHOOD))
    ]
    ends = [end for end in ends[:-1] if end > 0]
    return min(ends, key=lambda end: abs(end - middle)) if ends else middle
