"""What Keras' own tools make of the model: summary, export, functional models, clones, inputs."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.config.presets import preset
from keras_transformer.config.settings import ModelConfig, SpecialIds
from keras_transformer.model.layers.attention import MultiHeadAttention
from keras_transformer.model.layers.decoder import DecoderLayer
from keras_transformer.model.layers.embedding import PositionalEmbedding
from keras_transformer.model.layers.encoder import EncoderLayer
from keras_transformer.model.transformer import Transformer

# Keras hands its variables to h5py in a way that NumPy 2 is about to refuse.
saves_files = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

SOURCE_VOCAB, TARGET_VOCAB, WIDTH, D_FF, HEADS, KEY_DIM, VALUE_DIM, POSITIONS = 23, 19, 12, 17, 3, 5, 7, 11
SMALL = {
    "source_vocab_size": SOURCE_VOCAB,
    "target_vocab_size": TARGET_VOCAB,
    "num_encoder_layers": 2,
    "num_decoder_layers": 1,
    "d_model": WIDTH,
    "d_ff": D_FF,
    "num_heads": HEADS,
    "key_dim": KEY_DIM,
    "value_dim": VALUE_DIM,
    "max_positions": POSITIONS,
    "tie_embeddings": "decoder",
}
SOURCE = np.array([[4, 9, 13, 5, 2, 0, 0], [7, 22, 2, 0, 0, 0, 0]], "int32")
TARGET = np.array([[1, 5, 9, 14], [1, 6, 6, 0]], "int32")


def small(dtype=None, **changes):
    model = Transformer(ModelConfig(**{**SMALL, **changes}), dtype=dtype)
    rng = np.random.default_rng(0)
    model.set_weights([0.3 * rng.normal(size=weight.shape) for weight in model.weights])
    return model


# Summary.


@pytest.fixture
def wide(monkeypatch):
    """A terminal in which no cell is broken into two lines."""
    monkeypatch.setenv("COLUMNS", "160")


def printed(model, **how):
    """The rows of what `summary` prints, as lists of cells, and the lines below the table."""
    lines = []
    model.summary(print_fn=lines.append, line_length=150, **how)
    lines = "".join(lines).splitlines()
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.startswith("│")]
    return rows, [line.strip() for line in lines if "params:" in line]


ATTENTION = 2 * WIDTH * HEADS * (KEY_DIM + VALUE_DIM)
NORM = 2 * WIDTH
FEED_FORWARD = 2 * WIDTH * D_FF + D_FF + WIDTH
ENCODER = ATTENTION + FEED_FORWARD + 2 * NORM
DECODER = 2 * ATTENTION + FEED_FORWARD + 3 * NORM


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("tie_embeddings", ["all", "decoder", "none"])
def test_summary_shows_every_layer_built_with_its_shape_and_its_weights(wide, tie_embeddings, norm_first):
    changes = {"tie_embeddings": tie_embeddings, "norm_first": norm_first}
    if tie_embeddings == "all":
        changes["target_vocab_size"] = SOURCE_VOCAB
    hidden = f"(None, None, {WIDTH})"
    embeddings = [["source_embedding (PositionalEmbedding)", hidden, SOURCE_VOCAB * WIDTH]]
    embeddings += [["target_embedding (PositionalEmbedding)", hidden, TARGET_VOCAB * WIDTH]]
    if tie_embeddings == "all":
        embeddings = [["embedding (PositionalEmbedding)", hidden, SOURCE_VOCAB * WIDTH]]
    wanted = embeddings + [
        ["embedding_dropout (Dropout)", hidden, 0],
        ["encoder_0 (EncoderLayer)", hidden, ENCODER],
        ["encoder_1 (EncoderLayer)", hidden, ENCODER],
        ["decoder_0 (DecoderLayer)", hidden, DECODER],
    ]
    if norm_first:
        wanted += [[f"{side}_norm (LayerNormalization)", hidden, NORM] for side in ("encoder", "decoder")]
    if tie_embeddings == "none":
        shape = f"(None, None, {TARGET_VOCAB})"
        wanted.append(["output_projection (Projection)", shape, WIDTH * TARGET_VOCAB])
    model = small(**changes)
    total = sum(row[2] for row in wanted)
    for how in ({}, {"expand_nested": True}):
        rows, below = printed(model, **how)
        assert rows == [[name, shape, f"{number:,}"] for name, shape, number in wanted]
        assert below[0].startswith(f"Total params: {total:,} (")
        assert below[1].startswith(f"Trainable params: {total:,} (")
    assert model.count_params() == total


def test_summary_of_a_model_around_it_names_it_and_opens_it(wide):
    model = small()
    inputs = [keras.Input((None,), dtype="int32", name=name) for name in ("source", "target")]
    around = keras.Model(inputs, model(inputs))
    rows, _ = printed(around, expand_nested=True)
    shown = [row[:3] for row in rows]
    assert [
        "transformer (Transformer)",
        f"(None, None, {TARGET_VOCAB})",
        f"{model.count_params():,}",
    ] in shown
    assert ["└ encoder_1 (EncoderLayer)", f"(None, None, {WIDTH})", f"{ENCODER:,}"] in shown
    assert not any("?" in row[1] or "unbuilt" in row[2] for row in shown)


# Export.

SERVE_ELSEWHERE = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "keras_transformer":
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())

import numpy as np
import tensorflow as tf

folder = sys.argv[1]
data = np.load(folder + "/inputs.npz")
source, target = (tf.constant(data[name]) for name in ("source", "target"))
served = tf.saved_model.load(folder + "/served")
by_name = served.signatures["serving_default"](source_ids=source, target_ids=target)
np.savez(
    folder + "/found.npz",
    whole=served.serve((source, target)),
    row=served.serve((source[1:, :3], target[1:, :3])),
    by_name=list(by_name.values())[0],
)
"""


@pytest.mark.slow
def test_a_model_that_was_never_called_is_exported_and_served_elsewhere(tmp_path):
    model = small()
    model.export(tmp_path / "served", verbose=False)
    # A loader would warn of every hand-written gradient that a node names.
    saved = saved_model_pb2.SavedModel.FromString((tmp_path / "served" / "saved_model.pb").read_bytes())
    graph = saved.meta_graphs[0].graph_def
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    assert len(nodes) > 100
    assert not [node.name for node in nodes if "_gradient_op_type" in node.attr]
    np.savez(tmp_path / "inputs.npz", source=SOURCE, target=TARGET)
    subprocess.run(
        [sys.executable, "-c", SERVE_ELSEWHERE, str(tmp_path)],
        check=True,
        cwd=tmp_path,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
        timeout=300,
    )
    found = np.load(tmp_path / "found.npz")
    wanted = model((SOURCE, TARGET)).numpy()
    np.testing.assert_allclose(found["whole"], wanted, atol=1e-6)
    np.testing.assert_allclose(found["by_name"], wanted, atol=1e-6)
    np.testing.assert_allclose(found["row"], wanted[1:, :3], atol=1e-6)


def test_export_refuses_what_keras_refuses(tmp_path):
    with pytest.raises(ValueError, match="Unrecognized format=nosuch"):
        small().export(tmp_path / "served", format="nosuch")


def test_export_says_the_way_to_text():
    text = Transformer.export.__doc__
    assert "keras_transformer.export.saved_model.export_saved_model" in text
    assert "program `export`" in text


# Functional models, files, clones.


def all_four(dtype=None):
    """The four layers with explicit masks, and implicit ones of the target, in a functional model."""
    source = keras.Input((None,), dtype="int32", name="source")
    target = keras.Input((None,), dtype="int32", name="target")
    mask = keras.Input((1, None), dtype="bool", name="source_mask")
    sizes = {"num_heads": HEADS, "key_dim": KEY_DIM, "d_ff": D_FF, "dtype": dtype}
    x = PositionalEmbedding(SOURCE_VOCAB, WIDTH, dtype=dtype)(source)
    x = EncoderLayer(**sizes)(x, attention_mask=mask)
    y = PositionalEmbedding(TARGET_VOCAB, WIDTH, mask_zero=True, dtype=dtype)(target)
    y = DecoderLayer(**sizes)(y, x, cross_attention_mask=mask)
    attention = MultiHeadAttention(HEADS, KEY_DIM, dtype=dtype)
    z, weights = attention(y, x, attention_mask=mask, return_attention_scores=True)
    return keras.Model([source, target, mask], [y + z, weights])


def around(dtype=None):
    inputs = [keras.Input((None,), dtype="int32", name=name) for name in ("source", "target")]
    return keras.Model(inputs, small(dtype)(inputs))


MASKED = [SOURCE, TARGET, (SOURCE != 0)[:, None]]
MODELS = {"four layers": (all_four, MASKED), "transformer": (around, MASKED[:2])}


@pytest.mark.slow
@saves_files
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("kind", MODELS)
def test_in_a_functional_model_saved_loaded_and_cloned(kind, dtype, tmp_path):
    make, inputs = MODELS[kind]
    model = make(dtype)
    wanted = keras.tree.flatten(model(inputs))
    assert str(wanted[0].dtype.name) == dtype.removeprefix("mixed_")
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    clone = keras.models.clone_model(model)
    from_config = type(model).from_config(model.get_config())
    for again in (loaded, clone, from_config):
        assert again is not model
        assert not {id(w) for w in again.weights} & {id(w) for w in model.weights}
        if again is not loaded:
            again.set_weights(model.get_weights())
        for layer, like in zip(again.layers, model.layers, strict=True):
            assert layer.get_config() == like.get_config()
        for found, each in zip(keras.tree.flatten(again(inputs)), wanted, strict=True):
            np.testing.assert_array_equal(tf.cast(found, "float32"), tf.cast(each, "float32"))
    # What is behind the masks does not matter, in a batch of predict either; what is real does.
    before = keras.tree.flatten(model.predict(inputs, verbose=0))[0]
    longer = [np.pad(each, [(0, 0)] * (each.ndim - 1) + [(0, 3)]) for each in inputs]
    after = keras.tree.flatten(model.predict(longer, verbose=0))[0]
    tolerance = 0.05 if "bfloat16" in dtype else 1e-5
    real = TARGET != 0
    np.testing.assert_allclose(
        after[:, : TARGET.shape[1]][real].astype("float32"), before[real].astype("float32"), atol=tolerance
    )
    other = [SOURCE.copy(), *inputs[1:]]
    other[0][1, 1] = 3
    changed = keras.tree.flatten(model.predict(other, verbose=0))[0]
    assert np.abs((changed - before).astype("float32"))[1].max() > 2e-3


@pytest.mark.slow
def test_a_clone_of_the_model_is_another_of_the_same_configuration():
    special = SpecialIds(pad=3, bos=2, eos=1, unk=0)
    model = Transformer(ModelConfig(**SMALL, norm_first=True), special=special, dtype="mixed_bfloat16")
    clone = keras.models.clone_model(model)
    assert type(clone) is Transformer
    assert clone.get_config() == model.get_config()
    assert not {id(w) for w in clone.weights} & {id(w) for w in model.weights}
    clone.set_weights(model.get_weights())
    np.testing.assert_array_equal(*(tf.cast(each((SOURCE, TARGET)), "float32") for each in (clone, model)))


# What it is made of and called with.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (preset("demo"),),
            r'`config` must be a ModelConfig, such as preset\("demo"\).model. Received: .* type Config$',
        ),
        ((None,), "must be a ModelConfig.* type NoneType"),
        ((ModelConfig(**SMALL), 0), "`special` must be SpecialIds. Received: 0"),
    ],
)
def test_it_is_made_of_a_model_config(arguments, message):
    with pytest.raises(TypeError, match=message):
        Transformer(*arguments)


@pytest.mark.slow
def test_a_dict_of_the_two_names_is_the_pair():
    model = small()
    named = {"target_ids": TARGET, "source_ids": SOURCE}
    wanted = model((SOURCE, TARGET)).numpy()
    np.testing.assert_array_equal(model(named), wanted)
    np.testing.assert_allclose(model.predict(named, verbose=0), wanted, atol=1e-6)
    np.testing.assert_array_equal(model([SOURCE, TARGET]), wanted)
    attended = model.attend(named, cross=[0])
    np.testing.assert_array_equal(attended.logits, wanted)
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in named}
    np.testing.assert_allclose(keras.Model(inputs, model(inputs))(named), wanted, atol=1e-6)


RAGGED = tf.ragged.constant([[4, 2], [5, 7, 2]], dtype=tf.int32)
PAIR = r"`inputs` must be a pair \(source_ids, target_ids\), or a dict with these two names. Received: "
INTEGERS = "must be an array or a tensor of integers, such as int32. Received: "
REFUSED = {
    "one tensor": (SOURCE, TypeError, PAIR + r"one of int32, shape \(\w+, 7\)$"),
    "three": ((SOURCE, TARGET, TARGET), ValueError, PAIR + "3 inputs$"),
    "other names": (
        {"encoder_inputs": SOURCE, "decoder_inputs": TARGET},
        ValueError,
        PAIR + r"a dict with the names \['decoder_inputs', 'encoder_inputs'\]$",
    ),
    "ragged": (
        (SOURCE, RAGGED),
        TypeError,
        r"`target_ids` must be padded to one length: target_ids.to_tensor\(0\). Received: a ragged tensor$",
    ),
    "floats": ((SOURCE.astype("float32"), TARGET), TypeError, f"`source_ids` {INTEGERS}one of float32"),
    "booleans": ((SOURCE, TARGET > 0), TypeError, f"`target_ids` {INTEGERS}one of bool"),
    "one axis more": (
        (SOURCE[:, None], TARGET),
        ValueError,
        r"`source_ids` must have the shape \(batch, length\). Received: one of int32, shape \(\w+, 1, 7\)$",
    ),
}


@pytest.fixture(scope="module")
def model():
    return small()


@pytest.mark.parametrize("kind", REFUSED)
def test_other_inputs_are_refused_in_one_line(model, kind):
    inputs, error, message = REFUSED[kind]
    with pytest.raises(error, match=message):
        model(inputs)
    with pytest.raises(error, match=message):
        model.predict(inputs, verbose=0)
    if kind != "ragged":
        symbolic = keras.tree.map_structure(
            lambda each: keras.Input(each.shape[1:], dtype=str(each.dtype)), inputs
        )
        with pytest.raises(error, match=message.replace(r"\w+", "None")):
            model(symbolic)


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        (([[4, 2]], [[1, 5]]), TypeError, f"`source_ids` {INTEGERS}a list$"),
        ((SOURCE, None), TypeError, f"`target_ids` {INTEGERS}None$"),
        ((SOURCE[0], TARGET), ValueError, r"`source_ids` must have the shape .* shape \(7,\)$"),
        ((SOURCE[:1], TARGET), ValueError, "have the same number of rows. Received: 1 and 2$"),
        ((tf.sparse.from_dense(SOURCE), TARGET), TypeError, "`source_ids` must be a dense tensor"),
        ((SOURCE + 1, TARGET), ValueError, "source id 23 is outside .* 0 to 22.*"),
        ((SOURCE, tf.constant(TARGET - 1)), ValueError, "target id -1 is outside .* 0 to 18.*"),
    ],
)  # fmt: skip
def test_other_inputs_of_a_call_are_refused_in_one_line(model, inputs, error, message):
    with pytest.raises(error, match=message):
        model(inputs)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "int32", "int64"])
def test_ids_may_be_any_integers(model, dtype):
    np.testing.assert_array_equal(
        model((SOURCE.astype(dtype), TARGET.astype(dtype))), model((SOURCE, TARGET))
    )


def test_an_embedding_refuses_what_are_no_ids():
    layer = PositionalEmbedding(SOURCE_VOCAB, WIDTH)
    with pytest.raises(TypeError, match=f"`ids` {INTEGERS}one of float32"):
        layer(keras.Input((None,)))
    with pytest.raises(TypeError, match=f"`ids` {INTEGERS}one of float32"):
        layer(SOURCE.astype("float32"))
    with pytest.raises(ValueError, match=r"`ids` must have the shape \(batch, length\)"):
        layer(SOURCE[0])
