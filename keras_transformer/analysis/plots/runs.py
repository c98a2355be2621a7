"""Pictures of runs: their history, the lengths of a corpus, settings of search, speeds."""

import statistics

import numpy as np

from keras_transformer.analysis.plots.style import (
    BLUE,
    COLOURS,
    GREEN,
    ORANGE,
    draw_curves,
    name_ticks,
    subplots,
    tidy,
)

_LABELS = {
    "loss": "loss (nats a token)",
    "perplexity": "perplexity per sub-word token",
    "token_accuracy": "token accuracy",
}


def training_curves(history, *, title=""):
    """Draws perplexity and validation BLEU over training time; below, where the history has it,
    the norm of the gradient and the steps that were skipped.

    Args:
        history: list of records, as `RunFolder.read_history` returns.
        title: above the picture.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: there is no record of training.
    """
    train = [record for record in history if record["kind"] == "train"]
    validation = [record for record in history if record["kind"] == "validation"]
    if not train:
        raise ValueError("`history` holds no record of training.")
    measured = [record for record in train if "gradient_norm" in record]
    figure, (left, right, *unused) = subplots(9, 5.4 if measured else 3.6, 1 + bool(measured), 2, title=title)
    if measured:
        grid = unused[0].get_gridspec()
        grid.set_height_ratios([2, 1])
        for axes in unused:
            axes.remove()
        _draw_gradients(figure.add_subplot(grid[1, :]), measured)
    left.plot(*_over_minutes(train, "perplexity"), color=BLUE, label="training")
    marks = {"marker": "o", "markersize": 3}
    left.plot(*_over_minutes(validation, "perplexity"), color=ORANGE, label="validation", **marks)
    left.set(ylabel="perplexity per sub-word token", yscale="log")
    left.legend(frameon=False)
    scored = [record for record in validation if "bleu" in record]
    right.plot(*_over_minutes(scored, "bleu"), color=GREEN, **marks)
    right.set(ylabel="validation BLEU (sacreBLEU)", xlim=(0, 1.02 * train[-1]["minutes"]), ylim=(0, None))
    # Updates above the minutes, straight between the records; beyond the run at its average speed.
    minutes = [0.0, *(record["minutes"] for record in train), 2 * train[-1]["minutes"]]
    steps = [0.0, *(record["step"] for record in train), 2.0 * train[-1]["step"]]
    functions = (lambda x: np.interp(x, minutes, steps), lambda x: np.interp(x, steps, minutes))
    right.secondary_xaxis("top", functions=functions).set_xlabel("optimizer updates")
    for axes in figure.get_axes():
        axes.set_xlabel("training time (minutes)")
        tidy(axes)
    return figure


def _over_minutes(records, key):
    return [record["minutes"] for record in records], [record[key] for record in records]


def _draw_gradients(axes, train):
    """Draws norms over time, and a mark on the time axis for each interval with skipped steps."""
    # An interval of skipped steps alone has no norm.
    applied = [record for record in train if record["gradient_norm"] > 0]
    axes.plot(*_over_minutes(applied, "gradient_norm"), color=BLUE)
    axes.set(ylabel="gradient norm", yscale="log")
    if skipped := [record for record in train if record["skipped"]]:
        minutes, counts = _over_minutes(skipped, "skipped")
        marks = {"color": ORANGE, "marker": "x", "linestyle": "none", "clip_on": False}
        on_axis = axes.get_xaxis_transform()
        label = f"skipped steps: {sum(counts):,}"
        axes.plot(minutes, [0.0] * len(minutes), transform=on_axis, label=label, **marks)
        axes.legend(frameon=False)


def fit_curves(history, rates, *, steps_per_epoch, figures=("loss", "token_accuracy"), title=""):
    """Draws the learning rate of every update, and what an epoch ended with.

    Args:
        history: dict of lists with a number an epoch, such as `History.history`; `val_` before
            a name is that of the validation pairs.
        rates: sequence of float, the learning rate of each update.
        steps_per_epoch: int, updates of an epoch.
        figures: names of figures in `history`.
        title: above the picture.

    Returns:
        `matplotlib.figure.Figure`, a panel for the rate and one for each figure.

    Raises:
        ValueError: the history has no such figure.
    """
    missing = [name for name in figures if name not in history]
    if missing:
        raise ValueError(f"`history` has no {missing[0]!r}. It has: {', '.join(history)}")
    columns = 1 + len(figures)
    figure, (first, *others) = subplots(3.2 * columns, 3.2, columns=columns, title=title)
    first.plot(range(1, len(rates) + 1), rates, color=GREEN)
    first.set(ylabel="learning rate", ylim=(0, None))
    first.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    for axes, name in zip(others, figures, strict=True):
        looks = {name: ("training", BLUE, ""), f"val_{name}": ("validation", ORANGE, "o")}
        for key, (label, color, marker) in looks.items():
            if key in history:
                steps = [steps_per_epoch * (epoch + 1) for epoch in range(len(history[key]))]
                axes.plot(steps, history[key], color=color, marker=marker, markersize=3, label=label)
        axes.set(ylabel=_LABELS.get(name, name))
        axes.legend(frameon=False, fontsize=8)
    for axes in (first, *others):
        axes.set_xlabel("updates")
        tidy(axes)
    return figure


def length_histogram(source_lengths, target_lengths, batches, *, names=("source", "target"), title=""):
    """Draws the lengths of a corpus, and the padding of its batches.

    Args:
        source_lengths: int NumPy array, shape `(num_pairs,)`, in tokens.
        target_lengths: int NumPy array, shape `(num_pairs,)`.
        batches: list of `(positions, tokens, target_len)`, source and target together.
        names: of the two sides.
        title: above the picture.

    Returns:
        `matplotlib.figure.Figure`.
    """
    figure, (left, right) = subplots(9, 3.6, columns=2, title=title)
    # The few longest would leave no room for the others.
    shown = int(max(np.quantile(side, 0.999) for side in (source_lengths, target_lengths))) + 1
    for name, side, color in zip(names, (source_lengths, target_lengths), (BLUE, ORANGE), strict=True):
        counts = np.bincount(side, minlength=shown + 1)[: shown + 1]
        left.step(range(shown + 1), counts / len(side), where="mid", color=color, label=name)
    left.set(xlabel="tokens a sentence, end included", ylabel="share of the sentences", ylim=(0, None))
    positions, tokens, lengths = np.array(batches).T
    total = 100 * (1 - tokens.sum() / positions.sum())
    right.scatter(lengths, 100 * (1 - tokens / positions), s=9, color=GREEN, alpha=0.6, edgecolors="none")
    right.axhline(total, color="black", linewidth=0.8, linestyle="--", label=f"all together {total:.1f} %")
    right.set(xlabel="padded target length of a batch", ylabel="padding (% of the positions)", ylim=(0, None))
    for axes in (left, right):
        axes.legend(frameon=False)
        tidy(axes)
    return figure


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
    figure, row = subplots(3 + 2.6 * len(panels), 3.4, columns=len(panels), title=title)
    values = dict.fromkeys(record[lines] for record in records)
    for axes, (key, label) in zip(row, panels.items(), strict=True):
        curves = {}
        for value in values:
            points = sorted((record[x], record[key]) for record in records if record[lines] == value)
            curves[str(value)] = tuple(zip(*points, strict=True))
        draw_curves(axes, curves)
        if key == "length_ratio":
            axes.axhline(1, color="black", linewidth=0.8, linestyle=":")
        if log:
            axes.set_xscale("log", base=2)
            name_ticks(axes, sorted({record[x] for record in records}))
        axes.set(xlabel=names[0] or x, ylabel=label)
    for axes in row[1:]:
        axes.get_legend().remove()
    row[0].legend(title=names[1] or lines, frameon=False, fontsize=8, title_fontsize=8)
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
    figure, (axes,) = subplots(7, 4.2, title=title)
    families = {}
    for record in records:
        point = 100 - record["pairwise_bleu"], record["bleu"]
        families.setdefault(record["family"], []).append((*point, record["name"]))
    draw_curves(axes, {name: list(zip(*points, strict=True))[:2] for name, points in families.items()})
    for number, points in enumerate(families.values()):
        place = {"xytext": (4, 4), "ha": "left"} if number % 2 == 0 else {"xytext": (-4, -10), "ha": "right"}
        look = {"textcoords": "offset points", "fontsize": 8, "color": COLOURS[number % len(COLOURS)]}
        for *point, name in points:
            axes.annotate(name, tuple(point), **place, **look)
    if reference is not None:
        axes.axhline(reference, color="black", linewidth=0.9, linestyle="--", label="beam search")
    axes.set(xlabel="how samples differ: 100 - pairwise BLEU", ylabel="BLEU of samples")
    axes.margins(0.12)
    axes.legend(frameon=False, fontsize=8)
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
    figure, (axes,) = subplots(7.5, 0.5 * len(rounds) + 1.2, title=title)
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
    return figure
