"""Where a run goes on reading when its batches have changed."""

import json
import types

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.batches.dataset import TokenBatches, training_batches
from keras_transformer.batches.ids import IdPairs, Sequences, flatten
from keras_transformer.batches.planning import EpochPlanner
from keras_transformer.config.settings import Config, DataConfig
from keras_transformer.training.resume import batch_offset, batch_order_key, position_after_change


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

    planner = types.SimpleNamespace(locate=locate, plan=plan, num_batches=lambda epoch: len(plan(epoch)))
    return types.SimpleNamespace(planner=planner)


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
    pairs = IdPairs(*sides)
    old, new = (
        TokenBatches(pairs, EpochPlanner(*pairs.lengths, batch_tokens=tokens)) for tokens in (200, 120)
    )
    for batch in range(0, 3 * old.per_epoch, 5):
        epoch, within = old.planner.locate(batch)
        found = position_after_change(old, new, batch)
        read = sum(len(plan.indices) for plan in old.planner.plan(epoch)[:within])
        begins = np.cumsum([0] + [len(plan.indices) for plan in new.planner.plan(epoch)])
        before = sum(new.planner.num_batches(e) for e in range(epoch))
        assert found - before == np.flatnonzero(begins >= read)[0]
    assert position_after_change(old, old, 7) == 7


def state(step, *, first_step=0, first_batch=0, batches=""):
    """What `batch_offset` asks of `Checkpoints`."""
    names = {"first_step": first_step, "first_batch": first_batch}
    variables = {name: tf.Variable(value, dtype=tf.int64) for name, value in names.items()}
    optimizer = types.SimpleNamespace(iterations=tf.Variable(step, dtype=tf.int64))
    return types.SimpleNamespace(**variables, batches=tf.Variable(batches), optimizer=optimizer)


@pytest.fixture(scope="module")
def corpus():
    """97 pairs of 2 to 12 tokens."""
    rng = np.random.default_rng(5)
    sides = [Sequences([flatten([[7] * n for n in rng.integers(1, 12, 97)], 2)]) for _ in range(2)]
    return types.SimpleNamespace(
        train=IdPairs(*sides), sizes=[97], weights=[1.0], sha256="ab", tokenizers=None
    )


def with_budget(batch_tokens, **changes):
    data = DataConfig(max_length=12, batch_tokens=batch_tokens, vocab_size=8, **changes)
    return Config(data=data)


def pairs_before(batches, number):
    epoch, within = batches.planner.locate(number)
    return epoch, sum(len(plan.indices) for plan in batches.planner.plan(epoch)[:within])


@pytest.mark.parametrize("step", [0, 4, 17])
def test_a_run_with_other_batches_goes_on_at_the_pair_where_it_was(corpus, step):
    old, new = with_budget(131), with_budget(263)
    batches = {config: training_batches(config.data, corpus, seed=1) for config in (old, new)}
    before = batch_order_key(old, "ab", 97)
    # Twice, as after a kill before the next checkpoint.
    for _ in range(2):
        restored = state(step, batches=before)
        offset = batch_offset(restored, new, corpus, batches[new])
        epoch, read = pairs_before(batches[old], step)
        new_epoch, covered = pairs_before(batches[new], offset + step)
        largest = max(len(plan.indices) for plan in batches[new].planner.plan(new_epoch))
        assert new_epoch == epoch
        assert read <= covered < read + largest
    # The state saved next is of the new batches, and continues as it stands.
    saved = state(
        step + 3,
        first_step=int(restored.first_step),
        first_batch=int(restored.first_batch),
        batches=restored.batches.numpy().decode(),
    )
    assert batch_offset(saved, new, corpus, batches[new]) == offset


def test_a_run_with_the_same_batches_goes_on_with_the_next(corpus):
    config = with_budget(131)
    batches = training_batches(config.data, corpus, seed=1)
    key = batch_order_key(config, "ab", 97)
    earlier = json.loads(key)
    del earlier["num_pairs"]  # as in checkpoints of earlier versions
    for held in ("", key, json.dumps(earlier)):
        assert batch_offset(state(9, batches=held), config, corpus, batches) == 0
        moved = state(9, first_step=4, first_batch=11, batches=held)
        assert batch_offset(moved, config, corpus, batches) == 11 - 4


def test_other_pairs_are_read_from_their_beginning(corpus):
    config = with_budget(131)
    # Another text, or the same with another `data.max_length`, which leaves out other pairs.
    for held in (batch_order_key(config, "another text", 97), batch_order_key(config, "ab", 99)):
        restored = state(9, batches=held)
        assert batch_offset(restored, config, corpus, training_batches(config.data, corpus, seed=1)) == -9
