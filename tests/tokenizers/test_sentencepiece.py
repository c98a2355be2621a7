"""The sub-word vocabulary: what survives it, in Python and in the graph."""

import collections
import copy
import itertools
import os
import pathlib
import random
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
import sentencepiece

from keras_transformer.config.settings import SpecialIds
from keras_transformer.tokenizers.learning import TrainingTexts
from keras_transformer.tokenizers.sentencepiece import SubwordTokenizer
from keras_transformer.tokenizers.wordpiece import WordPieceTokenizer

DATA = pathlib.Path(__file__).resolve().parents[2] / "../shared/data"
SPECIAL = SpecialIds()
VOCAB_SIZE = 380

LATIN = [
    "The quick brown fox jumps over the lazy dog.",
    "A small model reads a small text, and reads it again.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "Ein kleines Modell liest einen kleinen Text und liest ihn noch einmal.",
    "Où est le garçon qui a mangé la crème brûlée ?",
    "The text is small, the model is small, the reading is quick.",
]

TEXTS = {
    "plain": "The small dog reads.",
    "composed": "café Å ạ̈",
    "decomposed": unicodedata.normalize("NFD", "café Å ậ 한국어"),
    "mark before the one that composes": "e\u0331\u0301",
    "marks in another order": "a\u0302\u0323",
    "Kelvin sign": "300 \u212a",
    "compatibility characters": "x² … ½ ﬁ Ⅷ ㎏",
    "emoji": "👩‍👩‍👧 🇩🇪 👍🏽",
    "Thai": "สวัสดีชาวโลก",
    "Cherokee": "ᎣᏏᏲ ᎡᎶᎯ",
    "Hebrew with points": "שָׁלוֹם",
    "Arabic": "مُحَمَّد",
    "private use": "\ue000\U000f0000\U0010fffd",
    "unassigned and non-characters": "\U000e0fff\ufffe\uffff",
    "special tokens": "<s> </s> <pad> <unk> <0x41> ⁇ a⁇b",
    "sign for a space": "a▁b ▁ ▁▁c▁",
    "byte-order mark within": "a\ufeffb",
    "NUL": "a\0b",
    "line ends of others": "a\u2028b\u2029c\x85d\ve\ff\rg\nh",
    "tab and unusual spaces": "a\tb\u00a0c\u3000d\u200be",
    "empty": "",
    "spaces": "    ",
    "runs of spaces": "  a   b  ",
}


def expected(text):
    """NFC and single spaces, written without SentencePiece."""
    text = unicodedata.normalize("NFC", text).replace("▁", " ")
    return " ".join(part for part in text.split(" ") if part)


def shared_lines(name):
    path = DATA / name
    if not path.exists():
        pytest.skip(f"needs the text {name}, which is not here")
    return path.read_bytes().decode("utf-8").split("\n")[:-1]


def random_texts(count, length):
    """Base characters, marks, Hangul parts and any other assigned character, mixed."""
    chooser = random.Random(5)
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    assigned = [one for one in characters if unicodedata.category(one) != "Cn"]
    marks = [one for one in assigned if unicodedata.combining(one)]
    hangul = [chr(code) for code in range(0x1100, 0x1200)]
    pools = ["aeiouAEIOU ", marks, hangul, assigned]
    return ["".join(chooser.choice(chooser.choice(pools)) for _ in range(length)) for _ in range(count)]


@pytest.fixture(scope="module")
def tokenizer():
    return SubwordTokenizer.train(LATIN, vocab_size=VOCAB_SIZE)


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_comes_back(tokenizer, name):
    text = TEXTS[name]
    [ids] = tokenizer.encode([text])
    assert tokenizer.decode([ids]) == [expected(text)]
    assert tokenizer.normalise(text) == expected(text)
    assert not set(ids) & {SPECIAL.pad, SPECIAL.bos, SPECIAL.eos, SPECIAL.unk}
    assert all(0 <= one < VOCAB_SIZE for one in ids)


@pytest.mark.slow
def test_random_unicode_comes_back(tokenizer):
    texts = random_texts(count=2000, length=11)
    assert tokenizer.decode(tokenizer.encode(texts)) == [expected(text) for text in texts]


def test_a_hundred_thousand_characters_come_back(tokenizer):
    texts = ["ab" * 50_000, "ab " * 33_333 + "c"]
    assert tokenizer.decode(tokenizer.encode(texts)) == texts


def test_composed_and_decomposed_text_have_the_same_ids(tokenizer):
    texts = [*TEXTS.values(), *random_texts(count=500, length=7)]
    composed = tokenizer.encode([unicodedata.normalize("NFC", text) for text in texts])
    decomposed = tokenizer.encode([unicodedata.normalize("NFD", text) for text in texts])
    assert composed == decomposed == tokenizer.encode(texts)


def test_the_model_alone_composes_every_character(tokenizer):
    alone = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model_bytes)
    characters = [
        chr(code) for code in range(0x110000) if unicodedata.normalize("NFD", chr(code)) != chr(code)
    ]
    assert len(characters) > 13_000
    decomposed = [unicodedata.normalize("NFD", one) for one in characters]
    composed = [unicodedata.normalize("NFC", one) for one in characters]
    assert alone.decode(alone.encode(decomposed)) == composed
    assert alone.decode(alone.encode(characters)) == composed


def test_lone_surrogates_are_replaced(tokenizer):
    assert tokenizer.decode(tokenizer.encode(["a\ud800b"])) == ["a\ufffdb"]


def test_pieces_spell_the_text(tokenizer):
    texts = ["The small dog.", "", "noch einmal"]
    pieces = tokenizer.pieces(texts)
    assert ["".join(row).replace("▁", " ").strip() for row in pieces] == texts
    assert [len(row) for row in pieces] == [len(row) for row in tokenizer.encode(texts)]
    assert len(pieces[0]) < len(texts[0])


def test_many_texts_have_the_ids_that_each_has_alone(tokenizer):
    texts = [*TEXTS.values(), "", *random_texts(count=100, length=13)]
    rows = tokenizer.encode(texts)
    assert rows == [row for text in texts for row in tokenizer.encode([text])]
    assert tokenizer.pieces(texts) == [row for text in texts for row in tokenizer.pieces([text])]
    assert tokenizer.decode(rows) == [text for row in rows for text in tokenizer.decode([row])]


def test_no_texts_give_no_rows(tokenizer):
    assert tokenizer.encode([]) == tokenizer.decode([]) == tokenizer.pieces([]) == []


def test_decode_drops_padding_and_ends_and_shows_unknown(tokenizer):
    [ids] = tokenizer.encode(["noch einmal"])
    row = [SPECIAL.bos, *ids[:1], SPECIAL.pad, *ids[1:], SPECIAL.eos, SPECIAL.pad]
    assert tokenizer.decode([row, [SPECIAL.eos], []]) == ["noch einmal", "", ""]
    assert tokenizer.decode([[SPECIAL.unk]])[0].strip() == "⁇"


def test_decode_takes_numpy_ids(tokenizer):
    [ids] = tokenizer.encode(["noch einmal"])
    assert tokenizer.decode(np.array([ids], dtype="int32")) == ["noch einmal"]


def test_decode_replaces_bytes_that_form_no_character(tokenizer):
    position = tokenizer.pieces(["\ufffe"])[0].index("<0xEF>")
    lone_byte = tokenizer.encode(["\ufffe"])[0][position]
    assert tokenizer.decode([[lone_byte]]) == ["\ufffd"]


@pytest.mark.parametrize("bad", [-1, VOCAB_SIZE])
def test_decode_refuses_ids_outside_the_vocabulary(tokenizer, bad):
    with pytest.raises(ValueError, match=f"vocab_size={VOCAB_SIZE}.*Received: {bad}"):
        tokenizer.decode([[5, bad]])


@pytest.mark.parametrize("method", ["encode", "pieces"])
@pytest.mark.parametrize(
    ("texts", "received"), [("a text", "str"), (b"bytes", "bytes"), (["a", None], "NoneType")]
)
def test_refuses_what_is_not_a_list_of_str(tokenizer, method, texts, received):
    with pytest.raises(TypeError, match=f"`texts` must .*Received: {received}"):
        getattr(tokenizer, method)(texts)


@pytest.mark.slow
def test_training_is_deterministic(tokenizer):
    again = SubwordTokenizer.train(iter(LATIN), vocab_size=VOCAB_SIZE)
    assert again.model_bytes == tokenizer.model_bytes
    assert again.sha256 == tokenizer.sha256
    other = SubwordTokenizer.train(LATIN, vocab_size=VOCAB_SIZE - 1)
    assert other.sha256 != tokenizer.sha256
    assert len(tokenizer.sha256) == 64


def test_training_does_not_see_whether_text_is_composed(tokenizer):
    decomposed = [unicodedata.normalize("NFD", text) for text in LATIN]
    again = SubwordTokenizer.train(decomposed, vocab_size=VOCAB_SIZE)
    assert again.sha256 == tokenizer.sha256


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_vocabulary_has_exactly_the_size_asked_for(model_type):
    trained = SubwordTokenizer.train(LATIN, vocab_size=335, model_type=model_type)
    assert trained.vocab_size == 335
    assert trained.special == SPECIAL
    assert trained.decode(trained.encode(LATIN)) == LATIN


def test_special_ids_are_the_ones_asked_for():
    special = SpecialIds(pad=3, bos=0, eos=1, unk=2)
    trained = SubwordTokenizer.train(LATIN, vocab_size=VOCAB_SIZE, special=special)
    [ids] = trained.encode(["noch einmal"])
    assert not set(ids) & {0, 1, 2, 3}
    assert trained.decode([[0, *ids, 1, 3]]) == ["noch einmal"]


def test_without_byte_fallback_unseen_characters_are_unknown():
    trained = SubwordTokenizer.train(LATIN, vocab_size=100, byte_fallback=False)
    assert SPECIAL.unk in trained.encode(["สวัสดี"])[0]


@pytest.mark.parametrize(
    ("normalization", "kept"),
    [
        ("nfc", "x² … ½ ﬁ"),
        ("identity", "x² … ½ ﬁ"),
        ("nfkc", "x2 ... 1\u20442 fi"),
    ],
)
def test_normalization(normalization, kept):
    trained = SubwordTokenizer.train(LATIN, vocab_size=400, normalization=normalization)
    assert trained.normalization == normalization
    assert trained.decode(trained.encode(["x²  … ½ ﬁ "])) == [kept]
    decomposed = "e\u0301"
    assert trained.normalise(decomposed) == (decomposed if normalization == "identity" else "é")
    for text in TEXTS.values():
        assert trained.decode(trained.encode([text])) == [trained.normalise(text)]


def mixed_texts(number):
    """Texts of letters, marks, signs that are replaced or dropped, Hangul and kana, in any order."""
    signs = "aeo V\u1100\u1161\u11a8\u0301\u0323\u0327\u0304\u0308\x01\u200b\u200d\ufeff\u00ad\uff76\uff9e"
    signs += "\uff9f\ufb01\u212b\u00e9\u1e69\u0344\u2044\u00bd\u3000\u0345\u0c46\u0c56\u33b6\U0001d7bb"
    draw = random.Random(11)
    return ["".join(draw.choices(signs, k=draw.randint(1, 8))) for _ in range(number)]


@pytest.mark.parametrize("kind", [SubwordTokenizer, WordPieceTokenizer])
@pytest.mark.parametrize("normalization", ["nfc", "identity", "nfkc"])
def test_what_is_normalised_comes_to_rest(kind, normalization):
    size = 330 if kind is SubwordTokenizer else 90
    trained = kind.train(LATIN, vocab_size=size, normalization=normalization)
    texts = mixed_texts(5003)
    once = [trained.normalise(text) for text in texts]
    twice = [trained.normalise(text) for text in once]
    moved = [number for number, pair in enumerate(zip(once, twice, strict=True)) if pair[0] != pair[1]]
    if (kind, normalization) != (SubwordTokenizer, "nfkc"):
        assert moved == []
        return
    # One pass of SentencePiece's rules, which lie in the model file and so in every exported graph.
    assert trained.normalise("\u33b6\u0323") == "\u03bcV\u0323"
    assert trained.normalise("\u03bcV\u0323") == "\u03bc\u1e7e"
    assert 0 < len(moved) < 0.05 * len(texts)
    assert [trained.normalise(text) for text in twice] == twice
    unstable = [texts[number] for number in moved]
    assert trained.encode_tensor(unstable).to_list() == trained.encode(unstable)
    assert trained.decode(trained.encode(unstable)) == [once[number] for number in moved]


def test_long_lines_count_in_training():
    line = " ".join(["unmistakable"] * 1000)  # 13 kB, beyond SentencePiece's default
    trained = SubwordTokenizer.train([*LATIN, line], vocab_size=VOCAB_SIZE)
    assert trained.pieces(["unmistakable"]) == [["▁unmistakable"]]


def test_sample_is_uniform_in_size_and_follows_the_seed():
    texts = [f"wort{number} {number * 7919}" for number in range(300)]

    def train(seed, max_texts=60):
        return SubwordTokenizer.train(texts, vocab_size=300, max_texts=max_texts, seed=seed)

    assert train(seed=1).sha256 == train(seed=1).sha256
    assert train(seed=1).sha256 != train(seed=2).sha256
    whole = SubwordTokenizer.train(texts, vocab_size=300)
    assert train(seed=1, max_texts=300).sha256 == whole.sha256


def test_every_sample_of_the_texts_is_as_likely():
    texts, size, draws = list("abcdef"), 2, 3_000
    counts = collections.Counter(
        frozenset(TrainingTexts(texts, None, max_texts=size, seed=seed)) for seed in range(draws)
    )
    pairs = [frozenset(pair) for pair in itertools.combinations(texts, size)]
    expected = draws / len(pairs)
    # 14 degrees of freedom: 36.1 is exceeded once in a thousand times; the seeds are always these.
    assert sum((counts[pair] - expected) ** 2 / expected for pair in pairs) < 36.1
    assert counts.keys() == set(pairs)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_a_vocabulary_is_the_same_bytes_whatever_the_number_of_cores(model_type, monkeypatch):
    texts = [f"wort{number} {number * 7919}" for number in range(300)]
    found = []
    for cores in (1, 2, 7, None):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        found.append(SubwordTokenizer.train(texts, vocab_size=300, model_type=model_type).sha256)
    assert len(set(found)) == 1


@pytest.mark.slow
def test_refuses_a_vocabulary_larger_than_the_texts_allow():
    with pytest.raises(ValueError, match=r"largest possible is (\d+).*vocab_size=8000") as info:
        SubwordTokenizer.train(["hello world"] * 3, vocab_size=8000)
    largest = int(str(info.value).split("possible is ")[1].split(".")[0])
    assert SubwordTokenizer.train(["hello world"] * 3, vocab_size=largest).vocab_size == largest


def test_refuses_a_vocabulary_without_room_for_the_characters():
    with pytest.raises(ValueError, match=r"alone need (\d+).*vocab_size=100"):
        SubwordTokenizer.train(LATIN, vocab_size=100)


@pytest.mark.parametrize("texts", [[], [""], ["  ", ""]])
def test_refuses_texts_without_text(texts):
    with pytest.raises(ValueError, match="`texts` must contain text"):
        SubwordTokenizer.train(texts, vocab_size=300)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocab_size": 0}, "`vocab_size` must be .*Received: 0"),
        ({"vocab_size": 300.0}, "`vocab_size` must be .*Received: 300.0"),
        ({"model_type": "word"}, "`model_type` must be one of .*Received: 'word'"),
        ({"normalization": "nfd"}, "`normalization` must be one of .*Received: 'nfd'"),
        ({"character_coverage": 1.5}, "`character_coverage` must be .*Received: 1.5"),
        ({"max_texts": 0}, "`max_texts` must be .*Received: 0"),
    ],
)
def test_refuses_training_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        SubwordTokenizer.train(LATIN, **{"vocab_size": 300, **arguments})


@pytest.mark.parametrize("texts", ["a text", ["a", None], ["a", 3]])
def test_training_refuses_what_is_not_text(texts):
    with pytest.raises(TypeError, match="`texts` must"):
        SubwordTokenizer.train(texts, vocab_size=300)


def test_an_error_of_the_texts_themselves_comes_through():
    def texts():
        yield "a b c"
        raise KeyError("from the reader")

    with pytest.raises(KeyError, match="from the reader"):
        SubwordTokenizer.train(texts(), vocab_size=300)


def test_save_and_load(tokenizer, tmp_path):
    path = tmp_path / "subwords.model"
    tokenizer.save(path)
    loaded = SubwordTokenizer.load(path)
    assert loaded.sha256 == tokenizer.sha256
    assert loaded.encode(LATIN) == tokenizer.encode(LATIN)
    assert [one.name for one in tmp_path.iterdir()] == ["subwords.model"]


def test_a_copy_is_the_same_vocabulary(tokenizer):
    twin = copy.deepcopy(tokenizer)
    assert twin.model_bytes == tokenizer.model_bytes
    assert twin.encode(LATIN) == tokenizer.encode(LATIN)


def test_save_that_fails_leaves_the_old_file(tokenizer, tmp_path, monkeypatch):
    path = tmp_path / "subwords.model"
    path.write_bytes(b"old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        tokenizer.save(path)
    assert path.read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir()] == ["subwords.model"]


@pytest.mark.parametrize(
    "content",
    [b"", b"garbage " * 20, b"<html>404</html>", bytes(1000), b"\x00\xff\xfe"],
    ids=["empty", "garbage", "html", "zeros", "binary"],
)
def test_load_refuses_a_file_that_is_no_model(tmp_path, content):
    path = tmp_path / "broken.model"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"broken\.model"):
        SubwordTokenizer.load(path)


def test_load_refuses_every_truncation(tokenizer, tmp_path):
    path = tmp_path / "short.model"
    size = len(tokenizer.model_bytes)
    for length in [*range(0, 6000, 37), *range(6000, size, 9973), *range(size - 60, size)]:
        path.write_bytes(tokenizer.model_bytes[:length])
        with pytest.raises(ValueError, match=r"short\.model"):
            SubwordTokenizer.load(path)


def test_load_refuses_a_missing_file_and_a_folder(tmp_path):
    with pytest.raises(ValueError, match=r"absent\.model: cannot read.*No such file"):
        SubwordTokenizer.load(tmp_path / "absent.model")
    with pytest.raises(ValueError, match="cannot read"):
        SubwordTokenizer.load(tmp_path)


def test_load_refuses_other_special_ids(tokenizer, tmp_path):
    path = tmp_path / "subwords.model"
    tokenizer.save(path)
    with pytest.raises(ValueError, match=r"subwords\.model has different special ids.*pad=5"):
        SubwordTokenizer.load(path, special=SpecialIds(pad=5))


@pytest.fixture(scope="module")
def tf():
    pytest.importorskip("tensorflow_text")
    return pytest.importorskip("tensorflow")


def decoded(texts):
    return [text.decode("utf-8") for text in texts.numpy()]


@pytest.mark.parametrize("normalization", ["nfc", "identity", "nfkc"])
def test_graph_equals_python(tf, normalization):
    trained = SubwordTokenizer.train(LATIN, vocab_size=400, normalization=normalization)
    texts = [*TEXTS.values(), *LATIN, *random_texts(count=1000, length=9)]
    ids = trained.encode_tensor(tf.constant(texts))
    assert ids.dtype == tf.int32
    assert ids.to_list() == trained.encode(texts)
    padded = ids.to_tensor(default_value=SPECIAL.pad)
    assert decoded(trained.decode_tensor(padded)) == trained.decode(padded.numpy())
    assert decoded(trained.decode_tensor(ids)) == [trained.normalise(text) for text in texts]


def test_graph_takes_a_hundred_thousand_characters(tokenizer, tf):
    texts = ["ab" * 50_000, "สวัส" * 25_000]
    ids = tokenizer.encode_tensor(tf.constant(texts))
    assert ids.to_list() == tokenizer.encode(texts)
    assert decoded(tokenizer.decode_tensor(ids)) == texts


def test_graph_equals_python_on_any_ids(tokenizer, tf):
    ids = np.random.default_rng(3).integers(0, VOCAB_SIZE, size=(500, 13), dtype="int32")
    assert decoded(tokenizer.decode_tensor(ids)) == tokenizer.decode(ids)


@pytest.mark.slow
def test_graph_works_within_functions_and_pipelines(tf):
    # A new tokenizer, so that its model is first loaded while a graph is traced.
    fresh = SubwordTokenizer.train(LATIN, vocab_size=VOCAB_SIZE)

    def there_and_back(texts):
        return fresh.decode_tensor(fresh.encode_tensor(texts).to_tensor(SPECIAL.pad))

    signature = [tf.TensorSpec([None], tf.string)]
    mapped = tf.data.Dataset.from_tensor_slices(LATIN).batch(4).map(there_and_back)
    assert [text for batch in mapped for text in decoded(batch)] == LATIN
    function = tf.function(there_and_back, input_signature=signature)
    assert decoded(function(tf.constant(LATIN))) == LATIN
    assert function(tf.constant([], tf.string)).shape == (0,)


def test_graph_takes_batches_of_nothing(tokenizer, tf):
    assert tokenizer.encode_tensor(tf.constant([], tf.string)).to_list() == []
    assert tokenizer.decode_tensor(tf.zeros([0, 5], tf.int32)).shape == (0,)
    assert decoded(tokenizer.decode_tensor(tf.zeros([2, 0], tf.int32))) == ["", ""]
    assert decoded(tokenizer.decode_tensor(tf.zeros([2, 3], tf.int32))) == ["", ""]


@pytest.mark.parametrize(
    "content", [b"a\xffb", b"\xed\xa0\x80", b"\xf0\x9f\x98", b"\xc0\x80", b"caf\xe9 noir"]
)
def test_graph_replaces_invalid_utf8(tokenizer, tf, content):
    texts = tokenizer.decode_tensor(tokenizer.encode_tensor(tf.constant([content])))
    assert decoded(texts) == [content.decode("utf-8", errors="replace")]


def test_graph_survives_export(tokenizer, tf, tmp_path):
    module = tf.Module()
    module.tokenizer = tokenizer.graph_tokenizer
    module.encode = tf.function(tokenizer.encode_tensor, input_signature=[tf.TensorSpec([None], tf.string)])
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    assert loaded.encode(tf.constant(LATIN)).to_list() == tokenizer.encode(LATIN)


REAL = [
    *[f"multi30k/val.{language}" for language in ("en", "de", "fr")],
    *[f"newstest/newstest2013.en-de.{language}" for language in ("en", "de")],
]


@pytest.fixture(scope="module")
def multi30k_tokenizer():
    texts = shared_lines("multi30k/train.en") + shared_lines("multi30k/train.de")
    return SubwordTokenizer.train(texts, vocab_size=8000)


@pytest.mark.parametrize("name", REAL)
def test_real_lines_come_back(tokenizer, name):
    lines = shared_lines(name)[:200]
    assert tokenizer.decode(tokenizer.encode(lines)) == [expected(line) for line in lines]


@pytest.mark.very_slow
@pytest.mark.parametrize("name", REAL)
def test_every_real_line_comes_back_and_graph_equals_python(multi30k_tokenizer, tf, name):
    lines = shared_lines(name)
    ids = multi30k_tokenizer.encode(lines)
    assert multi30k_tokenizer.decode(ids) == [expected(line) for line in lines]
    in_graph = multi30k_tokenizer.encode_tensor(tf.constant(lines))
    assert in_graph.to_list() == ids
    assert decoded(multi30k_tokenizer.decode_tensor(in_graph)) == multi30k_tokenizer.decode(ids)


def test_messages_are_read_with_an_older_protobuf():
    program = """
import os
from google.protobuf import runtime_version
runtime_version.MAJOR, runtime_version.MINOR = 6, 33
from keras_transformer.tokenizers.messages import sentencepiece_model_pb2
print(sentencepiece_model_pb2.TrainerSpec.BPE, "TEMPORARILY_DISABLE_PROTOBUF_VERSION_CHECK" in os.environ)
try:  # protobuf is as strict as it was
    runtime_version.ValidateProtobufRuntimeVersion(runtime_version.Domain.PUBLIC, 7, 36, 1, "", "other.proto")
except runtime_version.VersionError:
    print("refused")
"""
    environment = {k: v for k, v in os.environ.items() if k != "TEMPORARILY_DISABLE_PROTOBUF_VERSION_CHECK"}
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    )
    assert result.stdout.split() == ["2", "False", "refused"]
