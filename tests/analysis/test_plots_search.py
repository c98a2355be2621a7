"""Plots of searches, of `fit` and of speeds show the measured values."""

import numpy as np
import pytest

from keras_transformer.analysis.plots import (
    diversity_curves,
    fit_curves,
    search_curves,
    speed_bars,
)

RECORDS = [
    {"beam": 4, "alpha": 0.6, "bleu": 39.5, "length_ratio": 0.98},
    {"beam": 4, "alpha": 0.0, "bleu": 38.7, "length_ratio": 0.96},
    {"beam": 1, "alpha": 0.0, "bleu": 38.8, "length_ratio": 1.0},
]


def drawn(axes):
    return {line.get_label(): np.stack(line.get_data(), 1).tolist() for line in axes.get_lines()}


def test_a_line_for_each_value_and_points_in_order():
    figure = search_curves(RECORDS, x="alpha", lines="beam", names=("alpha", "beam size"))
    left, right = figure.get_axes()
    assert drawn(left) == {"4": [[0.0, 38.7], [0.6, 39.5]], "1": [[0.0, 38.8]]}
    found = drawn(right)
    assert found["4"] == [[0.0, 0.96], [0.6, 0.98]]
    assert len(found) == 3  # and the line at the length of the references
    assert left.get_legend().get_title().get_text() == "beam size"
    assert (left.get_xlabel(), left.get_ylabel()) == ("alpha", "BLEU")
    figure.draw_without_rendering()


def test_a_doubling_axis_names_the_values_that_were_tried():
    figure = search_curves(RECORDS, x="beam", lines="alpha", panels={"bleu": "BLEU"}, log=True)
    (axes,) = figure.get_axes()
    assert axes.get_xscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "4"]
    figure.draw_without_rendering()


def test_samples_that_differ_more_stand_further_right():
    records = [
        {"family": "top-k", "name": "2", "pairwise_bleu": 60.0, "bleu": 35.0},
        {"family": "top-k", "name": "5", "pairwise_bleu": 40.0, "bleu": 30.0},
        {"family": "top-p", "name": "0.5", "pairwise_bleu": 90.0, "bleu": 38.0},
    ]
    figure = diversity_curves(records, reference=39.0)
    (axes,) = figure.get_axes()
    found = drawn(axes)
    assert found["top-k"] == [[40.0, 35.0], [60.0, 30.0]]
    assert found["top-p"] == [[10.0, 38.0]]
    assert found["beam search"] == [[0, 39.0], [1, 39.0]]
    assert [(text.get_text(), text.xy) for text in axes.texts][:2] == [
        ("2", (40.0, 35.0)),
        ("5", (60.0, 30.0)),
    ]
    figure.draw_without_rendering()


def test_fit_curves_stand_over_updates():
    history = {"loss": [5.0, 3.0], "val_loss": [4.0, 2.5], "token_accuracy": [0.1, 0.4]}
    rates = [0.1, 0.2, 0.15]
    figure = fit_curves(history, rates, steps_per_epoch=30)
    rate, loss, accuracy = figure.get_axes()
    assert np.stack(rate.get_lines()[0].get_data(), 1).tolist() == [[1, 0.1], [2, 0.2], [3, 0.15]]
    assert drawn(loss) == {"training": [[30, 5.0], [60, 3.0]], "validation": [[30, 4.0], [60, 2.5]]}
    assert drawn(accuracy) == {"training": [[30, 0.1], [60, 0.4]]}
    assert loss.get_ylabel() == "loss (nats a token)"
    figure.draw_without_rendering()


def test_a_figure_that_the_history_lacks_is_refused():
    with pytest.raises(ValueError, match="no 'token_accuracy'. Choose from: loss"):
        fit_curves({"loss": [1.0]}, [0.1], steps_per_epoch=1)


def test_a_bar_is_the_median_and_its_whisker_the_range():
    figure = speed_bars({"ours": [300.0, 350.0, 320.0], "theirs": [500.0, 500.0]}, unit="lines a second")
    (axes,) = figure.get_axes()
    assert [bar.get_width() for bar in axes.patches] == [320.0, 500.0]
    segments = axes.collections[0].get_segments()
    np.testing.assert_allclose(segments[0][:, 0], [300.0, 350.0])
    assert [text.get_text() for text in axes.texts] == ["320", "500"]
    top, below = (axes.transData.transform((0, row))[1] for row in (0, 1))
    assert top > below
    assert axes.get_xlabel().startswith("lines a second")
    figure.draw_without_rendering()
