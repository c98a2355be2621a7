"""Dropout (section 5.4)."""

import keras
from keras import ops

from keras_transformer.model.kernels.switch import kernel


@kernel
def dropout(inputs, rate, seed):
    """Sets a share of the inputs to 0 and divides the others by 1 - rate.

    Args:
        inputs: float, any shape.
        rate: that share, float, above 0 and below 1.
        seed: int tensor, shape `(2,)`; the same seed drops the same elements.

    Returns:
        float, shape as `inputs`.
    """
    draws = keras.random.uniform(ops.shape(inputs), dtype="float32", seed=_Drawn(seed))
    return ops.where(draws >= rate, inputs / (1 - rate), 0)


@dropout.fast_form
def _dropout(inputs, rate, seed):
    """Decides by 16 random bits, half of what Keras draws; the gradient is one multiplication.

    So the share is the nearest multiple of 1 / 65,536, and what is left is scaled for that.
    """
    import tensorflow as tf

    dropped = min(round(rate * 65536), 65535)
    shape = ops.shape(inputs)
    size = tf.reduce_prod(shape)
    words = tf.random.stateless_uniform(
        ((size + 1) // 2,), tf.cast(seed, tf.int32), minval=None, maxval=None, dtype=tf.uint32
    )
    draws = tf.reshape(tf.bitcast(words, tf.uint16), (-1,))[:size]
    kept = tf.cast(tf.reshape(draws, shape) >= tf.constant(dropped, tf.uint16), inputs.dtype)
    return inputs * (kept * (65536 / (65536 - dropped)))


class _Drawn(keras.random.SeedGenerator):
    """Gives Keras a seed that is drawn already."""

    def __init__(self, seed):
        self._seed = seed

    def next(self, ordered=True):
        return self._seed
