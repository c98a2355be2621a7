"""Gradient checkpointing of a layer (TensorFlow).

Keras' `RematScope` draws different dropout masks in the recomputation, so the gradient is wrong. Here the
seeds are drawn once and used twice.
"""

import contextlib

import tensorflow as tf

from keras_transformer.model.layers.basics import Dropout


def call_with_recompute(layer, *inputs, **constants):
    """Calls a layer in training and keeps only `inputs` in memory; the rest is recomputed for the gradient.

    The dropout seeds are drawn first, so the recomputation drops the same elements.

    Args:
        layer: `keras.layers.Layer`.
        *inputs: float tensors.
        **constants: other arguments of the layer, without a gradient, such as masks.

    Returns:
        float tensor, the output of the layer.

    Raises:
        ValueError: a sublayer other than this package's `Dropout` draws random numbers, or a sublayer adds
            to the loss.
    """
    children = layer._flatten_layers()
    random = [child for child in children if getattr(child, "seed_generator", None) is not None]
    dropouts = [child for child in random if isinstance(child, Dropout)]
    if len(dropouts) < len(random):
        other = next(child for child in random if child not in dropouts)
        raise ValueError(
            f"`recompute` would draw different random numbers when recomputing {type(other).__name__} "
            f"{other.name!r}. Use keras_transformer's Dropout, or recompute=False"
        )
    seeds = [dropout.draw_seed() for dropout in dropouts]

    @tf.recompute_grad
    def compute(*inputs):
        with contextlib.ExitStack() as stack:
            for dropout, seed in zip(dropouts, seeds, strict=True):
                stack.enter_context(dropout.fixed(seed))
            return layer(*inputs, **constants, training=True)

    output = compute(*inputs)
    for child in layer._flatten_layers():
        if child._losses:
            raise ValueError(
                f"`recompute` would miss the gradient of what {type(child).__name__} {child.name!r} "
                "adds to the loss, as an activity_regularizer does. Use recompute=False"
            )
    return output
