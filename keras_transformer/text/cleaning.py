"""Filters of parallel text: each is an option of `CleaningConfig`, each drop has a reason.

The filters see blocks of pairs, so that work can be shared among processes. Every filter but `duplicate`
(`Seen`) judges a pair by that pair alone.
"""

import functools
import operator
import re
from hashlib import blake2b

import numpy as np
import regex
from ftfy.badness import is_bad

from keras_transformer.text.cleaning_report import REASONS
from keras_transformer.text.languages import expected_scripts

CODES = {reason: code for code, reason in enumerate(REASONS, start=1)}
# A longer side of so many tokens, end of sentence included, may have any ratio to the shorter:
# "Go." and "Geh jetzt bitte los." differ by more than long sentences that translate each other.
RATIO_FREE_LENGTH = 10

# What Windows-1252 and Latin-1 make of the bytes that begin and continue a character of UTF-8.
_CONTINUATIONS = bytes(range(0x80, 0xC0)).decode("cp1252", "ignore")
_SUSPECT = re.compile(f"[\u00c2-\u00f4][\u0080-\u00bf{_CONTINUATIONS}]")


class Cleaner:
    """Tells which pairs to drop, and why.

    A code is 0 for a pair to keep, else 1 + the place in `REASONS` of the first filter that
    drops it. Can be pickled, for a pool of processes.

    Args:
        config: `CleaningConfig`.
        source_language: str, such as `"en"` or `"pt-BR"`.
        target_language: str.
        max_length: longest side, in tokens, end of sentence included.

    Raises:
        ValueError: letters of other scripts have a limit, and CLDR does not know a language.
    """

    def __init__(self, config, source_language, target_language, *, max_length):
        self.config = config
        self.max_length = max_length
        self._scripts = tuple(map(self._scripts_of, (source_language, target_language)))

    def text_reasons(self, source, target):
        """Looks at the text of a block of pairs.

        Args:
            source: list of str.
            target: list of str, as many.

        Returns:
            uint8 NumPy array, shape `(num_pairs,)`, codes.
        """
        if len(source) != len(target):
            raise ValueError(
                "`source` and `target` must hold as many lines. "
                f"Received: {len(source)} and {len(target)} lines"
            )
        codes = np.zeros(len(source), np.uint8)
        stripped = list(map(str.strip, source)), list(map(str.strip, target))
        # From last to first: the code of the first filter stands in the end.
        if self.config.drop_identical:
            same = np.fromiter(map(operator.eq, *stripped), bool, len(source))
            codes[same] = CODES["identical"]
        if self.config.drop_damaged or self.config.max_foreign_letters < 1:
            marked = [self._marks(*side) for side in zip((source, target), self._scripts, strict=True)]
            foreign, damaged = (np.logical_or(*sides) for sides in zip(*marked, strict=True))
            codes[foreign] = CODES["script"]
            codes[damaged] = CODES["damaged"]
        if self.config.drop_empty:
            for side in stripped:
                if "" in side:
                    codes[[not line for line in side]] = CODES["empty"]
        return codes

    def length_reasons(self, source_lengths, target_lengths):
        """Looks at the lengths of a block of pairs.

        Args:
            source_lengths: int NumPy array, shape `(num_pairs,)`, in tokens, end of
                sentence included.
            target_lengths: int NumPy array, shape `(num_pairs,)`.

        Returns:
            uint8 NumPy array, shape `(num_pairs,)`, codes.
        """
        shorter = np.minimum(source_lengths, target_lengths)
        longer = np.maximum(source_lengths, target_lengths)
        codes = np.zeros(len(shorter), np.uint8)
        if self.config.max_length_ratio:
            uneven = longer > self.config.max_length_ratio * shorter
            codes[uneven & (longer > RATIO_FREE_LENGTH)] = CODES["ratio"]
        codes[longer > self.max_length] = CODES["long"]
        codes[shorter < self.config.min_length] = CODES["short"]
        return codes

    def _scripts_of(self, language):
        try:
            return expected_scripts(language)
        except ValueError as error:
            if self.config.max_foreign_letters < 1:
                raise ValueError(
                    f"`max_foreign_letters` needs languages with known scripts. {error}"
                ) from error
            return frozenset()

    def _marks(self, lines, scripts):
        """Returns whether each line has too many foreign letters, and whether it is damaged."""
        foreign, damaged = np.zeros(len(lines), bool), np.zeros(len(lines), bool)
        limit = self.config.max_foreign_letters
        # ASCII is never damaged, and its letters are Latin.
        skips_ascii = "Latn" in scripts or limit == 1
        for row, text in enumerate(lines):
            if skips_ascii and text.isascii():
                continue
            foreign[row] = limit < 1 and foreign_share(text, scripts) > limit
            damaged[row] = self.config.drop_damaged and is_damaged(text)
        return foreign, damaged


def is_damaged(text):
    """Tells whether a text holds U+FFFD, or UTF-8 that was read as another encoding and encoded again.

    `ä` becomes `Ã¤` and `’` becomes `â€™` where UTF-8 was taken for Windows-1252 or Latin-1. Sound text has
    such neighbours, too (`CAFÉ…`, `Spaß“`): `ftfy.badness` knows which are unlikely.
    """
    return "\ufffd" in text or (_SUSPECT.search(text) is not None and is_bad(text))


def foreign_share(text, scripts):
    """Returns the share of letters of other scripts among the letters of a text; 0 without letters.

    Letters of no single script (Common and Inherited, such as `ー` and `µ`) do not count; a letter that
    Unicode counts to several scripts is of each of them.

    Args:
        text: str.
        scripts: frozenset of Unicode's names of scripts, as of `expected_scripts`.
    """
    letters, foreign = _letters(scripts)
    number = sum(map(len, letters.findall(text)))
    return sum(map(len, foreign.findall(text))) / max(number, 1)


@functools.lru_cache(maxsize=8)
def _letters(scripts):
    """Patterns of runs of letters that count, and of those among them that are foreign."""
    counting = r"[\p{L}--[\p{sc=Common}\p{sc=Inherited}]]"
    expected = "".join(rf"\p{{scx={script}}}" for script in sorted(scripts))
    return regex.compile(f"{counting}+", regex.V1), regex.compile(f"[{counting}--[{expected}]]+", regex.V1)


def pair_hashes(source, target):
    """Hashes pairs of sentences; spaces at either end of a sentence do not matter.

    A pure function of the text, the same in every process and on every machine. Among n
    different pairs, two share a hash with a probability of about n * n / 2**65: 3e-5 for
    33 million pairs.

    Args:
        source: list of str.
        target: list of str, as many.

    Returns:
        uint64 NumPy array, shape `(num_pairs,)`.
    """
    digests = [
        # No line holds a newline, so different pairs are different bytes.
        blake2b(f"{a.strip()}\n{b.strip()}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
        for a, b in zip(source, target, strict=True)
    ]
    return np.frombuffer(b"".join(digests), "<u8")


class Seen:
    """The hashes so far: tells of each new one whether it occurred before.

    Holds sorted arrays, each more than twice as long as the next: 8 bytes a pair, twice
    that for a moment while two arrays are merged.
    """

    def __init__(self):
        self._runs = []

    def __len__(self):
        """Number of different hashes so far."""
        return sum(map(len, self._runs))

    def add(self, hashes):
        """Takes the hashes of the next block of pairs.

        Args:
            hashes: uint64 NumPy array, shape `(num_pairs,)`, as of `pair_hashes`.

        Returns:
            bool NumPy array, shape `(num_pairs,)`: True where the same hash came earlier, in
            this block or in one before.
        """
        order = np.argsort(hashes, kind="stable")
        ordered = hashes[order]
        before = np.zeros(len(hashes), bool)
        before[1:] = ordered[1:] == ordered[:-1]
        for run in self._runs:
            place = np.searchsorted(run, ordered)
            before |= run[np.minimum(place, len(run) - 1)] == ordered
        new = ordered[~before]
        while self._runs and len(self._runs[-1]) <= 2 * len(new):
            new = np.concatenate([self._runs.pop(), new])
            new.sort(kind="stable")  # merges what is sorted already
        if len(new):
            self._runs.append(new)
        found = np.empty(len(hashes), bool)
        found[order] = before
        return found
