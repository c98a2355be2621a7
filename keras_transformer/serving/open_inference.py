"""The Open Inference Protocol (KServe's version 2) over REST, with the extension of binary tensors.

https://github.com/kserve/open-inference-protocol. A model has the input `text` (BYTES) and the outputs
`translation` (BYTES), `score`, `log_prob` (FP32), `finished` and `truncated` (BOOL). Settings of search are
`parameters` of the request. With `n_best` above 1, all outputs but `truncated` have a second axis.
"""

import json
import struct

import numpy as np

from keras_transformer import __version__
from keras_transformer.serving.engines import REQUEST_SETTINGS
from keras_transformer.serving.errors import NotFoundError, RequestError, UnavailableError
from keras_transformer.serving.requests import (
    as_text,
    check_keys,
    client_left,
    parse_json,
    read_body,
    search_settings,
    type_name,
)
from keras_transformer.serving.tf_serving import row_of, version_number

_DTYPES = {
    "translation": "BYTES",
    "score": "FP32",
    "log_prob": "FP32",
    "finished": "BOOL",
    "truncated": "BOOL",
}
_HEADER = "inference-header-content-length"
# Parameters that Triton's client sends, which change nothing here.
_IGNORED = ("binary_data_output", "priority", "timeout", "sequence_id", "sequence_start", "sequence_end")


def routes(server):
    """Returns list of (method, path, function), see `app`."""
    base = "/v2/models/{name}"
    versions = (base, base + "/versions/{version}")
    return [
        ("GET", "/v2", server.bound(about)),
        ("GET", "/v2/health/live", server.bound(live)),
        ("GET", "/v2/health/ready", server.bound(ready)),
        *(("GET", path, server.bound(metadata)) for path in versions),
        *(("GET", path + "/ready", server.bound(model_ready)) for path in versions),
        *(("POST", path + "/infer", server.bound(infer)) for path in versions),
    ]


async def about(server, request):
    """`GET /v2`: name and version of the server."""
    return {"name": "keras_transformer", "version": __version__, "extensions": ["binary_tensor_data"]}


async def live(server, request):
    """`GET /v2/health/live`."""
    return {"live": True}


async def ready(server, request):
    """`GET /v2/health/ready`: whether all models are loaded."""
    if not server.is_ready:
        raise UnavailableError("Not all models are loaded", retry_after=2)
    return {"ready": True}


async def metadata(server, request):
    """`GET /v2/models/NAME`: inputs and outputs."""
    name = request.path_params["name"]
    server.models.version(name, version_number(request))
    model = server.models[name]
    numbers = sorted(version.number for version in model.versions.values() if version.engine)
    answer = (
        {"name": name, "versions": [str(number) for number in numbers]}
        if model.is_versioned
        else {"name": name}
    )
    return {
        **answer,
        "platform": "keras_transformer",
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1]}],
        "outputs": [{"name": key, "datatype": dtype, "shape": [-1]} for key, dtype in _DTYPES.items()],
    }


async def model_ready(server, request):
    """`GET /v2/models/NAME/ready`."""
    name = request.path_params["name"]
    server.models.version(name, version_number(request))
    return {"name": name, "ready": True}


async def infer(server, request):
    """`POST /v2/models/NAME/infer`: translations."""
    name, number = request.path_params["name"], version_number(request)
    server.models.version(name, number)  # refused before the body is read
    values, tensors = _split(await read_body(request, server.config), request.headers.get(_HEADER))
    version = server.models.version(name, number)  # while the body came, a newer one may have been loaded
    check_keys(values, ("id", "parameters", "inputs", "outputs"))
    parameters = _object(values.get("parameters", {}), "`parameters`")
    check_keys(parameters, (*REQUEST_SETTINGS, *_IGNORED), "parameter")
    settings = search_settings(parameters, REQUEST_SETTINGS)
    texts, shape = _texts(values.get("inputs"), tensors)
    asked = _outputs(values.get("outputs"), parameters.get("binary_data_output") is True)
    answer = {"model_name": name, "outputs": []}
    if server.models[name].is_versioned:
        answer["model_version"] = str(version.number)
    if "id" in values:
        answer["id"] = as_text(values["id"], "`id`")
    server.note(request, texts)
    async with client_left(request) as left:
        results = await server.service.translate(name, texts, left=left, number=number, settings=settings)
    n_best = settings.get("n_best", 1)
    binary = b""
    for key, is_binary in asked:
        data = _column(results, key, n_best)
        sizes = [*shape, n_best] if n_best > 1 and key != "truncated" else shape
        output = {"name": key, "datatype": _DTYPES[key], "shape": sizes}
        if is_binary:
            encoded = _to_bytes(data, _DTYPES[key])
            output["parameters"] = {"binary_data_size": len(encoded)}
            binary += encoded
        else:
            output["data"] = data
        answer["outputs"].append(output)
    if not binary and not any(is_binary for _, is_binary in asked):
        return answer
    header = json.dumps(answer).encode()
    headers = {"Inference-Header-Content-Length": str(len(header))}
    return server.response(header + binary, media_type="application/octet-stream", headers=headers)


def _split(body, length):
    """Returns the JSON object of a body, and the bytes of the tensors that follow it."""
    if length is None:
        return parse_json(body), b""
    if not (length.isascii() and length.isdecimal() and len(length) < 20 and int(length) <= len(body)):
        raise RequestError("Inference-Header-Content-Length must be the number of bytes of the JSON part")
    return parse_json(body[: int(length)]), body[int(length) :]


def _object(value, where):
    if not isinstance(value, dict):
        raise RequestError(f"{where} must be an object. Received: {type_name(value)}")
    return value


def _texts(inputs, tensors):
    """Returns (texts, shape) of the input `text`."""
    if not isinstance(inputs, list) or len(inputs) != 1:
        raise RequestError("`inputs` must be a list with one input, `text`")
    entry = _object(inputs[0], "an input")
    check_keys(entry, ("name", "shape", "datatype", "data", "parameters"))
    for key, expected in (("name", "text"), ("datatype", "BYTES")):
        if key not in entry:
            raise RequestError(f'The input has no `{key}`. Give "{key}": "{expected}"')
        if entry[key] != expected:
            raise RequestError(
                f"The `{key}` of the input must be {expected!r}. Received: {str(entry[key])[:100]!r}"
            )
    shape = entry.get("shape")
    is_shape = isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)
    if not is_shape or len(shape) not in (1, 2) or shape[1:] not in ([], [1]):
        raise RequestError("`shape` of `text` must be [n] or [n, 1]")
    size = _object(entry.get("parameters", {}), "`parameters` of an input").get("binary_data_size")
    if size is not None:
        if type(size) is not int or size != len(tensors) or "data" in entry:
            raise RequestError("`binary_data_size` must be the number of bytes after the JSON part")
        texts = _from_bytes(tensors)
    else:
        data = entry.get("data")
        if not isinstance(data, list):
            raise RequestError("`data` of `text` must be a list")
        if len(shape) == 2 and data and all(isinstance(row, list) for row in data):
            data = [value for row in data for value in row]
        texts = [as_text(value, f"text {number}") for number, value in enumerate(data)]
    if len(texts) != shape[0]:
        raise RequestError(f"`text` has {len(texts)} values, but its shape is {shape}")
    return texts, shape


def _outputs(outputs, binary):
    """Returns list of (name, whether in binary) of the outputs asked for."""
    if not outputs:
        return [(key, binary) for key in _DTYPES]
    if not isinstance(outputs, list):
        raise RequestError("`outputs` must be a list")
    asked = []
    for output in outputs:
        entry = _object(output, "an output")
        check_keys(entry, ("name", "parameters"))
        name = entry.get("name")
        if not isinstance(name, str) or name not in _DTYPES:
            raise NotFoundError(f"No output {str(name)[:100]!r}. Outputs: {', '.join(_DTYPES)}")
        parameters = _object(entry.get("parameters", {}), "`parameters` of an output")
        asked.append((name, parameters.get("binary_data", binary) is True))
    return asked


def _column(results, key, n_best):
    """Returns the values of an output, flat and row-major."""
    width = n_best if n_best > 1 else None
    if key == "truncated":
        return [result.truncated for result in results]
    rows = [row_of(result, width) for result in results]
    if width is None:
        return [row[key] for row in rows]
    return [value for row in rows for value in row[key if key == "finished" else f"{key}s"]]


def _from_bytes(data):
    """Returns the texts of a BYTES tensor: each has 4 bytes with its length, little-endian, before it."""
    texts, begin = [], 0
    while begin < len(data):
        if begin + 4 > len(data):
            raise RequestError("The BYTES tensor ends within a length")
        (length,) = struct.unpack_from("<I", data, begin)
        begin += 4 + length
        if begin > len(data):
            raise RequestError("The BYTES tensor ends within a text")
        texts.append(data[begin - length : begin].decode(errors="replace"))
    return texts


def _to_bytes(values, dtype):
    if dtype == "BYTES":
        encoded = [value.encode() for value in values]
        return b"".join(struct.pack("<I", len(value)) + value for value in encoded)
    return np.array(values, "<f4" if dtype == "FP32" else np.bool_).tobytes()
