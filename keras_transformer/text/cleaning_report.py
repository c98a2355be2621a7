"""How many pairs cleaning kept and dropped, and why; sums over blocks and processes."""

import dataclasses

import numpy as np

from keras_transformer.text.lines import DataError

# Why a pair is dropped, in the order in which the filters look; its code is its place, from 1.
REASONS = ("empty", "damaged", "script", "identical", "short", "long", "ratio", "duplicate")

_MEANING = {
    "empty": "a side is blank",
    "damaged": "damaged encoding",
    "script": "letters of other scripts",
    "identical": "both sides identical",
    "short": "too few tokens",
    "long": "too many tokens",
    "ratio": "lengths differ too much",
    "duplicate": "occurred before",
}
_OPTION = {
    "empty": "cleaning.drop_empty",
    "damaged": "cleaning.drop_damaged",
    "script": "cleaning.max_foreign_letters",
    "identical": "cleaning.drop_identical",
    "short": "cleaning.min_length",
    "long": "data.max_length",
    "ratio": "cleaning.max_length_ratio",
    "duplicate": "cleaning.drop_duplicates",
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CleaningReport:
    """Counts of one corpus, or of a part of one; parts add up with `+`.

    Attributes:
        num_pairs: pairs read.
        dropped: dict, each of `REASONS` to the number of pairs that it dropped; a pair counts
            for the first filter that drops it.
        num_identical: pairs of which both sides are the same text and not blank, dropped or not.
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
            source: list of str, as many.
            target: list of str, as many.
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
        """Returns the report of which `to_dict` made a dict.

        Raises:
            ValueError: the dict is none of those.
        """
        try:
            report = cls(**{key: value for key, value in values.items() if key != "num_kept"})
        except TypeError as error:
            raise ValueError(f"`values` must be what `to_dict` returned. Received: {values!r}") from error
        if list(report.dropped) != list(REASONS) or values.get("num_kept") != report.num_kept:
            raise ValueError(f"`values` must be what `to_dict` returned. Received: {values!r}")
        return report

    @property
    def num_kept(self):
        """Pairs that no filter dropped."""
        return self.num_pairs - sum(self.dropped.values())

    def __add__(self, other):
        """Returns the counts of both parts together."""
        return CleaningReport(
            num_pairs=self.num_pairs + other.num_pairs,
            dropped={reason: self.dropped[reason] + other.dropped[reason] for reason in REASONS},
            num_identical=self.num_identical + other.num_identical,
            num_replaced_utf8=self.num_replaced_utf8 + other.num_replaced_utf8,
        )

    def to_dict(self):
        """Returns the counts as a dict for JSON."""
        return {
            "num_pairs": self.num_pairs,
            "num_kept": self.num_kept,
            "dropped": dict(self.dropped),
            "num_identical": self.num_identical,
            "num_replaced_utf8": self.num_replaced_utf8,
        }

    def table(self):
        """Returns the counts as aligned text: a row for all pairs, one a reason, one for those kept."""
        rows = [("pairs read", self.num_pairs)]
        rows += [(f"- {_MEANING[reason]}", number) for reason, number in self.dropped.items() if number]
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
        blank = self.dropped["empty"]
        if 100 * blank > self.num_pairs:
            found.append(
                f"{self._share(blank)} have a blank side. Check that line i of one file translates "
                "line i of the other"
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
        """Refuses a corpus of which nothing is left.

        Raises:
            DataError: no pair was kept; the message names the counts and their settings.
        """
        if self.num_kept:
            return
        if not self.num_pairs:
            raise DataError(f"{name}: no pairs to train on. Give files with one sentence a line")
        counts = ", ".join(
            f"{number:,} {_MEANING[reason]} ({_OPTION[reason]})"
            for reason, number in self.dropped.items()
            if number
        )
        raise DataError(
            f"{name}: all {self.num_pairs:,} pairs were dropped: {counts}. "
            "Check the files, or change these settings"
        )

    def _share(self, number):
        return f"{number:,} of {self.num_pairs:,} pairs ({100 * number / self.num_pairs:.1f} %)"
