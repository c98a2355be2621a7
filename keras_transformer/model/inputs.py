"""What `fit`, `evaluate` and `predict` are given: refused in one line before the first step (TensorFlow)."""

import re

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.model.layers.ids import check_ids, id_pair
from keras_transformer.model.loss import check_weights

LABELS_AS_TARGETS = "labels_shaped_as_target_ids"  # name of the operation that fails where they are not
_NOT_IN_RANGE = re.compile(r"= (-?\d+) is not in \[0, (\d+)\)")


def pair(inputs):
    """Returns source and target ids of what a model is called with.

    Raises:
        TypeError, ValueError: it is neither a pair of dense tensors nor a dict of them.
    """
    inputs = id_pair(inputs)
    for name, ids in zip(("source_ids", "target_ids"), inputs, strict=True):
        refuse_ragged(name, ids)
    return inputs


def refuse_ragged(name, ids):
    """Refuses ragged ids, and such as are missing.

    Raises:
        ValueError: with how to pad them.
    """
    if ids is None:
        raise ValueError(f"{name} are missing: give ((source_ids, target_ids), labels)")
    if isinstance(ids, (tf.RaggedTensor, tf.SparseTensor)):
        raise ValueError(
            f"{name} must be a dense tensor, padded; use ids.to_tensor(pad_id). Received: a ragged one"
        )


def check_data(x, y, sample_weight, class_weight, vocab_sizes):
    """Refuses what would fail later, or train on something else than meant.

    Args:
        x: as `keras.Model.fit` takes it.
        y: as `keras.Model.fit` takes it.
        sample_weight: as `keras.Model.fit` takes it.
        class_weight: as `keras.Model.fit` takes it.
        vocab_sizes: pair of int, of source and target ids.

    Raises:
        TypeError, ValueError: with the reason.
    """
    if class_weight is not None:
        raise ValueError(
            "`class_weight` is not supported: Keras takes labels of two axes as one-hot. Give "
            "`sample_weight=weights[labels]`, with a NumPy array `weights` of one number for each id"
        )
    if hasattr(x, "planner"):
        raise ValueError(f"{type(x).__name__} are no dataset yet. Use fit(batches.dataset(epochs=10))")
    if isinstance(x, tf.data.Dataset):
        if int(x.cardinality()) == 0:
            raise ValueError("the dataset has no batch: there is nothing to train on or to evaluate")
        _check_spec(x.element_spec)
        return
    if y is None:
        return
    source_ids, target_ids = pair(x)
    refuse_ragged("labels", y)
    _check_ids("source_ids", "source id", source_ids, vocab_sizes[0], micro_batches=True)
    _check_ids("target_ids", "target id", target_ids, vocab_sizes[1], micro_batches=True)
    if all(hasattr(each, "shape") for each in (target_ids, y)):
        check_shapes(target_ids, y, sample_weight)
    _check_ids("labels", "label", y, vocab_sizes[1], micro_batches=True)


def check_inputs(x, vocab_sizes):
    """Refuses arrays of which a model makes no logits.

    Args:
        x: as `keras.Model.predict` takes it.
        vocab_sizes: pair of int, of source and target ids.

    Raises:
        TypeError, ValueError: with the reason.
    """
    if not isinstance(x, (tuple, list, dict, np.ndarray)):
        return
    source_ids, target_ids = id_pair(x)
    _check_ids("source_ids", "source id", source_ids, vocab_sizes[0])
    _check_ids("target_ids", "target id", target_ids, vocab_sizes[1])


def check_shapes(target_ids, labels, sample_weight=None):
    """Refuses labels or weights that are known not to fit.

    Args:
        target_ids: tensor, array or `tf.TensorSpec`.
        labels: the same.
        sample_weight: the same, or `None`.

    Raises:
        ValueError: with both shapes.
    """
    ids, of_labels = _shape(target_ids), _shape(labels)
    if ids is None or of_labels is None:
        raise ValueError(
            "target_ids and labels must have a known number of axes: give the dataset's tensors a shape, "
            "such as tf.ensure_shape(labels, (None, None))"
        )
    received = f"Received: labels of shape {of_labels} for target_ids of {ids}"
    if len(of_labels) == len(ids) + 1 and _compatible(of_labels[:-1], ids):
        advice = "labels[..., 0]" if of_labels[-1] == 1 else "labels.argmax(-1) if they are one-hot"
        raise ValueError(f"labels must be ids, one for each target id: give {advice}. {received}")
    if not _compatible(of_labels, ids):
        raise ValueError(f"labels must have the shape of target_ids, a label for each target id. {received}")
    if sample_weight is not None and hasattr(sample_weight, "shape"):
        of_weights = _shape(sample_weight)
        if of_weights is None:
            raise ValueError(
                "`sample_weight` must have a known number of axes: give the dataset's tensors a shape, "
                "such as tf.ensure_shape(sample_weight, (None, None))"
            )
        check_weights(of_weights, of_labels)


def _check_spec(spec):
    """Refuses batches of a dataset whose shapes are known not to fit."""
    inputs, labels, sample_weight = keras.utils.unpack_x_y_sample_weight(spec)
    if labels is None:
        return
    _, target_ids = pair(inputs)
    if all(isinstance(each, tf.TensorSpec) for each in (target_ids, labels)):
        check_shapes(target_ids, labels, sample_weight)


def _check_ids(argument, name, ids, size, micro_batches=False):
    """Refuses ids of an array that are none of the vocabulary; float labels of whole numbers are taken."""
    if not isinstance(ids, np.ndarray):
        return
    if argument != "labels" or ids.dtype.kind not in "iuf":
        check_ids(argument, ids[0] if micro_batches and ids.ndim == 3 and len(ids) else ids)
    if not len(ids):
        raise ValueError(f"there are no {name}s: arrays of 0 rows")
    if not ids.size:
        return
    for worst in (ids.min(), ids.max()):
        if not 0 <= worst < size:
            raise ValueError(_out_of_range(f"{name} {worst}", size))


def _shape(x):
    """Returns the shape as far as it is known, as a tuple; `None` where not even its length is."""
    try:
        return tuple(x.shape)
    except ValueError:
        return None


def _compatible(shape, other):
    return len(shape) == len(other) and all(
        None in sizes or sizes[0] == sizes[1] for sizes in zip(shape, other, strict=True)
    )


def in_one_line(error):
    """Returns the `ValueError` that stands for TensorFlow's about ids and labels, or `None` for another."""
    if LABELS_AS_TARGETS in str(error):
        return ValueError(
            "labels must have the shape of target_ids, a label for each target id. Those of a batch have "
            "another"
        )
    found = _NOT_IN_RANGE.search(str(error))
    return found and ValueError(_out_of_range(f"source id, target id or label {found[1]}", found[2]))


def _out_of_range(what, size):
    return (
        f"{what} is outside of the vocabulary, whose ids go from 0 to {int(size) - 1}. The model must be "
        "made for the vocab_size of the tokenizer that made the ids"
    )
