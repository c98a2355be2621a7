"""Command lines of all programs: what is refused takes one line, and names what was meant."""

import functools
import importlib
import pathlib

import pytest
from command_line import Parser

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
