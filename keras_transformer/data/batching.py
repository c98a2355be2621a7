"""Pairs of id sequences to token-bucketed batches.

The order of the data is a pure function of (seed, epoch): `plan_epoch` computes it from
the lengths alone, so a run that continues at batch k of epoch e makes neither the batches
before it nor a different choice. TensorFlow gathers and pads what the plan names.

A batch holds pairs of about the same source and target length, in rows that are a
multiple of 8; rows left over at the end of an epoch are filled with padding, which the
loss does not count, so no pair is lost.
"""

import itertools
from typing import NamedTuple

import numpy as np
import tensorflow as tf

ROWS_MULTIPLE = 8


class Sequences(NamedTuple):
    """Many sequences of ids, one after the other.

    Attributes:
        ids: int32 NumPy array, shape `(total_length,)`.
        starts: int64 NumPy array, shape `(num_sequences + 1,)`; sequence i is
            `ids[starts[i]:starts[i + 1]]`.
    """

    ids: np.ndarray
    starts: np.ndarray

    @property
    def lengths(self):
        """int64 NumPy array, shape `(num_sequences,)`, in tokens."""
        return np.diff(self.starts)


class IdPairs(NamedTuple):
    """Source and target sequences, each ending with the end-of-sentence id.

    Attributes:
        source: `Sequences`.
        target: `Sequences`, as many.
    """

    source: Sequences
    target: Sequences

    def __len__(self):
        """Number of pairs."""
        return len(self.source.starts) - 1


class FilteredIds(NamedTuple):
    """Pairs that are left after a filter, and how many are not."""

    pairs: IdPairs
    num_dropped: int


class BatchPlan(NamedTuple):
    """Which pairs form one batch, and its shape.

    Attributes:
        indices: int64 NumPy array of pair numbers, at most `rows` of them.
        rows: number of rows.
        source_len: padded source length, in tokens.
        target_len: padded target length, in tokens.
    """

    indices: np.ndarray
    rows: int
    source_len: int
    target_len: int


def encode_pairs(source, target, tokenizer):
    """Encodes two lists of sentences.

    Args:
        source: list of str.
        target: list of str, as many.
        tokenizer: has `encode(texts)` and `special.eos`.

    Returns:
        `IdPairs`.
    """
    return IdPairs(_sequences(source, tokenizer), _sequences(target, tokenizer))


def drop_long(pairs, max_length):
    """Drops pairs of which either side has over `max_length` tokens, eos included.

    Returns:
        `FilteredIds`.
    """
    keep = np.maximum(pairs.source.lengths, pairs.target.lengths) <= max_length
    return FilteredIds(
        IdPairs(_select(pairs.source, keep), _select(pairs.target, keep)),
        int(np.sum(~keep)),
    )


def fixed_lengths(max_length):
    """Padded lengths of `padding="fixed"`: multiples of 8, each about a quarter longer.

    Returns:
        list of int, the last at least `max_length`.
    """
    lengths = [8]
    while lengths[-1] < max_length:
        lengths.append(8 * -(-max(lengths[-1] + 8, lengths[-1] * 5 // 4) // 8))
    return lengths


def plan_epoch(source_lengths, target_lengths, *, batch_tokens, seed, epoch, padding="longest"):
    """Chooses the batches of one epoch.

    Args:
        source_lengths: int NumPy array, shape `(num_pairs,)`, in tokens.
        target_lengths: int NumPy array, shape `(num_pairs,)`, in tokens.
        batch_tokens: no batch has more padded tokens than this, on either side.
        seed: with `epoch`, decides the order.
        epoch: int, from 0.
        padding: `"longest"` pads to the longest of the batch; `"fixed"` to one of
            `fixed_lengths`, with as many rows as the budget holds: one shape a length.

    Returns:
        list of `BatchPlan`; every pair is in exactly one.

    Raises:
        ValueError: the budget does not hold 8 rows of the longest pair.
    """
    if not len(source_lengths):
        raise ValueError("There are no pairs to make batches of.")
    longest = int(max(source_lengths.max(), target_lengths.max()))
    if padding == "fixed":
        longest = fixed_lengths(longest)[-1]
    if ROWS_MULTIPLE * longest > batch_tokens:
        raise ValueError(
            f"`batch_tokens` must hold {ROWS_MULTIPLE} rows of the longest pair. "
            f"Received: batch_tokens={batch_tokens}, longest={longest}"
        )
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(len(source_lengths))
    if padding == "fixed":
        plans = _plan_fixed(source_lengths, target_lengths, order, batch_tokens)
    else:
        plans = _plan_longest(source_lengths, target_lengths, order, batch_tokens)
    return [plans[i] for i in rng.permutation(len(plans))]


class TokenBatches:
    """Token-bucketed batches of one set of pairs.

    Args:
        pairs: `IdPairs`.
        special: `SpecialIds`.
        batch_tokens: budget of a batch in padded tokens, for each side.
        seed: of the order.
        padding: `"longest"` or `"fixed"`.

    A batch is `((source_ids, target_ids), labels)`, int32: source ids and labels end with
    eos, target ids start with bos and lag one token behind the labels.
    """

    def __init__(self, pairs, *, special, batch_tokens, seed=1, padding="longest"):
        self.pairs = pairs
        self.special = special
        self.batch_tokens = batch_tokens
        self.seed = seed
        self.padding = padding
        self.per_epoch = len(self.plan(0))

    def plan(self, epoch):
        """Returns the `BatchPlan`s of one epoch, in order."""
        return plan_epoch(
            self.pairs.source.lengths,
            self.pairs.target.lengths,
            batch_tokens=self.batch_tokens,
            seed=self.seed,
            epoch=epoch,
            padding=self.padding,
        )

    def forever(self, start=0):
        """Returns an endless `tf.data.Dataset`, epoch after epoch.

        Args:
            start: number of batches of the whole run that are skipped, unmade.
        """

        def plans():
            first_epoch, skipped = divmod(start, self.per_epoch)
            for epoch in itertools.count(first_epoch):
                yield from self.plan(epoch)[skipped:]
                skipped = 0

        return self._dataset(plans)

    def once(self):
        """Returns a `tf.data.Dataset` of every pair once, in the order of epoch 0."""
        dataset = self._dataset(lambda: iter(self.plan(0)))
        return dataset.apply(tf.data.experimental.assert_cardinality(self.per_epoch))

    def _dataset(self, plans):
        source = tf.RaggedTensor.from_row_splits(*self.pairs.source)
        target = tf.RaggedTensor.from_row_splits(*self.pairs.target)
        special = self.special

        def make_batch(indices, rows, source_len, target_len):
            source_ids = _padded(source, indices, rows, source_len, special.pad)
            labels = _padded(target, indices, rows, target_len, special.pad)
            first = tf.fill((rows, 1), special.bos)
            target_ids = tf.concat([first, labels[:, :-1]], axis=1)
            return (source_ids, target_ids), labels

        number = tf.TensorSpec((), tf.int32)
        signature = (tf.TensorSpec((None,), tf.int64), number, number, number)
        return (
            tf.data.Dataset.from_generator(plans, output_signature=signature)
            .map(make_batch, num_parallel_calls=tf.data.AUTOTUNE)
            .prefetch(tf.data.AUTOTUNE)
        )


def _padded(sequences, indices, rows, length, pad_id):
    """Gathers sequences into int32, shape `(rows, length)`."""
    ids = tf.gather(sequences, indices).to_tensor(pad_id)
    missing = tf.stack([rows, length]) - tf.shape(ids)
    ids = tf.pad(ids, tf.stack([tf.zeros_like(missing), missing], 1), constant_values=pad_id)
    return tf.ensure_shape(ids, (None, None))


def _plan_longest(source_lengths, target_lengths, order, batch_tokens):
    # By target length, and within it by source length up and down in turn, so that
    # neighbours differ little on both sides. Pairs alike in both stay in random order.
    source, target = source_lengths[order], target_lengths[order]
    order = order[np.lexsort((np.where(target % 2, source, -source), target))]

    # Longest source and target of each group of 8 rows.
    firsts = np.arange(0, len(order), ROWS_MULTIPLE)
    source = np.maximum.reduceat(source_lengths[order], firsts)
    target = np.maximum.reduceat(target_lengths[order], firsts)
    plans = []
    begin = 0
    while begin < len(firsts):
        end, source_len, target_len = begin, 0, 0
        while end < len(firsts):
            longer_source = max(source_len, int(source[end]))
            longer_target = max(target_len, int(target[end]))
            rows = (end + 1 - begin) * ROWS_MULTIPLE
            if rows * max(longer_source, longer_target) > batch_tokens:
                break
            end, source_len, target_len = end + 1, longer_source, longer_target
        indices = order[begin * ROWS_MULTIPLE : end * ROWS_MULTIPLE]
        plans.append(BatchPlan(indices, (end - begin) * ROWS_MULTIPLE, source_len, target_len))
        begin = end
    return plans


def _plan_fixed(source_lengths, target_lengths, order, batch_tokens):
    longest = np.maximum(source_lengths, target_lengths)[order]
    lengths = fixed_lengths(int(longest.max()))
    bucket = np.searchsorted(lengths, longest)
    plans = []
    for number, length in enumerate(lengths):
        members = order[bucket == number]
        rows = batch_tokens // length // ROWS_MULTIPLE * ROWS_MULTIPLE
        for begin in range(0, len(members), rows):
            plans.append(BatchPlan(members[begin : begin + rows], rows, length, length))
    return plans


def _sequences(texts, tokenizer):
    rows = tokenizer.encode(texts)
    lengths = np.fromiter((len(row) + 1 for row in rows), np.int64, len(rows))
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = np.full(starts[-1], tokenizer.special.eos, np.int32)
    for begin, row in zip(starts, rows, strict=False):
        ids[begin : begin + len(row)] = row
    return Sequences(ids, starts)


def _select(sequences, keep):
    lengths = sequences.lengths
    starts = np.concatenate([[0], np.cumsum(lengths[keep])]).astype(np.int64)
    return Sequences(sequences.ids[np.repeat(keep, lengths)], starts)
