"""Pictures of quality over time: what is drawn is what was measured."""

import numpy as np
import pytest
from plots import compared_bars, crossing, quality_curves

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


def test_compared_bars_are_ordered_by_speed_and_highlight_what_they_are_told_to():
    panels = {
        "small": {"a$b": [10.0, 30.0, 20.0], "ours": [40.0]},
        "base": {"ours": [5.0]},
        "big": {"c": [250.0]},
    }
    figure = compared_bars(panels, highlighted={"ours"}, unit="tokens a second", columns=2, title="Training")
    small, base, big, empty = figure.get_axes()
    assert [axes.get_title(loc="left") for axes in (small, base, big)] == ["small", "base", "big"]
    assert [bar.get_width() for bar in small.patches] == [40.0, 20.0]
    assert [label.get_text() for label in small.get_yticklabels()] == ["ours", r"a\$b"]
    assert [label.get_fontweight() for label in small.get_yticklabels()] == ["bold", "normal"]
    one, other = (bar.get_facecolor() for bar in small.patches)
    assert one == base.patches[0].get_facecolor() != other
    np.testing.assert_allclose(small.collections[1].get_segments()[0][:, 0], [10.0, 30.0])
    assert [axes.texts[0].get_text() for axes in (small, big)] == ["40.0", "250"]
    top, below = (small.transData.transform((0, row))[1] for row in (0, 1))
    assert top > below
    assert not empty.axison
    assert figure.get_supxlabel().startswith("tokens a second")
    figure.draw_without_rendering()


@pytest.mark.parametrize("panels", [{}, {"small": {}}])
def test_compared_bars_of_nothing_are_refused(panels):
    with pytest.raises(ValueError, match="systems in each kind of work. Received: {"):
        compared_bars(panels, unit="tokens a second")
