"""Constituents of linearised trees as patterns of attention: to what does the step that closes one attend?

The patterns are those of `heads.attention_mass`. Query i is the step that produces symbol i.
"""

from typing import NamedTuple

import numpy as np

from keras_transformer.text.linearised import is_closing, is_opening


class Closing(NamedTuple):
    """A constituent, seen from the symbol that closes it.

    Attributes:
        step: int, index of its closing symbol.
        opening: int, index of its opening symbol.
        first: int, index of its first word in the sentence.
        last: int, index of its last word.
    """

    step: int
    opening: int
    first: int
    last: int


def closings(symbols):
    """Returns a `Closing` for each constituent of a linearised tree, in the order in which they are closed.

    Args:
        symbols: list of str, as `text.linearised.linearise` returns them.
    """
    found, stack, words = [], [], 0
    for step, symbol in enumerate(symbols):
        if is_opening(symbol):
            stack.append((step, words))
        elif is_closing(symbol):
            opening, first = stack.pop()
            found.append(Closing(step, opening, first, words - 1))
        else:
            words += 1
    return found


def opening_pattern(symbols, num_steps):
    """Pattern of decoder self-attention: the key that reads the opening symbol of what the query closes.

    Args:
        symbols: as in `closings`.
        num_steps: int, number of decoder steps, at least `len(symbols)`.

    Returns:
        bool NumPy array, shape `(num_steps, num_steps)`.
    """
    pattern = np.zeros((num_steps, num_steps), bool)
    for one in closings(symbols):
        pattern[one.step, one.opening + 1] = True  # step j reads the symbol of step j - 1
    return pattern


def word_pattern(symbols, num_steps, numbers, which):
    """Pattern of cross-attention: the source pieces of a word near the end of what the query closes.

    Args:
        symbols: as in `closings`.
        num_steps: int, number of decoder steps, at least `len(symbols)`.
        numbers: list of int or `None`, the word of each source piece, from 0, as
            `translation.alignment.word_numbers` returns them; `None` for the end of sentence.
        which: `"first"` or `"last"` word of the constituent, or the `"next"` word after it. At the end of the
            sentence, the next word is its end.

    Returns:
        bool NumPy array, shape `(num_steps, len(numbers))`.
    """
    numbers = [-1 if number is None else number for number in numbers]
    numbers = np.where(np.array(numbers) < 0, max(numbers, default=0) + 1, numbers)
    pattern = np.zeros((num_steps, len(numbers)), bool)
    for one in closings(symbols):
        word = {"first": one.first, "last": one.last, "next": one.last + 1}[which]
        pattern[one.step] = numbers == word
    return pattern
