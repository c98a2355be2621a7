"""Pictures of measured speeds."""

import statistics

from matplotlib.figure import Figure

from keras_transformer.plotting.style import BLUE, tidy


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
