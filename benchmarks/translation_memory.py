"""Memory of `translate.py` over files of growing length.

    python benchmarks/translation_memory.py runs/m30k --split test_2016_flickr --lines 10000 100000

Writes the sentences of a split over and over into files of so many lines, translates each with
greedy search in a process of its own, and prints the peak of its resident memory and its speed.
"""

import itertools
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from refusing import Parser, run

PROGRAM = pathlib.Path(__file__).resolve().parents[1] / "pipelines" / "translate.py"


def parse_args(argv=None):
    """Parses the command line."""
    parser = Parser(description="Peak memory of translation by number of lines.")
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--split", default="test")
    parser.add_argument("--lines", nargs="+", type=int, default=[10_000, 100_000], metavar="N")
    parser.add_argument("--beam-size", type=int, default=1)
    return parser.parse_args(argv)


def main(argv=None):
    """Runs the benchmark; returns its exit code."""
    args = parse_args(argv)
    from keras_transformer.checkpoints.run_folder import RunFolder
    from keras_transformer.text.datasets import open_split

    data = RunFolder(args.run).config.data
    pairs = open_split(data.dataset, args.split, data.source, data.target).load()
    print("| lines | peak resident memory, MiB | sentences/s |\n|---|---|---|")
    for number in args.lines:
        with tempfile.TemporaryDirectory() as folder:
            source, target = (pathlib.Path(folder) / name for name in ("source", "target"))
            with source.open("w", encoding="utf-8") as file:
                file.writelines(
                    f"{line}\n" for line in itertools.islice(itertools.cycle(pairs.source), number)
                )
            command = [sys.executable, PROGRAM, args.run, "--beam-size", str(args.beam_size)]
            begin = time.monotonic()
            process = subprocess.Popen([*command, "--input", source, "--output", target])
            _, status, usage = os.wait4(process.pid, 0)
            if status:
                return 1
            with target.open("rb") as file:
                written = sum(1 for _ in file)
            assert written == number, f"{written} lines out"
            speed = number / (time.monotonic() - begin)
            print(f"| {number:,} | {usage.ru_maxrss / 1024:,.0f} | {speed:.0f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
