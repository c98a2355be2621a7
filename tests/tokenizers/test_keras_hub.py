"""Vocabularies of keras-hub: its ids, in Python and in the graph; files, runs, exports; what is refused."""

import io
import json
import pathlib
import pickle

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from saved_models import fresh_process

import keras_transformer as kt
from keras_transformer.config.settings import SpecialIds, override
from keras_transformer.tokenizers.keras_hub import KerasHubTokenizer, tokenizer_from_keras_hub
from keras_transformer.tokenizers.tokenizer_pair import Tokenizers, load_tokenizer, read_tokenizers

pytestmark = pytest.mark.slow

hub = pytest.importorskip("keras_hub")

ROOT = pathlib.Path(__file__).resolve().parents[2]
SPECIAL = ["[PAD]", "[UNK]", "[START]", "[END]"]  # in the order of keras-hub's tutorial on translation
ODD = [
    "", " ", "  leading", "trailing  ", "two  spaces   and more", "tab\tand\nnewline",
    "no\u00a0break\u2009thin\u3000",
    "It's 12345,67 € and I'LL don't", "3.14159 1,000,000 ٣٤٥ ² ½ Ⅷ", "naïve café Å ạ̈ e\u0301 ﬁ ㎏",
    "👩‍👩‍👧 🇩🇪 👍🏽 🙂🙂", "東京タワーと日本語", "สวัสดีชาวโลก ᎣᏏᏲ שָׁלוֹם مُحَمَّد 한국어",
    "<s> </s> <pad> <unk> [UNK] [START] [END] [PAD] <|endoftext|> <bos> ##a ⁇", "a▁b ▁",
    "\ue000\U0010fffd\ufffe",
    "word" * 40, "3 hours ago", "Monday, January 5", "Wort und word",
    "Straße “quoted” – dash… (x+y)^2 = 50% @home #1 C:\\ a_b",
]  # fmt: skip


@pytest.fixture(scope="module")
def texts():
    pages = sorted((ROOT / "docs").glob("*.md"))  # sentences, tables, code
    lines = [line for page in pages for line in page.read_text(encoding="utf-8").splitlines()]
    return [*ODD, *lines[::12]]


def byte_pairs(texts, **options):
    """keras-hub's tokenizer with merges of frequent pairs, learned by another library."""
    tokenizers = pytest.importorskip("tokenizers")
    learned = tokenizers.Tokenizer(tokenizers.models.BPE())
    learned.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    learned.train_from_iterator(texts, trainer)
    model = json.loads(learned.to_str())["model"]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    return hub.tokenizers.BytePairTokenizer(model["vocab"], merges, **options)


def word_pieces(texts, **options):
    characters = sorted({x for text in texts for x in text if x.isprintable() and x != " "} - {"#"})
    words = sorted({word for text in texts for word in text.split() if word.isalpha()})
    pieces = [*characters, *(f"##{x}" for x in characters if x.isalnum()), *words, "##en", "##ing"]
    vocabulary = list(dict.fromkeys([*SPECIAL, *pieces]))
    return hub.tokenizers.WordPieceTokenizer(vocabulary, **options)


def proto(texts, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, vocab_size=400, minloglevel=2, **options
    )
    return model.getvalue()


WORD_ROLES = {"pad": "[PAD]", "bos": "[START]", "eos": "[END]"}
# Tokenizer, special tokens, the first ids of keras-hub's vocabulary here, and how far the others move.
KINDS = {
    "byte pairs": (byte_pairs, {"eos": "<|endoftext|>"}, {0: 2, -1: 3}, 3),
    "byte pairs, prefix": (
        lambda texts: byte_pairs(texts, add_prefix_space=True), {"unk": "<|endoftext|>"}, {0: 3}, 3,
    ),
    "word pieces": (word_pieces, WORD_ROLES, {0: 0, 1: 3, 2: 1, 3: 2}, 0),
    "word pieces, folded": (
        lambda texts: word_pieces(texts, lowercase=True, strip_accents=True, split_on_cjk=False),
        {}, {0: 4, 1: 3, 2: 5, 3: 6}, 3,
    ),
    "unigram": (lambda texts: hub.tokenizers.SentencePieceTokenizer(proto(texts)), {}, {0: 3, 1: 1, 2: 2}, 1),
    "bpe": (
        lambda texts: hub.tokenizers.SentencePieceTokenizer(
            proto(texts, model_type="bpe", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
        ),
        {}, {0: 0, 1: 2, 2: 3}, 1,
    ),
}  # fmt: skip


SLOW = ("byte pairs, prefix", "word pieces, folded", "unigram")


@pytest.fixture(
    scope="module", params=[pytest.param(x, marks=pytest.mark.very_slow if x in SLOW else ()) for x in KINDS]
)
def pair(request, texts):
    """keras-hub's tokenizer, ours, the ids of keras-hub in a graph, a function from such ids to ours."""
    make, roles, first, shift = KINDS[request.param]
    theirs = make(texts)
    # As in `Dataset.map`: byte pairs have another implementation for eager calls, with other ids.
    tokenize = tf.function(theirs.tokenize, input_signature=[tf.TensorSpec([None], tf.string)])
    ids = tokenize(tf.constant(texts)).to_list()
    return (
        theirs,
        tokenizer_from_keras_hub(theirs, **roles),
        ids,
        lambda row: [first.get(i, i + shift) for i in row],
    )


def test_the_ids_are_those_of_keras_hub(pair, texts):
    theirs, ours, ids, moved = pair
    wanted = [moved(row) for row in ids]
    assert ours.encode_tensor(tf.constant(texts)).to_list() == wanted
    if not isinstance(theirs, hub.tokenizers.BytePairTokenizer):
        # SentencePiece in Python and in a graph may choose different segmentations of equal probability.
        wanted = [moved(np.array(row).tolist()) for row in theirs(texts)]
    assert ours.encode(texts) == wanted
    assert ours.encode([]) == []
    assert max(map(max, filter(None, wanted))) < ours.vocab_size
    assert ours.special == SpecialIds()
    assert not {0, 1, 2} & {number for row in wanted for number in row}


def test_the_decoded_text_is_that_of_keras_hub(pair, texts):
    theirs, ours, ids, moved = pair
    wanted = tf.function(theirs.detokenize)(tf.ragged.constant(ids, tf.int32, ragged_rank=1)).numpy()
    wanted = [text.decode() for text in wanted]
    if getattr(theirs, "add_prefix_space", False):
        wanted = [text.removeprefix(" ") for text in wanted]
    rows = [moved(row) for row in ids]
    assert ours.decode(rows) == wanted
    assert ours.decode([]) == []
    padded = tf.ragged.constant([[1, *row, 2] for row in rows], tf.int32, ragged_rank=1).to_tensor()
    assert [text.decode() for text in ours.decode_tensor(padded).numpy()] == wanted
    assert [ours.normalise(text) for text in texts[:3]] == wanted[:3]


def test_a_saved_vocabulary_is_loaded_and_sent_to_other_processes(pair, texts, tmp_path):
    _, ours, *_ = pair
    ours.save(tmp_path / "tokenizer.model")
    for again in (load_tokenizer(tmp_path / "tokenizer.model"), pickle.loads(pickle.dumps(ours))):
        assert type(again) is type(ours)
        assert again.sha256 == ours.sha256
        assert again.entries == ours.entries
    assert len(set(ours.entries)) == ours.vocab_size
    for text in ("Wort und word", "3 hours ago"):
        spelled = "".join(ours.pieces([text])[0]).replace("▁", " ").strip().casefold()
        assert spelled == text.casefold()


def test_bytes_and_unknown_words():
    vocabulary = {token: number for number, token in enumerate(["a", "b", "ab", "Ġ"])}
    ours = tokenizer_from_keras_hub(hub.tokenizers.BytePairTokenizer(vocabulary, ["a b"]))
    assert ours.encode(["abx ab"]) == [[6, 3, 7, 6]]  # the vocabulary lacks the byte of x
    assert ours.pieces(["ab ab"]) == [["ab", "▁", "ab"]]
    assert [ours.has_own_token(x) for x in "ax"] == [True, False]
    assert ours.is_fallback([6, 3]) == [False, False]
    assert ours.sample(["ab"], dropout=0, seed=1) == [[6]]
    with pytest.raises(ValueError, match="one segmentation only: `dropout` must be 0"):
        ours.sample(["ab"], dropout=0.1, seed=1)


def test_a_sentencepiece_model_with_our_special_ids_stays_as_it_is(texts):
    model = proto(texts, pad_id=0, bos_id=1, eos_id=2, unk_id=3)
    theirs = hub.tokenizers.SentencePieceTokenizer(model)
    ours = tokenizer_from_keras_hub(theirs)
    assert ours.model_bytes == model
    assert ours.encode(texts) == [np.array(row).tolist() for row in theirs(texts)]
    assert ours.normalization == "nfkc"  # SentencePiece's name of it is `nmt_nfkc`


class OwnWords(hub.tokenizers.WordPieceTokenizer):
    def tokenize(self, inputs):
        return super().tokenize(inputs)


WORDS = [*SPECIAL, "a", "pad", "<pad>"]
REFUSED = [
    (lambda: object(), {}, TypeError, "Only tokenizers of keras-hub.*Received: object"),
    (lambda: hub.tokenizers.ByteTokenizer(), {}, TypeError, "Received: ByteTokenizer"),
    (lambda: OwnWords(WORDS), {}, TypeError, "OwnWords tokenizes in its own way: it overrides tokenize"),
    (lambda: hub.tokenizers.WordPieceTokenizer(WORDS, sequence_length=7), {}, ValueError, "`sequence_len.*7"),
    (lambda: hub.tokenizers.WordPieceTokenizer(WORDS, split=False), {}, ValueError, "`split`.*True.*False"),
    (
        lambda: hub.tokenizers.WordPieceTokenizer(WORDS, special_tokens_in_strings=True), {},
        ValueError, "`special_tokens_in_strings` of the tokenizer must be False",
    ),
    (lambda: hub.tokenizers.WordPieceTokenizer(WORDS), {"pad": "[X]"}, ValueError, "`pad` must be.*X"),
    (lambda: hub.tokenizers.WordPieceTokenizer(WORDS), {}, ValueError, "pass pad='<pad>'"),
    (
        lambda: hub.tokenizers.WordPieceTokenizer(WORDS), {"pad": "pad"},
        ValueError, r"'pad' must be one that no text contains, like '\[pad\]'",
    ),
    (
        lambda: hub.tokenizers.WordPieceTokenizer(WORDS), {"pad": "[PAD]", "bos": "[PAD]"},
        ValueError, "four different tokens",
    ),
    (
        lambda: hub.tokenizers.WordPieceTokenizer(WORDS), {"pad": "[PAD]", "unk": "[END]"},
        ValueError, r"`unk` must be the `oov_token` '\[UNK\]'",
    ),
    (lambda: hub.tokenizers.BytePairTokenizer(), {}, ValueError, "No vocabulary has been set"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "roles", "error", "message"), REFUSED)
def test_what_has_no_counterpart_is_refused_in_one_line(make, roles, error, message):
    with pytest.raises(error, match=message) as info:
        tokenizer_from_keras_hub(make(), **roles)
    if "No vocabulary" not in message:
        assert "\n" not in str(info.value)


@pytest.mark.parametrize(
    ("training", "options", "roles", "message"),
    [
        ({}, {"add_eos": True}, {}, "`add_eos` of the tokenizer must be False"),
        ({}, {}, {"bos": "<s>"}, r"names its special tokens itself. Received: \['bos'\]"),
        ({"add_dummy_prefix": False}, {}, {}, "`add_dummy_prefix` of the SentencePiece model must be True"),
        ({"remove_extra_whitespaces": False}, {}, {}, "`remove_extra_whitespaces` .* must be True"),
        ({"model_type": "char"}, {}, {}, r"one of \['bpe', 'unigram'\]. Received: 'char'"),
        ({"user_defined_symbols": ["<pad>"]}, {}, {}, "has a piece '<pad>' that is not its pad token"),
    ],
)
def test_other_sentencepiece_models_are_refused_in_one_line(texts, training, options, roles, message):
    theirs = hub.tokenizers.SentencePieceTokenizer(proto(texts, **training), **options)
    with pytest.raises(ValueError, match=message):
        tokenizer_from_keras_hub(theirs, **roles)


@pytest.mark.parametrize("change", [{"kind": "ByteTokenizer"}, {"vocabulary": ["a"] * 9}, {"options": {}}])
def test_a_damaged_vocabulary_is_refused_by_name(change, tmp_path):
    ours = tokenizer_from_keras_hub(hub.tokenizers.WordPieceTokenizer([*SPECIAL, "a"]))
    path = tmp_path / "tokenizer.model"
    path.write_text(json.dumps(json.loads(ours.model_bytes) | change))
    with pytest.raises(ValueError, match=r"tokenizer\.model: not a vocabulary of keras-hub, or damaged"):
        load_tokenizer(path)


def test_keras_hub_must_be_installed(monkeypatch):
    ours = tokenizer_from_keras_hub(hub.tokenizers.WordPieceTokenizer([*SPECIAL, "a"]))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=r"mine needs the extra 'keras-hub' .*: pip install '.*\[keras-hub\]'"
    ):
        KerasHubTokenizer(ours.model_bytes, name="mine")


def test_an_unconverted_tokenizer_is_refused_with_the_remedy():
    theirs = hub.tokenizers.WordPieceTokenizer([*SPECIAL, "a"])
    with pytest.raises(TypeError, match=r"Convert keras-hub's WordPieceTokenizer first: .*from_keras_hub"):
        kt.encode_pairs(["a"], ["a"], theirs)
    with pytest.raises(TypeError, match="Convert keras-hub's WordPieceTokenizer first"):
        kt.Translator(None, Tokenizers(theirs, theirs))


# Runs.

IN_A_PROCESS = """
import json, sys
import tensorflow as tf
import tensorflow_text
loaded = tf.saved_model.load(sys.argv[1])
found = loaded.signatures["serving_default"](text=tf.constant(json.loads(sys.argv[2])))
assert not {"keras_transformer", "keras_hub"} & sys.modules.keys()
print(json.dumps([text.decode() for text in found["translation"].numpy()]))
"""


def small_config(tokenizer, dataset):
    sizes = {"source_vocab_size": tokenizer.vocab_size, "target_vocab_size": tokenizer.vocab_size}
    changes = ["model.d_model=16", "model.d_ff=16", "model.key_dim=8", "data.batch_tokens=1024"]
    return override(kt.preset("demo", **sizes), [*changes, "training.max_steps=2", f"data.dataset={dataset}"])


@pytest.mark.very_slow
@pytest.mark.parametrize("pair", ["byte pairs", "word pieces", "bpe"], indirect=True)
def test_a_run_is_prepared_trained_and_exported_with_it(pair, texts, tmp_path, request):
    _, ours, *_ = pair
    ours.save(tmp_path / "vocabulary")
    (tmp_path / "corpus").mkdir()
    lines = [text for text in texts[len(ODD) :] if text.strip()][:100]
    for split, part in (("train", lines), ("valid", lines[:5]), ("test", lines[:5])):
        for language in ("en", "de"):
            (tmp_path / "corpus" / f"{split}.{language}").write_text("".join(f"{x}\n" for x in part))
    given = read_tokenizers(tmp_path / "vocabulary")
    # A process of its own for one kind: each takes seconds to import keras-hub.
    workers = int("byte pairs]" in request.node.name)
    folder = tmp_path / "prepared"
    prepared = kt.prepare(
        small_config(ours, tmp_path / "corpus"), folder, tokenizers=given, num_workers=workers
    )
    assert prepared.load_tokenizers().source.sha256 == ours.sha256
    kt.train(small_config(ours, folder), tmp_path / "run")
    translator = kt.Translator.load(tmp_path / "run")
    lines = ["3 hours ago", "Monday,  January 5", "x² = 🙂"]
    wanted = translator.translate(lines)
    assert any(wanted)
    exported = translator.export(tmp_path / "served", warmup=False, with_ids=False)
    found = json.loads(fresh_process("-c", IN_A_PROCESS, exported.path, json.dumps(lines)))
    assert found == wanted
