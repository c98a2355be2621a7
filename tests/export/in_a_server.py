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

        def predict(request):
            signature = signatures[request.model_spec.signature_name]
            fed = {
                signature.inputs[key].name: tf.make_ndarray(value) for key, value in request.inputs.items()
            }
            names = {key: info.name for key, info in signature.outputs.items()}
            response = predict_pb2.PredictResponse()
            try:
                found = session.run(names, fed)
            except tf.errors.InvalidArgumentError as error:
                found = {"error": error.message}
            for key, value in found.items():
                response.outputs[key].CopyFrom(tf.make_tensor_proto(value))
            return response.SerializeToString()

        read = tf.compat.v1.io.tf_record_iterator(requests)
        parsed = [predict_pb2.PredictRequest.FromString(record) for record in read]
        with (
            concurrent.futures.ThreadPoolExecutor(int(threads)) as pool,
            tf.io.TFRecordWriter(responses) as out,
        ):
            for response in pool.map(predict, parsed):
                out.write(response)
    assert "keras.src" not in sys.modules
    assert not any(name.startswith("keras_transformer") for name in sys.modules)


if __name__ == "__main__":
    main(*sys.argv[1:])
