"""Which positions may be looked at. Masks are boolean; True means visible."""

import functools

from keras import ops


def padding_mask(ids, pad_id):
    """Lets every position see the real tokens of a sentence.

    Args:
        ids: int, shape `(batch, length)`.
        pad_id: id of the padding token.

    Returns:
        bool, shape `(batch, 1, length)`.
    """
    return ops.expand_dims(ops.not_equal(ids, pad_id), 1)


def causal_mask(length):
    """Lets position i see positions 0..i (section 3.2.3).

    Args:
        length: int or scalar tensor, number of positions.

    Returns:
        bool, shape `(1, length, length)`.
    """
    position = ops.arange(length)
    return (position[:, None] >= position[None, :])[None]


def merged(*masks):
    """Shows what each of some masks shows.

    Args:
        *masks: bool, of shapes that broadcast; `None` shows everything.

    Returns:
        bool; the mask itself where there is one, `None` where there is none.
    """
    masks = [mask for mask in masks if mask is not None]
    return functools.reduce(ops.logical_and, masks) if masks else None
