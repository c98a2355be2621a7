"""Draws overview.png, the picture at the top of the README.

    python docs/overview.py

Its sentence, ids, log-probability and links are those of the Multi30k run of results.md.
"""

import pathlib

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from keras_transformer.analysis.plots.style import BLUE, GREEN, ORANGE, PURPLE, SKY, YELLOW

SOURCE = "A man is riding a horse ."
TARGET = "Ein Mann reitet auf einem Pferd ."
IDS = (280, 331, 322, 881, 261, 1492, 7914)
LINKS = ((0, 0), (1, 1), (3, 2), (4, 4), (5, 3), (5, 5), (6, 6))
LENGTHS = ((7, 7, 6, 7), (4, 4, 4, 3), (10, 9, 10, 10))
STACK = (("feed-forward", SKY), ("self-attention", YELLOW))
DECODER_STACK = (STACK[0], ("attention to\nthe source", ORANGE), STACK[1])

TOP, BOTTOM = (31, 22), (1, 20)  # lower edge and height of the two rows of boxes


def overview():
    """Draws the pipeline from text to run folder, and its results.

    Returns:
        `matplotlib.figure.Figure`, 9.6 by 5 inches.
    """
    figure = Figure(figsize=(9.6, 5))
    axes = figure.add_axes((0.01, 0.01, 0.98, 0.98))
    axes.set(xlim=(0, 100), ylim=(0, 54))
    axes.axis("off")

    steps = (
        (0.3, 23.2, "pairs of sentences", "prepare_wmt.py", GREEN),
        (26.5, 15.5, "a vocabulary", "inspect_vocabulary.py", GREEN),
        (45, 12, "batches", "", GREEN),
        (59.6, 21.5, "the Transformer", "train_wmt.py", BLUE),
        (83.9, 15.8, "a run folder", "average_checkpoints.py", BLUE),
    )
    for left, width, title, program, colour in steps:
        _box(axes, left, TOP, width, title, program, colour)
    for (left, width, *_), (following, *_) in zip(steps, steps[1:], strict=False):
        _arrow(axes, (left + width, 42), (following, 42))
    _pairs(axes, 1.4)
    _ids(axes, 26.9)
    _batches(axes, 46.4)
    _transformer(axes, 60.3)
    _lines(
        axes, 85.8, 45.8, ("settings", "vocabulary", "checkpoints", "averaged weights", "curves"), step=2.5
    )

    results = (
        (0.3, 23.8, "translations", "translate.py"),
        (26.5, 17.5, "scores", "evaluate_wmt.py"),
        (46.4, 30.4, "log-probabilities, alignments", "score.py"),
        (79.2, 20.5, "exports, a server", "export_model.py  serve.py"),
    )
    axes.plot((91.8, 91.8, 12.2), (TOP[0], 26, 26), color="0.35", linewidth=1.2, solid_joinstyle="miter")
    for left, width, title, program in results:
        _box(axes, left, BOTTOM, width, title, program, PURPLE)
        _arrow(axes, (left + width / 2, 26), (left + width / 2, sum(BOTTOM)))
    _lines(
        axes,
        1.6,
        14,
        ("Ein Mann reitet auf einem Pferd.", "", "beam search, n-best lists,", "sampling, ensembles"),
    )
    _lines(axes, 27.7, 14, ("BLEU, chrF, TER", "the paper's own BLEU", "intervals and", "significance tests"))
    _alignment(axes, 47.6, 28)
    _lines(
        axes,
        80.4,
        14,
        ("SavedModel, CTranslate2,", ".keras, .weights.h5", "HTTP, and a page of", "attention and search"),
    )
    return figure


def _box(axes, left, row, width, title, program, colour):
    bottom, height = row
    style = "round,pad=0,rounding_size=0.8"
    axes.add_patch(
        FancyBboxPatch(
            (left, bottom), width, height, boxstyle=style, facecolor="white", edgecolor=colour, linewidth=1.4
        )
    )
    axes.text(
        left + width / 2, bottom + height - 2.2, title, ha="center", va="center", weight="bold", size=9.5
    )
    axes.text(
        left + width / 2,
        bottom + 1.7,
        program,
        ha="center",
        va="center",
        family="monospace",
        size=7.5,
        color="0.3",
    )


def _arrow(axes, start, end):
    axes.annotate(
        "",
        xy=end,
        xytext=start,
        arrowprops={"arrowstyle": "-|>", "color": "0.35", "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0},
    )


def _lines(axes, left, top, texts, *, step=2.7, **style):
    for number, text in enumerate(texts):
        axes.text(left, top - step * number, text, va="center", **{"size": 8.5, **style})


def _pairs(axes, left):
    _lines(axes, left, 45.5, ("train.en", "", "train.de"), step=3, family="monospace", size=7.5, color="0.4")
    _lines(
        axes, left, 43, ("A man is riding a horse.", "", "Ein Mann reitet auf einem Pferd."), step=3, size=8
    )


def _ids(axes, left):
    for number, (piece, one) in enumerate(zip(SOURCE.split(), IDS, strict=True)):
        y = 46.3 - 1.75 * number
        axes.text(left + 1, y, piece, va="center", size=8)
        axes.text(left + 13.9, y, one, va="center", ha="right", size=8, color="0.35")


def _batches(axes, left):
    top = 47
    for rows in LENGTHS:
        for length in rows:
            top -= 0.8
            axes.add_patch(Rectangle((left, top), 0.9 * length, 0.6, color=GREEN))
            axes.add_patch(
                Rectangle((left + 0.9 * length, top), 0.9 * (max(rows) - length), 0.6, color="0.8")
            )
        top -= 1


def _transformer(axes, left):
    for x, name, layers in ((left, "encoder", STACK), (left + 10.6, "decoder", DECODER_STACK)):
        axes.text(x + 4.8, 46.2, f"{name}, N ×", ha="center", va="center", size=8)
        height = 9.6 / len(layers)
        for number, (text, colour) in enumerate(layers):
            y = 44.6 - height * (number + 1)
            axes.add_patch(Rectangle((x, y), 9.6, height - 0.35, facecolor=colour, alpha=0.45))
            axes.text(
                x + 4.8, y + height / 2 - 0.2, text, ha="center", va="center", size=7.5, linespacing=0.9
            )


def _alignment(axes, left, width):
    places = []
    for words, y in ((SOURCE.split(), 14.2), (TARGET.split(), 8.4)):
        letters = 0.75  # about the width of one
        space = (width - letters * sum(map(len, words))) / (len(words) - 1)
        starts = [sum(letters * len(word) + space for word in words[:number]) for number in range(len(words))]
        places.append(
            [left + start + letters * len(word) / 2 for start, word in zip(starts, words, strict=True)]
        )
        for x, word in zip(places[-1], words, strict=True):
            axes.text(x, y, word, ha="center", va="center", size=8)
    for source, target in LINKS:
        axes.plot((places[0][source], places[1][target]), (13, 9.6), color=PURPLE, linewidth=1)
    axes.text(left + width / 2, 5.4, "log P(target | source) = −0.75", ha="center", va="center", size=8.5)


if __name__ == "__main__":
    overview().savefig(pathlib.Path(__file__).with_suffix(".png"), dpi=160)
