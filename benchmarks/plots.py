"""Pictures of what the benchmarks measure: speeds compared, quality over time, scaling.

Each function returns a `matplotlib.figure.Figure`.
"""

import itertools
import statistics

import numpy as np
import sensitivity_rows
import table3_rows
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from keras_transformer.analysis.plots.style import BLUE, COLOURS, ORANGE, SKY, STYLES, drawable, tidy


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
        figure.suptitle(*drawable([title]))
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
    axes.set_title(*drawable([title]), fontsize=10, loc="left")
    axes.set_xlim(0, 1.14 * most)
    axes.xaxis.set_major_formatter("{x:,g}")
    tidy(axes)
    axes.grid(False, axis="y")
    axes.set_axisbelow(True)


def crossing(points, target):
    """Returns where a line through points first reaches a height, straight between neighbours.

    Args:
        points: list of `(x, y)`, floats, x increasing.
        target: the height.

    Returns:
        float, an x; the first one's where that is high enough already; or `None` where no point is.
    """
    if points and points[0][1] >= target:
        return points[0][0]
    for (left, below), (right, above) in itertools.pairwise(points):
        if above >= target:
            return left + (right - left) * (target - below) / (above - below)
    return None


def quality_curves(runs, *, target, title=""):
    """Draws validation BLEU over wall-clock time, and when it reaches a target.

    Args:
        runs: dict: name of a system -> list of its runs, each a list of `(minutes, BLEU)`, in order
            of time.
        target: BLEU, the height of a dashed line; each crossing has a mark, and a line to the axis.
        title: above the picture.

    Returns:
        `matplotlib.figure.Figure`; a system has one colour, and the legend has its crossings.

    Raises:
        ValueError: there are more systems than colours.
    """
    if len(runs) > len(COLOURS):
        raise ValueError(f"`runs` must hold at most {len(COLOURS)} systems. Received: {len(runs)}")
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    axes = figure.subplots()
    axes.axhline(target, color="black", linewidth=1, linestyle="--")
    for colour, (name, own) in zip(COLOURS, runs.items(), strict=False):
        reached = [crossing(points, target) for points in own]
        for number, points in enumerate(own):
            axes.plot(
                *zip(*points, strict=True),
                color=colour,
                marker="o",
                markersize=3,
                label=_label(name, reached, target) if number == 0 else "_",
            )
        for minutes in reached:
            if minutes is not None:
                axes.plot(
                    [minutes, minutes], [0, target], color=colour, linewidth=1, linestyle=":", label="_"
                )
                axes.plot([minutes], [target], color=colour, marker="D", markersize=7, label="_")
    axes.set(
        xlabel="wall-clock time, validations included (minutes)",
        ylabel="validation BLEU (sacreBLEU, cased)",
        xlim=(0, None),
        ylim=(0, None),
    )
    tidy(axes)
    figure.legend(frameon=False, loc="outside lower center")
    if title:
        figure.suptitle(*drawable([title]))
    return figure


def _label(name, reached, target):
    found = [f"{minutes:.1f}" for minutes in reached if minutes is not None]
    when = f"after {', '.join(found)} min" if found else "not reached"
    return drawable([f"{name}: {target:g} BLEU {when}"])[0]


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
        figure.suptitle(*drawable([title]))
    return figure


def table3_differences(records):
    """Draws how far each row of Table 3 is from the base row, in BLEU and log-perplexity, beside the paper's.

    Args:
        records: list of dict, the records of `table3.py`, with those of the base row.

    Returns:
        `matplotlib.figure.Figure`: for each row a dot per seed, and a ring at the paper's difference.

    Raises:
        ValueError: there are no records of the base row, or of no other row.
    """
    base, *rows = table3_rows.summaries(records)
    if base.row != table3_rows.BASE or not rows:
        raise ValueError("a plot of differences needs the base row and another row")
    figure = Figure(figsize=(9, 0.32 * len(rows) + 1.2), layout="constrained")
    paper = table3_rows.PAPER
    panels = (
        ("BLEU, difference from the base row", lambda row: row.bleus, lambda row: row.bleu),
        (
            "log-perplexity, difference (left is better)",
            lambda row: np.log(row.perplexities),
            lambda row: np.log(row.perplexity),
        ),
    )
    for axes, (title, ours, theirs) in zip(figure.subplots(1, 2, sharey=True), panels, strict=True):
        middle = np.mean(ours(base))
        spread = np.asarray(ours(base)) - middle
        axes.axvspan(min(spread), max(spread), color="0.9", label="range of the base row's seeds")
        axes.axvline(0, color="0.7", linewidth=0.8)
        for place, row in enumerate(rows):
            label = "this package, one dot per seed" if place == 0 else None
            differences = np.asarray(ours(row)) - middle
            axes.plot(differences, [place] * len(differences), "o", color=BLUE, markersize=5, label=label)
        known = [(i, paper[row.counterpart]) for i, row in enumerate(rows) if row.counterpart in paper]
        if known:
            axes.plot(
                [theirs(figures) - theirs(paper[table3_rows.BASE]) for _, figures in known],
                [place for place, _ in known],
                "o",
                color=ORANGE,
                markersize=9,
                fillstyle="none",
                label="paper",
            )
        axes.set_yticks(range(len(rows)), drawable([row.row for row in rows]))
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlabel(title)
        tidy(axes)
    labelled = figure.axes[0].get_legend_handles_labels()
    figure.legend(*labelled, loc="outside lower center", ncols=3, fontsize=8)
    return figure


def sensitivity_curves(records):
    """Draws validation perplexity and BLEU over the peak learning rate, for each order of norm and warm-up.

    Args:
        records: list of dict, the records of `table3.py --grid sensitivity`.

    Returns:
        `matplotlib.figure.Figure`: lines through the means of the seeds, a dot for each seed, and a cross on
        that of a diverged model (at the upper edge if it has no perplexity).

    Raises:
        ValueError: as `table3_rows.by_row`.
    """
    lines = {}
    for point in sensitivity_rows.points(records):
        lines.setdefault((point.norm, point.warmup), []).append(point)
    warmups = sorted({warmup for _, warmup in lines}, reverse=True)
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    panels = {"perplexities": "validation perplexity per sub-word token", "bleus": "validation BLEU"}
    for axes, (key, label) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        for (norm, warmup), points in lines.items():
            colour, marker = (BLUE, "o") if norm == "post-norm" else (ORANGE, "s")
            peaks = [point.peak for point in points]
            means = [statistics.fmean(getattr(point, key)) for point in points]
            style = STYLES[warmups.index(warmup) % len(STYLES)]
            axes.plot(peaks, means, style, color=colour, label=f"{norm}, warm-up {warmup:,}")
            for point in points:
                for value, bleu in zip(getattr(point, key), point.bleus, strict=True):
                    axes.plot(point.peak, value, marker, color=colour, markersize=4)
                    if bleu < sensitivity_rows.LEAST_BLEU:
                        _cross(axes, point.peak, value, colour)
        axes.set(xscale="log", xlabel="peak learning rate", ylabel=label)
        ticks = sorted({f"{point.peak:.3g}" for points in lines.values() for point in points}, key=float)
        axes.set_xticks(list(map(float, ticks)), ticks, fontsize=8)
        axes.xaxis.set_minor_locator(NullLocator())
        tidy(axes)
    figure.axes[0].set_yscale("log")
    if any(point.diverged for points in lines.values() for point in points):
        figure.axes[0].plot([], [], "x", color="black", markersize=8, label="diverged")
    labelled = figure.axes[0].get_legend_handles_labels()
    figure.legend(*labelled, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


def _cross(axes, x, y, colour):
    """Marks a diverged model, at the upper edge if `y` is infinite."""
    place = {} if np.isfinite(y) else {"transform": axes.get_xaxis_transform(), "clip_on": False}
    look = {"color": colour, "markersize": 9, "markeredgewidth": 2}
    axes.plot(x, y if np.isfinite(y) else 1.0, "x", **look, **place)
