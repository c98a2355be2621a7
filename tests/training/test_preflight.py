"""The batch that is tried before the first step: the largest, and without a trace."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.batches.dataset import TokenBatches
from keras_transformer.batches.ids import IdPairs, Sequences, flatten
from keras_transformer.batches.planning import EpochPlanner
from keras_transformer.config.programs import OutOfMemoryError
from keras_transformer.config.settings import replace
from keras_transformer.model.metrics import StepCounters
from keras_transformer.model.transformer import Transformer
from keras_transformer.training.before_training import try_largest_batch
from keras_transformer.training.devices import Devices, mirrored


def make_batches():
    """Of 60 short pairs and of 3 with 40 tokens a side."""
    rng = np.random.default_rng(0)
    sides = []
    for _ in range(2):
        rows = [rng.integers(4, 23, n).tolist() for n in [3] * 60 + [39] * 3]
        sides.append(Sequences([flatten(rows, 2)]))
    pairs = IdPairs(*sides)
    return TokenBatches(pairs, EpochPlanner(*pairs.lengths, batch_tokens=640))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("replicas", "device_tokens"),
    [
        (1, 0),
        (2, 80),
        pytest.param(1, 80, marks=pytest.mark.very_slow),
        pytest.param(2, 0, marks=pytest.mark.very_slow),
    ],
)
def test_it_changes_nothing_and_runs_the_longest(tiny, replicas, device_tokens):
    config = tiny.config(model={"residual_dropout": 0.3})
    config = replace(config, devices=replace(config.devices, micro_batch_tokens=device_tokens))
    strategy = tf.distribute.get_strategy()
    if replicas == 2:
        strategy = mirrored(["CPU:0", "CPU:1"])
    seen = []
    with strategy.scope():
        model = tiny.model(config)
    step = model.train_step

    def spy(data):
        seen.append(len(data[1].shape))
        return step(data)

    model.train_step = spy
    model.set_interval_sums({name: 3.0 for name in model.interval_sums()})
    before, sums = tiny.state_of(model)
    shape = try_largest_batch(model, Devices(strategy), make_batches(), config)
    after, sums_after = tiny.state_of(model)
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)
    assert sums_after == sums
    assert seen
    assert set(seen) == {3 if device_tokens else 2}
    assert shape[1:] == (40, 40)
    assert shape[0] <= (2 if device_tokens else 640 // 40 // replicas)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_it_changes_nothing_in_the_midst_of_training(tiny, policy):
    # With moments that are not zero, an update without a gradient would move the weights.
    config = tiny.config()
    keras.utils.set_random_seed(1)
    model = Transformer(config.model, dtype=policy)
    model.compile(keras.optimizers.Adam(0.01), metrics=[StepCounters()], ema_decay=0.5)
    scaled = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert scaled == (policy == "mixed_float16")
    stream = tiny.stream([tiny.batch(seed, (5, 3), (4, 6)) for seed in range(3)]).repeat()
    model.fit(stream, steps_per_epoch=3, shuffle=False, verbose=0)
    before, sums = tiny.state_of(model)
    averages = [average.numpy() for average in model.ema_weights]
    try_largest_batch(model, Devices(tf.distribute.get_strategy()), make_batches(), config)
    after, sums_after = tiny.state_of(model)
    assert sums_after == sums
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(averages, model.ema_weights, strict=True):
        np.testing.assert_array_equal(one, other.numpy())


def test_memory_that_does_not_suffice_names_shape_and_setting(tiny, monkeypatch):
    model, config = tiny.model(tiny.config()), tiny.config()

    def fit(*args, **kwargs):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    monkeypatch.setattr(model, "fit", fit)
    with pytest.raises(OutOfMemoryError, match="devices.micro_batch_tokens") as found:
        try_largest_batch(model, Devices(tf.distribute.get_strategy()), make_batches(), config)
    assert "40" in str(found.value)
    assert found.value.exit_code == 5
