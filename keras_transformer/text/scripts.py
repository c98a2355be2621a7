"""Which scripts a language is written in, by CLDR and Unicode."""

import functools
import re

import babel.core
import numpy as np
import regex

# Kinds of characters, as bits.
EXPECTED = 1  # a letter of an expected script
FOREIGN = 2  # a letter of any other script

# What CLDR writes with one code and Unicode with those of its parts.
_PARTS = {
    "Jpan": ("Hani", "Hira", "Kana"),
    "Kore": ("Hang", "Hani"),
    "Hans": ("Hani",),
    "Hant": ("Hani",),
}
# Languages in daily use in a second script beside the likely one (each has locales of both in CLDR).
_SECOND = {
    "az": "Cyrl",
    "bs": "Cyrl",
    "kk": "Arab",
    "ks": "Deva",
    "mn": "Mong",
    "pa": "Arab",
    "sd": "Deva",
    "sr": "Latn",
    "uz": "Cyrl",
}


def primary_language(language):
    """Returns the language of a code without script and region, such as `"pt"` of `"pt-BR"`.

    Codes that ISO or CLDR replaced become their successors: `"eng"` is `"en"`, `"iw"` is `"he"`.

    Raises:
        ValueError: CLDR knows no such language.
    """
    return _subtags(language)[0]


def expected_scripts(language):
    """Returns the scripts in which a language is written.

    A script in the code decides (`"sr-Latn"`); else the likely script of language and region,
    and the second one of a language that has two (`"sr"` is Cyrillic and Latin).

    Args:
        language: str, such as `"de"`, `"pt-BR"`, `"zh_TW"` or `"sr-Latn"`.

    Returns:
        frozenset of Unicode's names, such as `{"Hira", "Kana", "Hani"}` for `"ja"`.

    Raises:
        ValueError: CLDR knows no such language.
    """
    name, script, region = _subtags(language)
    also = ()
    if not script:
        likely = babel.core.get_global("likely_subtags")
        tag = likely.get(f"{name}_{region}") or likely[name]
        script = tag.split("_")[1]
        also = (_SECOND[name],) if name in _SECOND else ()
    return frozenset((*_PARTS.get(script, (script,)), *also))


@functools.lru_cache(maxsize=8)
def letter_kinds(scripts):
    """Sorts all characters by the scripts that a text should have.

    A character that Unicode counts to several scripts is of each of them. Characters of no
    single script (Common and Inherited: digits, punctuation, emoji, `ー`) are of no kind.

    Args:
        scripts: frozenset of names of scripts, as of `expected_scripts`.

    Returns:
        uint8 NumPy array, shape `(0x110000,)`, read-only: `EXPECTED`, `FOREIGN` or 0 for each
        code point.

    Raises:
        ValueError: Unicode knows no such script.
    """
    kinds = np.zeros(0x110000, np.uint8)
    try:
        expected = "".join(rf"\p{{scx={script}}}" for script in sorted(scripts))
        patterns = {
            FOREIGN: rf"[\p{{L}}--[{expected}\p{{sc=Common}}\p{{sc=Inherited}}]]+",
            EXPECTED: rf"[\p{{L}}&&[{expected}]--[\p{{sc=Common}}\p{{sc=Inherited}}]]+",
        }
        for kind, pattern in patterns.items():
            for match in regex.finditer(pattern, _all_characters(), regex.V1):
                kinds[match.start() : match.end()] = kind
    except regex.error as error:
        raise ValueError(
            f"`scripts` must be names of Unicode scripts. Received: {sorted(scripts)}"
        ) from error
    kinds.flags.writeable = False
    return kinds


def _all_characters():
    # Plane by plane: a million strings at once would take 80 MB.
    return "".join("".join(map(chr, range(plane, plane + 2**16))) for plane in range(0, 0x110000, 2**16))


def _subtags(language):
    """Returns (language, script, region) of a code; the last two may be empty."""
    name, *rest = re.split("[-_]", language)
    name, *implied = babel.core.get_global("language_aliases").get(name.lower(), name.lower()).split("_")
    rest += implied  # behind: a script in the code itself comes first
    if name == "und" or name not in babel.core.get_global("likely_subtags"):
        raise ValueError(
            "The language must be a code that CLDR knows, such as 'de', 'pt-BR' or 'zh-Hant'. "
            f"Received: {language!r}"
        )
    script = next((part.title() for part in rest if re.fullmatch("[A-Za-z]{4}", part)), "")
    region = next((part.upper() for part in rest if re.fullmatch("[A-Za-z]{2}|[0-9]{3}", part)), "")
    return name, script, region
