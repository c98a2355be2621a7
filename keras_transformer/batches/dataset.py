"""Token-bucketed batches as a `tf.data` graph: batch numbers in, batches of ids out.

`EpochPlanner` says which pairs share a batch. The graph looks up the pair numbers of batch n of that plan,
deals them to the devices, gathers and pads their ids and shifts the target. No Python runs between batches,
except to draw random segmentations where `sampling` is given.
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
from keras_transformer.config.settings import SpecialIds
from keras_transformer.text.lines import DataError
from keras_transformer.tokenizers.tokenizer_pair import Tokenizers

_BATCHES_AHEAD = 2
_MEASURED_PAIRS = 1000
_QUANTILE = 0.9


class DeviceShare(NamedTuple):
    """What one worker takes of every batch; the default is the whole batch in one piece.

    A batch is one update. Its rows go to workers, replicas and micro-batches in turn, as cards are dealt,
    so all have equal shapes and almost equal work; missing rows at the end are padding.

    Attributes:
        num_workers: number of processes that read the same batches.
        worker: number of this one.
        num_replicas: devices of this worker.
        device_tokens: budget of one device in padded tokens, for source and for target each;
            a larger part is cut into micro-batches. 0 for no limit, and no micro-batches.
    """

    num_workers: int = 1
    worker: int = 0
    num_replicas: int = 1
    device_tokens: int = 0

    def shape(self, plan):
        """Returns (micro_batches, rows, source_len, target_len) of each replica's part of a `BatchPlan`."""
        replicas = self.num_workers * self.num_replicas
        longest = max(plan.source_len, plan.target_len)
        fitting = self.device_tokens // longest if self.device_tokens else plan.rows
        micro_batches = -(-plan.rows // (replicas * fitting))
        return micro_batches, -(-plan.rows // (replicas * micro_batches)), plan.source_len, plan.target_len

    def deal(self, micro_batches, rows):
        """Deals the rows of a batch, in the graph.

        Args:
            micro_batches: number of micro-batches, a scalar tensor.
            rows: rows of one micro-batch of one replica, a scalar tensor.

        Returns:
            int tensor, which row of the batch each row of this worker's is, part after part; and the list of
            the axes before the last in which the parts stand.
        """
        parts = self.num_replicas * micro_batches
        order = tf.range(rows) * parts + tf.range(parts)[:, None]  # of this worker's rows, `(parts, rows)`
        axes = [self.num_replicas] * (self.num_replicas > 1) + [micro_batches] * (self.device_tokens > 0)
        return tf.reshape(order, [-1]) * self.num_workers + self.worker, [*axes, rows]


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
            padded ids of either side, int32 NumPy arrays of shapes `(num_pairs, source_len)` and
            `(num_pairs, target_len)`, each row ending with eos.
        """
        seed = int.from_bytes(hashlib.blake2b(repr(plan.key).encode(), digest_size=8).digest())
        sides = []
        for side, longest in enumerate((plan.source_len, plan.target_len)):
            tokenizer = self.tokenizers[side]
            usual = [pairs[side][i].tolist()[:-1] for i in plan.indices.tolist()]
            drawn = tokenizer.sample(tokenizer.decode(usual), dropout=self.dropout, seed=2 * seed + side)
            ids = np.full((len(usual), longest), tokenizer.special.pad, np.int32)
            for place, row, old in zip(ids, drawn, usual, strict=True):
                row = row if len(row) < longest else old
                place[: len(row) + 1] = [*row, tokenizer.special.eos]
            sides.append(ids)
        return sides

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


def token_batches(
    pairs, planner, *, start=0, epochs=1, special=SpecialIds(), share=DeviceShare(), sampling=None
):
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
    with tf.device("CPU:0"):
        shapes = tf.constant([share.shape(plan) for plan in plans], tf.int64, [len(plans), 4])
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

        def batch(number, *drawn):
            micro_batches, rows, *lengths = tf.unstack(shapes[number])
            places, axes = share.deal(micro_batches, rows)
            num_pairs = ends[number + 1] - ends[number]
            is_pair, places = places < num_pairs, tf.minimum(places, num_pairs - 1)
            if sampling:
                found = [tf.gather(ids, places) for ids in drawn]
            else:
                chosen = tf.gather(indices, ends[number] + places)
                found = [
                    side.padded(chosen, length, special.pad)
                    for side, length in zip(sides, lengths, strict=True)
                ]
            source_ids, labels = (
                tf.reshape(tf.where(is_pair[:, None], ids, special.pad), [*axes, length])
                for ids, length in zip(found, lengths, strict=True)
            )
            bos = tf.fill([*axes, 1], special.bos)
            return (source_ids, tf.concat([bos, labels[..., :-1]], axis=-1)), labels

        dataset = dataset.map(batch, num_parallel_calls=_BATCHES_AHEAD)
        if share.num_replicas > 1:
            dataset = dataset.unbatch()
        return untuned(dataset.prefetch(_BATCHES_AHEAD))


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
        """Returns how many epochs hold at least `least` batches from batch `start` on, and their number.

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
        seed: of the order, and of random segmentations.
    """
    sampling = SubwordSampling(corpus.tokenizers, data.subword_dropout) if data.subword_dropout else None
    lengths = sampling.lengths(corpus.train) if sampling else corpus.train.lengths
    planner = EpochPlanner(*lengths, **_plan(data), seed=seed, sizes=corpus.sizes, weights=corpus.weights)
    return TokenBatches(corpus.train, planner, sampling)


def validation_batches(data, corpus):
    """Returns the batches of the validation split, and how many of its pairs are too long.

    Returns:
        `(TokenBatches, num_dropped)`.

    Raises:
        DataError: all of them are too long.
    """
    pairs, keep = drop_long(encode_pairs(*corpus.validation, *corpus.tokenizers), data.max_length)
    if not pairs.num_pairs:
        raise DataError(
            f"validation: all {len(keep):,} pairs have over {data.max_length} tokens. Raise data.max_length"
        )
    return TokenBatches(pairs, EpochPlanner(*pairs.lengths, **_plan(data))), int(np.sum(~keep))


def _plan(data):
    return {name: getattr(data, name) for name in ("batch_tokens", "padding", "max_shapes")}


class _Side:
    """The sentences of one side as tensors."""

    def __init__(self, sequences):
        self._arrays, headers = zip(*map(_ids_of, sequences.arrays), strict=True)
        starts = sequences.starts + np.repeat(headers, np.diff(sequences.first))
        narrow = np.int32 if starts.max(initial=0) < 2**30 else np.int64
        self._first = tf.constant(sequences.first[:-1])
        self._starts = tf.constant(starts.astype(narrow))
        self._lengths = tf.constant(sequences.lengths)

    def padded(self, numbers, length, pad_id):
        """Returns the ids of some sentences, int32 tensor of shape `(num_sentences, length)`."""
        lengths = tf.gather(self._lengths, numbers)[:, None]
        columns = tf.range(tf.cast(length, tf.int32))
        # Beyond its end, a sentence's last id stands, until the padding takes its place.
        within = tf.cast(tf.minimum(columns, lengths - 1), self._starts.dtype)
        positions = tf.gather(self._starts, numbers)[:, None] + within
        array_of = tf.searchsorted(self._first, tf.cast(numbers, tf.int64), side="right") - 1
        parts = tf.dynamic_partition(positions, array_of, len(self._arrays))
        rows = tf.dynamic_partition(tf.range(tf.size(numbers)), array_of, len(self._arrays))
        ids = [
            tf.cast(tf.gather(read(), part), tf.int32) for read, part in zip(self._arrays, parts, strict=True)
        ]
        ids = tf.dynamic_stitch(rows, ids)
        # With a scalar in the place of `fill`, this would take ten times as long.
        return tf.where(columns < lengths, ids, tf.fill(tf.shape(ids), pad_id))


_SIDES = weakref.WeakKeyDictionary()  # as long as the `Sequences` live: one copy for all datasets


def _side(sequences):
    """Returns the `_Side` of `Sequences`."""
    with tf.init_scope():
        return _SIDES.get(sequences) or _SIDES.setdefault(sequences, _Side(sequences))


def _ids_of(array):
    """Returns a function that reads the ids of an array in the graph, and the place of the first of them.

    The graph maps the file of an array that is a whole mapped file.
    """
    if not isinstance(getattr(array, "base", None), mmap.mmap):
        return functools.partial(tf.identity, tf.constant(array)), 0
    header = array.offset // array.itemsize
    region = {"shape": [header + len(array)], "memory_region_name": str(array.filename)}
    return functools.partial(tf.raw_ops.ImmutableConst, dtype=tf.as_dtype(array.dtype), **region), header


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
