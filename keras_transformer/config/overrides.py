"""Every setting with its value and what it means, from the docstrings of `config`."""

import ast
import dataclasses
import inspect
import re
import textwrap

# Nobody sets these: they are those of the tokenizers.
_FOLLOW = ("model.source_vocab_size", "model.target_vocab_size")
_ATTRIBUTE = re.compile(r"    (\w+): (.*)")


def describe_settings(config, *, width=110):
    """Lists the settings of a run.

    Args:
        config: `Config`.
        width: characters of a line.

    Returns:
        str: for each section its name, and for each setting `section.field=value`, as `--set`
        takes it, with its meaning below.
    """
    lines = []
    for section in dataclasses.fields(config):
        values = getattr(config, section.name)
        lines += [f"{section.name}: {_docstring(type(values)).splitlines()[0]}", ""]
        meanings = _meanings(type(values))
        for field in dataclasses.fields(values):
            if f"{section.name}.{field.name}" in _FOLLOW:
                continue
            lines.append(f"  {section.name}.{field.name}={_as_given(getattr(values, field.name))}")
            meaning = textwrap.wrap(meanings[field.name], width - 6)
            lines += [f"      {line}" for line in meaning]
        lines.append("")
    return "\n".join(lines).rstrip("\n")


def _docstring(section):
    """The docstring of a class, from its source: `python -OO` has no other."""
    return ast.get_docstring(ast.parse(inspect.getsource(section)).body[0])


def _meanings(section):
    """{field: text} of the `Attributes` of a docstring."""
    meanings, name = {}, None
    _, _, attributes = _docstring(section).partition("Attributes:\n")
    for line in attributes.splitlines():
        if found := _ATTRIBUTE.fullmatch(line):
            name = found[1]
            meanings[name] = found[2]
        elif not line.startswith("     "):
            break
        else:
            meanings[name] += f" {line.strip()}"
    return {name: text.replace("`", "") for name, text in meanings.items()}


def _as_given(value):
    """A value as `--set` takes it."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "none"}[value]
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value)
