"""Damaged encoding: text that was really encoded twice, and sound text that looks like it."""

import pathlib

import babel
import babel.localedata
import pytest

from keras_transformer.text.cleaning import is_damaged

DATA = pathlib.Path(__file__).resolve().parents[2] / "../shared/data"

SENTENCES = {
    "de": "Die Straße führt über eine schöne Brücke nach Köln.",
    "fr": "L’été dernier, ma sœur a déjà mangé à l’hôtel « Noël ».",
    "pt": "A irmã de São João não comeu o pão de manhã.",
    "es": "¿Cuándo llegará el niño a la estación?",
    "vi": "Hôm nay trời đẹp quá, chúng ta đi dạo ở Hà Nội nhé.",
    "pl": "Zażółć gęślą jaźń.",
    "cs": "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "ro": "Ea știe că trenul pleacă în două ore.",
    "tr": "Türkiye’nin başkenti Ankara’dır, İstanbul değil.",
    "is": "Það er mjög kalt á Íslandi í dag.",
    "el": "Η γάτα κοιμάται πάνω στο τραπέζι.",
    "ru": "Мы поедем в Москву завтра утром.",
    "uk": "Їжак їсть яблуко під деревом.",
    "ar": "ذهب الولد إلى المدرسة، ثم عاد.",
    "he": "הילד הלך לבית הספר.",
    "hi": "मैं कल दिल्ली जा रहा हूँ।",
    "th": "วันนี้อากาศดีมาก",
    "ja": "私は昨日、東京で寿司を食べました。",
    "ko": "오늘은 날씨가 아주 좋습니다.",
    "zh": "我们明天去北京。",
    "ka": "დღეს კარგი ამინდია.",
    "hy": "Այսօր լավ եղանակ է։",
}

SOUND = [
    "AMANHÃ…",
    "«AMANHû, disse ele — NÃO, NUNCA!",
    "ROMÂNIA, MANHÃ, ÂNCORA, Ã",
    "“De manhã…” – disse a irmã.",
    "Ấn Độ, Ân cần, Âu Cơ; Ông Ân…”",
    "TRÂN TRỌNG; â, ă, ê, ô, ơ, ư",
    "CAFÉ…",
    "« LIBERTÉ », « ÂGE », « ÉTÉ »",
    "Il dit\u00a0: «\u00a0voilà\u00a0».",
    "Il est enchanté\u00a0» dit-elle",
    "Enchanté\u00a0»",
    "NESTLÉ® et CAFÉ™",
    "La lettre Â…",
    "„Das macht Spaß“, sagte er.",
    "Spaß“",
    "Der Buchstabe „Ä“ – und »Ö«.",
    "Maß§ und Fuß–",
    "El vrea să coborâ…”",
    "—«¿Está»—",
    "「É」と「Ã」です。",
    "Plain text, nothing else.",
    "20 °C ± 2 £, © 2020 naïve café…",
    "👍🏽 👩‍👩‍👧 ⅔ ½",
    "",
]


def encoded_twice(text, codec):
    """UTF-8 taken for another encoding, as the WHATWG defines windows-1252: no byte is refused."""
    if codec == "latin-1":
        return text.encode().decode("latin-1")
    return "".join(
        bytes([byte]).decode("cp1252")
        if byte not in (0x81, 0x8D, 0x8F, 0x90, 0x9D)
        else bytes([byte]).decode("latin-1")
        for byte in text.encode()
    )


def lines_of(name):
    path = DATA / name
    if not path.exists():
        pytest.skip(f"needs {path}")
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def names_of(locale):
    """Names of territories, languages and currencies in their own language."""
    tables = (locale.territories, locale.languages, locale.currencies)
    return sorted({name for table in tables for name in table.values()})


@pytest.mark.parametrize("codec", ["cp1252", "latin-1"])
@pytest.mark.parametrize("language", SENTENCES)
def test_a_sentence_is_sound_and_damaged_when_encoded_twice(language, codec):
    text = SENTENCES[language]
    assert not is_damaged(text)
    damaged = encoded_twice(text, codec)
    assert damaged != text
    if (language, codec) != ("hy", "cp1252"):  # ftfy does not know Armenian's bytes
        assert is_damaged(damaged)
    assert is_damaged(encoded_twice(damaged, codec))


@pytest.mark.parametrize("text", SOUND)
def test_sound_text_that_looks_damaged(text):
    assert not is_damaged(text)


@pytest.mark.parametrize("text", ["A IRMÃ» E O IRMÃO", "Ø½ og 2×½", "LÃ\u00a0 "])
def test_sound_text_that_ftfy_takes_for_damage(text):
    assert is_damaged(text)


@pytest.mark.parametrize(
    "text",
    [
        "schÃ¶n",
        "„Schön“ und grÃ¶ÃŸer in einer Zeile",
        "It’s fine, but this isnâ€™t.",
        "Soundé and naÃ¯ve",
        "a ðŸ˜€ face",
        "NoÃ«l à la maison",
        "un Å“uf",
        "Il va Ã\u00a0 Paris",
        "Â£5 and 20Â°C",
        "ÃƒÂ©",
        "Привет is Ð¿Ñ€Ð¸Ð²ÐµÑ‚",
        "one \ufffd",
        "Il va Ã\u00a0 Paris, enchanté",
    ],
)
def test_damage_in_part_of_a_line(text):
    assert is_damaged(text)


@pytest.mark.parametrize(
    "name", ["pt", "vi", "fr", "de", "ro", "tr", "cs", "pl", "el", "ru", "ar", "hi", "ja"]
)
def test_names_of_one_locale(name):
    names = names_of(babel.Locale.parse(name))
    assert [text for text in names if is_damaged(text)] == []
    beyond_ascii = [text for text in names if not text.isascii()]
    assert len(beyond_ascii) > 50
    for codec in ("cp1252", "latin-1"):
        missed = [text for text in beyond_ascii if not is_damaged(encoded_twice(text, codec))]
        assert len(missed) <= 0.08 * len(beyond_ascii), missed


@pytest.mark.very_slow
def test_names_of_all_locales():
    num_texts, num_missed = 0, 0
    for identifier in babel.localedata.locale_identifiers():
        if "_" in identifier:
            continue
        for text in names_of(babel.Locale.parse(identifier)):
            assert not is_damaged(text), (identifier, text)
            if not text.isascii():
                num_texts += 1
                num_missed += not is_damaged(encoded_twice(text, "cp1252"))
    assert num_texts > 50_000
    assert num_missed < 0.03 * num_texts


@pytest.mark.parametrize(
    ("name", "most_missed"),
    [
        ("multi30k/val.de", 0),
        ("multi30k/val.fr", 0),
        ("tatoeba/test.en-de.de", 0),
        ("tatoeba/test.en-fr.fr", 1),
        ("newstest/newstest2012.en-de.de", 1),
        ("newstest/newstest2013.en-fr.fr", 1),
    ],
)
def test_real_lines_encoded_twice(name, most_missed):
    lines = [line for line in lines_of(name) if not line.isascii()]
    for codec in ("cp1252", "latin-1"):
        missed = [line for line in lines if not is_damaged(encoded_twice(line, codec))]
        assert len(missed) <= most_missed, missed
