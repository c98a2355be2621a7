"""An exported model with phrases that must occur: what the translator gives, without this package."""

import importlib.util
import json
import re
import types

import pytest
import tensorflow as tf
from saved_models import PYTHON, fresh_process, operations_in

from keras_transformer.export import graphs
from keras_transformer.export import phrases as phrases_module
from keras_transformer.export.phrases import MAX_PHRASES
from keras_transformer.export.saved_model import check_constraints
from keras_transformer.export.serving import WARMUP

pytestmark = pytest.mark.slow

PHRASES = [
    "Hund\tder Text",
    "",
    "",
    "liest\tliest einen\t Hund\tliest",
    "😀 !\tThe dog",
    "  ",
    "",
    "\u00e9\ta\tb\tc\td\te",
]
IN_A_PROCESS = """
import json, sys
import tensorflow as tf
import tensorflow_text
loaded = tf.saved_model.load(sys.argv[1])
inputs = {name: tf.constant(value) for name, value in json.loads(sys.argv[2]).items()}
found = loaded.signatures["translate_constrained"](**inputs)
assert "keras_transformer" not in sys.modules
found["translation"] = tf.strings.unicode_decode(found["translation"], "UTF-8")
print(json.dumps({name: value.numpy().tolist() for name, value in found.items() if name != "translation"}))
print(json.dumps(found["translation"].to_list()))
"""


@pytest.fixture(scope="module")
def model(run, tools, tmp_path_factory):
    warmup = importlib.util.find_spec("tensorflow_serving") is not None
    out = tmp_path_factory.mktemp("constrained") / "tiny"
    return tools.exported(run, out, with_constraints=True, warmup=warmup)


def lists(lines):
    return [line.split("\t") if line.strip() else [] for line in lines]


def ask(model, texts, phrases):
    return model.signatures["translate_constrained"](
        text=tf.constant(texts), constraints=tf.constant(phrases)
    )


@pytest.mark.very_slow
def test_a_process_without_this_package_gets_the_translations_with_their_phrases(model, tools):
    inputs = json.dumps({"text": tools.texts, "constraints": PHRASES})
    numbers, codes = map(json.loads, fresh_process("-c", IN_A_PROCESS, model.path, inputs).splitlines())
    translations = ["".join(map(chr, row)) for row in codes]
    expected = [one.best for one in model.translator.n_best(tools.texts, constraints=lists(PHRASES))]
    assert translations == [one.text for one in expected]
    assert numbers["score"] == pytest.approx([one.score for one in expected], rel=1e-4)
    assert numbers["log_prob"] == pytest.approx([one.log_prob for one in expected], rel=1e-4)
    assert numbers["finished"] == [one.finished for one in expected]
    assert not any(numbers["truncated"])
    tokenizer = model.translator.tokenizers.target
    for translation, phrases in zip(translations, lists(PHRASES), strict=True):
        for phrase in phrases:
            assert tokenizer.decode(tokenizer.encode([phrase]))[0] in translation


def test_without_phrases_it_is_the_default_signature(model, tools):
    found = ask(model, tools.texts, [""] * len(tools.texts))
    default = model.signatures["serving_default"](text=tf.constant(tools.texts))
    assert tools.strings(found["translation"]) == tools.strings(default["translation"])
    assert found["score"].numpy() == pytest.approx(default["score"].numpy(), rel=1e-5)
    assert sorted(found) == sorted(default)


def test_neighbours_do_not_matter_and_many_rows_are_possible(model, tools):
    texts, phrases = tools.texts[:4] * 8, [*PHRASES[:3], "\t".join("abcdefgh")] * 8
    found = tools.strings(ask(model, texts, phrases)["translation"])
    assert found == found[:4] * 8
    assert found[:1] == tools.strings(ask(model, texts[:1], phrases[:1])["translation"])
    assert ask(model, tf.zeros([0], tf.string), tf.zeros([0], tf.string))["translation"].shape == (0,)


def test_a_text_that_is_cut_may_have_phrases(model, tools):
    found = ask(model, ["The dog reads a text. " * 9], ["Hund"])
    assert found["truncated"].numpy().tolist() == [True]
    assert "Hund" in tools.strings(found["translation"])[0]


@pytest.mark.parametrize(
    ("text", "phrases", "message"),
    [
        (["a"], ["Hund\t\tText"], r"A phrase is blank\. Separate phrases by single tabs"),
        (["a"], ["\t"], "A phrase is blank"),
        ([" "], ["Hund"], "A blank text has a blank translation without phrases"),
        (["a", "b"], ["", "Hund und Text " * 20], r"may have at most 39 tokens\. Received: \d{2,3}\b"),
        (["a"], ["\t".join(map(chr, range(97, 97 + MAX_PHRASES + 1)))], "at most 32 phrases. Received: 33"),
        (["a"], ["x" * 301], "at most 300 characters. Received: 301"),
        (["a", "b"], ["Hund"], "`text` and `constraints` must have the same length. Received: 2 1"),
        (["a"] * 33, [""] * 33, "At most 32 sentences"),
    ],
)
def test_phrases_that_cannot_be_used_are_refused(model, text, phrases, message):
    with pytest.raises(tf.errors.InvalidArgumentError) as refused:
        ask(model, text, phrases)
    assert re.search(message, refused.value.message.replace("[", "").replace("]", "").replace('"', ""))


def test_the_signature_uses_no_python_and_is_on_the_card_and_warmed_up(model):
    assert not operations_in(model.path) & PYTHON
    card = json.loads((model.path / "assets.extra/model_card.json").read_text())
    assert "translate_constrained" in card["signatures"]
    pytest.importorskip("tensorflow_serving", reason="pip install tensorflow-serving-api")
    from tensorflow_serving.apis import prediction_log_pb2

    records = tf.data.TFRecordDataset(str(model.path / WARMUP)).as_numpy_iterator()
    requests = [prediction_log_pb2.PredictionLog.FromString(record).predict_log.request for record in records]
    ours = [each.inputs for each in requests if each.model_spec.signature_name == "translate_constrained"]
    assert len(ours) == 2
    for inputs in ours:
        values = {name: tf.constant(tf.make_ndarray(value)) for name, value in inputs.items()}
        assert model.signatures["translate_constrained"](**values)["translation"].shape == (1,)


def test_a_character_that_the_vocabulary_lacks_is_refused():
    special = types.SimpleNamespace(pad=0, unk=3)
    settings = types.SimpleNamespace(settings=types.SimpleNamespace(max_characters=9))
    for known, ids in [(True, [[5, 6], [7]]), (False, [[5, 6], [3]])]:
        tokenizer = types.SimpleNamespace(
            special=special, encode_tensor=lambda texts, ids=ids: tf.ragged.constant(ids, dtype=tf.int32)
        )
        if known:
            encoded = phrases_module._encode(settings, tokenizer, tf.constant(["", "ab\tc"]))
            assert encoded.numpy().tolist() == [[[0, 0], [0, 0]], [[5, 6], [7, 0]]]
            continue
        with pytest.raises(tf.errors.InvalidArgumentError, match="the vocabulary lacks"):
            phrases_module._encode(settings, tokenizer, tf.constant(["", "ab\tc"]))


def test_rows_whose_limit_is_raised_count_as_longer_when_rows_are_batched(model, monkeypatch):
    class SeenError(Exception):
        pass

    def stop(lengths, *others):
        raise SeenError(lengths.numpy().tolist())

    monkeypatch.setattr(graphs, "in_chunks", stop)
    served = graphs.ServedModel(model.translator.models[0], model.settings)
    ids = tf.ragged.constant([[5], [5, 6, 7], [], [5]], dtype=tf.int32)
    for constraint, expected in [(None, [2, 4, 0, 2]), (tf.constant([9, 0, 7, 99]), [9, 4, 0, 40])]:
        if constraint is not None:
            constraint = graphs.RowConstraint(None, (), constraint)
        with pytest.raises(SeenError, match=re.escape(str(expected))):
            served.translate(ids, 1, [], constraint)


def test_a_parser_has_no_phrases():
    data = types.SimpleNamespace(parses=True)
    run = types.SimpleNamespace(path="runs/parser", config=types.SimpleNamespace(data=data))
    with pytest.raises(ValueError, match="runs/parser: a parser has no required phrases"):
        check_constraints(run, True)
    check_constraints(run, False)
