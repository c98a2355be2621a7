"""Reports how a vocabulary splits a text: pieces per word, unknown characters, unused pieces.

    keras-transformer inspect VOCABULARY FILE ...
    keras-transformer inspect RUN --side target --json < text

VOCABULARY is a vocabulary file. For a run folder, `--side` chooses the source or the target vocabulary.
"""

import itertools
import json
import os
import sys

from keras_transformer.cli.command_line import program_parser
from keras_transformer.cli.process import exit_code, open_closed_streams
from keras_transformer.config import programs


def parse_args(argv=None):
    """Parses the command line."""
    parser = program_parser("inspect")
    parser.add_argument("vocabulary", metavar="VOCABULARY", help="vocabulary file or run folder")
    parser.add_argument("files", nargs="*", metavar="FILE", help="UTF-8 text files (default: standard input)")
    parser.add_argument(
        "--side",
        choices=("source", "target"),
        help="vocabulary of a run folder to use (default: source)",
    )
    parser.add_argument(
        "--top", type=int, default=10, metavar="N", help="number of pieces and words listed (default: 10)"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    args = parser.parse_args(argv)
    if args.top < 0:
        parser.error(f"--top must be at least 0, not {args.top}")
    return args


def main(argv=None, stdin=None):
    """Runs the program; returns its exit code."""
    args = parse_args(argv)
    open_closed_streams()
    stdin = sys.stdin.buffer if stdin is None else stdin

    def work():
        from keras_transformer.checkpoints.pretrained import resolve
        from keras_transformer.text.lines import iterate_lines, read_lines
        from keras_transformer.tokenizers.inspection import inspect_vocabulary
        from keras_transformer.tokenizers.tokenizer_pair import load_tokenizer, load_tokenizers

        args.vocabulary = str(resolve(args.vocabulary))
        if os.path.isdir(args.vocabulary):
            tokenizer = getattr(load_tokenizers(args.vocabulary), args.side or "source")
        elif args.side and os.path.exists(args.vocabulary):
            raise ValueError(f"--side {args.side}: {args.vocabulary} is one vocabulary. Remove this argument")
        else:
            tokenizer = load_tokenizer(args.vocabulary)
        if args.files:
            lines = itertools.chain.from_iterable(map(read_lines, args.files))
        else:
            lines = iterate_lines(stdin, "standard input")
        report = inspect_vocabulary(tokenizer, lines, top=args.top)
        print(json.dumps(report.to_dict(), indent=2, ensure_ascii=False) if args.json else report)

    return exit_code(programs.name("inspect"), work)
