"""What a run delivers: never worse, by its own measure, than its last weights or its best."""

import json
import re
import types

import numpy as np
import pytest
from tiny_runs import Training, data_of, flip_a_byte, weights_of_step

from keras_transformer.checkpoints import tensor_files
from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.checkpoints.weights import FINAL, Candidate, ranked, write_final_weights
from keras_transformer.config.settings import replace

ALONE = types.SimpleNamespace(gather=lambda number: [number])
FIGURES = {4: {"loss": 5.0, "bleu": 1.0}, 8: {"loss": 3.0, "bleu": 2.0}, 12: {"loss": 4.0, "bleu": 3.0}}


def read_final(path):
    """The record that is delivered with the weights, in the same file; `None` where nothing is."""
    if tensor_files.exists(path / FINAL):
        return json.loads(tensor_files.read(path / FINAL, "record")["json"].item())
    return None


class Ended(Training):
    """A run at the end of its training: states and validations of steps 4, 8 and 12."""

    def __init__(self, run, **settings):
        run.config = replace(run.config, training=replace(run.config.training, **settings))
        super().__init__(run)
        self.run, self.measured = run, []
        for step, figures in FIGURES.items():
            self.save(step)
            run.append_history({"kind": "validation", "step": step, **figures})
            run.keep_best(self.model)

    def deliver(self, loss=9.0, bleu=9.0, devices=ALONE):
        def measure():
            self.measured.append([weight.numpy() for weight in self.model.weights])
            return loss and {"loss": loss, "bleu": bleu}

        write_final_weights(self.run, self.model, devices, measure)

    @property
    def finals(self):
        return [record for record in self.run.read_history() if record["kind"] == "final"]


def values(model):
    return {weight.path: weight.numpy() for weight in model.weights}


def assert_weights(run, expected):
    for name, value in values(run.load_model()).items():
        np.testing.assert_array_equal(value, expected[name])


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("best_metric", "measured", "delivered"),
    [
        ("loss", {"loss": 2.9}, "averaged"),
        ("loss", {"loss": 3.0}, "averaged"),  # of equals, the paper's
        ("loss", {"loss": 3.1, "bleu": 99.0}, "best"),
        ("loss", {"loss": float("nan")}, "best"),
        ("bleu", {"bleu": 3.1, "loss": 99.0}, "averaged"),
        ("bleu", {"bleu": 2.9}, "last"),
    ],
)
def test_the_best_of_three_is_delivered(new_run, best_metric, measured, delivered):
    ended = Ended(new_run, best_metric=best_metric)
    ended.deliver(**measured)
    assert [record["weights"] for record in ended.finals] == [delivered]
    expected = {
        "averaged": values(new_run.load_model(checkpoint="averaged")),
        "last": weights_of_step(new_run, 12),
        "best": weights_of_step(new_run, 8, folder="best"),
    }
    assert_weights(RunFolder(new_run.path), expected[delivered])


@pytest.mark.slow
def test_the_average_itself_is_what_is_measured(new_run):
    ended = Ended(new_run)
    ended.deliver()
    average = values(new_run.load_model(checkpoint="averaged"))
    assert len(ended.measured) == 1
    for found, weight in zip(ended.measured[0], ended.model.weights, strict=True):
        np.testing.assert_array_equal(found, average[weight.path])


@pytest.mark.slow
def test_figures_of_all_are_recorded_and_printed(new_run, capsys):
    Ended(new_run).deliver(loss=3.25, bleu=7.0)
    assert read_final(new_run.path) == {
        "kind": "final",
        "step": 12,
        "average_last": 2,
        "weights": "best",
        "candidates": {
            "best": {"steps": [8], **FIGURES[8]},
            "averaged": {"steps": [8, 12], "loss": 3.25, "bleu": 7.0},
            "last": {"steps": [12], **FIGURES[12]},
        },
    }
    assert read_final(new_run.path) == new_run.read_history()[-1]
    out, err = capsys.readouterr()
    assert out == (
        "final weights: best (step 8): validation loss 3.000, BLEU 2.00; mean of 2 checkpoints (steps 8, "
        "12): validation loss 3.250, BLEU 7.00; last (step 12): validation loss 4.000, BLEU 3.00\n"
    )
    assert err == ""


@pytest.mark.slow
def test_best_weights_that_are_not_kept_are_found_among_the_checkpoints(new_run):
    Ended(new_run, keep_best=0).deliver()
    assert_weights(new_run, weights_of_step(new_run, 8))


@pytest.mark.slow
def test_the_last_is_named_once_where_it_is_the_best(new_run):
    ended = Ended(new_run, best_metric="bleu")
    ended.deliver(bleu=0.0)
    assert list(ended.finals[0]["candidates"]) == ["last", "averaged"]


@pytest.mark.slow
def test_nothing_is_averaged_where_no_state_is_of_after_the_warm_up(new_run, capsys):
    ended = Ended(new_run, warmup_steps=13, checkpoint_every_steps=4)
    ended.deliver()
    assert ended.measured == []
    assert ended.finals[0]["weights"] == "best"
    assert capsys.readouterr().out.endswith(
        ". Nothing was averaged: no checkpoint was saved on schedule (training.checkpoint_every_steps=4) "
        "after the warm-up (training.warmup_steps=13)\n"
    )


@pytest.mark.slow
def test_a_missing_state_is_told_at_the_end(new_run, capsys):
    ended = Ended(new_run)
    flip_a_byte(data_of(new_run, 8))
    ended.deliver(loss=1.0)
    assert "checkpoints: step-8 missing or damaged; the average is over steps 12\n" in capsys.readouterr().err
    assert ended.finals[0]["candidates"]["averaged"]["steps"] == [12]


@pytest.mark.slow
def test_what_a_signal_interrupts_is_not_delivered(new_run):
    ended = Ended(new_run)
    ended.deliver(loss=None)
    assert ended.finals == []
    assert read_final(new_run.path) is None
    ended.deliver()
    assert len(ended.finals) == 1


@pytest.mark.slow
def test_a_step_is_delivered_once(new_run):
    ended = Ended(new_run)
    ended.deliver()
    ended.deliver()
    assert len(ended.finals) == len(ended.measured) == 1
    ended.save(16)
    ended.deliver()
    assert [record["step"] for record in ended.finals] == [12, 16]
    assert read_final(new_run.path)["step"] == 16


@pytest.mark.slow
def test_a_step_that_a_prolonged_run_goes_back_to_is_delivered_again(new_run, capsys):
    ended = Ended(new_run)
    ended.deliver(loss=1.0)
    ended.save(16)
    ended.deliver(loss=1.0)
    ended.checkpoints.restore(12)
    new_run.rewind_history(12)
    capsys.readouterr()
    ended.deliver(loss=1.0)
    assert capsys.readouterr().err == (
        f"{new_run.path}/final/weights: from step 16, not 12. The final weights are computed again\n"
    )
    assert read_final(new_run.path)["candidates"]["averaged"]["steps"] == [8, 12]
    assert [record["step"] for record in ended.finals] == [12, 12]
    ended.deliver(loss=1.0)
    assert len(ended.finals) == 2


@pytest.mark.slow
def test_another_number_of_averaged_checkpoints_is_delivered(new_run, capsys):
    ended = Ended(new_run)
    ended.deliver(loss=1.0)
    new_run.config = replace(new_run.config, training=replace(new_run.config.training, average_last=1))
    for _ in range(2):
        ended.deliver(loss=1.0)
    assert [record["candidates"]["averaged"]["steps"] for record in ended.finals] == [[8, 12], [12]]
    assert (ended.finals[-1]["average_last"], len(ended.measured)) == (1, 2)
    assert_weights(new_run, values(new_run.load_model(checkpoint="averaged")))
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_a_finished_run_of_before_the_number_was_recorded_says_how_to_average(new_run):
    ended = Ended(new_run)
    ended.deliver()
    (record,) = ended.finals
    del record["average_last"]
    new_run.rewind_history(-1)
    new_run.append_history(record)
    new_run.config = replace(new_run.config, training=replace(new_run.config.training, average_last=1))
    ended.deliver()
    assert ended.finals == [record]
    with pytest.raises(ValueError, match=r"no 'averaged' weights.*Make it with .* average .* --last 1$"):
        new_run.load_model(checkpoint="averaged")
    new_run.average(last=1)
    assert_weights(new_run, weights_of_step(new_run, 8))  # the final weights stay
    new_run.load_model(checkpoint="averaged")


@pytest.mark.slow
def test_a_run_of_an_earlier_version_keeps_its_average(run):
    """It has no record of a delivery, and was tested."""
    assert read_final(run.path) is None
    run.append_history({"kind": "test", "split": "test", "step": 12})
    training = Training(run)
    training.draw(12)
    write_final_weights(run, training.model, ALONE, lambda: pytest.fail("measured"))
    assert read_final(run.path) is None
    average = values(run.load_model(checkpoint="averaged"))
    assert_weights(run, average)


@pytest.mark.slow
def test_workers_measure_together_and_the_chief_alone_writes(new_run):
    ended = Ended(new_run)
    chief, told = [], []
    ended.deliver(devices=types.SimpleNamespace(gather=lambda number: chief.append(number) or [number]))
    other = RunFolder(new_run.path, writes=False)
    other.config, before = new_run.config, {path: path.stat().st_mtime_ns for path in new_run.path.rglob("*")}

    def gather(number):
        told.append(number)
        return [chief[len(told) - 1], number]

    ended.run = other
    ended.deliver(devices=types.SimpleNamespace(gather=gather))
    assert (len(told), len(ended.measured)) == (len(chief), 2)
    assert {path: path.stat().st_mtime_ns for path in new_run.path.rglob("*")} == before


@pytest.mark.slow
def test_damaged_weights_are_refused(new_run):
    Ended(new_run).deliver()
    flip_a_byte(new_run.path / "final" / "weights.data-00000-of-00001")
    with pytest.raises(ValueError, match="final/weights: damaged"):
        new_run.load_model()


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("harm", [flip_a_byte, lambda path: path.with_name("weights.index").unlink()])
def test_what_is_delivered_is_made_anew_where_it_is_damaged_or_missing(new_run, harm, capsys):
    ended = Ended(new_run)
    ended.deliver(loss=1.0)
    expected = values(new_run.load_model())
    new_run.write_translations("test", 12, ["a"], {"bleu": 1.0})
    assert new_run.read_translations("test", 12) == ["a"]
    harm(new_run.path / "final" / "weights.data-00000-of-00001")
    ended.deliver(loss=1.0)
    assert re.search(r"final/weights: (damaged.*|missing)\. .* are computed again\n", capsys.readouterr().err)
    assert_weights(new_run, expected)
    assert new_run.read_translations("test", 12) is None  # they may be of other weights
    assert len(ended.finals) == 2


@pytest.mark.slow
def test_damaged_best_weights_give_way_to_the_next(new_run, capsys):
    ended = Ended(new_run)
    flip_a_byte(data_of(new_run, 8, "best"))
    ended.deliver()
    assert "best/step-8: damaged" in capsys.readouterr().err
    assert list(ended.finals[0]["candidates"]) == ["last", "averaged"]
    assert_weights(new_run, weights_of_step(new_run, 12))


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("weights", "file", "remedy"),
    [
        (
            "final",
            "final/weights",
            "Run this run's keras-transformer train command again to write it; or .*--checkpoint av",
        ),
        (
            "last-2",
            "averaged/last-2",
            r"keras-transformer average '.*' --last 2 makes it again",
        ),
        (
            "last",
            "checkpoints/step-12",
            r"Choose others: --checkpoint averaged or best or last-2 or step-4 or",
        ),
    ],
)
@pytest.mark.parametrize("ending", ["index", "data-00000-of-00001"])
def test_a_refusal_of_damaged_weights_names_a_remedy(new_run, weights, file, remedy, ending):
    Ended(new_run, average_last=2).deliver()
    new_run.path = new_run.path.rename(new_run.path.with_name("run [1]"))
    flip_a_byte(new_run.path / f"{file}.{ending}")
    with pytest.raises(ValueError, match=rf"{file}: damaged.*\. {remedy}") as caught:
        RunFolder(new_run.path).load_model(checkpoint=weights)
    assert "newer version" not in str(caught.value)


def test_what_was_not_validated_comes_last():
    one, two = (Candidate(name, [3], {}, None) for name in ("averaged", "last"))
    three = Candidate("best", [2], {"loss": 7.0}, None)
    assert ranked([one, two, three], "loss") == [three, one, two]
    assert ranked([one, two], "loss") == [one, two]
    worse, better = (
        Candidate(name, [3], {"bleu": 0.0, "loss": loss}, None)
        for name, loss in (("averaged", 5), ("last", 4))
    )
    assert ranked([worse, better], "bleu") == [better, worse]
    assert str(one) == "mean of 1 checkpoint (step 3): not validated"
