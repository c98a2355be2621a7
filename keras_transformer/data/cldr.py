"""The built-in corpus: locale data as parallel sentences, made on the spot.

Unicode's Common Locale Data Repository (CLDR, read through Babel) knows how several hundred languages
write dates, units, amounts of money and lists of names; num2words spells numbers out. One value written
in two locales is a sentence pair:

    3 hours ago                     ->  vor 3 Stunden
    Kenya, Peru, or Japan           ->  Kenia, Peru oder Japan
    three hundred and forty-second  ->  dreihundertzweiundvierzigste

Every text is what the two libraries give for the locale; no template belongs to one language. Only
characters that nobody types are changed: every kind of space (U+00A0, U+202F, U+2009, ...) becomes an
ordinary one, and marks that steer the direction of writing (U+200E, U+200F, ...) are removed.

The corpus is meant to be learnt by a small model in minutes, so it keeps four promises:

* A source text has one target. A style that would give a source text a second target (English writes the
  long and the medium date of May alike, "May 3, 2015") is left out for that pair of locales; pairs that
  still collide are dropped.
* The source says all that the target needs: no weekday to be computed from the date, no unknown century.
* Training, validation and test share no source text, not even in another case.
* Held-out sentences are new combinations of known words: outside the spelled-out numbers, each word of a
  validation or test pair, on either side, is in at least `MIN_WORD_SENTENCES` training sentences.

The pairs depend on the locales, `num_pairs`, `seed` and the versions of the two libraries; not on the
clock, the time zone or `PYTHONHASHSEED`. A kind that one of the locales lacks is left out: the spelled-out
numbers where num2words does not know the language, numbers such as "12 million" in Japanese.
"""

import calendar
import collections
import dataclasses
import datetime
import decimal
import difflib
import random
import re
import unicodedata
from collections.abc import Callable
from typing import NamedTuple

import babel
import babel.dates
import babel.lists
import babel.localedata
import babel.numbers
import babel.units
import num2words

DEFAULT_PAIRS = 41_500  # 40,000 to train on, 500 to validate, 1,000 to test
MIN_PAIRS = 100
MIN_WORD_SENTENCES = 5


class Splits(NamedTuple):
    """Three lists of `(source_text, target_text)`, or of `Example`; no source text is in two of them."""

    train: list
    validation: list
    test: list


class Example(NamedTuple):
    """One sentence pair and the name of its kind, one of `KINDS`."""

    kind: str
    source: str
    target: str


def make_pairs(source, target, *, num_pairs=DEFAULT_PAIRS, seed=1):
    """Makes the corpus `cldr/SOURCE-TARGET`.

    Args:
        source: str, locale of the source side, such as `en`, `pt_BR` or `pt-BR`.
        target: str, locale of the target side.
        num_pairs: int, pairs in the three splits together; fewer come back where the locales give fewer
            distinct sentences. Test takes one in twenty, at most 1,000; validation half as many.
        seed: int, chooses the sentences, their order and the split.

    Returns:
        `Splits` of `(source_text, target_text)`.

    Raises:
        ValueError: a locale is unknown, both are the same, or `num_pairs` is below `MIN_PAIRS`.
    """
    splits = make_examples(source, target, num_pairs=num_pairs, seed=seed)
    return Splits(*([(example.source, example.target) for example in split] for split in splits))


def make_examples(source, target, *, num_pairs=DEFAULT_PAIRS, seed=1):
    """Makes the same corpus as `make_pairs`, in the same order, each pair with its kind.

    Returns:
        `Splits` of `Example`.
    """
    if num_pairs < MIN_PAIRS:
        raise ValueError(f"`num_pairs` must be at least {MIN_PAIRS}. Received: num_pairs={num_pairs}")
    locales = Locales(parse_locale(source, "source"), parse_locale(target, "target"))
    if locales.source == locales.target:
        raise ValueError(
            f"`source` and `target` must be two locales. Received: source={source!r}, target={target!r}"
        )
    rng = random.Random(seed)
    options = find_options(locales)
    basics = _make_basics(locales, options)
    rng.shuffle(basics)
    basics = basics[: num_pairs // 2]
    examples = _draw_examples(rng, locales, options, basics, num_pairs)
    return _split(rng, examples, frozenset(basics))


# Locales.


class Locales(NamedTuple):
    """The two sides of a corpus, each a `babel.Locale`."""

    source: babel.Locale
    target: babel.Locale


def available_locales():
    """Returns the names of Babel's locales, sorted: list of str, such as `["aa", ..., "de_AT", ...]`."""
    return sorted(name for name in babel.localedata.locale_identifiers() if name != "root")


def parse_locale(name, argument="source"):
    """Reads a locale's name.

    Args:
        name: str, with `_` or `-` between language, script and territory.
        argument: str, what the caller calls it, for the message.

    Returns:
        `babel.Locale`.

    Raises:
        ValueError: Babel has no such locale; the message gives the nearest name.
    """
    wanted = name.strip().replace("-", "_")
    try:
        if wanted.lower() != "root":
            return babel.Locale.parse(wanted)
    except (babel.UnknownLocaleError, ValueError):
        pass  # both become the one message below
    raise ValueError(
        f"`{argument}` must be a locale that Babel knows, such as 'en' or 'pt_BR'.{_hint(wanted)} "
        f"Received: {argument}={name!r}"
    )


def _hint(wanted):
    """Returns " Did you mean 'de'?" for `german`, `Deutsch` or `de_XY`; "" where nothing is near."""
    identifiers = {identifier.lower(): identifier for identifier in available_locales()}
    languages = {}
    for code, english_name in sorted(babel.Locale("en").languages.items()):
        if code in identifiers:
            languages[english_name.lower()] = code
            languages[(babel.Locale(code).language_name or code).lower()] = code
    language = wanted.lower().split("_")[0]
    siblings = {name: identifiers[name] for name in identifiers if name.split("_")[0] == language}
    for known, cutoff in ((siblings, 0.5), (languages, 0.75), (identifiers, 0.5)):
        near = difflib.get_close_matches(wanted.lower(), known, n=1, cutoff=cutoff)
        if near:
            return f" Did you mean {known[near[0]]!r}?"
    return ""


# Texts: one value in one locale. Each raises LookupError, or what Babel raises, where the locale has no data.

_SPACES = {code: " " for code in range(0x3001) if unicodedata.category(chr(code)) == "Zs"}
_BIDI_MARKS = dict.fromkeys([0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)])
_TYPED = _SPACES | _BIDI_MARKS
_LENGTHS = ("full", "long", "medium", "short")


def plain(text):
    """Writes each run of spaces of any kind as one U+0020 and removes bidirectional marks."""
    return re.sub(" +", " ", text.translate(_TYPED)).strip()


def date_text(locale, style, moment):
    """Returns a date; `style` is full, long, medium, short or a skeleton such as `yMMMd`."""
    if style in _LENGTHS:
        return babel.dates.format_date(moment.date(), style, locale=locale)
    return babel.dates.format_skeleton(style, moment, fuzzy=False, locale=locale)


def time_text(locale, style, moment):
    """Returns a time of day; `style` is medium, short or a skeleton such as `EHm`, with the weekday."""
    if style in _LENGTHS:
        return babel.dates.format_time(moment.time(), style, locale=locale)
    return babel.dates.format_skeleton(style, moment, fuzzy=False, locale=locale)


def date_time_text(locale, style, moment):
    """Returns a date and a time; `style` is medium or short, since longer ones name a time zone."""
    return babel.dates.format_datetime(moment, style, locale=locale)


def interval_text(locale, skeleton, start, steps):
    """Returns the time from `start` to `steps` later: quarters of an hour, months or days, by `skeleton`."""
    if "H" in skeleton:
        end = start + datetime.timedelta(minutes=15 * steps)
    elif "d" in skeleton:
        end = start + datetime.timedelta(days=steps)
    else:
        years, month = divmod(start.month - 1 + steps, 12)
        end = start.replace(year=start.year + years, month=month + 1, day=1)
    return babel.dates.format_interval(start, end, skeleton, fuzzy=False, locale=locale)


_SECONDS = {  # as Babel counts them
    "second": 1,
    "minute": 60,
    "hour": 3600,
    "day": 24 * 3600,
    "week": 7 * 24 * 3600,
    "month": 30 * 24 * 3600,
    "year": 365 * 24 * 3600,
}


def relative_text(locale, unit, count):
    """Returns "in 3 hours" for `("hour", 3)` and "3 hours ago" for `("hour", -3)`."""
    delta = datetime.timedelta(seconds=count * _SECONDS[unit])
    # The threshold keeps Babel from turning 90 minutes into 2 hours.
    return babel.dates.format_timedelta(delta, unit, threshold=1e9, add_direction=True, locale=locale)


def unit_text(locale, unit, length, number):
    """Returns "12 kilometers" for `("length-kilometer", "long", 12)`."""
    for inherited in (length, "short"):  # CLDR's root: a long name that is not given is the short one
        text = babel.units.format_unit(number, unit, inherited, locale=locale)
        if unit not in text:  # Babel writes an identifier for what it lacks
            return text
    raise LookupError(f"{locale} has no {length} name of {unit}")


def rate_text(locale, unit, per_unit, number):
    """Returns "12 grams per day" for `("mass-gram", "duration-day", 12)`."""
    text = babel.units.format_compound_unit(number, unit, denominator_unit=per_unit, locale=locale)
    if text is None or unit in text or per_unit in text:
        raise LookupError(f"{locale} has no {unit} per {per_unit}")
    return text


def money_text(locale, currency, amount):
    """Returns "12.50 euros" for `("EUR", Decimal("12.50"))`, "12 euros" for a whole amount."""
    return babel.numbers.format_currency(
        amount,
        currency,
        locale=locale,
        format_type="name",
        currency_digits=amount != int(amount),
    )


def price_text(locale, currency, amount):
    """Returns "€12.50" for `("EUR", Decimal("12.50"))`."""
    return babel.numbers.format_currency(amount, currency, locale=locale)


def percent_text(locale, share):
    """Returns "12.5%" for `Decimal("0.125")`."""
    return babel.numbers.format_percent(share, locale=locale, decimal_quantization=False)


def round_number_text(locale, magnitude, count):
    """Returns "12 million" for `(10**6, 12)`."""
    text = babel.numbers.format_compact_decimal(count * magnitude, format_type="long", locale=locale)
    if str(count) not in text:  # Hindi counts in lakhs: the digits would have to be computed
        raise LookupError(f"{locale} has no word for {magnitude}")
    return text


def name_text(locale, table, code):
    """Returns "Kenya" for `("territories", "KE")`; also `languages` and `currencies`."""
    return getattr(locale, table)[code]


_NUM2WORDS_NAMES = {"nb": "no", "kk": "kz"}  # where its name is not the ISO code
_NO_NUMBER = (ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError, TypeError)


def number_text(locale, form, number):
    """Returns the number in words; `form` is cardinal, ordinal or year."""
    for name in (str(locale), locale.language, _NUM2WORDS_NAMES.get(locale.language)):
        if name in num2words.CONVERTER_CLASSES:  # num2words itself takes Filipino for Finnish
            break
    else:
        raise LookupError(f"num2words does not know {locale}")
    if form == "year" and name == "ja":
        raise LookupError("Japanese years count from emperors' accessions, which have to be memorised")
    try:
        text = num2words.num2words(number, lang=name, to=form)
    except _NO_NUMBER as error:  # what its languages raise for a form that they lack
        raise LookupError(f"num2words has no {form} of {number} in {name}") from error
    if form == "ordinal" and text == num2words.num2words(number, lang=name):
        raise LookupError(f"num2words gives the cardinal for the ordinal of {number} in {name}")
    if not isinstance(text, str) or re.search(r"\d", text):
        raise LookupError(f"num2words does not spell out the {form} of {number} in {name}")
    return text


# Information: the fields of a date that a pattern writes. A target must not write more than its source.

_SAME_FIELD = str.maketrans({"L": "M", "c": "E", "e": "E", "h": "H", "K": "H", "k": "H", "u": "y", "q": "Q"})


def _fields(*patterns):
    letters = "".join(re.sub("'[^']*'", "", pattern).translate(_SAME_FIELD) for pattern in patterns)
    return set(letters) & set("GyQMdEHms")


def _date_fields(locale, style):
    patterns = locale.date_formats if style in _LENGTHS else locale.datetime_skeletons
    return _fields(patterns[style].pattern)


def _time_fields(locale, style):
    patterns = locale.time_formats if style in _LENGTHS else locale.datetime_skeletons
    return _fields(patterns[style].pattern)


def _date_time_fields(locale, style):
    return _date_fields(locale, style) | _time_fields(locale, style)


def _interval_fields(locale, skeleton):
    return set().union(*(_fields(*parts) for parts in locale.interval_formats[skeleton].values()))


# Values, drawn at random; each a tuple of the last arguments of a text function.


def _draw_moment(rng):
    # Two digits tell these years apart, and each is frequent.
    year, month = rng.randint(1990, 2029), rng.randint(1, 12)
    day = rng.randint(1, calendar.monthrange(year, month)[1])
    return (datetime.datetime(year, month, day, rng.randrange(24), rng.randrange(60), rng.randrange(60)),)


def _draw_interval(rng):
    (start,) = _draw_moment(rng)
    return start.replace(minute=rng.randrange(0, 60, 5)), rng.randint(1, 20)


def _draw_relative_count(rng):
    return (rng.choice((-1, 1)) * rng.choice((rng.randint(1, 12), rng.randint(1, 60))),)


def _draw_quantity(rng):
    draws = (rng.randint(1, 20), rng.randint(1, 20), rng.randint(1, 100), 50 * rng.randint(2, 19))
    return (rng.choice((*draws, rng.randint(1, 20) + decimal.Decimal("0.5"))),)


def _draw_amount(rng):
    cents = decimal.Decimal(rng.choice(("0", "0", "0.25", "0.50", "0.75", "0.99")))
    return (rng.choice((rng.randint(2, 20), rng.randint(2, 99), 50 * rng.randint(2, 40))) + cents,)


def _draw_share(rng):
    return (decimal.Decimal(rng.choice((10 * rng.randint(1, 100), rng.randint(1, 999)))) / 1000,)


def _draw_count(rng):
    return (rng.randint(1, 999),)


def _draw_cardinal(rng):
    return (rng.choice((rng.randint(100, 999), rng.randint(1000, 9999))),)


def _draw_ordinal(rng):
    return (rng.choice((rng.randint(100, 999), rng.randint(1000, 1999))),)


def _draw_year(rng):
    return (rng.randint(1100, 1999),)


def _draw_nothing(rng):
    return ()


# Kinds.

# By Babel's identifiers, `length-kilometer`.
_UNITS_OF = {
    "duration": "second minute hour day week month year millisecond decade century",
    "length": "millimeter centimeter meter kilometer inch foot yard mile light-year",
    "mass": "milligram gram kilogram tonne pound ounce",
    "area": "square-meter square-kilometer hectare acre",
    "volume": "milliliter liter hectoliter cubic-meter gallon barrel teaspoon tablespoon",
    "temperature": "celsius fahrenheit",
    "angle": "degree",
    "digital": "bit byte megabyte gigabyte terabyte",
    "electric": "ampere volt",
    "power": "watt kilowatt horsepower",
    "energy": "joule kilocalorie kilowatt-hour",
    "frequency": "hertz megahertz",
    "pressure": "hectopascal bar",
    "speed": "kilometer-per-hour mile-per-hour meter-per-second knot",
    "graphics": "pixel megapixel",
    "light": "lux",
}
_UNITS = tuple(f"{quantity}-{unit}" for quantity, units in _UNITS_OF.items() for unit in units.split())
_RATE_UNITS = (
    "length-meter",
    "length-kilometer",
    "length-mile",
    "mass-gram",
    "mass-kilogram",
    "mass-tonne",
    "volume-liter",
    "volume-milliliter",
    "volume-gallon",
    "digital-byte",
    "digital-megabyte",
    "digital-gigabyte",
)
_RATE_PER_UNITS = tuple(f"duration-{unit}" for unit in ("second", "minute", "hour", "day", "week", "month"))
# fmt: off
_PRICE_CURRENCIES = (
    "EUR", "USD", "GBP", "JPY", "CHF", "CAD", "AUD", "NZD", "CNY", "HKD", "INR", "KRW", "SEK", "NOK", "DKK",
    "PLN", "CZK", "HUF", "RUB", "TRY", "BRL", "MXN", "ZAR", "ILS", "THB", "SGD", "TWD", "VND", "PHP", "UAH",
)
# fmt: on
# Tender on a fixed day, since Babel's default is today.
_TENDER_DAY = datetime.date(2020, 1, 1)
_MAX_NAME_LENGTH = 24


def _name_codes(table):
    """Returns the codes of countries, of languages with a locale of their own, or of currencies in use."""
    names = babel.Locale("en")
    territories = sorted(code for code in names.territories if re.fullmatch("[A-Z]{2}", code))
    territories = [code for code in territories if code not in ("EU", "EZ", "QO", "UN", "XA", "XB", "ZZ")]
    if table == "territories":
        return territories
    if table == "languages":
        known = frozenset(babel.localedata.locale_identifiers())
        return sorted(code for code in names.languages if len(code) == 2 and code in known)
    tender = (babel.numbers.get_territory_currencies(code, _TENDER_DAY) for code in territories)
    return sorted(set().union(*tender))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """One kind of sentence: `item_text(locale, *option, *value)`, alone or in a list.

    Attributes:
        weight: int, how often it is drawn, relative to the other kinds.
        item_text: function of a locale, an option and a value.
        options: function without arguments, list of tuples: styles, units, codes.
        draw_value: function of a `random.Random`, tuple: the numbers and dates of one item.
        sizes: tuple of int, drawn at random: how many items are joined by "and" or "or"; 1 is an item alone.
        fields: function of a locale and an option, the set of fields of a date that it writes, or None.
    """

    weight: int
    item_text: Callable
    options: Callable
    draw_value: Callable = _draw_nothing
    sizes: tuple = (1,)
    fields: Callable | None = None


def _one_each(*names):
    return lambda: [(name,) for name in names]


def _units(length):
    return lambda: [(unit, length) for unit in _UNITS]


def _rates():
    return [(unit, per_unit) for unit in _RATE_UNITS for per_unit in _RATE_PER_UNITS]


def _names(table):
    return lambda: [(table, code) for code in _name_codes(table)]


def _currency_codes():
    return [(code,) for code in _name_codes("currencies")]


# The order matters where two options collide: the earlier one stays. Weights are about per cent.
_KINDS = {
    "date": Kind(
        weight=10,
        item_text=date_text,
        options=_one_each(
            "full",
            "long",
            "yMMMEd",
            "yMMMd",
            "short",
            "medium",
            "yMd",
            "MMMEd",
            "MMMMd",
            "MMMd",
            "yMMMM",
            "yMMM",
            "yQQQQ",
            "yQQQ",
        ),
        draw_value=_draw_moment,
        fields=_date_fields,
    ),
    "time": Kind(
        weight=4,
        item_text=time_text,
        options=_one_each("short", "medium", "EHm"),
        draw_value=_draw_moment,
        fields=_time_fields,
    ),
    "date_time": Kind(
        weight=4,
        item_text=date_time_text,
        options=_one_each("medium", "short"),
        draw_value=_draw_moment,
        fields=_date_time_fields,
    ),
    "interval": Kind(
        weight=8,
        item_text=interval_text,
        options=_one_each("yMMMd", "yMMMEd", "MMMd", "yMMMM", "Hm"),
        draw_value=_draw_interval,
        fields=_interval_fields,
    ),
    "relative": Kind(
        weight=8,
        item_text=relative_text,
        options=_one_each(*_SECONDS),
        draw_value=_draw_relative_count,
        sizes=(1, 2, 2),
    ),
    "unit": Kind(
        weight=11, item_text=unit_text, options=_units("long"), draw_value=_draw_quantity, sizes=(1, 1, 2)
    ),
    "unit_symbol": Kind(weight=3, item_text=unit_text, options=_units("short"), draw_value=_draw_quantity),
    "rate": Kind(weight=4, item_text=rate_text, options=_rates, draw_value=_draw_quantity),
    "price": Kind(
        weight=3,
        item_text=price_text,
        options=_one_each(*_PRICE_CURRENCIES),
        draw_value=_draw_amount,
        sizes=(1, 1, 2),
    ),
    "percent": Kind(
        weight=3, item_text=percent_text, options=lambda: [()], draw_value=_draw_share, sizes=(1, 2, 3)
    ),
    "round_number": Kind(
        weight=2, item_text=round_number_text, options=_one_each(10**3, 10**6, 10**9), draw_value=_draw_count
    ),
    "country": Kind(weight=9, item_text=name_text, options=_names("territories"), sizes=(2, 3, 3, 4)),
    "language": Kind(weight=7, item_text=name_text, options=_names("languages"), sizes=(2, 3, 3, 4)),
    "currency": Kind(weight=4, item_text=name_text, options=_names("currencies"), sizes=(2, 3)),
    "money": Kind(weight=8, item_text=money_text, options=_currency_codes, draw_value=_draw_amount),
    "cardinal": Kind(
        weight=9, item_text=number_text, options=_one_each("cardinal"), draw_value=_draw_cardinal
    ),
    "ordinal": Kind(weight=5, item_text=number_text, options=_one_each("ordinal"), draw_value=_draw_ordinal),
    "year": Kind(weight=2, item_text=number_text, options=_one_each("year"), draw_value=_draw_year),
}
KINDS = (*_KINDS, "name")  # a bare name of a country, language or currency: in training only
_NAME_KINDS = ("country", "language", "currency")
_SPELLED_KINDS = ("cardinal", "ordinal", "year")
_NUM_DATE_PROBES, _NUM_PROBES = 40, 16  # 40 dates have every month
_MAX_FRUITLESS = 200


def sentence(locale, kind, items, style="standard"):
    """Writes one sentence.

    Args:
        locale: `babel.Locale`.
        kind: str, one of `KINDS` other than `name`.
        items: list of tuples, the arguments of the kind's text function after the locale.
        style: str, how several items are joined: `standard` ("and") or `or`.

    Returns:
        str, in characters that can be typed.
    """
    texts = [_KINDS[kind].item_text(locale, *item) for item in items]
    return plain(babel.lists.format_list(texts, style, locale))


def make_example(locales, kind, items, style="standard"):
    """Writes the same sentence in both locales.

    Returns:
        `Example`, or None where one of the locales cannot write it.
    """
    try:
        source, target = (sentence(locale, kind, items, style) for locale in locales)
    except (LookupError, ValueError, babel.units.UnknownUnitError, babel.numbers.UnknownCurrencyError):
        return None
    if not source or not target or re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", source + target):
        return None
    return Example(kind, source, target)


def find_options(locales):
    """Finds what both locales can write such that a source text has one target.

    Args:
        locales: `Locales`.

    Returns:
        dict from the name of a kind to the list of its options; kinds that have none are absent.
    """
    found, target_of = {}, {}
    for name, kind in _KINDS.items():
        values = _probe_values(name)
        for option in kind.options():
            if kind.fields and not _says_enough(locales, kind.fields, option):
                continue
            examples = [make_example(locales, name, [(*option, *value)]) for value in values]
            if None in examples or (name in _NAME_KINDS and not _is_simple(examples[0])):
                continue
            if name == "money" and ("currencies", *option) not in found.get("currency", []):
                continue
            if _add_if_unambiguous(target_of, examples):
                found.setdefault(name, []).append(option)
    return found


def _probe_values(name):
    """Returns the values on which the options of a kind are compared: the same ones for all of them."""
    if name in ("cardinal", "year"):  # the same numbers, since French writes the year 1999 as the number
        return [(number,) for number in (342, *range(1105, 2000, 37), 1999)]
    kind = _KINDS[name]
    if kind.draw_value is _draw_nothing:
        return [()]
    rng = random.Random(0)
    return [kind.draw_value(rng) for _ in range(_NUM_DATE_PROBES if kind.fields else _NUM_PROBES)]


def _says_enough(locales, fields, option):
    try:
        return fields(locales.target, *option) <= fields(locales.source, *option)
    except LookupError:  # no such skeleton
        return False


def _is_simple(example):
    """Tells whether a name is short and free of what would look like a list, a number or a remark."""
    texts = (example.source, example.target)
    return all(
        len(text) <= _MAX_NAME_LENGTH and not re.search(r"[\d,;()\[\]、،（）]", text) for text in texts
    )


def _add_if_unambiguous(target_of, examples):
    """Adds the examples to a dict from source to target; adds none if one source got a second target."""
    added = {}
    for example in examples:
        key = _key(example)
        if target_of.get(key, example.target) != example.target:
            return False
        if added.setdefault(key, example.target) != example.target:
            return False
    target_of.update(added)
    return True


def _key(example):
    return example.source.casefold()


# Drawing and splitting.


def _make_basics(locales, options):
    """Returns what held-out sentences are made of: every name alone, and the numbers below 100 in words."""
    basics = {}
    for kind in _NAME_KINDS:
        for option in options.get(kind, []):
            example = make_example(locales, kind, [option])._replace(kind="name")
            basics[_key(example)] = example
    for kind in ("cardinal", "ordinal"):
        for number in range(1, 100) if kind in options else ():
            example = make_example(locales, kind, [(kind, number)])
            if example:
                basics.setdefault(_key(example), example)
    return list(basics.values())


def _draw_examples(rng, locales, options, basics, num_pairs):
    """Returns `basics` and new examples of all kinds, shuffled: `num_pairs`, or as many as are found."""
    found = {_key(example): example for example in basics}
    ambiguous = set()
    fruitless = collections.Counter()  # draws in a row that gave nothing new
    kinds = list(options)
    while len(found) < num_pairs and kinds:
        (kind,) = rng.choices(kinds, [_KINDS[name].weight for name in kinds])
        example = _draw_example(rng, locales, kind, options[kind])
        key = _key(example) if example else None
        if key is None or key in ambiguous or key in found:
            fruitless[kind] += 1
            if fruitless[kind] >= _MAX_FRUITLESS:
                kinds.remove(kind)
            if key in found and found[key].target != example.target:
                del found[key]
                ambiguous.add(key)
        else:
            fruitless[kind] = 0
            found[key] = example
    examples = list(found.values())
    rng.shuffle(examples)
    return examples


def _draw_example(rng, locales, kind, options):
    size = rng.choice(_KINDS[kind].sizes)
    items = [(*rng.choice(options), *_KINDS[kind].draw_value(rng)) for _ in range(size)]
    style = rng.choice(("standard", "or"))
    if len(set(items)) < size:
        return None
    return make_example(locales, kind, items, style)


def _words(example):
    """Returns the words of both sides, each marked with its side; digits and punctuation are not words."""
    sides = (("source", example.source), ("target", example.target))
    return {(side, word) for side, text in sides for word in re.findall(r"[^\W\d_]+", text.casefold())}


def _split(rng, examples, basics):
    """Takes out test and validation, in the order of `examples`; training keeps enough of every word."""
    num_test = min(1000, len(examples) // 20)
    num_held_out = num_test + num_test // 2
    sentences = collections.Counter(word for example in examples for word in _words(example))
    train, held_out = [], []
    for example in examples:
        spelled = example.kind in _SPELLED_KINDS  # one long word in German: known in parts, not as a whole
        words = set() if spelled else _words(example)
        rare = any(sentences[word] <= MIN_WORD_SENTENCES for word in words)
        if len(held_out) == num_held_out or example in basics or rare:
            train.append(example)
        else:
            sentences.subtract(_words(example))
            held_out.append(example)
    rng.shuffle(train)  # what cannot be held out stood first
    num_test = min(num_test, len(held_out) * 2 // 3)
    return Splits(train, held_out[num_test:], held_out[:num_test])
