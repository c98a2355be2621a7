"""Makes the programs importable, as they are when they run, and the CPU two devices."""

import pathlib
import sys

import tensorflow as tf

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "pipelines"))

# Before TensorFlow starts, or never: strategies are tested on two logical devices.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
