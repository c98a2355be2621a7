"""Pictures of a run's history, of what `model.fit` returns, and of the lengths of a corpus."""

import numpy as np
from matplotlib.figure import Figure

from keras_transformer.analysis.plots.style import BLUE, GREEN, ORANGE, tidy

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
    figure = Figure(figsize=(9, 5.4 if measured else 3.6), layout="constrained")
    if measured:
        axes = figure.subplot_mosaic([["left", "right"], ["below", "below"]], height_ratios=[2, 1])
        left, right = axes["left"], axes["right"]
        _draw_gradients(axes["below"], measured)
    else:
        left, right = figure.subplots(1, 2)

    def minutes(records):
        return [record["minutes"] for record in records]

    left.plot(minutes(train), [r["perplexity"] for r in train], color=BLUE, label="training")
    left.plot(
        minutes(validation),
        [r["perplexity"] for r in validation],
        color=ORANGE,
        marker="o",
        markersize=3,
        label="validation",
    )
    left.set(
        xlabel="training time (minutes)",
        ylabel="perplexity per sub-word token",
        yscale="log",
    )
    left.legend(frameon=False)

    scored = [record for record in validation if "bleu" in record]
    right.plot(minutes(scored), [r["bleu"] for r in scored], color=GREEN, marker="o", markersize=3)
    right.set(
        xlabel="training time (minutes)",
        ylabel="validation BLEU (sacreBLEU)",
        xlim=(0, 1.02 * train[-1]["minutes"]),
        ylim=(0, None),
    )
    steps = right.secondary_xaxis("top", functions=_minutes_to_steps(train))
    steps.set_xlabel("optimizer updates")
    for axes in figure.get_axes():
        tidy(axes)
    if title:
        figure.suptitle(title)
    return figure


def _draw_gradients(axes, train):
    """Draws norms over time, and a mark on the time axis for each interval with skipped steps."""
    # An interval of skipped steps alone has no norm.
    applied = [record for record in train if record["gradient_norm"] > 0]
    axes.plot([r["minutes"] for r in applied], [r["gradient_norm"] for r in applied], color=BLUE)
    axes.set(xlabel="training time (minutes)", ylabel="gradient norm", yscale="log")
    skipped = [record for record in train if record["skipped"]]
    if skipped:
        total = sum(record["skipped"] for record in skipped)
        axes.plot(
            [record["minutes"] for record in skipped],
            [0.0] * len(skipped),
            color=ORANGE,
            marker="x",
            linestyle="none",
            clip_on=False,
            transform=axes.get_xaxis_transform(),
            label=f"skipped steps: {total:,}",
        )
        axes.legend(frameon=False)


def _minutes_to_steps(train):
    """Two functions: updates at a time and back, straight between the records."""
    minutes = [0.0, *(record["minutes"] for record in train)]
    steps = [0.0, *(record["step"] for record in train)]
    # The axis is a little longer than the run: on at its average speed.
    minutes.append(2 * minutes[-1])
    steps.append(2 * steps[-1])
    return (
        lambda values: np.interp(values, minutes, steps),
        lambda values: np.interp(values, steps, minutes),
    )


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
    figure = Figure(figsize=(3.2 * (1 + len(figures)), 3.2), layout="constrained")
    first, *others = figure.subplots(1, 1 + len(figures))
    first.plot(range(1, len(rates) + 1), rates, color=GREEN)
    first.set(ylabel="learning rate", ylim=(0, None))
    first.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    for axes, name in zip(others, figures, strict=True):
        for key, label, color, marker in (
            (name, "training", BLUE, ""),
            (f"val_{name}", "validation", ORANGE, "o"),
        ):
            if key in history:
                steps = [steps_per_epoch * (epoch + 1) for epoch in range(len(history[key]))]
                axes.plot(steps, history[key], color=color, marker=marker, markersize=3, label=label)
        axes.set(ylabel=_LABELS.get(name, name))
        axes.legend(frameon=False, fontsize=8)
    for axes in (first, *others):
        axes.set_xlabel("updates")
        tidy(axes)
    if title:
        figure.suptitle(title)
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
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    # The few longest would leave no room for the others.
    shown = int(max(np.quantile(side, 0.999) for side in (source_lengths, target_lengths))) + 1
    for name, side, color in zip(names, (source_lengths, target_lengths), (BLUE, ORANGE), strict=True):
        counts = np.bincount(side, minlength=shown + 1)[: shown + 1]
        left.step(range(shown + 1), counts / len(side), where="mid", color=color, label=name)
    left.set(xlabel="tokens a sentence, end included", ylabel="share of the sentences", ylim=(0, None))
    left.legend(frameon=False)

    positions, tokens, lengths = np.array(batches).T
    total = 100 * (1 - tokens.sum() / positions.sum())
    right.scatter(lengths, 100 * (1 - tokens / positions), s=9, color=GREEN, alpha=0.6, edgecolors="none")
    right.axhline(total, color="black", linewidth=0.8, linestyle="--", label=f"all together {total:.1f} %")
    right.set(xlabel="padded target length of a batch", ylabel="padding (% of the positions)", ylim=(0, None))
    right.legend(frameon=False)
    for axes in (left, right):
        tidy(axes)
    if title:
        figure.suptitle(title)
    return figure
