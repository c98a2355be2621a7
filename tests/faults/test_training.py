"""Every fault of training that the program refuses or survives, by its number.

Each goes through `train_wmt.py`: in this process, or in one of its own where that makes a
difference. Refused: an exit code, one line on standard error that names the place and what
to do, and no file changed. Survived: what comes out equals, to the bit where nothing else is
said, what an undisturbed run gives.
"""

import contextlib
import errno
import functools
import importlib
import io
import itertools
import json
import math
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.batches.dataset import TokenBatches
from keras_transformer.checkpoints import tensor_files
from keras_transformer.config.settings import ModelConfig
from keras_transformer.model.layers.basics import Dropout, LayerNormalization
from keras_transformer.model.loss import LabelSmoothedCrossEntropy
from keras_transformer.model.transformer import Transformer
from keras_transformer.training import callbacks as steering
from keras_transformer.training import crash_report
from keras_transformer.training import session as opening
from keras_transformer.training.devices import mirrored
from keras_transformer.translation.translator import Translator

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOUNS = {"man": "Mann", "king": "König", "fox": "Fuchs"}
# An odd number of pairs for training; 640 tokens are 5 batches an epoch.
SENTENCES = [
    (f"the {a} sees {number} dogs of the {b}", f"der {NOUNS[a]} sieht {number} Hunde des {NOUNS[b]}s")
    for a, b in itertools.product(NOUNS, NOUNS)
    for number in range(20)
][:-1]
STEPS = 6
SETTINGS = {
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "model.d_model": 16,
    "model.d_ff": 24,
    "model.num_heads": 2,
    "model.residual_dropout": 0.0,
    "model.embedding_dropout": 0.0,
    "data.vocab_size": 330,
    "data.max_length": 40,
    "data.batch_tokens": 640,
    "training.max_steps": STEPS,
    "training.max_minutes": 0,
    "training.warmup_steps": 40,
    "training.log_every_steps": 1,
    "training.validate_every_steps": 1000,
    "training.validation_sentences": 0,
    "training.checkpoint_every_steps": 2,
    "training.checkpoint_every_minutes": 0,
    "training.keep_checkpoints": 3,
    "training.average_last": 2,
    "search.beam_size": 1,
    "search.max_length_offset": 2,
}
TWO = "--replicas 2 --allow-cpu"
LONG = {"training.max_steps": 1_000_000, "training.log_every_steps": 100}
PATIENCE = 300  # seconds until a process that does not come is given up


class Ended(NamedTuple):
    """How the program ended."""

    code: int
    out: str
    err: str

    @property
    def refusal(self):
        """The last line on standard error, which is the only one of the program."""
        assert "Traceback" not in self.err
        *before, last = self.err.splitlines()
        # A process of its own is started by the file in `pipelines/`.
        names = ("train_wmt.py: ", "keras-transformer train: ")
        assert last.startswith(names)
        assert not any(line.startswith(names) for line in before)
        return last


class Place:
    """A folder of one row, in which the program runs."""

    def __init__(self, folder, corpus, base, monkeypatch):
        self.folder, self.corpus, self.base, self.monkeypatch = folder, corpus, base, monkeypatch
        self.run = folder / "run"

    def arguments(self, more="", settings=None):
        command = [f"--dataset={self.corpus}", "--source=en", "--target=de", f"--run-dir={self.run}"]
        command += [f"--set={name}={value}" for name, value in {**SETTINGS, **(settings or {})}.items()]
        return [*command, *more.split()]

    def call(self, more="", settings=None):
        """Runs the program in this process."""
        program = importlib.import_module("keras_transformer.cli.train")
        with (
            contextlib.redirect_stdout(io.StringIO()) as out,
            contextlib.redirect_stderr(io.StringIO()) as err,
        ):
            code = program.main(self.arguments(more, settings))
        # These few steps are all warm-up, and a note says so each time.
        lines = err.getvalue().splitlines(keepends=True)
        lines = [line for line in lines if not line.startswith("note: training.warmup_steps=")]
        return Ended(code, out.getvalue(), "".join(lines))

    def begin(self):
        """Makes `run` a copy of the run that has ended."""
        shutil.copytree(self.base.run, self.run)

    def files(self):
        return {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}

    def history(self, kind="train"):
        return [
            {
                name: value
                for name, value in record.items()
                if name not in ("minutes", "crc32") and "second" not in name
            }
            for record in map(json.loads, (self.run / "history.jsonl").read_text().splitlines())
            if record["kind"] == kind
        ]

    def losses(self):
        return {record["step"]: record["loss"] for record in self.history()}

    def steps(self):
        return tensor_files.steps_in(self.run / "checkpoints")

    def state(self, step, *parts):
        """{name: array} of what a checkpoint holds, but for the time it took."""
        reader = tf.train.load_checkpoint(str(self.run / "checkpoints" / f"step-{step}"))
        return {
            name: reader.get_tensor(name)
            for name in reader.get_variable_to_shape_map()
            if name.startswith(parts or ("weights/", "optimizer/", "seeds/", "interval/", "first_"))
        }

    def assert_ended_as(self, other):
        """The same training, to the bit, and the same translations."""
        assert_equal(self.state(STEPS), other.state(STEPS))
        assert self.history() == other.history()
        for kind in ("validation", "test"):
            assert self.history(kind)[-1] == other.history(kind)[-1]
        name = "translations.test.de"
        assert (self.run / name).read_bytes() == (other.run / name).read_bytes()


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    assert any(name.startswith("weights/") for name in found)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


class Process:
    """The program in a process of its own.

    Args:
        place: `Place`.
        more: more of the command line.
        settings: {name: value}, besides `SETTINGS`.
        before: Python that runs before the program.
        variables: of its environment.
        limits: {resource: bytes}.
    """

    def __init__(self, place, more="", settings=None, *, before="", variables=None, limits=None):
        self.place = place
        self.files = {name: place.folder / f"std{name}" for name in ("out", "err")}
        program = ROOT / "pipelines" / "train_wmt.py"
        start = [str(program)]
        if before:
            code = "import runpy, sys; sys.path.insert(0, sys.argv[1].rpartition('/')[0]); del sys.argv[0]"
            start = ["-c", f"{code}\n{before}\nrunpy.run_path(sys.argv[0], run_name='__main__')", *start]
        environment = {name: value for name, value in os.environ.items() if name[:3] != "TF_"}

        def limit():
            for what, size in (limits or {}).items():
                resource.setrlimit(what, (size, resource.getrlimit(what)[1]))

        with self.files["out"].open("wb") as out, self.files["err"].open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, *start, *place.arguments(more, settings)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**environment, "PYTHONPATH": str(ROOT), **(variables or {})},
                preexec_fn=limit,
            )
        self.pid = self._process.pid

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._process.kill()
        self._process.wait()

    def read(self, name):
        return self.files[name].read_text(encoding="utf-8", errors="replace")

    def wait_until(self, condition):
        limit = time.monotonic() + PATIENCE
        while not condition():
            assert self._process.poll() is None, f"ended early\n{self.read('out')}\n{self.read('err')}"
            assert time.monotonic() < limit, f"too late\n{self.read('out')}\n{self.read('err')}"
            time.sleep(0.02)

    def wait_for_step(self, step):
        """Waits until the state of a step, or a later one, is saved."""
        self.wait_until(lambda: max(self.place.steps(), default=-1) >= step)

    def send(self, number):
        self._process.send_signal(number)

    def end(self):
        code = self._process.wait(PATIENCE)
        return Ended(code, self.read("out"), self.read("err"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    for split, pairs in (("train", SENTENCES), ("valid", SENTENCES[:5]), ("test", SENTENCES[5:7])):
        write(folder, split, pairs)
    return folder


def write(folder, split, pairs):
    for language, texts in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
        (folder / f"{split}.{language}").write_text("\n".join(texts) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def base(corpus, tmp_path_factory):
    """A run that has ended undisturbed; `killed` has its folder as it was at some moments."""
    with pytest.MonkeyPatch.context() as patch:
        place = Place(tmp_path_factory.mktemp("base"), corpus, None, patch)
        place.killed = {name: place.folder / name for name in ("after 3", "within 5", "writing 4")}
        keep_when(patch, steering.StopCallback, "on_train_batch_end", 3, place, "after 3")
        keep_when(patch, steering.NonFiniteGuard, "on_train_batch_end", 5, place, "within 5")
        replace = os.replace

        def keep_and_replace(source, target):
            if str(source).endswith("step-4.index"):
                shutil.copytree(place.run, place.killed["writing 4"])
            replace(source, target)

        patch.setattr(tensor_files.os, "replace", keep_and_replace)
        place.read = count_pairs(patch)
        ended = place.call()
    assert (ended.code, ended.err) == (0, "")
    assert place.steps() == [2, 4, 6]
    assert sum(place.read[:5]) == len(SENTENCES)
    return place


def count_pairs(patch):
    """Returns a list that will hold the number of pairs of each batch of training, in order."""
    numbers = []
    count_epochs = TokenBatches.count_epochs

    def count(self, start, least):
        epochs, number = count_epochs(self, start, least)
        numbers.extend(len(plan.indices) for plan in self.planner.plans(start, epochs))
        return epochs, number

    patch.setattr(TokenBatches, "count_epochs", count)
    return numbers


def keep_when(patch, kind, method, step, place, name):
    """Copies the run folder when a callback hears of a step: what kill -9 would leave."""
    original = getattr(kind, method)

    def keep_first(self, batch, logs=None):
        if int(self.model.optimizer.iterations.numpy()) == step:
            shutil.copytree(place.run, place.folder / name)
        original(self, batch, logs)

    patch.setattr(kind, method, keep_first)


@pytest.fixture
def place(tmp_path, corpus, base, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    return Place(tmp_path, corpus, base, monkeypatch)


# What goes wrong: functions of a `Place`, or functions that return one.


def nothing(place):
    pass


def change(pattern, function):
    """Changes the bytes of the one file of an ended run that a pattern finds."""

    def make(place):
        place.begin()
        (path,) = place.run.glob(pattern)
        path.write_bytes(function(path.read_bytes()))

    return make


def flip(data):
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def cut(data):
    return data[: len(data) // 2]


def lose(pattern):
    """Moves what a pattern finds in an ended run out of it."""

    def make(place):
        place.begin()
        (path,) = place.run.glob(pattern)
        path.rename(place.folder / path.name)

    return make


def parameter_servers(place):
    cluster = {"worker": ["localhost:1"], "ps": ["localhost:2"]}
    place.monkeypatch.setenv(
        "TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})
    )


def nested_cluster(place):
    place.monkeypatch.setenv("TF_CONFIG", "[" * 100_000)


def in_proc(place):
    if not pathlib.Path("/proc/self").exists():
        pytest.skip("there is no /proc")
    place.run = pathlib.Path("/proc/x")


def by_hand(place):
    place.begin()
    file = place.run / "config.json"
    file.write_text(file.read_text().replace('"num_heads": 2', '"num_heads": 4'))


def thesis(place):
    place.run.mkdir()
    (place.run / "thesis.tex").write_text("precious")


def file_in_place(place):
    place.run.write_text("precious")


# What is done about it, as the message says.


def as_told(words):
    """Adds to the command what the message says, and continues for a step more."""

    def then(place, ended):
        more = re.search(words, ended.refusal)[0]
        again = place.call(more, {"training.max_steps": STEPS + 1})
        assert again.code == 0, again.err
        assert f"continuing at step {STEPS}" in again.out
        assert [record["step"] for record in place.history()] == list(range(1, STEPS + 2))
        assert_equal(place.state(STEPS, "weights/"), place.base.state(STEPS, "weights/"))

    return then


def put_back(place, ended):
    (place.folder / "checkpoints").rename(place.run / "checkpoints")
    before = place.files()
    again = place.call()
    assert again.code == 0
    assert "already finished" in again.out
    assert place.files() == before


class Row(NamedTuple):
    """A fault that is refused with exit code 2."""

    fault: str
    what: str
    make: Callable  # of a `Place`
    words: tuple  # in the message
    more: str = ""  # arguments
    settings: dict = {}
    then: Callable | None = None  # function of a `Place` and of how the program `Ended`


LIST = (
    "checkpoints: the file `checkpoint` is missing or damaged, but there are checkpoints: step-2, step-4, "
    "step-6. Continue"
)
STATES = "checkpoints/checkpoint"
RESUME = as_told(r"--resume-from \d+")
NO_GPU = "GPUs are required but TensorFlow sees none", "or train on the CPU with --allow-cpu"
OTHERS = {
    "model.d_ff": 25,
    "data.vocab_size": 320,
    "training.seed": 9,
    "training.warmup_steps": 50,
}
REFUSED = [
    Row("F30", "list garbage", change(STATES, lambda data: b"\xff\0?"), (LIST,), then=RESUME),
    Row("F30", "list empty", change(STATES, lambda data: b""), (LIST,)),
    Row("F30", "list gone", lose(STATES), (LIST,)),
    Row("F30", "folder gone", lose("checkpoints"), ("/checkpoints: there is no checkpoint", "Restore the ch"),
        then=put_back),
    Row("F36", "all that makes another run", Place.begin, (
        "{run}: this run has different settings: ", "model.d_ff 24 -> 25", "data.vocab_size 330 -> 320",
        "training.seed 1 -> 9", "training.warmup_steps 40 -> 50", "changes the model",
    ), settings=OTHERS),
    Row("F36", "schedule", Place.begin, ("training.warmup_steps 40 -> 50. Pass --allow-config-change tr",),
        settings={"training.warmup_steps": 50}),
    Row("F36", "do not edit the file", by_hand, ("config.json: damaged", "checksum", "--set NAME=VALUE of")),
    Row("F36", "sizes of no model", nothing, ("This one has 6.4e+13 and needs",),
        settings={"model.d_ff": 10**12}),
    Row("F36", "more than the memory", nothing, ("weights needs 10,240 GB to train, this machine has",),
        settings={"model.d_ff": 10**10}),
    Row("F36", "layers of no model", nothing, ("at most 1,000. Received: num_encoder_layers=1000000",),
        settings={"model.num_encoder_layers": 10**6}),
    Row("F41", "nested without end", nested_cluster, ("TF_CONFIG must be JSON such as",)),
    Row("F41", "parameter servers", parameter_servers, ("ParameterServerStrategy", "(keras#20585)")),
    Row("F41", "mixed_float16 on two", nothing, ("mixed_float16 trains on one", "Use mixed_bfloat16"), TWO,
        {"training.precision": "mixed_float16"}),
    Row("F42", "one GPU", nothing, NO_GPU, "--replicas 1"),
    Row("F42", "GPUs of this machine", nothing, NO_GPU, "--strategy mirrored"),
    Row("F43", "a folder of something else", thesis, ("{run}: exists and is not a run folder",)),
    Row("F43", "a place of the system's", in_proc, ("/proc/x: cannot write in /proc ",)),
    Row("F43", "a file", file_in_place, ("{run}: exists and is not a run folder",)),
]  # fmt: skip


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: f"{row.fault} {row.what}")
def test_refused(row, place):
    if row.fault == "F42" and tf.config.list_physical_devices("GPU"):
        pytest.skip("there is a GPU")
    row.make(place)
    before = place.files()
    ended = place.call(row.more, row.settings)
    assert ended.code == 2, ended.err
    for word in row.words:
        assert word.format(run=place.run) in ended.refusal
    assert place.files() == before
    if row.then:
        row.then(place, ended)


@pytest.mark.slow
def test_f25_killed_within_a_step(place):
    shutil.copytree(place.base.killed["within 5"], place.run)
    assert place.steps()[-1] == 4
    ended = place.call()
    assert ended.code == 0, ended.err
    assert "continuing at step 4" in ended.out
    place.assert_ended_as(place.base)


@pytest.mark.very_slow
def test_f26_killed_twice_within_an_epoch(place):
    starts = []
    count_epochs = TokenBatches.count_epochs

    def spy(self, start, least):
        starts.append(start)
        return count_epochs(self, start, least)

    place.monkeypatch.setattr(TokenBatches, "count_epochs", spy)
    shutil.copytree(place.base.killed["after 3"], place.run)
    assert [record["step"] for record in place.history()] == [1, 2, 3]
    assert place.steps()[-1] == 2
    with pytest.MonkeyPatch.context() as patch:
        keep_when(patch, steering.StopCallback, "on_train_batch_end", 5, place, "again")
        assert place.call().code == 0
    shutil.rmtree(place.run)
    (place.folder / "again").rename(place.run)
    assert place.call().code == 0
    assert starts == [2, 4]
    place.assert_ended_as(place.base)


@pytest.mark.slow
def test_f27_killed_while_a_checkpoint_is_written(place):
    shutil.copytree(place.base.killed["writing 4"], place.run)
    checkpoints = place.run / "checkpoints"
    left = {path.name for path in checkpoints.iterdir()}
    assert {"step-4_temp", "step-4.data-00000-of-00001"} <= left
    assert "step-4.index" not in left
    (checkpoints / "step-3.data-00000-of-00001").write_bytes(b"of an older one")
    ended = place.call()
    assert ended.code == 0, ended.err
    assert "continuing at step 2" in ended.out
    place.assert_ended_as(place.base)
    assert {path.name for path in checkpoints.iterdir()} == {
        path.name for path in (place.base.run / "checkpoints").iterdir()
    }


@pytest.mark.very_slow
def test_f28_the_disk_is_full(place):
    with Process(place, settings=LONG) as process:
        process.wait_for_step(4)
        # From now on it can write no larger file.
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))
        ended = process.end()
    assert ended.code == 3, ended.err
    found = re.search(r"checkpoints/step-(\d+): cannot be written: ", ended.refusal)
    assert found, ended.refusal
    assert "File too large. It needs 0.1 MB. " in ended.refusal
    assert "ulimit -f" in ended.refusal
    last = int(found[1]) - 2
    assert f"The newest complete checkpoint is step-{last}." in ended.refusal
    assert place.steps()[-1] == last
    assert not list((place.run / "checkpoints").glob(f"step-{last + 2}*"))
    again = place.call(settings={**LONG, "training.max_steps": last + 2})
    assert again.code == 0, again.err
    assert f"continuing at step {last}" in again.out
    assert place.steps()[-1] == last + 2


@pytest.mark.parametrize(
    ("what", "make"),
    [
        ("a bit", change("checkpoints/step-6.data-*", flip)),
        pytest.param("cut", change("checkpoints/step-6.data-*", cut), marks=pytest.mark.very_slow),
        pytest.param("no index", lose("checkpoints/step-6.index"), marks=pytest.mark.very_slow),
    ],
)
def test_f29_the_newest_checkpoint_is_damaged(what, make, place):
    make(place)
    ended = place.call()
    assert ended.code == 0, ended.err
    (line,) = ended.err.splitlines()
    assert line.startswith(f"{place.run}/checkpoints/step-6: damaged: ")
    assert line.endswith("; continuing from step-4")
    assert list((place.run / "checkpoints" / "damaged").iterdir())
    place.assert_ended_as(place.base)


def spoil(patch, step, replica=0):
    """Makes what the logits of one training step come from infinite, on one replica."""
    decode = Transformer._decode

    @functools.wraps(decode)
    def spoiled(self, *args, training=None, **kwargs):
        hidden, *weights = decode(self, *args, training=training, **kwargs)
        if not training:
            return hidden, *weights
        here = tf.distribute.get_replica_context().replica_id_in_sync_group
        bad = tf.equal(self.optimizer.iterations.value, step - 1) & tf.equal(here, replica)
        return hidden * tf.where(bad, math.inf, 1.0), *weights

    patch.setattr(Transformer, "_decode", spoiled)


@pytest.mark.very_slow
def test_f31_steps_that_are_not_finite_end_the_run(place):
    settings = {"training.learning_rate_scale": 1e30, "training.max_nonfinite_steps": 3}
    settings |= {"training.max_steps": 100, "training.keep_checkpoints": 9}
    ended = place.call(settings=settings)
    assert ended.code == 4, ended.err
    found = re.search(r": step (\d+): loss or gradient was not finite in 3 steps", ended.refusal)
    assert found, ended.refusal
    step = int(found[1])
    told = [f"step {step - back}: loss or gradient is not finite" for back in (2, 1, 0)]
    assert [line.partition(";")[0] for line in ended.err.splitlines()[:-1]] == told
    assert f". The batch is in {place.run / 'crash' / f'step-{step}'}; learning rate " in ended.refusal
    for name in ("training.learning_rate_scale=1", "training.warmup_steps=80", "data.batch_tokens=1280"):
        assert f"--set {name}" in ended.refusal
    report = json.loads((place.run / "crash" / f"step-{step}" / "report.json").read_text())
    assert report["step"] == step
    assert report["gradients_not_finite"]
    # All states that are there are finite, and another rate goes on from the first one.
    assert place.steps()[0] == 0
    for saved in place.steps():
        for name, value in place.state(saved).items():
            assert np.isfinite(value).all(), (saved, name)
    remedy = "--resume-from 0 --allow-config-change training.learning_rate_scale"
    ended = place.call(remedy, {"training.max_nonfinite_steps": 3, "training.keep_checkpoints": 9})
    assert ended.code == 0, ended.err
    assert place.losses() == place.base.losses()


@pytest.mark.slow
def test_f31_the_batch_cannot_be_written(place):
    def is_full(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    spoil(place.monkeypatch, 1)
    place.monkeypatch.setattr(crash_report, "open_atomically", is_full)
    ended = place.call(settings={"training.max_nonfinite_steps": 1})
    assert ended.code == 4, ended.err
    assert "step 1: loss or gradient was not finite in 1 steps in a row; learning rate " in ended.refusal
    assert not list((place.run / "crash").iterdir())


def test_f31_one_step_that_is_not_finite_is_skipped_and_counted(place):
    spoil(place.monkeypatch, 3)
    ended = place.call(settings={"training.checkpoint_every_steps": 1, "training.keep_checkpoints": STEPS})
    assert ended.code == 0, ended.err
    (line,) = ended.err.splitlines()
    assert line.startswith("step 3: loss or gradient is not finite; the update is skipped (1 in a row; ")
    assert [record.get("skipped", 0) for record in place.history()] == [0, 0, 1, 0, 0, 0]
    parts = ("weights/", "optimizer/adam/")

    def state(step):
        return {name: value for name, value in place.state(step, *parts).items() if "iteration" not in name}

    assert_equal(state(3), state(2))
    assert any(np.any(value != state(3)[name]) for name, value in state(4).items())


@pytest.mark.very_slow
def test_f32_one_replica_that_is_not_finite(place):
    spoil(place.monkeypatch, 3, replica=1)
    after = {}
    original = steering.StopCallback.on_train_batch_end

    def look(self, batch, logs=None):
        strategy = self.model.distribute_strategy
        variables = [*self.model.trainable_variables, *self.model.optimizer.variables[2:]]
        values = [strategy.experimental_local_results(variable.value) for variable in variables]
        after[int(self.model.optimizer.iterations.numpy())] = [[one.numpy() for one in v] for v in values]
        original(self, batch, logs)

    place.monkeypatch.setattr(steering.StopCallback, "on_train_batch_end", look)
    ended = place.call(TWO, {"training.max_steps": 4})
    assert ended.code == 0, ended.err
    assert "step 3: loss or gradient is not finite" in ended.err
    assert [record.get("skipped", 0) for record in place.history()] == [0, 0, 1, 0]
    for before, then in zip(after[2], after[3], strict=True):
        assert len(then) == 2
        for value in then:
            np.testing.assert_array_equal(value, before[0])
    for first, second in after[4]:
        np.testing.assert_array_equal(first, second)
        assert np.isfinite(first).all()
    assert any(np.any(a[0] != b[0]) for a, b in zip(after[3], after[4], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGUSR1, 143, marks=pytest.mark.very_slow)]
)
def test_f33_a_signal_in_training_saves_the_step(number, code, place):
    on_train_batch_end = steering.NonFiniteGuard.on_train_batch_end

    def send(self, batch, logs=None):
        on_train_batch_end(self, batch, logs)
        if self.step == 3:
            os.kill(os.getpid(), number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steering.NonFiniteGuard, "on_train_batch_end", send)
        ended = place.call()
    assert ended.code == code
    assert f"stopped by {number.name} after step 3, which is saved. The same command" in ended.refusal
    assert f"--run-dir {place.run} continues" in ended.refusal
    assert place.steps()[-1] == 3
    assert not place.history("validation")
    assert not list(place.run.glob("translations*"))
    if number == signal.SIGINT:
        assert place.call().code == 0
        place.assert_ended_as(place.base)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "makes_run"),
    [
        (opening, "load_training_data", False),  # while the data are read
        (LayerNormalization, "call", True),  # Keras changes an `Exception` of a layer
        pytest.param(Translator, "translate", True, marks=pytest.mark.very_slow),
    ],
)
def test_f33_sigterm_outside_training(owner, name, makes_run, place):
    original = getattr(owner, name)

    @functools.wraps(original)
    def send(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGTERM)
        return original(*args, **kwargs)

    if makes_run:
        place.begin()
        (place.run / "translations.test.de").unlink()
    before = place.files()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, send)
        ended = place.call()
    assert ended.code == 143, ended.err
    assert "stopped by SIGTERM; the same command continues from the saved state" in ended.refusal
    if makes_run:
        assert place.call().code == 0
        place.assert_ended_as(place.base)
    else:
        assert place.files() == before


@pytest.mark.slow
def test_f33_sigterm_while_an_object_is_freed(place):
    """Python drops what is raised then."""

    class Freed:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGTERM)
            raised.append(False)

    def translate(self, source):
        Freed()
        time.sleep(PATIENCE)

    raised = []
    place.begin()
    (place.run / "translations.test.de").unlink()
    place.monkeypatch.setattr(Translator, "translate", translate)
    ended = place.call()
    assert not raised
    assert ended.code == 143
    assert ended.err == f"{ended.refusal}\n"


@pytest.mark.slow
def test_f33_sigterm_and_f38_a_second_process(place):
    with Process(place, settings=LONG) as process:
        process.wait_for_step(2)
        second = place.call()
        assert second.code == 2
        assert f"{place.run}: another process is using this folder" in second.refusal
        process.send(signal.SIGTERM)
        ended = process.end()
    assert ended.code == 143, ended.err
    found = re.search(r"stopped by SIGTERM after step ([\d,]+), which is saved", ended.refusal)
    assert found, ended.err
    last = int(found[1].replace(",", ""))
    assert place.steps()[-1] == last
    assert (
        f"continuing at step {last:,}\n" in place.call(settings={**LONG, "training.max_steps": last + 1}).out
    )


@pytest.mark.very_slow
def test_f33_a_second_signal_ends_at_once(place):
    slow_disk = (
        "import time; from keras_transformer.training.callbacks import CheckpointCallback\n"
        "CheckpointCallback.on_train_end = lambda *_, **__: time.sleep(1000)"
    )
    with Process(place, settings=LONG, before=slow_disk) as process:
        process.wait_for_step(2)
        process.send(signal.SIGTERM)
        process.wait_until(lambda: "SIGTERM: finishing" in process.read("err"))
        begin = time.monotonic()
        time.sleep(1)  # what follows at once is the same signal
        process.send(signal.SIGTERM)
        ended = process.end()
        assert time.monotonic() - begin < 500
    assert ended.code == 143
    assert "finishing the current step and saving; send it again to stop at once" in ended.err
    assert "stopped at once; the run resumes from its newest checkpoint, if any" in ended.err
    assert "Traceback" not in ended.err
    for step in place.steps():
        tensor_files.verify(place.run / "checkpoints" / f"step-{step}")


@pytest.mark.slow
def test_f34_another_budget_is_refused_and_continues_at_the_pair_where_it_was(place):
    place.begin()
    settings = {"data.batch_tokens": 320, "training.max_steps": STEPS + 1}
    before = place.files()
    ended = place.call(settings=settings)
    assert ended.code == 2
    assert "data.batch_tokens 640 -> 320. Pass --allow-config-change data.batch_tokens" in ended.refusal
    assert place.files() == before
    read = []
    count_epochs = TokenBatches.count_epochs

    def spy(self, start, least):
        read.extend(self.planner.plans(0, 9)[:start])
        return count_epochs(self, start, least)

    place.monkeypatch.setattr(TokenBatches, "count_epochs", spy)
    ended = place.call("--allow-config-change data.batch_tokens", settings)
    assert ended.code == 0, ended.err
    # Five batches were the first epoch; the sixth was one of them again, in another order.
    pairs = sum(len(plan.indices) for plan in read)
    surplus = pairs - (len(SENTENCES) + place.base.read[5])
    assert 0 <= surplus < len(read[-1].indices)
    assert len(read) > STEPS


@pytest.mark.very_slow
def test_f35_another_number_of_replicas(place):
    place.begin()
    ended = place.call(f"{TWO} --resume-from 2")
    assert ended.code == 0, ended.err
    assert "continuing at step 2" in ended.out
    assert " 2 CPUs" in ended.out
    assert any(number % 2 for number in place.base.read[2:6])
    found, expected = place.losses(), place.base.losses()
    assert list(found) == list(expected)
    for step in (3, 4, 5, 6):
        assert found[step] == pytest.approx(expected[step], abs=1e-4)
        assert found[step] != expected[step - 1]


@pytest.mark.slow
def test_f37_a_finished_run(place):
    place.begin()

    def looks():
        found = {path: (path.stat().st_mtime_ns, path.is_dir()) for path in place.run.rglob("*")}
        return found, place.files()

    before = looks()
    ended = place.call()
    assert (ended.code, ended.err) == (0, "")
    said = f"{place.run}: already finished at step {STEPS}. To train longer, raise training.max_steps"
    assert said in ended.out.splitlines()
    assert looks() == before


@pytest.mark.very_slow
def test_f39_a_replica_without_rows(place):
    """Nine pairs in batches of eight; batches of odd numbers are in fault 35."""
    place.corpus = place.folder / "few"
    place.corpus.mkdir()
    few = [(f"the king sees {n} dogs", f"der König sieht {n} Hunde") for n in range(9)]
    for split, pairs in (("train", few), ("valid", few[:3]), ("test", few[:1])):
        write(place.corpus, split, pairs)
    settings = {"data.vocab_size": 300, "data.batch_tokens": 160, "data.max_length": 20}
    settings["training.max_steps"] = 4
    rows = count_pairs(place.monkeypatch)
    losses = []
    for name, more in (("one", ""), ("two", TWO)):
        place.run = place.folder / name
        ended = place.call(more, settings)
        assert ended.code == 0, ended.err
        losses.append(place.losses())
    assert set(rows) == {8, 1}
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)


@pytest.mark.very_slow
def test_f40_a_batch_that_does_not_fit_into_memory(place):
    # Over 3 GB of attention's weights; the operations of oneDNN end the process there.
    settings = {"model.num_heads": 16_384, "model.key_dim": 1, "model.value_dim": 1}
    settings |= {"data.batch_tokens": 40_000, "training.validate_every_steps": 1}
    limits = {resource.RLIMIT_AS: 6 * 2**30}
    with Process(
        place, settings=settings, limits=limits, variables={"TF_ENABLE_ONEDNN_OPTS": "0"}
    ) as process:
        ended = process.end()
    assert ended.code == 5, (ended.code, ended.err)
    assert re.search(r"a batch of 1\d\d rows, \d+ source and \d+ target tokens", ended.refusal), ended.refusal
    assert "within data.batch_tokens=40000 (OOM when allocating tensor with shape[" in ended.refusal
    assert re.search(r"Try --set devices.micro_batch_tokens=\d+ ", ended.refusal)
    assert not (place.run / "history.jsonl").exists()
    assert "step " not in ended.out


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gradient_accumulation_steps": 2}, r"`gradient_accumulation_steps` .*\(keras#20582\)"),
        ({"use_ema": True}, r"`use_ema` .*\(keras#20582\)"),
    ],
)
def test_f41_what_keras_cannot_do_under_a_strategy(settings, message):
    with two_devices().scope(), pytest.raises(ValueError, match=message):
        Transformer(small()).compile(keras.optimizers.Adam(**settings))


@pytest.mark.very_slow
def test_f42_the_cpu_where_it_is_allowed(place):
    ended = place.call("--replicas 1 --strategy mirrored --allow-cpu", {"training.max_steps": 1})
    assert ended.code == 0, ended.err
    assert "devices     one CPU, float32" in ended.out
    assert place.losses()[1] == pytest.approx(place.base.losses()[1], abs=1e-4)


def test_f43_a_folder_that_cannot_be_written(place):
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        shutil.copytree(place.corpus, f"{name}/corpus")
        for folder, mode in ((f"{name}/corpus", 0o755), (name, 0o555)):
            os.chmod(folder, mode)
        place.corpus, place.run = f"{name}/corpus", pathlib.Path(name) / "run"
        if os.getuid() == 0:  # to whom every folder is open
            os.setresuid(65534, 65534, 0)
            stack.callback(os.setresuid, 0, 0, 0)
        ended = place.call()
    assert ended.code == 2
    assert (
        f"{name}/run: cannot write in {name} (Permission denied). Choose another --run-dir" in ended.refusal
    )
    assert ended.out == ""


@pytest.mark.very_slow
def test_f44_a_clock_that_jumps(place):
    year, real = 365 * 24 * 3600, time.time
    jumps = itertools.cycle([-year, year, 0, 10 * year])
    place.monkeypatch.setattr(time, "time", lambda: real() + next(jumps))
    ended = place.call()
    assert (ended.code, ended.err) == (0, "")
    place.assert_ended_as(place.base)
    lines = (place.run / "history.jsonl").read_text().splitlines()
    assert all(0 <= json.loads(line).get("minutes", 0) < 60 for line in lines)


def test_f44_a_name_is_not_used_twice(place):
    program = importlib.import_module("keras_transformer.cli.train")

    class Stopped(program.datetime.datetime):
        @classmethod
        def now(cls):
            return cls(2026, 10, 25, 2, 30)

    place.monkeypatch.setattr(program.datetime, "datetime", Stopped)
    place.monkeypatch.chdir(place.folder)
    names = []
    for _ in range(3):
        names.append(program._run_dir(program.parse_args([])))
        pathlib.Path(names[-1]).mkdir(parents=True)
    stamp = "runs/demo-20261025-023000"
    assert names == [stamp, f"{stamp}-2", f"{stamp}-3"]


VOCAB, PAD, BOS = 23, 0, 1
SOURCE = np.array([[4, 9, 13, 5, 2, 0, 0], [7, 22, 2, 0, 0, 0, 0], [8, 8, 19, 6, 21, 10, 2]], "int32")
LABELS = np.array([[5, 9, 14, 20, 4, 2], [6, 2, 0, 0, 0, 0], [17, 2, 0, 0, 0, 0]], "int32")
TARGET = np.concatenate([np.full((3, 1), BOS, "int32"), np.where(LABELS == 2, 0, LABELS)[:, :-1]], 1)


def small(layers=1, **changes):
    sizes = {"d_model": 12, "d_ff": 17, "num_heads": 3, "tie_embeddings": "none"}
    sizes |= {"residual_dropout": 0.0, "embedding_dropout": 0.0}
    return ModelConfig(
        source_vocab_size=VOCAB,
        target_vocab_size=VOCAB,
        num_encoder_layers=layers,
        num_decoder_layers=layers,
        **{**sizes, **changes},
    )


def two_devices():
    return mirrored(["CPU:0", "CPU:1"])


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("layers", range(1, 7))
def test_f45_padding_changes_nothing(layers):
    keras.utils.set_random_seed(layers)
    model = Transformer(small(layers))
    real = TARGET != PAD
    before = model((SOURCE, TARGET)).numpy()
    longer = np.pad(SOURCE, ((0, 0), (0, 5))), np.pad(TARGET, ((0, 0), (0, 3)))
    after = model(longer).numpy()[:, : TARGET.shape[1]]
    # Other lengths are summed in another order, which may round the last bits of logits above 1 otherwise.
    np.testing.assert_allclose(after[real], before[real], atol=1e-6, rtol=1e-6)
    # What stands for padding, and then for a word.
    embeddings = model.source_embedding.embeddings
    for row, matters in ((PAD, False), (13, True)):
        kept = embeddings.numpy()
        embeddings.assign(np.where(np.arange(VOCAB)[:, None] == row, 9.0, kept))
        difference = np.abs(model((SOURCE, TARGET)).numpy() - before)[real].max()
        assert difference > 1e-3 if matters else difference == 0
        embeddings.assign(kept)


@pytest.mark.slow
def test_f46_unequal_tokens_on_two_replicas():
    """16 real tokens a side on one, 2 on the other: what one device does with all of them."""
    rng = np.random.default_rng(0)
    source = rng.integers(4, VOCAB, (4, 8), dtype="int32")
    labels = rng.integers(4, VOCAB, (4, 8), dtype="int32")
    source[2:, 1:] = labels[2:, 1:] = PAD
    target = np.concatenate([np.full((4, 1), BOS, "int32"), labels[:, :-1]], 1)
    weights = []
    for strategy in (tf.distribute.get_strategy(), two_devices()):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = Transformer(small())
            model.compile(keras.optimizers.SGD(1.0), LabelSmoothedCrossEntropy(0.1))
        start = model.get_weights()
        data = tf.data.Dataset.from_tensors(((source, target), labels)).unbatch().batch(4)
        model.fit(data, shuffle=False, verbose=0)
        weights.append(model.get_weights())
    for one, two in zip(*weights, strict=True):
        np.testing.assert_allclose(two, one, atol=1e-6, rtol=0)
    assert max(np.abs(one - before).max() for one, before in zip(weights[0], start, strict=True)) > 0.01


def test_f47_dropout_on_two_replicas():
    strategy = two_devices()

    def masks():
        with strategy.scope():
            layer = Dropout(0.5, seed=3)
            layer.build((64,))
        ones = tf.ones((64,))
        run = tf.function(lambda: strategy.run(lambda: layer(ones, training=True)), autograph=False)
        return [[mask.numpy() for mask in strategy.experimental_local_results(run())] for _ in range(2)]

    first, again = masks(), masks()
    np.testing.assert_array_equal(first, again)
    drawn = [mask.tobytes() for step in first for mask in step]
    assert len(set(drawn)) == 4
    assert all(set(mask.tolist()) == {0.0, 2.0} for step in first for mask in step)


def test_every_fault_has_a_test():
    tests = {number for name in globals() for number in re.findall(r"(?<=_f)\d\d(?=_)", name)}
    assert tests | {row.fault[1:] for row in REFUSED} == {str(number) for number in range(25, 48)}
