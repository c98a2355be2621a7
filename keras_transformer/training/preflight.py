"""The largest batch is tried before the first step: memory runs short then, or not at all."""

import itertools

import numpy as np
import tensorflow as tf

from keras_transformer.batches.token_batches import id_dataset
from keras_transformer.checkpoints.errors import OutOfMemoryError
from keras_transformer.training.memory import largest_shape, out_of_memory_message


def try_largest(model, placement, batches, config):
    """Runs one training step on the largest shape of the batches; it changes nothing.

    It is a step of the training function itself, of rows without a real target token.

    Args:
        model: a compiled `Transformer`.
        placement: `Placement`.
        batches: `TokenBatches`.
        config: `Config`.

    Returns:
        (rows, source_len, target_len), the shape on each device.

    Raises:
        OutOfMemoryError: it does not fit.
    """
    device_tokens = config.devices.batch_tokens
    shapes = []

    def largest():
        return largest_shape(
            shapes, model.config, config.training.precision, recompute=config.devices.recompute
        )

    def forever(portions):
        shapes.extend({portions.shape(plan)[1:] for plan in batches.plan(0)})
        rows, source_len, target_len = largest()
        leading = (1, rows) if device_tokens else (rows,)
        source_ids = np.full((*leading, source_len), model.special.unk, np.int32)
        target_ids = np.full((*leading, target_len), model.special.unk, np.int32)
        labels = np.full((*leading, target_len), model.special.pad, np.int32)
        dataset = id_dataset(
            lambda: itertools.repeat(((source_ids, target_ids), labels)), axes=len(leading) + 1
        )
        return dataset.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))

    # Seeds, step and loss scale go on; weights and moments do not move.
    small = [
        variable
        for variable in (*model.non_trainable_variables, *model.optimizer.variables)
        if variable.shape.num_elements() <= 2
    ]
    before = [variable.numpy() for variable in small]
    sums = model.interval_sums()
    dataset = placement.distribute(batches, device_tokens, forever)
    try:
        model.fit(dataset, steps_per_epoch=1, shuffle=False, verbose=0)
    except tf.errors.ResourceExhaustedError as error:
        raise out_of_memory(largest(), config, error) from error
    for variable, value in zip(small, before, strict=True):
        variable.assign(value)
    model.set_interval_sums(sums)
    return largest()


def out_of_memory(shape, config, error):
    """Returns the `OutOfMemoryError` for a shape (rows, source_len, target_len)."""
    return OutOfMemoryError(out_of_memory_message(shape, config, error))
