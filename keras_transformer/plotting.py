"""Pictures of a run; each function returns a matplotlib figure."""

import numpy as np
from matplotlib.figure import Figure

# Okabe and Ito's colours: distinct for every kind of colour vision, and in grey.
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"


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
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
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


def attention_map(weights, source_pieces, target_pieces, *, title=""):
    """Draws how much each target piece looks at each source piece.

    Args:
        weights: float NumPy array, shape `(num_target, num_source)`, from 0 to 1: a soft
            alignment, or the attention of one head.
        source_pieces: list of str, below the columns; pieces or words.
        target_pieces: list of str, beside the rows, the first on top.
        title: above the picture.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: there are not as many pieces as rows or columns.
    """
    shape = len(target_pieces), len(source_pieces)
    if np.shape(weights) != shape:
        raise ValueError(
            "`weights` must have a row for each target piece and a column for each source piece: "
            f"{shape}. Received: shape {np.shape(weights)}"
        )
    size = [max(3.0, 1.5 + 0.28 * number) for number in shape]
    figure = Figure(figsize=(size[1] + 0.8, size[0]), layout="constrained")
    axes = figure.subplots()
    picture = axes.imshow(weights, cmap="Blues", vmin=0, vmax=1, aspect="equal")
    axes.set_xticks(range(shape[1]), _drawable(source_pieces), rotation=90)
    axes.set_yticks(range(shape[0]), _drawable(target_pieces))
    axes.set(xlabel="source", ylabel="target")
    figure.colorbar(picture, label="attention", shrink=0.8)
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
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    if title:
        figure.suptitle(title)
    return figure


def _drawable(texts):
    """Texts without what would begin a formula."""
    return [text.replace("$", r"\$") for text in texts]


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
