"""The mean of the weights of several checkpoints (section 6.1), and the weights of the best validations."""

import math
from typing import NamedTuple

import numpy as np

from keras_transformer.checkpoints import tensor_files


class Chosen(NamedTuple):
    """Which states an average is made of, and what is to be said of them.

    Attributes:
        steps: list of int, the states to average, ascending.
        early: list of int, those of them of before the end of the warm-up.
        forced: list of int, states as new as these that were not saved on schedule: by a signal,
            or because the run ended.
        missing: list of int, states that should be among them and are not there.
    """

    steps: list
    early: list
    forced: list
    missing: list


def choose_states(there, on_schedule, last, training, *, listed=(), warmed_up=False, forced=False):
    """Chooses the newest states for an average. The state of before the first step is none.

    Args:
        there: steps of all states, ascending.
        on_schedule: those of them that were saved on schedule.
        last: number of states to average; fewer are chosen where there are not so many.
        training: `TrainingConfig`.
        listed: steps that the list of states names.
        warmed_up: leaves out states of before the end of the warm-up.
        forced: takes those that were not saved on schedule, too.

    Returns:
        `Chosen`.
    """
    begin = training.warmup_steps if warmed_up else 1
    regular = set(on_schedule)
    steps = [step for step in there if step >= begin and (forced or step in regular)][-last:]
    every = training.checkpoint_every_steps
    # The states of a schedule by steps are evenly spaced.
    expected = set(range(-(-steps[0] // every) * every, steps[-1], every)) if steps and every else set()
    expected.update(step for step in listed if steps and step > steps[0])
    return Chosen(
        steps,
        [step for step in steps if step < training.warmup_steps],
        [step for step in there if step and step not in regular and step >= (steps or [begin])[0]],
        sorted(expected.difference(there)),
    )


def steps_text(steps):
    """Returns steps as text: `"250, 750, 1000"`, or `"250 to 2500, every 250"`."""
    gaps = {after - before for before, after in zip(steps, steps[1:], strict=False)}
    if len(steps) > 3 and len(gaps) == 1:
        return f"{steps[0]} to {steps[-1]}, every {gaps.pop()}"
    return ", ".join(map(str, steps))


def missing_note(folder, chosen):
    """Returns one line about states that are missing among those of an average, or `None`."""
    if not chosen.missing:
        return None
    names = ", ".join(f"step-{step}" for step in chosen.missing)
    return f"{folder}: {names} missing or damaged; the mean is of the steps {steps_text(chosen.steps)}"


def mean_weights(prefixes, *, damaged=None):
    """Averages in float64, one weight at a time, and without a model.

    Args:
        prefixes: paths of checkpoints of one model.
        damaged: a list that takes those that are damaged, which are left out then; one at
            least must be whole.

    Returns:
        {name: NumPy array}, in the dtype of the weights.

    Raises:
        ValueError: one of them is damaged, or of another model than the first.
    """
    total, used = {}, []
    for number, prefix in enumerate(prefixes):
        try:
            weights = tensor_files.read(prefix, "weights")
        except tensor_files.DamagedError:
            if damaged is None or (number + 1 == len(prefixes) and not used):
                raise
            damaged.append(prefix)
            continue
        shapes = {name: value.shape for name, value in weights.items()}
        if not used:
            first, dtypes = shapes, {name: value.dtype for name, value in weights.items()}
            total = {name: np.zeros(shape, np.float64) for name, shape in shapes.items()}
        used.append(prefix)
        if shapes != first:
            raise ValueError(f"{prefix}: of another model than {used[0]}")
        for name, value in weights.items():
            total[name] += value
    return {name: (value / len(used)).astype(dtypes[name]) for name, value in total.items()}


def write_average(prefixes, target, *, damaged=None):
    """Writes the mean of checkpoints' weights as another one, of weights only.

    Args:
        prefixes: paths of checkpoints of one model.
        target: path of the average; what it held before is replaced when all is written.
        damaged: as `mean_weights` takes it.

    Raises:
        ValueError: as `mean_weights`.
        StorageError: there is no room.
    """
    import tensorflow as tf  # the choice of states above needs none

    mean = mean_weights(prefixes, damaged=damaged)
    weights = {name: tf.Variable(value, trainable=False) for name, value in mean.items()}
    tensor_files.write({"weights": weights}, target)


def ranked_steps(history, by):
    """Returns the steps of all validations, the best first; of equal ones the earlier.

    Args:
        history: list of records, as `RunFolder.read_history` returns.
        by: `"loss"` (lower is better) or `"bleu"` (higher).
    """
    sign = {"loss": 1, "bleu": -1}[by]
    # A step that was validated twice counts as it did the last time.
    values = {
        record["step"]: sign * record[by]
        for record in history
        if record.get("kind") == "validation" and by in record
    }
    return sorted((s for s, v in values.items() if math.isfinite(v)), key=lambda s: (values[s], s))


class BestWeights:
    """Keeps the weights of the best validations of a run.

    Args:
        run: `RunFolder`; its history says which validations are best, its settings
            (`keep_best`, `best_by`) how many are kept and by what.
        model: a compiled `Transformer`.
    """

    def __init__(self, run, model):
        self.run = run
        self.model = model
        self.folder = run.path / "best"

    def update(self):
        """Keeps the present weights if the history has them among the best; drops all others.

        Called when the validation of the present step is in the history.

        Raises:
            StorageError: there is no room.
        """
        training = self.run.config.training
        if not self.run.writes:
            return
        best = ranked_steps(self.run.read_history(), training.best_by)[: training.keep_best]
        step = int(self.model.optimizer.iterations.numpy())
        if step in best:
            weights = tensor_files.by_path(self.model.weights)
            tensor_files.write({"weights": weights}, self.folder / f"step-{step}")
        with tensor_files.storing(self.folder):
            for old in set(tensor_files.steps_in(self.folder)) - set(best):
                tensor_files.delete(self.folder / f"step-{old}")
