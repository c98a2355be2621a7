"""Swapped and wrong languages, on sentences of known languages."""

import ast
import pathlib

import pytest

from keras_transformer.text import languages
from keras_transformer.text.languages import LanguageCheck, check_languages

DATA = pathlib.Path(__file__).resolve().parents[2] / "../shared/data"

ENGLISH = [
    "The children are playing in the garden behind the house.",
    "I would like to know when the next train leaves.",
    "She has never been to London, but she wants to go there.",
    "What are you doing with my books?",
]
GERMAN = [
    "Die Kinder spielen im Garten hinter dem Haus.",
    "Ich würde gerne wissen, wann der nächste Zug fährt.",
    "Sie war noch nie in London, aber sie möchte dorthin.",
    "Was machst du mit meinen Büchern?",
]


# Warnings, from counts.


def check(num_pairs, swapped=0, source=0, target=0):
    return LanguageCheck("en", "de", num_pairs, swapped, source, target)


@pytest.mark.parametrize("num_pairs", [0, 10])
def test_half_is_no_reason_to_warn(num_pairs):
    half = num_pairs // 2
    assert check(num_pairs, half, half, half).warnings() == []


def test_warns_of_swapped_sides():
    (warning,) = check(10, 6, 9, 8).warnings()
    assert warning == (
        "source and target seem swapped: in 6 of 10 sampled pairs the source side is in de and the "
        "target side in en. Swap the files, or source and target"
    )


def test_warns_of_one_side_in_the_others_language():
    (warning,) = check(10, 1, 1, 6).warnings()
    assert warning.startswith("the target side seems to be in en, not de: it is in 6 of 10 sampled pairs")
    (warning,) = check(10, 1, 6, 1).warnings()
    assert warning.startswith("the source side seems to be in de, not en: it is in 6 of 10 sampled pairs")


# Identification.


def test_right_sides():
    found = check_languages(ENGLISH, GERMAN, "en", "de")
    assert found == check(4)
    assert found.warnings() == []


def test_swapped_sides():
    found = check_languages(GERMAN, ENGLISH, "en", "de")
    assert found == check(4, 4, 4, 4)
    assert "swapped" in found.warnings()[0]


def test_one_language_on_both_sides():
    assert check_languages(ENGLISH, ENGLISH, "en", "de") == check(4, 0, 0, 4)
    assert check_languages(GERMAN, GERMAN, "en", "de") == check(4, 0, 4, 0)


def test_the_order_of_the_names_does_not_matter():
    assert check_languages(GERMAN, ENGLISH, "de", "en") == LanguageCheck("de", "en", 4)


def test_names_and_numbers_tell_nothing():
    texts = ["", "12", "3.50", "...", "OK", "😀", "A", "\ud800"]
    assert check_languages(texts, texts, "en", "de") == check(8)


@pytest.mark.parametrize(
    ("source", "target", "source_text", "target_text"),
    [
        ("en-US", "pt-BR", ENGLISH[0], "As crianças estão brincando no jardim atrás da casa."),
        ("eng", "nb", ENGLISH[0], "Barna leker i hagen bak huset, og jeg vet ikke hva de gjør."),
        ("en", "fil", ENGLISH[0], "Naglalaro ang mga bata sa hardin sa likod ng bahay."),
        ("ja", "zh-Hant", "子どもたちは家の裏庭で遊んでいます。", "孩子們在房子後面的花園裡玩耍。"),
        ("ru", "uk", "Дети играют в саду за домом.", "Діти граються в саду за будинком."),
    ],
)
def test_codes_with_regions_scripts_and_other_names(source, target, source_text, target_text):
    right = check_languages([source_text], [target_text], source, target)
    assert right == LanguageCheck(source, target, 1)
    swapped = check_languages([target_text], [source_text], source, target)
    assert swapped == LanguageCheck(source, target, 1, 1, 1, 1)


@pytest.mark.parametrize(("source", "target"), [("en", "left"), ("zh-Hans", "zh-Hant")])
def test_makes_no_check_of_languages_that_it_cannot_tell_apart(source, target):
    found = check_languages(ENGLISH, GERMAN, source, target)
    assert found == LanguageCheck(source, target, 0)
    assert found.warnings() == []


@pytest.mark.parametrize(
    ("stem", "language"),
    [
        ("multi30k/val.", "de"),
        ("multi30k/val.", "fr"),
        ("tatoeba/valid.en-de.", "de"),
        ("tatoeba/valid.en-fr.", "fr"),
        ("newstest/newstest2013.en-de.", "de"),
    ],
)
def test_real_corpora(stem, language):
    sides = []
    for name in ("en", language):
        path = DATA / f"{stem}{name}"
        if not path.exists():
            pytest.skip(f"needs {path}")
        sides.append(path.read_text(encoding="utf-8").split("\n")[:-1])
    source, target = (side[:: -(-len(side) // 1000)] for side in sides)
    right = check_languages(source, target, "en", language)
    assert 500 <= right.num_pairs <= 1000
    assert max(right.num_source_in_target, right.num_target_in_source) <= 0.01 * right.num_pairs
    swapped = check_languages(target, source, "en", language)
    assert swapped.num_swapped >= 0.95 * swapped.num_pairs


def test_the_identifier_is_imported_by_those_who_check_only():
    tree = ast.parse(pathlib.Path(languages.__file__).read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert imports
    assert not any("py3langid" in ast.unparse(node) for node in imports)
