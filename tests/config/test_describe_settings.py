"""The list of settings: all of them, with their values, as `--set` takes them."""

import dataclasses
import re

import pytest

from keras_transformer.cli import train
from keras_transformer.config.fields import choice, require, section, setting
from keras_transformer.config.presets import preset
from keras_transformer.config.settings import Config, describe_settings, override


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


def test_a_setting_said_once_is_checked_documented_and_listed():
    @section("Numbers.")
    class Numbers:
        count: int | None = setting(None, "how many; `None` is all", at_least=1, at_most=9)
        share: float = setting(0.5, "of what is there", above=0, below=1)
        kind: str = choice("even", '`"even"` or `"odd"`, ...')

        def __post_init__(self):
            require(self.count != 2 or self.kind == "even", "`kind` must be even for two", kind=self.kind)

    assert Numbers.__doc__ == (
        "Numbers.\n\nAttributes:\n    count: how many; `None` is all.\n    share: of what is there.\n"
        '    kind: `"even"` or `"odd"`, ...\n'
    )
    changed = dataclasses.replace(Numbers(count=9, kind="odd"), share=0.1)
    assert Numbers(count=9, share=0.1, kind="odd") == changed
    for changes, message in (
        ({"count": 10}, "`numbers.count` must be from 1 to 9. Received: count=10"),
        ({"count": "2"}, "`numbers.count` must be int or None. Received: '2'"),
        ({"share": 1.0}, "`numbers.share` must be above 0 and below 1. Received: share=1.0"),
        ({"kind": "evn"}, "`numbers.kind` must be one of even, odd. Received: 'evn'. Did you mean 'even'?"),
        ({"count": 2, "kind": "odd"}, "`kind` must be even for two. Received: kind='odd'"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            Numbers(**changes)


@pytest.mark.parametrize("field", dataclasses.fields(Config), ids=lambda field: field.name)
def test_every_section_documents_its_settings(field):
    part = type(getattr(Config(), field.name))
    documented = re.findall(r"^    (\w+): ", part.__doc__, re.M)
    assert documented == [one.name for one in dataclasses.fields(part)]


def test_the_values_of_a_choice_are_the_words_of_its_meaning():
    choices = {
        f"{part.name}.{field.name}": field.metadata["choices"]
        for part in dataclasses.fields(Config)
        for field in dataclasses.fields(getattr(Config(), part.name))
        if field.metadata["choices"]
    }
    assert {path: " ".join(sorted(words)) for path, words in choices.items()} == {
        "model.activation": "geglu relu swiglu",
        "model.norm": "layer rms",
        "model.positions": "halves interleaved learned relative rotary",
        "model.tie_embeddings": "all decoder none",
        "model.attention_init": "separate stacked stacked_all",
        "model.depth_scaling": "deepnorm ds_init none",
        "data.model_type": "bpe unigram wordpiece",
        "data.normalization": "identity nfc nfkc",
        "data.padding": "fixed longest",
        "data.on_bad_utf8": "refuse replace",
        "training.smoothing_formula": "t2t uniform",
        "training.precision": "float32 mixed_bfloat16 mixed_float16",
        "training.best_metric": "bleu f1 loss",
        "search.length_penalty": "average gnmt none",
        "search.long_lines": "cut split",
        "search.utility": "bleu chrf",
        "devices.strategy": "auto mirrored multiworker none",
        "devices.cross_device_ops": "auto hierarchical nccl reduction ring",
    }


def test_meanings_are_listed():
    text = describe_settings(preset("base"))
    assert "  training.warmup_steps=4000\n      warm-up steps of the learning rate (equation 3).\n" in text
    assert "(Table 3, row E)" in text


def test_the_program_lists_what_it_would_take(capsys):
    assert train.main(["--print-config", "--set", "training.max_steps=77"]) == 0
    assert "  training.max_steps=77\n" in capsys.readouterr().out
