"""Plots of a run show the values of its history."""

import io

import numpy as np
import pytest

from keras_transformer.analysis.plots import (
    attention_map,
    loss_and_similarity,
    speed_bars,
    training_curves,
    tree_diagrams,
)
from keras_transformer.text.trees import read_tree, write_tree

HISTORY = [
    {"kind": "train", "step": 100, "minutes": 2.0, "perplexity": 50.0},
    {"kind": "validation", "step": 100, "minutes": 2.0, "perplexity": 60.0, "bleu": 3.0},
    {"kind": "train", "step": 300, "minutes": 6.0, "perplexity": 20.0},
    {"kind": "validation", "step": 300, "minutes": 6.0, "perplexity": 30.0, "bleu": 11.0},
    {"kind": "test", "split": "test", "bleu": 12.0},
]


def drawn(axes):
    return [np.stack(line.get_data(), 1).tolist() for line in axes.get_lines()]


def test_curves_show_perplexity_and_bleu_over_minutes():
    left, right = training_curves(HISTORY, title="a run").get_axes()[:2]
    assert drawn(left) == [[[2, 50], [6, 20]], [[2, 60], [6, 30]]]
    assert drawn(right) == [[[2, 3], [6, 11]]]


def test_updates_stand_above_the_minutes_at_which_they_were_made():
    figure = training_curves(HISTORY)
    right = figure.get_axes()[1]
    (above,) = right.child_axes
    figure.draw_without_rendering()
    assert above.get_xlim() == pytest.approx([50 * minute for minute in right.get_xlim()])


def test_every_axis_is_labelled_and_the_legend_names_both_curves():
    left, right = training_curves(HISTORY).get_axes()[:2]
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["training", "validation"]
    for axes in (left, right):
        assert axes.get_xlabel() == "training time (minutes)"
        assert axes.get_ylabel()


def test_a_run_without_bleu_has_an_empty_right_side():
    history = [{k: v for k, v in record.items() if k != "bleu"} for record in HISTORY]
    assert drawn(training_curves(history).get_axes()[1]) == [[]]


def test_a_validation_after_the_last_training_record_is_shown():
    history = [*HISTORY, {**HISTORY[3], "minutes": 7.5}]
    figure = training_curves(history)
    figure.draw_without_rendering()
    assert figure.get_axes()[1].get_xlim()[1] > 7.5


@pytest.mark.slow
def test_dollars_in_titles_are_no_formulas():
    tree = read_tree("(S (NP ($ $) (CD 5)) (VP (VBD fell)))")
    for figure in (
        training_curves(HISTORY, title="runs/$a_$b"),
        tree_diagrams({write_tree(tree): tree}),
        attention_map(np.eye(2), ["$", "a"], ["b", "$"], title="$5 or $6"),
    ):
        figure.savefig(io.BytesIO())


def test_speeds_below_a_hundred_have_a_decimal():
    (axes,) = speed_bars({"one": [4.6], "two": [250.4]}, unit="sentences/s").get_axes()
    assert {text.get_text() for text in axes.texts} == {"4.6", "250"}


def test_a_history_without_training_is_refused():
    with pytest.raises(ValueError, match="no training record"):
        training_curves(HISTORY[-1:])


def test_gradient_norms_and_skipped_steps_are_drawn_below():
    history = [
        {**HISTORY[0], "gradient_norm": 2.5, "skipped": 0},
        {**HISTORY[2], "gradient_norm": 0.5, "skipped": 3},
        {**HISTORY[2], "minutes": 7.0, "step": 350, "gradient_norm": 0.0, "skipped": 50},
    ]
    figure = training_curves(history)
    below = figure.get_axes()[2]
    assert drawn(below) == [[[2, 2.5], [6, 0.5]], [[6, 0], [7, 0]]]
    assert [text.get_text() for text in below.get_legend().get_texts()] == ["skipped steps: 53"]
    assert below.get_ylabel() == "gradient norm"
    figure.draw_without_rendering()
    assert training_curves(history[:1]).get_axes()[2].get_legend() is None


def test_losses_are_drawn_over_updates_and_similarities_before_and_after():
    losses = {"post": [6.0, 5.5], "pre": [6.0, 4.0]}
    figure = loss_and_similarity([50, 100], losses, {"post": (0.9, 1.0), "pre": (0.5, 0.2)})
    left, right = figure.get_axes()
    assert drawn(left) == [[[50, 6], [100, 5.5]], [[50, 6], [100, 4]]]
    assert drawn(right) == [[[0, 0.9], [1, 1.0]], [[0, 0.5], [1, 0.2]]]
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["post", "pre"]
    assert [line.get_color() for line in left.get_lines()] == [line.get_color() for line in right.get_lines()]
    assert [label.get_text() for label in right.get_xticklabels()] == ["before training", "after"]
    assert left.get_xlabel() == "updates"
    assert left.get_ylabel()
    assert right.get_ylabel()


def test_an_attention_map_names_every_piece_and_shows_every_weight():
    weights = np.array([[0.9, 0.1, 0.0], [0.2, 0.3, 0.5]])
    figure = attention_map(weights, ["▁A", "▁$", "$"], ["▁Ein", "."], title="layer 2")
    axes = figure.get_axes()[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["▁A", r"▁\$", r"\$"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["▁Ein", "."]
    np.testing.assert_array_equal(axes.get_images()[0].get_array(), weights)
    assert axes.get_images()[0].get_clim() == (0, 1)
    top, bottom = (axes.transData.transform((0, row))[1] for row in (0, 1))
    assert top > bottom  # the first target piece stands above the second
    figure.draw_without_rendering()


def test_an_attention_map_of_other_pieces_is_refused():
    with pytest.raises(ValueError, match=r"\(1, 2\) of the pieces. Received: \(2, 1\)"):
        attention_map(np.ones((2, 1)), ["a", "b"], ["c"])
