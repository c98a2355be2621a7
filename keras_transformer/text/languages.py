"""Finds a corpus whose sides are swapped, or in one language, from a sample of its pairs.

The language of a text is what py3langid says (a naive Bayes model over n-grams of bytes,
139 languages), asked to choose between the two languages of the corpus.
"""

import functools
from typing import NamedTuple

from keras_transformer.text.scripts import primary_language

SAMPLE_SIZE = 1000
# A text counts for a language from this probability on: names and numbers alone tell nothing.
MIN_CONFIDENCE = 0.8

_NAMES = {"nb": "no", "fil": "tl"}  # where the model's name is not CLDR's


class SpreadSample:
    """An evenly spread sample of a corpus whose length is not known before its end.

    Holds every k-th pair from the first on, where k doubles whenever the sample is full: of
    `size` pairs and more, from `size` / 2 to `size` stay. A pure function of the pairs in order.

    Args:
        size: int, at most so many pairs are held.

    Attributes:
        source: list of str.
        target: list of str, as many.
    """

    def __init__(self, size=SAMPLE_SIZE):
        if size < 2:
            raise ValueError(f"`size` must be at least 2. Received: {size}")
        self.source = []
        self.target = []
        self._size = size
        self._step = 1
        self._count = 0

    def add(self, source, target):
        """Takes the next block of pairs: two lists of str, as many in each."""
        first = -self._count % self._step
        self._count += len(source)
        while True:
            new_source, new_target = source[first :: self._step], target[first :: self._step]
            if len(self.source) + len(new_source) <= self._size:
                break
            # Thin out what is held; what comes next is thinned by the larger step.
            self.source, self.target = self.source[::2], self.target[::2]
            self._step *= 2
            first = -(self._count - len(source)) % self._step
        self.source += new_source
        self.target += new_target


class LanguageCheck(NamedTuple):
    """What the sides of a sample look like.

    Attributes:
        source_language: str, as asked.
        target_language: str, as asked.
        num_pairs: pairs of the sample; 0 where no check was made.
        num_swapped: pairs of which each side is in the other's language.
        num_source_in_target: source sides in the target language.
        num_target_in_source: target sides in the source language.
        not_checked: why no check was made, else "".
    """

    source_language: str
    target_language: str
    num_pairs: int = 0
    num_swapped: int = 0
    num_source_in_target: int = 0
    num_target_in_source: int = 0
    not_checked: str = ""

    def warnings(self):
        """Returns a list of str, one line each: sides that are mostly in the other's language."""
        source, target = self.source_language, self.target_language
        if 2 * self.num_swapped > self.num_pairs:
            return [
                f"source and target seem swapped: in {self._share(self.num_swapped)} the source side is in "
                f"{target} and the target side in {source}. Swap the files, or source and target"
            ]
        found = []
        for side, number, seen, asked in (
            ("source", self.num_source_in_target, target, source),
            ("target", self.num_target_in_source, source, target),
        ):
            if 2 * number > self.num_pairs:
                found.append(
                    f"the {side} side seems to be in {seen}, not {asked}: it is in {self._share(number)}. "
                    "Check the files"
                )
        return found

    def _share(self, number):
        return f"{number:,} of {self.num_pairs:,} sampled pairs"


def check_languages(source, target, source_language, target_language):
    """Identifies the language of each side of some pairs.

    Args:
        source: list of str, such as the `source` of a `SpreadSample`.
        target: list of str, as many.
        source_language: str, such as `"en"` or `"pt-BR"`.
        target_language: str.

    Returns:
        `LanguageCheck`; with `not_checked` where a language is not known, or the two differ in
        script or region only.
    """
    check = LanguageCheck(source_language, target_language)
    identifier, known = _model()
    names = []
    for language in (source_language, target_language):
        try:
            name = primary_language(language)
        except ValueError:
            name = language
        name = _NAMES.get(name, name)
        if name not in known:
            return check._replace(not_checked=f"no check of languages: {language!r} is not one it knows")
        names.append(name)
    if names[0] == names[1]:
        pair = f"{source_language!r} and {target_language!r}"
        return check._replace(not_checked=f"no check of languages: {pair} are too close to tell apart")
    identifier.set_languages(names)
    wrong = [
        (identifier.classify(a)[0] == names[1], identifier.classify(b)[0] == names[0])
        for a, b in zip(source, target, strict=True)
    ]
    return check._replace(
        num_pairs=len(wrong),
        num_swapped=wrong.count((True, True)),
        num_source_in_target=sum(a for a, _ in wrong),
        num_target_in_source=sum(b for _, b in wrong),
    )


@functools.cache
def _model():
    """Returns the identifier and the names of all languages that it knows."""
    from py3langid import langid  # half a second and some 60 MB: only for those who check

    identifier = langid.LanguageIdentifier.from_model_file(
        langid.MODEL_FILE, norm_probs=True, min_confidence=MIN_CONFIDENCE
    )
    return identifier, frozenset(identifier.labels)
