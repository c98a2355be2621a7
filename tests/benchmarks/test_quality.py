"""Pictures of quality over time: what is drawn is what was measured."""

import numpy as np
import pytest

from keras_transformer.analysis.plots import crossing, quality_curves

OURS = [(5.0, 10.0), (10.0, 28.0), (15.0, 32.0), (20.0, 29.0), (25.0, 33.0)]
PEER = [(8.0, 10.0), (16.0, 20.0)]


def test_a_crossing_is_straight_between_the_neighbours_of_the_first_rise():
    assert crossing(OURS, 30.0) == 12.5
    assert crossing(OURS, 28.0) == 10.0
    assert crossing(OURS, 32.5) == pytest.approx(20 + 5 * 3.5 / 4)


def test_what_never_gets_there_has_no_crossing():
    assert crossing(PEER, 30.0) is None
    assert crossing([], 30.0) is None


def test_a_first_point_that_is_high_enough_is_the_crossing():
    assert crossing(OURS, 9.0) == 5.0


def test_lines_are_the_measurements_and_the_legend_has_the_crossings():
    figure = quality_curves({"ours": [OURS], "a $peer": [PEER]}, target=30, title="Multi30k")
    (axes,) = figure.get_axes()
    drawn = [np.stack(line.get_data(), 1).tolist() for line in axes.get_lines()]
    assert all([*map(list, points)] in drawn for points in (OURS, PEER))
    assert [[12.5, 30.0]] in drawn  # the mark
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["ours: 30 BLEU after 12.5 min", r"a \$peer: 30 BLEU not reached"]
    assert "minutes" in axes.get_xlabel()
    assert "BLEU" in axes.get_ylabel()
    figure.draw_without_rendering()


def test_several_runs_of_one_system_share_a_colour_and_a_label():
    figure = quality_curves({"ours": [OURS, [(4.0, 20.0), (6.0, 40.0)]]}, target=30)
    (axes,) = figure.get_axes()
    lines = [line for line in axes.get_lines() if line.get_marker() == "o"]
    assert len(lines) == 2
    assert len({line.get_color() for line in lines}) == 1
    (text,) = figure.legends[0].get_texts()
    assert text.get_text() == "ours: 30 BLEU after 12.5, 5.0 min"


def test_more_systems_than_colours_are_refused():
    with pytest.raises(ValueError, match="Received: 7"):
        quality_curves({str(number): [PEER] for number in range(7)}, target=30)
