"""A model that `fit` trained, saved and exported by its translator: translations stay the same."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from saved_models import fresh_process

import keras_transformer as kt
from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.config.settings import Config, ModelConfig, SearchConfig, replace
from keras_transformer.tokenizers.symbols import TreeTokenizer
from keras_transformer.tokenizers.tokenizer_pair import Tokenizers
from keras_transformer.translation.parser import Parser

pytestmark = pytest.mark.slow

TEXTS = ["The dog reads a text.", "Ein Hund liest einen Text.", "Hund und Text", "a text and a dog"]
SIZES = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 16, "d_ff": 24, "num_heads": 2}
SEARCH = SearchConfig(beam_size=3, max_length_offset=5, max_source_length=41, batch_tokens=64)
IN_A_PROCESS = """
import json, sys
import tensorflow as tf
import tensorflow_text
loaded = tf.saved_model.load(sys.argv[1])
found = loaded.signatures["serving_default"](text=tf.constant(json.loads(sys.argv[2])))
assert "keras_transformer" not in sys.modules
print(json.dumps([text.decode() for text in found["translation"].numpy()]))
"""


def fitted(tokenizers, **changes):
    """A translator with a model that `fit` trained for two steps."""
    sizes = dict(zip(("source_vocab_size", "target_vocab_size"), tokenizers.sizes, strict=True))
    keras.utils.set_random_seed(3)
    model = kt.Transformer(ModelConfig(**{**SIZES, **sizes, **changes}))
    model.compile(keras.optimizers.Adam(0.5), kt.LabelSmoothedCrossEntropy(0.1))
    ids = np.random.default_rng(5).integers(4, min(tokenizers.sizes), (7, 5)).astype("int32")
    model.fit((ids, ids), ids, batch_size=7, epochs=2, verbose=0)
    return kt.Translator(model, tokenizers, SEARCH)


@pytest.fixture(scope="module")
def tokenizer():
    return kt.SubwordTokenizer.train(TEXTS * 3, vocab_size=300)


@pytest.fixture(scope="module")
def translator(tokenizer):
    return fitted(Tokenizers(tokenizer, tokenizer))


def test_what_fit_trained_is_served_in_three_lines(translator, tmp_path):
    exported = translator.export(tmp_path / "served", warmup=False, with_ids=False)
    assert (exported.name, exported.version) == ("served", 1)
    found = json.loads(fresh_process("-c", IN_A_PROCESS, exported.path, json.dumps(TEXTS)))
    assert found == translator.translate(TEXTS)
    assert len(set(found)) > 1
    card = json.loads((exported.path / "assets.extra/model_card.json").read_text())
    assert card["languages"] == {"source": "source", "target": "target"}
    assert card["data"]["dataset"] == ["not stated"]
    assert translator.export(tmp_path / "served", warmup=False, with_ids=False).version == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["served"]


def test_a_saved_folder_is_a_run(translator, tmp_path):
    assert translator.save(tmp_path / "run") == tmp_path / "run"
    loaded = kt.Translator.load(tmp_path / "run")
    assert loaded.translate(TEXTS) == translator.translate(TEXTS)
    assert loaded.search == SEARCH
    assert RunFolder(tmp_path / "run").weights_names() == ["final"]
    for one, other in zip(loaded.models[0].weights, translator.models[0].weights, strict=True):
        np.testing.assert_array_equal(one, other)


def test_two_vocabularies_and_learned_positions(tokenizer, tmp_path):
    target = kt.SubwordTokenizer.train(TEXTS[1:3] * 5, vocab_size=290)
    translator = fitted(
        Tokenizers(tokenizer, target), tie_embeddings="none", positions="learned", max_positions=43
    )
    translator.save(tmp_path / "run")
    assert kt.Translator.load(tmp_path / "run").translate(TEXTS) == translator.translate(TEXTS)


def test_what_a_run_said_is_kept(translator, tmp_path):
    config = replace(Config(), model=translator.models[0].config, search=SEARCH)
    config = replace(config, data={"source": "fr", "target": "pt", "dataset": "mine"}, training={"seed": 7})
    translator.save(tmp_path / "one", config=config)
    assert RunFolder(tmp_path / "one").config == config
    kt.Translator.load(tmp_path / "one").save(tmp_path / "two")
    assert RunFolder(tmp_path / "two").config == config


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_ctranslate2_and_keras_get_the_weights(translator, tmp_path):
    path = translator.export(tmp_path / "keras", format="keras")
    from keras_transformer.export.keras_files import load_keras

    model = load_keras(path)
    for one, other in zip(model.weights, translator.models[0].weights, strict=True):
        np.testing.assert_array_equal(one, other)
    pytest.importorskip("ctranslate2", reason="pip install ctranslate2")
    from keras_transformer.export.ctranslate2 import export_ctranslate2

    path = translator.export(tmp_path / "ct2", format="ctranslate2")
    run = RunFolder(translator.save(tmp_path / "run"))
    expected = export_ctranslate2(run, tmp_path / "of run")
    assert (path / "model.bin").read_bytes() == (expected / "model.bin").read_bytes()


@pytest.mark.very_slow
def test_a_parser_is_saved_and_exported(tokenizer, tmp_path):
    trees = TreeTokenizer.train(["(S (NP (DT the) (NN dog)) (VP (VBZ barks)))"], keep_tags=True)
    tokenizers = Tokenizers(tokenizer, trees)
    translator = fitted(tokenizers, tie_embeddings="none")
    parser = Parser(translator.models, tokenizers, SEARCH)
    parser.save(tmp_path / "run")
    assert Parser.load(tmp_path / "run").parse(TEXTS) == parser.parse(TEXTS)
    assert RunFolder(tmp_path / "run").config.data.keep_tags
    exported = parser.export(tmp_path / "served", warmup=False, with_ids=False)
    found = tf.saved_model.load(str(exported.path)).signatures["serving_default"](text=tf.constant(TEXTS))
    expected = [one.text for one in parser.parse(TEXTS, tree_grammar=True)]
    assert [tree.decode() for tree in found["tree"].numpy()] == expected


def test_what_cannot_be_saved_is_refused(translator, tmp_path):
    ensemble = kt.Translator(translator.models * 2, translator.tokenizers)
    with pytest.raises(ValueError, match="`save` writes one model. Received: an ensemble"):
        ensemble.save(tmp_path / "run")
    with pytest.raises(ValueError, match="`format` must be one of savedmodel, .* Did you mean 'savedmodel'"):
        translator.export(tmp_path / "run", format="saved_model")
    config = replace(Config(), model=replace(translator.models[0].config, d_ff=36))
    with pytest.raises(ValueError, match="`config` differs from the model in model.d_ff"):
        translator.save(tmp_path / "run", config=config)
    assert not list(tmp_path.iterdir())
    (tmp_path / "run").mkdir()
    (tmp_path / "run/notes").write_text("mine")
    with pytest.raises(ValueError, match="run"):
        translator.save(tmp_path / "run")
    assert [path.name for path in tmp_path.rglob("*")] == ["run", "notes"]


def test_float16_halves_the_file_and_rounds_each_weight_once(translator, tmp_path):
    translator.save(tmp_path / "half", weight_dtype="float16")
    translator.save(tmp_path / "full")
    loaded = kt.Translator.load(tmp_path / "half")
    for one, other in zip(loaded.models[0].weights, translator.models[0].weights, strict=True):
        assert one.dtype == "float32"
        np.testing.assert_array_equal(one, np.float32(np.float16(other)))
    sizes = [
        (tmp_path / name / "final/weights.data-00000-of-00001").stat().st_size for name in ("half", "full")
    ]
    assert sizes[0] < 0.6 * sizes[1]
    with pytest.raises(ValueError, match="`weight_dtype` must be float32 or float16. Received: 'int8'"):
        translator.save(tmp_path / "int8", weight_dtype="int8")
    kernel = translator.models[0].weights[-1]
    before = np.asarray(kernel)
    try:
        kernel.assign(before + 7e4)
        with pytest.raises(ValueError, match=r"has weights above the largest float16, 65,504"):
            translator.save(tmp_path / "large", weight_dtype="float16")
    finally:
        kernel.assign(before)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "half"]
