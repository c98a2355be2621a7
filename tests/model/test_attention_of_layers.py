"""Attention weights from `Transformer.attend` against section 3 in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config.settings import ModelConfig
from keras_transformer.model.transformer import Transformer

VOCAB, PAD, D_MODEL, HEADS, KEY_DIM, VALUE_DIM = 19, 0, 12, 3, 5, 7
SOURCE = np.array([[4, 9, 13, 5, 2, 0], [7, 18, 2, 0, 0, 0]])
TARGET = np.array([[1, 5, 9, 14, 6], [1, 6, 6, 11, 3]])
EPSILON = 1e-6


@pytest.fixture(scope="module", params=[False, True], ids=["post-norm", "pre-norm"])
def model(request):
    return make_model(norm_first=request.param)


def make_model(**changes):
    sizes = {"num_encoder_layers": 2, "num_decoder_layers": 3, "num_heads": HEADS, "key_dim": KEY_DIM}
    sizes |= {"value_dim": VALUE_DIM, "d_model": D_MODEL, "d_ff": 17, "residual_dropout": 0.4}
    dtype = changes.pop("dtype", None)
    config = ModelConfig(source_vocab_size=VOCAB, target_vocab_size=VOCAB, **{**sizes, **changes})
    model = Transformer(config, dtype=dtype)
    rng = np.random.default_rng(5)
    for weight in model.weights:
        weight.assign(rng.normal(0.2, 0.6, weight.shape))
    return model


class Reference:
    """Section 3 in float64, layer by layer; keeps the weights of every attention."""

    def __init__(self, model):
        self.model = model
        self.kept = {"encoder": [], "decoder": [], "cross": []}

    def __call__(self, source_ids, target_ids):
        model = self.model
        mask = (source_ids != PAD)[:, None]
        x = self.embed(source_ids)
        for layer in model.encoder_layers:
            x = self.sublayer(
                layer.self_attention_residual, x, self.attend(layer.self_attention, mask, "encoder")
            )
            x = self.sublayer(layer.feed_forward_residual, x, self.feed_forward(layer.feed_forward))
        encoded = x if model.encoder_norm is None else self.norm(model.encoder_norm, x)
        x = self.embed(target_ids)
        causal = np.tri(target_ids.shape[1], dtype=bool)[None]
        for layer in model.decoder_layers:
            x = self.sublayer(
                layer.self_attention_residual, x, self.attend(layer.self_attention, causal, "decoder")
            )
            cross = self.attend(layer.cross_attention, mask, "cross", encoded)
            x = self.sublayer(layer.cross_attention_residual, x, cross)
            x = self.sublayer(layer.feed_forward_residual, x, self.feed_forward(layer.feed_forward))
        x = x if model.decoder_norm is None else self.norm(model.decoder_norm, x)
        return x @ self.value(model.target_embedding.embeddings).T

    def value(self, weight):
        return weight.numpy().astype(np.float64)

    def embed(self, ids):
        position = np.arange(ids.shape[1])[:, None]
        angle = position / 10000.0 ** (np.arange(0, D_MODEL, 2) / D_MODEL)
        waves = np.stack([np.sin(angle), np.cos(angle)], -1).reshape(len(angle), D_MODEL)
        return self.value(self.model.source_embedding.embeddings)[ids] * D_MODEL**0.5 + waves

    def norm(self, norm, x):
        deviation = np.sqrt(x.var(-1, keepdims=True) + EPSILON)
        return (x - x.mean(-1, keepdims=True)) / deviation * self.value(norm.gamma) + self.value(norm.beta)

    def sublayer(self, residual, x, function):
        if residual.norm_first:
            return x + function(self.norm(residual.norm, x))
        return self.norm(residual.norm, x + function(x))

    def feed_forward(self, layer):
        w1, b1, w2, b2 = map(self.value, layer.weights)
        return lambda x: np.maximum(0, x @ w1 + b1) @ w2 + b2

    def attend(self, layer, mask, kind, memory=None):
        def function(x):
            keys = x if memory is None else memory
            w_q, w_k, w_v, w_o = map(self.value, layer.weights)
            all_weights, outputs = [], []
            for head in range(HEADS):
                k = slice(head * KEY_DIM, (head + 1) * KEY_DIM)
                v = slice(head * VALUE_DIM, (head + 1) * VALUE_DIM)
                scores = (x @ w_q[:, k]) @ np.swapaxes(keys @ w_k[:, k], 1, 2) / np.sqrt(KEY_DIM)
                scores = np.where(mask, scores, -np.inf)
                weights = np.exp(scores - scores.max(-1, keepdims=True))
                weights /= weights.sum(-1, keepdims=True)
                all_weights.append(weights)
                outputs.append(weights @ (keys @ w_v[:, v]))
            self.kept[kind].append(np.stack(all_weights, 1))
            return np.concatenate(outputs, -1) @ w_o

        return function


ALL = {"cross": (0, 1, 2), "decoder": (0, 1, 2), "encoder": (0, 1)}


def check(attended, model):
    reference = Reference(model)
    np.testing.assert_allclose(attended.logits, reference(SOURCE, TARGET), rtol=1e-3, atol=1e-3)
    for kind, layers in ALL.items():
        found = getattr(attended, kind)
        assert tuple(found) == layers
        for layer in layers:
            np.testing.assert_allclose(found[layer], reference.kept[kind][layer], atol=2e-5)


def test_weights_of_every_head_follow_the_formula(model):
    check(model.attend((SOURCE, TARGET), **ALL), model)


@pytest.mark.slow
def test_weights_are_the_same_in_a_graph_of_unknown_lengths(model):
    ids = tf.TensorSpec((None, None), tf.int64)
    attend = tf.function(
        lambda *inputs: model.attend(inputs, **ALL), input_signature=[ids, ids], autograph=False
    )
    check(attend(SOURCE, TARGET), model)


def test_weights_sum_to_1_and_padding_has_weight_0(model):
    attended = model.attend((SOURCE, TARGET), **ALL)
    for kind in ALL:
        for weights in getattr(attended, kind).values():
            np.testing.assert_allclose(np.sum(weights, -1), 1, atol=1e-5)
    for weights in (*attended.cross.values(), *attended.encoder.values()):
        assert np.all(weights.numpy()[0, ..., 5] == 0)
        assert np.all(weights.numpy()[1, ..., 3:] == 0)
    for weights in attended.decoder.values():
        assert np.all(weights.numpy()[..., ~np.tri(5, dtype=bool)] == 0)


def test_only_selected_layers_are_returned_and_logits_equal_those_of_a_call(model):
    attended = model.attend((SOURCE, TARGET), cross=(1,))
    assert (set(attended.cross), attended.decoder, attended.encoder) == ({1}, {}, {})
    np.testing.assert_array_equal(attended.logits, model((SOURCE, TARGET), training=False))


@pytest.mark.slow
def test_weights_are_float32_under_mixed_precision():
    model = make_model(dtype="mixed_bfloat16")
    attended = model.attend((SOURCE, TARGET), **ALL)
    assert attended.logits.dtype == "bfloat16"
    np.testing.assert_array_equal(attended.logits, model((SOURCE, TARGET), training=False))
    for weights in attended.cross.values():
        assert weights.dtype == "float32"
        np.testing.assert_allclose(np.sum(weights, -1), 1, atol=1e-5)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"cross": (3,)}, "`cross` must contain layer numbers from 0 to 2. Received: .3,"),
        ({"decoder": (-1,)}, "`decoder` .* from 0 to 2"),
        ({"encoder": (0, 2)}, "`encoder` .* from 0 to 1"),
    ],
)
def test_a_layer_index_out_of_range_is_refused(asked, message):
    with pytest.raises(ValueError, match=message):
        make_model().attend((SOURCE, TARGET), **asked)
