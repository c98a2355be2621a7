"""What every program does before TensorFlow is imported."""

import contextlib
import os
import sys


def import_quietly():
    """Sets TensorFlow up and imports the package without TensorFlow's chatter.

    CPUs without AVX-512 lose about a third of their speed unless oneDNN is asked for.
    TensorFlow writes half a dozen lines about itself when it is imported; they are held
    back unless the user has set TF_CPP_MIN_LOG_LEVEL. Python's own errors always show.
    """
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    quiet = "TF_CPP_MIN_LOG_LEVEL" not in os.environ
    if quiet:
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    with _no_stderr() if quiet else contextlib.nullcontext():
        import tensorflow as tf

        import keras_transformer.model  # noqa: F401

        tf.config.list_physical_devices()  # where there is no GPU, CUDA says so here


@contextlib.contextmanager
def _no_stderr():
    """Sends file descriptor 2, which C++ writes to, nowhere for a while."""
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
