"""Batches made by other machines: `tf.data` service, from the files of a prepared corpus.

The plan of the batches stays here; workers map the shards by their paths, gather and pad.
They hand batches out as they are done; here they are put back in the order of the plan,
and one that went down with a worker, or that nobody makes, is made on the spot. So the
stream of batches is the same with a service, without, and with workers that come and go.
"""

import collections
import queue
import socket
import sys
import threading

import numpy as np
import tensorflow as tf

from keras_transformer.batches.token_batches import TokenBatches, untuned

# Each request carries the places of its sentences; some megabytes at once.
_PAIRS_AT_ONCE = 100_000
# After so long, nobody answers; or, where later batches have come, one is lost.
_PATIENCE_SECONDS = 60
_LOST_SECONDS = 2


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
        self._service = _Service(service)

    def batches(self, plans):
        """Yields the batch of each of some plans, in order.

        Raises:
            ValueError: a worker cannot read the files.
        """
        waiting = collections.deque()
        try:
            for chunk in _chunks(plans):
                waiting.append(_Answers(self._dataset_of, chunk, self._service))
                if len(waiting) == 2:  # the workers are busy with the next while one is consumed
                    yield from self._in_order(waiting[0])
                    waiting.popleft().close()
            while waiting:
                yield from self._in_order(waiting[0])
                waiting.popleft().close()
        finally:
            for answers in waiting:
                answers.close(timeout=5)

    def _in_order(self, answers):
        for number, plan in enumerate(answers.plans):
            found = answers.get(number)
            yield self.batch(plan) if found is None else self.with_target_ids(*found)

    def _dataset_of(self, plans):
        """Returns a dataset of (number, source ids, labels) of some plans, in any order."""
        shapes = tf.constant([plan.shape for plan in plans], tf.int64)
        indices = np.concatenate([plan.own for plan in plans])
        ends = np.cumsum([len(plan.own) for plan in plans])
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
        received = dataset.apply(
            tf.data.experimental.service.distribute(
                processing_mode=tf.data.experimental.service.ShardingPolicy.DYNAMIC,
                service=f"grpc://{self._service.address}",
            )
        )
        return untuned(received)  # here; the workers tune what they do


class _Service:
    """A dispatcher and how it behaves.

    Attributes:
        address: `HOST:PORT`.
        has_answered: whether a batch ever came.
        is_silent: whether batches are made here until one comes again.
        newest: thread of the newest request, or `None`.
    """

    def __init__(self, address):
        host, colon, port = address.rpartition(":")
        if not colon or not host or not port.isdecimal() or int(port) > 65535:
            raise ValueError(f"`service` must be HOST:PORT of a dispatcher. Received: {address!r}")
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except OSError as error:
            raise ValueError(
                f"no data service answers at {address} ({error}). "
                "Start one: python pipelines/data_service.py dispatcher"
            ) from error
        self.address = address
        self.has_answered = self.is_silent = False
        self.newest = None

    def give_up(self, why):
        """Batches are made here from now on; says so."""
        if not self.is_silent:
            print(f"data service at {self.address}: {why}; making batches here", file=sys.stderr, flush=True)
        self.is_silent = True


class _Answers:
    """What the workers make of some plans, received in the background.

    TensorFlow waits without end for a dispatcher that is gone or has no workers left;
    training does not.
    """

    def __init__(self, make_dataset, plans, service):
        self.plans = plans
        self._service = service
        self._early = {}
        self._found = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._receive, args=(make_dataset,), daemon=True)
        if service.is_silent and service.newest.is_alive():
            self._found.put(None)  # one request that hangs is enough
            return
        service.newest = self._thread
        self._thread.start()

    def get(self, number):
        """Returns source ids and labels of a plan, or `None` if they are lost."""
        while number not in self._early:
            patience = _LOST_SECONDS if self._early else _PATIENCE_SECONDS
            try:
                found = self._found.get(timeout=0 if self._service.is_silent else patience)
            except queue.Empty:
                self._service.give_up(f"no batch for {patience} seconds")
                return None
            if isinstance(found, Exception):
                message = str(found).splitlines()[0]
                if not self._service.has_answered:
                    raise ValueError(
                        f"the data service at {self._service.address} makes no batches: {message}. "
                        "Its workers need the prepared corpus at the same path"
                    ) from found
                self._service.give_up(message)
                found = None
            if found is None:
                self._found.put(None)  # also for those that follow
                return None
            self._service.has_answered, self._service.is_silent = True, False
            if found[0] >= number:
                self._early[int(found[0])] = found[1:]
        return self._early.pop(number)

    def close(self, timeout=0):
        """Ends the work in the background; waits for that, but not if TensorFlow hangs."""
        self._closed = True
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _receive(self, make_dataset):
        try:
            for found in make_dataset(self.plans).as_numpy_iterator():
                if self._closed:
                    return
                self._found.put(found)
            self._found.put(None)
        except tf.errors.OpError as error:
            self._found.put(error)


class _Side:
    """Source or target sentences of some batches: where they stand in which file."""

    def __init__(self, sequences, indices):
        arrays, starts = sequences.places(indices)
        self._files = [_MappedFile(array) for array in sequences.arrays]
        # The dispatcher keeps every request.
        self._arrays, self._starts, self._lengths = map(_narrow, (arrays, starts, sequences.lengths[indices]))

    def padded(self, begin, end, rows, length, pad_id):
        """Gathers sentences in the graph; int32, shape `(rows, length)`."""
        arrays = tf.cast(self._arrays[begin:end], tf.int32)
        starts = tf.cast(self._starts[begin:end], tf.int64)
        lengths = tf.cast(self._lengths[begin:end], tf.int64)
        ranges = tf.ragged.range(starts, starts + lengths)
        file_of_token = tf.repeat(arrays, lengths)
        number = len(self._files)
        places = tf.dynamic_partition(ranges.flat_values, file_of_token, number)
        order = tf.dynamic_partition(tf.range(tf.size(file_of_token)), file_of_token, number)
        found = [file.gather(place) for file, place in zip(self._files, places, strict=True)]
        tokens = tf.reshape(tf.dynamic_stitch(order, found), [-1])
        return ranges.with_flat_values(tokens).to_tensor(pad_id, shape=tf.stack([rows, length]))


def _narrow(numbers):
    """Returns a tensor of the narrowest unsigned type."""
    return tf.constant(numbers.astype(np.min_scalar_type(numbers.max())))


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
