"""The program, called as it is from a shell, and the commands that the README has."""

import json
import os
import pathlib
import re
import resource
import shlex
import signal
import subprocess
import sys
import time

import pytest
from processes import code_of

from keras_transformer.cli import export as export_model
from keras_transformer.export.saved_model import uninterrupted
from keras_transformer.export.serving import curl_command, docker_command
from keras_transformer.export.versions import load_exported

# Keras copies variables in a way that NumPy 2 warns of.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_program_writes_a_version_and_prints_how_it_is_served(run, tmp_path, capsys):
    out = tmp_path / "served"
    arguments = [
        str(run),
        str(out),
        "--format",
        "savedmodel",
        "--checkpoint",
        "last",
        "--no-warmup",
        "--no-ids",
    ]
    arguments += ["--beam-size", "2", "--max-sentences", "5", "--version", "4", "--data-licence", "CC BY 4.0"]
    assert export_model.main(arguments) == 0
    written, following, docker, curl = capsys.readouterr().out.splitlines()
    assert (written, following) == (f"wrote {out / '4'}", "next:")
    words = shlex.split(docker)
    assert f"{out}:/models/tiny:ro" in words
    assert words[-1] == "--batching_parameters_file=/models/tiny/4/batching.config"
    assert curl.strip() == curl_command("tiny")
    card = json.loads((out / "4/assets.extra/model_card.json").read_text())
    assert (card["search"]["beam_size"], card["limits"]["sentences"]) == (2, 5)
    assert card["licence"] == {"model": "not stated", "data": "CC BY 4.0"}
    shape = load_exported(out).signatures["translate_nbest"].structured_outputs["scores"].shape
    assert shape.as_list() == [None, 2]

    assert export_model.main(arguments) == 2
    assert "4: this version exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--checkpoint", "best"], "no 'best' weights"),
        (["--sampling"], "Sampling is not available"),
        (["--tree-grammar"], "`search.tree_grammar` is for parsing"),
        (["--beam-size", "0"], "argument --beam-size: must be from 1"),
        (["--max-sentences", "0"], "`max_sentences` must be"),
        (["--input", "beam_size"], "`inputs` must be among alpha, max_length_offset"),
        (["--version", "0"], "The version must be a whole number from 1 to 9223372036854775807"),
        (["--max-characters", str(10**20)], "`max_characters` must be a whole number from 1 to 16777216"),
        (["--long-lines", "split"], "a SavedModel truncates long lines"),
        (["--name", "../up"], "`name` may contain only letters"),
    ],
)
def test_what_is_refused_is_one_line(run, tmp_path, capsys, arguments, message):
    out = tmp_path / "served"
    given = [str(run), str(out), "--no-warmup", "--checkpoint", "last", *arguments]
    assert code_of(export_model.main, given) == 2
    error = capsys.readouterr().err
    assert error.startswith("keras-transformer export: ")
    assert message in error
    assert len(error.splitlines()) == 1
    assert not list(out.glob("[0-9]*"))


def test_a_folder_that_is_no_run_and_a_file_for_a_folder_are_refused(run, tmp_path, capsys):
    assert export_model.main([str(tmp_path), str(tmp_path / "out"), "--no-warmup"]) == 2
    assert "not a run folder" in capsys.readouterr().err
    file = tmp_path / "file"
    file.write_text("x")
    assert export_model.main([str(run), str(file), "--no-warmup", "--checkpoint", "last"]) == 2
    assert "file: not a folder" in capsys.readouterr().err


def test_a_folder_of_something_else_is_left_as_it_is(run, tmp_path, capsys):
    out = tmp_path / "exported"
    assert export_model.main([str(run), str(out), "--format", "keras", "--checkpoint", "last"]) == 0
    before = sorted(out.iterdir())
    assert "load_keras" in capsys.readouterr().out
    for folder in (out, run):
        assert export_model.main([str(run), str(folder), "--no-warmup", "--checkpoint", "last"]) == 2
        assert "which is not a version of a served model. Choose another" in capsys.readouterr().err
    assert sorted(out.iterdir()) == before
    with pytest.raises(ValueError, match="not a SavedModel of this package"):
        load_exported(out)


@pytest.mark.slow
def test_an_export_is_as_good_where_nobody_reads_on(run, tmp_path):
    arguments = [run, tmp_path / "out", "--format", "weights", "--checkpoint", "last"]
    with program(*arguments) as started:
        started.stdout.close()
        assert (started.wait(), started.stderr.read()) == (0, "")
    closed = shlex.join(["exec", sys.executable, str(ROOT / "pipelines/export_model.py"), "--help"])
    for streams in (">&-", "2>&-", "<&- >&- 2>&-"):
        assert subprocess.run(f"{closed} {streams}", shell=True, stdout=subprocess.DEVNULL).returncode == 0
    assert (tmp_path / "out/model.weights.h5").is_file()


@pytest.mark.parametrize(
    ("page", "heading", "name"),
    [("README.md", "### Serve", "mine"), ("docs/serving.md", "## TensorFlow Serving", "m30k")],
)
def test_the_commands_of_the_readme_are_those_that_the_program_prints(page, heading, name):
    text = (ROOT / page).read_text(encoding="utf-8")
    section = text.partition(f"{heading}\n")[2].partition("\n#")[0]
    commands = [line.strip() for line in section.splitlines() if line.startswith("    ")]
    begin = next(i for i, line in enumerate(commands) if "export_model.py" in line)
    export, docker, curl = commands[begin : begin + 3]
    program, *arguments = shlex.split(export)[1:]
    assert (ROOT / program).is_file()
    parsed = export_model.parse_args(arguments)
    assert (parsed.run, parsed.out, parsed.format) == (f"runs/{name}", f"served/{name}", "savedmodel")
    printed = docker_command(f"/here/served/{name}", name, version=1, batching=True)
    assert shlex.split(docker.replace("$PWD", "/here")) == shlex.split(printed)
    wanted = shlex.split(curl_command(name))
    shown = re.sub("A man is riding a horse.|3 hours ago", "1 2 3", curl)
    assert shlex.split(shown) == wanted


def program(*arguments, **options):
    """The program in a process of its own."""
    command = [sys.executable, str(ROOT / "pipelines/export_model.py"), *map(str, arguments)]
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    environment["PYTHONPATH"] = str(ROOT)
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "savedmodel",
        *(pytest.param(kind, marks=pytest.mark.very_slow) for kind in ("ctranslate2", "keras", "weights")),
    ],
)
def test_a_full_disk_is_one_line_and_nothing_is_left(run, tmp_path, kind):
    if kind == "ctranslate2":
        pytest.importorskip("ctranslate2", reason="pip install ctranslate2")
    out = tmp_path / "out"
    limit = (30_000, resource.RLIM_INFINITY)  # bytes of any file: the weights do not fit
    started = program(
        run, out, "--format", kind, "--checkpoint", "last", *["--no-warmup"] * (kind == "savedmodel"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
    )  # fmt: skip
    _, error = started.communicate(timeout=120)
    assert (started.returncode, error.count("\n")) == (3, 1), error
    assert error.startswith("export_model.py: ")
    assert "Free disk space" in error
    left = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"]
    assert not left


@pytest.mark.slow
def test_a_stopped_export_leaves_nothing(run, tmp_path):
    out = tmp_path / "out"
    started = program(run, out, "--checkpoint", "last", "--no-warmup")
    while not list(out.glob(".1.partial")):
        assert started.poll() is None, started.communicate()
        time.sleep(0.01)
    started.terminate()
    output, error = started.communicate(timeout=120)
    assert (started.returncode, output, error) == (143, "", "")
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"]


def stopped_within(seen):
    with uninterrupted():
        signal.raise_signal(signal.SIGTERM)
        seen.append("went on")


def test_signals_are_held_back_and_not_lost():
    seen = []

    def handle(number, frame):
        seen.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, handle)
    try:
        with pytest.raises(KeyboardInterrupt):
            stopped_within(seen)
        assert seen == ["went on", signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) is handle
    finally:
        signal.signal(signal.SIGTERM, before)
