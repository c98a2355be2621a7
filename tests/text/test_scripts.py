"""Scripts of languages by CLDR, kinds of letters by Unicode."""

import unicodedata

import babel.localedata
import pytest

from keras_transformer.text.cleaning import foreign_share
from keras_transformer.text.languages import _SECOND, expected_scripts, primary_language


@pytest.mark.parametrize(
    ("language", "scripts"),
    [
        ("de", {"Latn"}),
        ("vi", {"Latn"}),
        ("ru", {"Cyrl"}),
        ("el", {"Grek"}),
        ("ar", {"Arab"}),
        ("hi", {"Deva"}),
        ("ja", {"Hira", "Kana", "Hani"}),
        ("ko", {"Hang", "Hani"}),
        ("zh", {"Hani"}),
        ("zh_TW", {"Hani"}),
        ("zh-Hant", {"Hani"}),
        ("sr", {"Cyrl", "Latn"}),
        ("sr-Latn", {"Latn"}),
        ("sr_Cyrl_RS", {"Cyrl"}),
        ("sh", {"Latn"}),  # CLDR: now sr_Latn
        ("uz", {"Latn", "Cyrl"}),
        ("pt-BR", {"Latn"}),
        ("es-419", {"Latn"}),
        ("DE", {"Latn"}),
        ("jpn", {"Hira", "Kana", "Hani"}),
        ("pa", {"Guru", "Arab"}),
        ("pa-Guru", {"Guru"}),
        ("pa-PK", {"Arab"}),
    ],
)
def test_scripts_of_a_language(language, scripts):
    assert expected_scripts(language) == scripts


@pytest.mark.parametrize("language", _SECOND)
def test_cldr_has_locales_of_each_second_script(language):
    assert babel.localedata.exists(f"{language}_{_SECOND[language]}")


@pytest.mark.parametrize(
    ("code", "language"),
    [("de", "de"), ("pt-BR", "pt"), ("eng", "en"), ("iw", "he"), ("sh", "sr"), ("zh_Hant_TW", "zh")],
)
def test_primary_language(code, language):
    assert primary_language(code) == language


@pytest.mark.parametrize("language", ["xx", "", "english", "und", "klingon"])
def test_refuses_what_is_no_language(language):
    for function in (expected_scripts, primary_language):
        with pytest.raises(ValueError, match=f"code that CLDR knows.*Received: {language!r}"):
            function(language)


@pytest.mark.parametrize(
    ("scripts", "expected", "foreign"),
    [
        (
            {"Latn"},
            "LATIN ",
            ("CYRILLIC ", "GREEK SMALL LETTER", "CJK UNIFIED", "ARABIC LETTER", "HANGUL SYLLABLE"),
        ),
        ({"Cyrl"}, "CYRILLIC ", ("LATIN ", "GREEK SMALL LETTER", "DEVANAGARI LETTER")),
        ({"Hani", "Hira", "Kana"}, "HIRAGANA LETTER ", ("LATIN ", "CYRILLIC ", "HANGUL SYLLABLE")),
        ({"Hang", "Hani"}, "CJK UNIFIED", ("HIRAGANA LETTER", "LATIN ")),
        ({"Grek"}, "GREEK SMALL LETTER", ("COPTIC SMALL LETTER", "LATIN ")),
    ],
)
def test_shares_agree_with_the_names_of_all_letters(scripts, expected, foreign):
    scripts, counts = frozenset(scripts), [0, 0]
    for point in range(0x110000):
        character = chr(point)
        if unicodedata.category(character)[0] != "L":
            continue
        name = unicodedata.name(character, "")
        if name.startswith(expected):
            assert foreign_share(character, scripts) == 0, name
            counts[0] += 1
        elif name.startswith(foreign):
            assert foreign_share(character, scripts) == 1, name
            counts[1] += 1
    assert min(counts) > 50


def test_what_is_no_letter_of_one_script_does_not_count():
    # U+30FC and U+00B5 are letters of no single script; U+0301 and U+093F are marks.
    text = "09 .,!?«»“”\n😀₂%ーµ\u0301\u093f\u200d"
    assert foreign_share(text, frozenset({"Latn"})) == 0
    assert foreign_share(f"{text}a{text}bЖ{text}", frozenset({"Latn"})) == 1 / 3
