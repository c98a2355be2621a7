"""A corpus as text files: what the filters keep, nothing else, and the same ids as without the detour."""

import numpy as np
import pytest

from keras_transformer.batches.prepared import PreparedCorpus
from keras_transformer.batches.preparing import prepare
from keras_transformer.batches.text_files import write_text_corpus
from keras_transformer.cli.prepare import main, parse_args
from keras_transformer.config.settings import Config, replace
from keras_transformer.text.lines import DataError

# Pairs 2 and 5 are the same; pair 3 is a copy; pair 4 has an empty side; \x85 becomes a space.
TRAIN = [
    ("Kenya", "Kenia"),
    ("a dog", "ein Hund"),
    ("Berlin", "Berlin"),
    ("a cat", " "),
    ("a dog", "ein Hund"),
    ("one\x85two", "eins zwei"),
    ("three cats", "drei Katzen"),
]
CLEANING = {"drop_duplicates": True, "drop_identical": True}


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for split, pairs in (("train", TRAIN), ("valid", TRAIN[:3]), ("test", TRAIN[1:5])):
        for language, side in (("en", 0), ("de", 1)):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")
    return folder


def config_of(folder, cleaning=None, **data):
    data = {"dataset": str(folder), "source": "en", "target": "de", "vocab_size": 290} | data
    return replace(Config(), model={"tie_embeddings": "none"}, data=data, cleaning=cleaning or {})


def test_training_pairs_are_filtered_and_other_splits_copied(corpus, tmp_path):
    report, others = write_text_corpus(config_of(corpus, CLEANING), tmp_path / "text")
    kept = [TRAIN[0], TRAIN[1], ("one two", "eins zwei"), TRAIN[6]]
    for language, side in (("en", 0), ("de", 1)):
        written = (tmp_path / f"text/train.{language}").read_bytes().decode().split("\n")
        assert written == [*(pair[side] for pair in kept), ""]
        copied = (tmp_path / f"text/test.{language}").read_bytes()
        assert copied == (corpus / f"test.{language}").read_bytes()
    assert (report.num_pairs, report.num_kept) == (7, 4)
    assert others == {"valid": 3, "test": 4}


def test_the_text_gives_the_ids_that_the_corpus_gives(corpus, tmp_path):
    direct = prepare(config_of(corpus, CLEANING), tmp_path / "direct", num_workers=0)
    write_text_corpus(config_of(corpus, CLEANING), tmp_path / "text")
    tokenizers = direct.load_tokenizers()
    prepare(config_of(tmp_path / "text"), tmp_path / "again", tokenizers=tokenizers, num_workers=0)
    for one, other in zip(direct.load_pairs(), PreparedCorpus(tmp_path / "again").load_pairs(), strict=True):
        np.testing.assert_array_equal(one.lengths, other.lengths)
        assert [row.tolist() for row in one] == [row.tolist() for row in other]


@pytest.mark.slow
def test_the_program_writes_the_built_in_corpus(tmp_path, capsys):
    assert main(["cldr/en-de", str(tmp_path / "text"), "--text"]) == 0
    assert sorted(path.name for path in (tmp_path / "text").iterdir()) == [
        f"{split}.{language}" for split in ("test", "train", "validation") for language in ("de", "en")
    ]
    out = capsys.readouterr().out
    assert "40,000 training pairs as text" in out
    assert f"--dataset {tmp_path / 'text'} --source en --target de --preset auto" in out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["{}"], "--text needs a folder to write"),
        (["{}", "out", "--vocab-size", "90"], "--vocab-size is for a prepared corpus, --text for text"),
        (["{}", "out", "--plot", "a.png"], "--plot is for a prepared corpus, --text for text"),
        (
            ["{}", "out", "--set", "data.vocab_size=90"],
            "--set data.vocab_size=90: a setting of the vocabulary",
        ),
        (["{}", "out", "--shard-pairs", "9"], "--shard-pairs is for a prepared corpus"),
        *(
            (["{}", "out", "--set", setting], f"--set {setting}: --text counts no tokens")
            for setting in ("cleaning.max_length_ratio=2", "cleaning.min_length=3", "data.max_length=9")
        ),
        (["{}", "out", "--set", "devices.cpu_towers=2"], "a setting of training, not of preparation"),
        (["{}", "{}"], "inside the corpus"),
        (["{}", "{}/clean"], "inside the corpus"),
    ],
)
def test_what_does_not_go_with_text_is_refused(flags, words, corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = [flag.format(corpus) for flag in flags] + ["--text", "--source", "en", "--target", "de"]
    try:
        code = main(command)
    except SystemExit as exit:
        code = exit.code
    assert code == 2
    assert words in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]


@pytest.mark.parametrize(
    "flags",
    [
        ("--vocab-size", "4000"),
        ("--model-type", "unigram"),
        ("--tokenizer", "x"),
        ("--workers", "2"),
        ("--shard-pairs", "9"),
        ("--data-dir", "x"),
        ("--set", "cleaning.drop_identical=true"),
    ],
)
def test_settings_of_a_preparation_need_a_folder_to_write(flags, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path), *flags])
    given = " ".join(flags) if flags[0] == "--set" else flags[0]
    expected = f"{given}: without a folder to write, {tmp_path} is only described. Add the folder, or remove"
    assert expected in capsys.readouterr().err


def test_a_description_has_settings_of_batches(tmp_path):
    flags = ["--set", "data.batch_tokens=99", "--set", "data.padding=batch", "--source", "en"]
    assert parse_args([str(tmp_path), *flags, "--target", "de", "--examples", "2"]).out is None


def test_nothing_is_left_of_a_corpus_that_cannot_be_written(corpus, tmp_path):
    (corpus / "valid.de").write_text("one line too few\n")
    with pytest.raises(DataError, match=r"valid\."):
        write_text_corpus(config_of(corpus), tmp_path / "text")
    with pytest.raises(DataError, match="Received: target trees"):
        write_text_corpus(config_of(corpus, target="trees", separate_vocabularies=True), tmp_path / "text")
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]
