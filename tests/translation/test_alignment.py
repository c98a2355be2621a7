"""Alignments from attention: against links and sums worked out by hand."""

import numpy as np
import pytest

from keras_transformer.translation.alignment import (
    AlignmentChoice,
    default_alignment_choice,
    format_pharaoh,
    format_soft,
    hard_alignment,
    soft_alignment,
    word_numbers,
)

SOURCE = ["▁Two", "▁fox", "es", "▁sleep"]
TARGET = ["▁Zwei", "▁Fü", "chse", "▁schlafen"]
# Steps that produce the four pieces and eos; columns are the four source pieces and eos.
ATTENTION = np.array(
    [
        [0.40, 0.10, 0.10, 0.10, 0.30],
        [0.00, 0.30, 0.20, 0.10, 0.40],  # looks at eos most
        [0.05, 0.15, 0.50, 0.20, 0.10],
        [0.10, 0.20, 0.10, 0.45, 0.15],
        [0.00, 0.00, 0.10, 0.20, 0.70],
    ]
)


def test_a_piece_points_to_the_source_piece_that_it_looks_at_most_and_never_to_the_end():
    found = hard_alignment(ATTENTION, SOURCE, TARGET, convention="output", unit="pieces")
    assert found == [(0, 0), (1, 1), (2, 2), (3, 3)]


def test_words_are_linked_where_any_of_their_pieces_are():
    crossed = ATTENTION.copy()
    crossed[2, :4] = [0.6, 0.1, 0.1, 0.1]
    found = hard_alignment(crossed, SOURCE, TARGET, convention="output")
    assert found == [(0, 0), (0, 1), (1, 1), (2, 2)]


def test_the_other_convention_takes_the_step_after():
    found = hard_alignment(ATTENTION, SOURCE, TARGET, convention="input", unit="pieces")
    assert found == [(1, 0), (2, 1), (3, 2), (3, 3)]


def test_without_an_end_the_last_piece_has_the_step_that_produces_it():
    weights = soft_alignment(ATTENTION[:4], SOURCE, TARGET, convention="input", unit="pieces")
    np.testing.assert_array_equal(weights, ATTENTION[[1, 2, 3, 3], :4])


def test_soft_alignment_of_pieces_is_attention_without_the_end():
    weights = soft_alignment(ATTENTION, SOURCE, TARGET, convention="output", unit="pieces")
    np.testing.assert_array_equal(weights, ATTENTION[:4, :4])


def test_soft_alignment_of_words_sums_over_the_source_and_averages_over_the_target():
    weights = soft_alignment(ATTENTION, SOURCE, TARGET, convention="output")
    by_hand = [
        [0.40, 0.20, 0.10],
        [(0.00 + 0.05) / 2, (0.50 + 0.65) / 2, (0.10 + 0.20) / 2],
        [0.10, 0.30, 0.45],
    ]
    np.testing.assert_allclose(weights, by_hand, rtol=1e-6)


@pytest.mark.parametrize("unit", ["pieces", "words"])
def test_a_blank_side_has_no_links(unit):
    how = {"convention": "output", "unit": unit}
    assert hard_alignment(ATTENTION[-1:], SOURCE, [], **how) == []
    assert hard_alignment(ATTENTION[:, -1:], [], TARGET, **how) == []
    assert soft_alignment(ATTENTION[:, -1:], [], TARGET, **how).shape == (4 if unit == "pieces" else 3, 0)


@pytest.mark.parametrize(
    ("pieces", "numbers"),
    [
        (["▁a", "▁b", "c", "▁d"], [0, 1, 1, 2]),
        (["a", "b", "▁c"], [0, 0, 1]),  # a search may begin within a word
        (["▁", "a", "▁", "b", "c"], [0, 0, 1, 1, 1]),  # a space alone, then characters
        (["▁a", "▁", "▁", "b"], [0, 1, 1, 1]),
        (["▁a", "▁"], [0, None]),
        (["▁"], [None]),
        ([], []),
    ],
)
def test_words_are_what_spaces_separate(pieces, numbers):
    assert word_numbers(pieces) == numbers
    words = "".join(pieces).replace("▁", " ").split()
    assert len(words) == len({number for number in numbers if number is not None})
    for number, word in enumerate(words):
        of_word = [piece for piece, its in zip(pieces, numbers, strict=True) if its == number]
        assert "".join(of_word).replace("▁", "") == word


def test_pharaoh_format_is_written():
    assert format_pharaoh([(0, 0), (1, 2), (10, 3)]) == "0-0 1-2 10-3"


def test_soft_format_has_commas_within_and_spaces_between():
    assert format_soft(np.array([[0.25, 0.5], [1.0, 0.0]])) == "0.2500,0.5000 1.0000,0.0000"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"convention": "both"}, "`convention` must be one of"),
        ({"unit": "letters"}, "`unit` must be one of"),
        ({"target_pieces": [*TARGET, "▁da", "."]}, "a row for each of 6 target pieces"),
    ],
)
def test_what_cannot_be_aligned_is_refused(change, message):
    arguments = {"source_pieces": SOURCE, "target_pieces": TARGET, "convention": "output", **change}
    with pytest.raises(ValueError, match=message):
        hard_alignment(ATTENTION, **arguments)


@pytest.mark.parametrize(("num_layers", "layer"), [(1, 0), (2, 0), (6, 4)])
def test_the_default_is_the_last_layer_but_one(num_layers, layer):
    assert default_alignment_choice(num_layers) == AlignmentChoice(layer, "output")
