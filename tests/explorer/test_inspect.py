"""Forced passes against NumPy on the model's logits, `attention_maps`, `Scorer` and `details=True`."""

import base64
import concurrent.futures

import numpy as np
import pytest
from tiny_explorers import TEXTS, tiny_translator

from keras_transformer.analysis.heads import KINDS, Head, all_heads, attention_maps, without_heads
from keras_transformer.config.settings import Config, replace
from keras_transformer.explorer import Explorer, InvalidRequestError, explore
from keras_transformer.translation.scorer import Scorer
from keras_transformer.translation.translator import Translator

TEXT, TARGET = TEXTS[0], TEXTS[1]
STEP = 1 / 65535  # a unit of the weights, which are sent in 16 bits
HEADS = [Head("encoder", 1, 1), Head("decoder", 1, 0), Head("cross", 0, 0), Head("cross", 0, 1)]


@pytest.fixture(scope="module")
def translator():
    return tiny_translator()


@pytest.fixture(scope="module")
def explorer(translator):
    return Explorer(translator, "tiny")


@pytest.fixture(scope="module")
def rows(translator):
    return [
        [*tokenizer.encode([text])[0], tokenizer.special.eos]
        for tokenizer, text in zip(translator.tokenizers, (TEXT, TARGET), strict=True)
    ]


def weights_of(attention):
    shape = [attention[name] for name in ("layers", "heads", "rows", "columns")]
    return np.frombuffer(base64.b64decode(attention["data"]), "<u2").reshape(shape) * STEP


def off(heads):
    return [head._asdict() for head in heads]


def check_tokens(answer, model, source, target):
    logits = np.float64(model((np.array([source]), np.array([[model.special.bos, *target[:-1]]]))))[0]
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert len(answer["tokens"]) == len(target)
    for token, row, label in zip(answer["tokens"], log_probs, target, strict=True):
        assert token["id"] == label
        np.testing.assert_allclose(token["log_prob"], row[label], atol=1e-4)
        np.testing.assert_allclose(token["entropy"], -(np.exp(row) * row).sum(), atol=1e-4)
        best = np.argsort(-row)
        assert token["rank"] == 1 + best.tolist().index(label)
        assert [one["id"] for one in token["alternatives"]] == best[: len(token["alternatives"])].tolist()
        found = [one["log_prob"] for one in token["alternatives"]]
        np.testing.assert_allclose(found, row[best[: len(found)]], atol=1e-4)
    np.testing.assert_allclose(answer["log_prob"], sum(log_probs[range(len(target)), target]), rtol=1e-5)


@pytest.mark.slow
def test_the_tokens_are_those_of_a_softmax_in_numpy(explorer, translator, rows):
    answer = explorer.inspect({"text": TEXT, "target": TARGET, "alternatives": 7})
    check_tokens(answer, translator.models[0], *rows)
    assert {len(token["alternatives"]) for token in answer["tokens"]} == {7}
    (scored,) = Scorer(translator.models[0], translator.tokenizers).score([TEXT], [TARGET])
    np.testing.assert_allclose([token["log_prob"] for token in answer["tokens"]], scored.log_probs, atol=1e-5)
    for name, pieces in (("source", scored.source_pieces), ("target", scored.target_pieces)):
        assert [piece["text"] for piece in answer[name]] == [*pieces, "</s>"]
    assert [token["piece"] for token in answer["tokens"]] == [piece["text"] for piece in answer["target"]]
    assert answer["target_text"] == TARGET


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("heads", [[], HEADS], ids=["all", "some"])
def test_the_attention_is_that_of_attention_maps(explorer, translator, rows, heads):
    answer = explorer.inspect({"text": TEXT, "target": TARGET, "heads_off": off(heads)})
    with without_heads(translator.models[0], heads) as model:
        maps = attention_maps(model, rows[:1], rows[1:])
        check_tokens(answer, model, *rows)
    assert answer["heads_off"] == off(heads)
    for kind in KINDS:
        (expected,) = getattr(maps, kind)
        for one, layer, head in heads:
            if one == kind:
                expected[layer, head] = 0
        np.testing.assert_allclose(weights_of(answer["attention"][kind]), expected, atol=0.51 * STEP + 1e-5)


def test_heads_that_are_off_change_the_answer(explorer):
    whole = explorer.inspect({"text": TEXT, "target": TARGET})
    for head in all_heads(explorer._model.config)[::3]:
        answer = explorer.inspect({"text": TEXT, "target": TARGET, "heads_off": off([head])})
        assert abs(answer["log_prob"] - whole["log_prob"]) > 1e-3, head
    again = explorer.inspect({"text": TEXT, "target": TARGET})
    assert again | {"milliseconds": 0} == whole | {"milliseconds": 0}


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("heads", [[], HEADS[:2]], ids=["all", "some"])
def test_the_alignment_is_that_of_a_translation_with_details(explorer, translator, heads):
    with without_heads(translator.models[0], heads):
        (result,) = translator.n_best([TEXT], n_best=3, details=True)
    for one in result.translations:
        answer = explorer.inspect({"text": TEXT, "target": one.ids, "heads_off": off(heads)})
        assert [tuple(link) for link in answer["alignment"]] == one.alignment
        found = [token["log_prob"] for token in answer["tokens"]][: len(one.ids)]
        np.testing.assert_allclose(found, one.token_log_probs, atol=1e-4)
        assert answer["target_text"] == one.text


def test_a_target_is_a_text_or_ids_with_or_without_the_end(explorer, translator):
    tokenizer, text = translator.tokenizers.target, TARGET[:-1]  # not as long as the limit of the sentence
    ids = tokenizer.encode([text])[0]
    answers = [
        explorer.inspect({"text": TEXT, "target": target})
        for target in (text, [*ids, tokenizer.special.eos], ids)
    ]
    assert all(one | {"milliseconds": 0} == answers[0] | {"milliseconds": 0} for one in answers)
    empty = explorer.inspect({"text": TEXT, "target": []})
    assert [token["piece"] for token in empty["tokens"]] == ["</s>"]
    assert empty["alignment"] == []


@pytest.mark.slow
def test_threads_wait_for_each_other_and_leave_the_translator_alone(explorer, translator):
    bodies = [{"text": text, "heads_off": off(heads)} for text in TEXTS for heads in (HEADS, HEADS[1:2], [])]

    def ask(body):
        inspected = explorer.inspect({**body, "target": TARGET})
        return explorer.search(body)["hypotheses"], inspected["tokens"], inspected["attention"]

    one_by_one, translations = [ask(body) for body in bodies], translator.translate(TEXTS)
    before = translator.models[0].get_weights()
    with concurrent.futures.ThreadPoolExecutor(7) as pool:
        together = [pool.submit(ask, body) for body in bodies]
        assert [translator.translate(TEXTS) for _ in range(5)] == [translations] * 5
        assert [future.result() for future in together] == one_by_one
    for weights, kept in zip(translator.models[0].get_weights(), before, strict=True):
        np.testing.assert_array_equal(weights, kept)


@pytest.mark.slow
def test_a_forced_pass_is_compiled_once_for_all_lengths_and_heads(translator):
    explorer = Explorer(translator)
    for text, target, heads in zip(TEXTS, TEXTS[::-1], (HEADS, [], HEADS[:1], HEADS[2:]), strict=True):
        explorer.inspect({"text": text, "target": target, "heads_off": off(heads)})
    assert explorer._inspect._compiled.experimental_get_tracing_count() == 1


@pytest.mark.slow
def test_a_long_source_is_cut_and_a_long_target_refused(translator):
    short = Explorer(tiny_translator(max_source_length=7, max_length=11))
    answer = short.search({"text": TEXT})
    assert answer["cut"]
    assert len(answer["source"]) == 7
    assert short.inspect({"text": TEXT, "target": [270] * 10})["source"] == answer["source"]
    with pytest.raises(InvalidRequestError, match="12 ids, more than the limit of 11"):
        short.inspect({"text": TEXT, "target": [270] * 12})
    with pytest.raises(InvalidRequestError, match="12 tokens with the end of sentence.* limit of 11"):
        short.inspect({"text": TEXT, "target": "%" * 10})


@pytest.mark.slow
def test_a_hypothesis_that_the_limit_cut_off_is_shown_without_an_end():
    endless = tiny_translator(max_length=5, max_length_ratio=3, eos_bias=-50.0)
    explorer = Explorer(endless)
    best = explorer.search({"text": TEXT})["hypotheses"][0]
    assert (len(best["ids"]), best["finished"]) == (5, False)
    answer = explorer.inspect({"text": TEXT, "target": best["ids"]})
    assert [piece["id"] for piece in answer["target"]] == best["ids"]
    assert answer["log_prob"] == pytest.approx(best["log_prob"], abs=1e-4)
    # What a page asks for first, of all hypotheses.
    assert "answers" in explore(explorer, TEXT).state


@pytest.mark.slow
def test_a_hypothesis_that_its_own_limit_cut_off_is_shown_without_an_end():
    """The limit depends on the length of the source; it is below the largest one here."""
    endless = tiny_translator(max_length=50, max_length_ratio=0.5, eos_bias=-50.0)
    explorer = Explorer(endless)
    best = explorer.search({"text": TEXT})["hypotheses"][0]
    assert not best["finished"]
    assert len(best["ids"]) < 50
    answer = explorer.inspect({"text": TEXT, "target": best["ids"]})
    assert [piece["id"] for piece in answer["target"]] == best["ids"]
    assert answer["log_prob"] == pytest.approx(best["log_prob"], abs=1e-4)
    shorter = explorer.inspect({"text": TEXT, "target": best["ids"][:-1]})
    assert len(shorter["target"]) == len(best["ids"])  # with an end


@pytest.mark.slow
def test_an_alpha_above_that_of_the_page_is_reduced():
    explorer = Explorer(tiny_translator(alpha=7.0))
    assert explorer.model()["alpha"] == 5.0
    assert explorer.search({"text": TEXT})["alpha"] == 5.0


@pytest.mark.slow
def test_the_description_of_a_model(explorer, tmp_path, translator):
    model = explorer.model()
    sizes = {"encoder_layers": 3, "decoder_layers": 2, "heads": 2, "d_model": 14, "vocab_size": 293}
    settings = {"beam_size": 3, "alpha": 0.6, "length_penalty": "gnmt", "max_beam": 16, "max_bytes": 2000}
    lengths = {"max_tokens": 128, "max_length": 256}
    languages = {"source": "source", "target": "target"}
    assert model == {"name": "tiny", **languages, **sizes, **settings, **lengths}
    data = replace(Config().data, source="en", target="de", vocab_size=293)
    config = replace(Config(), model=translator.models[0].config, data=data)
    run = translator.save(tmp_path / "tiny", config=config)
    loaded = Explorer.load(run, max_beam=2)
    assert loaded.model() == {**model, "source": "en", "target": "de", "max_beam": 2, "beam_size": 2}
    assert Explorer(translator, languages=("a", "b")).model()["target"] == "b"


def test_only_translators_of_one_model_are_shown(translator):
    with pytest.raises(ValueError, match="an ensemble of 2 models"):
        Explorer(Translator(translator.models * 2, translator.tokenizers))
