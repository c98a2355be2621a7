"""Settings in files: YAML or JSON with one mapping for each section, as in `config.json` of a run.

    preset: tiny
    data: {dataset: data/m30k, source: en, target: de}
    training:
      max_steps: 8000

Values are read as text and converted like those of `--set`. So `1e-3` is a number, and the language `no` is
not false, as some YAML readers have it.
"""

import contextlib
import json
from typing import Any, NamedTuple

from keras_transformer.config.settings import FROM_TOKENIZERS, from_dict, may_be_none, override

_CHECKSUM = "sha256"  # in the config.json of a run; a copy may be edited, so it is not compared
_NULL = ("~", "null", "Null", "NULL")


class Setting(NamedTuple):
    """One setting of a file.

    Attributes:
        text: str, `section.field=value`, as for `override`.
        line: int, number of its line, from 1.
    """

    text: str
    line: int


class SettingsFile(NamedTuple):
    """Contents of a file of settings.

    Attributes:
        preset: str, name of the preset that the settings change; `None` if the file names none.
        settings: list of `Setting`, in the order of the file; of a complete `config.json` none.
        config: `Config` if the file is the `config.json` of a run; else `None`.
    """

    preset: str | None
    settings: list
    config: Any


def read_settings(path):
    """Reads a file of settings.

    Args:
        path: path of a YAML or JSON file. The names of its sections and settings are checked by `override`.

    Returns:
        `SettingsFile`.

    Raises:
        ValueError: the file cannot be read or is no mapping of sections; the message has file, line and
            remedy.
    """
    import yaml

    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ValueError(f"{path}: cannot be read ({reason}). --config takes a YAML or JSON file") from error
    with contextlib.suppress(ValueError, RecursionError):
        json.loads(text)
        text = text.replace("\t", " ")  # YAML has no tabs before a name, JSON has
    try:
        root = yaml.compose(text, Loader=yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}: " if mark else ""
        parts = (getattr(error, name, None) for name in ("context", "problem"))
        problem = ", ".join(filter(None, parts)) or "not YAML"
        raise ValueError(f"{path}: {place}{problem}. Correct the YAML or JSON there") from error
    if root is None:
        raise ValueError(f"{path}: has no settings. Write them as `section:` and, indented, `name: value`")
    preset, settings, is_of_run = None, [], False
    for section, node in _items(root, path, "the file"):
        if section == "preset":
            preset = _scalar(node, path, section)
        if section in ("preset", _CHECKSUM):
            continue
        for name, value in _items(node, path, section):
            setting = f"{section}.{name}"
            if setting in FROM_TOKENIZERS:
                is_of_run = True
            settings.append(Setting(f"{setting}={_scalar(value, path, setting)}", value.start_mark.line + 1))
    if not is_of_run:
        return SettingsFile(preset, settings, None)
    try:
        values = {section: value for section, value in json.loads(text).items() if section != _CHECKSUM}
        return SettingsFile(preset, [], from_dict(values))
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path}: not the config.json of a run ({error}). To write settings of your own, remove "
            f"{' and '.join(FROM_TOKENIZERS)}: they follow from the vocabulary"
        ) from error


def apply_settings(config, file, path):
    """Returns a copy of `config` with the settings of a file, or the file's own if it is complete.

    Args:
        config: `Config`.
        file: `SettingsFile`.
        path: its path, for messages.

    Raises:
        ValueError: as `override`, with file and line.
    """
    if file.config is not None:
        return file.config
    try:
        return override(config, [setting.text for setting in file.settings])
    except ValueError as error:
        for setting in file.settings:
            try:
                override(config, [setting.text])
            except ValueError as single:
                if str(single) == str(error):
                    raise ValueError(f"{path}: line {setting.line}: {error}") from error
        raise ValueError(f"{path}: {error}") from error


def _items(node, path, where):
    """Yields name and value of each entry of a mapping."""
    import yaml

    line = node.start_mark.line + 1
    if not isinstance(node, yaml.MappingNode):
        section, dot, name = where.partition(".")
        if dot and isinstance(node, yaml.ScalarNode):
            advice = f"Write `{section}:` and below it, indented, `{name}: {node.value}`"
            raise ValueError(f"{path}: line {line}: {where} is no section. {advice}")
        raise ValueError(f"{path}: line {line}: {where} must be a mapping: `name: value`, one on each line")
    seen = set()
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise ValueError(f"{path}: line {line}: a name must be text")
        if key.value in seen:
            raise ValueError(f"{path}: line {line}: {key.value} is given twice. Remove one")
        seen.add(key.value)
        yield key.value, value


def _scalar(node, path, name):
    """Returns a value as text; of a list of datasets, its entries with commas."""
    import yaml

    if isinstance(node, yaml.SequenceNode) and name == "data.dataset":
        return ",".join(_scalar(entry, path, name) for entry in node.value)
    line = node.start_mark.line + 1
    if not isinstance(node, yaml.ScalarNode):
        raise ValueError(f"{path}: line {line}: {name} must be a single value")
    is_null = not node.style and node.value in _NULL
    if is_null and may_be_none(name):
        return "none"
    if is_null or (not node.style and not node.value):
        raise ValueError(f'{path}: line {line}: {name} has no value. Write one, or "" for none')
    # JSON writes a character beyond U+FFFF as two escapes, which YAML reads as two characters.
    return node.value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
