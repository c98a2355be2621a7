r"""How fast prepared shards become batches, beside plainly reading the same ids as TFRecords.

    python benchmarks/reading.py PREPARED [--batch-tokens 4096 25000] [--replicas 1 2]
    python benchmarks/reading.py PREPARED --before ../older --rounds 5

Every measurement is a process of its own (`reading_worker.py`) that reads as training does, in datasets
of the epochs of 1,000 batches or more; the time of one includes planning them. With `--before`, another
checkout of this package takes turns with this one, and the ratios are those within a round. "Plainly" is
a TFRecordDataset over files of pairs, each a `tf.train.Example`, not even parsed: the second of two
passes over the first 200,000 pairs.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

from refusing import Parser, output_of, run

ROOT = pathlib.Path(__file__).resolve().parents[1]
OURS, BEFORE = "ours", "before"
PAIRS = 200_000  # of the TFRecords


def parse_args():
    """Parses the command line."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("prepared", help="a folder that prepare_wmt.py wrote")
    parser.add_argument("--batch-tokens", type=int, nargs="+", default=[4096, 25_000])
    parser.add_argument("--replicas", type=int, nargs="+", default=[1], help="devices that share a batch (1)")
    parser.add_argument("--datasets", type=int, default=3, help="that are read one after the other (3)")
    parser.add_argument("--rounds", type=int, default=1, help="of all processes (1)")
    parser.add_argument(
        "--before", type=pathlib.Path, metavar="FOLDER", help="another checkout to compare with"
    )
    args = parser.parse_args()
    if min(args.rounds, args.datasets, *args.batch_tokens, *args.replicas) < 1:
        parser.error("--rounds, --datasets, --batch-tokens and --replicas must be at least 1")
    if args.before and not (args.before / "keras_transformer").is_dir():
        parser.error(f"{args.before} is no checkout of this repository")
    return args


def measured(checkout, *arguments):
    """Returns what a process of `reading_worker.py` measures of a checkout, a dict."""
    program = pathlib.Path(__file__).with_name("reading_worker.py")
    command = [sys.executable, str(program), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    return json.loads(output_of(command, env=environment).splitlines()[-1])


def rates(records, clock):
    """Returns the target tokens a second of the first dataset and of the later ones, a number a round."""

    def of(part):
        return [
            sum(found["tokens"][part]) / sum(found[clock][part]) for found in records if found[clock][part]
        ]

    return {"first dataset": of(slice(1)), "later datasets": of(slice(1, None))}


def spread(values, form):
    """Returns the median of some numbers and their range as text."""
    text = format(statistics.median(values), form)
    return text if len(values) == 1 else f"{text} ({min(values):{form}} to {max(values):{form}})"


def show(batch_tokens, replicas, records):
    """Prints the figures of some rounds, a list of records for each checkout."""
    print(f"\nbatches of {batch_tokens:,} tokens, {replicas} replica(s): million target tokens a second")
    for clock, name in (("wall", "on the clock"), ("cpu", "of CPU time")):
        found = {checkout: rates(rounds, clock) for checkout, rounds in records.items()}
        for datasets, ours in found[OURS].items():
            if ours:
                line = f"  {datasets}, {name}: {spread([rate / 1e6 for rate in ours], '.2f')}"
                if BEFORE in found:
                    before = found[BEFORE][datasets]
                    ratios = [rate / other for rate, other in zip(ours, before, strict=True)]
                    line += f"; before {spread([rate / 1e6 for rate in before], '.2f')}"
                    line += f"; ratio {spread(ratios, '.2f')}"
                print(line)
    for checkout, rounds in records.items():
        peaks = [(record["peaks"][-1] - record["ids"]) / 1e6 for record in rounds]
        print(f"  peak memory above the libraries and the id arrays, {checkout}: {spread(peaks, '.0f')} MB")


def write_records(pairs, number, folder):
    """Writes pairs as TFRecords; returns the files."""
    import tensorflow as tf

    paths = []
    per_file = 50_000
    for begin in range(0, number, per_file):
        paths.append(str(folder / f"{begin}.tfrecord"))
        with tf.io.TFRecordWriter(paths[-1]) as writer:
            for i in range(begin, min(begin + per_file, number)):
                features = {
                    name: tf.train.Feature(int64_list=tf.train.Int64List(value=side[i].tolist()))
                    for name, side in zip(("source", "target"), pairs, strict=True)
                }
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())
    return paths


def read_records(path):
    """Prints how fast TFRecords of the same pairs are read."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf
    from reading_worker import consume

    from keras_transformer.batches.prepared import PreparedCorpus

    pairs = PreparedCorpus(path).load_pairs()
    number = min(PAIRS, pairs.num_pairs)
    tokens = int(pairs.target.lengths[:number].sum())
    print(f"\nthe first {number:,} pairs as TFRecords: million target tokens a second")
    with tempfile.TemporaryDirectory() as folder:
        paths = write_records(pairs, number, pathlib.Path(folder))
        records = tf.data.TFRecordDataset(paths, num_parallel_reads=tf.data.AUTOTUNE)
        features = {name: tf.io.RaggedFeature(tf.int64) for name in ("source", "target")}
        parsed = records.map(
            lambda record: tf.io.parse_single_example(record, features), num_parallel_calls=tf.data.AUTOTUNE
        )
        for name, dataset in (("not parsed", records), ("parsed", parsed)):
            consume(dataset)
            begin = time.perf_counter()
            consume(dataset)
            print(f"  {name}: {tokens / (time.perf_counter() - begin) / 1e6:.2f}", flush=True)


def main():
    """Prints the figures."""
    args = parse_args()
    checkouts = {OURS: ROOT} | ({BEFORE: args.before.resolve()} if args.before else {})
    for batch_tokens in args.batch_tokens:
        for replicas in args.replicas:
            records = {name: [] for name in checkouts}
            for number in range(args.rounds):
                # Whoever comes first differs from round to round.
                for name in sorted(checkouts, reverse=number % 2 == 1):
                    found = measured(checkouts[name], args.prepared, batch_tokens, replicas, args.datasets)
                    records[name].append(found)
            show(batch_tokens, replicas, records)
    if not args.before:
        read_records(args.prepared)


if __name__ == "__main__":
    sys.exit(run(main))
