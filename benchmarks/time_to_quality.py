"""Validation BLEU over wall-clock time: our trainer beside OpenNMT-tf's, one architecture, one recipe.

    python benchmarks/time_to_quality.py MULTI30K --peer-python ONMT/bin/python --out runs/quality
    python benchmarks/time_to_quality.py MULTI30K --peer-python ONMT/bin/python --out runs/quality \\
        --cores 0 1 --until-passed
    python benchmarks/time_to_quality.py --show runs/quality/records.jsonl --plot quality.png

MULTI30K is a folder with train.en, train.de, val.en and val.de. Ours is `train_wmt.py --preset tiny`
as it comes, but for how often it validates and how many sentences: all. The peer
(`peers/quality_onmt.py`, in the environment of `--peer-python`) gets our ids as text tokens, so
segmentation and vocabulary are the same, and the same sizes and recipe; refused is a peer with
another number of parameters, other learning rates, or other training tokens.

Without `--cores` they train one after the other on all cores; with `--cores 0 1` at the same time,
ours on the first core and the peer on the second (`--swap` changes places), each single-threaded.
`--precision mixed_bfloat16` is for ours alone: OpenNMT-tf's mixed precision is float16, for GPUs.
A core left alone by whoever ends first is faster: `--minutes` without `--until-passed` has no such end.

Time: both clocks start when the model is built, before anything is traced or compiled; imports,
the vocabulary and the reading of text are outside. Validations (beam search over all validation
sentences) are inside, and counted apart: `training_minutes` is without them. A validation stands
at the time when its weights were there, that is when it began. Ours computes the validation loss,
saves checkpoints and the best weights besides; the peer does none of that. Translations are scored
by one function, detokenized and cased; the peer's outside its clock, ours inside (less than a second each).

Where the two cannot be the same: budgets are both in padded tokens of the longer side, but ours cuts
batches so that little is padding, the peer's library by buckets of two lengths, with small batches
left over at the end of each epoch (on Multi30k 3,505 target tokens an update against 3,328, 3.2 %
padding against 8.8 %). Its positions are sines then cosines, from 1; its LayerNorm adds 1e-3 to the
variance where ours adds 1e-6 (its fused kernel takes no less than 1e-5); its embeddings begin with
Glorot's uniform numbers, ours with the paper's normal ones; its search stops at one length for all
sentences, that of ours for the longest; it reads and buckets its text anew in every epoch, while ours
has ids from the start. Seconds an update and updates to the target are shown apart.
"""

import datetime
import hashlib
import json
import os
import pathlib
import shutil
import signal
import statistics
import sys
import time

from quality_contestants import Ours, Peer, read_records
from quality_work import check_alike, prepare
from refusing import Parser, check_picture

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

PASSES = 2
POLL_SECONDS = 1.0


def parse_args(argv=None):
    """Parses the command line."""
    parser = Parser(description="Validation BLEU over time, ours and OpenNMT-tf's.")
    parser.add_argument("data", nargs="?", metavar="DIR", help="train.*, val.*, one sentence a line")
    parser.add_argument("--source", default="en", metavar="LANGUAGE")
    parser.add_argument("--target", default="de", metavar="LANGUAGE")
    parser.add_argument("--preset", default="tiny")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.FIELD=VALUE", help="a setting of both"
    )
    parser.add_argument(
        "--precision",
        choices=("float32", "mixed_bfloat16"),
        default="float32",
        help="of ours; the peer, which has no bfloat16, trains in float32",
    )
    parser.add_argument("--peer-python", metavar="PYTHON", help="an interpreter that has OpenNMT-tf")
    parser.add_argument("--out", metavar="DIR", help="a new folder for all that is written")
    parser.add_argument("--bleu", type=float, default=30.0, help="that is to be reached")
    parser.add_argument("--minutes", type=float, default=60.0, help="of each, at most")
    parser.add_argument(
        "--until-passed", action="store_true", help=f"ends each after {PASSES} validations with that BLEU"
    )
    parser.add_argument("--validate-every", type=int, default=250, metavar="UPDATES")
    parser.add_argument("--inference-batch", type=int, default=32, metavar="SENTENCES", help="of the peer")
    parser.add_argument(
        "--cores", nargs=2, type=int, metavar="CORE", help="both at once: ours here, the peer there"
    )
    parser.add_argument("--swap", action="store_true", help="with --cores: the other way round")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", nargs="+", metavar="RECORDS", help="shows earlier runs; trains nothing")
    parser.add_argument("--plot", metavar="FILE", help="the picture (default: DIR/quality.png)")
    args = parser.parse_args(argv)
    missing = [name for name in ("data", "peer_python", "out") if not getattr(args, name)]
    if missing and not args.show:
        parser.error(f"needs DIR, --peer-python and --out (or --show RECORDS); missing: {', '.join(missing)}")
    if any(text.startswith("training.precision=") for text in args.set):
        parser.error("--set is for both; --precision sets the precision of ours")
    if args.swap and not args.cores:
        parser.error("--swap belongs to --cores")
    if args.cores and not set(args.cores) <= os.sched_getaffinity(0):
        usable = ", ".join(map(str, sorted(os.sched_getaffinity(0))))
        parser.error(f"--cores: this process may use {usable}. Received: {args.cores}")
    check_picture(parser, args.plot)
    return args


def is_done(args, validations):
    """Whether a contestant need not go on."""
    passed = sum(one["bleu"] >= args.bleu for one in validations)
    late = bool(validations) and validations[-1]["minutes"] >= args.minutes
    return late or (args.until_passed and passed >= PASSES)


def watch(args, contestants, save):
    """Runs contestants at the same time until each is done.

    Raises:
        RuntimeError: one failed.
        ValueError: the two do not the same work.
    """
    seen = dict.fromkeys(contestants, 0)
    try:
        for one in contestants:
            one.start()
        while running := [one for one in contestants if one.is_running()]:
            time.sleep(POLL_SECONDS)
            for one in running:
                found = one.validations()
                if len(found) > seen[one]:
                    seen[one] = len(found)
                    save()
                    last = found[-1]
                    print(
                        f"{one.name:<12} update {last['step']:>6,}  {last['minutes']:6.2f} min"
                        f"  BLEU {last['bleu']:5.2f}",
                        flush=True,
                    )
                if is_done(args, found):
                    one.stop()
    finally:
        for one in contestants:
            one.stop()
    save()


def run(args):
    """Trains both; returns the path of the records."""
    out = pathlib.Path(args.out)
    if out.exists():
        raise ValueError(f"{out}: is there already. Name a new folder as --out")
    if not shutil.which(args.peer_python):
        raise ValueError(
            f"{args.peer_python}: no such program. Name the Python of OpenNMT-tf as --peer-python"
        )
    out.mkdir(parents=True)
    try:
        corpus, facts = prepare(args, out)
    except BaseException:
        shutil.rmtree(out)  # the same command, put right, makes it again
        raise
    cores = args.cores[::-1] if args.swap else args.cores or (None, None)
    contestants = [Ours(args, out, cores[0], facts), Peer(args, out, cores[1], corpus)]
    path = out / "records.jsonl"
    header = {
        "kind": "run",
        "text": f"{pathlib.Path(args.data).resolve().name} {args.source}-{args.target}, {args.preset}",
        "date": datetime.datetime.now().isoformat(timespec="minutes"),
        **{name: getattr(args, name) for name in ("preset", "set", "precision", "bleu", "minutes")},
        **{name: getattr(args, name) for name in ("validate_every", "until_passed", "seed")},
        "inference_batch": args.inference_batch,
        "cores": cores if args.cores else len(os.sched_getaffinity(0)),
        "sentences": len(corpus.validation.source),
        "beam_size": contestants[1].spec["beam_size"],
        "signature": str(contestants[1].scorer.get_signature()),
    }

    def save():
        if contestants[1].facts:
            check_alike(*(one.facts for one in contestants))
        records = [header]
        for one in contestants:
            records += [one.facts] if one.facts else []
            records += [{**record, "name": one.name} for record in one.validations()]
        path.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")

    for together in [contestants] if args.cores else [[one] for one in contestants]:
        watch(args, together, save)
    if sha256(out / "ours" / "tokenizer.model") != corpus.tokenizers.source.sha256:
        raise ValueError(f"{out}: the two had different vocabularies")
    return path


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def table(records):
    """Returns the lines of a table: one column a contestant, the ratio of the first to the second."""
    from plots import crossing

    target = records[0]["bleu"]
    contestants = [one for one in records if one["kind"] == "contestant"]
    columns = []
    for contestant in contestants:
        found = [one for one in records if one["kind"] == "validation" and one["name"] == contestant["name"]]
        if not found:
            raise ValueError(f"{contestant['name']} has no validation yet")
        first, last, best = found[0], found[-1], max(found, key=lambda one: one["bleu"])
        updates = last["step"] - first["step"]  # the first ones are compiled, too
        seconds = 60 * (last["training_minutes"] - first["training_minutes"])
        took = [one["validation_seconds"] for one in found if one["validation_seconds"] is not None]
        reached = {
            name: crossing([(one[name], one["bleu"]) for one in found], target)
            for name in ("minutes", "training_minutes", "step")
        }
        columns.append(
            {
                f"minutes to {target:g} BLEU": reached["minutes"],
                "... of training alone": reached["training_minutes"],
                f"updates to {target:g} BLEU": reached["step"],
                "seconds an update": seconds / updates if updates else None,
                "seconds a validation": statistics.mean(took) if took else None,
                "target tokens an update": contestant["target_tokens_per_update"],
                "padding, percent": 100 * contestant["padding_share"],
                "best BLEU": best["bleu"],
                "... after minutes": best["minutes"],
                "parameters": float(contestant["parameters"]),
            }
        )
    lines = ["".join([f"{'':<25}", *(f"{one['name']:>14}" for one in contestants), f"{'ratio':>10}"])]
    for name in columns[0]:
        values = [column[name] for column in columns]
        shown = ["-" if value is None else f"{value:,.2f}" for value in values]
        ratio = f"{values[0] / values[1]:.2f}" if len(values) == 2 and all(values) else ""
        lines.append("".join([f"{name:<25}", *(f"{text:>14}" for text in shown), f"{ratio:>10}"]))
    return lines


def show(paths, plot):
    """Prints a table for each file of records, and draws all in one picture."""
    from plots import quality_curves

    runs, target = {}, None
    for path in paths:
        try:
            records = read_records(pathlib.Path(path))
            known = records[0]["kind"] == "run"
        except (ValueError, LookupError, TypeError):
            known = False
        if not known:
            raise ValueError(f"{path}: no records of a run. Name records.jsonl of an --out folder")
        target = target or records[0]["bleu"]
        header = records[0]
        print(f"{path}: {header['date']}, cores {header['cores']}, seed {header['seed']}")
        print("\n".join(table(records)))
        for contestant in (one for one in records if one["kind"] == "contestant"):
            name = contestant["name"]
            points = [
                (one["minutes"], one["bleu"]) for one in records if one.get("name") == name and "bleu" in one
            ]
            runs.setdefault(name if name == "ours" else contestant["library"], []).append(points)
    figure = quality_curves(runs, target=target, title=header["text"])
    figure.savefig(plot, dpi=150)
    print(f"picture: {plot}")


def main(argv=None):
    """Runs the program; returns its exit code."""
    args = parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started ends, too
    try:
        paths = args.show or [run(args)]
        show(paths, args.plot or pathlib.Path(paths[0]).with_name("quality.png"))
    except (ValueError, RuntimeError, OSError) as error:
        print(f"time_to_quality.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
