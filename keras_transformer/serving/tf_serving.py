"""The REST interface of TensorFlow Serving: status, metadata and `predict` in both formats.

https://www.tensorflow.org/tfx/serving/api_rest. Every model has the signatures `serving_default` and
`translate_nbest` of an exported one (docs/serving.md). Besides, settings of search may be given: as scalars
in `inputs`, or beside `instances`.
"""

import base64
import binascii
import json

from keras_transformer.serving.engines import REQUEST_SETTINGS
from keras_transformer.serving.errors import MethodError, NotFoundError, RequestError
from keras_transformer.serving.requests import (
    as_text,
    check_keys,
    client_left,
    parse_json,
    read_body,
    search_settings,
    type_name,
)
from keras_transformer.serving.service import LOWEST

_BEST, _N_BEST = "serving_default", "translate_nbest"
_DTYPES = {"score": "DT_FLOAT", "log_prob": "DT_FLOAT", "finished": "DT_BOOL", "truncated": "DT_BOOL"}
NDJSON = "application/x-ndjson"


def routes(server):
    """Returns list of (method, path, function), see `app`."""
    base = "/v1/models/{name}"
    versions = (base, base + "/versions/{version}")
    return [
        *(("GET", path, server.bound(status)) for path in versions),
        *(("GET", path + "/metadata", server.bound(metadata)) for path in versions),
        *(("POST", path + ":predict", server.bound(predict)) for path in versions),
    ]


def version_number(request):
    """Returns the version in the path, int; `None` without one.

    Raises:
        NotFoundError: it is no number.
    """
    text = request.path_params.get("version")
    if text is not None and not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise NotFoundError(f"The version must be a number. Received: {text[:40]!r}")
    return None if text is None else int(text)


async def status(server, request):
    """`GET /v1/models/NAME`: states of the versions."""
    name = request.path_params["name"]
    if name.endswith(":predict"):
        raise MethodError("Use POST with a body in JSON")
    model, number = server.models[name], version_number(request)
    found = [version for version in model.versions.values() if number in (None, version.number)]
    if number is not None and not found:
        server.models.version(name, number)  # raises
    return {
        "model_version_status": [
            {
                "version": str(version.number),
                "state": version.state.value,
                "status": {
                    "error_code": "UNKNOWN" if version.error else "OK",
                    "error_message": version.error,
                },
            }
            for version in sorted(found, key=lambda version: -version.number)
        ]
    }


async def metadata(server, request):
    """`GET /v1/models/NAME/metadata`: the signatures."""
    name = request.path_params["name"]
    version = server.models.version(name, version_number(request))

    def tensor(key, dtype, *sizes):
        dims = [{"size": str(size), "name": ""} for size in (-1, *sizes)]
        return {"dtype": dtype, "name": f"{key}:0", "tensor_shape": {"dim": dims, "unknown_rank": False}}

    def signature(plural, *sizes):
        inputs = {"text": tensor("text", "DT_STRING")}
        outputs = {f"translation{plural}": tensor(f"translation{plural}", "DT_STRING", *sizes)}
        for key, dtype in _DTYPES.items():
            many = key in ("score", "log_prob")
            each = () if key == "truncated" else sizes
            outputs[key + plural * many] = tensor(key, dtype, *each)
        return {"inputs": inputs, "outputs": outputs, "method_name": "tensorflow/serving/predict"}

    signatures = {_BEST: signature(""), _N_BEST: signature("s", -1)}
    return {
        "model_spec": {"name": name, "signature_name": "", "version": str(version.number)},
        "metadata": {
            "signature_def": {
                "@type": "type.googleapis.com/tensorflow.serving.SignatureDefMap",
                "signature_def": signatures,
            }
        },
    }


async def predict(server, request):
    """`POST /v1/models/NAME:predict`: translations; with `Accept: application/x-ndjson` a line for each."""
    name, number = request.path_params["name"], version_number(request)
    server.models.version(name, number)  # refused before the body is read
    values = parse_json(await read_body(request, server.config))
    engine = server.models.version(name, number).engine  # a newer one may have been loaded meanwhile
    texts, settings, signature, by_row = _parse(values)
    if signature == _N_BEST:
        most = engine.max_n_best or settings.get("beam_size", engine.search.beam_size)
        settings.setdefault("n_best", most if engine.own_n_best == 1 else min(engine.own_n_best, most))
    elif settings.pop("n_best", 1) != 1:
        raise RequestError(f'`n_best` needs "signature_name": "{_N_BEST}"')
    server.note(request, texts)
    options = {"number": number, "settings": settings}
    width = settings.get("n_best", 1) if signature == _N_BEST else None
    if request.headers.get("accept", "").split(";")[0].strip() == NDJSON:
        return await server.lines(request, _lines(server, request, name, texts, options, width))
    async with client_left(request) as left:
        results = await server.service.translate(name, texts, left=left, **options)
    rows = [row_of(result, width) for result in results]
    if by_row:
        return {"predictions": rows}
    keys = row_of(None, width)
    return {"outputs": {key: [row[key] for row in rows] for key in keys}}


async def _lines(server, request, name, texts, options, width):
    async with client_left(request) as left:
        async for index, result in server.service.stream(name, texts, left=left, **options):
            yield {"index": index, **row_of(result, width)}


def row_of(result, width):
    """Returns the outputs for a text as a dict.

    Args:
        result: `Translated`; `None` for the keys alone.
        width: int, number of translations; `None` for those of `serving_default`.
    """
    best = result.hypotheses if result else []
    truncated = result.truncated if result else False
    columns = {
        "translation": [item.text for item in best],
        "score": [item.score for item in best],
        "log_prob": [item.log_prob for item in best],
        "finished": [item.finished for item in best],
    }
    if width is None:
        return {key: column[0] if column else None for key, column in columns.items()} | {
            "truncated": truncated
        }
    empty = {"translation": "", "score": LOWEST, "log_prob": LOWEST, "finished": False}
    padded = {
        key + "s" * (key != "finished"): (column + [empty[key]] * width)[:width]
        for key, column in columns.items()
    }
    return {**padded, "truncated": truncated}


def _parse(values):
    """Returns (texts, settings, signature, whether in row format)."""
    check_keys(values, ("signature_name", "instances", "inputs", *REQUEST_SETTINGS))
    signature = values.get("signature_name", "") or _BEST
    if signature not in (_BEST, _N_BEST):
        raise RequestError(
            f"Serving signature name {str(signature)[:100]!r} not found. Here: {_BEST} and {_N_BEST}"
        )
    if ("instances" in values) == ("inputs" in values):
        raise RequestError('Give either "instances" or "inputs"')
    settings = search_settings(values, REQUEST_SETTINGS)
    by_row = "instances" in values
    if by_row:
        texts = values["instances"]
        if not isinstance(texts, list) or not texts:
            raise RequestError('"instances" must be a list of at least one text')
        texts = [_text_of(row) for row in texts]
    else:
        texts = values["inputs"]
        if isinstance(texts, dict) and "b64" not in texts:
            check_keys(texts, ("text", *REQUEST_SETTINGS), "input")
            if "text" not in texts:
                raise RequestError('"inputs" must have "text"')
            settings |= search_settings(texts, REQUEST_SETTINGS)
            texts = texts["text"]
        if not isinstance(texts, list):
            raise RequestError(f'"inputs" must have a list of texts. Received: {type_name(texts)}')
    return [_string(text, f"text {number}") for number, text in enumerate(texts)], settings, signature, by_row


def _text_of(row):
    """Returns the text of one of `instances`: itself, or `text` of an object."""
    if not isinstance(row, dict) or "b64" in row:
        return row
    check_keys(row, ("text",), "input")
    if "text" not in row:
        raise RequestError('Each object of "instances" must have "text"')
    return row["text"]


def _string(value, where):
    """Returns a text that was given as a string or as `{"b64": ...}`."""
    if isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str):
        try:
            return base64.b64decode(value["b64"], validate=True).decode(errors="replace")
        except (binascii.Error, ValueError) as error:
            raise RequestError(f"{where}: not base64 ({error})") from error
    return as_text(value, where)


def line(values):
    """Returns a line of JSON."""
    return json.dumps(values, ensure_ascii=False).encode() + b"\n"
