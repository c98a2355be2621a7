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
    """

    def __init__(self, parts):
        self._ids = [ids for ids, _ in parts]
        self._starts = np.concatenate([starts[:-1] for _, starts in parts])
        self._first = np.cumsum([0] + [len(starts) - 1 for _, starts in parts])
        self.lengths = np.concatenate([np.diff(starts) for _, starts in parts]).astype(np.int32)

    def __len__(self):
        """Number of sequences."""
        return len(self.lengths)

    def __getitem__(self, number):
        """Returns one sequence, an integer NumPy array of shape `(length,)`."""
        part = np.searchsorted(self._first, number, side="right") - 1
        start = self._starts[number]
        return self._ids[part][start : start + self.lengths[number]]

    def padded(self, indices, rows, length, pad_id):
        """Gathers sequences into one array.

        Args:
            indices: int NumPy array, at most `rows` numbers of sequences.
            rows: number of rows.
            length: number of columns, at least that of the longest of the sequences.
            pad_id: fills the rest.

        Returns:
            int32 NumPy array, shape `(rows, length)`.
        """
        padded = np.full((rows, length), pad_id, np.int32)
        part = np.searchsorted(self._first, indices, side="right") - 1
        for number in np.unique(part):
            here = np.flatnonzero(part == number)
            sequences = indices[here]
            lengths = self.lengths[sequences]
            # Position in its row of every token of these sequences, one row after the other.
            columns = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            tokens = np.repeat(self._starts[sequences], lengths) + columns
            padded[np.repeat(here, lengths), columns] = self._ids[number][tokens]
        return padded

    def select(self, keep):
        """Returns the sequences of a mask, bool, shape `(num_sequences,)`, as `Sequences`."""
        parts = []
        for ids, first, last in zip(self._ids, self._first, self._first[1:], strict=False):
            lengths, chosen = self.lengths[first:last], keep[first:last]
            parts.append((ids[np.repeat(chosen, lengths)], _starts(lengths[chosen])))
        return Sequences(parts)


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
    """
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
