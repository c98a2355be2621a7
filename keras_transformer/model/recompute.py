"""Layers whose inner results are computed a second time for the gradient, not kept."""

import contextlib

import tensorflow as tf

from keras_transformer.model.layers.dropout import Dropout


def recomputed(layer, *inputs, **constants):
    """Calls a layer in training; of what it computes, only `inputs` are kept for the gradient.

    Its dropout drops the same elements both times: the seeds are drawn before. (Keras'
    `RematScope` draws anew the second time, and so takes the gradient of another function.)

    Args:
        layer: `keras.layers.Layer`.
        *inputs: float tensors.
        **constants: what else the layer takes and has no gradient, such as masks.

    Returns:
        float tensor.

    Raises:
        ValueError: the layer has others within that draw random numbers; or one adds to the loss.
    """
    within = [each for each in layer._flatten_layers() if getattr(each, "seed_generator", None) is not None]
    dropouts = [each for each in within if isinstance(each, Dropout)]
    if len(dropouts) < len(within):
        other = next(each for each in within if each not in dropouts)
        raise ValueError(
            f"`recompute` would draw other random numbers the second time in {type(other).__name__} "
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
    for each in layer._flatten_layers():
        if each._losses:
            raise ValueError(
                f"`recompute` would leave out the gradient of what {type(each).__name__} {each.name!r} adds "
                "to the loss, as an activity_regularizer does. Use recompute=False"
            )
    return output
