"""Pictures of a corpus and its batches."""

import numpy as np
from matplotlib.figure import Figure

from keras_transformer.analysis.plots.style import BLUE, GREEN, ORANGE, tidy


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
