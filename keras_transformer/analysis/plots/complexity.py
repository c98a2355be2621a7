"""Pictures of what layers cost and how far they see (Table 1)."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from keras_transformer.analysis.plots.style import COLOURS, tidy

_MARKERS = "osD^vP"


def fitted_exponent(sizes, costs):
    """Fits cost = c size^e by least squares of the logarithms.

    Args:
        sizes: positive numbers, at least two different ones.
        costs: as many positive numbers.

    Returns:
        float, e.
    """
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


def cost_curves(over_length, over_width, *, ylabel):
    """Draws costs over the length n and over the width d, both axes logarithmic.

    Args:
        over_length: dict: layer -> (lengths, costs).
        over_width: dict: layer -> (widths, costs), the same layers in the same order.
        ylabel: what a cost is, with its unit.

    Returns:
        `matplotlib.figure.Figure`: points, the power of size that fits them, its exponent.
    """
    figure = Figure(figsize=(9, 4.4), layout="constrained")
    both = figure.subplots(1, 2)
    names = ("n", "d")
    for axes, name, curves in zip(both, names, (over_length, over_width), strict=True):
        for color, marker, (layer, (sizes, costs)) in zip(COLOURS, _MARKERS, curves.items(), strict=False):
            exponent = fitted_exponent(sizes, costs)
            # Through the mean of the logarithms, as least squares have it.
            factor = np.exp(np.mean(np.log(costs) - exponent * np.log(sizes)))
            axes.plot(sizes, factor * np.power(sizes, exponent, dtype=float), color=color, linewidth=1)
            label = f"{layer}: ${name}^{{{exponent:.2f}}}$"
            axes.plot(sizes, costs, marker, color=color, markersize=5, label=label)
        axes.set(xscale="log", yscale="log")
        ticks = sorted({size for sizes, _ in curves.values() for size in sizes})
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
        tidy(axes)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    both[0].set(xlabel="length n (tokens)", ylabel=ylabel)
    both[1].set(xlabel="width d of the model")
    return figure


def path_curves(paths):
    """Draws how many steps a signal takes between the two positions that are farthest apart.

    Args:
        paths: dict: layer -> (lengths, steps).

    Returns:
        `matplotlib.figure.Figure`.
    """
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for color, marker, (layer, (lengths, steps)) in zip(COLOURS, _MARKERS, paths.items(), strict=False):
        axes.plot(lengths, steps, color=color, marker=marker, markersize=5, label=layer)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set(xlabel="length n (tokens)", ylabel="longest path (steps)")
    ticks = sorted({length for lengths, _ in paths.values() for length in lengths})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    tidy(axes)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return figure
