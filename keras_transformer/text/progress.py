"""How far a long work over text is, told now and then."""

import itertools
import sys
import time

from keras_transformer.text.folders import ENDINGS, TRAIN

_SECONDS_BETWEEN_LINES = 5


class Progress:
    """Says now and then how far the work is.

    Args:
        total: pairs or bytes of text of the whole work; `None` where it is not known.
        unit: `"pairs"` or `"bytes"`.
    """

    def __init__(self, total, unit):
        self._total = total
        self._unit = unit
        self._begin = self._last = time.monotonic()
        self._earlier = {"pairs": 0, "bytes": 0}
        self._done = {"pairs": 0, "bytes": 0}

    def add(self, num_pairs, num_bytes, *, made):
        """Counts one shard, made now or by an earlier run; prints a line if it is time for one."""
        for counts in (self._done,) if made else (self._done, self._earlier):
            counts["pairs"] += num_pairs
            counts["bytes"] += num_bytes
        if time.monotonic() - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            self.show()

    def show(self):
        """Prints a line."""
        seconds = max(time.monotonic() - self._begin, 1e-9)
        made = {unit: self._done[unit] - self._earlier[unit] for unit in self._done}
        line = f"{self._done['pairs']:>12,} pairs"
        if self._earlier["pairs"]:
            line += f" ({self._earlier['pairs']:,} of them earlier)"
        line += f" | {made['pairs'] / seconds:,.0f} pairs/s"
        left = (self._total or 0) - self._done[self._unit]
        if left > 0 and made[self._unit]:
            line += f" | {100 * self._done[self._unit] / self._total:.0f} %"
            line += f" | {left * seconds / made[self._unit]:,.0f} s left"
        say(line)


def amount_of_text(datasets):
    """Returns how much training text there is and in what unit, as far as it is known unread."""
    found = [dataset.fingerprint(TRAIN) for dataset in datasets if TRAIN in dataset.splits]
    if all("num_examples" in one for one in found):
        return sum(one["num_examples"] for one in found), "pairs"
    if all(isinstance(one, list) for one in found):
        files = list(itertools.chain.from_iterable(found))
        if not any(file["path"].endswith((".gz", ".xz", ".bz2", *ENDINGS)) for file in files):
            return sum(file["size"] for file in files), "bytes"
    return None, "pairs"


def say(text):
    """Prints a line where progress is told: standard error."""
    print(text, file=sys.stderr, flush=True)
