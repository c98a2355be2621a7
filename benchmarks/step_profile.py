"""What a training step spends its time on, by kind of work, one operation after the other.

    python benchmarks/step_profile.py
    python benchmarks/step_profile.py --size base --steps 3 --operations 20

TensorFlow's profiler, one thread between operations (so that times add up) and all threads within
them; sizes and batches are those of `compare.py`, of shapes that the graph does not know.
"""

import collections
import os
import pathlib
import re
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402
from peers.models_ours import build  # noqa: E402
from peers.work import SIZES, training_batch, training_flops  # noqa: E402
from refusing import Parser  # noqa: E402
from tensorflow.tsl.profiler.protobuf import xplane_pb2  # noqa: E402

from keras_transformer.batches.dataset import without_autotuning  # noqa: E402
from keras_transformer.config.settings import TrainingConfig  # noqa: E402
from keras_transformer.training.fit import compile_model  # noqa: E402

# The first that fits: a pattern of the operation's type, and one of its name.
KINDS = [
    ("products with weights", r"(?<!Batch)MatMul", ""),
    ("optimizer", "", "adam|ResourceApplyAdam"),
    ("norm of the gradient", "L2Loss", ""),
    ("dropout", "", "dropout"),
    ("layer norm", "", "norm"),
    ("attention: products", "BatchMatMul", ""),
    ("attention: heads side by side", "Einsum|Transpose", "attention"),
    ("attention: the rest", "", "attention"),
    ("biases and ReLU of feed-forward", "", "feed_forward"),
    ("gradient of embeddings", "UnsortedSegmentSum|AddN|ScatterAdd", ""),
    ("embedding", "", "embedding"),
    ("loss and the rest", "", ""),
]


def parse_args(argv=None):
    """Parses the command line."""
    parser = Parser(description="Profiles a training step.")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--precision", choices=("float32", "mixed_bfloat16"), default="float32")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--operations", type=int, default=0, help="also lists so many single operations")
    args = parser.parse_args(argv)
    if args.steps < 1 or args.operations < 0:
        parser.error("--steps must be at least 1, --operations at least 0")
    return args


def kind_of(name, operation):
    """Returns which of `KINDS` an operation belongs to.

    Args:
        name: str, where it stands in the graph.
        operation: str, its type.
    """
    return next(
        kind for kind, of_type, of_name in KINDS if re.search(of_type, operation) and re.search(of_name, name)
    )


def times_of(folder):
    """Returns dict: (name, type) of an operation -> seconds, from the profile in a folder."""
    space = xplane_pb2.XSpace()
    space.ParseFromString(next(pathlib.Path(folder).rglob("*.xplane.pb")).read_bytes())
    times = collections.Counter()
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                name, colon, operation = plane.event_metadata[event.metadata_id].name.rpartition(":")
                # Operations are NAME:TYPE; what else is there contains them.
                if colon and name[-1:] != ":" and not name.startswith("Eager") and " " not in operation:
                    times[name, operation] += event.duration_ps / 1e12
    return times


def main(argv=None):
    """Runs the program; returns its exit code."""
    args = parse_args(argv)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    size = SIZES[args.size]
    keras.utils.set_random_seed(1)
    model = build(size, args.precision)
    compile_model(model, TrainingConfig())
    source_ids, target_ids, labels = training_batch(size)
    batch = (source_ids, target_ids), labels
    ids = tf.TensorSpec((None, None), tf.int32)
    stream = tf.data.Dataset.from_generator(
        lambda: iter(lambda: batch, None), output_signature=((ids, ids), ids)
    )
    iterator = iter(without_autotuning(stream.prefetch(2)))
    model.make_train_function()

    def run():
        for _ in range(args.steps):
            logs = model.train_function(iterator)
        return float(logs["loss"])

    run()
    begin = time.perf_counter()
    run()
    step = (time.perf_counter() - begin) / args.steps
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        run()
        tf.profiler.experimental.stop()
        times = times_of(folder)
    kinds = collections.Counter()
    for (name, operation), seconds in times.items():
        kinds[kind_of(name, operation)] += seconds / args.steps
    products = kinds["products with weights"]
    print(f"{args.size}, {args.precision}: {1000 * step:.0f} ms a step, one operation after the other;")
    print(f"under the profiler, which slows them, the operations take {1000 * sum(kinds.values()):.0f} ms")
    print(f"products with weights: {training_flops(size) / products / 1e9:.0f} GFLOP/s\n")
    print("| kind of work | ms | share |\n|---|---|---|")
    for kind, seconds in kinds.most_common():
        print(f"| {kind} | {1000 * seconds:.1f} | {100 * seconds / sum(kinds.values()):.1f} % |")
    for (name, operation), seconds in times.most_common(args.operations):
        print(f"{1000 * seconds / args.steps:8.2f} ms  {operation}  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
