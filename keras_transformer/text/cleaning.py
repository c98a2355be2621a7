"""Filters of parallel text: each is an option of `CleaningConfig`, each drop has a reason.

The filters see blocks of pairs, so that work can be shared among processes, and look at
whole blocks at once; only lines that look damaged are read one by one. Every filter but
`duplicate` (`Seen`) judges a pair by that pair alone.
"""

import functools
import operator
from hashlib import blake2b

import numpy as np

from keras_transformer.text.cleaning_report import REASONS
from keras_transformer.text.encoding_damage import CONTINUATIONS, LEADS, is_damaged
from keras_transformer.text.scripts import EXPECTED, FOREIGN, expected_scripts, letter_kinds

CODES = {reason: code for code, reason in enumerate(REASONS, start=1)}
# A longer side of so many tokens, end of sentence included, may have any ratio to the shorter:
# "Go." and "Geh jetzt bitte los." differ by more than long sentences that translate each other.
RATIO_FREE_LENGTH = 10

_CHUNK = 4096  # lines whose characters fit the processor's cache
# Further kinds of characters, as bits beside those of `letter_kinds`.
_LEAD, _CONTINUATION, _REPLACED = 4, 8, 16


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
        rows = np.arange(len(lines))
        if "Latn" in scripts or self.config.max_foreign_letters == 1:
            # ASCII is never damaged, and its letters are Latin.
            rows = np.flatnonzero(~np.fromiter(map(str.isascii, lines), bool, len(lines)))
        for begin in range(0, len(rows), _CHUNK):
            chunk = rows[begin : begin + _CHUNK]
            texts = [lines[row] for row in chunk.tolist()]
            kinds = _kinds(scripts)[_code_points(texts)]
            starts = _starts(texts)
            if self.config.max_foreign_letters < 1:
                foreign[chunk] = _foreign_shares(kinds, starts) > self.config.max_foreign_letters
            if self.config.drop_damaged:
                suspects = _suspects(kinds, starts).tolist()
                damaged[chunk[[i for i in suspects if is_damaged(texts[i], scripts)]]] = True
        return foreign, damaged


@functools.lru_cache(maxsize=8)
def _kinds(scripts):
    kinds = letter_kinds(scripts).copy() if scripts else np.zeros(0x110000, np.uint8)
    kinds[list(map(ord, LEADS))] |= _LEAD
    kinds[list(map(ord, CONTINUATIONS))] |= _CONTINUATION
    kinds[0xFFFD] |= _REPLACED
    return kinds


def _code_points(texts):
    """Returns the characters of all texts, each text with a newline after it."""
    joined = "\n".join([*texts, ""])
    return np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), "<u4")


def _starts(texts):
    lengths = np.fromiter(map(len, texts), np.int64, len(texts)) + 1
    return np.cumsum(lengths) - lengths


def _foreign_shares(kinds, starts):
    """Returns the share of foreign letters among the letters of each text; 0 without letters."""
    foreign = np.add.reduceat(kinds & FOREIGN != 0, starts, dtype=np.int64)
    expected = np.add.reduceat(kinds & EXPECTED != 0, starts, dtype=np.int64)
    return foreign / np.maximum(foreign + expected, 1)


def _suspects(kinds, starts):
    """Returns the numbers of the texts that may be damaged."""
    begins = (kinds[:-1] & _LEAD != 0) & (kinds[1:] & _CONTINUATION != 0)
    places = np.concatenate([np.flatnonzero(begins), np.flatnonzero(kinds & _REPLACED)])
    return np.unique(np.searchsorted(starts, places, side="right") - 1)


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
