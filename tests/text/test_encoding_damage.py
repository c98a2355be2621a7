"""Damaged encoding: text that was really encoded twice, and sound text that looks like it."""

import pathlib

import babel
import babel.localedata
import pytest

from keras_transformer.text.encoding_damage import is_damaged
from keras_transformer.text.scripts import expected_scripts

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
    ("pt", "AMANHÃ…"),
    ("pt", "A IRMÃ» E O IRMÃO"),
    ("pt", "«AMANHû, disse ele — NÃO, NUNCA!"),
    ("pt", "ROMÂNIA, MANHÃ, ÂNCORA, Ã"),
    ("pt", "“De manhã…” – disse a irmã."),
    ("vi", "Ấn Độ, Ân cần, Âu Cơ; Ông Ân…”"),
    ("vi", "TRÂN TRỌNG; â, ă, ê, ô, ơ, ư"),
    ("fr", "CAFÉ…"),
    ("fr", "« LIBERTÉ », « ÂGE », « ÉTÉ »"),
    ("fr", "Il dit\u00a0: «\u00a0voilà\u00a0»."),
    ("fr", "Il est enchanté\u00a0» dit-elle"),
    ("fr", "Enchanté\u00a0»"),
    ("fr", "NESTLÉ® et CAFÉ™"),
    ("fr", "La lettre Â…"),
    ("de", "„Das macht Spaß“, sagte er."),
    ("de", "Spaß“"),
    ("de", "Der Buchstabe „Ä“ – und »Ö«."),
    ("de", "Maß§ und Fuß–"),
    ("ro", "El vrea să coborâ…”"),
    ("es", "—«¿Está»—"),
    ("da", "Ø½ og 2×½"),
    ("ja", "「É」と「Ã」です。"),
    ("en", "Plain text, nothing else."),
    ("en", "20 °C ± 2 £, © 2020 naïve café…"),
    ("en", "👍🏽 👩‍👩‍👧 ⅔ ½"),
    ("en", ""),
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
    scripts = expected_scripts(language)
    assert not is_damaged(text, scripts)
    damaged = encoded_twice(text, codec)
    assert damaged != text
    assert is_damaged(damaged, scripts)
    assert is_damaged(encoded_twice(damaged, codec), scripts)
    assert is_damaged(damaged, expected_scripts("en"))  # on the wrong side
    assert is_damaged(damaged, frozenset())  # of an unknown language


@pytest.mark.parametrize(("language", "text"), SOUND)
def test_sound_text_that_looks_damaged(language, text):
    assert not is_damaged(text, expected_scripts(language))
    assert not is_damaged(text, frozenset())


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("de", "schÃ¶n"),
        ("de", "„Schön“ und grÃ¶ÃŸer in einer Zeile"),
        ("en", "It’s fine, but this isnâ€™t."),
        ("en", "Soundé and naÃ¯ve"),
        ("en", "a ðŸ˜€ face"),
        ("fr", "NoÃ«l à la maison"),
        ("fr", "un Å“uf"),
        ("fr", "Il va Ã\u00a0 Paris"),
        ("en", "Â£5 and 20Â°C"),
        ("en", "ÃƒÂ©"),
        ("en", "Привет is Ð¿Ñ€Ð¸Ð²ÐµÑ‚"),
        ("en", "one \ufffd"),
    ],
)
def test_damage_in_part_of_a_line(language, text):
    assert is_damaged(text, expected_scripts(language))


def test_what_stands_beside_it_decides_on_an_ambiguous_run():
    latin = expected_scripts("fr")
    assert is_damaged("Il va Ã\u00a0 Paris", latin)
    assert not is_damaged("Il va Ã\u00a0 Paris, enchanté", latin)
    assert not is_damaged("LÃ\u00a0 ", latin)


@pytest.mark.parametrize(
    "name", ["pt", "vi", "fr", "de", "ro", "tr", "cs", "pl", "el", "ru", "ar", "hi", "ja"]
)
def test_names_of_one_locale(name):
    scripts = expected_scripts(name)
    names = names_of(babel.Locale.parse(name))
    assert [text for text in names if is_damaged(text, scripts)] == []
    beyond_ascii = [text for text in names if not text.isascii()]
    assert len(beyond_ascii) > 50
    for codec in ("cp1252", "latin-1"):
        missed = [text for text in beyond_ascii if not is_damaged(encoded_twice(text, codec), scripts)]
        assert len(missed) <= 0.01 * len(beyond_ascii), missed


@pytest.mark.slow
def test_names_of_all_locales():
    num_texts, num_missed = 0, 0
    for identifier in babel.localedata.locale_identifiers():
        if "_" in identifier:
            continue
        scripts = expected_scripts(identifier)
        for text in names_of(babel.Locale.parse(identifier)):
            assert not is_damaged(text, scripts), (identifier, text)
            if not text.isascii():
                num_texts += 1
                num_missed += not is_damaged(encoded_twice(text, "cp1252"), scripts)
    assert num_texts > 50_000
    assert num_missed < 0.01 * num_texts


@pytest.mark.parametrize(
    ("name", "most_missed"),
    [
        ("multi30k/val.de", 0),
        ("multi30k/val.fr", 0),
        ("tatoeba/test.en-de.de", 0),
        ("tatoeba/test.en-fr.fr", 1),
        ("newstest/newstest2012.en-de.de", 0),
        ("newstest/newstest2013.en-fr.fr", 0),
    ],
)
def test_real_lines_encoded_twice(name, most_missed):
    scripts = expected_scripts(name[-2:])
    lines = [line for line in lines_of(name) if not line.isascii()]
    for codec in ("cp1252", "latin-1"):
        missed = [line for line in lines if not is_damaged(encoded_twice(line, codec), scripts)]
        assert len(missed) <= most_missed, missed
