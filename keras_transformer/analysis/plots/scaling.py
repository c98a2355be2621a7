"""Pictures of how speed falls as a model or its sentences grow."""

import statistics

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from keras_transformer.analysis.plots.style import BLUE, ORANGE, tidy


def scaling_curves(panels, *, unit="target tokens a second", title=""):
    """Draws measured speeds, with their ranges, and those that a model of costs gives.

    Both axes are logarithmic; the vertical one is the same in all panels.

    Args:
        panels: dict: what is varied, with its unit -> dict of

            - `values`: list of positive numbers, growing;
            - `speeds`: list of list of float, the speed at each value in each round;
            - `curve`: pair of float arrays, values and the speeds that the model gives.
        unit: of the speeds.
        title: above the picture.

    Returns:
        `matplotlib.figure.Figure`, a panel for each thing that is varied.

    Raises:
        ValueError: there are not as many `speeds` as `values`, or no panels.
    """
    if not panels:
        raise ValueError("`panels` must have at least one entry. Received: none")
    figure = Figure(figsize=(3.6 * len(panels) + 0.4, 3.8), layout="constrained")
    row = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (name, panel) in zip(row, panels.items(), strict=True):
        values, speeds = panel["values"], panel["speeds"]
        if len(values) != len(speeds):
            raise ValueError(
                f"`speeds` must be as many as `values`. Received: {len(speeds)}, {len(values)} in {name!r}"
            )
        medians = np.array([statistics.median(rounds) for rounds in speeds])
        spread = [medians - [min(rounds) for rounds in speeds], [max(rounds) for rounds in speeds] - medians]
        axes.plot(*panel["curve"], color=ORANGE, linewidth=1.5, label="model of costs")
        axes.errorbar(
            values,
            medians,
            yerr=spread,
            color=BLUE,
            fmt="o",
            markersize=5,
            capsize=3,
            label="rounds: median, range",
        )
        axes.set(xscale="log", yscale="log", xlabel=name)
        axes.set_xticks(values, [f"{value:,}" for value in values], rotation=45)
        axes.xaxis.set_minor_locator(NullLocator())
        tidy(axes)
    low, high = row[0].get_ylim()
    ticks = [digit * 10.0**power for power in range(-3, 9) for digit in (1, 1.5, 2, 3, 5, 7)]
    row[0].set_yticks([tick for tick in ticks if low <= tick <= high])
    row[0].yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    row[0].yaxis.set_minor_locator(NullLocator())
    row[0].set(ylabel=unit)
    row[0].legend(frameon=False, loc="lower left")
    if title:
        figure.suptitle(title)
    return figure
