"""How the cost of a training step grows with length, vocabulary and layers, beside what theory says.

    python benchmarks/scaling.py --records scaling.jsonl --picture scaling.png
    python benchmarks/scaling.py --axes length --lengths 16 64 256 --rounds 2
    python benchmarks/scaling.py --show scaling.jsonl --picture scaling.png

A model of `d_model` 256, 4 heads, `d_ff` 1,024, 3 + 3 layers and one vocabulary of 8,000 makes steps of
2,048 tokens a side, sentences of 32 without padding, dropout and attention dropout 0.1, label
smoothing 0.1, float32; along each axis one of these is changed. Each point is a process of its own.
Those of an axis are made ready together, then take turns, so that a machine that is busy for a while is
busy for all; they end before the next axis begins, which would not fit into memory beside them. The model
that the axes share is measured on each, which says how the machine has changed from one to the next.

With the width and the number of tokens fixed, theory knows three quantities that grow, counted by
hand in multiply-adds, and a rest that does not:

    seconds = rest + a (projections and feed-forward) + b (attention) + c (softmax matrix)

Element-wise work is inside the three, in fixed proportion: dropout and LayerNorm grow with the layers,
softmax and dropout of the weights with attention, loss and the update of the embedding with the
vocabulary. None of a, b, c and rest may be negative. All points together are fitted by least squares of
relative errors (beyond 1 %, of their absolute values), with one factor for each axis, the machine's pace
while it was measured. Points more than 10 % off are marked as kinks, with what they keep in memory.
"""

import json
import os
import pathlib
import statistics
import sys
from typing import NamedTuple

import numpy as np
from refusing import Parser, refused
from step_costs import HEADS, INNER, WIDTH, Point, fit, memory_text, multiply_adds
from step_worker import PRODUCT, StepWorker

AXES = {
    "length": "source and target length (tokens)",
    "vocabulary": "vocabulary (tokens)",
    "layers": "layers of encoder and of decoder",
}
KINK = 0.10  # relative error


def parse_args(argv=None):
    """Parses the command line."""
    parser = Parser(description=__doc__.split("\n")[0])
    parser.add_argument("--axes", nargs="+", choices=AXES, default=list(AXES))
    parser.add_argument("--lengths", nargs="+", type=int, default=[16, 32, 64, 128, 256, 512])
    parser.add_argument("--vocabularies", nargs="+", type=int, default=[4000, 8000, 16000, 32000, 64000])
    parser.add_argument("--layers", nargs="+", type=int, default=[1, 2, 3, 6, 9, 12])
    parser.add_argument("--tokens", type=int, default=2048, help="on each side of a batch (2048)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a point in a round, about (2)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--records", metavar="FILE", help="JSON lines, written as they are measured")
    parser.add_argument("--picture", metavar="FILE", help="PNG, PDF or SVG")
    parser.add_argument("--show", metavar="FILE", help="measures nothing: the records of an earlier run")
    args = parser.parse_args(argv)
    for name in ("lengths", "vocabularies", "layers", "tokens", "rounds", "threads"):
        least, received = (5 if name == "vocabularies" else 1), min(np.atleast_1d(getattr(args, name)))
        if received < least:
            parser.error(f"--{name} must be at least {least}. Received: {received}")
    for length in {*(args.lengths if "length" in args.axes else ()), Point().length}:
        if args.tokens % length:
            parser.error(f"--tokens must be a multiple of every length. Received: {args.tokens}, {length}")
    if args.show and args.records:
        parser.error("--show reads records and --records writes them; give one of the two")
    if args.show and not os.path.isfile(args.show):
        parser.error(f"{args.show}: no such file; --records FILE writes one")
    if args.records and os.path.exists(args.records):
        parser.error(f"{args.records}: is there already; name another as --records, or --show this one")
    if args.picture and not os.path.isdir(os.path.dirname(args.picture) or "."):
        parser.error(f"{args.picture}: there is no such folder; make it first")
    if args.picture and pathlib.Path(args.picture).suffix not in (".png", ".pdf", ".svg"):
        parser.error(f"--picture must end with .png, .pdf or .svg. Received: {args.picture}")
    for file in filter(None, (args.records, args.picture)):
        if not pathlib.Path(file).absolute().parent.is_dir():
            parser.error(f"{file}: its folder does not exist; make it first")
    return args


def points_along(args, axis):
    """List of `Point`, the model that all axes share among them."""
    values = {"length": args.lengths, "vocabulary": args.vocabularies, "layers": args.layers}[axis]
    return [Point()._replace(**{axis: value}) for value in sorted({*values, getattr(Point(), axis)})]


def settings_of(point):
    """The settings of a run, as after `--set`."""
    return [
        f"model.source_vocab_size={point.vocabulary}",
        f"model.target_vocab_size={point.vocabulary}",
        f"model.num_encoder_layers={point.layers}",
        f"model.num_decoder_layers={point.layers}",
        f"model.d_model={WIDTH}",
        f"model.d_ff={INNER}",
        f"model.num_heads={HEADS}",
        "model.residual_dropout=0.1",
        "model.embedding_dropout=0.1",
        "model.attention_dropout=0.1",
        "training.label_smoothing=0.1",
    ]


def measure(args):
    """Yields the records of a run as they are made, dicts, the settings first."""
    yield {"kind": "settings", "tokens": args.tokens, "threads": args.threads, "caches": caches()}
    for axis in args.axes:
        workers = {}
        try:
            for point in points_along(args, axis):
                workers[point] = StepWorker(
                    settings_of(point),
                    rows=args.tokens // point.length,
                    length=point.length,
                    threads=args.threads,
                )
            workers["peak"] = StepWorker(threads=args.threads)
            for number, worker in enumerate(workers.values()):
                show_progress(f"{axis}: {number} of {len(workers)} processes ready")
                worker.wait()
            for number in range(args.rounds):
                show_progress(f"{axis}: round {number + 1} of {args.rounds}")
                for name, worker in workers.items():
                    if name == "peak":
                        yield {"kind": "peak", **worker.measure(0.5)}
                    else:
                        found = worker.measure(args.seconds)
                        yield {"kind": "steps", "axis": axis, **name._asdict(), **found}
        finally:
            for worker in workers.values():
                worker.end()
    show_progress("")


def show_progress(text):
    """Writes over the last line of standard error."""
    print(f"\r{text:<48}\r", end="", file=sys.stderr, flush=True)


def caches():
    """dict: name of each cache of the first core -> its size, as Linux gives them; else empty."""
    found = {}
    for folder in sorted(pathlib.Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = ((folder / name).read_text().strip() for name in ("level", "type", "size"))
        if kind != "Instruction":
            found[f"L{level}"] = size
    return found


class Measured(NamedTuple):
    """What was measured of a point on an axis.

    Attributes:
        point: `Point`.
        seconds: list of float, the median step of each round.
        peak_mib: the most memory that the process has had.
    """

    point: Point
    seconds: list
    peak_mib: int


def summarize(records):
    """Returns a dict: axis -> list of `Measured`, along the axis."""
    found = {}
    for record in records:
        if record["kind"] == "steps":
            point = Point(*(record[name] for name in Point._fields))
            rounds = found.setdefault(record["axis"], {}).setdefault(point, [])
            rounds.append((statistics.median(record["times"]), record["peak_mib"]))
    return {
        axis: [
            Measured(point, [seconds for seconds, _ in rounds], max(peak for _, peak in rounds))
            for point, rounds in sorted(points.items())
        ]
        for axis, points in found.items()
    }


def report(records):
    """Prints what was measured and what the model of costs says; returns a panel for each axis."""
    tokens, axes = records[0]["tokens"], summarize(records)
    model, pace = fit(
        {
            axis: [(one.point, statistics.median(one.seconds)) for one in along]
            for axis, along in axes.items()
        },
        tokens,
    )
    report_model(records, model)
    panels = {}
    for axis, along in axes.items():
        if len(axes) > 1:
            print(f"\nthe machine took {pace[axis]:.3f} times as long as on average", end="")
        print(f"\n{axis:>10}  target tokens/s (range)     measured s  fitted s    off by  GFLOP/s  peak MiB")
        for point, seconds, peak in along:
            median, fitted = statistics.median(seconds), pace[axis] * model(point)
            off = fitted / median - 1
            speeds = f"{tokens / median:7,.0f} ({tokens / max(seconds):,.0f}-{tokens / min(seconds):,.0f})"
            kink = f"  KINK: {memory_text(point, tokens)}" if abs(off) > KINK else ""
            print(
                f"{getattr(point, axis):10,}  {speeds:<27} {median:10.4f} {fitted:9.4f} {100 * off:+7.1f} %"
                f" {2e-9 * sum(multiply_adds(point, tokens)) / median:8.0f} {peak:9,}{kink}"
            )
        values = [getattr(one.point, axis) for one in along]
        curve = np.geomspace(values[0], values[-1], 200)
        fitted = [pace[axis] * model(Point()._replace(**{axis: value})) for value in curve]
        panels[AXES[axis]] = {
            "values": values,
            "speeds": [[tokens / seconds for seconds in one.seconds] for one in along],
            "curve": (curve, [tokens / seconds for seconds in fitted]),
        }
    return panels


def report_model(records, model):
    """Prints the fitted model of costs beside the machine's peak of matrix products."""
    settings = records[0]
    print(f"{model.tokens:,} tokens a side, {settings['threads']} threads, caches {settings['caches']}")
    peaks = [2e-9 * PRODUCT**3 / min(one["times"]) for one in records if one["kind"] == "peak"]
    print(
        f"product of matrices {PRODUCT} x {PRODUCT}: {statistics.median(peaks):.0f} GFLOP/s"
        f" ({min(peaks):.0f}-{max(peaks):.0f})"
    )
    print(f"fitted: a step takes {model.rest:.4f} s, and for the multiply-adds of")
    for part, seconds in model.seconds.items():
        cost = (
            f"{2e-9 / seconds:.0f} GFLOP/s, element-wise work included" if seconds else "nothing that shows"
        )
        print(f"  {part:<15} {cost}")


def main(argv=None):
    """Runs the benchmark; returns its exit code."""
    args = parse_args(argv)
    if args.show:
        try:
            # An interrupted run may have cut off the last line.
            *lines, _ = pathlib.Path(args.show).read_text(encoding="utf-8").split("\n")
            records = [json.loads(line) for line in lines]
            known = {"tokens", "threads"} <= set(records[0])
            kinds = {record["kind"] for record in records[1:]}
        except (ValueError, LookupError, TypeError):
            return refused("scaling.py", f"{args.show}: no records of --records")
        if not known or not {"steps", "peak"} <= kinds:
            return refused("scaling.py", f"{args.show}: its run ended before the first axis. Run it again")
    else:
        records = []
        with open(args.records or os.devnull, "w", encoding="utf-8") as file:
            for record in measure(args):
                records.append(record)
                print(json.dumps(record), file=file, flush=True)
    panels = report(records)
    if args.picture:
        from plots import scaling_curves

        title = f"Training step, {records[0]['tokens']:,} tokens a side, {records[0]['threads']} threads"
        scaling_curves(panels, title=title).savefig(args.picture, dpi=150)
    return 0


if __name__ == "__main__":
    sys.exit(main())
