"""What text that is not raw is known by."""

import pytest

from keras_transformer.evaluation.report import NamedLines, _looks_tokenized, compare

RAW = ["Der Hund, so scheint es, läuft.", "„Ja“ – nein; 3.5 % von A & B!", "Vor- und Nachteile: a -b", ""]


def warnings_of(lines, caplog):
    """Warnings about a text of 120 lines that begins with these."""
    caplog.clear()
    raw = RAW * 30
    compare([NamedLines("out.de", raw)], [NamedLines("ref.de", [*lines, *raw][: len(raw)])], ter=False)
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith("ref.de")]


@pytest.mark.parametrize(
    ("line", "kind", "mark"),
    [
        ("Der Hund , so", "tokenized", " , "),
        ("Er läuft .", "tokenized", " ."),
        ("so ,", "tokenized", " ,"),
        ("state @-@ of", "tokenized", " @-@ "),
        ("Der Hu@@ nd", "cut into sub-words", "@@ "),
        ("Der Hund Hu@@", "cut into sub-words", "@@"),
        ("▁Der ▁Hund", "cut into sub-words", "▁"),
        ("it &apos;s", "escaped", "&apos;"),
        ("&quot;Ja&quot;", "escaped", "&quot;"),
        ("it&#39;s", "escaped", "&#39;"),
        ("A &amp; B", "escaped", "&amp;"),
    ],
)
def test_each_sign_is_found_with_its_first_line(line, kind, mark, caplog):
    (found,) = warnings_of([*RAW, line, line], caplog)
    assert found.startswith(f"ref.de: 2 of 120 lines look {kind} ({mark!r}, first on line 5): ")


def test_raw_text_shows_none(caplog):
    assert warnings_of([], caplog) == []
    assert warnings_of(["Mail an a@@b.de, ja.", "x .5", "AT&T; &c.", "bis 3.", ".", "…"], caplog) == []


def test_a_stray_mark_is_no_sign(caplog):
    assert warnings_of(["so , so"], caplog) == []
    assert len(warnings_of(["so , so"] * 2, caplog)) == 1


def test_tokenized_is_what_half_of_the_lines_show():
    assert _looks_tokenized(["so , so", "so"])
    assert not _looks_tokenized(["so , so", "so", "so"])
    assert not _looks_tokenized(RAW)
    assert not _looks_tokenized([])
