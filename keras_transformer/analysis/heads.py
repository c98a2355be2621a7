"""What the heads of a trained model do, measured with NumPy, and models without some of them.

A job is a bool matrix with a row for each query and a column for each key: where a head would
look if it did that job and nothing else. How well a head does it is the share of its attention that
falls there. A head that looks at all positions alike has a share, too, and only what is far above
that says anything. What translates what is learned by IBM model 1 (Brown et al., 1993), which knows pairs of
sentences and nothing else: of the links that its two directions share, about 6 in 10, most are right.
"""

import contextlib
import itertools
from typing import NamedTuple

import numpy as np

KINDS = ("encoder", "decoder", "cross")
ITERATIONS = 8  # of IBM model 1
MAX_CELLS = 2_000_000  # of all tables of source by target pieces: some 300 MB, a few seconds


class Maps(NamedTuple):
    """The attention of all heads over some pairs; a list with one array a pair, each.

    A decoder's query i is the step that reads target id i - 1, or bos, and produces id i; its key
    j stands for what was read at step j.

    Attributes:
        encoder: float32, shape `(num_layers, num_heads, source_len, source_len)`.
        decoder: float32, shape `(num_layers, num_heads, target_len, target_len)`.
        cross: float32, shape `(num_layers, num_heads, target_len, source_len)`.
    """

    encoder: list
    decoder: list
    cross: list


class Share(NamedTuple):
    """How much of the attention falls on the keys of a job, mean over its queries.

    Attributes:
        heads: float64 NumPy array, shape `(num_layers, num_heads)`, from 0 to 1.
        uniform: float, that of a head which looks at all that it sees alike.
        num_queries: int, queries that the job has a key for; without any, all shares are 0.
    """

    heads: np.ndarray
    uniform: float
    num_queries: int

    @property
    def best(self):
        """`(layer, head)` with the largest share, from 0."""
        return tuple(int(i) for i in np.unravel_index(self.heads.argmax(), self.heads.shape))


def attention_maps(model, source_rows, target_rows):
    """Returns where all heads look, pair by pair.

    Args:
        model: a `Transformer`.
        source_rows: list of sequences of int, eos included.
        target_rows: list of sequences of int, as many, eos included, without bos.

    Returns:
        `Maps`.
    """
    layers = {
        "cross": range(model.config.num_decoder_layers),
        "decoder": range(model.config.num_decoder_layers),
        "encoder": range(model.config.num_encoder_layers),
    }
    maps = Maps([], [], [])
    for source, target in zip(source_rows, target_rows, strict=True):
        read = [model.special.bos, *target[:-1]]
        attended = model.attend((np.array([source], np.int32), np.array([read], np.int32)), **layers)
        for kind, of_kind in maps._asdict().items():
            weights = getattr(attended, kind)
            of_kind.append(np.stack([np.asarray(weights[layer])[0] for layer in layers[kind]]))
    return maps


def attention_mass(maps, jobs, *, causal=False):
    """Measures how well each head does a job.

    Args:
        maps: list of float NumPy arrays, shape `(num_layers, num_heads, num_queries, num_keys)`,
            each row of which sums to 1.
        jobs: list of bool NumPy arrays, one for each map, shape `(num_queries, num_keys)`.
            Queries without a wanted key do not count.
        causal: query i sees the keys 0 to i only, as in a decoder's self-attention.

    Returns:
        `Share`.

    Raises:
        ValueError: a job has another shape than its map.
    """
    total, uniform, count = 0.0, 0.0, 0
    for weights, wanted in zip(maps, jobs, strict=True):
        if wanted.shape != weights.shape[2:]:
            raise ValueError(
                f"A job must have the shape of its map, {weights.shape[2:]}. Received: {wanted.shape}"
            )
        if causal:
            wanted = wanted & np.tri(*wanted.shape, dtype=bool)
        visible = np.arange(1, len(wanted) + 1) if causal else np.full(len(wanted), wanted.shape[1])
        total = total + (weights * wanted).sum((2, 3), dtype=np.float64)
        uniform += (wanted.sum(1) / visible).sum()
        count += int(wanted.any(1).sum())
    return Share(total / max(count, 1), float(uniform / max(count, 1)), count)


def offset_pattern(num_queries, num_keys, offset):
    """Looks so many places further: -1 is the position before, 0 the query's own, 1 the next.

    Returns:
        bool NumPy array, shape `(num_queries, num_keys)`.
    """
    return np.eye(num_queries, num_keys, k=offset, dtype=bool)


def place_pattern(num_queries, num_keys, key):
    """Looks at one place whatever the query: 0 is the first, -1 the last.

    Returns:
        bool NumPy array, shape `(num_queries, num_keys)`.
    """
    wanted = np.zeros((num_queries, num_keys), bool)
    wanted[:, key] = True
    return wanted


def repeat_pattern(pieces):
    """Looks at other places with the piece of the query.

    Args:
        pieces: sequence of str or int, of queries and keys alike.

    Returns:
        bool NumPy array, shape `(len(pieces), len(pieces))`.
    """
    pieces = np.asarray(pieces)
    return (pieces[:, None] == pieces[None]) & ~np.eye(len(pieces), dtype=bool)


def link_pattern(num_queries, num_keys, links, *, shift=0):
    """Looks at the source pieces that are linked to a target piece.

    Args:
        links: iterable of `(source, target)`, numbers of pieces from 0.
        shift: 0 for the step that produces the target piece, 1 for the next, which reads it.

    Returns:
        bool NumPy array, shape `(num_queries, num_keys)`.
    """
    wanted = np.zeros((num_queries, num_keys), bool)
    for source, target in links:
        wanted[target + shift, source] = True
    return wanted


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


def sure_links(source_rows, target_rows, num_wanted):
    """Learns from pairs in both directions and returns the links that both find.

    Args:
        source_rows: iterable of sequences of int, the ids of pieces without special ones.
        target_rows: iterable of sequences of int, as many. Pairs beyond `MAX_CELLS` are
            not learned from.
        num_wanted: the first so many pairs are aligned.

    Returns:
        list of sets of `(source, target)`, numbers of pieces from 0, one for each of the
        first `num_wanted` pairs.
    """
    pairs, num_cells = [], 0
    for source, target in zip(source_rows, target_rows, strict=True):
        num_cells += (len(source) + 1) * (len(target) + 1)
        if num_cells > MAX_CELLS and len(pairs) >= num_wanted:
            break
        pairs.append((np.asarray(source, np.int64), np.asarray(target, np.int64)))
    if not pairs:
        return []
    forward = _best_links(pairs, num_wanted)
    backward = _best_links([pair[::-1] for pair in pairs], num_wanted)
    return [a & {link[::-1] for link in b} for a, b in zip(forward, backward, strict=True)]


def _best_links(pairs, num_wanted):
    """Links each target piece to its best source piece, or to none; learns t(target | source)."""
    fields = zip(*map(_cells, itertools.count(), *zip(*pairs, strict=True)), strict=True)
    number, source, target, source_id, target_id, distance = map(np.concatenate, fields)
    size = int(target_id.max(initial=0)) + 1
    _, both = np.unique(source_id * size + target_id, return_inverse=True)
    # Every target piece of every pair: over its cells the posterior sums to 1.
    longest = int(target.max(initial=0)) + 1
    _, place = np.unique(number * longest + target, return_inverse=True)
    probability = np.ones(len(both))
    for _ in range(ITERATIONS):
        posterior = probability / np.bincount(place, probability)[place]
        counts = np.bincount(both, posterior)[both]
        probability = counts / np.bincount(source_id, posterior)[source_id]
    # The best cell of each place comes last. Of a piece that occurs twice, the nearer one.
    order = np.lexsort((-distance, probability, place))
    best = order[np.append(place[order][1:] != place[order][:-1], True)] if len(order) else order
    links = [set() for _ in range(num_wanted)]
    for cell in best[(number[best] < num_wanted) & (source[best] >= 0)]:
        links[number[cell]].add((int(source[cell]), int(target[cell])))
    return links


def _cells(number, source_ids, target_ids):
    """The table of a pair, flat: pair, source, target, their ids, distance from the diagonal.

    The first row, source -1 and id 0, is of the empty word.
    """
    num_source, num_target = len(source_ids), len(target_ids)
    source = np.repeat(np.arange(-1, num_source), num_target)
    target = np.tile(np.arange(num_target), num_source + 1)
    source_id = np.repeat(np.concatenate([[0], source_ids + 1]), num_target)
    target_id = np.tile(target_ids, num_source + 1)
    distance = np.abs((source + 0.5) / max(num_source, 1) - (target + 0.5) / max(num_target, 1))
    return np.full(len(source), number), source, target, source_id, target_id, distance
