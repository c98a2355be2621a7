"""Encoded sentences, stored in a few flat NumPy arrays."""

import copy
import itertools
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from keras_transformer.tokenizers.base import Tokenizer
from keras_transformer.tokenizers.keras_hub import refuse_keras_hub
from keras_transformer.tokenizers.tags import encode_tagged


class Sequences:
    """A list of sequences of ids, concatenated in one or several flat arrays.

    Args:
        parts: list of `(ids, starts)`. `ids` is an integer NumPy array of shape
            `(total_length,)`, in memory or memory-mapped; `starts` is an int64 NumPy array
            of shape `(num_sequences + 1,)`. Sequence i of the part is `ids[starts[i]:starts[i + 1]]`.

    Attributes:
        arrays: list of the arrays of ids.
        first: int64 NumPy array, shape `(num_arrays + 1,)`: array j holds the sequences
            `first[j]` to `first[j + 1] - 1`.
        starts: int64 NumPy array, shape `(num_sequences,)`: index of the first id of a sequence in its array.
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
        """Returns the sequences where `keep` is true; the ids are not copied.

        Args:
            keep: bool NumPy array, shape `(num_sequences,)`.
        """
        selected = copy.copy(self)
        selected.first = np.concatenate([[0], np.cumsum(keep)])[self.first]
        selected.starts, selected.lengths = self.starts[keep], self.lengths[keep]
        return selected


class IdPairs(NamedTuple):
    """Source and target sequences, each ending with the end-of-sentence id.

    Attributes:
        source: `Sequences`.
        target: `Sequences`, of the same length.
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


def encode_pairs(
    source: Iterable[str],
    target: Iterable[str],
    tokenizer: Tokenizer,
    target_tokenizer: Tokenizer | None = None,
    *,
    tagged: bool = False,
) -> "IdPairs":
    """Encodes two lists of sentences.

    Args:
        source: list of str, or another iterable, such as a column of a pandas DataFrame.
        target: the same, of the same length.
        tokenizer: an object with `encode(texts)` and `special.eos`, for the source.
        target_tokenizer: the tokenizer of the target; `None` uses `tokenizer` for both.
        tagged: whether words of the source that are a reserved tag become its token, for training text.

    Returns:
        `IdPairs`.

    Raises:
        TypeError: a tokenizer of keras-hub, which must be converted first; or `source` or `target` is a str,
            or holds another value, such as a missing one.
        ValueError: the lists have different lengths.
    """
    refuse_keras_hub(tokenizer, target_tokenizer)
    texts = _list_texts("source", source), _list_texts("target", target)
    lengths = [len(side) for side in texts]
    if lengths[0] != lengths[1]:
        raise ValueError(
            f"`source` and `target` must have the same length. Received: {lengths[0]} and {lengths[1]}"
        )
    encoded = (
        encode_flat(texts[0], tokenizer, tagged=tagged),
        encode_flat(texts[1], target_tokenizer or tokenizer),
    )
    return IdPairs(*(Sequences([side]) for side in encoded))


def _list_texts(name, texts):
    """Returns an iterable of str as a list; raises `TypeError` if it is something else."""
    if isinstance(texts, (str, bytes)) or hasattr(texts, "columns"):  # a DataFrame iterates over column names
        raise TypeError(f"`{name}` must be a list of str. Received: one {type(texts).__name__}")
    texts = list(texts)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"`{name}` must hold str only. Received: {text!r} at index {number}")
    return texts


def encode_flat(texts, tokenizer, *, tagged=False):
    """Encodes texts into one flat array, with an end-of-sentence id after each text.

    Args:
        texts: list of str.
        tokenizer: as in `encode_pairs`.
        tagged: whether words that are a tag become its id, see `encode_tagged`.

    Returns:
        `(ids, starts)`: int32 NumPy array of shape `(total_length,)`, and int64 NumPy array
        of shape `(num_texts + 1,)`.
    """
    rows = encode_tagged(tokenizer, texts) if tagged else tokenizer.encode(texts)
    return flatten(rows, tokenizer.special.eos)


def flatten(rows, eos_id):
    """Concatenates lists of ids as `encode_flat` does."""
    starts = np.cumsum([0, *(len(row) + 1 for row in rows)])
    ids = np.fromiter(itertools.chain.from_iterable([*row, eos_id] for row in rows), np.int32, starts[-1])
    return ids, starts


def drop_long(pairs, max_length):
    """Drops pairs with more than `max_length` tokens on either side, eos included.

    Returns:
        `(IdPairs, keep)`; `keep` is a bool NumPy array of shape `(num_pairs,)`, true for the pairs kept.
    """
    keep = np.maximum(*pairs.lengths) <= max_length
    return pairs if keep.all() else IdPairs(*(side.select(keep) for side in pairs)), keep
