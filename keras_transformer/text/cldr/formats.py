"""Dates, units, money, names and numbers as one locale writes them.

One value in one locale is one text. Each function raises `LookupError`, or what Babel raises, where
the locale has no data. The `..._fields` functions tell which fields of a date a style writes, so that
no target says more than its source.
"""

import datetime
import re
import unicodedata

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


SECONDS = {  # as Babel counts them
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
    delta = datetime.timedelta(seconds=count * SECONDS[unit])
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


_SAME_FIELD = str.maketrans({"L": "M", "c": "E", "e": "E", "h": "H", "K": "H", "k": "H", "u": "y", "q": "Q"})


def _fields(*patterns):
    letters = "".join(re.sub("'[^']*'", "", pattern).translate(_SAME_FIELD) for pattern in patterns)
    return set(letters) & set("GyQMdEHms")


def date_fields(locale, style):
    """Returns the fields, of `GyQMdEHms`, that a date style or skeleton writes."""
    patterns = locale.date_formats if style in _LENGTHS else locale.datetime_skeletons
    return _fields(patterns[style].pattern)


def time_fields(locale, style):
    """Returns the fields that a time style or skeleton writes."""
    patterns = locale.time_formats if style in _LENGTHS else locale.datetime_skeletons
    return _fields(patterns[style].pattern)


def date_time_fields(locale, style):
    """Returns the fields that date and time of one style write."""
    return date_fields(locale, style) | time_fields(locale, style)


def interval_fields(locale, skeleton):
    """Returns the fields that an interval skeleton writes, whichever field differs."""
    return set().union(*(_fields(*parts) for parts in locale.interval_formats[skeleton].values()))
