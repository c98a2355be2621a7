"""Notes about settings: who gets one, and that what they advise is accepted and helps."""

import re

import pytest

from keras_transformer.config.presets import preset
from keras_transformer.config.settings import Config, override
from keras_transformer.model.optimizer import TransformerSchedule
from keras_transformer.training.before_training import depth_note, learning_rate_note, time_note, warmup_note


def assignments(note):
    """Lists of what stands behind `--set` in each of the remedies."""
    return re.findall(r"--set ([^\s)]+)", note)


@pytest.mark.parametrize(
    ("changes", "noted"),
    [
        ([], False),
        (["data.batch_tokens=6250"], False),
        (["data.batch_tokens=6249"], True),
        (["data.batch_tokens=4096", "training.learning_rate_scale=0.9"], False),
        (["data.batch_tokens=4096", "training.learning_rate_scale=2"], True),
        (["data.batch_tokens=4096", "model.d_model=510", "model.num_heads=6"], False),
        (["data.batch_tokens=4096", "model.d_model=1024"], True),
        (["data.batch_tokens=25000", "devices.micro_batch_tokens=4096"], False),
    ],
)
def test_the_papers_rate_with_batches_below_a_quarter_of_the_papers_is_noted(changes, noted):
    assert (learning_rate_note(override(Config(), changes)) is not None) == noted


@pytest.mark.parametrize("batch_tokens", [2048, 4096, 6000])
def test_each_remedy_for_the_rate_ends_the_note(batch_tokens):
    config = override(Config(), [f"data.batch_tokens={batch_tokens}"])
    note = learning_rate_note(config)
    assert "\n" not in note
    assert f"with {batch_tokens:,} training may stall" in note
    *larger, lower = assignments(note)
    assert larger == ["data.batch_tokens=25000", f"devices.micro_batch_tokens={batch_tokens}"]
    for remedy in (larger, [lower]):
        assert learning_rate_note(override(config, remedy)) is None


def test_the_lower_rate_follows_the_root_of_the_batch():
    config = override(Config(), ["data.batch_tokens=4000"])
    scale = float(assignments(learning_rate_note(config))[-1].partition("=")[2])
    assert scale == pytest.approx((4000 / 25_000) ** 0.5, rel=0.02)


@pytest.mark.parametrize(
    ("changes", "noted"),
    [
        ([], False),
        (["model.num_encoder_layers=7"], True),
        (["model.num_decoder_layers=12"], True),
        (["model.num_encoder_layers=7", "model.norm_first=true"], False),
        (["model.num_encoder_layers=7", "model.depth_scaling=deepnorm"], False),
    ],
)
def test_more_layers_than_the_papers_with_its_normalisation_are_noted(changes, noted):
    config = override(Config(), changes)
    note = depth_note(config)
    assert (note is not None) == noted
    if noted:
        assert depth_note(override(config, assignments(note))) is None


@pytest.mark.parametrize("name", ["base", "big"])
def test_the_papers_own_settings_have_no_note(name):
    assert learning_rate_note(preset(name)) is None
    assert depth_note(preset(name)) is None


@pytest.mark.parametrize(("warmup", "noted"), [(1999, False), (2000, True), (4000, True)])
def test_a_warm_up_as_long_as_the_run_is_noted(warmup, noted):
    config = override(Config(), ["training.max_steps=2000", f"training.warmup_steps={warmup}"])
    assert (warmup_note(config) is not None) == noted


def test_the_remedy_for_the_warm_up_ends_the_note_and_keeps_the_highest_rate():
    config = override(Config(), ["training.max_steps=2000", "training.learning_rate_scale=0.8"])
    note = warmup_note(config)
    assert "\n" not in note
    assert "training.warmup_steps=4000 is not below training.max_steps=2000" in note
    mended = override(config, assignments(note))
    assert mended.training.warmup_steps == 250
    assert warmup_note(mended) is None
    before, after = (
        TransformerSchedule(512, each.training.warmup_steps, scale=each.training.learning_rate_scale)
        for each in (config, mended)
    )
    assert float(after(250 - 1)) == pytest.approx(float(before(4000 - 1)), rel=0.02)


@pytest.mark.parametrize(
    ("minutes", "num_steps", "noted"), [(5, 501, False), (5, 500, True), (5, 0, True), (0, 100, False)]
)
def test_a_warm_up_that_does_not_fit_into_the_minutes_is_noted(minutes, num_steps, noted):
    changes = ["training.warmup_steps=500", f"training.max_minutes={minutes}"]
    training = override(Config(), changes).training
    note = time_note(training, num_steps)
    assert (note is not None) == noted
    if noted:
        assert f"about {num_steps} steps fit into 5 minutes" in note
        assert "fewer than training.warmup_steps=500" in note
        assert override(Config(), assignments(note)).training.warmup_steps == max(1, num_steps // 8)
