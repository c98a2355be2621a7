"""Token-bucketed batches as a `tf.data.Dataset`.

`EpochPlanner` plans which pairs share a batch. For batch n of the plan, a TensorFlow graph looks up the
indices of its pairs, distributes them over the devices, gathers and pads their ids, and shifts the target by
one token. No Python runs between batches, except with sub-word sampling, which encodes every batch in Python.
"""

import functools
import hashlib
import mmap
import weakref
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.batches.ids import IdPairs, drop_long, encode_pairs
from keras_transformer.batches.planning import EpochPlanner
from keras_transformer.batches.streaming import stream_batches
from keras_transformer.config.settings import SpecialIds
from keras_transformer.text.lines import DataError
from keras_transformer.tokenizers.tags import sample_tagged
from keras_transformer.tokenizers.tokenizer_pair import Tokenizers

_NUM_PREFETCHED = 2
# Sub-word sampling: how much longer the segmentations become, measured on 1000 sentences, 90 % quantile.
_NUM_MEASURED = 1000
_QUANTILE = 0.9


class DeviceShare(NamedTuple):
    """How a batch is divided among workers, replicas and micro-batches; the default does not divide it.

    A batch is one update. Its rows are distributed round-robin, so that all parts have the same shape and
    nearly the same number of tokens. With 2 workers of 2 replicas each, the replicas of worker 0 get rows
    0, 4, ... and 2, 6, ...; those of worker 1 get rows 1, 5, ... and 3, 7, .... Missing rows are padding.

    Attributes:
        num_workers: number of worker processes that share each batch.
        worker: index of this worker, from 0.
        num_replicas: number of devices of this worker.
        device_tokens: maximum tokens on one device, padding included, on either side; a replica's part
            that exceeds it is cut into micro-batches. 0 for no limit and no micro-batches.
    """

    num_workers: int = 1
    worker: int = 0
    num_replicas: int = 1
    device_tokens: int = 0

    def shape(self, plan):
        """Returns (micro_batches, rows, source_len, target_len): the shape of a replica's part of a batch.

        Args:
            plan: `BatchPlan`.
        """
        replicas = self.num_workers * self.num_replicas
        longest = max(plan.source_len, plan.target_len)
        max_rows = self.device_tokens // longest if self.device_tokens else plan.rows
        micro_batches = -(-plan.rows // (replicas * max_rows))
        return micro_batches, -(-plan.rows // (replicas * micro_batches)), plan.source_len, plan.target_len

    def distribute(self, micro_batches, rows):
        """Distributes the rows of a batch round-robin, in the graph.

        Args:
            micro_batches: scalar int tensor, number of micro-batches.
            rows: scalar int tensor, rows of one micro-batch of one replica.

        Returns:
            int tensor of shape `(parts * rows,)`, the batch rows of this worker, one part (replica and
            micro-batch) after the other; and the shape to give them, a list: `[num_replicas, micro_batches,
            rows]`, without the axes that are not used.
        """
        parts = self.num_replicas * micro_batches
        order = tf.range(rows) * parts + tf.range(parts)[:, None]  # `(parts, rows)`, among this worker's rows
        shape = [self.num_replicas] * (self.num_replicas > 1) + [micro_batches] * (self.device_tokens > 0)
        return tf.reshape(order, [-1]) * self.num_workers + self.worker, [*shape, rows]


class SubwordSampling(NamedTuple):
    """Sub-word regularisation: samples a new segmentation of every sentence each time it is in a batch.

    The random seed of a batch is made of (seed, epoch, batch number), so a resumed run samples the same
    segmentations. Sampled segmentations are longer on average, and batches are planned for these lengths. A
    sentence whose sample does not fit into its batch keeps its deterministic segmentation.

    Attributes:
        tokenizers: `Tokenizers` of the pairs, with `decode`, `sample` and `special`.
        dropout: float, the dropout rate passed to `sample`.
    """

    tokenizers: Tokenizers
    dropout: float

    def lengths(self, pairs):
        """Returns expected source and target lengths, int32 NumPy arrays of shape `(num_pairs,)`."""
        return tuple(map(self._expected_lengths, pairs, self.tokenizers))

    def draw(self, pairs, plan):
        """Samples the segmentations of one batch.

        Args:
            pairs: `IdPairs`, all pairs in their deterministic segmentation.
            plan: `BatchPlan`.

        Returns:
            list of two int32 NumPy arrays of shapes `(num_pairs, source_len)` and `(num_pairs, target_len)`,
            padded ids; eos follows the tokens of each row.
        """
        seed = int.from_bytes(hashlib.blake2b(repr(plan.key).encode(), digest_size=8).digest())
        sides = []
        for side, longest in enumerate((plan.source_len, plan.target_len)):
            tokenizer = self.tokenizers[side]
            fixed = [pairs[side][i].tolist()[:-1] for i in plan.indices.tolist()]
            sampled = sample_tagged(tokenizer, fixed, dropout=self.dropout, seed=2 * seed + side)
            ids = np.full((len(fixed), longest), tokenizer.special.pad, np.int32)
            for row, sampled_ids, fixed_ids in zip(ids, sampled, fixed, strict=True):
                row_ids = sampled_ids if len(sampled_ids) < longest else fixed_ids
                row[: len(row_ids) + 1] = [*row_ids, tokenizer.special.eos]
            sides.append(ids)
        return sides

    def _expected_lengths(self, sequences, tokenizer):
        """Scales the lengths by the growth that 90 % of sampled segmentations stay below."""
        indices = np.unique(np.linspace(0, len(sequences) - 1, _NUM_MEASURED).astype(int))
        rows = [sequences[i].tolist()[:-1] for i in indices.tolist()]
        sampled = sample_tagged(tokenizer, rows, dropout=self.dropout, seed=0)
        lengths = np.array([len(row) + 1 for row in sampled])
        growth = np.quantile(lengths / sequences.lengths[indices], _QUANTILE)
        # At most the longest deterministic length, which `batch_tokens` is known to hold.
        expected = np.ceil(sequences.lengths * max(growth, 1.0)).astype(np.int32)
        return np.maximum(sequences.lengths, np.minimum(expected, sequences.lengths.max()))


@functools.singledispatch
def token_batches(
    pairs: IdPairs,
    planner: EpochPlanner,
    *,
    start: int = 0,
    epochs: int = 1,
    special: SpecialIds = SpecialIds(),
    share: DeviceShare = DeviceShare(),
    sampling: SubwordSampling | None = None,
) -> tf.data.Dataset:
    """Returns a `tf.data.Dataset` of the planned batches.

    The pairs may also be a `tf.data.Dataset` that nobody has counted and that may be infinite. It needs no
    planner; the other arguments are those of `stream_batches`::

        token_batches(dataset, tokenizer=tokenizer, batch_tokens=25_000, max_length=256)

    Starting at batch n does not compute the batches before it. The dataset can be mapped, sharded, saved, and
    distributed with `tf.data.experimental.service`. When the dataset is serialised for the service,
    memory-mapped ids are stored as the path of their file, which must exist on all workers. Everything else
    is stored in the graph: ids in memory, 16 bytes per pair, and 4 bytes per pair and epoch. Protocol buffers
    limit a serialised graph to 2 GB; a dataset that stays in this process has no such limit.

    Args:
        pairs: `IdPairs`.
        planner: `EpochPlanner` of their lengths.
        start: number of the first batch, counted from the first batch of epoch 0.
        epochs: number of epochs, including the epoch of `start`; all are planned before the function returns.
        special: `SpecialIds`.
        share: `DeviceShare`, how a batch is divided. One element of the dataset is the part of one replica;
            the parts of a batch are consecutive elements.
        sampling: `SubwordSampling`, or `None` for the deterministic segmentation.

    Returns:
        finite `tf.data.Dataset` of `((source_ids, target_ids), labels)`, int32, of shapes `(rows,
        source_len)`, `(rows, target_len)` and `(rows, target_len)`, with a leading axis of micro-batches if
        `share.device_tokens` is set. Source ids and labels end with eos. Target ids start with bos
        and are the labels shifted right by one. Unused rows are padding.
    """
    plans = planner.plans(start, epochs)
    with tf.device("CPU:0"):
        shapes = tf.constant([share.shape(plan) for plan in plans], tf.int64, [len(plans), 4])
        # Batch n has the pairs `indices[ends[n] : ends[n + 1]]`.
        ends = tf.constant(np.cumsum([0, *(len(plan.indices) for plan in plans)]))
        if sampling:
            ids = tf.TensorSpec((None, None), tf.int32)
            dataset = tf.data.Dataset.from_generator(
                lambda: ((number, *sampling.draw(pairs, plan)) for number, plan in enumerate(plans)),
                output_signature=(tf.TensorSpec((), tf.int64), ids, ids),
            ).apply(tf.data.experimental.assert_cardinality(len(plans)))
        else:
            indices = tf.constant(np.concatenate([plan.indices for plan in plans]))
            sides = [_side(sequences) for sequences in pairs]
            dataset = tf.data.Dataset.range(len(plans))

        def make_batch(number, *sampled):
            micro_batches, rows, *lengths = tf.unstack(shapes[number])
            batch_rows, shape = share.distribute(micro_batches, rows)
            num_pairs = ends[number + 1] - ends[number]
            is_pair, batch_rows = batch_rows < num_pairs, tf.minimum(batch_rows, num_pairs - 1)
            if sampling:
                gathered = [tf.gather(ids, batch_rows) for ids in sampled]
            else:
                chosen = tf.gather(indices, ends[number] + batch_rows)
                gathered = [
                    side.gather(chosen, length, special.pad)
                    for side, length in zip(sides, lengths, strict=True)
                ]
            source_ids, labels = (
                tf.reshape(tf.where(is_pair[:, None], ids, special.pad), [*shape, length])
                for ids, length in zip(gathered, lengths, strict=True)
            )
            bos = tf.fill([*shape, 1], special.bos)
            return (source_ids, tf.concat([bos, labels[..., :-1]], axis=-1)), labels

        dataset = dataset.map(make_batch, num_parallel_calls=_NUM_PREFETCHED)
        if share.num_replicas > 1:
            dataset = dataset.unbatch()
        return without_autotuning(dataset.prefetch(_NUM_PREFETCHED))


@token_batches.register
def _(dataset: tf.data.Dataset, **settings):
    return without_autotuning(stream_batches(dataset, **settings).prefetch(_NUM_PREFETCHED))


class TokenBatches(NamedTuple):
    """Encoded pairs with their batch plan: the batches of a training run or of its validation.

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
        """Number of batches of the first epoch; that of later epochs differs slightly."""
        return self.planner.num_batches(0)

    def count_epochs(self, start, min_batches):
        """Counts the epochs that provide at least `min_batches` batches from batch `start` on.

        Args:
            start: number of the first batch, counted from the first batch of epoch 0.
            min_batches: minimum number of batches.

        Returns:
            number of epochs, including the epoch of `start`, and number of batches from `start` to their end.
        """
        epoch, within = self.planner.locate(start)
        epochs, number = 0, -within
        while number < min_batches:
            number += self.planner.num_batches(epoch + epochs)
            epochs += 1
        return epochs, number

    def dataset(self, start=0, epochs=1, share=DeviceShare()):
        """Returns the `tf.data.Dataset` of `token_batches`."""
        return token_batches(
            self.pairs, self.planner, start=start, epochs=epochs, share=share, sampling=self.sampling
        )


def training_batches(data, corpus, *, seed):
    """Returns the `TokenBatches` to train on.

    Args:
        data: `DataConfig`.
        corpus: `TrainingData`.
        seed: seed of the batch order and of sub-word sampling.
    """
    sampling = SubwordSampling(corpus.tokenizers, data.subword_dropout) if data.subword_dropout else None
    lengths = sampling.lengths(corpus.train) if sampling else corpus.train.lengths
    planner = EpochPlanner(*lengths, **_settings(data), seed=seed, sizes=corpus.sizes, weights=corpus.weights)
    return TokenBatches(corpus.train, planner, sampling)


def validation_batches(data, corpus):
    """Encodes the validation split and plans its batches; drops pairs that are longer than `max_length`.

    Args:
        data: `DataConfig`.
        corpus: `TrainingData`.

    Returns:
        `(TokenBatches, num_dropped)`.

    Raises:
        DataError: all pairs are too long.
    """
    pairs, keep = drop_long(encode_pairs(*corpus.validation, *corpus.tokenizers), data.max_length)
    if not pairs.num_pairs:
        raise DataError(
            f"validation: all {len(keep):,} pairs exceed {data.max_length} tokens. Raise data.max_length"
        )
    return TokenBatches(pairs, EpochPlanner(*pairs.lengths, **_settings(data))), int(np.sum(~keep))


def _settings(data):
    """Returns the arguments of `EpochPlanner` that are settings of `DataConfig`."""
    return {name: getattr(data, name) for name in ("batch_tokens", "padding", "max_shapes")}


class _Side:
    """The encoded sentences of one side as tensors."""

    def __init__(self, sequences):
        self._arrays, headers = zip(*map(_reader_and_offset, sequences.arrays), strict=True)
        starts = sequences.starts + np.repeat(headers, np.diff(sequences.first))
        dtype = np.int32 if starts.max(initial=0) < 2**30 else np.int64
        self._first = tf.constant(sequences.first[:-1])
        self._starts = tf.constant(starts.astype(dtype))
        self._lengths = tf.constant(sequences.lengths)

    def gather(self, numbers, length, pad_id):
        """Gathers sentences by number and pads them: int32 tensor of shape `(num_sentences, length)`."""
        lengths = tf.gather(self._lengths, numbers)[:, None]
        columns = tf.range(tf.cast(length, tf.int32))
        # Positions after a sentence read its last id here; the last line overwrites them with padding.
        within = tf.cast(tf.minimum(columns, lengths - 1), self._starts.dtype)
        positions = tf.gather(self._starts, numbers)[:, None] + within
        array_of = tf.searchsorted(self._first, tf.cast(numbers, tf.int64), side="right") - 1
        parts = tf.dynamic_partition(positions, array_of, len(self._arrays))
        rows = tf.dynamic_partition(tf.range(tf.size(numbers)), array_of, len(self._arrays))
        ids = [
            tf.cast(tf.gather(read(), part), tf.int32) for read, part in zip(self._arrays, parts, strict=True)
        ]
        ids = tf.dynamic_stitch(rows, ids)
        # `tf.where` is ten times slower with a scalar than with `tf.fill`.
        return tf.where(columns < lengths, ids, tf.fill(tf.shape(ids), pad_id))


_SIDES = weakref.WeakKeyDictionary()  # all datasets of the same `Sequences` share one `_Side`


def _side(sequences):
    """Returns the cached `_Side` of `Sequences`."""
    with tf.init_scope():
        return _SIDES.get(sequences) or _SIDES.setdefault(sequences, _Side(sequences))


def _reader_and_offset(array):
    """Returns a function that reads an array of ids in the graph, and the index of its first id there.

    If the array is a memory-mapped file, the graph maps the whole file; its header, counted in ids, is the
    offset.
    """
    if not isinstance(getattr(array, "base", None), mmap.mmap):
        return functools.partial(tf.identity, tf.constant(array)), 0
    header = array.offset // array.itemsize
    region = {"shape": [header + len(array)], "memory_region_name": str(array.filename)}
    return functools.partial(tf.raw_ops.ImmutableConst, dtype=tf.as_dtype(array.dtype), **region), header


def without_autotuning(dataset):
    """Turns off autotuning and graph optimisation of a `tf.data.Dataset`, which only cost time here.

    The autotune thread polls every 10 ms at first and doubles the interval up to 60 s. When its iterator is
    deleted, TensorFlow wakes the thread before it sets the stop flag, so the thread may go to sleep again.
    The deletion, and with it the end of the process, then waits for up to a minute. A queue of two batches
    needs no tuning. Graph optimisation would copy every tensor of the graph.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    return dataset.with_options(options)
