"""Pictures of what `model.fit` returns."""

from matplotlib.figure import Figure

from keras_transformer.analysis.plots.style import BLUE, GREEN, ORANGE, tidy

_LABELS = {
    "loss": "loss (nats a token)",
    "perplexity": "perplexity per sub-word token",
    "token_accuracy": "token accuracy",
}


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
