"""Preparation: what is written, what is refused, and what an interruption does not change."""

import dataclasses
import errno
import hashlib
import itertools
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from keras_transformer.batches import preparing, sharding
from keras_transformer.batches.prepared import FORMAT, PreparedCorpus, is_prepared
from keras_transformer.batches.preparing import prepare, settings_of
from keras_transformer.batches.sharding import UnfinishedError
from keras_transformer.cli.prepare import describe
from keras_transformer.config import presets
from keras_transformer.config import settings as configs
from keras_transformer.config.settings import Config, override
from keras_transformer.text.lines import DataError
from keras_transformer.tokenizers.tokenizer_pair import as_tokenizers, train_tokenizer

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOUNS = {"man": "Mann", "king": "König", "fox": "Fuchs", "tree": "Baum", "river": "Fluss"}
VERBS = {"sees": "sieht", "hears": "hört", "finds": "findet", "loves": "liebt"}
SENTENCES = [
    (f"the {a} {verb} {number} dogs of the {b}", f"der {x} {other} {number} Hunde des {y}s")
    for (a, x), (b, y) in itertools.product(NOUNS.items(), repeat=2)
    for verb, other in VERBS.items()
    for number in range(7)
]
SHARD_PAIRS = 97
NUM_SHARDS = 8  # of the 700 pairs


def write_corpus(folder, train=None):
    folder.mkdir(exist_ok=True)
    train = SENTENCES if train is None else train
    for split, pairs in (("train", train), ("valid", SENTENCES[:11]), ("test", SENTENCES[11:24])):
        for language, side in (("en", 0), ("de", 1)):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def make_config(corpus, cleaning=None, **data):
    config = Config()
    settings = {"dataset": str(corpus), "vocab_size": 330, "max_length": 40} | data
    return dataclasses.replace(
        config,
        model=configs.replace(config.model, tie_embeddings="none"),
        data=configs.replace(config.data, **settings),
        cleaning=configs.replace(config.cleaning, **(cleaning or {})),
    )


def prepare_some(corpus, out, *, tokenizers=None, cleaning=None, num_workers=2, **data):
    return prepare(
        make_config(corpus, cleaning, **data),
        out,
        tokenizers=tokenizers,
        num_workers=num_workers,
        shard_pairs=SHARD_PAIRS,
    )


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def texts_of(prepared):
    """The training pairs as text, in order."""
    sides = []
    for sequences, tokenizer in zip(prepared.load_pairs(), prepared.load_tokenizers(), strict=True):
        sides.append(tokenizer.decode([sequences[i].tolist() for i in range(len(sequences))]))
    return list(zip(*sides, strict=True))


@pytest.fixture(scope="module")
def prepared(corpus, tmp_path_factory):
    return prepare_some(corpus, tmp_path_factory.mktemp("parent") / "out")


@pytest.mark.slow
def test_the_next_commands_quote_the_folder(prepared, tmp_path):
    folder = shutil.copytree(prepared.path, tmp_path / "x [1]")
    told = describe(PreparedCorpus(folder), Config().data).split("next:")[1]
    assert f"keras-transformer prepare '{folder}' --examples" in told
    assert f"keras-transformer train --dataset '{folder}' --source en" in told


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(("limit", "chosen"), [(700, "auto"), (699, "base")])
def test_the_next_command_has_a_preset_that_fits_the_number_of_pairs(prepared, monkeypatch, limit, chosen):
    monkeypatch.setattr(presets, "PAIRS_FOR_BASE", limit)
    assert f" --preset {chosen} --run-dir RUN" in describe(prepared, Config().data)


def test_every_pair_comes_back_in_order(prepared):
    assert texts_of(prepared) == SENTENCES
    assert prepared.sizes == [700]
    assert prepared.languages == ("en", "de")


def test_the_other_splits_are_there_as_text(prepared):
    assert prepared.splits == ("test", "valid")
    for split, pairs in (("valid", SENTENCES[:11]), ("test", SENTENCES[11:24])):
        assert list(zip(*prepared.load_text(split), strict=True)) == pairs
        german = (prepared.path / f"{split}.de").read_text(encoding="utf-8")
        assert german == "".join(f"{pair[1]}\n" for pair in pairs)


def test_shards_are_numpy_files_of_ids_that_end_with_eos(prepared):
    names = sorted(path.name for path in prepared.path.glob("*.npy"))
    assert names == sorted(f"train-{i:05}.{side}.npy" for i in range(NUM_SHARDS) for side in ("de", "en"))
    ids = np.load(prepared.path / "train-00001.en.npy", allow_pickle=False)
    assert ids.dtype == np.uint16
    tokenizer = prepared.load_tokenizers().source
    expected = tokenizer.encode([pair[0] for pair in SENTENCES[SHARD_PAIRS : 2 * SHARD_PAIRS]])
    assert ids.tolist() == [one for row in expected for one in [*row, tokenizer.special.eos]]


def test_the_manifest_tells_counts_and_the_sum_of_every_file(prepared):
    manifest = json.loads((prepared.path / "manifest.json").read_text(encoding="utf-8"))
    listed = {}
    for shard in manifest["shards"]:
        for side in ("source", "target"):
            entry = shard[side]
            listed[entry["name"]] = entry["sha256"]
            assert len(np.load(prepared.path / entry["name"])) == entry["num_tokens"]
    for text in manifest["texts"].values():
        listed |= {text[side]["name"]: text[side]["sha256"] for side in ("source", "target")}
    listed |= {entry["name"]: entry["sha256"] for entry in manifest["tokenizers"]}
    found = {
        name: hashlib.sha256(data).hexdigest()
        for name, data in contents(prepared.path).items()
        if name not in ("manifest.json", "report.txt")
    }
    assert listed == found
    assert "pairs kept  700  100.00 %" in (prepared.path / "report.txt").read_text(encoding="utf-8")
    assert manifest["num_pairs"] == sum(shard["num_pairs"] for shard in manifest["shards"]) == 700
    assert [shard["num_pairs"] for shard in manifest["shards"]] == [97] * 7 + [21]


@pytest.mark.slow
def test_the_number_of_processes_does_not_matter(corpus, prepared, tmp_path):
    alone = prepare_some(corpus, tmp_path / "out", num_workers=1)
    assert contents(alone.path) == contents(prepared.path)


def test_either_direction_is_read(prepared):
    reverse = PreparedCorpus(prepared.path, "de", "en")
    assert texts_of(reverse) == [(german, english) for english, german in SENTENCES]
    assert reverse.load_text("valid").source == [pair[1] for pair in SENTENCES[:11]]
    with pytest.raises(DataError, match="the languages are en and de. Received: source 'en', target 'fr'"):
        PreparedCorpus(prepared.path, "en", "fr")


@pytest.mark.slow
def test_a_given_vocabulary_is_used_and_kept(corpus, tmp_path):
    tokenizer = train_tokenizer([pair[1] for pair in SENTENCES], model_type="unigram", vocab_size=290)
    prepared = prepare_some(corpus, tmp_path / "out", tokenizers=as_tokenizers(tokenizer))
    assert prepared.load_tokenizers().source.sha256 == tokenizer.sha256
    assert prepared.settings["data"]["vocab_size"] == 290  # what it is, whatever the settings say
    assert texts_of(prepared) == SENTENCES


@pytest.mark.slow
def test_separate_vocabularies(corpus, tmp_path):
    prepared = prepare_some(corpus, tmp_path / "out", separate_vocabularies=True, vocab_size=310)
    tokenizers = prepared.load_tokenizers()
    assert not tokenizers.shared
    assert tokenizers.source.sha256 != tokenizers.target.sha256
    assert texts_of(prepared) == SENTENCES
    reverse = PreparedCorpus(prepared.path, "de", "en").load_tokenizers()
    assert reverse.source.sha256 == tokenizers.target.sha256
    assert reverse.target.sha256 == tokenizers.source.sha256


def test_ids_beyond_16_bits_are_written_wider():
    assert np.iinfo(sharding.id_type(2**16)).max == 2**16 - 1
    assert np.iinfo(sharding.id_type(2**16 + 1)).max >= 2**16


@pytest.mark.slow
def test_what_cleaning_drops_is_counted_and_left_out(tmp_path):
    train = [
        *SENTENCES[:200],
        ("", "leer"),
        SENTENCES[3],  # occurred in another shard
        ("same", "same"),
        ("a", "b " * 60),  # too long
        ("the", "der " * 12),  # too uneven
        ("ðÿ tree \ufffd", "Baum"),
        ("привет мир", "hallo Welt"),
    ]
    corpus = write_corpus(tmp_path / "corpus", train)
    cleaning = {
        "drop_duplicates": True,
        "drop_identical": True,
        "drop_damaged": True,
        "max_length_ratio": 2.0,
        "max_foreign_letters": 0.5,
    }
    prepared = prepare_some(corpus, tmp_path / "out", cleaning=cleaning)
    assert texts_of(prepared) == SENTENCES[:200]
    dropped = prepared.manifest["report"]["dropped"]
    expected = dict.fromkeys(("empty", "damaged", "script", "identical", "long", "ratio", "duplicate"), 1)
    assert dropped == expected | {"short": 0}
    assert prepared.manifest["report"]["num_pairs"] == 207


@pytest.mark.slow
def test_several_corpora_keep_their_sizes(tmp_path):
    folders = [
        write_corpus(tmp_path / "a", SENTENCES[:150]),
        write_corpus(tmp_path / "b", [*SENTENCES[150:300], SENTENCES[0]]),
    ]
    dataset = ",".join(map(str, folders))
    prepared = prepare_some(dataset, tmp_path / "out", cleaning={"drop_duplicates": True})
    assert prepared.sizes == [150, 150]  # what occurred in the first is dropped in the second
    assert texts_of(prepared) == SENTENCES[:300]


# What is refused.


def outcome(*arguments):
    environment = {name: value for name, value in os.environ.items() if name[:3] != "TF_"}
    return subprocess.run(
        [sys.executable, "pipelines/prepare_wmt.py", *map(str, arguments)],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


LANGUAGES = ("--source", "en", "--target", "de")


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (lambda folder: (folder / "train.de").unlink(), (), "train.de"),
        (lambda folder: (folder / "train.de").write_text("ein\nzwei\n"), (), "700 and 2 lines"),
        (
            lambda folder: (folder / "train.de").write_bytes(b"ein\n" * 699 + b"\xff\n"),
            (),
            "train.de: line 700",
        ),
        (lambda folder: None, ("--set", "cleaning.min_length=40"), "all 700 pairs were dropped: 700 too few"),
        (lambda folder: (folder / "valid.en").unlink(), (), "valid"),
        (lambda folder: None, ("--set", "data.vocab_sise=3"), "Did you mean 'vocab_size'"),
        (lambda folder: None, ("--set", "cleaning.max_length_ratio=-1"), "max_length_ratio"),
        (lambda folder: None, ("--vocab-size", "1000000"), "largest possible"),
        (lambda folder: None, ("--model-type", "bbpe"), "bpe"),
        (lambda folder: None, ("--workers", "0"), "--workers must be at least 1"),
        (lambda folder: None, ("--tokenizer", "no.model"), "no.model"),
        (lambda folder: None, ("--tokenizer", "x", "--vocab-size", "9"), "--tokenizer fixes the vocabulary"),
        (lambda folder: None, ("--set", "training.max_steps=3"), "a setting of training"),
        (lambda folder: None, ("--set", "data.dataset_weights=1,2"), "a setting of training"),
        (lambda folder: None, ("--plot", "no/such/folder.png"), "--plot must be a .png file"),
        (lambda folder: None, ("--examples", "-3"), "--examples must be at least 0"),
    ],
)
def test_bad_input_is_refused_in_one_line(tmp_path, make, arguments, message):
    folder = write_corpus(tmp_path / "corpus")
    make(folder)
    size = () if "--tokenizer" in arguments else ("--vocab-size", "330")
    found = outcome(folder, tmp_path / "out", *LANGUAGES, *size, *arguments)
    assert found.returncode == 2, found.stderr
    last = found.stderr.strip().split("\n")[-1]
    assert last.startswith("prepare_wmt.py: ")
    assert message in last
    assert "Traceback" not in found.stderr
    assert not is_prepared(tmp_path / "out")


def test_a_folder_with_other_files_is_refused_untouched(corpus, tmp_path):
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(DataError, match="contains other files"):
        prepare_some(corpus, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_finished_preparation_is_left_as_it_is(corpus, prepared):
    before = {path: path.stat().st_mtime_ns for path in prepared.path.iterdir()}
    assert prepare_some(corpus, prepared.path).manifest == prepared.manifest
    assert {path: path.stat().st_mtime_ns for path in prepared.path.iterdir()} == before
    with pytest.raises(DataError, match=r"was prepared with data.max_length=40, not 39"):
        prepare_some(corpus, prepared.path, max_length=39)


@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_text_that_changed_after_its_preparation_is_warned_of(tmp_path, caplog, kind):
    corpus = write_corpus(tmp_path / "corpus", SENTENCES[:50])
    name = corpus
    if kind == "archive":
        name = shutil.make_archive(tmp_path / "text", "zip", corpus)
    prepared = prepare_some(name, tmp_path / "out", num_workers=0, vocab_size=300)
    caplog.clear()

    def again():
        caplog.clear()
        assert prepare_some(name, tmp_path / "out", vocab_size=300).manifest == prepared.manifest
        return [record.getMessage() for record in caplog.records]

    assert again() == []
    changed = corpus / "valid.de"
    changed.write_text(changed.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    if kind == "archive":
        changed = shutil.make_archive(tmp_path / "text", "zip", corpus)
    assert again() == [
        f"{tmp_path / 'out'}: the text has changed since it was prepared ({changed}). Remove the folder to "
        "prepare it again"
    ]
    if kind == "folder":
        (corpus / "valid.de").unlink()  # can no longer be read as a corpus
        assert again() == []


def test_text_that_was_moved_or_is_downloaded_has_not_changed(corpus, prepared, monkeypatch):
    data = make_config(corpus).data
    moved = [
        [file | {"path": "/elsewhere/" + pathlib.Path(file["path"]).name} for file in entry]
        for entry in prepared.manifest["inputs"]
    ]
    monkeypatch.setitem(prepared.manifest, "inputs", moved)
    assert preparing._changed_file(data, prepared) is None
    monkeypatch.setattr(preparing, "open_dataset", pytest.fail)
    for name in ("wmt14_translate/de-en", "hf:a/b", "cldr/en-de"):
        assert preparing._changed_file(dataclasses.replace(data, dataset=name), prepared) is None


def test_a_prepared_corpus_is_not_mixed_with_others(corpus, prepared, tmp_path):
    for dataset in (f"{prepared.path},{corpus}", f"{corpus}, {prepared.path}"):
        with pytest.raises(DataError, match="a prepared corpus cannot be combined with others"):
            prepare_some(dataset, tmp_path / "out")


def test_training_text_of_another_name_is_no_split_as_well(tmp_path):
    """As OPUS names it; it would be loaded whole, and copied."""
    (tmp_path / "opus").mkdir()
    for name, lines in (("Europarl", 30), ("News", 20), ("dev", 5), ("test", 4)):
        for language in ("en", "de"):
            text = "".join(f"{name} sentence {number} {language}\n" for number in range(lines))
            (tmp_path / "opus" / f"{name}.{language}").write_text(text)
    config = override(Config(), [f"data.dataset={tmp_path / 'opus'}", "data.vocab_size=290"])
    found = prepare(config, tmp_path / "out", num_workers=0)
    assert found.splits == ("dev", "test")
    assert found.manifest["num_pairs"] == 50
    assert not list((tmp_path / "out").glob("Europarl*"))


def test_a_vocabulary_must_be_of_the_kind_of_the_targets(corpus, prepared, tmp_path):
    config = override(
        Config(), [f"data.dataset={corpus}", "data.separate_vocabularies=true", "data.target=trees"]
    )
    with pytest.raises(DataError, match="a translation vocabulary, and the targets are trees.*--tokenizer"):
        settings_of(config, prepared.load_tokenizers(), 100)


def test_bad_text_is_told_where_the_folder_is_a_link(corpus, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    text = shutil.copytree(corpus, tmp_path / "text")
    with (text / "train.de").open("ab") as file:
        file.write(b"\xff\n")
    with (text / "train.en").open("ab") as file:
        file.write(b"x\n")
    config = override(Config(), [f"data.dataset={text}", "data.vocab_size=300"])
    with pytest.raises(DataError, match="train.de: line .* is not valid UTF-8"):
        prepare(config, tmp_path / "out", num_workers=0)
    assert (tmp_path / "out").is_symlink()
    assert list((tmp_path / "disk").iterdir()) == []


def test_a_folder_inside_the_corpus_is_refused(tmp_path):
    corpus = write_corpus(tmp_path / "corpus")
    with pytest.raises(DataError, match="inside the corpus"):
        prepare_some(corpus, corpus / "out")
    assert not (corpus / "out").exists()


@pytest.mark.parametrize("side", ["en", "de"])
@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_a_damaged_file_is_refused_by_name(prepared, tmp_path, side, damage):
    folder = tmp_path / "copy"
    folder.mkdir()
    for name, data in contents(prepared.path).items():
        (folder / name).write_bytes(data)
    path = folder / f"train-00002.{side}.npy"
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif damage == "cut":
        path.write_bytes(data[:-2])
    else:
        path.unlink()
    with pytest.raises(DataError, match=f"train-00002.{side}.npy.*emove the folder and prepare"):
        PreparedCorpus(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("{}", "the format is not"),
        ("[1]", "not a JSON object"),
        (json.dumps({"format": FORMAT}), "manifest.json: damaged .*'languages'.*Remove the folder"),
        (json.dumps({"format": FORMAT, "languages": 3}), "manifest.json: damaged .*Remove the folder"),
    ],
)
def test_a_damaged_manifest_is_refused(tmp_path, content, message):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(DataError, match=message):
        PreparedCorpus(tmp_path)


def test_a_manifest_that_was_changed_is_refused_and_one_of_earlier_versions_read(prepared, tmp_path):
    folder = shutil.copytree(prepared.path, tmp_path / "copy")
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    assert manifest.pop("sha256")
    path.write_text(path.read_text(encoding="utf-8").replace('"num_pairs"', '"num_qairs"', 1))
    with pytest.raises(DataError, match=r"manifest\.json: its content does not match its checksum"):
        PreparedCorpus(folder)
    path.write_text(json.dumps(manifest), encoding="utf-8")
    assert PreparedCorpus(folder).sha256 == prepared.sha256
    del manifest["shards"][0]["source"]["sha256"]
    path.write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(DataError, match=r"manifest\.json: damaged \(KeyError\('sha256'\)\)"):
        PreparedCorpus(folder)


def test_a_corpus_of_before_there_were_trees_is_the_same_corpus(corpus, prepared, tmp_path):
    folder = shutil.copytree(prepared.path, tmp_path / "copy")
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    del manifest["sha256"], manifest["settings"]["data"]["keep_tags"]
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    assert prepare_some(corpus, folder).settings == prepared.settings


def test_an_unfinished_preparation_is_no_corpus(tmp_path):
    with pytest.raises(DataError, match="not a prepared corpus"):
        PreparedCorpus(tmp_path)


# Interruption.


def command(corpus, out):
    return [
        *(sys.executable, "pipelines/prepare_wmt.py", str(corpus), str(out), *LANGUAGES),
        *("--vocab-size", "330", "--workers", "2", "--shard-pairs", "23"),
        *("--set", "data.max_length=40"),
    ]


def start(corpus, out):
    return subprocess.Popen(
        command(corpus, out),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.very_slow
def test_killed_five_times_it_ends_with_the_same_bytes(corpus, tmp_path):
    out = tmp_path / "disturbed"
    chooser = random.Random(4)
    num_killed = 0
    for turn in range(1, 6):
        process = start(corpus, out)
        # At a random moment after some more of the 31 shards are there.
        while process.poll() is None and len(list(out.glob("*.npy"))) < 8 * turn:
            time.sleep(0.001)
        time.sleep(chooser.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        num_killed += process.wait() == -signal.SIGKILL
        assert not is_prepared(out)
    assert num_killed == 5
    assert start(corpus, out).wait(timeout=300) == 0
    assert start(corpus, tmp_path / "undisturbed").wait(timeout=300) == 0
    assert contents(out) == contents(tmp_path / "undisturbed")


def stop_after(number, monkeypatch):
    """Makes a preparation end after so many shards were begun."""
    jobs = sharding.shard_jobs

    def some(*arguments):
        yield from itertools.islice(jobs(*arguments), number)
        raise KeyboardInterrupt

    monkeypatch.setattr(sharding, "shard_jobs", some)


@pytest.mark.slow
def test_an_interrupt_of_all_processes_is_one_line(corpus, tmp_path):
    out = tmp_path / "out"
    process = subprocess.Popen(
        command(corpus, out),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while process.poll() is None and not (out / "tokenizer.model").exists():
        time.sleep(0.001)
    time.sleep(0.1)  # the workers are starting
    os.killpg(process.pid, signal.SIGINT)
    printed = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert printed == "prepare_wmt.py: stopped. The same command continues\n"


@pytest.mark.slow
def test_it_continues_where_it_stopped(corpus, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(5, patch)
        with pytest.raises(KeyboardInterrupt):
            prepare_some(corpus, tmp_path / "out", num_workers=1)
    assert not is_prepared(tmp_path / "out")
    finished = sorted(path.stem for path in (tmp_path / "out" / "progress").glob("train-*.json"))
    assert 3 <= len(finished) < NUM_SHARDS
    stamps = {name: (tmp_path / "out" / f"{name}.en.npy").stat().st_mtime_ns for name in finished}
    with pytest.raises(DataError, match=r"was prepared with data.vocab_size=330, not 340"):
        prepare_some(corpus, tmp_path / "out", vocab_size=340)
    prepared = prepare_some(corpus, tmp_path / "out")
    for name, stamp in stamps.items():
        assert (tmp_path / "out" / f"{name}.en.npy").stat().st_mtime_ns == stamp
    assert texts_of(prepared) == SENTENCES


@pytest.mark.slow
def test_changed_text_is_not_mixed_with_what_was_prepared_before(tmp_path, monkeypatch):
    corpus = write_corpus(tmp_path / "corpus")
    with monkeypatch.context() as patch:
        stop_after(5, patch)
        with pytest.raises(KeyboardInterrupt):
            prepare_some(corpus, tmp_path / "out", num_workers=1)
    (corpus / "train.en").write_text("".join(f"{pair[0]}.\n" for pair in SENTENCES), encoding="utf-8")
    with pytest.raises(DataError, match=r"the text has changed since the preparation began \(.*train\.en\)"):
        prepare_some(corpus, tmp_path / "out")


@pytest.mark.slow
def test_a_second_process_on_the_same_folder_is_refused(corpus, tmp_path):
    first = start(corpus, tmp_path / "out")
    try:
        while not (tmp_path / "out" / ".lock").exists():
            assert first.poll() is None
            time.sleep(0.01)
        second = subprocess.run(
            command(corpus, tmp_path / "out"),
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        still_running = first.poll() is None
    finally:
        first.wait(timeout=300)
    if still_running:
        assert second.returncode == 2
        assert "another process is using this folder" in second.stderr
    assert first.returncode == 0


@pytest.mark.slow
def test_a_full_disk_ends_with_exit_code_3_and_continues_later(corpus, tmp_path):
    def limit():  # as a full disk: writing fails, and reading does not
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, resource.RLIM_INFINITY))

    found = subprocess.run(
        command(corpus, tmp_path / "out"),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        preexec_fn=limit,
        check=False,
    )
    assert found.returncode == 3, found.stderr
    last = found.stderr.strip().split("\n")[-1]
    assert os.strerror(errno.EFBIG) in last
    assert "Finished parts are kept; the same command continues. Raise the limit" in last
    leftovers = [path.name for path in (tmp_path / "out").rglob(".*") if path.name != ".lock"]
    assert not leftovers
    assert start(corpus, tmp_path / "out").wait(timeout=300) == 0
    assert texts_of(PreparedCorpus(tmp_path / "out")) == SENTENCES


# What a refusal leaves.


@pytest.mark.slow
def test_a_refused_preparation_leaves_nothing_and_the_mended_text_is_prepared_there(tmp_path):
    corpus = write_corpus(tmp_path / "corpus")
    text = (corpus / "train.de").read_bytes()
    (corpus / "train.de").write_bytes(text[:-3] + b"\xff\n")  # in the last shard
    for out in (tmp_path / "new", tmp_path / "empty"):
        if out.name == "empty":
            out.mkdir()
        with pytest.raises(DataError, match="train.de: line 700.*on_bad_utf8=replace$"):
            prepare_some(corpus, out)
        assert out.exists() == (out.name == "empty")
        assert not list(out.glob("*"))
    (corpus / "train.de").write_bytes(text)
    assert texts_of(prepare_some(corpus, tmp_path / "empty")) == SENTENCES


@pytest.mark.slow
def test_a_file_that_cannot_be_read_for_a_while_is_no_end(corpus, tmp_path, monkeypatch):
    jobs = sharding.shard_jobs

    def some(*arguments):
        yield from itertools.islice(jobs(*arguments), 5)
        raise DataError("train.en: cannot be read") from OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(sharding, "shard_jobs", some)
        with pytest.raises(DataError, match="cannot be read"):
            prepare_some(corpus, tmp_path / "out", num_workers=1)
    assert list((tmp_path / "out").glob("train-*.npy"))
    assert texts_of(prepare_some(corpus, tmp_path / "out")) == SENTENCES


class Deadly:
    """Ends the process that unpickles it, as one that runs out of memory is ended."""

    def __reduce__(self):
        return os._exit, (9,)


@pytest.mark.slow
def test_a_killed_worker_is_told_and_the_next_call_continues(corpus, tmp_path, monkeypatch):
    jobs = sharding.shard_jobs

    def some(*arguments):
        for number, job in enumerate(jobs(*arguments)):
            yield job._replace(repeated=[Deadly()]) if number == 5 else job

    with monkeypatch.context() as patch:
        patch.setattr(sharding, "shard_jobs", some)
        with pytest.raises(UnfinishedError, match="a worker process was killed.*it continues"):
            prepare_some(corpus, tmp_path / "out", num_workers=1)
    assert (tmp_path / "out" / "progress").is_dir()
    assert texts_of(prepare_some(corpus, tmp_path / "out")) == SENTENCES


@pytest.mark.slow
def test_a_lock_that_was_left_behind_is_no_other_file(corpus, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".lock").touch()
    assert texts_of(prepare_some(corpus, tmp_path / "out")) == SENTENCES
