"""The model that comes with the package: complete, small, named like a run folder, and it translates."""

import json
import subprocess
import sys

import pytest
from sacrebleu.metrics import BLEU

import keras_transformer as kt
from keras_transformer.checkpoints import pretrained
from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.cli import average, evaluate, inspect, train, translate

NAME = "en-de-tatoeba"
FILES = [
    "README.md", "config.json", "final/weights.data-00000-of-00001", "final/weights.index", "tokenizer.model",
    "tokenizer.sha256",
]  # fmt: skip
# Not in its training text.
PAIRS = [
    ("He asked me why I was so late.", "Er fragte mich, warum ich so spät kam."),
    ("The children are playing in the garden.", "Die Kinder spielen im Garten."),
    ("I would like a glass of water, please.", "Ich hätte gerne ein Glas Wasser, bitte."),
    ("She has never been to Japan.", "Sie ist noch nie in Japan gewesen."),
    ("How much does a ticket to Berlin cost?", "Wie viel kostet eine Fahrkarte nach Berlin?"),
    ("My sister is learning to play the piano.", "Meine Schwester lernt Klavier spielen."),
]


@pytest.fixture(scope="module")
def folder():
    return pretrained.pretrained_folder(NAME)


@pytest.fixture(scope="module")
def translator():
    return kt.Translator.pretrained(NAME)


def test_the_folder_is_complete_and_at_most_12_megabytes(folder):
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    assert [str(path.relative_to(folder)) for path in files] == FILES
    assert sum(path.stat().st_size for path in files) <= 12e6
    assert pretrained.pretrained_models() == [NAME]


@pytest.mark.slow
def test_the_card_states_what_the_settings_are(folder):
    config, card = RunFolder(NAME).config, (folder / "README.md").read_text(encoding="utf-8")
    assert (config.data.source, config.data.target, config.data.dataset) == ("en", "de", "tatoeba")
    assert "CC BY 2.0" in card
    settings = [
        word.partition("=") for word in card.split() if word.startswith(("model.", "training.", "data."))
    ]
    assert len(settings) > 8
    for name, _, value in settings:
        section, field = name.split(".")
        assert str(getattr(getattr(config, section), field)) == value.strip("`"), name
    assert f"{RunFolder(NAME).load_model().count_params():,}" in card
    assert "/" not in json.dumps(json.loads((folder / "config.json").read_text())["data"])


@pytest.mark.slow
def test_it_translates_sentences_that_it_has_not_seen(translator):
    found = translator.translate([source for source, _ in PAIRS])
    score = BLEU().corpus_score(found, [[target for _, target in PAIRS]]).score
    assert score > 50, found
    assert translator.search.beam_size == 4


def test_its_name_stands_for_a_run_folder(translator, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text(f"{PAIRS[1][0]}\n{PAIRS[3][0]}\n")
    assert translate.main([NAME, "--input", "text", "--output", "out", "--threads", "1"]) == 0
    expected = translator.translate([PAIRS[1][0], PAIRS[3][0]])
    assert (tmp_path / "out").read_text(encoding="utf-8").splitlines() == expected
    assert average.main([NAME, "--last", "2"]) == 2
    assert NAME in capsys.readouterr().err
    (tmp_path / NAME).mkdir()  # a path of this name comes first
    with pytest.raises(ValueError, match=f"^{NAME}: not a run folder .* comes with the package: {NAME}"):
        kt.Translator.load(NAME)


def test_programs_say_what_its_name_stands_for(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert evaluate.main([NAME]) == 2
    assert f"{NAME}: the model has no test text. Add --dataset DIR" in capsys.readouterr().err
    assert train.main(["--preset", "demo", "--run-dir", NAME]) == 2
    assert f"--init-from {NAME} starts from that model" in capsys.readouterr().err
    (tmp_path / "text").write_text("Hello.\n")
    assert inspect.main([NAME, "text"]) == 0
    assert "8,000" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


def test_another_name_is_refused_with_those_that_there_are():
    with pytest.raises(ValueError, match=f"No model 'en-fr' comes with the package. Available: {NAME}"):
        kt.Translator.pretrained("en-fr")


@pytest.mark.very_slow
def test_it_is_a_start_for_fine_tuning(tmp_path):
    for split in ("train", "valid"):
        for language, side in (("en", 0), ("de", 1)):
            text = "".join(f"{pair[side]}\n" for pair in PAIRS * 20)
            (tmp_path / f"{split}.{language}").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "keras_transformer", "train", "--dataset", tmp_path, "--init-from", NAME]
    command += ["--config", pretrained.pretrained_folder(NAME) / "config.json", "--run-dir", tmp_path / "run"]
    command += ["--set", "training.max_steps=30", "--set", "training.warmup_steps=10"]
    command += ["--set", "training.learning_rate_scale=0.3", "--set", "data.batch_tokens=1024"]
    subprocess.run(command, check=True, capture_output=True)
    tuned = kt.Translator.load(tmp_path / "run")
    found = tuned.translate([source for source, _ in PAIRS])
    assert BLEU().corpus_score(found, [[target for _, target in PAIRS]]).score > 80, found
