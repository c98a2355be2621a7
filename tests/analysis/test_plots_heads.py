"""Plots of heads: each panel shows the numbers of its head."""

import numpy as np
import pytest

from keras_transformer.analysis.heads import AttentionMass
from keras_transformer.analysis.plots import ablation_bars, attention_lines, attention_mass_bars, head_grid


def test_a_grid_has_a_panel_for_each_head_of_each_layer():
    weights = np.random.default_rng(1).random((2, 3, 2, 4))
    figure = head_grid(weights, ["▁Ein", "</s>"], ["▁A", "▁$", ".", "</s>"], names=("step", "looks at"))
    panels = figure.get_axes()[:6]
    for (layer, head), axes in zip(np.ndindex(2, 3), panels, strict=True):
        np.testing.assert_array_equal(axes.get_images()[0].get_array(), weights[layer, head])
        assert axes.get_images()[0].get_clim() == (0, 1)
        assert axes.get_title() == f"layer {layer}, head {head}"
    assert [label.get_text() for label in panels[3].get_xticklabels()] == ["▁A", r"▁\$", ".", "</s>"]
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["▁Ein", "</s>"]
    assert (figure.get_supylabel(), figure.get_supxlabel()) == ("step", "looks at")
    figure.draw_without_rendering()


def test_a_grid_of_other_pieces_is_refused():
    with pytest.raises(ValueError, match=r"\(1, 2\) of the pieces. Received: \(2, 1\)"):
        head_grid(np.ones((1, 1, 2, 1)), ["a"], ["b", "c"])


def test_lines_go_from_queries_to_keys_and_are_as_dark_as_their_weights():
    weights = np.array([[0.7, 0.3, 0.0], [0.0, 0.0, 1.0]])
    figure = attention_lines({"one": (weights, ["p", "q"], ["x", "y", "z"])}, names=("from", "to"))
    (axes,) = figure.get_axes()
    lines = {tuple(line.get_ydata()): line.get_alpha() for line in axes.get_lines()}
    assert lines == {(0, 0): 0.7, (0, 1): 0.3, (1, 2): 1.0}
    assert {tuple(line.get_xdata()) for line in axes.get_lines()} == {(0, 1)}
    assert [text.get_text() for text in axes.texts] == ["p", "q", "from", "x", "y", "z", "to"]
    figure.draw_without_rendering()


def test_lines_of_other_pieces_are_refused_with_the_name_of_the_head():
    with pytest.raises(ValueError, match=r"'one' must have the shape \(2, 1\) of the pieces. R"):
        attention_lines({"one": (np.ones((1, 2)), ["p", "q"], ["x"])})


def test_shares_are_written_in_percent_beside_that_of_a_uniform_head():
    shares = {
        "before": AttentionMass(np.array([[0.25, 0.9, 0.0], [1.0, 0.104, 0.5]]), 0.1, 7),
        "next": AttentionMass(np.zeros((2, 3)), 0.2, 5),
    }
    first, second = attention_mass_bars(shares).get_axes()[:2]
    assert [text.get_text() for text in first.texts] == ["25", "90", "0", "100", "10", "50"]
    assert [text.get_position() for text in first.texts][:4] == [(0, 0), (1, 0), (2, 0), (0, 1)]
    assert first.get_title() == "before\n(uniform: 10 %)"
    assert second.get_title() == "next\n(uniform: 20 %)"
    np.testing.assert_array_equal(first.get_images()[0].get_array(), shares["before"].heads)


def test_a_bar_for_each_head_and_the_largest_stands_out():
    changes = {"encoder": np.array([[0.1, -0.2]]), "cross": np.array([[0.1, 0.3], [0.0, 2.5]])}
    left, right = ablation_bars(changes, ylabel="loss").get_axes()
    assert [bar.get_height() for bar in left.patches] == [0.1, -0.2]
    assert [bar.get_height() for bar in right.patches] == [0.1, 0.3, 0.0, 2.5]
    assert [round(bar.get_x() + bar.get_width() / 2, 6) for bar in right.patches] == [-0.2, 0.2, 0.8, 1.2]
    colours = [bar.get_facecolor() for bar in right.patches]
    assert len(set(colours)) == 2
    assert colours.count(colours[3]) == 1
    assert left.get_ylim() == right.get_ylim()
    assert left.get_ylabel() == "loss"
