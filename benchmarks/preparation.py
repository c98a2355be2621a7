r"""How long preparing a corpus takes beside SentencePiece's own batch encoding, and its memory.

    python benchmarks/preparation.py train.en train.de --source en --target de --copies 10

Both run as programs of their own, in turn: prepare_wmt.py with every filter but that of
duplicates, vocabulary given; and `SentencePieceProcessor.encode` of the same lines with
as many threads, of which only the encoding counts. The memory is the most that all
processes of prepare_wmt.py held together (proportional set size, Linux), for all copies
and, to tell what grows with the text from what libraries take, for one.
"""

import argparse
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from refusing import Parser, failure, output_of, run

PREPARE = pathlib.Path(__file__).resolve().parents[1] / "pipelines" / "prepare_wmt.py"
FILTERS = (
    "cleaning.drop_damaged=true",
    "cleaning.max_foreign_letters=0.3",
    "cleaning.drop_identical=true",
    "cleaning.max_length_ratio=5",
)
ENCODE = """
import sys, time, sentencepiece
processor = sentencepiece.SentencePieceProcessor(model_file=sys.argv[1])
texts = [open(path, encoding="utf-8", newline="\\n").read() for path in sys.argv[3:]]
texts = [text.removesuffix("\\n").split("\\n") for text in texts]
processor.encode(texts[0][:1000], num_threads=int(sys.argv[2]))
begin = time.perf_counter()
for side in texts:
    processor.encode(side, num_threads=int(sys.argv[2]))
print(time.perf_counter() - begin)
"""


def parse_args():
    """Parses the command line."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("source_file", type=pathlib.Path)
    parser.add_argument("target_file", type=pathlib.Path)
    parser.add_argument("--source", required=True, help="source language")
    parser.add_argument("--target", required=True, help="target language")
    parser.add_argument("--copies", type=int, default=10, help="copies of the text (10)")
    parser.add_argument("--workers", type=int, default=2, help="processes, and threads of SentencePiece (2)")
    parser.add_argument("--vocab-size", type=int, default=16_000, help="tokens (16,000)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each (3)")
    args = parser.parse_args()
    if min(args.copies, args.workers, args.repeats) < 1:
        parser.error("--copies, --workers and --repeats must be at least 1")
    return args


def write_corpus(folder, args):
    """Writes the copies as a training split; returns the two files."""
    paths = []
    for path, language in ((args.source_file, args.source), (args.target_file, args.target)):
        text = path.read_bytes().removesuffix(b"\n") + b"\n"
        paths.append(folder / f"train.{language}")
        paths[-1].write_bytes(text * args.copies)
        (folder / f"valid.{language}").write_bytes(b"".join(text.splitlines(keepends=True)[:100]))
    return paths


def memory_of(pid):
    """Returns the proportional set size of a process and those below it, in bytes."""
    total = 0
    waiting = [pid]
    while waiting:
        process = pathlib.Path("/proc", str(waiting.pop()))
        try:
            rollup = (process / "smaps_rollup").read_text()
            total += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
            for thread in (process / "task").iterdir():
                waiting += map(int, (thread / "children").read_text().split())
        except (OSError, ValueError):
            continue  # it ended meanwhile
    return 1024 * total


def run_prepare(corpus, out, model, args):
    """Returns the seconds that prepare_wmt.py took, and its memory in bytes."""
    command = [sys.executable, PREPARE, corpus, out, "--tokenizer", model, "--workers", str(args.workers)]
    command += ["--source", args.source, "--target", args.target]
    for setting in FILTERS:
        command += ["--set", setting]
    begin = time.perf_counter()
    with tempfile.TemporaryFile("w+") as messages:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=messages)
        peak = 0
        while process.poll() is None:
            peak = max(peak, memory_of(process.pid))
            time.sleep(0.1)
        if process.returncode:
            messages.seek(0)
            raise ValueError(failure(command, process.returncode, messages.read()))
    return time.perf_counter() - begin, peak


def main():
    """Runs the benchmark and prints its table."""
    args = parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "corpus").mkdir()
        files = write_corpus(folder / "corpus", args)
        size = sum(path.stat().st_size for path in files)
        # The vocabulary comes from a preparation of one copy.
        (folder / "one").mkdir()
        write_corpus(folder / "one", argparse.Namespace(**{**vars(args), "copies": 1}))
        learn = [sys.executable, PREPARE, folder / "one", folder / "vocabulary"]
        learn += ["--source", args.source, "--target", args.target, "--vocab-size", str(args.vocab_size)]
        output_of(learn)
        model = folder / "vocabulary" / "tokenizer.model"

        # What one copy needs is the programs' own: libraries, and a model that tells languages.
        _, own = run_prepare(folder / "one", folder / "out", model, args)
        ours, theirs, peaks = [], [], []
        for number in range(args.repeats):
            encode = [sys.executable, "-c", ENCODE, model, str(args.workers), *files]
            theirs.append(float(output_of(encode)))
            seconds, peak = run_prepare(folder / "corpus", folder / f"out{number}", model, args)
            ours.append(seconds)
            peaks.append(peak)
            print(f"run {number + 1}: {theirs[-1]:.1f} s encoding, {seconds:.1f} s preparing", flush=True)
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    print(f"\ntext: {size / 1e6:.0f} MB, {args.copies} copies, {args.workers} processes or threads")
    print(f"SentencePiece's encoding alone: {statistics.median(theirs):.1f} s")
    print(f"prepare_wmt.py, all of it:      {statistics.median(ours):.1f} s, {ratio:.2f} times as long")
    peak = max(peaks)
    print(f"memory of all its processes:    {peak / 1e6:.0f} MB at most, {own / 1e6:.0f} MB for one copy:")
    print(f"    {(peak - own) / size:.2f} times the text, {peak / size:.2f} with libraries and all")


if __name__ == "__main__":
    sys.exit(run(main))
