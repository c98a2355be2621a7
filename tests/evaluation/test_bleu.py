"""Scores, against counts by hand and an independent count."""

import collections
import json
import math
import pathlib

import pytest
import sacrebleu
import sacremoses

from keras_transformer.cli import evaluate as evaluate_wmt
from keras_transformer.evaluation import bleu as evaluation
from keras_transformer.evaluation.bleu import corpus_scores, multi_bleu

REFERENCE = pathlib.Path(__file__).resolve().parents[2] / "../shared/data/bleu_reference"


def counted_bleu(hypotheses, references):
    """BLEU from the definition (Papineni et al., 2002), with n-grams in Counters."""
    matches, totals, lengths = [0] * 4, [0] * 4, [0, 0]
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        sides = hypothesis.split(), reference.split()
        lengths = [length + len(side) for length, side in zip(lengths, sides, strict=True)]
        for n in range(4):
            ours, theirs = (
                collections.Counter(zip(*[side[i:] for i in range(n + 1)], strict=False)) for side in sides
            )
            matches[n] += (ours & theirs).total()
            totals[n] += ours.total()
    precisions = [match / total for match, total in zip(matches, totals, strict=True)]
    brevity_penalty = min(1.0, math.exp(1 - lengths[1] / lengths[0]))
    mean = sum(map(math.log, precisions)) / 4
    return 100 * brevity_penalty * math.exp(mean), [100 * one for one in precisions]


def reference_lines(name):
    path = REFERENCE / name
    if not path.exists():
        pytest.skip(f"needs bleu_reference/{name}, which is not here")
    return path.read_bytes().decode("utf-8").split("\n")[:-1]


def test_multi_bleu_by_hand():
    # 1-grams 6 of 7 (the second "the" matches, the third does not: clipped),
    # 2-grams 4 of 6, 3-grams 3 of 5, 4-grams 2 of 4; 7 tokens against 9.
    found = multi_bleu(["the cat sat on the the mat"], ["the cat sat on the old red mat today"])
    by_hand = 6 / 7, 4 / 6, 3 / 5, 2 / 4
    assert found.precisions == pytest.approx([100 * one for one in by_hand])
    assert found.brevity_penalty == pytest.approx(math.exp(1 - 9 / 7))
    assert (found.hypothesis_length, found.reference_length) == (7, 9)
    expected = 100 * math.exp(1 - 9 / 7) * math.prod(by_hand) ** 0.25
    assert found.score == pytest.approx(expected)


def test_multi_bleu_counts_over_the_corpus_and_not_by_line():
    # Line 1 has no 4-gram at all, line 2 no match of 4; together the score is above 0.
    hypotheses = ["a b c", "d e f g h", "i j k l"]
    references = ["a b c", "d e f x h y", "i j k l"]
    found = multi_bleu(hypotheses, references)
    score, precisions = counted_bleu(hypotheses, references)
    by_hand = 11 / 12, 7 / 9, 4 / 6, 1 / 3
    assert found.precisions == pytest.approx([100 * one for one in by_hand])
    assert found.precisions == pytest.approx(precisions)
    assert found.score == pytest.approx(score)
    assert found.brevity_penalty == pytest.approx(math.exp(1 - 13 / 12))


def test_long_hypotheses_have_no_brevity_penalty():
    assert multi_bleu(["a b c d e f"], ["a b c d e"]).brevity_penalty == 1


def test_multi_bleu_is_not_smoothed():
    found = multi_bleu(["a b c x"], ["a b c d"])
    assert found.score == 0
    assert found.precisions == pytest.approx([75, 200 / 3, 50, 0])


def test_multi_bleu_splits_at_ascii_spaces_alone():
    found = multi_bleu(["a\u00a0b \u3000 c"], ["a\u00a0b \u3000 c"])
    assert found.hypothesis_length == 3


def test_multi_bleu_case():
    assert multi_bleu(["Über den Wolken muss"], ["über den Wolken muss"]).score == 0
    assert multi_bleu(
        ["Über den Wolken muss"], ["über den Wolken muss"], lowercase=True
    ).score == pytest.approx(100)


@pytest.mark.slow
def test_multi_bleu_of_a_published_system():
    hypotheses = reference_lines("hyp.tok.en")
    references = reference_lines("ref.tok.en")
    found = multi_bleu(hypotheses, references)
    score, precisions = counted_bleu(hypotheses, references)
    assert found.score == pytest.approx(score)
    assert found.precisions == pytest.approx(precisions)
    assert found.score == pytest.approx(39.13, abs=0.005)  # as multi-bleu.perl counts
    assert found.hypothesis_length == 72_031


def evaluated(capsys, *arguments):
    """Runs the program; returns the figures of the first system, and what it printed."""
    assert evaluate_wmt.main([*map(str, arguments), "--no-ter", "--json"]) == 0
    captured = capsys.readouterr()
    return json.loads(captured.out)["systems"][0]["scores"], captured


@pytest.mark.slow
@pytest.mark.parametrize("target", [[], pytest.param(["--target", "en"], marks=pytest.mark.very_slow)])
def test_a_published_system_scores_what_its_log_says(capsys, caplog, target):
    # The log shows sacreBLEU (13a) of the tokenized, escaped text.
    reference_lines("hyp.tok.en")
    files = ["--hypothesis", REFERENCE / "hyp.tok.en", "--reference", REFERENCE / "ref.tok.en"]
    scores, _ = evaluated(capsys, *files, *target)
    assert scores["bleu"]["score"] == pytest.approx(39.69, abs=0.005)
    assert [round(one, 1) for one in scores["bleu"]["precisions"]] == [69.4, 46.3, 33.3, 24.6]
    assert "tok:13a" in scores["bleu"]["how"]
    # What multi-bleu.perl itself printed for these files, as they are, with -lc, and split.
    assert scores["tokenized_bleu"]["score"] == pytest.approx(39.13, abs=0.005)
    assert [round(one, 1) for one in scores["tokenized_bleu"]["precisions"]] == [69.7, 45.7, 32.2, 23.3]
    assert scores["tokenized_bleu"]["how"] == "multi-bleu of tokens as given, cased"
    assert scores["tokenized_bleu_lowercase"]["score"] == pytest.approx(40.19, abs=0.005)
    assert scores["paper_bleu"]["score"] == pytest.approx(39.57, abs=0.005)
    assert [round(one, 1) for one in scores["paper_bleu"]["precisions"]] == [69.7, 46.1, 32.8, 24.0]
    assert "hyp.tok.en: 2835 of 3003 lines look tokenized" in caplog.text
    assert "ref.tok.en: 1026 of 3003 lines look escaped ('&apos;', first on line 5)" in caplog.text


@pytest.mark.very_slow
def test_detokenized_translations_are_scored_against_tokenized_references(capsys, caplog):
    reference_lines("hyp.detok.en")
    files = ["--hypothesis", REFERENCE / "hyp.detok.en", "--reference", REFERENCE / "ref.tok.en"]
    scores, _ = evaluated(capsys, *files, "--detokenize", "reference")
    assert caplog.records == []
    moses = sacremoses.MosesDetokenizer("en")
    references = [moses.detokenize(line.split()) for line in reference_lines("ref.tok.en")]
    expected = sacrebleu.corpus_bleu(reference_lines("hyp.detok.en"), [references])
    assert scores["bleu"]["score"] == pytest.approx(expected.score)
    assert scores["bleu"]["score"] == pytest.approx(38.64, abs=0.005)
    assert scores["tokenized_bleu"]["how"] == "multi-bleu of Moses tokens (en), cased"


def test_equal_text_scores_100():
    lines = ["Guten Morgen, wie geht es Ihnen?", "Zwei Männer kochen z.B. eine Suppe."]
    found = corpus_scores(lines, list(lines), target_language="de")
    for score in (
        found.bleu,
        found.chrf,
        found.tokenized_bleu.score,
        found.tokenized_bleu_lowercase.score,
        found.exact_match,
    ):
        assert score == pytest.approx(100)
        assert score <= 100


def test_scores_of_detokenized_text():
    hypotheses = ["The dog, it seems, runs.", "two cats sleep on a red chair."]
    references = ["The dog, it seems, ran.", "Two cats sleep on a red chair."]
    found = corpus_scores(hypotheses, references, target_language="en")
    tokens = ["The dog , it seems , runs .", "two cats sleep on a red chair ."]
    reference_tokens = ["The dog , it seems , ran .", "Two cats sleep on a red chair ."]
    assert found.tokenized_bleu.score == pytest.approx(counted_bleu(tokens, reference_tokens)[0])
    assert found.tokenized_bleu_lowercase.precisions[0] == pytest.approx(15 / 16 * 100)
    assert found.tokenized_bleu.precisions[0] == pytest.approx(14 / 16 * 100)
    assert found.exact_match == 0
    assert "case:mixed" in found.bleu_signature
    assert "tok:13a" in found.bleu_signature
    assert "nc:6" in found.chrf_signature
    assert "version:" in found.chrf_signature
    # Names as in `report.compare`, and as sacreBLEU has them.
    assert f"chrF2          {found.chrf:6.2f}  {found.chrf_signature}" in found.format().splitlines()
    assert str(sacrebleu.corpus_chrf(hypotheses, [references])).startswith("chrF2 = ")


def test_moses_tokens_follow_the_language_and_are_not_escaped():
    # German keeps "z.B." whole, and "&" stays one token whatever its spelling in XML.
    text = ["Sie essen z.B. Brot & Butter."]
    found = corpus_scores(text, text, target_language="de")
    assert found.tokenized_bleu.hypothesis_length == 7


def test_exact_match_is_the_share_of_equal_lines():
    found = corpus_scores(["a b", "c", "d"], ["a b ", "x", "d"], target_language="en")
    assert found.exact_match == pytest.approx(200 / 3)
    assert found.num_lines == 3


def test_one_of_several_references_is_enough():
    hypotheses, references = ["a b c d", "e f g h", "x"], [["a b c d", "u", "y"], ["v", "e f g h", "z"]]
    found = corpus_scores(hypotheses, references, target_language="en")
    assert found.bleu == pytest.approx(sacrebleu.corpus_bleu(hypotheses, references).score)
    assert "nrefs:2" in found.bleu_signature
    assert found.exact_match == pytest.approx(200 / 3)
    assert found.tokenized_bleu.precisions[0] == pytest.approx(800 / 9)


def test_empty_translations_count():
    full = corpus_scores(["a b c d"] * 2, ["a b c d"] * 2, target_language="en")
    half = corpus_scores(["a b c d", ""], ["a b c d"] * 2, target_language="en")
    assert half.bleu == pytest.approx(full.bleu * math.exp(1 - 8 / 4))
    assert corpus_scores(["", ""], ["a", "b"], target_language="en").bleu == 0


def test_table_shows_figures_and_signature():
    found = corpus_scores(["a b c d e"], ["a b c d e"], target_language="en")
    assert str(found) == found.format()
    assert found.bleu_signature in str(found)
    assert len(str(found).splitlines()) == 5
    assert "100.0/100.0/100.0/100.0 (BP 1.000, 5 : 5 tokens)" in str(found)


def test_scores_go_through_json():
    found = corpus_scores(["a b c d e"], ["a b c d f"], target_language="en")
    loaded = json.loads(json.dumps(found.to_dict()))
    assert loaded == found.to_dict()
    assert loaded["bleu"] == found.bleu
    assert loaded["tokenized_bleu"]["precisions"] == list(found.tokenized_bleu.precisions)


def corpus(hypotheses, references):
    return corpus_scores(hypotheses, references, target_language="en")


@pytest.mark.parametrize("score", [corpus, multi_bleu])
@pytest.mark.parametrize(
    ("hypotheses", "references", "error", "message"),
    [
        (["a", "b"], ["a"], ValueError, "`hypotheses.*Received: 2 and 1"),
        (["a"], ["a", "b", "c"], ValueError, "Received: 1 and 3"),
        ([], [], ValueError, "at least one. Received: 0 and 0"),
        ("a", ["a"], TypeError, "`hypotheses.*must be a list of str. Received: str"),
        (["a"], "a", TypeError, "`references.*must be a list of str. Received: str"),
        (None, ["a"], TypeError, "`hypotheses.*Received: NoneType"),
        (["a"], None, TypeError, "`references.*Received: NoneType"),
        (["a", None], ["a", "b"], TypeError, "`hypotheses.*Received: NoneType on line 2"),
        (["a"], [["a"], ["a", "b"]], ValueError, r"`references.*\[1\]`.*Received: 1 and 2"),
        (["a"], [["a"], "a"], TypeError, r"`references.*\[1\]` must be a list of str. Received: str"),
        (["a"], ["a", ["a"]], TypeError, "`references.*Received: list on line 2"),
    ],
)
def test_refuses(score, hypotheses, references, error, message):
    with pytest.raises(error, match=message):
        score(hypotheses, references)


@pytest.mark.parametrize("language", [None, "", 3])
def test_refuses_a_language_that_is_no_code(language):
    with pytest.raises(ValueError, match="`target_language`"):
        corpus_scores(["a"], ["a"], target_language=language)


def test_japanese_without_mecab_is_scored_in_characters(monkeypatch):
    real = evaluation.BLEU

    def without_mecab(**settings):
        if settings.get("trg_lang") == "ja":
            raise RuntimeError("Japanese tokenization requires extra dependencies")
        return real(**settings)

    monkeypatch.setattr(evaluation, "BLEU", without_mecab)
    scorer = evaluation.bleu_scorer("ja-JP")
    found = scorer.corpus_score(["日本語です。"], [["日本語です。"]])
    assert found.score == pytest.approx(100)
    assert "tok:char" in str(scorer.get_signature())


@pytest.mark.parametrize("language", ["zh", "zh-CN", "zh_TW", "zh-Hant", "ZH-cn"])
def test_region_and_script_do_not_change_the_scores(language):
    assert evaluation.bleu_scorer(language).tokenizer.signature() == "zh"
    assert evaluation.tokenize(["我喜欢吃苹果。"], language) == evaluation.tokenize(["我喜欢吃苹果。"], "zh")
    assert evaluation.tokenize(["it's"], "en-GB") == ["it 's"]
    assert evaluation.detokenize(["l' homme ?"], "fr_CA") == evaluation.detokenize(["l' homme ?"], "fr")


def test_no_language_stays_none():
    assert evaluation.without_region(None) is None
    assert evaluation.bleu_scorer().tokenizer.signature() == "13a"
