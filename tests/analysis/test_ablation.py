"""Models without a head against Concat(head_1, ..., head_h) W^O in NumPy with one head zero."""

import re

import keras
import numpy as np
import pytest

from keras_transformer.analysis.heads import Head, all_heads, without_heads
from keras_transformer.config.settings import ModelConfig
from keras_transformer.model.transformer import Transformer

CONFIG = ModelConfig(
    source_vocab_size=23, target_vocab_size=23, num_encoder_layers=2, num_decoder_layers=3, d_model=12,
    d_ff=17, num_heads=3, key_dim=4, value_dim=5,
)  # fmt: skip
INPUTS = np.array([[5, 6, 7, 2]]), np.array([[1, 8, 9]])


@pytest.fixture
def model():
    keras.utils.set_random_seed(1)
    return Transformer(CONFIG)


def sublayer(model, kind, layer):
    if kind == "encoder":
        return model.encoder_layers[layer].self_attention
    return getattr(model.decoder_layers[layer], "self_attention" if kind == "decoder" else "cross_attention")


def by_the_paper(attention, query, value, absent):
    """Section 3.2.2 with some heads zero; float64."""
    names = ("query", "key", "value", "output")
    w_q, w_k, w_v, w_o = (np.float64(getattr(attention, f"{name}_projection").kernel) for name in names)
    heads = []
    for head in range(3):
        q, k = (x @ w[:, 4 * head : 4 * head + 4] for x, w in ((query, w_q), (value, w_k)))
        v = value @ w_v[:, 5 * head : 5 * head + 5]
        scores = np.exp(q @ k.T / np.sqrt(4))
        heads.append((head not in absent) * (scores / scores.sum(1, keepdims=True) @ v))
    return np.concatenate(heads, axis=1) @ w_o


@pytest.mark.parametrize("head", [Head("encoder", 1, 0), Head("decoder", 2, 2), Head("cross", 0, 1)])
def test_a_removed_head_adds_nothing_and_the_others_are_unchanged(model, head):
    attention = sublayer(model, head.kind, head.layer)
    query, value = np.random.default_rng(2).normal(size=(2, 3, 12)).astype("float32")
    with without_heads(model, [head]):
        without = attention(query[None], value[None])[0]
    # The weights are back: the formula is computed from them after the block.
    expected = by_the_paper(attention, query, value, {head.head})
    np.testing.assert_allclose(without, expected, atol=1e-5)
    assert np.abs(expected - by_the_paper(attention, query, value, ())).max() > 0.1


def test_several_heads_of_a_layer_can_be_removed_together(model):
    attention = sublayer(model, "cross", 1)
    query, value = np.random.default_rng(2).normal(size=(2, 3, 12)).astype("float32")
    with without_heads(model, [Head("cross", 1, 0), Head("cross", 1, 2)]):
        without = attention(query[None], value[None])[0]
    np.testing.assert_allclose(without, by_the_paper(attention, query, value, {0, 2}), atol=1e-5)


@pytest.mark.slow
def test_the_weights_are_restored_even_after_an_error(model):
    before = [weight.numpy() for weight in model.weights]
    logits = model(INPUTS).numpy()
    changed = []

    def fail():
        with without_heads(model, all_heads(CONFIG)):
            changed.append(model(INPUTS).numpy())
            raise RuntimeError("in between")

    with pytest.raises(RuntimeError, match="in between"):
        fail()
    assert np.abs(changed[0] - logits).max() > 0.01
    for one, weight in zip(before, model.weights, strict=True):
        np.testing.assert_array_equal(one, weight)


def test_all_heads_are_counted():
    heads = all_heads(CONFIG)
    assert len(heads) == len(set(heads)) == 3 * (2 + 3 + 3)
    assert heads[:4] == [("encoder", 0, 0), ("encoder", 0, 1), ("encoder", 0, 2), ("encoder", 1, 0)]


@pytest.mark.parametrize("head", [("encoder", 2, 0), ("cross", 0, 3), ("self", 0, 0)])
def test_an_unknown_head_is_refused(model, head):
    with pytest.raises(ValueError, match=re.escape(f"Received: {head}")), without_heads(model, [Head(*head)]):
        pass
