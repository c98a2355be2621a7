"""Keras' habits with this package's classes, in a process of its own."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent


@pytest.mark.very_slow
def test_a_script_of_nothing_but_keras_habits_runs_to_its_end(tmp_path):
    script = ROOT / "examples" / "keras_habits.py"
    assert sum(map(bool, script.read_text().splitlines())) <= 60
    done = subprocess.run(
        [sys.executable, script, tmp_path], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert {path.name for path in tmp_path.iterdir()} >= {
        "best.weights.h5", "log.csv", "events", "exported", "twin.keras",
    }  # fmt: skip
    epochs = (tmp_path / "log.csv").read_text().splitlines()
    assert len(epochs) == 4
    for name in ("accuracy", "val_loss", "sparse_top_k_categorical_accuracy", "learning_rate"):
        assert name in epochs[0]
