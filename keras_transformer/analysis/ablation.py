"""Models without some of their heads, to see what these were good for."""

import contextlib
from typing import NamedTuple

KINDS = ("encoder", "decoder", "cross")


class Head(NamedTuple):
    """One head of a model.

    Attributes:
        kind: one of `KINDS`: self-attention of the encoder or the decoder, or the attention of
            the decoder to the source.
        layer: number of its layer, from 0.
        head: its number, from 0.
    """

    kind: str
    layer: int
    head: int


def all_heads(config):
    """Returns the `Head`s of a `ModelConfig`: list, kind by kind, layer by layer."""
    numbers = {"encoder": config.num_encoder_layers}
    return [
        Head(kind, layer, head)
        for kind in KINDS
        for layer in range(numbers.get(kind, config.num_decoder_layers))
        for head in range(config.num_heads)
    ]


@contextlib.contextmanager
def without_heads(model, heads):
    """Lets a model compute without some heads while a `with` block runs.

    Concat(head_1, ..., head_h) W^O of section 3.2.2 is a sum over the heads, each with its own
    rows of W^O: with these rows 0, the head adds nothing. Graphs that were compiled before see
    it, too. The weights are put back at the end, whatever happens.

    Args:
        model: a `Transformer`.
        heads: list of `Head`.

    Raises:
        ValueError: there is no such head.
    """
    known = set(all_heads(model.config))
    for head in heads:
        if head not in known:
            raise ValueError(f"`heads` must be of the model, see `all_heads`. Received: {tuple(head)}")
    changed = {}
    for kind, layer, head in heads:
        attention = _attention(model, kind, layer)
        kernel, width = attention.output_projection.kernel, attention.value_dim
        if (kind, layer) not in changed:
            before = kernel.numpy()
            changed[kind, layer] = kernel, before, before.copy()
        changed[kind, layer][2][head * width : (head + 1) * width] = 0
    try:
        for kernel, _, zeroed in changed.values():
            kernel.assign(zeroed)
        yield model
    finally:
        for kernel, before, _ in changed.values():
            kernel.assign(before)


def _attention(model, kind, layer):
    """The `MultiHeadAttention` of a kind and a layer."""
    if kind == "encoder":
        return model.encoder_layers[layer].self_attention
    layer = model.decoder_layers[layer]
    return layer.self_attention if kind == "decoder" else layer.cross_attention
