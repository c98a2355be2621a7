"""Computes log-probabilities of given translations with a trained model: one output line per pair.

    keras-transformer score RUN --source FILE --target FILE > log_probabilities
    paste test.en test.de | keras-transformer score RUN --format jsonl --alignment hard

Without files, pairs are read from standard input: source, tab, target. An output line has the
log-probability of the whole target including end of sentence, in nats and without length penalty. With
--per-token, a tab and the log-probability of each piece follow; with --alignment, a tab and the alignment.
The last line on standard error has the perplexity per sub-word token.
"""

import contextlib
import math
import sys
import time

from keras_transformer.cli.command_line import add_checkpoint_flag, program_parser
from keras_transformer.cli.early_checks import check_files_exist, open_runs
from keras_transformer.cli.foreign_flags import TRANSLATING
from keras_transformer.cli.process import end_on_sigterm, exit_code, import_quietly
from keras_transformer.config import programs


def parse_args(argv=None):
    """Parses the command line."""
    parser = program_parser("score", words=TRANSLATING)
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument("--source", metavar="FILE", help="source sentences, one per line; may be compressed")
    parser.add_argument("--target", metavar="FILE", help="their translations, line by line")
    add_checkpoint_flag(parser)
    parser.add_argument("--format", choices=("text", "jsonl"), default="text", help="default: text")
    parser.add_argument("--output", metavar="FILE", help="write to FILE instead of standard output")
    parser.add_argument("--per-token", action="store_true", help="also print each piece's log-probability")
    parser.add_argument("--alignment", choices=("hard", "soft"), help="also align source and target")
    text = "what is aligned (default: words)"
    parser.add_argument("--alignment-unit", choices=("words", "pieces"), help=text)
    parser.add_argument(
        "--alignment-layer", type=int, metavar="N", help="decoder layer, from 0 (default: the second to last)"
    )
    parser.add_argument("--alignment-head", type=int, metavar="N", help="head, from 0 (default: mean of all)")
    parser.add_argument(
        "--alignment-step",
        choices=("output", "input"),
        help="take attention from the step that outputs a piece or that reads it (default: output)",
    )
    parser.add_argument(
        "--max-length", type=int, metavar="N", help="most tokens of a side (default: the run's)"
    )
    parser.add_argument(
        "--batch-tokens", type=int, metavar="N", help="padded tokens a batch (default: the run's)"
    )
    parser.add_argument(
        "--chunk-lines", type=int, default=1024, metavar="N", help="pairs scored together (default: 1024)"
    )
    args = parser.parse_args(argv)
    if args.chunk_lines < 1:
        parser.error(f"--chunk-lines must be at least 1, not {args.chunk_lines}")
    for name in ("unit", "layer", "head", "step"):
        if getattr(args, f"alignment_{name}") is not None and not args.alignment:
            parser.error(f"--alignment-{name} needs --alignment")
    if (args.source is None) != (args.target is None):
        parser.error("give both --source and --target, or neither to read standard input")
    return args


def main(argv=None, stdin=None, stdout=None):
    """Runs the program; returns its exit code."""
    args = parse_args(argv)
    stdin = sys.stdin.buffer if stdin is None else stdin
    stdout = sys.stdout.buffer if stdout is None else stdout

    def work():
        from keras_transformer.files import check_output, open_atomically
        from keras_transformer.text.parallel import stream_columns, stream_files

        open_runs([args.run], args.checkpoint)
        files = [name for name in (args.source, args.target) if name]
        check_files_exist(*files)
        if args.output:
            check_output(args.output, *files)
        import_quietly()
        from keras_transformer.translation.scorer import Scorer

        end_on_sigterm()
        limits = {"max_length": args.max_length, "batch_tokens": args.batch_tokens}
        limits = {name: value for name, value in limits.items() if value is not None}
        scorer = Scorer.load(args.run, checkpoint=args.checkpoint, **limits)
        if args.source:
            names = {"sources": args.source, "targets": args.target}
            chunks = stream_files(args.source, args.target, args.chunk_lines)
        else:
            names = dict.fromkeys(("sources", "targets"), "standard input")
            chunks = stream_columns(stdin, "standard input", 1 if stdin.isatty() else args.chunk_lines)
        with open_atomically(args.output) if args.output else contextlib.nullcontext(stdout) as file:
            print(_score(scorer, chunks, names, args, file), file=sys.stderr)

    return exit_code(programs.name("score"), work, args.output or "standard output")


def _score(scorer, chunks, names, args, file):
    """Writes one line per pair; returns the summary."""
    from keras_transformer.translation.lines import score_json, score_text
    from keras_transformer.translation.scorer import TooLongError

    layer = scorer.choice.layer if args.alignment_layer is None else args.alignment_layer
    attention = {
        "layers": (layer,) if args.alignment else (),
        "heads": () if args.alignment_head is None else (args.alignment_head,),
    }
    options = {"alignment": args.alignment, "unit": args.alignment_unit or "words"}
    options["convention"] = args.alignment_step or scorer.choice.convention
    scorer.score([], [], **attention)  # raises for an invalid layer or head before the first line
    begin, num_pairs, num_tokens, total = time.monotonic(), 0, 0, 0.0
    for pairs in chunks:
        try:
            scores = scorer.score(*pairs, **attention)
        except TooLongError as error:
            where = f"{names[error.side]}: line {num_pairs + error.number + 1}"
            raise ValueError(f"{where}: {error.reason}. Raise --max-length or shorten the line") from error
        for source, target, score in zip(*pairs, scores, strict=True):
            if args.format == "jsonl":
                line = score_json(source, target, score, **options)
            else:
                line = score_text(score, per_token=args.per_token, **options)
            file.write(line.encode() + b"\n")
        file.flush()
        num_pairs += len(scores)
        num_tokens += sum(len(score.log_probs) for score in scores)
        total += math.fsum(score.log_prob for score in scores)
    rate = num_pairs / (time.monotonic() - begin)
    summary = f"{num_pairs:,} sentences, {num_tokens:,} target tokens"
    if num_pairs:
        summary += (
            f", log-probability {total:.2f}, perplexity {math.exp(-total / num_tokens):.4f}"
            f" per sub-word token, {rate:.1f} sentences/s"
        )
    return summary
