"""Runs of random weights, exported once for all tests."""

import importlib.util
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.config.settings import Config, DataConfig, ModelConfig, SearchConfig
from keras_transformer.export.saved_model import export_saved_model
from keras_transformer.export.serving import ServingSettings
from keras_transformer.export.versions import load_exported
from keras_transformer.model.transformer import Transformer
from keras_transformer.tokenizers.sentencepiece import SubwordTokenizer
from keras_transformer.tokenizers.tokenizer_pair import Tokenizers
from keras_transformer.tokenizers.wordpiece import WordPieceTokenizer
from keras_transformer.translation.scorer import Scorer
from keras_transformer.translation.translator import Translator

TEXTS = [
    "The dog reads a text.",
    "a",
    "",
    "Ein Hund liest einen Text.",
    "The dog reads.",
    "   ",
    "Hund und Text",
    "The dog reads the text, and the dog reads it.",
]
SEARCH = SearchConfig(beam_size=3, max_length_offset=4, max_source_length=40, batch_tokens=64)
SIZES = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 16, "d_ff": 24, "num_heads": 2}


def make_run(path, tokenizers, *, seed, eos_bias, **model):
    """A run folder whose `last` weights are random, so that translations differ."""
    sizes = dict(zip(("source_vocab_size", "target_vocab_size"), tokenizers.sizes, strict=True))
    config = Config(
        model=ModelConfig(**{**SIZES, **sizes, **model}),
        data=DataConfig(
            source="en", target="de", dataset="/home/someone/secret/texts", vocab_size=300, max_length=40
        ),
        search=SEARCH,
    )
    run = RunFolder.create(path, config, tokenizers)
    model = Transformer(config.model)
    rng = np.random.default_rng(seed)
    for weight in model.trainable_weights:
        weight.assign(rng.normal(0, 1.0, weight.shape))
    model.output_projection.kernel.assign(1.5 * model.output_projection.kernel)
    bias = np.zeros(model.output_bias.shape, np.float32)
    bias[[kind == "byte" for kind, _ in tokenizers.target.entries]] = -20.0
    bias[model.special.eos] = eos_bias  # ends some translations below the limit
    model.output_bias.assign(bias)
    optimizer = keras.optimizers.Adam()
    model.compile(optimizer)
    run.checkpoints(model, optimizer).save(0.0)
    run.append_history({"kind": "train", "step": 7, "minutes": 1.5})
    return run.path


def exported(run, out, **settings):
    """All that a test asks of an exported run."""
    options = {
        name: settings.pop(name)
        for name in ("warmup", "with_ids", "with_constraints", "version", "name")
        if name in settings
    }
    config = RunFolder(run).config.search
    settings = ServingSettings(search=config, max_sentences=32, max_characters=300, **settings)
    written = export_saved_model(
        run, out, checkpoint="last", settings=settings, **{"warmup": False, "with_ids": False, **options}
    )
    loaded = load_exported(written.path)
    return types.SimpleNamespace(
        run=run, out=out, written=written, path=written.path, ids_path=written.ids_path,
        loaded=loaded, signatures=loaded.signatures, settings=settings,
        translator=Translator.load(run, checkpoint="last"), scorer=Scorer.load(run, checkpoint="last"),
    )  # fmt: skip


def strings(tensor):
    """Nested lists of str of a tensor of UTF-8."""
    values = tensor.numpy()
    return np.vectorize(lambda text: text.decode("utf-8"), otypes=[object])(values).tolist()


@pytest.fixture(scope="session")
def tools():
    """The parts above, by name."""
    return types.SimpleNamespace(make_run=make_run, exported=exported, strings=strings, texts=TEXTS)


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """One vocabulary, post-norm, as the paper; but for a projection of its own."""
    tokenizer = SubwordTokenizer.train([text for text in TEXTS if text.strip()] * 3, vocab_size=300)
    path = tmp_path_factory.mktemp("run") / "tiny"
    return make_run(
        path, Tokenizers(tokenizer, tokenizer), seed=4, eos_bias=6.0, tie_embeddings="none", output_bias=True
    )


@pytest.fixture(scope="session")
def model(run, tmp_path_factory):
    """It, exported."""
    warmup = importlib.util.find_spec("tensorflow_serving") is not None
    return exported(run, tmp_path_factory.mktemp("served") / "tiny", with_ids=True, warmup=warmup)


@pytest.fixture(scope="session")
def other_model(tmp_path_factory):
    """Two vocabularies of two kinds, pre-norm, learned positions; exported with constants and inputs."""
    source = WordPieceTokenizer.train([text for text in TEXTS if text.strip()], vocab_size=48)
    target = SubwordTokenizer.train([text for text in TEXTS if text.strip()] * 3, vocab_size=295)
    run = make_run(
        tmp_path_factory.mktemp("run") / "other", Tokenizers(source, target),
        seed=5, eos_bias=6.0, tie_embeddings="none", output_bias=True, norm_first=True,
        positions="learned", max_positions=45,
    )  # fmt: skip
    out = tmp_path_factory.mktemp("served") / "other"
    return exported(run, out, frozen=True, inputs=("alpha", "max_length_offset"))


@pytest.fixture(scope="session")
def inputs():
    """What `other_model` is told in every call."""
    return {"alpha": tf.constant(SEARCH.alpha), "max_length_offset": tf.constant(SEARCH.max_length_offset)}
