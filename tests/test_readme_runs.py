"""The commands of README and of the tutorial, run one after the other as a new user would."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest
import readme_commands

from keras_transformer.text.datasets import load_corpus
from keras_transformer.text.trees import escape_brackets

ROOT = pathlib.Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
# The first command writes the whole built-in corpus; the test has a part of it in its place.
LINES = [
    line
    for line in readme_commands.shell_lines(README)
    if "pipelines/" in line and line != "python pipelines/prepare_wmt.py cldr/en-de corpus --text"
]
# A model and a corpus for which seconds do; everything else is as README has it.
SMALL = [
    "model.num_encoder_layers=1",
    "model.num_decoder_layers=1",
    "model.d_model=16",
    "model.d_ff=24",
    "model.num_heads=2",
    "data.vocab_size=400",
    "data.max_length=60",
    "data.batch_tokens=640",
    "training.max_steps=12",
    "training.validate_every_steps=12",
    "training.validation_sentences=3",
    "training.checkpoint_every_steps=2",
    "search.max_length_offset=4",
]


def small(line):
    """The command of README with the settings of a small model."""
    program, _ = readme_commands.program_calls(f"    {line}")[0]
    if program == "prepare" and "--source" in line:
        return line + " --set data.vocab_size=400 --set data.max_length=60"
    if program != "train":
        return line
    # What is prepared has its vocabulary, which is not to be set again.
    settings = [one for one in SMALL if "data/corpus" not in line or "vocab_size" not in one]
    return " ".join([line, *(f"--set {one}" for one in settings)])


def check_served(shell, folder, environment):
    """The server of README answers the request of README."""
    request = next(line for line in readme_commands.shell_lines(README) if line.startswith("curl"))
    server = subprocess.Popen(
        shell, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        for line in server.stderr:
            if "ready after" in line:
                break
        answer = subprocess.run(["bash", "-c", request], capture_output=True, text=True, timeout=60)
        assert "translation" in json.loads(answer.stdout)["predictions"][0]
    finally:
        os.killpg(server.pid, signal.SIGKILL)  # the shell and the server in it
        server.communicate()


@pytest.mark.very_slow
def test_the_commands_of_the_readme_run_in_their_order(tmp_path):
    pytest.importorskip("ctranslate2", reason="pip install ctranslate2")
    corpus = load_corpus("cldr/en-de", "en", "de")
    (tmp_path / "corpus").mkdir()
    for split, pairs, number in (
        ("train", corpus.train, 1500), ("valid", corpus.validation, 20), ("test", corpus.test, 20)
    ):  # fmt: skip
        for language, texts in (("en", pairs.source), ("de", pairs.target)):
            (tmp_path / f"corpus/{split}.{language}").write_text(
                "".join(f"{text}\n" for text in texts[:number])
            )
    (tmp_path / "treebank").mkdir()
    sentences = [line.split() for line in map(escape_brackets, corpus.train.source[:600]) if line.strip()]
    trees = [f"(S {' '.join(f'(NN {word})' for word in words)})\n" for words in sentences]
    (tmp_path / "treebank/train.trees").write_text("".join(trees))
    (tmp_path / "treebank/valid.trees").write_text("".join(trees[:5]))
    (tmp_path / "sentences.txt").write_text("".join(f"{' '.join(words)}\n" for words in sentences[:20]))
    (tmp_path / "pipelines").symlink_to(ROOT / "pipelines")
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    environment |= {"PYTHONPATH": str(ROOT), "PYTHON": sys.executable}
    assert len(LINES) >= 15
    for line in LINES:
        shell = ["bash", "-e", "-o", "pipefail", "-c", f'python() {{ "$PYTHON" "$@"; }}\n{small(line)}']
        if "serve.py" in line:
            check_served(shell, tmp_path, environment)
            continue
        ended = subprocess.run(
            shell, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert ended.returncode == 0, f"{line}\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}"
        assert "Traceback" not in ended.stderr, line
    for name in ("ours.de", "fast.de", "ours.jsonl"):
        assert len((tmp_path / name).read_text().splitlines()) == 20, name
    assert len((tmp_path / "sentences.trees").read_text().splitlines()) == 20
    assert len((tmp_path / "scores.txt").read_text().splitlines()) == 20
    best = json.loads((tmp_path / "ours.jsonl").read_text().splitlines()[0])["n_best"]
    assert len(best) == 4
    for name in ("runs/mine/averaged", "served/mine/1", "exported/keras/model.keras", "lengths.png"):
        assert (tmp_path / name).exists(), name


@pytest.mark.very_slow
def test_the_commands_of_the_tutorial_run_in_their_order(tmp_path):
    page = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    script, shown = ['python() { "$PYTHON" "$@"; }'], ""
    for block in re.findall(r"(?m)(?:^    .*\n|^\n(?=    ))+", page):
        block = block.strip("\n").replace("\\\n", "")
        lines = [line.removeprefix("    ") for line in block.splitlines()]
        if "\t" in lines[0]:
            shown = "\n".join(lines)
        elif lines[0].startswith(("python pipelines/", "python -", "echo ")):
            script += [small(line) if "pipelines/train_wmt" in line else line for line in lines]
    (tmp_path / "pipelines").symlink_to(ROOT / "pipelines")
    ended = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", "\n".join(script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    assert shown in ended.stdout
    assert "BLEU" in ended.stdout
    assert len((tmp_path / "ours.de").read_text(encoding="utf-8").splitlines()) == 1000
    assert (tmp_path / "served/tutorial/1/saved_model.pb").exists()
    for part in ("/models/tutorial/1/batching.config", "http://localhost:8501/v1/models/tutorial:predict"):
        assert part in page
        assert part in ended.stdout  # the export prints how to serve it
