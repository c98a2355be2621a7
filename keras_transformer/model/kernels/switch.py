"""Selects the plain or the fast form of the kernels."""

import functools
import os

import keras

VARIABLE = "KERAS_TRANSFORMER_KERNELS"


def uses_fast_forms():
    """Returns whether kernels use their fast form.

    Raises:
        ValueError: the environment variable is neither `fast` nor `plain`.
    """
    form = os.environ.get(VARIABLE, "fast")
    if form not in ("fast", "plain"):
        raise ValueError(f"the environment variable {VARIABLE} must be fast or plain. Received: {form!r}")
    return form == "fast" and keras.backend.backend() == "tensorflow"


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


uses_fast_forms()  # raises on import, not inside a layer, if the variable has an unknown value
