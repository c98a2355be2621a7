"""Pictures of a run's history."""

import numpy as np
from matplotlib.figure import Figure

from keras_transformer.analysis.plots.style import BLUE, GREEN, ORANGE, tidy


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
