"""Settings in YAML and JSON: the same as by `--set`, and what is wrong named by file and line."""

import dataclasses
import json

import pytest

from keras_transformer.cli import train as train_program
from keras_transformer.config.files import apply_settings, read_settings
from keras_transformer.config.presets import PRESETS, preset, with_vocab_size
from keras_transformer.config.settings import override, replace, to_json
from keras_transformer.files import to_checked_json

YAML = """\
# A comment.
preset: tiny
data:
  dataset: [one, two]
  source: no  # Norwegian
  target: "de"
  split_digits: true
training: {max_steps: 8_000, adam_epsilon: 1e-3}
model:
  key_dim: null
"""
TEXTS = [
    "data.dataset=one,two",
    "data.source=no",
    "data.target=de",
    "data.split_digits=true",
    "training.max_steps=8_000",
    "training.adam_epsilon=1e-3",
    "model.key_dim=none",
]


def write(folder, text, name="run.yaml"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def resolved(*argv):
    return train_program.resolve(train_program.parse_args(list(map(str, argv))))


def test_a_file_is_the_same_as_set(tmp_path):
    file = read_settings(path := write(tmp_path, YAML))
    assert (file.preset, [setting.text for setting in file.settings]) == ("tiny", TEXTS)
    assert [setting.line for setting in file.settings] == [4, 5, 6, 7, 8, 8, 10]
    config = apply_settings(preset("tiny"), file, path)
    assert config == override(preset("tiny"), TEXTS)
    assert config.training.adam_epsilon == 0.001
    assert config.data.source == "no"


def test_yaml_and_json_say_the_same(tmp_path):
    values = {
        "preset": "tiny",
        "data": {"dataset": "one,two", "source": "no", "target": "de", "split_digits": True},
        "training": {"max_steps": 8000, "adam_epsilon": 0.001},
        "model": {"key_dim": None},
    }
    path = write(tmp_path, json.dumps(values, indent=1), "run.json")
    expected = resolved("--config", write(tmp_path, YAML))
    assert resolved("--config", path) == expected
    assert expected.model.d_model == preset("tiny").model.d_model


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_the_config_of_a_run_gives_the_run_back(tmp_path, name):
    config = replace(preset(name), data={"dataset": "corpus", "data_dir": "true"})
    config = with_vocab_size(config, 1013, 1013 if config.model.tie_embeddings == "all" else 509)
    for text in (to_json(config), to_checked_json(dataclasses.asdict(config))):
        path = write(tmp_path, text, "config.json")
        assert read_settings(path).config == config
        assert resolved("--config", path) == config


def test_a_copy_of_the_config_of_a_run_may_be_edited(tmp_path):
    text = to_checked_json(dataclasses.asdict(with_vocab_size(preset("tiny"), 1013, 1013)))
    path = write(tmp_path, text.replace('"label_smoothing": 0.1', '"label_smoothing": 0.2'))
    assert resolved("--config", path).training.label_smoothing == 0.2


def test_the_config_of_an_earlier_run_keeps_its_meaning(tmp_path):
    values = dataclasses.asdict(with_vocab_size(preset("tiny"), 1013, 1013))
    del values["model"]["attention_init"]
    path = write(tmp_path, json.dumps(values), "config.json")
    assert resolved("--config", path).model.attention_init == "separate"


def test_set_and_flags_come_on_top(tmp_path):
    path = write(tmp_path, YAML)
    config = resolved("--config", path, "--source", "da", "--set", "training.max_steps=7")
    assert (config.data.source, config.data.target, config.training.max_steps) == ("da", "de", 7)
    assert resolved("--config", path, "--preset", "tiny") == resolved("--config", path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data:\n  source: de\n  sorce: en\n", "line 3: data has no setting 'sorce'. Did you mean 'source'?"),
        ("trainig:\n  max_steps: 3\n", "line 2: There is no section 'trainig'. Did you mean 'training'?"),
        ("training:\n  max_steps: many\n", "line 2: `training.max_steps` must be a whole number"),
        ("training:\n  max_steps: 0\n", "line 2: `training.max_steps` must be"),
        ("training:\n  max_steps: 1\n  max_steps: 2\n", "line 3: max_steps is given twice. Remove one"),
        ("training: 3\n", "line 1: training must be a mapping"),
        ("- training\n", "line 1: the file must be a mapping"),
        ("training:\n  max_steps: {a: 1}\n", "line 2: training.max_steps must be a single value"),
        ("training:\n  max_steps: [1]\n", "line 2: training.max_steps must be a single value"),
        ("training.max_steps: 3\n", "Write `training:` and below it, indented, `max_steps: 3`"),
        ("training: {max_steps: 3}\n---\na: b\n", "expected a single document in the stream, but found"),
        ("training:\n  max_steps:\n", "line 2: training.max_steps has no value"),
        ("training:\n  init_from: null\n", 'line 2: training.init_from has no value. Write one, or ""'),
        ("data: {data_dir: ~}\n", "line 1: data.data_dir has no value"),
        ("training:\n  seed: 20260101123456\n", "line 2: `training.seed` must be"),
        ("preset: config\n", "There is no preset 'config'"),
        ("training:\n\tmax_steps: 3\n", "line 2: while scanning for the next token, found character '\\t'"),
        ('{"training": {"max_steps": 3}', "line 1: "),
        ("? [a]\n: b\n", "line 1: a name must be text"),
        ("# nothing\n", "has no settings. Write them as"),
        ("preset: tinny\ndata: {dataset: x}\n", "run.yaml: There is no preset 'tinny'"),
        ("model:\n  source_vocab_size: 3\n", "not the config.json of a run ("),
        ("data:\n  batch_tokens: 64\n", "`data.batch_tokens` must be"),
    ],
)
def test_what_is_wrong_is_named_in_a_line(tmp_path, capfd, text, message):
    path = write(tmp_path, text)
    run = tmp_path / "run"
    assert train_program.main(["--config", str(path), "--run-dir", str(run)]) == 2
    errors = capfd.readouterr().err.strip()
    assert "\n" not in errors
    assert message in errors
    assert not run.exists()


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, capfd, content):
    path = tmp_path / "run.yaml"
    if content:
        path.write_bytes(content)
    assert train_program.main(["--config", str(path)]) == 2
    errors = capfd.readouterr().err.strip()
    assert f"{path}: cannot be read" in errors
    assert "\n" not in errors


def test_two_files_are_refused(tmp_path, capfd):
    path = str(write(tmp_path, YAML))
    assert train_program.main(["--config", path, "--config", path]) == 2
    assert "--config: give one file. Received:" in capfd.readouterr().err


def test_two_presets_are_refused(tmp_path, capfd):
    assert train_program.main(["--config", str(write(tmp_path, YAML)), "--preset", "base"]) == 2
    assert "--preset base: " in capfd.readouterr().err
    whole = write(tmp_path, to_json(with_vocab_size(preset("tiny"), 1013, 1013)), "config.json")
    assert train_program.main(["--config", str(whole), "--preset", "base"]) == 2
    assert "has all settings already. Remove the preset" in capfd.readouterr().err


def test_json_with_tabs_and_escapes_is_read_as_json(tmp_path):
    values = {"preset": "tiny", "data": {"dataset": "\U0001f600 a", "source": "no", "target": "de"}}
    for options in ({"indent": "\t"}, {"indent": "\t", "ensure_ascii": False}):
        path = write(tmp_path, json.dumps(values, **options), "run.json")
        file = read_settings(path)
        assert [setting.text for setting in file.settings] == [
            "data.dataset=\U0001f600 a", "data.source=no", "data.target=de"
        ]  # fmt: skip
        assert [setting.line for setting in file.settings] == [4, 5, 6]


def test_a_flag_changes_only_what_it_names(tmp_path):
    """The direction of the built-in corpus, and the vocabulary of `--init-from`."""
    reverse = write(tmp_path, "data: {source: de, target: en, dataset: cldr/en-de}\n")
    config = resolved("--config", reverse, "--dataset", "cldr/en-de")
    assert (config.data.source, config.data.target) == ("de", "en")
    other = write(tmp_path, "data: {source: de, target: fr}\n")
    config = resolved("--config", other, "--dataset", "cldr/en-de")
    assert (config.data.source, config.data.target) == ("en", "de")
    kept = write(tmp_path, "training: {init_vocabulary: false}\n")
    config = resolved("--config", kept, "--init-from", "en-de-tatoeba")
    assert not config.training.init_vocabulary
    assert resolved("--init-from", "en-de-tatoeba").training.init_vocabulary
    assert not resolved("--init-from", "en-de-tatoeba", "--new-vocabulary").training.init_vocabulary


def test_the_preset_of_a_complete_file_has_no_name():
    with pytest.raises(ValueError, match="There is no preset 'config'"):
        resolved("--preset", "config", "--dataset", "cldr/en-de")
