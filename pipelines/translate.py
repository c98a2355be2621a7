"""Translates text with a trained model: one line out for every line in.

    python pipelines/translate.py RUN < text > translations
    echo 'A man is riding a horse.' | python pipelines/translate.py runs/m30k

Blank lines stay blank. Invalid UTF-8 is replaced by U+FFFD.
"""

import argparse
import itertools
import os
import sys

from startup import import_quietly


def parse_args(argv=None):
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        description="Translates standard input to standard output, one line for every line."
    )
    parser.add_argument("run", metavar="RUN", help="run folder of a training run")
    parser.add_argument(
        "--weights",
        default="averaged",
        metavar="NAME",
        help="averaged (at the end of training), last, best, ema, last-N or best-K (see "
        "average_checkpoints.py), or step-N (default: averaged)",
    )
    parser.add_argument("--beam-size", type=int, help="hypotheses kept; 1 is greedy (run: 4)")
    parser.add_argument("--alpha", type=float, help="length penalty exponent (run: 0.6)")
    parser.add_argument(
        "--chunk-lines",
        type=int,
        default=1024,
        metavar="N",
        help="lines read, sorted by length and translated together (default: 1024; 1 on a terminal)",
    )
    args = parser.parse_args(argv)
    if args.chunk_lines < 1:
        parser.error(f"--chunk-lines must be at least 1, not {args.chunk_lines}")
    return args


def main(argv=None, stdin=None, stdout=None):
    """Runs the program; returns its exit code."""
    args = parse_args(argv)
    stdin = sys.stdin.buffer if stdin is None else stdin
    stdout = sys.stdout.buffer if stdout is None else stdout
    search = {"beam_size": args.beam_size, "alpha": args.alpha}
    search = {name: value for name, value in search.items() if value is not None}
    import_quietly()
    try:
        from keras_transformer.config import replace
        from keras_transformer.data.text import iterate_lines
        from keras_transformer.translator import Translator

        translator = Translator.load(args.run, weights=args.weights)
        replace(translator.search, **search)  # refuse a bad value before the first line
        lines = iterate_lines(stdin, "standard input", on_bad_utf8="replace")
        size = 1 if stdin.isatty() else args.chunk_lines
        while chunk := list(itertools.islice(lines, size)):
            for text in translator.translate(chunk, **search):
                stdout.write(text.encode() + b"\n")
            stdout.flush()
    except ValueError as error:
        print(f"translate.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read the translations has had enough; Python would complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
