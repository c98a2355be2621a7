"""`back-translate` and `distil` as they are called, with the model that comes with the package."""

import errno
import io
import itertools
import json
import logging
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from keras_transformer.batches.preparing import prepare
from keras_transformer.batches.sharding import open_text
from keras_transformer.batches.training_data import check_training_data, load_training_data
from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.checkpoints.weights import write_model_weights
from keras_transformer.cli import back_translate, distil, synthetic_corpora, translate
from keras_transformer.config.sections import CleaningConfig
from keras_transformer.config.settings import Config, SearchConfig, override
from keras_transformer.evaluation.bleu import bleu_scorer
from keras_transformer.model.transformer import Transformer
from keras_transformer.text.cleaning import Cleaner
from keras_transformer.text.lines import DataError
from keras_transformer.text.noise import Noise
from keras_transformer.text.synthetic import MANIFEST, read_manifest, tags_of_sources
from keras_transformer.tokenizers.tokenizer_pair import Tokenizers, as_tokenizers, load_tokenizers
from keras_transformer.translation.synthetic import Side, SyntheticCorpus, nearest
from keras_transformer.translation.texts import NBest, Translation
from keras_transformer.translation.translator import Translator

ROOT = pathlib.Path(__file__).resolve().parents[1]
MODEL = "en-de-tatoeba"
# Text of the target language, English, of a model from German to English.
LINES = [
    "The children are playing in the garden.",
    "Where is the train station?",
    "She reads a book.",
    "I have no time today.",
    "He bought three apples.",
]
FAST = ["--beam-size", "2", "--threads", "1"]
IN_CHUNKS = """
import sys
from keras_transformer.cli import back_translate, synthetic_corpora
from keras_transformer.cli.process import run
synthetic_corpora.CHUNK_LINES, synthetic_corpora._CHUNKS_OF_A_PART = 4, 3
run(lambda: back_translate.main(sys.argv[1:]))
"""


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def text(tmp_path):
    return write(tmp_path / "text.en", [*LINES[:2], "", *LINES[2:], LINES[0], "   "])


def lines_of(folder, name):
    return (folder / name).read_text(encoding="utf-8").split("\n")[:-1]


def call(program, *arguments):
    return program.main([str(argument) for argument in arguments])


def translations(lines, *more, fast=FAST):
    out = io.BytesIO()
    data = "".join(f"{line}\n" for line in lines).encode()
    assert translate.main([MODEL, *fast, *more], stdin=io.BytesIO(data), stdout=out) == 0
    return out.getvalue().decode().split("\n")[:-1]


def test_translations_become_tagged_sources(tmp_path, text, capsys):
    out = tmp_path / "out"
    assert call(back_translate, MODEL, *FAST, "--input", text, "--output", out) == 0
    assert lines_of(out, "train.en") == LINES
    assert lines_of(out, "train.de") == [f"<BT> {line}" for line in translations(LINES)]
    assert sorted(path.name for path in out.iterdir()) == ["synthetic.json", "train.de", "train.en"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "text.en"]
    printed = capsys.readouterr().out
    assert "- a side is blank: 2\n- occurred before: 1\nlines translated: 5" in printed
    tail = "--source de --target en --set 'data.tags=<BT>' --preset auto --run-dir RUN"
    command = f"keras-transformer train --dataset REAL,{out} {tail}"
    assert printed.endswith(f"next, where REAL is your parallel corpus:\n  {command}\n")
    settings = read_manifest(out)["settings"]
    assert (settings["method"], settings["tag"], settings["noise"]) == ("beam", "<BT>", None)
    # The same command does nothing, also with a copy of the text; another one is refused.
    os.utime(text, ns=(1, 1))
    text = text.rename(tmp_path / "moved.en")
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    assert call(back_translate, MODEL, *FAST, "--input", text, "--output", out) == 0
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before
    assert capsys.readouterr().out == printed
    assert call(back_translate, MODEL, *FAST, "--input", text, "--output", out, "--no-tag") == 2
    assert "was begun with tag='<BT>', not ''. Use the same" in capsys.readouterr().err
    text.write_text(text.read_text().replace("three", "seven"))  # of the same size
    assert call(back_translate, MODEL, *FAST, "--input", text, "--output", out) == 2
    assert "was begun with other text. Use the same" in capsys.readouterr().err


def test_a_complete_corpus_that_has_changed_is_refused(tmp_path, text, monkeypatch, capsys):
    monkeypatch.setattr(Translator, "load", lambda *args, **options: StandIn())
    out = tmp_path / "out"
    given = [MODEL, "--input", text, "--output", out, "--set", "cleaning.max_length_ratio=0"]
    assert call(back_translate, *given) == 0
    write(out / "train.de", lines_of(out, "train.de")[1:])
    assert call(back_translate, *given) == 2
    assert f"{out}/train.de: has changed since it was written. Delete the folder" in capsys.readouterr().err
    (out / "train.de").unlink()
    assert call(back_translate, *given) == 2
    assert f"{out}/train.de: cannot be read: No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--tag", ""], "--tag must be letters, digits and _ in angle brackets, such as <BT>"),
        (["--tag", "<eos>"], "and not <s>, <pad>, <bos>, <eos> or <unk>. Received: '<eos>'"),
        (["--tag", "<X>", "--no-tag"], "--no-tag: not allowed with argument --tag"),
        (["--method", "noised-beam", "--filler", "<eos>"], "--filler must not be <s>, <pad>, <bos>"),
        (["--method", "noised-beam", "--drop-words", "1.5"], "--drop-words must be at least 0 and below 1"),
        (["--method", "noised-beam", "--shuffle-words", "-1"], "--shuffle-words must be a whole number of"),
        (["--method", "noised-beam", "--filler", "a b"], "--filler must be one word"),
        (["--method", "noised-beam", "--filler", "<BT>"], "--filler must not be the --tag of the sources"),
    ],
)
def test_tags_and_noise_that_cannot_be_used_are_refused(tmp_path, text, capsys, flags, words):
    given = [MODEL, "--input", text, "--output", tmp_path / "out", *flags]
    try:
        code = call(back_translate, *given)
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["text.en"]


@pytest.mark.slow
def test_a_model_without_translations_is_named_as_the_cause(tmp_path, text, capsys, monkeypatch):
    monkeypatch.setattr(SyntheticCorpus, "_translated", lambda self, n_best, language: iter([(LINES[0], "")]))
    out = tmp_path / "out"
    assert call(back_translate, MODEL, *FAST, "--input", text, "--output", out) == 2
    assert capsys.readouterr().err.endswith(
        f": {out}: the filters drop all pairs (1 read, a side is blank: 1). The translations "
        f"are blank: train the model longer, or choose another, and delete {out}.progress\n"
    )
    assert not out.exists()


@pytest.mark.slow
def test_noise_and_samples(tmp_path, text):
    shared = [MODEL, "--threads", "1", "--input", text, "--seed", 5, "--output"]
    given = [
        "--method",
        "noised-beam",
        "--beam-size",
        2,
        "--drop-words",
        0.2,
        "--shuffle-words",
        1,
        "--no-tag",
    ]
    assert call(back_translate, *shared, tmp_path / "noised", *given) == 0
    noise = Noise(drop=0.2, shuffle=1, seed=5)
    expected = [noise.apply(line, number) for number, line in enumerate(translations(LINES))]
    assert lines_of(tmp_path / "noised", "train.de") == expected
    given = ["--method", "sampling", "--no-tag", "--set", "cleaning.max_length_ratio=0"]
    assert call(back_translate, *shared, tmp_path / "sampled", *given) == 0
    samples = translations(LINES, "--sampling", "--seed", "5", fast=FAST[2:])
    found = lines_of(tmp_path / "sampled", "train.de")
    assert found == [text for text in samples if text]
    assert found != translations(LINES)
    settings = read_manifest(tmp_path / "sampled")["settings"]["search"]
    assert [settings[name] for name in ("sampling", "temperature", "top_k", "top_p", "seed")] == [
        True,
        1,
        0,
        1,
        5,
    ]


def test_samples_are_of_the_whole_distribution_whatever_the_run_says(tmp_path, config, tokenizer, text):
    run = RunFolder.create(
        tmp_path / "run", override(config, ["search.top_k=3", "search.temperature=0.5"]), tokenizer
    )
    (run.path / "final").mkdir()
    (run.path / "final/weights.index").touch()
    given = [str(run.path), "--input", str(text), "--output", str(tmp_path / "out"), "--method", "sampling"]

    def search(*more):
        return back_translate.plan_of(back_translate.parse_args([*given, *more]), [run]).search

    whole = {"sampling": True, "mbr": False, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "n_best": 1}
    assert search() == whole
    assert search("--top-k", "7", "--seed", "2") == whole | {"top_k": 7, "seed": 2}
    beam = [*given[:-2], "--beam-size", "3"]
    args = back_translate.parse_args(beam)
    assert back_translate.plan_of(args, [run]).search == {"sampling": False, "beam_size": 3, "n_best": 1}
    # Minimum Bayes risk decoding of the run is no hindrance for samples, and named where it is one.
    run.write_config(override(run.config, ["search.mbr=true"]))
    run = RunFolder(run.path)
    assert search() == whole
    message = "--beam-size: the run has search.mbr=true, which has no beam. Add --no-mbr"
    with pytest.raises(ValueError, match=message):
        back_translate.plan_of(args, [run])
    args = back_translate.parse_args([*beam, "--no-mbr"])
    assert not back_translate.plan_of(args, [run]).search["mbr"]


@pytest.mark.slow
def test_ctranslate2_makes_both_kinds_of_corpora(tmp_path, text, parallel, capsys):
    pytest.importorskip("ctranslate2", reason="needs the extra ctranslate2")
    given = [MODEL, *FAST, "--early-stop", "--engine"]
    back = ["--input", text, "--output", tmp_path / "back"]
    assert call(back_translate, *given, "ctranslate2", *back) == 0
    expected = translations(LINES, "--early-stop", "--engine", "ctranslate2")
    assert lines_of(tmp_path / "back", "train.de") == [f"<BT> {line}" for line in expected]
    assert read_manifest(tmp_path / "back")["settings"]["engine"] == "ctranslate2"
    capsys.readouterr()
    assert call(back_translate, *given, "tensorflow", *back) == 2
    assert "was begun with engine='ctranslate2', not 'tensorflow'. Use" in capsys.readouterr().err
    refused = ["--method", "sampling", "--threads", 1, "--input", text, "--output", tmp_path / "no"]
    assert call(back_translate, MODEL, "--engine", "ctranslate2", *refused) == 2
    assert "ctranslate2 has no sampling. Choose the engine tensorflow" in capsys.readouterr().err
    assert call(distil, *given, "auto", "--dataset", parallel, "--output", tmp_path / "out") == 0
    assert lines_of(tmp_path / "out", "train.de") == expected[:3]
    error = capsys.readouterr().err
    assert "distil: ctranslate2: the same translations, faster on a CPU\n" in error
    assert error.count("the same translations") == 1


def test_with_minimum_bayes_risk_decoding_chunks_are_small(tmp_path, text, monkeypatch):
    found = []

    def note(args, search, engine):
        found.append(args.chunk_lines)

    monkeypatch.setattr(synthetic_corpora, "translate_shards", note)
    shared = [MODEL, "--threads", 1, "--input", text, "--output"]
    for more in ([], ["--mbr"], ["--mbr", "--samples", 5], ["--mbr", "--samples", 1000]):
        assert call(back_translate, *shared, tmp_path / f"out{len(found)}", *more) == 0
    assert found == [1024, 16, 204, 16]


def test_a_bad_byte_is_refused_in_one_line(tmp_path, capsys):
    (tmp_path / "text.en").write_bytes(b"A cat.\nA bad \xff byte.\nIt rains.\n")
    assert call(back_translate, MODEL, "--input", tmp_path / "text.en", "--output", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "text.en: line 2: byte 7 (0xff) is not valid UTF-8. Convert the file to UTF-8, or replace" in error
    assert "--set data.on_bad_utf8=replace" in error
    assert [path.name for path in tmp_path.iterdir()] == ["text.en"]  # no folder of the progress


def test_a_run_of_the_wrong_direction_is_refused(tmp_path, capsys):
    german = write(tmp_path / "text.de", ["Die Kinder spielen im Garten.", "Wo ist der Bahnhof?"] * 5)
    out = tmp_path / "out"
    assert call(back_translate, MODEL, "--input", german, "--output", out) == 2
    error = capsys.readouterr().err
    assert "text.de: seems to be in de (10 of 10 sampled lines), but" in error
    assert "translates from en. Give a run of the other direction" in error
    english = write(tmp_path / "text.en", LINES)
    assert call(back_translate, MODEL, "--input", english, "--output", out, "--source", "en") == 2
    error = capsys.readouterr().err
    assert "this run translates from en to de, which makes data for a model from de to en" in error
    assert "Received: --source en. Give a run of the other direction" in error
    assert error.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.de", "text.en"]


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.very_slow)])
def test_a_stopped_program_continues_to_the_same_bytes(tmp_path, how):
    numbers = [f"I have {number} apples." for number in range(30)]
    text = write(tmp_path / "text.en", numbers)
    arguments = [MODEL, "--beam-size", 1, "--threads", 1, "--input", text, "--output"]
    command = [sys.executable, "-c", IN_CHUNKS, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    out = tmp_path / "out"
    log = tmp_path / "out.progress/parts/progress/00002.log"  # of the second of three parts
    process = subprocess.Popen([*command, str(out)], env=environment, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 120
        while not (log.exists() and log.stat().st_size) and time.monotonic() < end:
            time.sleep(0.002)
        process.send_signal(how)
        assert process.wait(60) in ((-signal.SIGKILL,) if how == signal.SIGKILL else (143,))
    finally:
        process.kill()
        process.wait()
    assert not out.exists()
    first = tmp_path / "out.progress/parts/part-00001-of-00003.txt"
    before = first.stat().st_mtime_ns
    subprocess.run([*command, str(out)], env=environment, check=True, capture_output=True)
    assert not (tmp_path / "out.progress").exists()
    assert before < out.stat().st_mtime_ns
    assert lines_of(out, "train.en") == numbers
    assert lines_of(out, "train.de") == [f"<BT> {line}" for line in translations(numbers, "--beam-size", "1")]


@pytest.mark.slow
def test_a_mixture_trains_and_validates_on_real_text(tmp_path, text):
    assert call(back_translate, MODEL, *FAST, "--input", text, "--output", tmp_path / "synthetic") == 0
    real = tmp_path / "real"
    real.mkdir()
    for split in ("train", "valid"):
        write(real / f"{split}.de", ["<BT> und so weiter", "Der Hund liest.", "Die Katze schläft."])
        write(real / f"{split}.en", ["and so on", "The dog reads.", "The cat sleeps."])
    settings = [f"data.dataset={real},{tmp_path / 'synthetic'}", "data.source=de", "data.target=en"]
    settings += ["data.vocab_size=300", "data.dataset_weights=1.7,1", "data.max_length=60"]
    config = override(Config(), settings)
    lacks = "synthetic: its sources have the tag <BT>, which the vocabulary lacks"
    with pytest.raises(DataError, match=f"{lacks}. Add --set 'data.tags=<BT>', or make .* with --no-tag"):
        check_training_data(config)
    with pytest.raises(DataError, match="which the vocabulary lacks. Add --set 'data.tags=<BT>'"):
        load_training_data(config, tmp_path / "corpus")
    config = override(config, ["data.tags=<BT>"])
    turned = override(config, ["data.source=en", "data.target=de"])
    for check in (check_training_data, lambda config: load_training_data(config, tmp_path / "turned")):
        with pytest.raises(
            DataError, match="synthetic: was made for de to en: .*Use --source de --target en, or"
        ):
            check(turned)
    check_training_data(config)
    corpus = load_training_data(config, tmp_path / "corpus")
    tag = corpus.tokenizers.source.tags["<BT>"]
    assert corpus.sizes == [3, 5]
    has_tag = [row[0] == tag for row in corpus.train.source]
    assert has_tag == [True, False, False, *[True] * 5]
    assert not any(tag in row for row in corpus.train.target)
    assert corpus.validation.target == ["and so on", "The dog reads.", "The cat sleeps."]
    assert tag not in corpus.tokenizers.source.encode(corpus.validation.source)[0]
    # A vocabulary that is given must have the tag, too.
    plain = load_tokenizers(ROOT / "keras_transformer/checkpoints/pretrained" / MODEL)
    with pytest.raises(DataError, match="the vocabulary lacks. Add --new-vocabulary --set 'data.tags=<BT>'"):
        load_training_data(override(config, ["data.tags="]), tmp_path / "other", plain)


def test_a_synthetic_corpus_that_has_changed_is_warned_of(tmp_path, caplog):
    lines, folder = ["one dog", "two cats", "three mice"], tmp_path / "synthetic"
    made = SyntheticCorpus(folder, {"program": "back-translate", "tag": ""})
    made.collect(lambda counts: zip(lines, [""] * 3, strict=True))
    made.translations.write_text("ein Hund\nzwei Katzen\ndrei Mäuse\n", encoding="utf-8")
    cleaner, words = Cleaner(CleaningConfig(), "de", "en", max_length=9), as_tokenizers(Words())
    made.write(Side(True, ""), cleaner, words, ("de", "en"), lambda folder: None)
    real = tmp_path / "real"
    real.mkdir()
    for split, language in itertools.product(("train", "valid"), ("de", "en")):
        write(real / f"{split}.{language}", ["eins", "two", "drei"])
    settings = [f"data.dataset={real},{folder}", "data.source=de", "data.target=en", "data.max_length=60"]
    config = override(Config(), [*settings, "data.vocab_size=290"])

    def warnings(name):
        caplog.clear()
        assert load_training_data(config, tmp_path / name).sizes[0] == 3
        return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]

    assert warnings("as written") == []
    advice = f"according to {MANIFEST}. If you did not change it, make it again"
    for language in ("de", "en"):
        path = folder / f"train.{language}"
        path.write_text("".join(path.read_text("utf-8").splitlines(keepends=True)[:2]), encoding="utf-8")
    assert warnings("cut") == [
        f"{folder}/train.{language}: has changed since it was written, {advice}" for language in ("de", "en")
    ]


@pytest.mark.slow
def test_the_next_command_mixes_the_corpora_of_the_run(tmp_path, parallel, config, tokenizer, capsys):
    """The real corpus is that of the reverse run, also if it was prepared; real pairs are seen as often."""
    data = override(config, [f"data.dataset={parallel}", "data.max_length=30"])
    run = RunFolder.create(tmp_path / "raw", data, tokenizer)
    assert synthetic_corpora.origin_of(run) == (str(parallel), 0)  # not trained yet
    prepare(data, run.path / "corpus", tokenizers=as_tokenizers(tokenizer), num_workers=0)
    prepare(data, tmp_path / "prepared", tokenizers=as_tokenizers(tokenizer), num_workers=0)
    other = RunFolder.create(
        tmp_path / "run", override(data, [f"data.dataset={tmp_path / 'prepared'}"]), tokenizer
    )
    for one in (run, other):
        assert synthetic_corpora.origin_of(one)[0] == str(parallel)
        size = synthetic_corpora.origin_of(one)[1]
        assert 0 < size <= 3
        manifest = {"pairs": {"num_kept": 7 * size}, "tags": ["<BT>", "<B>"], "languages": ["de", "en"]}
        assert back_translate.next_steps("out", one, manifest) == (
            f"next:\n  keras-transformer train --dataset {parallel},out --source de --target en "
            "--set data.dataset_weights=7,1 --set 'data.tags=<BT>,<B>' --preset auto --run-dir RUN"
        )
        few = back_translate.next_steps("out", one, manifest | {"pairs": {"num_kept": 1}, "tags": []})
        assert "--set data.dataset_weights=1,1 --preset" in few
    # In rounds, the run was trained on back-translations, too, which are of the other direction.
    rounds = tmp_path / "rounds"
    synthetic = shutil.copytree(parallel, tmp_path / "synthetic")
    assert (
        call(
            back_translate,
            MODEL,
            *FAST,
            "--input",
            parallel / "train.en",
            "--output",
            synthetic.with_name("s"),
            "--no-tag",
        )
        == 0
    )
    shutil.copy(synthetic.with_name("s") / "synthetic.json", synthetic)
    mixed = override(data, [f"data.dataset={synthetic},{parallel}"])
    run = RunFolder.create(rounds, mixed, tokenizer)
    prepare(mixed, run.path / "corpus", tokenizers=as_tokenizers(tokenizer), num_workers=0)
    assert synthetic_corpora.origin_of(run) == (f"{synthetic},{parallel}", 2 * size)
    assert synthetic_corpora.origin_of(run, synthetic=False) == (str(parallel), size)
    command = back_translate.next_steps("out", run, manifest)
    assert f"--dataset {parallel},out --source" in command
    assert "dataset_weights=7,1 " in command
    moved = override(data, ["data.dataset=no/such"])
    assert synthetic_corpora.origin_of(RunFolder.create(tmp_path / "moved", moved, tokenizer)) == ("", 0)


@pytest.fixture
def parallel(tmp_path):
    folder = tmp_path / "real"
    folder.mkdir()
    references = ["Die Kinder spielten im Garten.", "Wo befindet sich der Bahnhof?", "Sie las Bücher."]
    for split in ("train", "valid", "test.1"):
        write(folder / f"{split}.en", LINES[:3])
        write(folder / f"{split}.de", references)
    return folder


@pytest.mark.slow
def test_distilled_targets_are_the_models_translations(tmp_path, parallel, capsys):
    out = tmp_path / "out"
    assert call(distil, MODEL, *FAST, "--dataset", parallel, "--output", out) == 0
    assert lines_of(out, "train.en") == LINES[:3]
    assert lines_of(out, "train.de") == translations(LINES[:3])
    for name in ("valid.en", "valid.de", "test.1.en", "test.1.de"):  # as they were
        assert (out / name).read_bytes() == (parallel / name).read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "real"]
    for path in parallel.iterdir():  # a copy of the corpus is the same corpus
        os.utime(path, ns=(1, 1))
    moved = parallel.rename(tmp_path / "moved")
    assert call(distil, MODEL, *FAST, "--dataset", moved, "--output", out) == 0
    parallel = moved.rename(parallel)
    command = f"train --dataset {out} --source en --target de --preset auto --run-dir RUN"
    assert capsys.readouterr().out.endswith(f"next:\n  keras-transformer {command}\n")
    check_training_data(override(Config(), [f"data.dataset={out}"]))
    # An ensemble of a model with itself.
    assert call(distil, MODEL, MODEL, *FAST, "--dataset", parallel, "--output", tmp_path / "two") == 0
    assert lines_of(tmp_path / "two", "train.de") == lines_of(out, "train.de")
    assert len(read_manifest(tmp_path / "two")["settings"]["models"]) == 2


@pytest.mark.slow
def test_a_prepared_corpus_stands_for_its_text(tmp_path, parallel, monkeypatch, capsys):
    monkeypatch.setattr(Translator, "load", lambda *args, **options: StandIn())
    config = override(Config(), [f"data.dataset={parallel}", "data.vocab_size=300"])
    prepare(config, tmp_path / "prepared")
    for name, dataset in (("raw", parallel), ("out", tmp_path / "prepared")):
        filters = ["--set", "cleaning.max_length_ratio=0"]
        assert call(distil, MODEL, "--dataset", dataset, "--output", tmp_path / name, *filters) == 0
    for name in ("train.en", "train.de", "valid.de"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "raw" / name).read_bytes()
    assert "warning" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_prepared_corpus_brings_its_filters(tmp_path, parallel):
    """Those of the preparation, by name or as the corpus of the run; `--set` changes them further."""
    for language in ("en", "de"):
        path = parallel / f"train.{language}"
        path.write_text(2 * path.read_text())
    names = [f"data.dataset={parallel}", "data.vocab_size=300", "cleaning.drop_duplicates=true"]
    config = override(Config(), names)
    prepare(config, tmp_path / "prepared")
    raw = distil._raw(override(Config(), [f"data.dataset={tmp_path / 'prepared'}"]), "")
    assert (raw.cleaning, raw.data.dataset) == (config.cleaning, str(parallel))
    given = [MODEL, *FAST, "--dataset", tmp_path / "prepared", "--output"]
    assert call(distil, *given, tmp_path / "c") == 0
    assert lines_of(tmp_path / "c", "train.en") == LINES[:3]
    loose = ["--set", "cleaning.drop_duplicates=false", "--set", "data.max_length=5000"]
    assert call(distil, *given, tmp_path / "d", *loose) == 0
    assert lines_of(tmp_path / "d", "train.en") == 2 * LINES[:3]


def test_tags_that_the_teacher_lacks_are_left_out_as_well(tmp_path, parallel, monkeypatch):
    monkeypatch.setattr(Translator, "load", lambda *args, **options: StandIn())
    synthetic = tmp_path / "synthetic"
    assert call(back_translate, MODEL, "--input", parallel / "train.en", "--output", synthetic) == 0
    assert all(line.startswith("<BT> ") for line in lines_of(synthetic, "train.de"))
    for text, expected in ((("de", "en"), 3), (("en", "de"), 0)):
        found = open_text(
            override(
                Config(),
                [f"data.dataset={parallel},{synthetic}", f"data.source={text[0]}", f"data.target={text[1]}"],
            )
        )
        assert tags_of_sources(found.datasets) == ({"<BT>"} if expected else set())


def test_swapped_sides_are_told(tmp_path, parallel, monkeypatch, capsys):
    monkeypatch.setattr(Translator, "load", lambda *args, **options: StandIn())
    for name in ("train.en", "train.de"):
        (parallel / name).rename(parallel / f"{name}.old")
    (parallel / "train.en.old").rename(parallel / "train.de")
    (parallel / "train.de.old").rename(parallel / "train.en")
    assert call(distil, MODEL, "--dataset", parallel, "--output", tmp_path / "out") == 0
    assert "distil: warning: source and target seem swapped: in 3 of 3 sampled" in capsys.readouterr().err


def test_interpolated_targets_are_the_nearest_of_the_n_best_lists(tmp_path, parallel, capsys):
    out = tmp_path / "out"
    given = ["--dataset", parallel, "--interpolate", "--threads", 1, "--beam-size", 5, "--output", out]
    assert call(distil, MODEL, *given) == 0
    found = io.BytesIO()
    data = "".join(f"{line}\n" for line in LINES[:3]).encode()
    search = [MODEL, "--beam-size", "5", "--n-best", "5", "--threads", "1", "--format", "jsonl"]
    assert translate.main(search, stdin=io.BytesIO(data), stdout=found) == 0
    lists = [[one["text"] for one in json.loads(line)["n_best"]] for line in found.getvalue().splitlines()]
    score = bleu_scorer("de", effective_order=True).sentence_score
    references = lines_of(parallel, "train.de")
    expected = [nearest(*pair, score) for pair in zip(lists, references, strict=True)]
    assert lines_of(out, "train.de") == expected != [texts[0] for texts in lists]
    scores = [
        np.mean([score(text, [reference]).score for text, reference in zip(texts, references, strict=True)])
        for texts in (expected, [texts[0] for texts in lists])
    ]
    assert scores[0] > scores[1]
    assert call(distil, MODEL, *given, "--beam-size", 1) == 2
    assert "--interpolate needs several translations: --beam-size of at least 2" in capsys.readouterr().err
    for flags in (["--n-best", 1], ["--beam-size", 1, "--sampling"]):
        assert call(distil, MODEL, "--dataset", parallel, "--interpolate", "--output", out, *flags) == 2
        assert "--interpolate needs several translations: --n-best of at least 2" in capsys.readouterr().err


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(("source", "target"), [("xx", "de"), ("de", "xx")])
def test_a_language_without_known_scripts_needs_a_filter_less(
    tmp_path, config, tokenizer, text, capsys, source, target
):
    """It is refused before anything is translated."""
    data = override(config, [f"data.source={source}", f"data.target={target}"])
    run = RunFolder.create(tmp_path / "run", data, tokenizer)
    write_model_weights(run, Transformer(data.model), "float32")
    arguments = [run.path, "--input", text, "--output", tmp_path / "out", "--beam-size", 1]
    assert call(back_translate, *arguments) == 2
    error = capsys.readouterr().err
    assert "must be a code that CLDR knows" in error
    assert "'xx'. Or without these filters: --set cleaning.max_foreign_letters=1" in error
    assert not list(tmp_path.glob("out*"))
    # A model of random weights in this direction; the filters drop most of what it says.
    loose = ["max_foreign_letters=1", "drop_identical=false", "max_length_ratio=0", "drop_empty=false"]
    arguments += [word for name in loose for word in ("--set", f"cleaning.{name}")]
    assert call(back_translate, *arguments, "--max-length-offset", 3) == 0
    assert lines_of(tmp_path / "out", f"train.{source}") == LINES
    assert len(lines_of(tmp_path / "out", f"train.{target}")) == 5


def test_tags_of_sources_are_left_out():
    class Text:
        def clean_pairs(self):
            return iter([("<BT> a dog", "x"), ("a <BTX> dog", "y"), ("a <B> <BT>", "z")])

    found = list(distil._read(Text(), {"<BT>", "<B>"}, {}))
    assert found == [("a dog", "x"), ("a <BTX> dog", "y"), ("a", "z")]


class Words:
    """Tokens are words."""

    sha256 = "words"

    def encode(self, texts):
        return [text.split() for text in texts]


class Characters:
    """Tokens are characters."""

    sha256 = "characters"

    def encode(self, texts):
        return list(map(list, texts))


class Table:
    """Translates each line to what a dict has for it."""

    search = SearchConfig()

    def __init__(self, table):
        self.table = table

    def n_best(self, texts, *given, **options):
        return [
            NBest([Translation(self.table[text], 0.0, 0.0, [], [], True)], [], 1, False) for text in texts
        ]


def back_translated(tmp_path, monkeypatch, table, tokenizers, *flags):
    """The targets that are kept of a text whose translations are those of a dict."""
    monkeypatch.setattr(RunFolder, "load_tokenizers", lambda run: tokenizers)
    monkeypatch.setattr(Translator, "load", lambda *args, **options: Table(table))
    text, out = write(tmp_path / "text.en", table), tmp_path / "out"
    given = ["--input", text, "--output", out, "--no-tag", "--source", "de", *flags]
    assert call(back_translate, MODEL, *given) == 0
    kept = lines_of(out, "train.en")
    assert lines_of(out, "train.de") == [table[line] for line in kept]
    return kept


def words(number, letter="a"):
    return " ".join(f"{letter}{i}" for i in range(number))


def test_the_filters_that_are_on_by_default(tmp_path, monkeypatch):
    """Lengths are in tokens with end of sentence."""
    table = {
        words(249): words(200, "b"),
        words(250): words(200, "c"),  # 251 tokens
        words(29): words(44, "d"),  # 45 / 30 = 1.5
        words(30): words(46, "e"),  # 47 / 31 = 1.52
        words(3): words(9, "f"),  # of at most ten tokens
        words(7): words(7),
        "\u0430\u0431\u0432 a": words(2, "g"),  # three of four letters are Cyrillic
        "\u0430 bcd": words(2, "h"),
    }
    kept = back_translated(tmp_path, monkeypatch, table, Tokenizers(Words(), Words()))
    assert kept == [words(249), words(29), words(3), "\u0430 bcd"]


def test_tokens_are_those_of_the_language_that_the_model_has_on_each_side(tmp_path, monkeypatch):
    """The model translates the text, its source side, whose tokens here are characters."""
    table = {"ab cd ef": "gh ij klm nop", "ab cd efg hij": "kl mn"}
    tokenizers = Tokenizers(Characters(), Words())
    flags = ["--set", "data.max_length=9", "--set", "cleaning.max_length_ratio=0"]
    # With end of sentence: 9 characters, 5 words; 14 characters.
    assert back_translated(tmp_path, monkeypatch, table, tokenizers, *flags) == ["ab cd ef"]
    counts = read_manifest(tmp_path / "out")["counts"]
    assert (counts["lines read"], counts["lines translated"]) == (2, 1)  # dropped before the translation


@pytest.mark.parametrize("program", [back_translate, distil])
def test_several_runs_form_an_ensemble(tmp_path, text, parallel, monkeypatch, program):
    loaded = []

    def load(runs, **options):
        loaded.append([pathlib.Path(run).name for run in runs])
        return StandIn()

    monkeypatch.setattr(Translator, "load", load)
    source = ROOT / "keras_transformer/checkpoints/pretrained" / MODEL
    other = shutil.copytree(source, tmp_path / "other")
    given = {back_translate: ["--input", text], distil: ["--dataset", parallel]}[program]
    given += ["--set", "cleaning.max_length_ratio=0"]
    assert call(program, MODEL, other, *given, "--output", tmp_path / "out") == 0
    assert loaded == [[MODEL, "other"]]


def test_flags_of_samples_with_minimum_bayes_risk_decoding():
    given = ["RUN", "--input", "x", "--output", "y", "--mbr"]
    args = back_translate.parse_args([*given, "--seed", "3", "--temperature", "0.7", "--top-k", "5"])
    assert (args.seed, args.temperature, args.top_k) == (3, 0.7, 5)


def test_what_a_killed_process_left_beside_a_complete_corpus_is_removed(tmp_path, text, monkeypatch):
    monkeypatch.setattr(Translator, "load", lambda *args, **options: StandIn())
    given = [MODEL, "--input", text, "--output", tmp_path / "out", "--set", "cleaning.max_length_ratio=0"]
    assert call(back_translate, *given) == 0
    (tmp_path / "out.progress/parts").mkdir(parents=True)
    (tmp_path / "out.progress/lock").touch()
    assert call(back_translate, *given) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "text.en"]


class StandIn:
    """Translates a line to its length and its number."""

    search = SearchConfig()

    def n_best(self, texts, *given, first_number, **options):
        return [
            NBest([Translation(f"{len(text)} wo {number}", 0.0, 0.0, [], [], True)], [], 1, False)
            for number, text in enumerate(texts, first_number)
        ]


@pytest.mark.slow
@pytest.mark.parametrize("program", [back_translate, pytest.param(distil, marks=pytest.mark.very_slow)])
def test_a_full_disk_at_any_moment_loses_nothing(tmp_path, text, parallel, monkeypatch, program):
    """Each call that renames or syncs a file fails once; then the same command ends with the same corpus."""
    monkeypatch.setattr(Translator, "load", lambda *args, **options: StandIn())
    monkeypatch.setattr(synthetic_corpora, "CHUNK_LINES", 2)
    monkeypatch.setattr(synthetic_corpora, "_CHUNKS_OF_A_PART", 1)
    given = [MODEL, "--threads", 1] + {back_translate: ["--input", text], distil: ["--dataset", parallel]}[
        program
    ]
    if program is back_translate:
        given += ["--set", "cleaning.max_length_ratio=0"]
    calls = {"left": -1}

    def failing(function):
        def call_or_fail(*args, **options):
            calls["left"] -= 1
            if calls["left"] == 0:
                raise OSError(errno.ENOSPC, "No space left on device", str(args[0]))
            return function(*args, **options)

        return call_or_fail

    for name in ("replace", "rename", "fsync"):
        monkeypatch.setattr(os, name, failing(getattr(os, name)))
    assert call(program, *given, "--output", tmp_path / "whole") == 0
    names = sorted(path.name for path in (tmp_path / "whole").iterdir())
    whole = {name: (tmp_path / "whole" / name).read_bytes() for name in names}
    number, failed = 0, True
    while failed:
        number += 1
        out = tmp_path / f"out-{number}"
        calls["left"] = number
        code = call(program, *given, "--output", out)
        failed, calls["left"] = calls["left"] <= 0, -1
        assert code == (3 if failed else 0)
        assert not out.exists() or sorted(path.name for path in out.iterdir()) == names
        assert call(program, *given, "--output", out) == 0
        assert {path.name: path.read_bytes() for path in out.iterdir()} == whole
        assert sorted(path.name for path in tmp_path.glob(f"{out.name}.*")) == []
        assert not list(tmp_path.glob(".*"))
    assert number > 10


@pytest.mark.slow
def test_a_process_that_comes_too_late_finds_the_corpus(tmp_path, text, monkeypatch):
    """Two processes share the work; the other one writes the corpus while this one joins its parts."""
    out = tmp_path / "out"
    arguments = [MODEL, *FAST, "--input", text, "--output", out]
    assert call(back_translate, *arguments) == 0
    kept = {path.name: path.read_bytes() for path in out.iterdir()}
    out.rename(tmp_path / "kept")

    def ends(*given):
        (tmp_path / "kept").rename(out)
        raise FileNotFoundError(2, "No such file", str(out))

    monkeypatch.setattr(synthetic_corpora, "translate_shards", ends)
    assert call(back_translate, *arguments) == 0
    assert {path.name: path.read_bytes() for path in out.iterdir()} == kept
