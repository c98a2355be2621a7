"""Pictures of quality over time."""

import itertools

from matplotlib.figure import Figure

from keras_transformer.analysis.plots.style import COLOURS, drawable, tidy


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
        figure.suptitle(title)
    return figure


def _label(name, reached, target):
    found = [f"{minutes:.1f}" for minutes in reached if minutes is not None]
    when = f"after {', '.join(found)} min" if found else "not reached"
    return drawable([f"{name}: {target:g} BLEU {when}"])[0]
