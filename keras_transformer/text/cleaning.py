"""Filters of parallel text, and the report of what they kept and dropped.

Each filter is an option of `CleaningConfig`, each drop has a reason. The filters see blocks of pairs, so
that work can be shared among processes. Every filter but `duplicate` (`Seen`) judges a pair by that pair
alone; reports of parts add up.
"""

import dataclasses
import functools
import operator
import re
from hashlib import blake2b

import numpy as np
import regex
from ftfy.badness import is_bad

from keras_transformer.text.languages import expected_scripts
from keras_transformer.text.lines import DataError

# Why a pair is dropped, in the order in which the filters look: what that means, and its setting.
REASONS = {
    "empty": ("a side is blank", "cleaning.drop_empty"),
    "damaged": ("damaged encoding", "cleaning.drop_damaged"),
    "script": ("letters of other scripts", "cleaning.max_foreign_letters"),
    "identical": ("both sides identical", "cleaning.drop_identical"),
    "short": ("too few tokens", "cleaning.min_length"),
    "long": ("too many tokens", "data.max_length"),
    "ratio": ("lengths differ too much", "cleaning.max_length_ratio"),
    "duplicate": ("occurred before", "cleaning.drop_duplicates"),
}
CODES = {reason: code for code, reason in enumerate(REASONS, start=1)}
# A longer side of up to this many tokens, end of sentence included, may have any ratio to the shorter:
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
            target: list of str, of the same length.

        Returns:
            uint8 NumPy array, shape `(num_pairs,)`, codes.
        """
        if len(source) != len(target):
            raise ValueError(
                "`source` and `target` must have the same number of lines. "
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
        target: list of str, of the same length.

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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CleaningReport:
    """Counts of one corpus, or of a part of one; parts add up with `+`.

    Attributes:
        num_pairs: pairs read.
        dropped: dict, each of `REASONS` to the number of pairs that it dropped; a pair counts
            for the first filter that drops it.
        num_identical: pairs whose sides are the same text and not blank, dropped or not.
        num_replaced_utf8: lines in which invalid UTF-8 was replaced.
    """

    num_pairs: int = 0
    dropped: dict = dataclasses.field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    num_identical: int = 0
    num_replaced_utf8: int = 0

    @classmethod
    def of(cls, codes, source, target, *, num_replaced_utf8=0):
        """Counts one block of pairs.

        Args:
            codes: uint8 NumPy array, shape `(num_pairs,)`: 0, or 1 + place in `REASONS`.
            source: list of str, of the same length.
            target: list of str, of the same length.
            num_replaced_utf8: lines in which invalid UTF-8 was replaced.
        """
        counts = np.bincount(codes, minlength=len(REASONS) + 1).tolist()
        same = [a for a, b in zip(map(str.strip, source), map(str.strip, target), strict=True) if a == b]
        return cls(
            num_pairs=len(codes),
            dropped=dict(zip(REASONS, counts[1:], strict=True)),
            num_identical=len(same) - same.count(""),
            num_replaced_utf8=num_replaced_utf8,
        )

    @classmethod
    def from_dict(cls, values):
        """Returns the report that `to_dict` made a dict of.

        Raises:
            ValueError: the dict is none of those.
        """
        try:
            report = cls(**{key: value for key, value in values.items() if key != "num_kept"})
            if list(report.dropped) == list(REASONS) and report.to_dict() == values:
                return report
        except TypeError:
            pass  # becomes the message below
        raise ValueError(f"`values` must be what `to_dict` returned. Received: {values!r}")

    @property
    def num_kept(self):
        """Pairs that no filter dropped."""
        return self.num_pairs - sum(self.dropped.values())

    def __add__(self, other):
        """Returns the counts of both parts together."""
        names = ("num_pairs", "num_identical", "num_replaced_utf8")
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        dropped = {reason: self.dropped[reason] + other.dropped[reason] for reason in REASONS}
        return CleaningReport(dropped=dropped, **sums)

    def to_dict(self):
        """Returns the counts as a dict for JSON."""
        return {"num_pairs": self.num_pairs, "num_kept": self.num_kept} | dataclasses.asdict(self)

    def table(self):
        """Returns the counts as aligned text: a row for all pairs, one a reason, one for those kept."""
        rows = [("pairs read", self.num_pairs)]
        rows += [(f"- {REASONS[reason][0]}", number) for reason, number in self.dropped.items() if number]
        rows += [("pairs kept", self.num_kept)]
        width = max(len(name) for name, _ in rows)
        digits = len(f"{self.num_pairs:,}")
        return "\n".join(
            f"{name:{width}}  {number:{digits},}  {100 * number / max(self.num_pairs, 1):6.2f} %"
            for name, number in rows
        )

    def warnings(self):
        """Returns a list of str, one line each: what looks like a mistake in the corpus.

        Blank sides of over 1 % of the pairs; the same text on both sides of over half; lines with
        replaced UTF-8.
        """
        found = []
        if 100 * self.dropped["empty"] > self.num_pairs:
            found.append(
                f"{self._share(self.dropped['empty'])} have a blank side. Check that line i of one file "
                "translates line i of the other"
            )
        if 2 * self.num_identical > self.num_pairs:
            found.append(
                f"{self._share(self.num_identical)} have the same text on both sides. Check that source "
                "and target are two languages, or drop such pairs with --set cleaning.drop_identical=true"
            )
        if self.num_replaced_utf8:
            found.append(
                f"invalid UTF-8 was replaced by U+FFFD on {self.num_replaced_utf8:,} lines. Drop such pairs "
                "with --set cleaning.drop_damaged=true"
            )
        return found

    def check(self, name="the corpus"):
        """Refuses a corpus that lost all of its pairs.

        Raises:
            DataError: no pair was kept; the message names the counts and their settings.
        """
        if self.num_kept:
            return
        if not self.num_pairs:
            raise DataError(f"{name}: no pairs to train on. Give files with one sentence a line")
        drops = ((number, *REASONS[reason]) for reason, number in self.dropped.items() if number)
        counts = ", ".join(f"{number:,} {meaning} ({setting})" for number, meaning, setting in drops)
        raise DataError(
            f"{name}: all {self.num_pairs:,} pairs were dropped: {counts}. "
            "Check the files, or change these settings"
        )

    def _share(self, number):
        return f"{number:,} of {self.num_pairs:,} pairs ({100 * number / self.num_pairs:.1f} %)"
