"""All scores in one table, against sacreBLEU called by itself and counts by hand."""

import json
import logging
import math
import random

import pytest
import sacrebleu
from sacrebleu.significance import PairedTest

from keras_transformer.evaluation.bleu import multi_bleu
from keras_transformer.evaluation.report import NamedLines, compare
from keras_transformer.evaluation.test_sets import StandardSet

WORDS = [
    "der",
    "die",
    "das",
    "Hund",
    "Katze",
    "läuft",
    "Nord-Süd",
    "rot-grün",
    "nicht",
    "sieht",
    "heute,",
    "so",
]


def sentences(number, seed):
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(5, 12))) + "." for _ in range(number)]


def damaged(lines, share, seed):
    """Replaces a share of the words."""
    draw = random.Random(seed)
    return [
        " ".join(draw.choice(WORDS) if draw.random() < share else w for w in line.split()) for line in lines
    ]


REFERENCE = sentences(60, seed=0)
GOOD, BAD = damaged(REFERENCE, 0.1, seed=1), damaged(REFERENCE, 0.4, seed=2)
SECOND = damaged(REFERENCE, 0.2, seed=3)


def scored(*systems, references=(REFERENCE,), **settings):
    found = compare(
        [NamedLines(f"out/{i}.de", lines) for i, lines in enumerate(systems)],
        [NamedLines(f"ref/{i}.de", lines) for i, lines in enumerate(references)],
        **{"target_language": "de", **settings},
    )
    return found


def figure(found, key, system=0):
    return found.to_dict()["systems"][system]["scores"][key]


@pytest.mark.parametrize("references", [[REFERENCE], [REFERENCE, SECOND]])
def test_figures_are_sacrebleus_with_its_signature(references):
    found = scored(GOOD, references=references)
    number = f"nrefs:{len(references)}"
    for key, function, settings, case in [
        ("bleu", sacrebleu.corpus_bleu, {}, "case:mixed"),
        ("bleu_lowercase", sacrebleu.corpus_bleu, {"lowercase": True}, "case:lc"),
        ("chrf", sacrebleu.corpus_chrf, {}, "case:mixed"),
        ("ter", sacrebleu.corpus_ter, {"case_sensitive": True}, "case:mixed"),
        ("ter_lowercase", sacrebleu.corpus_ter, {}, "case:lc"),
    ]:
        ours = figure(found, key)
        assert ours["score"] == pytest.approx(function(GOOD, references, **settings).score), key
        assert case in ours["how"]
        assert number in ours["how"]
        assert f"version:{sacrebleu.__version__}" in ours["how"]
    bleu = sacrebleu.corpus_bleu(GOOD, references)
    ours = figure(found, "bleu")
    assert ours["precisions"] == pytest.approx(bleu.precisions)
    assert ours["brevity_penalty"] == pytest.approx(bleu.bp)
    assert (ours["hypothesis_length"], ours["reference_length"]) == (bleu.sys_len, bleu.ref_len)


def test_the_papers_bleu_normalises_tokenizes_and_splits_compounds_on_both_sides():
    hypotheses = ["Der Nord-Süd-Dialog läuft “gut”…", "a-b-c ist kurz."]
    references = ["Der Nord-Süd-Dialog lief “gut”…", "a-b-c ist kurz."]
    found = scored(hypotheses, references=[references])
    at = "##AT##-##AT##"
    by_hand = [
        f'Der Nord {at} Süd {at} Dialog läuft " gut " ...',
        f"a {at} b-c ist kurz .",
    ]
    against = [by_hand[0].replace("läuft", "lief"), by_hand[1]]
    expected = multi_bleu(by_hand, against)
    ours = figure(found, "paper_bleu")
    assert ours["score"] == pytest.approx(expected.score)
    assert ours["precisions"] == pytest.approx([1600 / 17, 1300 / 15, 1000 / 13, 700 / 11])
    assert ours["hypothesis_length"] == 11 + 6
    assert (
        "Unicode punctuation replaced, Moses tokens (de), hyphens split (##AT##-##AT##), cased" in ours["how"]
    )
    # Without splitting, "Nord-Süd-Dialog" is one token of eleven.
    assert figure(found, "tokenized_bleu")["hypothesis_length"] == 11


def test_tokens_are_those_given_where_both_sides_look_tokenized(caplog):
    tokens = ["Der Hund , so scheint es , läuft .", "Zwei Katzen schlafen ."]
    found = scored(tokens, references=[tokens], target_language=None)
    ours = figure(found, "tokenized_bleu")
    assert ours["how"] == "multi-bleu of tokens as given, cased"
    assert ours["hypothesis_length"] == 9 + 4
    assert found.left_out == ""
    assert [record.getMessage().split(" look")[0] for record in caplog.records] == [
        "out/0.de: 2 of 2 lines",
        "ref/0.de: 2 of 2 lines",
    ]


def test_tokens_are_what_the_caller_says():
    text = ["Er läuft, schnell."]
    assert figure(scored(text, references=[text]), "tokenized_bleu")["hypothesis_length"] == 5
    assert figure(scored(text, references=[text], tokenized=True), "tokenized_bleu")["hypothesis_length"] == 3
    tokens = ["Er läuft , schnell ."]
    found = scored(tokens, references=[tokens], tokenized=False)
    assert figure(found, "tokenized_bleu")["how"] == "multi-bleu of Moses tokens (de), cased"


def test_without_a_language_what_needs_one_is_left_out_and_said():
    found = scored(GOOD, target_language=None, ter=False)
    assert set(found.to_dict()["systems"][0]["scores"]) == {
        "bleu", "bleu_lowercase", "chrf", "chrf_lowercase", "exact_match",
    }  # fmt: skip
    assert "--target" in found.left_out
    assert found.left_out in str(found)
    assert "tok:13a" in figure(found, "bleu")["how"]


@pytest.mark.parametrize("language", ["zh", "zh-CN", "zh_TW", "zh-Hant"])
def test_chinese_and_japanese_are_split_into_characters_for_ter(language):
    text = ["我喜欢吃苹果。", "他很好。"]
    found = scored(["我喜欢苹果。", "他很好。"], references=[text], target_language=language)
    expected = sacrebleu.corpus_ter(["我喜欢苹果。", "他很好。"], [text], normalized=True, asian_support=True)
    assert figure(found, "ter_lowercase")["score"] == pytest.approx(expected.score)
    assert "tok:zh" in figure(found, "bleu")["how"]
    assert "Moses tokens (zh)" in figure(found, "tokenized_bleu")["how"]


def test_intervals_are_sacrebleus():
    found = scored(GOOD, confidence=True, bootstrap_samples=200, ter=False)
    for key, scorer in [("bleu", sacrebleu.BLEU()), ("chrf", sacrebleu.CHRF())]:
        expected = scorer.corpus_score(GOOD, [REFERENCE], n_bootstrap=200)
        shown = json.loads(expected.format(width=9, signature="a:b", is_json=True))
        ours = figure(found, key)
        assert ours["mean"] == pytest.approx(shown["confidence_mean"], abs=1e-4)
        assert ours["half_width"] == pytest.approx(shown["confidence_var"], abs=1e-4)
        assert ours["half_width"] > 0
    assert found.sampling == {"seed": "12345", "interval": 200}
    assert f"{figure(found, 'bleu')['score']:.2f} ± {figure(found, 'bleu')['half_width']:.2f}" in str(found)
    assert "95 % of 200 bootstrap samples of the lines, seed 12345" in str(found)


@pytest.mark.parametrize(("significance", "test"), [("bootstrap", "bs"), ("randomization", "ar")])
def test_systems_are_tested_against_the_first(significance, test):
    found = scored(GOOD, BAD, significance=significance, bootstrap_samples=200, ter=False)
    paired = PairedTest(
        [("a", GOOD), ("b", BAD)], {"BLEU": sacrebleu.BLEU()}, [REFERENCE], test_type=test, n_samples=200
    )
    _, expected = paired()
    p_value = expected["BLEU"][1].p_value
    assert figure(found, "bleu", 1)["p_value"] == p_value == pytest.approx(1 / 201)
    assert "p_value" not in figure(found, "bleu", 0)
    assert "mean" not in figure(found, "bleu", 0)
    assert found.sampling == {"seed": "12345", "test": significance, "samples": 200}
    assert f"paired {significance}, 200 samples, seed 12345" in str(found)
    assert str(found).count("p = 0.0050") == 7  # all measures but exact match


@pytest.mark.slow
def test_randomization_can_have_intervals_beside_it():
    found = scored(GOOD, BAD, significance="randomization", bootstrap_samples=100, confidence=True, ter=False)
    assert all(figure(found, "bleu", i)["half_width"] > 0 for i in (0, 1))
    assert found.sampling == {"seed": "12345", "interval": 1000, "test": "randomization", "samples": 100}


def test_the_seed_can_be_set(monkeypatch):
    before = scored(GOOD, confidence=True, bootstrap_samples=100, ter=False)
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    after = scored(GOOD, confidence=True, bootstrap_samples=100, ter=False)
    assert "seed 7" in str(after)
    assert figure(after, "bleu")["half_width"] != figure(before, "bleu")["half_width"]
    assert figure(after, "bleu")["score"] == figure(before, "bleu")["score"]


@pytest.mark.parametrize("significance", ["bootstrap", "randomization"])
def test_equal_systems_do_not_differ(significance, caplog):
    found = scored(GOOD, list(GOOD), significance=significance, bootstrap_samples=100, ter=False)
    assert figure(found, "bleu", 1)["p_value"] == 1.0
    assert "out/1.de: differs from out/0.de on only 0 lines" in caplog.text


def test_several_systems_stand_in_one_table():
    found = scored(GOOD, BAD, bootstrap_samples=50, ter=False)
    rows = str(found).split("\n\n")[1].splitlines()
    assert len(rows) == 2 * 8
    assert rows[0].startswith(f"BLEU                  0.de  {figure(found, 'bleu')['score']:6.2f}")
    assert rows[1].startswith(f"                      1.de  {figure(found, 'bleu', 1)['score']:6.2f}  p = ")
    assert "nrefs:1|case:mixed|eff:no|tok:13a" in rows[0]
    precisions = "/".join(f"{one:.1f}" for one in figure(found, "bleu", 1)["precisions"])
    assert precisions in rows[1]


def test_every_figure_stands_with_how_it_was_computed():
    found = scored(GOOD)
    rows = str(found).split("\n\n")[1].splitlines()
    figures = found.to_dict()["systems"][0]["scores"]
    assert len(rows) == len(figures)
    for row, one in zip(rows, figures.values(), strict=True):
        assert f"{one['score']:.2f}" in row
        assert row.endswith(one["how"])
    assert json.loads(json.dumps(found.to_dict())) == found.to_dict()
    assert str(found).startswith("60 lines against ref/0.de")


def test_a_standard_set_stands_in_the_signature():
    standard = StandardSet("wmt14/full", "en-de", REFERENCE, [REFERENCE])
    found = scored(GOOD, standard_set=standard)
    for key in ("bleu", "chrf", "ter"):
        assert "|test:wmt14/full|lang:en-de|" in "|" + figure(found, key)["how"]


def test_empty_hypotheses_are_scored_counted_and_warned_about(caplog):
    text = ["Der Hund läuft heute nicht.", "Zwei Katzen schlafen."]
    found = scored([text[0], " "], references=[text])
    assert found.num_empty == [1]
    assert found.to_dict()["systems"][0]["num_empty"] == 1
    assert "out/0.de: 1 of 2 lines are empty and scored as they are" in caplog.text
    # 6 tokens of 10, all of them right.
    assert figure(found, "bleu")["score"] == pytest.approx(100 * math.exp(1 - 10 / 6))
    assert figure(scored(["", ""], references=[text]), "bleu")["score"] == 0


def test_raw_text_is_not_warned_about(caplog):
    with caplog.at_level(logging.WARNING):
        scored(GOOD, ter=False)
    assert caplog.records == []


@pytest.mark.parametrize(
    ("systems", "references", "settings", "message"),
    [
        ([["a", "b"]], [["a"]], {}, "out/0.de: 2 lines, but ref/0.de has 1. Give translations"),
        ([["a"], ["a", "b"]], [["a"]], {}, "out/1.de: 2 lines, but ref/0.de has 1"),
        ([["a"]], [["a"], ["a", "b"]], {}, "ref/1.de: 2 lines, but ref/0.de has 1"),
        ([[]], [[]], {}, "ref/0.de: no lines"),
        (
            [],
            [["a"]],
            {},
            "must have at least one text. Received: systems=0, references=1",
        ),
        ([["a"]], [], {}, "Received: systems=1, references=0"),
        (
            [["a"]],
            [["a"]],
            {"significance": "t"},
            "`significance` must be one .*: significance='t'",
        ),
        (
            [["a"]],
            [["a"]],
            {"bootstrap_samples": 3},
            "`bootstrap_samples` must be at least 40.*Received: bootstrap_samples=3",
        ),
    ],
)
def test_refuses(systems, references, settings, message):
    with pytest.raises(ValueError, match=message):
        scored(*systems, references=references, **settings)
