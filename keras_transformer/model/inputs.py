"""Token ids as a model and its `fit`, `evaluate` and `predict` take them; others are refused in one line."""

import re

import keras
import numpy as np

LABELS_AS_TARGETS = "labels_shaped_as_target_ids"  # name of the operation that fails where they are not
_NOT_IN_RANGE = re.compile(r"= (-?\d+) is not in \[0, (\d+)\)")
_PAIR = "`inputs` must be a pair (source_ids, target_ids), or a dict with these two names"


def id_pair(inputs):
    """Takes apart what a model is called with.

    Args:
        inputs: pair `(source_ids, target_ids)`, or a dict with these names.

    Returns:
        Tuple `(source_ids, target_ids)`.

    Raises:
        TypeError, ValueError: neither of the two.
    """
    if isinstance(inputs, dict):
        if set(inputs) != {"source_ids", "target_ids"}:
            raise ValueError(f"{_PAIR}. Received: a dict with the names {sorted(map(str, inputs))}")
        return inputs["source_ids"], inputs["target_ids"]
    if not isinstance(inputs, tuple | list):
        raise TypeError(f"{_PAIR}. Received: {_described(inputs)}")
    if len(inputs) != 2:
        raise ValueError(f"{_PAIR}. Received: {len(inputs)} of them")
    return tuple(inputs)


def checked_pair(inputs, vocab_sizes, pad_id):
    """Takes apart what a model is called with, and refuses what cannot be ids of its vocabularies.

    Args:
        inputs: as `id_pair` takes it.
        vocab_sizes: pair of int, of source and target ids.
        pad_id: int, for the advice.

    Returns:
        Tuple `(source_ids, target_ids)`.

    Raises:
        TypeError, ValueError: with the reason.
    """
    source_ids, target_ids = inputs = id_pair(inputs)
    for name, ids, size in zip(("source_ids", "target_ids"), inputs, vocab_sizes, strict=True):
        check_ids(name, ids, pad_id)
        _check_range(name, ids, size)
    if not _compatible((source_ids.shape[0],), (target_ids.shape[0],)):
        raise ValueError(
            "`source_ids` and `target_ids` must have as many rows as each other. "
            f"Received: {source_ids.shape[0]} and {target_ids.shape[0]}"
        )
    return inputs


def check_ids(name, ids, pad_id=0):
    """Refuses what cannot be ids; looks at type and shape only, so it costs nothing in a graph.

    Args:
        name: of the argument.
        ids: tensor or array.
        pad_id: int, for the advice.

    Raises:
        TypeError: ragged or sparse, or not integers.
        ValueError: another number of axes than two, `(batch, length)`.
    """
    _check_dense(name, ids, pad_id)
    dtype = getattr(ids, "dtype", None)
    dtype = str(getattr(dtype, "name", dtype))
    if "int" not in dtype:
        raise TypeError(
            f"`{name}` must be an array or a tensor of integers, such as int32. Received: {_described(ids)}"
        )
    shape = _shape(ids)
    if shape is not None and len(shape) != 2:
        raise ValueError(f"`{name}` must have the shape (batch, length). Received: {_described(ids)}")


def batch_pair(inputs, labels):
    """Returns source and target ids of a batch to train on.

    Raises:
        TypeError, ValueError: they or the labels are missing, ragged or sparse.
    """
    inputs = id_pair(inputs)
    for name, ids in zip(("source_ids", "target_ids", "labels"), (*inputs, labels), strict=True):
        if ids is None:
            raise ValueError(f"{name} are missing: give ((source_ids, target_ids), labels)")
        _check_dense(name, ids)
    return inputs


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
    if hasattr(x, "element_spec") and callable(getattr(x, "cardinality", None)):  # a `tf.data.Dataset`
        if int(x.cardinality()) == 0:
            raise ValueError("the dataset has no batch: there is nothing to train on or to evaluate")
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
    """Refuses arrays of which a model makes no logits.

    Args:
        x: as `keras.Model.predict` takes it.
        vocab_sizes: pair of int, of source and target ids.

    Raises:
        TypeError, ValueError: with the reason.
    """
    if isinstance(x, (tuple, list, dict, np.ndarray)):
        for name, ids, size in zip(("source_ids", "target_ids"), id_pair(x), vocab_sizes, strict=True):
            _check_array(name, ids, size)


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
    unknown = "must have a known number of axes: give the dataset's tensors a shape, such as tf.ensure_shape"
    if ids is None or of_labels is None:
        raise ValueError(f"target_ids and labels {unknown}(labels, (None, None))")
    received = f"Received: labels of shape {of_labels} for target_ids of {ids}"
    if _compatible(of_labels[:-1], ids):
        advice = "labels[..., 0]" if of_labels[-1] == 1 else "labels.argmax(-1) if they are one-hot"
        raise ValueError(f"labels must be ids, one for each target id: give {advice}. {received}")
    if not _compatible(of_labels, ids):
        raise ValueError(f"labels must have the shape of target_ids, a label for each target id. {received}")
    if sample_weight is not None and hasattr(sample_weight, "shape"):
        of_weights = _shape(sample_weight)
        if of_weights is None:
            raise ValueError(f"`sample_weight` {unknown}(sample_weight, (None, None))")
        check_weights(of_weights, of_labels)


def check_weights(shape, of_labels):
    """Refuses weights that are neither one for each token nor one for each sentence.

    Args:
        shape: tuple of int, or of `None` where a size is not known.
        of_labels: the same.

    Raises:
        ValueError: with both shapes.
    """
    sentences = of_labels[:-1]
    if not any(_compatible(shape, fitting) for fitting in (of_labels, sentences, (*sentences, 1))):
        raise ValueError(
            "`sample_weight` must have the shape of the labels, a weight for each token, or that shape "
            "without its last axis, a weight for each sentence. "
            f"Received: {shape} for labels of {of_labels}"
        )


def in_one_line(error):
    """Returns the `ValueError` that stands for TensorFlow's about ids and labels, or `None` for another."""
    if LABELS_AS_TARGETS in str(error):
        return ValueError(
            "labels must have the shape of target_ids, a label for each target id. Those of a batch have "
            "another"
        )
    found = _NOT_IN_RANGE.search(str(error))
    return found and _out_of_range("source id, target id or label", found[1], int(found[2]))


def _check_dense(name, ids, pad_id=0):
    if getattr(ids, "ragged", False) or hasattr(ids, "row_splits"):
        raise TypeError(
            f"`{name}` must be padded to one length: {name}.to_tensor({pad_id}). Received: a ragged tensor"
        )
    if getattr(ids, "sparse", False) or hasattr(ids, "dense_shape"):
        raise TypeError(f"`{name}` must be a dense tensor. Received: a sparse one")


def _check_array(name, ids, vocab_size, micro_batches=False):
    """Refuses arrays that are no ids of the vocabulary; float labels of whole numbers are taken."""
    if not isinstance(ids, np.ndarray):
        return
    if name != "labels" or ids.dtype.kind not in "iuf":
        check_ids(name, ids[0] if micro_batches and ids.ndim == 3 and len(ids) else ids)
    if not len(ids):
        raise ValueError(f"there are no {name.replace('_', ' ')}: arrays of 0 rows")
    _check_range(name, ids, vocab_size)


def _check_range(name, ids, vocab_size):
    """Refuses ids outside the vocabulary where their values are at hand, which they are not in a graph.

    TensorFlow on a GPU would look up zeros for them.
    """
    values = ids.numpy() if hasattr(ids, "numpy") else ids
    if isinstance(values, np.ndarray) and values.size:
        for worst in (values.min(), values.max()):
            if not 0 <= worst < vocab_size:
                raise _out_of_range(name[:-1].replace("_", " "), worst, vocab_size)


def _out_of_range(kind, value, vocab_size):
    return ValueError(
        f"{kind} {value} is outside of the vocabulary, whose ids go from 0 to {vocab_size - 1}. The model "
        "must be made for the vocab_size of the tokenizer that made the ids"
    )


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


def _described(x):
    """Returns type and shape of an object in a few words."""
    dtype = getattr(x, "dtype", None)
    if dtype is None:
        return "None" if x is None else f"a {type(x).__name__}"
    return f"one of {getattr(dtype, 'name', dtype)}, shape {_shape(x) or 'unknown'}"
