"""Token-bucketed batches as a `tf.data` graph: batch numbers in, batches of ids out.

`EpochPlanner` says which pairs share a batch. The graph looks up the pair numbers of batch n of that plan,
gathers the ids of those pairs, pads them and shifts the target. No Python runs between batches, except to
draw random segmentations where `sampling` is given.
"""

import hashlib
import mmap
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.batches.device_batches import DeviceShare
from keras_transformer.batches.ids import IdPairs, drop_long, encode_pairs
from keras_transformer.batches.planning import EpochPlanner
from keras_transformer.config.settings import SpecialIds
from keras_transformer.text.lines import DataError
from keras_transformer.tokenizers.tokenizer_pair import Tokenizers

_BATCHES_AHEAD = 2
_MEASURED_PAIRS = 1000
_QUANTILE = 0.9
_WHOLE, _SPECIAL = DeviceShare(), SpecialIds()


def token_batches(pairs, planner, *, start=0, epochs=1, special=_SPECIAL, share=_WHOLE, sampling=None):
    """Makes the batches of a plan.

    Starting at batch n makes no batch before it. The dataset can be mapped, sharded, saved, and handed to
    `tf.data.experimental.service`. Serialised for the service, the graph names memory-mapped ids by the path
    of their file, which must be the same for the workers, and holds everything else: ids in memory, 16 bytes
    a pair, 4 bytes a pair and epoch. Protocol buffers limit that to 2 GB. In this process there is no limit.

    Args:
        pairs: `IdPairs`.
        planner: `EpochPlanner` of their lengths.
        start: number of the first batch, counted from the first batch of epoch 0.
        epochs: number of epochs; the first of them is the one that `start` is in. They are planned now.
        special: `SpecialIds`.
        share: `DeviceShare`, what one worker takes of each batch. An element is the part of one replica;
            the parts of a batch follow each other.
        sampling: `SubwordSampling`, or `None` for the ids as they are.

    Returns:
        finite `tf.data.Dataset` of `((source_ids, target_ids), labels)`, int32, of shapes `(rows,
        source_len)`, `(rows, target_len)` and `(rows, target_len)`; with `share.device_tokens`, there is a
        leading axis of micro-batches. Source ids and labels end with eos; target ids start with bos and lag
        one token behind the labels. Left-over rows are padding.
    """
    plans = planner.plans(start, epochs)
    shapes = np.array([share.shape(plan) for plan in plans], np.int64).reshape(-1, 4)

    def batch(shape, *sides):
        micro_batches, rows, _, _ = tf.unstack(shape)
        number = micro_batches * rows * share.num_replicas
        source_ids, labels = (
            tf.pad(ids, [[0, number - tf.shape(ids, tf.int64)[0]], [0, 0]], constant_values=special.pad)
            for ids in sides
        )
        target_ids = tf.concat([tf.fill([number, 1], special.bos), labels[:, :-1]], axis=1)
        source_ids, target_ids, labels = (
            share.deal(ids, micro_batches, rows) for ids in (source_ids, target_ids, labels)
        )
        parts = (source_ids, target_ids), labels
        return parts if share.num_replicas > 1 else tf.nest.map_structure(lambda ids: ids[0], parts)

    with tf.device("CPU:0"):
        if sampling:
            dataset = _sampled_rows(pairs, plans, shapes, share, special.pad, sampling).map(batch)
        else:
            rows = _gathered_rows(pairs, plans, shapes, share, special.pad)
            dataset = tf.data.Dataset.range(len(plans)).map(
                lambda number: batch(*rows(number)), num_parallel_calls=_BATCHES_AHEAD
            )
        if share.num_replicas > 1:
            dataset = dataset.unbatch()
        return untuned(dataset.prefetch(_BATCHES_AHEAD))


class SubwordSampling(NamedTuple):
    """Sub-word regularisation: every batch encodes its sentences again, at random.

    Segmentations are drawn within the batch from a seed of (seed, epoch, batch), so a run that continues
    draws the same. Random segmentations are longer; batches are planned for that, and a sentence that
    outgrows its batch keeps its usual segmentation.

    Attributes:
        tokenizers: `Tokenizers` of the pairs, with `decode`, `sample` and `special`.
        dropout: rate, as `sample` takes it.
    """

    tokenizers: Tokenizers
    dropout: float

    def lengths(self, pairs):
        """Returns the lengths to plan batches for, int32 NumPy arrays of shape `(num_pairs,)`."""
        return tuple(map(self._grown, pairs, self.tokenizers))

    def draw(self, pairs, plan):
        """Draws the segmentations of one batch.

        Args:
            pairs: `IdPairs`, encoded as usual.
            plan: `BatchPlan`.

        Returns:
            list of lists of ids for each side, each list ending with eos.
        """
        seed = int.from_bytes(hashlib.blake2b(repr(plan.key).encode(), digest_size=8).digest())
        drawn = []
        for side, longest in enumerate((plan.source_len, plan.target_len)):
            tokenizer = self.tokenizers[side]
            usual = [pairs[side][i].tolist()[:-1] for i in plan.indices.tolist()]
            rows = tokenizer.sample(tokenizer.decode(usual), dropout=self.dropout, seed=2 * seed + side)
            rows = [row if len(row) < longest else old for row, old in zip(rows, usual, strict=True)]
            drawn.append([[*row, tokenizer.special.eos] for row in rows])
        return drawn

    def _grown(self, sequences, tokenizer):
        """How long random segmentations are, nine times in ten, from a spread sample."""
        chosen = np.unique(np.linspace(0, len(sequences) - 1, _MEASURED_PAIRS).astype(int))
        texts = tokenizer.decode([sequences[i].tolist()[:-1] for i in chosen.tolist()])
        drawn = tokenizer.sample(texts, dropout=self.dropout, seed=0)
        lengths = np.array([len(row) + 1 for row in drawn])
        growth = np.quantile(lengths / sequences.lengths[chosen], _QUANTILE)
        # No longer than the longest, or the budget that held it would not.
        grown = np.ceil(sequences.lengths * max(growth, 1.0)).astype(np.int32)
        return np.maximum(sequences.lengths, np.minimum(grown, sequences.lengths.max()))


class TokenBatches(NamedTuple):
    """What the batches of a run are made of.

    Attributes:
        pairs: `IdPairs`.
        planner: `EpochPlanner`.
        sampling: `SubwordSampling`, or `None`.
    """

    pairs: IdPairs
    planner: EpochPlanner
    sampling: SubwordSampling | None = None

    @property
    def per_epoch(self):
        """Number of batches of the first epoch; later ones have about as many."""
        return self.planner.num_batches(0)

    def stretch(self, start, least):
        """Returns how many epochs hold at least so many batches from one on, and how many they hold.

        Args:
            start: number of the batch, counted from the first batch of epoch 0.
            least: number of batches.
        """
        epoch, within = self.planner.locate(start)
        epochs, number = 0, -within
        while number < least:
            number += self.planner.num_batches(epoch + epochs)
            epochs += 1
        return epochs, number

    def dataset(self, start=0, epochs=1, share=_WHOLE):
        """Returns the `tf.data.Dataset` of `token_batches`."""
        return token_batches(
            self.pairs, self.planner, start=start, epochs=epochs, share=share, sampling=self.sampling
        )


def training_batches(data, corpus, *, seed):
    """Returns the `TokenBatches` to train on.

    Args:
        data: `DataConfig`.
        corpus: `TrainingData`.
        seed: of the order, and of random segmentations.
    """
    sampling = SubwordSampling(corpus.tokenizers, data.subword_dropout) if data.subword_dropout else None
    planner = EpochPlanner(
        *(sampling.lengths(corpus.train) if sampling else corpus.train.lengths),
        batch_tokens=data.batch_tokens,
        seed=seed,
        padding=data.padding,
        max_shapes=data.max_shapes,
        sizes=corpus.sizes,
        weights=corpus.weights,
    )
    return TokenBatches(corpus.train, planner, sampling)


def validation_batches(data, corpus):
    """Returns the batches of the validation split, and how many of its pairs are too long.

    Returns:
        `(TokenBatches, num_dropped)`.

    Raises:
        DataError: all of them are too long.
    """
    filtered = drop_long(encode_pairs(*corpus.validation, *corpus.tokenizers), data.max_length)
    if not filtered.pairs.num_pairs:
        raise DataError(
            f"validation: all {filtered.num_dropped:,} pairs have over {data.max_length} tokens. "
            "Raise data.max_length"
        )
    planner = EpochPlanner(
        *filtered.pairs.lengths,
        batch_tokens=data.batch_tokens,
        padding=data.padding,
        max_shapes=data.max_shapes,
    )
    return TokenBatches(filtered.pairs, planner), filtered.num_dropped


def _gathered_rows(pairs, plans, shapes, share, pad_id):
    """Returns a function from a batch's number to its shape and this worker's rows of either side."""
    narrow = np.int32 if pairs.num_pairs < 2**31 else np.int64
    indices = np.concatenate([plan.indices.astype(narrow) for plan in plans])
    ends = np.cumsum([0, *(len(plan.indices) for plan in plans)])
    indices, ends, shapes = map(tf.convert_to_tensor, (indices, ends, shapes))
    sides = [_Side(sequences, pad_id) for sequences in pairs]

    def rows(number):
        own = share.own(indices[ends[number] : ends[number + 1]])
        shape = shapes[number]
        return shape, *(
            side.padded(own, length) for side, length in zip(sides, (shape[2], shape[3]), strict=True)
        )

    return rows


def _sampled_rows(pairs, plans, shapes, share, pad_id, sampling):
    """Returns a dataset of what `_gathered_rows` looks up, drawn in Python."""

    def rows():
        for plan, shape in zip(plans, shapes, strict=True):
            # All are drawn, and a part taken: it is the same however many parts there are.
            sides = map(share.own, sampling.draw(pairs, plan))
            yield (
                shape,
                *(_matrix(side, length, pad_id) for side, length in zip(sides, shape[2:], strict=True)),
            )

    ids = tf.TensorSpec((None, None), tf.int32)
    made = tf.data.Dataset.from_generator(rows, output_signature=(tf.TensorSpec((4,), tf.int64), ids, ids))
    return made.apply(tf.data.experimental.assert_cardinality(len(plans)))


def _matrix(rows, length, pad_id):
    matrix = np.full((len(rows), length), pad_id, np.int32)
    for place, row in zip(matrix, rows, strict=True):
        place[: len(row)] = row
    return matrix


class _Side:
    """The sentences of one side as tensors."""

    def __init__(self, sequences, pad_id):
        self._pad_id = pad_id
        self._arrays = [_Array(array) for array in sequences.arrays]
        starts = sequences.starts + np.repeat(
            [array.header for array in self._arrays], np.diff(sequences.first)
        )
        narrow = np.int32 if max(array.last for array in self._arrays) < 2**30 else np.int64
        self._first, self._starts, self._lengths = map(
            tf.convert_to_tensor, (sequences.first[:-1], starts.astype(narrow), sequences.lengths)
        )

    def padded(self, numbers, length):
        """Returns the ids of some sentences, int32 tensor of shape `(number, length)`."""
        columns = tf.range(tf.cast(length, tf.int32))
        tokens = self._tokens(numbers, tf.cast(columns, self._starts.dtype))
        return tf.where(columns < tf.gather(self._lengths, numbers)[:, None], tokens, self._pad_id)

    def _tokens(self, numbers, columns):
        """Returns the ids from the beginning of each sentence on, whatever follows its end."""
        starts = tf.gather(self._starts, numbers)
        if len(self._arrays) == 1:
            return self._arrays[0].gather(starts, columns)
        array_of = tf.searchsorted(self._first, tf.cast(numbers, tf.int64), side="right") - 1
        parts, rows = (
            tf.dynamic_partition(values, array_of, len(self._arrays))
            for values in (starts, tf.range(tf.size(numbers)))
        )
        return tf.dynamic_stitch(
            rows, [array.gather(part, columns) for array, part in zip(self._arrays, parts, strict=True)]
        )


class _Array:
    """Ids in memory, or in a whole mapped file: the graph maps it where it runs.

    Attributes:
        header: int, what stands in the file before the ids, in ids.
        last: int, place of the last id.
    """

    def __init__(self, array):
        self._file = None
        self.header = 0
        if isinstance(getattr(array, "base", None), mmap.mmap):
            self.header = array.offset // array.itemsize
            self._file = {
                "dtype": tf.as_dtype(array.dtype),
                "shape": [self.header + len(array)],
                "memory_region_name": str(array.filename),
            }
        else:
            self._ids = tf.convert_to_tensor(array)
        self.last = self.header + len(array) - 1

    def gather(self, starts, columns):
        """Returns ids, int32 tensor of shape `(number, length)`, from each of some places on."""
        ids = tf.raw_ops.ImmutableConst(**self._file) if self._file else self._ids
        return tf.cast(tf.gather(ids, tf.minimum(starts[:, None] + columns, self.last)), tf.int32)


def untuned(dataset):
    """Returns a `tf.data.Dataset` without the thread that tunes it, for which its end would wait.

    That thread looks every 10 ms at first, then half as often each time, every 60 s in the end.
    When its iterator is deleted, TensorFlow wakes it before it says that it is over, so that it
    may fall asleep once more: the deletion, and with it the whole process, waits for up to a
    minute. There is nothing to tune in a queue of two batches. TensorFlow's rewrites of the graph would copy
    every tensor in it, and there is nothing to rewrite either.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    return dataset.with_options(options)
