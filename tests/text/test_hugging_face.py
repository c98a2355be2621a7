"""Hugging Face datasets: folders that the library itself wrote; names of the Hub without a network."""

import json
import os
import shutil
import sys

import pytest

from keras_transformer.cli import train as train_wmt
from keras_transformer.text.datasets import load_corpus, load_split, open_dataset
from keras_transformer.text.lines import DataError

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before the import
datasets = pytest.importorskip("datasets", reason="needs the extra hf")

PAIRS = [(f"line {i} 2\u20282", f"Zeile\n{i}") for i in range(250)]
TEXTS = [(f"line {i} 2 2", f"Zeile {i}") for i in range(250)]  # what is read of them
MISSING = [("a", None), (None, "B"), ("c", "C")]
CARD = """---
configs:
- config_name: de-en
  data_files:
  - split: train
    path: de-en/train-*
  - split: validation
    path: de-en/validation-*
- config_name: fr-en
  data_files: de-en/train-*
---
"""


def nested(pairs):
    """A split with the feature `translation`."""
    features = datasets.Features(
        {"id": datasets.Value("int32"), "translation": datasets.Translation(languages=("de", "en"))}
    )
    rows = [{"id": i, "translation": {"en": a, "de": b}} for i, (a, b) in enumerate(pairs)]
    return datasets.Dataset.from_list(rows, features=features)


def columns(pairs):
    """A split with a column for each language."""
    return datasets.Dataset.from_dict(
        {"de": [b for _, b in pairs], "n": [1.0] * len(pairs), "en": [a for a, _ in pairs]}
    )


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A folder with `saved`, `columns`, `one`, `hub` and `lines`, written by the library."""
    folder = tmp_path_factory.mktemp("stored")
    datasets.disable_progress_bars()
    splits = {"train": PAIRS, "validation": PAIRS[:20], "test": MISSING}
    for name, make in (("saved", nested), ("columns", columns)):
        made = datasets.DatasetDict({split: make(pairs) for split, pairs in splits.items()})
        made.save_to_disk(folder / name)
    nested(PAIRS).save_to_disk(folder / "one")
    for split in ("train", "validation"):
        (folder / "hub/de-en").mkdir(parents=True, exist_ok=True)
        nested(splits[split]).to_parquet(folder / f"hub/de-en/{split}-00000-of-00001.parquet")
        (folder / "lines").mkdir(exist_ok=True)
        columns(splits[split]).to_json(folder / f"lines/{split}.jsonl")
    (folder / "hub/README.md").write_text(CARD, encoding="utf-8")
    return folder


@pytest.fixture
def here(stored, tmp_path, monkeypatch):
    monkeypatch.chdir(stored)
    return {"data_dir": tmp_path / "cache"}


NAMES = ("saved", "columns", "one", "hub", "hub/de-en", "hub/en-de", "lines")


@pytest.mark.parametrize("name", NAMES)
def test_every_form_has_the_pairs_that_were_stored(here, stored, name):
    for dataset, source in ((f"hf:./{name}", 0), (f"hf:{stored}/{name}", 1)):
        languages = ("en", "de")[:: 1 - 2 * source]
        pairs = load_split(dataset, "train", *languages, **here)
        assert pairs[source] == [text for text, _ in TEXTS]
        assert pairs[1 - source] == [text for _, text in TEXTS]


def test_a_corpus_takes_its_splits_from_a_dataset(here):
    corpus = load_corpus("hf:./columns", "en", "de", **here)
    assert corpus.sizes == (250,)
    assert list(zip(*corpus.validation, strict=True)) == TEXTS[:20]
    assert corpus.test_name == "test"


@pytest.mark.parametrize("name", ["saved", "columns"])
def test_a_missing_text_is_blank(here, name):
    assert load_split(f"hf:./{name}", "test", "en", "de", **here) == (["a", "", "c"], ["", "B", "C"])


def test_a_missing_translation_has_two_blank_sides(tmp_path):
    rows = [{"translation": {"en": "a", "de": "A"}}, {"translation": None}]
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "one")
    assert load_split(f"hf:{tmp_path}/one", "train", "de", "en") == (["A", ""], ["a", ""])


def test_blocks_have_the_size_asked_for(here):
    dataset = open_dataset("hf:./saved", "en", "de", **here)
    assert dataset.splits == ("train", "validation", "test")
    blocks = list(dataset.blocks("train", 100))
    assert [len(block.source) for block in blocks] == [100, 100, 50]
    assert [(block.source_name, block.first_line) for block in blocks[1:]] == [
        ("hf:./saved train", 101),
        ("hf:./saved train", 201),
    ]


def test_folders_of_one_name_are_not_mistaken_for_each_other(tmp_path):
    for parent, text in (("one", "A"), ("other", "B")):
        (tmp_path / parent / "corpus").mkdir(parents=True)
        columns([("a", text)]).to_json(tmp_path / parent / "corpus/train.jsonl")
    for parent, text in (("one", "A"), ("other", "B")):
        name = f"hf:{tmp_path / parent / 'corpus'}"
        assert load_split(name, "train", "en", "de", data_dir=tmp_path / "cache").target == [text]


def test_changed_files_are_read_again_and_change_the_fingerprint(stored, tmp_path):
    folder, data_dir = tmp_path / "hub", tmp_path / "cache"
    shutil.copytree(stored / "hub", folder)
    before = json.loads(
        json.dumps(open_dataset(f"hf:{folder}", "en", "de", data_dir=data_dir).fingerprint("train"))
    )
    assert before["num_examples"] == 250
    nested([("new", "neu")] * 250).to_parquet(folder / "de-en/train-00000-of-00001.parquet")
    after = open_dataset(f"hf:{folder}", "en", "de", data_dir=data_dir)
    assert after.fingerprint("train") != before
    assert next(after.blocks("train")).target[249] == b"neu\n"


@pytest.mark.parametrize(
    ("name", "languages", "message"),
    [
        ("hub", "en-it", "hf:./hub: no config for en and it. Choose from: de-en, fr-en"),
        ("hub/de-it", "de-it", "no config 'de-it'. Choose from: de-en"),
        ("hub/de-en", "en-it", "the languages are de, en. Received: 'en' and 'it'"),
        ("saved", "en-it", "the languages are de, en. Received: 'en' and 'it'"),
        ("columns", "en-it", "the languages are de, en. Received: 'en' and 'it'"),
        ("columns", "en-n", "the languages are de, en. Received: 'en' and 'n'"),
        ("one", "en-de", "hf:./one: no validation split.* The splits are: train"),
        ("no/where", "en-de", "hf:./no/where: no such folder"),
        ("nowhere", "en-de", "hf:./nowhere: no such folder"),
        ("saved/no", "en-de", "hf:./saved/no: no such folder"),
        ("empty", "en-de", "hf:./empty: cannot be loaded: .*doesn't contain any data files"),
        ("hub", "en-trees", "a treebank must be a folder or archive"),
    ],
)
def test_a_name_that_does_not_fit_is_refused_in_one_line(here, stored, name, languages, message):
    (stored / "empty").mkdir(exist_ok=True)
    with pytest.raises(DataError, match=message) as info:
        load_corpus(f"hf:./{name}", *languages.split("-"), **here)
    assert "\n" not in str(info.value)


def test_an_unknown_split_is_refused_with_the_known_ones(here):
    with pytest.raises(DataError, match="no split 'dev2'. Choose from: train, validation, test"):
        load_split("hf:./saved", "dev2", "en", "de", **here)


def test_texts_in_lists_are_refused(tmp_path):
    datasets.Dataset.from_dict({"en": [["a", "b"]], "de": [["A"]]}).save_to_disk(tmp_path / "one")
    with pytest.raises(DataError, match="its examples have no texts. Received: 'en' and 'de'"):
        load_split(f"hf:{tmp_path}/one", "train", "en", "de")


@pytest.mark.parametrize(
    ("name", "file"),
    [("saved", "train/data-00000-of-00001.arrow"), ("hub", "de-en/train-00000-of-00001.parquet")],
)
def test_a_damaged_file_is_refused(stored, tmp_path, name, file):
    shutil.copytree(stored / name, tmp_path / name)
    content = (stored / name / file).read_bytes()
    (tmp_path / name / file).write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=f"hf:.*{name}.*: cannot be (loaded|read)") as info:
        load_split(f"hf:{tmp_path / name}", "train", "en", "de", data_dir=tmp_path / "cache")
    assert "\n" not in str(info.value)


def split_of(calls, known):
    """A stand-in for `datasets.load_dataset` on a Hub with `known`, {name: configs}; records calls."""

    def load_dataset(name, config, **more):
        calls.append((name, config))
        if name not in known:
            raise datasets.exceptions.DatasetNotFoundError(f"Dataset '{name}' doesn't exist on the Hub")
        if config not in known[name]:
            raise ValueError("Config name is missing.\nPlease pick one")
        return datasets.DatasetDict({"train": columns(PAIRS[:3])})

    return load_dataset


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("opus", ("opus", None)),
        ("wmt/wmt14/de-en", ("wmt/wmt14", "de-en")),
        ("wmt/wmt14/en-de", ("wmt/wmt14", "de-en")),
        ("wmt/wmt14", ("wmt/wmt14", "de-en")),
        ("flores/de-en", ("flores", "de-en")),
    ],
)
def test_names_of_the_hub_are_parted_into_name_and_config(monkeypatch, name, found):
    known, calls = {"opus": [None], "wmt/wmt14": ["cs-en", "de-en"], "flores": ["de-en"]}, []
    monkeypatch.setattr(datasets, "load_dataset", split_of(calls, known))
    monkeypatch.setattr(datasets, "get_dataset_config_names", known.__getitem__)
    assert open_dataset(f"hf:{name}", "en", "de").splits == ("train",)
    assert calls[-1] == found


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wmt/wmt41", "hf:wmt/wmt41: cannot be loaded: Dataset 'wmt/wmt41' doesn't exist"),
        ("wmt41", "Dataset 'wmt41' doesn't exist"),
        ("wmt/wmt14", "hf:wmt/wmt14: no config for en and de. Choose from: cs-en, fr-en"),
        ("wmt/wmt14/de-fr", "hf:wmt/wmt14/de-fr: no config 'de-fr'. Choose from: .*fr-en"),
    ],
)
def test_names_that_the_hub_lacks_are_refused(monkeypatch, name, message):
    known = {"wmt/wmt14": ["cs-en", "fr-en"]}
    monkeypatch.setattr(datasets, "load_dataset", split_of([], known))
    monkeypatch.setattr(datasets, "get_dataset_config_names", known.__getitem__)
    with pytest.raises(DataError, match=message) as info:
        open_dataset(f"hf:{name}", "en", "de")
    assert "\n" not in str(info.value)


def test_without_a_network_a_local_folder_is_advised(monkeypatch):
    def load_dataset(*arguments, **more):
        raise ConnectionError("Couldn't reach 'a/b' on the Hub")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(DataError, match="hf:a/b: cannot be loaded: Couldn't reach.*or give a local folder"):
        open_dataset("hf:a/b", "en", "de")


@pytest.mark.parametrize("name", ["", "a b", "a/b/c/d", "a//b"])
def test_what_is_no_name_of_the_hub_is_refused_with_the_form(name):
    with pytest.raises(DataError, match="must be hf:NAME, hf:OWNER/NAME"):
        open_dataset(f"hf:{name}", "en", "de")


def test_without_the_library_the_program_says_what_to_install(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "datasets", None)
    arguments = ["--dataset", "hf:a/b", "--source", "en", "--target", "de", "--preset", "tiny"]
    assert train_wmt.main([*arguments, "--run-dir", str(tmp_path / "run")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "A dataset of Hugging Face needs the extra 'hf'" in lines[0]
    assert "pip install 'keras-transformer-translation[hf]'" in lines[0]
    assert not (tmp_path / "run").exists()


def test_versions_that_run_the_code_of_a_dataset_are_refused(monkeypatch):
    monkeypatch.setattr(datasets, "__version__", "3.6.0")
    with pytest.raises(DataError, match="datasets 3.6.0 is too old: pip install"):
        open_dataset("hf:a/b", "en", "de")
