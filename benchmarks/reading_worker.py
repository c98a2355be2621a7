"""Reads a prepared corpus in a process of its own, with the package that PYTHONPATH names.

    python benchmarks/reading_worker.py PREPARED BATCH_TOKENS REPLICAS STRETCHES

Prints a line of JSON. The package may be an earlier one, up to the time before `batches/`.
"""

import json
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

try:
    from keras_transformer.batches.dataset import DeviceShare, TokenBatches
    from keras_transformer.batches.planning import EpochPlanner
    from keras_transformer.batches.prepared import PreparedCorpus
except ImportError:
    from keras_transformer.data.portions import Portions
    from keras_transformer.data.prepared import PreparedCorpus

    from keras_transformer import data

    DeviceShare = None

LEAST_BATCHES = 1000


def consume(dataset):
    """Runs through a dataset inside TensorFlow."""
    dataset.reduce(np.int64(0), lambda count, _: count + 1)


def memory(name):
    """Returns a figure of /proc/self/status in bytes."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith(f"{name}:"))


def reader(pairs, batch_tokens, replicas):
    """Returns an `EpochPlanner`, and a function from (first batch, batches, epochs) to a dataset of them."""
    if DeviceShare:
        batches = TokenBatches(pairs, EpochPlanner(*pairs.lengths, batch_tokens=batch_tokens))
        share = DeviceShare(num_replicas=replicas)
        return batches.planner, lambda start, number, epochs: batches.dataset(start, epochs, share)
    from keras_transformer.config import SpecialIds

    batches = data.batching.TokenBatches(pairs, special=SpecialIds(), batch_tokens=batch_tokens)
    portions = Portions(batches, num_replicas=replicas)
    return batches.planner, lambda start, number, epochs: portions.forever(start).take(number * replicas)


def main():
    """Reads as training does: a dataset has the epochs of 1,000 batches or more."""
    path, batch_tokens, replicas, stretches = sys.argv[1], *map(int, sys.argv[2:])
    consume(tf.data.Dataset.range(9))
    before = memory("VmRSS")
    pairs = PreparedCorpus(path).load_pairs()
    planner, dataset = reader(pairs, batch_tokens, replicas)
    start, epoch, tokens, wall, cpu, peaks = 0, 0, [], [], [], []
    for _ in range(stretches):
        clock, processor = time.perf_counter(), time.process_time()
        number = epochs = 0
        while number < LEAST_BATCHES:
            number += planner.num_batches(epoch + epochs)
            epochs += 1
        consume(dataset(start, number, epochs))
        start, epoch = start + number, epoch + epochs
        tokens.append(epochs * int(pairs.target.lengths.sum()))
        wall.append(time.perf_counter() - clock)
        cpu.append(time.process_time() - processor)
        peaks.append(memory("VmHWM") - before)
    ids = sum(array.nbytes for side in pairs for array in side.arrays)
    print(json.dumps({"tokens": tokens, "wall": wall, "cpu": cpu, "peaks": peaks, "ids": ids}))


if __name__ == "__main__":
    main()
