"""The Dockerfiles: what they copy, install and start exists. Building them needs a daemon and a network."""

import configparser
import fnmatch
import pathlib
import re
import subprocess
import sys

import pytest

from keras_transformer.config.programs import CONSOLE_SCRIPT

ROOT = pathlib.Path(__file__).resolve().parents[1]
TRAINING, SERVING = ((ROOT / f"docker/{name}.Dockerfile").read_text() for name in ("training", "serving"))


def instructions(text, name):
    """The arguments of all instructions of a kind."""
    return re.findall(rf"(?m)^{name} (.+)$", text)


def is_sent(path):
    """Whether .dockerignore leaves a file in the build context; its last pattern that matches decides."""
    sent = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!")
        folders = [str(one) for one in (pathlib.PurePath(path), *pathlib.PurePath(path).parents)]
        names = [one.rpartition("/")[2] for one in folders] if pattern.startswith("**/") else folders
        if line[:1] != "#" and fnmatch.filter(names, pattern.removeprefix("**/")):
            sent = line.startswith("!")
    return sent


def test_every_file_that_is_copied_exists_and_is_sent():
    sources = [source for line in instructions(TRAINING, "COPY") for source in line.split()[:-1]]
    assert len(sources) >= 6
    for source in sources:
        assert (ROOT / source).exists(), source
        assert is_sent(source), source
    assert is_sent("keras_transformer/model/loss.py")
    assert is_sent("served/mine/1/saved_model.pb")
    for path in (".git/config", "keras_transformer/model/__pycache__/loss.pyc", "runs/demo/config.json"):
        assert not is_sent(path), path


def test_the_image_installs_extras_that_exist_and_starts_the_console_script():
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg", encoding="utf-8")
    extras = settings["options.extras_require"]
    for named in re.findall(r"EXTRAS=([\w,]+)", TRAINING):
        assert set(named.split(",")) <= set(extras)
    assert instructions(TRAINING, "ENTRYPOINT") == [f'["{CONSOLE_SCRIPT}"]']
    assert f"\n    {CONSOLE_SCRIPT} = " in (ROOT / "setup.cfg").read_text()
    assert [line for line in instructions(TRAINING, "FROM") + instructions(SERVING, "FROM")] == [
        "${BASE}"
    ] * 2
    (version,) = re.findall(r"python:(3\.\d+)-slim", TRAINING)
    assert f"Python :: {version}\n" in settings["metadata"]["classifiers"] + "\n"


@pytest.mark.slow
def test_the_copied_files_are_enough_to_build_a_wheel(tmp_path):
    *files, folder = [source for line in instructions(TRAINING, "COPY") for source in line.split()[:-1]]
    assert folder == "keras_transformer"
    for name in files:
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / folder).symlink_to(ROOT / folder)
    code = "from setuptools import build_meta; print(build_meta.prepare_metadata_for_build_wheel('out'))"
    (tmp_path / "out").mkdir()
    built = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    (metadata,) = tmp_path.glob("out/*/METADATA")
    assert "Name: keras-transformer-translation" in metadata.read_text()


@pytest.mark.parametrize("name", ["NAME", "MODEL", "VERSION"])
def test_the_server_gets_its_model_by_build_arguments(name):
    assert f"${{{name}}}" in SERVING
    assert any(line.startswith(name) for line in instructions(SERVING, "ARG"))
