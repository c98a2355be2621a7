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
# Path -> (summary, schema of the body, media types of the answer).
_POSTS = {
    "/v1/models/{name}:predict": ("Translate (TensorFlow Serving)", _PREDICT, ("application/x-ndjson",)),
    "/v2/models/{name}/infer": ("Translate (Open Inference Protocol)", _INFER, ("application/octet-stream",)),
    "/translate": ("Translate (LibreTranslate)", _TRANSLATE, ()),
    "/detect": ("Identify the language (LibreTranslate)", _object({"q": _TEXTS}, ["q"]), ()),
    "/explorer/search": (
        "The beam search of a sentence, as a tree",
        _object({"text": {"type": "string"}}),
        (),
    ),
    "/explorer/inspect": (
        "Log-probabilities and attention of a translation",
        _object({"text": {"type": "string"}}, ["text", "target"]),
        (),
    ),
    "/explorer/page": ("A page that keeps a state of the explorer", _object({"state": {}}), ("text/html",)),
}
_SUMMARIES = {
    "/healthz": "Whether the process answers",
    "/readyz": "Whether all models are loaded",
    "/metrics": "Metrics in the format of Prometheus",
    "/v1/models/{name}": "States of the versions (TensorFlow Serving)",
    "/v1/models/{name}/metadata": "Signatures (TensorFlow Serving)",
    "/v2": "Name and version of the server (Open Inference Protocol)",
    "/v2/health/live": "Whether the process answers (Open Inference Protocol)",
    "/v2/health/ready": "Whether all models are loaded (Open Inference Protocol)",
    "/v2/models/{name}": "Inputs and outputs (Open Inference Protocol)",
    "/v2/models/{name}/ready": "Whether a model is loaded (Open Inference Protocol)",
    "/languages": "Languages (LibreTranslate)",
    "/health": "Whether the process answers (LibreTranslate)",
    "/frontend/settings": "Limits (LibreTranslate)",
    "/explorer/models": "Models that the explorer shows",
}
_NOT_LISTED = ("/", "/openapi.json", "/explorer/assets/{file}")


async def document(server, request):
    """`GET /openapi.json`: this description."""
    return describe([(next(iter(route.methods - {"HEAD"})), route.path) for route in request.app.routes])


def describe(routes):
    """Returns the OpenAPI document of a list of (method, path)."""
    paths = {}
    for method, path in routes:
        if path not in _NOT_LISTED:
            paths.setdefault(path, {})[method.lower()] = _operation(method, path)
    return {
        "openapi": "3.1.0",
        "info": {"title": "keras_transformer", "version": __version__},
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Error": _ERROR},
        },
    }


def _operation(method, path):
    plain = path.replace("/versions/{version}", "")
    summary, body, others = _POSTS.get(plain) or (_SUMMARIES[plain], None, ())
    content = {kind: {} for kind in ("application/json", *others)}
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
