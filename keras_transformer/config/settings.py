"""`Config`, all settings of a run: overriding, reading and writing JSON, comparing, listing.

Uses the standard library only, so that programs can check settings before they import TensorFlow.
"""

import dataclasses
import json
import logging
import textwrap
import typing

from keras_transformer.config.fields import (
    alternatives,
    check,
    current_names,
    meaning_of,
    nearest,
    require,
    section_name,
    unknown,
    with_earlier_defaults,
)
from keras_transformer.config.sections import (
    CleaningConfig,
    DataConfig,
    ModelConfig,
    SearchConfig,
)
from keras_transformer.config.training import DeviceConfig, TrainingConfig

logger = logging.getLogger(__name__)

# Not set by users: they follow from the tokenizers.
FROM_TOKENIZERS = ("model.source_vocab_size", "model.target_vocab_size")
# Settings of earlier versions that no longer exist, and their replacements.
GONE = {"data.service": "Apply tf.data.experimental.service to the dataset yourself: see docs/data.md"}
_PRINTED = set()  # lines that this process has printed


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SpecialIds:
    """Ids of the four special tokens; the same in every vocabulary."""

    pad: int = 0
    bos: int = 1
    eos: int = 2
    unk: int = 3


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """All settings of one run, as stored in `config.json` of its run folder."""

    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    training: TrainingConfig = dataclasses.field(default_factory=TrainingConfig)
    search: SearchConfig = dataclasses.field(default_factory=SearchConfig)
    cleaning: CleaningConfig = dataclasses.field(default_factory=CleaningConfig)
    devices: DeviceConfig = dataclasses.field(default_factory=DeviceConfig)

    def __post_init__(self):
        check(self)
        length, tokens = self.data.max_length, self.devices.micro_batch_tokens
        demand = "`devices.micro_batch_tokens` must be 0 or at least `data.max_length`"
        require(tokens == 0 or tokens >= length, demand, micro_batch_tokens=tokens, max_length=length)
        demand = "`devices.xla` needs `data.padding='fixed'`, because XLA compiles for every batch shape"
        padding = self.data.padding
        require(not self.devices.xla or padding == "fixed", demand, padding=padding)
        demand, least = "`cleaning.min_length` must be at most `data.max_length`", self.cleaning.min_length
        require(least <= length, demand, min_length=least, max_length=length)
        other, metric = ("bleu", "f1") if self.data.parses else ("f1", "bleu")
        demand = f"`training.best_metric` must be 'loss' or '{metric}' with data.target={self.data.target!r}"
        best = self.training.best_metric
        require(best != other, demand, best_metric=best)
        grammar = self.search.tree_grammar
        demand = "`search.tree_grammar` is for parsing: data.target='trees'"
        require(self.data.parses or not grammar, demand, target=self.data.target, tree_grammar=grammar)
        if self.model.positions == "learned":
            demand = "`data.max_length` must be at most `model.max_positions` with learned positions"
            most = self.model.max_positions
            require(length <= most, demand, max_length=length, max_positions=most)


def replace(config, /, **changes):
    """Returns a copy of `config` with some fields changed; a dict changes some fields of a section.

    Names of earlier versions are accepted, with a line on standard error that has the current name.

    Raises:
        ValueError: for an unknown field (the message has similar names) or an invalid value.
    """
    known = [field.name for field in dataclasses.fields(config)]
    changes, renamed = current_names(type(config), changes)
    for old, name in renamed.items():
        section = section_name(config)
        _say_once(f"{section}.{old} is now called {section}.{name}")
    new = {}
    for name, value in changes.items():
        if name not in known:
            section = section_name(config)
            what = f"{section} has no setting" if section else "There is no section"
            raise ValueError(unknown(what, name, known))
        part = getattr(config, name)
        is_part = isinstance(value, dict) and dataclasses.is_dataclass(part)
        new[name] = replace(part, **value) if is_part else value
    return dataclasses.replace(config, **new)


def override(config, assignments):
    """Returns a copy of `config` with settings overridden by text.

    `search.max_source_length` follows `data.max_length` if the two are equal in `config` and only the
    latter is overridden, because later positions are untrained.

    Args:
        config: a `Config`.
        assignments: iterable of `"section.field=value"`, as given to `--set`.

    Raises:
        ValueError: for a malformed assignment, an unknown section or field (the message has similar
            names), or a value of the wrong type or range.
    """
    changes = {}
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        section, dot, name = path.strip().partition(".")
        if path.strip() in GONE:
            raise ValueError(f"{path.strip()}: this setting was removed. {GONE[path.strip()]}")
        if not equals or not dot:
            raise ValueError(_expected(config, assignment))
        sections = [field.name for field in dataclasses.fields(config)]
        if section not in sections:
            raise ValueError(unknown("There is no section", section, sections))
        section_class = type(getattr(config, section))
        hints = typing.get_type_hints(section_class)
        given, renamed = current_names(section_class, {name: text.strip()})
        ((name, value),) = given.items()
        for old in renamed:
            if isinstance(value, str):
                _say_once(f"{section}.{old} is now called {section}.{name}")
            else:
                _say_once(f"{section}.{old}={text.strip()} is now {section}.{name}={str(value).lower()}")
        # `replace` raises the error for an unknown name.
        if name in hints and isinstance(value, str):
            value = _parse(f"{section}.{name}", value, hints[name])
        changes.setdefault(section, {})[name] = value
    # All settings are replaced at once, as those that depend on each other are checked together.
    changed = replace(config, **changes)
    is_given = "max_source_length" in changes.get("search", {})
    if not is_given and config.search.max_source_length == config.data.max_length:
        changed = replace(changed, search={"max_source_length": changed.data.max_length})
    return changed


def path_now(path):
    """Returns the current `section.field` for the path of a setting in this or an earlier version."""
    section, _, name = path.partition(".")
    section_class = next((f.default_factory for f in dataclasses.fields(Config) if f.name == section), None)
    if section_class is None:
        return path
    ((name, _),) = current_names(section_class, {name: ""})[0].items()
    return f"{section}.{name}"


def to_json(config):
    """Returns `config` as indented JSON text."""
    return json.dumps(dataclasses.asdict(config), indent=2) + "\n"


def from_json(text):
    """Returns the `Config` for JSON text written by `to_json`.

    Raises:
        ValueError: for text that is not JSON, unknown fields, or invalid values.
    """
    try:
        values = json.loads(text)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    return from_dict(values)


def from_dict(values):
    """Returns the `Config` for a dict of sections, as made by `dataclasses.asdict`.

    Settings of earlier versions are renamed, or ignored if they no longer exist. A line on standard error
    names each of them that is not at its default.

    Raises:
        ValueError: for unknown fields or invalid values.
    """
    if not isinstance(values, dict):
        raise ValueError(f"Config must be a JSON object. Received: {values!r}")
    for path, advice in GONE.items():
        section, name = path.split(".")
        part = values.get(section)
        if isinstance(part, dict) and name in part:
            values = {**values, section: {key: value for key, value in part.items() if key != name}}
            if part[name]:
                _say_once(f"{path}={part[name]!r}: this setting was removed. {advice}")
    values, changed = dict(values), []
    for field in dataclasses.fields(Config):
        if isinstance(part := values.get(field.name), dict):
            section_class = field.default_factory
            values[field.name], renamed = current_names(section_class, part)
            defaults = section_class()
            for old, name in renamed.items():
                if values[field.name][name] != getattr(defaults, name):
                    changed.append(f"{field.name}.{old} is now called {field.name}.{name}")
            values[field.name] = with_earlier_defaults(section_class, values[field.name])
    if changed:
        _say_once(f"config.json is from an earlier version: {', '.join(changed)}")
    return replace(Config(), **values)


def _say_once(line):
    """Logs a line as a warning, only once per process."""
    if line not in _PRINTED:
        _PRINTED.add(line)
        logger.warning(line)


def differences(old, new):
    """Lists the settings in which two configurations differ.

    Returns:
        list of `(path, old value, new value)`, for example
        `("model.d_model", 512, 1024)`.
    """
    values = zip(_settings(old), _settings(new), strict=True)
    return [(path, before, after) for (path, _, before), (_, _, after) in values if before != after]


def may_be_none(path):
    """Whether a setting, such as "model.key_dim", accepts none."""
    section, _, name = path_now(path).partition(".")
    parts = {field.name: field.type for field in dataclasses.fields(Config)}
    fields = dataclasses.fields(parts[section]) if section in parts else ()
    return any(field.name == name and type(None) in alternatives(field.type) for field in fields)


def describe_settings(config, *, width=110):
    """Lists the settings of a run.

    Args:
        config: `Config`.
        width: characters of a line.

    Returns:
        str: for each section its name, and for each setting `section.field=value`, as `--set`
        takes it, with its meaning below.
    """
    lines, section = [], ""
    for path, field, value in _settings(config):
        if path in FROM_TOKENIZERS:
            continue
        if path.split(".")[0] != section:
            section = path.split(".")[0]
            lines += ["", f"{section}: {getattr(config, section).__doc__.splitlines()[0]}", ""]
        shown = str(value).lower() if isinstance(value, bool) or value is None else value
        lines.append(f"  {path}={shown}")
        meaning = textwrap.wrap(meaning_of(field).replace("`", ""), width - 6)
        lines += [f"      {line}" for line in meaning]
    return "\n".join(lines[1:])


def _settings(config):
    """Yields the path, the field and the value of every setting."""
    for section in dataclasses.fields(config):
        part = getattr(config, section.name)
        for field in dataclasses.fields(part):
            yield f"{section.name}.{field.name}", field, getattr(part, field.name)


def _expected(config, assignment):
    """Returns the error message for an assignment without a section or without a value."""
    fields = {path: field.name for path, field, _ in _settings(config)}
    given, equals, value = (part.strip() for part in assignment.partition("="))
    if not equals and path_now(given) in fields:
        return f"The value of {given} is missing: --set {path_now(given)}=VALUE"
    near = nearest(given.rpartition(".")[2], list(fields.values()))
    paths = [f"{path}={value or 'VALUE'}" for path, name in fields.items() if name in near]
    hint = f". Did you mean {' or '.join(paths)}?" if paths else ""
    return f"Expected section.field=value. Received: {assignment!r}{hint}"


def _parse(path, text, annotation):
    options = alternatives(annotation)
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
