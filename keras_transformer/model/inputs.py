"""Checks of token ids for a model and its `fit`, `evaluate` and `predict`; errors have one line."""

import re

import keras
import numpy as np

LABELS_AS_TARGETS = "labels_shaped_as_target_ids"  # name of the operation that fails if they are not
_NOT_IN_RANGE = re.compile(r"= (-?\d+) is not in \[0, (\d+)\)")
_PAIR = "`inputs` must be a pair (source_ids, target_ids), or a dict with these two names"


def id_pair(inputs):
    """Unpacks the inputs of a model.

    Args:
        inputs: pair `(source_ids, target_ids)`, or a dict with these keys.

    Returns:
        Tuple `(source_ids, target_ids)`.

    Raises:
        TypeError, ValueError: `inputs` is neither of the two.
    """
    if isinstance(inputs, dict):
        if set(inputs) != {"source_ids", "target_ids"}:
            raise ValueError(f"{_PAIR}. Received: a dict with the names {sorted(map(str, inputs))}")
        return inputs["source_ids"], inputs["target_ids"]
    if not isinstance(inputs, tuple | list):
        raise TypeError(f"{_PAIR}. Received: {_describe(inputs)}")
    if len(inputs) != 2:
        raise ValueError(f"{_PAIR}. Received: {len(inputs)} inputs")
    return tuple(inputs)


def check_pair(inputs, vocab_sizes, pad_id):
    """Unpacks the inputs of a model and checks that they are ids of its vocabularies.

    Args:
        inputs: see `id_pair`.
        vocab_sizes: pair of int, sizes of the source and target vocabularies.
        pad_id: int, used in error messages only.

    Returns:
        Tuple `(source_ids, target_ids)`.

    Raises:
        TypeError, ValueError: the inputs are not such ids.
    """
    source_ids, target_ids = inputs = id_pair(inputs)
    for name, ids, size in zip(("source_ids", "target_ids"), inputs, vocab_sizes, strict=True):
        check_ids(name, ids, pad_id)
        _check_range(name, ids, size)
    if not _compatible((source_ids.shape[0],), (target_ids.shape[0],)):
        raise ValueError(
            "`source_ids` and `target_ids` must have the same number of rows. "
            f"Received: {source_ids.shape[0]} and {target_ids.shape[0]}"
        )
    return inputs


def check_ids(name, ids, pad_id=0):
    """Checks that ids are integers with the shape `(batch, length)`; adds no operation to a graph.

    Args:
        name: name of the argument, for error messages.
        ids: tensor or array.
        pad_id: int, used in error messages only.

    Raises:
        TypeError: the ids are ragged, sparse or not integers.
        ValueError: the ids do not have two axes.
    """
    _check_dense(name, ids, pad_id)
    dtype = getattr(ids, "dtype", None)
    dtype = str(getattr(dtype, "name", dtype))
    if "int" not in dtype:
        raise TypeError(
            f"`{name}` must be an array or a tensor of integers, such as int32. Received: {_describe(ids)}"
        )
    shape = _shape(ids)
    if shape is not None and len(shape) != 2:
        raise ValueError(f"`{name}` must have the shape (batch, length). Received: {_describe(ids)}")


def batch_pair(inputs, labels):
    """Returns the source and target ids of a training batch.

    Raises:
        TypeError, ValueError: ids or labels are missing, ragged or sparse.
    """
    inputs = id_pair(inputs)
    for name, ids in zip(("source_ids", "target_ids", "labels"), (*inputs, labels), strict=True):
        if ids is None:
            raise ValueError(f"{name} are missing: give ((source_ids, target_ids), labels)")
        _check_dense(name, ids)
    return inputs


def check_data(x, y, sample_weight, class_weight, vocab_sizes):
    """Checks the data of `fit` or `evaluate` for errors that Keras reports late, unclearly or never.

    Args:
        x: see `keras.Model.fit`.
        y: see `keras.Model.fit`.
        sample_weight: see `keras.Model.fit`.
        class_weight: see `keras.Model.fit`; must be `None`.
        vocab_sizes: pair of int, sizes of the source and target vocabularies.

    Raises:
        TypeError, ValueError: the data cannot be used.
    """
    if class_weight is not None:
        raise ValueError(
            "`class_weight` is not supported: Keras takes labels of two axes as one-hot. Give "
            "`sample_weight=weights[labels]`, with a NumPy array `weights` of one number for each id"
        )
    if hasattr(x, "planner"):
        raise ValueError(f"{type(x).__name__} are not a dataset. Use fit(batches.dataset(epochs=10))")
    if hasattr(x, "element_spec") and callable(getattr(x, "cardinality", None)):  # a `tf.data.Dataset`
        if int(x.cardinality()) == 0:
            raise ValueError("the dataset has no batches")
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(x.element_spec)
    if y is None:
        return
    source_ids, target_ids = batch_pair(x, y)
    _check_array("source_ids", source_ids, vocab_sizes[0], micro_batches=True)
    _check_array("target_ids", target_ids, vocab_sizes[1], micro_batches=True)
    if hasattr(target_ids, "shape") and hasattr(y, "shape"):
        check_shapes(target_ids, y, sample_weight)
    _check_array("labels", y, vocab_sizes[1], micro_batches=True)


def check_inputs(x, vocab_sizes):
    """Checks the arrays passed to `predict`.

    Args:
        x: see `keras.Model.predict`.
        vocab_sizes: pair of int, sizes of the source and target vocabularies.

    Raises:
        TypeError, ValueError: the arrays are not pairs of ids of these vocabularies.
    """
    if isinstance(x, (tuple, list, dict, np.ndarray)):
        for name, ids, size in zip(("source_ids", "target_ids"), id_pair(x), vocab_sizes, strict=True):
            _check_array(name, ids, size)


def check_shapes(target_ids, labels, sample_weight=None):
    """Checks the shapes of labels and weights, as far as they are known, against the target ids.

    Args:
        target_ids: tensor, array or `tf.TensorSpec`.
        labels: the same.
        sample_weight: the same, or `None`.

    Raises:
        ValueError: the shapes do not match; the message has both.
    """
    ids, labels_shape = _shape(target_ids), _shape(labels)
    unknown = "must have a known number of axes: give the dataset's tensors a shape, such as tf.ensure_shape"
    if ids is None or labels_shape is None:
        raise ValueError(f"target_ids and labels {unknown}(labels, (None, None))")
    received = f"Received: labels of shape {labels_shape} for target_ids of {ids}"
    if _compatible(labels_shape[:-1], ids):
        advice = "labels[..., 0]" if labels_shape[-1] == 1 else "labels.argmax(-1) if they are one-hot"
        raise ValueError(f"labels must be ids, one for each target id: give {advice}. {received}")
    if not _compatible(labels_shape, ids):
        raise ValueError(f"labels must have the shape of target_ids, a label for each target id. {received}")
    if sample_weight is not None and hasattr(sample_weight, "shape"):
        weights_shape = _shape(sample_weight)
        if weights_shape is None:
            raise ValueError(f"`sample_weight` {unknown}(sample_weight, (None, None))")
        check_weights(weights_shape, labels_shape)


def check_weights(shape, labels_shape):
    """Checks that there is a sample weight for each token, or one for each sentence.

    Args:
        shape: shape of the weights, tuple of int, with `None` for unknown sizes.
        labels_shape: shape of the labels, the same.

    Raises:
        ValueError: the shapes do not match; the message has both.
    """
    sentences = labels_shape[:-1]
    if not any(_compatible(shape, expected) for expected in (labels_shape, sentences, (*sentences, 1))):
        raise ValueError(
            "`sample_weight` must have the shape of the labels, a weight for each token, or that shape "
            "without its last axis, a weight for each sentence. "
            f"Received: {shape} for labels of {labels_shape}"
        )


def shorten_error(error, config):
    """Converts a TensorFlow error about ids or labels to a `ValueError` of one line; `None` for others.

    Args:
        error: `tf.errors.InvalidArgumentError`.
        config: `ModelConfig` of the model.
    """
    if LABELS_AS_TARGETS in str(error):
        return ValueError(
            "labels must have the shape of target_ids, a label for each target id. Those of a batch have "
            "another"
        )
    match = _NOT_IN_RANGE.search(str(error))
    if not match:
        return None
    size = int(match[2])
    by_id = _out_of_range("source id, target id or label", match[1], size)
    if config.positions != "learned" or size != config.max_positions or int(match[1]) < size:
        return by_id
    by_length = f"has more than {size} tokens, the `max_positions` of the model's learned positions"
    if size in (config.source_vocab_size, config.target_vocab_size):
        return ValueError(f"{by_id}; or a sentence {by_length}")
    return ValueError(f"a sentence {by_length}. Shorten it, or use a model with a larger `max_positions`")


def _check_dense(name, ids, pad_id=0):
    """Raises an error for ragged and sparse tensors."""
    if getattr(ids, "ragged", False) or hasattr(ids, "row_splits"):
        raise TypeError(
            f"`{name}` must be padded to one length: {name}.to_tensor({pad_id}). Received: a ragged tensor"
        )
    if getattr(ids, "sparse", False) or hasattr(ids, "dense_shape"):
        raise TypeError(f"`{name}` must be a dense tensor. Received: a sparse one")


def _check_array(name, ids, vocab_size, micro_batches=False):
    """Checks that a NumPy array contains ids of the vocabulary; labels may be of a float type."""
    if not isinstance(ids, np.ndarray):
        return
    if name != "labels" or ids.dtype.kind not in "iuf":
        check_ids(name, ids[0] if micro_batches and ids.ndim == 3 and len(ids) else ids)
    if not len(ids):
        raise ValueError(f"`{name}` must have at least one row. Received: 0 rows")
    _check_range(name, ids, vocab_size)


def _check_range(name, ids, vocab_size):
    """Checks that ids are in the vocabulary, if their values are known, that is, outside a graph.

    Without the check, TensorFlow on a GPU would return zeros for them.
    """
    values = ids.numpy() if hasattr(ids, "numpy") else ids
    if isinstance(values, np.ndarray) and values.size:
        for extreme in (values.min(), values.max()):
            if not 0 <= extreme < vocab_size:
                raise _out_of_range(name[:-1].replace("_", " "), extreme, vocab_size)


def _out_of_range(kind, value, vocab_size):
    """Makes the error for an id outside the vocabulary."""
    return ValueError(
        f"{kind} {value} is outside the vocabulary, whose ids are 0 to {vocab_size - 1}. The model "
        "needs the vocab_size of the tokenizer that made the ids"
    )


def _shape(x):
    """Returns the static shape as a tuple; `None` if the number of axes is unknown."""
    try:
        return tuple(x.shape)
    except ValueError:
        return None


def _compatible(shape, other):
    """Whether two static shapes may be equal; `None` matches any size."""
    return len(shape) == len(other) and all(
        None in sizes or sizes[0] == sizes[1] for sizes in zip(shape, other, strict=True)
    )


def _describe(x):
    """Describes type and shape of an object, for error messages."""
    dtype = getattr(x, "dtype", None)
    if dtype is None:
        return "None" if x is None else f"a {type(x).__name__}"
    return f"one of {getattr(dtype, 'name', dtype)}, shape {_shape(x) or 'unknown'}"
