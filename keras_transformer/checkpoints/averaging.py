"""Averages of a run's weights (section 6.1), and the weights of its best validations."""

import math
from typing import NamedTuple

import numpy as np

from keras_transformer.checkpoints import tensor_files


class AverageChoice(NamedTuple):
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


def choose_checkpoints(there, on_schedule, last, training, *, listed=(), warmed_up=False, forced=False):
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
        `AverageChoice`.
    """
    begin = training.warmup_steps if warmed_up else 1
    regular = set(on_schedule)
    steps = [step for step in there if step >= begin and (forced or step in regular)][-last:]
    every = training.checkpoint_every_steps
    # The states of a schedule by steps are evenly spaced.
    expected = set(range(-(-steps[0] // every) * every, steps[-1], every)) if steps and every else set()
    expected.update(step for step in listed if steps and step > steps[0])
    return AverageChoice(
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


def write_average(prefixes, target, *, skip_damaged=False):
    """Writes the mean of checkpoints' weights as another one, of weights only.

    Averages in float64, one checkpoint at a time, and without a model.

    Args:
        prefixes: paths of checkpoints of one model.
        target: path of the average; what it held before is replaced when all is written.
        skip_damaged: leaves damaged ones out, unless all are.

    Returns:
        list of the prefixes averaged.

    Raises:
        ValueError: one of them is damaged, or of another model than the first.
        StorageError: there is no room.
    """
    import tensorflow as tf  # the choice of states above needs none

    total, used = {}, []
    for prefix in prefixes:
        try:
            weights = tensor_files.read(prefix, "weights")
        except tensor_files.DamagedError as error:
            if skip_damaged and (used or prefix != prefixes[-1]):
                continue
            raise tensor_files.DamagedError(f"{error}. Put it back from a copy, or average fewer") from error
        found = {name: (value.shape, value.dtype) for name, value in weights.items()}
        if not used:
            first, total = found, {name: np.zeros(shape, np.float64) for name, (shape, _) in found.items()}
        used.append(prefix)
        if found != first:
            raise ValueError(f"{prefix}: of another model than {used[0]}")
        for name, value in weights.items():
            total[name] += value
    means = {name: (value / len(used)).astype(first[name][1]) for name, value in total.items()}
    weights = {name: tf.Variable(value, trainable=False) for name, value in means.items()}
    tensor_files.write({"weights": weights}, target)
    return used


class Averages:
    """The averages of one run, in its folder `averaged`.

    Args:
        run: `RunFolder`.
    """

    def __init__(self, run):
        self._run = run

    def choose(self, last, **options):
        """Returns the `AverageChoice` states of an average of the newest ones.

        Args:
            last: number of newest checkpoints.
            **options: `warmed_up` and `forced`, as `averaging.choose_checkpoints` takes them.
        """
        from keras_transformer.checkpoints.training_state import listed_steps, scheduled_steps

        folder, training = self._run.path / "checkpoints", self._run.config.training
        return choose_checkpoints(
            tensor_files.steps_in(folder),
            scheduled_steps(folder, training.checkpoint_every_steps),
            last,
            training,
            listed=listed_steps(folder) or (),
            **options,
        )

    def best_steps(self):
        """Returns the steps of validations whose weights are kept, the best first."""
        there = tensor_files.steps_in(self._run.path / "best")
        ranked = ranked_steps(self._run.read_history(), self._run.config.training.best_metric)
        return [step for step in ranked if step in there]

    def write_final(self):
        """Writes the mean that training makes at its end, as `last-N` of `training.average_last`.

        It is of states that were saved on schedule, at the end of the warm-up or later. Where
        there is none, an earlier mean of this name is removed. Damaged states are left out.

        Returns:
            `AverageChoice`; its `missing` names damaged states, too.

        Raises:
            ValueError: all of them are damaged.
            StorageError: there is no room.
        """
        last = self._run.config.training.average_last
        chosen, target = self.choose(last, warmed_up=True), self._run.path / "averaged" / f"last-{last}"
        if not chosen.steps:
            with tensor_files.storage_errors(target):
                tensor_files.delete(target)
            return chosen
        prefixes = {step: self._run.path / "checkpoints" / f"step-{step}" for step in chosen.steps}
        used = write_average(list(prefixes.values()), target, skip_damaged=True)
        lost = [step for step, prefix in prefixes.items() if prefix not in used]
        return chosen._replace(
            steps=[step for step in chosen.steps if step not in lost], missing=sorted(chosen.missing + lost)
        )

    def make(self, *, last=None, best=None, forced=False):
        """Writes the mean of several checkpoints' weights, as `last-N` or `best-K`.

        The state of before the first step is never part of it.

        Args:
            last: number of newest checkpoints.
            best: number of best validations; one of both is given.
            forced: takes also those of the newest checkpoints that were not saved on schedule.

        Returns:
            list of int, the steps averaged, ascending; fewer than asked for where there are
            not so many.

        Raises:
            ValueError: there is nothing to average, or a checkpoint is damaged.
            StorageError: there is no room.
        """
        folder, steps = self.steps(last=last, best=best, forced=forced)
        if self._run.writes:
            name = f"best-{best}" if last is None else f"last-{last}"
            write_average([folder / f"step-{step}" for step in steps], self._run.path / "averaged" / name)
        return steps

    def steps(self, *, last=None, best=None, forced=False):
        """Returns (folder, steps) of the checkpoints that `make` takes; the arguments are the same.

        Raises:
            ValueError: there is nothing to average.
        """
        if (last is None) == (best is None) or (best if last is None else last) < 1:
            raise ValueError(
                f"`last` or `best` must be given, at least 1. Received: last={last}, best={best}"
            )
        folder = self._run.path / ("checkpoints" if best is None else "best")
        if best is None:
            steps = [step for step in tensor_files.steps_in(folder) if step][-last:]
            some = bool(steps)
            if steps and not forced:  # only TensorFlow can read which were
                steps = self.choose(last).steps
            if some and not steps:
                raise ValueError(
                    f"{folder}: no checkpoint to average was saved on schedule. "
                    "--off-schedule averages others"
                )
        else:
            steps = sorted(self.best_steps()[:best])
        if not steps:
            raise ValueError(f"{folder}: no checkpoint to average")
        return folder, steps


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


def keep_best(run, model):
    """Keeps the present weights in `best/` if the history has them among the best; drops all others.

    Called when the validation of the present step is in the history.

    Args:
        run: `RunFolder`; its history says which validations are best, its settings
            (`keep_best`, `best_metric`) how many are kept and by what.
        model: a compiled `Transformer`.

    Raises:
        StorageError: there is no room.
    """
    if not run.writes:
        return
    training, folder = run.config.training, run.path / "best"
    best = ranked_steps(run.read_history(), training.best_metric)[: training.keep_best]
    step = int(model.optimizer.iterations.numpy())
    if step in best:
        tensor_files.write({"weights": tensor_files.by_path(model.weights)}, folder / f"step-{step}")
    with tensor_files.storage_errors(folder):
        for old in set(tensor_files.steps_in(folder)) - set(best):
            tensor_files.delete(folder / f"step-{old}")
