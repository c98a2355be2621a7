"""Texts over the limit: where they are split, by hand, and that nothing is lost or unbounded."""

import re

import pytest
from babel.core import get_global

from keras_transformer.text.languages import expected_scripts
from keras_transformer.translation.long_texts import encode_texts, sentence_separator, sentences

LIMIT = 40


def encode(texts):
    """A stand-in for a vocabulary: one token a character, none for spaces."""
    return [[ord(character) for character in text if character != " "] for text in texts]


def split(text, limit=LIMIT):
    (found,) = encode_texts([text], encode, limit=limit, long_lines="split")
    return ["".join(map(chr, row)) for row in found.rows], found.is_cut


def without_spaces(text):
    return re.sub(r"\s", "", text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "The dog sleeps in the old house. The cat has gone to the sea! Who feeds the birds in the wood?",
            [
                "The dog sleeps in the old house.",
                "The cat has gone to the sea!",
                "Who feeds the birds in the wood?",
            ],
        ),
        (
            "“The dog sleeps in the house.” (The cat has gone to the sea…) And then comes the long winter",
            [
                "“The dog sleeps in the house.”",
                "(The cat has gone to the sea…)",
                "And then comes the long winter",
            ],
        ),
        ("We asked the famous old Dr. Miller", ["We asked the famous old Dr. Miller"]),
        ("This was written by the great J. Smith", ["This was written by the great J. Smith"]),
        ("Das Haus wurde im Sommer am 3. Mai verkauft", ["Das Haus wurde im Sommer am 3. Mai verkauft"]),
        (
            "It costs exactly 3.50 at www.example.com",
            ["It costs exactly 3.50 at www.example.com"],
        ),
        ("It goes on and on and on and on... and on", ["It goes on and on and on and on... and on"]),
        ("No. Yes. No. They do not know what they want.", ["No. Yes. No. They do not know what they want."]),
        (
            "我们今天早上去公园散步看花。他们明天下午去学校上课吗？是的",
            ["我们今天早上去公园散步看花。", "他们明天下午去学校上课吗？", "是的"],
        ),
        ("मैं आज सुबह बगीचे में गया था। वह कल घर पर था।", ["मैं आज सुबह बगीचे में गया था।", "वह कल घर पर था।"]),
        ("", []),
        ("  . ", ["."]),
    ],
)
def test_sentences_are_those_that_a_reader_sees(text, expected):
    assert sentences(text) == expected


def test_a_text_within_the_limit_is_left_whole():
    texts = ["One is here. Two is there. Three is nowhere.", "a" * LIMIT, "", "   "]
    found = encode_texts(texts, encode, limit=LIMIT, long_lines="split")
    assert [one.rows for one in found] == [encode(texts)[:1], encode(texts)[1:2], [], []]
    assert not any(one.is_cut for one in found)


def test_a_text_over_the_limit_is_split_at_its_sentences():
    text = "The dog sleeps in the old house. The cat has gone to the sea again."
    assert split(text) == (["Thedogsleepsintheoldhouse.", "Thecathasgonetotheseaagain."], False)


def test_a_sentence_over_the_limit_is_split_at_the_clause_nearest_its_middle():
    text = "a bb, ccc ddd eee fff ggg hhh, iii jjj, kkk lll mmm nnn ooo ppp"
    assert split(text) == (["abb,cccdddeeefffggghhh,", "iiijjj,kkklllmmmnnnoooppp"], False)


def test_without_clauses_it_is_split_at_the_space_nearest_the_middle():
    assert split("aaa " * 10 + "b " + "aaa " * 5) == (
        ["aaa" * 8, "aaa" * 2 + "b" + "aaa" * 5],
        False,
    )


def test_without_spaces_it_is_split_between_characters_and_their_marks():
    marked = "e\u0301"  # two code points that are one character
    parts, is_cut = split(marked * 50)
    assert not is_cut
    assert len(parts) == 4
    assert all(part.replace(marked, "") == "" for part in parts)


@pytest.mark.parametrize("limit", [1, 3, LIMIT, 1023])
@pytest.mark.parametrize(
    "text",
    [
        "The dog sleeps. " * 600,
        "the dog sleeps " * 600,
        "x" * 10_000,
        "a b " * 50 + "x" * 9_000,
        "." * 10_000,
        ". " * 5_000,
        ", " * 5_000,
        '."' * 5_000,
        "这是一个测试" * 1_500,
        "e" + "\u0301" * 10_000,
        "\u200d" * 5_000,
        "👨‍👩‍👧" * 1_000,
    ],
)
def test_every_part_fits_and_nothing_is_lost(text, limit):
    parts, is_cut = split(text, limit)
    assert not is_cut
    assert max(map(len, parts)) <= limit
    assert "".join(parts) == without_spaces(text)


def test_a_character_that_does_not_fit_is_cut():
    def encode_bytes(texts):
        return [list(text.encode()) for text in texts]

    (found,) = encode_texts(["ab😀"], encode_bytes, limit=2, long_lines="split")
    assert found.is_cut
    assert found.rows == [[97], [98], [0xF0, 0x9F]]


def test_cutting_keeps_the_beginning():
    found = encode_texts(["abcdef", "abc"], encode, limit=3, long_lines="cut")
    assert [(one.rows, one.is_cut) for one in found] == [
        ([[97, 98, 99]], True),
        ([[97, 98, 99]], False),
    ]


@pytest.mark.parametrize(
    ("language", "expected"),
    [("de", " "), ("ja", ""), ("zh-Hant", ""), ("zh", ""), ("ko", " "), ("th", " "), ("", " "), ("xx", " ")],
)
def test_chinese_and_japanese_sentences_have_no_space_between(language, expected):
    assert sentence_separator(language) == expected


def test_sentences_are_separated_as_the_scripts_of_cldr_say():
    known = {name.split("_")[0] for name in get_global("likely_subtags")} | set(
        get_global("language_aliases")
    )
    # Babel before 2.19 has another script for two languages written in Chinese characters.
    for name in [*(known - {"und", "cpx", "mnp"}), "zh-Latn", "de-Hani", "ja-Kana", "sr_Latn", "zh-TW"]:
        try:
            scripts = expected_scripts(name)
        except ValueError:
            continue
        chinese_or_japanese = scripts <= {"Hani", "Hira", "Kana"}
        assert sentence_separator(name) == ("" if chinese_or_japanese else " "), name
