"""The built-in corpus: what it says, and the four promises that make it learnable."""

import collections
import datetime
import decimal
import hashlib
import os
import re
import subprocess
import sys
import unicodedata

import babel
import pytest

from keras_transformer.text import cldr
from keras_transformer.text.cldr_kinds import KINDS

LOCALE_PAIRS = [("en", "de"), ("en", "fr"), ("de", "ja"), ("en", "ru"), ("en", "ar")]
NUM_PAIRS = 3000
SPELLED_KINDS = ("cardinal", "ordinal", "year")
MOMENT = datetime.datetime(2015, 8, 23, 17, 5, 9)  # a Sunday


@pytest.fixture(scope="module")
def examples():
    """Returns a function of a pair of locales that makes each corpus once."""
    made = {}

    def make(pair):
        if pair not in made:
            made[pair] = cldr.make_examples(*pair, num_pairs=NUM_PAIRS, seed=3)
        return made[pair]

    return make


def write(pair, kind, *items, style="standard"):
    example = cldr.make_example(cldr.Locales(*map(cldr.parse_locale, pair)), kind, items, style)
    return example and (example.source, example.target)


@pytest.mark.parametrize(
    ("pair", "kind", "items", "expected"),
    [
        (("en", "de"), "relative", [("hour", -3)], ("3 hours ago", "vor 3 Stunden")),
        (("en", "de"), "relative", [("day", 1)], ("in 1 day", "in 1 Tag")),
        (("en", "de"), "relative", [("minute", 90)], ("in 90 minutes", "in 90 Minuten")),
        (("en", "fr"), "relative", [("week", -2)], ("2 weeks ago", "il y a 2 semaines")),
        (("de", "ja"), "relative", [("hour", -3)], ("vor 3 Stunden", "3 時間前")),
        (("en", "ru"), "relative", [("hour", -3)], ("3 hours ago", "3 часа назад")),
        (("en", "ru"), "relative", [("hour", -5)], ("5 hours ago", "5 часов назад")),
        (("en", "ar"), "relative", [("hour", 2)], ("in 2 hours", "خلال ساعتين")),
        (
            ("en", "de"),
            "date",
            [("full", MOMENT)],
            ("Sunday, August 23, 2015", "Sonntag, 23. August 2015"),
        ),
        (("en", "de"), "date", [("short", MOMENT)], ("8/23/15", "23.08.15")),
        (("en", "fr"), "date", [("yQQQQ", MOMENT)], ("3rd quarter 2015", "3e trimestre 2015")),
        (("de", "ja"), "date", [("long", MOMENT)], ("23. August 2015", "2015年8月23日")),
        (("en", "de"), "time", [("short", MOMENT)], ("5:05 PM", "17:05")),
        (("en", "de"), "time", [("EHm", MOMENT)], ("Sun 17:05", "So., 17:05")),
        (("en", "de"), "date_time", [("short", MOMENT)], ("8/23/15, 5:05 PM", "23.08.15, 17:05")),
        (
            ("en", "de"),
            "interval",
            [("yMMMd", MOMENT, 3)],
            ("Aug 23 – 26, 2015", "23.–26. Aug. 2015"),
        ),
        (("en", "de"), "unit", [("length-kilometer", "long", 12)], ("12 kilometers", "12 Kilometer")),
        (("en", "ru"), "unit", [("duration-day", "long", 21)], ("21 days", "21 день")),
        # Babel gives no long form: CLDR inherits the short one.
        (("de", "ja"), "unit", [("duration-hour", "long", 3)], ("3 Stunden", "3 時間")),
        (
            ("en", "de"),
            "rate",
            [("length-kilometer", "duration-hour", 120)],
            ("120 kilometers per hour", "120 Kilometer pro Stunde"),
        ),
        (("en", "de"), "money", [("EUR", decimal.Decimal("12.50"))], ("12.50 euros", "12,50 Euro")),
        (("en", "de"), "money", [("USD", decimal.Decimal(7))], ("7 US dollars", "7 US-Dollar")),
        (("en", "fr"), "price", [("EUR", decimal.Decimal("1200"))], ("€1,200.00", "1 200,00 €")),
        (("en", "de"), "percent", [(decimal.Decimal("0.125"),)], ("12.5%", "12,5 %")),
        (("en", "de"), "round_number", [(10**9, 3)], ("3 billion", "3 Milliarden")),
        (
            ("en", "de"),
            "country",
            [("territories", code) for code in ("KE", "PE", "JP")],
            ("Kenya, Peru, and Japan", "Kenia, Peru und Japan"),
        ),
        (
            ("en", "de"),
            "cardinal",
            [("cardinal", 342)],
            ("three hundred and forty-two", "dreihundertzweiundvierzig"),
        ),
        (("en", "de"), "ordinal", [("ordinal", 21)], ("twenty-first", "einundzwanzigste")),
        (("en", "de"), "year", [("year", 1999)], ("nineteen ninety-nine", "neunzehnhundertneunundneunzig")),
    ],
)
def test_writes_what_people_write(pair, kind, items, expected):
    assert write(pair, kind, *items) == expected


def test_joins_a_list_with_or():
    items = [("languages", code) for code in ("da", "fi", "el")]
    assert write(("en", "fr"), "language", *items, style="or") == (
        "Danish, Finnish, or Greek",
        "danois, finnois ou grec",
    )


@pytest.mark.parametrize("pair", LOCALE_PAIRS)
class TestPromises:
    @pytest.mark.slow_after(1)
    def test_no_source_is_repeated_within_or_across_splits(self, examples, pair):
        sources = [example.source.casefold() for split in examples(pair) for example in split]
        assert len(sources) == len(set(sources)) == NUM_PAIRS

    def test_every_held_out_word_is_known(self, examples, pair):
        splits = examples(pair)
        for side in ("source", "target"):
            known = {word for example in splits.train for word in words(getattr(example, side))}
            held_out = (e for e in splits.validation + splits.test if e.kind not in SPELLED_KINDS)
            assert {word for example in held_out for word in words(getattr(example, side))} <= known

    def test_training_has_every_kind(self, examples, pair):
        # Japanese counts years by emperors; num2words lacks Arabic ordinals.
        lacking = {("de", "ja"): {"year"}, ("en", "ar"): {"ordinal"}}.get(pair, set())
        # Babel before 2.19 has no long form of Japanese round numbers.
        if any("long" not in babel.Locale(side).compact_decimal_formats for side in pair):
            lacking |= {"round_number"}
        kinds = {example.kind for example in examples(pair).train}
        assert kinds == set(KINDS) - lacking

    def test_text_can_be_typed(self, examples, pair):
        text = "".join(example.source + example.target for split in examples(pair) for example in split)
        odd = {
            char for char in set(text) if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp", "Cn", "Zs")
        }
        assert odd == {" "}

    def test_no_side_is_empty_or_long(self, examples, pair):
        for example in examples(pair).train:
            assert example.source == example.source.strip() != ""
            assert example.target == example.target.strip() != ""
            assert max(len(example.source), len(example.target)) <= 110

    def test_sizes(self, examples, pair):
        assert [len(split) for split in examples(pair)] == [NUM_PAIRS - 225, 75, 150]


@pytest.fixture(scope="module")
def default_splits():
    return cldr.make_examples("en", "de")


@pytest.mark.slow
def test_default_held_out_splits_have_every_kind_but_bare_names(default_splits):
    assert [len(split) for split in default_splits] == [40_000, 500, 1000]
    for split in default_splits.validation, default_splits.test:
        assert {example.kind for example in split} == set(KINDS) - {"name"}


@pytest.mark.slow
def test_training_has_every_name_alone_and_in_lists(default_splits):
    names = {example.source for example in default_splits.train if example.kind == "name"}
    listed = [e.source for e in default_splits.train if e.kind in ("country", "language", "currency")]
    counts = collections.Counter(
        name for text in listed for name in re.split(", (?:and |or )?| and | or ", text)
    )
    assert len(names) > 500
    assert min(counts[name] for name in names) >= 10


def words(text):
    return re.findall(r"[^\W\d_]+", text.casefold())


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("pair", [("en", "de"), ("de", "en"), ("fr", "en"), ("ja", "en")])
def test_another_seed_never_gives_a_source_another_target(pair):
    target_of = {}
    for seed in (1, 2):
        for split in cldr.make_pairs(*pair, num_pairs=2500, seed=seed):
            for source, target in split:
                assert target_of.setdefault(source, target) == target


@pytest.mark.slow
def test_leaves_out_the_date_that_reads_like_another_in_may():
    options = cldr.find_options(cldr.Locales(cldr.parse_locale("en"), cldr.parse_locale("de")))
    assert ("long",) in options["date"]
    assert ("medium",) not in options["date"]  # May 3, 2015 -> 3. Mai 2015 or 03.05.2015


@pytest.mark.slow
def test_leaves_out_years_that_are_written_as_the_number():
    options = cldr.find_options(cldr.Locales(cldr.parse_locale("fr"), cldr.parse_locale("de")))
    assert "cardinal" in options
    assert "year" not in options  # mille neuf cent ... -> eintausendneunhundert... or neunzehnhundert...


@pytest.mark.slow
def test_language_without_spelled_numbers_has_the_other_kinds():
    # num2words has no Filipino; its own rule would take the Finnish numbers.
    splits = cldr.make_examples("en", "fil", num_pairs=2000)
    kinds = {example.kind for example in splits.train}
    assert kinds == set(KINDS) - set(SPELLED_KINDS)


@pytest.mark.slow
def test_pairs_are_the_examples_without_their_kind(examples):
    pairs = cldr.make_pairs("en", "de", num_pairs=NUM_PAIRS, seed=3)
    for split, labelled in zip(pairs, examples(("en", "de")), strict=True):
        assert split == [(example.source, example.target) for example in labelled]


@pytest.mark.slow
def test_seed_changes_the_corpus():
    assert cldr.make_pairs("en", "de", num_pairs=500, seed=1) != cldr.make_pairs(
        "en", "de", num_pairs=500, seed=2
    )


@pytest.mark.slow
def test_same_pairs_in_another_process():
    program = (
        "import hashlib; from keras_transformer.text import cldr; "
        "corpora = [cldr.make_pairs('en', target, num_pairs=700, seed=5) for target in ('de', 'ar')]; "
        "print(hashlib.sha256(repr(corpora).encode()).hexdigest())"
    )
    digests = set()
    for hash_seed, zone in (("1", "UTC"), ("2", "Asia/Tokyo")):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "TZ": zone, "LC_ALL": "C"}
        run = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        digests.add(run.stdout)
    corpora = [cldr.make_pairs("en", target, num_pairs=700, seed=5) for target in ("de", "ar")]
    assert digests == {hashlib.sha256(repr(corpora).encode()).hexdigest() + "\n"}


def test_hyphen_and_underscore_name_the_same_locale():
    assert cldr.parse_locale("pt-BR") == cldr.parse_locale("pt_BR")


@pytest.mark.parametrize(
    ("name", "hint"), [("german", "'de'"), ("Deutsch", "'de'"), ("de_XQ", "'de"), ("pt_BRR", "'pt_BR'")]
)
def test_unknown_locale_names_the_nearest(name, hint):
    with pytest.raises(ValueError, match=rf"Did you mean {hint}.*Received: target='{name}'"):
        cldr.make_pairs("en", name)


@pytest.mark.parametrize("name", ["", "root", "zz", "1234567890", "en de", "e"])
def test_what_is_no_locale_is_refused(name):
    with pytest.raises(ValueError, match=f"`source` must be a locale .*Received: source='{name}'"):
        cldr.make_pairs(name, "de")


def test_locales_must_differ():
    with pytest.raises(ValueError, match="`source` and `target` must be different locales"):
        cldr.make_pairs("pt-BR", "pt_BR")


def test_too_few_pairs_are_refused():
    with pytest.raises(ValueError, match="num_pairs=99"):
        cldr.make_pairs("en", "de", num_pairs=99)


def test_available_locales_can_be_parsed():
    names = cldr.available_locales()
    assert names == sorted(names)
    assert {"en", "de", "ja", "pt_BR", "zh_Hans"} <= set(names)
    assert all(cldr.parse_locale(name) for name in names[::40])
