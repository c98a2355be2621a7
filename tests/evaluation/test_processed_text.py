"""What text that is not raw is known by."""

import pytest

from keras_transformer.evaluation.processed_text import find_signs, looks_tokenized

RAW = ["Der Hund, so scheint es, läuft.", "„Ja“ – nein; 3.5 % von A & B!", "Vor- und Nachteile: a -b", ""]


@pytest.mark.parametrize(
    ("line", "kind", "mark"),
    [
        ("Der Hund , so", "tokenised", " , "),
        ("Er läuft .", "tokenised", " ."),
        ("so ,", "tokenised", " ,"),
        ("state @-@ of", "tokenised", " @-@ "),
        ("Der Hu@@ nd", "cut into sub-words", "@@ "),
        ("Der Hund Hu@@", "cut into sub-words", "@@"),
        ("▁Der ▁Hund", "cut into sub-words", "▁"),
        ("it &apos;s", "escaped", "&apos;"),
        ("&quot;Ja&quot;", "escaped", "&quot;"),
        ("it&#39;s", "escaped", "&#39;"),
        ("A &amp; B", "escaped", "&amp;"),
    ],
)
def test_each_sign_is_found_with_its_first_line(line, kind, mark):
    (sign,) = find_signs([*RAW, line, line])
    assert (sign.kind, sign.mark, sign.num_lines, sign.first_line) == (kind, mark, 2, 5)
    assert sign.remedy


def test_raw_text_shows_none():
    assert find_signs(RAW) == []
    assert find_signs(["Mail an a@@b.de, ja.", "x .5", "AT&T; &c.", "bis 3.", ".", "…"]) == []
    assert find_signs([]) == []


def test_a_stray_mark_is_no_sign():
    assert find_signs(["so , so"] + ["so, so"] * 100) == []
    assert len(find_signs(["so , so"] + ["so, so"] * 99)) == 1


def test_tokenised_is_what_half_of_the_lines_show():
    assert looks_tokenized(["so , so", "so"])
    assert not looks_tokenized(["so , so", "so", "so"])
    assert not looks_tokenized(RAW)
    assert not looks_tokenized([])
