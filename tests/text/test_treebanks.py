"""Files of trees as parallel text: words and trees, archives, bad trees, refusals."""

import gzip
import logging
import shutil
import zipfile

import pytest

from keras_transformer.text import treebanks
from keras_transformer.text.datasets import load_corpus, load_split, open_dataset
from keras_transformer.text.lines import DataError
from keras_transformer.text.treebanks import read_parses
from keras_transformer.text.trees import write_tree

TREE = "(S (NP (DT the) (NN dog)) (VP (VBZ barks)))"
BAD = "(S (NP (NN Xpd TTD)))"


def write(folder, name, *lines):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "bank", "train.trees", f"(TOP {TREE})", "(S (NP-SBJ (-NONE- *)) (VP", "  (VB go)))")
    write(tmp_path / "bank", "valid.trees", TREE)
    write(tmp_path / "bank", "valid.en", "not the words")
    return tmp_path / "bank"


def test_both_sides_come_from_one_file(folder):
    corpus = load_corpus(str(folder), "en", "trees")
    assert corpus.train.source == ["the dog barks", "go"]
    assert corpus.train.target == [TREE, "(S (VP (VB go)))"]
    assert corpus.validation == (["the dog barks"], [TREE])
    assert corpus.test is None


def test_compressed_files_parts_and_archives(folder, tmp_path):
    (folder / "train.2.trees.gz").write_bytes(gzip.compress(f"{TREE}\n".encode()))
    (folder / "train.trees").rename(folder / "train.1.trees")
    assert load_split(str(folder), "train", "en", "trees").source == ["the dog barks", "go", "the dog barks"]
    with zipfile.ZipFile(tmp_path / "bank.zip", "w") as archive:
        archive.write(folder / "valid.trees", "valid.trees")
    assert load_split(str(tmp_path / "bank.zip"), "valid", "en", "trees").target == [TREE]


def test_the_files_of_a_split_may_stand_in_a_subfolder(folder):
    (folder / "train").mkdir()
    shutil.move(folder / "train.trees", folder / "train" / "wsj_0200.trees")
    write(folder / "train", "wsj_0201.trees", "(S (VP (VB stop)))", *[TREE] * 200, BAD)
    train = load_split(str(folder), "train", "en", "trees").source
    assert train[:3] == ["the dog barks", "go", "stop"]
    assert len(train) == 203


def test_few_bad_training_trees_are_dropped_and_named(folder, caplog, monkeypatch):
    monkeypatch.setattr(treebanks, "_WARNED", set())
    write(folder, "train.trees", *[TREE] * 99, BAD, *[TREE] * 200)
    with caplog.at_level(logging.WARNING):
        corpus = load_corpus(str(folder), "en", "trees")
    assert len(corpus.train.source) == 299
    assert "train.trees: dropped: 1 of 300 trees are bad (line 100: a word has a space in it" in caplog.text
    write(folder, "train.trees", TREE, BAD)
    with pytest.raises(DataError, match=r"train.trees: 1 of 2 trees are bad \(line 2: .*Mend or delete them"):
        load_corpus(str(folder), "en", "trees")


def test_a_bad_validation_tree_is_refused(folder):
    write(folder, "valid.trees", *[TREE] * 500, BAD)
    with pytest.raises(DataError, match="valid.trees: line 501: a word has a space in it"):
        load_corpus(str(folder), "en", "trees")


@pytest.mark.parametrize("packed", [False, True])
def test_the_name_of_the_dataset_makes_no_training_split(folder, tmp_path, packed):
    write(folder, "valid.trees", *[TREE] * 500, BAD)
    named = folder.rename(tmp_path / "train-bank")
    name = str(named)
    if packed:
        (tmp_path / "outer").mkdir()
        named.rename(tmp_path / "outer" / "train-bank")
        name = shutil.make_archive(tmp_path / "train-packed", "zip", tmp_path / "outer")
    with pytest.raises(DataError, match="valid.trees: line 501: a word has a space in it"):
        load_split(name, "valid", "en", "trees")


def test_other_datasets_have_no_trees(folder, tmp_path):
    with pytest.raises(DataError, match="a treebank must be a folder or archive with train.trees and"):
        open_dataset("cldr/en-de", "en", "trees")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no files of trees. Add train.trees and valid.trees"):
        open_dataset(str(tmp_path / "empty"), "en", "trees")
    (folder / "valid.trees").unlink()
    with pytest.raises(DataError, match=r"no validation split. Add valid\.trees \("):
        load_corpus(str(folder), "en", "trees")


@pytest.mark.parametrize("failed", ["", "  ", "(())", "( () )"])
def test_a_line_without_a_tree_is_a_sentence_that_failed(failed, tmp_path):
    path = tmp_path / "parses"
    path.write_text(f"(S (NN a))\n{failed}\n(S (NN b))\n{failed}\n", encoding="utf-8")
    parses = read_parses(path, 4)
    assert [parse and write_tree(parse) for parse in parses] == ["(S (NN a))", None, "(S (NN b))", None]
    if failed.strip():
        with pytest.raises(DataError, match="parses: line 2"):
            read_parses(path, 3)
    else:  # as trees with empty lines between them
        assert [write_tree(parse) for parse in read_parses(path, 2)] == ["(S (NN a))", "(S (NN b))"]


def test_trees_over_several_lines_are_no_failures(tmp_path):
    path = tmp_path / "parses"
    path.write_text("(S (NN a)\n   (NN b))\n\n(S (NN c))\n", encoding="utf-8")
    for number in (2, 4):
        assert len(read_parses(path, number)) == 2
