"""Whole models with departures from the paper: what must not matter, what must, decoding, training, files."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config.settings import ModelConfig, SearchConfig
from keras_transformer.model.transformer import Transformer
from keras_transformer.translation.ensemble import search_ids
from keras_transformer.translation.scorer import ForcedDecoder

# Keras hands its variables to h5py in a way that NumPy 2 is about to refuse.
saves_files = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

VOCAB = 23
SMALL = {
    "source_vocab_size": VOCAB,
    "target_vocab_size": VOCAB,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "d_model": 12,
    "d_ff": 17,
    "num_heads": 3,
    "key_dim": 6,
    "value_dim": 7,
}
KINDS = {
    "relative": {"positions": "relative", "max_relative_position": 2},
    "rotary": {"positions": "rotary"},
    "RMSNorm": {"norm": "rms"},
    "swiglu": {"activation": "swiglu"},
    "geglu": {"activation": "geglu"},
    "QK-norm": {"qk_norm": True},
    "together": {"positions": "rotary", "norm": "rms", "activation": "swiglu", "qk_norm": True},
}
ONE_LAYER = {"num_encoder_layers": 1, "num_decoder_layers": 1}
SHIFTED = ["relative", "rotary", "together"]  # without positions of tokens in the sentence
every_kind = pytest.mark.parametrize("kind", KINDS)


def kinds(*quick):
    """The other kinds are tested with the slow tests: a graph for each takes long."""
    marks = [pytest.param(kind, marks=() if kind in quick else pytest.mark.very_slow) for kind in KINDS]
    return pytest.mark.parametrize("kind", marks)


SOURCE = np.array([[4, 9, 13, 5, 2, 0, 0], [7, 22, 2, 0, 0, 0, 0], [8, 8, 19, 6, 21, 10, 2]])
TARGET = np.array([[1, 5, 9, 14, 20, 4], [1, 6, 6, 11, 0, 0], [1, 17, 3, 9, 12, 18]])
LABELS = np.array([[5, 9, 14, 20, 4, 2], [6, 6, 11, 2, 0, 0], [17, 3, 9, 12, 18, 2]])


def model_with(kind, dtype=None, **changes):
    """A small model whose weights depend on nothing but the configuration."""
    model = Transformer(ModelConfig(**{**SMALL, **KINDS.get(kind, {}), **changes}), dtype=dtype)
    rng = np.random.default_rng(0)
    for weight in model.weights:
        value = rng.normal(size=weight.shape)
        is_matrix = len(weight.shape) == 2
        weight.assign(value * max(weight.shape) ** -0.5 if is_matrix else weight.numpy() + 0.2 * value)
    return model


@pytest.mark.slow_after(1)
@every_kind
def test_turning_it_on_changes_the_output(kind):
    on, off = model_with(kind), model_with("")
    values = {weight.path: weight.numpy() for weight in on.weights}
    for weight in off.weights:
        if weight.path in values and values[weight.path].shape == tuple(weight.shape):
            weight.assign(values[weight.path])
    assert np.abs(on((SOURCE, TARGET)) - off((SOURCE, TARGET))).max() > 0.05


@pytest.mark.slow_after(1)
@every_kind
def test_padding_appended_to_the_source_does_not_matter(kind):
    model = model_with(kind)
    longer = np.pad(SOURCE, ((0, 0), (0, 4)))
    np.testing.assert_allclose(model((longer, TARGET)), model((SOURCE, TARGET)), atol=1e-5)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", ["", *SHIFTED])
def test_padding_in_front_of_the_source_shifts_all_positions(kind):
    model = model_with(kind)
    shifted = np.pad(SOURCE, ((0, 0), (5, 0)))
    change = np.abs(model((shifted, TARGET)) - model((SOURCE, TARGET))).max()
    assert change < 1e-5 if kind in SHIFTED else change > 0.01


@pytest.mark.slow_after(1)
@every_kind
@pytest.mark.parametrize("side", ["source", "target"])
def test_the_order_of_tokens_matters(kind, side):
    model = model_with(kind)
    before = model((SOURCE, TARGET)).numpy()
    source, target = SOURCE.copy(), TARGET.copy()
    row = source if side == "source" else target
    row[2, 2], row[2, 3] = row[2, 3], row[2, 2]
    after = model((source, target)).numpy()
    assert np.abs(after - before)[2, -1].max() > 1e-3
    np.testing.assert_array_equal(after[:2], before[:2])


@pytest.mark.slow_after(1)
@every_kind
def test_a_logit_depends_on_no_later_target_token(kind):
    model = model_with(kind)
    before = model((SOURCE, TARGET)).numpy()
    for position in (1, 3, 5):
        target = TARGET.copy()
        target[:, position:] = (target[:, position:] + 7) % VOCAB
        after = model((SOURCE, target)).numpy()
        np.testing.assert_array_equal(after[:, :position], before[:, :position])
        assert np.abs(after - before)[:, position].max(-1).min() > 1e-3


@pytest.mark.slow_after(1)
@every_kind
@pytest.mark.parametrize("norm_first", [False, True])
def test_cached_steps_equal_the_whole_decoder(kind, norm_first):
    model = model_with(kind, norm_first=norm_first, attention_bias=True)
    hypotheses, length = 3, 6
    target = np.random.default_rng(1).integers(3, VOCAB, (2 * hypotheses, length))
    whole = model((np.repeat(SOURCE[:2], hypotheses, axis=0), target))
    for grows in (False, True):
        state = model.start(
            model.encode(SOURCE[:2]), max_length=0 if grows else length + 2, num_hypotheses=hypotheses
        )
        for position in range(length):
            logits, state = model.step(target[:, position], position, state, grows=grows)
            np.testing.assert_allclose(logits, whole[:, position], atol=1e-5)


@pytest.mark.slow
@kinds("together")
@pytest.mark.parametrize("number", [1, pytest.param(2, marks=pytest.mark.very_slow)])
def test_search_finds_the_probabilities_of_whole_sentences(kind, number):
    """In a graph for any shape, caches grow and finished sentences leave the batch; beams always move."""
    models = [model_with(kind, output_bias=True), model_with("", output_bias=True)][:number]
    for model in models:
        model.output_bias.assign_add(1.5 * (np.arange(VOCAB) == 2))  # or few would end
    config = SearchConfig(beam_size=3, n_best=3, max_length_offset=6, length_penalty="average", alpha=1.5)
    forced = [ForcedDecoder(model) for model in models]
    sources = [[token for token in row if token] for row in SOURCE.tolist() for _ in range(3)]
    for shape in ((None, None), SOURCE.shape):
        graph = tf.function(lambda ids: search_ids(models, ids, config)._asdict())
        found = graph.get_concrete_function(tf.TensorSpec(shape, tf.int32))(tf.constant(SOURCE, tf.int32))
        lengths = found["lengths"].numpy().ravel()
        assert len(set(lengths.tolist())) > 2
        rows = found["ids"].numpy().reshape(9, -1)
        targets = [row[:length].tolist() for row, length in zip(rows, lengths, strict=True)]
        expected = np.mean(
            [[one.log_probs.sum() for one in decode(sources, targets)] for decode in forced], axis=0
        )
        np.testing.assert_allclose(found["log_probs"].numpy().ravel(), expected, atol=1e-4)


@every_kind
def test_attention_of_all_layers_is_given_out(kind):
    model = model_with(kind)
    found = model.attend((SOURCE, TARGET), cross=[0, 1], decoder=[0, 1], encoder=[0, 1])
    np.testing.assert_allclose(found.logits, model((SOURCE, TARGET)), atol=1e-6)
    for weights in (*found.cross.values(), *found.decoder.values(), *found.encoder.values()):
        np.testing.assert_allclose(weights.numpy().sum(-1), 1, atol=1e-5)
    assert np.all(found.encoder[0].numpy()[1, ..., 3:] == 0)
    assert np.all(np.triu(found.decoder[1].numpy()[2, 0], 1) == 0)


@pytest.mark.slow
@kinds("relative", "together")
def test_training_reaches_every_weight_and_recomputation_is_the_same(kind):
    results = {}
    for recompute in (False, True):
        keras.utils.set_random_seed(1)
        model = Transformer(ModelConfig(**{**SMALL, **ONE_LAYER, **KINDS[kind], "attention_dropout": 0.2}))
        model.compile(keras.optimizers.SGD(0.1), recompute=recompute)
        before = [weight.numpy() for weight in model.weights]
        for _ in range(3):
            model.train_on_batch((SOURCE, TARGET), LABELS)
        results[recompute] = [weight.numpy() for weight in model.weights]
        for weight, old in zip(model.weights, before, strict=True):
            assert np.abs(weight.numpy() - old).max() > 1e-6, weight.path
    for one, other in zip(*results.values(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.slow_after(1)
@kinds("relative", "RMSNorm", "together")
def test_mixed_precision_is_near_and_keeps_float32_weights(kind):
    exact, mixed = model_with(kind), model_with(kind, dtype="mixed_bfloat16")
    assert {weight.dtype for weight in mixed.weights} == {"float32"}
    logits = mixed((SOURCE, TARGET))
    assert logits.dtype == tf.bfloat16
    np.testing.assert_allclose(tf.cast(logits, tf.float32), exact((SOURCE, TARGET)), atol=0.3, rtol=0.1)
    state = mixed.start(mixed.encode(SOURCE), max_length=4)
    for position in range(3):
        step, state = mixed.step(TARGET[:, position], position, state)
        np.testing.assert_allclose(
            tf.cast(step, tf.float32), tf.cast(logits[:, position], tf.float32), atol=0.2
        )
    mixed.compile(keras.optimizers.SGD(0.1))
    assert np.isfinite(mixed.train_on_batch((SOURCE, TARGET), LABELS))


@every_kind
def test_plain_kernels_give_the_same(kind, monkeypatch):
    model = model_with(kind)
    fast = model((SOURCE, TARGET)).numpy()
    monkeypatch.setenv("KERAS_TRANSFORMER_KERNELS", "plain")
    np.testing.assert_allclose(model((SOURCE, TARGET)), fast, atol=1e-5)


@pytest.mark.slow_after(1)
@saves_files
@every_kind
def test_a_keras_file_keeps_the_model(kind, tmp_path):
    model = model_with(kind)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.config == model.config
    np.testing.assert_array_equal(again((SOURCE, TARGET)), model((SOURCE, TARGET)))


@every_kind
def test_every_layer_restores_from_its_configuration(kind):
    model = model_with(kind, norm_first=True)
    for layer in model._flatten_layers(include_self=False):
        held = layer.get_config()
        assert type(layer).from_config(held).get_config() == held


@every_kind
def test_the_number_of_weights_is_that_of_all_matrices(kind):
    model = model_with(kind, tie_embeddings="none")
    counted = sum(weight.numpy().size for weight in model.weights if len(weight.shape) == 2)
    assert model.config.num_weights == counted


def test_a_file_of_before_these_settings_has_the_papers_model():
    held = model_with("").get_config()
    for changes in KINDS.values():
        for name in changes:
            held["config"].pop(name, None)
    assert Transformer.from_config(held).config == ModelConfig(**SMALL)
    assert not {name for changes in KINDS.values() for name in changes} & set(held["config"])


def test_defaults_are_the_papers():
    paper = dataclasses.asdict(ModelConfig())
    for kind, changes in KINDS.items():
        assert any(paper[name] != value for name, value in changes.items()), kind
