"""Vocabularies of all kinds, and one or two to a model."""

import pytest

from keras_transformer.config.settings import ModelConfig, SpecialIds
from keras_transformer.tokenizers.sentencepiece import SubwordTokenizer
from keras_transformer.tokenizers.tokenizer_pair import (
    MODEL_TYPES,
    Tokenizers,
    as_tokenizers,
    check_vocabularies,
    load_tokenizer,
    load_tokenizers,
    save_tokenizers,
    train_tokenizer,
)
from keras_transformer.tokenizers.wordpiece import WordPieceTokenizer

TEXTS = ["The dog reads a text.", "Der Hund liest einen Text.", "A dog and a text."] * 3
CLASSES = {"bpe": SubwordTokenizer, "unigram": SubwordTokenizer, "wordpiece": WordPieceTokenizer}
SIZES = {"bpe": 300, "unigram": 281, "wordpiece": 46}


def train(kind, **changes):
    return train_tokenizer(TEXTS, **{"model_type": kind, "vocab_size": SIZES[kind], **changes})


@pytest.fixture(scope="module")
def tokenizers():
    return Tokenizers(train("bpe"), train("wordpiece"))


@pytest.mark.parametrize("kind", MODEL_TYPES)
def test_every_kind_is_learned_and_recognised_from_its_file(kind, tmp_path):
    trained = train(kind, normalization="identity", max_texts=8, seed=3)
    assert type(trained) is CLASSES[kind]
    assert trained.vocab_size == SIZES[kind]
    trained.save(tmp_path / "vocabulary")
    loaded = load_tokenizer(tmp_path / "vocabulary")
    assert type(loaded) is CLASSES[kind]
    assert loaded.sha256 == trained.sha256
    assert loaded.normalization == "identity"
    with pytest.raises(ValueError, match="vocabulary has different special ids"):
        load_tokenizer(tmp_path / "vocabulary", special=SpecialIds(pad=3, unk=0))


@pytest.mark.slow
def test_bpe_and_unigram_are_what_sentencepiece_learns():
    for kind in ("bpe", "unigram"):
        theirs = SubwordTokenizer.train(TEXTS, vocab_size=SIZES[kind], model_type=kind)
        assert train(kind).sha256 == theirs.sha256


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="`model_type` must be one of .*wordpiece.*Received: 'word'"):
        train_tokenizer(TEXTS, model_type="word", vocab_size=300)


@pytest.mark.parametrize("content", [b"", b"garbage", b"{", b'{"a": 1}\n', bytes(100)])
def test_a_file_that_is_no_vocabulary_is_refused_by_name(tmp_path, content):
    (tmp_path / "broken").write_bytes(content)
    with pytest.raises(ValueError, match="broken") as info:
        load_tokenizer(tmp_path / "broken")
    assert "\n" not in str(info.value)
    with pytest.raises(ValueError, match="absent: cannot read the tokenizer model"):
        load_tokenizer(tmp_path / "absent")


def test_one_tokenizer_serves_both_sides(tokenizers):
    both = as_tokenizers(tokenizers.source)
    assert both.shared
    assert both.source is both.target is tokenizers.source
    assert as_tokenizers(both) is both
    assert not tokenizers.shared
    assert tokenizers.sizes == (300, 46)


def test_a_shared_vocabulary_is_one_file(tokenizers, tmp_path):
    save_tokenizers(tmp_path, as_tokenizers(tokenizers.source))
    assert [one.name for one in tmp_path.iterdir()] == ["tokenizer.model"]
    loaded = load_tokenizers(tmp_path)
    assert loaded.shared
    assert loaded.target.sha256 == tokenizers.source.sha256


def test_separate_vocabularies_are_two_files(tokenizers, tmp_path):
    save_tokenizers(tmp_path, tokenizers)
    names = {one.name for one in tmp_path.iterdir()}
    assert names == {"tokenizer.source.model", "tokenizer.target.model"}
    loaded = load_tokenizers(tmp_path)
    assert [one.sha256 for one in loaded] == [one.sha256 for one in tokenizers]


@pytest.mark.parametrize(
    "names",
    [
        [],
        ["tokenizer.source.model"],
        ["tokenizer.target.model"],
        ["tokenizer.model", "tokenizer.source.model", "tokenizer.target.model"],
    ],
)
def test_half_of_two_and_one_beside_two_are_refused(tokenizers, tmp_path, names):
    for name in names:
        tokenizers.source.save(tmp_path / name)
    with pytest.raises(ValueError, match="must hold tokenizer.model, or tokenizer.source.model and"):
        load_tokenizers(tmp_path)


def model(source, target, tie_embeddings="decoder"):
    return ModelConfig(source_vocab_size=source, target_vocab_size=target, tie_embeddings=tie_embeddings)


@pytest.mark.slow
def test_vocabularies_of_the_model_are_accepted(tokenizers):
    check_vocabularies(tokenizers, model(300, 46), special=SpecialIds())
    check_vocabularies(as_tokenizers(tokenizers.source), model(300, 300, "all"))
    # Two objects may hold one vocabulary.
    check_vocabularies(Tokenizers(train("bpe"), train("bpe")), model(300, 300, "all"))


@pytest.mark.parametrize("sizes", [(300, 47), (301, 46), (46, 300)])
def test_other_sizes_than_the_models_are_refused(tokenizers, sizes):
    with pytest.raises(ValueError, match=f"300 and 46 tokens, the model has {sizes[0]} .*{sizes[1]}"):
        check_vocabularies(tokenizers, model(*sizes))


def test_two_vocabularies_of_one_size_do_not_share_a_matrix():
    two = Tokenizers(train("bpe"), train("bpe", normalization="identity"))
    check_vocabularies(two, model(300, 300))
    with pytest.raises(ValueError, match="`tie_embeddings='all'` needs one vocabulary"):
        check_vocabularies(two, model(300, 300, "all"))


def test_other_special_ids_than_the_models_are_refused(tokenizers):
    with pytest.raises(ValueError, match="same special ids"):
        check_vocabularies(tokenizers, model(300, 46), special=SpecialIds(pad=3, unk=0))
