"""`train_wmt.py` in processes of its own, to be killed, and what its runs leave behind."""

import contextlib
import itertools
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import tensorflow as tf

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "pipelines" / "train_wmt.py"
PATIENCE = 300  # seconds until a process that does not come is given up
NOUNS = {"dog": "Hund", "man": "Mann", "fox": "Fuchs", "king": "König", "baker": "Bäcker"}
VERBS = {"sees": "sieht", "hears": "hört", "helps": "hilft", "knows": "kennt"}
SETTINGS = {
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "model.d_model": 16,
    "model.d_ff": 24,
    "model.num_heads": 2,
    "model.residual_dropout": 0.2,
    "data.vocab_size": 310,
    "data.max_length": 40,
    "data.batch_tokens": 320,
    "training.max_minutes": 0,
    "training.log_every_steps": 7,
    "training.checkpoint_every_steps": 5,
    "training.checkpoint_every_minutes": 0,
    "training.keep_checkpoints": 3,
    "training.average_last": 2,
    "training.validate_every_steps": 20,
    "training.validation_sentences": 8,
    "training.validation_beam_size": 1,
    "search.beam_size": 1,
    "search.max_length_offset": 3,
}


class Process:
    """One process that trains.

    Args:
        run: run folder.
        settings: {name: value} for `--set`, besides `SETTINGS`.
        arguments: more of the command line.
        program: the command without its arguments.
        variables: {name: value} for its environment, besides this process' own.
    """

    def __init__(self, run, settings, arguments=(), *, program=(PROGRAM,), variables=None):
        self.run = pathlib.Path(run)
        changed = {**SETTINGS, **settings}
        command = [sys.executable, *program, "--run-dir", run, *arguments]
        for name, value in changed.items():
            command += ["--set", f"{name}={value}"]
        number = sum(1 for _ in self.run.parent.glob(f"{self.run.name}.*.out"))
        self._printed = {
            name: self.run.with_name(f"{self.run.name}.{number}.{name}") for name in ("out", "err")
        }
        with contextlib.ExitStack() as stack:
            files = {name: stack.enter_context(path.open("wb")) for name, path in self._printed.items()}
            self._process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=files["out"],
                stderr=files["err"],
                env=environment(**(variables or {})),
            )

    @property
    def out(self):
        """What it printed to standard output so far."""
        return self._printed["out"].read_text(encoding="utf-8")

    @property
    def err(self):
        """What it printed to standard error so far."""
        return self._printed["err"].read_text(encoding="utf-8", errors="replace")

    @property
    def last_line(self):
        """Its last line on standard error."""
        return self.err.rstrip("\n").rpartition("\n")[2]

    @property
    def ended(self):
        """Whether it ended."""
        return self._process.poll() is not None

    def send(self, number):
        """Sends a signal."""
        self._process.send_signal(number)

    def kill(self):
        """Kills it, whatever it is doing, and waits for its end."""
        self._process.kill()
        self._process.wait()

    def end(self, seconds=PATIENCE):
        """Waits for its end; returns the exit code."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"it did not end in {seconds:.0f} s:\n{self.out}\n{self.err}") from None

    def wait_until(self, condition):
        """Waits until a function without arguments returns something true."""
        limit = time.monotonic() + PATIENCE
        while not condition():
            if self.ended or time.monotonic() > limit:
                raise AssertionError(f"ended, or nothing came, of:\n{self.out}\n{self.err}")
            time.sleep(0.001)

    def kill_after(self, step, delay=0.0):
        """Kills it so many seconds after it has begun to keep the state of a step, or a later one."""
        self.wait_until(lambda: newest(self.run) >= step)
        time.sleep(delay)
        self.kill()
        assert self._process.returncode == -signal.SIGKILL, "it had come to its end before it was killed"


def environment(**variables):
    """Returns this process' environment, in which the package is found, with more variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
    return {**kept, "PYTHONPATH": str(ROOT), **variables}


def write_corpus(folder, count):
    """Writes so many short pairs for training and some for validation and test; returns the folder."""
    pairs = [
        (f"the {a} {verb} the {b} {n} times", f"der {NOUNS[a]} {VERBS[verb]} {n} Mal {NOUNS[b]}")
        for n, a, verb, b in itertools.product(range(2, 3 + count // 100), NOUNS, VERBS, NOUNS)
    ]
    np.random.default_rng(3).shuffle(pairs)
    pairs = pairs[: count + 40]
    for name, part in (("valid", pairs[:30]), ("test", pairs[30:40]), ("train", pairs[40:])):
        for ending, side in zip(("en", "de"), zip(*part, strict=True), strict=True):
            (folder / f"{name}.{ending}").write_text("\n".join(side) + "\n", encoding="utf-8")
    return folder


def worker_environments(count=2):
    """Returns TF_CONFIG for each worker on this machine, as variables."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("localhost", 0))
        addresses = [f"localhost:{each.getsockname()[1]}" for each in sockets]
    return [
        {
            "TF_CONFIG": json.dumps(
                {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            )
        }
        for index in range(count)
    ]


def states(run):
    """Returns the steps of the training states in a run folder, ascending."""
    return sorted(int(path.stem.removeprefix("step-")) for path in (run / "checkpoints").glob("step-*.index"))


def newest(run):
    """Returns the step of the newest training state; -1 where there is none."""
    return max(states(run), default=-1)


def state(run):
    """Returns {name: array} of all that the newest state holds, but for the time it took."""
    reader = tf.train.load_checkpoint(str(run / "checkpoints" / f"step-{newest(run)}"))
    return {
        name: np.asarray(reader.get_tensor(name))
        for name in reader.get_variable_to_shape_map()
        if not name.startswith(("seconds/", "_CHECKPOINTABLE"))
    }


def history(run):
    """Returns the records of a run, without times and speeds, and checksums of these."""
    lines = (run / "history.jsonl").read_text(encoding="utf-8").splitlines()
    return [{name: value for name, value in json.loads(line).items() if not _is_time(name)} for line in lines]


def assert_same(run, other):
    """Asserts that two runs ended alike, to the bit, and logged the same."""
    found, expected = state(run), state(other)
    assert found.keys() == expected.keys()
    for part in ("weights/", "optimizer/", "seeds/", "interval/"):
        assert any(name.startswith(part) for name in expected), part
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    assert history(run) == history(other)


def _is_time(name):
    return name in ("minutes", "crc32") or name.endswith("_per_second")


def code_of(main, *arguments, **options):
    """The exit code of a program that is called in this process: what it returns, or ends with."""
    try:
        return main(*arguments, **options)
    except SystemExit as ended:
        return ended.code
