"""What TensorFlow Serving needs to start with an exported model: its commands, its warm-up requests."""

import os
import shlex

WARMUP = "assets.extra/tf_serving_warmup_requests"
# What a number of words is in any language, for tokenizers of any.
_TEXTS = ["1 2 3", "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20."]

BATCHING = "batching.config"
# The newest image that is known to exist; there may be one of this package's TensorFlow by now.
IMAGE = "tensorflow/serving:2.20.0"
# Requests that wait at most, in batches; more are turned away with UNAVAILABLE.
_MAX_ENQUEUED = 64


def write_batching(folder, settings):
    """Writes how requests are put together, in the text format of `BatchingParameters`.

    Args:
        folder: of a version.
        settings: `ServingSettings`.
    """
    text = (
        "# For tensorflow_model_server --enable_batching --batching_parameters_file=FILE\n"
        "# A batch must not be larger than what the graph takes.\n"
        f"max_batch_size {{ value: {settings.max_sentences} }}\n"
        "# What a lone request waits for others, in microseconds.\n"
        "batch_timeout_micros { value: 2000 }\n"
        "# More batches than these in the queue are refused at once: UNAVAILABLE.\n"
        f"max_enqueued_batches {{ value: {_MAX_ENQUEUED} }}\n"
        "# Batches computed at a time; each uses all cores.\n"
        "num_batch_threads { value: 2 }\n"
    )
    (folder / BATCHING).write_text(text, encoding="ascii")


def docker_command(folder, name, *, version, batching):
    """Returns the command that serves a folder of versions, as a shell takes it.

    Args:
        folder: of the versions.
        name: str, of the model on the server.
        version: int, whose batching configuration is used.
        batching: bool, puts requests together.
    """
    inside = f"/models/{name}"
    words = ["docker", "run", "--rm", "-p", "8500:8500", "-p", "8501:8501"]
    words += ["-v", f"{os.path.abspath(folder)}:{inside}:ro", "-e", f"MODEL_NAME={name}"]
    words.append(IMAGE)
    if batching:
        words += ["--enable_batching", f"--batching_parameters_file={inside}/{version}/{BATCHING}"]
    return shlex.join(words)


def curl_command(name, inputs=()):
    """Returns the command that asks the server for a translation.

    Args:
        name: str, of the model on the server.
        inputs: names of the scalar inputs, of `ServingSettings`.
    """
    body = '{"instances": ["1 2 3"]}'
    if inputs:  # instances would need one value for each sentence
        scalars = {"alpha": "0.6", "extra_length": "50"}
        given = ", ".join(f'"{one}": {scalars[one]}' for one in inputs)
        body = f'{{"inputs": {{"text": ["1 2 3"], {given}}}}}'
    return shlex.join(["curl", "-d", body, f"http://localhost:8501/v1/models/{name}:predict"])


def import_serving():
    """Returns the modules (model_pb2, predict_pb2, prediction_log_pb2) of TensorFlow Serving.

    Raises:
        ValueError: they are not installed; the message says what to do.
    """
    try:
        from tensorflow_serving.apis import model_pb2, predict_pb2, prediction_log_pb2
    except ImportError as error:
        raise ValueError(
            "Warm-up requests need tensorflow-serving-api: pip install tensorflow-serving-api, "
            "or leave them out with --no-warmup"
        ) from error
    return model_pb2, predict_pb2, prediction_log_pb2


def write_warmup(folder, name, signatures, ids):
    """Writes two requests, one short and one not, for each signature.

    Args:
        folder: of a version.
        name: str, of the model on the server.
        signatures: dict, name -> `tf.ConcreteFunction`.
        ids: list of list of int, what the source's tokenizer makes of `warmup_texts`.
    """
    import tensorflow as tf

    model_pb2, predict_pb2, prediction_log_pb2 = import_serving()
    width = max(map(len, ids))
    values = {
        "text": tf.constant(_TEXTS),
        "source": tf.constant(_TEXTS),
        "target": tf.constant(_TEXTS),
        "ids": tf.constant([row + [row[-1]] * (width - len(row)) for row in ids], tf.int32),
    }
    scalars = {"alpha": tf.constant(0.6), "extra_length": tf.constant(50)}
    path = folder / WARMUP
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, function in sorted(signatures.items()):
            for number in range(len(_TEXTS)):
                specs, named = function.structured_input_signature  # named once it was loaded
                inputs = {
                    spec.name: tf.make_tensor_proto(
                        values[spec.name][number : number + 1] if spec.shape.rank else scalars[spec.name]
                    )
                    for spec in (*specs, *named.values())
                }
                spec = model_pb2.ModelSpec(name=name, signature_name=signature)
                request = predict_pb2.PredictRequest(model_spec=spec, inputs=inputs)
                log = prediction_log_pb2.PredictLog(request=request)
                record = prediction_log_pb2.PredictionLog(predict_log=log)
                writer.write(record.SerializeToString(deterministic=True))


def warmup_texts():
    """Returns the texts of the requests, list of str."""
    return list(_TEXTS)
