"""Building blocks of the sublayers: linear projection, layer normalization and dropout."""

import contextlib
from typing import Any

import keras
from keras import ops

from keras_transformer.config.types import Shape
from keras_transformer.model.kernels.basics import add_bias, dropout, layer_norm
from keras_transformer.model.kernels.products import product
from keras_transformer.model.kernels.tensor_ops import flatten_leading_axes, restore_leading_axes
from keras_transformer.model.layers.other_names import own_names_of_call

PACKAGE = "keras_transformer"


class Layer(keras.layers.Layer):
    """Base class: the output has the shape and the implicit mask of the first input.

    Attributes:
        arguments: names of the constructor arguments that `get_config` saves. Each is stored as an attribute
            with the same name.
    """

    arguments: tuple[str, ...] = ()

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **own_names_of_call(self, kwargs))

    def compute_output_shape(self, inputs_shape: Shape) -> Shape:
        return inputs_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **{name: getattr(self, name) for name in self.arguments}}


@keras.saving.register_keras_serializable(package=PACKAGE)
class Projection(Layer):
    """Linear projection x W, or x W + b, at every position.

    The kernel W has two axes, also if it projects for several heads, so Glorot's fan-in and fan-out are those
    of the whole projection. All positions are multiplied in one matrix product, which on a CPU is twice as
    fast as a batched product.

    Args:
        units: width of the output.
        use_bias: whether to add b.
        activation: name of a Keras activation, or `None`.
        gain: factor on the initial values of W, which are Glorot-uniform.

    Input: float, shape `(..., features)`. Output: float, shape `(..., units)`.
    """

    arguments = ("units", "use_bias", "activation", "gain")

    def __init__(self, units, *, use_bias=False, activation=None, gain=1.0, **kwargs):
        super().__init__(**kwargs)
        if units < 1:
            raise ValueError(f"`units` must be at least 1. Received: units={units}")
        self.units = units
        self.use_bias = use_bias
        self.activation = activation
        self.gain = gain
        self._activate = keras.activations.get(activation)

    @property
    def is_product(self):
        """Whether the output is x W alone."""
        return not self.use_bias and self._activate is keras.activations.linear

    def build(self, inputs_shape):
        self.kernel = self.add_weight(
            name="kernel",
            shape=(inputs_shape[-1], self.units),
            # Glorot-uniform times `gain`: a factor of gain^2 on the variance.
            initializer=keras.initializers.VarianceScaling(self.gain**2, "fan_avg", "uniform"),
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(name="bias", shape=(self.units,), initializer="zeros")

    def call(self, inputs):
        outputs = product(flatten_leading_axes(inputs), self.kernel)
        if self.bias is not None:
            outputs = add_bias(outputs, self.bias)
        return restore_leading_axes(self._activate(outputs), inputs)

    def compute_output_shape(self, inputs_shape):
        return (*inputs_shape[:-1], self.units)


@keras.saving.register_keras_serializable(package=PACKAGE)
class LayerNormalization(keras.layers.LayerNormalization):
    """Layer normalization (section 3.1).

    Same weights, configuration and results as `keras.layers.LayerNormalization`, but computed by the kernel
    `layer_norm`.

    Args:
        epsilon: added to the variance.

    Input and output: float, shape `(..., features)`; computed in at least float32.
    """

    def __init__(self, *, epsilon=1e-6, **kwargs):
        unknown = kwargs.keys() - {"name", "dtype", "trainable"}
        if unknown:
            raise TypeError(f"unexpected arguments {sorted(unknown)}; only `epsilon` can be set")
        super().__init__(epsilon=epsilon, **kwargs)

    def call(self, inputs):
        dtype = keras.backend.result_type(inputs.dtype, "float32")
        x, gamma, beta = (ops.cast(tensor, dtype) for tensor in (inputs, self.gamma, self.beta))
        return ops.cast(layer_norm(x, gamma, beta, self.epsilon), self.compute_dtype)

    def get_config(self):
        return {**keras.layers.Layer.get_config(self), "epsilon": self.epsilon}


@keras.saving.register_keras_serializable(package=PACKAGE)
class Dropout(Layer):
    """Dropout (section 5.4): in training, sets random elements to 0 and scales the others.

    Under a distribution strategy, every replica drops different elements.

    Args:
        rate: probability of dropping an element, at least 0 and below 1; the others are scaled by
            1 / (1 - rate). The fast form rounds the rate to a multiple of 1 / 65,536.
        seed: int; `None` draws a random seed.
    """

    arguments = ("rate", "seed")

    def __init__(self, rate, *, seed=None, **kwargs):
        super().__init__(**kwargs)
        if not 0 <= rate < 1:
            raise ValueError(f"`rate` must be at least 0 and below 1. Received: rate={rate}")
        self.rate = rate
        self.seed = seed
        self._seed = None
        self.built = True  # Keras' quantization refuses layers that are not
        if rate > 0:
            self.seed_generator = keras.random.SeedGenerator(seed)

    def build(self, inputs_shape=None):
        """Does nothing: dropout has no weights."""

    def call(self, inputs, training=None):
        if not training or self.rate == 0:
            return inputs
        return dropout(inputs, self.rate, self.draw_seed() if self._seed is None else self._seed)

    def draw_seed(self):
        """Draws the next seed, as a call does, and returns it for use with `fixed`."""
        return _fold_in_replica(self.seed_generator.next())

    @contextlib.contextmanager
    def fixed(self, seed):
        """Context manager: calls use this `seed`, from `draw_seed`, and so drop the same elements."""
        self._seed = seed
        try:
            yield
        finally:
            self._seed = None


def _fold_in_replica(seed):
    """Makes a seed different on each replica: Keras draws the same seed on all of them.

    With one replica the seed is unchanged.
    """
    if keras.backend.backend() != "tensorflow":
        return seed
    import tensorflow as tf

    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return seed
    replica_id = tf.cast(replica.replica_id_in_sync_group, tf.int32)
    folded = tf.random.experimental.stateless_fold_in(ops.cast(seed, "int64"), replica_id)
    return ops.cast(folded, seed.dtype)
