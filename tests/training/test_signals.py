"""A signal is heard at once, also while no Python runs; the second one ends the process."""

import contextlib
import pathlib
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PATIENCE = 120  # seconds
BEGIN = """
import hashlib, os, signal, threading, time
from keras_transformer.config.programs import StoppedError
from keras_transformer.training.signals import Signals

def work(rounds):  # in C, without Python's lock, as TensorFlow compiles
    print("working", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"word", b"salt", rounds)
"""
HEARD = "{}: finishing the current step and saving; send it again to stop at once\n"


@contextlib.contextmanager
def started(text):
    command = [sys.executable, "-c", BEGIN + text]
    pipes = {name: subprocess.PIPE for name in ("stdout", "stderr")}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(text):
    """Runs this until its end; returns what it printed on both streams."""
    with started(text) as process:
        return process.communicate(timeout=PATIENCE)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGUSR1, 143)]
)
def test_while_no_python_runs_a_signal_is_heard_and_a_second_one_ends_the_process(number, code):
    endless = "with Signals().caught() as signals, signals.deferred():\n    work(10**9)"
    with started(endless) as process:
        assert process.stdout.readline() == "working\n"
        process.send_signal(number)
        assert process.stderr.readline() == HEARD.format(number.name)
        assert process.poll() is None
        limit = time.monotonic() + PATIENCE
        while process.poll() is None and time.monotonic() < limit:
            time.sleep(0.5)
            process.send_signal(number)
        assert process.wait() == code
        assert (
            process.stderr.read() == "stopped at once; the run resumes from its newest checkpoint, if any\n"
        )


@pytest.mark.slow
def test_outside_of_training_too_it_is_heard_before_python_can_act():
    out, err = ended(
        "timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM))\n"
        "try:\n"
        "    with Signals().caught():\n"
        "        timer.start()\n"
        "        work(3 * 10**6)\n"
        "        time.sleep(100)\n"
        "except StoppedError as error:\n"
        "    print(error.exit_code, error)\n"
    )
    assert out == "working\n143 stopped by SIGTERM; the same command continues from the saved state\n"
    assert err == "SIGTERM: ending; send it again to stop at once\n"


def test_a_signal_that_comes_twice_at_once_is_one():
    # `timeout` sends it to the process, and then to all of its group.
    out, err = ended(
        "with Signals().caught() as signals, signals.deferred():\n"
        "    for _ in range(2):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        time.sleep(0.01)\n"
        "    time.sleep(0.5)\n"
        "    print(signals.received.name)\n"
    )
    assert (out, err) == ("SIGTERM\n", HEARD.format("SIGTERM"))


def test_signals_are_afterwards_what_they_were():
    out, err = ended(
        "reading, writing = os.pipe()\n"
        "os.set_blocking(writing, False)\n"
        "signal.set_wakeup_fd(writing)\n"
        "before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)]\n"
        "for _ in range(2):\n"
        "    with Signals().caught():\n"
        "        pass\n"
        "print(before == [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)])\n"
        "print(signal.set_wakeup_fd(-1) == writing, threading.active_count())\n"
    )
    assert (out, err) == ("True\nTrue 1\n", "")
