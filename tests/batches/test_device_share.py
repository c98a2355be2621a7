"""Parts of batches for devices, put together again and compared with the whole."""

import itertools

import numpy as np
import pytest

from keras_transformer.batches.dataset import DeviceShare, TokenBatches
from keras_transformer.batches.ids import IdPairs, Sequences, flatten
from keras_transformer.batches.planning import EpochPlanner
from keras_transformer.config.settings import SpecialIds

SPECIAL = SpecialIds()
BUDGET = 331


@pytest.fixture(scope="module")
def batches():
    """Of 211 pairs that can be told from each other, of 2 to 12 tokens a side."""
    rng = np.random.default_rng(7)
    sides = []
    for first in (1000, 5000):
        rows = [[first + i, *rng.integers(4, 900, rng.integers(0, 10))] for i in range(211)]
        sides.append(Sequences([flatten(rows, SPECIAL.eos)]))
    pairs = IdPairs(*sides)
    return TokenBatches(pairs, EpochPlanner(*pairs.lengths, batch_tokens=BUDGET))


def real_rows(batch):
    """The rows of a batch that are not all padding, as a sorted list without their padding."""
    (source_ids, target_ids), labels = (
        (np.asarray(batch[0][0]), np.asarray(batch[0][1])),
        np.asarray(batch[1]),
    )
    flat = [each.reshape(-1, each.shape[-1]) for each in (source_ids, target_ids, labels)]
    found = []
    for source, target, label in zip(*flat, strict=True):
        if label.any():
            length = np.count_nonzero(label)
            assert target[0] == SPECIAL.bos
            np.testing.assert_array_equal(target[1:length], label[: length - 1])
            found.append((*source[source != 0].tolist(), -1, *label[:length].tolist()))
        else:
            assert not source.any()
    return sorted(found)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("num_workers", "num_replicas", "device_tokens"),
    [(1, 1, 0), (1, 3, 0), (2, 1, 0), (2, 3, 0), (1, 1, 50), (1, 2, 37), (3, 2, 23), (5, 7, 13)],
)
def test_the_parts_of_all_devices_are_the_batch(batches, num_workers, num_replicas, device_tokens):
    start = sum(batches.planner.num_batches(epoch) for epoch in range(3))
    plans = batches.planner.plan(3)
    wholes = batches.dataset(start).as_numpy_iterator()
    workers = [
        DeviceShare(
            num_workers=num_workers,
            worker=worker,
            num_replicas=num_replicas,
            device_tokens=device_tokens,
        )
        for worker in range(num_workers)
    ]
    streams = [batches.dataset(start, share=share).as_numpy_iterator() for share in workers]
    for plan in plans:
        parts = [part for stream in streams for part in itertools.islice(stream, num_replicas)]
        assert len({part[1].shape for part in parts}) == 1, "devices have equal shapes"
        labels = parts[0][1]
        assert labels.ndim == (3 if device_tokens else 2)
        if device_tokens:
            rows, longest = labels.shape[1], max(plan.source_len, plan.target_len)
            assert rows * longest <= device_tokens
        found = sorted(itertools.chain.from_iterable(map(real_rows, parts)))
        assert found == real_rows(next(wholes))
        shares = [len(real_rows(part)) for part in parts]
        assert max(shares) - min(shares) <= (labels.shape[0] if device_tokens else 1)
    assert all(next(stream, None) is None for stream in streams)


def test_few_micro_batches_are_enough_where_the_batch_fits(batches):
    for plan in batches.planner.plan(0):
        assert DeviceShare(device_tokens=BUDGET).shape(plan) == (1, *plan.shape)
        micro_batches, rows, source_len, target_len = DeviceShare(device_tokens=100).shape(plan)
        # By hand: as many rows as fit, and no more pieces than those need.
        fitting = 100 // max(source_len, target_len)
        assert (micro_batches - 1) * fitting < plan.rows <= micro_batches * rows
        assert (source_len, target_len) == (plan.source_len, plan.target_len)


def test_a_stream_begins_anywhere(batches):
    share = DeviceShare(num_replicas=2, device_tokens=40)
    whole = list(itertools.islice(batches.dataset(0, 2, share).as_numpy_iterator(), 2 * 12))
    later = list(itertools.islice(batches.dataset(5, 2, share).as_numpy_iterator(), 2 * 7))
    for one, other in zip(whole[2 * 5 :], later, strict=True):
        np.testing.assert_array_equal(one[1], other[1])
        np.testing.assert_array_equal(one[0][0], other[0][0])


def test_once_has_every_pair_once(batches):
    dataset = batches.dataset(share=DeviceShare(num_replicas=3))
    assert int(dataset.cardinality()) == 3 * batches.per_epoch
    rows = list(itertools.chain.from_iterable(map(real_rows, dataset.as_numpy_iterator())))
    assert sorted(row[0] for row in rows) == list(range(1000, 1211))
