"""Speed beside other libraries: training and beam search, the same work, each peer in its own process.

    python benchmarks/compare.py --rounds 5 --records build/bench/records.jsonl --output build/bench
    python benchmarks/compare.py --train ours,ours:static,torch --sizes small --seconds 5
    python benchmarks/compare.py --train ours,before --decode ours,before --before ../older
    python benchmarks/compare.py --device gpu --train ours_jax,torch --sizes base25k
    python benchmarks/compare.py --show build/bench/records.jsonl

Peers take turns, round after round, so that a machine that is busy for a while is busy for all of them;
what is compared is within one round. Models have random weights, batches no padding, and every
translation 32 tokens (`benchmarks/peers/work.py`). A peer is NAME or NAME:VARIANT, NAME that of
`benchmarks/peers/train_NAME.py` or `decode_NAME.py`, whose first lines tell of the variants;
words of a variant are joined by `+`.

Each environment of peers has a Python of its own: `--install` makes them under `.venv-bench/` from
`benchmarks/peers/requirements-*.txt`; where PEER_TORCH (PyTorch, Marian, CTranslate2), PEER_OPENNMT_TF,
PEER_TF_MODELS, PEER_KERASHUB, PEER_JOEYNMT or PEER_OURS names a Python, that is taken as it is. A peer that
cannot be had, or fails, is a line in the table. On AMD's processors MKL, and so PyTorch, is made to use
AVX-512, if there is a C compiler. `--malloc` is the same for all peers: `tuned` keeps freed memory. The peer
`before` is this package as `--before` has it, a checkout of another commit: its own programs, run by our
Python. With `--device gpu`, `ours`, `ours_jax`, `torch` and `marian` are measured on a GPU. There, float32
products are computed in TF32, and memory is that of the arrays on the GPU.
"""

import argparse
import ast
import contextlib
import datetime
import json
import os
import pathlib
import re
import sys
import tempfile

from peers.environments import BEFORE, NEWEST_PYTHON, environment_of, install, python_of
from peers.running import child_environment, gpu_names, launch, machine, unlocked_mkl
from peers.tables import TITLES, UNITS, groups_of, is_ours, report
from peers.work import SIZES, variant_words
from refusing import Parser, check_picture, refused

PEERS = pathlib.Path(__file__).resolve().parent / "peers"
TRAIN = (
    "ours,ours:static,opennmt_tf,tf_models,marian,marian:compile,torch,torch:compile,kerashub,"
    "kerashub:no_xla,joeynmt,ours:bfloat16,torch:bfloat16,torch:compile+bfloat16"
)
DECODE = (
    "ours,ours:split,ours_ctranslate2,ours_ctranslate2:split,ours_saved_model,ours_saved_model:split,"
    "opennmt_tf,tf_models,marian,kerashub,kerashub:xla,joeynmt,"
    "ctranslate2,ctranslate2:split,ctranslate2:int8,ctranslate2:int8+split"
)
ON_GPUS = ("ours", "ours_jax", "torch", "marian")


def parse_args(argv=None):
    """Parses the command line; without `--train` and `--decode`, both are measured."""
    parser = Parser(description=__doc__.split("\n")[0])
    names = {"nargs": "?", "metavar": "PEERS", "type": names_of}
    parser.add_argument("--train", const=names_of(TRAIN), help="training, by these peers", **names)
    parser.add_argument("--decode", const=names_of(DECODE), help="beam search, by these peers", **names)
    parser.add_argument("--before", type=pathlib.Path, metavar="FOLDER", help="checkout of the peer `before`")
    parser.add_argument("--sizes", type=sizes_of, default=["small"], help=f"of: {','.join(SIZES)} (small)")
    parser.add_argument("--rounds", type=int, default=3, help="of all peers (3)")
    parser.add_argument("--seconds", type=float, default=15.0, help="timed in each process, about (15)")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds until a process is killed (600)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of each peer (all cores)")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help="of all peers (cpu)")
    parser.add_argument("--malloc", choices=("tuned", "default"), default="tuned", help="of all (tuned)")
    parser.add_argument("--records", type=pathlib.Path, metavar="FILE", help="records are appended to it")
    parser.add_argument("--show", nargs="+", type=pathlib.Path, metavar="FILE", help="measures nothing")
    parser.add_argument("--output", type=pathlib.Path, metavar="FOLDER", help="for tables and pictures")
    parser.add_argument("--install", action="store_true", help="makes environments that are missing")
    args = parser.parse_args(argv)
    if args.train is None and args.decode is None:
        args.train, args.decode = names_of(TRAIN), names_of(DECODE)
    for task in ("train", "decode"):
        for peer in getattr(args, task) or []:
            if name_of(peer) == BEFORE:
                if not args.before:
                    parser.error("the peer `before` needs `--before FOLDER`, a checkout of this repository")
                if not program_of(task, peer, args.before).exists():
                    parser.error(f"{args.before} is no checkout of this repository with the peer {peer!r}")
            elif not program_of(task, peer).exists():
                known = sorted(path.stem.removeprefix(f"{task}_") for path in PEERS.glob(f"{task}_*.py"))
                parser.error(f"`--{task}` takes: {', '.join(known)}. Received: {peer!r}")
            else:
                check_variant(parser, task, peer)
    for name in ("rounds", "seconds", "limit", "threads"):
        if getattr(args, name) <= 0:
            parser.error(f"`--{name}` must be above 0. Received: {getattr(args, name)}")
    if args.device == "gpu" and not args.show:
        peers = [*(args.train or []), *(args.decode or [])]
        others = [peer for peer in peers if name_of(peer) not in ON_GPUS]
        if others:
            parser.error(f"on a GPU only {', '.join(ON_GPUS)} can be measured. Received: {others[0]!r}")
        if not gpu_names():
            parser.error("`--device gpu`: nvidia-smi finds no GPU")
    # Rather now than after hours.
    if args.records and args.records.is_dir():
        parser.error(f"{args.records} is a folder; `--records` wants a file")
    if args.output and args.output.exists() and not args.output.is_dir():
        parser.error(f"{args.output} is a file; `--output` wants a folder")
    if args.output:
        check_picture(parser)
        try:
            args.output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            parser.error(f"{args.output} cannot be made ({error.strerror}); `--output` wants a folder")
    return args


def check_variant(parser, task, peer):
    """Refuses words of a variant that the peer's program does not take."""
    known = re.search(r"parse_job\((\(.*\))?\)", program_of(task, peer).read_text())[1]
    try:
        variant_words(peer.partition(":")[2], ast.literal_eval(known or "()"))
    except ValueError as error:
        parser.error(f"`--{task}`, {peer}: {error}")


def name_of(peer):
    """Returns the name of a peer, `NAME` or `NAME:VARIANT`."""
    return peer.partition(":")[0]


def program_of(task, peer, before=None):
    """Returns the path of the program of a peer; that of `before` is our own in the checkout `before`."""
    if name_of(peer) == BEFORE:
        return before / "benchmarks" / "peers" / f"{task}_ours.py"
    return PEERS / f"{task}_{name_of(peer)}.py"


def names_of(text):
    """Returns the names that a comma-separated list has; refuses one without any as argparse wants it."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise argparse.ArgumentTypeError("the list is empty")
    return names


def sizes_of(text):
    """Returns names of `SIZES`; refuses others as argparse wants it."""
    names = names_of(text)
    for name in names:
        if name not in SIZES:
            raise argparse.ArgumentTypeError(f"sizes are: {', '.join(SIZES)}. Received: {name!r}")
    return names


class Comparison:
    """Rounds of processes.

    Args:
        args: of `parse_args`.
        write: function that is given each record, a dict.
        run_process: as `launch`.
    """

    def __init__(self, args, write, run_process=launch):
        self.args = args
        self._write = write
        self._run_process = run_process
        self._given_up = set()
        self._about = {}
        self._mkl = None
        tasks = {"train": args.train or [], "decode": args.decode or []}
        self.jobs = [(task, size, peer) for size in args.sizes for task in tasks for peer in tasks[task]]

    def install(self):
        """Makes the environments that are missing; says which cannot be had."""
        for environment in dict.fromkeys(environment_of(peer) for *_, peer in self.jobs):
            if environment in NEWEST_PYTHON:
                print(f"environment {environment}", file=sys.stderr, flush=True)
                try:
                    install(environment)
                except ValueError as error:
                    print(f"left out: {error}", file=sys.stderr, flush=True)

    def run(self):
        """Measures all rounds."""
        self._about["run"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        with tempfile.TemporaryDirectory() as folder:
            self._mkl = unlocked_mkl(pathlib.Path(folder))
            self._run()

    def _run(self):
        args = self.args
        settings = {"threads": args.threads, "rounds": args.rounds, "seconds": args.seconds}
        if args.device == "gpu":
            settings["gpu"] = ", ".join(gpu_names())
        settings |= {"malloc": args.malloc, "mkl": "unlocked" if self._mkl else "as it is"}
        self._write({"task": "machine", **self._about, **machine(), **settings})
        for number in range(args.rounds):
            self._about["round"] = number
            self._measure_peaks()
            # Whoever comes first differs from round to round.
            shift = number * len(self.jobs) // args.rounds
            for job in self.jobs[shift:] + self.jobs[:shift]:
                if job not in self._given_up:
                    self._measure(*job)

    def _measure(self, task, size, peer):
        variant = peer.partition(":")[2]
        arguments = ["--size", size, "--seconds", str(self.args.seconds), "--variant", variant]
        program, what = program_of(task, peer, self.args.before), {"task": task, "size": size, "peer": peer}
        self._process(what, program, arguments, environment_of(peer))

    def _measure_peaks(self):
        """Measures matrix products once in each Python, and in ours without oneDNN, too."""
        environments = {}
        for *_, peer in self.jobs:
            with contextlib.suppress(ValueError):  # a peer without a Python has its own record
                environments.setdefault(python_of(environment_of(peer)), environment_of(peer))
        for python, environment in environments.items():
            what = {"task": "peak", "environment": environment}
            self._process(what, PEERS / "peak.py", [], environment)
            if python == python_of("ours") and self.args.device == "cpu":
                self._process(what, PEERS / "peak.py", [], environment, onednn=False)

    def _process(self, what, program, arguments, environment, *, onednn=True):
        """Runs one process and writes its records, or why there are none."""
        how = "" if onednn else " without oneDNN"
        print(
            f"round {self._about['round'] + 1}: {' '.join(what.values())}{how}", file=sys.stderr, flush=True
        )
        variables = child_environment(
            self.args.threads,
            onednn=onednn,
            malloc=self.args.malloc,
            device=self.args.device,
            preload=self._mkl if environment == "torch" else None,
        )
        try:
            python = python_of(environment)
            records = self._run_process(
                python, program, arguments, environment=variables, limit=self.args.limit
            )
        except ValueError as error:
            self._given_up.add(tuple(what.values()))
            self._write({**what, **self._about, "failed": str(error)})
            return
        for record in records:
            self._write({**record, **what, **self._about})


def write_output(records, folder):
    """Writes `speed.md` and, of each task with results, `training.png` or `decoding.png`."""
    from plots import compared_bars

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "speed.md").write_text(report(records), encoding="utf-8")
    for task, title in TITLES.items():
        panels = {}
        for (kind, size, batch, precision), peers in groups_of(records).items():
            if kind == task:
                name = ", ".join(filter(None, [size, f"batch of {batch}" if batch else "", precision]))
                panels[name] = {peer: [record["speed"] for record in found] for peer, found in peers.items()}
        if panels:
            ours = {peer for peers in panels.values() for peer in peers if is_ours(peer)}
            figure = compared_bars(panels, highlighted=ours, unit=UNITS[task], columns=2, title=title)
            figure.savefig(folder / f"{title.lower()}.png", dpi=150)


def read(paths):
    """Returns the records of several files.

    Raises:
        ValueError: a line is no record, or there is none.
    """
    records = []
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                record = json.loads(line)
                record["task"]
            except (ValueError, TypeError, KeyError):
                raise ValueError(f"{path}:{number}: a record of this program is wanted") from None
            records.append(record)
    if not records:
        raise ValueError(f"{', '.join(map(str, paths))}: no records")
    return records


def main(argv=None):
    """Runs the program; returns its exit code, 1 where every peer failed."""
    args = parse_args(argv)
    records = []

    def write(record):
        records.append(record)
        if args.records:
            args.records.parent.mkdir(parents=True, exist_ok=True)
            with args.records.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")

    if args.show:
        try:
            records = read(args.show)
        except (OSError, ValueError) as error:
            return refused("compare.py", error)
    else:
        comparison = Comparison(args, write)
        try:
            if args.install:
                comparison.install()
            comparison.run()
        except KeyboardInterrupt:
            kept = f"{args.records} has what was measured" if args.records else "nothing is kept"
            print(f"compare.py: stopped; {kept}", file=sys.stderr)
            return 130
    print(report(records))
    if args.output:
        write_output(records, args.output)
    if not any("speed" in record for record in records):
        print("compare.py: nothing could be measured", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
