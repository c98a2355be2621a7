"""All settings of a run: changed from text, written as JSON, compared and listed.

Standard library only, so that a configuration can be read, checked and compared without TensorFlow.
"""

import dataclasses
import difflib
import json
import sys
import textwrap
import typing

from keras_transformer.config.fields import alternatives, check, meaning_of, unknown
from keras_transformer.config.model import ModelConfig
from keras_transformer.config.sections import (
    CleaningConfig,
    DataConfig,
    DeviceConfig,
    SearchConfig,
    TrainingConfig,
)

# Nobody sets these: they are those of the tokenizers.
_FOLLOW = ("model.source_vocab_size", "model.target_vocab_size")
# Settings of earlier versions, and what to do instead.
_GONE = {
    "data.service": "Batches are a tf.data graph, which tf.data service takes as it is: see docs/data.md"
}
_TOLD = set()  # said once a process


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SpecialIds:
    """Ids of the four tokens that stand for no text; the same in every vocabulary."""

    pad: int = 0
    bos: int = 1
    eos: int = 2
    unk: int = 3


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """All settings of one run: what `config.json` of a run folder holds."""

    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    training: TrainingConfig = dataclasses.field(default_factory=TrainingConfig)
    search: SearchConfig = dataclasses.field(default_factory=SearchConfig)
    cleaning: CleaningConfig = dataclasses.field(default_factory=CleaningConfig)
    devices: DeviceConfig = dataclasses.field(default_factory=DeviceConfig)

    def __post_init__(self):
        check(self)
        if 0 < self.devices.batch_tokens < self.data.max_length:
            raise ValueError(
                "`devices.batch_tokens` must hold a sentence of `data.max_length` tokens. Received: "
                f"batch_tokens={self.devices.batch_tokens}, max_length={self.data.max_length}"
            )
        if self.devices.xla and self.data.padding != "fixed":
            raise ValueError(
                "`devices.xla` compiles once for each shape and needs `data.padding='fixed'`. "
                f"Received: padding={self.data.padding!r}"
            )
        if self.cleaning.min_length > self.data.max_length:
            raise ValueError(
                "`cleaning.min_length` must be at most `data.max_length`. Received: "
                f"min_length={self.cleaning.min_length}, max_length={self.data.max_length}"
            )
        if self.model.positions == "learned" and self.data.max_length > self.model.max_positions:
            raise ValueError(
                "`data.max_length` must be at most `model.max_positions` with learned positions. "
                f"Received: max_length={self.data.max_length}, "
                f"max_positions={self.model.max_positions}"
            )


def replace(config, **changes):
    """Returns a copy of `config` with some fields changed.

    Raises:
        ValueError: for an unknown field (with the nearest name) or a refused value.
    """
    known = [field.name for field in dataclasses.fields(config)]
    for name in changes:
        if name not in known:
            raise ValueError(unknown(f"{type(config).__name__} has no field", name, known))
    return dataclasses.replace(config, **changes)


def override(config, assignments):
    """Returns a copy of `config` with settings given as text.

    Args:
        config: a `Config`.
        assignments: iterable of `"section.field=value"`, as after `--set`.

    Raises:
        ValueError: for a malformed assignment, an unknown section or field (with the
            nearest name), or a value of the wrong type or range.
    """
    changes = {}
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        section, dot, name = path.strip().partition(".")
        if not equals or not dot:
            raise ValueError(_expected(config, assignment))
        sections = [field.name for field in dataclasses.fields(config)]
        if section not in sections:
            raise ValueError(unknown("No section", section, sections))
        part = getattr(config, section)
        known = [field.name for field in dataclasses.fields(part)]
        if name not in known:
            raise ValueError(unknown(f"{type(part).__name__} has no field", name, known))
        wanted = typing.get_type_hints(type(part))[name]
        changes.setdefault(section, {})[name] = _parse(f"{section}.{name}", text.strip(), wanted)
    # One replacement a section: settings that must agree are checked together.
    return replace(
        config,
        **{section: replace(getattr(config, section), **new) for section, new in changes.items()},
    )


def to_json(config):
    """Returns `config` as indented JSON text."""
    return json.dumps(dataclasses.asdict(config), indent=2) + "\n"


def from_json(text):
    """Returns the `Config` that `to_json` wrote.

    Raises:
        ValueError: for text that is not JSON, unknown fields, or refused values.
    """
    try:
        values = json.loads(text)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None
    return from_dict(values)


def from_dict(values):
    """Returns the `Config` of a dict of sections, as `dataclasses.asdict` makes it.

    Settings of earlier versions that are gone are left out, with a line that says so.

    Raises:
        ValueError: for unknown fields, or refused values.
    """
    for path, advice in _GONE.items():
        section, name = path.split(".")
        part = values.get(section) if isinstance(values, dict) else None
        if isinstance(part, dict) and name in part:
            values = {**values, section: {key: value for key, value in part.items() if key != name}}
            if part[name] and path not in _TOLD:
                _TOLD.add(path)
                print(f"{path}={part[name]!r}: the setting is gone. {advice}", file=sys.stderr)
    return _from_dict(Config, values)


def differences(old, new):
    """Lists the settings in which two configurations differ.

    Returns:
        list of `(path, old value, new value)`, for example
        `("model.d_model", 512, 1024)`.
    """
    found = []
    for section in dataclasses.fields(old):
        a, b = getattr(old, section.name), getattr(new, section.name)
        for field in dataclasses.fields(a):
            before, after = getattr(a, field.name), getattr(b, field.name)
            if before != after:
                found.append((f"{section.name}.{field.name}", before, after))
    return found


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
    for part in dataclasses.fields(config):
        values = getattr(config, part.name)
        lines += [f"{part.name}: {values.__doc__.splitlines()[0]}", ""]
        for field in dataclasses.fields(values):
            if f"{part.name}.{field.name}" in _FOLLOW:
                continue
            lines.append(f"  {part.name}.{field.name}={_as_given(getattr(values, field.name))}")
            meaning = textwrap.wrap(meaning_of(field).replace("`", ""), width - 6)
            lines += [f"      {line}" for line in meaning]
        lines.append("")
    return "\n".join(lines).rstrip("\n")


def _from_dict(cls, values):
    if not isinstance(values, dict):
        raise ValueError(f"{cls.__name__} must be a JSON object. Received: {values!r}")
    hints = typing.get_type_hints(cls)
    for name in values:
        if name not in hints:
            raise ValueError(unknown(f"{cls.__name__} has no field", name, list(hints)))
    return cls(
        **{
            name: _from_dict(hints[name], value) if dataclasses.is_dataclass(hints[name]) else value
            for name, value in values.items()
        }
    )


def _expected(config, assignment):
    """What to say of an assignment without a section, or without a value."""
    name = assignment.partition("=")[0].strip()
    paths = {
        field.name: f"{section.name}.{field.name}"
        for section in dataclasses.fields(config)
        for field in dataclasses.fields(getattr(config, section.name))
    }
    near = difflib.get_close_matches(name, paths, n=1)
    hint = f". Did you mean {paths[near[0]]}?" if near else ""
    return f"Expected section.field=value. Received: {assignment!r}{hint}"


def _parse(path, text, wanted):
    options = alternatives(wanted)
    if type(None) in options and text.lower() == "none":
        return None
    kind = next(option for option in options if option is not type(None))
    if kind is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise ValueError(f"`{path}` must be true or false. Received: {text!r}")
    try:
        return kind(text.replace("_", "")) if kind is int else kind(text)
    except ValueError:
        name = {int: "a whole number", float: "a number"}[kind]
        raise ValueError(f"`{path}` must be {name}. Received: {text!r}") from None


def _as_given(value):
    """A value as `--set` takes it."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "none"}[value]
    return str(value)
