"""An exported parser: the trees of `Parser` with the tree grammar, in a graph without this package."""

import json
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from saved_models import PYTHON, fresh_process, operations_in

from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.config.presets import preset, with_vocab_size
from keras_transformer.config.settings import replace
from keras_transformer.export.saved_model import export_saved_model
from keras_transformer.export.serving import ServingSettings
from keras_transformer.export.versions import CARD, load_exported
from keras_transformer.model.transformer import Transformer
from keras_transformer.text.trees import read_tree, words
from keras_transformer.tokenizers import SubwordTokenizer, Tokenizers
from keras_transformer.tokenizers.symbols import TreeTokenizer
from keras_transformer.translation.parser import Parser

pytestmark = pytest.mark.slow

TREES = [
    "(S (NP (DT the) (NN dog)) (VP (VBZ sees) (NP (NP (DT the) (NN cat)) (PP (IN near) (NP (NNS birds))))))",
    "(FRAG (NP (NNS birds)) (. .))",
]
SENTENCES = [
    "the dog sees the cat near birds",
    "birds .",
    "",
    " the  cat\t( birds ) sees the dog ",
    "dog",
    "the dog " * 30,  # more tokens than the model takes
    "birds, (the cat!) «caf\u00e9»\u00a0near",
    "  ",
]
SIZES = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 8, "d_ff": 12, "num_heads": 2}
IN_A_PROCESS = """
import json, sys
import tensorflow as tf
import tensorflow_text
loaded = tf.saved_model.load(sys.argv[1])
found = loaded.signatures["serving_default"](text=tf.constant(json.loads(sys.argv[2])))
assert "keras_transformer" not in sys.modules
print(json.dumps([[tree.decode() for tree in found["tree"].numpy()], found["score"].numpy().tolist()]))
"""
IDS_IN_A_PROCESS = """
import json, sys
import tensorflow as tf
loaded = tf.saved_model.load(sys.argv[1])
inputs = {name: tf.constant(value) for name, value in json.loads(sys.argv[2]).items()}
found = loaded.signatures["parse_ids"](**inputs)
assert "tensorflow_text" not in sys.modules
print(json.dumps({name: value.numpy().tolist() for name, value in found.items()}))
"""


def export(folder, *, keep_tags=False, seed=1, model=(), search=(), **settings):
    """An exported run with random weights."""
    texts = [" ".join(words(read_tree(tree))) for tree in TREES]
    source = SubwordTokenizer.train(texts * 9, vocab_size=290)
    tokenizers = Tokenizers(source, TreeTokenizer.train(TREES, keep_tags=keep_tags))
    limits = {"beam_size": 3, "max_length_offset": 23, "max_source_length": 53, "batch_tokens": 64}
    config = replace(
        preset("parsing_small"),
        model=SIZES | dict(model),
        data={"keep_tags": keep_tags, "dataset": "bank", "max_length": 53},
        search=limits | dict(search),
    )
    config = with_vocab_size(config, *tokenizers.sizes)
    run = RunFolder.create(folder / "run", config, tokenizers)
    network, rng = Transformer(config.model), np.random.default_rng(seed)
    for weight in network.trainable_weights:
        weight.assign(rng.normal(0, 1.0, weight.shape))
    network.compile(keras.optimizers.Adam())
    run.checkpoints(network, network.optimizer).save(0.0)
    settings = ServingSettings(search=config.search, max_sentences=17, max_characters=300, **settings)
    written = export_saved_model(
        run.path, folder / "out", checkpoint="last", settings=settings, warmup=False, with_ids=not keep_tags
    )
    return types.SimpleNamespace(
        run=run.path, path=written.path, ids_path=written.ids_path,
        signatures=load_exported(written.path).signatures,
        parser=Parser.load(run.path, checkpoint="last"), tokenizers=tokenizers,
    )  # fmt: skip


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return export(tmp_path_factory.mktemp("parser"))


def decoded(trees):
    return [tree.decode() for tree in trees.numpy().ravel()]


def check_same(found, parsed):
    """The results of `serving_default` against those of `Parser`."""
    assert decoded(found["tree"]) == [one.text for one in parsed]
    np.testing.assert_allclose(found["score"], [one.score for one in parsed], rtol=1e-4)
    assert found["too_long"].numpy().tolist() == [one.too_long for one in parsed]


@pytest.mark.very_slow
def test_a_process_without_this_package_gets_the_trees_of_the_parser(exported):
    trees, scores = json.loads(fresh_process("-c", IN_A_PROCESS, exported.path, json.dumps(SENTENCES)))
    parsed = exported.parser.parse(SENTENCES, tree_grammar=True)
    assert trees == [one.text for one in parsed]
    np.testing.assert_allclose(scores, [one.score for one in parsed], rtol=1e-4)
    assert trees[5] == f"(S{' (XX the) (XX dog)' * 30})"
    assert trees[2] == trees[7] == ""
    assert [one.too_long for one in parsed] == [False] * 5 + [True, False, False]


@pytest.mark.parametrize(
    "options",
    [
        {
            "keep_tags": True,
            "seed": 5,
            "search": {"beam_size": 7},
            "model": {"positions": "learned", "max_positions": 59},
        },
        pytest.param(
            {
                "seed": 3,
                "search": {"beam_size": 1},
                "frozen": True,
                "inputs": ("alpha", "max_length_offset"),
            },
            marks=pytest.mark.very_slow,
        ),
    ],
)
def test_every_tree_is_well_formed_over_the_words(tmp_path, options):
    one = export(tmp_path, **options)
    inputs = {"alpha": tf.constant(0.7), "max_length_offset": tf.constant(2)} if "inputs" in options else {}
    search = {name: value.numpy().item() for name, value in inputs.items()}
    found = one.signatures["serving_default"](text=tf.constant(SENTENCES), **inputs)
    check_same(found, one.parser.parse(SENTENCES, tree_grammar=True, **search))
    several = one.signatures["parse_nbest"](text=tf.constant(SENTENCES), **inputs)["trees"]
    assert decoded(several[:, 0]) == decoded(found["tree"])
    wanted = [text.replace("(", "-LRB-").replace(")", "-RRB-").split() for text in SENTENCES]
    wanted[6] = ["birds,", "-LRB-the", "cat!-RRB-", "«café»\u00a0near"]
    num_trees = 0
    for row, expected in zip(several.numpy(), wanted, strict=True):
        for tree in filter(None, row):
            assert words(read_tree(tree.decode())) == expected
            num_trees += 1
        assert bool(row[0]) == bool(expected)
    assert num_trees >= 6


def test_a_tree_does_not_depend_on_the_other_sentences(exported):
    together = decoded(exported.signatures["serving_default"](text=tf.constant(SENTENCES))["tree"])
    for text, tree in zip(SENTENCES, together, strict=True):
        assert decoded(exported.signatures["serving_default"](text=tf.constant([text]))["tree"]) == [tree]


def test_ids_are_parsed_without_tensorflow_text(exported):
    texts, target = SENTENCES[:2], exported.tokenizers.target
    rows = exported.tokenizers.source.encode(texts)
    inputs = {
        "ids": tf.ragged.constant(rows, tf.int32).to_tensor().numpy().tolist(),
        "num_words": [len(text.split()) for text in texts],
    }
    found = json.loads(fresh_process("-c", IDS_IN_A_PROCESS, exported.ids_path, json.dumps(inputs)))
    parsed = exported.parser.parse(texts, tree_grammar=True)
    assert target.decode(found["ids"]) == [target.normalise(one.text) for one in parsed]
    assert found["length"] == [one.num_tokens for one in parsed]
    assert not operations_in(exported.ids_path) & PYTHON


@pytest.mark.parametrize(
    ("num_words", "message"),
    [([1], "`num_words` must have one entry per row of `ids`"), ([2, -1], "`num_words` must be at least 0")],
)
def test_wrong_numbers_of_words_are_refused(exported, num_words, message):
    signature = exported.signatures["parse_ids"]
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        signature(ids=tf.constant([[5, 6], [7, 8]]), num_words=tf.constant(num_words))


def test_more_words_than_the_model_takes_get_no_ids(exported):
    found = exported.signatures["parse_ids"](ids=tf.constant([[5, 6]]), num_words=tf.constant([54]))
    assert found["too_long"].numpy().tolist() == [True]
    assert found["length"].numpy().tolist() == [0]


def test_the_card_says_that_it_parses(exported):
    card = json.loads((exported.path / CARD).read_text())
    assert card["task"] == "constituency parsing"
    assert card["search"]["tree_grammar"] is True
    assert card["signatures"] == ["parse_ids", "parse_nbest", "serving_default"]
