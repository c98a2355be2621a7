"""Many sequences of ids in few arrays, and pairs of such; NumPy only."""

import copy
import itertools
from typing import NamedTuple

import numpy as np


class Sequences:
    """Many sequences of ids, kept one after the other in one array or several.

    Args:
        parts: list of `(ids, starts)`: an integer NumPy array of shape
            `(total_length,)`, in memory or mapped from a file, and an int64 NumPy array
            of shape `(num_sequences + 1,)`; sequence i of the part is
            `ids[starts[i]:starts[i + 1]]`.

    Attributes:
        arrays: list of the arrays of ids.
        first: int64 NumPy array, shape `(num_arrays + 1,)`: array j holds the sequences from number
            `first[j]` to `first[j + 1] - 1`.
        starts: int64 NumPy array, shape `(num_sequences,)`: where in its array a sequence begins.
        lengths: int32 NumPy array, shape `(num_sequences,)`, in tokens.
    """

    def __init__(self, parts):
        self.arrays = [ids for ids, _ in parts]
        self.first = np.cumsum([0, *(len(starts) - 1 for _, starts in parts)])
        self.starts = np.concatenate([starts[:-1] for _, starts in parts])
        self.lengths = np.concatenate([np.diff(starts).astype(np.int32) for _, starts in parts])

    def __len__(self):
        """Number of sequences."""
        return len(self.lengths)

    def __getitem__(self, number):
        """Returns one sequence, an integer NumPy array of shape `(length,)`."""
        array = self.arrays[np.searchsorted(self.first, number, side="right") - 1]
        return array[self.starts[number] :][: self.lengths[number]]

    def select(self, keep):
        """Returns the sequences of a mask, bool, shape `(num_sequences,)`, without a copy of ids."""
        selected = copy.copy(self)
        selected.first = np.concatenate([[0], np.cumsum(keep)])[self.first]
        selected.starts, selected.lengths = self.starts[keep], self.lengths[keep]
        return selected


class IdPairs(NamedTuple):
    """Source and target sequences, each ending with the end-of-sentence id.

    Attributes:
        source: `Sequences`.
        target: `Sequences`, the same number.
    """

    source: Sequences
    target: Sequences

    @property
    def num_pairs(self):
        """Number of pairs."""
        return len(self.source)

    @property
    def lengths(self):
        """Source and target lengths, int32 NumPy arrays of shape `(num_pairs,)`."""
        return self.source.lengths, self.target.lengths


def encode_pairs(source, target, tokenizer, target_tokenizer=None):
    """Encodes two lists of sentences.

    Args:
        source: list of str.
        target: list of str, of the same length.
        tokenizer: has `encode(texts)` and `special.eos`.
        target_tokenizer: the same for the target; `None` for a shared vocabulary.

    Returns:
        `IdPairs`.

    Raises:
        ValueError: the lists have different lengths.
    """
    if len(source) != len(target):
        raise ValueError(
            f"`source` and `target` must have as many sentences. Received: {len(source)} and {len(target)}"
        )
    sides = (source, tokenizer), (target, target_tokenizer or tokenizer)
    return IdPairs(*(Sequences([encode_flat(*side)]) for side in sides))


def encode_flat(texts, tokenizer):
    """Encodes texts into one array, an end-of-sentence id after each.

    Returns:
        ids, int32 NumPy array of shape `(total_length,)`, and starts, int64 NumPy array
        of shape `(num_texts + 1,)`.
    """
    return flatten(tokenizer.encode(texts), tokenizer.special.eos)


def flatten(rows, eos_id):
    """Joins lists of ids as `encode_flat` does."""
    starts = np.cumsum([0, *(len(row) + 1 for row in rows)])
    ids = np.fromiter(itertools.chain.from_iterable([*row, eos_id] for row in rows), np.int32, starts[-1])
    return ids, starts


def drop_long(pairs, max_length):
    """Drops pairs that have over `max_length` tokens on either side, eos included.

    Returns:
        `IdPairs`, and a bool NumPy array, which of the pairs before they are.
    """
    keep = np.maximum(*pairs.lengths) <= max_length
    return pairs if keep.all() else IdPairs(*(side.select(keep) for side in pairs)), keep
