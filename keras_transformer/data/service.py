"""Batches made by other machines: `tf.data` service, from the files of a prepared corpus.

The plan of the batches stays here; workers map the shards by their paths, gather and pad.
They hand batches out as they are done; here they are put back in the order of the plan,
and one that went down with a worker is made on the spot. So the stream of batches is the
same with a service, without, and with workers that come and go.
"""

import socket

import numpy as np
import tensorflow as tf

from keras_transformer.data.batching import TokenBatches

# Each request carries the places of its sentences; some megabytes at once.
_PAIRS_AT_ONCE = 100_000


class ServiceBatches(TokenBatches):
    """`TokenBatches` that workers make.

    Args:
        pairs: `IdPairs` of a `PreparedCorpus`, whose folder the workers see at the same path.
        service: `"HOST:PORT"` of the dispatcher.
        **arguments: those of `TokenBatches`.

    Raises:
        ValueError: nobody answers there, or the pairs are not mapped from files.
    """

    def __init__(self, pairs, *, service, **arguments):
        super().__init__(pairs, **arguments)
        for sequences in pairs:
            if not all(isinstance(array, np.memmap) for array in sequences.arrays):
                raise ValueError(
                    "A data service needs a prepared corpus, whose files its workers can read. "
                    "Prepare it with prepare_wmt.py and name that folder as --dataset"
                )
        _check_answer(service)
        self._service = service

    def batches(self, plans):
        """Yields the batch of each of some plans, in order."""
        waiting = None
        for chunk in _chunks(plans):
            started = chunk, self._request(chunk)
            if waiting:
                yield from self._receive(*waiting)
            waiting = started  # the workers are busy with it while this one is consumed
        if waiting:
            yield from self._receive(*waiting)

    def _request(self, plans):
        """Returns an iterator over (number, source ids, labels) of some plans, in any order."""
        columns = [[plan.rows, plan.source_len, plan.target_len] for plan in plans]
        shapes = tf.constant(columns, tf.int64)
        indices = np.concatenate([plan.indices for plan in plans])
        ends = np.cumsum([len(plan.indices) for plan in plans])
        ends = tf.constant(np.concatenate([[0], ends]), tf.int64)
        sides = [_Side(sequences, indices) for sequences in self.pairs]
        pad_id = self.special.pad

        def make_batch(number):
            rows, *lengths = tf.unstack(shapes[number])
            begin, end = ends[number], ends[number + 1]
            source_ids, labels = (
                side.padded(begin, end, rows, length, pad_id)
                for side, length in zip(sides, lengths, strict=True)
            )
            return number, source_ids, labels

        dataset = tf.data.Dataset.range(len(plans)).map(make_batch, num_parallel_calls=tf.data.AUTOTUNE)
        dataset = dataset.apply(
            tf.data.experimental.service.distribute(
                processing_mode=tf.data.experimental.service.ShardingPolicy.DYNAMIC,
                service=f"grpc://{self._service}",
            )
        )
        return dataset.as_numpy_iterator()

    def _receive(self, plans, received):
        early = {}
        for number, plan in enumerate(plans):
            while number not in early:
                found = next(received, None)
                if found is None:
                    break
                early[int(found[0])] = found[1:]
            if number in early:
                source_ids, labels = early.pop(number)
                yield self.with_target_ids(source_ids, labels)
            else:
                yield self.batch(plan)


class _Side:
    """Source or target sentences of some batches: where they stand in which file."""

    def __init__(self, sequences, indices):
        arrays, starts = sequences.places(indices)
        self._files = [_MappedFile(array) for array in sequences.arrays]
        self._arrays = tf.constant(arrays, tf.int32)
        self._starts = tf.constant(starts, tf.int64)
        self._lengths = tf.constant(sequences.lengths[indices], tf.int64)

    def padded(self, begin, end, rows, length, pad_id):
        """Gathers sentences in the graph; int32, shape `(rows, length)`."""
        lengths, starts = self._lengths[begin:end], self._starts[begin:end]
        ranges = tf.ragged.range(starts, starts + lengths)
        file_of_token = tf.repeat(self._arrays[begin:end], lengths)
        number = len(self._files)
        places = tf.dynamic_partition(ranges.flat_values, file_of_token, number)
        order = tf.dynamic_partition(tf.range(tf.size(file_of_token)), file_of_token, number)
        found = [file.gather(place) for file, place in zip(self._files, places, strict=True)]
        tokens = tf.reshape(tf.dynamic_stitch(order, found), [-1])
        return ranges.with_flat_values(tokens).to_tensor(pad_id, shape=tf.stack([rows, length]))


class _MappedFile:
    """One `.npy` file as a tensor that is mapped where the graph runs."""

    def __init__(self, array):
        self._name = str(array.filename)
        self._dtype = tf.as_dtype(array.dtype)
        self._header = array.offset // array.itemsize
        self._size = self._header + len(array)

    def gather(self, places):
        """Returns the ids at some places, int32."""
        whole = tf.raw_ops.ImmutableConst(
            dtype=self._dtype, shape=[self._size], memory_region_name=self._name
        )
        return tf.cast(tf.gather(whole, places + self._header), tf.int32)


def _chunks(plans):
    """Yields lists of plans with about `_PAIRS_AT_ONCE` pairs together."""
    chunk, number = [], 0
    for plan in plans:
        chunk.append(plan)
        number += len(plan.indices)
        if number >= _PAIRS_AT_ONCE:
            yield chunk
            chunk, number = [], 0
    if chunk:
        yield chunk


def _check_answer(service):
    host, colon, port = service.rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise ValueError(f"`service` must be HOST:PORT of a dispatcher. Received: {service!r}")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise ValueError(
            f"no data service answers at {service} ({error}). "
            "Start one: python pipelines/data_service.py dispatcher"
        ) from error
