"""Kills runs at random file operations, from the first start on, and starts them again until they are done.

    python tests/shared/kill_loop.py 200 --seed 1

Each start is killed with SIGKILL at an operation that is drawn: before it, or some milliseconds into
it. The operations are those on the files of the run folder: opening to write, renaming, removing, making
folders, bringing to the disk, and TensorFlow's writing of a checkpoint. A start that is not reached by its
kill ends the run. Then weights, history, alignment and translations must equal, to the bit, those of a run
that was never disturbed, and the folder must hold the same files. One line for each run and one for all.

TensorFlow is imported once; each start is a process forked before TensorFlow does anything.
"""

import argparse
import os
import pathlib
import random
import resource
import signal
import sys
import tempfile
import threading
import time

import numpy as np
import processes

WATCHED = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.symlink"}
SETTINGS = {
    "training.max_steps": 14,
    "training.checkpoint_every_steps": 4,
    "training.validate_every_steps": 6,
    "training.warmup_steps": 2,
    "training.validation_sentences": 0,  # whose search takes long to be made, and writes no file
    "training.keep_best": 1,
}
# What no two runs have in common, or nobody reads.
OTHER = ("tensorboard/",)


class Operations:
    """Counts the operations of this process on the files of a run folder, and ends it at one.

    Args:
        run: path of the run folder.
        last: number of the operation to be killed at; 0 for none.
        delay: seconds from the beginning of that operation to the kill.
    """

    def __init__(self, run, last, delay):
        self.run, self.last, self.delay = os.path.abspath(run), last, delay
        self.count = 0

    def watch(self):
        """Begins to count."""
        import tensorflow as tf

        sys.addaudithook(self._heard)
        for owner, name in ((os, "fsync"), (tf.train.Checkpoint, "write")):
            setattr(owner, name, self._counted(getattr(owner, name)))

    def _heard(self, event, arguments):
        if event == "open":
            path, _, flags = arguments
            ours = isinstance(path, (str, os.PathLike)) and os.path.abspath(path).startswith(self.run)
            if ours and flags & (os.O_WRONLY | os.O_RDWR):
                self._next()
        elif event in WATCHED:
            self._next()

    def _counted(self, function):
        def counted(*arguments, **named):
            self._next()
            return function(*arguments, **named)

        return counted

    def _next(self):
        self.count += 1
        if self.count == self.last:
            if self.delay:
                threading.Thread(target=self._end, daemon=True).start()
            else:
                os.kill(os.getpid(), signal.SIGKILL)

    def _end(self):
        time.sleep(self.delay)
        os.kill(os.getpid(), signal.SIGKILL)


def start(run, corpus, last=0, delay=0.0):
    """Trains in a forked process.

    Returns:
        (exit code, -9 where it was killed; number of operations, 0 where it was killed).
    """
    arguments = ["--run-dir", str(run), "--dataset", str(corpus), "--source", "en", "--target", "de"]
    for name, value in {**processes.SETTINGS, **SETTINGS}.items():
        arguments += ["--set", f"{name}={value}"]
    count = run.with_name(f"{run.name}.count")
    count.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        code = 99
        try:
            log = os.open(run.with_name(f"{run.name}.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            from keras_transformer.cli import train as train_wmt

            operations = Operations(run, last, delay)
            operations.watch()
            code = train_wmt.main(arguments)
            sys.stdout.flush()
            sys.stderr.flush()
            count.write_text(str(operations.count))
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    counted = int(count.read_text()) if count.exists() else 0
    return os.waitstatus_to_exitcode(status), counted


def files(run):
    """Returns the names of all files of a run that every run has."""
    names = {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()}
    return {name for name in names if not name.startswith(OTHER)}


def tensors(prefix):
    """Returns {name: array} of a checkpoint, but for the time it took."""
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(prefix))
    return {
        name: np.asarray(reader.get_tensor(name))
        for name in reader.get_variable_to_shape_map()
        if not name.startswith(("seconds/", "_CHECKPOINTABLE"))
    }


def differences(run, other):
    """Returns list of str, in what two finished runs differ; nothing where they are alike."""
    found = [f"files: {sorted(files(run) ^ files(other))}"] if files(run) != files(other) else []
    for name in sorted(files(run) & files(other)):
        if name.endswith(".index"):
            one, two = (tensors(folder / name.removesuffix(".index")) for folder in (run, other))
            if one.keys() != two.keys() or any(not np.array_equal(one[key], two[key]) for key in one):
                found.append(name)
        elif name == "history.jsonl":
            found += [] if processes.history(run) == processes.history(other) else [name]
        elif ".data-" not in name and (run / name).read_bytes() != (other / name).read_bytes():
            found.append(name)
    return found


def kill_loop(number, folder, *, seed):
    """Kills so many times; returns list of str, what was wrong."""
    rng = random.Random(seed)
    corpus = folder / "corpus"
    corpus.mkdir()
    processes.write_corpus(corpus, 200)
    whole = folder / "whole"
    code, operations = start(whole, corpus)
    assert code == 0, (whole.with_name("whole.log")).read_text()
    print(f"undisturbed: {operations} file operations", flush=True)
    kills, runs, wrong = 0, 0, []
    began = time.monotonic()
    while kills < number:
        run, at, step = folder / f"run-{runs}", [], -1
        runs += 1
        while True:
            last = 0
            if kills < number:  # mostly soon, before TensorFlow compiles; else anywhere
                last = rng.randint(1, 12 if rng.random() < 0.6 else operations)
            code, _ = start(run, corpus, last, rng.choice([0.0, rng.uniform(0, 0.01)]))
            newest = processes.newest(run)
            if newest < step:
                wrong.append(f"{run.name}: step {step} was there, now step {newest}")
            step = newest
            if code != -signal.SIGKILL:
                break
            kills += 1
            at.append(last)
        said = [] if code == 0 else [f"exit code {code}: {_last_line(run)}"]
        said += differences(run, whole) if code == 0 else []
        wrong += [f"{run.name}: {each}" for each in said]
        seconds = time.monotonic() - began
        print(
            f"{run.name}: killed at {at}; {said or 'as undisturbed'}; {kills} kills in {seconds:.0f} s",
            flush=True,
        )
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = (used.ru_utime + used.ru_stime) / max(kills, 1)
    print(
        f"seed {seed}: {kills} kills in {runs} runs, {seconds:.1f} s of CPU a kill; {len(wrong)} differences",
        flush=True,
    )
    return wrong


def _last_line(run):
    return run.with_name(f"{run.name}.log").read_text(errors="replace").rstrip().rpartition("\n")[2]


def main():
    """Runs the program; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kills", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=pathlib.Path, help="a new folder, which is kept")
    args = parser.parse_args()
    sys.path.insert(0, str(processes.ROOT))
    from keras_transformer.cli.process import import_quietly

    import_quietly("keras_transformer.training.run")
    if args.folder:
        args.folder.mkdir()
        return 1 if kill_loop(args.kills, args.folder, seed=args.seed) else 0
    with tempfile.TemporaryDirectory() as name:
        return 1 if kill_loop(args.kills, pathlib.Path(name), seed=args.seed) else 0


if __name__ == "__main__":
    sys.exit(main())
