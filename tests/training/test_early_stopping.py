"""Early stopping against tables made by hand."""

import pytest

from keras_transformer.config.settings import TrainingConfig
from keras_transformer.training.validation import early_stopping_reason

NAN = float("nan")


def history(name, values):
    """Validations at steps 100, 200, ..., between records of training."""
    records = []
    for number, value in enumerate(values, start=1):
        other = {"loss": "bleu", "bleu": "loss"}[name]
        records.append({"kind": "train", "step": 100 * number, "loss": 0.0})
        records.append({"kind": "validation", "step": 100 * number, name: value, other: float(number % 2)})
    return records


@pytest.mark.parametrize(
    ("by", "patience", "values", "stops"),
    [
        ("loss", 2, [], False),
        ("loss", 1, [3.0], False),
        ("loss", 1, [3.0, 2.0], False),
        ("loss", 1, [2.0, 3.0], True),
        ("loss", 1, [2.0, 2.0], True),  # as good is no better
        ("loss", 2, [2.0, 3.0], False),
        ("loss", 2, [2.0, 3.0, 2.5], True),  # better than the last, not than the best
        ("loss", 2, [2.0, 3.0, 1.9], False),
        ("loss", 2, [5.0, 2.0, 3.0, 1.9, 2.0], False),
        ("loss", 2, [5.0, 2.0, 3.0, 1.9, 2.0, 1.9], True),
        ("loss", 2, [2.0, NAN, 1.0], False),
        ("loss", 2, [2.0, NAN, NAN], True),
        ("loss", 2, [NAN, NAN, 1.0, 2.0], False),
        ("loss", 0, [1.0, 2.0, 3.0, 4.0], False),
        ("bleu", 2, [10.0, 12.0, 11.0, 12.5], False),
        ("bleu", 2, [10.0, 12.0, 11.0, 12.0], True),
        ("bleu", 3, [10.0, 12.0, 11.0, 12.0], False),
        ("bleu", 1, [0.0, 0.0], True),
    ],
)
def test_a_run_stops_after_so_many_validations_that_were_no_better(by, patience, values, stops):
    training = TrainingConfig(best_metric=by, patience=patience)
    reason = early_stopping_reason(history(by, values), training)
    assert (reason is not None) == stops


def test_validations_without_the_metric_do_not_count():
    records = [{"kind": "validation", "step": step, "loss": 1.0} for step in (1, 2, 3)]
    training = TrainingConfig(best_metric="bleu", patience=2)
    assert early_stopping_reason(records, training) is None
    records += [{"kind": "validation", "step": step, "loss": 1.0, "bleu": 9.0 - step} for step in (4, 5, 6)]
    assert "step 4 (BLEU 5.00)" in early_stopping_reason(records, training)
    assert early_stopping_reason(records[:-1], training) is None


@pytest.mark.parametrize(
    ("by", "patience", "values", "reason"),
    [
        ("loss", 1, [2.0, 3.0], "the last validation was not better than step 100 (loss 2.000)"),
        (
            "loss",
            2,
            [3.0, 2.5, 2.5, 4.0],
            "the last 2 validations were not better than step 200 (loss 2.500)",
        ),
        (
            "bleu",
            3,
            [0.0] * 9 + [31.2] + [1.0] * 3,
            "the last 3 validations were not better than step 1,000 (BLEU 31.20)",
        ),
    ],
)
def test_the_reason_names_the_best_step_and_its_value(by, patience, values, reason):
    training = TrainingConfig(best_metric=by, patience=patience)
    assert early_stopping_reason(history(by, values), training) == reason
