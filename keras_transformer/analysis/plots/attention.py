"""Pictures of attention."""

import numpy as np
from matplotlib.figure import Figure

from keras_transformer.analysis.plots.style import drawable


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
    axes.set_xticks(range(shape[1]), drawable(source_pieces), rotation=90)
    axes.set_yticks(range(shape[0]), drawable(target_pieces))
    axes.set(xlabel="source", ylabel="target")
    figure.colorbar(picture, label="attention", shrink=0.8)
    if title:
        figure.suptitle(title)
    return figure
