"""The closed vocabulary of tree symbols: its order, its file, what it refuses."""

import json
import pickle

import pytest
import tensorflow as tf

from keras_transformer.config.settings import SpecialIds
from keras_transformer.text.lines import DataError
from keras_transformer.tokenizers import load_tokenizer
from keras_transformer.tokenizers.symbols import TreeTokenizer

TREES = [
    "(S (NP (DT the) (NN dog)) (VP (VBZ barks)))",
    "(S (NP (NP (NN man)) (PP (IN with) (NP (NNS dogs)))))",
]


@pytest.fixture
def symbols():
    return TreeTokenizer.train(TREES)


def test_ids_by_hand(symbols):
    # After four special ids: XX, then the opening and the closing brackets of NP, PP, S and VP.
    assert symbols.symbols[4:] == ["XX", "(NP", "(PP", "(S", "(VP", ")NP", ")PP", ")S", ")VP"]
    assert symbols.vocab_size == 13
    assert symbols.word_ids == [4]
    assert symbols.brackets == [(5, 9), (6, 10), (7, 11), (8, 12)]
    assert symbols.encode(TREES[:1]) == [[7, 5, 4, 4, 9, 8, 4, 12, 11]]


def test_symbols_come_back_without_special_ids(symbols):
    row = symbols.encode(TREES[:1])[0]
    special = symbols.special
    assert symbols.decode([[special.bos, *row, special.eos, special.pad]]) == [
        "(S (NP XX XX )NP (VP XX )VP )S"
    ]
    padded = tf.constant([[*row, special.eos, special.pad]], tf.int32)
    assert symbols.decode_tensor(padded).numpy()[0].decode() == symbols.decode([row])[0]


def test_symbols_are_encoded_as_themselves(symbols):
    rows = symbols.encode(TREES)
    assert symbols.encode(symbols.decode(rows)) == rows
    assert symbols.encode(["XX"]) == [[4]]  # a tree that is a word


def test_kept_tags_are_the_symbols_of_words():
    tagged = TreeTokenizer.train(TREES, keep_tags=True)
    assert tagged.keep_tags
    assert tagged.decode(tagged.encode(TREES[:1])) == ["(S (NP DT NN )NP (VP VBZ )VP )S"]
    assert [tagged.symbols[number] for number in tagged.word_ids] == ["DT", "IN", "NN", "NNS", "VBZ"]


def test_the_order_of_the_trees_does_not_matter(symbols):
    assert TreeTokenizer.train(TREES[::-1]).model_bytes == symbols.model_bytes


def test_an_unseen_label_is_the_unknown_id(symbols):
    assert symbols.encode(["(S (ADVP (RB so)))"])[0][1:4] == [3, 4, 3]


def test_what_was_decoded_with_the_unknown_id_is_encoded_again(symbols):
    (ids,) = symbols.encode(TREES[:1])
    ids[1] = symbols.special.unk
    (text,) = symbols.decode([ids])
    assert "⁇" in text.split()
    assert symbols.encode([text]) == [ids]


def test_blank_lines_have_no_ids(symbols):
    assert symbols.encode([""]) == [[]]


@pytest.mark.parametrize("text", ["(S (NP (DT the)", "(S (NP (DT the", "the dog barks"])
def test_a_text_that_is_no_tree_is_refused(symbols, text):
    with pytest.raises(DataError):
        symbols.encode([text])


def test_a_saved_vocabulary_is_the_same(symbols, tmp_path):
    symbols.save(tmp_path / "tokenizer.target.model")
    loaded = load_tokenizer(tmp_path / "tokenizer.target.model")
    assert isinstance(loaded, TreeTokenizer)
    assert loaded.sha256 == symbols.sha256
    assert pickle.loads(pickle.dumps(loaded)).entries == symbols.entries


def test_special_ids_may_stand_in_another_order():
    special = SpecialIds(pad=3, bos=0, eos=1, unk=2)
    other = TreeTokenizer.train(TREES, special=special)
    assert other.encode(["(ZZ (NN dog))"]) == [[2, 4, 2]]
    with pytest.raises(ValueError, match="different special ids"):
        TreeTokenizer(other.model_bytes)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda lines: lines[:-2] + [""], "damaged or truncated: it has 12 symbols and states 13"),
        (lambda lines: [lines[0][:9], *lines[1:]], "not a vocabulary of tree symbols"),
        (lambda lines: [lines[0], "(NP", *lines[2:]], "each label needs one opening and one closing"),
        (lambda lines: [*lines[:-2], ")QP", ""], "each label needs one opening and one closing"),
        (lambda lines: [json.dumps({"format": "tree symbols 1"}), *lines[1:]], "not a vocabulary of tree"),
    ],
)
def test_damage_is_refused(symbols, damage, message):
    lines = symbols.model_bytes.decode().split("\n")
    with pytest.raises(ValueError, match=message):
        TreeTokenizer("\n".join(damage(lines)).encode(), name="FILE")
