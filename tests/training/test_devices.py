"""Devices of a run."""

import pytest
import tensorflow as tf

from keras_transformer.config.settings import DeviceConfig
from keras_transformer.training.devices import choose_devices


def total(strategy, size):
    """The sum of `size` ones on each replica, over all of them."""

    def in_replica():
        return tf.distribute.get_replica_context().all_reduce("SUM", tf.ones(size))

    run = tf.function(lambda: strategy.run(in_replica), autograph=False)
    return float(tf.reduce_sum(strategy.experimental_local_results(run())[0]))


@pytest.mark.parametrize("size", [1, 6, 2])
def test_runs_of_one_process_do_not_meet_in_their_sums(size):
    # TensorFlow fails at the second size where each has a strategy of its own.
    devices = choose_devices(DeviceConfig(replicas=2, allow_cpu=True))
    assert total(devices.strategy, size) == 2 * size
