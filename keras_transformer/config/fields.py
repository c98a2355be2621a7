"""Definition of settings: one line with default, meaning and range, from which everything else is generated.

`setting` and `choice` define a field; `section` makes a frozen dataclass of such fields. Type and range
checks, the `Attributes` of docstrings, `describe_settings` and `--help` are generated from these lines.
"""

import dataclasses
import difflib
import math
import operator
import re
import textwrap
import types
import typing

_COMPARE = {"at_least": operator.ge, "above": operator.gt, "below": operator.lt, "at_most": operator.le}


def setting(default, meaning, *, choices=(), renamed_from="", old_values=None, before=None, **limits):
    """Returns the dataclass field of one setting.

    Args:
        default: its default value.
        meaning: str, a phrase without a full stop.
        choices: tuple of the accepted values; empty if only type and limits matter.
        renamed_from: str, its name in earlier versions, which is still accepted.
        old_values: dict from a value of earlier versions to its replacement.
        before: value that files of earlier versions have without naming it; `None` for the default.
        **limits: its range: `at_least`, `at_most`, `above`, `below`.
    """
    metadata = {"meaning": meaning, "choices": choices, "limits": limits}
    metadata |= {"renamed_from": renamed_from, "old_values": old_values or {}, "before": before}
    return dataclasses.field(default=default, metadata=metadata)


def choice(default, meaning, **options):
    """Returns a `setting` whose choices are all words written as `"word"` in its meaning."""
    choices = tuple(dict.fromkeys(re.findall(r'`"(\w+)"`', meaning)))
    return setting(default, meaning, choices=choices, **options)


def current_names(section_class, values):
    """Replaces setting names of earlier versions by the current ones.

    Args:
        section_class: class of settings made by `section`.
        values: dict from the name of a setting, old or current, to its value.

    Returns:
        `(values, renamed)`: the dict with current names and values, and a dict from each old name to
        the current one. If both names are given, the value under the current name is used.
    """
    changed, renamed = dict(values), {}
    for field in dataclasses.fields(section_class):
        old = field.metadata.get("renamed_from")
        if old and old in changed:
            changed.setdefault(field.name, changed[old])
            del changed[old]
            renamed[old] = field.name
            value = changed[field.name]
            if isinstance(value, str):
                changed[field.name] = field.metadata["old_values"].get(value, value)
    return changed, renamed


def from_values(section_class, values):
    """Returns a section of settings from a dict written by this version or an earlier one."""
    return section_class(**with_earlier_defaults(section_class, current_names(section_class, values)[0]))


def with_earlier_defaults(section_class, values):
    """Returns the settings of a file with the values that earlier versions had without naming them.

    Args:
        section_class: class of settings made by `section`.
        values: dict from the current name of a setting to its value.
    """
    earlier = {field.name: field.metadata.get("before") for field in dataclasses.fields(section_class)}
    return {name: value for name, value in earlier.items() if value is not None} | values


@typing.dataclass_transform(kw_only_default=True, frozen_default=True)
def section(summary):
    """Class decorator: makes a class of settings a frozen dataclass that validates its values.

    Types, ranges and choices are checked first. Then `__post_init__` of the class checks settings that
    depend on each other. `None` is accepted if the annotation includes it, regardless of the range.

    Args:
        summary: str, first line of the docstring; the list of settings is added.

    Returns:
        a class decorator.
    """

    def decorate(cls):
        check_together = cls.__dict__.get("__post_init__", lambda self: None)

        def check_all(self):
            check(self)
            check_together(self)

        cls.__post_init__ = check_all
        section_class = dataclasses.dataclass(frozen=True, kw_only=True, slots=True)(cls)
        lines = [summary, "", "Attributes:"]
        for field in dataclasses.fields(section_class):
            text = f"{field.name}: {meaning_of(field)}"
            lines += textwrap.wrap(text, 106, initial_indent="    ", subsequent_indent=" " * 8)
        section_class.__doc__ = "\n".join(lines) + "\n"
        return section_class

    return decorate


def meaning_of(field):
    """Returns the meaning of a setting, given as a field of a section, with a full stop."""
    meaning = field.metadata["meaning"]
    return meaning if meaning.endswith("...") else f"{meaning}."


def check(config):
    """Checks the type, the range and the choices of every field of a dataclass.

    Raises:
        ValueError: the message has the field, its type or range, and its value.
    """
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        name = f"`{'.'.join(filter(None, (section_name(config), field.name)))}` "
        check_value(getattr(config, field.name), field, alternatives(hints[field.name]), name=name)


def check_value(value, field, kinds, *, name=""):
    """Checks the value of one setting.

    Args:
        value: the value.
        field: `dataclasses.Field` of the setting.
        kinds: tuple of the accepted types.
        name: str, beginning of the message; "" if the caller puts a name before it.

    Raises:
        ValueError: the message has the type or range, and the value.
    """
    # `type`, not `isinstance`: `True` is an int in Python, but not a number of layers.
    if type(value) not in kinds and not (float in kinds and type(value) is int):
        names = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
        raise ValueError(f"{name}must be {names}. Received: {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name}must be finite. Received: {value!r}")
    limits = {} if value is None else field.metadata.get("limits", {})
    if not all(_COMPARE[limit](value, number) for limit, number in limits.items()):
        received = f"{field.name}={value!r}" if name else repr(value)
        raise ValueError(f"{name}must be {_range_text(limits)}. Received: {received}")
    if (choices := field.metadata.get("choices")) and value not in choices:
        hint, listed = did_you_mean(value, choices), ", ".join(choices)
        raise ValueError(f"{name}must be one of {listed}. Received: {value!r}. {hint}".rstrip())


def section_name(config):
    """Returns the name of a section as in `--set`, such as `"model"` of a `ModelConfig`; "" for `Config`."""
    return type(config).__name__.removesuffix("Config").lower().replace("device", "devices")


def require(holds, demand, **received):
    """Raises `ValueError` for values that are out of range or cannot be combined.

    Args:
        holds: bool, whether the values are accepted.
        demand: str, the condition in words.
        **received: the values by name, for the message.

    Raises:
        ValueError: `holds` is false.
    """
    if not holds:
        values = ", ".join(f"{name}={value!r}" for name, value in received.items())
        raise ValueError(f"{demand}. Received: {values}")


def nearest(name, known):
    """Returns a list of at most three known names similar to a misspelt or shortened name."""
    if close := difflib.get_close_matches(name, known, n=1, cutoff=0.85):
        return close
    longer = [candidate for candidate in known if len(name) > 2 and name in candidate]
    return list(dict.fromkeys([*longer, *difflib.get_close_matches(name, known)]))[:3]


def did_you_mean(name, known, show=repr):
    """Returns `Did you mean ...?` with similar known names, each formatted by `show`; "" without any."""
    near = " or ".join(map(show, nearest(name, known)))
    return f"Did you mean {near}?" if near else ""


def unknown(what, name, known, *, otherwise=None):
    """Returns `what 'name'.` with similar known names; without any, with `otherwise` or all known names."""
    return f"{what} {name!r}. {did_you_mean(name, known) or otherwise or 'Choose from: ' + ', '.join(known)}"


def alternatives(annotation):
    """Returns the types of an annotation: `int | None` gives `(int, NoneType)`."""
    return typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)


def _range_text(limits):
    if limits.keys() == {"at_least", "at_most"}:
        return f"from {limits['at_least']} to {limits['at_most']}"
    texts = {name: "2 ** 63" if limit == 2**63 else str(limit) for name, limit in limits.items()}
    return " and ".join(f"{name.replace('_', ' ')} {texts[name]}" for name in _COMPARE if name in limits)
