"""Complexity, sequential operations and path lengths of layers (Table 1), counted and measured.

The layers are reduced to what Table 1 counts: attention without its projections, one recurrent layer, one
convolution.
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
    """Number of products in the graph of a function.

    Attributes:
        multiply_adds: int, number of multiply-add operations.
        sequential: int, length of the longest chain of products that depend on each other.
    """

    multiply_adds: int
    sequential: int


def self_attention(x):
    """Computes softmax(Q K^T / sqrt(d_k)) V with Q = K = V = x, in heads of width 64.

    Args:
        x: float, shape `(batch, length, d_model)`. If `d_model` is not a multiple of 64, there is one head.

    Returns:
        float, same shape as `x`.
    """
    heads = _split(x)
    return _join(scaled_dot_product_attention(heads, heads, heads).output)


def restricted_self_attention(x, radius):
    """Self-attention in which position i sees only the positions i - radius to i + radius (section 4).

    The queries are split into blocks of length `radius`. Each block is compared only with the keys of itself
    and of its two neighbours; the other scores are not computed. The neighbourhood of section 4 has the size
    r = 2 radius + 1; here 3 radius scores are computed for each query.

    Args:
        x: float, shape `(batch, length, d_model)`.
        radius: int, number of visible positions on either side; `length` must be a multiple of it.

    Returns:
        float, same shape as `x`.

    Raises:
        ValueError: the length is not a multiple of `radius`.
    """
    batch, length, d_model = x.shape
    if length % radius:
        raise ValueError(f"`length` must be a multiple of `radius`={radius}. Received: length={length}")
    blocks = length // radius
    padded = ops.pad(x, [(0, 0), (radius, radius), (0, 0)])
    windows = [padded[:, shift * radius : shift * radius + length] for shift in range(3)]
    windows = [ops.reshape(window, (-1, radius, d_model)) for window in windows]
    query, key = _split(windows[1]), _split(ops.concatenate(windows, axis=1))

    first = ops.arange(blocks)[:, None, None] * radius
    query_position = first + ops.arange(radius)[None, :, None]
    key_position = first + ops.arange(3 * radius)[None, None, :] - radius
    exists = (key_position >= 0) & (key_position < length)
    visible = (ops.abs(query_position - key_position) <= radius) & exists
    output = scaled_dot_product_attention(query, key, key, ops.tile(visible, (batch, 1, 1))).output
    return ops.reshape(_join(output), (batch, length, d_model))


def recurrent(d_model, *, unroll=False):
    """Returns a simple recurrent layer, h_t = tanh(x_t W + h_(t-1) U).

    Args:
        d_model: width of input and output.
        unroll: whether the graph contains every step instead of a loop.

    Returns:
        Keras layer, `(batch, length, d_model)` -> the same shape.
    """
    return keras.layers.SimpleRNN(d_model, return_sequences=True, unroll=unroll, use_bias=False)


def convolutional(d_model, kernel_size, *, dilation=1):
    """Returns a causal convolution over `kernel_size` positions, `dilation` apart, ending at the current one.

    Causal, because stacked centred convolutions with growing dilation never connect some pairs of positions
    near the ends: the path would pass through positions outside the sequence.

    Returns:
        Keras layer, `(batch, length, d_model)` -> the same shape.
    """
    return keras.layers.Conv1D(d_model, kernel_size, padding="causal", dilation_rate=dilation, use_bias=False)


def products(function, shape):
    """Counts the multiply-adds of matrix products and convolutions in the TensorFlow graph of a function.

    Args:
        function: function of one float tensor.
        shape: list of int, shape of this tensor.

    Returns:
        `Products`; element-wise operations are not counted.

    Raises:
        ValueError: the graph has a loop or another operation whose products cannot be counted.
    """
    depth, total = {}, 0
    for operation in _traced(function, shape).graph.get_operations():  # in topological order
        count = _multiply_adds(operation)
        total += count
        input_depths = [depth[tensor.op.name] for tensor in operation.inputs]
        depth[operation.name] = max(input_depths, default=0) + (count > 0)
    return Products(total, max(depth.values()))


def best_seconds(cases, *, rounds=5):
    """Measures the run time of functions in graph mode.

    The functions are called in turns, so other load on the machine slows all of them alike. Other load only
    adds to a time, so the shortest time is returned.

    Args:
        cases: list of `(function, shape)`: a function of one float tensor, and the shape of this tensor.
        rounds: int, number of rounds after one call without timing. Each round calls every function twice,
            because at the first call the CPU caches hold the data of the other functions.

    Returns:
        list of float, the shortest time of each case, in seconds.
    """
    calls = []
    for function, shape in cases:
        x = tf.random.stateless_normal(shape, seed=(1, 2))
        traced = _traced(function, shape)
        traced(x)
        calls.append((traced, x))
    best = [math.inf] * len(calls)
    for _ in range(rounds):
        for index, (traced, x) in enumerate(calls):
            for _ in range(2):
                start = time.perf_counter()
                traced(x).numpy()
                best[index] = min(best[index], time.perf_counter() - start)
    return best


def reach(layer_of, length, d_model, *, causal=False, max_layers=100):
    """Stacks layers until every output position depends on every input position, measured by gradients.

    Args:
        layer_of: function: index of a layer, from 0 -> the layer, a function of a float tensor of shape
            `(batch, length, d_model)`.
        length: n.
        d_model: width.
        causal: output position i need only depend on the input positions 0 to i.
        max_layers: int, maximum number of layers.

    Returns:
        bool NumPy array, shape `(layers, length, length)`; `[k, i, j]` is whether the gradient of output
        position i of layer k with respect to input position j is not 0.
    """
    required = np.tri(length, k=0 if causal else length, dtype=bool)
    # The batch has a row for each output position, so one backward pass computes all gradients.
    sequence = tf.random.stateless_normal((1, length, d_model), seed=(3, 4))
    x = tf.repeat(sequence, length, axis=0)
    weights = tf.eye(length)[:, :, None] * tf.random.stateless_normal((d_model,), seed=(5, 6))
    reached = []
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = x
        for index in range(max_layers):
            y = layer_of(index)(y)
            with tape.stop_recording():
                gradient = tape.gradient(y, x, output_gradients=weights)
            reached.append(np.any(gradient.numpy() != 0, axis=-1))
            if reached[-1][required].all():
                break
    return np.stack(reached)


def _traced(function, shape):
    return tf.function(function, autograph=False).get_concrete_function(tf.TensorSpec(shape, tf.float32))


def _multiply_adds(operation):
    """Returns the multiply-adds of an operation of a graph; 0 if it is not a product."""
    kind, inputs = operation.type, operation.inputs
    if kind in _MATRIX_PRODUCTS:
        transposed = operation.get_attr(_MATRIX_PRODUCTS[kind])
        contracted = inputs[0].shape[-2 if transposed else -1]
    elif kind == "Conv2D":  # also for 1D convolutions, with kernels (1, kernel_size, features, filters)
        contracted = math.prod(inputs[1].shape[:3])
    elif "While" in kind or "Call" in kind:
        raise ValueError(
            f"Matrix products inside {kind!r} cannot be counted; unroll loops. Received: {operation.name}"
        )
    elif "Conv" in kind or "MatMul" in kind or (kind == "Einsum" and len(inputs) > 1):
        raise ValueError(f"The multiply-adds of {kind!r} are not known. Received: {operation.name}")
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
