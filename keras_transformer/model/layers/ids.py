"""Token ids as a model takes them; anything else is refused in one line."""

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
    if getattr(ids, "ragged", False) or hasattr(ids, "row_splits"):
        raise TypeError(
            f"`{name}` must be padded to one length: {name}.to_tensor({pad_id}). Received: a ragged tensor"
        )
    if getattr(ids, "sparse", False) or hasattr(ids, "dense_shape"):
        raise TypeError(f"`{name}` must be a dense tensor. Received: a sparse one")
    dtype = getattr(ids, "dtype", None)
    dtype = str(getattr(dtype, "name", dtype))
    if "int" not in dtype:
        raise TypeError(
            f"`{name}` must be an array or a tensor of integers, such as int32. Received: {_described(ids)}"
        )
    rank = _rank(ids)
    if rank not in (2, None):
        raise ValueError(f"`{name}` must have the shape (batch, length). Received: {_described(ids)}")


def check_rows(source_ids, target_ids):
    """Raises `ValueError` where the two are known to have other numbers of rows."""
    rows = [ids.shape[0] for ids in (source_ids, target_ids)]
    if None not in rows and rows[0] != rows[1]:
        raise ValueError(
            "`source_ids` and `target_ids` must have as many rows as each other. "
            f"Received: {rows[0]} and {rows[1]}"
        )


def check_range(name, ids, vocab_size):
    """Refuses ids outside the vocabulary where their values are at hand, which they are not in a graph.

    TensorFlow on a GPU would look up zeros for them.

    Raises:
        ValueError: some are negative, or too large.
    """
    values = ids.numpy() if hasattr(ids, "numpy") else ids
    if type(values).__module__ != "numpy" or not values.size:
        return
    if values.min() < 0 or values.max() >= vocab_size:
        raise ValueError(
            f"`{name}` must be from 0 to {vocab_size - 1}, the ids of the vocabulary. "
            f"Received: {values.min()} to {values.max()}"
        )


def _rank(x):
    try:
        return len(x.shape)
    except ValueError:  # TensorFlow does not know
        return None


def _described(x):
    """What somebody gave, in a few words."""
    dtype = getattr(x, "dtype", None)
    if dtype is None:
        return "None" if x is None else f"a {type(x).__name__}"
    shape = tuple(x.shape) if _rank(x) is not None else "unknown"
    return f"one of {getattr(dtype, 'name', dtype)}, shape {shape}"
