"""Languages: the scripts each is written in, by CLDR; and corpora whose sides are swapped or in one language.

The language of a text is what py3langid says (a naive Bayes model over n-grams of bytes,
139 languages), asked to choose between the two languages of the corpus.
"""

import functools
import operator
import re
from typing import NamedTuple

import babel.core

SAMPLE_SIZE = 1000
# A text counts for a language from this probability on: names and numbers alone tell nothing.
MIN_CONFIDENCE = 0.8

_NAMES = {"nb": "no", "fil": "tl"}  # where the model's name is not CLDR's
# What CLDR writes with one code and Unicode with those of its parts.
_PARTS = {"Jpan": ["Hani", "Hira", "Kana"], "Kore": ["Hang", "Hani"], "Hans": ["Hani"], "Hant": ["Hani"]}
# Languages in daily use in a second script besides the likely one (each has locales of both in CLDR).
_SECOND = dict.fromkeys(("az", "bs", "uz"), "Cyrl") | dict.fromkeys(("kk", "pa"), "Arab")
_SECOND |= {"ks": "Deva", "mn": "Mong", "sd": "Deva", "sr": "Latn"}


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
    scripts = [script]
    if not script:
        likely = babel.core.get_global("likely_subtags")
        scripts = [(likely.get(f"{name}_{region}") or likely[name]).split("_")[1]]
        scripts += [_SECOND[name]] if name in _SECOND else []
    return frozenset(part for script in scripts for part in _PARTS.get(script, [script]))


class LanguageCheck(NamedTuple):
    """What the sides of a sample look like.

    Attributes:
        source_language: str, as asked.
        target_language: str, as asked.
        num_pairs: pairs of the sample; 0 where a language is not known, or the two are too close to tell
            apart: no check was made.
        num_swapped: pairs with each side in the other's language.
        num_source_in_target: source sides in the target language.
        num_target_in_source: target sides in the source language.
    """

    source_language: str
    target_language: str
    num_pairs: int = 0
    num_swapped: int = 0
    num_source_in_target: int = 0
    num_target_in_source: int = 0

    def warnings(self):
        """Returns a list of str, one line each: sides that are mostly in the other's language."""
        source, target = self.source_language, self.target_language
        swapped, *sides = (
            f"{number:,} of {self.num_pairs:,} sampled pairs" if 2 * number > self.num_pairs else ""
            for number in (self.num_swapped, self.num_source_in_target, self.num_target_in_source)
        )
        if swapped:
            return [
                f"source and target seem swapped: in {swapped} the source side is in {target} and the target "
                f"side in {source}. Swap the files, or source and target"
            ]
        languages = (("source", target, source), ("target", source, target))
        return [
            f"the {side} side seems to be in {seen}, not {asked}: it is in {share}. Check the files"
            for (side, seen, asked), share in zip(languages, sides, strict=True)
            if share
        ]


def check_languages(source, target, source_language, target_language):
    """Identifies the language of each side of some pairs.

    Args:
        source: list of str.
        target: list of str, of the same length.
        source_language: str, such as `"en"` or `"pt-BR"`.
        target_language: str.

    Returns:
        `LanguageCheck`.
    """
    check = LanguageCheck(source_language, target_language)
    identifier, known = _model()
    names = []
    for language in (source_language, target_language):
        try:
            name = primary_language(language)
        except ValueError:
            return check
        names.append(_NAMES.get(name, name))
    if names[0] == names[1] or not known.issuperset(names):
        return check
    identifier.set_languages(names)
    in_target = [identifier.classify(text)[0] == names[1] for text in source]
    in_source = [identifier.classify(text)[0] == names[0] for text in target]
    return check._replace(
        num_pairs=len(in_target),
        num_swapped=sum(map(operator.and_, in_target, in_source)),
        num_source_in_target=sum(in_target),
        num_target_in_source=sum(in_source),
    )


@functools.cache
def _model():
    """Returns the identifier and the names of all languages that it knows."""
    from py3langid import langid  # half a second and some 60 MB: only for those who check

    identifier = langid.LanguageIdentifier.from_model_file(
        langid.MODEL_FILE, norm_probs=True, min_confidence=MIN_CONFIDENCE
    )
    return identifier, frozenset(identifier.labels)


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
