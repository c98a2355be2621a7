"""How TensorFlow Serving is started with an exported model."""

import os
import shlex

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
