"""The whole model: which inputs affect which outputs, saving and loading, learning to copy."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer
from keras_transformer.config.settings import ModelConfig, SearchConfig, SpecialIds
from keras_transformer.model import decoding
from keras_transformer.model.decoding import NO_KERNELS
from keras_transformer.model.kernels import products
from keras_transformer.model.kernels.products import transposed_copies
from keras_transformer.model.loss import LabelSmoothedCrossEntropy
from keras_transformer.model.metrics import TokenAccuracy
from keras_transformer.model.optimizer import TransformerSchedule
from keras_transformer.model.transformer import Transformer
from keras_transformer.translation.ensemble import search_ids

# Keras hands its variables to h5py in a way that NumPy 2 is about to refuse.
saves_files = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

VOCAB, PAD, BOS, EOS = 23, 0, 1, 2
D_MODEL = 12
SMALL = {
    "source_vocab_size": VOCAB,
    "target_vocab_size": VOCAB,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "d_model": D_MODEL,
    "d_ff": 17,
    "num_heads": 3,
    "key_dim": 5,
    "value_dim": 7,
    "max_positions": 11,
}
# Rows of 5, 3 and 7 source tokens; 6 target positions.
SOURCE = np.array([[4, 9, 13, 5, 2, 0, 0], [7, 22, 2, 0, 0, 0, 0], [8, 8, 19, 6, 21, 10, 2]])
TARGET = np.array([[1, 5, 9, 14, 20, 4], [1, 6, 6, 11, 0, 0], [1, 17, 3, 9, 12, 18]])
EVERY_KIND = [
    {"norm_first": False, "positions": "interleaved", "tie_embeddings": "all"},
    {"norm_first": False, "positions": "halves", "tie_embeddings": "decoder"},
    {"norm_first": False, "positions": "learned", "tie_embeddings": "none"},
    {"norm_first": True, "positions": "interleaved", "tie_embeddings": "none"},
    {"norm_first": True, "positions": "halves", "tie_embeddings": "all"},
    {"norm_first": True, "positions": "learned", "tie_embeddings": "decoder"},
]
every_kind = pytest.mark.parametrize(
    "kind", EVERY_KIND, ids=lambda kind: "-".join(str(value) for value in kind.values())
)


def drawn(weight, rng):
    """A value for a weight, kernels of about their usual size, all others off theirs too."""
    value = rng.normal(size=weight.shape).astype("float32")
    if len(weight.shape) == 2:
        return value * max(weight.shape) ** -0.5
    return 0.2 * value + (weight.name == "gamma")


def model_with(dtype=None, **changes):
    """A small model whose weights depend on nothing but the configuration."""
    model = Transformer(ModelConfig(**{**SMALL, **changes}), dtype=dtype)
    rng = np.random.default_rng(0)
    model.set_weights([drawn(weight, rng) for weight in model.weights])
    return model


def changed(ids, *places_and_values):
    ids = ids.copy()
    for *place, value in places_and_values:
        ids[tuple(place)] = value
    return ids


# What must not matter, and next to it what must.


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("layers", [1, 2, 6])
@pytest.mark.parametrize("norm_first", [False, True])
def test_a_logit_depends_on_no_later_target_token(layers, norm_first):
    model = model_with(num_encoder_layers=layers, num_decoder_layers=layers, norm_first=norm_first)
    before = model((SOURCE, TARGET)).numpy()
    for position in (1, 3, 5):
        target = TARGET.copy()
        target[:, position:] = (target[:, position:] + 7) % VOCAB
        after = model((SOURCE, target)).numpy()
        np.testing.assert_array_equal(after[:, :position], before[:, :position])
        difference = np.abs(after - before).max(-1)
        assert difference[:, position].min() > 1e-3


@pytest.mark.slow
def test_a_logit_depends_on_every_earlier_target_token():
    model = model_with()
    before = model((SOURCE, TARGET)).numpy()
    for position in range(4):
        after = model((SOURCE, changed(TARGET, (0, position, 16)))).numpy()
        assert np.abs(after - before)[0, position:].max(-1).min() > 1e-4


@every_kind
def test_padding_appended_to_the_source_does_not_matter(kind):
    model = model_with(**kind)
    longer = np.pad(SOURCE, ((0, 0), (0, 4)))
    np.testing.assert_allclose(model((longer, TARGET)), model((SOURCE, TARGET)), atol=2e-6)


def test_padding_appended_to_the_target_does_not_matter():
    model = model_with()
    longer = np.pad(TARGET, ((0, 0), (0, 3)))
    after = model((SOURCE, longer))[:, : TARGET.shape[1]]
    np.testing.assert_allclose(after, model((SOURCE, TARGET)), atol=2e-6)


def test_the_embedding_of_source_padding_does_not_matter_and_that_of_tokens_does():
    model = model_with(tie_embeddings="none")
    before = model((SOURCE, TARGET)).numpy()
    matrix = model.source_embedding.embeddings.numpy()

    def after(row):
        model.source_embedding.embeddings.assign(np.where(np.arange(VOCAB)[:, None] == row, 9.0, matrix))
        return model((SOURCE, TARGET)).numpy()

    np.testing.assert_array_equal(after(PAD), before)
    assert np.abs(after(13) - before)[0].max() > 0.01


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("position", range(7))
def test_every_real_source_token_matters(position):
    model = model_with()
    before = model((SOURCE, TARGET)).numpy()
    after = model((changed(SOURCE, (2, position, 16)), TARGET)).numpy()
    assert np.abs(after - before)[2].max(-1).min() > 1e-4


@pytest.mark.slow
def test_neighbours_in_the_batch_do_not_matter():
    model = model_with()
    before = model((SOURCE, TARGET)).numpy()
    source = changed(SOURCE, (0, 1, 16), (2, 0, 5), (2, 6, 0))
    after = model((source, changed(TARGET, (0, 2, 4), (2, 1, 7)))).numpy()
    np.testing.assert_array_equal(after[1], before[1])
    assert np.abs(after - before)[[0, 2]].max() > 0.01
    alone = model((SOURCE[1:2, :3], TARGET[1:2]))
    np.testing.assert_allclose(alone[0], before[1], atol=2e-6)


@pytest.mark.slow
def test_the_order_of_source_tokens_matters():
    model = model_with()
    swapped = changed(SOURCE, (2, 2, SOURCE[2, 3]), (2, 3, SOURCE[2, 2]))
    assert np.abs(model((swapped, TARGET)) - model((SOURCE, TARGET)))[2].max() > 0.01


@pytest.mark.slow
def test_the_padding_id_is_that_of_the_special_ids():
    moved = Transformer(ModelConfig(**SMALL), special=SpecialIds(pad=7, bos=1, eos=2, unk=0))
    before = moved((SOURCE, TARGET)).numpy()
    zeros_are_tokens = np.abs(moved((SOURCE[:, :-1], TARGET)) - before)
    assert zeros_are_tokens[0].max() > 0.001
    longer = np.pad(SOURCE, ((0, 0), (0, 2)), constant_values=7)
    np.testing.assert_allclose(moved((longer, TARGET)), before, atol=2e-6)


@every_kind
def test_a_row_of_nothing_but_padding_is_finite(kind):
    model = model_with(**kind)
    source, target = SOURCE.copy(), TARGET.copy()
    source[1], target[1] = PAD, PAD
    logits = model((source, target)).numpy()
    assert np.all(np.isfinite(logits))
    np.testing.assert_array_equal(logits[[0, 2]], model((SOURCE, TARGET)).numpy()[[0, 2]])


# Decoding step by step.


@pytest.mark.slow_after(1)
@every_kind
def test_cached_steps_equal_the_whole_decoder(kind):
    model = model_with(**kind, output_bias=True, attention_bias=True)
    hypotheses, length = 3, 6
    source = SOURCE[:2]
    target = np.random.default_rng(1).integers(3, VOCAB, (2 * hypotheses, length))
    whole = model((np.repeat(source, hypotheses, axis=0), target))
    state = model.start(model.encode(source), max_length=length + 2, num_hypotheses=hypotheses)
    for kernels in (NO_KERNELS, model.step_kernels(num_hypotheses=hypotheses)):
        now = state
        for position in range(length):
            logits, now = model.step(target[:, position], position, now, kernels=kernels)
            np.testing.assert_allclose(logits, whole[:, position], atol=1e-5)


@pytest.mark.slow
def test_the_kernel_of_the_logits_is_the_transposed_tied_embedding(monkeypatch):
    class Doubled(Transformer):
        def _logits(self, x):
            return 2 * super()._logits(x)

    model = model_with()
    kernels = model.step_kernels(num_hypotheses=2)
    np.testing.assert_array_equal(kernels.logits, model.target_embedding.embeddings.numpy().T)
    assert model.step_kernels(num_hypotheses=1).logits is None
    monkeypatch.setattr(decoding, "MAX_TRANSPOSED_ELEMENTS", VOCAB * model.config.d_model - 1)
    assert model.step_kernels(num_hypotheses=2).logits is None
    monkeypatch.undo()
    assert model_with(tie_embeddings="none").step_kernels(num_hypotheses=2).logits is None
    doubled = Doubled(model.config)
    assert doubled.step_kernels(num_hypotheses=2).logits is None
    doubled.set_weights(model.get_weights())
    logits, _ = model.step(TARGET[:, 0], 0, model.start(model.encode(SOURCE), max_length=1))
    twice, _ = doubled.step(TARGET[:, 0], 0, doubled.start(doubled.encode(SOURCE), max_length=1))
    np.testing.assert_allclose(twice, 2 * logits, rtol=1e-6)


@pytest.mark.slow
def test_the_search_reads_copies_of_the_matrices_of_a_step(monkeypatch):
    model = model_with(d_ff=512)
    sources = np.random.default_rng(1).integers(3, VOCAB, (11, 5))
    config = SearchConfig(beam_size=4, n_best=4)
    plain = search_ids(model, sources, config)
    copied = []

    def copies(matrices, num_rows):
        copied.extend(matrices)
        assert int(num_rows) == 44
        return transposed_copies(matrices, num_rows)

    monkeypatch.setattr(decoding, "transposed_copies", copies)
    monkeypatch.setattr(products, "LARGE_MATRIX", model.config.d_model * 512)
    monkeypatch.setattr(products, "reads_matrices_in_place", lambda: True)
    found = search_ids(model, sources, config)
    np.testing.assert_array_equal(found.ids, plain.ids)
    np.testing.assert_allclose(found.scores, plain.scores, rtol=1e-5)
    names = [matrix.path.split("/", 1)[1] for matrix in copied]
    # Two layers: query, key, value, output; query and output of the cross-attention; inner and outer.
    assert len(names) == 2 * 8
    assert not any(f"cross_attention/{name}" in path for path in names for name in ("key", "value"))


class Replaced(Transformer):
    """With layers of one's own, as docs/extending.md has them."""

    def build(self, input_shape=None):
        if not self.built:
            for layer in (*self.encoder_layers, *self.decoder_layers):
                layer.feed_forward = keras.layers.Dense(self.config.d_model)
        super().build(input_shape)


@pytest.mark.slow
def test_a_model_whose_layers_were_replaced_translates():
    model = Replaced(model_with().config)
    parts = [part for layer in model.decoder_layers for part in layer._flatten_layers()]
    # The network that was replaced stays tracked.
    assert {part.name for part in parts if not part.built} == {"feed_forward", "inner"}
    found = search_ids(model, SOURCE, SearchConfig(beam_size=2))
    assert found.ids.shape[:2] == (3, 1)


def test_caches_have_one_row_per_sentence():
    model = model_with()
    state = model.start(model.encode(SOURCE), max_length=4, num_hypotheses=5)
    assert state.cross_attention[1].key.shape == (3, 3, 7, 5)
    assert state.cross_attention[1].value.shape == (3, 3, 7, 7)
    assert state.self_attention[1].key.shape == (3, 3, 4 * 5, 5)
    assert len(state.self_attention) == len(state.cross_attention) == 2


def test_call_is_encode_and_then_decode():
    model = model_with()
    np.testing.assert_array_equal(model.decode(TARGET, model.encode(SOURCE)), model((SOURCE, TARGET)))


@pytest.mark.slow
def test_logits_are_the_same_eagerly_and_in_a_graph_of_unknown_shape():
    model = model_with()
    spec = tf.TensorSpec((None, None), tf.int32)
    graph = tf.function(lambda s, t: model((s, t)), input_signature=[spec, spec])
    for rows in (3, 1):
        found = graph(SOURCE[:rows], TARGET[:rows])
        np.testing.assert_allclose(found, model((SOURCE[:rows], TARGET[:rows])), atol=2e-6)


# Parts.


@pytest.mark.parametrize(("tie_embeddings", "matrices"), [("all", 1), ("decoder", 2), ("none", 3)])
def test_number_of_vocabulary_matrices_for_each_kind_of_tying(tie_embeddings, matrices):
    model = model_with(tie_embeddings=tie_embeddings)
    shapes = [tuple(w.shape) for w in model.weights if VOCAB in w.shape]
    assert len(shapes) == matrices
    assert (model.source_embedding is model.target_embedding) == (tie_embeddings == "all")


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("tie_embeddings", "part", "moves"),
    [
        ("all", "source_embedding", "source target logits"),
        ("decoder", "source_embedding", "source"),
        ("decoder", "target_embedding", "target logits"),
        ("none", "source_embedding", "source"),
        ("none", "target_embedding", "target"),
        ("none", "output_projection", "logits"),
    ],
)
def test_a_tied_matrix_acts_wherever_it_is_used(tie_embeddings, part, moves):
    # Token 16 is in no input, so its row can only act through the logits of token 16.
    model = model_with(tie_embeddings=tie_embeddings)
    layer = getattr(model, part)
    weight = layer.kernel if part == "output_projection" else layer.embeddings
    old = weight.numpy()
    of_row = np.arange(VOCAB)[None] if part == "output_projection" else np.arange(VOCAB)[:, None]

    def difference(row, source=SOURCE, target=TARGET):
        weight.assign(old)
        before = model((source, target)).numpy()
        weight.assign(np.where(of_row == row, old + 1, old))
        return np.abs(model((source, target)).numpy() - before)

    unused = difference(16)
    assert (unused[..., 16].max() > 0.01) == ("logits" in moves)
    assert np.delete(unused, 16, axis=-1).max() == 0
    only_source = np.delete(difference(13), 13, axis=-1)  # token 13 is in SOURCE only
    assert (only_source.max() > 1e-3) == ("source" in moves)
    only_target = np.delete(difference(14), 14, axis=-1)  # token 14 is in TARGET only
    assert (only_target.max() > 1e-3) == ("target" in moves)


def test_source_and_target_may_have_their_own_vocabularies():
    model = model_with(source_vocab_size=31, target_vocab_size=19, tie_embeddings="decoder")
    logits = model((np.full((2, 3), 30), np.full((2, 5), 18)))
    assert logits.shape == (2, 5, 19)
    assert model.source_embedding.embeddings.shape == (31, D_MODEL)
    assert np.all(np.isfinite(logits))


@pytest.mark.parametrize("norm_first", [False, True])
def test_pre_norm_normalises_the_output_of_each_stack(norm_first):
    model = Transformer(ModelConfig(**SMALL, norm_first=norm_first))
    encoded = model.encode(SOURCE).output.numpy()
    # Post-norm ends in a norm of its own, so both have mean 0 and variance 1.
    np.testing.assert_allclose(encoded.mean(-1), 0, atol=1e-5)
    np.testing.assert_allclose(encoded.var(-1), 1, atol=1e-2)
    logits = model((SOURCE, TARGET)).numpy()
    matrix = model.target_embedding.embeddings.numpy()
    hidden = np.linalg.lstsq(matrix, logits.reshape(-1, VOCAB).T, rcond=None)[0].T
    np.testing.assert_allclose(hidden.var(-1), 1, atol=1e-2)
    norms = [w.path for w in model.weights if "encoder_norm" in w.path or "decoder_norm" in w.path]
    assert len(norms) == (4 if norm_first else 0)


@pytest.mark.slow
def test_the_output_bias_is_added_to_the_logits():
    model = model_with(output_bias=True)
    bias = model.output_bias.numpy()
    before = model((SOURCE, TARGET)).numpy()
    model.output_bias.assign(bias + np.arange(VOCAB))
    moved = model((SOURCE, TARGET)).numpy() - before
    np.testing.assert_allclose(moved, np.broadcast_to(np.arange(VOCAB), moved.shape), atol=1e-5)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    "rate", ["residual_dropout", "embedding_dropout", "attention_dropout", "relu_dropout"]
)
def test_each_dropout_acts_in_training_only(rate):
    none = {"residual_dropout": 0.0, "embedding_dropout": 0.0}
    model, without = model_with(**{**none, rate: 0.4}), model_with(**none)
    expected = without((SOURCE, TARGET), training=True)
    np.testing.assert_allclose(model((SOURCE, TARGET)), expected, atol=1e-5)
    np.testing.assert_allclose(model((SOURCE, TARGET), training=False), expected, atol=1e-5)
    assert np.abs(model((SOURCE, TARGET), training=True) - expected).max() > 0.01


def test_embedding_dropout_acts_in_both_stacks():
    model = model_with(residual_dropout=0.0, embedding_dropout=0.4)
    encoded = model.encode(SOURCE)
    again = model.encode(SOURCE, training=True)
    assert np.abs(again.output - encoded.output).max() > 0.01
    decoded = model.decode(TARGET, encoded)
    assert np.abs(model.decode(TARGET, encoded, training=True) - decoded).max() > 0.01


@pytest.mark.slow
def test_mixed_precision_computes_in_bfloat16_with_float32_weights():
    exact, mixed = model_with(), model_with(dtype="mixed_bfloat16")
    logits = mixed((SOURCE, TARGET))
    assert logits.dtype == tf.bfloat16
    assert {w.dtype for w in mixed.weights} == {"float32"}
    np.testing.assert_allclose(tf.cast(logits, tf.float32), exact((SOURCE, TARGET)), atol=0.3, rtol=0.1)
    state = mixed.start(mixed.encode(SOURCE), max_length=4)
    assert state.self_attention[0].key.dtype == tf.bfloat16
    step = mixed.step(TARGET[:, 0], 0, state)
    np.testing.assert_allclose(tf.cast(step.logits, tf.float32), tf.cast(logits[:, 0], tf.float32), atol=0.1)


@pytest.mark.slow
def test_mixed_precision_trains():
    model = model_with(dtype="mixed_bfloat16")
    model.compile(keras.optimizers.Adam(0.01))
    labels = np.roll(TARGET, -1, axis=1)
    first = model.train_on_batch((SOURCE, TARGET), labels)
    for _ in range(10):
        last = model.train_on_batch((SOURCE, TARGET), labels)
    assert last < first - 0.3


def test_learned_positions_end_with_a_clear_error():
    model = model_with(positions="learned")
    with pytest.raises(ValueError, match="below `max_positions`=11"):
        model((np.ones((1, 12), int), TARGET[:1]))


def test_the_constructor_builds_the_model():
    model = Transformer(ModelConfig(**SMALL))
    number = len(model.weights)
    assert number > 0
    model((SOURCE, TARGET))
    assert len(model.weights) == number
    assert len({w.path for w in model.weights}) == number


def test_config_survives_a_round_trip():
    special = SpecialIds(pad=3, bos=2, eos=1, unk=0)
    config = ModelConfig(**SMALL, norm_first=True, tie_embeddings="none", positions="learned")
    model = Transformer(config, special=special, name="other", dtype="mixed_bfloat16")
    held = model.get_config()
    assert held["config"] == dataclasses.asdict(config)
    assert held["special"] == dataclasses.asdict(special)
    again = Transformer.from_config(json.loads(json.dumps(held)))
    assert (again.config, again.special, again.name) == (config, special, "other")
    assert again.dtype_policy.name == "mixed_bfloat16"
    assert again.get_config() == held


@pytest.mark.slow
def test_a_file_of_before_matrices_were_stacked_has_separate_ones():
    held = Transformer(ModelConfig(**SMALL)).get_config()
    assert held["config"].pop("attention_init") == "stacked"
    assert Transformer.from_config(held).config.attention_init == "separate"
    assert Transformer(held["config"]).config.attention_init == "stacked"  # a user's dict has the defaults


def test_depth_scaling_reaches_the_layers_of_both_stacks():
    model = Transformer(
        ModelConfig(**{**SMALL, "num_encoder_layers": 3, "num_decoder_layers": 2}, depth_scaling="deepnorm")
    )
    # 0.81 (3^4 2)^(1/16) and (3 2)^(1/4).
    assert {layer.feed_forward_residual.alpha for layer in model.encoder_layers} == {0.81 * 162 ** (1 / 16)}
    assert {layer.cross_attention_residual.alpha for layer in model.decoder_layers} == {6**0.25}
    model = Transformer(ModelConfig(**{**SMALL, "num_encoder_layers": 3}, depth_scaling="ds_init"))
    assert [layer.feed_forward.gain for layer in model.encoder_layers] == [1, 2**-0.5, 3**-0.5]


# Files.

LOAD_ELSEWHERE = """
import sys
import warnings
import numpy as np
import keras
from keras_transformer import Transformer  # its module registers all classes

warnings.simplefilter("error", UserWarning)  # after the imports: other packages warn there
folder = sys.argv[1]
data = np.load(folder + "/inputs.npz")
inputs = (data["source"], data["target"])
found = {}
for kind in data["kinds"]:
    model = keras.saving.load_model(f"{folder}/{kind}.keras")
    found[f"{kind}_logits"] = model(inputs)
    found[f"{kind}_weights"] = len(model.weights)
    found[f"{kind}_tied"] = model.source_embedding is model.target_embedding
    embeddings = model.source_embedding.embeddings
    embeddings.assign(embeddings.numpy()[::-1])
    found[f"{kind}_moved"] = model(inputs)
np.savez(folder + "/found.npz", **found)
"""
KINDS = {"_".join(map(str, kind.values())): kind for kind in EVERY_KIND}


@pytest.fixture(scope="module")
def loaded_elsewhere(tmp_path_factory):
    """What another process finds in the files of six models; one process for all."""
    folder = tmp_path_factory.mktemp("saved")
    models = {}
    for name, kind in KINDS.items():
        models[name] = model_with(**kind)
        models[name].save(folder / f"{name}.keras")
    np.savez(folder / "inputs.npz", source=SOURCE, target=TARGET, kinds=list(KINDS))
    root = pathlib.Path(keras_transformer.__file__).parents[1]
    subprocess.run(
        [sys.executable, "-c", LOAD_ELSEWHERE, str(folder)],
        check=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(root), "CUDA_VISIBLE_DEVICES": "-1"},
        timeout=300,
    )
    return models, np.load(folder / "found.npz")


@saves_files
@pytest.mark.parametrize("name", KINDS)
def test_a_model_loaded_in_another_process_gives_the_same_logits(loaded_elsewhere, name):
    models, found = loaded_elsewhere
    np.testing.assert_allclose(found[f"{name}_logits"], models[name]((SOURCE, TARGET)), atol=1e-6)


@saves_files
@pytest.mark.parametrize("name", KINDS)
def test_a_model_loaded_in_another_process_is_tied_as_before(loaded_elsewhere, name):
    models, found = loaded_elsewhere
    model = models[name]
    assert found[f"{name}_weights"] == len(model.weights)
    assert found[f"{name}_tied"] == (KINDS[name]["tie_embeddings"] == "all")
    # Turning the source embedding upside down acts wherever that matrix is shared.
    embeddings = model.source_embedding.embeddings
    old = embeddings.numpy()
    embeddings.assign(old[::-1])
    moved = model((SOURCE, TARGET)).numpy()
    embeddings.assign(old)
    np.testing.assert_allclose(found[f"{name}_moved"], moved, atol=1e-5)
    assert np.abs(moved - found[f"{name}_logits"]).max() > 0.01


@pytest.mark.slow_after(1)
@saves_files
@every_kind
def test_weights_saved_alone_come_back(kind, tmp_path):
    model, other = model_with(**kind), Transformer(ModelConfig(**{**SMALL, **kind}))
    assert np.abs(model((SOURCE, TARGET)) - other((SOURCE, TARGET))).max() > 0.01
    model.save_weights(tmp_path / "model.weights.h5")
    other.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(model((SOURCE, TARGET)), other((SOURCE, TARGET)))


@pytest.mark.slow
@saves_files
def test_other_precision_and_special_ids_survive_a_file(tmp_path):
    special = SpecialIds(pad=3, bos=2, eos=1, unk=0)
    model = Transformer(ModelConfig(**SMALL), special=special, dtype="mixed_bfloat16")
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.special == special
    assert again.config == model.config
    assert again.dtype_policy.name == "mixed_bfloat16"
    assert again((SOURCE, TARGET)).dtype == tf.bfloat16


# Learning.


def digits(rng, rows, longest=7):
    """Sequences of 1 to `longest` of nine symbols: (source, target), labels."""
    source = np.full((rows, longest + 1), PAD, "int32")
    for row in source:
        length = rng.integers(1, longest + 1)
        row[:length] = rng.integers(4, 13, length)
        row[length] = EOS
    target = np.concatenate([np.full((rows, 1), BOS, "int32"), source[:, :-1]], axis=1)
    target[target == EOS] = PAD
    return (source, target), source


@pytest.mark.slow
def test_learns_to_copy():
    keras.utils.set_random_seed(1)
    model = Transformer(
        ModelConfig(
            source_vocab_size=13,
            target_vocab_size=13,
            num_encoder_layers=1,
            num_decoder_layers=1,
            d_model=32,
            d_ff=64,
            num_heads=4,
            residual_dropout=0.0,
            embedding_dropout=0.0,
        )
    )
    schedule = TransformerSchedule(32, warmup_steps=100, scale=0.5)
    model.compile(
        keras.optimizers.Adam(schedule, beta_2=0.98, epsilon=1e-9),
        LabelSmoothedCrossEntropy(0.0),
        [TokenAccuracy()],
    )
    rng = np.random.default_rng(0)
    inputs, labels = digits(rng, 800 * 64)
    batches = tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(64)
    model.fit(batches, shuffle=False, verbose=0)

    unseen, answers = digits(rng, 211)
    shown = model.evaluate(unseen, answers, batch_size=211, verbose=0, return_dict=True)
    assert shown["token_accuracy"] > 0.97
    for beam_size in (1, 3):
        found = search_ids(model, unseen[0], SearchConfig(beam_size=beam_size, max_length_offset=2)).ids[:, 0]
        width = max(found.shape[1], answers.shape[1])
        exact = np.pad(found, ((0, 0), (0, width - found.shape[1]))) == np.pad(
            answers, ((0, 0), (0, width - answers.shape[1]))
        )
        assert exact.all(-1).mean() > 0.9
