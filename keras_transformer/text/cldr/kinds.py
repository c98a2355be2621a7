"""The kinds of sentence of the built-in corpus: what is written, with which values, how often."""

import calendar
import dataclasses
import datetime
import decimal
import re
from collections.abc import Callable

import babel
import babel.localedata
import babel.numbers

from keras_transformer.text.cldr.formats import (
    SECONDS,
    date_fields,
    date_text,
    date_time_fields,
    date_time_text,
    interval_fields,
    interval_text,
    money_text,
    name_text,
    number_text,
    percent_text,
    price_text,
    rate_text,
    relative_text,
    round_number_text,
    time_fields,
    time_text,
    unit_text,
)

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


def draw_nothing(rng):
    """For kinds that have no number: a name is chosen by its option."""
    return ()


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
    draw_value: Callable = draw_nothing
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
KIND_TABLE = {
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
        fields=date_fields,
    ),
    "time": Kind(
        weight=4,
        item_text=time_text,
        options=_one_each("short", "medium", "EHm"),
        draw_value=_draw_moment,
        fields=time_fields,
    ),
    "date_time": Kind(
        weight=4,
        item_text=date_time_text,
        options=_one_each("medium", "short"),
        draw_value=_draw_moment,
        fields=date_time_fields,
    ),
    "interval": Kind(
        weight=8,
        item_text=interval_text,
        options=_one_each("yMMMd", "yMMMEd", "MMMd", "yMMMM", "Hm"),
        draw_value=_draw_interval,
        fields=interval_fields,
    ),
    "relative": Kind(
        weight=8,
        item_text=relative_text,
        options=_one_each(*SECONDS),
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
KINDS = (*KIND_TABLE, "name")  # a bare name of a country, language or currency: in training only
NAME_KINDS = ("country", "language", "currency")
SPELLED_KINDS = ("cardinal", "ordinal", "year")
