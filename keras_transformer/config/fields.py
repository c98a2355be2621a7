"""One line a setting: its default, its meaning and its range, from which everything else is made.

`setting` makes a field, `section` a frozen dataclass of such fields. The checks of types and ranges, the
`Attributes` of the docstring, the list of `describe_settings` and texts of `--help` come from these lines.
"""

import dataclasses
import difflib
import math
import operator
import textwrap
import types
import typing

_HOLDS = {"at_least": operator.ge, "above": operator.gt, "below": operator.lt, "at_most": operator.le}


def setting(default, meaning, *, at_least=None, at_most=None, above=None, below=None, choices=None):
    """Returns the dataclass field of one setting.

    Args:
        default: its value if nothing is given.
        meaning: str, a phrase without its full stop.
        at_least: smallest value.
        at_most: largest value.
        above: what the value must exceed.
        below: what the value must stay below.
        choices: tuple of all values.
    """
    limits = {"at_least": at_least, "at_most": at_most, "above": above, "below": below}
    limits = {name: limit for name, limit in limits.items() if limit is not None}
    metadata = {"meaning": meaning, "limits": limits, "choices": choices}
    return dataclasses.field(default=default, metadata=metadata)


def section(summary):
    """Makes a class of settings a frozen dataclass that checks itself.

    Types, ranges and choices are checked first, then what `__post_init__` of the class checks of several
    settings together. `None` is accepted where the annotation has it, whatever the range.

    Args:
        summary: str, first line of the docstring, which lists the settings after it.

    Returns:
        a class decorator.
    """

    def decorate(cls):
        check_together = cls.__dict__.get("__post_init__")

        def check_all(self):
            check(self)
            if check_together is not None:
                check_together(self)

        cls.__post_init__ = check_all
        made = dataclasses.dataclass(frozen=True, kw_only=True, slots=True)(cls)
        lines = [summary, "", "Attributes:"]
        for field in dataclasses.fields(made):
            text = f"{field.name}: {meaning_of(field)}"
            lines += textwrap.wrap(text, 106, initial_indent="    ", subsequent_indent=" " * 8)
        made.__doc__ = "\n".join(lines) + "\n"
        return made

    return decorate


def meaning_of(field):
    """Returns the meaning of a setting, a field of a section, with its full stop."""
    meaning = field.metadata["meaning"]
    return meaning if meaning.endswith("...") else f"{meaning}."


def check(config):
    """Checks the type, the range and the choices of every field of a dataclass.

    Raises:
        ValueError: names the field, what it must be, and what it is.
    """
    owner = type(config).__name__
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value, options = getattr(config, field.name), alternatives(hints[field.name])
        # `True` is an int to Python; as a number of layers it is a mistake.
        if type(value) not in options and not (float in options and type(value) is int):
            names = " or ".join("None" if kind is type(None) else kind.__name__ for kind in options)
            raise ValueError(f"`{field.name}` of {owner} must be {names}. Received: {value!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"`{field.name}` of {owner} must be finite. Received: {value!r}")
    for field in dataclasses.fields(config):
        value, limits = getattr(config, field.name), field.metadata.get("limits")
        if limits and value is not None:
            holds = all(_HOLDS[name](value, limit) for name, limit in limits.items())
            require(config, field.name, holds, _range_text(limits))
        if (choices := field.metadata.get("choices")) and value not in choices:
            known = f" Known: {', '.join(choices)}"
            text = unknown(f"`{field.name}` of {owner} cannot be", value, list(choices))
            raise ValueError(text if known in text else text + known)


def require(config, name, holds, wanted):
    """Refuses the value of one field.

    Args:
        config: a dataclass.
        name: str, of the field.
        holds: bool, whether the value is accepted.
        wanted: str, what the value must be.

    Raises:
        ValueError: `holds` is false.
    """
    if not holds:
        value = getattr(config, name)
        raise ValueError(f"`{name}` of {type(config).__name__} must be {wanted}. Received: {name}={value}")


def unknown(what, name, known, *, otherwise=None):
    """Returns `what 'name'.` and the nearest known name; if none is near, `otherwise` or all of them."""
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else otherwise or f"Known: {', '.join(known)}"
    return f"{what} {name!r}. {hint}"


def alternatives(annotation):
    """Returns the types of an annotation: `int | None` gives `(int, NoneType)`."""
    return typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)


def _range_text(limits):
    if limits.keys() == {"at_least", "at_most"}:
        return f"from {limits['at_least']} to {limits['at_most']}"
    texts = {name: "2 ** 63" if limit == 2**63 else str(limit) for name, limit in limits.items()}
    return " and ".join(f"{name.replace('_', ' ')} {texts[name]}" for name in _HOLDS if name in limits)
