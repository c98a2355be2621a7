"""Lexical constraints as text: every translation contains its phrases; what cannot be is refused."""

import re
import types

import pytest
from test_translator import TEXTS, bias_of_eos, make_model

from keras_transformer.config.settings import SearchConfig
from keras_transformer.tokenizers.sentencepiece import SubwordTokenizer
from keras_transformer.tokenizers.wordpiece import WordPieceTokenizer
from keras_transformer.translation import translator as translator_module
from keras_transformer.translation.long_texts import EncodedText
from keras_transformer.translation.phrase_texts import PhrasesError, check_phrases, encode_phrases
from keras_transformer.translation.translator import Translator

pytestmark = pytest.mark.slow

CONSTRAINTS = [
    ["Hund", "der Text"],
    [],
    ["reads the", "the dog", "reads the"],
    ["und", "Übergröße", "😀 !"],
    [],
    ["a"],
]
SEARCHES = [
    {"beam_size": 1},
    {"beam_size": 3, "n_best": 3},
    {"sampling": True, "n_best": 2, "temperature": 2.0},
]


@pytest.fixture(scope="module", params=["bpe", "word pieces"])
def translator(request):
    if request.param == "bpe":
        tokenizer = SubwordTokenizer.train(TEXTS * 3, vocab_size=310)
    else:
        tokenizer = WordPieceTokenizer.train(TEXTS * 3, vocab_size=50)
    model = make_model(tokenizer, seed=2)
    bias_of_eos(model, 9.0)
    return Translator(model, tokenizer, SearchConfig(max_length_offset=4))


def check_contains(tokenizer, translation, phrases):
    """Both the ids and the text of a translation have the phrases."""
    ids = " ".join(map(str, translation.ids))
    for phrase in phrases:
        (row,) = tokenizer.encode([phrase])
        assert re.search(rf"\b{' '.join(map(str, row))}\b", ids)
        assert tokenizer.decode([row])[0] in translation.text


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_every_translation_contains_its_phrases(translator, search):
    tokenizer = translator.tokenizers.target
    prefixes = ["", "Der", "", "", "", "The dog"]
    for begins in (None, prefixes):
        begin_of = begins or [""] * len(TEXTS)
        found = translator.n_best(TEXTS, begins, CONSTRAINTS, **search)
        free = translator.n_best(TEXTS, begins, **search)
        for one, other, phrases, begin in zip(found, free, CONSTRAINTS, begin_of, strict=True):
            assert len(one.translations) >= 1
            for translation in one.translations:
                check_contains(tokenizer, translation, phrases)
                assert translation.text.startswith(begin)
            if not phrases:  # neighbours with phrases change nothing
                assert [x.ids for x in one.translations] == [x.ids for x in other.translations]
        assert sum(a.best.text != b.best.text for a, b in zip(found, free, strict=True)) >= 3
    assert translator.translate(TEXTS, None, CONSTRAINTS, **search) == [
        one.best.text for one in translator.n_best(TEXTS, constraints=CONSTRAINTS, **search)
    ]


def test_neighbours_and_batches_do_not_matter(translator):
    together = translator.n_best(TEXTS, constraints=CONSTRAINTS, details=True)
    apart = translator.n_best(TEXTS, constraints=CONSTRAINTS, details=True, batch_tokens=1)
    for one, other in zip(together, apart, strict=True):
        assert one.best.ids == other.best.ids
        assert one.best.score == pytest.approx(other.best.score, abs=1e-4)
        assert sum(one.best.token_log_probs) == pytest.approx(one.best.log_prob, abs=1e-3)


def test_samples_do_not_depend_on_the_phrases_of_others(translator):
    search = {"sampling": True, "n_best": 2, "seed": 5}
    alone = translator.n_best(TEXTS[3:4], constraints=CONSTRAINTS[3:4], first_number=3, **search)[0]
    found = translator.n_best(TEXTS, constraints=CONSTRAINTS, **search)[3]
    assert [one.ids for one in alone.translations] == [one.ids for one in found.translations]


def test_texts_without_phrases_use_the_search_without_constraints(translator, monkeypatch):
    found = translator.n_best(TEXTS)
    monkeypatch.setattr(translator_module, "Phrases", None)
    same = translator.n_best(TEXTS, constraints=[[]] * len(TEXTS))
    assert found == same


def test_phrases_are_encoded_once_each(translator):
    tokenizer = translator.tokenizers.target
    rows = tokenizer.encode(["der Hund", "Text"])
    assert encode_phrases([["der Hund", "Text", " der  Hund "], [], ["Text"]], tokenizer) == [
        [tuple(rows[0]), tuple(rows[1])],
        [],
        [tuple(rows[1])],
    ]


LONG = "The dog reads the text, and the dog. Hund und Text und Hund und Text."


@pytest.mark.parametrize(
    ("changes", "search", "message"),
    [
        ({1: ["Hund", " "]}, {}, r"`constraints\[1\]`: phrase 2 is blank. Remove it"),
        ({2: ["Hund"]}, {}, r"`constraints\[2\]`: the text is blank.*Remove the phrases"),
        ({3: ["Hund"]}, {"max_source_length": 12}, r"\[3\]`: the text has more than 11 tokens and would"),
        ({0: ["Hund"] * 9 + ["Text" * 9]}, {"max_length": 8}, r"\[0\]`: the phrases have \d+ tokens, .* 8,"),
        ({0: ["Hund"]}, {"max_length": 3, "min_length": 0}, r"and the prefix \d+, .* at most 3"),
    ],
    ids=["blank", "of a blank text", "split", "too many", "with a prefix"],
)  # fmt: skip
def test_phrases_that_cannot_be_are_refused(translator, changes, search, message):
    texts = [TEXTS[0], TEXTS[1], " ", LONG]
    constraints = [changes.get(index, []) for index in range(4)]
    prefixes = ["Der Hund" if "prefix" in message else "", "", "", ""]
    with pytest.raises(PhrasesError, match=message):
        translator.n_best(texts, prefixes, constraints, **search)
    translator.n_best(texts, prefixes, [[]] * 4, **search)


def test_a_text_that_is_cut_may_have_phrases(translator):
    search = {"max_source_length": 12, "long_lines": "cut"}
    (found,) = translator.n_best([LONG], constraints=[["Hund"]], **search)
    assert found.flags[0] == "cut"
    check_contains(translator.tokenizers.target, found.best, ["Hund"])


def test_exactly_as_many_tokens_as_fit_are_possible(translator):
    tokenizer = translator.tokenizers.target
    number = len(tokenizer.encode(["Hund und Text"])[0])
    (found,) = translator.n_best(TEXTS[:1], constraints=[["Hund und Text"]], max_length=number + 1)
    assert found.best.ids == [*tokenizer.encode(["Hund und Text"])[0], tokenizer.special.eos]
    with pytest.raises(PhrasesError, match=f"have {number} tokens"):
        translator.n_best(TEXTS[:1], constraints=[["Hund und Text"]], max_length=number)


def test_learned_positions_limit_the_phrases():
    tokenizer = SubwordTokenizer.train(TEXTS * 3, vocab_size=310)
    model = make_model(tokenizer, positions="learned", max_positions=11)
    learned = Translator(model, tokenizer, SearchConfig(beam_size=2))
    (row,) = tokenizer.encode(["Hund und Text"])
    with pytest.raises(PhrasesError, match="at most 11"):
        learned.translate(["a"], constraints=[["Hund und Text", "der Hund liest", "einen Text"]])
    assert len(row) < 11
    check_contains(
        tokenizer, learned.n_best(["a"], constraints=[["Hund und Text"]])[0].best, ["Hund und Text"]
    )  # fmt: skip


def test_phrases_and_texts_must_be_as_many(translator):
    with pytest.raises(ValueError, match="Received: 1 constraints, 2 texts"):
        translator.translate(TEXTS[:2], constraints=[["Der"]])
    for constraints in (["Der", "die"], "Der"):
        with pytest.raises((TypeError, ValueError), match="`constraints"):
            translator.translate(TEXTS[: len(constraints)], constraints=constraints)


def test_what_is_no_phrase_is_named(translator):
    with pytest.raises(TypeError, match=r"`constraints\[1\]` must be a list of str. Received: int in it"):
        translator.translate(TEXTS[:2], constraints=[["Hund"], [3]])
    with pytest.raises(PhrasesError, match="has a tab or a line break. Give two phrases"):
        translator.translate(TEXTS[:1], constraints=[["Hund\tText"]])
    assert translator.translate(TEXTS[:1], constraints=[None]) == translator.translate(TEXTS[:1])


def test_trees_have_no_phrases(translator):
    with pytest.raises(ValueError, match="`constraints` cannot be combined with `tree_grammar`"):
        translator.translate(TEXTS[:1], constraints=[[]], tree_grammar=True)


def test_a_character_that_the_vocabulary_lacks_is_refused():
    special = types.SimpleNamespace(pad=0, unk=3)
    tokenizer = types.SimpleNamespace(special=special, encode=lambda texts: [[5, 3] for _ in texts])
    with pytest.raises(PhrasesError, match=r"\[1\]`: phrase 'x☃' has a character that the vocabulary lacks"):
        encode_phrases([[], ["x☃"]], tokenizer)


def test_what_may_be_required_by_hand():
    texts = [EncodedText([[5, 6]], False), EncodedText([], False)]
    check_phrases([[(5, 6, 7)], []], texts, [[4], []], limit=9, max_length=5)
    with pytest.raises(PhrasesError, match="have 3 tokens and the prefix 1, but a translation has at most 4"):
        check_phrases([[(5, 6, 7)], []], texts, [[4], []], limit=9, max_length=4)
