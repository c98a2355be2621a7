"""Tags: one token in training text, ordinary characters in all other text, never in a translation."""

import itertools
import json

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config.settings import Config, SearchConfig, override, replace
from keras_transformer.config.tags import is_tag, parse_tags
from keras_transformer.model.transformer import Transformer
from keras_transformer.tokenizers import SubwordTokenizer, WordPieceTokenizer, load_tokenizer, train_tokenizer
from keras_transformer.tokenizers.tags import encode_tagged, sample_tagged
from keras_transformer.translation.translator import Translator

KINDS = ["bpe", "unigram", "wordpiece"]
SIZES = {"bpe": 311, "unigram": 289, "wordpiece": 55}
TEXTS = ["<BT> the dog sees the man", "quick foxes jump", "der Hund sieht <BT> den Mann", "<BT> <BT> a b"] * 7
TAGS = ("<BT>", "<BLANK>")


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def tagged(kind):
    return train_tokenizer(TEXTS, model_type=kind, vocab_size=SIZES[kind], tags=TAGS)


@pytest.fixture(scope="module")
def plain(kind):
    """The same without tags; it may not know the characters of tags, so texts without them are compared."""
    texts = [text.replace("<BT> ", "") for text in TEXTS]
    return train_tokenizer(texts, model_type=kind, vocab_size=SIZES[kind] - len(TAGS))


def test_a_tag_is_one_token_after_the_special_ones(tagged, plain):
    assert tagged.tags == {"<BT>": 4, "<BLANK>": 5}
    assert plain.tags == {}
    assert tagged.vocab_size == plain.vocab_size + 2
    assert len(set(tagged.entries)) == tagged.vocab_size
    # Tags are not learned as text.
    assert all("<" not in piece and ">" not in piece for kind, piece in tagged.entries if kind == "text")


def test_training_text_has_the_tag_and_other_text_its_characters(tagged):
    dog, *_ = tagged.encode(["the dog"])
    assert encode_tagged(tagged, ["<BT> the dog", "a <BLANK> b"]) == [
        [4, *dog],
        [*tagged.encode(["a"])[0], 5, *tagged.encode(["b"])[0]],
    ]
    for text in ("<BT> the dog", "<BT>", " <BT> <BLANK>", "<BT>dog", "dog<BT>", "<bt> a"):
        ids = tagged.encode([text])
        assert {4, 5}.isdisjoint(ids[0])
        assert tagged.decode(ids) == [tagged.normalise(text)] == [" ".join(text.split())]
        assert tagged.encode_tensor(tf.constant([text])).to_list() == ids  # in exported models, too
    for text in ("<BT>dog", "dog<BT>", "<bt> a", "< BT > a", "\t<BT>", ""):  # no word that is the tag
        assert encode_tagged(tagged, [text]) == tagged.encode([text])


def test_many_texts_keep_their_order(tagged):
    texts = ["a <BT> b <BT>", "the dog", "<BT>", "", "<BLANK> <BT> den Mann"]
    together = encode_tagged(tagged, texts)
    assert together == [encode_tagged(tagged, [text])[0] for text in texts]
    assert together[2:4] == [[4], []]
    assert together[4][:2] == [5, 4]


def test_decoding_drops_tags(tagged):
    row = encode_tagged(tagged, ["<BT> the dog <BLANK> sees"])[0]
    assert tagged.decode([row]) == ["the dog sees"]
    padded = tf.constant([[*row, tagged.special.eos, tagged.special.pad]], tf.int32)
    assert tagged.decode_tensor(padded).numpy()[0].decode() == "the dog sees"


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_sampled_segmentations_keep_tags_in_their_place(tagged, dropout):
    texts = ["<BT> the dog sees", "quick foxes", "a <BLANK> den Mann", "<BT>", "<BT> <BT> a"]
    rows = encode_tagged(tagged, texts)
    found = set()
    for seed in range(5):
        sampled = sample_tagged(tagged, rows, dropout=dropout, seed=seed)
        for text, row in zip(texts, sampled, strict=True):
            words = ["<BT>" if number == 4 else "<BLANK>" if number == 5 else "" for number in row]
            assert [word for word in words if word] == [word for word in text.split() if is_tag(word)]
            parts = itertools.groupby(row, lambda number: number in (4, 5))
            assert tagged.decode([list(part) for is_a_tag, part in parts if not is_a_tag]) == [
                " ".join(part) for is_a_tag, part in itertools.groupby(text.split(), is_tag) if not is_a_tag
            ]
        found.add(str(sampled))
    if tagged.vocab_size != SIZES["unigram"]:  # whose pieces here are single characters
        assert (len(found) == 1) == (dropout == 0)
    without = [tagged.encode(["quick foxes", "the dog"])]
    assert sample_tagged(tagged, without[0], dropout=dropout, seed=3) == tagged.sample(
        ["quick foxes", "the dog"], dropout=dropout, seed=3
    )


def test_a_saved_vocabulary_keeps_its_tags(tagged, tmp_path):
    tagged.save(tmp_path / "tokenizer.model")
    loaded = load_tokenizer(tmp_path / "tokenizer.model")
    assert (loaded.tags, loaded.entries, loaded.sha256) == (tagged.tags, tagged.entries, tagged.sha256)


def test_without_tags_a_vocabulary_has_the_bytes_of_before(kind):
    texts = [text.replace("<BT> ", "") for text in TEXTS]
    size = SIZES[kind] - 2
    classes = {"wordpiece": WordPieceTokenizer}
    options = {} if kind == "wordpiece" else {"model_type": kind}
    before = classes.get(kind, SubwordTokenizer).train(texts, vocab_size=size, **options)
    assert before.model_bytes == train_tokenizer(texts, model_type=kind, vocab_size=size, tags=()).model_bytes
    assert b"tags" not in before.model_bytes


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    "search",
    [
        {"beam_size": 1},
        {"beam_size": 3, "n_best": 3},
        {"sampling": True, "n_best": 2},
        {"no_repeat_ngram": 1, "min_length": 1},
    ],
)
def test_the_search_never_produces_a_tag(search):
    """The most probable token of every step is the tag, and it is in no translation."""
    tagged = train_tokenizer(TEXTS, model_type="bpe", vocab_size=SIZES["bpe"], tags=TAGS)
    size = tagged.vocab_size
    config = override(Config(), [
        "model.num_encoder_layers=1", "model.num_decoder_layers=1", "model.d_model=16", "model.d_ff=24",
        "model.num_heads=2", "model.output_bias=true",
    ]).model  # fmt: skip
    model = Transformer(replace(config, source_vocab_size=size, target_vocab_size=size))
    bias = np.zeros(size, np.float32)
    bias[4], bias[5] = 30, 25
    model.output_bias.assign(bias)
    settings = SearchConfig(max_length_offset=7)
    translator = Translator(model, tagged, settings)
    for result in translator.n_best(["the dog sees", "<BT> a b"], **search):
        for translation in result.translations:
            assert len(translation.ids) > 0
            assert {4, 5}.isdisjoint(translation.ids)
    # Without the rule, it would be.
    tagged.tags = {}
    free = Translator(model, tagged, settings).n_best(["the dog sees"], **search)
    assert 4 in free[0].best.ids


def test_names_of_tags():
    assert parse_tags("") == ()
    assert parse_tags("<BT>,<2de>") == ("<BT>", "<2de>")
    for text in ("BT", "<BT>,<BT>", "<BT>, <B>", "<s>", "<pad>", "<0x0A>", "<>", "<a b>", ","):
        with pytest.raises(ValueError, match="`tags` must be different names"):
            parse_tags(text)
        with pytest.raises(ValueError, match="`tags` must be different names"):
            override(Config(), [f"data.tags={text}"])
    assert override(Config(), ["data.tags=<BT>"]).data.tags == "<BT>"


def test_damaged_tags_of_word_pieces_are_refused():
    tokenizer = train_tokenizer(TEXTS, model_type="wordpiece", vocab_size=SIZES["wordpiece"], tags=TAGS)
    first, *lines = tokenizer.model_bytes.decode().split("\n")
    for tags in (["<BT>"], ["<BLANK>", "<BT>"], ["<BT>", "<BLANK>", lines[2]], "<BT>"):
        header = json.dumps(json.loads(first) | {"tags": tags})
        if tags == ["<BT>"]:  # the other one would be text
            assert WordPieceTokenizer("\n".join([header, *lines]).encode()).tags == {"<BT>": 4}
            continue
        with pytest.raises(ValueError, match="tags .* must be the first pieces|not a word-piece vocabulary"):
            WordPieceTokenizer("\n".join([header, *lines]).encode())
