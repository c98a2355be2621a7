"""Weights by name: of one checkpoint, of several, of the best; whole or refused."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
from tiny_runs import Training, data_of, flip_a_byte, steps_on_disk, weights_in, weights_of_step

from keras_transformer.checkpoints.averaging import choose_checkpoints, missing_note, steps_text
from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.config.settings import TrainingConfig, replace, to_json
from keras_transformer.files import write_text
from keras_transformer.model.transformer import Transformer


def assert_weights(model, expected):
    assert {weight.path for weight in model.weights} == expected.keys()
    for weight in model.weights:
        np.testing.assert_array_equal(weight.numpy(), expected[weight.path])


def mean_of(run, steps, folder="checkpoints"):
    """In float64, rounded once."""
    each = [weights_of_step(run, step, folder=folder) for step in steps]
    return {
        name: np.mean([weights[name].astype(np.float64) for weights in each], axis=0).astype(np.float32)
        for name in each[0]
    }


@pytest.fixture
def with_best(config, tokenizer, tmp_path):
    """A run with four validations, of which the best three are kept: steps 2, 4 and 1."""
    run = RunFolder.create(tmp_path / "best", config, tokenizer)
    training = Training(run)
    for step, loss in ((1, 3.0), (2, 1.0), (3, 4.0), (4, 2.0)):
        training.save(step)
        run.append_history({"kind": "validation", "step": step, "loss": loss})
        run.keep_best(training.model)
    return run


@pytest.mark.slow
def test_averaged_weights_are_the_mean_of_the_newest_checkpoints(run):
    assert_weights(run.load_model(checkpoint="averaged"), mean_of(run, (9, 12)))
    assert_weights(run.load_model(checkpoint="last-2"), mean_of(run, (9, 12)))


@pytest.mark.slow
def test_averages_have_names_and_stay(run):
    assert run.average(last=3) == [6, 9, 12]
    assert run.average(last=1) == [12]
    assert_weights(run.load_model(checkpoint="last-3"), mean_of(run, (6, 9, 12)))
    assert_weights(run.load_model(checkpoint="last-1"), weights_of_step(run, 12))
    assert_weights(run.load_model(), mean_of(run, (9, 12)))
    assert run.weights_names() == [
        *("final", "averaged", "last", "last-1", "last-2", "last-3"),
        *("step-6", "step-9", "step-12"),
    ]


def test_averaging_more_than_there_are_takes_all(run):
    assert run.average(last=20) == [6, 9, 12]
    assert_weights(run.load_model(checkpoint="last-20"), mean_of(run, (6, 9, 12)))


@pytest.mark.slow
def test_averaging_again_replaces_the_average(run):
    training = Training(run)
    training.checkpoints.restore()
    training.save(15)
    assert run.average(last=2) == [12, 15]
    assert_weights(run.load_model(), mean_of(run, (12, 15)))
    names = {path.name for path in (run.path / "averaged").iterdir()}
    assert names == {"last-2.index", "last-2.data-00000-of-00001"}


@pytest.mark.slow
def test_the_mean_is_taken_in_float64(new_run):
    """In float32, 1 disappears beside 2**24, and the mean of all three would be 0."""
    training = Training(new_run)
    for step, value in ((1, 2.0**24), (2, 1.0), (3, -(2.0**24))):
        for weight in training.model.weights:
            weight.assign(np.full(weight.shape, value))
        training.optimizer.iterations.assign(step)
        training.checkpoints.save(0.0)
    new_run.average(last=3)
    for weight in new_run.load_model(checkpoint="last-3").weights:
        np.testing.assert_array_equal(weight.numpy(), np.float32(1 / 3))


@pytest.mark.slow
def test_the_state_before_training_is_never_averaged(new_run):
    training = Training(new_run)
    training.save(0)
    for forced in (False, True):
        with pytest.raises(
            ValueError,
            match="checkpoints: no checkpoint to average. .*checkpoint_every_steps$",
        ):
            new_run.average(last=2, forced=forced)
    training.save(1)
    assert new_run.average(last=2) == [1]
    training.save(2)
    assert new_run.average(last=3) == [1, 2]


def test_averaging_nothing_is_refused(new_run):
    with pytest.raises(ValueError, match="checkpoints: no checkpoint to average"):
        new_run.average(last=5)
    with pytest.raises(ValueError, match="best: no checkpoint to average"):
        new_run.average(best=5)


@pytest.mark.parametrize("arguments", [{}, {"last": 1, "best": 1}, {"last": 0}, {"best": -1}])
def test_one_number_must_be_given(run, arguments):
    with pytest.raises(
        ValueError, match="Either `last` or `best` must be given|`(last|best)` must be at least 1"
    ):
        run.average(**arguments)


def test_a_damaged_checkpoint_is_not_averaged_and_the_average_stays(run):
    flip_a_byte(data_of(run, 9))
    expected = weights_in(tf.train.load_checkpoint(str(run.path / "averaged" / "last-2")))
    with pytest.raises(ValueError, match=r"checkpoints/step-9: damaged"):
        run.average(last=2)
    assert_weights(run.load_model(), expected)


@pytest.mark.slow
def test_the_best_are_averaged(with_best):
    assert with_best.average(best=2) == [2, 4]
    assert_weights(with_best.load_model(checkpoint="best-2"), mean_of(with_best, (2, 4)))
    assert with_best.average(best=9) == [1, 2, 4]


@pytest.mark.slow
def test_the_best_weights_are_those_of_the_best_validation(with_best):
    assert_weights(with_best.load_model(checkpoint="best"), weights_of_step(with_best, 2, folder="best"))


@pytest.mark.slow
def test_one_checkpoint_is_found_wherever_it_is_kept(with_best):
    assert steps_on_disk(with_best) == [2, 3, 4]
    for step, folder in ((1, "best"), (3, "checkpoints")):
        expected = weights_of_step(with_best, step, folder=folder)
        assert_weights(with_best.load_model(checkpoint=f"step-{step}"), expected)


def test_the_last_weights_are_those_of_the_newest_checkpoint(run):
    assert_weights(run.load_model(checkpoint="last"), weights_of_step(run, 12))


@pytest.mark.slow
def test_the_moving_average_is_that_of_the_newest_checkpoint(new_run):
    training = Training(new_run, ema_decay=0.9)
    training.save(3)
    training.save(4)
    assert "ema" in new_run.weights_names()
    expected = weights_of_step(new_run, 4, part="ema")
    assert all(np.any(value != weights_of_step(new_run, 4)[name]) for name, value in expected.items())
    assert_weights(new_run.load_model(checkpoint="ema"), expected)


def test_weights_are_put_into_a_model_that_is_there(run):
    model = Transformer(run.config.model)
    run.load_weights(model, "step-6")
    assert_weights(model, weights_of_step(run, 6))
    run.load_weights(model)
    assert_weights(model, mean_of(run, (9, 12)))


@pytest.mark.slow
def test_the_average_of_an_earlier_version_is_found(run):
    shutil.rmtree(run.path / "averaged")
    training = Training(run)
    training.draw(77)
    weights = {weight.path: weight.value for weight in training.model.weights}
    tf.train.CheckpointManager(
        tf.train.Checkpoint(weights=weights), run.path / "averaged", max_to_keep=1
    ).save()
    assert [path.name for path in (run.path / "averaged").glob("*.index")] == ["ckpt-1.index"]
    assert_weights(run.load_model(), {name: value.numpy() for name, value in weights.items()})
    run.average(last=2)
    assert_weights(run.load_model(), mean_of(run, (9, 12)))


@pytest.mark.parametrize("weights", ["averaged", "last", "step-9"])
@pytest.mark.parametrize("cut", [False, True])
def test_damaged_weights_are_refused_with_the_file(run, weights, cut):
    prefix = {"averaged": "averaged/last-2", "last": "checkpoints/step-12"}.get(weights, "checkpoints/step-9")
    path = run.path / f"{prefix}.data-00000-of-00001"
    if cut:
        path.write_bytes(path.read_bytes()[:100])
    else:
        flip_a_byte(path)
    with pytest.raises(ValueError, match=f"{prefix}: damaged"):
        run.load_model(checkpoint=weights)


@pytest.mark.parametrize("change", [{"d_ff": 13}, {"num_encoder_layers": 2}])
def test_weights_of_another_model_are_refused(run, config, change):
    other = replace(config, model=replace(config.model, **change))
    write_text(run.path / "config.json", to_json(other))
    for weights in ("last", "averaged"):
        with pytest.raises(ValueError, match=r"(step-12|last-2): a different model: "):
            RunFolder(run.path).load_model(checkpoint=weights)


@pytest.mark.parametrize("weights", ["best", "ema", "last-7", "best-1", "step-7", "step-", "newest", ""])
def test_absent_weights_are_refused_with_what_there_is(run, weights):
    there = "`final`, `averaged`, `last`, `last-2`, `step-6`, `step-9`, `step-12`"
    with pytest.raises(ValueError, match=f"no {weights!r} weights. Available: {there}[^\n]*$"):
        run.load_model(checkpoint=weights)


def test_a_run_that_never_trained_has_no_weights(new_run):
    assert new_run.weights_names() == []
    for weights in ("final", "averaged"):
        with pytest.raises(ValueError, match=f"no '{weights}' weights. Available: no checkpoint"):
            new_run.load_model(checkpoint=weights)


@pytest.mark.slow
def test_who_asks_for_the_delivered_weights_too_early_is_told_of_the_last(new_run):
    Training(new_run).save(5)
    with pytest.raises(
        ValueError,
        match="no 'final' weights.*`final` is written at the end of training. .*--checkpoint last$",
    ):
        new_run.load_model()


@pytest.mark.slow
def test_states_that_were_forced_are_averaged_only_when_asked_for(new_run):
    training = Training(new_run)
    training.save(5)
    training.save(6, on_schedule=False)
    training.save(7)
    assert new_run.average(last=2) == [5, 7]
    assert_weights(new_run.load_model(checkpoint="last-2"), mean_of(new_run, (5, 7)))
    assert new_run.averages.choose(2).forced == [6]
    assert new_run.average(last=2, forced=True) == [6, 7]
    assert_weights(new_run.load_model(checkpoint="last-2"), mean_of(new_run, (6, 7)))


@pytest.mark.slow
def test_where_all_states_were_forced_the_way_to_average_them_is_told(new_run):
    Training(new_run).save(6, on_schedule=False)
    with pytest.raises(ValueError, match="saved on schedule. --off-schedule includes the others"):
        new_run.average(last=2)


@pytest.mark.parametrize(
    ("there", "on_schedule", "options", "expected"),
    [
        # (steps, within the warm-up, forced, missing); every 4 steps, warm-up of 10, the newest 3
        ((0, 4, 8, 12, 16), (4, 8, 12, 16), {}, ([8, 12, 16], [8], [], [])),
        ((0, 4, 8, 12, 16), (4, 8, 12, 16), {"warmed_up": True}, ([12, 16], [], [], [])),
        ((0, 4, 8), (4, 8), {"warmed_up": True}, ([], [], [], [])),
        ((8, 12, 13, 16, 18), (8, 12, 16), {}, ([8, 12, 16], [8], [13, 18], [])),
        ((8, 12, 13, 16, 18), (8, 12, 16), {"forced": True}, ([13, 16, 18], [], [13, 18], [])),
        ((12, 20, 24), (12, 20, 24), {}, ([12, 20, 24], [], [], [16])),
        ((12, 16, 20), (12, 16, 20), {"listed": (12, 16, 20, 24)}, ([12, 16, 20], [], [], [24])),
        ((4, 12, 16, 20), (4, 12, 16, 20), {}, ([12, 16, 20], [], [], [])),
        ((10,), (10,), {"warmed_up": True}, ([10], [], [], [])),
        ((), (), {}, ([], [], [], [])),
    ],
)
def test_which_states_an_average_is_made_of(there, on_schedule, options, expected):
    training = TrainingConfig(checkpoint_every_steps=4, warmup_steps=10)
    assert choose_checkpoints(there, on_schedule, 3, training, **options) == expected


def test_a_schedule_by_time_has_no_gaps():
    training = TrainingConfig(warmup_steps=10, checkpoint_every_minutes=1.0)
    assert choose_checkpoints((11, 17, 40), (11, 17, 40), 3, training) == ([11, 17, 40], [], [], [])


@pytest.mark.parametrize(
    ("steps", "text"),
    [([7], "7"), ([250, 500, 1000], "250, 500, 1000"), ([3, 5, 7, 9], "3 to 9, every 2"), ([3, 5], "3, 5")],
)
def test_steps_are_told_one_by_one_unless_they_are_even(steps, text):
    assert steps_text(steps) == text


def test_a_state_that_is_missing_is_named_with_what_the_mean_is_of(run):
    """In the list, and not on the disk; the interval of steps is not known."""
    for path in (run.path / "checkpoints").glob("step-9.*"):
        path.unlink()
    chosen = run.averages.choose(3)
    assert (chosen.steps, chosen.missing) == ([6, 12], [9])
    assert (
        missing_note("there", chosen) == "there: step-9 missing or damaged; the average is over steps 6, 12"
    )
    assert missing_note("there", chosen._replace(missing=[])) is None


def test_at_the_end_a_damaged_state_is_left_out_and_named(run):
    flip_a_byte(data_of(run, 9))
    chosen = run.averages.make_at_end()
    assert (chosen.steps, chosen.missing) == ([12], [9])
    assert_weights(run.load_model(checkpoint="averaged"), weights_of_step(run, 12))
    flip_a_byte(data_of(run, 12))
    with pytest.raises(ValueError, match=r"step-12: damaged"):
        run.averages.make_at_end()


def test_at_the_end_only_states_after_the_warm_up_are_averaged(run, config):
    run.config = replace(config, training=replace(config.training, warmup_steps=12))
    assert run.averages.make_at_end().steps == [12]
    run.config = replace(config, training=replace(config.training, warmup_steps=13))
    assert run.averages.make_at_end().steps == []
    assert "averaged" not in run.weights_names()  # an earlier mean of this name is none of this end


def test_the_average_keeps_to_the_settings_of_the_run(run, config):
    run.average(last=3)
    other = json.loads(to_json(config))
    other["training"]["average_last"] = 3
    write_text(run.path / "config.json", json.dumps(other))
    assert_weights(RunFolder(run.path).load_model(), mean_of(run, (6, 9, 12)))
