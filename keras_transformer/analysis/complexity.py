"""What layers cost, and how far they see: Table 1 of section 4, counted and measured.

The layers here are those of the table, reduced to what it counts: attention without its
projections, one recurrent layer, one convolution.
"""

import math
import time
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_transformer.model.layers.attention import scaled_dot_product_attention

HEAD_WIDTH = 64  # d_k of the paper's models
_MATRIX_PRODUCTS = {"MatMul": "transpose_a", "BatchMatMulV2": "adj_x"}


class Products(NamedTuple):
    """The products in a function's graph.

    Attributes:
        multiply_adds: int, multiplications that are each followed by an addition.
        sequential: int, products in the longest chain of which each needs the one before.
    """

    multiply_adds: int
    sequential: int


def self_attention(x):
    """softmax(Q K^T / sqrt(d_k)) V, with x as queries, keys and values, in heads of 64.

    Args:
        x: float, shape `(batch, length, d_model)`; a `d_model` below 64, or no multiple of
            it, makes one head.

    Returns:
        float, shape as `x`.
    """
    heads = _split(x)
    return _join(scaled_dot_product_attention(heads, heads, heads).output)


def restricted_self_attention(x, radius):
    """Self-attention in which position i sees only i - radius to i + radius (section 4).

    Computed a block of `radius` queries at a time, against the keys of the block itself and
    of those beside it: the rest of the scores is never made. The neighbourhood of section 4
    is r = 2 radius + 1 wide; 3 radius scores are computed for each query.

    Args:
        x: float, shape `(batch, length, d_model)`.
        radius: positions seen on either side; `length` must be a multiple of it.

    Returns:
        float, shape as `x`.

    Raises:
        ValueError: the length is no multiple of `radius`.
    """
    batch, length, d_model = x.shape
    if length % radius:
        raise ValueError(f"`length` must be a multiple of `radius`={radius}. Received: length={length}")
    blocks = length // radius
    padded = ops.pad(x, [(0, 0), (radius, radius), (0, 0)])
    windows = [padded[:, shift * radius : shift * radius + length] for shift in range(3)]
    windows = [ops.reshape(window, (-1, radius, d_model)) for window in windows]
    query, key = _split(windows[1]), _split(ops.concatenate(windows, axis=1))

    place = ops.arange(blocks)[:, None, None] * radius
    query_place = place + ops.arange(radius)[None, :, None]
    key_place = place + ops.arange(3 * radius)[None, None, :] - radius
    visible = (ops.abs(query_place - key_place) <= radius) & (key_place >= 0) & (key_place < length)
    output = scaled_dot_product_attention(query, key, key, ops.tile(visible, (batch, 1, 1))).output
    return ops.reshape(_join(output), (batch, length, d_model))


def recurrent(d_model, *, unroll=False):
    """A layer h_t = tanh(x_t W + h_(t-1) U), the simplest recurrent one.

    Args:
        d_model: width of input and output.
        unroll: writes every step into the graph, in place of a loop.

    Returns:
        Keras layer, `(batch, length, d_model)` -> the same shape.
    """
    return keras.layers.SimpleRNN(d_model, return_sequences=True, unroll=unroll, use_bias=False)


def convolutional(d_model, kernel_size, *, dilation=1):
    """A layer in which a position sees itself and `kernel_size` - 1 before it, `dilation` apart.

    Causal, because centred kernels that grow with the layers never connect some pairs near the
    ends: the way from one to the other would pass through positions that do not exist.

    Returns:
        Keras layer, `(batch, length, d_model)` -> the same shape.
    """
    return keras.layers.Conv1D(d_model, kernel_size, padding="causal", dilation_rate=dilation, use_bias=False)


def products(function, shape):
    """Counts the products in the graph that TensorFlow makes of a function.

    Args:
        function: of one float tensor.
        shape: of that tensor, list of int.

    Returns:
        `Products`: of matrices and of convolutions; what is done to single elements is not counted.

    Raises:
        ValueError: the graph has a loop or another operation that hides products.
    """
    depth, total = {}, 0
    for operation in _traced(function, shape).graph.get_operations():  # each comes after what it reads
        count = _multiply_adds(operation)
        total += count
        before = [depth[tensor.op.name] for tensor in operation.inputs]
        depth[operation.name] = max(before, default=0) + (count > 0)
    return Products(total, max(depth.values()))


def best_seconds(cases, *, rounds=5):
    """Times functions in graph mode, one after the other, several times round.

    What else the machine does only ever adds to a time, so the shortest is kept; and it slows
    all cases alike where they take turns, rather than the one whose turn it was.

    Args:
        cases: list of (function, shape): of one float tensor, and the shape of that tensor.
        rounds: how often each is timed twice, after a first call that is not. Twice, because
            the other cases have filled the caches.

    Returns:
        list of float, seconds of the quickest call of each case.
    """
    calls = []
    for function, shape in cases:
        x = tf.random.stateless_normal(shape, seed=(1, 2))
        traced = _traced(function, shape)
        traced(x)
        calls.append((traced, x))
    best = [math.inf] * len(calls)
    for _ in range(rounds):
        for number, (traced, x) in enumerate(calls):
            for _ in range(2):
                begin = time.perf_counter()
                traced(x).numpy()
                best[number] = min(best[number], time.perf_counter() - begin)
    return best


def reach(layer_of, length, d_model, *, causal=False, max_layers=100):
    """Stacks layers until the gradient of every position reaches every position.

    Args:
        layer_of: function: number of a layer, from 0 -> that layer, a function of a float
            tensor of shape `(batch, length, d_model)`.
        length: n.
        d_model: width.
        causal: it is enough to reach every position up to one's own.
        max_layers: where to stop in any case.

    Returns:
        bool NumPy array, shape `(layers, length, length)`: whether after so many layers the
        gradient of output position (row) with respect to input position (column) is not 0.
    """
    wanted = np.tri(length, k=0 if causal else length, dtype=bool)
    # A row of the batch for each output position: one backward pass serves all of them.
    one = tf.random.stateless_normal((1, length, d_model), seed=(3, 4))
    x = tf.repeat(one, length, axis=0)
    weights = tf.eye(length)[:, :, None] * tf.random.stateless_normal((d_model,), seed=(5, 6))
    found = []
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = x
        for number in range(max_layers):
            y = layer_of(number)(y)
            with tape.stop_recording():
                gradient = tape.gradient(y, x, output_gradients=weights)
            found.append(np.any(gradient.numpy() != 0, axis=-1))
            if found[-1][wanted].all():
                break
    return np.stack(found)


def _traced(function, shape):
    return tf.function(function, autograph=False).get_concrete_function(tf.TensorSpec(shape, tf.float32))


def _multiply_adds(operation):
    """Multiply-adds of one operation of a graph; 0 where it is no product."""
    kind, inputs = operation.type, operation.inputs
    if kind in _MATRIX_PRODUCTS:
        transposed = operation.get_attr(_MATRIX_PRODUCTS[kind])
        contracted = inputs[0].shape[-2 if transposed else -1]
    elif kind == "Conv2D":  # one-dimensional ones, too: (1, kernel_size, features, filters)
        contracted = math.prod(inputs[1].shape[:3])
    elif "While" in kind or "Call" in kind or (kind == "Einsum" and len(inputs) > 1):
        raise ValueError(
            f"Products inside {kind!r} cannot be counted; unroll loops. Received: {operation.name}"
        )
    else:
        return 0
    return math.prod(operation.outputs[0].shape) * contracted


def _split(x):
    """(batch, length, d_model) -> (batch, heads, length, d_model / heads)."""
    batch, length, d_model = x.shape
    heads = 1 if d_model % HEAD_WIDTH else d_model // HEAD_WIDTH
    return ops.transpose(ops.reshape(x, (batch, length, heads, -1)), (0, 2, 1, 3))


def _join(heads):
    """(batch, heads, length, width) -> (batch, length, heads * width)."""
    batch, number, length, width = heads.shape
    return ops.reshape(ops.transpose(heads, (0, 2, 1, 3)), (batch, length, number * width))
