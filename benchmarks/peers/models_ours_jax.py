"""This package's `Transformer` on Keras' JAX backend, without TensorFlow. To be imported before Keras."""

import os

os.environ["KERAS_BACKEND"] = "jax"

import jax  # noqa: E402

from peers.models_ours import SEARCH, build  # noqa: E402
from peers.timing import ON_GPU  # noqa: E402

__all__ = ["LIBRARIES", "SEARCH", "build", "gpu_memory"]
LIBRARIES = ["keras", "jax"]

if jax.default_backend() != ("gpu" if ON_GPU else "cpu"):
    raise SystemExit(f"JAX computes on {jax.default_backend()}; wanted: {'gpu' if ON_GPU else 'cpu'}")


def gpu_memory():
    """Returns int, the peak of the GPU's memory in bytes, of arrays."""
    return jax.local_devices()[0].memory_stats()["peak_bytes_in_use"]
