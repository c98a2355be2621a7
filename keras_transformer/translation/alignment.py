"""Alignments from attention: hard and soft, of pieces and of words; NumPy only.

Pieces are those of a tokenizer, U+2581 where a space stands before a word. The end of
sentence and padding are never aligned: their rows and columns are left out before
anything else, so a target piece points to the best of the real source pieces even where
it looks at the end of the sentence most.
"""

from typing import NamedTuple

import numpy as np

SPACE = "\u2581"
# Which step's attention belongs to a target piece: the step that produces it (Garg et al.,
# 2019), or the next one, which reads it (Chen et al., 2020, "SHIFT-ATT").
CONVENTIONS = ("output", "input")
UNITS = ("pieces", "words")


class AlignmentChoice(NamedTuple):
    """Which attention alignments are made of.

    Attributes:
        layer: number of the decoder layer, from 0.
        convention: `"output"` or `"input"`.
    """

    layer: int
    convention: str


def soft_alignment(attention, source_pieces, target_pieces, *, convention, unit="words"):
    """Returns how much each target piece or word looks at each source piece or word.

    Of words: the sum over the pieces of the source word, the mean over those of the
    target word. A row sums to 1 less what the end of the sentence is given.

    Args:
        attention: float NumPy array, shape `(target_len, source_len)`; row i is of the
            step that produces target piece i. Rows and columns beyond the pieces, of
            the end of sentence or padding, may follow.
        source_pieces: list of str, without the end of sentence.
        target_pieces: list of str, without the end of sentence.
        convention: one of `CONVENTIONS`. With `"input"` the last piece of a translation
            that was cut off, which no step reads, has the step that produces it.
        unit: one of `UNITS`.

    Returns:
        float NumPy array, shape `(num_target, num_source)`, in pieces or words.
    """
    weights = _of_pieces(attention, len(source_pieces), len(target_pieces), convention)
    if _check_choice("unit", unit, UNITS) == "pieces":
        return weights
    source_words, target_words = _membership(source_pieces), _membership(target_pieces)
    return (target_words / target_words.sum(1, keepdims=True)) @ weights @ source_words.T


def hard_alignment(attention, source_pieces, target_pieces, *, convention, unit="words"):
    """Returns a link from each target piece to the source piece that it looks at most.

    Of words: one link wherever any of their pieces are linked.

    Args:
        attention: as `soft_alignment` takes it, as all others.

    Returns:
        list of `(source, target)`, numbers of pieces or words from 0, ascending. It is
        empty where either side is.
    """
    weights = _of_pieces(attention, len(source_pieces), len(target_pieces), convention)
    _check_choice("unit", unit, UNITS)
    if not weights.size:
        return []
    links = [(int(source), target) for target, source in enumerate(weights.argmax(1))]
    if unit == "words":
        source_words, target_words = word_numbers(source_pieces), word_numbers(target_pieces)
        links = {(source_words[source], target_words[target]) for source, target in links}
        links = {link for link in links if None not in link}
    return sorted(links)


def word_numbers(pieces):
    """Returns the number of the word that each piece is of.

    Words are what spaces separate. A piece that is a space alone belongs to the word
    after it.

    Returns:
        list of int, or `None` for spaces with no word after them.
    """
    numbers, word, inside = [], -1, False
    for piece in pieces:
        inside = inside and not piece.startswith(SPACE)
        if not inside and piece.strip(SPACE):
            word, inside = word + 1, True
        numbers.append(word if inside else word + 1)
    return [number if number <= word else None for number in numbers]


def format_pharaoh(links):
    """Returns links as Pharaoh writes them: `0-0 1-2`, source before target, from 0."""
    return " ".join(f"{source}-{target}" for source, target in links)


def format_soft(weights):
    """Returns a soft alignment as Marian writes it.

    Args:
        weights: float NumPy array, shape `(num_target, num_source)`.

    Returns:
        str: the weights of a target piece or word with commas between them, the next
        after a space.
    """
    return " ".join(",".join(f"{weight:.4f}" for weight in row) for row in weights)


def default_choice(num_layers):
    """Returns the `AlignmentChoice` of Garg et al. (2019): the last layer but one, at the producing step."""
    return AlignmentChoice(max(num_layers - 2, 0), "output")


def _of_pieces(attention, num_source, num_target, convention):
    """The rows and columns of pieces, float, shape `(num_target, num_source)`."""
    attention = np.asarray(attention)
    if _check_choice("convention", convention, CONVENTIONS) == "input":
        attention = np.concatenate([attention[1:], attention[-1:]])
    if len(attention) < num_target or attention.shape[1] < num_source:
        raise ValueError(
            f"`attention` must have a row for each of {num_target} target pieces and a column for each of "
            f"{num_source} source pieces. Received: shape {attention.shape}"
        )
    return attention[:num_target, :num_source]


def _membership(pieces):
    """float, shape `(num_words, num_pieces)`: 1 where the piece is of the word."""
    numbers = word_numbers(pieces)
    num_words = max((number + 1 for number in numbers if number is not None), default=0)
    member = np.zeros((num_words, len(pieces)), np.float32)
    for column, number in enumerate(numbers):
        if number is not None:
            member[number, column] = 1
    return member


def _check_choice(name, value, choices):
    if value not in choices:
        raise ValueError(f"`{name}` must be one of {list(choices)}. Received: {value!r}")
    return value
