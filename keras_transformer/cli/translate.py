"""Translates text with a trained model, line by line.

    keras-transformer translate RUN < text > translations
    echo 'A man is riding a horse.' | keras-transformer translate runs/m30k
    tail -f log | keras-transformer translate runs/m30k --beam-size 1
    keras-transformer translate runs/a runs/b --input test.en.gz --output test.de
    keras-transformer translate runs/m30k --n-best 4 --format moses < text > n_best

Several runs form an ensemble, which averages their log-probabilities. Blank lines stay blank. Invalid UTF-8
is replaced by U+FFFD.
"""

import collections
import contextlib
import functools
import os
import shlex
import sys
import time
from typing import Any, NamedTuple

from keras_transformer.cli.command_line import (
    add_checkpoint_flag,
    add_line_flags,
    add_search_flags,
    check_line_flags,
    number_of_threads,
    program_parser,
    search_settings,
)
from keras_transformer.cli.early_checks import check_task, open_runs
from keras_transformer.cli.foreign_flags import TRANSLATING
from keras_transformer.cli.process import end_on_sigterm, exit_code, open_closed_streams
from keras_transformer.config import programs

_SECONDS_BETWEEN_LINES = {True: 0.5, False: 30}  # on a terminal, elsewhere
_SAID = {
    "split": "lines over the length limit, translated in parts",
    "cut": "lines over the length limit, truncated",
    "unfinished": "translations truncated at the length limit",
}


def parse_args(argv=None):
    """Parses the command line."""
    parser = program_parser("translate", words=TRANSLATING)
    parser.add_argument("runs", metavar="RUN", nargs="+", help="run folder; several form an ensemble")
    add_checkpoint_flag(parser)
    parser.add_argument("--input", metavar="FILE", help="also .gz, .xz or .bz2 (default: standard input)")
    text = "write translations to FILE, once all are complete (default: standard output)"
    parser.add_argument("--output", metavar="FILE", help=text)
    parser.add_argument(
        "--prefix-file", metavar="FILE", help="line i is the forced beginning of translation i"
    )
    text = "line i has phrases that must occur in translation i, separated by tabs; none if it is empty"
    parser.add_argument("--constraints", metavar="FILE", help=text)
    add_line_flags(parser)
    parser.add_argument(
        "--alignment", action="store_true", help="with --format moses: also aligned pieces (jsonl always)"
    )
    add_search_flags(parser)
    args = parser.parse_args(argv)
    check_line_flags(parser, args)
    if args.alignment and args.format == "text":
        parser.error("--alignment needs --format moses or jsonl")
    return args


def main(argv=None, stdin=None, stdout=None):
    """Runs the program; returns its exit code."""
    args = parse_args(argv)
    if open_closed_streams() and stdout is None and not args.output:
        return programs.ExitCode.READER_LEFT

    def work():
        check_are_runs(args.runs, "translate")
        check_task(open_runs(args.runs, args.checkpoint), parses=False)
        search = search_settings(args, args.runs[0])
        with contextlib.ExitStack() as stack:
            inputs = open_inputs(args, stdin, stack)
            threads = number_of_threads(args)
            end_on_sigterm()
            # Opened after the imports, during which a signal ends the program without cleaning up.
            output = open_output(args, stdout, stack)
            translate(args, search, threads, inputs, output)

    return exit_code(programs.name("translate"), work, args.output or "standard output")


def check_are_runs(names, program):
    """Raises `ValueError` if text was given where a further run folder is expected."""
    from keras_transformer.checkpoints.pretrained import resolve

    for name in names[1:]:
        if not os.path.exists(resolve(name)):
            raise ValueError(
                f"{name}: not a run folder. Text is read from a file or a pipe: "
                f"echo {shlex.quote(name)} | {programs.command(program)} {shlex.quote(names[0])}"
            )


WIDE_BEAM = 10  # enough for a few required phrases


class Inputs(NamedTuple):
    """The open inputs of a program, each an `Input`, and `None` for those that are not given."""

    source: Any
    prefixes: Any
    constraints: Any


def open_inputs(args, stdin, stack):
    """Opens the input and its parallel files; returns `Inputs`."""
    from keras_transformer.files import check_output
    from keras_transformer.text.lines import LineReader
    from keras_transformer.translation.lines import Input

    if args.output:
        files = args.input, args.prefix_file, args.constraints
        check_output(args.output, *(name for name in files if name))

    def open_file(name, **options):
        return Input.of_reader(stack.enter_context(LineReader(name)), **options) if name else None

    prefixes = open_file(args.prefix_file)
    # A phrase with a replacement character would be required as such.
    constraints = open_file(args.constraints, on_bad_utf8="refuse")
    source = open_file(args.input)
    if source is None:
        # Not `sys.stdin`: at exit, Python would wait for the thread that reads it.
        stream = os.fdopen(0, "rb", closefd=False) if stdin is None else stdin
        source = Input.of_stream(stream, "standard input")
    return Inputs(source, prefixes, constraints)


def open_output(args, stdout, stack):
    """Opens the binary file for the translations."""
    from keras_transformer.files import open_atomically

    if args.output:
        return stack.enter_context(open_atomically(args.output))
    return sys.stdout.buffer if stdout is None else stdout


def translate(args, search, threads, inputs, output):
    """Translates all lines, chunk by chunk.

    Raises:
        DataError: a parallel file has fewer or more lines than the input, or a line of it cannot be used.
    """
    from keras_transformer.config.settings import replace
    from keras_transformer.text.lines import DataError
    from keras_transformer.translation.lines import (
        is_regular_file,
        json_line,
        line_chunks,
        moses_lines,
        text_lines,
    )
    from keras_transformer.translation.phrase_texts import PhrasesError
    from keras_transformer.translation.translator import Translator

    source, prefixes, constraints = inputs

    translator = Translator.load(args.runs, checkpoint=args.checkpoint, threads=threads)
    write = {"text": functools.partial(text_lines, scores=args.scores), "jsonl": json_line}
    write = functools.partial(
        write.get(args.format, moses_lines), n_best=search.get("n_best", translator.search.n_best)
    )
    progress = TranslationProgress(
        source.num_bytes, shows=bool(args.output or args.input) or is_regular_file(output)
    )
    details = args.alignment or args.format == "jsonl"
    for texts in line_chunks(source, args.chunk_lines, waits=source.is_regular):
        begins = None if prefixes is None else prefixes.take(len(texts))
        phrases = None if constraints is None else map(_phrases, constraints.take(len(texts)))
        try:
            results = translator.n_best(
                texts, begins, phrases and list(phrases),
                first_number=progress.lines, details=details, **search,
            )  # fmt: skip
        except PhrasesError as error:
            line = progress.lines + error.index + 1
            raise DataError(f"{args.constraints}: line {line}: {error.problem}") from error
        for number, result in enumerate(results, start=progress.lines):
            output.write(write(number, result).encode())
        output.flush()
        progress.add(texts, results)
    for parallel in (prefixes, constraints):
        if parallel is not None:
            parallel.expect_end()
    progress.finish()
    beam_size = replace(translator.search, **search).beam_size
    if constraints is not None and beam_size < WIDE_BEAM and not search.get("sampling"):
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
    """

    def __init__(self, total_bytes=None, *, shows=True, said=_SAID):
        self._said = said
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
            f"{self.lines:,} lines | {self.lines / seconds:,.1f} sentences/s"
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
