"""Which files of a folder are a split: names, compression, parts, other languages, refusals."""

import gzip
import json
import lzma
import os

import pytest

from keras_transformer.text.datasets import load_corpus
from keras_transformer.text.folders import FolderDataset, write_corpus
from keras_transformer.text.lines import DataError
from keras_transformer.text.parallel import decode_blocks

PACKERS = {".gz": gzip.compress, ".xz": lzma.compress}


def write(folder, *names):
    """Writes files of which each holds its own name; `.en` and `.de` of one split are parallel."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        stem, packer = name, bytes
        for ending, pack in PACKERS.items():
            if name.endswith(ending):
                stem, packer = name.removesuffix(ending), pack
        text = f"{stem} 1\t{stem} 2\n" if stem.endswith(".tsv") else f"{stem}\n"
        path.write_bytes(packer(text.encode()))


def read(folder, split, source="en", target="de"):
    pairs = decode_blocks(FolderDataset(folder, source, target).blocks(split), "it")
    return pairs.source, pairs.target


# files: (source texts, target texts) of the training split
TRAINING = [
    (["train.en", "train.de"], ["train.en"], ["train.de"]),
    (["train.en.gz", "train.de.xz"], ["train.en"], ["train.de"]),
    (["train.en-de.en", "train.en-de.de"], ["train.en-de.en"], ["train.en-de.de"]),
    (["train.de-en.en.xz", "train.de-en.de.xz"], ["train.de-en.en"], ["train.de-en.de"]),
    (["train.tsv"], ["train.tsv 1"], ["train.tsv 2"]),
    (["train.tsv.gz"], ["train.tsv 1"], ["train.tsv 2"]),
    (["train.en-de.tsv"], ["train.en-de.tsv 1"], ["train.en-de.tsv 2"]),
    (["train.de-en.tsv.xz"], ["train.de-en.tsv 2"], ["train.de-en.tsv 1"]),
    (
        ["train/b.en", "train/b.de", "train/a.de-en.en", "train/a.de-en.de", "train/c.tsv", "train/README"],
        ["a.de-en.en", "b.en", "c.tsv 1"],
        ["a.de-en.de", "b.de", "c.tsv 2"],
    ),
    (
        [f"train.{number}.{language}" for number in (10, 9, 1) for language in ("en", "de")],
        ["train.1.en", "train.9.en", "train.10.en"],
        ["train.1.de", "train.9.de", "train.10.de"],
    ),
    (
        ["train-01.en.gz", "train-01.de.gz", "train-00.en", "train-00.de"],
        ["train-00.en", "train-01.en"],
        ["train-00.de", "train-01.de"],
    ),
    (
        ["Europarl.de-en.en", "Europarl.de-en.de", "Books.de-en.en", "Books.de-en.de", "LICENSE", "README"],
        ["Books.de-en.en", "Europarl.de-en.en"],
        ["Books.de-en.de", "Europarl.de-en.de"],
    ),
    (
        ["train/x-v7.de-en.en", "train/x-v7.de-en.de", "train/x-v7.fr-en.en", "train/x-v7.fr-en.fr"],
        ["x-v7.de-en.en"],
        ["x-v7.de-en.de"],
    ),
    (
        ["train.fr-en.tsv", "train.de-fr.de", "train.de-fr.fr", "train.en", "train.de", "train.fr"],
        ["train.en"],
        ["train.de"],
    ),
]


@pytest.mark.parametrize(("names", "source", "target"), TRAINING)
def test_the_training_split_is_found(tmp_path, names, source, target):
    write(tmp_path, *names)
    write(tmp_path, "valid.en", "valid.de", "test.en", "test.de")
    if any("/" in name for name in names):
        source, target = ([f"train/{text}" for text in side] for side in (source, target))
    assert read(tmp_path, "train") == (source, target)
    assert {"test", "train", "valid"} <= set(FolderDataset(tmp_path, "en", "de").splits)


@pytest.mark.parametrize(("names", "source", "target"), TRAINING[:4] + TRAINING[6:8])
def test_the_languages_may_be_asked_for_in_the_other_order(tmp_path, names, source, target):
    write(tmp_path, *names)
    assert read(tmp_path, "train", "de", "en") == (target, source)


def test_what_macos_puts_into_archives_is_no_text(tmp_path):
    for name in ("Europarl.en", "Europarl.de", "dev.en", "dev.de"):
        for path in (tmp_path / name, tmp_path / f"._{name}", tmp_path / "__MACOSX" / f"._{name}",
                     tmp_path / "__MACOSX" / name, tmp_path / ".git" / name):  # fmt: skip
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"a\n" if path == tmp_path / name else b"\x00\xff\n")
    found = FolderDataset(tmp_path, "en", "de")
    assert found.splits == ("Europarl", "dev", "train")
    assert [file.paths[0].name for file in found.files("train")] == ["Europarl.en"]
    assert found.training_names == ["Europarl"]


def test_languages_may_hold_a_hyphen(tmp_path):
    write(tmp_path, "train.pt-BR-zh-Hans.pt-BR", "train.pt-BR-zh-Hans.zh-Hans")
    assert read(tmp_path, "train", "zh-Hans", "pt-BR")[0] == ["train.pt-BR-zh-Hans.zh-Hans"]


@pytest.mark.parametrize(
    ("names", "split"),
    [
        (["test.2016.en", "test.2016.de", "test.2017.en", "test.2017.de"], "test.2017"),
        (["newstest-2013.en", "newstest-2013.de"], "newstest-2013"),
        (["dev.en-de.en", "dev.en-de.de"], "dev"),
        (["valid/a.en", "valid/a.de"], "valid"),
        (["test.tsv"], "test"),
    ],
)
def test_other_splits_are_found_by_name_and_never_joined(tmp_path, names, split):
    write(tmp_path, *names, "train.en", "train.de")
    (source,), (target,) = read(tmp_path, split)
    assert split in source
    assert split in target
    assert split in FolderDataset(tmp_path, "en", "de").splits


@pytest.mark.parametrize(
    "name", ["valid", "val_2", "dev2010", "devset", "test", "Test", "newstest2013", "evaluation"]
)
def test_a_held_out_set_is_never_trained_on_for_want_of_another(tmp_path, name):
    write(tmp_path, f"{name}.en", f"{name}.de")
    with pytest.raises(DataError, match=f"no split 'train'. Choose from: {name}"):
        read(tmp_path, "train")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["train.en"], r"train\.de: no such file. It must contain the other side of train\.en"),
        (["train.de.gz"], r"train\.en: no such file. It must contain the other side of train\.de\.gz"),
        (["train.de-en.en"], r"train\.de-en\.de: no such file"),
        (["train/a.en", "train/a.de", "train/b.en"], r"train/b\.de: no such file"),
        (["train.1.en", "train.1.de", "train.2.de"], r"train\.2\.en: no such file"),
        (["Books.en", "Books.de", "Europarl.en"], r"Europarl\.de: no such file"),
        (["train.en", "train.en.gz", "train.de"], r"train\.en and .*train\.en\.gz are the same split twice"),
        (["train.en", "train.de", "train.en-de.en"], r"train\.en.* and .*train\.en.* the same split twice"),
        (["train.en", "train.de", "train.tsv"], r"train\.(en|de) and .*train\.tsv are the same split twice"),
        (["train.tsv", "train.de-en.tsv"], r"the same split twice. Keep one of the two"),
        (["train.en", "train.de", "train.1.en", "train.1.de"], r"twice. Keep one of: .*train\.1\.en"),
        (["train.en", "train.de", "train/a.en", "train/a.de"], r"'train' exists twice. Keep .*train\.en"),
        (["notes.txt"], r"no files of en and de: no such file as .*train\.en with .*train\.de, or train"),
        (["valid.en", "valid.de"], "no split 'train'. Choose from: valid"),
    ],
)  # fmt: skip
def test_half_and_double_splits_are_refused(tmp_path, names, message):
    write(tmp_path, *names)
    with pytest.raises(DataError, match=message) as info:
        read(tmp_path, "train")
    assert "\n" not in str(info.value)


def test_what_does_not_fit_in_another_folder_is_no_matter(tmp_path):
    write(tmp_path, "train.en", "train.de", "raw/a.en", "raw/a.en.gz", "runs/x.txt", "half/b.en")
    assert read(tmp_path, "train") == (["train.en"], ["train.de"])
    assert FolderDataset(tmp_path, "en", "de").splits == ("half", "raw", "train")
    with pytest.raises(DataError, match=r"raw/a\.en and .*raw/a\.en\.gz are the same split twice"):
        read(tmp_path, "raw")


def test_a_fingerprint_tells_changed_files(tmp_path):
    write(tmp_path, "train.1.en", "train.1.de", "train.2.en", "train.2.de", "valid.en", "valid.de")
    dataset = FolderDataset(tmp_path, "en", "de")
    before = dataset.fingerprint("train")
    assert json.loads(json.dumps(before)) == before
    assert [entry["path"] for entry in before] == [
        str((tmp_path / f"train.{part}.{language}").resolve()) for part in (1, 2) for language in ("en", "de")
    ]
    assert before[0]["size"] == len("train.1.en\n")
    assert dataset.fingerprint("train") == before
    os.utime(tmp_path / "valid.en", ns=(1, 1))
    assert dataset.fingerprint("train") == before
    os.utime(tmp_path / "train.2.de", ns=(1, 1))
    assert dataset.fingerprint("train") != before


def test_pairs_of_a_generator_become_a_folder(tmp_path):
    train = (pair for pair in [("a\n1", "A"), ["", "\u2028"], ("c", "Ç 👍")])
    write_corpus(tmp_path / "corpus", "en", "de", train=train, valid=zip(["v"], ["V"], strict=True))
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "corpus", "train.de", "train.en", "valid.de", "valid.en",
    ]  # fmt: skip
    assert (tmp_path / "corpus/train.en").read_bytes() == b"a 1\n\nc\n"
    corpus = load_corpus(str(tmp_path / "corpus"), "en", "de")
    assert corpus.train == (["a 1", "c"], ["A", "Ç 👍"])
    assert corpus.num_blank == 1
    assert corpus.validation == (["v"], ["V"])


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([], "train: no pairs"),
        ([("a", "A"), ("b", None)], r"train: pair 2: must be \(source text, target text\), two str.*None"),
        ([("a", "A", "x")], "train: pair 1: must be"),
        (["en", "de"], "train: pair 1: must be .*Received: 'en'"),  # what a DataFrame yields
        ([3], "train: pair 1: must be .*Received: 3"),
        ([("a", "\ud800")], "train: pair 1: cannot be written as UTF-8"),
    ],
)
def test_what_is_no_pair_is_refused_and_leaves_no_folder(tmp_path, pairs, message):
    with pytest.raises(DataError, match=message):
        write_corpus(tmp_path / "corpus", "en", "de", valid=[("v", "V")], train=pairs)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_exists_is_not_written_to(tmp_path):
    write(tmp_path, "train.en")
    with pytest.raises(DataError, match="exists already. Choose a new folder"):
        write_corpus(tmp_path, "en", "de", train=[("a", "A")])
    assert [path.name for path in tmp_path.iterdir()] == ["train.en"]
