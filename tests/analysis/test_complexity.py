"""Costs against hand counts; restricted attention against attention with a band as its mask."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.analysis import complexity
from keras_transformer.analysis.complexity import Products, products, reach
from keras_transformer.model.layers.attention import MultiHeadAttention, scaled_dot_product_attention

BATCH, LENGTH, WIDTH, KERNEL, RADIUS = 2, 15, 7, 3, 5


def restricted(x):
    return complexity.restricted_self_attention(x, RADIUS)


def test_self_attention_is_that_of_the_model_in_heads_of_64():
    x = np.random.default_rng(0).normal(size=(2, 5, 128)).astype("float32")
    layer = MultiHeadAttention(2, 64)
    layer.build(x.shape, x.shape)
    layer.set_weights([np.eye(128)] * 4)
    np.testing.assert_allclose(complexity.self_attention(x), layer(x, x), atol=1e-6)


@pytest.mark.parametrize(("length", "radius"), [(15, 5), (12, 2), (4, 4), (3, 1)])
def test_restricted_attention_is_attention_with_a_band_as_its_mask(length, radius):
    x = tf.random.stateless_normal((BATCH, length, WIDTH), seed=(1, 1))
    position = np.arange(length)
    band = np.abs(position[:, None] - position[None, :]) <= radius
    wanted = scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], band[None]).output[:, 0]
    np.testing.assert_allclose(complexity.restricted_self_attention(x, radius), wanted, atol=1e-6)


def test_restricted_attention_of_half_a_block_is_refused():
    with pytest.raises(ValueError, match="multiple of `radius`=5. Received: length=12"):
        restricted(tf.zeros((1, 12, WIDTH)))


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        # Scores, then the mixture of values: n products of n rows with d numbers each.
        (complexity.self_attention, Products(2 * LENGTH * LENGTH * WIDTH, 2)),
        (restricted, Products(2 * LENGTH * 3 * RADIUS * WIDTH, 2)),
        # x W and h U at each of n positions; each h U waits for the one before, the first for x W.
        (complexity.recurrent(WIDTH, unroll=True), Products(2 * LENGTH * WIDTH * WIDTH, LENGTH)),
        (complexity.convolutional(WIDTH, KERNEL), Products(KERNEL * LENGTH * WIDTH * WIDTH, 1)),
    ],
    ids=["self-attention", "restricted", "recurrent", "convolutional"],
)
def test_products_are_those_counted_by_hand(function, wanted):
    counted = products(function, (BATCH, LENGTH, WIDTH))
    assert counted == wanted._replace(multiply_adds=BATCH * wanted.multiply_adds)


def test_products_of_a_whole_attention_layer():
    layer = MultiHeadAttention(2, 3, value_dim=5)
    layer.build((None, None, WIDTH), (None, None, WIDTH))
    counted = products(lambda x: layer(x, x), (1, LENGTH, WIDTH))
    projections = LENGTH * WIDTH * 2 * (3 + 3 + 5 + 5)
    assert counted == Products(projections + 2 * LENGTH * LENGTH * (3 + 5), 4)


def test_transposed_products_and_what_is_no_product():
    def transposed(x):
        return tf.linalg.matmul(x, x, transpose_a=True) + tf.reduce_sum(x)

    assert products(transposed, (4, 3)) == Products(3 * 3 * 4, 1)
    assert products(lambda x: x[0], (2, 4, 3)) == Products(0, 0)
    batched = products(lambda x: tf.linalg.matmul(x, x, transpose_a=True), (2, 4, 3))
    assert batched == Products(2 * 3 * 3 * 4, 1)


def test_a_loop_is_refused():
    with pytest.raises(ValueError, match="unroll loops. Received: simple_rnn"):
        products(keras.layers.SimpleRNN(WIDTH, name="simple_rnn"), (1, LENGTH, WIDTH))


@pytest.mark.parametrize("layer", [keras.layers.DepthwiseConv1D(3), keras.layers.Conv1DTranspose(7, 3)])
def test_products_that_cannot_be_counted_are_refused(layer):
    with pytest.raises(ValueError, match="The multiply-adds of '.*Conv.*' are not known"):
        products(layer, (1, LENGTH, WIDTH))


def test_times_are_the_shortest_of_each_case(monkeypatch):
    # Begin and end of two calls of one, two of the other, and all again.
    durations = [5.0, 4.0, 30.0, 40.0, 3.0, 6.0, 20.0, 50.0]
    ticks = iter([tick for duration in durations for tick in (1000.0, 1000.0 + duration)])
    monkeypatch.setattr(complexity.time, "perf_counter", lambda: next(ticks))
    cases = [(tf.identity, (2, 3)), (tf.square, (4,))]
    assert complexity.best_seconds(cases, rounds=2) == [3.0, 20.0]
    assert next(ticks, None) is None


def test_attention_reaches_all_at_once():
    maps = reach(lambda _: complexity.self_attention, 8, 4)
    assert maps.shape == (1, 8, 8)
    assert maps.all()


def test_a_recurrent_layer_reaches_what_came_before_and_never_what_comes_after():
    maps = reach(lambda _: complexity.recurrent(4), 8, 4, max_layers=2)
    np.testing.assert_array_equal(maps, [np.tri(8, dtype=bool)] * 2)
    np.testing.assert_array_equal(reach(lambda _: complexity.recurrent(4), 8, 4, causal=True), maps[:1])


@pytest.mark.parametrize(
    ("layer_of", "before", "after"),
    [
        (lambda _: complexity.convolutional(4, 3), [2, 4, 6, 8], [0] * 4),
        (lambda number: complexity.convolutional(4, 3, dilation=3**number), [2, 8], [0] * 2),
        (lambda _: lambda x: complexity.restricted_self_attention(x, 2), [2, 4, 6, 8], [2, 4, 6, 8]),
    ],
    ids=["contiguous", "dilated", "restricted"],
)
def test_a_stack_reaches_as_many_positions_as_counted_by_hand(layer_of, before, after):
    distance = np.arange(8)[:, None] - np.arange(8)[None, :]
    wanted = [(distance <= b) & (-distance <= a) for b, a in zip(before, after, strict=True)]
    found = reach(layer_of, 8, 4, causal=not any(after), max_layers=9)
    np.testing.assert_array_equal(found, wanted)
