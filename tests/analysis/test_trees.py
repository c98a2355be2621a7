"""Patterns of closings against a hand count, and diagrams that show every node."""

import numpy as np
import pytest

from keras_transformer.analysis.plots import label_bars, training_curves, tree_diagrams
from keras_transformer.analysis.trees import closings, opening_pattern, word_pattern
from keras_transformer.evaluation.brackets import LabelScore, bracket_scores
from keras_transformer.text.linearised import linearise
from keras_transformer.text.trees import read_tree
from keras_transformer.translation.alignment import word_numbers

TREE = read_tree("(S (NP (DT the) (NN dog)) (VP (VBZ sees) (NP (NNS $5))) (. .))")
#          0   1    2   3   4    5    6   7    8   9    10   11  12
SYMBOLS = ["(S", "(NP", "XX", "XX", ")NP", "(VP", "XX", "(NP", "XX", ")NP", ")VP", "XX", ")S"]
PIECES = ["▁the", "▁do", "g", "▁sees", "▁", "$", "5", "▁."]


def places(pattern):
    return [tuple(place) for place in np.argwhere(pattern).tolist()]


def test_closings_are_those_of_a_hand_count():
    assert linearise(TREE) == SYMBOLS
    assert [tuple(one) for one in closings(SYMBOLS)] == [
        (4, 1, 0, 1),
        (9, 7, 3, 3),
        (10, 5, 2, 3),
        (12, 0, 0, 4),
    ]


def test_the_step_that_closes_attends_to_the_step_that_reads_the_opening():
    pattern = opening_pattern(SYMBOLS, 14)
    assert pattern.shape == (14, 14)
    assert places(pattern) == [(4, 2), (9, 8), (10, 6), (12, 1)]


@pytest.mark.parametrize(
    ("which", "wanted"),
    [
        ("first", [(4, 0), (9, 4), (9, 5), (9, 6), (10, 3), (12, 0)]),
        ("last", [(4, 1), (4, 2), (9, 4), (9, 5), (9, 6), (10, 4), (10, 5), (10, 6), (12, 7)]),
        ("next", [(4, 3), (9, 7), (10, 7), (12, 8)]),
    ],
)
def test_words_of_a_closing_are_those_of_a_hand_count(which, wanted):
    numbers = [*word_numbers(PIECES), None]
    pattern = word_pattern(SYMBOLS, 13, numbers, which)
    assert pattern.shape == (13, 9)
    assert places(pattern) == wanted


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_a_diagram_shows_each_constituent_tag_and_word():
    figure = tree_diagrams({"one": TREE, "the other": TREE.children[1]})
    one, other = figure.get_axes()
    assert sorted(texts(one)) == sorted(
        ["S", "NP", "VP", "NP", "DT", "NN", "VBZ", "NNS", ".", "the", "dog", "sees", r"\$5", "."]
    )
    assert sorted(texts(other)) == sorted(["VP", "NP", "VBZ", "NNS", "sees", r"\$5"])
    assert one.get_title(loc="left") == "one"
    words = [text for text in one.texts if text.get_text() in ("the", "dog", "sees", r"\$5")]
    assert sorted(words, key=lambda text: text.get_position()[0]) == words


def test_constituents_that_the_reference_lacks_are_marked():
    parse = read_tree("(S (NP (DT the)) (VP (NN dog) (VBZ sees) (NP (NNS $5))) (. .))")
    (axes,) = tree_diagrams({"parse": parse}, reference=TREE).get_axes()
    colours = [(text.get_text(), text.get_color()) for text in axes.texts if text.get_weight() == "bold"]
    marked = {colour for _, colour in colours}
    assert len(marked) == 2
    right = dict.fromkeys(["S"], colours[0][1])
    assert [colour == right["S"] for _, colour in colours] == [True, False, False, True]
    twice = read_tree("(S (NP (NP (NN dog))))")
    (axes,) = tree_diagrams({"parse": twice}, reference=read_tree("(S (NP (NN dog)))")).get_axes()
    colours = [text.get_color() for text in axes.texts if text.get_weight() == "bold"]
    assert colours[1:].count(colours[0]) == 1


def test_bars_show_the_scores_of_the_most_frequent_labels():
    labels = {"NP": LabelScore(20, 10, 5), "S": LabelScore(5, 5, 5), "X": LabelScore(7, 0, 0)}
    (axes,) = label_bars(labels, most=2).get_axes()
    assert [text.get_text() for text in axes.get_yticklabels()] == ["NP (20)", "X (7)"]
    assert [bar.get_width() for bar in axes.patches] == [50.0, 0.0, 25.0, 0.0]
    label_bars(bracket_scores([TREE], [TREE]).labels)


def test_the_curve_of_a_parser_is_its_f1():
    history = [
        {"kind": "train", "step": 100, "minutes": 2.0, "perplexity": 50.0},
        {"kind": "validation", "step": 100, "minutes": 2.0, "perplexity": 60.0, "f1": 31.0},
    ]
    right = training_curves(history).get_axes()[1]
    assert "F1" in right.get_ylabel()
    (line,) = right.get_lines()
    assert np.stack(line.get_data(), 1).tolist() == [[2, 31]]
