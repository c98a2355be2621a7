"""Where pairs come from: folders under several names, the built-in corpus, refusals."""

import functools
import gzip
import json
import zipfile

import pytest

from keras_transformer.text import cldr
from keras_transformer.text.datasets import (
    check_dataset,
    dataset_names,
    languages_of,
    load_corpus,
    load_split,
    open_dataset,
    open_split,
)
from keras_transformer.text.lines import DataError
from keras_transformer.text.parallel import decode_blocks


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
    with pytest.raises(DataError, match=r"no validation split.*valid\.en.*valid\.de.* splits are: train$"):
        load_corpus(str(tmp_path), "en", "de")
    (tmp_path / "train.en").unlink()
    (tmp_path / "train.de").unlink()
    with pytest.raises(DataError, match=r"no training split. Add train\.en and train\.de, .*that has them$"):
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


def test_a_misspelt_folder_is_answered_with_a_folder_or_archive_beside_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpora/mine").mkdir(parents=True)
    (tmp_path / "Text/mine").mkdir(parents=True)
    (tmp_path / "corpora/wmt.tgz").touch()
    (tmp_path / "corpora/main").touch()  # neither
    for dataset, meant in (
        ("corpra", "corpora"),
        ("corpra/", "corpora"),
        ("corpora/mien", "corpora/mine"),
        ("Text/mien", "Text/mine"),  # also the form of a name of the Hugging Face Hub
        ("corpora/wmt.tg", "corpora/wmt.tgz"),
        (f"{tmp_path}/corpra", f"{tmp_path}/corpora"),
    ):
        with pytest.raises(DataError) as info:
            check_dataset(dataset)
        assert str(info.value).startswith(f"{dataset}: no such folder. Did you mean {meant}? A dataset is")
    with pytest.raises(DataError, match="no such folder. A dataset is"):
        check_dataset("nowhere")


@pytest.mark.slow
def test_the_built_in_corpus_is_that_of_cldr(small_cldr):
    corpus = load_corpus("cldr/en-de", "en", "de")
    splits = cldr.make_pairs("en", "de")
    for split in ("train", "validation", "test"):
        ours = getattr(corpus, split)
        assert list(zip(ours.source, ours.target, strict=True)) == getattr(splits, split)
    assert corpus.test_name == "test"


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_a_split_of_the_built_in_corpus_is_that_of_the_whole(small_cldr, split):
    whole = load_corpus("cldr/en-de", "en", "de")
    assert load_split("cldr/en-de", split, "en", "de") == getattr(whole, split)


@pytest.mark.slow
def test_the_built_in_corpus_can_be_turned_round(small_cldr):
    turned = load_corpus("cldr/en-de", "de", "en")
    german, english = (" ".join(texts) for texts in turned.train)
    assert " and " in english
    assert " and " not in german
    assert " und " in german


def test_another_language_than_the_corpus_holds_is_refused():
    with pytest.raises(DataError, match=r"cldr/en-de: the languages are en and de. Received: .*'en'.*'fr'"):
        load_corpus("cldr/en-de", "en", "fr")


@pytest.mark.parametrize("dataset", ["cldr/en", "cldr/en-", "cldr/-de", "cldr/"])
def test_a_bad_name_of_the_built_in_corpus_is_refused_with_the_form(dataset):
    with pytest.raises(DataError, match="must be cldr/SOURCE-TARGET"):
        load_corpus(dataset, "en", "de")


def test_an_unknown_locale_is_refused():
    with pytest.raises(ValueError, match="xx"):
        load_corpus("cldr/en-xx", "en", "xx")


def test_an_unknown_split_of_the_built_in_corpus_is_refused_with_the_known_ones():
    with pytest.raises(DataError, match="no split 'dev2'. Choose from: train, validation, test"):
        load_split("cldr/en-de", "dev2", "en", "de")


@pytest.mark.parametrize(
    ("dataset", "languages"),
    [
        ("cldr/en-de", ("en", "de")),
        ("cldr/en-pt_BR", ("en", "pt_BR")),
        ("cldr/en-pt-BR", ("en", "pt-BR")),
        ("cldr/pt-BR-zh_Hans_SG", ("pt-BR", "zh_Hans_SG")),
        ("cldr/en-es_419", ("en", "es_419")),
        ("cldr/ar-001-en_150", ("ar-001", "en_150")),
        ("data/en-de", None),
    ],
)
def test_a_name_tells_its_languages(dataset, languages):
    assert languages_of(dataset) == languages


@pytest.mark.slow
@pytest.mark.usefixtures("small_cldr")
def test_the_built_in_corpus_comes_in_blocks_and_tells_its_version():
    dataset = open_dataset("cldr/en-de", "de", "en")
    expected = load_split("cldr/en-de", "train", "de", "en")
    blocks = list(dataset.blocks("train", 7))
    assert {len(block.source) for block in blocks[:-1]} == {7}
    assert decode_blocks(blocks, "it") == expected
    fingerprint = json.loads(json.dumps(dataset.fingerprint("train")))
    assert fingerprint["languages"] == ["de", "en"]
    assert fingerprint["Babel"][0].isdigit()
    assert fingerprint != dataset.fingerprint("test")


@pytest.fixture
def three(tmp_path):
    """Three datasets: a has no held-out set, b has both, c has other ones."""
    for name, splits in {"a": {"train": 5}, "b": {"train": 3, "dev": 2, "test_x": 2}}.items():
        (tmp_path / name).mkdir()
        for split, number in splits.items():
            write_split(tmp_path / name, split, number)
    with zipfile.ZipFile(tmp_path / "c.zip", "w") as archive:
        for split, number in {"Books.de-en": 4, "valid": 1, "test": 1}.items():
            for language in ("en", "de"):
                text = "".join(f"{line}\n" for line in side(split, number, language))
                archive.writestr(f"{split}.{language}.gz", gzip.compress(text.encode()))
    return [str(tmp_path / name) for name in ("a", "b", "c.zip")]


def test_several_datasets_are_one_after_the_other(three):
    corpus = load_corpus(",".join(three), "en", "de")
    assert corpus.sizes == (5, 3, 4)
    for texts, language in zip(corpus.train, ("en", "de"), strict=True):
        parts = (("train", 5), ("train", 3), ("Books.de-en", 4))
        assert texts == [line for name, number in parts for line in side(name, number, language)]
    assert corpus.validation.source == side("dev", 2, "en")
    assert corpus.test.source == side("test_x", 2, "en")
    assert corpus.test_name == "test_x"


def test_held_out_sets_come_from_the_first_dataset_that_has_them(three):
    corpus = load_corpus(f"{three[2]}, {three[1]}", "en", "de")
    assert corpus.validation.source == side("valid", 1, "en")
    assert corpus.test_name == "test"
    found = open_split(",".join(three), "validation", "en", "de")
    assert (found.dataset.name, found.name) == (three[1], "dev")
    assert load_split(",".join(three), "valid", "en", "de").source == side("dev", 2, "en")
    with pytest.raises(DataError, match=r"no split 'eval'. Choose from: train, dev, test_x, Books, test"):
        open_split(",".join(three), "eval", "en", "de")


def test_a_further_dataset_may_hold_nothing_but_held_out_sets(tmp_path, three):
    (tmp_path / "held").mkdir()
    write_split(tmp_path / "held", "valid", 3)
    corpus = load_corpus(f"{three[0]},{tmp_path / 'held'}", "en", "de")
    assert corpus.sizes == (5, 0)
    assert corpus.validation.source == side("valid", 3, "en")
    with pytest.raises(DataError, match="no training split. Add train.en and train.de"):
        load_corpus(f"{tmp_path / 'held'},{tmp_path / 'held'}", "en", "de")


@pytest.mark.parametrize("blank", ["valid", "test"])
def test_a_held_out_set_without_text_is_refused(tmp_path, blank):
    for name in ("train", "valid", "test"):
        write_split(tmp_path, name, 2)
    for language in ("en", "de"):
        (tmp_path / f"{blank}.{language}").write_text("\n\n", encoding="utf-8")
    with pytest.raises(DataError, match=rf"{blank}\.en and .*{blank}\.de: no line has text on both sides"):
        load_corpus(str(tmp_path), "en", "de")


def test_names_are_parted_by_commas():
    assert dataset_names("a") == ["a"]
    assert dataset_names("a, b/c ,d") == ["a", "b/c", "d"]
    for text in ("", "a,", "a,,b"):
        with pytest.raises(ValueError, match=f"`dataset` must be a name.*Received: '{text}'"):
            dataset_names(text)
