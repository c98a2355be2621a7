"""Filters for parallel text, and a report of how many pairs each filter dropped.

Each filter is an option of `CleaningConfig` and has one entry in `REASONS`. Filters work on blocks of pairs,
which several processes can share. Every filter looks at each pair alone, except `duplicate` (`HashSet`). The
reports of blocks can be added.
"""

import dataclasses
import functools
import operator
import re
from hashlib import blake2b
from typing import Any

import numpy as np
import regex

from keras_transformer.config.extras import MissingExtraError, needs
from keras_transformer.config.sections import CleaningConfig
from keras_transformer.text.languages import expected_scripts
from keras_transformer.text.lines import DataError

# {reason: (description, setting)}, in the order of the filters.
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
# The length ratio is not checked if the longer side has at most this number of tokens, end of sentence
# included: translations of short sentences can differ much in length ("Go." and "Geh jetzt bitte los.").
RATIO_FREE_LENGTH = 10

# A UTF-8 sequence that was decoded as Windows-1252 or Latin-1: a leading byte and a continuation byte.
_CONTINUATIONS = bytes(range(0x80, 0xC0)).decode("cp1252", "ignore")
_SUSPECT = re.compile(f"[\u00c2-\u00f4][\u0080-\u00bf{_CONTINUATIONS}]")


class Cleaner:
    """Finds the pairs to drop and the reason for each.

    The result is a code per pair: 0 to keep it, otherwise 1 + the index in `REASONS` of the first filter that
    drops it. A `Cleaner` can be pickled for a process pool.

    Args:
        config: `CleaningConfig`.
        source_language: str, such as `"en"` or `"pt-BR"`.
        target_language: str.
        max_length: maximum tokens on either side, end of sentence included.

    Raises:
        ValueError: `max_foreign_letters` is set and CLDR does not know a language.
        MissingExtraError: `drop_damaged` or `max_foreign_letters` is set, and ftfy or Babel is not installed.
    """

    def __init__(
        self, config: CleaningConfig, source_language: str, target_language: str, *, max_length: int
    ) -> None:
        self.config = config
        self.max_length = max_length
        if config.drop_damaged:
            _import_is_bad()
        self._scripts = tuple(map(self._scripts_of, (source_language, target_language)))

    def text_reasons(self, source: list[str], target: list[str]) -> np.ndarray:
        """Applies the filters that need only the text.

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
        # In reverse order: the code of an earlier filter overwrites that of a later one.
        if self.config.drop_identical:
            same = np.fromiter(map(operator.eq, *stripped), bool, len(source))
            codes[same] = CODES["identical"]
        if self.config.drop_damaged or self.config.max_foreign_letters < 1:
            flags = [self._check_letters(*side) for side in zip((source, target), self._scripts, strict=True)]
            foreign, damaged = (np.logical_or(*sides) for sides in zip(*flags, strict=True))
            codes[foreign] = CODES["script"]
            codes[damaged] = CODES["damaged"]
        if self.config.drop_empty:
            for side in stripped:
                if "" in side:
                    codes[[not line for line in side]] = CODES["empty"]
        return codes

    def length_reasons(self, source_lengths: np.ndarray, target_lengths: np.ndarray) -> np.ndarray:
        """Applies the filters that need the lengths in tokens.

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
        """Returns the scripts of a language; the empty set if they are not needed."""
        if self.config.max_foreign_letters == 1:
            return frozenset()
        try:
            return expected_scripts(language)
        except MissingExtraError:
            raise
        except ValueError as error:
            raise ValueError(f"`max_foreign_letters` needs languages with known scripts. {error}") from error

    def _check_letters(self, lines, scripts):
        """Returns two bool arrays, shape `(num_lines,)`: too many foreign letters, damaged encoding."""
        foreign, damaged = np.zeros(len(lines), bool), np.zeros(len(lines), bool)
        limit = self.config.max_foreign_letters
        # ASCII lines are never damaged and have only Latin letters.
        skips_ascii = "Latn" in scripts or limit == 1
        for row, text in enumerate(lines):
            if skips_ascii and text.isascii():
                continue
            foreign[row] = limit < 1 and foreign_share(text, scripts) > limit
            damaged[row] = self.config.drop_damaged and is_damaged(text)
        return foreign, damaged


def is_damaged(text):
    """Returns whether a text contains U+FFFD or mojibake, UTF-8 that was decoded in another encoding.

    In UTF-8 decoded as Windows-1252 or Latin-1, `ä` becomes `Ã¤` and `’` becomes `â€™`. Correct text can
    contain such sequences too (`CAFÉ…`, `Spaß“`); the heuristic of `ftfy.badness` finds the unlikely ones.
    """
    return "\ufffd" in text or (_SUSPECT.search(text) is not None and _import_is_bad()(text))


def _import_is_bad():
    with needs("data", "`drop_damaged`"):
        from ftfy.badness import is_bad
    return is_bad


def foreign_share(text, scripts):
    """Returns the share of letters in a text that are not of the given scripts; 0 without letters.

    Letters of the scripts Common and Inherited (such as `ー` and `µ`) are not counted. A letter that Unicode
    assigns to several scripts belongs to all of them.

    Args:
        text: str.
        scripts: frozenset of Unicode script codes, see `expected_scripts`.
    """
    letters, foreign = _letters(scripts)
    number = sum(map(len, letters.findall(text)))
    return sum(map(len, foreign.findall(text))) / max(number, 1)


@functools.lru_cache(maxsize=8)
def _letters(scripts):
    """Returns two patterns: runs of letters that count, and runs of foreign letters among them."""
    counting = r"[\p{L}--[\p{sc=Common}\p{sc=Inherited}]]"
    expected = "".join(rf"\p{{scx={script}}}" for script in sorted(scripts))
    return regex.compile(f"{counting}+", regex.V1), regex.compile(f"[{counting}--[{expected}]]+", regex.V1)


def pair_hashes(source, target):
    """Hashes pairs of sentences; spaces at the ends of a sentence are ignored.

    The hash depends only on the text, so it is the same in every process and on every machine. The
    probability of a collision among n different pairs is about n * n / 2**65: 3e-5 for 33 million pairs.

    Args:
        source: list of str.
        target: list of str, of the same length.

    Returns:
        uint64 NumPy array, shape `(num_pairs,)`.
    """
    digests = [
        # Lines contain no newline, so different pairs give different bytes.
        blake2b(f"{a.strip()}\n{b.strip()}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
        for a, b in zip(source, target, strict=True)
    ]
    return np.frombuffer(b"".join(digests), "<u8")


class HashSet:
    """A set of hashes that finds repeated pairs.

    The hashes are in sorted arrays, each more than twice as long as the next. They take 8 bytes per pair,
    and temporarily 16 while two arrays are merged.
    """

    def __init__(self):
        self._runs = []

    def __len__(self):
        """Number of different hashes so far."""
        return sum(map(len, self._runs))

    def add(self, hashes):
        """Adds the hashes of the next block of pairs.

        Args:
            hashes: uint64 NumPy array, shape `(num_pairs,)`, see `pair_hashes`.

        Returns:
            bool NumPy array, shape `(num_pairs,)`, true for hashes that occurred earlier, in
            this block or in a block before it.
        """
        order = np.argsort(hashes, kind="stable")
        ordered = hashes[order]
        before = np.zeros(len(hashes), bool)
        before[1:] = ordered[1:] == ordered[:-1]
        for run in self._runs:
            index = np.searchsorted(run, ordered)
            before |= run[np.minimum(index, len(run) - 1)] == ordered
        new = ordered[~before]
        while self._runs and len(self._runs[-1]) <= 2 * len(new):
            new = np.concatenate([self._runs.pop(), new])
            new.sort(kind="stable")  # a stable sort merges sorted runs in linear time
        if len(new):
            self._runs.append(new)
        repeated = np.empty(len(hashes), bool)
        repeated[order] = before
        return repeated


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
    def of(
        cls, codes: np.ndarray, source: list[str], target: list[str], *, num_replaced_utf8: int = 0
    ) -> "CleaningReport":
        """Counts one block of pairs.

        Args:
            codes: uint8 NumPy array, shape `(num_pairs,)`: 0, or 1 + index in `REASONS`.
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
    def from_dict(cls, values: dict[str, Any]) -> "CleaningReport":
        """Returns the report of a dict that `to_dict` returned.

        Raises:
            ValueError: the dict has other keys or inconsistent counts.
        """
        try:
            report = cls(**{key: value for key, value in values.items() if key != "num_kept"})
            if list(report.dropped) == list(REASONS) and report.to_dict() == values:
                return report
        except TypeError:
            pass  # becomes the message below
        raise ValueError(f"`values` must be what `to_dict` returned. Received: {values!r}")

    @property
    def num_kept(self) -> int:
        """Number of pairs that no filter dropped."""
        return self.num_pairs - sum(self.dropped.values())

    def __add__(self, other):
        """Returns the report of both parts together."""
        names = ("num_pairs", "num_identical", "num_replaced_utf8")
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        dropped = {reason: self.dropped[reason] + other.dropped[reason] for reason in REASONS}
        return CleaningReport(dropped=dropped, **sums)

    def to_dict(self) -> dict[str, Any]:
        """Returns the counts as a dict for JSON."""
        return {"num_pairs": self.num_pairs, "num_kept": self.num_kept} | dataclasses.asdict(self)

    def table(self) -> str:
        """Returns the counts as a text table: pairs read, dropped for each reason, and kept."""
        rows = [("pairs read", self.num_pairs)]
        rows += [(f"- {REASONS[reason][0]}", number) for reason, number in self.dropped.items() if number]
        rows += [("pairs kept", self.num_kept)]
        width = max(len(name) for name, _ in rows)
        digits = len(f"{self.num_pairs:,}")
        return "\n".join(
            f"{name:{width}}  {number:{digits},}  {100 * number / max(self.num_pairs, 1):6.2f} %"
            for name, number in rows
        )

    def warnings(self) -> list[str]:
        """Returns warnings about likely mistakes in the corpus, a list of str of one line each.

        Warns if over 1 % of the pairs have a blank side, if over half have the same text on both sides, and
        if invalid UTF-8 was replaced.
        """
        warnings = []
        if 100 * self.dropped["empty"] > self.num_pairs:
            warnings.append(
                f"{self._share(self.dropped['empty'])} have a blank side. Check that line i of one file "
                "translates line i of the other"
            )
        if 2 * self.num_identical > self.num_pairs:
            warnings.append(
                f"{self._share(self.num_identical)} have the same text on both sides. Check that source "
                "and target are two languages, or drop such pairs with --set cleaning.drop_identical=true"
            )
        if self.num_replaced_utf8:
            warnings.append(
                f"invalid UTF-8 was replaced by U+FFFD on {self.num_replaced_utf8:,} lines. Drop such pairs "
                "with --set cleaning.drop_damaged=true"
            )
        return warnings

    def check(self, name: str = "the corpus") -> None:
        """Checks that the filters kept a pair.

        Raises:
            DataError: all pairs were dropped; the message lists the counts and their settings.
        """
        if self.num_kept:
            return
        if not self.num_pairs:
            raise DataError(f"{name}: no training pairs. Give files with one sentence per line")
        drops = ((number, *REASONS[reason]) for reason, number in self.dropped.items() if number)
        counts = ", ".join(f"{number:,} {meaning} ({setting})" for number, meaning, setting in drops)
        raise DataError(
            f"{name}: all {self.num_pairs:,} pairs were dropped: {counts}. "
            "Check the files, or change these settings"
        )

    def _share(self, number):
        return f"{number:,} of {self.num_pairs:,} pairs ({100 * number / self.num_pairs:.1f} %)"
