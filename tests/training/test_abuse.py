"""Runs that are killed at random file operations, and folders in which single bits are flipped."""

import os
import subprocess
import sys

import processes
import pytest


def call(program, number):
    """Runs a program of `tests/shared`; returns what it printed."""
    command = [sys.executable, str(processes.ROOT / "tests" / "shared" / program), str(number)]
    done = subprocess.run(command, capture_output=True, text=True, env=processes.environment(), check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.very_slow
def test_killed_at_random_file_operations_a_run_ends_as_one_that_is_not():
    assert "; 0 differences" in call("kill_loop.py", os.environ.get("KILLS", 5))


@pytest.mark.very_slow
def test_no_flipped_bit_is_silent_or_ends_in_a_traceback():
    assert "; 0 silent or with a traceback" in call("flip_loop.py", os.environ.get("FLIPS", 120))
