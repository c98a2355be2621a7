"""Noise for synthetic source sentences: whole words are dropped, replaced and shuffled.

The noise of Edunov et al. (2018), "Understanding Back-Translation at Scale", whose rates are the defaults.
The noise of a line depends only on the seed, the number of the line and its text, and not on the order of
processing, on batches or on shards.
"""

import random
from hashlib import blake2b
from typing import NamedTuple


class Noise(NamedTuple):
    """Rates of the noise; with all rates 0 a text stays as it is.

    Words are what spaces separate. In scripts without spaces, a sentence is a single word.

    Attributes:
        drop: float in [0, 1), probability of dropping each word. At least one word always remains.
        replace: float in [0, 1], probability of replacing each remaining word by `filler`.
        shuffle: int, at least 0: the largest number of positions by which the remaining words are moved.
        filler: str, one word.
        seed: int.
    """

    drop: float = 0.1
    replace: float = 0.1
    shuffle: int = 3
    filler: str = "_"
    seed: int = 1

    def check(self) -> None:
        """Raises `ValueError` if a value is out of range."""
        if not 0 <= self.drop < 1:
            raise ValueError(f"`drop` must be at least 0 and below 1. Received: {self.drop!r}")
        if not 0 <= self.replace <= 1:
            raise ValueError(f"`replace` must be from 0 to 1. Received: {self.replace!r}")
        if isinstance(self.shuffle, bool) or not isinstance(self.shuffle, int) or self.shuffle < 0:
            raise ValueError(f"`shuffle` must be a whole number of at least 0. Received: {self.shuffle!r}")
        if self.filler.split() != [self.filler]:
            raise ValueError(f"`filler` must be one word. Received: {self.filler!r}")

    def apply(self, text: str, number: int) -> str:
        """Returns a text with noise.

        Args:
            text: str, one sentence.
            number: int, number of its line.

        Returns:
            str, words separated by single spaces; `text` itself if it is blank or all rates are 0.

        Raises:
            ValueError: a rate is out of range.
        """
        self.check()
        words = text.split()
        if not words or not (self.drop or self.replace or self.shuffle):
            return text
        key = blake2b(f"{self.seed}\n{number}\n{text}".encode("utf-8", "surrogatepass")).digest()
        draw = random.Random(key).random
        # Always three draws per word, so that a rate does not change the decisions of the others.
        draws = [(draw(), draw(), draw()) for _ in words]
        # If all words would be dropped, the one with the highest draw remains: each is equally likely.
        threshold = min(self.drop, max(dropped for dropped, _, _ in draws))
        kept = [
            (self.filler if replaced < self.replace else word, moved)
            for word, (dropped, replaced, moved) in zip(words, draws, strict=True)
            if dropped >= threshold
        ]
        return " ".join(kept[i][0] for i in shuffled([moved for _, moved in kept], self.shuffle))


def shuffled(draws, distance):
    """Returns the order of words in which none is moved by more than `distance` positions.

    Sorts the positions i by i + U(0, distance + 1) (Lample et al., 2018), so words at least
    distance + 1 positions apart keep their order.

    Args:
        draws: list of float in [0, 1), one for each word.
        distance: int, at least 0.

    Returns:
        list of int, the old position of the word at each new position.
    """
    keys = [i + draw * (distance + 1) for i, draw in enumerate(draws)]
    # Stable: a key that is rounded up may equal that of a word distance + 1 later, and stays before it.
    return sorted(range(len(keys)), key=keys.__getitem__)
