"""The kinds of sentences of the built-in corpus, and the functions that write a value in one locale.

The `..._text` functions write one value in one locale. They raise `LookupError`, or an exception of Babel, if
the locale has no data. The `..._fields` functions return the fields of a date that a style writes; they are
used to exclude styles whose target has fields that the source lacks.
"""

import calendar
import datetime
import decimal
import re
import unicodedata
from collections.abc import Callable
from typing import NamedTuple

from keras_transformer.config.extras import needs

with needs("data", "The built-in corpus"):
    import babel
    import babel.dates
    import babel.lists
    import babel.localedata
    import babel.numbers
    import babel.units
    import num2words

_SPACES = {code: " " for code in range(0x3001) if unicodedata.category(chr(code)) == "Zs"}
_BIDI_MARKS = dict.fromkeys([0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)])
_TYPED = _SPACES | _BIDI_MARKS
_LENGTHS = ("full", "long", "medium", "short")


def plain(text):
    """Replaces each run of spaces of any kind by one U+0020 and removes bidirectional marks."""
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
    """Returns a date and a time; `style` is medium or short, because longer styles include a time zone."""
    return babel.dates.format_datetime(moment, style, locale=locale)


def interval_text(locale, skeleton, start, steps):
    """Returns the interval of `steps` quarters of an hour, days or months from `start`, by `skeleton`."""
    if "H" in skeleton:
        end = start + datetime.timedelta(minutes=15 * steps)
    elif "d" in skeleton:
        end = start + datetime.timedelta(days=steps)
    else:
        years, month = divmod(start.month - 1 + steps, 12)
        end = start.replace(year=start.year + years, month=month + 1, day=1)
    return babel.dates.format_interval(start, end, skeleton, fuzzy=False, locale=locale)


SECONDS = dict(reversed(babel.dates.TIMEDELTA_UNITS))  # {unit: seconds}, from second to year


def relative_text(locale, unit, count):
    """Returns "in 3 hours" for `("hour", 3)` and "3 hours ago" for `("hour", -3)`."""
    delta = datetime.timedelta(seconds=count * SECONDS[unit])
    # The threshold keeps Babel from turning 90 minutes into 2 hours.
    return babel.dates.format_timedelta(delta, unit, threshold=1e9, add_direction=True, locale=locale)


def unit_text(locale, unit, length, number):
    """Returns "12 kilometers" for `("length-kilometer", "long", 12)`."""
    for inherited in (length, "short"):  # in CLDR, a missing long name is inherited from the short one
        text = babel.units.format_unit(number, unit, inherited, locale=locale)
        if unit not in text:  # Babel returns the identifier if it has no name
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
    cents = amount != int(amount)
    return babel.numbers.format_currency(
        amount, currency, locale=locale, format_type="name", currency_digits=cents
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
    if str(count) not in text:  # as in Hindi, which counts in lakhs and so changes the digits
        raise LookupError(f"{locale} has no word for {magnitude}")
    return text


def name_text(locale, table, code):
    """Returns "Kenya" for `("territories", "KE")`; other tables are `languages` and `currencies`."""
    return getattr(locale, table)[code]


_NUM2WORDS_NAMES = {"nb": "no", "kk": "kz"}  # num2words' codes that are not ISO codes
_NO_NUMBER = (ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError, TypeError)


def number_text(locale, form, number):
    """Returns a number in words; `form` is cardinal, ordinal or year."""
    for name in (str(locale), locale.language, _NUM2WORDS_NAMES.get(locale.language)):
        if name in num2words.CONVERTER_CLASSES:  # checked here, because num2words takes Filipino for Finnish
            break
    else:
        raise LookupError(f"num2words does not know {locale}")
    if form == "year" and name == "ja":
        raise LookupError("Japanese years count from emperors' accessions, which have to be memorised")
    try:
        text = num2words.num2words(number, lang=name, to=form)
    except _NO_NUMBER as error:  # raised for forms that a language lacks
        raise LookupError(f"num2words has no {form} of {number} in {name}") from error
    if form == "ordinal" and text == num2words.num2words(number, lang=name):
        raise LookupError(f"num2words gives the cardinal for the ordinal of {number} in {name}")
    if not isinstance(text, str) or re.search(r"\d", text):
        raise LookupError(f"num2words does not spell out the {form} of {number} in {name}")
    return text


_SAME_FIELD = str.maketrans({"L": "M", "c": "E", "e": "E", "h": "H", "K": "H", "k": "H", "u": "y", "q": "Q"})


def _fields(*patterns):
    letters = "".join(re.sub("'[^']*'", "", pattern).translate(_SAME_FIELD) for pattern in patterns)
    return set(letters) & set("GyQMdEHms")


def date_fields(locale, style):
    """Returns the fields that a date style or skeleton writes, a set of letters of `GyQMdEHms`."""
    patterns = locale.date_formats if style in _LENGTHS else locale.datetime_skeletons
    return _fields(patterns[style].pattern)


def time_fields(locale, style):
    """Returns the fields that a time style or skeleton writes."""
    patterns = locale.time_formats if style in _LENGTHS else locale.datetime_skeletons
    return _fields(patterns[style].pattern)


def date_time_fields(locale, style):
    """Returns the fields that the date and the time of one style write."""
    return date_fields(locale, style) | time_fields(locale, style)


def interval_fields(locale, skeleton):
    """Returns the fields that an interval skeleton writes for any of its greatest differences."""
    return set().union(*(_fields(*parts) for parts in locale.interval_formats[skeleton].values()))


# Random values: each function returns a tuple, the last arguments of a text function.


def _moment(rng):
    # A range in which two digits identify a year, and each year is frequent.
    year, month = rng.randint(1990, 2029), rng.randint(1, 12)
    day = rng.randint(1, calendar.monthrange(year, month)[1])
    return (datetime.datetime(year, month, day, rng.randrange(24), rng.randrange(60), rng.randrange(60)),)


def _interval(rng):
    (start,) = _moment(rng)
    return start.replace(minute=rng.randrange(0, 60, 5)), rng.randint(1, 20)


def _relative_count(rng):
    return (rng.choice((-1, 1)) * rng.choice((rng.randint(1, 12), rng.randint(1, 60))),)


def _quantity(rng):
    draws = (rng.randint(1, 20), rng.randint(1, 20), rng.randint(1, 100), 50 * rng.randint(2, 19))
    return (rng.choice((*draws, rng.randint(1, 20) + decimal.Decimal("0.5"))),)


def _amount(rng):
    cents = decimal.Decimal(rng.choice(("0", "0", "0.25", "0.50", "0.75", "0.99")))
    return (rng.choice((rng.randint(2, 20), rng.randint(2, 99), 50 * rng.randint(2, 40))) + cents,)


def _share(rng):
    return (decimal.Decimal(rng.choice((10 * rng.randint(1, 100), rng.randint(1, 999)))) / 1000,)


def _number(low, high):
    return lambda rng: (rng.randint(low, high),)


def _number_of_two(first, second):
    return lambda rng: (rng.choice((rng.randint(*first), rng.randint(*second))),)


# Options: styles, units and codes. Each is a tuple, the arguments between the locale and the value.

# Babel's identifiers, such as `length-kilometer`.
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
_RATE_UNITS_OF = {
    "length": "meter kilometer mile",
    "mass": "gram kilogram tonne",
    "volume": "liter milliliter gallon",
    "digital": "byte megabyte gigabyte",
}
_PRICE_CURRENCIES = (
    "EUR USD GBP JPY CHF CAD AUD NZD CNY HKD INR KRW SEK NOK DKK "
    "PLN CZK HUF RUB TRY BRL MXN ZAR ILS THB SGD TWD VND PHP UAH"
)
# Currencies in use on a fixed day, because Babel's default is today.
_TENDER_DAY = datetime.date(2020, 1, 1)


def _each(names):
    return lambda: [(name,) for name in names.split()]


def _identifiers(units_of):
    return [f"{quantity}-{unit}" for quantity, units in units_of.items() for unit in units.split()]


def _units(length):
    return lambda: [(unit, length) for unit in _identifiers(_UNITS_OF)]


def _rates():
    per_units = _identifiers({"duration": "second minute hour day week month"})
    return [(unit, per_unit) for unit in _identifiers(_RATE_UNITS_OF) for per_unit in per_units]


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


def _names(table):
    return lambda: [(table, code) for code in _name_codes(table)]


class Kind(NamedTuple):
    """One kind of sentence: one or several texts `item_text(locale, *option, *value)`, joined as a list.

    Attributes:
        weight: int, relative frequency of the kind.
        item_text: function of a locale, an option and a value; returns str.
        options: function without arguments; returns a list of tuples: styles, units, codes.
        draw_value: function of a `random.Random`; returns a tuple, the numbers and dates of one item. `None`
            for names, which have an option but no value.
        sizes: tuple of int, numbers of items to draw from; several items are joined by "and" or "or".
        fields: function of a locale and an option; returns the set of date fields written. `None` for kinds
            other than dates and times.
    """

    weight: int
    item_text: Callable
    options: Callable
    draw_value: Callable | None = None
    sizes: tuple = (1,)
    fields: Callable | None = None

    def value(self, rng):
        """Draws the numbers and dates of one item."""
        return self.draw_value(rng) if self.draw_value else ()


_DATES = "full long yMMMEd yMMMd short medium yMd MMMEd MMMMd MMMd yMMMM yMMM yQQQQ yQQQ"
# If two options collide, the earlier one in this order is kept. Weights are roughly percentages.
KIND_TABLE = {
    "date": Kind(10, date_text, _each(_DATES), _moment, fields=date_fields),
    "time": Kind(4, time_text, _each("short medium EHm"), _moment, fields=time_fields),
    "date_time": Kind(4, date_time_text, _each("medium short"), _moment, fields=date_time_fields),
    "interval": Kind(
        8, interval_text, _each("yMMMd yMMMEd MMMd yMMMM Hm"), _interval, fields=interval_fields
    ),
    "relative": Kind(8, relative_text, _each(" ".join(SECONDS)), _relative_count, sizes=(1, 2, 2)),
    "unit": Kind(11, unit_text, _units("long"), _quantity, sizes=(1, 1, 2)),
    "unit_symbol": Kind(3, unit_text, _units("short"), _quantity),
    "rate": Kind(4, rate_text, _rates, _quantity),
    "price": Kind(3, price_text, _each(_PRICE_CURRENCIES), _amount, sizes=(1, 1, 2)),
    "percent": Kind(3, percent_text, lambda: [()], _share, sizes=(1, 2, 3)),
    "round_number": Kind(2, round_number_text, lambda: [(10**3,), (10**6,), (10**9,)], _number(1, 999)),
    "country": Kind(9, name_text, _names("territories"), sizes=(2, 3, 3, 4)),
    "language": Kind(7, name_text, _names("languages"), sizes=(2, 3, 3, 4)),
    "currency": Kind(4, name_text, _names("currencies"), sizes=(2, 3)),
    "money": Kind(8, money_text, lambda: [(code,) for code in _name_codes("currencies")], _amount),
    "cardinal": Kind(9, number_text, _each("cardinal"), _number_of_two((100, 999), (1000, 9999))),
    "ordinal": Kind(5, number_text, _each("ordinal"), _number_of_two((100, 999), (1000, 1999))),
    "year": Kind(2, number_text, _each("year"), _number(1100, 1999)),
}
KINDS = (*KIND_TABLE, "name")  # "name": a single country, language or currency, in training only
NAME_KINDS = ("country", "language", "currency")
SPELLED_KINDS = ("cardinal", "ordinal", "year")
