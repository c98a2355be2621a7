"""Parses sentences with a model trained on trees: words in, one bracketed tree a line out.

    keras-transformer parse RUN < words > trees
    echo 'The striatum plays a pivotal role .' | keras-transformer parse runs/parsing
    keras-transformer parse runs/parsing --tree-grammar --input valid.words --output valid.parsed

Words are separated by spaces, tokenized like those of the training trees; round brackets become -LRB- and
-RRB-. Every line gives one tree over exactly its words; a blank line stays blank. The search is free, as in
the paper, and results that are no tree are mended; --tree-grammar searches trees only. Several runs form an
ensemble.
"""

import contextlib
import json
import math

from keras_transformer.cli.command_line import (
    add_checkpoint_flag,
    add_search_flags,
    check_chunk_lines,
    number_of_threads,
    program_parser,
    search_settings,
)
from keras_transformer.cli.early_checks import check_task, open_runs
from keras_transformer.cli.foreign_flags import TRANSLATING
from keras_transformer.cli.line_translation import TranslationProgress
from keras_transformer.cli.process import end_on_sigterm, exit_code, open_closed_streams
from keras_transformer.cli.translate import check_are_runs, open_inputs, open_output
from keras_transformer.config import programs

_SAID = {
    "mended": "lines whose search result was no tree, and was mended",
    "too_long": "lines over the length limit, given a flat tree",
}


def parse_args(argv=None):
    """Parses the command line."""
    parser = program_parser("parse", words=TRANSLATING)
    parser.add_argument("runs", metavar="RUN", nargs="+", help="run folder; several form an ensemble")
    add_checkpoint_flag(parser)
    parser.add_argument("--input", metavar="FILE", help="also .gz, .xz or .bz2 (default: standard input)")
    text = "write trees to FILE, once all are complete (default: standard output)"
    parser.add_argument("--output", metavar="FILE", help=text)
    parser.add_argument("--format", default="text", choices=("text", "jsonl"), help="default: text, one tree")
    text = "lines read, sorted by length and parsed together (default: 1024)"
    parser.add_argument("--chunk-lines", type=int, default=1024, metavar="N", help=text)
    add_search_flags(parser)
    args = parser.parse_args(argv)
    check_chunk_lines(parser, args)
    if args.n_best is not None:
        parser.error("--n-best: each sentence has one tree. Remove this flag")
    if args.long_lines is not None:
        parser.error("--long-lines: a sentence over the limit gets a flat tree. Remove this flag")
    args.n_best = 1  # whatever the run has
    args.prefix_file = args.constraints = None
    return args


def main(argv=None, stdin=None, stdout=None):
    """Runs the program; returns its exit code."""
    args = parse_args(argv)
    if open_closed_streams() and stdout is None and not args.output:
        return programs.ExitCode.READER_LEFT

    def work():
        check_are_runs(args.runs, "parse")
        check_task(open_runs(args.runs, args.checkpoint), parses=True)
        search = search_settings(args, args.runs[0])
        with contextlib.ExitStack() as stack:
            source = open_inputs(args, stdin, stack).source
            threads = number_of_threads(args)
            end_on_sigterm()
            parse(args, search, threads, source, open_output(args, stdout, stack))

    return exit_code(programs.name("parse"), work, args.output or "standard output")


def parse(args, search, threads, source, output):
    """Parses all lines, chunk by chunk."""
    from keras_transformer.translation.lines import is_regular_file, line_chunks
    from keras_transformer.translation.parser import Parser

    parser = Parser.load(args.runs, checkpoint=args.checkpoint, threads=threads)
    progress = TranslationProgress(
        source.num_bytes, shows=bool(args.output or args.input) or is_regular_file(output), said=_SAID
    )
    for lines in line_chunks(source, args.chunk_lines, waits=source.is_regular):
        results = parser.parse(lines, **search)
        for number, result in enumerate(results, start=progress.lines + 1):
            line = f"{result.text}\n" if args.format == "text" else json_line(number, result)
            output.write(line.encode())
        output.flush()
        progress.add(lines, results)
    progress.finish()


def json_line(number, result):
    """Returns one tree as a JSON object on one line.

    Args:
        number: int, of the line, from 1.
        result: `Parsed`.
    """
    score = round(result.score, 6) if math.isfinite(result.score) else None
    record = {"line": number, "tree": result.text, "score": score}
    record |= {"mended": list(result.mended), "flags": result.flags}
    return json.dumps(record, ensure_ascii=False) + "\n"
