"""Computations that have a fast form, each beside the plain formula that it must equal.

A file holds the formula in `keras.ops`, decorated with `kernel`, and below it what TensorFlow computes
instead: the same values and gradients in fewer operations, or in fewer passes over memory. The environment
variable `KERAS_TRANSFORMER_KERNELS` chooses for all of them, `fast` (the default) or `plain`; it is read
whenever a kernel is called, so when a graph is made. Other backends than TensorFlow use the plain form.
`layers/` calls kernels by the name of the formula and needs to know nothing else.

`tests/model/test_kernels.py` holds both forms of each kernel together. `benchmarks/kernels.py` measures what
the fast one saves.
"""

from keras_transformer import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, {"switch": ("kernel", "uses_fast_forms")})
