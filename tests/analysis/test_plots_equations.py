"""Plots of equations and costs show the given values, and every axis has a label."""

import numpy as np
import pytest

from keras_transformer.analysis.plots import (
    boolean_maps,
    cost_curves,
    fitted_exponent,
    path_curves,
    position_heat_maps,
    schedule_curves,
    score_curves,
    similarity_curves,
    smoothing_curves,
    wavelength_curves,
)


def drawn(axes):
    return [np.stack(line.get_data(), 1).tolist() for line in axes.get_lines()]


def names(legend):
    return [text.get_text() for text in legend.get_texts()]


def check_labels(figure):
    figure.draw_without_rendering()
    for axes in figure.get_axes():
        if axes.axison:
            assert axes.get_xlabel() or axes.get_ylabel()


def test_boolean_maps_show_every_cell_and_say_what_true_is():
    maps = [np.tri(3, dtype=bool), np.ones((2, 20), bool)]
    figure = boolean_maps(maps, ["causal", "all"], meaning="reached")
    for axes, wanted, title in zip(figure.get_axes(), maps, ["causal", "all"], strict=True):
        np.testing.assert_array_equal(axes.get_images()[0].get_array(), wanted)
        assert (axes.get_title(), axes.get_xlabel()) == (title, "key position")
    assert names(figure.legends[0]) == ["reached", "not reached"]
    check_labels(figure)


def test_more_than_five_boolean_maps_take_a_second_line():
    figure = boolean_maps([np.ones((2, 2), bool)] * 6, list("abcdef"))
    assert [axes.axison for axes in figure.get_axes()] == [True] * 6 + [False] * 4
    assert [axes.get_ylabel() for axes in figure.get_axes()[:6]] == ["query position"] + 4 * [""] + [
        "query position"
    ]


def test_a_boolean_map_without_a_title_is_refused():
    with pytest.raises(ValueError, match="one title for each of 1 maps. Received: 0"):
        boolean_maps([np.ones((2, 2), bool)], [])


def test_position_heat_maps_show_every_value_on_one_scale():
    encodings = {"one": np.linspace(-1, 1, 12).reshape(4, 3), "other": np.zeros((2, 3))}
    figure = position_heat_maps(encodings)
    for axes, (title, wanted) in zip(figure.get_axes(), encodings.items(), strict=False):
        picture = axes.get_images()[0]
        np.testing.assert_array_equal(picture.get_array(), wanted)
        assert picture.get_clim() == (-1, 1)
        assert axes.get_title() == title
    check_labels(figure)


def test_wavelengths_stand_over_their_dimensions():
    figure = wavelength_curves([0, 1, 2], {4: [0.0, 0.5, 1.0]}, np.array([10.0, 100.0]))
    left, right = figure.get_axes()
    assert drawn(left) == [[[0, 0], [1, 0.5], [2, 1]]]
    assert drawn(right)[0] == [[0, 10], [2, 100]]
    assert names(left.get_legend()) == ["4"]
    check_labels(figure)


def test_scores_are_drawn_for_every_kind_of_attention():
    figure = score_curves([4, 16], {"a": [4.0, 16.0], "b": [1.0, 1.0]}, {"a": [0.1, 0.05], "b": [0.2, 0.2]})
    left, right = figure.get_axes()
    assert drawn(left) == [[[4, 4], [16, 16]], [[4, 1], [16, 1]]]
    assert drawn(right) == [[[4, 0.1], [16, 0.05]], [[4, 0.2], [16, 0.2]]]
    assert names(figure.legends[0]) == ["a", "b"]
    check_labels(figure)


def test_schedules_are_drawn_over_updates():
    figure = schedule_curves([1, 2], {"base": [0.5, 0.25]})
    (axes,) = figure.get_axes()
    assert drawn(axes) == [[[1, 0.5], [2, 0.25]]]
    assert names(axes.get_legend()) == ["base"]
    check_labels(figure)


def test_similarities_are_drawn_over_depth():
    figure = similarity_curves((1, 3), {"post-norm": [0.5, 0.75], "pre-norm": [0.25, 0.5]})
    (axes,) = figure.get_axes()
    assert drawn(axes) == [[[1, 0.5], [3, 0.75]], [[1, 0.25], [3, 0.5]]]
    assert names(axes.get_legend()) == ["post-norm", "pre-norm"]
    assert list(axes.get_xticks()) == [1, 3]
    check_labels(figure)


def test_a_loss_is_marked_where_it_turns():
    falling, turning = np.array([2.0, 1.0, 0.0]), np.array([2.0, 1.0, 3.0])
    figure = smoothing_curves(np.array([0.5, 0.9, 1.0]), {0.0: falling, 0.1: turning})
    (axes,) = figure.get_axes()
    assert drawn(axes) == [[[0.5, 2], [0.9, 1], [1, 0]], [[0.9, 1]], [[0.5, 2], [0.9, 1], [1, 3]]]
    assert names(axes.get_legend()) == [
        r"$\epsilon_{ls}$ = 0",
        r"$\epsilon_{ls}$ = 0.1: lowest at p = 0.90",
    ]
    check_labels(figure)


def test_the_exponent_of_a_power_is_found():
    sizes = np.array([2, 4, 8])
    assert fitted_exponent(sizes, 5.0 * sizes**1.5) == pytest.approx(1.5)


@pytest.mark.slow
def test_costs_are_drawn_with_the_power_that_fits_them():
    over_length = {"attention": ([2, 4], [4.0, 16.0]), "recurrent": ([2, 4], [4.0, 8.0])}
    over_width = {"attention": ([8, 16], [1.0, 2.0]), "recurrent": ([8, 16], [1.0, 4.0])}
    figure = cost_curves(over_length, over_width, ylabel="seconds")
    left, right = figure.get_axes()
    np.testing.assert_allclose(
        drawn(left), [[[2, 4], [4, 16]], [[2, 4], [4, 16]], [[2, 4], [4, 8]], [[2, 4], [4, 8]]]
    )
    assert names(left.get_legend()) == ["attention: $n^{2.00}$", "recurrent: $n^{1.00}$"]
    assert names(right.get_legend()) == ["attention: $d^{1.00}$", "recurrent: $d^{2.00}$"]
    assert left.get_ylabel() == "seconds"
    check_labels(figure)


def test_paths_are_drawn_over_the_length():
    figure = path_curves({"attention": ([8, 16], [1, 1]), "recurrent": ([8, 16], [8, 16])})
    (axes,) = figure.get_axes()
    assert drawn(axes) == [[[8, 1], [16, 1]], [[8, 8], [16, 16]]]
    assert names(axes.get_legend()) == ["attention", "recurrent"]
    check_labels(figure)
