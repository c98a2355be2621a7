"""What theory says a training step costs: multiply-adds counted by hand, and a fit to measured seconds."""

import itertools
from typing import NamedTuple

import numpy as np

WIDTH, INNER, HEADS = 256, 1024, 4
NOISE = 0.01  # relative error of a measurement
PARTS = ("layers", "attention", "softmax matrix")


class Point(NamedTuple):
    """Sizes of one model and of its sentences, in tokens; `layers` of encoder and of decoder each."""

    length: int = 32
    vocabulary: int = 8000
    layers: int = 3


def multiply_adds(point, tokens):
    """Multiply-adds of a training step: those of the forward pass, and twice as many of the gradients.

    Args:
        point: `Point`; its sizes may be float.
        tokens: on each side of the batch.

    Returns:
        tuple of float, for each of `PARTS`: projections and feed-forward of all layers; scores
        and mixing of all attentions; the softmax matrix.
    """
    # Four projections in each of three attentions, two matrices in each of two feed-forwards.
    weights = point.layers * (3 * 4 * WIDTH * WIDTH + 2 * 2 * WIDTH * INNER)
    # Two products in each of three attentions, for each pair of positions of a sentence.
    attention = point.layers * 3 * 2 * point.length * WIDTH
    return tuple(3.0 * tokens * of_token for of_token in (weights, attention, WIDTH * point.vocabulary))


class CostModel(NamedTuple):
    """seconds of a step = rest + sum of (multiply-adds of a part * seconds for one of them).

    Attributes:
        rest: seconds of a step that do not grow.
        seconds: dict: each of `PARTS` that could be told from the rest -> seconds for a multiply-add.
        tokens: on each side of the batch.
    """

    rest: float
    seconds: dict
    tokens: int

    def __call__(self, point):
        """Returns the seconds of a step."""
        counts = dict(zip(PARTS, multiply_adds(point, self.tokens), strict=True))
        return self.rest + sum(seconds * counts[part] for part, seconds in self.seconds.items())


class Fit(NamedTuple):
    """What `fit` found.

    Attributes:
        model: `CostModel`.
        pace: dict: axis -> how many times as long as by the model everything took while it was
            measured, because the machine's speed changes; 1 on geometric average.
    """

    model: CostModel
    pace: dict


def fit(measured, tokens):
    """Fits the model of costs, and the pace of each axis.

    Least squares of relative errors, in which a point that is off by more than `NOISE` counts the less
    the more it is off: a kink is to stand out, not to bend the rest.

    Args:
        measured: dict: axis -> list of (`Point`, seconds of a step); with several axes, a point
            that they share ties their paces together.
        tokens: on each side of the batch.

    Returns:
        `Fit`; nothing in it is negative. A part that is the same for all points is in the rest, and
        one that grows only as another does is in that one.
    """
    points = [point for along in measured.values() for point, _ in along]
    seconds = np.array([found for along in measured.values() for _, found in along])
    axis_of = np.repeat(np.arange(len(measured)), [len(along) for along in measured.values()])
    counts = np.array([multiply_adds(point, tokens) for point in points])
    most = dict(zip(PARTS, counts.max(axis=0).tolist(), strict=True))
    terms, parts = np.ones((len(counts), 1)), []
    for part, column in zip(PARTS, counts.T, strict=True):
        more = np.column_stack([terms, column / most[part]])  # shares, as counts are 10^9 times the rest
        if np.linalg.matrix_rank(more) == more.shape[1]:
            terms, parts = more, [*parts, part]
    pace, weights = np.ones(len(measured)), np.ones(len(seconds))
    for _ in range(200):  # in turns, as the product of rates and pace is not linear
        scales = np.sqrt(weights)
        rates = non_negative(terms * (scales * pace[axis_of] / seconds)[:, None], scales)
        ratios = np.log(seconds / (terms @ rates))
        pace = np.bincount(axis_of, weights * ratios) / np.bincount(axis_of, weights)
        pace = np.exp(pace - pace.mean())
        off = np.exp(ratios) / pace[axis_of] - 1
        weights = 1 / np.maximum(np.abs(off), NOISE)
    rest, *found = rates.tolist()
    model = CostModel(rest, {part: one / most[part] for part, one in zip(parts, found, strict=True)}, tokens)
    return Fit(model, dict(zip(measured, pace.tolist(), strict=True)))


def non_negative(terms, wanted):
    """Least squares without negative coefficients; tries every set of columns, so for few of them.

    Args:
        terms: float, shape `(points, columns)`.
        wanted: float, shape `(points,)`.

    Returns:
        float, shape `(columns,)`.
    """
    columns = terms.shape[1]
    best = float(np.sum(wanted**2)), np.zeros(columns)
    for size in range(1, columns + 1):
        for chosen in map(list, itertools.combinations(range(columns), size)):
            found = np.zeros(columns)
            found[chosen] = np.linalg.lstsq(terms[:, chosen], wanted, rcond=None)[0]
            error = float(np.sum((terms @ found - wanted) ** 2))
            if error < best[0] and found.min() >= 0:
                best = error, found
    return best[1]


def memory_text(point, tokens):
    """What a step keeps in memory, in words."""
    logits = tokens * point.vocabulary
    weights = tokens * HEADS * point.length
    parameters = point.vocabulary * WIDTH + multiply_adds(point, 1 / 3)[0]
    logits, weights, output, parameters = (
        f"{4 * number / 2**20:,.0f}" for number in (logits, weights, tokens * WIDTH, parameters)
    )
    return (
        f"logits {logits} MiB, weights of one attention {weights} MiB, "
        f"output of one layer {output} MiB, parameters {parameters} MiB"
    )
