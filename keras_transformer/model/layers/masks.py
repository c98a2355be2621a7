"""Attention masks: boolean arrays in which True means visible."""

import functools

from keras import ops

from keras_transformer.config.types import Tensor


def padding_mask(ids: Tensor, pad_id: int) -> Tensor:
    """Returns the mask that hides padding keys from all queries.

    Args:
        ids: int, shape `(batch, length)`.
        pad_id: id of the padding token.

    Returns:
        bool, shape `(batch, 1, length)`.
    """
    return ops.expand_dims(ops.not_equal(ids, pad_id), 1)


def causal_mask(length: int) -> Tensor:
    """Returns the mask in which position i sees positions 0 to i (section 3.2.3).

    Args:
        length: int or scalar tensor, number of positions.

    Returns:
        bool, shape `(1, length, length)`.
    """
    position = ops.arange(length)
    return (position[:, None] >= position[None, :])[None]


def combine_masks(*masks):
    """Combines masks with AND.

    Args:
        *masks: bool, with shapes that broadcast; `None` masks are ignored.

    Returns:
        bool, or `None` if all masks are `None`.
    """
    masks = [mask for mask in masks if mask is not None]
    return functools.reduce(ops.logical_and, masks) if masks else None


def combine_call_masks(**masks):
    """Combines the masks of a call into one mask with three axes; `None` if all of them are `None`."""
    expanded = []
    for name, mask in masks.items():
        if mask is None:
            continue
        axes = "(batch, target_len, source_len)" if name == "attention_mask" else "(batch, length)"
        if len(mask.shape) != len(axes.split(",")):
            raise ValueError(f"`{name}` must have the axes {axes}. Received: shape {tuple(mask.shape)}")
        if name != "attention_mask":
            mask = ops.expand_dims(mask, 2 if name == "query_mask" else 1)
        expanded.append(mask)
    return combine_masks(*expanded)
