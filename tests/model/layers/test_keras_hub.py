"""Layers of keras-hub: equal outputs after conversion in both directions, other names of arguments."""

import keras
import numpy as np
import pytest

from keras_transformer.model.keras_hub import layer_from_keras_hub, layer_to_keras_hub
from keras_transformer.model.layers.attention import MultiHeadAttention
from keras_transformer.model.layers.decoder import DecoderLayer
from keras_transformer.model.layers.embedding import PositionalEmbedding, sinusoids
from keras_transformer.model.layers.encoder import EncoderLayer
from keras_transformer.model.layers.feed_forward import FeedForward
from keras_transformer.model.layers.masks import causal_mask

hub = pytest.importorskip("keras_hub")

# 14 is no multiple of 3: keras-hub rounds the width of a head down, to 4.
BATCH, LENGTH, SOURCE_LENGTH, D_MODEL, SOURCE_WIDTH, HEADS, HEAD, D_FF = 2, 5, 7, 14, 11, 3, 4, 17
RNG = np.random.default_rng(3)
X = RNG.normal(size=(BATCH, LENGTH, D_MODEL)).astype("float32")
ENCODED = RNG.normal(size=(BATCH, SOURCE_LENGTH, SOURCE_WIDTH)).astype("float32")
PADDING = np.array([[True] * 5, [True] * 3 + [False] * 2])
SOURCE_PADDING = np.array([[True] * 7, [True] * 4 + [False] * 3])
SIZES = {"num_heads": HEADS, "key_dim": HEAD, "d_ff": D_FF}
ENCODER, DECODER = hub.layers.TransformerEncoder, hub.layers.TransformerDecoder


def randomised(layer):
    rng = np.random.default_rng(5)
    layer.set_weights([0.5 * rng.normal(size=weight.shape) for weight in layer.weights])
    return layer


def theirs(kind, *, norm_first=False, activation="relu", **options):
    options = {"layer_norm_epsilon": 1e-3, "normalize_first": norm_first, "name": "mine"} | options
    layer = kind(D_FF, HEADS, activation=activation, **options)
    layer.build(*((None, None, width) for width in (D_MODEL, SOURCE_WIDTH)[: 1 + (kind is DECODER)]))
    return randomised(layer)


def ours(kind, **options):
    layer = kind(**SIZES | {"residual_dropout": 0.0} | options)
    layer.build(*((None, None, width) for width in (D_MODEL, SOURCE_WIDTH)[: 1 + (kind is DecoderLayer)]))
    return randomised(layer)


def assert_same_outputs(mine, other):
    """Compares all positions under every mask; `other` is keras-hub's."""
    near = {"atol": 1e-5, "rtol": 1e-5}
    if isinstance(mine, EncoderLayer):
        np.testing.assert_allclose(mine(X), other(X), **near)
        causal = np.repeat(causal_mask(LENGTH), BATCH, axis=0)
        found = mine(X, attention_mask=causal & PADDING[:, None])
        np.testing.assert_allclose(found, other(X, PADDING, causal), **near)
        # The same name: padding itself differs, as a hidden position sees nothing here.
        found, wanted = (layer(X, padding_mask=PADDING).numpy()[PADDING] for layer in (mine, other))
        np.testing.assert_allclose(found, wanted, **near)
        assert np.abs(found - mine(X).numpy()[PADDING]).max() > 0.01
        return
    np.testing.assert_allclose(mine(X, ENCODED), other(X, ENCODED), **near)
    masks = {"decoder_padding_mask": PADDING, "encoder_padding_mask": SOURCE_PADDING}
    found, wanted = (layer(X, ENCODED, **masks).numpy()[PADDING] for layer in (mine, other))
    np.testing.assert_allclose(found, wanted, **near)
    assert np.abs(found - mine(X, ENCODED).numpy()[PADDING]).max() > 0.01
    names = {"decoder_sequence": X, "encoder_sequence": ENCODED, "decoder_attention_mask": None}
    cross = np.repeat(SOURCE_PADDING[:, None], LENGTH, axis=1)
    found, wanted = (layer(**names, encoder_attention_mask=cross) for layer in (mine, other))
    np.testing.assert_allclose(found, wanted, **near)
    found = mine(X, ENCODED, self_attention_mask=np.ones((1, LENGTH, LENGTH), bool))
    np.testing.assert_allclose(found, other(X, ENCODED, use_causal_mask=False), **near)


def by_path(layer):
    return {weight.path.split("mine/", 1)[-1]: weight.numpy() for weight in layer.weights}


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("kind", [ENCODER, DECODER])
def test_a_layer_of_keras_hub_is_the_same_here_and_back(kind, norm_first, activation):
    given = theirs(kind, norm_first=norm_first, activation=activation, dropout=0.25)
    mine = layer_from_keras_hub(given)
    assert mine.name == given.name
    assert (mine.residual_dropout, mine.attention_dropout, mine.relu_dropout) == (0.25, 0.25, 0.0)
    assert_same_outputs(mine, given)
    back = layer_to_keras_hub(mine)
    before, after = by_path(given), by_path(back)
    assert before.keys() == after.keys()
    for name, weight in before.items():
        np.testing.assert_array_equal(after[name], weight)
    config = {**given.get_config(), "encoder_sequence_shape": None, "decoder_sequence_shape": None}
    assert {**back.get_config(), "encoder_sequence_shape": None, "decoder_sequence_shape": None} == config


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("kind", [EncoderLayer, DecoderLayer])
def test_a_layer_of_ours_is_the_same_in_keras_hub_and_back(kind, norm_first, bias):
    given = ours(kind, norm_first=norm_first, attention_bias=bias)
    other = layer_to_keras_hub(given)
    assert_same_outputs(given, other)
    back = layer_from_keras_hub(other)
    after = {name.split("/", 1)[1]: weight for name, weight in by_path_of(back).items()}
    for name, weight in by_path_of(given).items():
        np.testing.assert_array_equal(after.pop(name.split("/", 1)[1]), weight)
    assert bool(after) is not bias
    assert all(name.endswith("/bias") and not weight.any() for name, weight in after.items())


def by_path_of(layer):
    return {weight.path: weight.numpy() for weight in layer.weights}


def test_a_layer_inside_a_model_with_half_precision():
    source = keras.Input((None, D_MODEL))
    inside = ENCODER(D_FF, HEADS, dtype="mixed_bfloat16")
    keras.Model(source, inside(source))
    mine = layer_from_keras_hub(inside)
    assert mine.dtype_policy.name == "mixed_bfloat16"
    assert mine.residual_dropout == 0
    near = {"atol": 0.05, "rtol": 0.05}
    np.testing.assert_allclose(mine(X).numpy().astype("float32"), inside(X).numpy().astype("float32"), **near)


def test_dropout_may_be_chosen_where_ours_has_several_rates():
    given = ours(EncoderLayer, residual_dropout=0.1)
    with pytest.raises(
        ValueError, match="one rate .* pass `dropout`. Received: {'residual': 0.1, 'attention'"
    ):
        layer_to_keras_hub(given)
    assert layer_to_keras_hub(given, dropout=0.3).dropout == 0.3


class Gated(FeedForward):
    pass


def gated():
    layer = EncoderLayer(**SIZES, residual_dropout=0)
    layer.feed_forward = Gated(D_FF, name="feed_forward")
    layer.build((None, None, D_MODEL))
    return layer


def low_rank():
    layer = theirs(ENCODER)
    layer._feedforward_output_dense.enable_lora(2)
    return layer


def decoder_only():
    layer = DECODER(D_FF, HEADS)
    layer.build((None, None, D_MODEL))
    return layer


def double(x):
    return x + x


REFUSED = [
    (layer_from_keras_hub, lambda: ENCODER(D_FF, HEADS), ValueError, "`layer` must be built"),
    (layer_from_keras_hub, decoder_only, ValueError, "without cross-attention"),
    (layer_from_keras_hub, lambda: theirs(ENCODER, activation=double), ValueError, "one of Keras' own"),
    (layer_from_keras_hub, low_rank, ValueError, "weights of its class only.*lora"),
    (layer_from_keras_hub, lambda: keras.layers.Dense(3), TypeError, "TransformerDecoder.*Received: Dense"),
    (layer_to_keras_hub, lambda: EncoderLayer(**SIZES), ValueError, "`layer` must be built"),
    (layer_to_keras_hub, lambda: theirs(ENCODER), TypeError, "EncoderLayer or DecoderLayer, and no subclass"),
    (
        layer_to_keras_hub,
        lambda: ours(EncoderLayer, key_dim=5),
        ValueError,
        "d_model // num_heads = 4.*key_dim=5",
    ),
    (layer_to_keras_hub, lambda: ours(EncoderLayer, value_dim=6), ValueError, "value_dim=6"),
    (layer_to_keras_hub, lambda: ours(EncoderLayer, relu_dropout=0.1), ValueError, "pass `dropout`"),
    (layer_to_keras_hub, lambda: ours(EncoderLayer, depth_scale=(2, 1, 1)), ValueError, "cannot scale.*2"),
    (
        layer_to_keras_hub,
        lambda: ours(EncoderLayer, norm="rms"),
        ValueError,
        "LayerNorm. Received: norm='rms'",
    ),
    (
        layer_to_keras_hub,
        lambda: ours(EncoderLayer, qk_norm=True),
        ValueError,
        "Received: qk_norm=True",
    ),
    (
        layer_to_keras_hub,
        lambda: ours(EncoderLayer, positions="rotary"),
        ValueError,
        "Received: RotaryAttention",
    ),
    (layer_to_keras_hub, gated, ValueError, "MultiHeadAttention and FeedForward. Received: Gated"),
]


@pytest.mark.parametrize(("convert", "make", "error", "message"), REFUSED)
def test_what_has_no_counterpart_is_refused_in_one_line(convert, make, error, message):
    with pytest.raises(error, match=message) as info:
        convert(make())
    assert "\n" not in str(info.value)


# Names.


def test_other_names_of_the_constructors_mean_the_same():
    one = EncoderLayer(num_heads=3, key_dim=4, intermediate_dim=17, normalize_first=True, name="one")
    other = EncoderLayer(num_heads=3, key_dim=4, d_ff=17, norm_first=True, name="one")
    assert one.get_config() == other.get_config()
    assert DecoderLayer.from_config(one.get_config()).d_ff == 17
    table = PositionalEmbedding(vocabulary_size=7, embedding_dim=4)
    assert (table.vocab_size, table.d_model) == (7, 4)
    ids = np.array([[3, 5]])
    np.testing.assert_array_equal(table(ids, start_index=2), table(ids, first_position=2))
    assert np.abs(table(ids, start_index=2) - table(ids)).max() > 0.01


def test_a_functional_model_keeps_our_names(tmp_path):
    source, mask = keras.Input((None, D_MODEL)), keras.Input((None,), dtype="bool")
    model = keras.Model([source, mask], EncoderLayer(**SIZES)(source, padding_mask=mask))
    again = keras.Model.from_config(model.get_config())
    again.set_weights(model.get_weights())
    np.testing.assert_array_equal(again([X, PADDING]), model([X, PADDING]))


class OwnName(EncoderLayer):
    def __init__(self, dropout, **kwargs):
        super().__init__(residual_dropout=dropout, **kwargs)

    def call(self, inputs, padding_mask=None):
        return inputs if padding_mask is None else padding_mask


def test_a_subclass_may_use_such_a_name_itself():
    layer = OwnName(dropout=0.5, **SIZES)
    assert layer.residual_dropout == 0.5
    assert layer(X, padding_mask=PADDING).shape == PADDING.shape


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: EncoderLayer(**SIZES, intermediate_dim=3), "EncoderLayer: `d_ff` has a second name"),
        (
            lambda: EncoderLayer(**SIZES, dropout=0.1),
            "no argument `dropout`: pass `residual_dropout` and `att",
        ),
        (
            lambda: DecoderLayer(**SIZES, kernel_initializer="zeros"),
            "`kernel_initializer`: the initial weights",
        ),
        (lambda: DecoderLayer(**SIZES, bias_initializer="zeros"), "`bias_initializer`: the initial weights"),
        (
            lambda: PositionalEmbedding(7, 4, sequence_length=9),
            "pass `max_positions` and positions='learned'",
        ),
        (lambda: ours(EncoderLayer)(X, mask=PADDING, padding_mask=PADDING), "`mask` has a second name"),
        (lambda: ours(EncoderLayer)(X, return_attention_scores=True), "`attend` returns output and weights"),
        (lambda: ours(DecoderLayer)(X, ENCODED, use_causal_mask=True), "causal unless `self_attention_mask`"),
        (lambda: ours(DecoderLayer)(X, ENCODED, decoder_attention_mask=X), r"& causal_mask\(length\)"),
        (lambda: ours(DecoderLayer)(X, ENCODED, self_attention_cache=X), "`step` decodes with caches"),
        (
            lambda: MultiHeadAttention(2, 3)(X, X, use_causal_mask=True),
            r"attention_mask=causal_mask\(length\)",
        ),
    ],
)
def test_names_that_mean_something_else_are_refused_with_ours(call, message):
    with pytest.raises(TypeError, match=message) as info:
        call()
    assert "\n" not in str(info.value)


def test_an_activation_is_given_by_name():
    with pytest.raises(ValueError, match="`activation` must be the name of a Keras activation"):
        FeedForward(3, activation=double)


def test_sinusoids_are_those_of_keras_hub():
    wanted = hub.layers.SinePositionEncoding()(X)[0]
    np.testing.assert_allclose(sinusoids(np.arange(LENGTH), D_MODEL), wanted, atol=1e-6)


def test_learned_positions_are_those_of_keras_hub_with_scaled_embeddings():
    given = hub.layers.TokenAndPositionEmbedding(vocabulary_size=7, sequence_length=9, embedding_dim=D_MODEL)
    ids = np.array([[3, 5, 6], [1, 2, 0]])
    wanted = given(ids)
    table = PositionalEmbedding(7, D_MODEL, positions="learned", max_positions=9)
    table.build()
    table.embeddings.assign(given.token_embedding.embeddings / D_MODEL**0.5)
    table.position_embeddings.assign(given.position_embedding.position_embeddings)
    np.testing.assert_allclose(table(ids), wanted, atol=1e-6)
