"""Requests that TensorFlow Serving sends to a model before anyone else may."""

import tensorflow as tf

WARMUP = "assets.extra/tf_serving_warmup_requests"
# What a number of words is in any language, for tokenizers of any.
_TEXTS = ["1 2 3", "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20."]


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
