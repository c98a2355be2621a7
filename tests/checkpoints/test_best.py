"""The weights of the best validations: as many as asked, of the history there is."""

import math

import numpy as np
import pytest
from tiny_runs import Training, steps_on_disk, weights_of_step

from keras_transformer.checkpoints.averaging import ranked_steps
from keras_transformer.config.settings import replace


class Validated(Training):
    """Validates what it drew."""

    def __init__(self, run, **settings):
        run.config = replace(run.config, training=replace(run.config.training, **settings))
        super().__init__(run)
        self.run = run

    def validate(self, step, **record):
        self.draw(step)
        self.run.append_history({"kind": "validation", "step": step, **record})
        self.run.keep_best(self.model)
        return steps_on_disk(self.run, "best")


def test_the_lowest_losses_are_kept(new_run):
    training = Validated(new_run, keep_best=2)
    found = [training.validate(step, loss=loss) for step, loss in enumerate([3.0, 4.0, 2.0, 5.0, 1.0], 1)]
    assert found == [[1], [1, 2], [1, 3], [1, 3], [3, 5]]


def test_the_highest_bleu_is_kept_where_that_counts(new_run):
    training = Validated(new_run, keep_best=1, best_metric="bleu")
    found = [training.validate(s, loss=1.0, bleu=b) for s, b in enumerate([0.0, 2.0, 1.0, 2.0], 1)]
    assert found == [[1], [2], [2], [2]]  # of equals, the earlier


def test_none_are_kept_where_none_are_wanted(new_run):
    training = Validated(new_run, keep_best=0)
    assert training.validate(1, loss=1.0) == []
    assert not (new_run.path / "best").exists()


@pytest.mark.slow
def test_they_are_the_weights_of_their_step(new_run):
    training = Validated(new_run, keep_best=2)
    for step, loss in ((1, 2.0), (2, 3.0), (3, 1.0)):
        training.validate(step, loss=loss)
    for step in (1, 3):
        training.draw(step)
        found = weights_of_step(new_run, step, folder="best")
        for weight in training.model.weights:
            np.testing.assert_array_equal(found[weight.path], weight.numpy())


def test_what_a_rewound_history_does_not_know_goes(new_run):
    training = Validated(new_run, keep_best=2)
    for step in (2, 4, 6):
        training.validate(step, loss=10.0 - step)
    assert steps_on_disk(new_run, "best") == [4, 6]
    new_run.rewind_history(5)
    # Step 2 is among the best again, but its weights are gone.
    assert training.validate(7, loss=9.0) == [4]
    assert training.validate(8, loss=1.0) == [4, 8]


def test_a_loss_that_is_not_a_number_is_never_the_best(new_run):
    training = Validated(new_run, keep_best=2)
    assert training.validate(1, loss=math.nan) == []
    assert training.validate(2, loss=2.0) == [2]
    assert training.validate(3, loss=math.inf) == [2]


@pytest.mark.parametrize(
    ("by", "expected"),
    [("loss", [20, 40, 10]), ("bleu", [10, 20])],
)
def test_steps_are_ranked_by_their_last_validation(by, expected):
    history = [
        {"kind": "validation", "step": 10, "loss": 1.0, "bleu": 5.0},
        {"kind": "train", "step": 15, "loss": 0.1},
        {"kind": "validation", "step": 20, "loss": 2.0, "bleu": 4.0},
        {"kind": "validation", "step": 10, "loss": 3.0, "bleu": 5.5},
        {"kind": "validation", "step": 40, "loss": 2.0},
        {"kind": "test", "split": "test", "bleu": 99.0},
    ]
    assert ranked_steps(history, by) == expected
