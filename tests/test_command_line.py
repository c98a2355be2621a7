"""Command lines of all programs: what is refused takes one line, and names what was meant."""

import functools
import importlib
import json
import os
import pathlib
import shlex
import subprocess
import sys

import pytest
import train_wmt
import translate
from command_line import Parser
from other_words import TRAINING, TRANSLATING

from keras_transformer.config.presets import PRESETS
from keras_transformer.config.settings import Config, override, to_json

PIPELINES = pathlib.Path(__file__).parents[1] / "pipelines"
PROGRAMS = sorted(
    path.stem for path in PIPELINES.glob("*.py") if 'if __name__ == "__main__"' in path.read_text()
)


def refused(capsys, parse, *arguments):
    with pytest.raises(SystemExit) as ended:
        parse(arguments)
    captured = capsys.readouterr()
    assert (ended.value.code, captured.out) == (2, "")
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.fixture
def parser():
    parser = Parser("Does it.\n\n    python it.py RUN\n\nAt length.\n", prog="it.py")
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--beam-size", type=int)
    parser.add_argument("--format", choices=["text", "jsonl"])
    return parser


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["r", "--bean-size", "3"], "unknown argument --bean-size. Did you mean --beam-size?"),
        (["r", "--beam_size=3"], "unknown argument --beam_size. Did you mean --beam-size?"),
        (["r", "--beam", "3"], "unknown argument --beam. Did you mean --beam-size?"),
        (["r", "--xyz"], "unknown argument --xyz."),
        (["r", "--lr", "1"], "unknown argument --lr."),
        (["r", "more"], "unknown argument more."),
        (["r", "--beam-size", "two"], "argument --beam-size: invalid int value: 'two'."),
        ([], "the following arguments are required: RUN."),
    ],
)
def test_a_refusal_is_one_line_with_the_nearest_name(parser, capsys, arguments, message):
    assert refused(capsys, parser.parse_args, *arguments) == f"it.py: {message} See it.py --help\n"


def test_a_wrong_choice_is_answered_with_the_nearest(parser, capsys):
    error = refused(capsys, parser.parse_args, "r", "--format", "txt")
    assert "invalid choice: 'txt'" in error
    assert "Did you mean text?" in error


def test_help_has_what_the_docstring_has(parser):
    text = parser.format_help()
    assert "Does it." in text
    assert "examples:\n  python it.py RUN" in text
    assert "At length." not in text


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_refuses_in_one_line_and_shows_examples(name, capsys):
    program = importlib.import_module(name)
    parse = program.parse_args
    if name == "evaluate_wmt":  # its command line is in a module of its own
        parse = functools.partial(parse, text=program.__doc__)
    assert f"{name}.py" in refused(capsys, parse, "--no-such-flag")
    with pytest.raises(SystemExit) as ended:
        parse(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: {name}.py")
    assert f"python pipelines/{name}.py" in text


WORDS = [
    (parse, word, row)
    for parse, rows in ((train_wmt.parse_args, TRAINING), (translate.parse_args, TRANSLATING))
    for row in rows
    for word in row.words.split()
]


@pytest.mark.parametrize("row", TRAINING)
def test_what_a_word_of_training_is_called_here_is_taken(row):
    args = train_wmt.parse_args(["--dataset", "corpora/mine", *shlex.split(row.example)])
    override(PRESETS.get(args.preset, PRESETS["small"]), args.set)  # or `auto`
    assert (
        train_wmt.resolve(args) != train_wmt.resolve(train_wmt.parse_args([])) or "--run-dir" in row.example
    )


@pytest.mark.parametrize("row", TRANSLATING)
def test_what_a_word_of_translating_is_called_here_is_taken(row):
    given = shlex.split(row.example)
    args = translate.parse_args(given if given == ["runs/mine"] else ["runs/mine", *given])
    assert args.runs == ["runs/mine"]


def test_every_word_of_another_system_is_answered_with_ours(capsys):
    for parse, word, row in WORDS:
        for flag in (f"--{word}", f"--{word.replace('-', '_')}", f"-{word}"):
            error = refused(capsys, parse, "runs/mine", flag, "7")[len("train_wmt.py: ") :]
            if parse is translate.parse_args:
                assert f"unknown argument {flag}. Here " in error, flag
                assert f"{row.example}. See translate.py --help" in error
    for word in (
        "--epochs",
        "--batch-size",
        "--lr",
        "--learning-rate",
        "--config",
        "--model",
        "--output-dir",
    ):
        error = refused(capsys, train_wmt.parse_args, f"{word}=7")
        assert f"unknown argument {word}. Here " in error


def test_a_word_has_one_meaning():
    for rows in (TRAINING, TRANSLATING):
        words = [word for row in rows for word in row.words.split()]
        assert sorted({word for word in words if words.count(word) > 1}) == []


# Program -> command lines that it refuses, and a word of each refusal. They run in a folder with
# `run/`, a run with one state; `used/`, a folder with something else; and `empty/`.
REFUSED = {
    "train_wmt": [
        ("--preset bse", "Did you mean 'base'"),
        ("--set max_steps=10", "training.max_steps"),
        ("--set model.d_modle=8", "d_model"),
        ("--set model.num_heads=7", "num_heads"),
        ("--preset base", "needs a corpus"),
        ("--epochs 3", "training.max_steps="),
        ("corpus", "--dataset corpus --source LANGUAGE"),
        ("--dataset no/such --source en --target de", "no/such: no such folder"),
        ("--dataset Helsinki-NLP/opus-100 --source en --target de", "Hugging Face Hub"),
        ("--dataset wmt14:de-en --source en --target de", "wmt14:de-en: no such folder"),
        ("--dataset empty --source en --target de", "no validation split"),
        ("--dataset cldr/en-de --source en --target fr", "cldr/en-de holds en and de"),
        ("--run-dir used", "used: exists and is not a run folder"),
        ("--run-dir new --resume-from 3", "--resume-from 3"),
        ("--allow-config-change nothing", "no setting 'nothing'"),
        ("--init-from no/such", "no/such: not a run folder"),
        ("--init-from run --set training.init_weights=best", "no 'best' weights"),
        ("--new-vocabulary", "--init-from"),
        ("--data-service host:1", "prepare_wmt.py"),
    ],
    "prepare_wmt": [
        ("no/such out --source en --target de", "no/such: no such folder"),
        ("empty out", "name the languages"),
        ("Helsinki-NLP/opus-100 out --source en --target de", "Hugging Face Hub"),
    ],
    "translate": [
        ("no/such", "no/such: not a run folder"),
        ("run", "no 'final' weights"),
        ("run 'A man sleeps.'", "echo 'A man sleeps.' | python pipelines/translate.py run"),
        ("run --weights step-5 --input no/such", "no/such: no such file"),
        ("run --weights step-5 --output no/such", "its folder does not exist"),
        ("run --weights step-5 --beam-size 0", "beam_size"),
        ("run --weights step-5 --top-k 3", "--sampling"),
        ("run --weights step-5 --threads 0 --input used/file", "threads"),
        ("--model run", "the run folder comes first"),
        ("run -b 8", "unknown argument -b"),
    ],
    "translate_ctranslate2": [
        ("no/such", "no/such"),
        ("run", "export_model.py run OUT"),
        ("run --beam 3", "--beam-size 4"),
    ],
    "score": [
        ("no/such", "no/such: not a run folder"),
        ("run", "no 'final' weights"),
        ("run --weights step-5 --source no/such --target used/file", "no/such: no such file"),
    ],
    "evaluate_wmt": [
        ("", "give a RUN"),
        ("no/such", "no/such: not a run folder"),
        ("run", "no 'final' weights"),
        ("run --weights step-5 --dataset no/such", "no/such: no such folder"),
        ("run --weights step-5 --dataset empty", "empty"),
        ("run --weights step-5 --test-set wmt1", "no test set 'wmt1'"),
        ("--hypothesis no/such --reference used/file", "no/such: no such file"),
    ],
    "export_model": [
        ("no/such out", "no/such: not a run folder"),
        ("run out", "no 'final' weights"),
        ("run used --weights step-5", "no version of a served model"),
        ("run used --weights step-5 --format keras", "not an empty folder"),
        ("run used --weights step-5 --format ctranslate2", "not an empty folder"),
        ("run out --weights step-5 --version 0", "whole number"),
        ("run out --weights step-5 --name 'a b'", "letters"),
        ("run out --weights step-5 --max-sentences 0", "max_sentences"),
    ],
    "average_checkpoints": [
        ("no/such --last 3", "no/such: not a run folder"),
        ("run --best 2", "no checkpoint to average"),
        ("run --last 0", "at least 1"),
    ],
    "inspect_vocabulary": [("no/such", "no/such"), ("run", "run")],
    "data_service": [("worker", "--dispatcher"), ("dispatcher --port 70000", "65535")],
}  # fmt: skip
RUNNER = """
import contextlib, importlib, io, json, os, shlex, sys
sys.path.insert(0, sys.argv[1])
program = importlib.import_module(sys.argv[2])
for line in json.load(sys.stdin):
    error = io.StringIO()
    with contextlib.redirect_stderr(error):
        try:
            code = program.main(shlex.split(line))
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([code, error.getvalue(), "tensorflow" in sys.modules]))
"""


def test_every_program_has_refusals():
    assert sorted(REFUSED) == PROGRAMS


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_be_refused_without_tensorflow_does_not_wait_for_it(name, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "used").mkdir()
    (tmp_path / "used/file").write_text("a\n")
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    (tmp_path / "run/checkpoints/step-5.index").touch()
    (tmp_path / "run/config.json").write_text(to_json(Config()))
    lines = [line for line, _ in REFUSED[name]]
    ended = subprocess.run(
        [sys.executable, "-c", RUNNER, str(PIPELINES), name],
        input=json.dumps(lines),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(PIPELINES.parent)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    found = [json.loads(line) for line in ended.stdout.splitlines()]
    for (line, word), (code, error, with_tensorflow) in zip(REFUSED[name], found, strict=True):
        assert (code, error.count("\n"), with_tensorflow) == (2, 1, False), (line, error)
        assert error.startswith(f"{name}.py"), line
        assert word in error, (line, error)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["empty", "run", "used"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_is_the_same_without_docstrings(program):
    outputs = [
        subprocess.run(
            [sys.executable, *flags, PIPELINES / f"{program}.py", "--help"], capture_output=True, check=True
        ).stdout
        for flags in ((), ("-OO",))
    ]
    assert b"examples:" in outputs[0]
    assert outputs[0] == outputs[1]


def test_settings_are_described_without_docstrings():
    text = "from keras_transformer.config.settings import Config\n"
    text += (
        "from keras_transformer.config.settings import describe_settings\nprint(describe_settings(Config()))"
    )
    outputs = [
        subprocess.run(
            [sys.executable, *flags, "-c", text], cwd=PIPELINES.parent, capture_output=True, check=True
        ).stdout
        for flags in ((), ("-OO",))
    ]
    assert b"training.warmup_steps=" in outputs[0]
    assert outputs[0] == outputs[1]
