"""What README, docs, notebooks and messages name is there: extras, flags, targets of make, sections."""

import ast
import configparser
import pathlib
import re

import pytest
import readme_commands as found

from keras_transformer.cli import foreign_flags
from keras_transformer.cli.command_line import (
    CORPUS_SETTINGS,
    DEVICE_SETTINGS,
    OLD_FLAGS,
    SEARCH_SETTINGS,
    VOCABULARY_FLAGS,
)
from keras_transformer.cli.serve import SERVER_SETTINGS

ROOT = pathlib.Path(__file__).resolve().parents[1]
SOURCES = [path for name in ("keras_transformer", "pipelines", "benchmarks", "examples") for path in
           sorted((ROOT / name).rglob("*.py"))]  # fmt: skip
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.py"))
PAGES = [*found.PAGES, ROOT / "CONTRIBUTING.md", ROOT / "Makefile", *NOTEBOOKS, *SOURCES]
# Of docker, SLURM, Apache Beam, TensorFlow Serving, TensorBoard, pip, venv, sphinx, ruff, pytest, sacrebleu
# and other toolkits.
FOREIGN = {
    "--rm", "--enable_batching", "--batching_parameters_file", "--logdir", "--no-deps", "--clear", "--quiet",
    "--disable-pip-version-check", "--extra-index-url", "--retries", "--keep-going", "--check", "--dist",
    "--list", "--prefix-size", "--store-ema", "--force-decode", "--max-length-crop", "--output-sampling",
    "--transformer-dropout-attention", "--transformer-depth-scaling", "--workspace", "--score-reference",
    "--array", "--cpus-per-task", "--requeue", "--runner", "--setup_file",
    "--task", "--strict", "--build-arg", "--gpus", "--user", "--query-gpu",
}  # fmt: skip


def texts_of(path):
    """A page; of a Python file, the strings in it and the comments of a notebook's cells."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py" or path in NOTEBOOKS:
        return text
    strings = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
    return "\n".join(string for string in strings if isinstance(string, str))


TEXTS = {str(path.relative_to(ROOT)): texts_of(path) for path in PAGES}


def extras():
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg", encoding="utf-8")
    return set(settings["options.extras_require"])


def flags():
    """Every flag of a program of ours, as its source spells it."""
    programs = [
        *(ROOT / "keras_transformer/cli").glob("*.py"),
        *(ROOT / "pipelines").glob("*.py"),
        *(ROOT / "benchmarks").rglob("*.py"),
    ]
    programs += [ROOT / "notebooks/make.py", *(ROOT / "examples").glob("*.py")]
    names = {"--help"}
    for path in programs:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
                names |= {one.value for one in node.args if isinstance(one, ast.Constant)}
    settings = (SEARCH_SETTINGS, CORPUS_SETTINGS, VOCABULARY_FLAGS, DEVICE_SETTINGS, SERVER_SETTINGS)
    names |= {f"--{name.replace('_', '-')}" for some in settings for name in some}
    return names | {f"--no-{name[2:]}" for name in names}


FLAGS = flags()


def test_every_extra_that_is_named_exists():
    for page, text in TEXTS.items():
        for names in re.findall(r"['\"]\.\[([\w,-]+)\]['\"]", text):
            assert set(names.split(",")) <= extras(), page
        # Without -e, pip puts a copy in the place of the folder that is worked in.
        assert not re.search(r"pip install '\.", text), page
        # On the index, another author's package has the shorter name.
        assert not re.search(r"pip install [^\n`]*keras.transformer(?!-translation)", text), page
        for names in re.findall(r"keras-transformer-translation\[([\w,-]+)\]", text):
            assert set(names.split(",")) <= extras(), page


def is_answered(flag):
    """Whether a program names its own flag when it is given this one of another toolkit."""
    return foreign_flags.find_row(flag, foreign_flags.TRAINING + foreign_flags.TRANSLATING) is not None


def test_every_flag_that_is_named_exists():
    for page, text in TEXTS.items():
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z_-]+[a-z]\b", text))
        # What was run and what changed keep the words of their time.
        dated = ("CHANGELOG.md", "docs/results.md", "keras_transformer/cli/command_line.py")
        old = " ".join(OLD_FLAGS).split() if page in dated else []
        if page == "docs/coming_from.md":  # flags of other toolkits, which the programs answer with ours
            old = [flag for flag in named if is_answered(flag)]
        assert named - FLAGS - FOREIGN - set(old) == set(), page


def test_every_target_of_make_that_is_named_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert targets >= {"test", "demo", "notebooks"}
    for page, text in TEXTS.items():
        named = re.findall(r"`make ([a-z-]+)", text) + re.findall(r"^    make ([a-z-]+)", text, re.MULTILINE)
        assert set(named) <= targets, page


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_section_that_a_notebook_names_exists(path):
    text = path.read_text(encoding="utf-8")
    for section, page in re.findall(r'"([^"\n]+)" in the \[[^\]]+\]\(([^)]+)\)', text.replace("\n# ", " ")):
        headings = re.findall(r"(?m)^#+ (.+)$", (path.parent / page).read_text(encoding="utf-8"))
        assert section in headings, (section, page)
    for link in found.links(text):
        if re.search(r"^[\w./-]+\.(py|md|ipynb)\b", link):
            assert (path.parent / link.partition("#")[0]).exists(), link
