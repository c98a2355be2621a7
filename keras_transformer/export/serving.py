"""TensorFlow Serving: export settings, batching configuration, warm-up requests, shell commands."""

import dataclasses
import math
import os
import re
import shlex

from keras_transformer.config.extras import MissingExtraError, needs
from keras_transformer.config.sections import MAX_NUMBERS_IN_SEARCH, SearchConfig

INPUTS = ("alpha", "max_length_offset")
_MOST = 2**24
WARMUP = "assets.extra/tf_serving_warmup_requests"
# Digits, because they are in the vocabulary of most languages.
WARMUP_TEXTS = ["1 2 3", "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20."]

BATCHING = "batching.config"
# The tag `latest` always exists; images of single versions appear months after TensorFlow's release.
IMAGE = "tensorflow/serving:latest"
_BATCHING = """\
# For tensorflow_model_server --enable_batching --batching_parameters_file=FILE
# A batch must not be larger than what the graph takes.
max_batch_size { value: MAX_SENTENCES }
# What a lone request waits for others, in microseconds.
batch_timeout_micros { value: 2000 }
# More batches than these in the queue are refused at once: UNAVAILABLE.
max_enqueued_batches { value: 64 }
# Batches computed at a time; each uses all cores.
num_batch_threads { value: 2 }
"""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ServingSettings:
    """Search settings and limits of an exported model.

    Attributes:
        search: `SearchConfig`. Texts over `max_source_length` are always cut; `long_lines` is
            ignored. With `n_best=1`, `translate_nbest` returns the whole beam.
        max_sentences: int, maximum number of sentences in a request; larger requests fail.
        max_characters: int, longer texts are cut to it before tokenization.
        inputs: tuple of str, a subset of `INPUTS`: search settings that are scalar inputs of the
            translating signatures.
        frozen: bool, weights are constants in the graph instead of variables.

    Raises:
        ValueError: a setting cannot be exported.
    """

    search: SearchConfig = dataclasses.field(default_factory=SearchConfig)
    max_sentences: int = 256
    max_characters: int = 10_000
    inputs: tuple = ()
    frozen: bool = False

    def __post_init__(self):
        for name, kind in (("sampling", "Sampling"), ("mbr", "Minimum Bayes risk decoding")):
            if getattr(self.search, name):
                raise ValueError(
                    f"{kind} is not available in an exported model. Remove `{name}`. Received: {name}=True"
                )
        for name in ("max_sentences", "max_characters"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= _MOST:
                raise ValueError(f"`{name}` must be a whole number from 1 to {_MOST}. Received: {value!r}")
        for name in self.inputs:
            if name not in INPUTS:
                raise ValueError(f"`inputs` must be among {', '.join(INPUTS)}. Received: {name!r}")

    @property
    def n_best(self):
        """Number of translations per sentence that `translate_nbest` returns."""
        return self.search.n_best if self.search.n_best > 1 else self.search.beam_size

    def max_tokens(self, model):
        """Returns the maximum number of tokens of a text, with the end of sentence.

        Args:
            model: `ModelConfig`.
        """
        limits = [model.max_positions] if model.positions == "learned" else []
        return min([self.search.max_source_length, *limits])

    def max_rows(self, model):
        """Returns the maximum batch size for each sentence length, with the budgets of `Translator`.

        Args:
            model: `ModelConfig`.

        Returns:
            list of int, at least 1, not increasing; entry n is for sentences of n tokens.
        """
        search = self.search
        if "max_length_offset" in self.inputs:  # a request may give any
            search = dataclasses.replace(search, max_length_offset=search.max_length)
        rows = [self.max_sentences]
        for tokens in range(1, self.max_tokens(model) + 1):
            fitting = math.floor(MAX_NUMBERS_IN_SEARCH / model.numbers_in_search(tokens, search))
            most = min(search.batch_tokens // tokens, fitting)
            rows.append(min(rows[-1], max(1, most)))
        return rows


def server_name(run, name=None):
    """Returns the name of a model on the server.

    Args:
        run: `RunFolder`.
        name: str, or `None` for the name of the run folder.

    Raises:
        ValueError: the name has other characters than a server allows.
    """
    result = run.path.resolve().name if name is None else name
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", result):
        return result
    if name is None:
        return "translator"
    raise ValueError(f"`name` may contain only letters, digits, `_`, `.` and `-`. Received: {name!r}")


def write_batching(folder, settings):
    """Writes the batching configuration of TensorFlow Serving, `BatchingParameters` in text format.

    Args:
        folder: `pathlib.Path` of a version.
        settings: `ServingSettings`.
    """
    text = _BATCHING.replace("MAX_SENTENCES", str(settings.max_sentences))
    (folder / BATCHING).write_text(text, encoding="ascii")


def docker_command(folder, name, *, version, batching):
    """Returns the shell command that serves a folder of versions with Docker.

    Args:
        folder: path of the folder of versions.
        name: str, of the model on the server.
        version: int; its batching configuration is used.
        batching: bool, batches requests on the server.
    """
    inside = f"/models/{name}"
    words = ["docker", "run", "--rm", "-p", "8500:8500", "-p", "8501:8501"]
    words += ["-v", f"{os.path.abspath(folder)}:{inside}:ro", "-e", f"MODEL_NAME={name}"]
    words.append(IMAGE)
    if batching:
        words += ["--enable_batching", f"--batching_parameters_file={inside}/{version}/{BATCHING}"]
    return shlex.join(words)


def curl_command(name, inputs=(), *, text="1 2 3", address="http://localhost:8501"):
    """Returns the shell command that requests a translation, or a tree, from the server.

    Args:
        name: str, of the model on the server.
        inputs: names of the scalar inputs, as in `ServingSettings`.
        text: str, the sentence.
        address: str, of the server.
    """
    body = f'{{"instances": ["{text}"]}}'
    if inputs:  # "instances" would need one value per sentence
        scalars = {"alpha": "0.6", "max_length_offset": "50"}
        values = ", ".join(f'"{key}": {scalars[key]}' for key in inputs)
        body = f'{{"inputs": {{"text": ["{text}"], {values}}}}}'
    return shlex.join(["curl", "-d", body, f"{address}/v1/models/{name}:predict"])


def has_serving():
    """Returns whether the packages that write warm-up requests are installed."""
    try:
        import_serving()
    except MissingExtraError:
        return False
    return True


def import_serving():
    """Returns the modules (model_pb2, predict_pb2, prediction_log_pb2) of TensorFlow Serving.

    Raises:
        MissingExtraError: tensorflow-serving-api is not installed.
    """
    with needs("serving", "Writing warm-up requests"):
        from tensorflow_serving.apis import model_pb2, predict_pb2, prediction_log_pb2
    return model_pb2, predict_pb2, prediction_log_pb2


def write_warmup(folder, name, signatures, ids):
    """Writes a short and a longer warm-up request for each signature.

    Args:
        folder: `pathlib.Path` of a version.
        name: str, of the model on the server.
        signatures: dict, name -> `tf.ConcreteFunction`.
        ids: list of list of int, `WARMUP_TEXTS` encoded by the source tokenizer.
    """
    import tensorflow as tf

    model_pb2, predict_pb2, prediction_log_pb2 = import_serving()
    width = max(map(len, ids))
    values = {
        "text": tf.constant(WARMUP_TEXTS),
        "source": tf.constant(WARMUP_TEXTS),
        "target": tf.constant(WARMUP_TEXTS),
        "ids": tf.constant([row + [row[-1]] * (width - len(row)) for row in ids], tf.int32),
        "constraints": tf.constant([""] * len(WARMUP_TEXTS)),  # other phrases may not be in the vocabulary
        "num_words": tf.constant([len(text.split()) for text in WARMUP_TEXTS], tf.int32),
    }
    scalars = {"alpha": tf.constant(0.6), "max_length_offset": tf.constant(50)}
    path = folder / WARMUP
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, function in sorted(signatures.items()):
            for row in range(len(WARMUP_TEXTS)):
                specs, named = function.structured_input_signature  # by name in a loaded SavedModel
                inputs = {
                    spec.name: tf.make_tensor_proto(
                        values[spec.name][row : row + 1] if spec.shape.rank else scalars[spec.name]
                    )
                    for spec in (*specs, *named.values())
                }
                spec = model_pb2.ModelSpec(name=name, signature_name=signature)
                request = predict_pb2.PredictRequest(model_spec=spec, inputs=inputs)
                log = prediction_log_pb2.PredictLog(request=request)
                record = prediction_log_pb2.PredictionLog(predict_log=log)
                writer.write(record.SerializeToString(deterministic=True))
