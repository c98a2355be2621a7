"""Exported signatures, against the translator and the scorer that Python has."""

import dataclasses
import hashlib
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.checkpoints.tensor_files import by_path
from keras_transformer.config.settings import ModelConfig, SearchConfig, replace
from keras_transformer.export.forcing import pair_signatures
from keras_transformer.export.graphs import Output, ServedModel, in_chunks, text_signatures
from keras_transformer.export.saved_model import export_saved_model, make_card, write_card
from keras_transformer.export.serving import ServingSettings
from keras_transformer.export.versions import new_version, versions
from keras_transformer.model.transformer import Transformer
from keras_transformer.translation.alignment import hard_alignment, soft_alignment

SIGNATURES = ["alignment", "score", "serving_default", "translate_ids", "translate_nbest"]


@pytest.fixture(params=["variables", "constants"])
def case(request, tools):
    """An exported model, and what it is told beside the texts."""
    if request.param == "variables":
        return request.getfixturevalue("model"), {}
    return request.getfixturevalue("other_model"), request.getfixturevalue("inputs")


@pytest.mark.slow_after(1)
def test_the_best_translation_is_the_translators(case, tools):
    model, inputs = case
    found = model.signatures["serving_default"](text=tf.constant(tools.texts), **inputs)
    expected = [one.best for one in model.translator.n_best(tools.texts)]
    assert tools.strings(found["translation"]) == [one.text for one in expected]
    np.testing.assert_allclose(found["score"], [one.score for one in expected], rtol=1e-5)
    np.testing.assert_allclose(found["log_prob"], [one.log_prob for one in expected], rtol=1e-5)
    assert found["finished"].numpy().tolist() == [one.finished for one in expected]
    assert not found["truncated"].numpy().any()
    assert len({one.text for one in expected}) >= 6
    assert {one.finished for one in expected} == {True, False}


DEPARTURES = {
    "ds_init": {"depth_scaling": "ds_init"},
    "deepnorm": {"depth_scaling": "deepnorm"},
    "relative": {"positions": "relative", "max_relative_position": 3},
    "rotary": {"positions": "rotary"},
    "rms, gated": {"norm": "rms", "activation": "geglu"},
    "qk_norm": {"qk_norm": True, "positions": "relative"},
}


@pytest.mark.very_slow
@pytest.mark.parametrize("kind", DEPARTURES)
def test_models_with_departures_translate_as_the_run_does(kind, run, tools, tmp_path):
    """Slow: exports a model each."""
    model = {"num_encoder_layers": 2, "num_decoder_layers": 2, **DEPARTURES[kind]}
    sizes = {"tie_embeddings": "none", "output_bias": True}
    tokenizers = RunFolder(run).load_tokenizers()
    eos_bias = 6.0 if "depth_scaling" in model else 2.0  # some translations are empty, and some are not
    trained = tools.make_run(tmp_path / "run", tokenizers, seed=4, eos_bias=eos_bias, **sizes, **model)
    exported = tools.exported(trained, tmp_path / "served")
    found = exported.signatures["serving_default"](text=tf.constant(tools.texts))
    expected = [one.best for one in exported.translator.n_best(tools.texts)]
    assert tools.strings(found["translation"]) == [one.text for one in expected]
    np.testing.assert_allclose(found["log_prob"], [one.log_prob for one in expected], rtol=1e-5)
    assert len({one.text for one in expected}) >= 4


def test_all_of_the_beam_is_the_translators(model, tools):
    found = model.signatures["translate_nbest"](text=tf.constant(tools.texts))
    expected = model.translator.n_best(tools.texts, n_best=3)
    texts, scores = tools.strings(found["translations"]), found["scores"].numpy()
    for number, one in enumerate(expected):
        places = len(one.translations)
        assert texts[number][:places] == [each.text for each in one.translations]
        np.testing.assert_allclose(scores[number, :places], [x.score for x in one.translations], rtol=1e-5)
        assert texts[number][places:] == [""] * (3 - places)
        assert (scores[number, places:] == tf.float32.min).all()


def test_a_coverage_penalty_is_the_translators(model, tools):
    search = replace(model.settings.search, coverage_penalty=3.0)
    settings = dataclasses.replace(model.settings, search=search)
    served = ServedModel(model.translator.models[0], settings)
    signature = text_signatures(served, model.translator.tokenizers)["translate_nbest"]
    found = signature(tf.constant(tools.texts))
    expected = model.translator.n_best(tools.texts, n_best=3, coverage_penalty=3.0)
    plain = model.translator.n_best(tools.texts, n_best=3)
    assert [one.best.text for one in expected] != [one.best.text for one in plain]
    for number, one in enumerate(expected):
        places = len(one.translations)
        assert tools.strings(found["translations"])[number][:places] == [x.text for x in one.translations]
        scores = found["scores"].numpy()[number, :places]
        np.testing.assert_allclose(scores, [x.score for x in one.translations], rtol=1e-5)


@pytest.mark.slow
def test_ids_become_the_ids_of_the_best_translation(model, tools):
    texts = [text for text in tools.texts if text.strip()]
    special = model.translator.tokenizers.source.special
    rows = model.translator.tokenizers.source.encode(texts)
    expected = [one.best for one in model.translator.n_best(texts)]
    width = max(map(len, rows)) + 3
    for ends in (False, True):  # padding, beginning and end may be sent, and need not
        sent = [[special.bos, *row, special.eos] if ends else row for row in rows]
        padded = [row + [special.pad] * (width - len(row)) for row in sent]
        found = model.signatures["translate_ids"](ids=tf.constant(padded))
        lengths = found["length"].numpy()
        assert [row[:n].tolist() for row, n in zip(found["ids"].numpy(), lengths, strict=True)] == [
            one.ids for one in expected
        ]
        assert found["ids"].shape[1] == max(lengths)
        np.testing.assert_allclose(found["score"], [one.score for one in expected], rtol=1e-5)


PAIRS = [
    ("The dog reads a text.", "Ein Hund liest einen Text."),
    ("a", "Hund und Text"),
    ("The dog reads.", ""),
    ("", "Ein"),
    ("", ""),
    ("The dog reads the text, and the dog reads it.", "a 😀 b"),
]


@pytest.mark.slow_after(1)
def test_scores_are_the_scorers(case):
    model, _ = case
    source, target = map(list, zip(*PAIRS, strict=True))
    found = model.signatures["score"](source=tf.constant(source), target=tf.constant(target))
    expected = model.scorer.score(source, target)
    np.testing.assert_allclose(found["log_prob"], [one.log_prob for one in expected], rtol=1e-5)
    assert found["num_tokens"].numpy().tolist() == [len(one.log_probs) for one in expected]
    for row, one in zip(found["token_log_probs"].numpy(), expected, strict=True):
        np.testing.assert_allclose(row[: len(one.log_probs)], one.log_probs, rtol=1e-4, atol=1e-5)
        assert not row[len(one.log_probs) :].any()


def test_alignments_are_those_of_the_layer(model, tools):
    layer, convention = model.scorer.choice
    served = ServedModel(model.translator.models[0], model.settings)
    align = pair_signatures(served, model.translator.tokenizers, layer)["alignment"]
    source, target = map(list, zip(*PAIRS, strict=True))
    found = align(source=tf.constant(source), target=tf.constant(target))
    some = 0
    for number, one in enumerate(model.scorer.score(source, target, layers=[layer])):
        arguments = one.attention[0], one.source_pieces, one.target_pieces
        links = hard_alignment(*arguments, convention=convention)
        assert tools.strings(found["links"])[number] == " ".join(f"{s}-{t}" for s, t in links)
        weights = soft_alignment(*arguments, convention=convention)
        sizes = found["target_words"].numpy()[number], found["source_words"].numpy()[number]
        assert sizes == weights.shape
        padded = found["weights"].numpy()[number]
        np.testing.assert_allclose(padded[: sizes[0], : sizes[1]], weights, rtol=1e-4, atol=1e-6)
        assert padded.sum() == pytest.approx(weights.sum(), rel=1e-4)
        some += len(links)
    assert some > 10


def test_inputs_are_what_the_search_has(other_model, tools):
    for alpha, max_length_offset in ((0.0, 1), (2.0, 7)):
        found = other_model.signatures["serving_default"](
            text=tf.constant(tools.texts),
            alpha=tf.constant(alpha),
            max_length_offset=tf.constant(max_length_offset),
        )
        search = {"alpha": alpha, "max_length_offset": max_length_offset}
        expected = [one.best for one in other_model.translator.n_best(tools.texts, **search)]
        assert tools.strings(found["translation"]) == [one.text for one in expected]
        np.testing.assert_allclose(found["score"], [one.score for one in expected], rtol=1e-5)


def test_constants_leave_no_variables(other_model, model):
    shards = list((other_model.path / "variables").glob("*.data-*"))
    weights = sum(weight.numpy().nbytes for weight in model.translator.models[0].weights)
    assert sum(shard.stat().st_size for shard in shards) < 2000 < weights
    # Five signatures, and each weight once.
    assert weights < (other_model.path / "saved_model.pb").stat().st_size


def bytes_of_weights(path):
    return hashlib.sha256((path / "variables/variables.data-00000-of-00001").read_bytes()).hexdigest()


@pytest.mark.very_slow
def test_exported_again_from_what_was_loaded_the_weights_are_the_same_bytes(model, run, tools, tmp_path):
    loaded = {name: variable.numpy() for name, variable in model.loaded.weights.items()}
    copy = RunFolder(shutil.copytree(run, tmp_path / "run"))
    shutil.rmtree(copy.path / "checkpoints")
    again = Transformer(copy.config.model)
    assert set(by_path(again.weights)) == set(loaded)
    for name, variable in by_path(again.weights).items():
        variable.assign(loaded[name])
    again.compile("adam")
    copy.checkpoints(again, again.optimizer).save(0.0)
    second = tools.exported(copy.path, tmp_path / "out")
    assert bytes_of_weights(second.path) == bytes_of_weights(model.path)
    text = tf.constant(tools.texts)
    for name, values in second.signatures["serving_default"](text=text).items():
        np.testing.assert_array_equal(values, model.signatures["serving_default"](text=text)[name])


def test_the_signatures_are_these(model):
    assert sorted(model.signatures) == SIGNATURES
    card = json.loads((model.path / "assets.extra/model_card.json").read_text())
    assert card["signatures"] == SIGNATURES


def test_the_model_card_says_what_is_known_and_no_more(model, tmp_path):
    card = json.loads((model.path / "assets.extra/model_card.json").read_text())
    assert card["languages"] == {"source": "en", "target": "de"}
    assert card["data"]["dataset"] == ["texts"]  # not where it lies on this machine
    assert card["training"] == {"step": 7, "minutes": 1.5}
    assert card["limits"] == {"sentences": 32, "characters": 300, "tokens": 40}
    assert card["licence"] == {"model": "not stated", "data": "not stated"}
    weights = model.translator.models[0].weights
    assert card["weights"]["parameters"] == sum(weight.numpy().size for weight in weights)
    text = (model.path / "assets.extra/model_card.md").read_text()
    assert "| languages | en to de |" in text
    assert "| search | beam 3, alpha 0.6 (gnmt) |" in text
    assert "none were measured" in text
    assert "someone" not in text + json.dumps(card)


def test_the_model_card_has_the_last_scores_of_the_weights_that_were_tested(run, tmp_path):
    copy = RunFolder(shutil.copytree(run, tmp_path / "run"))
    for bleu in (12.5, 30.25):  # a run that went on after its end
        copy.append_history(
            {"kind": "test", "split": "test", "num_lines": 9, "bleu": bleu, "bleu_signature": "a|b"}
        )
    arguments = {"name": "n", "num_parameters": 5, "versions": {"tensorflow": "2"}, "licences": {}}
    for weights, rows in (("averaged", 1), ("last", 0)):
        card = make_card(copy, ServingSettings(), checkpoint=weights, **arguments)
        assert [one["bleu"] for one in card["scores"]] == [30.25][:rows]
        write_card(tmp_path, card)
        text = (tmp_path / "assets.extra/model_card.md").read_text()
        assert text.count("| bleu of 9 lines of test | 30.25 |\n") == rows
        # Below the table, where its bars need no backslash, which some viewers show.
        assert text.count("\n\n- bleu of 9 lines of test: `a|b`\n") == rows
        assert "\\" not in text


def test_licences_stay_in_their_cell(model, tmp_path):
    card = json.loads((model.path / "assets.extra/model_card.json").read_text())
    write_card(tmp_path, {**card, "licence": {"model": "a | b\nc", "data": "d"}})
    assert "| licence of the model | a \\| b c |\n" in (tmp_path / "assets.extra/model_card.md").read_text()


def test_chunks_hold_no_more_than_there_is_room_for():
    room = [9, 4, 4, 2, 1, 1]
    lengths = tf.constant([3, 0, 1, 5, 2, 1, 3, 0, 1])

    def compute(rows):
        return [rows * 10, tf.tile(rows[None], [tf.size(rows), 1])]

    outputs = [Output(tf.int32, (), -7), Output(tf.int32, (None,), -1)]
    values, members = tf.function(lambda: in_chunks(lengths, room, compute, outputs))()
    assert values.numpy().tolist() == [0, -7, 20, 30, 40, 50, 60, -7, 80]
    chunks = {tuple(sorted(set(row.tolist()) - {-1})) for row in members.numpy()}
    # Four of length up to 2 share one, then two of 3; the longest is alone.
    assert chunks == {(), (2, 4, 5, 8), (0, 6), (3,)}


def test_budgets_of_a_batch_are_those_of_tokens_and_of_memory():
    settings = ServingSettings(search=SearchConfig(batch_tokens=100, max_source_length=60), max_sentences=30)
    model = ModelConfig(
        num_decoder_layers=2, d_model=512, num_heads=8, source_vocab_size=37000, target_vocab_size=37000
    )
    rows = settings.max_rows(model)
    assert rows[1] == 30
    assert rows[5] == 100 // 5
    assert rows[60] == 1
    huge = ServingSettings(search=SearchConfig(batch_tokens=10**6), max_sentences=10**6).max_rows(model)
    # Four beams, whose caches hold keys and values of 64 x 8 numbers in 2 layers, before and after.
    numbers = 4 * (2 * 2 * 1024 * (51 + 1) + 4 * 37000) + 2 * 8
    assert huge[1] == 2**29 // numbers
    # A request may make translations as long as `max_length`.
    of_requests = dataclasses.replace(settings, search=SearchConfig(batch_tokens=10**6), max_sentences=10**6)
    of_requests = dataclasses.replace(of_requests, inputs=("max_length_offset",)).max_rows(model)
    numbers = 4 * (2 * 2 * 1024 * (1024 + 1) + 4 * 37000) + 2 * 8
    assert of_requests[1] == 2**29 // numbers < huge[1]


def test_versions_count_up_and_are_not_written_over(tmp_path):
    out, beside = tmp_path / "out", tmp_path / "out/ids"
    for expected in (1, 2):
        with new_version([out, beside]) as new:
            assert new.number == expected
            assert versions(out) == list(range(1, expected))
            for folder in new.folders:
                (folder / "saved_model.pb").write_bytes(b"x")
    with new_version([out], 7):
        pass
    assert versions(out) == [1, 2, 7]
    with pytest.raises(ValueError, match=r"out/2: this version exists. .* or omit it for 8"), \
            new_version([out], 2):  # fmt: skip
        pass
    for bad in (0, -1, 2**63, True, "3"):
        with pytest.raises(ValueError, match="whole number from 1 to"), new_version([out], bad):
            pass


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_sentences": 0}, "`max_sentences` .* from 1 to .*. Received: 0"),
        ({"max_characters": 2.5}, "`max_characters` .* Received: 2.5"),
        (
            {"inputs": ("beam_size",)},
            "`inputs` must be among alpha, max_length_offset. Received: 'beam_size'",
        ),
        ({"search": replace(SearchConfig(), sampling=True)}, "Sampling is not available"),
        ({"search": replace(SearchConfig(), mbr=True)}, "Minimum Bayes risk decoding is not available"),
    ],
)
def test_settings_that_cannot_be_exported_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        ServingSettings(**change)


def test_a_tree_grammar_without_trees_is_refused(run, tmp_path):
    settings = ServingSettings(search=replace(SearchConfig(), tree_grammar=True))
    with pytest.raises(ValueError, match="`search.tree_grammar` is for parsing: data.target='trees'"):
        export_saved_model(run, tmp_path / "out", checkpoint="last", settings=settings, warmup=False)
    assert not (tmp_path / "out").exists()


def test_a_name_that_a_url_cannot_hold_is_refused(run, tmp_path):
    with pytest.raises(ValueError, match="`name` may contain only letters.*Received: 'a/b'"):
        export_saved_model(run, tmp_path / "out", checkpoint="last", name="a/b", warmup=False)
    assert not (tmp_path / "out").exists()
