"""Settings and flags of earlier versions: understood, with a line that names the new word."""

import dataclasses
import json
import pathlib
import re

import keras
import pytest

from keras_transformer.cli import evaluate, export, prepare, score, train, translate
from keras_transformer.cli.command_line import OLD_FLAGS
from keras_transformer.config import settings
from keras_transformer.config.settings import Config, from_dict, override, path_now, replace
from keras_transformer.model.transformer import Transformer
from keras_transformer.training.resume import batch_order_key, check_setting_names

# Old path, a value as it was typed; new path, the value that it stands for.
RENAMED = [
    ("model.sharing", "target_output", "model.tie_embeddings", "decoder"),
    ("model.sharing", "none", "model.tie_embeddings", "none"),
    ("data.weights", "1,2.5", "data.dataset_weights", "1,2.5"),
    ("training.early_stopping", "7", "training.patience", 7),
    ("training.best_by", "bleu", "training.best_metric", "bleu"),
    ("training.max_skipped", "3", "training.max_nonfinite_steps", 3),
    ("training.init_weights", "best", "training.init_checkpoint", "best"),
    ("search.stop", "first", "search.early_stop", True),
    ("search.stop", "exact", "search.early_stop", False),
    ("search.extra_length", "31", "search.max_length_offset", 31),
    ("search.length_factor", "1.5", "search.max_length_ratio", 1.5),
    ("devices.batch_tokens", "3000", "devices.micro_batch_tokens", 3000),
]
WEIGHTS = "--weights is now called --checkpoint"
PARSERS = {
    "train": train.parse_args,
    "prepare": prepare.parse_args,
    "translate": translate.parse_args,
    "evaluate": evaluate.parse_args,
    "export": export.parse_args,
    "score": score.parse_args,
}


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch):
    monkeypatch.setattr(settings, "_PRINTED", set())


def value_of(config, path):
    section, name = path.split(".")
    return getattr(getattr(config, section), name)


def test_every_renamed_setting_is_in_the_list():
    renamed = {
        (f"{section.name}.{field.metadata['renamed_from']}", f"{section.name}.{field.name}")
        for section in dataclasses.fields(Config)
        for field in dataclasses.fields(section.default_factory)
        if field.metadata["renamed_from"]
    }
    assert renamed == {(old, new) for old, _, new, _ in RENAMED}


@pytest.mark.parametrize(("old", "text", "new", "value"), RENAMED)
def test_an_old_name_after_set_is_understood_and_the_new_one_is_named(old, text, new, value, capsys):
    config = override(Config(), [f"{old}={text}"])
    assert value_of(config, new) == value
    line = f"{old}={text} is now {new}={str(value).lower()}" if value in (True, False) else ""
    assert capsys.readouterr().err == (line or f"{old} is now called {new}") + "\n"
    override(Config(), [f"{old}={text}"])
    assert capsys.readouterr().err == ""  # once in a process


@pytest.mark.parametrize(("old", "text", "new", "value"), RENAMED)
def test_config_json_with_an_old_name_is_read(old, text, new, value, capsys):
    section, name = old.split(".")
    stored = text if isinstance(value, str | bool) else value
    config = from_dict({section: {name: stored}})
    assert value_of(config, new) == value
    err = capsys.readouterr().err
    if value == value_of(Config(), new):
        assert err == ""
    else:
        assert err == f"config.json is from an earlier version: {old} is now called {new}\n"


def test_a_whole_config_json_of_before_has_one_line():
    values = dataclasses.asdict(Config())
    for old, _, new, _ in RENAMED:
        section, name = new.split(".")
        if name in values[section]:
            values[section][old.split(".")[1]] = values[section].pop(name)
    values["model"]["sharing"], values["search"]["stop"] = "all", "exact"
    assert from_dict(json.loads(json.dumps(values))) == Config()


def test_an_old_value_belongs_to_its_old_name():
    with pytest.raises(ValueError, match="`search.early_stop` must be true or false. Received: 'first'"):
        override(Config(), ["search.early_stop=first"])
    with pytest.raises(ValueError, match="must be one of .* Received: 'target_output'"):
        override(Config(), ["model.tie_embeddings=target_output"])


def test_where_both_names_are_given_the_new_one_counts():
    assert from_dict({"search": {"extra_length": 3, "max_length_offset": 5}}).search.max_length_offset == 5


def test_replace_takes_an_old_name(capsys):
    assert replace(Config(), training={"early_stopping": 5}).training.patience == 5
    assert capsys.readouterr().err == "training.early_stopping is now called training.patience\n"


def test_a_setting_that_may_change_has_either_name():
    assert path_now("training.max_skipped") == "training.max_nonfinite_steps"
    assert path_now("training.seed") == "training.seed"
    assert path_now("nothing") == "nothing"
    check_setting_names(["training.max_skipped", "training.max_nonfinite_steps"], Config())
    with pytest.raises(ValueError, match="no setting 'training.max_stepped'"):
        check_setting_names(["training.max_stepped"], Config())


def test_a_checkpoint_numbers_its_batches_by_the_names_that_it_always_had():
    config = replace(Config(), data={"dataset_weights": "1,3"})
    key = json.loads(batch_order_key(config, "ab", 5))
    assert key.keys() == {
        *("batch_tokens", "padding", "max_shapes", "subword_dropout"),
        *("weights", "temperature", "seed", "sha256", "num_pairs"),
    }
    assert key["weights"] == "1,3"


@pytest.mark.slow
def test_a_saved_layer_of_before_is_loaded():
    sizes = {"source_vocab_size": 17, "target_vocab_size": 13, "d_model": 6, "d_ff": 7, "num_heads": 2}
    sizes |= {"num_encoder_layers": 1, "num_decoder_layers": 1}
    held = Transformer({**sizes, "tie_embeddings": "decoder"}).get_config()
    held["config"]["sharing"] = {"decoder": "target_output"}[held["config"].pop("tie_embeddings")]
    assert Transformer.from_config(held).config.tie_embeddings == "decoder"
    keras.backend.clear_session()


@pytest.mark.parametrize(
    ("program", "arguments", "name", "value", "line"),
    [
        ("train", ["--settings"], "print_config", True, "--settings is now called --print-config"),
        ("prepare", ["IN", "--show", "5"], "examples", 5, "--show is now called --examples"),
        ("translate", ["RUN", "--weights", "best"], "checkpoint", "best", WEIGHTS),
        ("translate", ["RUN", "--weights=best"], "checkpoint", "best", WEIGHTS),
        ("evaluate", ["RUN", "--weights", "best"], "checkpoint", "best", WEIGHTS),
        ("score", ["RUN", "--weights", "best"], "checkpoint", "best", WEIGHTS),
        ("export", ["RUN", "O", "--weights", "b"], "checkpoint", "b", WEIGHTS),
        (
            *("translate", ["R", "--stop", "first"], "early_stop", True),
            "--stop first is now called --early-stop",
        ),
        (
            *("export", ["R", "O", "--stop=exact"], "early_stop", False),
            "--stop exact is now called --no-early-stop",
        ),
        ("evaluate", ["--tokens", "given"], "tokenized", True, "--tokens given is now called --tokenized"),
        ("evaluate", ["--tokens=moses"], "tokenized", False, "--tokens moses is now called --no-tokenized"),
        ("evaluate", ["--draws", "99"], "bootstrap_samples", 99, "--draws is now called --bootstrap-samples"),
        (
            *("translate", ["RUN", "--extra-length", "7"], "max_length_offset", 7),
            "--extra-length is now called --max-length-offset",
        ),
        (
            *("translate", ["RUN", "--length-factor", "2"], "max_length_ratio", 2.0),
            "--length-factor is now called --max-length-ratio",
        ),
    ],
)  # fmt: skip
def test_an_old_flag_is_understood_and_the_new_one_is_named(program, arguments, name, value, line, capsys):
    assert getattr(PARSERS[program](arguments), name) == value
    err = capsys.readouterr().err
    assert err.endswith(f": {line}\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("program", "arguments", "message"),
    [
        ("translate", ["RUN", "--stop", "never"], "unknown argument --stop."),
        ("translate", ["RUN", "--stop"], "unknown argument --stop."),
        ("evaluate", ["RUN", "--draws"], "argument --bootstrap-samples: expected one argument."),
    ],
)
def test_an_old_flag_without_a_meaning_is_refused(program, arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        PARSERS[program](arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_the_changelog_lists_every_renamed_setting_and_flag():
    text = (pathlib.Path(__file__).parents[2] / "CHANGELOG.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|", text, re.M))
    values = {True: "true", False: "false"}
    for old, before, new, now in RENAMED:
        changed = old in ("search.stop",) or before == "target_output"
        row = (f"{old}={before}", f"{new}={values.get(now, now)}") if changed else (old, new)
        assert row in rows
    assert rows >= set(OLD_FLAGS.items())
