"""Query-key normalization (Henry et al., 2020, https://arxiv.org/abs/2010.04245)."""

from typing import Any

import keras
from keras import ops

from keras_transformer.config.types import Shape, Tensor
from keras_transformer.model.layers.basics import PACKAGE, Layer

# Henry et al. start from log2(L^2 - L), where L is the length of a long training sentence: L = 32.5 gives 10.
INITIAL_SCALE = 10.0


@keras.saving.register_keras_serializable(package=PACKAGE)
class QueryKeyNorm(Layer):
    """Makes attention scores g cos(q, k), with a learned number g, in place of q k^T / sqrt(d_k).

    Queries and keys of each head are divided by their length (l2 norm), so scores lie between -g and g. A
    query is also multiplied by g sqrt(d_k), because attention divides by sqrt(d_k) afterwards.
    """

    def build(self, inputs_shape: Shape | None = None) -> None:
        initializer = keras.initializers.Constant(INITIAL_SCALE)
        self.scale = self.add_weight(name="scale", shape=(), initializer=initializer, autocast=False)

    def query(self, x: Tensor) -> Tensor:
        """Returns normalized and scaled queries: float, as `x`, shape `(batch, num_heads, length, d_k)`."""
        unit = _unit(x)
        return ops.cast(unit * (ops.cast(self.scale, unit.dtype) * x.shape[-1] ** 0.5), x.dtype)

    def key(self, x: Tensor) -> Tensor:
        """Returns normalized keys: float, as `x`, shape `(batch, num_heads, length, d_k)`."""
        return ops.cast(_unit(x), x.dtype)

    def call(self, inputs: Tensor) -> Any:
        return self.query(inputs)


def _unit(x):
    """Divides vectors by their length, in at least float32; a zero vector stays zero."""
    x = ops.cast(x, keras.backend.result_type(x.dtype, "float32"))
    return x * ops.rsqrt(ops.maximum(ops.sum(x * x, axis=-1, keepdims=True), 1e-12))
