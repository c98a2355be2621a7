"""Translates the lines of open inputs chunk by chunk, and shows the progress."""

import collections
import functools
import itertools
import sys
import time
from typing import Any, NamedTuple

from keras_transformer.config import programs

_SECONDS_BETWEEN_LINES = {True: 0.5, False: 30}  # on a terminal, elsewhere
_SAID = {
    "split": "lines over the length limit, translated in parts",
    "cut": "lines over the length limit, truncated",
    "unfinished": "translations truncated at the length limit",
}
WIDE_BEAM = 10  # enough for a few required phrases


class Inputs(NamedTuple):
    """The open inputs of a program, each an `Input`, and `None` for those that are not given."""

    source: Any
    prefixes: Any
    constraints: Any


def translated_chunks(args, search, translator, inputs, progress, first_line=0):
    """Translates the lines of the inputs chunk by chunk.

    Args:
        args: the parsed arguments.
        search: dict, fields of `SearchConfig`.
        translator: `Translator`.
        inputs: `Inputs`.
        progress: `TranslationProgress`; each chunk is added after it was used.
        first_line: int, number of lines of the text before the first line of the inputs.

    Yields:
        (number of lines, bytes of their translations)

    Raises:
        DataError: a parallel file has fewer or more lines than the input, or a line of it cannot be used.
    """
    from keras_transformer.text.lines import DataError
    from keras_transformer.translation.lines import json_line, line_chunks, moses_lines, text_lines
    from keras_transformer.translation.phrase_texts import PhrasesError

    source, prefixes, constraints = inputs
    write = {"text": functools.partial(text_lines, scores=args.scores), "jsonl": json_line}
    write = functools.partial(
        write.get(args.format, moses_lines), n_best=search.get("n_best", translator.search.n_best)
    )
    details = args.alignment or args.format == "jsonl"
    for texts in line_chunks(source, args.chunk_lines, waits=source.is_regular):
        begins = None if prefixes is None else prefixes.take(len(texts))
        phrases = None if constraints is None else map(_phrases, constraints.take(len(texts)))
        try:
            results = translator.n_best(
                texts, begins, phrases and list(phrases),
                first_number=first_line, details=details, **search,
            )  # fmt: skip
        except PhrasesError as error:
            line = first_line + error.index + 1
            raise DataError(f"{args.constraints}: line {line}: {error.problem}") from error
        yield len(texts), "".join(itertools.starmap(write, enumerate(results, first_line))).encode()
        first_line += len(texts)
        progress.add(texts, results)
    for parallel in (prefixes, constraints):
        if parallel is not None:
            parallel.expect_end()


def warn_of_narrow_beam(args, search, translator):
    """Prints a line to standard error if the beam is small for `--constraints`."""
    from keras_transformer.config.settings import replace

    changed = replace(translator.search, **search)
    beam_size, samples = changed.beam_size, changed.sampling or changed.mbr
    if args.constraints and beam_size < WIDE_BEAM and not samples:
        print(
            f"{programs.name('translate')}: with a beam of {beam_size}, a sentence may break off or repeat "
            f"itself where a phrase is required. Better: --beam-size {WIDE_BEAM}",
            file=sys.stderr,
        )


def _phrases(line):
    """Returns the phrases of a line of `--constraints`; an empty line has none."""
    return line.split("\t") if line.strip(" ") else []


class TranslationProgress:
    """Counts lines, tokens and flags, and prints the progress to standard error.

    Args:
        total_bytes: size of the input; `None` if unknown.
        shows: whether to print the progress: updated in place on a terminal, otherwise one line every
            30 seconds. The summary of flags is always printed.
        said: dict, flag -> what the summary says of lines that have it.
        part: str, the part of the input that is counted, such as `"part 1 of 8"`; `""` for all of it.
    """

    def __init__(self, total_bytes=None, *, shows=True, said=_SAID, part=""):
        self._said = said
        self._part = part and f"{part} | "
        self._total_bytes = total_bytes
        self._shows = shows
        self._on_terminal = sys.stderr.isatty()
        self._begin = self._last = time.monotonic()
        self._shown = False
        self._reported_lines = 0
        self.lines = 0
        self._tokens = 0
        self._bytes = 0
        self._flags = collections.Counter()

    def add(self, texts, results):
        """Counts one chunk, and prints the progress if it is due.

        Args:
            texts: list of str, the input lines.
            results: list of `NBest` or `Parsed`, one per line.
        """
        self.lines += len(texts)
        self._bytes += sum(len(text.encode()) + 1 for text in texts)
        self._tokens += sum(result.num_tokens for result in results)
        for result in results:
            self._flags.update(result.flags)
        wait = _SECONDS_BETWEEN_LINES[self._on_terminal]
        if self._shows and time.monotonic() - self._last >= wait:
            self._last = time.monotonic()
            self._reported_lines = self.lines
            self._print(self.status(), in_place=self._on_terminal)

    def status(self):
        """Returns the number of lines, the speed and, if the input size is known, the time left."""
        seconds = max(time.monotonic() - self._begin, 1e-9)
        status = (
            f"{self._part}{self.lines:,} lines | {self.lines / seconds:,.1f} sentences/s"
            f" | {self._tokens / seconds:,.0f} tokens/s"
        )
        if self._total_bytes and self._bytes:
            # Replaced invalid bytes and a missing final newline can make the count too large.
            left = max(self._total_bytes - self._bytes, 0)
            status += f" | {100 - 100 * left / self._total_bytes:.0f} %"
            status += f" | {left * seconds / self._bytes:,.0f} s left"
        return status

    def finish(self):
        """Prints the number of lines with each flag, and the final speed if progress is shown."""
        self._total_bytes = self._bytes  # byte order marks and carriage returns were not counted
        took_long = self._shows and time.monotonic() - self._begin >= _SECONDS_BETWEEN_LINES[False]
        if self._reported_lines < self.lines and (self._shown or took_long):
            self._print(self.status(), in_place=False)
        elif self._shown:
            self._shown = False
            print(file=sys.stderr, flush=True)
        for flag, said in self._said.items():
            if self._flags[flag]:
                self._print(f"{said}: {self._flags[flag]:,} of {self.lines:,}", in_place=False)

    def _print(self, text, *, in_place):
        before = "\r\x1b[K" if self._shown else ""
        self._shown = in_place
        print(before + text, end="" if in_place else "\n", file=sys.stderr, flush=True)
