"""Translates text with a trained model: one line out for every line in.

    keras-transformer translate RUN < text > translations
    echo 'A man is riding a horse.' | keras-transformer translate runs/m30k
    tail -f log | keras-transformer translate runs/m30k --beam-size 1
    keras-transformer translate runs/a runs/b --input test.en.gz --output test.de
    keras-transformer translate runs/m30k --n-best 4 --format moses < text > n_best

Several runs translate together, by the mean of their log-probabilities. Blank lines stay
blank. Invalid UTF-8 is replaced by U+FFFD.
"""

import collections
import contextlib
import functools
import os
import shlex
import sys
import time

from keras_transformer.cli.command_line import (
    add_checkpoint_flag,
    add_line_flags,
    add_search_flags,
    check_line_flags,
    number_of_threads,
    program_parser,
    search_settings,
)
from keras_transformer.cli.early_checks import open_runs
from keras_transformer.cli.foreign_flags import TRANSLATING
from keras_transformer.cli.process import end_on_sigterm, exit_code, open_closed_streams
from keras_transformer.config import programs

_SECONDS_BETWEEN_LINES = {True: 0.5, False: 30}  # on a terminal, elsewhere
_SAID = {
    "split": "lines longer than the model takes, translated in parts",
    "cut": "lines longer than the model takes, the rest left out",
    "unfinished": "translations without an end, cut off at the limit of their length",
}


def parse_args(argv=None):
    """Parses the command line."""
    parser = program_parser("translate", words=TRANSLATING)
    parser.add_argument("runs", metavar="RUN", nargs="+", help="run folder; several are an ensemble")
    add_checkpoint_flag(parser)
    parser.add_argument("--input", metavar="FILE", help="in place of standard input; also .gz, .xz, .bz2")
    parser.add_argument("--output", metavar="FILE", help="in place of standard output; complete or absent")
    parser.add_argument(
        "--prefix-file", metavar="FILE", help="line i is what the translation of line i begins with"
    )
    add_line_flags(parser)
    parser.add_argument(
        "--alignment", action="store_true", help="moses: links of pieces as well; jsonl has them always"
    )
    add_search_flags(parser)
    args = parser.parse_args(argv)
    check_line_flags(parser, args)
    if args.alignment and args.format == "text":
        parser.error("--alignment is for --format moses and jsonl")
    return args


def main(argv=None, stdin=None, stdout=None):
    """Runs the program; returns its exit code."""
    args = parse_args(argv)
    if open_closed_streams() and stdout is None and not args.output:
        return programs.ExitCode.READER_LEFT

    def work():
        for name in args.runs[1:]:
            if not os.path.exists(name):
                raise ValueError(
                    f"{name}: no run folder. Text is read from a file or a pipe: "
                    f"echo {shlex.quote(name)} | {programs.command('translate')} {shlex.quote(args.runs[0])}"
                )
        open_runs(args.runs, args.checkpoint)
        search = search_settings(args, args.runs[0])
        with contextlib.ExitStack() as stack:
            source, prefixes = open_inputs(args, stdin, stack)
            threads = number_of_threads(args)
            end_on_sigterm()
            # After the imports, during which a signal ends the program on the spot.
            output = open_output(args, stdout, stack)
            translate(args, search, threads, source, prefixes, output)

    return exit_code(programs.name("translate"), work, args.output or "standard output")


def open_inputs(args, stdin, stack):
    """Returns the input and its lines of prefixes or `None`, opened or refused."""
    from keras_transformer.files import check_output
    from keras_transformer.text.lines import LineReader
    from keras_transformer.translation.lines import Input

    if args.output:
        check_output(args.output, *(name for name in (args.input, args.prefix_file) if name))
    prefixes = None
    if args.prefix_file:
        prefixes = Input.of_reader(stack.enter_context(LineReader(args.prefix_file)))
    if args.input:
        return Input.of_reader(stack.enter_context(LineReader(args.input))), prefixes
    # Not `sys.stdin`: Python would wait at its end for the thread that reads it.
    stream = os.fdopen(0, "rb", closefd=False) if stdin is None else stdin
    return Input.of_stream(stream, "standard input"), prefixes


def open_output(args, stdout, stack):
    """Returns the binary file that translations are written to."""
    from keras_transformer.files import open_atomically

    if args.output:
        return stack.enter_context(open_atomically(args.output))
    return sys.stdout.buffer if stdout is None else stdout


def translate(args, search, threads, source, prefixes, output):
    """Translates all lines, chunk by chunk."""
    from keras_transformer.translation.lines import (
        is_regular_file,
        json_line,
        line_chunks,
        moses_lines,
        text_lines,
    )
    from keras_transformer.translation.translator import Translator

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
        begun = None if prefixes is None else prefixes.take(len(texts))
        found = translator.n_best(texts, begun, first_number=progress.lines, details=details, **search)
        for number, one in enumerate(found, start=progress.lines):
            output.write(write(number, one).encode())
        output.flush()
        progress.add(texts, found)
    if prefixes is not None:
        prefixes.expect_end()
    progress.finish()


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
