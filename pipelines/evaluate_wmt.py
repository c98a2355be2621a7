"""Translates a split of a corpus with a trained model and scores the translations.

    python pipelines/evaluate_wmt.py RUN
    python pipelines/evaluate_wmt.py RUN --dataset DIR --split test --output hypotheses.de

Prints sacreBLEU with its signature, chrF, BLEU on Moses tokens as multi-bleu.perl
computes it (cased and lower-cased), and exact match. The figures are not comparable with
each other.
"""

import argparse
import json
import os
import sys
import time

from startup import import_quietly


def parse_args(argv=None):
    """Parses the command line."""
    parser = argparse.ArgumentParser(description="Translates and scores a split of a corpus.")
    parser.add_argument("run", metavar="RUN", help="run folder of a training run")
    parser.add_argument(
        "--dataset",
        action="append",
        help="corpus, folder, archive or name of TensorFlow Datasets (default: that of the run); "
        "of several, the first that has the split",
    )
    parser.add_argument("--data-dir", help="prepared sets of TensorFlow Datasets, and unpacked archives")
    parser.add_argument("--manual-dir", help="files downloaded by hand, for TensorFlow Datasets")
    parser.add_argument(
        "--split",
        default="test",
        help="test, validation, or a file's name before its ending (default: test)",
    )
    parser.add_argument(
        "--weights",
        default="averaged",
        metavar="NAME",
        help="averaged (at the end of training), last, best, ema, last-N or best-K (see "
        "average_checkpoints.py), or step-N (default: averaged)",
    )
    parser.add_argument("--beam-size", type=int, help="hypotheses kept; 1 is greedy (run: 4)")
    parser.add_argument("--alpha", type=float, help="length penalty exponent (run: 0.6)")
    parser.add_argument("--output", metavar="FILE", help="also writes the translations")
    parser.add_argument("--json", action="store_true", help="prints the scores as JSON")
    return parser.parse_args(argv)


def main(argv=None):
    """Runs the program; returns its exit code."""
    args = parse_args(argv)
    search = {"beam_size": args.beam_size, "alpha": args.alpha}
    search = {name: value for name, value in search.items() if value is not None}
    import_quietly()
    try:
        from keras_transformer.config import replace
        from keras_transformer.data.corpus import open_split
        from keras_transformer.evaluation import corpus_scores
        from keras_transformer.files import write_text
        from keras_transformer.training.run_folder import RunFolder
        from keras_transformer.translator import Translator

        if args.output and not os.path.isdir(os.path.dirname(args.output) or "."):
            raise ValueError(f"{args.output}: its folder does not exist")
        data = RunFolder(args.run).config.data
        found = open_split(
            ",".join(args.dataset or [data.dataset]),
            args.split,
            data.source,
            data.target,
            data_dir=args.data_dir or data.data_dir,
            manual_dir=args.manual_dir or data.manual_dir,
        )
        pairs = found.load(on_bad_utf8=data.on_bad_utf8)
        translator = Translator.load(args.run, weights=args.weights)
        used = replace(translator.search, **search)
        print(
            f"translating {len(pairs.source):,} lines of {found.dataset.name} {found.name} with the "
            f"{args.weights} weights of {args.run} (beam {used.beam_size}, alpha {used.alpha:g})",
            file=sys.stderr,
        )
        begin = time.monotonic()
        translations = translator.translate(pairs.source, **search)
        seconds = time.monotonic() - begin
        print(f"{len(pairs.source) / seconds:.1f} sentences/s", file=sys.stderr)
        if args.output:
            write_text(args.output, "".join(f"{text}\n" for text in translations))
        scores = corpus_scores(translations, pairs.target, target_language=data.target)
    except (ValueError, OSError) as error:
        print(f"evaluate_wmt.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print(json.dumps(scores.to_dict(), indent=2) if args.json else scores)
    return 0


if __name__ == "__main__":
    sys.exit(main())
