"""Sub-word regularisation: rates counted by hand, and against SentencePiece's own sampling."""

import collections
import io
import itertools
import math
import pathlib
import random
import subprocess
import sys
import threading

import pytest
import sentencepiece

from keras_transformer.tokenizers import sentencepiece as sentencepiece_module
from keras_transformer.tokenizers import wordpiece as wordpiece_module
from keras_transformer.tokenizers.base import (
    MAX_CACHED_LENGTH,
    bpe_dropout,
    cache_short_words,
    maxmatch_dropout,
    unigram_lattice,
    unigram_sample,
)
from keras_transformer.tokenizers.sentencepiece import SubwordTokenizer
from keras_transformer.tokenizers.tokenizer_pair import train_tokenizer

DRAWS = 20_000
TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "A small model reads a small text, and reads it again.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "The reader is reading small readings to small readers.",
] * 2
UNSEEN = ["", "  ", "สวัสดี 👍🏽", "a\\b \\123; ▁▁ <s>", "e\u0331\u0301 x²", "\ud800", "a\nb"]
KINDS = {"bpe": 360, "unigram": 318, "wordpiece": 90}


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request):
    return train_tokenizer(TEXTS, model_type=request.param, vocab_size=KINDS[request.param])


def shares(draw):
    """How often each segmentation is drawn, with one seed."""
    chooser = random.Random(7).random
    counts = collections.Counter(tuple(draw(chooser)) for _ in range(DRAWS))
    return {pieces: count / DRAWS for pieces, count in counts.items()}


def assert_close(found, wanted):
    assert math.isclose(sum(wanted.values()), 1)
    assert set(found) <= {pieces for pieces, share in wanted.items() if share > 0}
    for pieces, share in wanted.items():
        # Four standard deviations of a share.
        assert abs(found.get(pieces, 0) - share) <= 4 * math.sqrt(share * (1 - share) / DRAWS)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_bpe_dropout_has_the_rates_of_algorithm_1(p):
    scores = {"ab": -1, "bc": -2, "abc": -3}
    q = 1 - p
    wanted = {
        ("abc",): q * q + p * q * q,  # ab is merged, or left out and bc merged; then both
        ("ab", "c"): q * p,
        ("a", "bc"): p * q * p,
        ("a", "b", "c"): p * p,
    }
    assert_close(shares(lambda chooser: bpe_dropout("abc", scores, p, chooser)), wanted)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_maxmatch_dropout_has_the_rates_of_passing_over(p):
    pieces = {"a", "b", "c", "ab", "abc", "bc"}
    wanted = {
        ("abc",): 1 - p,
        ("ab", "c"): p * (1 - p),
        ("a", "bc"): p * p * (1 - p),
        ("a", "b", "c"): p**3,
    }
    assert_close(shares(lambda chooser: maxmatch_dropout("abc", pieces, 3, p, chooser)), wanted)


def segmentations(word):
    """Every way to cut a word, by counting in binary."""
    for cuts in itertools.product((False, True), repeat=len(word) - 1):
        ends = [i + 1 for i, cut in enumerate(cuts) if cut] + [len(word)]
        yield tuple(word[start:end] for start, end in zip([0, *ends], ends, strict=False))


@pytest.mark.parametrize("alpha", [0.2, 1.0, 3.0])
def test_unigram_sampling_follows_the_probabilities(alpha):
    scores = {"a": -2.0, "b": -2.5, "c": -2.2, "ab": -3.0, "bc": -3.6, "abc": -4.1, "ca": -3.3}
    unknown = -9.0
    weights = {
        pieces: math.exp(alpha * sum(scores.get(one, unknown) for one in pieces))
        for pieces in segmentations("abcax")
        if all(one in scores or one == "x" for one in pieces)
    }
    wanted = {pieces: weight / sum(weights.values()) for pieces, weight in weights.items()}
    lattice = unigram_lattice("abcax", scores, 3, unknown, alpha)
    assert_close(shares(lambda chooser: unigram_sample("abcax", lattice, chooser)), wanted)


def sentencepiece_lengths(tokenizer, texts, alpha):
    """Mean number of pieces of each text over SentencePiece's own samples."""
    theirs = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model_bytes)
    rows = theirs.encode(texts * 300, enable_sampling=True, nbest_size=-1, alpha=alpha, num_threads=1)
    return sum(map(len, rows)) / len(rows)


def test_unigram_sampling_is_that_of_sentencepiece():
    tokenizer = train_tokenizer(TEXTS, model_type="unigram", vocab_size=318)
    texts = ["The small reader reads.", "Sylter Boxkämpfer"]
    for dropout, alpha in ((0.5, 1.0), (0.8, 0.25)):
        rows = tokenizer.sample(texts * 300, dropout=dropout, seed=3)
        ours = sum(map(len, rows)) / len(rows)
        assert abs(ours / sentencepiece_lengths(tokenizer, texts, alpha) - 1) < 0.02


@pytest.mark.parametrize("name", ["multi30k/val.en", "newstest/newstest2013.en-de.de"])
def test_bpe_without_dropout_is_that_of_sentencepiece(name):
    path = pathlib.Path(__file__).resolve().parents[2] / "../shared/data" / name
    if not path.exists():
        pytest.skip(f"needs the text {name}, which is not here")
    lines = path.read_bytes().decode("utf-8").split("\n")[:300]
    tokenizer = SubwordTokenizer.train(lines[:150], vocab_size=900)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model_bytes)
    scores = {
        theirs.id_to_piece(one): theirs.get_score(one)
        for one in range(4, len(theirs))
        if not theirs.is_byte(one)
    }
    # Least dropout there is: no draw is below it.
    assert tokenizer.sample(lines, dropout=1e-300, seed=1) == theirs.encode(lines)
    words = {word for line in lines for word in tokenizer.normalise(line).split(" ") if word}
    assert len(words) > 1000
    for word in words & {word for word in words if set(word) <= set(scores)}:
        assert bpe_dropout("▁" + word, scores, 0, lambda: 0) == theirs.encode(word, out_type=str)


def test_no_dropout_is_encode(tokenizer):
    texts = TEXTS + UNSEEN
    assert tokenizer.sample(texts, dropout=0, seed=1) == tokenizer.encode(texts)
    assert tokenizer.sample(texts, dropout=1e-6, seed=1) == tokenizer.encode(texts)


@pytest.mark.parametrize("dropout", [0.1, 0.5, 0.95])
def test_samples_spell_the_text(tokenizer, dropout):
    texts = TEXTS + UNSEEN
    sampled = tokenizer.sample(texts, dropout=dropout, seed=1)
    assert tokenizer.decode(sampled) == [tokenizer.normalise(text) for text in texts]
    assert sampled != tokenizer.encode(texts) or dropout < 0.5


def test_more_dropout_makes_more_pieces(tokenizer):
    lengths = [
        sum(map(len, tokenizer.sample(TEXTS * 20, dropout=dropout, seed=1)))
        for dropout in (0.0, 0.5, 0.9, 0.99)
    ]
    assert lengths == sorted(set(lengths))


def test_a_sample_follows_from_its_seed_alone(tokenizer):
    first = tokenizer.sample(TEXTS, dropout=0.5, seed=1)
    assert tokenizer.sample(TEXTS, dropout=0.5, seed=2) != first
    found = []
    thread = threading.Thread(target=lambda: found.append(tokenizer.sample(TEXTS, dropout=0.5, seed=1)))
    thread.start()
    thread.join()
    assert found == [first] == [tokenizer.sample(TEXTS, dropout=0.5, seed=1)]
    assert tokenizer.sample([TEXTS[0]] * 9, dropout=0.5, seed=1)[1:] != first[:1] * 8


@pytest.mark.very_slow
def test_a_sample_is_the_same_in_another_process(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "vocabulary")
    program = (
        "import sys; from keras_transformer.tokenizers.tokenizer_pair import load_tokenizer; "
        "print(load_tokenizer(sys.argv[1]).sample(sys.argv[2:], dropout=0.5, seed=1))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "vocabulary"), *TEXTS]
    root = pathlib.Path(__file__).resolve().parents[2]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root).stdout
    assert printed.strip() == str(tokenizer.sample(TEXTS, dropout=0.5, seed=1))


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_without_byte_fallback_unseen_characters_are_unknown(model_type):
    tokenizer = SubwordTokenizer.train(TEXTS, vocab_size=62, model_type=model_type, byte_fallback=False)
    texts = ["สวัสดี small", "aสสbส"]
    assert tokenizer.sample(texts, dropout=1e-6, seed=1) == tokenizer.encode(texts)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dropout": 1}, "`dropout` must be at least 0 and below 1. Received: 1"),
        ({"dropout": -0.1}, "`dropout` must be .*Received: -0.1"),
        ({"dropout": float("nan")}, "`dropout` must be .*Received: nan"),
        ({"dropout": "0.1"}, "`dropout` must be .*Received: '0.1'"),
        ({"seed": 1.5}, "`seed` must be a whole number. Received: 1.5"),
        ({"seed": None}, "`seed` must be a whole number. Received: None"),
    ],
)
def test_refuses_other_arguments(tokenizer, arguments, message):
    with pytest.raises(ValueError, match=message):
        tokenizer.sample(TEXTS, **{"dropout": 0.1, "seed": 1, **arguments})


def test_refuses_what_is_not_a_list_of_str(tokenizer):
    with pytest.raises(TypeError, match="`texts` must"):
        tokenizer.sample("a text", dropout=0.1, seed=1)


@pytest.mark.parametrize("byte_fallback", [True, False])
@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_user_defined_symbols_stay_whole(model_type, byte_fallback):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=model, model_type=model_type, minloglevel=2,
        vocab_size=330 if byte_fallback else 70, byte_fallback=byte_fallback, hard_vocab_limit=False,
        pad_id=0, bos_id=1, eos_id=2, unk_id=3, user_defined_symbols=["<ent>", "<ent>s", "@@", "☃", "small"],
    )  # fmt: skip
    tokenizer = SubwordTokenizer(model.getvalue())
    texts = ["<ent> reads <ent>s", "a<ent>sb@@c@", "☃", "The smaller ☃สreader", "@@ @", "sส☃ส"]
    encoded = tokenizer.encode(texts)
    assert tokenizer.sample(texts, dropout=1e-300, seed=1) == encoded
    symbols = {tokenizer.entries.index(("text", one)) for one in ("<ent>", "<ent>s", "@@", "☃", "small")}
    for seed in range(20):
        sampled = tokenizer.sample(texts, dropout=0.9, seed=seed)
        assert [[one for one in row if one in symbols] for row in sampled] == [
            [one for one in row if one in symbols] for row in encoded
        ]
        assert tokenizer.decode(sampled) == tokenizer.decode(encoded)
    assert tokenizer.has_own_token("☃")
    assert not tokenizer.has_own_token("ส")


def test_only_short_words_are_kept():
    calls = []
    keeping = cache_short_words(lambda word, alpha: calls.append(word) or len(word) * alpha, 2)
    short, long = "a" * MAX_CACHED_LENGTH, "a" * (MAX_CACHED_LENGTH + 1)
    assert [keeping(word, 2) for word in (short, long, short, long)] == [48, 50, 48, 50]
    assert calls == [short, long, long]
    assert keeping(short, 3) == 72
    keeping("b", 2)
    keeping(short, 2)  # only two results are kept
    assert calls == [short, long, long, short, "b", short]


@pytest.mark.parametrize("model_type", ["unigram", "wordpiece"])
def test_a_sentence_without_spaces_is_not_kept(model_type, monkeypatch):
    module, name = {
        "unigram": (sentencepiece_module, "unigram_lattice"),
        "wordpiece": (wordpiece_module, "maxmatch_dropout"),
    }[model_type]
    words, real = [], getattr(module, name)
    monkeypatch.setattr(module, name, lambda word, *more: words.append(word) or real(word, *more))
    tokenizer = train_tokenizer(TEXTS, model_type=model_type, vocab_size=KINDS[model_type])
    texts = ["small", "smallreader" * 3] * 3
    if model_type == "unigram":
        tokenizer.sample(texts, dropout=0.5, seed=1)
    else:
        tokenizer.encode(texts)
    assert [words.count(f"▁{text}") for text in texts[:2]] == [1, 3]
