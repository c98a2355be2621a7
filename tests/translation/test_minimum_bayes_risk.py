"""Minimum Bayes risk decoding against sacreBLEU over the samples; what must not matter; what is refused."""

import json
from collections import Counter

import numpy as np
import pytest
import sacrebleu
from test_translator import TEXTS, bias_of_eos, make_model

from keras_transformer.config.settings import SearchConfig, replace
from keras_transformer.evaluation.pairwise import chrf_matrix
from keras_transformer.tokenizers.sentencepiece import SubwordTokenizer
from keras_transformer.translation.lines import json_line, moses_lines, text_lines
from keras_transformer.translation.long_texts import encode_texts
from keras_transformer.translation.minimum_bayes_risk import by_utility
from keras_transformer.translation.texts import Part, Translation
from keras_transformer.translation.translator import Translator

SCORES = {"chrf": sacrebleu.sentence_chrf, "bleu": sacrebleu.sentence_bleu}
MBR = {"mbr": True, "samples": 7, "temperature": 0.7}


@pytest.fixture(scope="module")
def tokenizer():
    return SubwordTokenizer.train(TEXTS * 3, vocab_size=310)


@pytest.fixture(scope="module")
def translator(tokenizer):
    model = make_model(tokenizer, seed=2)
    bias_of_eos(model, 8.0)
    return Translator(model, tokenizer, SearchConfig(max_length_offset=3))


def sample(text, score=-1.0):
    return Translation(text, score, score, [], [], True)


@pytest.mark.parametrize("utility", ["chrf", "bleu"])
def test_the_utility_is_the_mean_over_all_samples(utility):
    texts = [
        "a dog runs in the park",
        "the dog runs",
        "a dog runs in the park",
        "",
        "a cat",
        "the dog runs .",
    ]
    expected = {
        text: np.mean([SCORES[utility](text, [other]).score for other in texts]) for text in set(texts)
    }
    found = by_utility([sample(text) for text in texts], utility)
    assert [one.text for one in found] == sorted(expected, key=expected.get, reverse=True)
    np.testing.assert_allclose([one.utility for one in found], sorted(expected.values())[::-1], rtol=1e-12)
    assert found[0].text == "a dog runs in the park"  # drawn twice


def test_equal_utilities_keep_the_order_of_drawing_and_equal_texts_the_first_sample():
    found = by_utility([sample("x", -3.0), sample("y"), sample("z"), sample("y"), sample("x")])
    assert [(one.text, one.score) for one in found] == [("x", -3.0), ("y", -1.0), ("z", -1.0)]
    assert found[0].utility == found[1].utility > found[2].utility


def test_another_utility_is_refused():
    with pytest.raises(ValueError, match="`utility` must be chrf or bleu. Received: 'ter'"):
        by_utility([sample("x")], "ter")


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("utility", ["chrf", "bleu"])
def test_the_translation_is_the_sample_of_greatest_mean_utility(translator, utility):
    settings = {"seed": 5, "temperature": 0.7}
    drawn = translator.n_best(TEXTS, sampling=True, n_best=7, **settings)
    found = translator.n_best(TEXTS, utility=utility, n_best=3, **{**MBR, **settings})
    differs = 0
    for samples, result in zip(drawn, found, strict=True):
        texts = [one.text for one in samples.translations]
        assert len(texts) == 7
        means = {one: np.mean([SCORES[utility](one, [x]).score for x in texts]) for one in texts}
        best = sorted(means.values(), reverse=True)[:3]
        np.testing.assert_allclose([one.utility for one in result.translations], best, rtol=1e-9)
        for one in result.translations:
            assert means[one.text] == pytest.approx(one.utility)
            assert one.score == samples.translations[texts.index(one.text)].score
        differs += result.best.text != max(samples.translations, key=lambda one: one.log_prob).text
    assert differs


@pytest.mark.slow
def test_neighbours_order_batches_and_threads_change_nothing(translator, tokenizer):
    together = translator.n_best(TEXTS, first_number=11, **MBR)
    for number, text in enumerate(TEXTS):
        (alone,) = translator.n_best([text], first_number=11 + number, **MBR)
        assert alone.best._replace(score=0, log_prob=0) == together[number].best._replace(score=0, log_prob=0)
    small = translator.n_best(TEXTS, first_number=11, batch_tokens=20, **MBR)
    assert [one.best.text for one in small] == [one.best.text for one in together]
    threaded = Translator(translator.models, tokenizer, translator.search, threads=2)
    assert [one.best.text for one in threaded.n_best(TEXTS, first_number=11, **MBR)] == [
        one.best.text for one in together
    ]


def test_the_seed_and_the_number_of_the_text_matter(translator):
    texts = [TEXTS[0]] * 5
    found = translator.translate(texts, **MBR)
    assert len(set(found)) > 1
    assert translator.translate(texts, seed=2, **MBR) != found


@pytest.mark.slow
def test_many_equal_samples_win(translator):
    # A low temperature draws nearly always the most probable tokens: greedy search.
    found = translator.translate(TEXTS, mbr=True, samples=5, temperature=1e-3)
    assert found == translator.translate(TEXTS, beam_size=1)


@pytest.mark.slow
def test_blank_and_split_texts_and_details(translator):
    long = f"{TEXTS[3]} {TEXTS[0]}"
    encode, limit = translator.tokenizers.source.encode, 7
    (encoded,) = encode_texts([long], encode, limit=limit - 1, long_lines="split")
    results = translator.n_best(["", long], details=True, max_source_length=limit, **MBR)
    assert results[0].best.utility == 100.0
    assert results[0].best.text == ""
    assert results[1].flags[0] == "split"
    # Each part has samples of its own.
    parts = [Part(row, [], 1, index) for index, row in enumerate(encoded.rows)]
    config = replace(translator.search, **MBR)
    utilities = [n_best[0].utility for n_best in translator._translate_parts(parts, config, False)]
    assert len(set(utilities)) == 2
    assert results[1].best.utility == pytest.approx(np.mean(utilities))
    assert len(results[1].best.token_log_probs) == len(results[1].best.ids)


@pytest.mark.slow
def test_output_lines_have_the_utility(translator):
    (result,) = translator.n_best(TEXTS[:1], n_best=2, **MBR)
    best, second = result.translations
    assert text_lines(0, result, scores=True) == f"{best.utility:.6f}\t{best.text}\n"
    assert moses_lines(0, result).endswith(f"F0= {best.log_prob:.6f} ||| {best.utility:.6f}\n")
    record = json.loads(json_line(0, result, n_best=2))
    assert record["utility"] == round(best.utility, 6)
    assert record["score"] == round(best.score, 6)
    assert record["n_best"][1]["utility"] == round(second.utility, 6)
    (plain,) = translator.n_best(TEXTS[:1])
    assert "utility" not in json.loads(json_line(0, plain))


def test_only_what_is_returned_gets_details(translator, monkeypatch):
    scored = []
    forced = translator._decoders[0]
    monkeypatch.setattr(
        translator,
        "_decoders",
        [lambda sources, *rest, **how: (scored.append(len(sources)), forced(sources, *rest, **how))[1]],
    )
    translator.n_best(TEXTS, details=True, n_best=2, **MBR)
    assert scored[0] <= 2 * len(TEXTS)


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({"mbr": True, "samples": 3, "n_best": 4}, "`n_best` must be at most `samples` of `mbr`"),
        ({"mbr": True, "samples": 0}, "`search.samples` must be from 1 to 10000"),
        ({"mbr": True, "utility": "comet"}, "`search.utility` must be one of chrf, bleu"),
        ({"mbr": True, "tree_grammar": True}, "cannot parse: leave out `tree_grammar`"),
    ],
)
def test_settings_that_do_not_fit_are_refused(translator, search, message):
    with pytest.raises(ValueError, match=message):
        translator.n_best(["x"], **search)


def test_expected_utility_of_a_known_distribution():
    """With many samples, the choice is that of the exact distribution."""
    rng = np.random.default_rng(0)
    texts = ["the dog runs", "the dogs run", "a dog ran", "cats sleep"]
    probabilities = np.array([0.28, 0.27, 0.1, 0.35])  # the most probable agrees with no other
    exact = chrf_matrix(texts) @ probabilities
    assert exact.argmax() == 0
    drawn = rng.choice(len(texts), 2000, p=probabilities)
    found = by_utility([sample(texts[i]) for i in drawn])
    assert [one.text for one in found] == [texts[i] for i in np.argsort(-exact)]
    share = Counter(drawn.tolist())[3] / 2000
    assert share == max(Counter(drawn.tolist()).values()) / 2000
    np.testing.assert_allclose(found[0].utility, exact[0], atol=2)
