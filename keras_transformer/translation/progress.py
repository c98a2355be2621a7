"""How far a translation of many lines is, and what befell them."""

import collections
import sys
import time

_SECONDS_BETWEEN_LINES = {True: 0.5, False: 30}  # on a terminal, elsewhere
_SAID = {
    "split": "lines longer than the model takes, translated in parts",
    "cut": "lines longer than the model takes, the rest left out",
    "unfinished": "translations without an end, cut off at the limit of their length",
}


class TranslationProgress:
    """Counts lines, tokens and flags; tells them on standard error now and then.

    Args:
        total_bytes: size of all that is translated; `None` where it is not known.
        shows: prints progress: in place and often on a terminal, else a line in half a
            minute. The summary is printed in any case.
    """

    def __init__(self, total_bytes=None, *, shows=True):
        self._total_bytes = total_bytes
        self._shows = shows
        self._on_terminal = sys.stderr.isatty()
        self._begin = self._last = time.monotonic()
        self._shown = False
        self._told = 0
        self.lines = 0
        self._tokens = 0
        self._bytes = 0
        self._flags = collections.Counter()

    def add(self, texts, found):
        """Counts one chunk, and prints if it is time for that.

        Args:
            texts: list of str, the lines as they were read.
            found: list of `NBest`, one for each.
        """
        self.lines += len(texts)
        self._bytes += sum(len(text.encode()) + 1 for text in texts)
        self._tokens += sum(len(one.best.ids) for one in found)
        for one in found:
            self._flags.update(one.flags)
        wait = _SECONDS_BETWEEN_LINES[self._on_terminal]
        if self._shows and time.monotonic() - self._last >= wait:
            self._last = time.monotonic()
            self._told = self.lines
            self._print(self.status(), in_place=self._on_terminal)

    def status(self):
        """Returns lines done, speed and, where the size is known, the time left."""
        seconds = max(time.monotonic() - self._begin, 1e-9)
        status = (
            f"{self.lines:,} lines | {self.lines / seconds:,.1f} sentences/s"
            f" | {self._tokens / seconds:,.0f} tokens/s"
        )
        if self._total_bytes and self._bytes:
            # Invalid bytes and a missing last newline count as more than they are.
            left = max(self._total_bytes - self._bytes, 0)
            status += f" | {100 - 100 * left / self._total_bytes:.0f} %"
            status += f" | {left * seconds / self._bytes:,.0f} s left"
        return status

    def finish(self):
        """Prints what befell lines, each kind once, and the final speed where progress is shown."""
        self._total_bytes = self._bytes  # marks and carriage returns were not counted
        took_long = self._shows and time.monotonic() - self._begin >= _SECONDS_BETWEEN_LINES[False]
        if self._told < self.lines and (self._shown or took_long):
            self._print(self.status(), in_place=False)
        elif self._shown:
            self._shown = False
            print(file=sys.stderr, flush=True)
        for flag, said in _SAID.items():
            if self._flags[flag]:
                self._print(f"{said}: {self._flags[flag]:,} of {self.lines:,}", in_place=False)

    def _print(self, text, *, in_place):
        before = "\r\x1b[K" if self._shown else ""
        self._shown = in_place
        print(before + text, end="" if in_place else "\n", file=sys.stderr, flush=True)
