"""An exported model where neither this package nor Keras is: loaded, asked, served."""

import concurrent.futures
import contextlib
import importlib
import io
import json
import os
import pathlib
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format, wrappers_pb2
from saved_models import PYTHON, fresh_process, operations_in
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.export.serving import curl_command, docker_command, import_serving, write_warmup

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTS = pathlib.Path(__file__).parent
sys.path.insert(0, str(ROOT / "examples"))
import serving_client  # noqa: E402

pytestmark = pytest.mark.slow

# Of TF Text's `ops_lib`, which tensorflow_model_server links whole: those of our tokenizers.
TEXT_OPERATIONS = {
    "FastWordpieceTokenizeWithOffsets",
    "NormalizeUTF8",
    "RegexSplitWithOffsets",
    "SentencepieceDetokenizeOp",
    "SentencepieceOp",
    "SentencepieceTokenizeOp",
}
WITHOUT_TEXT = (
    "import sys, tensorflow as tf\n"
    "print(*dir(tf.raw_ops))\n"
    "loaded = tf.saved_model.load(sys.argv[1])\n"
    "found = loaded.signatures['translate_ids'](ids=tf.constant([list(map(int, sys.argv[2:]))]))\n"
    "print(*found['ids'].numpy()[0])\n"
    "assert 'tensorflow_text' not in sys.modules\n"
)


@pytest.fixture(scope="module")
def without_text(model, tools):
    """(names of the operations that TensorFlow alone has, translation of the first text by ids)."""
    (row,) = model.translator.tokenizers.source.encode(tools.texts[:1])
    operations, ids = fresh_process("-c", WITHOUT_TEXT, model.ids_path, *row).splitlines()
    return set(operations.split()), list(map(int, ids.split()))


@pytest.fixture(scope="module")
def core_operations(without_text):
    """Names of the operations that TensorFlow has without TF Text."""
    return without_text[0]


def test_every_operation_is_one_that_the_stock_server_links(core_operations, model, other_model):
    assert "MatMul" in core_operations
    assert not core_operations & TEXT_OPERATIONS
    used = operations_in(model.path) | operations_in(other_model.path)
    # `other_model` encodes with word pieces, and does not decode with them.
    pieces = other_model.translator.tokenizers.source
    ids = tf.TensorSpec((None, None), tf.int32)
    decode = tf.function(pieces.decode_tensor, input_signature=[ids], autograph=False)
    used |= {operation.type for operation in decode.get_concrete_function().graph.get_operations()}
    assert used - core_operations == TEXT_OPERATIONS
    assert not used & PYTHON


def test_the_graph_asks_for_no_newer_reader_than_the_documentation_says(model):
    for path in (model.path, model.ids_path):
        saved = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
        assert saved.meta_graphs[0].graph_def.versions.min_consumer <= 12  # docs/serving.md


def test_no_operation_names_a_gradient_that_a_loader_would_miss_and_warn_of(model):
    for path in (model.path, model.ids_path):
        saved = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
        graph = saved.meta_graphs[0].graph_def
        nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
        assert len(nodes) > 1000
        assert not [node.name for node in nodes if "_gradient_op_type" in node.attr]


def test_the_model_for_ids_has_core_operations_alone(core_operations, model):
    assert operations_in(model.ids_path) <= core_operations - PYTHON


def test_ids_are_translated_without_tensorflow_text(without_text, model, tools):
    assert without_text[1] == model.translator.n_best(tools.texts[:1])[0].best.ids


def serving(*names):
    """Modules of TensorFlow Serving's protos, or a skipped test."""
    pytest.importorskip("tensorflow_serving", reason="pip install tensorflow-serving-api")
    return [importlib.import_module(f"tensorflow_serving.apis.{name}") for name in names]


def predict_request(signature, **inputs):
    model_pb2, predict_pb2 = serving("model_pb2", "predict_pb2")
    return predict_pb2.PredictRequest(
        model_spec=model_pb2.ModelSpec(name="tiny", signature_name=signature),
        inputs={name: tf.make_tensor_proto(value) for name, value in inputs.items()},
    )


def test_sixteen_callers_of_a_session_without_keras_get_what_the_translator_gives(model, tools, tmp_path):
    (predict_pb2,) = serving("predict_pb2")
    folder = pathlib.Path(predict_pb2.__file__).parents[2]
    texts = [f"{text} {number}" for number in range(8) for text in tools.texts]
    requests = [predict_request("serving_default", text=[text]) for text in texts]
    requests.append(predict_request("serving_default", text=["dog"] * 33))
    requests.append(predict_request("serving_default", text=[["dog"]]))
    requests.append(predict_request("translate_ids", ids=[[5, 300]]))
    with tf.io.TFRecordWriter(str(tmp_path / "requests")) as out:
        for request in requests:
            out.write(request.SerializeToString())
    files = [tmp_path / "requests", tmp_path / "responses"]
    fresh_process(TESTS / "in_a_server.py", model.path, *files, 16, path=[folder])
    responses = [
        {key: tf.make_ndarray(value) for key, value in response.outputs.items()}
        for response in (
            predict_pb2.PredictResponse.FromString(record.numpy())
            for record in tf.data.TFRecordDataset(str(files[1]))
        )
    ]
    expected = [one.best for one in model.translator.n_best(texts)]
    answers = responses[: len(texts)]
    assert [one["translation"][0].decode() for one in answers] == [one.text for one in expected]
    np.testing.assert_allclose([one["score"][0] for one in answers], [x.score for x in expected], rtol=1e-4)
    too_many, too_deep, outside = responses[len(texts) :]
    assert b"At most 32 sentences" in too_many["error"].item()
    assert too_deep.keys() == {"error"}
    assert b"must be at least 0 and below 300" in outside["error"].item()


def test_warm_up_asks_every_signature_for_something_that_it_answers(model):
    (prediction_log_pb2,) = serving("prediction_log_pb2")
    for path in (model.path, model.ids_path):
        asked = {}
        file = path / "assets.extra/tf_serving_warmup_requests"
        for record in tf.data.TFRecordDataset(str(file)):
            request = prediction_log_pb2.PredictionLog.FromString(record.numpy()).predict_log.request
            assert request.model_spec.name == "tiny"
            signature = request.model_spec.signature_name
            inputs = {name: tf.constant(tf.make_ndarray(value)) for name, value in request.inputs.items()}
            found = model.signatures[signature](**inputs)
            asked[signature] = asked.get(signature, 0) + 1
            if signature == "translate_ids":
                assert found["length"].numpy().all()
        names = model.signatures if path == model.path else ["translate_ids"]
        assert asked == dict.fromkeys(names, 2)


def test_warm_up_gives_the_inputs_of_every_call(other_model, tmp_path):
    (prediction_log_pb2,) = serving("prediction_log_pb2")
    function = other_model.signatures["serving_default"]
    write_warmup(tmp_path, "name", {"serving_default": function}, [[5], [5, 6]])
    for record in tf.data.TFRecordDataset(str(tmp_path / "assets.extra/tf_serving_warmup_requests")):
        request = prediction_log_pb2.PredictionLog.FromString(record.numpy()).predict_log.request
        found = function(**{name: tf.make_ndarray(value) for name, value in request.inputs.items()})
        assert found["finished"].shape == (1,)


def test_where_a_call_gives_scalars_there_is_no_batching(model, other_model):
    assert (model.path / "batching.config").exists()
    assert not (other_model.path / "batching.config").exists()


def test_without_the_protos_an_export_says_what_to_install(run, tools, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_serving.apis", None)
    with pytest.raises(ValueError, match=r"pip install 'keras-transformer-translation\[serving\]'"):
        tools.exported(run, tmp_path / "out", warmup=True)
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="Writing warm-up requests needs the extra 'serving'"):
        import_serving()


def test_the_batching_configuration_is_a_text_proto(model):
    fields = {}
    for line in (model.path / "batching.config").read_text().splitlines():
        if not line.startswith("#"):
            name, _, value = line.partition(" ")
            fields[name] = text_format.Parse(value.strip("{ }"), wrappers_pb2.Int64Value())
    assert {name: field.value for name, field in fields.items()} == {
        "max_batch_size": 32,
        "batch_timeout_micros": 2000,
        "max_enqueued_batches": 64,
        "num_batch_threads": 2,
    }


def test_the_docker_command_names_what_the_image_expects(tmp_path):
    out = tmp_path / "a folder"
    words = shlex.split(docker_command(out, "m30k", version=3, batching=True))
    image = words.index("tensorflow/serving:latest")
    assert words[words.index("-v") + 1] == f"{out}:/models/m30k:ro"
    assert words[words.index("-e") + 1] == "MODEL_NAME=m30k"
    assert words[image + 1 :] == [
        "--enable_batching",
        "--batching_parameters_file=/models/m30k/3/batching.config",
    ]


@pytest.fixture
def rest_server(model):
    """What TensorFlow Serving answers to `:predict` with instances, by its documentation."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):  # noqa: N802
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            try:
                assert self.path == "/v1/models/tiny:predict"
                found = model.signatures["serving_default"](text=tf.constant(body["instances"], tf.string))
                columns = {
                    name: [one.decode() if isinstance(one, bytes) else one for one in values.numpy().tolist()]
                    for name, values in found.items()
                }
                rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
                status, answer = 200, {"predictions": rows}
            except tf.errors.InvalidArgumentError as error:
                status, answer = 400, {"error": error.message}
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *arguments):
            """Is silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def client_output(capsys, texts, *arguments):
    code = serving_client.main(["tiny", *arguments], io.BytesIO("".join(f"{t}\n" for t in texts).encode()))
    captured = capsys.readouterr()
    return code, captured.out.splitlines(), captured.err


def test_the_client_translates_over_rest(model, tools, rest_server, capsys):
    code, lines, _ = client_output(capsys, tools.texts, "--rest", rest_server, "--lines", "3")
    assert (code, lines) == (0, model.translator.translate(tools.texts))
    code, _, error = client_output(capsys, ["dog"] * 40, "--rest", rest_server)
    assert code == 2
    assert "400" in error
    assert "At most 32 sentences" in error


def test_curl_gets_a_translation(model, rest_server):
    words = shlex.split(curl_command("tiny"))
    if shutil.which("curl") is None:
        pytest.skip("no curl on this machine")
    words = [word.replace("localhost:8501", rest_server) for word in words]
    found = json.loads(subprocess.run([*words, "--silent"], capture_output=True).stdout)
    assert found["predictions"][0]["translation"] == model.translator.translate(["1 2 3"])[0]


@pytest.fixture
def grpc_server(model):
    """A `PredictionService` that answers with the exported model."""
    predict_pb2, service = serving("predict_pb2", "prediction_service_pb2_grpc")
    import grpc

    class Servicer(service.PredictionServiceServicer):
        def Predict(self, request, context):  # noqa: N802
            inputs = {name: tf.constant(tf.make_ndarray(value)) for name, value in request.inputs.items()}
            try:
                found = model.signatures[request.model_spec.signature_name](**inputs)
            except tf.errors.InvalidArgumentError as error:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, error.message)
            outputs = {name: tf.make_tensor_proto(value) for name, value in found.items()}
            return predict_pb2.PredictResponse(outputs=outputs)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        service.add_PredictionServiceServicer_to_server(Servicer(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"127.0.0.1:{port}"
        server.stop(None).wait()


def test_the_client_translates_over_grpc(model, tools, grpc_server, capsys):
    code, lines, _ = client_output(capsys, tools.texts, "--grpc", grpc_server)
    assert (code, lines) == (0, model.translator.translate(tools.texts))
    code, _, error = client_output(capsys, ["dog"] * 40, "--grpc", grpc_server)
    assert code == 2
    assert "INVALID_ARGUMENT: " in error


def test_f56_a_client_that_gives_up_disturbs_nobody(model, tools, grpc_server, capsys):
    for _ in range(5):
        code, lines, error = client_output(
            capsys, tools.texts, "--grpc", grpc_server, "--timeout", "0.000001"
        )
        assert (code, lines) == (2, [])
        assert "DEADLINE_EXCEEDED" in error
    code, lines, _ = client_output(capsys, tools.texts, "--grpc", grpc_server)
    assert (code, lines) == (0, model.translator.translate(tools.texts))


def test_a_server_that_is_not_there_is_one_line(capsys):
    with contextlib.closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, _, error = client_output(capsys, ["dog"], "--rest", address)
    assert code == 2
    assert error.startswith(f"serving_client.py: {address}: ")
    assert len(error.splitlines()) == 1


ANSWERS = {
    "not JSON": b"<html>",
    "a list": b"[]",
    "no predictions": b"{}",
    "other predictions": b'{"predictions": ["Hund"]}',
    "too few": b'{"predictions": []}',
}


@contextlib.contextmanager
def answering(answer):
    """Address of a server that always gives this answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):  # noqa: N802
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *arguments):
            """Is silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_output_is_utf8_whatever_the_terminal_has():
    answer = json.dumps({"predictions": [{"translation": "Příliš", "score": -1.0}]}).encode()
    with answering(answer) as address:
        command = [sys.executable, serving_client.__file__, "tiny", "--rest", address]
        environment = {**os.environ, "PYTHONIOENCODING": "cp1252"}
        done = subprocess.run(command, input=b"dog\n", env=environment, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Příliš\n".encode(), b"")


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_of_something_else_is_one_line(capsys, answer):
    with answering(answer) as address:
        code, lines, error = client_output(capsys, ["dog"], "--rest", address)
    assert (code, lines, error.count("\n")) == (2, [], 1)
    assert error.startswith("serving_client.py: 127.0.0.1:")


@pytest.mark.parametrize("flags", [["--lines", "0"], ["--timeout", "-1"], ["--timeout", "nan"]])
def test_the_client_refuses_numbers_out_of_range(capsys, flags):
    with pytest.raises(SystemExit) as ended:
        serving_client.main(["tiny", *flags], io.BytesIO(b"dog\n"))
    assert ended.value.code == 2
    assert "--lines must be at least 1, and --timeout above 0" in capsys.readouterr().err


def test_a_real_server_gives_what_the_translator_gives(model, tools, capsys):
    binary = os.environ.get("TF_MODEL_SERVER")
    if not binary:
        pytest.skip("TF_MODEL_SERVER does not name a tensorflow_model_server")
    with contextlib.closing(socket.socket()) as one, contextlib.closing(socket.socket()) as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
        rest, grpc = one.getsockname()[1], other.getsockname()[1]
    command = [binary, f"--rest_api_port={rest}", f"--port={grpc}", "--model_name=tiny"]
    command += [f"--model_base_path={model.out}", "--enable_batching"]
    command += [f"--batching_parameters_file={model.path / 'batching.config'}"]
    with subprocess.Popen(command) as server:
        try:
            wait_until_available(f"http://127.0.0.1:{rest}/v1/models/tiny", server)
            expected = model.translator.translate(tools.texts)
            for flag, port in (("--rest", rest), ("--grpc", grpc)):
                code, lines, _ = client_output(capsys, tools.texts, flag, f"127.0.0.1:{port}")
                assert (code, lines) == (0, expected)
        finally:
            server.terminate()


def wait_until_available(url, server, seconds=120):
    for _ in range(seconds):
        assert server.poll() is None, "the server ended"
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=1) as answer:
            if json.load(answer)["model_version_status"][0]["state"] == "AVAILABLE":
                return
        time.sleep(1)
    raise AssertionError("the server did not load the model")
