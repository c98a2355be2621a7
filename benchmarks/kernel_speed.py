"""What each kernel is worth: its fast form beside its plain one, and a whole training step with either.

    python benchmarks/kernel_speed.py
    python benchmarks/kernel_speed.py --size small --turns 9 --steps 5

Values and gradients, in a graph, at the sizes of a training step (`benchmarks/peers/work.py`). The forms take
turns; compared are medians of processor time, which other programs on the machine change less than the clock.
Saved is what all uses of a kernel save in a training step.
"""

import os
import statistics
import sys
import time
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from peers.models_ours import build  # noqa: E402
from peers.work import DROPOUT, SIZES, SMOOTHING, training_batch  # noqa: E402
from refusing import Parser  # noqa: E402

from keras_transformer.batches.dataset import without_autotuning  # noqa: E402
from keras_transformer.config import TrainingConfig  # noqa: E402
from keras_transformer.model.kernels.attention import masked_softmax, scaled_scores  # noqa: E402
from keras_transformer.model.kernels.basics import (  # noqa: E402
    adam_update,
    add_bias,
    copies,
    dropout,
    layer_norm,
    rms_norm,
)
from keras_transformer.model.kernels.losses import projected_losses, token_losses  # noqa: E402
from keras_transformer.model.kernels.products import product  # noqa: E402
from keras_transformer.model.kernels.switch import VARIABLE  # noqa: E402
from keras_transformer.training.fit import compile_model  # noqa: E402

RNG = np.random.default_rng(0)


class Work(NamedTuple):
    """A use of a kernel.

    Attributes:
        name: str.
        kernel: the kernel.
        rows: arrays with as many rows as the batch, which the graph does not know.
        weights: arrays of shapes that it knows.
        uses: of such a size in a training step; 0 for another loss.
        call: function of a form, and of tensors in the place of `rows` and `weights`.
    """

    name: str
    kernel: object
    rows: tuple
    weights: tuple
    uses: float
    call: object = lambda compute, *inputs: compute(*inputs)


def normal(*shape):
    """Returns random float32 numbers."""
    return RNG.normal(size=shape).astype("float32")


def works(size):
    """Returns the list of `Work` of a training step."""
    tokens, width, inner = size.batch * size.length, size.d_model, size.d_ff
    per_head = (size.batch, size.num_heads, size.length, width // size.num_heads)
    ids, _, labels = training_batch(size)
    mask = np.ones((size.batch, 1, size.length), bool)
    targets = 1 - SMOOTHING, SMOOTHING / (size.vocab_size - 1)
    layers, attentions, norms = size.num_layers, 3 * size.num_layers, 5 * size.num_layers
    matrix, hidden = normal(size.vocab_size, width), normal(tokens, width)
    adam = {"beta_1": 0.9, "beta_2": 0.98, "epsilon": 1e-9}
    variables = [tf.Variable(normal(width, inner) ** 2) for _ in range(3)]
    parameters = size.vocab_size * width + layers * (12 * width * width + 4 * width * inner)
    flat = labels.reshape(-1)

    def embed_and_project(compute, matrix):
        output, source, target = compute(matrix, 3)
        return output * 2.0, tf.gather(source, ids), tf.gather(target, labels)

    def update(compute, gradient):
        compute(*variables, gradient, rate=tf.constant(1e-4), step=tf.constant(9.0), **adam)
        return gradient[:1, :1]

    drop = Work("dropout", dropout, (hidden,), (), norms + 2 + attentions / 2)
    return [
        Work(
            "scores", scaled_scores, (normal(*per_head),) * 2, (), attentions, lambda f, q, k: f(q, k, True)
        ),
        Work(
            "masked softmax",
            masked_softmax,
            (normal(*per_head[:3], size.length),),
            (),
            attentions,
            lambda f, scores: f(scores, mask),
        ),
        Work(
            "product, inner to outer", product, (normal(tokens, inner),), (normal(inner, width),), 2 * layers
        ),
        Work("bias, inner", add_bias, (normal(tokens, inner),), (normal(inner),), 2 * layers),
        Work("bias, outer", add_bias, (hidden,), (normal(width),), 2 * layers),
        Work(
            "layer norm",
            layer_norm,
            (hidden,),
            (normal(width),) * 2,
            norms,
            lambda f, *inputs: f(*inputs, 1e-6),
        ),
        Work(
            "RMS norm (other models)",
            rms_norm,
            (hidden,),
            (normal(width),),
            0,
            lambda f, *inputs: f(*inputs, 1e-6),
        ),
        drop._replace(call=lambda f, x: f(x, DROPOUT, tf.constant([3, 4]))),
        Work("tied matrix", copies, (), (matrix,), 1, embed_and_project),
        Work("loss of projected", projected_losses, (hidden,), (matrix,), 1)._replace(
            call=lambda f, hidden, matrix: f(flat, hidden, matrix, None, *targets)[0]
        ),
        Work(
            "loss of logits (other losses)", token_losses, (normal(tokens, size.vocab_size),), (), 0
        )._replace(call=lambda f, logits: f(flat, logits, *targets)[0]),
        Work("Adam", adam_update, (), (normal(width, inner),), parameters / (width * inner), update),
    ]


def graph_of(work, compute):
    """Returns a function without arguments that computes values and gradients of one form."""
    inputs = list(map(tf.constant, (*work.rows, *work.weights)))
    specs = [tf.TensorSpec([None] * (each.ndim - 1) + [each.shape[-1]], each.dtype) for each in work.rows]
    specs += [tf.TensorSpec(each.shape) for each in work.weights]

    @tf.function(input_signature=specs, autograph=False)
    def run(*inputs):
        floats = [each for each in inputs if each.dtype.is_floating]
        with tf.GradientTape() as tape:
            tape.watch(floats)
            values = work.call(compute, *inputs)
        gradients = tape.gradient(values, floats, unconnected_gradients="zero")
        return values, list(map(tf.convert_to_tensor, gradients))

    return lambda: run(*inputs)


def step_of(size, form):
    """Returns a function without arguments that makes a training step in one form."""
    os.environ[VARIABLE] = form
    keras.utils.set_random_seed(1)
    model = build(size)
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
        float(model.train_function(iterator)["loss"])

    run()  # the graph is made while the variable is set
    return run


def compare(fast, plain, turns):
    """Returns the median processor seconds of two functions that take turns."""
    seconds = [[], []]
    for turn in range(turns + 1):
        for function, found in zip((fast, plain), seconds, strict=True):
            begin = time.process_time()
            function()
            if turn:  # the first makes the graph
                found.append(time.process_time() - begin)
    return [statistics.median(found) for found in seconds]


def main(argv=None):
    """Runs the program; returns its exit code."""
    parser = Parser(description="Times the fast and the plain form of every kernel.")
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--turns", type=int, default=15, help="of each kernel")
    parser.add_argument("--steps", type=int, default=3, help="training steps of each form; 0 for none")
    args = parser.parse_args(argv)
    if args.turns < 1 or args.steps < 0:
        parser.error("--turns must be at least 1, --steps at least 0")
    size = SIZES[args.size]
    print(f"| {args.size} | fast / plain | saved, ms of a step |\n|---|---|---|")
    for work in works(size):
        fast, plain = (graph_of(work, form) for form in (work.kernel.fast, work.kernel.plain))
        fast, plain = compare(fast, plain, args.turns)
        saved = f"{1000 * work.uses * (plain - fast):.1f}" if work.uses else ""
        print(f"| {work.name} | {fast / plain:.2f} | {saved} |", flush=True)
    if args.steps:
        fast, plain = compare(step_of(size, "fast"), step_of(size, "plain"), args.steps)
        saved = f"{1000 * (plain - fast):.0f} of {1000 * plain:.0f}"
        print(f"| a training step | {fast / plain:.2f} | {saved} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
