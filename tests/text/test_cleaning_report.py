"""Counts of cleaning: sums, JSON, the table, and warnings at their exact borders."""

import json

import numpy as np
import pytest

from keras_transformer.text.cleaning import REASONS, CleaningReport
from keras_transformer.text.lines import DataError


def report(num_pairs, *, num_identical=0, num_replaced_utf8=0, **dropped):
    return CleaningReport(
        num_pairs=num_pairs,
        dropped=dict.fromkeys(REASONS, 0) | dropped,
        num_identical=num_identical,
        num_replaced_utf8=num_replaced_utf8,
    )


def test_counts_one_block():
    codes = np.array([0, 1, 1, 8, 0, 3, 4], np.uint8)
    source = ["a", "", "x", "a", " b", "d", "e"]
    target = ["c", "", "", "c", "b ", "f", "e"]
    assert CleaningReport.of(codes, source, target, num_replaced_utf8=2) == report(
        7, empty=2, duplicate=1, script=1, identical=1, num_identical=2, num_replaced_utf8=2
    )


def test_a_block_may_be_empty():
    assert CleaningReport.of(np.zeros(0, np.uint8), [], []) == CleaningReport()


def test_parts_add_up():
    a = report(10, empty=1, long=2, num_identical=3, num_replaced_utf8=1)
    b = report(7, long=4, ratio=1, num_replaced_utf8=5)
    both = report(17, empty=1, long=6, ratio=1, num_identical=3, num_replaced_utf8=6)
    assert a + b == b + a == both
    assert sum([a, b], CleaningReport()) == both
    assert both.num_kept == 9


def test_json_round_trip():
    original = report(10, empty=1, duplicate=2, num_identical=3, num_replaced_utf8=4)
    held = json.loads(json.dumps(original.to_dict()))
    assert held["num_kept"] == 7
    assert held["dropped"]["duplicate"] == 2
    assert CleaningReport.from_dict(held) == original


@pytest.mark.parametrize(
    "changes",
    [{"num_kept": 8}, {"dropped": {}}, {"more": 1}, {"dropped": {"empty": 3}}, {"num_pairs": 11}],
)
def test_json_refuses_what_does_not_add_up(changes):
    held = report(10, empty=3).to_dict() | changes
    with pytest.raises(ValueError, match="must be what `to_dict` returned. Received: {'num_pairs'"):
        CleaningReport.from_dict(held)


def test_table():
    assert report(12_000, empty=30, duplicate=1200, num_identical=5).table() == (
        "pairs read         12,000  100.00 %\n"
        "- a side is blank      30    0.25 %\n"
        "- occurred before   1,200   10.00 %\n"
        "pairs kept         10,770   89.75 %"
    )


def test_table_of_nothing():
    assert CleaningReport().table() == "pairs read  0    0.00 %\npairs kept  0    0.00 %"


@pytest.mark.parametrize(("num_pairs", "empty", "warns"), [(100, 1, False), (100, 2, True), (99, 1, True)])
def test_warns_of_over_1_percent_blank_sides(num_pairs, empty, warns):
    found = report(num_pairs, empty=empty).warnings()
    assert len(found) == warns
    if warns:
        assert found[0].startswith(f"{empty} of {num_pairs} pairs (")
        assert "have a blank side. Check that line i" in found[0]


@pytest.mark.parametrize(
    ("num_pairs", "identical", "warns"), [(10, 5, False), (10, 6, True), (9, 5, True), (9, 4, False)]
)
def test_warns_of_over_half_of_the_pairs_identical(num_pairs, identical, warns):
    found = report(num_pairs, num_identical=identical).warnings()
    assert len(found) == warns
    if warns:
        assert f"{identical} of {num_pairs} pairs" in found[0]
        assert "the same text on both sides" in found[0]
        assert "cleaning.drop_identical=true" in found[0]


def test_warns_of_replaced_utf8():
    (found,) = report(10, num_replaced_utf8=1).warnings()
    assert found.startswith("invalid UTF-8 was replaced by U+FFFD on 1 lines")


def test_nothing_warns_of_nothing():
    assert CleaningReport().warnings() == []


def test_one_pair_is_enough():
    report(5, empty=4).check()


def test_refuses_when_all_are_dropped():
    with pytest.raises(DataError) as error:
        report(1005, empty=3, long=1002).check("corpus/train")
    assert str(error.value) == (
        "corpus/train: all 1,005 pairs were dropped: 3 a side is blank (cleaning.drop_empty), "
        "1,002 too many tokens (data.max_length). Check the files, or change these settings"
    )


def test_refuses_when_there_are_none():
    with pytest.raises(DataError, match="corpus/train: no training pairs"):
        CleaningReport().check("corpus/train")
