"""Pictures of measured speeds."""

import statistics

from matplotlib.figure import Figure

from keras_transformer.analysis.plots.style import BLUE, SKY, drawable, tidy


def speed_bars(rounds, *, unit="sentences a second", title=""):
    """Draws the median speed of several systems, and the slowest and fastest round of each.

    Args:
        rounds: dict: name of a system -> list of float, the speed in each round.
        unit: of the speeds.
        title: above the picture.

    Returns:
        `matplotlib.figure.Figure`, the first system on top.
    """
    figure = Figure(figsize=(7.5, 0.5 * len(rounds) + 1.2), layout="constrained")
    axes = figure.subplots()
    most = max(max(speeds) for speeds in rounds.values())
    for row, speeds in enumerate(rounds.values()):
        median = statistics.median(speeds)
        axes.barh(row, median, 0.6, color=BLUE)
        spread = [[median - min(speeds)], [max(speeds) - median]]
        axes.errorbar(median, row, xerr=spread, color="black", linewidth=1, capsize=3)
        axes.text(max(speeds) + 0.02 * most, row, f"{median:,.0f}", va="center", fontsize=9)
    axes.set_yticks(range(len(rounds)), list(rounds))
    axes.set(xlabel=f"{unit} (median of the rounds, and their range)", xlim=(0, 1.12 * most))
    axes.invert_yaxis()
    tidy(axes)
    axes.grid(False, axis="y")
    axes.set_axisbelow(True)
    if title:
        figure.suptitle(title)
    return figure


def compared_bars(panels, *, highlighted=(), unit, columns=1, title=""):
    """Draws the median speed of several systems at several kinds of work, with slowest and fastest round.

    Args:
        panels: dict: name of a kind of work -> dict: name of a system -> list of float, the speed in each
            round. The fastest system stands on top.
        highlighted: names of systems that are drawn in another colour and in bold.
        unit: of the speeds.
        columns: int, kinds of work side by side.
        title: above the picture.

    Returns:
        `matplotlib.figure.Figure` with a panel for each kind of work.

    Raises:
        ValueError: there is no kind of work, or one without a system.
    """
    if not panels or not all(panels.values()):
        raise ValueError(f"`panels` must have systems in each kind of work. Received: {panels}")
    columns = min(columns, len(panels))
    names = list(panels)
    lines = [names[begin : begin + columns] for begin in range(0, len(names), columns)]
    # Bars are of one height in all panels.
    places = [max(len(panels[name]) for name in line) for line in lines]
    size = 6.5 * columns, 0.3 * (sum(places) + 1.5 * len(lines)) + 0.5
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(lines), columns, squeeze=False, height_ratios=places)
    for line, row, most in zip(lines, grid, places, strict=True):
        for axes, name in zip(row, line, strict=False):
            _compare(axes, panels[name], highlighted, name)
            axes.set_ylim(most - 0.4, -0.6)
        for axes in row[len(line) :]:
            axes.set_axis_off()
    figure.supxlabel(f"{unit} (median of the rounds, and their range)", fontsize=10)
    if title:
        figure.suptitle(title)
    return figure


def _compare(axes, systems, highlighted, title):
    """Draws one panel of `compared_bars`."""
    medians = {name: statistics.median(speeds) for name, speeds in systems.items()}
    order = sorted(medians, key=medians.get, reverse=True)
    most = max(max(speeds) for speeds in systems.values())
    for row, name in enumerate(order):
        median, speeds = medians[name], systems[name]
        axes.barh(row, median, 0.7, color=BLUE if name in highlighted else SKY)
        spread = [[median - min(speeds)], [max(speeds) - median]]
        axes.errorbar(median, row, xerr=spread, color="black", linewidth=1, capsize=2)
        digits = 0 if median >= 100 else 1
        axes.text(max(speeds) + 0.02 * most, row, f"{median:,.{digits}f}", va="center", fontsize=9)
    axes.set_yticks(range(len(order)), drawable(order), fontsize=9)
    for label, name in zip(axes.get_yticklabels(), order, strict=True):
        label.set_fontweight("bold" if name in highlighted else "normal")
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlim(0, 1.14 * most)
    axes.xaxis.set_major_formatter("{x:,g}")
    tidy(axes)
    axes.grid(False, axis="y")
    axes.set_axisbelow(True)
