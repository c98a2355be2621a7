"""Devices of a run."""

import os
import subprocess
import sys

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


CHOSEN = """
import os, sys
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:int(sys.argv[1])])
if sys.argv[2:]:
    os.sched_getaffinity = lambda process: range(int(sys.argv[2]))
import tensorflow as tf
from keras_transformer.config.settings import DeviceConfig
from keras_transformer.training.devices import choose_devices
threading = tf.config.threading
for settings in ({}, {"cpu_towers": 3}, {"cpu_towers": 1}, {"xla": True}):
    threading.set_intra_op_parallelism_threads(0)
    devices = choose_devices(DeviceConfig(**settings))
    print(devices.towers, threading.get_intra_op_parallelism_threads(), end="; ")
tf.zeros(1)  # TensorFlow has started
devices = choose_devices(DeviceConfig(cpu_towers=2))
print(devices.towers, threading.get_intra_op_parallelism_threads())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cores", "chosen"),
    [
        ([1], "1 0; 3 1; 1 0; 1 0; 2 0"),
        pytest.param([1, 2], "2 1; 3 1; 1 0; 1 0; 2 0", marks=pytest.mark.very_slow),
        ([1, 11], "4 2; 3 3; 1 0; 1 0; 2 0"),
    ],
)
def test_each_operation_has_its_towers_share_of_the_cores(cores, chosen):
    command = [sys.executable, "-c", CHOSEN, *map(str, cores)]
    found = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    )
    assert found.stdout.strip() == chosen, found.stderr


def test_towers_are_for_cpus(monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [f"a {kind}"])
    with pytest.raises(ValueError, match="devices.cpu_towers=2 is for training on a CPU.*1 GPUs.*Remove it"):
        choose_devices(DeviceConfig(cpu_towers=2))


def test_towers_and_xla_exclude_each_other():
    assert DeviceConfig(xla=True, cpu_towers=1).xla
    with pytest.raises(ValueError, match="`devices.cpu_towers` must be 0 or 1 with `devices.xla`"):
        DeviceConfig(xla=True, cpu_towers=2)


KEPT = """
import sys
import numpy as np
from keras_transformer.cli.process import keep_freed_memory
def resident():
    return int(open("/proc/self/statm").read().split()[1]) // 256  # MiB
if sys.argv[1] == "keep":
    keep_freed_memory()
before = resident()
array = np.ones(2**24)  # 128 MiB
during = resident()
del array
print(round((resident() - before) / (during - before), 1))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts the pages of a Linux process")
@pytest.mark.parametrize(
    ("what", "environment", "kept"),
    [
        ("keep", {}, "1.0"),
        ("leave", {}, "0.0"),
        ("keep", {"MALLOC_MMAP_MAX_": "65536", "MALLOC_MMAP_THRESHOLD_": "131072"}, "0.0"),  # the user's
    ],
)
def test_freed_memory_is_kept(what, environment, kept):
    command = [sys.executable, "-c", KEPT, what]
    env = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")} | environment
    found = subprocess.run(command, capture_output=True, text=True, env=env)
    assert found.stdout.strip() == kept, found.stderr
