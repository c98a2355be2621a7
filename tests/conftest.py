"""Makes the programs and what tests share importable, and the CPU two devices."""

import pathlib
import sys

import tensorflow as tf

TESTS = pathlib.Path(__file__).parent
sys.path[:0] = [
    str(TESTS.parent / "pipelines"),
    str(TESTS.parent / "benchmarks"),
    str(TESTS / "training"),
    str(TESTS / "docs"),
]

# Before TensorFlow starts, or never: strategies are tested on two logical devices.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
