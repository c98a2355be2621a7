"""Command lines of all programs: what is refused takes one line, and names what was meant."""

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

import keras_transformer
from keras_transformer.cli import (
    average,
    command_line,
    main,
    prepare,
    score,
    train,
    translate,
    translate_ctranslate2,
)
from keras_transformer.cli.command_line import Parser
from keras_transformer.cli.foreign_flags import TRAINING, TRANSLATING
from keras_transformer.cli.main import program_module
from keras_transformer.config.presets import PRESETS
from keras_transformer.config.programs import SCRIPTS, ExitCode, command
from keras_transformer.config.settings import Config, override, to_json

ROOT = pathlib.Path(__file__).resolve().parents[1]


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
        (["r", ""], "an argument is empty. Remove it, or check the variable that it comes from."),
        (["r", " ", ""], "an argument is empty. Remove it, or check the variable that it comes from."),
        (["r", "", "more"], "unknown argument more."),
        (["r", "--beam-size", "two"], "argument --beam-size: invalid int value: 'two'."),
        ([], "the following arguments are required: RUN."),
        (["--bean-size", "3"], "unknown argument --bean-size. Did you mean --beam-size?"),
        (["--bean-size=3"], "unknown argument --bean-size. Did you mean --beam-size?"),
        (["--xyz"], "unknown argument --xyz."),
        (["--beam-size", "-3"], "the following arguments are required: RUN."),
    ],
)
def test_a_refusal_is_one_line_with_the_nearest_name(parser, capsys, arguments, message):
    assert refused(capsys, parser.parse_args, *arguments) == f"it.py: {message} See it.py --help\n"


def test_a_unit_of_alignments_needs_them(capsys):
    error = refused(capsys, score.parse_args, "run", "--alignment-unit", "words")
    assert "--alignment-unit needs --alignment" in error


def test_a_misspelt_flag_is_reported_before_the_one_of_a_group_that_is_missing(capsys):
    error = refused(capsys, average.parse_args, "run", "--lst", "5")
    assert "unknown argument --lst. Did you mean --last?" in error
    assert "one of the arguments --last --best is required" in refused(capsys, average.parse_args, "run")


def test_the_help_of_prepare_says_when_the_languages_must_be_given(capsys):
    with pytest.raises(SystemExit):
        prepare.parse_args(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    required = "(default: as in cldr/SOURCE-TARGET or a prepared folder; required for other datasets)"
    parsing = "; trees for constituency parsing"
    for side, also in (("source", ""), ("target", parsing)):
        assert f"{side} language code, also the extension of the {side} files{also} {required}" in text


def test_a_wrong_choice_is_answered_with_the_nearest(parser, capsys):
    error = refused(capsys, parser.parse_args, "r", "--format", "txt")
    assert "invalid choice: 'txt'" in error
    assert "Did you mean text?" in error


def test_a_value_for_a_flag_without_one_is_shown(parser, capsys):
    parser.add_argument("--scores", action="store_true")
    error = refused(capsys, parser.parse_args, "r", "--scores=3")
    assert "--scores is a flag without a value. Received: 3." in error


def test_help_has_what_the_docstring_has(parser):
    text = parser.format_help()
    assert "Does it." in text
    assert "examples:\n  python it.py RUN" in text
    assert "At length." not in text


@pytest.mark.parametrize("program", SCRIPTS)
@pytest.mark.parametrize("called", ["keras-transformer", "pipelines/x.py"])
def test_every_program_refuses_in_one_line_and_shows_examples(called, program, capsys, monkeypatch):
    """Messages name the command by which the program was called."""
    monkeypatch.setattr(sys, "argv", [called])
    door = called.endswith(".py")
    name = SCRIPTS[program] if door else f"keras-transformer {program}"
    parse = program_module(program).parse_args
    error = refused(capsys, parse, "--no-such-flag")
    assert error.startswith(f"{name}: ")
    assert error.endswith(f" See {name} --help\n")
    with pytest.raises(SystemExit) as ended:
        parse(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: {name} ")
    assert f"python pipelines/{SCRIPTS[program]}" if door else name in text.partition("examples:")[2]
    assert ("keras-transformer" in text) != door


def test_a_command_is_one_to_paste_where_the_program_was_called(tmp_path, monkeypatch):
    (tmp_path / "a b/pipelines").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a b/pipelines")
    for called, expected in (
        ("train_wmt.py", "python translate.py"),
        ("./train_wmt.py", "python translate.py"),
        ("../pipelines/train_wmt.py", "python ../pipelines/translate.py"),
        ("/a b/pipelines/train_wmt.py", "python '/a b/pipelines/translate.py'"),
        ("/usr/bin/keras-transformer", "keras-transformer translate"),
        ("/usr/bin/pytest", "keras-transformer translate"),
        ("", "keras-transformer translate"),
        ("-c", "keras-transformer translate"),
    ):
        monkeypatch.setattr(sys, "argv", [called])
        assert command("translate") == expected


def test_the_console_script_lists_its_programs(capsys):
    with pytest.raises(SystemExit) as ended:
        main.parse_args(["--help"])
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for program in SCRIPTS:
        assert f" {program} {command_line.program_text(program).splitlines()[0]}" in text
    with pytest.raises(SystemExit):
        main.parse_args(["--version"])
    assert capsys.readouterr().out == f"keras-transformer {keras_transformer.__version__}\n"
    assert "Did you mean train? See keras-transformer --help" in refused(capsys, main.parse_args, "trian")
    assert "required: PROGRAM" in refused(capsys, main.parse_args)


def test_the_console_script_passes_on_all_arguments_and_the_exit_code(monkeypatch):
    given = []
    monkeypatch.setattr(score, "main", lambda argv: given.append(argv) or 5)
    monkeypatch.setattr(main, "run", lambda program: given.append(program()))
    main.main(["score", "run", "--help", "--version"])
    assert given == [["run", "--help", "--version"], 5]


def test_the_package_is_the_console_script_too():
    command = [sys.executable, "-m", "keras_transformer", "--version"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert output == f"keras-transformer {keras_transformer.__version__}\n"


def test_the_documented_exit_codes_are_those_of_the_programs():
    rows = re.findall(r"(?m)^\s*\| (\d+) \| `(\w+)` \| (.*) \|$", ExitCode.__doc__)
    assert [(name, int(code)) for code, name, _ in rows] == [(code.name, code.value) for code in ExitCode]
    page = (ROOT / "docs/programs.md").read_text(encoding="utf-8").replace(r"\|", "|")
    assert [(code, meaning) for code, _, meaning in rows] == re.findall(r"(?m)^\| (\d+) \| (.*) \|$", page)


WORDS = [
    (parse, word, row)
    for parse, rows in ((train.parse_args, TRAINING), (translate.parse_args, TRANSLATING))
    for row in rows
    for word in row.words.split()
]


@pytest.mark.parametrize("row", TRAINING)
def test_what_a_word_of_training_is_called_here_is_taken(row, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text("training: {max_steps: 7}\n")
    args = train.parse_args(["--dataset", "corpora/mine", *shlex.split(row.example)])
    override(PRESETS.get(args.preset or "demo", PRESETS["small"]), args.set)  # or `auto`
    assert train.resolve(args) != train.resolve(train.parse_args([])) or "--run-dir" in row.example


@pytest.mark.parametrize("row", TRANSLATING)
def test_what_a_word_of_translating_is_called_here_is_taken(row):
    given = shlex.split(row.example)
    args = translate.parse_args(given if given == ["runs/mine"] else ["runs/mine", *given])
    assert args.runs == ["runs/mine"]


@pytest.mark.slow
def test_every_word_of_another_system_is_answered_with_ours(capsys):
    for parse, word, row in WORDS:
        for flag in (f"--{word}", f"--{word.replace('-', '_')}", f"-{word}"):
            error = refused(capsys, parse, "runs/mine", flag, "7")
            if parse is translate.parse_args:
                answer = f"{row.said}: {row.example}" if row.said else f"Use {row.example}"
                answer = f"{answer[0].upper()}{answer[1:]}"
                assert f"unknown argument {flag}. {answer}. See keras-transformer translate --help" in error
    for word in (
        "--epochs",
        "--batch-size",
        "--lr",
        "--learning-rate",
        "--config-file",
        "--model",
        "--output-dir",
    ):
        error = refused(capsys, train.parse_args, f"{word}=7")
        assert re.search(f"unknown argument {word}[.] [A-Z].* --[a-z]+.* See ", error)


@pytest.mark.parametrize("flag", ["--input", "--output", "-s", "--src", "--source-file", "-o"])
def test_a_program_of_streams_says_so_for_a_flag_of_a_file(flag, capsys):
    error = refused(capsys, translate_ctranslate2.parse_args, "exported", flag, "test.en")
    said = "Text is read from standard input, and translations go to standard output: < test.en > test.de."
    assert f"unknown argument {flag}. {said} See keras-transformer translate-ctranslate2 --help" in error


def test_a_word_has_one_meaning():
    for rows in (TRAINING, TRANSLATING):
        words = [word for row in rows for word in row.words.split()]
        assert sorted({word for word in words if words.count(word) > 1}) == []


# Program -> command lines that it refuses, and a word of each refusal. They run in a folder with
# `run/`, a run with one state; `used/`, a folder with something else; and `empty/`.
REFUSED = {
    "train": [
        ("--preset bse", "Did you mean 'base'"),
        ("--set model.dropout=0.3", "'residual_dropout' or 'embedding_dropout' or 'attention_dropout'?"),
        ("--set data.service=host:5050", "data.service: this setting was removed. Apply tf.data"),
        ("--data-service host:5050", "Apply tf.data.experimental.service to the dataset yourself"),
        ("--set max_steps=10", "training.max_steps"),
        ("--set model.d_modle=8", "d_model"),
        ("--set model.num_heads=7", "num_heads"),
        ("--preset base", "needs a corpus"),
        ("--epochs 3", "training.max_steps="),
        ("corpus", "--dataset corpus --source LANGUAGE"),
        ("--dataset no/such --source en --target de", "no/such: no such folder"),
        ("--dataset Helsinki-NLP/opus-100 --source en --target de", "Hugging Face Hub"),
        ("--dataset wmt14:de-en --source en --target de", "wmt14:de-en: no such folder"),
        ("--dataset empty --source en --target de", "no training split. Add train.en and train.de"),
        ("--dataset cldr/en-de --source en --target fr", "cldr/en-de: the languages are en and de"),
        ("--run-dir used", "used: exists and is not a run folder"),
        ("--run-dir new --resume-from 3", "--resume-from 3"),
        ("--preset demo --run-dir run --resume-from 3", "no checkpoint of step 3. Available: step-5."),
        ("--allow-config-change nothing", "no setting 'nothing'"),
        ("--init-from no/such", "no/such: not a run folder"),
        ("--init-from run --set training.init_checkpoint=best", "no 'best' weights"),
        ("--new-vocabulary", "--init-from"),
        ("--init-from run --set data.normalization=nfkc", "the vocabulary of run has normalization='nfc'"),
        ("--init-from run --set data.vocab_size=977", "vocab_size=37000. Remove the setting or add --new-"),
        ("--init-from ''", "--init-from is empty. Remove it, or check the variable"),
        ("--config ''", "--config is empty"),
        ("--run-dir ''", "--run-dir is empty"),
    ],
    "prepare": [
        ("no/such out --source en --target de", "no/such: no such folder"),
        ("empty out", "the languages are missing"),
        ("empty out --source en --target de --set data.subword_dropout=0.1", "a setting of training, not"),
        ("Helsinki-NLP/opus-100 out --source en --target de", "Hugging Face Hub"),
    ],
    "back-translate": [
        ("run", "required: --input, --output"),
        ("no/such --input used/file --output out", "no/such: not a run folder"),
        ("run --input used/file --output out", "no 'final' weights"),
        ("run used --input used/file --output out", "used: not a run folder"),
        ("run --checkpoint step-5 --input no/such --output out", "no/such: no such file"),
        ("run --checkpoint step-5 --input used/file --output out --source en", "from en to de"),
        ("run --checkpoint step-5 --input used/file --output out --set model.d_ff=9", "not a filter"),
        ("run --checkpoint step-5 --input used/file --output out --set cleaning.drop_dup=1", "Did you mean"),
        ("run --input used/file --output out --tag BT", "--tag must be"),
        ("run --input used/file --output out --method sampeling", "Did you mean sampling?"),
        ("run --input used/file --output out --drop-words 0.1", "needs --method noised-beam"),
        ("run --input used/file --output out --seed 3", "needs --method sampling or noised-beam"),
        ("run --input used/file --output out --top-k 3", "needs --method sampling"),
        ("run --input used/file --output out --sampling", "use --method sampling"),
        ("run --input used/file --output out --method sampling --beam-size 3", "has no beam. Remove one"),
        ("run --input used/file --output out --n-best 2", "each line has one translation"),
        ("run --checkpoint step-5 --input used/file --output o --method noised-beam --filler ''", "--filler"),
    ],
    "distil": [
        ("no/such --output out", "no/such: not a run folder"),
        ("run --output out", "no 'final' weights"),
        ("run --checkpoint step-5 --output out --dataset no/such", "no/such: no such folder"),
        ("run --checkpoint step-5 --output out --dataset empty", "no training split"),
        ("run --checkpoint step-5 --output out --set data.vocab_size=9", "not a filter"),
        ("run --output out --n-best 3", "--n-best needs --interpolate"),
        ("run --checkpoint step-5 --output out --interpolate --beam-size 1", "of at least 2"),
        ("run --outptu out", "Did you mean --output"),
    ],
    "translate": [
        ("no/such", "no/such: not a run folder"),
        ("run", "no 'final' weights"),
        ("run 'A man sleeps.'", "echo 'A man sleeps.' | keras-transformer translate run"),
        ("run --checkpoint step-5 --input no/such", "no/such: no such file"),
        ("run --checkpoint step-5 --output no/such", "its folder does not exist"),
        ("run --beam-size 0", "argument --beam-size: must be from 1 to 1000. Received: 0. See"),
        ("run --alpha nan", "argument --alpha: must be finite. Received: nan. See"),
        ("run --utility chr", "must be one of chrf, bleu. Received: 'chr'. Did you mean 'chrf'? See"),
        ("run --checkpoint step-5 --top-k 3", "--sampling"),
        ("run --checkpoint step-5 --threads 0 --input used/file", "threads"),
        ("--model run", "The run folder comes first"),
        ("run -b 8", "unknown argument -b"),
    ],
    "parse": [
        ("no/such", "no/such: not a run folder"),
        ("run", "no 'final' weights"),
        ("run --checkpoint step-5", "this run translates. Use keras-transformer translate run"),
        ("run 'A man sleeps.'", "echo 'A man sleeps.' | keras-transformer parse run"),
        ("run --n-best 2", "each sentence has one tree"),
        ("run --chunk-lines 0", "--chunk-lines must be from 1"),
    ],
    "translate-ctranslate2": [
        ("no/such", "no/such"),
        ("run", "keras-transformer export run OUT"),
        ("run --beam 3", "--beam-size 4"),
    ],
    "score": [
        ("no/such", "no/such: not a run folder"),
        ("run", "no 'final' weights"),
        ("run --checkpoint step-5 --source no/such --target used/file", "no/such: no such file"),
    ],
    "evaluate": [
        ("", "give either RUN or --hypothesis FILE"),
        ("no/such", "no/such: not a run folder"),
        ("run", "no 'final' weights"),
        ("run --checkpoint step-5 --dataset no/such", "no/such: no such folder"),
        ("run --checkpoint step-5 --dataset empty", "empty"),
        ("run --checkpoint step-5 --test-set wmt1", "no test set 'wmt1'"),
        ("--hypothesis no/such --reference used/file", "no/such: no such file"),
    ],
    "export": [
        ("no/such out", "no/such: not a run folder"),
        ("run out", "no 'final' weights"),
        ("run used --checkpoint step-5", "not a version of a served model"),
        ("run used --checkpoint step-5 --format keras", "not an empty folder"),
        ("run used --checkpoint step-5 --format ctranslate2", "not an empty folder"),
        ("run out --checkpoint step-5 --version 0", "whole number"),
        ("run out --checkpoint step-5 --name 'a b'", "letters"),
        ("run out --checkpoint step-5 --max-sentences 0", "max_sentences"),
    ],
    "average": [
        ("no/such --last 3", "no/such: not a run folder"),
        ("run --best 2", "no checkpoint to average"),
        ("run --last 0", "--last must be at least 1"),
        ("run --best -1", "--best must be at least 1"),
        ("run --best 3 --off-schedule", "--off-schedule needs --last N"),
    ],
    "inspect": [("no/such", "no/such"), ("run", "run")],
    "serve": [
        ("no/such", "no/such: no such folder"),
        ("used", "used: no model"),
        ("run", "no 'final' weights"),
        ("run run --checkpoint step-5", "two models are called 'run'"),
        ("run --port 99999", "argument --port: must be from 0 to 65535. Received: 99999. See"),
        ("run --checkpoint step-5 --max-queue-tokens 5", "at most `max_queue_tokens`"),
        ("run --checkpoint step-5 --batch-tokns 5", "Did you mean --batch-tokens"),
    ],
}  # fmt: skip
RUNNER = """
import contextlib, io, json, os, shlex, sys
from keras_transformer.cli.main import program_module
program = program_module(sys.argv[1])
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
    assert REFUSED.keys() == SCRIPTS.keys()


@pytest.mark.slow_after(1)
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
        [sys.executable, "-c", RUNNER, name],
        input=json.dumps(lines),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    found = [json.loads(line) for line in ended.stdout.splitlines()]
    for (line, word), (code, error, with_tensorflow) in zip(REFUSED[name], found, strict=True):
        assert (code, error.count("\n"), with_tensorflow) == (2, 1, False), (line, error)
        assert error.startswith(f"keras-transformer {name}: "), line
        assert word in error, (line, error)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["empty", "run", "used"]


@pytest.mark.parametrize("program", SCRIPTS)
def test_help_is_the_same_without_docstrings(program):
    outputs = [
        subprocess.run(
            [sys.executable, *flags, ROOT / "pipelines" / SCRIPTS[program], "--help"],
            capture_output=True,
            check=True,
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
        subprocess.run([sys.executable, *flags, "-c", text], cwd=ROOT, capture_output=True, check=True).stdout
        for flags in ((), ("-OO",))
    ]
    assert b"training.warmup_steps=" in outputs[0]
    assert outputs[0] == outputs[1]
