"""The description of all routes in OpenAPI 3.1, at `/openapi.json`."""

import re

from keras_transformer import __version__
from keras_transformer.serving.engines import REQUEST_SETTINGS

_TEXT = {"oneOf": [{"type": "string"}, {"type": "object", "properties": {"b64": {"type": "string"}}}]}
_SETTINGS = {name: {"type": "number"} for name in REQUEST_SETTINGS}
_ERROR = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}


def _object(properties, required=()):
    return {"type": "object", "properties": properties, "required": list(required)}


def _list(items):
    return {"type": "array", "items": items}


_PREDICT = _object(
    {
        "signature_name": {"enum": ["serving_default", "translate_nbest"]},
        "instances": _list({"oneOf": [_TEXT, _object({"text": _TEXT}, ["text"])]}),
        "inputs": {"oneOf": [_list(_TEXT), _object({"text": _list(_TEXT), **_SETTINGS}, ["text"])]},
        **_SETTINGS,
    }
)
_INFER = _object(
    {
        "id": {"type": "string"},
        "parameters": _object(_SETTINGS),
        "inputs": _list(
            _object(
                {
                    "name": {"const": "text"},
                    "shape": _list({"type": "integer"}),
                    "datatype": {"const": "BYTES"},
                    "data": _list({}),
                },
                ["name", "shape", "datatype"],
            )
        ),
        "outputs": _list(_object({"name": {"type": "string"}}, ["name"])),
    },
    ["inputs"],
)
_TEXTS = {"oneOf": [{"type": "string"}, _list({"type": "string"})]}
_TRANSLATE = _object(
    {
        "q": _TEXTS,
        "source": {"type": "string"},
        "target": {"type": "string"},
        "format": {"enum": ["text", "html"]},
        "alternatives": {"type": "integer"},
        "api_key": {"type": "string"},
    },
    ["q", "source", "target"],
)


def _record(properties, optional=()):
    return _object(properties, [name for name in properties if name not in optional])


_STRING, _NUMBER, _INTEGER, _BOOLEAN = ({"type": kind} for kind in ("string", "number", "integer", "boolean"))
_STATUS = _record({"status": _STRING})
_ROW = _record(
    {
        "translation": _STRING,
        "score": _NUMBER,
        "log_prob": _NUMBER,
        "finished": _BOOLEAN,
        "truncated": _BOOLEAN,
    }
)
_N_BEST_ROW = _record(
    {
        "translations": _list(_STRING),
        "scores": _list(_NUMBER),
        "log_probs": _list(_NUMBER),
        "finished": _list(_BOOLEAN),
        "truncated": _BOOLEAN,
    }
)


def _columns(row):
    return _record({name: _list(schema) for name, schema in row["properties"].items()})


_PREDICTIONS = {
    "oneOf": [
        _record({"predictions": _list({"oneOf": [_ROW, _N_BEST_ROW]})}),
        _record({"outputs": {"oneOf": [_columns(_ROW), _columns(_N_BEST_ROW)]}}),
    ]
}
_VERSIONS = _record(
    {
        "model_version_status": _list(
            _record(
                {
                    "version": _STRING,
                    "state": {"enum": ["START", "LOADING", "AVAILABLE", "UNLOADING", "END"]},
                    "status": _record({"error_code": _STRING, "error_message": _STRING}),
                }
            )
        )
    }
)
_SIGNATURES = _record(
    {
        "model_spec": _record({"name": _STRING, "signature_name": _STRING, "version": _STRING}),
        "metadata": _record({"signature_def": {"type": "object"}}),
    }
)
_OUTPUT = _record(
    {
        "name": _STRING,
        "datatype": {"enum": ["BYTES", "FP32", "BOOL"]},
        "shape": _list(_INTEGER),
        "data": _list({"type": ["string", "number", "boolean"]}),
        "parameters": _record({"binary_data_size": _INTEGER}),
    },
    ("data", "parameters"),
)
_INFERRED = _record(
    {"model_name": _STRING, "model_version": _STRING, "id": _STRING, "outputs": _list(_OUTPUT)},
    ("model_version", "id"),
)
_TENSOR = _record({"name": _STRING, "datatype": _STRING, "shape": _list(_INTEGER)})
_MODEL = _record(
    {
        "name": _STRING,
        "versions": _list(_STRING),
        "platform": _STRING,
        "inputs": _list(_TENSOR),
        "outputs": _list(_TENSOR),
    },
    ("versions",),
)
_LANGUAGE = _record({"confidence": _NUMBER, "language": _STRING})
_TRANSLATED = _record(
    {
        "translatedText": _TEXTS,
        "alternatives": _list({"oneOf": [_STRING, _list(_STRING)]}),
        "detectedLanguage": {"oneOf": [_LANGUAGE, _list(_LANGUAGE)]},
    },
    ("alternatives", "detectedLanguage"),
)
_NAMED = _record({"code": _STRING, "name": _STRING})
_LIMITS = _record(
    {
        "apiKeys": _BOOLEAN,
        "charLimit": _INTEGER,
        "filesTranslation": _BOOLEAN,
        "frontendTimeout": _INTEGER,
        "keyRequired": _BOOLEAN,
        "language": _record({"source": _NAMED, "target": _NAMED}),
        "suggestions": _BOOLEAN,
        "supportedFilesFormat": _list(_STRING),
    }
)
_ANY = {"type": "object"}  # what only the page reads
# Path -> (summary, schema of the body, schema of the answer, media types of other answers).
_POSTS = {
    "/v1/models/{name}:predict": (
        "Translate (TensorFlow Serving)",
        _PREDICT,
        _PREDICTIONS,
        ("application/x-ndjson",),
    ),
    "/v2/models/{name}/infer": (
        "Translate (Open Inference Protocol)",
        _INFER,
        _INFERRED,
        ("application/octet-stream",),
    ),
    "/translate": ("Translate (LibreTranslate)", _TRANSLATE, _TRANSLATED, ()),
    "/detect": (
        "Identify the language (LibreTranslate)",
        _object({"q": _TEXTS, "api_key": _STRING}, ["q"]),
        _list(_LANGUAGE),
        (),
    ),
    "/explorer/search": (
        "The beam search of a sentence, as a tree",
        _object({"model": _STRING, "text": _STRING}, ["model", "text"]),
        _ANY,
        (),
    ),
    "/explorer/inspect": (
        "Log-probabilities and attention of a translation",
        _object({"model": _STRING, "text": _STRING, "target": {}}, ["model", "text", "target"]),
        _ANY,
        (),
    ),
    "/explorer/page": (
        "A page that keeps a state of the explorer",
        _object({"state": {}}),
        None,
        ("text/html",),
    ),
}
# Path -> (summary, schema of the answer).
_GETS = {
    "/healthz": ("Whether the process answers", _STATUS),
    "/readyz": ("Whether all models are loaded", _STATUS),
    "/metrics": ("Metrics in the format of Prometheus", None),
    "/v1/models/{name}": ("States of the versions (TensorFlow Serving)", _VERSIONS),
    "/v1/models/{name}/metadata": ("Signatures (TensorFlow Serving)", _SIGNATURES),
    "/v2": (
        "Name and version of the server (Open Inference Protocol)",
        _record({"name": _STRING, "version": _STRING, "extensions": _list(_STRING)}),
    ),
    "/v2/health/live": (
        "Whether the process answers (Open Inference Protocol)",
        _record({"live": _BOOLEAN}),
    ),
    "/v2/health/ready": (
        "Whether all models are loaded (Open Inference Protocol)",
        _record({"ready": _BOOLEAN}),
    ),
    "/v2/models/{name}": ("Inputs and outputs (Open Inference Protocol)", _MODEL),
    "/v2/models/{name}/ready": (
        "Whether a model is loaded (Open Inference Protocol)",
        _record({"name": _STRING, "ready": _BOOLEAN}),
    ),
    "/languages": (
        "Languages (LibreTranslate)",
        _list(_record({"code": _STRING, "name": _STRING, "targets": _list(_STRING)})),
    ),
    "/health": ("Whether the process answers (LibreTranslate)", _STATUS),
    "/frontend/settings": ("Limits (LibreTranslate)", _LIMITS),
    "/explorer/models": ("Models that the explorer shows", _record({"models": _list(_ANY)})),
}
_NOT_LISTED = ("/", "/openapi.json", "/explorer/assets/{file}")


async def document(server, request):
    """`GET /openapi.json`: this description."""
    routes = [(next(iter(route.methods - {"HEAD"})), route.path) for route in request.app.routes]
    return describe(routes, is_open=server.is_open if server.config.token else None)


def describe(routes, *, is_open=None):
    """Returns the OpenAPI document.

    Args:
        routes: list of (method, path).
        is_open: function from a path to whether it needs no token; `None` if there is no token.
    """
    paths = {}
    for method, path in routes:
        if path not in _NOT_LISTED:
            operation = paths.setdefault(path, {})[method.lower()] = _operation(method, path)
            if is_open is not None and not is_open(path):
                operation["security"] = [{"token": []}, {"password": []}]
    return {
        "openapi": "3.1.0",
        "info": {"title": "keras_transformer", "version": __version__},
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "password": {"type": "http", "scheme": "basic"},
            },
            "schemas": {"Error": _ERROR},
        },
    }


def _operation(method, path):
    plain = path.replace("/versions/{version}", "")
    summary, body, answer, others = _POSTS.get(plain) or (_GETS[plain][0], None, _GETS[plain][1], ())
    if plain == "/metrics":
        others = ("text/plain",)
    content = {kind: {} for kind in others}
    if answer:
        content["application/json"] = {"schema": answer}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    operation = {
        "summary": summary,
        "operationId": re.sub(r"\W+", "_", f"{method.lower()}{path}").strip("_"),
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in re.findall(r"{(\w+)}", path)
        ],
        "responses": {
            "200": {"description": "Done", "content": content},
            "4XX": {"description": "Refused", "content": error},
            "5XX": {"description": "Not available, too late, or a fault", "content": error},
        },
    }
    if body:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return operation
