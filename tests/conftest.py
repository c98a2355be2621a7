"""Makes the programs and what tests share importable, and the CPU two devices."""

import collections
import os
import pathlib
import shutil
import signal
import sys

import pytest
import tensorflow as tf

TESTS = pathlib.Path(__file__).parent
sys.path[:0] = [
    str(TESTS.parent / "pipelines"),
    str(TESTS.parent / "benchmarks"),
    str(TESTS / "shared"),
    str(TESTS / "model"),
    str(TESTS / "translation"),
]

from tiny_runs import STEPS, TEXTS, Training  # noqa: E402

from keras_transformer.checkpoints import RunFolder  # noqa: E402
from keras_transformer.config import Config, DataConfig, ModelConfig, TrainingConfig  # noqa: E402
from keras_transformer.config.console import PACKAGE, ConsoleHandler, console  # noqa: E402
from keras_transformer.tokenizers import SubwordTokenizer  # noqa: E402

# A shell starts `pytest &` with Ctrl-C ignored, and the programs under test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Before TensorFlow starts, or never: strategies are tested on two logical devices.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)


def _function(item):
    return item.nodeid.split("[")[0]


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items):
    """Marks `slow` what comes after the first n items of a test that has the mark `slow_after(n)`."""
    seen = collections.Counter()
    for item in items:
        if mark := item.get_closest_marker("slow_after"):
            seen[_function(item)] += 1
            if seen[_function(item)] > mark.args[0]:
                item.add_marker("slow")


@pytest.fixture(autouse=True)
def _shows_messages():
    """Tests read from `capsys` what a program would print."""
    with console():
        PACKAGE.addHandler(handler := ConsoleHandler())
        yield
        PACKAGE.removeHandler(handler)


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


@pytest.fixture(scope="session")
def tokenizer():
    return SubwordTokenizer.train(TEXTS * 3, vocab_size=300)


@pytest.fixture(scope="session")
def config(tokenizer):
    return Config(
        model=ModelConfig(
            source_vocab_size=tokenizer.vocab_size,
            target_vocab_size=tokenizer.vocab_size,
            num_encoder_layers=1,
            num_decoder_layers=1,
            d_model=8,
            d_ff=12,
            num_heads=2,
        ),
        data=DataConfig(vocab_size=300, max_length=30, batch_tokens=400),
        training=TrainingConfig(keep_checkpoints=3, average_last=2, warmup_steps=4),
    )


@pytest.fixture(scope="session")
def saved(config, tokenizer, tmp_path_factory):
    """A run folder with four saves, of which three are kept."""
    path = tmp_path_factory.mktemp("saved") / "run"
    run = RunFolder.create(path, config, tokenizer)
    training = Training(run)
    for step in STEPS:
        training.save(step, seconds=10.0 * step)
        run.append_history({"kind": "train", "step": step})
    run.average(last=2)
    return path


@pytest.fixture
def run(saved, tmp_path):
    """A copy that a test may break; a run folder may be moved."""
    return RunFolder(shutil.copytree(saved, tmp_path / "copy"))


@pytest.fixture
def new_run(config, tokenizer, tmp_path):
    """The folder of a run that never trained."""
    return RunFolder.create(tmp_path / "new", config, tokenizer)
