"""Lexical constraints as text: phrases that a translation must contain, checked and encoded.

Nothing here imports Keras or TensorFlow.
"""

import re

_BREAK = re.compile("[\t\n\r]")


class PhrasesError(ValueError):
    """The phrases of one text cannot be used.

    Attributes:
        index: int, of the text in its list.
        problem: str, what is wrong and the remedy.
    """

    def __init__(self, index, problem):
        super().__init__(index, problem)
        self.index, self.problem = index, problem

    def __str__(self):
        return f"`constraints[{self.index}]`: {self.problem}"


def encode_phrases(constraints, tokenizer):
    """Encodes the phrases of each text.

    Args:
        constraints: list of lists of str, the phrases of each text; `None` instead of a list for none.
        tokenizer: `Tokenizer` of the target.

    Returns:
        list of lists of tuples of int, the distinct phrases of each text without bos and eos.

    Raises:
        TypeError: the phrases of a text are no list of str.
        PhrasesError: a phrase is blank, has a tab or line break, or a character that the vocabulary lacks.
    """
    constraints = [() if phrases is None else phrases for phrases in constraints]
    for index, phrases in enumerate(constraints):
        wrong = [phrases] if isinstance(phrases, (str, bytes)) else [x for x in phrases if type(x) is not str]
        if wrong:
            raise TypeError(
                f"`constraints[{index}]` must be a list of str. Received: {type(wrong[0]).__name__}"
                f"{' instead of a list' if wrong[0] is phrases else ' in it'}"
            )
    special = tokenizer.special
    return [
        list(dict.fromkeys(_encode(index, list(phrases), tokenizer, {special.pad, special.unk})))
        for index, phrases in enumerate(constraints)
    ]


def _encode(index, phrases, tokenizer, forbidden):
    for number, (phrase, row) in enumerate(zip(phrases, tokenizer.encode(phrases), strict=True), 1):
        if not row:
            raise PhrasesError(index, f"phrase {number} is blank. Remove it")
        if _BREAK.search(phrase):
            raise PhrasesError(index, f"phrase {phrase!r} has a tab or a line break. Give two phrases")
        if not forbidden.isdisjoint(row):
            raise PhrasesError(
                index, f"phrase {phrase!r} has a character that the vocabulary lacks. Change or remove it"
            )
        yield tuple(row)


def check_phrases(encoded, texts, prefixes, *, limit, max_length):
    """Raises `PhrasesError` if the phrases of a text cannot occur in its translation.

    Args:
        encoded: list of lists of phrases, from `encode_phrases`.
        texts: list of `EncodedText`.
        prefixes: list of lists of int, the tokens that each translation must start with.
        limit: int, maximum number of source tokens, without end of sentence.
        max_length: int, maximum number of target tokens, with end of sentence.
    """
    for index, (phrases, text, prefix) in enumerate(zip(encoded, texts, prefixes, strict=True)):
        if not phrases:
            continue
        if not text.rows:
            raise PhrasesError(index, "the text is blank, and so is its translation. Remove the phrases")
        if len(text.rows) > 1:
            raise PhrasesError(
                index,
                f"the text has more than {limit} tokens and would be split, but phrases cannot be divided "
                "among its parts. Shorten it, or raise `max_source_length`",
            )
        number = sum(map(len, phrases))
        if len(prefix) + number + 1 > max_length:
            also = f" and the prefix {len(prefix)}" if prefix else ""
            raise PhrasesError(
                index,
                f"the phrases have {number} tokens{also}, but a translation has at most {max_length}, with "
                "the end of sentence. Remove phrases, or raise `max_length`",
            )
