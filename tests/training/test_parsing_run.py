"""A parsing run from a treebank to trees: training, validation by F1, resuming, and the programs."""

import contextlib
import io
import json
import random
import re

import pytest
import tiny_trees

from keras_transformer.batches.prepared import PreparedCorpus
from keras_transformer.batches.preparing import prepare
from keras_transformer.checkpoints import RunFolder
from keras_transformer.cli import average as average_program
from keras_transformer.cli import evaluate as evaluate_program
from keras_transformer.cli import export as export_program
from keras_transformer.cli import parse as parse_program
from keras_transformer.cli import prepare as prepare_program
from keras_transformer.cli import score as score_program
from keras_transformer.cli import train as train_program
from keras_transformer.cli import translate as translate_program
from keras_transformer.config.presets import preset
from keras_transformer.config.settings import replace
from keras_transformer.evaluation.brackets import bracket_scores
from keras_transformer.text.trees import read_tree, words
from keras_transformer.translation.parser import Parser

pytestmark = pytest.mark.slow

SETTINGS = {
    "data.vocab_size": 290,
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "model.d_model": 16,
    "model.d_ff": 32,
    "model.num_heads": 2,
    "training.warmup_steps": 3,
    "training.max_steps": 6,
    "training.log_every_steps": 2,
    "training.validate_every_steps": 3,
    "training.checkpoint_every_steps": 3,
    "search.beam_size": 2,
}


def train(folder, run, **settings):
    settings = {f"--set={name}={value}": None for name, value in (SETTINGS | settings).items()}
    argv = ["--preset", "parsing_small", "--dataset", str(folder), "--run-dir", str(run)]
    return train_program.main([*argv, *settings])


def f1(gold, trees):
    return bracket_scores(list(map(read_tree, gold)), list(map(read_tree, trees))).all.f1


@pytest.fixture(scope="module")
def treebank(tmp_path_factory):
    return tiny_trees.write_treebank(tmp_path_factory.mktemp("trees") / "bank")


@pytest.fixture(scope="module")
def printed():
    """What the training of `run` prints to standard output."""
    return io.StringIO()


@pytest.fixture(scope="module")
def run(treebank, tmp_path_factory, printed):
    path = tmp_path_factory.mktemp("parsing") / "run"
    with contextlib.redirect_stdout(printed):
        assert train(treebank, path) == 0
    return RunFolder(path)


def test_validations_have_f1_of_what_search_finds(run, treebank):
    records = [record for record in run.read_history() if record["kind"] == "validation"]
    assert [record["step"] for record in records] == [3, 6]
    assert all(0 <= record["f1"] <= 100 and "bleu" not in record for record in records)
    gold = (treebank / "valid.trees").read_text().splitlines()
    sources = [" ".join(words(read_tree(tree))) for tree in gold]
    parser = Parser.load(run.path, checkpoint="last")
    trees = [parsed.text for parsed in parser.parse(sources, beam_size=1)]
    assert records[-1]["f1"] == pytest.approx(f1(gold, trees))


def test_the_end_parses_the_validation_trees_and_records_their_scores(run, treebank):
    (test,) = [record for record in run.read_history() if record["kind"] == "test"]
    parsed = (run.path / "translations.validation.trees").read_text().splitlines()
    gold = (treebank / "valid.trees").read_text().splitlines()
    assert test["f1"] == pytest.approx(f1(gold, parsed))
    assert [words(read_tree(tree)) for tree in parsed] == [words(read_tree(tree)) for tree in gold]


def test_what_a_run_prints(run, printed):
    text = printed.getvalue()
    assert "vocabulary  290 and 13 tokens" in text  # 4 special ids, XX, and two brackets for each of 4 labels
    assert "| F1 " in text
    assert "parsing validation with the final weights (beam 2, alpha 0.3)" in text
    assert "keras-transformer parse" in text
    assert "BLEU" not in text


@pytest.mark.very_slow
def test_a_run_is_resumed_with_its_vocabularies(run, treebank, tmp_path, capfd):
    assert train(treebank, tmp_path / "run", **{"training.max_steps": 3}) == 0
    assert train(treebank, tmp_path / "run") == 0
    one, other = (RunFolder(path).load_tokenizers() for path in (run.path, tmp_path / "run"))
    assert [side.sha256 for side in one] == [side.sha256 for side in other]
    assert "continuing at step 3" in capfd.readouterr().out


def test_tags_are_kept_on_request(treebank, tmp_path):
    data = {"dataset": str(treebank), "vocab_size": 290, "keep_tags": True}
    prepared = prepare(replace(preset("parsing_small"), data=data), tmp_path / "prepared", num_workers=0)
    symbols = prepared.load_tokenizers().target.symbols
    assert "NN" in symbols
    assert "XX" not in symbols
    assert prepared.languages == ("en", "trees")
    assert prepared.warnings(prepared.load_pairs(), prepared.load_tokenizers()) == []


def test_a_prepared_treebank_gives_the_same_vocabularies(run, treebank, tmp_path, capfd):
    out = tmp_path / "prepared"
    argv = [str(treebank), str(out), "--source", "en", "--target", "trees", "--vocab-size", "290"]
    assert prepare_program.main([*argv, "--workers", "1"]) == 0
    assert prepare_program.main([str(out), "--examples", "1"]) == 0
    assert "(NP" in capfd.readouterr().out
    one, other = run.load_tokenizers(), PreparedCorpus(out).load_tokenizers()
    assert [side.sha256 for side in one] == [side.sha256 for side in other]


def test_a_run_is_evaluated_with_both_kinds_of_search(run, tmp_path, capfd):
    argv = [str(run.path), "--split", "valid", "--threads", "1", "--output", str(tmp_path / "out.trees")]
    assert evaluate_program.main([*argv, "--json"]) == 0
    compared = json.loads(capfd.readouterr().out)
    assert [system["name"] for system in compared["systems"]] == ["free search", "tree grammar"]
    (test,) = [record for record in run.read_history() if record["kind"] == "test"]
    assert compared["systems"][0]["all"]["f1"] == pytest.approx(test["f1"])
    assert [baseline["name"] for baseline in compared["baselines"]][-1] == "flat S"

    # The file has the trees of the last search, and scoring it gives the same figures.
    gold = run.path / "corpus/valid.trees"
    argv = ["--task", "parsing", "--hypothesis", str(tmp_path / "out.trees"), "--reference", str(gold)]
    assert evaluate_program.main([*argv, "--json"]) == 0
    (system,) = json.loads(capfd.readouterr().out)["systems"]
    assert system["all"] == compared["systems"][1]["all"]

    argv = [str(run.path), "--split", "valid", "--tree-grammar", "--threads", "1"]
    assert evaluate_program.main(argv) == 0
    printed = capfd.readouterr().out
    assert "tree grammar: 0 of 12 results (0.0%) were mended, 0 sentences over the length limit" in printed
    assert "free search" not in printed


def test_lines_of_words_become_lines_of_trees(run, tmp_path):
    rng = random.Random(5)
    gold = [read_tree(tiny_trees.draw(rng)) for _ in range(7)]
    lines = [" ".join(words(tree)) for tree in gold]
    lines.insert(3, "")
    output = io.BytesIO()
    assert parse_program.main([str(run.path)], io.BytesIO("\n".join(lines).encode()), output) == 0
    trees = output.getvalue().decode().split("\n")
    assert trees[3] == "" == trees.pop()
    assert [words(read_tree(tree)) if tree else [] for tree in trees] == [line.split() for line in lines]

    (tmp_path / "words").write_text("\n".join(lines))
    argv = [str(run.path), "--input", str(tmp_path / "words"), "--output", str(tmp_path / "grammar")]
    assert parse_program.main([*argv, "--tree-grammar"]) == 0
    grammar = (tmp_path / "grammar").read_text().splitlines()
    assert [words(read_tree(tree)) if tree else [] for tree in grammar] == [line.split() for line in lines]

    argv[-1] = str(tmp_path / "out")
    assert parse_program.main([*argv, "--format", "jsonl"]) == 0
    records = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [record["tree"] for record in records] == trees
    assert [record["line"] for record in records] == list(range(1, 9))
    assert records[3]["flags"] == ["blank"]
    assert all(bool(record["mended"]) == ("mended" in record["flags"]) for record in records)


@pytest.mark.parametrize(
    ("program", "argv", "message"),
    [
        (translate_program, [], "this run parses. Use .*parse"),
        (parse_program, ["--n-best", "2"], "--n-best: each sentence has one tree"),
        (parse_program, ["--long-lines", "cut"], "--long-lines: a sentence over the limit gets a flat tree"),
        (evaluate_program, ["--long-lines", "cut"], "--long-lines: a sentence over the limit gets a flat"),
        (parse_program, ["the dog barks"], "not a run folder. Text is read from a file or a pipe: echo"),
        (parse_program, ["--input", "/no/such/file"], "/no/such/file"),
        (parse_program, ["--chunk-lines", "0"], "--chunk-lines must be from 1"),
    ],
)
def test_wrong_calls_are_refused_in_a_line(run, capfd, program, argv, message):
    try:
        streams = () if program is evaluate_program else (io.BytesIO(b"the dog\n"), io.BytesIO())
        code = program.main([str(run.path), *argv], *streams)
    except SystemExit as error:
        code = error.code
    errors = capfd.readouterr().err.strip()
    assert code == 2
    assert "\n" not in errors
    assert re.search(message, errors), errors


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--preset parsing_small", "needs a corpus: --dataset DIR with train.trees and valid.trees"),
        (
            "--preset parsing_small --dataset cldr/en-de",
            "cldr/en-de: has no trees; preset parsing_small needs",
        ),
        ("--dataset {} --target trees", "choose a preset such as parsing_small"),
        ("--preset parsing_small --dataset {} --set search.tree_grammar=maybe", "must be true or false"),
    ],
)
def test_wrong_settings_are_refused_in_a_line(treebank, tmp_path, capfd, argv, message):
    assert train_program.main([*argv.format(treebank).split(), "--run-dir", str(tmp_path / "run")]) == 2
    errors = capfd.readouterr().err.strip()
    assert message in errors
    assert "\n" not in errors
    assert not (tmp_path / "run").exists()


def test_a_parser_has_no_form_for_ctranslate2(run, tmp_path, capfd):
    pytest.importorskip("ctranslate2", reason="pip install ctranslate2")
    assert export_program.main([str(run.path), str(tmp_path / "out"), "--format", "ctranslate2"]) == 2
    errors = capfd.readouterr().err.strip()
    assert "this run parses, and only translators can be exported in this format. Use" in errors
    assert "\n" not in errors
    assert not (tmp_path / "out").exists()


def test_pairs_are_scored_and_checkpoints_averaged(run, treebank, tmp_path, capfd):
    gold = (treebank / "valid.trees").read_text().splitlines()
    sources = tmp_path / "valid.en"
    sources.write_text("".join(f"{' '.join(words(read_tree(tree)))}\n" for tree in gold))
    argv = [str(run.path), "--source", str(sources), "--target", str(treebank / "valid.trees")]
    assert score_program.main(argv) == 0
    scores = [float(line) for line in capfd.readouterr().out.splitlines()]
    assert len(scores) == len(gold)
    assert max(scores) < 0
    assert average_program.main([str(run.path), "--last", "2"]) == 0
    assert "parse" in capfd.readouterr().out.splitlines()[-1]


def test_a_translation_run_does_not_parse(saved, capfd):
    assert parse_program.main([str(saved), "--checkpoint", "last"], io.BytesIO(b"a\n"), io.BytesIO()) == 2
    assert "this run translates. Use" in capfd.readouterr().err
