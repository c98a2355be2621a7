"""Selects the plain or the fast form of the kernels."""

import contextlib
import functools
import os
import threading

import keras

VARIABLE = "KERAS_TRANSFORMER_KERNELS"
_tracing = threading.local()


def uses_fast_forms():
    """Returns whether kernels use their fast form.

    Raises:
        ValueError: the environment variable is neither `fast` nor `plain`.
    """
    form = os.environ.get(VARIABLE, "fast")
    if form not in ("fast", "plain"):
        raise ValueError(f"the environment variable {VARIABLE} must be fast or plain. Received: {form!r}")
    return form == "fast" and keras.backend.backend() == "tensorflow"


def require_tensorflow(what):
    """Checks that Keras' backend is TensorFlow.

    Args:
        what: str, what needs it, such as "`train`".

    Raises:
        ValueError: it is another.
    """
    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise ValueError(
            f"{what} needs Keras' TensorFlow backend. Received: KERAS_BACKEND={backend}. Save the model with "
            "`model.save(...)` and load it in a process with KERAS_BACKEND=tensorflow"
        )


def kernel(plain):
    """Decorator for the plain form of a kernel; `fast_form` of the result registers the fast form.

    ```python
    @kernel
    def product(x, y):
        return ops.matmul(x, y)

    @product.fast_form
    def _product(x, y):
        ...
    ```

    Returns:
        A function that calls the form selected by the environment variable. Its attributes `plain` and `fast`
        are the two forms.
    """

    @functools.wraps(plain)
    def compute(*args, **kwargs):
        return (compute.fast if uses_fast_forms() else plain)(*args, **kwargs)

    def fast_form(function):
        compute.fast = function
        return function

    compute.plain, compute.fast_form = plain, fast_form
    return compute


@contextlib.contextmanager
def without_gradients():
    """Traces kernels without their hand-written gradients, for a graph that is exported.

    A SavedModel would keep the names of these gradients, and TensorFlow would warn at each loading that it
    does not know them. The values are the same.
    """
    with _tracing_as("without_gradients"):
        yield


@contextlib.contextmanager
def decoding_step():
    """Traces kernels for one decoding step, in which the weights are much larger than the activations."""
    with _tracing_as("decoding_step"):
        yield


def in_decoding_step():
    """Returns whether a decoding step is traced, see `decoding_step`."""
    return getattr(_tracing, "decoding_step", False)


@contextlib.contextmanager
def reading_copies(copies):
    """Traces kernels with `copies`: dict, id of a matrix -> its transposed copy, see `transposed_copies`."""
    with _tracing_as("copies", copies):
        yield


def transposed_copy(matrix):
    """Returns the transposed copy of a matrix inside `reading_copies`; `None` if there is none."""
    return (getattr(_tracing, "copies", None) or {}).get(id(matrix))


@contextlib.contextmanager
def _tracing_as(name, value=True):
    before = getattr(_tracing, name, False)
    setattr(_tracing, name, value)
    try:
        yield
    finally:
        setattr(_tracing, name, before)


def in_exported_graph():
    """Returns whether a graph is traced that other machines may run, see `without_gradients`."""
    return getattr(_tracing, "without_gradients", False)


def custom_gradient(function):
    """Decorator like `tf.custom_gradient`; inside `without_gradients`, computes the value alone."""
    import tensorflow as tf

    if in_exported_graph():
        return lambda *args: function(*args)[0]
    return tf.custom_gradient(function)


uses_fast_forms()  # raises on import, not inside a layer, if the variable has an unknown value
