"""The package built as a wheel and installed: its console script does all without the repository."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from keras_transformer.config.programs import SCRIPTS

ROOT = pathlib.Path(__file__).resolve().parents[1]
TRAIN = (
    "train --run-dir 'runs/a b' --set training.max_steps=50 --set training.checkpoint_every_steps=25 "
    "--set training.validation_sentences=2 --set model.num_encoder_layers=1 --set model.num_decoder_layers=1 "
    "--set model.d_model=16 --set model.d_ff=32 --set model.num_heads=2 --set data.batch_tokens=1024 "
    "--set search.max_length_offset=4"
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The `bin` folder of a new environment with the wheel, which sees what this Python has besides it."""
    folder = tmp_path_factory.mktemp("installed")
    source = folder / "source"
    shutil.copytree(ROOT / "keras_transformer", source / "keras_transformer")
    for name in ("setup.cfg", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--quiet", "--no-deps", "-w", folder, source], check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv/bin/python"
    (wheel,) = folder.glob("keras_transformer_translation-*.whl")
    subprocess.run([*pip, "--python", python, "install", "--quiet", "--no-deps", wheel], check=True)
    (packages,) = folder.glob("venv/lib/python*/site-packages")
    others = [path for path in sys.path if pathlib.Path(path).name == "site-packages"]
    (packages / "others.pth").write_text("\n".join(others) + "\n")
    return python.parent


@pytest.mark.very_slow
def test_the_console_script_trains_translates_scores_and_exports_outside_the_repository(installed, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name[:3] != "TF_"}
    environment.pop("PYTHONPATH", None)
    environment["PATH"] = f"{installed}{os.pathsep}{environment['PATH']}"

    def shell(line):
        bash = ["bash", "-e", "-o", "pipefail", "-c", line]
        ended = subprocess.run(
            bash, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
        )
        assert ended.returncode == 0, f"{line}\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}"
        assert "Traceback" not in ended.stderr
        return ended.stdout

    where = pathlib.Path(
        shell("python -c 'import keras_transformer; print(keras_transformer.__file__)'").strip()
    )
    assert where.is_relative_to(installed.parent)
    listed = shell("keras-transformer --help")
    assert all(f"    {program} " in listed or f"    {program}\n" in listed for program in SCRIPTS)
    printed = shell(f"keras-transformer {TRAIN}")
    assert "step      50/50" in printed
    # Each of the next commands works when it is pasted.
    following = [line.strip() for line in printed.split("next:\n")[1].splitlines()]
    translating, evaluating, exporting, _ = following
    assert all("keras-transformer " in line and "python" not in line for line in following[:3])
    assert shell(translating).count("\n") == 1
    assert re.search(r"BLEU +\d+\.\d", shell(f"{evaluating} --beam-size 1 --no-ter"))
    assert "served/a b/1" in shell(f"{exporting} --no-warmup")
    assert (tmp_path / "served/a b/1/saved_model.pb").is_file()
    averaged = shell("keras-transformer average 'runs/a b' --last 1").splitlines()
    assert averaged[-1].endswith("--checkpoint last-1")
    assert shell(averaged[-1]).count("\n") == 1
    (tmp_path / "pairs").write_text("a\tb\nc\td\n")
    assert shell("keras-transformer score 'runs/a b' < pairs").count("\n") == 2
    shell("keras-transformer inspect 'runs/a b' pairs")
    assert list(tmp_path.rglob("*.py")) == []
