"""The list of settings: all of them, with their values, as `--set` takes them."""

import dataclasses

import train_wmt

from keras_transformer.config.overrides import describe_settings
from keras_transformer.config.presets import preset
from keras_transformer.config.settings import Config, override


def assignments(text):
    return [line.strip() for line in text.splitlines() if line.startswith("  ") and line[2] != " "]


def test_every_setting_is_there_once_with_its_meaning():
    text = describe_settings(preset("base"))
    names = [
        f"{section.name}.{field.name}"
        for section in dataclasses.fields(Config)
        for field in dataclasses.fields(getattr(preset("base"), section.name))
    ]
    followed = ["model.source_vocab_size", "model.target_vocab_size"]
    assert [line.partition("=")[0] for line in assignments(text)] == [n for n in names if n not in followed]
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line in {f"  {one}" for one in assignments(text)}:
            assert lines[number + 1].startswith("      ")  # its meaning
    assert all(len(line) <= 110 for line in lines)


def test_what_is_listed_can_be_set():
    config = override(
        preset("big_enfr"),
        ["data.dataset=x", "model.key_dim=32", "search.alpha=0.25", "devices.allow_cpu=true"],
    )
    again = override(preset("big_enfr"), assignments(describe_settings(config)))
    assert again == config


def test_meanings_are_those_of_the_docstrings():
    text = describe_settings(preset("base"))
    assert "  training.warmup_steps=4000\n      warm-up of equation 3.\n" in text
    assert "(Table 3, row E)" in text


def test_the_program_lists_what_it_would_take(capsys):
    assert train_wmt.main(["--settings", "--set", "training.max_steps=77"]) == 0
    assert "  training.max_steps=77\n" in capsys.readouterr().out
