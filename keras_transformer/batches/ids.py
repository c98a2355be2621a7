"""Many sequences of ids in few arrays, and pairs of such; NumPy only."""

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
        self._take(
            [ids for ids, _ in parts],
            np.concatenate([starts[:-1] for _, starts in parts]),
            np.concatenate([np.diff(starts).astype(np.int32) for _, starts in parts]),
            np.array([len(starts) - 1 for _, starts in parts]),
        )

    def _take(self, arrays, starts, lengths, counts):
        self.arrays = arrays
        self.lengths = lengths
        self.starts = starts
        self.first = np.concatenate([[0], np.cumsum(counts)])

    def __len__(self):
        """Number of sequences."""
        return len(self.lengths)

    def __getitem__(self, number):
        """Returns one sequence, an integer NumPy array of shape `(length,)`."""
        array = np.searchsorted(self.first, number, side="right") - 1
        start = self.starts[number]
        return self.arrays[array][start : start + self.lengths[number]]

    def select(self, keep):
        """Returns the sequences of a mask, bool, shape `(num_sequences,)`, without a copy of ids."""
        selected = Sequences.__new__(Sequences)
        counts = np.diff(np.concatenate([[0], np.cumsum(keep)])[self.first])
        selected._take(self.arrays, self.starts[keep], self.lengths[keep], counts)
        return selected


class IdPairs(NamedTuple):
    """Source and target sequences, each ending with the end-of-sentence id.

    Attributes:
        source: `Sequences`.
        target: `Sequences`, as many.
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


class FilteredIds(NamedTuple):
    """Pairs that are left after a filter.

    Attributes:
        pairs: `IdPairs`.
        keep: bool NumPy array, which of the pairs before are left.
    """

    pairs: IdPairs
    keep: np.ndarray

    @property
    def num_dropped(self):
        """Number of pairs that are not left."""
        return int(np.sum(~self.keep))


def encode_pairs(source, target, tokenizer, target_tokenizer=None):
    """Encodes two lists of sentences.

    Args:
        source: list of str.
        target: list of str, as many.
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
    target_tokenizer = target_tokenizer or tokenizer
    return IdPairs(
        Sequences([encode_flat(source, tokenizer)]), Sequences([encode_flat(target, target_tokenizer)])
    )


def encode_flat(texts, tokenizer):
    """Encodes texts into one array, an end-of-sentence id after each.

    Returns:
        ids, int32 NumPy array of shape `(total_length,)`, and starts, int64 NumPy array
        of shape `(num_texts + 1,)`.
    """
    return flatten(tokenizer.encode(texts), tokenizer.special.eos)


def flatten(rows, eos_id):
    """Joins lists of ids as `encode_flat` does."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    starts = _starts(lengths + 1)
    ids = np.full(starts[-1], eos_id, np.int32)
    is_text = np.ones(len(ids), bool)
    is_text[starts[1:] - 1] = False
    ids[is_text] = np.fromiter(itertools.chain.from_iterable(rows), np.int32, int(lengths.sum()))
    return ids, starts


def drop_long(pairs, max_length):
    """Drops pairs of which either side has over `max_length` tokens, eos included.

    Returns:
        `FilteredIds`.
    """
    keep = np.maximum(pairs.source.lengths, pairs.target.lengths) <= max_length
    if keep.all():
        return FilteredIds(pairs, keep)
    return FilteredIds(IdPairs(pairs.source.select(keep), pairs.target.select(keep)), keep)


def _starts(lengths):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
