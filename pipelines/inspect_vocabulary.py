"""Says what a vocabulary makes of a text: how finely it cuts, what it lacks, what it uses.

    python pipelines/inspect_vocabulary.py VOCABULARY FILE ...
    python pipelines/inspect_vocabulary.py RUN --side target --json < text

VOCABULARY is the file of one; of a run folder, it is that of the source or the target.
"""

import itertools
import json
import os
import sys

from command_line import Parser
from ending import run
from startup import open_closed_streams


def parse_args(argv=None):
    """Parses the command line."""
    parser = Parser(__doc__, prog="inspect_vocabulary.py")
    parser.add_argument("vocabulary", metavar="VOCABULARY", help="its file, or a run folder")
    parser.add_argument("files", nargs="*", metavar="FILE", help="UTF-8 text (default: standard input)")
    parser.add_argument(
        "--side",
        choices=("source", "target"),
        default="source",
        help="which vocabulary of a run folder (default: source)",
    )
    parser.add_argument(
        "--top", type=int, default=10, metavar="N", help="pieces and words to list (default: 10)"
    )
    parser.add_argument("--json", action="store_true", help="prints the figures as JSON")
    args = parser.parse_args(argv)
    if args.top < 0:
        parser.error(f"--top must be at least 0, not {args.top}")
    return args


def main(argv=None, stdin=None):
    """Runs the program; returns its exit code."""
    args = parse_args(argv)
    stdin = sys.stdin.buffer if stdin is None else stdin
    open_closed_streams()
    try:
        from keras_transformer.text.lines import iterate_lines, read_lines
        from keras_transformer.tokenizers.inspection import inspect_vocabulary
        from keras_transformer.tokenizers.tokenizer_pair import load_tokenizer, load_tokenizers

        if os.path.isdir(args.vocabulary):
            tokenizer = getattr(load_tokenizers(args.vocabulary), args.side)
        else:
            tokenizer = load_tokenizer(args.vocabulary)
        if args.files:
            lines = itertools.chain.from_iterable(map(read_lines, args.files))
        else:
            lines = iterate_lines(stdin, "standard input")
        found = inspect_vocabulary(tokenizer, lines, top=args.top)
        print(json.dumps(found.to_dict(), indent=2, ensure_ascii=False) if args.json else found)
    except (ValueError, OSError) as error:
        print(f"inspect_vocabulary.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    run(main)
