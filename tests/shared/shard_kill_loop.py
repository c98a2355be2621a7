"""Kills `translate --shards` at random file operations, and starts it again until all parts are complete.

    python tests/shared/shard_kill_loop.py 200 --seed 1

Each start is a forked process, killed with SIGKILL before or during an operation that is drawn, as in
`kill_loop.py`. Some starts translate one part, others all that are missing; some are two processes at a time.
In the end the joined file must equal that of a translation that was never disturbed. The model is a stand-in,
so that a kill takes milliseconds.
"""

import argparse
import functools
import os
import pathlib
import random
import signal
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(pathlib.Path(__file__).parent)]

from kill_loop import Operations  # noqa: E402

from keras_transformer.cli import translate, translate_shards  # noqa: E402
from keras_transformer.config.sections import SearchConfig  # noqa: E402
from keras_transformer.translation.texts import NBest, Translation  # noqa: E402

PARTS = 5


class StandIn:
    """Translates a line to its number, its length and the size of its chunk."""

    search = SearchConfig()

    def n_best(self, texts, *args, first_number, **options):
        """As `Translator.n_best`."""
        return [
            NBest(
                [Translation(f"{i} {len(text)} {len(texts)} {'x' * 500}", 0.0, 0.0, [], [], True)],
                [],
                1,
                False,
            )
            for i, text in enumerate(texts, first_number)
        ]


def start(arguments, folder, last=0, delay=0.0):
    """Starts the program in a forked process, to be killed at its operation number `last`; returns its id."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 2)
            Operations(folder / "parts", last, delay).watch()
            code = translate.main(arguments)
        finally:
            os._exit(code)
    return child


def wait(child):
    """Returns the exit code of a process; -9 where it was killed."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_loop(number, folder, *, seed, num_lines):
    """Kills so many times; returns list of str, what was wrong."""
    rng = random.Random(seed)
    translate_shards._load = functools.partial(lambda *args: StandIn())
    text = folder / "text"
    text.write_text("".join("a" * rng.randint(0, 60) + "\n" for _ in range(num_lines)))
    kills, runs, wrong, began, whole = 0, 0, [], time.monotonic(), None
    while kills < number or runs < 2:
        place = folder / f"run-{runs}"
        place.mkdir()
        runs += 1
        arguments = ["en-de-tatoeba", "--input", str(text), "--chunk-lines", "16"]
        arguments += ["--shards", str(place / "parts"), "--output", str(place / "joined")]
        killed = []
        while True:
            chosen = ["--num-shards", str(PARTS)]
            if rng.random() < 0.4:
                chosen = ["--shard", f"{rng.randint(1, PARTS)}/{PARTS}"]
            children = []
            for _ in range(rng.choice([1, 1, 2])):
                last = rng.randint(1, 30 + num_lines // 30) if whole and kills + len(killed) < number else 0
                children.append(
                    start([*arguments, *chosen], place, last, rng.choice([0.0, rng.uniform(0, 0.005)]))
                )
            codes = [wait(child) for child in children]
            killed += [code for code in codes if code == -signal.SIGKILL]
            busy = "another process is translating this part" in (place / "log").read_text()
            if others := set(codes) - {0, -signal.SIGKILL} - ({2} if len(codes) > 1 and busy else set()):
                wrong.append(f"{place.name}: exit codes {others}: {(place / 'log').read_text()[-500:]}")
                break
            if (place / "joined").exists():
                break
        kills += len(killed)
        joined = (place / "joined").read_bytes() if (place / "joined").exists() else None
        whole = whole or joined
        files = sorted(path.name for path in place.rglob("*") if path.is_file() and path.suffix != ".lock")
        left = [name for name in files if name.startswith(".") and not name.endswith(".tmp")]
        if joined != whole or left:
            wrong.append(f"{place.name}: differs; left: {left}")
    seconds = time.monotonic() - began
    print(f"seed {seed}: {kills} kills in {runs} runs, {seconds:.0f} s; {len(wrong)} differences")
    print("\n".join(wrong), end="")
    return wrong


def main():
    """Runs the program; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kills", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lines", type=int, default=997, help="of the text")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        return 1 if kill_loop(args.kills, pathlib.Path(name), seed=args.seed, num_lines=args.lines) else 0


if __name__ == "__main__":
    sys.exit(main())
