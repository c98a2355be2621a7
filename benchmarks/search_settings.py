"""What beam size, length penalty and averaging of weights do to a run's translations.

    python benchmarks/search_settings.py runs/m30k --split test_2016_flickr

Prints a table in Markdown: sacreBLEU, how long translations are against their references (in
sacreBLEU's tokens), the share of translations that were cut off at the limit of length, and
sentences per second, all on one split. Each setting is compiled and warmed up before it is
timed.
"""

import os
import sys
import time

from refusing import Parser, run

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def parse_args(argv=None):
    """Parses the command line."""
    parser = Parser(description="Scores and speed for several settings of search.")
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--split", default="test")
    parser.add_argument("--checkpoint", nargs="+", default=["final", "last"], metavar="NAME")
    parser.add_argument("--beam-sizes", nargs="+", type=int, default=[1, 4, 10], metavar="N")
    parser.add_argument("--alphas", nargs="+", type=float, default=[0.0, 0.6, 1.0], metavar="ALPHA")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="as of translate.py")
    return parser.parse_args(argv)


def main(argv=None):
    """Runs the benchmark; returns its exit code."""
    args = parse_args(argv)
    import tensorflow as tf

    from keras_transformer.checkpoints.run_folder import RunFolder
    from keras_transformer.evaluation.bleu import bleu_scorer
    from keras_transformer.text.datasets import open_split
    from keras_transformer.translation.translator import Translator

    if args.threads > 1:
        tf.config.threading.set_intra_op_parallelism_threads(1)
    data = RunFolder(args.run).config.data
    split = open_split(data.dataset, args.split, data.source, data.target)
    pairs = split.load(on_bad_utf8=data.on_bad_utf8)
    scorer = bleu_scorer(data.target)
    print("| weights | beam | alpha | BLEU | length ratio | cut off | sentences/s |")
    print("|---|---|---|---|---|---|---|")
    for checkpoint in args.checkpoint:
        translator = Translator.load(args.run, checkpoint=checkpoint, threads=args.threads)
        for beam_size in args.beam_sizes:
            # The penalty chooses between hypotheses; greedy search has one.
            for alpha in args.alphas if beam_size > 1 else [translator.search.alpha]:
                settings = {"beam_size": beam_size, "alpha": alpha}
                translator.n_best(pairs.source[:8], **settings)
                begin = time.perf_counter()
                found = [one.best for one in translator.n_best(pairs.source, **settings)]
                seconds = time.perf_counter() - begin
                bleu = scorer.corpus_score([one.text for one in found], [pairs.target])
                cut_off = sum(not one.finished for one in found) / len(found)
                shown = f"{alpha:g}" if beam_size > 1 else "any"
                print(
                    f"| {checkpoint} | {beam_size} | {shown} | {bleu.score:.2f}"
                    f" | {bleu.sys_len / bleu.ref_len:.3f} | {100 * cut_off:.1f} %"
                    f" | {len(found) / seconds:.0f} |",
                    flush=True,
                )
    print(f"\n{len(pairs.source):,} sentences of {split.name}; {scorer.get_signature()}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
