"""The programs, called as they are from a shell, and what they refuse."""

import contextlib
import dataclasses
import gzip
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest
import sacrebleu
from processes import code_of
from sacrebleu.dataset import DATASETS

from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.cli import average, command_line, evaluate, train, translate
from keras_transformer.cli.main import program_module
from keras_transformer.config.presets import PRESETS
from keras_transformer.config.settings import SearchConfig, differences
from keras_transformer.evaluation.bleu import corpus_scores
from keras_transformer.text.lines import Pairs
from keras_transformer.translation.translator import Translator

ROOT = pathlib.Path(__file__).resolve().parents[1]
SETTINGS = [
    "model.num_encoder_layers=1",
    "model.num_decoder_layers=1",
    "model.d_model=16",
    "model.d_ff=24",
    "model.num_heads=2",
    "data.vocab_size=310",
    "data.max_length=40",
    "data.batch_tokens=640",
    "training.max_steps=6",
    "training.log_every_steps=3",
    "training.validate_every_steps=6",
    "training.validation_sentences=3",
    "training.checkpoint_every_steps=3",
    "search.max_length_offset=4",
]
SENTENCES = [
    (f"the {noun} sees {number} dogs", f"der {translated} sieht {number} Hunde")
    for noun, translated in (("man", "Mann"), ("king", "König"), ("fox", "Fuchs"))
    for number in range(30)
]


def write_corpus(folder):
    folder.mkdir(exist_ok=True)
    for name, part in (("train", SENTENCES[6:]), ("val", SENTENCES[:6]), ("test", SENTENCES[:6])):
        for ending, side in zip(("en", "de"), zip(*part, strict=True), strict=True):
            (folder / f"{name}.{ending}").write_text("\n".join(side) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def train_arguments(folder, run, *more):
    arguments = ["--source", "en", "--target", "de", "--run-dir", run]
    if "--dataset" not in more:
        arguments += ["--dataset", folder]
    for setting in SETTINGS:
        arguments += ["--set", setting]
    return [str(argument) for argument in (*arguments, *more)]


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    """(exit code, what was printed, run folder) of one training."""
    run = tmp_path_factory.mktemp("runs") / "run"
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = train.main(train_arguments(corpus, run))
    return code, printed.getvalue(), run


@pytest.fixture(scope="module")
def run(trained):
    return trained[2]


def translate_bytes(run, data, *more):
    stdout = io.BytesIO()
    assert translate.main([str(run), *more], stdin=io.BytesIO(data), stdout=stdout) == 0
    return stdout.getvalue()


@pytest.mark.slow
def test_training_ends_with_what_to_do_next(trained):
    code, printed, run = trained
    assert code == 0
    assert "step       3/6 | loss " in printed
    assert f"keras-transformer translate {run}" in printed.split("next:")[1]


@pytest.mark.slow
def test_a_next_command_quotes_the_folder(run, tmp_path, capsys):
    folder = tmp_path / "x [1]"
    shutil.copytree(run, folder)
    assert average.main([str(folder), "--last", "1"]) == 0
    assert f"keras-transformer translate '{folder}' --checkpoint last-1" in capsys.readouterr().out
    from keras_transformer.cli.train import report
    from keras_transformer.training.run import Result

    pairs, scores = Pairs(["a"], ["b"]), corpus_scores(["b"], ["b"], target_language="de")
    lines = report(Result(RunFolder(folder), "test", pairs, ["b"], scores)).split("next:")[1].splitlines()
    assert lines[1].endswith(f"keras-transformer translate '{folder}'")
    assert lines[3].endswith(f"keras-transformer export '{folder}' 'served/x [1]'")
    assert lines[4] == f"  tensorboard --logdir '{folder}/tensorboard'"


def test_every_set_is_in_the_configuration(run):
    written = json.loads((run / "config.json").read_text(encoding="utf-8"))
    for setting in SETTINGS:
        path, value = setting.split("=")
        section, name = path.split(".")
        assert str(written[section][name]) == value


@pytest.mark.slow
def test_training_again_continues(run, corpus, capsys):
    assert train.main(train_arguments(corpus, run)) == 0
    assert "at step 6" in capsys.readouterr().out


def test_a_built_in_corpus_brings_its_languages():
    args = train.parse_args(["--dataset", "cldr/fr-pt_BR"])
    data = train.resolve(args).data
    assert (data.dataset, data.source, data.target) == ("cldr/fr-pt_BR", "fr", "pt_BR")


def test_every_preset_can_be_asked_for():
    for name, config in PRESETS.items():
        arguments = ["--preset", name, "--dataset", "corpora/mine"]
        resolved = train.resolve(train.parse_args(arguments))
        data = dataclasses.replace(config.data, dataset="corpora/mine")
        assert resolved == dataclasses.replace(config, data=data)


def test_translates_one_line_for_every_line(run):
    lines = ["the man sees 3 dogs", "", "the fox sees 4 dogs", "   "]
    out = translate_bytes(run, "\n".join(lines).encode() + b"\n").decode().split("\n")
    assert len(out) == len(lines) + 1
    assert out[1] == out[3] == out[4] == ""
    expected = Translator.load(run).translate(lines)
    assert out[:-1] == [" ".join(text.split("\n")) for text in expected]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("data", "number"),
    [(b"", 0), (b"\n", 1), (b"the man", 1), (b"a\r\nb\x00c\xe2\x80\xa8d\n", 2), (b"\xff\n", 1)],
)
def test_odd_input_gives_as_many_lines_and_valid_utf_8(run, data, number):
    out = translate_bytes(run, data, "--beam-size", "1")
    assert out.count(b"\n") == number
    assert out.decode("utf-8").endswith("\n") or number == 0


@pytest.mark.slow
def test_chunks_change_nothing(run):
    data = "\n".join(source for source, _ in SENTENCES[:5]).encode()
    whole = translate_bytes(run, data, "--beam-size", "1")
    assert translate_bytes(run, data, "--beam-size", "1", "--chunk-lines", "2") == whole


@pytest.mark.slow
def test_minimum_bayes_risk_decoding_is_the_same_in_chunks_and_says_its_utility(run):
    data = "\n".join(source for source, _ in SENTENCES[:5]).encode()
    flags = ("--mbr", "--samples", "5", "--utility", "bleu", "--format", "jsonl")
    rows = [
        [json.loads(line) for line in translate_bytes(run, data, *flags, *more).splitlines()]
        for more in ((), ("--chunk-lines", "2"))
    ]
    same = [[(row["text"], row["utility"]) for row in each] for each in rows]
    assert same[0] == same[1]
    translator = Translator.load(run)
    sources = [source for source, _ in SENTENCES[:5]]
    assert [text for text, _ in same[0]] == translator.translate(sources, mbr=True, samples=5, utility="bleu")


@pytest.mark.slow
def test_weights_search_and_alpha_are_those_asked_for(run):
    out = translate_bytes(
        run, b"the man sees 3 dogs\n", "--checkpoint", "last", "--beam-size", "2", "--alpha", "0"
    )
    translator = Translator.load(run, checkpoint="last")
    expected = translator.translate(["the man sees 3 dogs"], beam_size=2, alpha=0.0)[0]
    assert out.decode() == " ".join(expected.split("\n")) + "\n"


@pytest.mark.slow
def test_evaluation_writes_the_translations_and_scores_them(run, corpus, tmp_path, capsys):
    output = tmp_path / "hypotheses.de"
    assert evaluate.main([str(run), "--beam-size", "1", "--json", "--output", str(output)]) == 0
    scores = json.loads(capsys.readouterr().out)
    sources, references = map(list, zip(*SENTENCES[:6], strict=True))
    translations = Translator.load(run).translate(sources, beam_size=1)
    assert output.read_text(encoding="utf-8") == "".join(f"{text}\n" for text in translations)
    bleu = sacrebleu.BLEU(trg_lang="de").corpus_score(translations, [references]).score
    assert scores["systems"][0]["scores"]["bleu"]["score"] == pytest.approx(bleu, abs=1e-9)
    assert scores["num_lines"] == 6


def test_several_corpora_and_folders_come_from_the_command_line(tmp_path):
    arguments = ["--dataset", f"{tmp_path}/", "--dataset", "wmt14_translate/de-en", "--data-dir", "prepared"]
    arguments += ["--manual-dir", "by_hand", "--set", "data.dataset_weights=1,2.5"]
    data = train.resolve(train.parse_args(arguments)).data
    assert data.dataset == f"{tmp_path},wmt14_translate/de-en"
    assert (data.data_dir, data.manual_dir, data.dataset_weights) == ("prepared", "by_hand", "1,2.5")


@pytest.mark.slow
def test_evaluation_names_the_set_that_it_found_and_counts_its_lines(run, corpus, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "train.tsv").write_text("a\tb\n", encoding="utf-8")
    datasets = ["--dataset", str(tmp_path / "empty"), "--dataset", str(corpus)]
    assert evaluate.main([str(run), *datasets, "--split", "validation", "--beam-size", "1"]) == 0
    assert f"translating 6 lines of {corpus} val with" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_translates_and_scores_a_standard_test_set(run, tmp_path, monkeypatch, capsys):
    data = DATASETS["multi30k/2016"]
    monkeypatch.setattr(data, "_outdir", str(tmp_path))
    sources, references = map(list, zip(*SENTENCES[:4], strict=True))
    for field, lines in (("src", sources), ("ref", references)):
        path = tmp_path / f"multi30k_2016.en-de.{field}"
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    output = tmp_path / "hypotheses.de"
    arguments = ["--test-set", "multi30k/2016", "--checkpoint", "last", "--beam-size", "1", "--confidence"]
    assert evaluate.main([str(run), *arguments, "--output", str(output)]) == 0
    captured = capsys.readouterr()
    assert "translating 4 lines of multi30k/2016 en-de with the last weights" in captured.err
    assert captured.out.startswith("4 lines against multi30k/2016 en-de\n")
    translations = output.read_text(encoding="utf-8").split("\n")[:-1]
    assert translations == Translator.load(run, checkpoint="last").translate(sources, beam_size=1)
    bleu = sacrebleu.corpus_bleu(translations, [references]).score
    assert f"BLEU                  {bleu:6.2f} ± " in captured.out
    assert "|test:multi30k/2016|lang:en-de|" in captured.out


@pytest.mark.slow
def test_evaluation_prints_figures_with_their_signatures(run, capsys):
    assert evaluate.main([str(run), "--split", "validation", "--beam-size", "1"]) == 0
    captured = capsys.readouterr()
    labels = [line[:22].strip() for line in captured.out.split("\n\n")[1].splitlines()]
    assert labels == [
        "BLEU", "lower case", "chrF2", "lower case", "TER (lower is better)", "lower case",
        "tokenized BLEU", "lower case", "compounds split", "exact match",
    ]  # fmt: skip
    assert f"version:{sacrebleu.__version__}" in captured.out
    assert "translating 6 lines" in captured.err


def bad_archive(folder, damage):
    path = folder / f"{damage}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../train.en" if damage == "link out" else "train.en", bytes(2**27))
    if damage == "archive":
        path.write_bytes(path.read_bytes()[:-30])
    return path


def bad_corpus(tmp_path, damage):
    folder = write_corpus(tmp_path / "corpus")
    if damage == "no train.de":
        (folder / "train.de").unlink()
    elif damage == "cut short":
        (folder / "train.de").write_bytes(gzip.compress(b"eins\nzwei\n")[:-9])
    elif damage == "UTF-16":
        (folder / "train.en").write_text("eins\n", encoding="utf-16")
    elif damage == "twice":
        (folder / "train.tsv").write_text("a\tb\n", encoding="utf-8")
    elif damage == "blank":
        (folder / "val.en").write_text("\n" * 6, encoding="utf-8")
    elif damage == "empty test":
        (folder / "test.de").write_bytes(b"")
    elif damage == "tabs":
        (folder / "train.en").unlink()
        (folder / "train.de").unlink()
        (folder / "train.tsv").write_text("a\tb\nc\n", encoding="utf-8")
    elif damage == "folder":
        (folder / "val.de").unlink()
        (folder / "val.de").mkdir()
    elif damage in ("archive", "bomb", "link out"):
        return bad_archive(folder, damage)
    elif damage == "other length":
        (folder / "train.de").write_text("eins\nzwei\n", encoding="utf-8")
    elif damage == "empty":
        (folder / "val.en").write_bytes(b"")
    elif damage == "bad bytes":
        (folder / "train.en").write_bytes(b"fine\nsch\xf6n\n" + 82 * b"so\n")
    elif damage in ("no validation", "half a validation"):
        (folder / "val.en").unlink()
        if damage == "no validation":
            (folder / "val.de").unlink()
    return folder


def check_refusal(code, captured, program, words):
    """Exit code 2, and one line on standard error that says all of `words`."""
    assert code == 2
    assert captured.err.count("\n") == 1, captured.err
    assert captured.err.startswith(f"keras-transformer {program}: ")
    for word in words:
        assert word in captured.err


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("no train.de", ["train.de: no such file"]),
        ("other length", ["train.en and ", "Received: 84 and 2 lines"]),
        ("empty", ["val.en: the file is empty"]),
        ("bad bytes", ["train.en: line 2: byte 4 (0xf6)"]),
        ("cut short", ["train.de: damaged or truncated"]),
        ("UTF-16", ["train.en: line 1: the text is UTF-16", "iconv"]),
        ("twice", ["train.tsv are the same split twice"]),
        ("blank", ["val.en and ", "no line has text on both sides (6 lines read)"]),
        ("empty test", ["test.de: the file is empty"]),
        ("tabs", ["train.tsv: line 2: 1 columns instead of 2"]),
        ("folder", ["val.de: no such file"]),
        ("archive", ["archive.zip: damaged, truncated or not an archive"]),
        ("bomb", ["bomb.zip: unpacks to over 67,108,864 bytes"]),
        ("link out", ["'../train.en' points outside the folder"]),
        ("half a validation", ["val.en: no such file", "val.de"]),
        ("no validation", ["no validation split", "valid.en"]),
    ],
)
def test_a_bad_corpus_is_refused_before_anything_is_written(tmp_path, capsys, damage, words):
    folder = bad_corpus(tmp_path, damage)
    code = train.main(train_arguments(folder, tmp_path / "run"))
    check_refusal(code, capsys.readouterr(), "train", words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--preset", "bse"], ["There is no preset 'bse'. Did you mean 'base'?"]),
        (["--set", "model.droput=0.2"], ["model has no setting 'droput'", "Did you mean"]),
        (["--set", "training.warmup_step=9"], ["Did you mean 'warmup_steps'?"]),
        (["--set", "modle.d_model=8"], ["There is no section 'modle'. Did you mean 'model'?"]),
        (["--set", "d_model=8"], ["Expected section.field=value. Received: 'd_model=8'"]),
        (["--set", "model.d_model"], ["The value of model.d_model is missing"]),
        (["--set", "model.d_model=wide"], ["`model.d_model` must be a whole number", "'wide'"]),
        (["--set", "training.label_smoothing=1"], ["label_smoothing", "below 1"]),
        (["--set", "model.num_heads=3"], ["d_model=16, num_heads=3"]),
        (["--set", "model.target_vocab_size=9", "--set", "model.source_vocab_size=9"],
         ["set data.vocab_size"]),
        (["--set", "data.max_length=3"], ["84 too many tokens (data.max_length)"]),
        (["--set", "data.vocab_size=9"], ["vocab"]),
        (["--dataset", "no/such/folder"], ["no/such/folder: no such folder", "cldr/"]),
        (["--dataset", "cldr/en-xx"], ["'xx'"]),
        (["--dataset", "wmt14_tranlate/de-en"], ["wmt14_tranlate/de-en: no such folder", "wmt14_translate"]),
        (["--dataset", "wmt14_translate/de-xx"], ["no config 'de-xx'"]),
        (["--set", "data.dataset_weights=1,2"], ["a number above 0 for each", "data.dataset_weights="]),
        (["--set", "data.dataset_weights=2", "--set", "data.temperature=2"], ["cannot both be set"]),
        (["--set", "data.temperature=0.5"], ["temperature", "at least 1"]),
        (["--dataset", ","], ["`dataset` must be a name"]),
        (["--source", "fr"], ["train.fr: no such file"]),
        (["--source", "de"], ["must be different", "'de' for both"]),
    ],
)  # fmt: skip
def test_a_bad_argument_of_training_is_refused(corpus, tmp_path, capsys, arguments, words):
    if "cldr/en-xx" in arguments:
        arguments = [*arguments, "--source", "en", "--target", "xx"]
    code = train.main(train_arguments(corpus, tmp_path / "run", *arguments))
    check_refusal(code, capsys.readouterr(), "train", words)
    assert not (tmp_path / "run").exists()


def test_a_preset_other_than_the_demo_needs_a_corpus(capsys):
    code = train.main(["--preset", "base"])
    check_refusal(code, capsys.readouterr(), "train", ["preset base needs a corpus", "--dataset"])


def test_a_run_folder_in_use_is_refused_and_kept(corpus, tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("precious", encoding="utf-8")
    code = train.main(train_arguments(corpus, tmp_path))
    check_refusal(code, capsys.readouterr(), "train", ["is not a run folder"])
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_run_folder_that_cannot_be_made_is_refused(corpus, tmp_path, capsys):
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    code = train.main(train_arguments(corpus, tmp_path / "file" / "run"))
    check_refusal(code, capsys.readouterr(), "train", ["cannot write in"])


def test_a_run_is_not_continued_with_other_settings(run, corpus, capsys):
    arguments = train_arguments(corpus, run, "--set", "training.warmup_steps=7")
    code = train.main(arguments)
    check_refusal(
        code, capsys.readouterr(), "train", ["training.warmup_steps 500 -> 7", "--allow-config-change"]
    )


def test_auto_fits_the_settings_to_the_corpus_and_what_is_set_wins(corpus, capsys):
    sizes = ["--dataset", str(corpus), "--source", "en", "--target", "de", "--preset", "auto"]
    config = train.resolve(train.parse_args([*sizes, "--set", "training.max_minutes=1"]))
    number = len((corpus / "train.en").read_text(encoding="utf-8").splitlines())
    assert capsys.readouterr().out.startswith(
        f"preset auto, for {number:,} pairs: 2 + 2 layers, d_model 128, "
    )
    assert (config.training.warmup_steps, config.training.max_minutes) == (50, 1.0)
    own = ["--set", "training.warmup_steps=7", "--set", "model.d_ff=96"]
    config = train.resolve(train.parse_args([*sizes, *own]))
    assert (config.training.warmup_steps, config.model.d_ff, config.model.d_model) == (7, 96, 128)


def test_a_run_that_auto_began_goes_on_with_what_it_chose(run, corpus, tmp_path, capsys):
    """The run folder says, whatever has become of the corpus."""
    arguments = ["--dataset", str(corpus), "--source", "en", "--target", "de", "--preset", "auto"]
    arguments += ["--run-dir", str(run), "--set", "training.max_minutes=3"]
    config = train.resolve(train.parse_args(arguments))
    before = RunFolder(run).config
    assert [path for path, _, _ in differences(before, config)] in ([], ["training.max_minutes"])
    assert capsys.readouterr().out == ""


def test_a_resumed_run_keeps_its_limit_of_a_source_unless_it_is_set(run, corpus, tmp_path):
    def limit_of(run, *more):
        return train.resolve(train.parse_args(train_arguments(corpus, run, *more))).search.max_source_length

    assert limit_of(tmp_path / "new") == limit_of(run) == 40  # `data.max_length`
    earlier = RunFolder(shutil.copytree(run, tmp_path / "earlier"))
    search = dataclasses.replace(earlier.config.search, max_source_length=256)
    earlier.write_config(dataclasses.replace(earlier.config, search=search))
    for preset in ("demo", "auto", "base"):
        assert limit_of(earlier.path, "--preset", preset) == 256
    assert limit_of(earlier.path, "--set", "search.max_source_length=40") == 40
    (tmp_path / "own.yaml").write_text("search: {max_source_length: 77}\n")
    (tmp_path / "other.yaml").write_text("search: {alpha: 0.5}\n")
    assert limit_of(earlier.path, "--config", str(tmp_path / "own.yaml")) == 77
    assert limit_of(earlier.path, "--config", str(tmp_path / "other.yaml")) == 256


def test_auto_needs_a_corpus(capsys):
    code = train.main(["--preset", "auto"])
    check_refusal(code, capsys.readouterr(), "train", ["preset auto needs a corpus: --dataset DIR"])


@pytest.mark.slow
def test_an_average_has_a_name_and_the_next_command(run, capsys):
    assert average.main([str(run), "--last", "1"]) == 0
    printed = capsys.readouterr()
    assert printed.err.splitlines() == [
        f"keras-transformer average: {run}: checkpoints within the warm-up (training.warmup_steps=500): 6. "
        "Their average may be worse than the last checkpoint",
    ]
    lines = printed.out.splitlines()
    assert lines[0] == "last-1: average of step-6"
    assert f"  keras-transformer evaluate {run} --checkpoint last-1" in lines
    data = b"the man sees 3 dogs\n"
    of_average = translate_bytes(run, data, "--checkpoint", "last-1")
    assert of_average == translate_bytes(run, data, "--checkpoint", "step-6")
    assert average.main([str(run), "--best", "7"]) == 0
    assert "best-7: average of step-6 (only 1 available)" in capsys.readouterr().out
    assert translate_bytes(run, data, "--checkpoint", "best-7") == of_average


def test_an_average_of_no_run_is_refused(run, capsys):
    code = average.main([f"{run}/nowhere", "--best", "2"])
    check_refusal(code, capsys.readouterr(), "average", ["nowhere: not a run folder"])


@pytest.mark.parametrize("program", ["translate", "evaluate"])
def test_unknown_weights_are_refused_with_those_there_are(run, capsys, program):
    code, out = call(program, [str(run), "--checkpoint", "lats"])
    err = capsys.readouterr()
    check_refusal(code, err, program, ["no 'lats' weights", "`final`", "`last`", "`step-6`"])
    assert out == b""


@pytest.mark.parametrize("program", ["translate", "evaluate"])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--beam-size", "0"], ["--beam-size: must be from 1 to 1000. Received: 0."]),
        (["--alpha", "-1"], ["--alpha: must be at least 0. Received: -1.0."]),
        (["--alpha", "nan"], ["--alpha: must be finite"]),
    ],
)
def test_a_bad_setting_of_search_is_refused(run, capsys, program, arguments, words):
    code, out = call(program, [str(run), *arguments])
    check_refusal(code, capsys.readouterr(), program, words)
    assert out == b""


def call(program, arguments):
    if program == "evaluate":
        return code_of(evaluate.main, arguments), b""
    out = io.BytesIO()
    return code_of(translate.main, arguments, stdin=io.BytesIO(b"the man\n"), stdout=out), out.getvalue()


@pytest.mark.parametrize("program", ["translate", "evaluate"])
def test_a_missing_run_folder_is_refused(tmp_path, capsys, program):
    code, out = call(program, [str(tmp_path / "nowhere")])
    words = ["nowhere: not a run folder", "--run-dir"]
    check_refusal(code, capsys.readouterr(), program, words)
    assert out == b""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--split", "test_2042"], ["no split 'test_2042'", "Choose from: test, train, val"]),
        (["--dataset", "no/such/folder"], ["no such folder"]),
        (["--output", "no/such/folder/out.de", "--beam-size", "1"], ["no/such/folder"]),
    ],
)
def test_a_bad_argument_of_evaluation_is_refused(run, capsys, arguments, words):
    code = evaluate.main([str(run), *arguments])
    err = capsys.readouterr().err
    progress = "translating ", " sentences/s"
    said = [line for line in err.splitlines() if not any(part in line for part in progress)]
    assert code == 2
    assert len(said) == 1
    assert said[0].startswith("keras-transformer evaluate: ")
    assert all(word in said[0] for word in words)


def test_a_bad_number_of_lines_is_refused(run, capsys):
    with pytest.raises(SystemExit, match="2"):
        translate.main([str(run), "--chunk-lines", "0"])
    assert "--chunk-lines must be from 1 to 16777216, not 0" in capsys.readouterr().err


def start(*arguments):
    # Without what the programs have set in this process.
    environment = {name: value for name, value in os.environ.items() if name[:3] != "TF_"}
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_a_sentence_on_standard_input_gives_one_line_on_standard_output(run):
    program = start("pipelines/translate.py", run, "--beam-size", "1")
    out, err = program.communicate(b"the king sees 7 dogs\n", timeout=300)
    assert program.returncode == 0, err
    expected = Translator.load(run).translate(["the king sees 7 dogs"], beam_size=1)[0]
    assert out.decode("utf-8") == " ".join(expected.split("\n")) + "\n"


@pytest.mark.slow
def test_a_reader_that_leaves_ends_translation_quietly(run):
    program = start("pipelines/translate.py", run, "--beam-size", "1", "--chunk-lines", "1")
    program.stdout.close()  # as `| head` does when it has enough
    with contextlib.suppress(BrokenPipeError):
        program.stdin.write(b"the king sees 7 dogs\n" * 3)
        program.stdin.close()
    err = program.stderr.read()
    assert program.wait(timeout=300) == 141, err  # what a shell says of `cat` then
    assert err.count(b"\n") == 0, err
    program.stderr.close()


def test_a_refusal_is_one_line_in_a_shell(tmp_path):
    program = start("pipelines/train_wmt.py", "--preset", "bse", "--run-dir", tmp_path / "run")
    out, err = program.communicate(timeout=300)
    assert program.returncode == 2
    assert out == b""
    assert err.decode().splitlines() == ["train_wmt.py: There is no preset 'bse'. Did you mean 'base'?"]


def test_every_setting_of_search_has_a_flag():
    assert set(command_line.SEARCH_SETTINGS) == set(SearchConfig.__dataclass_fields__)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "beam 4, gnmt length penalty, alpha 0.6"),
        ({"beam_size": 1}, "greedy"),
        ({"length_penalty": "none"}, "beam 4, no length penalty"),
        ({"beam_size": 7, "alpha": 0.0}, "beam 7, no length penalty"),
        ({"alpha": 0.0, "coverage_penalty": 0.2}, "beam 4, no length penalty, coverage penalty 0.2"),
        ({"sampling": True, "temperature": 0.5}, "sampling, temperature 0.5"),
        ({"mbr": True, "samples": 9, "utility": "bleu"}, "minimum Bayes risk, 9 samples, BLEU"),
    ],
)
def test_what_is_said_of_a_search(settings, words):
    assert command_line.describe_search(SearchConfig(**settings)) == words


@pytest.mark.parametrize(
    ("program", "arguments", "message"),
    [
        ("translate", ["{run}", "--top-k", "5"], "--top-k needs --sampling"),
        ("translate", ["{run}", "--samples", "5"], "--samples needs --mbr"),
        ("translate", ["en-de-tatoeba", "--samples", "5"], "--samples needs --mbr"),
        (
            "translate",
            ["{run}", "--sampling", "--beam-size", "2"],
            "--beam-size: --sampling has no beam. Remove",
        ),
        ("translate", ["{run}", "--mbr", "--early-stop"], "--early-stop: --mbr has no beam. Remove one"),
        ("translate", ["{run}", "--mbr", "--sampling"], "--sampling: --mbr draws samples itself. Remove one"),
        ("translate", ["{run}", "--mbr", "--n-best", "65"], "`n_best` must be at most `samples` of `mbr`"),
        ("translate", ["{run}", "--threads", "0"], "`--threads` must be from 1 to 1024. Received: 0"),
        ("translate", ["{run}", "--threads", "1025"], "`--threads` must be from 1 to 1024. Received: 1025"),
        (
            "translate",
            ["{run}", "--engine", "ctranslate2", "--threads", "0"],
            "`--threads` must be from 1 to 1024. Received: 0",
        ),
        ("translate", ["{run}", "--output", "{folder}"], "is a folder. Choose a file in it"),
        ("translate", ["{run}", "--output", "{folder}/no/x"], "its folder does not exist"),
        ("translate", ["{run}", "--input", "{file}", "--output", "{file}"], "is also an input"),
        (
            "score",
            ["{run}", "--source", "{file}", "--target", "{file}", "--output", "{file}"],
            "is also an input",
        ),
        ("evaluate", ["{run}", "--n-best", "2"], "only the best translation is scored"),
        ("evaluate", ["{run}", "--output", "{folder}"], "is a folder. Choose a file in it"),
    ],
)
def test_what_would_be_ignored_or_lost_is_refused(run, tmp_path, capsys, program, arguments, message):
    file = tmp_path / "text"
    file.write_text("the dog\n")
    names = {"run": run, "folder": tmp_path, "file": file}
    assert program_module(program).main([argument.format(**names) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"keras-transformer {program}: ")
    assert message in error
    assert error.count("\n") == 1
    assert file.read_text() == "the dog\n"
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("program", ["translate", pytest.param("score", marks=pytest.mark.very_slow)])
def test_a_full_disk_is_named_and_ends_with_3(run, tmp_path, program):
    file = tmp_path / "text"
    file.write_text("the dog\n")
    files = ["--input", file] if program == "translate" else ["--source", file, "--target", file]
    command = [sys.executable, ROOT / "pipelines" / f"{program}.py", run, *files, "--output", "/dev/full"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 3
    assert f"{program}.py: /dev/full: no space left on device. Free disk space" in ended.stderr


@pytest.mark.parametrize("where", ["gc.callbacks.append(hit); gc.collect()", "One()"])
def test_sigterm_is_not_lost_where_python_drops_exceptions(where):
    program = f"""
import gc, os, signal, time
from keras_transformer.cli.process import end_on_sigterm

def hit(*_):
    if not sent:
        sent.append(True)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)

class One:
    def __del__(self):
        hit()

sent = []
end_on_sigterm()
{where}
assert sent
time.sleep(60)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT / "pipelines", capture_output=True, timeout=50, check=False
    )
    assert (ended.returncode, ended.stderr) == (143, b"")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_the_import_of_tensorflow_leaves_out_packages_that_no_program_needs(tmp_path, backend):
    if backend == "jax":
        pytest.importorskip("jax")
    names = ["IPython", "matplotlib", "pandas", "jax"]
    (tmp_path / "keras.json").write_text(json.dumps({"backend": backend}))
    for name in names:  # a package of that name is installed, whatever this environment has
        if (name, backend) != ("jax", "jax"):
            (tmp_path / f"{name}.py").write_text("jit = xla_computation = print\n")
    code = (
        "import importlib, sys; from keras_transformer.cli.process import import_quietly; import_quietly(); "
        f"import keras; print(keras.backend.backend(), [name for name in {names} if name in sys.modules]); "
        f"[importlib.import_module(name) for name in {names}]"
    )
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "KERAS_HOME": str(tmp_path)}
    env.pop("KERAS_BACKEND", None)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    imported = ["jax"] if backend == "jax" else []
    assert (done.returncode, done.stdout) == (0, f"{backend} {imported}\n"), done.stderr


@pytest.mark.slow
def test_products_of_many_shapes_are_compiled_once():
    # In search, the shapes of attention are the number of sentences times the length. oneDNN keeps 1,024.
    code = (
        "from keras_transformer.cli.process import import_quietly; import_quietly()\n"
        "import tensorflow as tf\n"
        "for _ in range(2):\n"
        "    print('pass', flush=True)\n"
        "    for size in range(1, 1101):\n"
        "        tf.matmul(tf.ones((2, 3, 5)), tf.ones((2, 5, size)))\n"
    )
    variables = {"PYTHONPATH": str(ROOT), "ONEDNN_VERBOSE": "profile_create"}
    env = {name: value for name, value in os.environ.items() if name != "ONEDNN_PRIMITIVE_CACHE_CAPACITY"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env | variables, check=True
    )
    _, first, second = done.stdout.split("pass\n")
    if first.count("create:cache_miss") < 1100:
        pytest.skip("oneDNN does not compile these products on this machine")
    assert second.count("create:cache_miss") == 0
