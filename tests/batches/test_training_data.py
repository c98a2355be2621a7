"""What a run reads: raw text and the same text prepared, cleaned, weighed and encoded."""

import dataclasses
import hashlib
import itertools
import json
import math
import os
import shutil

import numpy as np
import pytest
from sentencepiece import sentencepiece_model_pb2

from keras_transformer.batches.dataset import training_batches, validation_batches
from keras_transformer.batches.preparing import prepare
from keras_transformer.batches.training_data import epoch_weights
from keras_transformer.batches.training_data import load_training_data as load_in
from keras_transformer.cli import evaluate as evaluate_wmt
from keras_transformer.cli import train as train_wmt
from keras_transformer.config import settings as configs
from keras_transformer.config.settings import Config
from keras_transformer.text.cleaning import Cleaner
from keras_transformer.text.lines import DataError
from keras_transformer.tokenizers.tokenizer_pair import as_tokenizers, load_tokenizers, train_tokenizer
from keras_transformer.tokenizers.wordpiece import WordPieceTokenizer
from keras_transformer.translation.translator import Translator

NOUNS = {"man": "Mann", "king": "König", "fox": "Fuchs", "tree": "Baum", "river": "Fluss"}
SENTENCES = [
    (f"the {a} sees {number} trees and the {b}", f"der {x} sieht {number} Bäume und den {y}")
    for a, x in NOUNS.items()
    for b, y in NOUNS.items()
    for number in range(12)
]
# What the filters are for, one pair each, and the filter that drops it.
BAD = {
    "empty": ("", "der Fuchs"),
    "damaged": ("the king", "der KÃ¶nig sieht"),
    "script": ("the fox", "лиса и король"),
    "identical": ("Fuchs 7 König 7", "Fuchs 7 König 7"),
    "short": ("the", "sieben Bäume"),
    "long": (" ".join(["the fox"] * 30), "der Fuchs"),
    "ratio": ("the fox", "der Fuchs und der Baum und der Fluss und der Mann"),
    "duplicate": SENTENCES[30],
}
CLEANING = {
    "drop_damaged": True,
    "max_foreign_letters": 0.5,
    "drop_identical": True,
    "min_length": 3,
    "max_length_ratio": 2.5,
    "drop_duplicates": True,
}


def write_split(folder, split, pairs):
    folder.mkdir(exist_ok=True, parents=True)
    for language, side in (("en", 0), ("de", 1)):
        text = "".join(f"{pair[side]}\n" for pair in pairs)
        (folder / f"{split}.{language}").write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """Two folders, the first with a blank and a long line; the second without a test split."""
    first, second = (tmp_path_factory.mktemp(name) for name in ("first", "second"))
    write_split(first, "train", [*SENTENCES[24:140], BAD["empty"], *SENTENCES[140:180], BAD["long"]])
    write_split(first, "dev", SENTENCES[:9])
    write_split(first, "test_2042", SENTENCES[9:24])
    write_split(second, "train", SENTENCES[180:])
    write_split(second, "valid", SENTENCES[5:7])
    return first, second


def make_config(*folders, cleaning=None, model=None, training=None, **data):
    config = Config()
    data = {
        "dataset": ",".join(map(str, folders)),
        "vocab_size": 330,
        "max_length": 40,
        "batch_tokens": 640,
    } | data
    return dataclasses.replace(
        config,
        data=configs.replace(config.data, **data),
        cleaning=configs.replace(config.cleaning, **(cleaning or {})),
    )


@pytest.fixture(scope="module")
def prepared(corpora, tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    prepare(make_config(*corpora), folder, num_workers=1, shard_pairs=60)
    return folder


@pytest.fixture(scope="module", autouse=True)
def folders(tmp_path_factory):
    """New folders for what is prepared of raw text."""
    global new_folder
    new_folder = lambda: tmp_path_factory.mktemp("run") / "corpus"  # noqa: E731


def load(config, tokenizers=None):
    return load_in(config, new_folder(), tokenizers)


def rows_of(pairs):
    return [(pairs.source[i].tolist(), pairs.target[i].tolist()) for i in range(pairs.num_pairs)]


def texts_of(loaded):
    sides = [
        tokenizer.decode([row[side] for row in rows_of(loaded.train)])
        for side, tokenizer in enumerate(loaded.tokenizers)
    ]
    return list(zip(*sides, strict=True))


def test_raw_text_becomes_the_pairs_in_the_files(corpora):
    loaded = load(make_config(*corpora))
    assert texts_of(loaded) == SENTENCES[24:]
    assert loaded.sizes == [156, 120]
    assert loaded.weights == [1.0, 1.0]
    assert list(zip(*loaded.validation, strict=True)) == SENTENCES[:9]
    assert list(zip(*loaded.test, strict=True)) == SENTENCES[9:24]
    assert loaded.test_name == "test_2042"


@pytest.mark.slow
def test_a_prepared_corpus_gives_what_its_raw_text_gives(corpora, prepared):
    raw = load(make_config(*corpora))
    found = load(make_config(prepared))
    assert rows_of(found.train) == rows_of(raw.train)
    for name in ("sizes", "weights", "validation", "test", "test_name"):
        assert getattr(found, name) == getattr(raw, name)
    assert [one.sha256 for one in found.tokenizers] == [one.sha256 for one in raw.tokenizers]
    # And so the same batches.
    one, other = (training_batches(make_config(prepared).data, data, seed=1) for data in (raw, found))
    streams = (batches.dataset(2, 3).as_numpy_iterator() for batches in (one, other))
    for a, b in zip(*streams, strict=True):
        np.testing.assert_array_equal(a[0][0], b[0][0])
        np.testing.assert_array_equal(a[1], b[1])


@pytest.mark.slow
def test_a_prepared_corpus_serves_the_other_direction(prepared):
    there = load(make_config(prepared))
    back = load(make_config(prepared, source="de", target="en"))
    assert rows_of(back.train) == [(target, source) for source, target in rows_of(there.train)]
    assert texts_of(back) == [(target, source) for source, target in SENTENCES[24:]]
    assert (back.validation.source, back.validation.target) == there.validation[::-1]
    assert back.test == there.test[::-1]


@pytest.mark.slow
def test_separate_vocabularies_change_places_in_the_other_direction(corpora, tmp_path):
    config = make_config(corpora[0], separate_vocabularies=True, model_type="wordpiece", vocab_size=44)
    prepare(config, tmp_path / "prepared", num_workers=1)
    there = load(make_config(tmp_path / "prepared"))
    back = load(make_config(tmp_path / "prepared", source="de", target="en"))
    assert not there.tokenizers.shared
    assert [one.sha256 for one in back.tokenizers] == [one.sha256 for one in there.tokenizers][::-1]
    assert texts_of(back) == [(target, source) for source, target in SENTENCES[24:180]]


@pytest.mark.slow
def test_the_configuration_has_the_vocabulary_of_the_preparation(corpora, tmp_path):
    settings = {"vocab_size": 312, "model_type": "unigram", "split_digits": True, "normalization": "nfkc"}
    prepare(make_config(corpora[0], **settings), tmp_path / "prepared", num_workers=1)
    asked = make_config(tmp_path / "prepared", max_length=30, vocab_texts=5).data
    found = load(make_config(tmp_path / "prepared", max_length=30, vocab_texts=5)).data
    expected = settings | {"vocab_texts": 10_000_000}
    assert found == dataclasses.replace(asked, **expected)


def test_a_smaller_longest_length_drops_pairs_of_a_prepared_corpus(prepared, corpora):
    whole = load(make_config(prepared))
    limit = int(np.median(whole.train.target.lengths))
    short = [max(map(len, row)) <= limit for row in rows_of(whole.train)]
    found = load(make_config(prepared, max_length=limit))
    assert rows_of(found.train) == [
        row for row, kept in zip(rows_of(whole.train), short, strict=True) if kept
    ]
    assert found.sizes == [sum(short[:156]), sum(short[156:])]
    assert min(found.sizes) > 0
    dropped = 276 - sum(found.sizes)
    assert found.notes == [f"left out {dropped} pairs longer than {limit} tokens (data.max_length)"]
    # Raw text is cut off at the same place: the same vocabulary, for it is learned before.
    raw = load(make_config(*corpora, max_length=limit))
    assert rows_of(raw.train) == rows_of(found.train)
    assert raw.sizes == found.sizes


def test_a_prepared_corpus_of_which_nothing_is_short_enough_is_refused(prepared):
    with pytest.raises(DataError, match="all pairs are longer than 3 tokens. Raise data.max_length"):
        load(make_config(prepared, max_length=3))


def test_the_vocabulary_of_an_earlier_run_must_be_that_of_the_preparation(prepared):
    own = load_tokenizers(prepared)
    assert load(make_config(prepared), own).train.num_pairs == 276
    other = as_tokenizers(train_tokenizer(SENTENCES[0], model_type="wordpiece", vocab_size=40))
    with pytest.raises(DataError, match="prepared with another vocabulary .* --tokenizer"):
        load(make_config(prepared), other)


def test_the_vocabulary_of_an_earlier_run_encodes_raw_text(corpora):
    given = as_tokenizers(
        train_tokenizer([text for pair in SENTENCES for text in pair], model_type="wordpiece", vocab_size=60)
    )
    loaded = load(make_config(*corpora), given)
    assert [one.sha256 for one in loaded.tokenizers] == [one.sha256 for one in given]
    assert texts_of(loaded) == SENTENCES[24:]


@pytest.mark.slow
def test_the_test_split_is_that_of_the_first_dataset_prepared_or_not(tmp_path):
    for name, test in (("one", "test_b"), ("two", "test_a")):
        write_split(tmp_path / name, "train", SENTENCES[24:60])
        write_split(tmp_path / name, test, SENTENCES[:5] if name == "one" else SENTENCES[5:9])
    write_split(tmp_path / "two", "valid", SENTENCES[9:12])
    config = make_config(tmp_path / "one", tmp_path / "two")
    prepare(config, tmp_path / "prepared", num_workers=1)
    for loaded in map(load, (config, make_config(tmp_path / "prepared"))):
        assert loaded.test_name == "test_b"
        assert list(zip(*loaded.test, strict=True)) == SENTENCES[:5]


@pytest.mark.slow
def test_what_is_prepared_cannot_be_cleaned_in_another_way(dirty, tmp_path):
    prepare(make_config(dirty, cleaning=CLEANING), tmp_path / "prepared", num_workers=1)
    for cleaning in ({}, CLEANING):
        loaded = load(make_config(tmp_path / "prepared", cleaning=cleaning))
        assert texts_of(loaded) == SENTENCES[24:80]
    with pytest.raises(DataError, match="Remove cleaning.*, or prepare it with other settings"):
        load(make_config(tmp_path / "prepared", cleaning={"min_length": 2}))


@pytest.fixture(scope="module")
def dirty(tmp_path_factory):
    """A folder with one pair for each filter; the longest comes first, the others at its end."""
    folder = tmp_path_factory.mktemp("dirty")
    good = SENTENCES[24:80]
    write_split(folder, "train", [BAD["long"], *good, *(BAD[name] for name in BAD if name != "long")])
    write_split(folder, "valid", SENTENCES[:9])
    return folder


def test_every_filter_drops_its_pair_of_raw_text(dirty):
    loaded = load(make_config(dirty, cleaning=CLEANING))
    assert texts_of(loaded) == SENTENCES[24:80]
    assert loaded.sizes == [56]
    table = loaded.notes[0].splitlines()
    assert table[0] == "cleaning of the training pairs:"
    counts = {line.rsplit(maxsplit=3)[0].strip(): line.split()[-3:-1] for line in table[1:]}
    assert counts.pop("pairs read") == ["64", "100.00"]
    assert counts.pop("pairs kept") == ["56", "87.50"]
    assert counts == dict.fromkeys(
        [
            "- a side is blank",
            "- damaged encoding",
            "- letters of other scripts",
            "- both sides identical",
            "- too few tokens",
            "- too many tokens",
            "- lengths differ too much",
            "- occurred before",
        ],
        ["1", "1.56"],
    )


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("cleaning", "dropped"),
    [
        ({}, ("empty", "long")),
        ({"drop_empty": False}, ("long",)),
        ({"drop_identical": True}, ("empty", "long", "identical")),
        ({"drop_duplicates": True}, ("empty", "long", "duplicate")),
        ({"drop_damaged": True, "min_length": 3}, ("empty", "long", "damaged", "short")),
        ({"max_foreign_letters": 0.5, "max_length_ratio": 2.5}, ("empty", "long", "script", "ratio")),
    ],
)
def test_a_filter_drops_where_it_is_asked_for_in_raw_and_in_prepared_text(dirty, tmp_path, cleaning, dropped):
    config = make_config(dirty, cleaning=cleaning)
    raw = load(config)
    left = [BAD[name] for name in BAD if name not in dropped]
    assert texts_of(raw) == [*SENTENCES[24:80], *left]
    prepare(config, tmp_path / "prepared", num_workers=1, shard_pairs=50)
    found = load(make_config(tmp_path / "prepared"))
    assert rows_of(found.train) == rows_of(raw.train)


def test_text_of_which_nothing_is_left_is_refused_with_counts(tmp_path):
    write_split(tmp_path, "train", [BAD["empty"]] * 3 + [BAD["identical"]] * 2)
    write_split(tmp_path, "valid", SENTENCES[:9])
    with pytest.raises(DataError, match="all 5 pairs were dropped: 3 a side is blank .*, 2 both") as refused:
        load(make_config(tmp_path, cleaning={"drop_identical": True}))
    assert "\n" not in str(refused.value)


def test_validation_is_never_cleaned_but_for_its_length(dirty, tmp_path):
    folder = tmp_path / "corpus"
    write_split(folder, "train", SENTENCES[24:80])
    write_split(folder, "valid", [SENTENCES[0], BAD["long"], BAD["identical"], BAD["empty"], SENTENCES[0]])
    config = make_config(folder, cleaning=CLEANING)
    loaded = load(config)
    assert len(loaded.validation.source) == 5
    batches, num_dropped = validation_batches(config.data, loaded)
    assert (batches.pairs.num_pairs, num_dropped) == (4, 1)
    with pytest.raises(DataError, match="validation: all 5 pairs exceed 2 tokens. Raise data.max_length"):
        validation_batches(configs.replace(config.data, max_length=2), loaded)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("data", "weights"),
    [
        ({}, [1, 1]),
        ({"weights": "3,0.5"}, [3, 0.5]),
        # n ** (1 / 2) of 156 and 120 pairs: 12.49 and 10.954 of 23.444, of 276 pairs together.
        ({"temperature": 2.0}, [0.94257, 1.07466]),
    ],
)
def test_an_epoch_sees_each_dataset_as_often_as_its_weight_says(corpora, prepared, data, weights):
    for folders in (corpora, [prepared]):
        config = make_config(*folders, **data)
        loaded = load(config)
        assert loaded.weights == pytest.approx(weights, rel=1e-4)
        batches = training_batches(config.data, loaded, seed=1)
        plans = itertools.chain.from_iterable(batches.planner.plan(epoch) for epoch in range(4))
        counts = np.bincount(np.concatenate([plan.indices for plan in plans]), minlength=276) / 4
        assert (counts[:156].mean(), counts[156:].mean()) == pytest.approx(weights, abs=0.02)


@pytest.mark.parametrize("weights", ["1", "1,2,3", "1,0", "1,x"])
def test_weights_that_are_not_one_for_each_dataset_are_refused_at_once(corpora, prepared, capsys, weights):
    for folders in (corpora, [prepared]):
        with pytest.raises(
            ValueError, match="`dataset_weights` must be a number above 0 for each dataset, .*here 2"
        ):
            load(make_config(*folders, dataset_weights=weights))
    assert "learning" not in capsys.readouterr().out


SETTINGS = {
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "model.d_model": 8,
    "model.d_ff": 12,
    "model.num_heads": 2,
    "data.max_length": 40,
    "data.batch_tokens": 640,
    "training.max_steps": 2,
    "training.log_every_steps": 1,
    "training.validate_every_steps": 2,
    "training.validation_sentences": 2,
    "search.max_length_offset": 2,
    "search.beam_size": 1,
}


def arguments_of(dataset, run, **settings):
    """The command line; two underscores stand for a full stop."""
    settings = SETTINGS | {name.replace("__", "."): value for name, value in settings.items()}
    arguments = ["--dataset", str(dataset), "--run-dir", str(run)]
    for name, value in settings.items():
        arguments += ["--set", f"{name}={value}"]
    return arguments


def check_translations(run):
    """The test split was translated, by what is in the run folder."""
    translator = Translator.load(run)
    sources, _ = map(list, zip(*SENTENCES[9:24], strict=True))
    lines = (run / "translations.test_2042.de").read_text(encoding="utf-8").split("\n")[:-1]
    assert [" ".join(text.split("\n")) for text in translator.translate(sources)] == lines
    return translator


@pytest.mark.very_slow
def test_separate_vocabularies_train_and_translate(corpora, tmp_path, capsys):
    run = tmp_path / "run"
    settings = {"data__separate_vocabularies": "true", "data__vocab_size": 305}
    assert train_wmt.main(arguments_of(corpora[0], run, **settings)) == 2
    err = capsys.readouterr().err
    assert err.splitlines()[-1].startswith("keras-transformer train: ")
    assert "tie_embeddings" in err
    assert not run.exists()
    assert train_wmt.main(arguments_of(corpora[0], run, **settings, model__tie_embeddings="decoder")) == 0
    tokenizers = check_translations(run).tokenizers
    assert not tokenizers.shared
    # Each learned from its own side alone: of these two letters, one is in each language.
    for tokenizer, letters in zip(tokenizers, (False, True), strict=True):
        assert tokenizer.has_own_token("ö") is letters
        assert tokenizer.has_own_token("k") is not letters


@pytest.mark.parametrize(("model_type", "vocab_size"), [("unigram", 312), ("wordpiece", 60)])
@pytest.mark.very_slow
def test_every_kind_of_vocabulary_trains_and_translates(corpora, tmp_path, model_type, vocab_size):
    run = tmp_path / "run"
    settings = {"data__model_type": model_type, "data__vocab_size": vocab_size}
    assert train_wmt.main(arguments_of(corpora[0], run, **settings)) == 0
    tokenizer = check_translations(run).tokenizers.source
    assert tokenizer.vocab_size == vocab_size
    assert isinstance(tokenizer, WordPieceTokenizer) is (model_type == "wordpiece")
    if model_type == "unigram":
        model = sentencepiece_model_pb2.ModelProto.FromString((run / "tokenizer.model").read_bytes())
        assert model.trainer_spec.model_type == sentencepiece_model_pb2.TrainerSpec.UNIGRAM


@pytest.mark.very_slow
def test_a_run_on_a_prepared_corpus_keeps_to_its_vocabulary(prepared, corpora, tmp_path, capsys):
    run = tmp_path / "run"
    assert train_wmt.main(arguments_of(prepared, run)) == 0
    written = json.loads((run / "config.json").read_text(encoding="utf-8"))
    assert written["data"]["vocab_size"] == written["model"]["source_vocab_size"] == 330
    assert (run / "tokenizer.model").read_bytes() == (prepared / "tokenizer.model").read_bytes()
    check_translations(run)
    assert evaluate_wmt.main([str(run)]) == 0  # of the splits in the prepared folder

    prepare(make_config(corpora[0], vocab_size=320), tmp_path / "other", num_workers=1)
    before = (run / "history.jsonl").read_bytes()
    capsys.readouterr()
    assert train_wmt.main(arguments_of(tmp_path / "other", run)) == 2
    err = capsys.readouterr().err
    assert err.startswith(
        f"keras-transformer train: {tmp_path / 'other'}: was prepared with another vocabulary"
    )
    assert err.count("\n") == 1
    assert (run / "history.jsonl").read_bytes() == before


def test_a_flipped_bit_of_a_shard_is_refused_by_name(prepared, tmp_path, capsys):
    folder = tmp_path / "prepared"
    shutil.copytree(prepared, folder)
    shard = folder / "train-00002.de.npy"
    content = bytearray(shard.read_bytes())
    content[-5] ^= 4
    shard.write_bytes(content)
    assert train_wmt.main(arguments_of(folder, tmp_path / "run")) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"keras-transformer train: {shard}: ")
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_identity_of_the_text_is_that_of_its_ids(corpora, prepared, tmp_path):
    raw = load(make_config(*corpora)).sha256
    assert load(make_config(*corpora)).sha256 == raw
    assert load(make_config(*corpora, max_length=13)).sha256 != raw
    own = load(make_config(prepared)).sha256
    assert load(make_config(prepared)).sha256 == own
    assert load(make_config(prepared, source="de", target="en")).sha256 != own


@pytest.mark.slow
def test_a_run_does_not_continue_on_other_text(tmp_path, capsys):
    corpus, run = tmp_path / "corpus", tmp_path / "run"
    write_split(corpus, "train", SENTENCES)
    write_split(corpus, "valid", SENTENCES[:9])
    assert train_wmt.main(arguments_of(corpus, run, data__vocab_size=330)) == 0
    assert train_wmt.main(arguments_of(corpus, run, data__vocab_size=330)) == 0
    (corpus / "train.en").write_text("".join(f"{a} today\n" for a, _ in SENTENCES), encoding="utf-8")
    capsys.readouterr()
    assert train_wmt.main(arguments_of(corpus, run, data__vocab_size=330)) == 2
    assert "the training text differs from the one this run started with" in capsys.readouterr().err


@pytest.mark.parametrize("setting", ["data.vocab_size=99", "data.model_type=unigram"])
def test_training_cannot_change_the_vocabulary_of_a_prepared_corpus(prepared, tmp_path, capsys, setting):
    languages = ("--source", "en", "--target", "de")
    found = train_wmt.main(
        ["--dataset", str(prepared), *languages, "--set", setting, "--run-dir", str(tmp_path / "run")]
    )
    assert found == 2
    assert f"--set {setting}: {prepared} was prepared with" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_prepared_corpus_beside_another_is_refused(corpora, prepared):
    with pytest.raises(DataError, match="a prepared corpus cannot be combined with others"):
        load(make_config(prepared, corpora[0]))


def test_an_interrupted_preparation_is_no_corpus(tmp_path):
    (tmp_path / "progress").mkdir()
    (tmp_path / "progress" / "settings.json").write_text("{}")
    with pytest.raises(
        DataError, match="the preparation was interrupted. Run the same command again to continue"
    ):
        load(make_config(tmp_path))


# What a run keeps of raw text.


def write_again(folder, split="train"):
    """The same text, written again a second later."""
    for path in folder.glob(f"{split}.*"):
        stamp = path.stat().st_mtime_ns + 10**9
        os.utime(path, ns=(stamp, stamp))


def files_of(folder):
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.name: (path.stat().st_ino, path.read_bytes()) for path in paths}


def content_of(loaded):
    return rows_of(loaded.train), loaded.validation, loaded.sha256, loaded.notes


@pytest.mark.slow
def test_raw_text_is_encoded_once_and_again_when_its_files_change(dirty, tmp_path, capsys):
    corpus, folder = shutil.copytree(dirty, tmp_path / "text"), tmp_path / "corpus"
    config = make_config(corpus, cleaning=CLEANING)
    first = load_in(config, folder)
    assert "learning a vocabulary" in capsys.readouterr().out
    before = files_of(folder)
    again = load_in(config, folder, first.tokenizers)
    assert files_of(folder) == before
    assert content_of(again) == content_of(first)
    write_again(corpus)
    again = load_in(config, folder, first.tokenizers)
    after = files_of(folder)
    assert again.sha256 == first.sha256
    assert after["train-00000.en.npy"][0] != before["train-00000.en.npy"][0]
    assert after["train-00000.en.npy"][1] == before["train-00000.en.npy"][1]
    with (corpus / "train.en").open("a") as source, (corpus / "train.de").open("a") as target:
        source.write("the man sees the river today\n")
        target.write("der Mann sieht heute den Fluss\n")
    changed = load_in(config, folder, first.tokenizers)
    assert changed.sha256 != first.sha256
    assert changed.train.num_pairs == first.train.num_pairs + 1
    assert "learning" not in capsys.readouterr().out


def test_other_cleaning_is_not_what_was_prepared(dirty, tmp_path):
    first = load_in(make_config(dirty, cleaning=CLEANING), tmp_path / "corpus")
    other = load_in(make_config(dirty), tmp_path / "corpus", first.tokenizers)
    assert other.train.num_pairs == first.train.num_pairs + 6
    third = load_in(make_config(dirty, cleaning=CLEANING), tmp_path / "corpus", first.tokenizers)
    assert third.sha256 == first.sha256


@pytest.mark.parametrize("name", ["manifest.json", "train-00000.de.npy", "valid.en", "tokenizer.model", ""])
@pytest.mark.parametrize("damage", ["flip", "gone"])
def test_damaged_text_of_a_run_is_prepared_again(dirty, tmp_path, name, damage):
    folder = tmp_path / "corpus"
    first = load_in(make_config(dirty), folder)
    expected = content_of(first)
    if damage == "gone":
        shutil.rmtree(folder) if not name else (folder / name).unlink()
    elif name:
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / name).write_bytes(content)
    if (damage, name) == ("gone", "manifest.json"):
        with pytest.raises(DataError, match="manifest.json is missing. Delete the folder"):
            load_in(make_config(dirty), folder, first.tokenizers)
        return
    again = load_in(make_config(dirty), folder, first.tokenizers)
    assert content_of(again) == expected


def test_splits_that_a_run_does_not_read_are_not_looked_at(dirty, tmp_path):
    corpus = shutil.copytree(dirty, tmp_path / "text")
    write_split(corpus, "test", SENTENCES[:3])
    write_split(corpus, "test_other", SENTENCES[:3])
    (corpus / "test_other.de").write_bytes(b"\xff")
    assert load_in(make_config(corpus), tmp_path / "corpus").test_name == "test"
    with pytest.raises(DataError, match="test_other"):
        prepare(make_config(corpus), tmp_path / "prepared", num_workers=0)


def sum_of_earlier_versions(folder, config, tokenizers):
    """The sum of runs whose text was encoded at every start: lengths of pairs kept, ids of all pairs."""
    files = [folder / f"train.{language}" for language in ("en", "de")]
    sides = [path.read_text(encoding="utf-8").splitlines() for path in files]
    cleaner = Cleaner(config.cleaning, "en", "de", max_length=config.data.max_length)
    pairs = [pair for i, pair in enumerate(zip(*sides, strict=True)) if cleaner.text_reasons(*sides)[i] == 0]
    rows = [
        [[*row, tokenizer.special.eos] for row in tokenizer.encode([pair[side] for pair in pairs])]
        for side, tokenizer in enumerate(tokenizers)
    ]
    lengths = [np.array([len(row) for row in side], np.int32) for side in rows]
    keep = cleaner.length_reasons(*lengths) == 0
    keep &= [pair not in pairs[:place] for place, pair in enumerate(pairs)]
    digest = hashlib.sha256()
    for side, length in zip(rows, lengths, strict=True):
        digest.update(length[keep])
        digest.update(np.array([token for row in side for token in row], np.int32))
    return digest.hexdigest()


@pytest.mark.slow
def test_a_run_of_an_earlier_version_keeps_the_identity_of_its_text(dirty, tmp_path):
    config = make_config(dirty, cleaning=CLEANING)
    first = load_in(config, tmp_path / "corpus")
    earlier = sum_of_earlier_versions(dirty, config, first.tokenizers)
    for recorded in (earlier, first.sha256):
        found = load_in(config, tmp_path / "corpus", first.tokenizers, recorded=recorded)
        assert found.sha256 == recorded
    assert earlier != first.sha256
    assert load_in(config, tmp_path / "corpus", first.tokenizers, recorded="0" * 64).sha256 == first.sha256


def test_a_worker_that_waits_reads_what_the_chief_has_prepared(dirty, tmp_path):
    first = load_in(make_config(dirty), tmp_path / "corpus")
    before = files_of(tmp_path)
    other = make_config(dirty)
    found = load_in(other, tmp_path / "corpus", first.tokenizers, writes=False)
    assert rows_of(found.train) == rows_of(first.train)
    assert files_of(tmp_path) == before


@pytest.mark.parametrize("sizes", [(7,), (1000, 10), (3, 50, 900)])
@pytest.mark.parametrize("temperature", [1.0, 1.5, 5.0, 100.0])
def test_shares_follow_the_temperature(sizes, temperature):
    weights = epoch_weights(sizes, temperature=temperature)
    seen = [weight * size for weight, size in zip(weights, sizes, strict=True)]
    assert math.isclose(sum(seen), sum(sizes))
    for size, share in zip(sizes, seen, strict=True):
        # Any two shares are as the T-th roots of the sizes.
        assert math.isclose((share / seen[0]) ** temperature, size / sizes[0], rel_tol=1e-9)


def test_weights_are_those_asked_for():
    assert epoch_weights((5, 3), "1,2.5") == [1.0, 2.5]
    assert epoch_weights((5, 3)) == [1.0, 1.0]
    # By hand: roots 10 and 2 of 100 and 4, so 104 pairs are parted 10 : 2.
    assert epoch_weights((100, 4), temperature=2.0) == pytest.approx([104 * 10 / 12 / 100, 104 * 2 / 12 / 4])
    assert epoch_weights((100, 0, 4), temperature=2.0)[1] == 1.0


@pytest.mark.parametrize("weights", ["1", "1,2,3", "1,0", "1,-2", "1,inf", "1,nan", "1,x", ","])
def test_bad_weights_are_refused(weights):
    with pytest.raises(ValueError, match="`dataset_weights` must be a number above 0 .* 2. Received"):
        epoch_weights((5, 3), weights)


def test_bad_mixtures_are_refused():
    with pytest.raises(ValueError, match="`dataset_weights` and `temperature` cannot both be set"):
        epoch_weights((5, 3), "1,2", 2.0)
    for temperature in (0.5, math.nan, math.inf):
        with pytest.raises(ValueError, match="`temperature` must be at least 1"):
            epoch_weights((5, 3), temperature=temperature)
