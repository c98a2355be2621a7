"""Hard and soft alignments from attention, between pieces or words; NumPy only.

Pieces are sub-words in which U+2581 stands for the space before a word. The end of sentence and padding are
never aligned: their rows and columns are removed first, so a target piece is aligned to the best source
piece even if most of its attention is on the end of sentence.
"""

from typing import NamedTuple

import numpy as np

SPACE = "\u2581"
# The decoding step whose attention a target piece gets: the step with the piece as output (Garg et al.,
# 2019), or the next step, with the piece as input (Chen et al., 2020, "SHIFT-ATT").
CONVENTIONS = ("output", "input")
UNITS = ("pieces", "words")


class AlignmentChoice(NamedTuple):
    """The attention from which alignments are made.

    Attributes:
        layer: int, decoder layer, counted from 0.
        convention: `"output"` or `"input"`.
    """

    layer: int
    convention: str


def soft_alignment(
    attention: np.ndarray,
    source_pieces: list[str],
    target_pieces: list[str],
    *,
    convention: str,
    unit: str = "words",
) -> np.ndarray:
    """Returns the attention of each target piece or word to each source piece or word.

    Between words: the sum over the pieces of the source word, the mean over the pieces of
    the target word. A row sums to 1 minus the attention to the end of sentence.

    Args:
        attention: float NumPy array, shape `(target_len, source_len)`. Row i belongs to the step
            that produces target piece i. Rows and columns after the pieces (end of sentence,
            padding) are ignored.
        source_pieces: list of str, without the end of sentence.
        target_pieces: list of str, without the end of sentence.
        convention: `"output"` or `"input"`, see `CONVENTIONS`. In a translation that was cut off, the
            last piece is never an input; with `"input"` it gets the step that produces it.
        unit: `"pieces"` or `"words"`.

    Returns:
        float NumPy array, shape `(num_target, num_source)`, in pieces or words.
    """
    weights = _piece_attention(attention, len(source_pieces), len(target_pieces), convention)
    if _check_choice("unit", unit, UNITS) == "pieces":
        return weights
    source_words, target_words = _membership(source_pieces), _membership(target_pieces)
    return (target_words / target_words.sum(1, keepdims=True)) @ weights @ source_words.T


def hard_alignment(
    attention: np.ndarray,
    source_pieces: list[str],
    target_pieces: list[str],
    *,
    convention: str,
    unit: str = "words",
) -> list[tuple[int, int]]:
    """Links each target piece to the source piece with the largest attention.

    Between words: two words are linked if any of their pieces are.

    Args:
        attention, source_pieces, target_pieces, convention, unit: as in `soft_alignment`.

    Returns:
        list of `(source, target)`, numbers of pieces or words counted from 0, sorted; empty if
        either side is empty.
    """
    weights = _piece_attention(attention, len(source_pieces), len(target_pieces), convention)
    _check_choice("unit", unit, UNITS)
    if not weights.size:
        return []
    links = [(int(source), target) for target, source in enumerate(weights.argmax(1))]
    if unit == "words":
        source_words, target_words = word_numbers(source_pieces), word_numbers(target_pieces)
        pairs = {(source_words[source], target_words[target]) for source, target in links}
        links = [pair for pair in pairs if None not in pair]
    return sorted(links)


def word_numbers(pieces):
    """Returns the number of the word that each piece belongs to.

    Words are separated by spaces. A piece that is only a space belongs to the next word.

    Returns:
        list of int; `None` for spaces after the last word.
    """
    numbers, word, inside = [], -1, False
    for piece in pieces:
        inside = inside and not piece.startswith(SPACE)
        if not inside and piece.strip(SPACE):
            word, inside = word + 1, True
        numbers.append(word if inside else word + 1)
    return [number if number <= word else None for number in numbers]


def format_pharaoh(links):
    """Returns links in Pharaoh's format: `0-0 1-2`, source-target, counted from 0."""
    return " ".join(f"{source}-{target}" for source, target in links)


def format_soft(weights):
    """Returns a soft alignment in Marian's format.

    Args:
        weights: float NumPy array, shape `(num_target, num_source)`.

    Returns:
        str: the rows separated by spaces, the weights in a row by commas.
    """
    return " ".join(",".join(f"{weight:.4f}" for weight in row) for row in weights)


def default_alignment_choice(num_layers):
    """Returns the choice of Garg et al. (2019): the penultimate decoder layer, convention `"output"`."""
    return AlignmentChoice(max(num_layers - 2, 0), "output")


def _piece_attention(attention, num_source, num_target, convention):
    """Returns the attention between pieces, float, shape `(num_target, num_source)`."""
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
    """Returns float32, shape `(num_words, num_pieces)`: 1 if the piece belongs to the word."""
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
