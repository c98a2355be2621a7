"""Plots of training runs: training curves, corpus lengths, search settings, speeds."""

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
    """Plots perplexity and validation BLEU, of a parser F1, against training time.

    If the history has gradient norms, a second row shows these and the skipped steps.

    Args:
        history: list of records from `RunFolder.read_history`.
        title: title of the figure.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: the history has no training record.
    """
    train = [record for record in history if record["kind"] == "train"]
    validation = [record for record in history if record["kind"] == "validation"]
    if not train:
        raise ValueError("`history` has no training record.")
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
    parses = any("f1" in record for record in validation)
    metric, label = ("f1", "F1 (labelled brackets)") if parses else ("bleu", "BLEU (sacreBLEU)")
    scored = [record for record in validation if metric in record]
    right.plot(*_over_minutes(scored, metric), color=GREEN, **marks)
    last = max(record["minutes"] for record in (*train, *validation))
    right.set(ylabel=f"validation {label}", xlim=(0, 1.02 * last), ylim=(0, None))
    # A second axis shows updates: interpolated between records, and extrapolated at the average speed.
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
    """Plots gradient norms against time, with a mark for each interval that has skipped steps."""
    # An interval in which all steps were skipped has no norm.
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
    """Plots the learning rate of every update, and metrics at the end of each epoch.

    Args:
        history: dict: name of a metric -> list with a number per epoch, such as `History.history`; names of
            validation metrics start with `val_`.
        rates: sequence of float, the learning rate of each update.
        steps_per_epoch: int, updates per epoch.
        figures: names of metrics in `history`.
        title: title of the figure.

    Returns:
        `matplotlib.figure.Figure` with a panel for the learning rate and one for each metric.

    Raises:
        ValueError: the history does not have one of the metrics.
    """
    missing = [name for name in figures if name not in history]
    if missing:
        raise ValueError(f"`history` has no {missing[0]!r}. Choose from: {', '.join(history)}")
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


def loss_and_similarity(steps, losses, similarities, *, title=""):
    """Plots the losses of several models over their updates, and how alike the tokens of a sentence are.

    Args:
        steps: sequence of int, numbers of updates.
        losses: dict: name of a model -> validation loss at each number of updates, in nats a token.
        similarities: dict: name of a model -> its `token_similarity` before and after training.
        title: title of the figure.

    Returns:
        `matplotlib.figure.Figure`.
    """
    figure, (left, right) = subplots(9, 3.6, columns=2, title=title)
    draw_curves(left, {name: (steps, values) for name, values in losses.items()})
    left.set(xlabel="updates", ylabel="validation loss (nats a token)")
    draw_curves(right, {name: ((0, 1), values) for name, values in similarities.items()})
    right.set(ylabel="mean cosine between two tokens", ylim=(0, 1.02), xlim=(-0.2, 1.2))
    right.set_xticks((0, 1), ("before training", "after"))
    right.get_legend().remove()
    return figure


def length_histogram(source_lengths, target_lengths, batches, *, names=("source", "target"), title=""):
    """Plots the length distributions of a corpus, and the padding of its batches.

    Args:
        source_lengths: int NumPy array, shape `(num_pairs,)`, in tokens.
        target_lengths: int NumPy array, shape `(num_pairs,)`, in tokens.
        batches: list of `(positions, tokens, target_len)`, one for each batch; positions and tokens of source
            and target together.
        names: pair of str, names of the two sides.
        title: title of the figure.

    Returns:
        `matplotlib.figure.Figure`.
    """
    figure, (left, right) = subplots(9, 3.6, columns=2, title=title)
    # Leaves out the longest 0.1 %, which would compress the rest of the axis.
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
    """Plots scores of translations against one search setting, with a line for each value of another.

    Args:
        records: list of dicts, one for each search, with the two settings and the scores.
        x: key of the setting on the x axis; its values are numbers.
        lines: key of the setting that has a line for each of its values, in order of appearance.
        names: pair of str, labels of the two settings, for the axis and the legend.
        panels: dict: key of a score -> axis label with its unit; `None` means BLEU and the length ratio,
            `"bleu"` and `"length_ratio"`.
        log: whether the x axis is logarithmic, with base 2.
        title: title of the figure.

    Returns:
        `matplotlib.figure.Figure` with one panel per score.
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
    """Plots the quality of sampled translations against their diversity.

    Args:
        records: list of dicts, one for each sampling method, with the keys `family` (points of a family are
            joined by a line), `name` (label of the point), `pairwise_bleu` (BLEU between samples of the same
            sentence, from 0, all different, to 100, all the same) and `bleu` (of samples against references).
        reference: BLEU of beam search, drawn as a horizontal line, or `None`.
        title: title of the figure.

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
    """Plots the median speed of several systems, with error bars from the slowest to the fastest round.

    Args:
        rounds: dict: name of a system -> list of float, the speed in each round.
        unit: unit of the speeds.
        title: title of the figure.

    Returns:
        `matplotlib.figure.Figure`, with the first system on top.
    """
    figure, (axes,) = subplots(7.5, 0.5 * len(rounds) + 1.2, title=title)
    most = max(max(speeds) for speeds in rounds.values())
    for row, speeds in enumerate(rounds.values()):
        median = statistics.median(speeds)
        axes.barh(row, median, 0.6, color=BLUE)
        digits = 0 if median >= 100 else 1
        spread = [[median - min(speeds)], [max(speeds) - median]]
        axes.errorbar(median, row, xerr=spread, color="black", linewidth=1, capsize=3)
        axes.text(max(speeds) + 0.02 * most, row, f"{median:,.{digits}f}", va="center", fontsize=9)
    axes.set_yticks(range(len(rounds)), list(rounds))
    axes.set(xlabel=f"{unit} (median of the rounds, and their range)", xlim=(0, 1.12 * most))
    axes.invert_yaxis()
    tidy(axes)
    axes.grid(False, axis="y")
    axes.set_axisbelow(True)
    return figure
