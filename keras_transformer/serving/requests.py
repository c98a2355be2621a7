"""Bodies of requests: size limits, JSON, forms; clients that leave before the answer."""

import asyncio
import contextlib
import json

from keras_transformer.config.fields import unknown
from keras_transformer.config.sections import MAX_NGRAM
from keras_transformer.serving.errors import DeadlineError, RequestError, TooLargeError

_LARGEST = 2**24  # of any setting of the search
_MAX_DISCARDED = 2**25  # bytes over the limit; a client that sends more may not see the answer


async def read_body(request, config, *, limit=None):
    """Returns the body of a request.

    Args:
        request: `starlette.requests.Request`.
        config: `ServerConfig`.
        limit: int, most bytes; `None` for `max_body_bytes`.

    Raises:
        TooLargeError: over the limit. The rest is read first, up to 32 MiB: a client that is still sending
            when the connection is closed would not see the answer.
        DeadlineError: it came too slowly.
        RequestError: it is compressed.
    """
    limit = limit or config.max_body_bytes
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise RequestError("A compressed body is not supported. Send it without Content-Encoding")
    too_large = TooLargeError(f"The body must have at most {limit:,} bytes")
    length = request.headers.get("content-length", "")
    length = int(length[:20]) if length.isdecimal() else 0
    waits = request.headers.get("expect", "").lower() == "100-continue"  # the client has not sent it yet
    if length > limit + _MAX_DISCARDED * (not waits):
        raise too_large
    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(config.timeout_seconds):
            async for part in request.stream():
                size += len(part)
                if size > limit + _MAX_DISCARDED:
                    break
                if size <= limit:
                    body += part
    except TimeoutError as error:
        raise DeadlineError(f"The body did not arrive within {config.timeout_seconds:g} seconds") from error
    if size > limit:
        raise too_large
    return bytes(body)


def parse_json(body):
    """Returns the JSON object of a body.

    Raises:
        RequestError: not JSON, not UTF-8, not an object, or nested too deeply.
    """
    try:
        values = json.loads(body.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        if "set_int_max_str_digits" in reason:
            reason = "a number has too many digits"
        raise RequestError(f"The body must be JSON in UTF-8: {reason}") from error
    if not isinstance(values, dict):
        raise RequestError(f"The body must be a JSON object. Received: {type_name(values)}")
    return values


def _no_constant(name):
    raise ValueError(f"{name} is no JSON number")


def check_keys(values, known, what="key"):
    """Raises `RequestError` for a key that is not known, with the most similar one."""
    for key in values:
        if key not in known:
            raise RequestError(unknown(f"unknown {what}", key[:100], list(known)))


def type_name(value):
    """Returns the JSON name of a value's type."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def as_text(value, where):
    """Returns a str without lone surrogates, which have no UTF-8.

    Args:
        value: what was received.
        where: str, names it in the message.

    Raises:
        RequestError: it is no string.
    """
    if not isinstance(value, str):
        raise RequestError(f"{where} must be a string. Received: {type_name(value)}")
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def search_settings(values, names):
    """Returns the settings of search among the values of a request.

    Args:
        values: dict.
        names: names of settings.

    Raises:
        RequestError: a value is no number, or so large that the search would fail or take minutes.
    """
    settings = {name: values[name] for name in names if name in values}
    for name, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise RequestError(f"`{name}` must be a number. Received: {type_name(value)}")
        most = MAX_NGRAM if name == "no_repeat_ngram" else _LARGEST
        if abs(value) > most:
            raise RequestError(f"`{name}` must be at most {most}")
    return settings


@contextlib.asynccontextmanager
async def client_left(request):
    """Context manager with an `asyncio.Future` that ends when the client closes the connection."""

    async def wait():
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task = asyncio.ensure_future(wait())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
