"""Whole layers against section 3.1 in NumPy and against KerasHub's layers."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer
from keras_transformer.model.layers.decoder import DecoderLayer
from keras_transformer.model.layers.encoder import EncoderLayer
from keras_transformer.model.layers.residual import Residual

BATCH, LENGTH, SOURCE = 2, 5, 7
D_MODEL, D_FF, HEADS, KEY_DIM, VALUE_DIM = 12, 29, 3, 5, 7
EPSILON = 1e-3  # large, so that another epsilon would show


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


X = normal(0, BATCH, LENGTH, D_MODEL)
ENCODED = normal(1, BATCH, SOURCE, D_MODEL)
PADDING = np.array([[[1, 1, 1, 1, 0]], [[1, 1, 0, 0, 0]]], bool)
SOURCE_PADDING = np.array([[[1, 1, 1, 1, 1, 1, 0]], [[1, 1, 1, 0, 0, 0, 0]]], bool)
CAUSAL = np.tri(LENGTH, dtype=bool)[None]


def built(cls, **changes):
    """A layer without dropout whose weights, biases and norms are all random."""
    arguments = {
        "num_heads": HEADS,
        "key_dim": KEY_DIM,
        "value_dim": VALUE_DIM,
        "d_ff": D_FF,
        "residual_dropout": 0.0,
        "layer_norm_epsilon": EPSILON,
    }
    layer = cls(**{**arguments, **changes})
    shape = (None, None, D_MODEL)
    layer.build(*((shape,) if cls is EncoderLayer else (shape, shape)))
    rng = np.random.default_rng(2)
    layer.set_weights([rng.normal(scale=0.5, size=w.shape).astype("float32") for w in layer.weights])
    return layer


# Section 3, from the paper's text.


def layer_norm(norm, x):
    gamma, beta = (w.numpy() for w in (norm.gamma, norm.beta))
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + EPSILON) * gamma + beta


def attention(layer, query, value, mask):
    w_q, w_k, w_v, w_o = (w.numpy() for w in layer.weights if w.name == "kernel")
    biases = [w.numpy() for w in layer.weights if w.name == "bias"] or [0.0] * 4
    heads = []
    for i in range(HEADS):
        k, v = slice(i * KEY_DIM, (i + 1) * KEY_DIM), slice(i * VALUE_DIM, (i + 1) * VALUE_DIM)
        scores = (query @ w_q + biases[0])[..., k] @ np.swapaxes((value @ w_k + biases[1])[..., k], 1, 2)
        scores = np.where(mask, scores / np.sqrt(KEY_DIM), -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        heads.append(weights @ (value @ w_v + biases[2])[..., v])
    return np.concatenate(heads, -1) @ w_o + biases[3]


def feed_forward(layer, x):
    w1, b1, w2, b2 = (w.numpy() for w in layer.weights)
    return np.maximum(0, x @ w1 + b1) @ w2 + b2


def sublayer(residual, x, function, norm_first):
    """Section 3.1: LayerNorm(x + Sublayer(x)); pre-norm: x + Sublayer(LayerNorm(x))."""
    if norm_first:
        return x + function(layer_norm(residual.norm, x))
    return layer_norm(residual.norm, x + function(x))


def encoder_reference(layer, x, mask, norm_first):
    x = sublayer(
        layer.self_attention_residual,
        x,
        lambda y: attention(layer.self_attention, y, y, mask),
        norm_first,
    )
    return sublayer(
        layer.feed_forward_residual,
        x,
        lambda y: feed_forward(layer.feed_forward, y),
        norm_first,
    )


def decoder_reference(layer, x, encoded, mask, source_mask, norm_first):
    x = sublayer(
        layer.self_attention_residual,
        x,
        lambda y: attention(layer.self_attention, y, y, mask),
        norm_first,
    )
    x = sublayer(
        layer.cross_attention_residual,
        x,
        lambda y: attention(layer.cross_attention, y, encoded, source_mask),
        norm_first,
    )
    return sublayer(
        layer.feed_forward_residual,
        x,
        lambda y: feed_forward(layer.feed_forward, y),
        norm_first,
    )


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_encoder_layer_is_section_3_1(norm_first, bias):
    layer = built(EncoderLayer, norm_first=norm_first, attention_bias=bias)
    wanted = encoder_reference(layer, X, PADDING, norm_first)
    np.testing.assert_allclose(layer(X, attention_mask=PADDING), wanted, atol=2e-5)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_decoder_layer_is_section_3_1(norm_first, bias):
    layer = built(DecoderLayer, norm_first=norm_first, attention_bias=bias)
    mask = CAUSAL & PADDING
    found = layer(X, ENCODED, self_attention_mask=mask, cross_attention_mask=SOURCE_PADDING)
    wanted = decoder_reference(layer, X, ENCODED, mask, SOURCE_PADDING, norm_first)
    np.testing.assert_allclose(found, wanted, atol=2e-5)


def test_encoder_layer_shows_everything_without_a_mask():
    layer = built(EncoderLayer)
    wanted = encoder_reference(layer, X, True, norm_first=False)
    np.testing.assert_allclose(layer(X), wanted, atol=2e-5)


def test_decoder_layer_is_causal_without_a_mask():
    layer = built(DecoderLayer)
    wanted = decoder_reference(layer, X, ENCODED, CAUSAL, True, norm_first=False)
    np.testing.assert_allclose(layer(X, ENCODED), wanted, atol=2e-5)


def call(layer, **arguments):
    inputs = (X,) if isinstance(layer, EncoderLayer) else (X, ENCODED)
    return layer(*inputs, **arguments).numpy()


@pytest.mark.parametrize("cls", [EncoderLayer, DecoderLayer])
@pytest.mark.parametrize("rate", ["residual_dropout", "attention_dropout", "relu_dropout"])
def test_each_dropout_acts_in_training_only(cls, rate):
    layer, without = built(cls, **{rate: 0.5}), built(cls)
    np.testing.assert_array_equal(call(layer, training=False), call(without))
    np.testing.assert_array_equal(call(layer), call(without))
    assert np.abs(call(layer, training=True) - call(without)).max() > 0.01


@pytest.mark.parametrize("cls", [EncoderLayer, DecoderLayer])
def test_without_dropout_training_equals_inference(cls):
    np.testing.assert_allclose(call(built(cls), training=True), call(built(cls), training=False), atol=1e-6)


@pytest.mark.parametrize("cls", [EncoderLayer, DecoderLayer])
@pytest.mark.parametrize(
    ("rate", "names"),
    [
        ("attention_dropout", ["self_attention", "cross_attention"]),
        ("relu_dropout", ["feed_forward"]),
        (
            "residual_dropout",
            ["self_attention_residual", "cross_attention_residual", "feed_forward_residual"],
        ),
    ],
)
def test_each_rate_is_the_rate_of_its_sublayers_only(cls, rate, names):
    layer = built(cls, **{rate: 0.25})
    rates = {part.name: getattr(part, "dropout", None) for part in layer._layers}
    if cls is EncoderLayer:
        names = [name for name in names if not name.startswith("cross")]
    assert {name for name, value in rates.items() if value == 0.25} == set(names)
    assert {value for name, value in rates.items() if name not in names} == {0.0}


def test_residual_drops_the_sublayers_output_never_the_residual():
    # Ones arrive as 0 or as 1 / (1 - rate) on top of an untouched x.
    residual = Residual(dropout=0.2, norm_first=True)
    x = normal(3, BATCH, 1009, D_MODEL)
    residual.build(x.shape)
    added = residual.post(x, np.ones_like(x), training=True) - x
    kept = np.abs(added) > 0.5
    np.testing.assert_allclose(added[kept], 1 / 0.8, atol=1e-5)
    np.testing.assert_allclose(added[~kept], 0.0, atol=1e-6)
    assert abs(kept.mean() - 0.8) < 0.01


def test_dropout_comes_before_the_addition_in_post_norm():
    residual = Residual(dropout=0.5, epsilon=EPSILON)
    x = normal(4, BATCH, LENGTH, D_MODEL)
    residual.build(x.shape)
    found = residual.post(x, np.zeros_like(x), training=True)
    np.testing.assert_allclose(found, layer_norm(residual.norm, x), atol=1e-5)


def test_alpha_scales_the_residual_and_not_the_sublayers_output():
    x, output = normal(6, BATCH, LENGTH, D_MODEL), normal(7, BATCH, LENGTH, D_MODEL)
    for norm_first in (False, True):
        residual = Residual(dropout=0.0, epsilon=EPSILON, alpha=1.7, norm_first=norm_first)
        residual.build(x.shape)
        total = 1.7 * x + output
        expected = total if norm_first else layer_norm(residual.norm, total)
        np.testing.assert_allclose(residual.post(x, output), expected, atol=1e-5)


def test_a_cached_decoder_step_equals_the_whole_layer():
    # Three hypotheses a sentence; the encoder's keys and values are not repeated.
    layer = built(DecoderLayer)
    x = normal(5, BATCH * 3, LENGTH, D_MODEL)
    expected = layer(
        x,
        np.repeat(ENCODED, 3, axis=0),
        cross_attention_mask=np.repeat(SOURCE_PADDING, 3, axis=0),
    )
    encoder_key_value = layer.cross_attention.project(ENCODED)
    cache = layer.self_attention.empty_cache(BATCH, 0)
    for i in range(LENGTH):
        own = np.arange(3 * (i + 1)) % 3 == np.arange(3)[:, None]  # slots of each hypothesis
        output, cache = layer.step(
            x[:, i], cache, encoder_key_value, own[None], SOURCE_PADDING, num_hypotheses=3
        )
        np.testing.assert_allclose(output, expected[:, i], atol=1e-5)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("cls", [EncoderLayer, DecoderLayer])
def test_number_of_weights_follows_section_3(cls, norm_first):
    def attention_weights(bias):
        kernels = 2 * D_MODEL * HEADS * (KEY_DIM + VALUE_DIM)
        return kernels + bias * (HEADS * (2 * KEY_DIM + VALUE_DIM) + D_MODEL)

    sublayers = 2 if cls is EncoderLayer else 3
    others = 2 * D_MODEL * D_FF + D_FF + D_MODEL + sublayers * 2 * D_MODEL
    for bias in (False, True):
        layer = built(cls, norm_first=norm_first, attention_bias=bias)
        wanted = (sublayers - 1) * attention_weights(bias) + others
        assert layer.count_params() == wanted


def test_layers_work_in_a_functional_model_with_masks():
    encoder, decoder = built(EncoderLayer), built(DecoderLayer)
    inputs = [
        keras.Input((None, D_MODEL)),
        keras.Input((1, None), dtype="bool"),
        keras.Input((None, D_MODEL)),
    ]
    source, mask, target = inputs
    encoded = encoder(source, attention_mask=mask)
    model = keras.Model(inputs, decoder(target, encoded, cross_attention_mask=mask))
    assert model.output_shape == (None, None, D_MODEL)
    wanted = decoder(X, encoder(ENCODED, attention_mask=SOURCE_PADDING), cross_attention_mask=SOURCE_PADDING)
    np.testing.assert_allclose(model([ENCODED, SOURCE_PADDING, X]), wanted, atol=1e-5)


@pytest.mark.parametrize("cls", [EncoderLayer, DecoderLayer])
def test_mixed_precision_reaches_every_sublayer(cls):
    layer = built(cls, dtype="mixed_bfloat16")
    found = layer(*((X,) if cls is EncoderLayer else (X, ENCODED)))
    assert found.dtype == tf.bfloat16
    assert {w.dtype for w in layer.weights} == {"float32"}
    policies = {part.dtype_policy.name for part in layer._layers}
    assert policies == {"mixed_bfloat16"}
    np.testing.assert_allclose(tf.cast(found, tf.float32), call(built(cls)), atol=0.15)


# Every constructor argument of every registered class, none at its default.
COMMON = {"residual_dropout": 0.31, "attention_dropout": 0.37, "relu_dropout": 0.41}
ATTENTION = {
    "num_heads": 3,
    "key_dim": 5,
    "value_dim": 7,
    "dropout": 0.3,
    "use_bias": True,
    "stacked": ["key", "value"],
    "gain": 0.7,
    "value_gain": 0.9,
    "qk_norm": True,
}
ARGUMENTS = {
    "Projection": {"units": 11, "use_bias": True, "activation": "relu", "gain": 0.7},
    "MultiHeadAttention": ATTENTION,
    "RelativeAttention": {**ATTENTION, "max_relative_position": 3},
    "RotaryAttention": ATTENTION,
    "QueryKeyNorm": {},
    "Dropout": {"rate": 0.3, "seed": 5},
    "LayerNormalization": {"epsilon": 0.01},
    "RMSNormalization": {"epsilon": 0.01},
    "FeedForward": {"d_ff": 29, "dropout": 0.3, "activation": "gelu", "gain": 0.7},
    "GatedFeedForward": {"d_ff": 29, "dropout": 0.3, "activation": "geglu", "gain": 0.7},
    "Residual": {"dropout": 0.3, "norm_first": True, "epsilon": 0.01, "alpha": 1.7, "norm_kind": "rms"},
    **{
        name: {
            "num_heads": 3,
            "key_dim": 5,
            "value_dim": 7,
            "d_ff": 29,
            **COMMON,
            "activation": "gelu",
            "norm_first": True,
            "layer_norm_epsilon": 0.01,
            "attention_bias": True,
            "attention_init": "separate",
            "depth_scale": [1.7, 0.7, 0.9],
            "positions": "relative",
            "max_relative_position": 3,
            "norm": "rms",
            "qk_norm": True,
        }
        for name in ("EncoderLayer", "DecoderLayer")
    },
    "PositionalEmbedding": {
        "vocab_size": 23,
        "d_model": 14,
        "positions": "learned",
        "max_positions": 19,
        "mask_zero": True,
    },
    "StepCounters": {"name": "counts"},
    "LabelSmoothedCrossEntropy": {
        "label_smoothing": 0.3,
        "formula": "uniform",
        "pad_id": 3,
        "name": "other",
    },
    **{name: {"pad_id": 3, "name": "other"} for name in ("TokenLoss", "TokenAccuracy", "Perplexity")},
    "Adam": {},
    "TransformerSchedule": {"d_model": 14, "warmup_steps": 7, "scale": 1.5},
}


def registered():
    for name in keras_transformer.__all__:
        getattr(keras_transformer, name)  # imports it, which registers its classes
    return {
        name.partition(">")[2]: cls
        for name, cls in keras.saving.get_custom_objects().items()
        if name.startswith("keras_transformer>")
    }


def test_the_table_of_arguments_names_every_class_and_every_argument():
    classes = registered()
    assert classes.keys() - {"Transformer"} == ARGUMENTS.keys()
    for name, arguments in ARGUMENTS.items():
        parameters = {}
        for base in classes[name].__mro__:
            if base.__module__.startswith("keras_transformer") and "__init__" in vars(base):
                parameters.update(inspect.signature(base.__init__).parameters)
        known = {
            p.name: p.default
            for p in parameters.values()
            if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name != "self"
        }
        assert known.keys() == arguments.keys(), name
        for argument, value in arguments.items():
            assert value != known[argument], f"{name}.{argument} is at its default"


@pytest.mark.parametrize("name", ARGUMENTS)
def test_config_holds_every_argument_and_survives_a_round_trip(name):
    arguments = ARGUMENTS[name]
    made = registered()[name](**arguments)
    config = made.get_config()
    assert arguments.items() <= config.items()
    again = type(made).from_config(config)
    assert again.get_config() == config
    for argument, value in arguments.items():
        assert getattr(again, argument) == value


@pytest.mark.parametrize(
    "name", [name for name in ARGUMENTS if issubclass(registered()[name], keras.layers.Layer)]
)
def test_config_of_a_layer_holds_its_precision(name):
    layer = registered()[name](**ARGUMENTS[name], dtype="mixed_bfloat16", name="other")
    again = type(layer).from_config(layer.get_config())
    assert again.dtype_policy.name == "mixed_bfloat16"
    assert again.name == "other"
