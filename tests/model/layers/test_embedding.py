"""Embeddings and positions against the formulas of sections 3.4 and 3.5."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_transformer.model.layers.embedding import PositionalEmbedding, sinusoids

VOCAB, D_MODEL = 23, 14
IDS = np.array([[4, 21, 0, 4, 9], [7, 1, 2, 3, 11]])


def paper(positions, d_model):
    """PE(pos, 2i) and PE(pos, 2i + 1), one number at a time, in float64."""
    table = np.zeros((len(positions), d_model))
    for row, pos in enumerate(positions):
        for i in range(d_model // 2):
            table[row, 2 * i] = np.sin(pos / 10000 ** (2 * i / d_model))
            table[row, 2 * i + 1] = np.cos(pos / 10000 ** (2 * i / d_model))
    return table


def tensor2tensor(positions, d_model):
    """Tensor2Tensor's get_timing_signal_1d with time scales from 1 to 10,000."""
    number = d_model // 2
    increment = np.log(1e4 / 1.0) / (number - 1)
    inverse = 1.0 * np.exp(np.arange(number) * -increment)
    time = np.asarray(positions, "float64")[:, None] * inverse[None]
    return np.concatenate([np.sin(time), np.cos(time)], axis=1)


FORMULAS = {"interleaved": paper, "halves": tensor2tensor}


def built(positions="interleaved", **arguments):
    layer = PositionalEmbedding(VOCAB, D_MODEL, positions=positions, **arguments)
    layer.build()
    return layer


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
@pytest.mark.parametrize("d_model", [4, 14, 512])
def test_sinusoids_follow_their_formula(layout, d_model):
    positions = np.arange(61)
    found = sinusoids(positions, d_model, layout)
    assert found.dtype == tf.float32
    np.testing.assert_allclose(found, FORMULAS[layout](positions, d_model), atol=2e-5)


def test_the_papers_layout_is_the_default():
    np.testing.assert_allclose(sinusoids(np.arange(7), 6), paper(range(7), 6), atol=1e-6)
    assert PositionalEmbedding(VOCAB, D_MODEL).positions == "interleaved"


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
def test_a_call_adds_positions_to_embeddings_times_the_root_of_d_model(layout):
    layer = built(layout)
    matrix = layer.embeddings.numpy()
    wanted = np.sqrt(D_MODEL) * matrix[IDS] + FORMULAS[layout](range(5), D_MODEL)
    np.testing.assert_allclose(layer(IDS), wanted, atol=1e-5)


@pytest.mark.parametrize("positions", ["interleaved", "halves", "learned"])
def test_first_position_shifts_the_positions(positions):
    layer = built(positions)
    whole = layer(np.concatenate([IDS, IDS], axis=1))
    np.testing.assert_allclose(layer(IDS, first_position=5), whole[:, 5:], atol=1e-6)
    assert np.abs(layer(IDS) - whole[:, 5:]).max() > 0.1


def test_first_position_may_be_a_tensor_of_the_graph():
    layer = built()

    @tf.function(input_signature=[tf.TensorSpec((None, None), tf.int32), tf.TensorSpec((), tf.int32)])
    def graph(ids, first):
        return layer(ids, first_position=first)

    np.testing.assert_allclose(graph(IDS, 3), layer(IDS, first_position=3), atol=1e-6)


def test_learned_positions_are_rows_of_their_own_matrix():
    layer = built("learned", max_positions=11)
    wanted = np.sqrt(D_MODEL) * layer.embeddings.numpy()[IDS]
    wanted = wanted + layer.position_embeddings.numpy()[2:7]
    np.testing.assert_allclose(layer(IDS, first_position=2), wanted, atol=1e-6)
    assert layer.position_embeddings.shape == (11, D_MODEL)


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
def test_positions_are_float32_in_bfloat16(layout):
    # bfloat16 has 8 bits: 257 would become 256, an error of 0.8 in the first sine.
    layer = built(layout, dtype="bfloat16")
    layer.embeddings.assign(ops.zeros_like(layer.embeddings))
    found = layer(np.array([[3]]), first_position=257)
    assert found.dtype == tf.bfloat16
    wanted = FORMULAS[layout]([257], D_MODEL)
    np.testing.assert_allclose(ops.cast(found, "float32")[0], wanted, atol=2**-8)


def test_scaled_embeddings_are_added_to_positions_in_float32():
    # Rounding the product and the sum separately would err by up to two half steps.
    layer = built(dtype="mixed_bfloat16")
    exact = np.sqrt(D_MODEL) * layer.embeddings.numpy()[IDS] + paper(range(5), D_MODEL)
    np.testing.assert_array_equal(
        ops.cast(layer(IDS), "float32"),
        ops.cast(ops.cast(exact.astype("float32"), "bfloat16"), "float32"),
    )


def test_sinusoids_are_defined_for_any_length():
    layer = built(max_positions=3)
    ids = np.full((1, 2003), 5)
    wanted = np.sqrt(D_MODEL) * layer.embeddings.numpy()[5] + paper(range(2003), D_MODEL)
    np.testing.assert_allclose(layer(ids)[0], wanted, atol=1e-3)


def test_learned_positions_end_with_a_clear_error():
    layer = built("learned", max_positions=5)
    assert layer(IDS).shape == (2, 5, D_MODEL)
    message = r"Positions must be below `max_positions`=5. Received: positions up to 5"
    with pytest.raises(ValueError, match=message):
        layer(IDS, first_position=1)


def test_logits_are_products_with_the_embedding_matrix():
    layer = built()
    hidden = np.random.default_rng(0).normal(size=(2, 5, D_MODEL)).astype("float32")
    wanted = hidden @ layer.embeddings.numpy().T
    np.testing.assert_allclose(layer.logits(hidden), wanted, atol=1e-5)


def test_input_and_logits_share_one_variable_and_its_gradient():
    layer = built()
    assert len(layer.weights) == 1
    hidden = np.random.default_rng(1).normal(size=(2, 5, D_MODEL)).astype("float32")

    def gradient(use_input, use_logits):
        with tf.GradientTape() as tape:
            loss = use_input * ops.sum(layer(IDS)) + use_logits * ops.sum(layer.logits(hidden))
        return tf.convert_to_tensor(tape.gradient(loss, layer.embeddings.value)).numpy()

    counts = np.bincount(IDS.ravel(), minlength=VOCAB)[:, None] * np.ones((1, D_MODEL))
    of_input = np.sqrt(D_MODEL) * counts
    of_logits = np.tile(hidden.sum((0, 1)), (VOCAB, 1))
    np.testing.assert_allclose(gradient(1.0, 0.0), of_input, atol=1e-5)
    np.testing.assert_allclose(gradient(1.0, 1.0), of_input + of_logits, atol=1e-5)


@pytest.mark.parametrize("lookups_made", [0, 1, 2])
@pytest.mark.parametrize("in_graph", [False, True])
def test_summed_gradients_are_the_gradient_of_all_uses(lookups_made, in_graph):
    layer = built()
    hidden = np.random.default_rng(1).normal(size=(2, 5, D_MODEL)).astype("float32")

    def gradient():
        with tf.GradientTape() as tape:
            with layer.summed_gradients(2) as matrix:
                loss = sum([ops.sum((1 + use) * layer(IDS + use)) for use in range(lookups_made)])
                loss += ops.sum(ops.matmul(hidden, ops.transpose(matrix)))
            loss += 5 * ops.sum(layer(IDS))  # after the context: an ordinary lookup
        return tf.convert_to_tensor(tape.gradient(loss, layer.embeddings.value))

    counts = 5 * np.bincount(IDS.ravel(), minlength=VOCAB)
    for use in range(lookups_made):
        counts += (1 + use) * np.bincount(IDS.ravel() + use, minlength=VOCAB)
    wanted = np.sqrt(D_MODEL) * counts[:, None] + hidden.sum((0, 1))
    found = tf.function(gradient, autograph=False)() if in_graph else gradient()
    np.testing.assert_allclose(found, wanted, atol=1e-4)


@pytest.mark.parametrize("positions", ["interleaved", "learned"])
def test_matrices_start_normal_with_variance_1_over_d_model(positions):
    layer = PositionalEmbedding(499, 64, positions=positions, max_positions=503)
    layer.build()
    assert len(layer.weights) == (2 if positions == "learned" else 1)
    for weight in layer.get_weights():
        assert abs(weight.mean()) < 0.002
        np.testing.assert_allclose(weight.std(), 1 / 8, rtol=0.02)
        # A normal distribution, neither uniform nor cut off at two deviations.
        np.testing.assert_allclose(np.mean(np.abs(weight) > 2 / 8), 0.0455, atol=0.005)


def test_weights_stay_float32_under_mixed_precision():
    layer = built("learned", dtype="mixed_bfloat16")
    assert {w.dtype for w in layer.weights} == {"float32"}
    hidden = ops.ones((1, 2, D_MODEL), "bfloat16")
    assert layer.logits(hidden).dtype == tf.bfloat16


def test_works_as_a_layer_of_a_functional_model():
    layer = built()
    ids = keras.Input((None,), dtype="int32")
    model = keras.Model(ids, layer(ids))
    assert model.output_shape == (None, None, D_MODEL)
    np.testing.assert_allclose(model(IDS), layer(IDS), atol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sinusoids(np.arange(3), 7), "`d_model` must be even. .*d_model=7"),
        (lambda: sinusoids(np.arange(3), 2, "halves"), "at least 4. .*d_model=2"),
        (lambda: sinusoids(np.arange(3), 4, "half"), "`layout` must be .*'half'"),
        (lambda: built("sinusoidal"), "`positions` must be .*'sinusoidal'"),
    ],
)
def test_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        call()
