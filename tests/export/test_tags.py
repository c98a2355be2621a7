"""Exported models never produce a tag, though it is the most probable token of every step."""

import json

import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.config.settings import ModelConfig, SearchConfig
from keras_transformer.explorer import Explorer

TEXTS = ["The dog reads a text.", "<BT> Hund und Text", "a text and a dog"]
SIZES = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 16, "d_ff": 24, "num_heads": 2}
SEARCH = SearchConfig(beam_size=3, n_best=3, max_length_offset=5, length_penalty="none")


@pytest.fixture(scope="module")
def translator():
    tokenizer = kt.train_tokenizer(TEXTS * 3, model_type="bpe", vocab_size=300, tags=("<BT>",))
    size = tokenizer.vocab_size
    model = kt.Transformer(
        ModelConfig(source_vocab_size=size, target_vocab_size=size, output_bias=True, **SIZES)
    )
    bias = np.zeros(size, np.float32)
    bias[tokenizer.tags["<BT>"]] = 30
    model.output_bias.assign(bias)
    return kt.Translator(model, tokenizer, SEARCH)


@pytest.mark.slow
def test_saved_models(translator, tmp_path):
    exported = translator.export(tmp_path / "served", warmup=False, with_ids=False)
    loaded = tf.saved_model.load(str(exported.path))
    found = loaded.signatures["translate_ids"](ids=tf.constant(padded(translator, TEXTS)))
    assert translator.tokenizers.target.tags["<BT>"] not in found["ids"].numpy()
    found = loaded.signatures["serving_default"](text=tf.constant(TEXTS))
    assert [text.decode() for text in found["translation"].numpy()] == translator.translate(TEXTS)


def padded(translator, texts):
    """Ids of texts, int32 of one shape; the tag itself may be given as an id."""
    rows = [
        [translator.tokenizers.source.tags["<BT>"], *row]
        for row in translator.tokenizers.source.encode(texts)
    ]
    longest = max(map(len, rows))
    return np.array(
        [row + [translator.tokenizers.source.special.pad] * (longest - len(row)) for row in rows], np.int32
    )


@pytest.mark.slow
def test_ctranslate2(translator, tmp_path):
    pytest.importorskip("ctranslate2")
    from keras_transformer.export.ctranslate2 import CTranslate2Translator

    folder = translator.export(tmp_path / "fast", "ctranslate2")
    fast = CTranslate2Translator(folder)
    for result in fast.n_best(TEXTS):
        assert len(result.best.ids) > 1
        assert all(4 not in one.ids for one in result.translations)


@pytest.mark.slow
def test_the_explorer(translator, tmp_path):
    translator.save(tmp_path / "run")
    found = Explorer.load(tmp_path / "run").search({"text": TEXTS[0]})
    assert len(found["hypotheses"]) > 1
    assert "BT" not in json.dumps(found)
