"""Pictures of attention: one map, all heads of a model, what they do, what is lost without them."""

import numpy as np
from matplotlib.figure import Figure

from keras_transformer.analysis.plots.style import BLUE, COLOURS, ORANGE, drawable, tidy


def attention_map(weights, source_pieces, target_pieces, *, title=""):
    """Draws how much each target piece looks at each source piece.

    Args:
        weights: float NumPy array, shape `(num_target, num_source)`, from 0 to 1: a soft
            alignment, or the attention of one head.
        source_pieces: list of str, below the columns; pieces or words.
        target_pieces: list of str, beside the rows, the first on top.
        title: above the picture.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: there are not as many pieces as rows or columns.
    """
    shape = len(target_pieces), len(source_pieces)
    if np.shape(weights) != shape:
        raise ValueError(
            "`weights` must have a row for each target piece and a column for each source piece: "
            f"{shape}. Received: shape {np.shape(weights)}"
        )
    size = [max(3.0, 1.5 + 0.28 * number) for number in shape]
    figure = Figure(figsize=(size[1] + 0.8, size[0]), layout="constrained")
    axes = figure.subplots()
    picture = axes.imshow(weights, cmap="Blues", vmin=0, vmax=1, aspect="equal")
    axes.set_xticks(range(shape[1]), drawable(source_pieces), rotation=90)
    axes.set_yticks(range(shape[0]), drawable(target_pieces))
    axes.set(xlabel="source", ylabel="target")
    figure.colorbar(picture, label="attention", shrink=0.8)
    if title:
        figure.suptitle(title)
    return figure


def head_grid(weights, query_pieces, key_pieces, *, names=("query", "key"), title=""):
    """Draws the attention of every head of every layer over one sentence.

    Args:
        weights: float NumPy array, shape `(num_layers, num_heads, num_queries, num_keys)`, from 0
            to 1.
        query_pieces: list of str, beside the rows, the first on top.
        key_pieces: list of str, below the columns.
        names: of queries and keys.
        title: above the picture.

    Returns:
        `matplotlib.figure.Figure`, one panel a head, a row of panels a layer.

    Raises:
        ValueError: there are not as many pieces as queries or keys.
    """
    num_layers, num_heads, *shape = np.shape(weights)
    if tuple(shape) != (len(query_pieces), len(key_pieces)):
        raise ValueError(
            "`weights` must have a row for each query piece and a column for each key piece: "
            f"{(len(query_pieces), len(key_pieces))}. Received: {tuple(shape)}"
        )
    width = max(1.3, 0.17 * shape[1])
    height = width * shape[0] / shape[1]
    figure = Figure(
        figsize=(num_heads * width + 1.9, num_layers * (height + 0.12) + 1.1), layout="compressed"
    )
    panels = figure.subplots(num_layers, num_heads, squeeze=False, sharex=True, sharey=True)
    for layer, row in enumerate(panels):
        for head, axes in enumerate(row):
            picture = axes.imshow(weights[layer][head], cmap="Blues", vmin=0, vmax=1, aspect="equal")
            axes.set_title(f"layer {layer}, head {head}", fontsize=8, pad=3)
            axes.set_xticks(range(shape[1]), drawable(key_pieces), rotation=90, fontsize=7)
            axes.set_yticks(range(shape[0]), drawable(query_pieces), fontsize=7)
            axes.tick_params(length=2)
    figure.supylabel(names[0], fontsize=9)
    figure.supxlabel(names[1], fontsize=9)
    figure.colorbar(picture, ax=panels, label="attention", shrink=0.6, aspect=30)
    if title:
        figure.suptitle(title)
    return figure


def attention_lines(panels, *, names=("query", "key"), title=""):
    """Draws attention as the paper's figures 3 to 5 do: a line from each query to what it looks at.

    Args:
        panels: dict: name of a head -> `(weights, query_pieces, key_pieces)`; weights is a float NumPy
            array, shape `(num_queries, num_keys)`, and a line is the darker, the larger its weight.
        names: of queries, on the left, and keys, on the right.
        title: above the picture.

    Returns:
        `matplotlib.figure.Figure`, one panel a head, three in a row.

    Raises:
        ValueError: there are not as many pieces as queries or keys.
    """
    rows = max(max(len(queries), len(keys)) for _, queries, keys in panels.values())
    columns = min(3, len(panels))
    bands = -(-len(panels) // columns)
    figure = Figure(figsize=(3.1 * columns, bands * (0.24 * rows + 1.0)), layout="constrained")
    places = figure.subplots(bands, columns, squeeze=False).ravel()
    for unused in places[len(panels) :]:
        unused.remove()
    for axes, (number, (name, (weights, queries, keys))) in zip(
        places, enumerate(panels.items()), strict=False
    ):
        if np.shape(weights) != (len(queries), len(keys)):
            raise ValueError(
                f"`weights` of {name!r} must have the shape {(len(queries), len(keys))}. "
                f"Received: {np.shape(weights)}"
            )
        for query, row in enumerate(weights):
            for key, weight in enumerate(row):
                if weight >= 0.02:  # fainter than print shows
                    alpha = min(1.0, float(weight))
                    axes.plot(
                        [0, 1], [query, key], color=COLOURS[number % len(COLOURS)], alpha=alpha, linewidth=1.6
                    )
        for x, side, pieces in ((0, "right", queries), (1, "left", keys)):
            for place, text in enumerate(drawable(pieces)):
                offset = -0.04 if side == "right" else 0.04
                axes.text(x + offset, place, text, ha=side, va="center", fontsize=8)
            axes.text(x, -1.2, names[x], ha="center", va="center", fontsize=8, style="italic")
        axes.set(xlim=(-0.85, 1.85), ylim=(rows - 0.5, -1.8))
        axes.set_title(name, fontsize=9)
        axes.axis("off")
    if title:
        figure.suptitle(title)
    return figure


def job_shares(shares, *, title=""):
    """Draws how well each head does each of some jobs.

    Args:
        shares: dict: name of a job -> `heads.Share`.
        title: above the picture.

    Returns:
        `matplotlib.figure.Figure`, one panel a job, a row a layer, a column a head; the numbers are
        percent.
    """
    num_layers, num_heads = np.shape(next(iter(shares.values())).heads)
    width = max(1.6, 0.36 * num_heads + 0.35)
    figure = Figure(
        figsize=(width * len(shares) + 0.9, max(1.9, 0.36 * num_layers + 1.4)), layout="constrained"
    )
    panels = figure.subplots(1, len(shares), squeeze=False, sharey=True)[0]
    for axes, (name, share) in zip(panels, shares.items(), strict=True):
        picture = axes.imshow(share.heads, cmap="Blues", vmin=0, vmax=1, aspect="equal")
        for (layer, head), value in np.ndenumerate(share.heads):
            colour = "white" if value > 0.55 else "black"
            axes.text(head, layer, f"{100 * value:.0f}", ha="center", va="center", fontsize=8, color=colour)
        axes.set_title(f"{name}\n(uniform: {100 * share.uniform:.0f} %)", fontsize=8)
        axes.set_xticks(range(num_heads))
        axes.set_yticks(range(num_layers))
        axes.set_xlabel("head", fontsize=8)
        axes.tick_params(length=0, labelsize=8)
    panels[0].set_ylabel("layer", fontsize=8)
    figure.colorbar(picture, ax=panels, label="share of the attention", shrink=0.9)
    if title:
        figure.suptitle(title)
    return figure


def ablation_bars(changes, *, ylabel, title=""):
    """Draws what changes without each head.

    Args:
        changes: dict: kind of attention -> float NumPy array, shape `(num_layers, num_heads)`.
        ylabel: what changes, with its unit.
        title: above the picture.

    Returns:
        `matplotlib.figure.Figure`, one panel a kind, all with one scale; the head whose absence
        changes most stands out in each.
    """
    figure = Figure(figsize=(9, 3.0), layout="constrained")
    panels = figure.subplots(1, len(changes), squeeze=False, sharey=True)[0]
    for axes, (kind, values) in zip(panels, changes.items(), strict=True):
        num_layers, num_heads = np.shape(values)
        width = 0.8 / num_heads
        most = np.unravel_index(np.abs(values).argmax(), values.shape)
        for (layer, head), value in np.ndenumerate(values):
            colour = ORANGE if (layer, head) == most else BLUE
            axes.bar(layer + (head - (num_heads - 1) / 2) * width, value, 0.85 * width, color=colour)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_xticks(range(num_layers))
        axes.set(xlabel=f"layer; its heads 0 to {num_heads - 1}", title=kind)
        tidy(axes)
    panels[0].set_ylabel(ylabel)
    if title:
        figure.suptitle(title)
    return figure
