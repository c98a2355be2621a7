"""Where a run goes on reading when its batches have changed."""

import types

import numpy as np
import pytest

from keras_transformer.config import SpecialIds
from keras_transformer.data.batching import TokenBatches
from keras_transformer.data.sequences import IdPairs, Sequences, flatten
from keras_transformer.training.position import position_after_change


def batches_of(*epochs):
    """Batches with so many pairs each; the epochs repeat."""

    def locate(start):
        epoch = 0
        while start >= len(epochs[epoch % len(epochs)]):
            start -= len(epochs[epoch % len(epochs)])
            epoch += 1
        return epoch, start

    def plan(epoch):
        return [types.SimpleNamespace(indices=np.arange(size)) for size in epochs[epoch % len(epochs)]]

    planner = types.SimpleNamespace(locate=locate, num_batches=lambda epoch: len(plan(epoch)))
    return types.SimpleNamespace(planner=planner, plan=plan)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (0, 0),  # nothing is read
        (1, 2),  # 4 pairs are read: before batch 2 there are 2 + 3 = 5
        (2, 3),  # 8: before batch 3 there are 2 + 3 + 3 = 8
        (3, 4),  # 10: before batch 4 there are 11
        (4, 5),  # a whole epoch of 12, and of 12
        (5, 7),
        (8, 10),
    ],
)
def test_as_much_of_the_epoch_is_read_as_before(batch, expected):
    old, new = batches_of([4, 4, 2, 2]), batches_of([2, 3, 3, 3, 1])
    assert position_after_change(old, new, batch) == expected


def test_epochs_may_differ_in_their_batches():
    old, new = batches_of([3, 3], [2, 2, 2]), batches_of([6], [1, 5], [3, 3])
    # Batch 4 is the third of epoch 1: 4 pairs are read. New: epoch 1 begins at 1, 6 pairs are read at 3.
    assert position_after_change(old, new, 4) == 3
    assert position_after_change(old, new, 2) == 1


def test_it_ends_with_the_epoch_where_there_are_fewer_pairs():
    old, new = batches_of([5, 5, 5]), batches_of([4, 4])
    assert position_after_change(old, new, 1) == 2  # 8 pairs are at least 5
    assert position_after_change(old, new, 2) == 2  # 10 are not there: the next epoch
    assert position_after_change(old, new, 3) == 2


def test_with_real_batches_the_next_one_is_of_the_same_epoch():
    rng = np.random.default_rng(1)
    sides = [
        Sequences([flatten([[5] * n for n in rng.integers(1, 12, 200)], 2)]) for _ in ("source", "target")
    ]
    old, new = (
        TokenBatches(IdPairs(*sides), special=SpecialIds(), batch_tokens=tokens) for tokens in (200, 120)
    )
    for batch in range(0, 3 * old.per_epoch, 5):
        epoch, within = old.planner.locate(batch)
        found = position_after_change(old, new, batch)
        read = sum(len(plan.indices) for plan in old.plan(epoch)[:within])
        begins = np.cumsum([0] + [len(plan.indices) for plan in new.plan(epoch)])
        before = sum(new.planner.num_batches(e) for e in range(epoch))
        assert found - before == np.flatnonzero(begins >= read)[0]
    assert position_after_change(old, old, 7) == 7
