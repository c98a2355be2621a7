"""The mean of the weights of several checkpoints (section 6.1)."""

import numpy as np
import tensorflow as tf

from keras_transformer.training import tensor_files


def mean_weights(prefixes):
    """Averages in float64, one weight at a time, and without a model.

    Args:
        prefixes: paths of checkpoints of one model.

    Returns:
        {name: NumPy array}, in the dtype of the weights.

    Raises:
        ValueError: one of them is damaged, or of another model than the first.
    """
    total = {}
    for number, prefix in enumerate(prefixes):
        weights = tensor_files.read(prefix, "weights")
        shapes = {name: value.shape for name, value in weights.items()}
        if number == 0:
            first, dtypes = shapes, {name: value.dtype for name, value in weights.items()}
            total = {name: np.zeros(shape, np.float64) for name, shape in shapes.items()}
        if shapes != first:
            raise ValueError(f"{prefix}: of another model than {prefixes[0]}")
        for name, value in weights.items():
            total[name] += value
    return {name: (value / len(prefixes)).astype(dtypes[name]) for name, value in total.items()}


def write_average(prefixes, target):
    """Writes the mean of checkpoints' weights as another one, of weights only.

    Args:
        prefixes: paths of checkpoints of one model.
        target: path of the average; what it held before is replaced when all is written.

    Raises:
        ValueError: as `mean_weights`.
        StorageError: there is no room.
    """
    weights = {name: tf.Variable(value, trainable=False) for name, value in mean_weights(prefixes).items()}
    tensor_files.write({"weights": weights}, target)
