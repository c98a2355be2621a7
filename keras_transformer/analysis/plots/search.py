"""Pictures of search: what its settings do to translations, and how fast they are made."""

import statistics

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from keras_transformer.analysis.plots.style import BLUE, COLOURS, tidy

_MARKERS = "osD^vPX*"


def search_curves(records, *, x, lines, names=("", ""), panels=None, log=False, title=""):
    """Draws figures of translations against one setting of search, a line for each value of another.

    Args:
        records: list of dicts, one for each search, with the two settings and the figures.
        x: key of the setting along the axis; its values are numbers.
        lines: key of the setting that has a line for each of its values, in the order in which
            they come.
        names: what the two settings are called, for the axis and for the legend.
        panels: dict: key of a figure -> label of its axis, with the unit; `None` is BLEU and the
            ratio of lengths, `"bleu"` and `"length_ratio"`.
        log: doubles from tick to tick of the axis.
        title: above the picture.

    Returns:
        `matplotlib.figure.Figure`, one panel a figure.
    """
    panels = panels or {"bleu": "BLEU", "length_ratio": "length of translations / of references"}
    figure = Figure(figsize=(3 + 2.6 * len(panels), 3.4), layout="constrained")
    values = list(dict.fromkeys(record[lines] for record in records))
    for axes, (key, label) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
    ):
        for number, value in enumerate(values):
            points = sorted((record[x], record[key]) for record in records if record[lines] == value)
            axes.plot(
                *zip(*points, strict=True),
                color=COLOURS[number % len(COLOURS)],
                marker=_MARKERS[number % len(_MARKERS)],
                markersize=4,
                linestyle="-" if number < len(COLOURS) else "--",
                label=str(value),
            )
        if key == "length_ratio":
            axes.axhline(1, color="black", linewidth=0.8, linestyle=":")
        if log:
            axes.set_xscale("log", base=2)
            ticks = sorted({record[x] for record in records})
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axes.xaxis.set_minor_locator(NullLocator())
        axes.set(xlabel=names[0] or x, ylabel=label)
        tidy(axes)
    figure.get_axes()[0].legend(title=names[1] or lines, frameon=False, fontsize=8, title_fontsize=8)
    if title:
        figure.suptitle(title)
    return figure


def diversity_curves(records, *, reference=None, title=""):
    """Draws the quality of samples against how much they differ.

    Args:
        records: list of dicts, one for each way of sampling: `family`, a line for each; `name`,
            beside the point; `pairwise_bleu`, of samples of one sentence against each other, from 0
            (all different) to 100 (all alike); `bleu`, of samples against references.
        reference: BLEU of a search, drawn as a line across; `None` for none.
        title: above the picture.

    Returns:
        `matplotlib.figure.Figure`.
    """
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for number, family in enumerate(dict.fromkeys(record["family"] for record in records)):
        ones = [record for record in records if record["family"] == family]
        points = [(100 - record["pairwise_bleu"], record["bleu"]) for record in ones]
        axes.plot(
            *zip(*points, strict=True),
            color=COLOURS[number % len(COLOURS)],
            marker=_MARKERS[number % len(_MARKERS)],
            markersize=5,
            label=family,
        )
        above = number % 2 == 0
        for record, point in zip(ones, points, strict=True):
            axes.annotate(
                record["name"],
                point,
                xytext=(4, 4) if above else (-4, -10),
                ha="left" if above else "right",
                textcoords="offset points",
                fontsize=8,
                color=COLOURS[number % len(COLOURS)],
            )
    if reference is not None:
        axes.axhline(reference, color="black", linewidth=0.9, linestyle="--", label="beam search")
    axes.set(xlabel="how samples differ: 100 - pairwise BLEU", ylabel="BLEU of samples")
    axes.margins(0.12)
    axes.legend(frameon=False, fontsize=8)
    tidy(axes)
    if title:
        figure.suptitle(title)
    return figure


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
