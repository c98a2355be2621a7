"""The two sides of `time_to_quality.py`: processes that train, and what they have reported."""

import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def settings_of_ours(args):
    """Returns what both our run and its preparation take as `--set`."""
    return [
        *args.set,
        f"training.seed={args.seed}",
        f"training.validate_every_steps={args.validate_every}",
        "training.validation_sentences=1000000000",
        f"training.precision={args.precision}",
    ]


def read_records(path):
    """Returns the records of a file of JSON lines, without one that is half written."""
    if not path.exists():
        return []
    return [
        json.loads(line) for line in path.read_text(encoding="utf-8").splitlines(True) if line[-1] == "\n"
    ]


class Contestant:
    """A process that trains, and what it has reported.

    Args:
        name: for records and pictures.
        command: list of str.
        log: path of its standard error; its standard output is beside it, ending with `.out`.
        core: the one it runs on; `None` for all.
    """

    def __init__(self, name, command, log, core):
        self.name, self.command, self.log, self.core = name, command, log, core
        self.out = log.with_suffix(".out")
        self.process, self.stopped = None, False

    def start(self):
        """Starts it on its core."""
        threads = str(1 if self.core is not None else len(os.sched_getaffinity(0)))
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": threads,
            "CUDA_VISIBLE_DEVICES": "-1",
        }
        with pinned(self.core), open(self.out, "w") as out, open(self.log, "w") as log:
            self.process = subprocess.Popen(self.command, stdout=out, stderr=log, env=env)

    def is_running(self):
        """Whether it still trains.

        Raises:
            RuntimeError: it failed.
        """
        code = self.process.poll()
        if code and not self.stopped:
            last = (self.log.read_text().strip().splitlines() or ["no message"])[-1]
            raise RuntimeError(f"{self.name} ended with code {code}: {last} (all of it: {self.log})")
        return code is None

    def stop(self):
        """Ends it and waits for it."""
        if self.process and self.process.poll() is None:
            self.stopped = True
            self.process.terminate()
            self.process.wait()


class Ours(Contestant):
    """`train_wmt.py`, read from the history of its run folder."""

    def __init__(self, args, out, core, facts):
        self.folder, self.facts = out / "ours", facts
        flags = ["--dataset", args.data, "--source", args.source, "--target", args.target]
        flags += ["--preset", args.preset, "--run-dir", str(self.folder)]
        flags += [part for text in settings_of_ours(args) for part in ("--set", text)]
        program = str(ROOT / "pipelines" / "train_wmt.py")
        super().__init__("ours", [sys.executable, program, *flags], out / "ours.log", core)

    def validations(self):
        """Returns the records of its validations so far."""
        took = [int(text) for text in re.findall(r"(?m)^validation .*took (\d+) s", self.out.read_text())]
        found = [one for one in read_records(self.folder / "history.jsonl") if one["kind"] == "validation"]
        return [
            {
                **{key: one[key] for key in ("kind", "step", "minutes", "bleu", "loss")},
                "training_minutes": one["minutes"] - sum(took[:number]) / 60,
                "validation_seconds": took[number] if number < len(took) else None,
            }
            for number, one in enumerate(found)
        ]


class Peer(Contestant):
    """`peers/quality_onmt.py`, whose translations are scored here."""

    def __init__(self, args, out, core, corpus):
        from keras_transformer.evaluation.bleu import bleu_scorer

        program = str(ROOT / "benchmarks" / "peers" / "quality_onmt.py")
        specification = out / "peer" / "specification.json"
        self.spec = json.loads(specification.read_text(encoding="utf-8"))
        command = [args.peer_python, program, str(specification)]
        super().__init__("OpenNMT-tf", command, out / "peer.log", core)
        self.tokenizer, self.references = corpus.tokenizers.target, corpus.validation.target
        self.scorer, self.scored = bleu_scorer(args.target), {}
        # Only after a first score does sacreBLEU know its signature.
        self.scorer.corpus_score(self.references, [self.references])

    def validations(self):
        """Returns the records of its validations so far."""
        found = [one for one in read_records(self.out) if one["kind"] == "validation"]
        for one in found:
            if one["step"] not in self.scored:
                rows = pathlib.Path(one["translations"]).read_text(encoding="utf-8").splitlines()
                ids = [[int(token) if token.isdigit() else 3 for token in row.split()] for row in rows]
                texts = self.tokenizer.decode(ids)
                self.scored[one["step"]] = self.scorer.corpus_score(texts, [self.references]).score
        return [{**one, "bleu": self.scored[one["step"]]} for one in found]

    @property
    def facts(self):
        """What it is and how it makes batches; `None` before it has said so."""
        ready = [one for one in read_records(self.out) if one["kind"] == "ready"]
        return {**ready[0], "kind": "contestant", "name": self.name} if ready else None


@contextlib.contextmanager
def pinned(core):
    """Processes that are started inside run on one core; on all where it is `None`."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
