"""Kernels: a few computations in two forms, a plain formula and a faster TensorFlow form.

The plain form is written with `keras.ops` and decorated with `kernel`. The fast form follows it and must give
the same values and gradients, with fewer operations or fewer passes over memory. The layers call a kernel by
the name of its plain form.

The environment variable `KERAS_TRANSFORMER_KERNELS` selects the form of all kernels: `fast` (the default) or
`plain`. It is read at each call of a kernel, so a compiled graph keeps the form it was traced with. Backends
other than TensorFlow always use the plain form.

`tests/model/test_kernels.py` compares the two forms of every kernel. `benchmarks/kernel_speed.py` measures
their speed.
"""

from keras_transformer import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, {"switch": ("kernel", "uses_fast_forms")})
