"""Pairs of id sequences to token-bucketed batches.

`EpochPlanner` says which pairs share a batch; here they are gathered and padded, and
handed to TensorFlow. A run that continues at batch k of epoch e makes none of the batches
before it. Rows left over in a batch are padding, which the loss does not count, so no
pair is lost.
"""

import itertools
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.data.planning import EpochPlanner


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


class TokenBatches:
    """Token-bucketed batches of one set of pairs.

    Args:
        pairs: `IdPairs`.
        special: `SpecialIds`.
        **plan: `batch_tokens`, `seed`, `padding` and so on, as `EpochPlanner` takes them.

    A batch is `((source_ids, target_ids), labels)`, int32: source ids and labels end with
    eos, target ids start with bos and lag one token behind the labels.
    """

    def __init__(self, pairs, *, special, **plan):
        self.pairs = pairs
        self.special = special
        self.planner = EpochPlanner(pairs.source.lengths, pairs.target.lengths, **plan)

    @property
    def per_epoch(self):
        """Number of batches of the first epoch; later ones have about as many."""
        return self.planner.num_batches(0)

    def plan(self, epoch):
        """Returns the `BatchPlan`s of one epoch, in order."""
        return self.planner.plan(epoch)

    def batch(self, plan):
        """Returns the batch of one `BatchPlan`, int32 NumPy arrays.

        Returns:
            `((source_ids, target_ids), labels)`, of shapes `(rows, source_len)`,
            `(rows, target_len)` and `(rows, target_len)`.
        """
        source_ids = self.pairs.source.padded(plan.indices, plan.rows, plan.source_len, self.special.pad)
        labels = self.pairs.target.padded(plan.indices, plan.rows, plan.target_len, self.special.pad)
        target_ids = np.empty_like(labels)
        target_ids[:, 0] = self.special.bos
        target_ids[:, 1:] = labels[:, :-1]
        return (source_ids, target_ids), labels

    def plans(self, start=0):
        """Yields the `BatchPlan`s of the endless stream.

        Args:
            start: number of batches of the whole run that are skipped, unmade.
        """
        first_epoch, skipped = self.planner.locate(start)
        for epoch in itertools.count(first_epoch):
            yield from self.plan(epoch)[skipped:]
            skipped = 0

    def forever(self, start=0):
        """Returns an endless `tf.data.Dataset`, epoch after epoch.

        Args:
            start: number of batches of the whole run that are skipped, unmade.
        """
        return self._dataset(lambda: map(self.batch, self.plans(start)))

    def once(self):
        """Returns a `tf.data.Dataset` of every pair once, in the order of epoch 0."""
        dataset = self._dataset(lambda: map(self.batch, self.plan(0)))
        return dataset.apply(tf.data.experimental.assert_cardinality(self.per_epoch))

    @staticmethod
    def _dataset(batches):
        ids = tf.TensorSpec((None, None), tf.int32)
        return tf.data.Dataset.from_generator(batches, output_signature=((ids, ids), ids)).prefetch(
            tf.data.AUTOTUNE
        )


def _starts(lengths):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
