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

import collections
import difflib
import random
import re
from typing import NamedTuple

import babel
import babel.dates
import babel.lists
import babel.localedata
import babel.numbers
import babel.units

from keras_transformer.text.cldr_kinds import KIND_TABLE, NAME_KINDS, SPELLED_KINDS, plain

DEFAULT_PAIRS = 41_500  # 40,000 to train on, 500 to validate, 1,000 to test
MIN_PAIRS = 100
MIN_WORD_SENTENCES = 5


class Splits(NamedTuple):
    """Three lists of `(source_text, target_text)`, or of `Example`; no source text is in two of them."""

    train: list
    validation: list
    test: list


class Example(NamedTuple):
    """One sentence pair and the name of its kind, one of `cldr_kinds.KINDS`."""

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
    names = {name.lower(): name for name in available_locales()}
    for code, english_name in sorted(babel.Locale("en").languages.items()):
        if code in names:
            names |= {name.lower(): code for name in (english_name, babel.Locale(code).language_name or code)}
    siblings = [name for name in names if name.split("_")[0] == wanted.lower().split("_")[0]]
    near = difflib.get_close_matches(wanted.lower(), siblings or names, n=1)
    return f" Did you mean {names[near[0]]!r}?" if near else ""


_NUM_DATE_PROBES, _NUM_PROBES = 40, 16  # 40 dates have every month
_MAX_FRUITLESS = 200
_MAX_NAME_LENGTH = 24


def sentence(locale, kind, items, style="standard"):
    """Writes one sentence.

    Args:
        locale: `babel.Locale`.
        kind: str, one of `cldr_kinds.KINDS` other than `name`.
        items: list of tuples, the arguments of the kind's text function after the locale.
        style: str, how several items are joined: `standard` ("and") or `or`.

    Returns:
        str, in characters that can be typed.
    """
    texts = [KIND_TABLE[kind].item_text(locale, *item) for item in items]
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
    for name, kind in KIND_TABLE.items():
        values = _probe_values(name)
        for option in kind.options():
            if kind.fields and not _says_enough(locales, kind.fields, option):
                continue
            examples = [make_example(locales, name, [(*option, *value)]) for value in values]
            if None in examples or (name in NAME_KINDS and not _is_simple(examples[0])):
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
    kind = KIND_TABLE[name]
    if kind.draw_value is None:
        return [()]
    rng = random.Random(0)
    return [kind.value(rng) for _ in range(_NUM_DATE_PROBES if kind.fields else _NUM_PROBES)]


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
        known = target_of.get(_key(example)) or added.setdefault(_key(example), example.target)
        if known != example.target:
            return False
    target_of.update(added)
    return True


def _key(example):
    return example.source.casefold()


# Drawing and splitting.


def _make_basics(locales, options):
    """Returns what held-out sentences are made of: every name alone, and the numbers below 100 in words."""
    basics = {}
    for kind in NAME_KINDS:
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
    """Returns `basics` and new examples of all kinds, shuffled: `num_pairs`, or all that are found."""
    found = {_key(example): example for example in basics}
    ambiguous = set()
    fruitless = collections.Counter()  # draws in a row that gave nothing new
    kinds = list(options)
    while len(found) < num_pairs and kinds:
        (kind,) = rng.choices(kinds, [KIND_TABLE[name].weight for name in kinds])
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
    size = rng.choice(KIND_TABLE[kind].sizes)
    items = [(*rng.choice(options), *KIND_TABLE[kind].value(rng)) for _ in range(size)]
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
        spelled = example.kind in SPELLED_KINDS  # one long word in German: known in parts, not as a whole
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
