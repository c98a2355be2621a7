"""The options of the benchmarks: every one that a program reads is one that it has."""

import argparse
import ast
import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

BENCHMARKS = pathlib.Path(__file__).resolve().parents[2] / "benchmarks"
PROGRAMS = sorted(path for path in BENCHMARKS.glob("*.py") if "def parse_args" in path.read_text())


def names_read(tree):
    """Names of `args.NAME` that are read, without those that the program itself sets."""
    used = {"read": set(), "set": set()}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "args":
            used["set" if isinstance(node.ctx, ast.Store) else "read"].add(node.attr)
    return used["read"] - used["set"]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_benchmark_has_every_option_that_it_reads(path, monkeypatch):
    specification = importlib.util.spec_from_file_location(f"options_of_{path.stem}", path)
    program = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(program)
    parsers = []

    class ParserComplete(Exception):  # noqa: N818, it is no error
        """Ends `parse_args` once the parser is complete."""

    def keep(parser, *arguments, **named):
        parsers.append(parser)
        raise ParserComplete

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", keep)
    with pytest.raises(ParserComplete):
        program.parse_args()
    known = {action.dest for action in parsers[0]._actions}
    read = names_read(ast.parse(path.read_text()))
    assert read, path
    assert read <= known | {"error"}


def test_there_are_benchmarks():
    assert len(PROGRAMS) > 8


@pytest.mark.parametrize(
    "arguments",
    [
        ["decoding.py", "--rounds", "0"],
        ["decoding.py", "--batches", "32", "0"],
        ["reading.py", "prepared", "--rounds", "0"],
        ["preparation.py", "a.en", "a.de", "--source", "en", "--target", "de", "--repeats", "0"],
    ],
    ids=" ".join,
)
def test_measuring_nothing_is_refused(arguments):
    name, *rest = arguments
    result = subprocess.run([sys.executable, BENCHMARKS / name, *rest], capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.startswith(f"{name}: --")
    assert result.stderr.endswith("must be at least 1\n")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["reading.py", "EMPTY"], r"reading_worker\.py ended with exit code 1: .*EMPTY"),
        (
            ["preparation.py", "EMPTY/a.en", "EMPTY/a.de", "--source", "en", "--target", "de"],
            r"prepare_wmt\.py ended with exit code 2: .*: no line has text on both sides",
        ),
    ],
)
@pytest.mark.slow
def test_a_child_process_that_fails_is_named_with_its_reason(arguments, why, tmp_path):
    for end in ("en", "de"):
        (tmp_path / f"a.{end}").write_bytes(b"\n")
    name, *rest = [part.replace("EMPTY", str(tmp_path)) for part in arguments]
    result = subprocess.run([sys.executable, BENCHMARKS / name, *rest], capture_output=True, text=True)
    assert result.returncode == 2
    assert re.match(f"{name}: " + why.replace("EMPTY", re.escape(str(tmp_path))), result.stderr)
    assert result.stderr.count("\n") == 1
