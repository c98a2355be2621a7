"""Filters of parallel text: each alone, in order, and against a slow look at every character."""

import pathlib
import pickle
import random
import unicodedata

import numpy as np
import pytest

from keras_transformer.config.settings import CleaningConfig
from keras_transformer.text.cleaning import CODES, RATIO_FREE_LENGTH, REASONS, Cleaner, is_damaged
from keras_transformer.text.languages import expected_scripts

DATA = pathlib.Path(__file__).resolve().parents[2] / "../shared/data"
EVERYTHING = CleaningConfig(drop_damaged=True, drop_identical=True, max_foreign_letters=0.3)


def reasons(codes):
    assert codes.dtype == np.uint8
    return [("keep", *REASONS)[code] for code in codes]


def look(config, *pairs, languages=("en", "de")):
    source, target = [a for a, _ in pairs], [b for _, b in pairs]
    return reasons(Cleaner(config, *languages, max_length=20).text_reasons(source, target))


# Each filter alone.


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("Hello.", "Hallo.", "keep"),
        ("", "Hallo.", "empty"),
        ("Hello.", "", "empty"),
        ("", "", "empty"),
        (" \t\u00a0\u3000", "Hallo.", "empty"),
        ("Hello.", " ", "empty"),
        ("0", ".", "keep"),
        ("Same.", "Same.", "keep"),
        ("schÃ¶n", "Жёлтый\ufffd", "keep"),
    ],
)
def test_only_blank_sides_are_dropped_by_default(source, target, reason):
    assert look(CleaningConfig(), (source, target)) == [reason]
    assert look(CleaningConfig(drop_empty=False), (source, target)) == ["keep"]


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("Berlin", "Berlin", "identical"),
        ("Berlin ", " Berlin", "identical"),
        ("Berlin", "berlin", "keep"),
        ("Berlin", "Berlin.", "keep"),
        ("schön", "scho\u0308n", "keep"),
    ],
)
def test_identical_sides(source, target, reason):
    assert look(CleaningConfig(drop_identical=True), (source, target)) == [reason]


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("It is beautiful.", "Es ist schön.", "keep"),
        ("It is beautiful.", "Es ist schÃ¶n.", "damaged"),
        ("It isnâ€™t.", "Ist es nicht.", "damaged"),
        ("One \ufffd two.", "Eins zwei.", "damaged"),
        ("One two.", "Eins\ufffd zwei.", "damaged"),
        ("\ufffd", "Eins.", "damaged"),
        ("It was fun.", "Es war ein „Spaß“.", "keep"),
        ("ASCII only", "nur ASCII", "keep"),
    ],
)
def test_damaged_encoding(source, target, reason):
    assert look(CleaningConfig(drop_damaged=True), (source, target)) == [reason]


def test_damage_is_found_on_the_side_of_a_language_that_is_not_known():
    pairs = [("fine", "schön"), ("fine", "schÃ¶n"), ("fine", "\ufffd")]
    found = look(CleaningConfig(drop_damaged=True), *pairs, languages=("tgt", "klingon"))
    assert found == ["keep", "damaged", "damaged"]


SENTENCES = {
    "en": "The naïve café owner paid £5.",
    "de": "Größere Füße brauchen mehr Platz.",
    "fr": "L’œuvre a été achevée à Noël.",
    "pt": "A irmã não comeu o pão de manhã.",
    "vi": "Hôm nay trời đẹp quá, chúng ta đi dạo nhé.",
    "el": "Η γάτα κοιμάται πάνω στο τραπέζι.",
    "ru": "Мы поедем в Москву завтра утром.",
    "ar": "ذهب الولد إلى المدرسة، ثم عاد.",
    "hi": "मैं कल दिल्ली जा रहा हूँ।",
    "ja": "コーヒーを一杯ください。ありがとう。",
    "zh": "我们明天去北京。",
    "ko": "오늘은 날씨가 아주 좋습니다.",
    "he": "הילד הלך לבית הספר.",
    "th": "วันนี้อากาศดีมาก",
    "ka": "დღეს კარგი ამინდია.",
}
LATIN = {"en", "de", "fr", "pt", "vi"}
ALSO_FINE = dict.fromkeys(LATIN, LATIN) | {"ja": {"zh"}, "ko": {"zh"}}


@pytest.mark.parametrize("language", SENTENCES)
def test_sentences_in_their_own_script_and_in_any_other(language):
    strict = CleaningConfig(max_foreign_letters=0.0)
    assert look(strict, ("Yes.", SENTENCES[language]), languages=("en", language)) == ["keep"]
    loose = CleaningConfig(max_foreign_letters=0.75)
    for other, text in SENTENCES.items():
        found = look(loose, ("Yes.", text), languages=("en", language))
        fine = other in {language, *ALSO_FINE.get(language, ())}
        assert found == ["keep" if fine else "script"], other


@pytest.mark.parametrize(
    ("language", "text", "share"),
    [
        ("ja", "Googleは便利です。", 6 / 11),  # six Latin letters, five others
        ("ja", "私はJohnです。", 4 / 8),
        ("ja", "NASA", 1),
        ("ru", "Я купил iPhone.", 6 / 12),
        ("ru", "Привет, мир", 0),
        ("sr", "Београд is Beograd", 0),
        ("sr-Cyrl", "Београд Beograd", 7 / 14),
        ("en", "α and β", 2 / 5),
        ("de", "Straße µ ₂ ½", 0),
        ("de", "Д", 1),
        ("hi", "मैं OK", 2 / 3),  # one letter, two marks
        ("ko", "漢字 한글", 0),
        ("zh", "ー・。", 0),  # letters of no single script
        ("en", "1234 5.6 %", 0),
        ("ja", "1234 ５６", 0),
        ("ru", "👍🏽 😀😀", 0),
        ("ru", "…", 0),
        ("ru", "", 0),
    ],
)
def test_share_of_foreign_letters(language, text, share):
    exact = CleaningConfig(max_foreign_letters=share, drop_empty=False)
    assert look(exact, ("Yes.", text), languages=("en", language)) == ["keep"]
    assert look(exact, (text, "Yes."), languages=(language, "en")) == ["keep"]
    if share:
        below = CleaningConfig(max_foreign_letters=share - 1e-9, drop_empty=False)
        assert look(below, ("Yes.", text), languages=("en", language)) == ["script"]
        assert look(below, (text, "Yes."), languages=(language, "en")) == ["script"]


def test_scripts_need_languages_that_are_known():
    with pytest.raises(ValueError, match="`max_foreign_letters` needs languages.*Received: 'klingon'"):
        Cleaner(CleaningConfig(max_foreign_letters=0.5), "en", "klingon", max_length=9)


@pytest.mark.parametrize(
    ("lengths", "reason"),
    [
        ((3, 3), "keep"),
        ((2, 9), "short"),
        ((9, 2), "short"),
        ((20, 20), "keep"),
        ((21, 20), "long"),
        ((20, 21), "long"),
        ((2, 21), "short"),
        ((10, 3), "keep"),
        ((3, 10), "keep"),  # 3.3, of a short pair
        ((4, 11), "ratio"),  # 2.75
        ((11, 4), "ratio"),
        ((5, 11), "keep"),  # 2.2
        ((8, 20), "keep"),  # 2.5
        ((20, 8), "keep"),
        ((7, 20), "ratio"),
        ((5, 21), "long"),
    ],
)
def test_lengths(lengths, reason):
    assert RATIO_FREE_LENGTH == 10
    cleaner = Cleaner(CleaningConfig(min_length=3, max_length_ratio=2.5), "en", "de", max_length=20)
    assert reasons(cleaner.length_reasons(*np.array(lengths)[:, None])) == [reason]


def test_only_long_sides_are_dropped_by_default():
    cleaner = Cleaner(CleaningConfig(), "en", "de", max_length=20)
    found = cleaner.length_reasons(np.array([1, 1, 20, 21]), np.array([1, 20, 1, 1]))
    assert reasons(found) == ["keep", "keep", "keep", "long"]


# Filters together.


def test_the_first_filter_counts():
    pairs = [
        ("", ""),
        ("", "schÃ¶n"),
        ("schÃ¶n", "schÃ¶n"),
        ("schÃ¶n", "Жёлтый"),
        ("Жёлтый", "Жёлтый"),
        ("schön", "schön"),
        ("beautiful", "schön"),
    ]
    found = look(EVERYTHING, *pairs)
    assert found == ["empty", "empty", "damaged", "damaged", "script", "identical", "keep"]
    codes = [
        CODES[reason] for reason in ("empty", "damaged", "script", "identical", "short", "long", "ratio")
    ]
    assert codes == [1, 2, 3, 4, 5, 6, 7]
    assert CODES["duplicate"] == 8


def test_sides_must_be_equally_long():
    with pytest.raises(ValueError, match="Received: 1 and 2 lines"):
        Cleaner(EVERYTHING, "en", "de", max_length=20).text_reasons(["a"], ["b", "c"])


def test_a_block_may_be_empty():
    cleaner = Cleaner(EVERYTHING, "en", "ja", max_length=20)
    assert cleaner.text_reasons([], []).shape == (0,)
    assert cleaner.length_reasons(np.zeros(0, int), np.zeros(0, int)).shape == (0,)


def test_lone_surrogates_and_newlines_do_no_harm():
    pairs = [("a\nb\n", "Ж\nЖ"), ("\ud800 c", "ü\udfff"), ("d", "Ж"), ("e", "ü")]
    assert look(EVERYTHING, *pairs) == ["script", "keep", "script", "keep"]


def test_a_cleaner_can_be_sent_to_other_processes():
    cleaner = Cleaner(EVERYTHING, "en", "ja", max_length=20)
    source, target = ["", "a", "b"], ["x", "b", "東京"]
    copy = pickle.loads(pickle.dumps(cleaner))
    assert reasons(copy.text_reasons(source, target)) == ["empty", "script", "keep"]
    assert len(pickle.dumps(cleaner)) < 1000


# A slow look at every character: what Unicode's names say, by the letters used below.

_PREFIXES = {
    "Latn": "LATIN ",
    "Cyrl": "CYRILLIC ",
    "Hira": "HIRAGANA LETTER ",
    "Kana": "KATAKANA LETTER ",
    "Hani": "CJK UNIFIED",
    "Arab": "ARABIC LETTER",
}
_ALPHABET = "aZ éñüßÃâ¤¶©€™’»…\u00a0 яЖ あカ漢 ب5.,😀\ufffd\u0301\t"


def slow_reason(config, source, target, languages):
    sides = list(zip((source, target), map(expected_scripts, languages), strict=True))
    if any(not text.strip() for text, _ in sides):
        return "empty"
    if any(is_damaged(text) for text, _ in sides):
        return "damaged"
    for text, scripts in sides:
        letters = [c for c in text if unicodedata.category(c)[0] == "L"]
        prefixes = tuple(_PREFIXES[script] for script in scripts)
        foreign = [c for c in letters if not unicodedata.name(c).startswith(prefixes)]
        if letters and len(foreign) / len(letters) > config.max_foreign_letters:
            return "script"
    return "identical" if source.strip() == target.strip() else "keep"


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("languages", [("en", "ru"), ("ja", "de"), ("sr", "ar")])
def test_a_block_is_its_lines_one_by_one(languages):
    rng = random.Random(5)

    def text():
        start = rng.randrange(len(_ALPHABET))
        near = _ALPHABET[start : start + rng.choice([1, 3, 8, 40])]
        return "".join(rng.choices(near, k=rng.choice([0, 1, 2, 5, 9])))

    source, target = [], []
    for _ in range(9000):
        source.append(text())
        target.append(source[-1] if rng.random() < 0.1 else text())
    cleaner = Cleaner(EVERYTHING, *languages, max_length=20)
    found = reasons(cleaner.text_reasons(source, target))
    expected = [slow_reason(EVERYTHING, a, b, languages) for a, b in zip(source, target, strict=True)]
    assert found == expected
    assert min(map(found.count, ("keep", "empty", "damaged", "script", "identical"))) >= 30
    single = [reasons(cleaner.text_reasons([a], [b]))[0] for a, b in zip(source[:300], target, strict=False)]
    assert single == found[:300]


# Real text: how many sound pairs are dropped.


@pytest.mark.parametrize(
    ("stem", "language", "num_identical"),
    [
        ("multi30k/train.", "de", 0),
        ("multi30k/train.", "fr", 0),
        ("tatoeba/valid.en-de.", "de", 0),
        ("tatoeba/valid.en-fr.", "fr", 0),
        ("newstest/newstest2012.en-de.", "de", 4),
        ("newstest/newstest2013.en-de.", "de", 1),
        ("newstest/newstest2013.en-fr.", "fr", 1),
        pytest.param("tatoeba/train.en-de.", "de", 0, marks=pytest.mark.very_slow),
        pytest.param("tatoeba/train.en-fr.", "fr", 1, marks=pytest.mark.very_slow),
    ],
)
def test_real_corpora_lose_identical_pairs_only(stem, language, num_identical):
    sides = []
    for name in ("en", language):
        path = DATA / f"{stem}{name}"
        if not path.exists():
            pytest.skip(f"needs {path}")
        sides.append(path.read_text(encoding="utf-8").split("\n")[:-1])
    found = reasons(Cleaner(EVERYTHING, "en", language, max_length=20).text_reasons(*sides))
    assert found.count("identical") == num_identical
    assert found.count("keep") == len(found) - num_identical
    # Asked for another script, all are dropped that have a letter on that side.
    found = reasons(Cleaner(EVERYTHING, "en", "ru", max_length=20).text_reasons(*sides))
    assert found.count("script") > 0.999 * len(found)
