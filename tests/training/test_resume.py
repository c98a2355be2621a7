"""Which settings a run that continues may change: what each answer says, and what it leaves."""

import dataclasses
import json
import re

import pytest

from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.cli.early_checks import check_run
from keras_transformer.config import settings as configs
from keras_transformer.config.settings import replace, to_json
from keras_transformer.training.resume import (
    CORPUS_SUM,
    FIXED,
    FREE,
    INITIAL,
    apply_config_changes,
    with_initial_settings,
)

SUM, OTHER_SUM = "a" * 64, "b" * 64


@pytest.fixture
def started(new_run):
    (new_run.path / CORPUS_SUM).write_text(f"{SUM}\n", encoding="utf-8")
    return new_run


def changed(config, *assignments):
    return configs.override(config, assignments)


def left_as_it_was(run, config):
    assert run.config == config
    written = json.loads((run.path / "config.json").read_text(encoding="utf-8"))
    assert {name: value for name, value in written.items() if name != "sha256"} == json.loads(to_json(config))
    assert (run.path / CORPUS_SUM).read_text(encoding="utf-8") == f"{SUM}\n"


def test_the_same_settings_continue(started, config):
    assert apply_config_changes(started, config, sha256=SUM) == []
    left_as_it_was(started, config)


def test_length_places_devices_and_search_may_change(started, config):
    settings = {
        "training.max_steps": 7,
        "training.max_minutes": 2.5,
        "training.keep_checkpoints": 9,
        "training.keep_best": 1,
        "training.average_last": 4,
        "training.patience": 3,
        "training.log_every_steps": 9,
        "training.init_checkpoint": "best",
        "training.validation_beam_size": 1,
        "data.data_dir": "here",
        "data.manual_dir": "there",
        "devices.strategy": "mirrored",
        "devices.micro_batch_tokens": 50,
        "search.beam_size": 7,
    }
    assert settings.keys() >= FREE
    new = changed(config, *(f"{name}={value}" for name, value in settings.items()))
    changes = apply_config_changes(started, new, sha256=SUM)
    assert {name: value for name, _, value in changes} == settings
    assert started.config == RunFolder(started.path).config == new


def test_any_other_change_is_refused_with_all_of_them_and_the_way_out(started, config):
    new = changed(config, "training.warmup_steps=7", "data.batch_tokens=500", "training.max_steps=3")
    message = (
        f"{started.path}: this run has different settings: data.batch_tokens 400 -> 500, "
        "training.warmup_steps 4 -> 7. Pass --allow-config-change data.batch_tokens,training.warmup_steps, "
        "or choose another --run-dir"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        apply_config_changes(started, new, sha256=SUM)
    left_as_it_was(started, config)


def test_changes_that_are_allowed_are_taken_over(started, config):
    new = changed(config, "training.warmup_steps=7", "model.residual_dropout=0.3", "training.max_steps=3")
    with pytest.raises(ValueError, match="model.residual_dropout 0.1 -> 0.3. Pass"):
        apply_config_changes(started, new, sha256=SUM, allowed=["training.warmup_steps"])
    left_as_it_was(started, config)
    changes = apply_config_changes(
        started, new, sha256=SUM, allowed=["training.warmup_steps", "model.residual_dropout", "data.padding"]
    )
    assert changes == [
        ("model.residual_dropout", 0.1, 0.3),
        ("training.max_steps", 100_000, 3),
        ("training.warmup_steps", 4, 7),
    ]
    assert RunFolder(started.path).config == new


@pytest.mark.parametrize(
    "assignment",
    [
        *("model.d_ff=25", "model.num_heads=4", "model.norm_first=true", "model.positions=learned"),
        "model.depth_scaling=deepnorm",
        *("model.key_dim=6", "data.vocab_size=99", "data.model_type=unigram", "data.vocab_texts=1"),
        *("data.normalization=nfkc", "data.split_digits=true", "data.separate_vocabularies=true"),
    ],
)
def test_what_makes_another_model_is_never_allowed(started, config, assignment):
    name = assignment.partition("=")[0]
    remedy = "choose another --run-dir"
    if name.startswith("data."):
        remedy += f"; --init-from {started.path} --new-vocabulary"
    with pytest.raises(ValueError, match=rf"{name} .* -> .* changes the model: {remedy}"):
        apply_config_changes(started, changed(config, assignment), sha256=SUM, allowed=[name])
    left_as_it_was(started, config)


def test_every_setting_is_decided_on(config):
    """A model's setting that is new makes another model until someone says otherwise."""
    free = {field.name for field in dataclasses.fields(config.model) if field.name.endswith("_dropout")}
    assert free == {"residual_dropout", "embedding_dropout", "attention_dropout", "relu_dropout"}
    known = {
        f"{section.name}.{field.name}"
        for section in dataclasses.fields(config)
        for field in dataclasses.fields(getattr(config, section.name))
    }
    assert known >= FREE | FIXED | {f"model.{name}" for name in INITIAL}


def test_a_run_of_before_matrices_were_stacked_keeps_its_own_and_says_so(started, config, capsys):
    file = started.path / "config.json"
    written = json.loads(file.read_text(encoding="utf-8"))
    del written["model"]["attention_init"], written["sha256"]
    file.write_text(json.dumps(written), encoding="utf-8")
    run = RunFolder(started.path)
    assert (config.model.attention_init, run.config.model.attention_init) == ("stacked", "separate")
    asked = with_initial_settings(config, run)
    assert "keeps model.attention_init=separate: it only decides" in capsys.readouterr().out
    assert apply_config_changes(run, asked, sha256=SUM) == []
    assert RunFolder(started.path).config.model.attention_init == "separate"
    with_initial_settings(asked, run)
    assert capsys.readouterr().out == ""


def test_an_unknown_name_is_refused_with_the_nearest(started, config):
    with pytest.raises(ValueError, match="'training.warmup_step'.*'training.warmup_steps'"):
        apply_config_changes(started, config, sha256=SUM, allowed=["training.warmup_step"])


def test_another_text_is_refused_unless_allowed(started, config):
    with pytest.raises(
        ValueError, match="training text differs from the one.*--allow-config-change data.dataset"
    ):
        apply_config_changes(started, config, sha256=OTHER_SUM)
    left_as_it_was(started, config)
    changes = apply_config_changes(started, config, sha256=OTHER_SUM, allowed=["data.dataset"])
    assert changes == [(CORPUS_SUM, SUM, OTHER_SUM)]
    assert (started.path / CORPUS_SUM).read_text(encoding="utf-8") == f"{OTHER_SUM}\n"


def test_settings_that_leave_out_pairs_are_named_with_another_text(started, config):
    new = changed(config, "data.max_length=20", "cleaning.max_length_ratio=2", "training.max_steps=3")
    names = ["data.max_length", "cleaning.max_length_ratio"]
    message = (
        f"{started.path}: the training text differs from the one this run started with (corpus.sha256), "
        "perhaps because of a changed data.max_length and cleaning.max_length_ratio. Restore both, pass "
        "--allow-config-change data.max_length,cleaning.max_length_ratio,data.dataset, or choose another "
        "--run-dir"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        apply_config_changes(started, new, sha256=OTHER_SUM, allowed=names)
    left_as_it_was(started, config)
    apply_config_changes(started, new, sha256=OTHER_SUM, allowed=[*names, "data.dataset"])
    assert RunFolder(started.path).config == new


def test_a_worker_that_does_not_write_takes_over_in_memory(started, config):
    other = RunFolder(started.path, writes=False)
    new = replace(config, training=replace(config.training, max_steps=3))
    assert apply_config_changes(other, new, sha256=SUM) == [("training.max_steps", 100_000, 3)]
    assert other.config == new
    left_as_it_was(started, config)


def test_the_run_that_a_run_began_from_may_be_gone_once_it_has_trained(run, new_run, config, tmp_path):
    for name in ("train.en", "train.de", "valid.en", "valid.de"):
        (tmp_path / name).write_text("a\n", encoding="utf-8")
    config = replace(config, data={"dataset": str(tmp_path)}, training={"init_from": str(tmp_path / "gone")})
    check_run(config, run.path)
    for path in (new_run.path, tmp_path / "another"):
        with pytest.raises(ValueError, match="gone: not a run folder"):
            check_run(config, path)
