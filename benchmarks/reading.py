r"""How fast prepared shards become batches, beside plainly reading the same ids as TFRecords.

    python benchmarks/reading.py PREPARED [--batch-tokens 4096 25000]

"Plainly" is a TFRecordDataset over one file a shard, each record one pair as a
`tf.train.Example`, not even parsed. Each is run twice; the first run warms up.
"""

import argparse
import os
import pathlib
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf  # noqa: E402

from keras_transformer.batches.dataset import token_batches  # noqa: E402
from keras_transformer.batches.planning import EpochPlanner  # noqa: E402
from keras_transformer.batches.prepared import PreparedCorpus  # noqa: E402


def parse_args():
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("prepared", help="a folder that prepare_wmt.py wrote")
    parser.add_argument("--batch-tokens", type=int, nargs="+", default=[4096, 25_000])
    parser.add_argument("--max-pairs", type=int, default=200_000, help="pairs that are read (200,000)")
    return parser.parse_args()


def write_records(pairs, number, folder):
    """Writes pairs as TFRecords; returns the files."""
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


def timed(what):
    """Returns the seconds of the second of two runs."""
    for _ in range(2):
        begin = time.perf_counter()
        what()
        seconds = time.perf_counter() - begin
    return seconds


def consume(dataset):
    """Runs through a dataset inside TensorFlow."""
    dataset.reduce(tf.constant(0, tf.int64), lambda count, _: count + 1)


def main():
    """Prints a table."""
    args = parse_args()
    begin = time.perf_counter()
    prepared = PreparedCorpus(args.prepared)
    checked = time.perf_counter() - begin
    pairs = prepared.load_pairs()
    number = min(args.max_pairs, pairs.num_pairs)
    keep = (tf.range(pairs.num_pairs) < number).numpy()
    some = pairs._replace(source=pairs.source.select(keep), target=pairs.target.select(keep))
    tokens = int(some.target.lengths.sum())
    print(
        f"{args.prepared}: {number:,} pairs, {tokens:,} target tokens; all files checked in {checked:.2f} s"
    )
    for budget in args.batch_tokens:
        planner = EpochPlanner(*some.lengths, batch_tokens=budget)
        planner.plan(0)  # its layout is chosen once a run
        seconds = timed(lambda planner=planner: consume(token_batches(some, planner)))
        print(f"batches of {budget:,}: {tokens / seconds:14,.0f} target tokens/s", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        paths = write_records(some, number, pathlib.Path(folder))
        records = tf.data.TFRecordDataset(paths, num_parallel_reads=tf.data.AUTOTUNE)
        seconds = timed(lambda: consume(records))
        print(f"TFRecords, not parsed: {tokens / seconds:14,.0f} target tokens/s")
        parsed = records.map(
            lambda record: tf.io.parse_single_example(
                record, {name: tf.io.RaggedFeature(tf.int64) for name in ("source", "target")}
            ),
            num_parallel_calls=tf.data.AUTOTUNE,
        )
        seconds = timed(lambda: consume(parsed))
        print(f"TFRecords, parsed:     {tokens / seconds:14,.0f} target tokens/s")


if __name__ == "__main__":
    main()
