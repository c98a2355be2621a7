"""Formats of output: against lines written by hand, and read back as their readers do."""

import json
import math

from keras_transformer.translation.output_formats import json_line, moses_lines, text_lines
from keras_transformer.translation.results import BLANK, NBest, Translation

FIRST = Translation("Ein Hund ||| da.", -0.5, -1.25, ["▁Ein", "▁Hund"], [7, 8, 2], True)
SECOND = Translation("Hund", -2.0, -3.0, ["▁Hund"], [8], False)
FOUND = NBest([FIRST, SECOND], ["▁A", "▁dog"], 1, False)
EMPTY = NBest([BLANK], [], 0, False)


def test_text_has_one_line_for_each_text():
    assert text_lines(3, FOUND) == "Ein Hund ||| da.\n"
    assert text_lines(3, EMPTY) == "\n"


def test_text_of_n_best_has_always_n_lines():
    assert text_lines(3, FOUND, n_best=3) == "Ein Hund ||| da.\nHund\n\n"
    assert text_lines(3, EMPTY, n_best=2) == "\n\n"


def test_scores_come_before_a_tab():
    assert text_lines(3, FOUND, n_best=2, scores=True) == "-0.500000\tEin Hund ||| da.\n-2.000000\tHund\n"


def test_moses_lists_have_number_text_features_and_score():
    lines = moses_lines(3, FOUND, n_best=2).splitlines()
    assert [line.split(" ||| ") for line in lines] == [
        ["3", "Ein Hund &#124;&#124;&#124; da.", "F0= -1.250000", "-0.500000"],
        ["3", "Hund", "F0= -3.000000", "-2.000000"],
    ]
    assert moses_lines(0, EMPTY, n_best=2) == "0 |||  ||| F0= 0.000000 ||| 0.000000\n"


def test_moses_lists_have_alignments_where_there_are_any():
    aligned = NBest([FIRST._replace(text="Hund", alignment=[(0, 0), (1, 2)])], [], 1, False)
    assert moses_lines(1, aligned) == "1 ||| Hund ||| 0-0 1-2 ||| F0= -1.250000 ||| -0.500000\n"


def test_json_has_the_best_translation_and_flags():
    written = json_line(3, NBest([SECOND._replace(text="\u2028ü")], ["▁A"], 2, True))
    assert written.count("\n") == 1
    assert json.loads(written) == {
        "line": 4,
        "text": "\u2028ü",
        "pieces": ["▁Hund"],
        "score": -2.0,
        "log_prob": -3.0,
        "token_log_probs": None,
        "alignment": None,
        "finished": False,
        "source_pieces": ["▁A"],
        "flags": ["split", "cut", "unfinished"],
    }


def test_json_has_all_translations_where_several_were_asked_for():
    record = json.loads(json_line(0, FOUND, n_best=2))
    assert [one["text"] for one in record["n_best"]] == ["Ein Hund ||| da.", "Hund"]
    assert record["text"] == record["n_best"][0]["text"]
    assert "n_best" not in json.loads(json_line(0, FOUND))
    assert json.loads(json_line(0, EMPTY, n_best=2))["flags"] == ["blank"]


def test_json_has_no_infinity():
    lost = FIRST._replace(score=-math.inf, log_prob=math.nan, token_log_probs=[-0.25, -math.inf])
    record = json.loads(json_line(0, NBest([lost], [], 1, False)), parse_constant=lambda name: 1 / 0)
    assert (record["score"], record["log_prob"]) == (None, None)
    assert record["token_log_probs"] == [-0.25, None]
