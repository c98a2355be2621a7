r"""How much of a batch is padding: ours beside tf.data's bucket_by_sequence_length.

    python benchmarks/padding.py PREPARED [--batch-tokens 4096 25000] [--copies 1 10]

tf.data's buckets are those of Tensor2Tensor: boundaries from 8 on, each 1.1 times the one
before, and budget / length rows in each; a pair is as long as its longer side.
"""

import argparse
import os
import sys

import numpy as np
from refusing import Parser, run

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf  # noqa: E402

from keras_transformer.batches.planning import EpochPlanner  # noqa: E402
from keras_transformer.batches.prepared import PreparedCorpus  # noqa: E402


def parse_args():
    """Parses the command line."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("prepared", nargs="+", help="folders that prepare_wmt.py wrote")
    parser.add_argument("--batch-tokens", type=int, nargs="+", default=[4096, 25_000])
    parser.add_argument("--copies", type=int, nargs="+", default=[1])
    parser.add_argument("--max-shapes", type=int, default=16)
    return parser.parse_args()


def t2t_boundaries(longest, shortest=8, step=1.1):
    """Tensor2Tensor's `_bucket_boundaries`."""
    boundaries, length = [], shortest
    while length < longest:
        boundaries.append(length)
        length = max(length + 1, int(length * step))
    return boundaries


def bucketed(source, target, budget):
    """Returns the shapes of the batches that tf.data's buckets give."""
    longest = int(max(source.max(), target.max()))
    boundaries = t2t_boundaries(longest)
    sizes = [max(1, budget // length) for length in [*boundaries, longest]]
    lengths = np.stack([source, target], axis=1)[np.random.default_rng(1).permutation(len(source))]
    dataset = (
        tf.data.Dataset.from_tensor_slices(lengths.astype(np.int32))
        .map(lambda pair: {"source": tf.ones(pair[0], tf.int8), "target": tf.ones(pair[1], tf.int8)})
        .bucket_by_sequence_length(
            lambda pair: tf.maximum(tf.size(pair["source"]), tf.size(pair["target"])),
            [boundary + 1 for boundary in boundaries],  # T2T's boundaries are the last length inside
            sizes,
        )
    )
    batches = dataset.map(lambda batch: (tf.shape(batch["source"]), tf.shape(batch["target"])))
    return [(int(s[0]), int(s[1]), int(t[1])) for s, t in batches.as_numpy_iterator()]


def share(source, target, shapes):
    """Returns real tokens as a share of all positions of both sides."""
    return (source.sum() + target.sum()) / sum(rows * (a + b) for rows, a, b in shapes)


def main():
    """Prints a table."""
    args = parse_args()
    print(
        f"{'corpus':24} {'pairs':>10} {'budget':>7}  {'batches':28} {'real':>7} {'number':>7} {'shapes':>7}"
    )
    for path in args.prepared:
        pairs = PreparedCorpus(path).load_pairs()
        for copies in args.copies:
            source, target = (np.tile(side.lengths, copies) for side in pairs)
            for budget in args.batch_tokens:
                rows = []
                for padding in ("longest", "fixed"):
                    planner = EpochPlanner(
                        source, target, batch_tokens=budget, padding=padding, max_shapes=args.max_shapes
                    )
                    epochs = [[plan.shape for plan in planner.plan(epoch)] for epoch in range(8)]
                    worst = min(epochs, key=lambda shapes: share(source, target, shapes))
                    rows.append((f"ours, {padding}, worst epoch", worst))
                rows.append(("bucket_by_sequence_length", bucketed(source, target, budget)))
                for name, shapes in rows:
                    over = sum(n * max(a, b) > budget for n, a, b in shapes)
                    print(
                        f"{path[-24:]:24} {len(source):10,} {budget:7,}  {name:28} "
                        f"{100 * share(source, target, shapes):6.2f}% {len(shapes):7,} {len(set(shapes)):7,}"
                        + (f"  {over} over budget" if over else ""),
                        flush=True,
                    )


if __name__ == "__main__":
    sys.exit(run(main))
