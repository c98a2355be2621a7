"""Makes the programs and what tests share importable, and the CPU two devices."""

import os
import pathlib
import sys

import pytest
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


@pytest.fixture
def renames(monkeypatch):
    """List of (name, whether all of it was sent to the disk before) of each file renamed from now on."""
    sent, found = {}, []
    fsync, replace = os.fsync, os.replace

    def state(status):
        return status.st_size, status.st_mtime_ns

    def record_fsync(handle):
        fsync(handle)
        status = os.fstat(handle)
        sent[status.st_ino] = state(status)

    def record_replace(source, target, **options):
        status = os.stat(source)
        found.append((pathlib.Path(target).name, sent.get(status.st_ino) == state(status)))
        replace(source, target, **options)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    return found
