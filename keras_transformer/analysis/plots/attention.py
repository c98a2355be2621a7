"""Plots of attention: single maps, all heads of a model, patterns of heads, ablations."""

import numpy as np

from keras_transformer.analysis.plots.style import (
    BLUE,
    COLOURS,
    ORANGE,
    draw_map,
    drawable,
    subplots,
    tidy,
)


def attention_map(weights, source_pieces, target_pieces, *, title=""):
    """Plots the attention of each target piece to each source piece.

    Args:
        weights: float NumPy array, shape `(num_target, num_source)`, from 0 to 1: a soft
            alignment, or the attention of one head.
        source_pieces: list of str, labels of the columns; pieces or words.
        target_pieces: list of str, labels of the rows, from top to bottom.
        title: title of the figure.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: the numbers of pieces and the shape of `weights` differ.
    """
    _check_shape("`weights`", np.shape(weights), target_pieces, source_pieces)
    height, width = (max(3.0, 1.5 + 0.28 * number) for number in np.shape(weights))
    figure, (axes,) = subplots(width + 0.8, height, title=title)
    image = draw_map(axes, weights, target_pieces, source_pieces)
    axes.set(xlabel="source", ylabel="target")
    figure.colorbar(image, label="attention", shrink=0.8)
    return figure


def head_grid(weights, query_pieces, key_pieces, *, names=("query", "key"), title=""):
    """Plots the attention of all heads of all layers for one sentence.

    Args:
        weights: float NumPy array, shape `(num_layers, num_heads, num_queries, num_keys)`, from 0
            to 1.
        query_pieces: list of str, labels of the rows, from top to bottom.
        key_pieces: list of str, labels of the columns.
        names: pair of str, axis labels of queries and keys.
        title: title of the figure.

    Returns:
        `matplotlib.figure.Figure` with one panel per head and one row of panels per layer.

    Raises:
        ValueError: the numbers of pieces and the shape of `weights` differ.
    """
    num_layers, num_heads, *shape = np.shape(weights)
    _check_shape("`weights` of a head", tuple(shape), query_pieces, key_pieces)
    width = max(1.3, 0.17 * shape[1])
    size = num_heads * width + 1.9, num_layers * (width * shape[0] / shape[1] + 0.12) + 1.1
    shared = {"layout": "compressed", "sharex": True, "sharey": True}
    figure, grid = subplots(*size, num_layers, num_heads, title=title, **shared)
    for (layer, head), axes in zip(np.ndindex(num_layers, num_heads), grid, strict=True):
        image = draw_map(axes, weights[layer][head], query_pieces, key_pieces, fontsize=7)
        axes.set_title(f"layer {layer}, head {head}", fontsize=8, pad=3)
        axes.tick_params(length=2)
    figure.supylabel(names[0], fontsize=9)
    figure.supxlabel(names[1], fontsize=9)
    figure.colorbar(image, ax=grid, label="attention", shrink=0.6, aspect=30)
    return figure


def attention_lines(heads, *, names=("query", "key"), title=""):
    """Plots attention like figures 3 to 5 of the paper: lines from each query to the keys it attends to.

    Args:
        heads: dict: name of a head -> `(weights, query_pieces, key_pieces)`; weights is a float NumPy array,
            shape `(num_queries, num_keys)`. Larger weights give darker lines.
        names: pair of str, labels of the queries (left) and the keys (right).
        title: title of the figure.

    Returns:
        `matplotlib.figure.Figure` with one panel per head, three in a row.

    Raises:
        ValueError: the numbers of pieces and the shape of `weights` differ.
    """
    rows = max(max(len(queries), len(keys)) for _, queries, keys in heads.values())
    columns = min(3, len(heads))
    bands = -(-len(heads) // columns)
    figure, grid = subplots(3.1 * columns, bands * (0.24 * rows + 1.0), bands, columns, title=title)
    for unused in grid[len(heads) :]:
        unused.remove()
    for number, (name, (weights, queries, keys)) in enumerate(heads.items()):
        _check_shape(f"`weights` of {name!r}", np.shape(weights), queries, keys)
        axes, colour = grid[number], COLOURS[number % len(COLOURS)]
        for ends, weight in np.ndenumerate(weights):
            if weight >= 0.02:  # fainter lines are invisible in print
                axes.plot([0, 1], ends, color=colour, alpha=min(1.0, float(weight)), linewidth=1.6)
        for x, side, offset, pieces in ((0, "right", -0.04, queries), (1, "left", 0.04, keys)):
            for y, text in enumerate(drawable(pieces)):
                axes.text(x + offset, y, text, ha=side, va="center", fontsize=8)
            axes.text(x, -1.2, names[x], ha="center", va="center", fontsize=8, style="italic")
        axes.set(xlim=(-0.85, 1.85), ylim=(rows - 0.5, -1.8))
        axes.set_title(*drawable([name]), fontsize=9)
        axes.axis("off")
    return figure


def attention_mass_bars(shares, *, title=""):
    """Plots how much of each head's attention is on the keys of some patterns.

    Args:
        shares: dict: name of a pattern -> `heads.AttentionMass`.
        title: title of the figure.

    Returns:
        `matplotlib.figure.Figure` with one panel per pattern, one row per layer and one column per head; the
        numbers are percent.
    """
    num_layers, num_heads = np.shape(next(iter(shares.values())).heads)
    width = max(1.6, 0.36 * num_heads + 0.35) * len(shares) + 0.9
    figure, row = subplots(
        width, max(1.9, 0.36 * num_layers + 1.4), columns=len(shares), title=title, sharey=True
    )
    for axes, (name, share) in zip(row, shares.items(), strict=True):
        image = draw_map(axes, share.heads)
        for (layer, head), value in np.ndenumerate(share.heads):
            colour = "white" if value > 0.55 else "black"
            axes.text(head, layer, f"{100 * value:.0f}", ha="center", va="center", fontsize=8, color=colour)
        axes.set_title(*drawable([f"{name}\n(uniform: {100 * share.uniform:.0f} %)"]), fontsize=8)
        axes.set(xticks=range(num_heads), yticks=range(num_layers))
        axes.set_xlabel("head", fontsize=8)
        axes.tick_params(length=0, labelsize=8)
    row[0].set_ylabel("layer", fontsize=8)
    figure.colorbar(image, ax=row, label="share of the attention", shrink=0.9)
    return figure


def ablation_bars(changes, *, ylabel, title=""):
    """Plots the effect of removing each head, one at a time.

    Args:
        changes: dict: kind of attention -> float NumPy array, shape `(num_layers, num_heads)`; the change of
            a quantity without the head.
        ylabel: name and unit of this quantity.
        title: title of the figure.

    Returns:
        `matplotlib.figure.Figure` with one panel per kind, all with the same scale. The head with the largest
        effect of each panel is highlighted.
    """
    figure, row = subplots(9, 3.0, columns=len(changes), title=title, sharey=True)
    for axes, (kind, values) in zip(row, changes.items(), strict=True):
        num_layers, num_heads = np.shape(values)
        width = 0.8 / num_heads
        most = np.unravel_index(np.abs(values).argmax(), values.shape)
        for (layer, head), value in np.ndenumerate(values):
            colour = ORANGE if (layer, head) == most else BLUE
            axes.bar(layer + (head - (num_heads - 1) / 2) * width, value, 0.85 * width, color=colour)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set(xticks=range(num_layers), xlabel=f"layer; its heads 0 to {num_heads - 1}", title=kind)
        tidy(axes)
    row[0].set_ylabel(ylabel)
    return figure


def _check_shape(what, shape, rows, columns):
    if shape != (len(rows), len(columns)):
        wanted = len(rows), len(columns)
        raise ValueError(f"{what} must have the shape {wanted} of the pieces. Received: {shape}")
