"""The built-in corpus: parallel sentences generated from locale data.

Unicode's Common Locale Data Repository (CLDR, read with Babel) has the formats of dates, units, amounts of
money and lists of names in several hundred languages; num2words spells out numbers. One value, written in two
locales, is a sentence pair:

    3 hours ago                     ->  vor 3 Stunden
    Kenya, Peru, or Japan           ->  Kenia, Peru oder Japan
    three hundred and forty-second  ->  dreihundertzweiundvierzigste

The two libraries produce every text; there are no templates for single languages. Only characters that
nobody types are changed: every kind of space (U+00A0, U+202F, U+2009, ...) becomes an ordinary space, and
bidirectional marks (U+200E, U+200F, ...) are removed.

A small model should learn the corpus in minutes, so the corpus has four properties:

* A source text has one target. If a style would give a source text a second target (in English, the long
  and the medium date are the same in May, "May 3, 2015"), it is not used for this pair of locales. Pairs
  that still collide are dropped.
* The source has all information of the target: the model need not compute a weekday or guess a century.
* Training, validation and test share no source text, ignoring case.
* Held-out sentences are new combinations of known words: except in spelled-out numbers, each word of a
  validation or test pair, on either side, occurs in at least `MIN_WORD_SENTENCES` training sentences.

The pairs depend on the locales, `num_pairs`, `seed` and the versions of the two libraries; not on the
clock, the time zone or `PYTHONHASHSEED`. A kind of sentence is omitted if one of the locales lacks it, such
as spelled-out numbers in a language that num2words does not know, or "12 million" in Japanese.
"""

import collections
import difflib
import random
import re
from typing import NamedTuple

from keras_transformer.config.extras import needs
from keras_transformer.text.cldr_kinds import KIND_TABLE, NAME_KINDS, SPELLED_KINDS, plain

with needs("data", "The built-in corpus"):
    import babel
    import babel.dates
    import babel.lists
    import babel.localedata
    import babel.numbers
    import babel.units

DEFAULT_PAIRS = 41_500  # 40,000 to train on, 500 to validate, 1,000 to test
MIN_PAIRS = 100
MIN_WORD_SENTENCES = 5


class Splits(NamedTuple):
    """Three disjoint lists of `(source_text, target_text)` or of `Example`."""

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
        num_pairs: int, total number of pairs in the three splits; fewer are returned if the locales have
            fewer distinct sentences. One pair in twenty is for test, at most 1,000, and half that number
            for validation.
        seed: int, seed of the choice of the sentences, their order and the split.

    Returns:
        `Splits` of `(source_text, target_text)`.

    Raises:
        ValueError: a locale is unknown, both are the same, or `num_pairs` is below `MIN_PAIRS`.
    """
    splits = make_examples(source, target, num_pairs=num_pairs, seed=seed)
    return Splits(*([(example.source, example.target) for example in split] for split in splits))


def make_examples(source, target, *, num_pairs=DEFAULT_PAIRS, seed=1):
    """Makes the corpus of `make_pairs`, in the same order, with the kind of each pair.

    Returns:
        `Splits` of `Example`.
    """
    if num_pairs < MIN_PAIRS:
        raise ValueError(f"`num_pairs` must be at least {MIN_PAIRS}. Received: num_pairs={num_pairs}")
    locales = Locales(parse_locale(source, "source"), parse_locale(target, "target"))
    if locales.source == locales.target:
        raise ValueError(
            f"`source` and `target` must be different locales. Received: source={source!r}, target={target!r}"
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
    """Parses the name of a locale.

    Args:
        name: str, with `_` or `-` between language, script and territory.
        argument: str, name of the caller's argument, for the message.

    Returns:
        `babel.Locale`.

    Raises:
        ValueError: Babel has no such locale; the message suggests the most similar name.
    """
    identifier = name.strip().replace("-", "_")
    try:
        if identifier.lower() != "root":
            return babel.Locale.parse(identifier)
    except (babel.UnknownLocaleError, ValueError):
        pass  # both become the one message below
    raise ValueError(
        f"`{argument}` must be a locale that Babel knows, such as 'en' or 'pt_BR'.{_hint(identifier)} "
        f"Received: {argument}={name!r}"
    )


def _hint(identifier):
    """Returns " Did you mean 'de'?" for `german`, `Deutsch` or `de_XY`; "" if no name is similar."""
    names = {name.lower(): name for name in available_locales()}
    for code, english_name in sorted(babel.Locale("en").languages.items()):
        if code in names:
            names |= {name.lower(): code for name in (english_name, babel.Locale(code).language_name or code)}
    siblings = [name for name in names if name.split("_")[0] == identifier.lower().split("_")[0]]
    near = difflib.get_close_matches(identifier.lower(), siblings or names, n=1)
    return f" Did you mean {names[near[0]]!r}?" if near else ""


_NUM_DATE_PROBES, _NUM_PROBES = 40, 16  # the 40 dates include every month
_MAX_FAILED_DRAWS = 200  # draws in a row without a new sentence, after which a kind is exhausted
_MAX_NAME_LENGTH = 24


def sentence(locale, kind, items, style="standard"):
    """Writes one sentence.

    Args:
        locale: `babel.Locale`.
        kind: str, one of `cldr_kinds.KINDS` other than `name`.
        items: list of tuples, the arguments of the kind's text function after the locale.
        style: str, how several items are joined: `standard` ("and") or `or`.

    Returns:
        str, with ordinary spaces and without bidirectional marks.
    """
    texts = [KIND_TABLE[kind].item_text(locale, *item) for item in items]
    return plain(babel.lists.format_list(texts, style, locale))


def make_example(locales, kind, items, style="standard"):
    """Writes the same sentence in both locales.

    Returns:
        `Example`, or `None` if one of the locales cannot write it.
    """
    try:
        source, target = (sentence(locale, kind, items, style) for locale in locales)
    except (LookupError, ValueError, babel.units.UnknownUnitError, babel.numbers.UnknownCurrencyError):
        return None
    if not source or not target or re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", source + target):
        return None
    return Example(kind, source, target)


def find_options(locales):
    """Finds the kinds and options that both locales can write and that give a source text one target.

    Args:
        locales: `Locales`.

    Returns:
        dict from the name of a kind to the list of its options; kinds without options are absent.
    """
    options, target_of = {}, {}
    for name, kind in KIND_TABLE.items():
        values = _probe_values(name)
        for option in kind.options():
            if kind.fields and not _has_all_fields(locales, kind.fields, option):
                continue
            examples = [make_example(locales, name, [(*option, *value)]) for value in values]
            if None in examples or (name in NAME_KINDS and not _is_plain_name(examples[0])):
                continue
            if name == "money" and ("currencies", *option) not in options.get("currency", []):
                continue
            if _add_if_unambiguous(target_of, examples):
                options.setdefault(name, []).append(option)
    return options


def _probe_values(name):
    """Returns the values with which all options of a kind are compared."""
    if name in ("cardinal", "year"):  # the same numbers for both: French writes the year 1999 as the number
        return [(number,) for number in (342, *range(1105, 2000, 37), 1999)]
    kind = KIND_TABLE[name]
    if kind.draw_value is None:
        return [()]
    rng = random.Random(0)
    return [kind.value(rng) for _ in range(_NUM_DATE_PROBES if kind.fields else _NUM_PROBES)]


def _has_all_fields(locales, fields, option):
    try:
        return fields(locales.target, *option) <= fields(locales.source, *option)
    except LookupError:  # no such skeleton
        return False


def _is_plain_name(example):
    """Returns whether a name is short and has no digits, commas, semicolons or brackets."""
    texts = (example.source, example.target)
    return all(
        len(text) <= _MAX_NAME_LENGTH and not re.search(r"[\d,;()\[\]、،（）]", text) for text in texts
    )


def _add_if_unambiguous(target_of, examples):
    """Adds all examples to a dict from source to target, or none if a source would get a second target."""
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
    """Returns examples of the parts of sentences: every name alone, and the numbers below 100 in words."""
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
    """Adds random examples of all kinds to `basics`, up to `num_pairs` if there are enough; shuffles them."""
    examples = {_key(example): example for example in basics}
    ambiguous = set()
    failed_draws = collections.Counter()  # by kind: draws in a row that gave nothing new
    kinds = list(options)
    while len(examples) < num_pairs and kinds:
        (kind,) = rng.choices(kinds, [KIND_TABLE[name].weight for name in kinds])
        example = _draw_example(rng, locales, kind, options[kind])
        key = _key(example) if example else None
        if key is None or key in ambiguous or key in examples:
            failed_draws[kind] += 1
            if failed_draws[kind] >= _MAX_FAILED_DRAWS:
                kinds.remove(kind)
            if key in examples and examples[key].target != example.target:
                del examples[key]
                ambiguous.add(key)
        else:
            failed_draws[kind] = 0
            examples[key] = example
    examples = list(examples.values())
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
    """Returns {(side, word)} of both sides; digits and punctuation are not words."""
    sides = (("source", example.source), ("target", example.target))
    return {(side, word) for side, text in sides for word in re.findall(r"[^\W\d_]+", text.casefold())}


def _split(rng, examples, basics):
    """Splits the examples; every word of a held-out pair stays in enough training sentences."""
    num_test = min(1000, len(examples) // 20)
    num_held_out = num_test + num_test // 2
    sentences = collections.Counter(word for example in examples for word in _words(example))
    train, held_out = [], []
    for example in examples:
        spelled = example.kind in SPELLED_KINDS  # in German one long word, known only by its parts
        words = set() if spelled else _words(example)
        rare = any(sentences[word] <= MIN_WORD_SENTENCES for word in words)
        if len(held_out) == num_held_out or example in basics or rare:
            train.append(example)
        else:
            sentences.subtract(_words(example))
            held_out.append(example)
    rng.shuffle(train)  # until here, examples that could not be held out came first
    num_test = min(num_test, len(held_out) * 2 // 3)
    return Splits(train, held_out[num_test:], held_out[:num_test])
