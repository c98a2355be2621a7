"""A program for a fresh process: serves PredictRequests as TensorFlow Serving does, without this package.

    python in_a_server.py MODEL REQUESTS RESPONSES THREADS

The graph is imported into a session, restored and run by the names of its signature's tensors; Keras
and this package cannot be imported. REQUESTS and RESPONSES are TFRecords.
"""

import concurrent.futures
import importlib.util
import pathlib
import sys


class _Blocked:
    """Refuses to import what a server has not."""

    def find_spec(self, name, path=None, target=None):
        # TensorFlow looks for `keras` itself, and goes on when it cannot be imported.
        if name == "keras.src" or name.partition(".")[0] == "keras_transformer":
            raise ImportError(f"{name} is blocked")


sys.meta_path.insert(0, _Blocked())

import tensorflow as tf  # noqa: E402
from tensorflow.core.protobuf import config_pb2  # noqa: E402
from tensorflow_serving.apis import predict_pb2  # noqa: E402


def load_text_operations():
    """Loads what the server links of TF Text: its operations, without its Python, which needs Keras."""
    spec = importlib.util.find_spec("tensorflow_text")
    for path in sorted(pathlib.Path(spec.submodule_search_locations[0], "python/ops").glob("*.so")):
        tf.load_op_library(str(path))


def main(model, requests, responses, threads):
    load_text_operations()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        signatures = tf.compat.v1.saved_model.load(session, ["serve"], model).signature_def
        read = tf.compat.v1.io.tf_record_iterator(requests)
        parsed = [predict_pb2.PredictRequest.FromString(record) for record in read]
        callables = {}
        for name in {request.model_spec.signature_name for request in parsed}:
            signature = signatures[name]
            fed, fetched = sorted(signature.inputs.items()), sorted(signature.outputs.items())
            options = config_pb2.CallableOptions(
                feed=[info.name for _, info in fed], fetch=[info.name for _, info in fetched]
            )
            # Not `session.run`, whose Python checks shapes before the graph sees them.
            run = session._make_callable_from_options(options)
            callables[name] = run, [key for key, _ in fed], [key for key, _ in fetched]

        def predict(request):
            run, fed, fetched = callables[request.model_spec.signature_name]
            response = predict_pb2.PredictResponse()
            try:
                found = run(*(tf.make_ndarray(request.inputs[key]) for key in fed))
                found = dict(zip(fetched, found, strict=True))
            except tf.errors.InvalidArgumentError as error:
                found = {"error": error.message}
            for key, value in found.items():
                response.outputs[key].CopyFrom(tf.make_tensor_proto(value))
            return response.SerializeToString()

        with concurrent.futures.ThreadPoolExecutor(int(threads)) as pool:
            answers = list(pool.map(predict, parsed))
    with tf.io.TFRecordWriter(responses) as out:
        for answer in answers:
            out.write(answer)
    assert "keras.src" not in sys.modules
    assert not any(name.startswith("keras_transformer") for name in sys.modules)


if __name__ == "__main__":
    main(*sys.argv[1:])
