"""The choice between the two forms of a computation."""

import functools
import os

import keras

VARIABLE = "KERAS_TRANSFORMER_KERNELS"


def uses_fast_forms():
    """Returns whether kernels are to compute in their fast form.

    Raises:
        ValueError: the environment variable is neither `fast` nor `plain`.
    """
    form = os.environ.get(VARIABLE, "fast")
    if form not in ("fast", "plain"):
        raise ValueError(f"the environment variable {VARIABLE} must be fast or plain. Received: {form!r}")
    return form == "fast" and keras.backend.backend() == "tensorflow"


def kernel(plain):
    """Decorates a formula that has a fast form, too.

    ```python
    @kernel
    def product(x, y):
        return ops.matmul(x, y)

    @product.fast_form
    def _product(x, y):
        ...
    ```

    Returns:
        A function that computes in the form that the environment asks for; its attributes `plain` and `fast`
        are the two.
    """

    @functools.wraps(plain)
    def compute(*args, **kwargs):
        return (compute.fast if uses_fast_forms() else plain)(*args, **kwargs)

    def fast_form(function):
        compute.fast = function
        return function

    compute.plain, compute.fast_form = plain, fast_form
    return compute


uses_fast_forms()  # another word is refused at once, not within a layer
