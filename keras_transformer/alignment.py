"""Alignments from attention: hard and soft, of pieces and of words; NumPy only.

Pieces are those of a tokenizer, U+2581 where a space stands before a word. The end of
sentence and padding are never aligned: their rows and columns are left out before
anything else, so a target piece points to the best of the real source pieces even where
it looks at the end of the sentence most.
"""

import json
from typing import NamedTuple

import numpy as np

SPACE = "\u2581"
# Which step's attention belongs to a target piece: the step that produces it (Garg et al.,
# 2019), or the next one, which reads it (Chen et al., 2020, "SHIFT-ATT").
CONVENTIONS = ("output", "input")
UNITS = ("pieces", "words")
MIN_ANCHORS = 50


class AlignmentChoice(NamedTuple):
    """Which attention alignments are made of.

    Attributes:
        layer: number of the decoder layer, from 0.
        convention: `"output"` or `"input"`.
    """

    layer: int
    convention: str


class AnchorCounts(NamedTuple):
    """How often the attention of each layer points from an anchor to its twin.

    Attributes:
        num_anchors: int.
        correct: int NumPy array, shape `(num_layers, 2)`, one column for each of
            `CONVENTIONS`.
    """

    num_anchors: int
    correct: np.ndarray


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


def parse_pharaoh(line):
    """Returns the links of one line.

    Returns:
        list of `(source, target)`, int, in the order of the line.

    Raises:
        ValueError: a link is not two numbers joined by `-`.
    """
    links = []
    for link in line.split():
        sides = link.split("-")
        if len(sides) != 2 or not all(side.isascii() and side.isdecimal() for side in sides):
            raise ValueError(f"A link must be SOURCE-TARGET, as in 0-0. Received: {link!r}")
        links.append((int(sides[0]), int(sides[1])))
    return links


def format_soft(weights):
    """Returns a soft alignment as Marian writes it.

    Args:
        weights: float NumPy array, shape `(num_target, num_source)`.

    Returns:
        str: the weights of a target piece or word with commas between them, the next
        after a space.
    """
    return " ".join(",".join(f"{weight:.4f}" for weight in row) for row in weights)


def anchors(source_pieces, target_pieces):
    """Finds pieces that translate each other for certain, or nearly so: the twins.

    Twins are whole words, numbers or marks that are written alike on both sides, but for
    case, and occur once on each. A piece within a word is none, alike by chance; nor is
    the last piece of a sentence, as any attention along the diagonal finds it.

    Returns:
        list of `(source, target)`, numbers of pieces.
    """
    sides = [_whole_pieces(pieces[:-1]) for pieces in (source_pieces, target_pieces)]
    return sorted((sides[0][text], sides[1][text]) for text in sides[0].keys() & sides[1].keys())


def count_anchors(attention, source_pieces, target_pieces):
    """Returns the `AnchorCounts` of one pair.

    Args:
        attention: float NumPy array, shape `(num_layers, target_len, source_len)`, of
            all layers, rows and columns as in `soft_alignment`.
        source_pieces: list of str, without the end of sentence.
        target_pieces: list of str, without the end of sentence.
    """
    twins = anchors(source_pieces, target_pieces)
    correct = np.zeros((len(attention), len(CONVENTIONS)), int)
    for layer, of_layer in enumerate(attention if twins else ()):
        for column, convention in enumerate(CONVENTIONS):
            links = hard_alignment(
                of_layer, source_pieces, target_pieces, convention=convention, unit="pieces"
            )
            correct[layer, column] = len(set(links) & set(twins))
    return AnchorCounts(len(twins), correct)


def fallback_choice(num_layers):
    """Returns the `AlignmentChoice` for a model of which nothing has been measured.

    The last layer but one, at the step that produces a piece: Garg et al. (2019).
    """
    return AlignmentChoice(max(num_layers - 2, 0), "output")


def best_choice(counts):
    """Returns the `AlignmentChoice` by which most anchors point to their twins.

    Among equals, the lower layer and `"output"` come first. With under `MIN_ANCHORS`
    anchors it is `fallback_choice`.

    Args:
        counts: `AnchorCounts`, the sums over many pairs.
    """
    if counts.num_anchors < MIN_ANCHORS:
        return fallback_choice(len(counts.correct))
    layer, column = np.unravel_index(counts.correct.argmax(), counts.correct.shape)
    return AlignmentChoice(int(layer), CONVENTIONS[column])


def choice_to_json(counts):
    """Returns the choice that `AnchorCounts` lead to, and the counts, as JSON text."""
    choice = best_choice(counts)
    columns = dict(zip(CONVENTIONS, counts.correct.T.tolist(), strict=True))
    record = {**choice._asdict(), "anchors": counts.num_anchors, "correct": columns}
    return json.dumps(record, indent=2) + "\n"


def choice_from_json(text, num_layers):
    """Returns the `AlignmentChoice` that `choice_to_json` wrote.

    Raises:
        ValueError: it is another text, or not of a model of `num_layers` layers.
    """
    record = json.loads(text)
    try:
        choice = AlignmentChoice(record["layer"], record["convention"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"`layer` and `convention` are wanted. Received: {text[:80]!r}") from error
    if type(choice.layer) is not int or not 0 <= choice.layer < num_layers:
        raise ValueError(f"`layer` must be from 0 to {num_layers - 1}. Received: {choice.layer!r}")
    _check_choice("convention", choice.convention, CONVENTIONS)
    return choice


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


def _whole_pieces(pieces):
    """Text of a piece -> its number, of those that are whole words or marks and occur once."""
    found = {}
    for number, piece in enumerate(pieces):
        text = piece.strip(SPACE).casefold()
        begins = not number or piece.startswith(SPACE) or pieces[number - 1] == SPACE
        following = pieces[number + 1] if number + 1 < len(pieces) else SPACE
        ends = following.startswith(SPACE) or not following[:1].isalnum()
        if text and (not any(map(str.isalnum, text)) or (begins and ends)):
            found.setdefault(text, []).append(number)
    return {text: numbers[0] for text, numbers in found.items() if len(numbers) == 1}


def _check_choice(name, value, choices):
    if value not in choices:
        raise ValueError(f"`{name}` must be one of {list(choices)}. Received: {value!r}")
    return value
