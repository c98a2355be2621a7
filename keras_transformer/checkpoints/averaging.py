"""Checkpoint averaging (section 6.1), and the weights with the best validations."""

import math
from typing import NamedTuple

import numpy as np

from keras_transformer.checkpoints import tensor_files
from keras_transformer.config.training import SEARCH_METRICS


class AverageChoice(NamedTuple):
    """The checkpoints of an average, each given by its step, and those to warn about.

    Attributes:
        steps: list of int, the checkpoints to average, ascending.
        early: list of int, those of `steps` from before the end of the warm-up.
        forced: list of int, checkpoints as new as `steps` that were not saved on schedule, but by a
            signal or at the end of training.
        missing: list of int, checkpoints of the schedule that should be among `steps` but are missing.
    """

    steps: list
    early: list
    forced: list
    missing: list


def choose_checkpoints(saved, on_schedule, last, training, *, listed=(), warmed_up=False, forced=False):
    """Chooses the n newest checkpoints for an average; never the one from before the first step.

    Args:
        saved: steps of all checkpoints, ascending.
        on_schedule: steps of those saved on schedule.
        last: n; fewer are chosen if fewer exist.
        training: `TrainingConfig`.
        listed: steps in the list file of the checkpoints.
        warmed_up: whether to leave out checkpoints from before the end of the warm-up.
        forced: whether to include checkpoints that were not saved on schedule.

    Returns:
        `AverageChoice`.
    """
    begin = training.warmup_steps if warmed_up else 1
    regular = set(on_schedule)
    steps = [step for step in saved if step >= begin and (forced or step in regular)][-last:]
    every = training.checkpoint_every_steps
    # A schedule by steps saves at all multiples of `checkpoint_every_steps`.
    expected = set(range(-(-steps[0] // every) * every, steps[-1], every)) if steps and every else set()
    expected.update(step for step in listed if steps and step > steps[0])
    return AverageChoice(
        steps,
        [step for step in steps if step < training.warmup_steps],
        [step for step in saved if step and step not in regular and step >= (steps or [begin])[0]],
        sorted(expected.difference(saved)),
    )


def steps_text(steps):
    """Formats steps as `"250, 750, 1000"`, or `"250 to 2500, every 250"` if evenly spaced."""
    gaps = {after - before for before, after in zip(steps, steps[1:], strict=False)}
    if len(steps) > 3 and len(gaps) == 1:
        return f"{steps[0]} to {steps[-1]}, every {gaps.pop()}"
    return ", ".join(map(str, steps))


def missing_note(folder, chosen):
    """Returns a one-line warning about missing checkpoints of an average, or `None`."""
    if not chosen.missing:
        return None
    names = ", ".join(f"step-{step}" for step in chosen.missing)
    return f"{folder}: {names} missing or damaged; the average is over steps {steps_text(chosen.steps)}"


def write_average(prefixes, target, *, skip_damaged=False):
    """Averages the weights of checkpoints and writes the result as a checkpoint of weights only.

    Computes in float64 and reads one checkpoint at a time; needs no model.

    Args:
        prefixes: path prefixes of checkpoints of one model.
        target: path prefix of the average; replaced atomically if it exists.
        skip_damaged: whether to skip damaged checkpoints, unless all are damaged.

    Returns:
        list of the prefixes averaged.

    Raises:
        ValueError: a checkpoint is damaged, or belongs to another model than the first one.
        StorageError: the disk is full or not writable.
    """
    import tensorflow as tf  # imported here: choosing checkpoints works without it

    total, used = {}, []
    for prefix in prefixes:
        try:
            weights = tensor_files.read(prefix, "weights")
        except tensor_files.DamagedError as error:
            if skip_damaged and (used or prefix != prefixes[-1]):
                continue
            raise tensor_files.DamagedError(
                f"{error}. Restore it from a copy, or average fewer checkpoints"
            ) from error
        specs = {name: (value.shape, value.dtype) for name, value in weights.items()}
        if not used:
            first, total = specs, {name: np.zeros(shape, np.float64) for name, (shape, _) in specs.items()}
        used.append(prefix)
        if specs != first:
            raise ValueError(f"{prefix}: not the same model as {used[0]}")
        for name, value in weights.items():
            total[name] += value
    means = {name: (value / len(used)).astype(first[name][1]) for name, value in total.items()}
    weights = {name: tf.Variable(value, trainable=False) for name, value in means.items()}
    tensor_files.write({"weights": weights}, target)
    return used


class Averages:
    """The averaged weights of a run, in its folder `averaged`.

    Args:
        run: `RunFolder`.
    """

    def __init__(self, run):
        self._run = run

    def choose(self, last, **options):
        """Returns the `AverageChoice` of the newest checkpoints.

        Args:
            last: number of checkpoints.
            **options: `warmed_up` and `forced` of `choose_checkpoints`.
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
        """Returns the steps of the best validations whose weights were saved, the best first."""
        saved = tensor_files.steps_in(self._run.path / "best")
        ranked = ranked_steps(self._run.read_history(), self._run.config.training.best_metric)
        return [step for step in ranked if step in saved]

    def make_at_end(self):
        """Writes the average made at the end of training: `last-N` with N of `training.average_last`.

        It covers the newest checkpoints that were saved on schedule after the warm-up. Damaged ones are
        left out. If there are no such checkpoints, an earlier average of this name is removed.

        Returns:
            `AverageChoice`; its `missing` includes damaged checkpoints.

        Raises:
            ValueError: all checkpoints are damaged.
            StorageError: the disk is full or not writable.
        """
        last = self._run.config.training.average_last
        chosen, target = self.choose(last, warmed_up=True), self._run.path / "averaged" / f"last-{last}"
        if not chosen.steps:
            with tensor_files.storage_errors(target):
                tensor_files.delete(target)
            return chosen
        prefixes = {step: self._run.path / "checkpoints" / f"step-{step}" for step in chosen.steps}
        used = write_average(list(prefixes.values()), target, skip_damaged=True)
        damaged = [step for step, prefix in prefixes.items() if prefix not in used]
        return chosen._replace(
            steps=[step for step in chosen.steps if step not in damaged],
            missing=sorted(chosen.missing + damaged),
        )

    def make(self, *, last=None, best=None, forced=False):
        """Averages the newest checkpoints as `last-N`, or the best ones as `best-K`.

        The checkpoint from before the first step is never included.

        Args:
            last: N, the number of newest checkpoints.
            best: K, the number of best validations. Exactly one of `last` and `best` is given.
            forced: whether to include checkpoints that were not saved on schedule.

        Returns:
            list of int, the steps averaged, ascending; fewer than N or K if fewer exist.

        Raises:
            ValueError: there is nothing to average, or a checkpoint is damaged.
            StorageError: the disk is full or not writable.
        """
        folder, steps = self.steps(last=last, best=best, forced=forced)
        if self._run.writes:
            name = f"best-{best}" if last is None else f"last-{last}"
            write_average([folder / f"step-{step}" for step in steps], self._run.path / "averaged" / name)
        return steps

    def steps(self, *, last=None, best=None, forced=False):
        """Returns (folder, steps) of the checkpoints that `make` averages with the same arguments.

        Raises:
            ValueError: there is nothing to average.
        """
        if (last is None) == (best is None):
            raise ValueError(f"Either `last` or `best` must be given. Received: last={last}, best={best}")
        name, number = ("best", best) if last is None else ("last", last)
        if number < 1:
            raise ValueError(f"`{name}` must be at least 1. Received: {number}")
        folder = self._run.path / ("checkpoints" if best is None else "best")
        if best is None:
            steps = [step for step in tensor_files.steps_in(folder) if step][-last:]
            some = bool(steps)
            if steps and not forced:  # only TensorFlow can read which ones were saved on schedule
                steps = self.choose(last).steps
            if some and not steps:
                raise ValueError(
                    f"{folder}: no checkpoint was saved on schedule. --off-schedule includes the others"
                )
        else:
            steps = sorted(self.best_steps()[:best])
        if not steps:
            kept = "training.validate_every_steps" if last is None else "training.checkpoint_every_steps"
            raise ValueError(f"{folder}: no checkpoint to average. A run keeps them with {kept}")
        return folder, steps


def ranked_steps(history, by):
    """Returns the steps of all validations, the best first; ties in order of the steps.

    Args:
        history: list of records, as `RunFolder.read_history` returns.
        by: metric, `"loss"` (lower is better) or one of `SEARCH_METRICS` (higher is better).
    """
    sign = -1 if by in SEARCH_METRICS else 1
    # If a step was validated twice, the later record counts.
    values = {
        record["step"]: sign * record[by]
        for record in history
        if record.get("kind") == "validation" and by in record
    }
    return sorted((s for s, v in values.items() if math.isfinite(v)), key=lambda s: (values[s], s))


def keep_best(run, model):
    """Saves the current weights in `best/` if their validation is among the n best; deletes the others.

    Call it once the history has the validation of the current step.

    Args:
        run: `RunFolder` with the settings `keep_best` (n) and `best_metric`.
        model: a compiled `Transformer`.

    Raises:
        StorageError: the disk is full or not writable.
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
