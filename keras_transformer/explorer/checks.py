"""Checks the requests of the explorer: JSON that anybody may have sent, and one clear line for each fault.

Nothing here imports Keras or TensorFlow.
"""

import difflib
from typing import Any, NamedTuple

from keras_transformer.config.settings import SpecialIds

MAX_ALPHA = 5.0
MAX_ALTERNATIVES = 20
MAX_SHOWN = 60  # characters of a wrong value that a message repeats


class InvalidRequestError(ValueError):
    """A request is not as described; its text is one line that says what is wrong."""


class Limits(NamedTuple):
    """What a model and its owner allow.

    Attributes:
        max_beam: int, largest beam size.
        max_bytes: int, largest size of a text in bytes of UTF-8.
        max_length: int, largest number of target tokens, with the end of sentence.
        vocab_size: int, of the target.
        special: `SpecialIds` of the target.
        num_heads: dict from a kind of attention to a pair of int, layers and heads of each layer.
    """

    max_beam: int
    max_bytes: int
    max_length: int
    vocab_size: int
    special: SpecialIds
    num_heads: dict


class SearchRequest(NamedTuple):
    """A checked request for a search; `None` where the settings of the model hold."""

    model: str | None
    text: str
    beam_size: int | None
    alpha: float | None
    max_length: int | None
    prefix: list  # of int
    heads_off: list  # of (kind, layer, head)


class InspectRequest(NamedTuple):
    """A checked request for a forced pass over a target."""

    model: str | None
    text: str
    target: str | list  # ids: without the end of sentence
    heads_off: list  # of (kind, layer, head)
    alternatives: int


def check_search(body: Any, limits: Limits) -> SearchRequest:
    """Returns the request for a search that a JSON value holds.

    Args:
        body: value as `json.loads` returns it, of any type.
        limits: `Limits`.

    Raises:
        InvalidRequestError: a key is unknown or missing, or a value has the wrong type or size.
    """
    fields = _fields(body, SearchRequest._fields, required=("text",))
    longest = limits.max_length - 1
    return SearchRequest(
        model=_model(fields),
        text=_text("text", fields["text"], limits.max_bytes),
        beam_size=_integer(fields, "beam_size", 1, limits.max_beam),
        alpha=_alpha(fields),
        max_length=_integer(fields, "max_length", 1, limits.max_length),
        prefix=_ids("prefix", fields.get("prefix", []), longest, limits),
        heads_off=_heads(fields.get("heads_off", []), limits.num_heads),
    )


def check_inspect(body: Any, limits: Limits) -> InspectRequest:
    """Returns the request for a forced pass that a JSON value holds.

    Args: those of `check_search`.

    Raises:
        InvalidRequestError: as `check_search`.
    """
    fields = _fields(body, InspectRequest._fields, required=("text", "target"))
    target = fields["target"]
    if isinstance(target, list):
        ids = target[:-1] if target and target[-1] == limits.special.eos else target
        target = _ids("target", ids, limits.max_length, limits)
    elif isinstance(target, str):
        target = _text("target", target, limits.max_bytes)
    else:
        raise InvalidRequestError(f"`target` must be a text or a list of ids. Received: {_show(target)}")
    alternatives = _integer(fields, "alternatives", 1, MAX_ALTERNATIVES)
    return InspectRequest(
        model=_model(fields),
        text=_text("text", fields["text"], limits.max_bytes),
        target=target,
        heads_off=_heads(fields.get("heads_off", []), limits.num_heads),
        alternatives=5 if alternatives is None else alternatives,
    )


def _fields(body, known, required, where="The request"):
    if not isinstance(body, dict):
        raise InvalidRequestError(f"{where} must be a JSON object. Received: {_show(body)}")
    for name in body:
        if name not in known:
            near = difflib.get_close_matches(str(name)[:MAX_SHOWN], known, n=1)
            hint = f"Did you mean `{near[0]}`?" if near else f"Known: {', '.join(known)}"
            raise InvalidRequestError(f"{where} has the unknown key {_show(name)}. {hint}")
    for name in required:
        if name not in body:
            raise InvalidRequestError(f"{where} lacks `{name}`")
    return body


def _model(fields):
    name = fields.get("model")
    if name is not None and not isinstance(name, str):
        raise InvalidRequestError(f"`model` must be a name. Received: {_show(name)}")
    return name


def _text(name, text, max_bytes):
    if not isinstance(text, str):
        raise InvalidRequestError(f"`{name}` must be a text. Received: {_show(text)}")
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"`{name}` has half of a surrogate pair at character {error.start}, which is no Unicode text"
        ) from None
    if size > max_bytes:
        raise InvalidRequestError(f"`{name}` has {size:,} bytes, more than the limit of {max_bytes:,}")
    return text


def _integer(fields, name, least, most):
    value = fields.get(name)
    if value is None:
        return None
    # In Python, True is an int.
    if type(value) is not int or not least <= value <= most:
        raise InvalidRequestError(
            f"`{name}` must be a whole number from {least} to {most}. Received: {_show(value)}"
        )
    return value


def _alpha(fields):
    value = fields.get("alpha")
    if value is None:
        return None
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 <= value <= MAX_ALPHA:  # false for NaN, too
        raise InvalidRequestError(
            f"`alpha` must be a number from 0 to {MAX_ALPHA:g}. Received: {_show(value)}"
        )
    return float(value)


def _ids(name, ids, longest, limits):
    if not isinstance(ids, list):
        raise InvalidRequestError(f"`{name}` must be a list of ids. Received: {_show(ids)}")
    if len(ids) > longest:
        raise InvalidRequestError(f"`{name}` has {len(ids):,} ids, more than the limit of {longest:,}")
    special = limits.special
    forbidden = {special.pad: "padding", special.bos: "begin of sentence", special.eos: "end of sentence"}
    for place, token in enumerate(ids):
        if type(token) is not int or not 0 <= token < limits.vocab_size:
            raise InvalidRequestError(
                f"`{name}[{place}]` must be an id from 0 to {limits.vocab_size - 1}. Received: {_show(token)}"
            )
        if token in forbidden:
            raise InvalidRequestError(f"`{name}[{place}]` is {token}, the id of {forbidden[token]}")
    return list(ids)


def _heads(heads, num_heads):
    if not isinstance(heads, list):
        raise InvalidRequestError(f"`heads_off` must be a list of heads. Received: {_show(heads)}")
    most = sum(layers * in_layer for layers, in_layer in num_heads.values())
    if len(heads) > most:
        raise InvalidRequestError(f"`heads_off` has {len(heads):,} heads; the model has {most:,}")
    keys = ("kind", "layer", "head")
    found = {}  # keeps the order, and each head once
    for place, head in enumerate(heads):
        where = f"`heads_off[{place}]`"
        fields = _fields(head, keys, required=keys, where=where)
        kind = fields["kind"]
        if not isinstance(kind, str) or kind not in num_heads:
            raise InvalidRequestError(
                f"{where}: `kind` must be one of {', '.join(num_heads)}. Received: {_show(kind)}"
            )
        for name, number in zip(("layer", "head"), num_heads[kind], strict=True):
            if type(fields[name]) is not int or not 0 <= fields[name] < number:
                raise InvalidRequestError(
                    f"{where}: `{name}` must be a whole number from 0 to {number - 1}. "
                    f"Received: {_show(fields[name])}"
                )
        found[kind, fields["layer"], fields["head"]] = None
    return list(found)


def _show(value):
    """Returns a wrong value for a message: one line of ASCII, shortened."""
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    if isinstance(value, int) and abs(value) >= 10**MAX_SHOWN:
        return "a very large number"  # Python refuses to write more than 4,300 digits
    shown = ascii(value[:MAX_SHOWN] if isinstance(value, str) else value)
    return shown if len(shown) <= MAX_SHOWN else f"{shown[:MAX_SHOWN]}..."
