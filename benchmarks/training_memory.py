"""Peak memory of a training step, and its time, for several settings side by side.

    python benchmarks/training_memory.py
    python benchmarks/training_memory.py --compare model.attention_dropout=0.1 model.norm_first=true
    python benchmarks/training_memory.py --batches 32x32 --set model.num_encoder_layers=3

The paper's base model (6 + 6 layers, `d_model` 512) with one vocabulary of 32,000, dropout 0.1 and
float32, with batches of 32 sentences of 32 tokens and of 4 of 512, on each side, without padding.
`--compare` sets another model beside it, each argument one: settings as after `--set` of
`train_wmt.py`, with commas between. Each has a process of its own; those with the same batch live
together and take turns.

Columns: the peak of resident memory before the first step (libraries, weights, the optimizer's
state) and after the last one; the difference, and how many times that of the first line it is;
the median of the step's seconds over the rounds; and the median of the ratios to the first line.
"""

import os
import statistics
import sys

from refusing import Parser
from step_worker import StepWorker

from keras_transformer.config.settings import Config, override

VOCABULARY = 32_000
SETTINGS = [f"model.source_vocab_size={VOCABULARY}", f"model.target_vocab_size={VOCABULARY}"]
ROW = "{:<8} {:>10} {:>10} {:>10} {:>6} {:>11} {:>6}  {}"


def parse_args(argv=None):
    """Parses the command line."""
    parser = Parser(description=__doc__.split("\n")[0])
    parser.add_argument("--batches", nargs="+", default=["32x32", "4x512"], metavar="ROWSxTOKENS")
    parser.add_argument("--set", nargs="+", default=[], metavar="SETTING", help="of all: section.field=value")
    parser.add_argument("--compare", nargs="+", default=[], metavar="SETTING,...", help="one more model each")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each in a round, about (2)")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    args = parser.parse_args(argv)
    for batch in args.batches:
        sizes = batch.split("x")
        if len(sizes) != 2 or not all(size.isdecimal() and int(size) for size in sizes):
            parser.error(f"--batches must be like 32x32, sentences x tokens. Received: {batch!r}")
    for name in ("rounds", "threads"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} must be at least 1. Received: {getattr(args, name)}")
    try:
        for changes in args.compare:
            override(Config(), [*SETTINGS, *args.set, *changes.split(",")])
        override(Config(), [*SETTINGS, *args.set])
    except ValueError as error:
        parser.error(str(error))
    return args


def measure(args, batch):
    """Prints one line for each model.

    Args:
        args: parsed.
        batch: str, such as `"32x32"`.
    """
    rows, length = map(int, batch.split("x"))
    names = ["as it is" if not args.set else " ".join(args.set), *args.compare]
    workers = []
    try:
        for changes in ([], *(one.split(",") for one in args.compare)):
            settings = [*SETTINGS, *args.set, *changes]
            workers.append(StepWorker(settings, rows=rows, length=length, threads=args.threads))
        built = [worker.wait()["built_mib"] for worker in workers]
        rounds = [[worker.measure(args.seconds) for worker in workers] for _ in range(args.rounds)]
    finally:
        for worker in workers:
            worker.end()
    seconds = [[statistics.median(found["times"]) for found in one] for one in rounds]
    peaks = [found["peak_mib"] for found in rounds[-1]]
    grown = [peak - before for peak, before in zip(peaks, built, strict=True)]
    for number, name in enumerate(names):
        ratio = statistics.median(one[number] / one[0] for one in seconds)
        print(
            ROW.format(
                batch,
                f"{built[number]:,}",
                f"{peaks[number]:,}",
                f"{grown[number]:,}",
                f"{grown[number] / max(grown[0], 1):.2f}",
                f"{statistics.median(one[number] for one in seconds):.3f}",
                f"{ratio:.2f}",
                name,
            ),
            flush=True,
        )


def main(argv=None):
    """Runs the benchmark; returns its exit code."""
    args = parse_args(argv)
    print(
        ROW.format("batch", "before MiB", "peak MiB", "difference", "times", "s a step", "times", "settings")
    )
    for batch in args.batches:
        measure(args, batch)
    return 0


if __name__ == "__main__":
    sys.exit(main())
