"""A run that SIGTERM stops again and again, beside one that is not stopped: what is lost, how long it takes.

python tests/shared/stopped_runs.py 50 --seed 1 --folder /tmp/stopped
"""

import argparse
import contextlib
import json
import pathlib
import random
import re
import signal
import statistics
import tempfile
import time
from typing import NamedTuple

import numpy as np
import processes
import tensorflow as tf

EVERY = 2  # steps between two validations
FEWEST, MOST = 8, 30  # validations before a signal
SETTINGS = {
    "training.validate_every_steps": EVERY,
    "training.validation_sentences": 5,
    "training.checkpoint_every_steps": 17,
    "training.warmup_steps": 7,
}


class Stop(NamedTuple):
    """One end of a process.

    Attributes:
        validations: made before the signal.
        since_signal: seconds from the signal to the end.
        since_saved: seconds from the line that says so to the end, to about 20 ms.
    """

    validations: int
    since_signal: float
    since_saved: float


def stop_again_and_again(folder, corpus, times, seed):
    """Trains two runs of the same length, one stopped so many times.

    Asserts that nothing is lost: each part goes on at the step that was said to be saved, and the
    two runs end alike.

    Returns:
        list of `Stop`.
    """
    rng = random.Random(seed)
    counts = [rng.randint(FEWEST, MOST) for _ in range(times)]
    # A process may come a few validations further before it hears of its signal.
    settings = {**SETTINGS, "training.max_steps": EVERY * (sum(counts) + 8 * times + 10)}
    arguments = ("--dataset", corpus, "--source", "en", "--target", "de")
    stops, saved = [], None
    for count in [*counts, None]:
        process = processes.Process(folder / "stopped", settings, arguments)
        with contextlib.ExitStack() as stack:
            stack.callback(process.kill)
            if count is not None:
                stops.append(_stop(process, count))
            else:
                assert process.end(seconds=3600) == 0, process.err
        assert saved is None or f"continuing at step {saved:,}\n" in process.out, process.out
        if count is not None:
            saved = int(
                re.search(r"after step ([\d,]+), which is saved", process.last_line)[1].replace(",", "")
            )
            assert processes.newest(process.run) == saved
            print(f"{len(stops):3}  step {saved:5}  {stops[-1]}", flush=True)
    whole = processes.Process(folder / "whole", settings, arguments)
    with contextlib.ExitStack() as stack:
        stack.callback(whole.kill)
        assert whole.end(seconds=3600) == 0, whole.err
    assert_delivered_alike(process.run, whole.run)
    return stops


def _stop(process, count):
    before = _validations(process.run)
    process.wait_until(lambda: time.sleep(0.01) or _validations(process.run) >= before + count)
    begin, saved = time.monotonic(), None
    process.send(signal.SIGTERM)
    while not process.ended:
        if saved is None and "is saved" in process.err:
            saved = time.monotonic()
        assert time.monotonic() < begin + processes.PATIENCE, process.err
        time.sleep(0.01)
    end = time.monotonic()
    assert process.end() == 143, process.err
    return Stop(_validations(process.run) - before, end - begin, end - (saved or end))


def _validations(run):
    try:
        lines = (run / "history.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    except FileNotFoundError:
        return 0
    return sum(json.loads(line)["kind"] == "validation" for line in lines)


def assert_delivered_alike(run, other):
    """Asserts that two runs end alike to the bit: newest states, all weights beside them, translations."""
    processes.assert_same(run, other)
    found, expected = _beside(run), _beside(other)
    assert found.keys() == expected.keys()
    assert any(name.startswith("averaged/") for name in expected), "no averaged weights"
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    texts = [sorted(folder.glob("translations.*")) for folder in (run, other)]
    assert texts[0]
    assert [path.read_bytes() for path in texts[0]] == [path.read_bytes() for path in texts[1]]


def _beside(run):
    """{file: {name: array}}, flat, of all weights of a run but the training states."""
    found = {}
    for path in sorted(run.rglob("*.index")):
        place = path.relative_to(run).with_suffix("")
        if place.parts[0] != "checkpoints":
            reader = tf.train.load_checkpoint(str(run / place))
            for name in reader.get_variable_to_shape_map():
                if not name.startswith("_CHECKPOINTABLE"):
                    found[f"{place}: {name}"] = reader.get_tensor(name)
    return found


def main():
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("times", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=pathlib.Path, help="a new folder (default: a temporary one)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or pathlib.Path(temporary)
        corpus = folder / "corpus"
        corpus.mkdir(parents=True)
        processes.write_corpus(corpus, 800)
        stops = stop_again_and_again(folder, corpus, args.times, args.seed)
    for name in ("since_signal", "since_saved"):
        seconds = [getattr(stop, name) for stop in stops]
        print(f"{name}: median {statistics.median(seconds):.2f} s, worst {max(seconds):.2f} s")
    print(f"{len(stops)} signals, nothing lost; weights, averages and translations as without them")


if __name__ == "__main__":
    main()
