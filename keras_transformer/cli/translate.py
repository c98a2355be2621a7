"""Translates text with a trained model, line by line.

    keras-transformer translate RUN < text > translations
    echo 'A man is riding a horse.' | keras-transformer translate runs/m30k
    tail -f log | keras-transformer translate runs/m30k --beam-size 1
    keras-transformer translate runs/a runs/b --input test.en.gz --output test.de
    keras-transformer translate RUN --input big.en --shards out --shard 3/8
    keras-transformer translate runs/m30k --n-best 4 --format moses < text > n_best

Several runs form an ensemble, which averages their log-probabilities. Blank lines stay blank. Invalid UTF-8
is replaced by U+FFFD.
"""

import contextlib
import os
import shlex
import sys

from keras_transformer.cli.command_line import (
    add_checkpoint_flag,
    add_line_flags,
    add_search_flags,
    check_line_flags,
    program_parser,
    search_settings,
)
from keras_transformer.cli.early_checks import check_task, open_runs
from keras_transformer.cli.engine import add_engine_flag, chosen_engine, engine_loader
from keras_transformer.cli.foreign_flags import TRANSLATING
from keras_transformer.cli.line_translation import (
    Inputs,
    TranslationProgress,
    translated_chunks,
    warn_of_narrow_beam,
)
from keras_transformer.cli.process import end_on_sigterm, exit_code, open_closed_streams
from keras_transformer.cli.shard_flags import add_shard_flags, check_shard_flags
from keras_transformer.config import programs


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
    add_shard_flags(parser)
    add_search_flags(parser)
    add_engine_flag(parser)
    args = parser.parse_args(argv)
    check_line_flags(parser, args)
    check_shard_flags(parser, args)
    if args.alignment and args.format == "text":
        parser.error("--alignment needs --format moses or jsonl")
    return args


def main(argv=None, stdin=None, stdout=None):
    """Runs the program; returns its exit code."""
    args = parse_args(argv)
    if open_closed_streams() and stdout is None and not (args.output or args.shards):
        return programs.ExitCode.READER_LEFT

    def work():
        check_are_runs(args.runs, "translate")
        runs = open_runs(args.runs, args.checkpoint)
        check_task(runs, parses=False)
        search = search_settings(args, args.runs[0])
        if args.shards:
            # Its imports are of no use to short inputs.
            from keras_transformer.cli.translate_shards import translate_shards

            return translate_shards(args, search)
        with contextlib.ExitStack() as stack:
            inputs = open_inputs(args, stdin, stack)
            engine = chosen_engine(args, runs, search)
            load = engine_loader(engine, args, runs, is_file=inputs.source.is_regular)
            end_on_sigterm()
            # Opened after the imports, during which a signal ends the program without cleaning up.
            output = open_output(args, stdout, stack)
            translate(args, search, load, inputs, output)

    stopped = "stopped. The same command continues" if args.shards else ""
    output = args.shards or args.output or "standard output"
    return exit_code(programs.name("translate"), work, output, stopped=stopped)


def check_are_runs(names, program):
    """Raises `ValueError` if text was given where a further run folder is expected."""
    from keras_transformer.checkpoints.pretrained import resolve

    for name in names[1:]:
        if not os.path.exists(resolve(name)):
            raise ValueError(
                f"{name}: not a run folder. Text is read from a file or a pipe: "
                f"echo {shlex.quote(name)} | {programs.command(program)} {shlex.quote(names[0])}"
            )


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


def translate(args, search, load, inputs, output):
    """Translates all lines, chunk by chunk, with the translator that the function `load` returns.

    Raises:
        DataError: as `translated_chunks`.
    """
    from keras_transformer.translation.lines import is_regular_file

    translator = load()
    progress = TranslationProgress(
        inputs.source.num_bytes, shows=bool(args.output or args.input) or is_regular_file(output)
    )
    for _, translations in translated_chunks(args, search, translator, inputs, progress):
        output.write(translations)
        output.flush()
    progress.finish()
    warn_of_narrow_beam(args, search, translator)
