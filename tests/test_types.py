"""Annotations of the public names, and the stubs through which a type checker finds them."""

import inspect
import os
import pathlib
import re
import subprocess
import sys

import pytest
import stubs

import keras_transformer

ROOT = pathlib.Path(__file__).resolve().parents[1]
PUBLIC = [getattr(keras_transformer, name) for name in keras_transformer.__all__]
# Called by Keras; their arguments are those of Keras.
BY_KERAS = {
    "compile", "compile_from_config", "compute_loss", "get_compile_config", "make_test_function",
    "make_train_function", "metrics", "reset_metrics", "test_step", "train_step", "compute_metrics",
}  # fmt: skip


def functions():
    """(name, function) of each public function, constructor, method and property, those of bases included."""
    for found in PUBLIC:
        if inspect.isfunction(found):
            yield found.__name__, found
        for base in inspect.getmro(found) if inspect.isclass(found) else ():
            if base.__module__.startswith("keras_transformer."):
                for name, member in vars(base).items():
                    member = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
                    member = getattr(member, "func", member)
                    public = not name.startswith("_") or name in ("__init__", "__call__")
                    if not (public and inspect.isfunction(member)) or name in BY_KERAS:
                        continue
                    if inspect.unwrap(member).__module__.startswith(
                        "keras_transformer."
                    ):  # else it is Keras' own
                        yield f"{base.__name__}.{name}", inspect.unwrap(member)


def test_every_public_function_and_method_is_annotated():
    found = dict(functions())
    assert {"TextTranslator.translate", "MultiHeadAttention.call", "beam_search"} <= set(found)
    missing = []
    for name, function in found.items():
        signature = inspect.signature(function)
        parts = {part.name: part.annotation for part in signature.parameters.values()}
        parts["return"] = signature.return_annotation
        empty = inspect.Parameter.empty
        missing += [
            f"{name}: {part}" for part, kind in parts.items() if kind is empty and part not in ("self", "cls")
        ]
    assert missing == []


@pytest.mark.parametrize("folder", stubs.folders(), ids=lambda folder: folder.name)
def test_the_stub_of_a_folder_has_its_names(folder):
    written = (folder / "__init__.pyi").read_text(encoding="utf-8")
    assert written == stubs.stub(folder), "run: python tests/shared/stubs.py"


@pytest.mark.very_slow
def test_a_type_checker_finds_the_mistakes_of_a_program_and_no_others():
    program = ROOT / "tests/shared/typed_program.py"
    command = [sys.executable, "-m", "mypy", "--config-file=", "--ignore-missing-imports", str(program)]
    checked = subprocess.run(
        command, env={**os.environ, "MYPYPATH": str(ROOT)}, capture_output=True, text=True, timeout=300
    )
    found = {}
    for line, code in re.findall(r"typed_program\.py:(\d+): error: .*\[([a-z-]+)\]", checked.stdout):
        found.setdefault(int(line), set()).add(code)
    expected = {
        number: set(re.findall(r"[a-z-]+", line.partition("# error: ")[2]))
        for number, line in enumerate(program.read_text().splitlines(), 1)
        if "# error: " in line
    }
    assert found == expected, checked.stdout
