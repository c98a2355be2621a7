"""Where pairs come from: folders under several names, the built-in corpus, refusals."""

import functools

import pytest

from keras_transformer.data import cldr
from keras_transformer.data.corpus import load_corpus, load_split
from keras_transformer.data.sources import languages_of, open_dataset
from keras_transformer.data.text import DataError


@pytest.fixture
def small_cldr(monkeypatch):
    """The built-in corpus with 200 pairs."""
    monkeypatch.setattr(cldr, "make_pairs", functools.partial(cldr.make_pairs, num_pairs=200))


def write_split(folder, name, number, source="en", target="de"):
    for language in (source, target):
        lines = [f"{name} {i} {language}\n" for i in range(number)]
        (folder / f"{name}.{language}").write_text("".join(lines), encoding="utf-8")


def side(name, number, language):
    return [f"{name} {i} {language}" for i in range(number)]


@pytest.mark.parametrize("name", ["valid", "validation", "val", "dev"])
def test_finds_the_validation_set_under_each_name(tmp_path, name):
    write_split(tmp_path, "train", 5)
    write_split(tmp_path, name, 3)
    corpus = load_corpus(str(tmp_path), "en", "de")
    assert corpus.train == (side("train", 5, "en"), side("train", 5, "de"))
    assert corpus.validation == (side(name, 3, "en"), side(name, 3, "de"))


def test_a_corpus_may_have_no_test_set(tmp_path):
    write_split(tmp_path, "train", 5)
    write_split(tmp_path, "val", 3)
    corpus = load_corpus(str(tmp_path), "en", "de")
    assert corpus.test is None
    assert corpus.test_name == ""


def test_finds_a_test_set_with_a_longer_name(tmp_path):
    for name, number in (("train", 5), ("val", 3), ("test_2016_flickr", 4)):
        write_split(tmp_path, name, number)
    corpus = load_corpus(str(tmp_path), "en", "de")
    assert corpus.test_name == "test_2016_flickr"
    assert corpus.test.source == side("test_2016_flickr", 4, "en")


def test_prefers_plain_test(tmp_path):
    for name in ("train", "val", "test_2016", "test"):
        write_split(tmp_path, name, 2)
    assert load_corpus(str(tmp_path), "en", "de").test_name == "test"


def test_languages_are_the_endings(tmp_path):
    for name in ("train", "val"):
        write_split(tmp_path, name, 2, "en", "fr")
        write_split(tmp_path, name, 2, "en", "de")
    corpus = load_corpus(str(tmp_path), "fr", "de")
    assert corpus.train == (side("train", 2, "fr"), side("train", 2, "de"))


def test_blank_training_pairs_are_left_out_and_counted(tmp_path):
    write_split(tmp_path, "val", 2)
    (tmp_path / "train.en").write_text("a\n\nc\n" + "d\n" * 300, encoding="utf-8")
    (tmp_path / "train.de").write_text("A\nB\n  \n" + "D\n" * 300, encoding="utf-8")
    corpus = load_corpus(str(tmp_path), "en", "de")
    assert corpus.num_blank == 2
    assert corpus.train.source == ["a"] + ["d"] * 300
    assert corpus.train.target == ["A"] + ["D"] * 300


def test_blank_lines_of_a_test_set_stay(tmp_path):
    write_split(tmp_path, "train", 2)
    write_split(tmp_path, "val", 2)
    (tmp_path / "test.en").write_text("a\n\nc\n", encoding="utf-8")
    (tmp_path / "test.de").write_text("A\nB\nC\n", encoding="utf-8")
    assert load_corpus(str(tmp_path), "en", "de").test.source == ["a", "", "c"]
    assert load_split(str(tmp_path), "test", "en", "de").source == ["a", "", "c"]


def test_names_of_splits_are_those_with_the_ending(tmp_path):
    write_split(tmp_path, "train", 1)
    (tmp_path / "notes.txt").write_text("no split\n", encoding="utf-8")
    (tmp_path / "dev.en").mkdir()
    (tmp_path / "eval.2.en").write_text("only one side\n", encoding="utf-8")
    assert open_dataset(str(tmp_path), "en", "de").splits == ("eval.2", "train")


@pytest.mark.parametrize(
    ("asked", "found"),
    [("train", "train"), ("validation", "dev"), ("dev", "dev"), ("test", "test_b")],
)
def test_a_split_is_found_by_its_use_or_its_name(tmp_path, asked, found):
    for number, name in enumerate(("train", "dev", "test_b", "test_c"), start=1):
        write_split(tmp_path, name, number)
    pairs = load_split(str(tmp_path), asked, "en", "de")
    assert pairs.source[0] == f"{found} 0 en"
    assert pairs.target[0] == f"{found} 0 de"


def test_an_unknown_split_is_refused_with_the_known_ones(tmp_path):
    for name in ("train", "val", "test_2016"):
        write_split(tmp_path, name, 1)
    with pytest.raises(DataError, match=r"no split 'test_2017'.*test_2016, train, val"):
        load_split(str(tmp_path), "test_2017", "en", "de")


def test_a_missing_file_is_named(tmp_path):
    write_split(tmp_path, "train", 2)
    write_split(tmp_path, "val", 2)
    (tmp_path / "train.de").unlink()
    with pytest.raises(DataError, match=r"train\.de: no such file"):
        load_corpus(str(tmp_path), "en", "de")


def test_a_missing_side_of_the_validation_set_is_named(tmp_path):
    write_split(tmp_path, "train", 2)
    write_split(tmp_path, "val", 2)
    (tmp_path / "val.de").unlink()
    with pytest.raises(DataError, match=r"val\.de: no such file"):
        load_corpus(str(tmp_path), "en", "de")


def test_files_of_different_length_are_refused_with_both_counts(tmp_path):
    write_split(tmp_path, "val", 2)
    (tmp_path / "train.en").write_text("a\nb\nc\n", encoding="utf-8")
    (tmp_path / "train.de").write_text("a\nb\n", encoding="utf-8")
    with pytest.raises(DataError, match="3 and 2 lines"):
        load_corpus(str(tmp_path), "en", "de")


@pytest.mark.parametrize("name", ["train.en", "val.de", "test.de"])
def test_an_empty_file_is_refused(tmp_path, name):
    for split in ("train", "val", "test"):
        write_split(tmp_path, split, 2)
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(DataError, match=rf"{name}: the file is empty"):
        load_corpus(str(tmp_path), "en", "de")


def test_a_folder_without_validation_set_is_refused_with_the_names_that_would_do(tmp_path):
    write_split(tmp_path, "train", 2)
    with pytest.raises(DataError, match=r"no validation split.*valid\.en.*valid\.de"):
        load_corpus(str(tmp_path), "en", "de")


def test_bytes_that_are_no_utf_8_are_refused_or_replaced_as_asked(tmp_path):
    write_split(tmp_path, "train", 2)
    write_split(tmp_path, "val", 2)
    (tmp_path / "train.de").write_bytes(b"gut\nsch\xf6n\n")
    with pytest.raises(DataError, match=r"train\.de: line 2: byte 4 \(0xf6\)"):
        load_corpus(str(tmp_path), "en", "de")
    corpus = load_corpus(str(tmp_path), "en", "de", on_bad_utf8="replace")
    assert corpus.train.target == ["gut", "sch\N{REPLACEMENT CHARACTER}n"]


@pytest.mark.parametrize("dataset", ["nowhere/at/all", "cldr", "wmt41_translate/de-en"])
def test_a_name_that_is_neither_folder_nor_built_in_is_refused(tmp_path, monkeypatch, dataset):
    monkeypatch.chdir(tmp_path)
    for read in (load_corpus, functools.partial(load_split, split="test")):
        with pytest.raises(DataError, match=rf"{dataset}: no such folder.*cldr/SOURCE-TARGET"):
            read(dataset=dataset, source="en", target="de")


def test_the_built_in_corpus_is_that_of_cldr(small_cldr):
    corpus = load_corpus("cldr/en-de", "en", "de")
    splits = cldr.make_pairs("en", "de")
    for split in ("train", "validation", "test"):
        ours = getattr(corpus, split)
        assert list(zip(ours.source, ours.target, strict=True)) == getattr(splits, split)
    assert corpus.test_name == "test"


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_a_split_of_the_built_in_corpus_is_that_of_the_whole(small_cldr, split):
    whole = load_corpus("cldr/en-de", "en", "de")
    assert load_split("cldr/en-de", split, "en", "de") == getattr(whole, split)


def test_the_built_in_corpus_can_be_turned_round(small_cldr):
    turned = load_corpus("cldr/en-de", "de", "en")
    german, english = (" ".join(texts) for texts in turned.train)
    assert " and " in english
    assert " and " not in german
    assert " und " in german


def test_another_language_than_the_corpus_holds_is_refused():
    with pytest.raises(DataError, match=r"cldr/en-de holds en and de. Received: .*'en'.*'fr'"):
        load_corpus("cldr/en-de", "en", "fr")


@pytest.mark.parametrize("dataset", ["cldr/en", "cldr/en-", "cldr/-de", "cldr/"])
def test_a_bad_name_of_the_built_in_corpus_is_refused_with_the_form(dataset):
    with pytest.raises(DataError, match="named cldr/SOURCE-TARGET"):
        load_corpus(dataset, "en", "de")


def test_an_unknown_locale_is_refused():
    with pytest.raises(ValueError, match="xx"):
        load_corpus("cldr/en-xx", "en", "xx")


def test_an_unknown_split_of_the_built_in_corpus_is_refused_with_the_known_ones():
    with pytest.raises(DataError, match="no split 'dev2'. Known: train, validation, test"):
        load_split("cldr/en-de", "dev2", "en", "de")


@pytest.mark.parametrize(
    ("dataset", "languages"),
    [
        ("cldr/en-de", ("en", "de")),
        ("cldr/en-pt_BR", ("en", "pt_BR")),
        ("cldr/en-pt-BR", ("en", "pt-BR")),
        ("cldr/pt-BR-zh_Hans_SG", ("pt-BR", "zh_Hans_SG")),
        ("data/en-de", None),
    ],
)
def test_a_name_tells_its_languages(dataset, languages):
    assert languages_of(dataset) == languages
