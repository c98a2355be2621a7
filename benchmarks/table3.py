"""Table 3 of the paper at any size, and other grids: models trained alike, measured on the validation split.

    python benchmarks/table3.py DIR --source en --target de --out runs/table3
    python benchmarks/table3.py DIR --source en --target de --out runs/table3 --seeds 1 2 3 --rows base "(A)"
    python benchmarks/table3.py wmt14_translate/de-en --preset base --out runs/table3   # the paper's own rows
    python benchmarks/table3.py --show runs/table3 --plot table3.png
    python benchmarks/table3.py DIR --grid sensitivity --set training.max_steps=3000 --seeds 1 --out runs/lr
    python benchmarks/table3.py DIR --grid departures --preset multi30k_tiny_pre_norm --out runs/departures

DIR is a folder with train.*, valid.*, or another dataset of `train_wmt.py`. It is prepared once, so all
models have the same vocabulary and the same batches. Every row changes the settings of `--preset` (and
`--set`) as the paper's row changes its base model: heads at constant h * d_k, narrower keys, fewer and more
layers, narrower and wider models, dropout, label smoothing, learned positions (`--list` prints them).

`--grid sensitivity` has other rows: post-norm and pre-norm, each with the preset's warm-up and an eighth of
it, and peak learning rates from a quarter to four times the preset's. The rows of `--grid departures` are
relative and rotary positions, QK-norm, RMSNorm, SwiGLU and GEGLU, one at a time.

Perplexity is per sub-word token and without label smoothing. BLEU is sacreBLEU of translations found with
the search settings of the preset. Both are of the newest weights, without averaging, as in the paper's
table (`--checkpoint` names others).

A model that is finished, or was stopped because its gradient was not finite, is a line of OUT/records.jsonl
and is not trained again. Ctrl-C saves a checkpoint of the model in training; the same command then resumes.
`--jobs 2` trains two models at a time, each on half of the cores. OUT/corpus is the prepared corpus; grids of
the same dataset and vocabulary may share OUT.
"""

import concurrent.futures
import multiprocessing
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import threading

import departure_rows
import sensitivity_rows
import table3_records
import table3_rows
from refusing import Parser, check_picture, refused

from keras_transformer.config.programs import ExitCode

PIPELINES = pathlib.Path(__file__).resolve().parents[1] / "pipelines"
# Names of weights that the runs of all rows can have; `RunFolder.load_weights` explains them.
CHECKPOINTS = r"last|best|averaged|final|ema|(last|best)-[1-9]\d*"
# Name -> rows of a preset, table of records, and the function of `plots` that draws them.
GRIDS = {
    "table3": (table3_rows.grid, table3_rows.markdown, "table3_differences"),
    "sensitivity": (sensitivity_rows.grid, sensitivity_rows.markdown, "sensitivity_curves"),
    "departures": (departure_rows.grid, departure_rows.markdown, "table3_differences"),
}


def parse_args(argv=None):
    """Parses the command line."""
    parser = Parser(description=__doc__.split("\n")[0])
    parser.add_argument("dataset", nargs="?", metavar="DATASET", help="as of train_wmt.py")
    parser.add_argument("--source", default="en", metavar="LANGUAGE")
    parser.add_argument("--target", default="de", metavar="LANGUAGE")
    parser.add_argument("--preset", default="multi30k_tiny", help="the base row (default: %(default)s)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.FIELD=VALUE", help="a setting of all rows"
    )
    parser.add_argument("--grid", choices=list(GRIDS), default="table3", help="default: %(default)s")
    parser.add_argument(
        "--rows", nargs="+", metavar="ROW", help="names or groups, such as (A) or pre-norm (default: all)"
    )
    parser.add_argument("--seeds", nargs="+", type=int, help="of every row (default: 1 2)")
    parser.add_argument("--checkpoint", default="last", help="weights that are measured (default: last)")
    parser.add_argument("--jobs", type=int, default=1, help="models trained at a time (default: 1)")
    parser.add_argument("--out", type=pathlib.Path, metavar="DIR", help="run folders and records")
    parser.add_argument("--list", action="store_true", help="print the rows and exit")
    parser.add_argument("--show", nargs="+", type=pathlib.Path, metavar="OUT", help="print the table only")
    parser.add_argument("--plot", type=pathlib.Path, metavar="PNG", help="also draw what was measured")
    args = parser.parse_args(argv)
    if args.show and (args.list or args.dataset or args.out or args.rows or args.seeds):
        parser.error("--show takes only --grid and --plot beside it")
    if not (args.show or args.list) and not (args.dataset and args.out):
        parser.error("give DATASET and --out DIR, or --show OUT")
    cores = len(os.sched_getaffinity(0))
    if not 1 <= args.jobs <= cores:
        parser.error(f"--jobs must be from 1 to {cores}, the cores of this process. Received: {args.jobs}")
    if not re.fullmatch(CHECKPOINTS, args.checkpoint):
        parser.error(
            f"--checkpoint {args.checkpoint}: give last, best, averaged, final, ema, last-N or best-N"
        )
    if args.plot:
        check_picture(parser, args.plot)
    args.seeds = [1, 2] if args.seeds is None else args.seeds
    if len(set(args.seeds)) < len(args.seeds) or min(args.seeds) < 0:
        parser.error(f"--seeds must be different and at least 0. Received: {args.seeds}")
    return args


def selected(rows, names):
    """Returns the rows with these names or in these groups; all rows without names.

    Raises:
        ValueError: a name is neither.
    """
    for name in names or ():
        if not any(name in (row.name, row.group) for row in rows):
            known = ", ".join(shlex.quote(row.name) for row in rows)
            groups = ", ".join(
                shlex.quote(group) for group in dict.fromkeys(row.group for row in rows) if group
            )
            raise ValueError(f"--rows {name!r}: choose from {known}; or from the groups {groups}")
    return [row for row in rows if not names or {row.name, row.group} & set(names)]


class Grid:
    """Trains and measures the rows of a table.

    Args:
        args: the command line.
        rows: list of `Row`.
    """

    def __init__(self, args, rows):
        self.args, self.rows = args, rows
        self.records = args.out / "records.jsonl"
        self.lock, self.processes, self.stopped = threading.Lock(), [], False

    def run(self):
        """Runs what has no record yet; returns the exit code."""
        if self.args.out.exists() and not self.args.out.is_dir():
            raise ValueError(f"--out {self.args.out}: a file. Name a folder")
        done = table3_records.read_all([self.records]) if self.records.exists() else []
        models = [(row, seed) for seed in self.args.seeds for row in self.rows]
        self._check_settings(done, models)
        measured = {(record["row"], record["seed"]) for record in self.own(done)}
        todo = [(row, seed) for row, seed in models if (row.name, seed) not in measured]
        cores = sorted(os.sched_getaffinity(0))
        shares = [cores[job :: self.args.jobs] for job in range(self.args.jobs)]
        free = list(shares)
        with concurrent.futures.ThreadPoolExecutor(self.args.jobs) as pool:
            futures = []
            try:
                self.corpus = pool.submit(self._prepare).result()
                print(f"{len(todo)} of {len(models)} models to train", flush=True)
                futures += [pool.submit(self._one, row, seed, free) for row, seed in todo]
                for future in concurrent.futures.as_completed(futures):
                    future.result()
            except BaseException:
                self._stop(futures)
                raise
        return 0

    def _check_settings(self, records, models):
        """Raises `ValueError` if a record is of a model that this command would have, with other settings.

        Other weights (`--checkpoint`) of the same models may stand beside them, and so may another grid.
        """
        common, names = self.common(), {(row.name, seed) for row, seed in models}
        for record in records:
            if record["grid"] != self.args.grid and (record["row"], record["seed"]) not in names:
                continue
            theirs = {**record["common"], "checkpoint": common["checkpoint"]}
            if difference := table3_records.difference(theirs, common):
                raise ValueError(
                    f"--out {self.args.out}: has models with {difference}. Give another folder, or the same "
                    "settings"
                )

    def common(self):
        """Returns what all rows of the table have in common, as in the records."""
        return {name: getattr(self.args, name) for name in table3_records.COMMON}

    def own(self, records):
        """Returns the records of this grid and of the weights that `--checkpoint` names."""
        common = self.common()
        return [r for r in records if r["grid"] == self.args.grid and r["common"] == common]

    def _prepare(self):
        """Returns the folder of the prepared corpus, prepared unless it is there.

        What `--set` says of cleaning and of the vocabulary is for the corpus.
        """
        from keras_transformer.config.presets import preset
        from keras_transformer.config.settings import override

        data = override(preset(self.args.preset), self.args.set).data
        corpus = self.args.out / "corpus"
        command = [self.args.dataset, corpus, "--source", self.args.source, "--target", self.args.target]
        fixed = ("model_type", "vocab_size", "normalization", "split_digits", "separate_vocabularies")
        settings = [f"data.{name}={str(getattr(data, name)).lower()}" for name in (*fixed, "vocab_texts")]
        settings += [f"data.{name}={getattr(data, name)}" for name in ("max_length", "on_bad_utf8")]
        folders = {name: getattr(data, name) for name in ("data_dir", "manual_dir")}
        settings += [f"data.{name}={folder}" for name, folder in folders.items() if folder]
        settings += [text for text in self.args.set if text.startswith("cleaning.")]
        self._call("prepare_wmt.py", command + [part for text in settings for part in ("--set", text)])
        return corpus

    def _one(self, row, seed, free):
        """Trains and measures one model."""
        with self.lock:
            if self.stopped:
                return
            cores = free.pop()
        try:
            name = f"{re.sub(r'[^a-z0-9.]+', '-', row.name.lower())}-seed-{seed}"
            run = self.args.out / name
            settings = [text for text in self.args.set if not text.startswith("cleaning.")]
            settings += ["training.validation_sentences=0", *row.settings]
            settings.append(f"training.seed={seed}")
            flags = ["--dataset", self.corpus, "--preset", self.args.preset, "--run-dir", run]
            flags += [part for text in settings for part in ("--set", text)]
            log = self.args.out / f"{name}.log"
            print(f"training {row.name}, seed {seed}: {log}", flush=True)
            code = self._call("train_wmt.py", flags, log=log, cores=cores, accepted=(0, ExitCode.NOT_FINITE))
            context = multiprocessing.get_context("spawn")
            pinned = {"initializer": os.sched_setaffinity, "initargs": (0, cores)}
            with concurrent.futures.ProcessPoolExecutor(1, context, **pinned) as pool:
                found = pool.submit(
                    table3_records.measure, str(run), self.args.checkpoint, stopped=code != 0
                ).result()
            record = {"row": row.name, "counterpart": row.counterpart, "seed": seed, "common": self.common()}
            record |= {"grid": self.args.grid, "settings": row.settings, **found}
            with self.lock:
                table3_records.append(self.records, record)
            figures = "diverged"
            if code == 0:
                figures = f"perplexity {found['perplexity']:.3f}, BLEU {found['bleu']:.2f}"
            size = f"{found['parameters']:,} parameters, {found['minutes']:.1f} minutes"
            print(f"{row.name}, seed {seed}: {figures}, {size}", flush=True)
        finally:
            with self.lock:
                free.append(cores)

    def _call(self, program, arguments, log=None, cores=None, accepted=(0,)):
        """Runs one of our programs; returns its exit code.

        Raises:
            ValueError: the code is not among those accepted; the message has the program's last line.
        """
        command = [sys.executable, PIPELINES / program, *arguments]
        cores = cores or sorted(os.sched_getaffinity(0))
        env = {**os.environ, "OMP_NUM_THREADS": str(len(cores))}
        with open(log or os.devnull, "a", encoding="utf-8") as out:
            process = subprocess.Popen(
                list(map(str, command)),
                stdout=out,
                stderr=subprocess.PIPE,
                text=True,
                env=env,
                start_new_session=True,
                preexec_fn=lambda: os.sched_setaffinity(0, cores),
            )
            with self.lock:
                self.processes.append(process)
                if self.stopped:  # `_stop` came while the program started
                    process.terminate()
            errors = process.communicate()[1]
            out.write(errors)
        if process.returncode not in accepted:
            last = (errors.strip().splitlines() or ["no message"])[-1]
            raise ValueError(f"{program} ended with code {process.returncode}: {last}")
        return process.returncode

    def _stop(self, futures):
        """Ends the programs that run: a training saves a checkpoint first."""
        with self.lock:
            self.stopped = True
        for future in futures:
            future.cancel()
        for process in self.processes:
            if process.poll() is None:
                process.terminate()


def main(argv=None):
    """Runs the program; returns its exit code."""
    args = parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    try:
        grid, markdown, plot = GRIDS[args.grid]
        if args.show:
            records = table3_records.read_grid(args.show, args.grid)
        else:
            from keras_transformer.config.presets import preset
            from keras_transformer.config.settings import override

            rows = selected(grid(override(preset(args.preset), args.set), args.preset), args.rows)
            if args.list:
                widths = [2 + max(len(row[i]) for row in rows) for i in range(2)]
                for row in rows:
                    print(f"{row.group:<{widths[0]}}{row.name:<{widths[1]}}{' '.join(row.settings)}")
                return 0
            trained = Grid(args, rows)
            trained.run()
            records = trained.own(table3_records.read_all([args.out]))
        print(markdown(records))
        if args.plot:
            import plots

            getattr(plots, plot)(records).savefig(args.plot, dpi=150)
    except KeyboardInterrupt:
        print("table3.py: stopped. Run the same command again to resume", file=sys.stderr)
        return 130
    except (OSError, ValueError) as error:
        return refused("table3.py", error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
