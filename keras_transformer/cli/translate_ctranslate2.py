"""Translates text with a model exported for CTranslate2, line by line.

    keras-transformer export runs/m30k exported --format ctranslate2 --quantization int8
    keras-transformer translate-ctranslate2 exported < text > translations

Needs only the exported folder, neither the run folder nor TensorFlow. Blank lines stay blank. Invalid UTF-8
is replaced by U+FFFD.
"""

import functools
import os
import sys

from keras_transformer.cli.command_line import (
    SEARCH_SETTINGS,
    add_line_flags,
    add_search_flags,
    check_line_flags,
    check_sampling_settings,
    given_settings,
    program_parser,
)
from keras_transformer.cli.foreign_flags import STREAMS, TRANSLATING
from keras_transformer.cli.line_translation import TranslationProgress
from keras_transformer.cli.process import exit_code, open_closed_streams
from keras_transformer.config import programs


def parse_args(argv=None):
    """Parses the command line."""
    parser = program_parser("translate-ctranslate2", words=STREAMS + TRANSLATING)
    parser.add_argument("folder", metavar="FOLDER", help="folder exported with --format ctranslate2")
    add_line_flags(parser)
    parser.add_argument(
        "--inter-threads", type=int, default=1, metavar="N", help="batches in parallel (default: 1)"
    )
    parser.add_argument(
        "--intra-threads", type=int, default=0, metavar="N", help="threads per batch (default: all cores)"
    )
    add_search_flags(parser, threads=False)
    args = parser.parse_args(argv)
    ranges = {"inter_threads": (1, 1024), "intra_threads": (0, 1024)}
    for name, (least, most) in ranges.items():
        if not least <= getattr(args, name) <= most:
            flag = name.replace("_", "-")
            parser.error(f"--{flag} must be from {least} to {most}, not {getattr(args, name)}")
    check_line_flags(parser, args)
    return args


def main(argv=None, stdin=None, stdout=None):
    """Runs the program; returns its exit code."""
    args = parse_args(argv)
    if open_closed_streams() and stdout is None:
        return programs.ExitCode.READER_LEFT

    def work():
        # Not `sys.stdin`: at exit, Python would wait for the thread that reads it.
        source = os.fdopen(0, "rb", closefd=False) if stdin is None else stdin
        translate(args, source, sys.stdout.buffer if stdout is None else stdout)

    return exit_code(programs.name("translate-ctranslate2"), work, "standard output")


def translate(args, stdin, output):
    """Translates all lines, chunk by chunk."""
    from keras_transformer.config.settings import replace
    from keras_transformer.export.ctranslate2 import CTranslate2Translator
    from keras_transformer.translation.lines import Input, json_line, line_chunks, moses_lines, text_lines

    translator = CTranslate2Translator(
        args.folder, inter_threads=args.inter_threads, intra_threads=args.intra_threads
    )
    search = given_settings(args, SEARCH_SETTINGS)
    config = replace(translator.search, **search)
    check_sampling_settings(search, config)
    translator.n_best([], **search)  # raises for an invalid value before the first line
    formats = {"text": functools.partial(text_lines, scores=args.scores), "jsonl": json_line}
    write = formats.get(args.format, moses_lines)
    details = args.format == "jsonl" and translator.has_details
    source = Input.of_stream(stdin, "standard input")
    progress = TranslationProgress(shows=False)
    for texts in line_chunks(source, args.chunk_lines, waits=source.is_regular):
        results = translator.n_best(texts, details=details, **search)
        for number, result in enumerate(results, start=progress.lines):
            output.write(write(number, result, n_best=config.n_best).encode())
        output.flush()
        progress.add(texts, results)
    progress.finish()
