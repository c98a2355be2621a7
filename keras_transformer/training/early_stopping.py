"""When training has ceased to make the model better: a pure function of the history."""

import math


def early_stopping_reason(records, training):
    """Says why the run ends, if it does.

    Args:
        records: list of dict, as `RunFolder.read_history` returns.
        training: `TrainingConfig`, of which `early_stopping` is the patience n and
            `best_by` the measure: a lower loss or a higher BLEU.

    Returns:
        str, where the last n validations were no better than the best before them, which
        it names; else `None`.
    """
    name = training.best_by
    validations = [record for record in records if record["kind"] == "validation"]
    if not training.early_stopping or not validations:
        return None
    ranks = [_rank(record[name], name) for record in validations]
    best = ranks.index(min(ranks))  # the first of equals
    waited = len(ranks) - 1 - best
    if waited < training.early_stopping:
        return None
    value = f"loss {validations[best]['loss']:.3f}"
    if name == "bleu":
        value = f"BLEU {validations[best]['bleu']:.2f}"
    times = "validation was" if waited == 1 else f"{waited} validations were"
    return f"the last {times} no better than step {validations[best]['step']:,} ({value})"


def _rank(value, name):
    """A number that is smaller for a better validation; one that is no number is the worst."""
    if not math.isfinite(value):
        return math.inf
    return value if name == "loss" else -value
