"""Alignments from attention: against links and sums worked out by hand."""

import json

import numpy as np
import pytest

from keras_transformer.translation.alignment import (
    AlignmentChoice,
    LinkCounts,
    best_choice,
    choice_from_json,
    choice_to_json,
    count_hits,
    fallback_choice,
    format_pharaoh,
    format_soft,
    hard_alignment,
    parse_pharaoh,
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


def test_pharaoh_format_is_written_and_read():
    assert format_pharaoh([(0, 0), (1, 2), (10, 3)]) == "0-0 1-2 10-3"
    assert parse_pharaoh("0-0 1-2  10-3\n") == [(0, 0), (1, 2), (10, 3)]
    assert parse_pharaoh("") == []


@pytest.mark.parametrize("link", ["0", "0-", "0-1-2", "a-b", "0p1", "-1-2", "0-²"])
def test_another_format_is_refused(link):
    with pytest.raises(ValueError, match="SOURCE-TARGET"):
        parse_pharaoh(f"0-0 {link}")


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


def test_known_links_are_counted_for_every_layer_and_convention():
    pieces = ["▁a", "▁b", "▁c", "."]
    straight = np.pad(np.eye(4), ((0, 1), (0, 1)))
    shifted = np.roll(straight, 1, axis=0)  # each piece's weights stand at the step that reads it
    shifted[0, 2] = 1.0  # bos looks anywhere
    known = {(0, 0), (1, 1), (3, 3), (0, 3)}  # the last is wrong
    counts = count_hits(np.stack([straight, shifted]), pieces, pieces, known)
    assert counts.num_links == 4
    assert counts.hits.tolist() == [[3, 1], [0, 3]]


def test_the_best_layer_is_the_one_that_has_most_known_links():
    counts = LinkCounts(60, np.array([[10, 55], [40, 2], [55, 1]]))
    assert best_choice(counts) == AlignmentChoice(0, "input")
    assert best_choice(counts._replace(num_links=49)) == AlignmentChoice(1, "output")


@pytest.mark.parametrize(("num_layers", "layer"), [(1, 0), (2, 0), (6, 4)])
def test_without_known_links_it_is_the_last_layer_but_one(num_layers, layer):
    assert fallback_choice(num_layers) == AlignmentChoice(layer, "output")


def test_a_choice_comes_back_from_its_file():
    text = choice_to_json(LinkCounts(60, np.array([[10, 55], [40, 2]])))
    written = json.loads(text)
    assert len(written.pop("sha256")) == 64
    assert written == {
        "layer": 0, "convention": "input", "links": 60, "hits": {"output": [10, 40], "input": [55, 2]},
    }  # fmt: skip
    assert choice_from_json(text, 2) == AlignmentChoice(0, "input")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Expecting"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "must hold a JSON object"),
        ("{}", "`layer` and `convention` are wanted"),
        ('{"layer": 2, "convention": "input"}', "`layer` must be from 0 to 1. Received: 2"),
        ('{"layer": true, "convention": "input"}', "Received: True"),
        ('{"layer": 1, "convention": "left"}', "Received: 'left'"),
    ],
)
def test_a_damaged_choice_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        choice_from_json(text, 2)
