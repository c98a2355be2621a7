"""The notebooks: what is stored is what the text says, and every one runs in its small setting.

`RUN` is a run of a few steps of the built-in corpus, trained once for all of them: a finished run
of two encoder and two decoder layers that translates nothing well. `PARSER` is such a parser.
"""

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys

import jupytext
import nbformat
import pytest
import tiny_trees

from keras_transformer import load_corpus

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = ROOT / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("[0-9][0-9]_*.py"))
# Runs in seconds; the others need a trained run, or time.
QUICK = "01_the_paper"
PARSING = "07_parsing"
SETTINGS = [
    "model.num_encoder_layers=2",
    "model.num_decoder_layers=2",
    "model.d_model=32",
    "model.d_ff=64",
    "model.num_heads=4",
    "data.vocab_size=500",
    "data.max_length=60",
    "training.max_steps=30",
    "training.warmup_steps=10",
    "training.log_every_steps=10",
    "training.validate_every_steps=15",
    "training.validation_sentences=8",
    "training.checkpoint_every_steps=10",
    "training.average_last=3",
]
# A reader's own corpus: the pairs of each split.
OWN_PARTS = {"train": slice(3000), "valid": slice(3000, 3200), "test": slice(3200, 3400)}
# But for /models, which is the folder of a container.
ABSOLUTE_PATH = re.compile(r"(?:^|[\s'\"(=,\[])/(?!models/)[A-Za-z][\w.-]*/[\w.]", re.MULTILINE)


def load_make():
    spec = importlib.util.spec_from_file_location("make_notebooks", FOLDER / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(arguments, **environment):
    """Runs a Python program; returns what `subprocess.run` does."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
        capture_output=True,
        text=True,
        timeout=900,
    )


def outputs(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def texts(notebook):
    """All that a reader sees as text, of outputs."""
    for output in outputs(notebook):
        yield output.get("text", "")
        yield from (text for kind, text in output.get("data", {}).items() if kind.startswith("text/"))


def check_outputs(notebook):
    """Executed once from the top, without errors and warnings, with pictures, nothing of the machine."""
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert not [output for output in outputs(notebook) if output.output_type == "error"]
    assert any("image/png" in output.get("data", {}) for output in outputs(notebook))
    for text in texts(notebook):
        assert not re.search("warning", text, re.IGNORECASE), text
        assert not ABSOLUTE_PATH.search(text), text


def check_runs(name, out, **environment):
    done = run([FOLDER / "make.py", name, "--quick", "--out", out], **environment)
    assert done.returncode == 0, done.stderr[-3000:]
    check_outputs(nbformat.read(out / f"{name}.ipynb", as_version=4))


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory):
    path = tmp_path_factory.mktemp("notebooks") / "run"
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    done = run([ROOT / "pipelines/train_wmt.py", "--run-dir", path, *settings])
    assert done.returncode == 0, done.stderr[-3000:]
    return path


@pytest.fixture(scope="session")
def finished_parser(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parsing")
    treebank = tiny_trees.write_treebank(folder / "trees", train=300, valid=20)
    settings = SETTINGS + ["data.vocab_size=290", "data.max_length=64", "training.validation_sentences=4"]
    settings = [part for setting in settings for part in ("--set", setting)]
    command = [ROOT / "pipelines/train_wmt.py", "--preset", "parsing_small", "--dataset", treebank]
    done = run([*command, "--run-dir", folder / "run", *settings])
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "run"


def files_in(folder):
    return sorted((path.relative_to(folder), path.stat().st_size) for path in folder.rglob("*"))


def test_there_are_notebooks_and_nothing_else():
    assert QUICK in NAMES
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_stored_notebook_is_its_text_executed(name):
    text = jupytext.read(FOLDER / f"{name}.py")
    stored = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    nbformat.validate(stored)
    found, wanted = ([(cell.cell_type, cell.source) for cell in book.cells] for book in (stored, text))
    assert found == wanted, f"make notebooks, or: python notebooks/make.py {name}"
    check_outputs(stored)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_begins_with_a_title_and_defines_little(name):
    book = jupytext.read(FOLDER / f"{name}.py")
    assert book.cells[0].source.startswith("# ")
    first = next(cell.source for cell in book.cells if cell.cell_type == "code")
    assert first.startswith("%matplotlib inline\n")
    for cell in book.cells:
        # A function of more lines belongs into the package, where it is tested.
        for body in re.findall(r"^def .*\n((?:(?:    .*)?\n)+)", cell.source + "\n", re.MULTILINE):
            assert len(body.strip().splitlines()) <= 15, body


def test_no_head_is_said_to_do_what_it_gives_less_than_half_of_its_attention_to():
    stored = nbformat.read(FOLDER / "03_attention.ipynb", as_version=4)
    lines = [line for text in texts(stored) for line in text.splitlines()]
    doing = [int(share) for line in lines for share in re.findall(r"looks at .*\((\d+)%\)", line)]
    rest = [int(share) for line in lines for share in re.findall(r"no clear job \(.* (\d+)%\)", line)]
    assert len(doing) + len(rest) == 12
    assert min(doing, default=50) >= 50 >= max(rest, default=50)
    for line in lines:
        if found := re.search(r"head \d: +([\d.]+)%   uniform", line):
            assert line.endswith("a clear job") == (float(found[1]) >= 50)


def test_what_is_said_of_the_order_of_norm_is_what_was_measured():
    stored = nbformat.read(FOLDER / "02_training.ipynb", as_version=4)
    (measured,) = (text for text in texts(stored) if text.startswith("post-norm, stacked "))
    (said,) = (cell.source for cell in stored.cells if cell.source.startswith("With post-norm and separate"))
    about_this_run = said.partition("On Multi30k")[0]
    numbers = re.findall(r"\d[.]\d+", about_this_run)
    assert len(numbers) > 3
    assert [number for number in numbers if number not in measured] == []
    lines = re.findall(r"(.+?) +validation perplexity +([\d.]+), cosine ([\d.]+) -> ([\d.]+)", measured)
    perplexity, before, after = ({line[0]: float(line[i]) for line in lines} for i in (1, 2, 3))
    stacked, separate = "post-norm, stacked", "post-norm, separate"
    assert perplexity["pre-norm, separate"] < perplexity[stacked] < perplexity[separate]
    assert after[stacked] < before[stacked] < before[separate] < after[separate]


def test_a_stored_card_shows_no_backslashes():
    stored = nbformat.read(FOLDER / "06_serving.ipynb", as_version=4)
    cards = [output["data"]["text/markdown"] for output in outputs(stored)
             if "text/markdown" in output.get("data", {})]  # fmt: skip
    assert len(cards) == 1
    assert "\\" not in cards[0]
    assert "`nrefs:1|case:mixed|" in cards[0]


@pytest.mark.very_slow
def test_a_notebook_of_no_trained_run_runs(tmp_path):
    check_runs(QUICK, tmp_path)


@pytest.mark.very_slow
def test_the_notebook_of_parsing_runs_and_leaves_the_run_as_it_was(finished_parser, tmp_path):
    before = files_in(finished_parser)
    check_runs(PARSING, tmp_path, PARSER=str(finished_parser))
    assert files_in(finished_parser) == before


@pytest.mark.very_slow
@pytest.mark.parametrize("name", [name for name in NAMES if name not in (QUICK, PARSING)])
def test_every_notebook_runs_and_leaves_the_run_as_it_was(name, finished_run, tmp_path):
    before = files_in(finished_run)
    check_runs(name, tmp_path, RUN=str(finished_run))
    assert files_in(finished_run) == before


@pytest.mark.very_slow
@pytest.mark.parametrize("name", ["03_attention", "05_searching", "06_serving"])
def test_notebooks_of_a_run_also_run_with_the_model_that_comes_with_the_package(name, tmp_path):
    check_runs(name, tmp_path, RUN="", TEXT="")
    lines = [
        (FOLDER / f"sentences.{language}").read_text(encoding="utf-8").splitlines()
        for language in ("en", "de")
    ]
    assert len(set(zip(*lines, strict=True))) == 48


@pytest.mark.very_slow
@pytest.mark.parametrize("way", ["a folder", "two lists"])
def test_one_cell_of_the_training_notebook_takes_other_sentences(way, tmp_path):
    shutil.copy(FOLDER / "make.py", tmp_path)
    text = (FOLDER / "02_training.py").read_text(encoding="utf-8")
    corpus = load_corpus("cldr/en-fr", "en", "fr").train
    for split, part in OWN_PARTS.items():
        for language, lines in (("en", corpus.source), ("de", corpus.target)):
            path = tmp_path / "my_folder" / f"{split}.{language}"
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(f"{line}\n" for line in lines[part]), encoding="utf-8")
    # The two ways are those that the notebook shows above the cell.
    shown = re.findall(r"(?:^#     .*\n)+", text, re.MULTILINE)
    folder, lists = (re.sub("^#     ", "", lines, flags=re.MULTILINE) for lines in shown)
    files = '[open(f"my_folder/train.{side}", encoding="utf-8") for side in (SOURCE, TARGET)]'
    read = f"source, target = (file.read().splitlines() for file in {files})\n"
    cell = 'train, valid, test, *_ = load_corpus("cldr/en-de", SOURCE, TARGET)\n'
    assert text.count(cell) == 1
    text = text.replace(cell, folder if way == "a folder" else read + lists)
    # The comparison at the end takes as long as all of the rest.
    text = text.partition("# %% [markdown]\n# ## The order of norm")[0]
    (tmp_path / "02_own.py").write_text(text, encoding="utf-8")
    done = run([tmp_path / "make.py", "--quick"], PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr[-3000:]
    notebook = nbformat.read(tmp_path / "02_own.ipynb", as_version=4)
    check_outputs(notebook)
    number = {"a folder": "3,000", "two lists": "2,000"}[way]
    assert any(re.match(rf"training +{number} pairs\n", text) for text in texts(notebook))
    assert "the same as before: True" in "".join(texts(notebook))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("import sys\nprint('it went wrong', file=sys.stderr)", "a cell wrote to standard error"),
    ],
)
def test_a_notebook_with_an_error_or_a_warning_is_not_written(cell, message, tmp_path):
    shutil.copy(FOLDER / "make.py", tmp_path)
    (tmp_path / "01_broken.py").write_text(f"# %%\n{cell}\n", encoding="utf-8")
    done = run([tmp_path / "make.py"])
    assert done.returncode == 1
    assert "01_broken.py" in done.stderr
    assert message in done.stderr
    assert list(tmp_path.glob("*.ipynb*")) == []


def test_the_notebook_of_parsing_is_left_out_without_a_parser(capsys, monkeypatch):
    monkeypatch.setenv("PARSER", "")
    assert load_make().parse_args([]).names == [name for name in NAMES if name != PARSING]
    assert "left out: 07_parsing needs the environment variable PARSER" in capsys.readouterr().out
    monkeypatch.setenv("PARSER", "runs/parsing")
    assert load_make().parse_args([]).names == NAMES


def test_an_unknown_notebook_is_refused(capsys):
    with pytest.raises(SystemExit) as exit_code:
        load_make().parse_args(["01_the_papre"])
    assert exit_code.value.code == 2
    assert "no notebook '01_the_papre'. There are: 01_the_paper" in capsys.readouterr().err
