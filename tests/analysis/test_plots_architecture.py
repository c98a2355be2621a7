"""The diagrams of the model and of attention: blocks in the order of the paper, and readable texts."""

import itertools

import numpy as np
import pytest
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path

from keras_transformer.analysis.plots import attention_diagrams, model_diagram

DIAGRAMS = (model_diagram, attention_diagrams)
EMBEDDING = r"embedding $\times \sqrt{d_{model}}$ (3.4)"
ENCODER = ["multi-head self-attention (3.2.3)", "add & norm (3.1)", "feed-forward (3.3)", "add & norm (3.1)"]
DECODER = [
    "masked multi-head self-attention (3.2.3)", "add & norm (3.1)",
    "multi-head cross-attention (3.2.3)", "add & norm (3.1)",
    "feed-forward (3.3)", "add & norm (3.1)",
]  # fmt: skip


def blocks(axes):
    """Returns {extent of a block in pixels: its text}, from bottom to top; frames and copies have no text."""
    found = {}
    for patch in axes.patches:
        if isinstance(patch, FancyBboxPatch) and patch.get_facecolor()[3] > 0:
            box = patch.get_window_extent()
            middle = (box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2
            near = [
                text
                for text in axes.texts
                if np.hypot(*(axes.transData.transform(text.get_position()) - middle)) < 1
            ]
            if near:
                found[box] = near[0]
    return dict(sorted(found.items(), key=lambda item: item[0].y0))


def words(texts):
    return [text.get_text().replace("\n", " ") for text in texts]


def test_the_model_has_the_blocks_of_figure_1_in_its_order():
    figure = model_diagram()
    figure.draw_without_rendering()
    (axes,) = figure.get_axes()
    columns = {"source": [], "target": []}
    for text in blocks(axes).values():
        columns["source" if text.get_position()[0] < 50 else "target"].append(text)
    assert words(columns["source"]) == [EMBEDDING, *ENCODER]
    assert words(columns["target"]) == [EMBEDDING, *DECODER, "linear (3.4)", "softmax (3.4)"]


def test_attention_has_the_blocks_of_figure_2_in_its_order():
    figure = attention_diagrams()
    figure.draw_without_rendering()
    left, right = figure.get_axes()
    scaled = r"divide by $\sqrt{d_k}$"
    steps = [
        "product $QK^T$",
        scaled,
        r"mask: hidden to $-\infty$",
        "softmax of each row",
        "product with $V$",
    ]
    assert words(blocks(left).values()) == steps
    inputs = [rf"linear $W_i^{name}$" for name in "QKV"]
    after = ["scaled dot-product attention", "concatenate", "linear $W^O$"]
    assert words(blocks(right).values()) == [*inputs, *after]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("diagram", DIAGRAMS)
def test_texts_are_inside_their_blocks_and_cover_nothing(diagram):
    figure = diagram()
    figure.draw_without_rendering()
    for axes in figure.get_axes():
        inside = blocks(axes)
        for box, text in inside.items():
            extent = text.get_window_extent()
            assert box.x0 + 2 < extent.x0, text
            assert extent.x1 < box.x1 - 2, text
            assert box.y0 < extent.y0, text
            assert extent.y1 < box.y1, text
        texts = [text for text in axes.texts if text.get_text() not in ("", "+")]
        for first, other in itertools.combinations(texts, 2):
            assert not first.get_window_extent().overlaps(other.get_window_extent()), (first, other)
        outside = [text for text in texts if text not in inside.values()]
        for text, box in itertools.product(outside, inside):
            assert not text.get_window_extent().overlaps(box), text
        for text in texts:
            assert figure.bbox.containsx(text.get_window_extent().x0), text
            assert figure.bbox.containsx(text.get_window_extent().x1), text
            assert figure.bbox.containsy(text.get_window_extent().y1), text


@pytest.mark.parametrize("diagram", DIAGRAMS)
def test_no_arrow_runs_through_a_text(diagram):
    figure = diagram()
    figure.draw_without_rendering()
    for axes in figure.get_axes():
        texts = [text.get_window_extent() for text in axes.texts if text.get_text() not in ("", "+")]
        arrows = [patch for patch in axes.patches if isinstance(patch, FancyArrowPatch)]
        assert len(arrows) > 5
        for arrow, extent in itertools.product(arrows, texts):
            path = axes.transData.transform_path(arrow.get_path())
            drawn = path.codes != Path.CLOSEPOLY
            line = Path(path.vertices[drawn], path.codes[drawn])
            assert not line.intersects_bbox(extent, filled=False), extent
