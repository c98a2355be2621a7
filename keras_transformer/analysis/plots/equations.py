"""Plots for the paper's equations and Table 1: masks, positions, scores, losses, learning rates, costs."""

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from keras_transformer.analysis.plots.style import (
    BLUE,
    COLOURS,
    MARKERS,
    STYLES,
    draw_curves,
    name_ticks,
    subplots,
    tidy,
)


def boolean_maps(maps, titles, *, rows="query position", columns="key position", meaning="visible"):
    """Plots boolean matrices, such as masks, side by side, at most five in a row.

    Args:
        maps: list of bool arrays, each of shape `(num_rows, num_columns)`.
        titles: list of str, a title for each map.
        rows: label of the vertical axes.
        columns: label of the horizontal axes.
        meaning: meaning of True, for the legend.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: the numbers of titles and maps differ.
    """
    if len(maps) != len(titles):
        raise ValueError(
            f"`titles` must have one title for each of {len(maps)} maps. Received: {len(titles)}"
        )
    across = min(len(maps), 5)
    lines = -(-len(maps) // across)
    figure, grid = subplots(1.9 * max(across, 2) + 0.8, 2.3 * lines + 0.5, lines, across)
    for unused in grid[len(maps) :]:
        unused.set_axis_off()
    for number, (axes, cells, title) in enumerate(zip(grid, maps, titles, strict=False)):
        height, width = np.shape(cells)
        axes.imshow(cells, cmap=ListedColormap(["#EEEEEE", BLUE]), vmin=0, vmax=1)
        if max(height, width) <= 16:  # lines between the cells would hide the cells of larger maps
            axes.set_xticks(np.arange(width + 1) - 0.5, minor=True)
            axes.set_yticks(np.arange(height + 1) - 0.5, minor=True)
            axes.grid(which="minor", color="white", linewidth=1)
            axes.tick_params(which="minor", length=0)
        axes.set(xticks=_few(width), yticks=_few(height), xlabel=columns)
        axes.set_title(title, fontsize="medium")
        if number % across == 0:
            axes.set_ylabel(rows)
    colours = Patch(color=BLUE, label=meaning), Patch(color="#EEEEEE", label=f"not {meaning}")
    figure.legend(handles=colours, loc="outside lower center", ncols=2, frameon=False)
    return figure


def position_heat_maps(encodings):
    """Plots positional encodings as heat maps, with positions from top to bottom.

    Args:
        encodings: dict: title -> float array, shape `(positions, d_model)`, from -1 to 1.

    Returns:
        `matplotlib.figure.Figure`.
    """
    figure, row = subplots(9, 4.2, columns=len(encodings))
    for axes, (title, encoding) in zip(row, encodings.items(), strict=True):
        picture = axes.imshow(encoding, cmap="PuOr", vmin=-1, vmax=1, aspect="auto", interpolation="nearest")
        axes.set(xlabel="dimension of the encoding", ylabel="position (tokens)", title=title)
    figure.colorbar(picture, ax=row, label="value of the encoding", ticks=[-1, 0, 1])
    return figure


def wavelength_curves(positions, waves, wavelengths):
    """Plots a few dimensions of the positional encoding, and the wavelengths of all pairs of dimensions.

    Args:
        positions: array of numbers, shape `(length,)`.
        waves: dict: index of a dimension -> its values, float array of shape `(length,)`.
        wavelengths: float array, shape `(d_model / 2,)`, in positions.

    Returns:
        `matplotlib.figure.Figure`.
    """
    figure, (left, right) = subplots(9, 3.6, columns=2)
    for color, (dimension, wave) in zip(COLOURS, waves.items(), strict=False):
        left.plot(positions, wave, color=color, label=str(dimension))
    left.set(xlabel="position (tokens)", ylabel="value of the encoding", ylim=(-1.05, 1.05))
    above = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "ncols": len(waves), "frameon": False}
    left.legend(title="dimension", **above)
    right.plot(2 * np.arange(len(wavelengths)), wavelengths, color=BLUE)
    for value, text in ((2 * np.pi, r"$2\pi$"), (20_000 * np.pi, r"$10000 \cdot 2\pi$")):
        right.axhline(value, color="black", linewidth=0.8, linestyle="--")
        right.text(1, value, text, transform=right.get_yaxis_transform(), ha="right", va="bottom")
    right.set(xlabel="dimension of the encoding", ylabel="wavelength (tokens)", yscale="log", ylim=(3, 2e5))
    tidy(left)
    tidy(right)
    return figure


def score_curves(widths, variances, gradients):
    """Plots how the key width d_k affects the variance of the scores and the gradient of the softmax.

    Args:
        widths: sequence of int, d_k.
        variances: dict: kind of attention -> variance of its scores at each width.
        gradients: dict: kind of attention -> size of the gradient of its softmax at each width.

    Returns:
        `matplotlib.figure.Figure`.
    """
    figure, both = subplots(9, 3.8, columns=2)
    labels = "variance of the scores", "mean |d weight / d score|"
    for axes, label, curves in zip(both, labels, (variances, gradients), strict=True):
        draw_curves(axes, {name: (widths, values) for name, values in curves.items()})
        axes.set(xlabel="$d_k$, width of queries and keys", ylabel=label, xscale="log", yscale="log")
        name_ticks(axes, widths)
        axes.get_legend().remove()
    names = both[0].get_legend_handles_labels()
    figure.legend(*names, loc="outside upper center", ncols=len(variances), frameon=False)
    return figure


def schedule_curves(steps, rates):
    """Plots learning rate schedules.

    Args:
        steps: sequence of int, optimizer updates, from 1.
        rates: dict: name -> learning rate at each step.

    Returns:
        `matplotlib.figure.Figure`.
    """
    figure, (axes,) = subplots(7, 3.6)
    draw_curves(axes, {name: (steps, values) for name, values in rates.items()}, marked=False)
    axes.set(xlabel="optimizer updates", ylabel="learning rate", xlim=(0, None), ylim=(0, None))
    axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0), useMathText=True)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    return figure


def similarity_curves(depths, similarities):
    """Plots the similarity of the tokens of a sentence after encoders of different depths.

    Args:
        depths: sequence of int, numbers of layers.
        similarities: dict: name -> `token_similarity` at each depth.

    Returns:
        `matplotlib.figure.Figure`.
    """
    figure, (axes,) = subplots(7, 3.6)
    draw_curves(axes, {name: (depths, values) for name, values in similarities.items()})
    axes.set(xlabel="layers of the encoder", ylabel="mean cosine between two tokens", ylim=(0, 1))
    axes.set_xticks(depths)
    return figure


def smoothing_curves(probabilities, losses):
    """Plots the label-smoothed loss of a token against the predicted probability of its label.

    Args:
        probabilities: float array, shape `(points,)`, probabilities of the label.
        losses: dict: smoothing, float -> loss in nats, float array of shape `(points,)`.

    Returns:
        `matplotlib.figure.Figure`; a dot marks the minimum of each curve.
    """
    figure, (axes,) = subplots(7, 3.6)
    for color, style, (smoothing, values) in zip(COLOURS, STYLES, losses.items(), strict=False):
        lowest = int(np.argmin(values))
        label = rf"$\epsilon_{{ls}}$ = {smoothing:g}"
        if 0 < lowest < len(values) - 1:  # not a minimum at an end of the curve
            label += f": lowest at p = {probabilities[lowest]:.2f}"
            axes.plot(probabilities[lowest], values[lowest], "o", color=color, markersize=6)
        axes.plot(probabilities, values, color=color, linestyle=style, label=label)
    axes.set(xlabel="probability p of the label", ylabel="loss of the token (nats)", xlim=(0, 1))
    axes.set_ylim(0, None)
    axes.legend(frameon=False)
    tidy(axes)
    return figure


def fitted_exponent(sizes, costs):
    """Fits cost = c * size^e by least squares on the logarithms, and returns e.

    Args:
        sizes: positive numbers, at least two different ones.
        costs: positive numbers, one for each size.

    Returns:
        float, e.
    """
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


def cost_curves(over_length, over_width, *, ylabel):
    """Plots costs against the length n and against the width d, on logarithmic axes.

    Args:
        over_length: dict: layer -> (lengths, costs).
        over_width: dict: layer -> (widths, costs), the same layers in the same order.
        ylabel: name and unit of the cost.

    Returns:
        `matplotlib.figure.Figure` with the points and, for each layer, a fitted power law and its exponent.
    """
    figure, both = subplots(9, 4.4, columns=2)
    for axes, name, curves in zip(both, ("n", "d"), (over_length, over_width), strict=True):
        for color, marker, (layer, (sizes, costs)) in zip(COLOURS, MARKERS, curves.items(), strict=False):
            exponent = fitted_exponent(sizes, costs)
            # A least-squares line passes through the mean of the logarithms.
            factor = np.exp(np.mean(np.log(costs) - exponent * np.log(sizes)))
            axes.plot(sizes, factor * np.power(sizes, exponent, dtype=float), color=color, linewidth=1)
            label = f"{layer}: ${name}^{{{exponent:.2f}}}$"
            axes.plot(sizes, costs, marker, color=color, markersize=5, label=label)
        axes.set(xscale="log", yscale="log")
        name_ticks(axes, sorted({size for sizes, _ in curves.values() for size in sizes}))
        tidy(axes)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    both[0].set(xlabel="length n (tokens)", ylabel=ylabel)
    both[1].set(xlabel="width d of the model")
    return figure


def path_curves(paths):
    """Plots the length of the longest path between two positions.

    Args:
        paths: dict: layer -> (lengths, steps).

    Returns:
        `matplotlib.figure.Figure`.
    """
    figure, (axes,) = subplots(7, 4)
    draw_curves(axes, paths)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set(xlabel="length n (tokens)", ylabel="longest path (steps)")
    name_ticks(axes, sorted({length for lengths, _ in paths.values() for length in lengths}))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return figure


def _few(length):
    """Returns about six ticks for the cells 0 to length - 1."""
    return range(0, length, max(1, -(-length // 6)))
