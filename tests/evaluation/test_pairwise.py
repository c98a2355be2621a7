"""Sentence scores of all pairs against sacreBLEU, one pair at a time, and n-grams against `Counter`."""

import random
from collections import Counter

import numpy as np
import pytest
import sacrebleu

from keras_transformer.evaluation import pairwise
from keras_transformer.evaluation.pairwise import bleu_matrix, chrf_matrix, ngram_matches

WORDS = ["the", "dog", "a", "rides", ",", ".", "Straße", "aaa", "x", "l'été", "&amp;", "2.5"]
ODD = ["", "  ", "a", "aaaa aaaa", "aa\u00a0aa", "我 喜欢 猫", "我喜欢狗和猫", "e\u0301é", "a b c", "b a c d"]


def texts(number=17):
    draw = random.Random(number)
    return ODD + [" ".join(draw.choices(WORDS, k=draw.randint(1, 13))) for _ in range(number)]


def one_by_one(score, texts):
    return np.array([[score(hypothesis, [reference]).score for reference in texts] for hypothesis in texts])


def test_chrf_is_sacrebleus():
    expected = one_by_one(sacrebleu.sentence_chrf, texts())
    assert len(np.unique(expected)) > 99
    found = chrf_matrix(texts())
    assert found.dtype == "float64"
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_bleu_is_sacrebleus():
    expected = one_by_one(sacrebleu.sentence_bleu, texts())
    assert len(np.unique(expected)) > 99
    np.testing.assert_allclose(bleu_matrix(texts()), expected, rtol=1e-12)


def test_bleu_has_the_tokenizer_of_the_language():
    scorer = sacrebleu.BLEU(tokenize="zh", effective_order=True)
    expected = one_by_one(scorer.sentence_score, ODD)
    np.testing.assert_allclose(bleu_matrix(ODD, "zh"), expected, rtol=1e-12)
    assert (bleu_matrix(ODD, "zh-CN") == bleu_matrix(ODD, "zh")).all()
    assert bleu_matrix(ODD, "zh")[5, 6] > bleu_matrix(ODD)[5, 6]


@pytest.mark.parametrize("block", [1, 100, 2**22])
def test_matches_are_those_of_counters(block, monkeypatch):
    monkeypatch.setattr(pairwise, "_BLOCK", block)
    draw = random.Random(3)
    rows = [[draw.randrange(4) for _ in range(length)] for length in (11, 0, 1, 2, 23, 7, 7)] + [[2] * 13]
    for n, (counts, matches) in enumerate(ngram_matches(rows, 5), start=1):
        ngrams = [Counter(tuple(row[i : i + n]) for i in range(len(row) - n + 1)) for row in rows]
        assert counts.tolist() == [each.total() for each in ngrams]
        assert matches.tolist() == [[(one & other).total() for other in ngrams] for one in ngrams]


@pytest.mark.parametrize("matrix", [chrf_matrix, bleu_matrix])
def test_one_text_and_none(matrix):
    np.testing.assert_allclose(matrix(["A dog runs in the park."]), [[100.0]])
    assert matrix([]).shape == (0, 0)
    assert matrix([""]).tolist() == [[0.0]]
