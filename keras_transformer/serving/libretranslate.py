"""The interface of LibreTranslate: `/translate`, `/languages`, `/detect`, for its clients and add-ons.

Texts are paragraphs: they are divided into sentences and joined again, with their line breaks.
"""

import contextlib
import json

from keras_transformer.config.extras import MissingExtraError, needs
from keras_transformer.serving.errors import RequestError, UnavailableError
from keras_transformer.serving.html_texts import join_html, split_html
from keras_transformer.serving.requests import (
    as_text,
    check_keys,
    client_left,
    parse_json,
    read_body,
    type_name,
)
from keras_transformer.serving.service import in_thread_if_long

_KEYS = ("q", "source", "target", "format", "alternatives", "api_key", "secret")
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
_SAMPLE = 2000  # characters by which a language is identified
# Clients send the token as `api_key` in the body, and ask without it which languages there are.
OWN_ACCESS = ("/translate", "/detect", "/languages", "/frontend/settings")


def routes(server):
    """Returns list of (method, path, function), see `app`."""
    return [
        ("POST", "/translate", server.bound(translate)),
        ("GET", "/languages", server.bound(languages)),
        ("POST", "/detect", server.bound(detect)),
        ("GET", "/health", server.bound(health)),
        ("GET", "/frontend/settings", server.bound(frontend_settings)),
    ]


async def translate(server, request):
    """`POST /translate`: a text or a list of texts."""
    values = await _values(server, request)
    check_keys(values, _KEYS)
    is_list, texts = _texts(values)
    kind = values.get("format") or "text"
    if kind not in ("text", "html"):
        raise RequestError(f"`format` must be text or html. Received: {str(kind)[:100]!r}")
    alternatives = _number(values.get("alternatives") or 0)
    if alternatives + 1 > server.config.max_beam_size:
        raise RequestError(f"`alternatives` must be at most {server.config.max_beam_size - 1}")
    source, target = (_code(values, key) for key in ("source", "target"))
    detected = None
    if source == "auto":
        detected = _detect(server, " ".join(texts))
        source = detected["language"]
    model = request.state.model = _model(server, source, target)
    server.note(request, texts)
    if kind == "html":
        pieces = await in_thread_if_long(texts, lambda: list(map(split_html, texts)))
    else:
        pieces = [[(True, text)] for text in texts]
    queued = [piece for each in pieces for is_text, piece in each if is_text]
    engine = server.models.version(model).engine
    settings = {}
    if alternatives:
        n_best = alternatives + 1
        if engine.max_n_best is not None:
            n_best = min(n_best, engine.max_n_best)
        elif n_best > engine.search.beam_size:
            settings["beam_size"] = n_best
        settings["n_best"] = n_best
    async with client_left(request) as left:
        results = await server.service.translate(
            model, queued, settings=settings, by_sentence=True, left=left, num_texts=len(texts)
        )
    answers, others, results = [], [], iter(results)
    for each in pieces:
        found = [next(results) for is_text, _ in each if is_text]
        if kind == "html":
            answers.append(join_html(each, [result.hypotheses[0].text for result in found]))
            others.append([])
        else:
            texts_of = [item.text for item in found[0].hypotheses]
            answers.append(texts_of[0])
            others.append(list(dict.fromkeys(texts_of[1:]))[:alternatives])
    answer = {"translatedText": answers if is_list else answers[0]}
    if alternatives:
        answer["alternatives"] = others if is_list else others[0]
    if detected:
        answer["detectedLanguage"] = [detected] * len(texts) if is_list else detected
    return answer


async def languages(server, request):
    """`GET /languages`: sources and the targets of each."""
    targets = {}
    for source, target, _ in _pairs(server):
        targets.setdefault(source, []).append(target)
    for target in [target for listed in targets.values() for target in listed]:
        targets.setdefault(target, [])
    return [
        {"code": code, "name": _name(code), "targets": list(dict.fromkeys(listed))}
        for code, listed in targets.items()
    ]


async def detect(server, request):
    """`POST /detect`: the language of a text, among those of the models."""
    values = await _values(server, request)
    check_keys(values, ("q", "api_key"))
    _, texts = _texts(values)
    return [_detect(server, " ".join(texts), every=True)]


async def health(server, request):
    """`GET /health`."""
    return {"status": "ok"}


async def frontend_settings(server, request):
    """`GET /frontend/settings`: limits and default languages."""
    pairs = _pairs(server)
    source, target = pairs[0][:2] if pairs else ("", "")
    return {
        "apiKeys": bool(server.config.token),
        "charLimit": server.config.max_body_bytes,
        "filesTranslation": False,
        "frontendTimeout": 500,
        "keyRequired": bool(server.config.token),
        "language": {
            "source": {"code": source, "name": _name(source)},
            "target": {"code": target, "name": _name(target)},
        },
        "suggestions": False,
        "supportedFilesFormat": [],
    }


async def _values(server, request):
    """Returns the values of a JSON body or a form, after a look at their token."""
    body = await read_body(request, server.config)
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    is_form = kind in _FORMS and not body.startswith(b"{")  # `curl -d` calls JSON a form, too
    values = await server.form(request, body, kind) if is_form else parse_json(body)
    server.check_token(request, values.get("api_key"))
    if is_form:
        with contextlib.suppress(ValueError, RecursionError):  # a list of texts comes as JSON
            listed = json.loads(values.get("q", ""))
            if isinstance(listed, list) and all(isinstance(text, str) for text in listed):
                values["q"] = listed
    return values


def _texts(values):
    """Returns (whether `q` was a list, list of its texts)."""
    if "q" not in values:
        raise RequestError("Invalid request: missing q parameter")
    q = values["q"]
    if isinstance(q, list):
        return True, [as_text(text, f"`q[{number}]`") for number, text in enumerate(q)]
    return False, [as_text(q, "`q`")]


def _number(value):
    text = str(value) if isinstance(value, (int, str)) and not isinstance(value, bool) else ""
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        received = repr(value)[:100] if isinstance(value, (int, float, str)) else type_name(value)
        raise RequestError(f"`alternatives` must be a whole number from 0. Received: {received}")
    return int(text)


def _code(values, key):
    if not values.get(key):
        raise RequestError(f"Invalid request: missing {key} parameter")
    return as_text(values[key], f"`{key}`")


def _pairs(server):
    """Returns list of (source, target, name of the model) of all available models."""
    models = [model for model in server.models if model.newest]
    return [(*model.newest.engine.languages, model.name) for model in models]


def _model(server, source, target):
    """Returns the name of the first model for two languages, with or without their regions."""
    pairs = _pairs(server)
    for same in (str.lower, lambda code: code.lower().replace("_", "-").partition("-")[0]):
        for known_source, known_target, name in pairs:
            if (same(known_source), same(known_target)) == (same(source), same(target)):
                return name
    if not server.models.is_ready:
        raise UnavailableError("Models are being loaded. Try again soon", retry_after=2)
    known = ", ".join(dict.fromkeys(f"{one} to {other}" for one, other, _ in pairs))
    raise RequestError(f"{source[:20]!r} to {target[:20]!r} is not supported. Supported: {known}")


def _detect(server, text, *, every=False):
    """Returns the most probable language, a source or any if `every`, and its probability in percent."""
    pairs = _pairs(server)
    known = [source for source, _, _ in pairs] + [target for _, target, _ in pairs if every]
    known = list(dict.fromkeys(known))
    if not known:
        raise UnavailableError("Models are being loaded. Try again soon", retry_after=2)
    if len(known) == 1 and (text.strip() or not every):
        return {"confidence": 100.0 if text.strip() else 0.0, "language": known[0]}
    from keras_transformer.text.languages import identify_language

    try:
        language, probability = identify_language(text[:_SAMPLE], known)
    except MissingExtraError as error:
        raise RequestError(str(error) if every else f"{error}, or give `source`") from error
    return {"confidence": round(100 * probability, 1), "language": language}


def _name(code):
    try:
        with needs("data", "Names of languages"):
            from babel import Locale, UnknownLocaleError
    except MissingExtraError:
        return code
    try:
        return Locale.parse(code, sep="_" if "_" in code else "-").get_display_name("en") or code
    except (UnknownLocaleError, ValueError):
        return code
