"""Scripts of languages, from CLDR; detection of corpora with swapped sides or with one language on both.

Languages are identified by py3langid (a naive Bayes model over byte n-grams, 139 languages), restricted to
the two languages of the corpus.
"""

import functools
import operator
import re
from typing import NamedTuple

from keras_transformer.config.extras import needs

SAMPLE_SIZE = 1000
# A text counts for a language from this probability on; names and numbers alone stay below it.
MIN_CONFIDENCE = 0.8

_NAMES = {"nb": "no", "fil": "tl"}  # py3langid's codes that differ from CLDR's
# CLDR's codes of mixed scripts, and the Unicode scripts that they combine.
_PARTS = {"Jpan": ["Hani", "Hira", "Kana"], "Kore": ["Hang", "Hani"], "Hans": ["Hani"], "Hant": ["Hani"]}
# The second script of languages that are written in two (CLDR has locales of both).
_SECOND = dict.fromkeys(("az", "bs", "uz"), "Cyrl") | dict.fromkeys(("kk", "pa"), "Arab")
_SECOND |= {"ks": "Deva", "mn": "Mong", "sd": "Deva", "sr": "Latn"}


def primary_language(language):
    """Returns the language subtag of a code, without script and region: `"pt"` for `"pt-BR"`.

    Deprecated codes and aliases are replaced: `"eng"` becomes `"en"`, `"iw"` becomes `"he"`.

    Raises:
        ValueError: CLDR knows no such language.
    """
    return _subtags(language)[0]


def expected_scripts(language):
    """Returns the scripts in which a language is written.

    If the code has a script (`"sr-Latn"`), only that; otherwise the likely script of language and region,
    and the second script of languages that have two (`"sr"` is Cyrillic and Latin).

    Args:
        language: str, such as `"de"`, `"pt-BR"`, `"zh_TW"` or `"sr-Latn"`.

    Returns:
        frozenset of Unicode script codes, such as `{"Hira", "Kana", "Hani"}` for `"ja"`.

    Raises:
        ValueError: CLDR knows no such language.
    """
    name, script, region = _subtags(language)
    scripts = [script]
    if not script:
        likely = _cldr("likely_subtags")
        scripts = [(likely.get(f"{name}_{region}") or likely[name]).split("_")[1]]
        scripts += [_SECOND[name]] if name in _SECOND else []
    return frozenset(part for script in scripts for part in _PARTS.get(script, [script]))


class LanguageCheck(NamedTuple):
    """Result of `check_languages`: how many sampled sentences are in the wrong language.

    Attributes:
        source_language: str, the expected language of the source.
        target_language: str, the expected language of the target.
        num_pairs: number of pairs checked; 0 if no check was made, because py3langid does not know one of
            the languages or has the same code for both.
        num_swapped: pairs with both sides in the other side's language.
        num_source_in_target: source sentences in the target language.
        num_target_in_source: target sentences in the source language.
    """

    source_language: str
    target_language: str
    num_pairs: int = 0
    num_swapped: int = 0
    num_source_in_target: int = 0
    num_target_in_source: int = 0

    def warnings(self):
        """Returns a list of str, one line for each side that is mostly in the other side's language."""
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
    """Identifies the language of both sides of sampled pairs.

    Args:
        source: list of str.
        target: list of str, of the same length.
        source_language: str, such as `"en"` or `"pt-BR"`.
        target_language: str.

    Returns:
        `LanguageCheck`.

    Raises:
        MissingExtraError: Babel or py3langid is not installed.
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


def identify_language(text, languages):
    """Identifies the language of a text among those given.

    Args:
        text: str.
        languages: list of str, codes such as `"de"` or `"pt-BR"`.

    Returns:
        `(language, probability)`: one of `languages` and a float from 0 to 1; the first one with 0.0 if
        nothing in the text speaks for any of them.

    Raises:
        MissingExtraError: Babel or py3langid is not installed.
    """
    identifier, known = _model()
    codes = {}
    for language in languages:
        try:
            name = primary_language(language)
        except ValueError:
            continue  # a model may call its languages anything
        codes.setdefault(_NAMES.get(name, name), language)
    names = [name for name in codes if name in known]
    if not names or not text.strip():
        return languages[0], 0.0
    identifier.set_languages(names)
    name, probability = identifier.rank(text)[0]
    return codes[name], float(probability)


@functools.cache
def _model():
    """Returns (language identifier, frozenset of the codes of its languages)."""
    # Imported here, because it takes half a second and about 60 MB.
    with needs("data", "Identifying the language of a text"):
        import babel.core  # noqa: F401
        from py3langid import langid

    identifier = langid.LanguageIdentifier.from_model_file(
        langid.MODEL_FILE, norm_probs=True, min_confidence=MIN_CONFIDENCE
    )
    return identifier, frozenset(identifier.labels)


def _cldr(name):
    with needs("data", "A filter by the letters of a language"):
        from babel.core import get_global
    return get_global(name)


def _subtags(language):
    """Returns (language, script, region) of a code; the last two may be empty."""
    name, *rest = re.split("[-_]", language)
    name, *implied = _cldr("language_aliases").get(name.lower(), name.lower()).split("_")
    rest += implied  # appended, so that a script in the code itself comes first
    if name == "und" or name not in _cldr("likely_subtags"):
        raise ValueError(
            "The language must be a code that CLDR knows, such as 'de', 'pt-BR' or 'zh-Hant'. "
            f"Received: {language!r}"
        )
    script = next((part.title() for part in rest if re.fullmatch("[A-Za-z]{4}", part)), "")
    region = next((part.upper() for part in rest if re.fullmatch("[A-Za-z]{2}|[0-9]{3}", part)), "")
    return name, script, region
