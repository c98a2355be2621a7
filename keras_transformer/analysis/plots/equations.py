"""Pictures of the paper's equations: masks, scores, positions, label smoothing, learning rates."""

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from keras_transformer.analysis.plots.style import BLUE, COLOURS, tidy


def boolean_maps(maps, titles, *, rows="query position", columns="key position", meaning="visible"):
    """Draws boolean matrices side by side, at most five to a line: masks, or who reaches whom.

    Args:
        maps: list of bool arrays, shape `(num_rows, num_columns)` each.
        titles: list of str, one above each.
        rows: label of the vertical axes.
        columns: label of the horizontal axes.
        meaning: of True, for the legend.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: there are not as many titles as maps.
    """
    if len(maps) != len(titles):
        raise ValueError(f"`titles` must hold one for each of {len(maps)} maps. Received: {len(titles)}")
    across = min(len(maps), 5)
    lines = -(-len(maps) // across)
    figure = Figure(figsize=(1.9 * max(across, 2) + 0.8, 2.3 * lines + 0.5), layout="constrained")
    grid = figure.subplots(lines, across, squeeze=False)
    for number, axes in enumerate(grid.flat):
        if number >= len(maps):
            axes.set_axis_off()
            continue
        height, width = np.shape(maps[number])
        axes.imshow(maps[number], cmap=ListedColormap(["#EEEEEE", BLUE]), vmin=0, vmax=1)
        if max(height, width) <= 16:  # lines between the cells, where they leave room for the cells
            axes.set_xticks(np.arange(width + 1) - 0.5, minor=True)
            axes.set_yticks(np.arange(height + 1) - 0.5, minor=True)
            axes.grid(which="minor", color="white", linewidth=1)
            axes.tick_params(which="minor", length=0)
        axes.set_xticks(_few(width))
        axes.set_yticks(_few(height))
        axes.set_title(titles[number], fontsize="medium")
        axes.set_xlabel(columns)
        if number % across == 0:
            axes.set_ylabel(rows)
    figure.legend(
        handles=[Patch(color=BLUE, label=meaning), Patch(color="#EEEEEE", label=f"not {meaning}")],
        loc="outside lower center",
        ncols=2,
        frameon=False,
    )
    return figure


def position_heat_maps(encodings):
    """Draws position encodings, positions downwards.

    Args:
        encodings: dict: title -> float array, shape `(positions, d_model)`, from -1 to 1.

    Returns:
        `matplotlib.figure.Figure`.
    """
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    for axes, (title, encoding) in zip(
        figure.subplots(1, len(encodings), squeeze=False)[0], encodings.items(), strict=True
    ):
        picture = axes.imshow(encoding, cmap="PuOr", vmin=-1, vmax=1, aspect="auto", interpolation="nearest")
        axes.set(xlabel="dimension of the encoding", ylabel="position (tokens)", title=title)
    figure.colorbar(picture, ax=figure.get_axes(), label="value of the encoding", ticks=[-1, 0, 1])
    return figure


def wavelength_curves(positions, waves, wavelengths):
    """Draws a few dimensions of the position encoding, and the wavelength of every pair of them.

    Args:
        positions: numbers, shape `(length,)`.
        waves: dict: number of a dimension -> its encoding, float array of shape `(length,)`.
        wavelengths: float array, shape `(d_model / 2,)`, in positions.

    Returns:
        `matplotlib.figure.Figure`.
    """
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for color, (dimension, wave) in zip(COLOURS, waves.items(), strict=False):
        left.plot(positions, wave, color=color, label=str(dimension))
    left.set(xlabel="position (tokens)", ylabel="value of the encoding", ylim=(-1.05, 1.05))
    left.legend(
        title="dimension",
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=len(waves),
        frameon=False,
    )
    right.plot(2 * np.arange(len(wavelengths)), wavelengths, color=BLUE)
    for value, text in ((2 * np.pi, r"$2\pi$"), (20_000 * np.pi, r"$10000 \cdot 2\pi$")):
        right.axhline(value, color="black", linewidth=0.8, linestyle="--")
        right.annotate(
            text,
            (1, value),
            xycoords=("axes fraction", "data"),
            xytext=(0, 3),
            textcoords="offset points",
            ha="right",
        )
    right.set(xlabel="dimension of the encoding", ylabel="wavelength (tokens)", yscale="log", ylim=(3, 2e5))
    for axes in (left, right):
        tidy(axes)
    return figure


def score_curves(widths, variances, gradients):
    """Draws what the width of the keys does to attention: variance of scores, gradient of softmax.

    Args:
        widths: ints, d_k.
        variances: dict: kind of attention -> variance of its scores at each width.
        gradients: dict: kind of attention -> size of the softmax' gradient at each width.

    Returns:
        `matplotlib.figure.Figure`.
    """
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    for axes, curves in ((left, variances), (right, gradients)):
        for color, marker, (name, values) in zip(COLOURS, "osD^vP", curves.items(), strict=False):
            axes.plot(widths, values, color=color, marker=marker, markersize=4, label=name)
        axes.set(xlabel="$d_k$, width of queries and keys", xscale="log", yscale="log")
        axes.set_xticks(widths, [str(width) for width in widths])
        axes.tick_params(axis="x", which="minor", bottom=False)
        tidy(axes)
    left.set_ylabel("variance of the scores")
    right.set_ylabel("mean |d weight / d score|")
    figure.legend(
        *left.get_legend_handles_labels(), loc="outside upper center", ncols=len(variances), frameon=False
    )
    return figure


def schedule_curves(steps, rates):
    """Draws learning rates over the course of training.

    Args:
        steps: ints, optimizer updates from 1.
        rates: dict: name -> learning rate at each step.

    Returns:
        `matplotlib.figure.Figure`.
    """
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    for color, style, (name, values) in zip(COLOURS, _STYLES, rates.items(), strict=False):
        axes.plot(steps, values, color=color, linestyle=style, label=name)
    axes.set(xlabel="optimizer updates", ylabel="learning rate", xlim=(0, None), ylim=(0, None))
    axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0), useMathText=True)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.legend(frameon=False)
    tidy(axes)
    return figure


def smoothing_curves(probabilities, losses):
    """Draws the label-smoothed loss of a token over the probability that its label gets.

    Args:
        probabilities: float array, shape `(points,)`, of the label.
        losses: dict: smoothing, float -> float array, shape `(points,)`, in nats.

    Returns:
        `matplotlib.figure.Figure`; a dot marks where a curve turns.
    """
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    for color, style, (smoothing, values) in zip(COLOURS, _STYLES, losses.items(), strict=False):
        lowest = int(np.argmin(values))
        label = rf"$\epsilon_{{ls}}$ = {smoothing:g}"
        if 0 < lowest < len(values) - 1:  # not where the curve only ends
            label += f": lowest at p = {probabilities[lowest]:.2f}"
            axes.plot(probabilities[lowest], values[lowest], "o", color=color, markersize=6)
        axes.plot(probabilities, values, color=color, linestyle=style, label=label)
    axes.set(xlabel="probability p of the label", ylabel="loss of the token (nats)", xlim=(0, 1))
    axes.set_ylim(0, None)
    axes.legend(frameon=False)
    tidy(axes)
    return figure


_STYLES = ("-", "--", "-.", ":")


def _few(length):
    """At most about six ticks over cells 0 to length - 1."""
    return range(0, length, max(1, -(-length // 6)))
