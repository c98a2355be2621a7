"""Keras' implicit masks, as `Embedding(mask_zero=True)` makes them: what they hide is hidden, and they stay.

What is behind padding is changed, which must not matter; then what is real, which must.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.model.layers.attention import MultiHeadAttention
from keras_transformer.model.layers.decoder import DecoderLayer
from keras_transformer.model.layers.embedding import PositionalEmbedding
from keras_transformer.model.layers.encoder import EncoderLayer
from keras_transformer.model.layers.masks import causal_mask

VOCAB, WIDTH, HEADS, KEY_DIM = 23, 6, 3, 5
SIZES = {"num_heads": HEADS, "key_dim": KEY_DIM, "d_ff": 7, "residual_dropout": 0.0}
SOURCE = np.array([[4, 9, 13, 5, 2], [7, 22, 2, 0, 0]])
TARGET = np.array([[1, 5, 9, 14], [1, 6, 0, 0]])


def padded(ids, by=3):
    return np.pad(ids, ((0, 0), (0, by)))


def embedding(seed):
    """Keras' own, and so of a padding that is not 0."""
    normal = keras.initializers.RandomNormal(seed=seed)
    return keras.layers.Embedding(VOCAB, WIDTH, mask_zero=True, embeddings_initializer=normal)


def functional(**changes):
    """An encoder of one layer, a decoder of two; returns the model over ids."""
    source, target = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    x = EncoderLayer(**SIZES, **changes)(embedding(1)(source))
    y = embedding(2)(target)
    for _ in range(2):
        y = DecoderLayer(**SIZES, **changes)(y, x)
    return keras.Model([source, target], y)


class Subclassed(keras.Model):
    """The same, written as a class."""

    def __init__(self, **changes):
        super().__init__()
        self.embeddings = [embedding(1), embedding(2)]
        self.encoder = EncoderLayer(**SIZES, **changes)
        self.decoder = [DecoderLayer(**SIZES, **changes) for _ in range(2)]

    def call(self, inputs):
        x, y = (embed(ids) for embed, ids in zip(self.embeddings, inputs, strict=True))
        x = self.encoder(x)
        for layer in self.decoder:
            y = layer(y, x)
        return y


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("make", [functional, Subclassed])
def test_more_padding_changes_no_real_position(make, norm_first):
    model = make(norm_first=norm_first)
    run = tf.function(lambda *inputs: model(inputs), autograph=False)
    for call in (lambda *inputs: model(inputs), run):
        wanted = call(SOURCE, TARGET).numpy()
        found = call(padded(SOURCE), padded(TARGET)).numpy()
        real = TARGET != 0
        np.testing.assert_allclose(found[:, : TARGET.shape[1]][real], wanted[real], atol=2e-6)
        other = SOURCE.copy()
        other[1, 1] = 3
        assert np.abs(call(other, TARGET) - wanted)[1, :2].max() > 1e-4


def test_the_masks_of_both_inputs_of_a_decoder_layer_hide():
    layer = DecoderLayer(**SIZES)
    rng = np.random.default_rng(0)
    targets, encoded = (rng.normal(size=(2, length, WIDTH)).astype("float32") for length in (4, 5))
    target_mask = np.array([[True, False, True, True], [True, True, True, False]])
    source_mask = np.array([[True, True, False, True, True], [False, True, True, True, True]])

    def call(targets, encoded):
        targets, encoded = tf.constant(targets), tf.constant(encoded)
        targets._keras_mask, encoded._keras_mask = tf.constant(target_mask), tf.constant(source_mask)
        return layer(targets, encoded).numpy()

    before = call(targets, encoded)
    explicit = layer(
        targets,
        encoded,
        self_attention_mask=causal_mask(4).numpy() & target_mask[:, None],
        cross_attention_mask=source_mask[:, None],
    ).numpy()
    np.testing.assert_allclose(before[target_mask], explicit[target_mask], atol=1e-6)
    # Self-attention stays causal: the last target changes nothing before it.
    later = targets.copy()
    later[:, 3] += 1
    np.testing.assert_array_equal(call(later, encoded)[:, :3], before[:, :3])
    hidden = targets.copy()
    hidden[0, 1] += 1
    np.testing.assert_array_equal(call(hidden, encoded)[0, [0, 2, 3]], before[0, [0, 2, 3]])
    behind = encoded.copy()
    behind[~source_mask] += 1
    np.testing.assert_array_equal(call(targets, behind), before)
    seen = encoded.copy()
    seen[0, 3] += 1
    assert np.abs(call(targets, seen) - before)[0].max() > 1e-3


@pytest.mark.parametrize("explicit", [False, True])
def test_attention_honours_masks_as_keras_own_layer_does(explicit):
    rng = np.random.default_rng(3)
    query, value, key = (rng.normal(size=(2, length, 11)).astype("float32") for length in (4, 5, 5))
    ours, theirs = (
        cls(HEADS, KEY_DIM, use_bias=True) for cls in (MultiHeadAttention, keras.layers.MultiHeadAttention)
    )
    for layer in (ours, theirs):
        layer.build(query.shape, value.shape, key.shape)
    theirs.set_weights(
        [w.reshape(like.shape) for w, like in zip(ours.get_weights(), theirs.weights, strict=True)]
    )
    masks = [np.arange(4) < np.array([[4], [3]]), np.arange(5) < np.array([[2], [5]])]
    masks.append(np.arange(5) > np.array([[0], [2]]))
    attention_mask = np.tri(4, 5, 1, dtype=bool)[None]

    def call(layer):
        inputs = [tf.constant(each) for each in (query, value, key)]
        for each, mask in zip(inputs, masks, strict=True):
            each._keras_mask = tf.constant(mask)
        how = {"attention_mask": attention_mask} if explicit else {}
        output, weights = layer(*inputs, **how, return_attention_scores=True)
        np.testing.assert_array_equal(output._keras_mask, masks[0])
        given = {"query_mask": masks[0], "value_mask": masks[1], "key_mask": masks[2]}
        np.testing.assert_allclose(layer(query, value, key, **given, **how)[rows], output[rows], atol=1e-6)
        return output.numpy(), weights.numpy()

    visible = np.broadcast_to((masks[0][:, :, None] & (masks[1] & masks[2])[:, None]), (2, 4, 5))
    visible = visible & attention_mask if explicit else visible
    rows = visible.any(-1)
    assert rows.sum() == (5 if explicit else 7)
    (output, weights), (their_output, their_weights) = call(ours), call(theirs)
    np.testing.assert_allclose(output[rows], their_output[rows], atol=1e-5)
    for ours_of_head, theirs_of_head in zip(
        np.swapaxes(weights, 0, 1), np.swapaxes(their_weights, 0, 1), strict=True
    ):
        np.testing.assert_allclose(ours_of_head[rows], theirs_of_head[rows], atol=1e-5)
        assert np.all(ours_of_head[~visible] == 0)


def test_a_mask_argument_and_the_attention_mask_are_combined():
    encoder = EncoderLayer(**SIZES)
    x = np.random.default_rng(0).normal(size=(2, 5, WIDTH)).astype("float32")
    band = np.abs(np.subtract.outer(np.arange(5), np.arange(5)))[None] < 3
    padding = np.arange(5) < np.array([[5], [3]])
    wanted = encoder(x, attention_mask=band & padding[:, None]).numpy()
    masked = tf.constant(x)
    masked._keras_mask = tf.constant(padding)
    for found in (encoder(x, attention_mask=band, mask=padding), encoder(masked, attention_mask=band)):
        np.testing.assert_allclose(found.numpy()[padding], wanted[padding], atol=1e-6)
    assert np.abs(encoder(x, attention_mask=band) - wanted)[1, :3].max() > 1e-3


def test_no_layer_removes_the_mask_of_its_inputs():
    ids = tf.constant(SOURCE)
    encoded, targets = embedding(1)(ids), embedding(2)(ids)
    mask = SOURCE != 0
    for made in (
        EncoderLayer(**SIZES)(encoded),
        DecoderLayer(**SIZES)(targets, encoded),
        MultiHeadAttention(HEADS, KEY_DIM)(targets, encoded),
    ):
        np.testing.assert_array_equal(made._keras_mask, mask)
        np.testing.assert_array_equal(encoded._keras_mask, mask)
        np.testing.assert_array_equal(targets._keras_mask, mask)


@pytest.mark.slow
def test_training_with_more_padding_gives_the_same_weights():
    def trained(ids):
        source = keras.Input((None,), dtype="int32")
        x = PositionalEmbedding(VOCAB, WIDTH, mask_zero=True)(source)
        x = EncoderLayer(**SIZES)(x)
        x = keras.layers.GlobalAveragePooling1D()(x)  # Keras' own, which reads the mask
        model = keras.Model(source, keras.layers.Dense(1)(x))
        rng = np.random.default_rng(1)
        model.set_weights([rng.normal(size=weight.shape) for weight in model.weights])
        model.compile(keras.optimizers.SGD(0.01), "mse")
        history = model.fit(ids, np.array([[0.5], [-0.5]]), epochs=3, verbose=0, shuffle=False)
        return history.history["loss"], model.get_weights()

    losses, weights = trained(SOURCE)
    longer_losses, longer_weights = trained(padded(SOURCE))
    np.testing.assert_allclose(longer_losses, losses, rtol=1e-4)
    for one, longer in zip(weights, longer_weights, strict=True):
        np.testing.assert_allclose(longer, one, atol=1e-4)
    assert losses[2] < losses[0]
    other = SOURCE.copy()
    other[1, 1] = 3
    assert abs(trained(other)[0][0] - losses[0]) > 1e-3


def test_a_positional_embedding_has_a_mask_where_asked_for():
    ids = tf.constant(SOURCE)
    np.testing.assert_array_equal(
        PositionalEmbedding(VOCAB, WIDTH, mask_zero=True)(ids)._keras_mask, SOURCE != 0
    )
    assert getattr(PositionalEmbedding(VOCAB, WIDTH)(ids), "_keras_mask", None) is None


X = np.zeros((2, 5, WIDTH), "float32")


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        (
            {"attention_mask": np.ones((5, 5), bool)},
            r"`attention_mask` .*\(batch, target_len, source_len\).*\(5, 5\)",
        ),
        (
            {"value_mask": np.ones((2, 1, 5), bool)},
            r"`value_mask` must have the axes \(batch, length\).*\(2, 1, 5\)",
        ),
    ],
)
def test_a_mask_of_other_axes_is_refused(masks, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(HEADS, KEY_DIM)(X, X, **masks)
    symbolic = {name: keras.Input(batch_shape=mask.shape, dtype="bool") for name, mask in masks.items()}
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(HEADS, KEY_DIM)(keras.Input((5, WIDTH)), keras.Input((5, WIDTH)), **symbolic)
    with pytest.raises(ValueError, match=r"`attention_mask` .*\(5, 5\)"):
        EncoderLayer(**SIZES)(X, attention_mask=np.ones((5, 5), bool))
