"""Weights of a run by name, and the choice of its final weights among averaged, last and best."""

import json
import logging
import math
import shlex
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.checkpoints import tensor_files
from keras_transformer.checkpoints.averaging import missing_note, ranked_steps, steps_text
from keras_transformer.config import programs
from keras_transformer.config.training import SEARCH_METRICS

logger = logging.getLogger(__name__)

FINAL = "final/weights"  # path within the run folder
WEIGHT_DTYPES = ("float32", "float16")


class NamedWeights:
    """Finds and loads the weights of a run by name; `RunFolder.load_weights` lists the names.

    Args:
        run: `RunFolder`.
    """

    def __init__(self, run):
        self._run = run

    def names(self, kinds):
        """Returns the available names: those of `kinds`, a tuple of str, and of all averages and steps."""
        averages = sorted(path.stem for path in (self._run.path / "averaged").glob("*-*.index"))
        steps = {*self._steps_in("checkpoints"), *self._steps_in("best")}
        names = [
            *kinds,
            *(name for name in averages if name.startswith(("last-", "best-"))),
            *(f"step-{step}" for step in sorted(steps)),
        ]
        return [name for name in names if self._locate(name)]

    @property
    def _average_last(self):
        return self._run.config.training.average_last

    def _steps_in(self, folder):
        return tensor_files.steps_in(self._run.path / folder)

    def find(self, name):
        """Returns (path prefix of the checkpoint, part of its tree) of the weights of this name.

        Raises:
            ValueError: no weights have this name; the message lists the available names.
        """
        place = self._locate(name)
        if place is None:
            # Looking for a moving average imports TensorFlow, which takes seconds.
            averages = ("ema",) if self._run.config.training.ema_decay else ()
            names = self.names(("final", "averaged", "best", "last", *averages))
            available = ", ".join(f"`{known}`" for known in names) or "no checkpoint"
            hint = self._how_to_make(name)
            raise ValueError(f"{self._run.path}: no {name!r} weights. Available: {available}{hint}")
        return place

    def assign(self, model, prefix, part):
        """Loads the weights at (prefix, part), as `find` returns them, into a `Transformer`.

        Raises:
            ValueError: they are damaged or of another model; the message has a remedy.
        """
        try:
            values = tensor_files.read(prefix, "weights")
            if part != "weights":  # the moving average has only the trainable weights
                values.update(tensor_files.read(prefix, part))
        except tensor_files.DamagedError as error:
            raise tensor_files.DamagedError(f"{error}. {self._remedy(prefix)}") from error
        tensor_files.assign(tensor_files.by_path(model.weights), values, prefix)

    def _remedy(self, prefix):
        """Returns a sentence for the error message: how to replace damaged weights."""
        folder, (kind, _, number) = prefix.parent.name, prefix.name.partition("-")
        if folder == "averaged" and kind in ("last", "best"):
            return f"{_average_command(self._run.path, kind, number)} makes it again"
        names = self.names(("averaged", "best", "last"))
        others = [name for name in names if self._locate(name)[0] != prefix]
        named = f"choose others: --checkpoint {' or '.join(others)}" if others else "restore it from a copy"
        if folder == "final":
            return f"Run this run's {programs.name('train')} command again to write it; or {named}"
        return f"{named[0].upper()}{named[1:]}"

    def _how_to_make(self, name):
        kind, _, number = name.partition("-")
        if name == "averaged" and tensor_files.exists(self._run.path / FINAL):  # it was deleted, or
            # `average_last` has changed in a version that did not make another average then.
            return f". Make it with {_average_command(self._run.path, 'last', self._average_last)}"
        if name in ("final", "averaged"):
            return f"; `{name}` is written at the end of training. Until then, use --checkpoint last"
        if name == "ema":
            return "; a moving average exists only if training.ema_decay is above 0"
        if kind in ("last", "best") and number.isdecimal():
            return f". Make it with {_average_command(self._run.path, kind, number)}"
        return ""

    def _locate(self, name):
        """Returns (path prefix, part of its tree) of the weights of this name, or `None`."""
        kind, _, number = name.partition("-")
        places = []
        if name in ("final", "averaged"):
            # `ckpt-1` is the only average of earlier versions, which also served as the final weights.
            places = [f"averaged/last-{self._average_last}", "averaged/ckpt-1"]
            if name == "final":
                places.insert(0, FINAL)
        elif name in ("last", "ema"):
            places = [f"checkpoints/step-{step}" for step in self._steps_in("checkpoints")[-1:]]
        elif name == "best":
            places = [f"best/step-{step}" for step in self._run.averages.best_steps()[:1]]
        elif number.isdecimal() and kind in ("last", "best"):
            places = [f"averaged/{name}"]
        elif number.isdecimal() and kind == "step":
            places = [f"checkpoints/{name}", f"best/{name}"]
        prefixes = [self._run.path / place for place in places]
        prefix = next((prefix for prefix in prefixes if tensor_files.exists(prefix)), None)
        if prefix is None:
            return None
        if name != "ema":
            return prefix, "weights"
        stored = tensor_files.names_of(prefix)
        return (prefix, "ema") if any(path.startswith("ema/") for path in stored) else None


def _average_command(path, kind, number):
    return f"{programs.command('average')} {shlex.quote(str(path))} --{kind} {number}"


class Candidate(NamedTuple):
    """A candidate for the final weights.

    Attributes:
        name: `"averaged"`, `"last"` or `"best"`.
        steps: list of int, the checkpoints that they are made of.
        metrics: dict, their validation metrics: `loss`, and `bleu` if computed; empty if they were
            not validated.
        prefix: path prefix of their checkpoint.
    """

    name: str
    steps: list
    metrics: dict
    prefix: Any

    def __str__(self):
        number = len(self.steps)
        label = f"{self.name} (step {self.steps[0]})"
        if self.name == "averaged":
            of = f"{number} checkpoints (steps" if number > 1 else "1 checkpoint (step"
            label = f"mean of {of} {steps_text(self.steps)})"
        if not self.metrics:
            return f"{label}: not validated"
        names = [name for name in SEARCH_METRICS if name in self.metrics]
        searched = "".join(f", {SEARCH_METRICS[name]} {self.metrics[name]:.2f}" for name in names)
        return f"{label}: validation loss {self.metrics['loss']:.3f}{searched}"


def ranked(candidates, by):
    """Sorts candidates, the best first; ties by loss, then in the given order.

    Args:
        candidates: list of `Candidate`.
        by: metric, `"loss"` (lower is better) or one of `SEARCH_METRICS` (higher is better).
            Candidates without a finite value come last.
    """

    def rank(candidate, by):
        value = candidate.metrics.get(by, math.nan)
        return (value if by == "loss" else -value) if math.isfinite(value) else math.inf

    # Ties occur early in training, when every BLEU is 0.
    return sorted(candidates, key=lambda candidate: (rank(candidate, by), rank(candidate, "loss")))


def write_final_weights(run, model, devices, measure, **ending):
    """Writes the best of averaged, last and best weights as the final weights of a run.

    Averages the checkpoints and validates the average first. All workers call this at the end of training.
    Final weights already written at this step are kept. They are written again if `training.average_last`
    has changed, or, with a message, if they are damaged or of another step. A candidate whose files are
    damaged is replaced by the next best.

    Args:
        run: `RunFolder`.
        model: the trained `Transformer`; it may have the averaged weights afterwards.
        devices: `Devices`.
        measure: function without arguments that validates the weights of `model`. It returns a dict of
            metrics, or `None` if interrupted by a signal; then no final weights are written.
        **ending: more entries of the record in the history, such as `minutes`.

    Raises:
        ValueError: a checkpoint that it needs is damaged.
        StorageError: the disk is full or not writable.
    """
    step = int(model.optimizer.iterations.numpy())
    if devices.gather(int(run.writes and _has_final_weights(run, step)))[0]:
        return
    chosen = run.averages.make_at_end() if run.writes else None
    if devices.gather(len(chosen.steps) if chosen else 0)[0]:
        # The chief has written the average before `gather` returns.
        run.load_weights(model, "averaged")
        metrics = measure()
        if metrics is None:
            return
    if not run.writes:
        return
    candidates = _last_and_best(run, step)
    if chosen.steps:
        prefix = run.path / "averaged" / f"last-{run.config.training.average_last}"
        candidates.insert(0, Candidate("averaged", chosen.steps, metrics, prefix))
    candidates = ranked(candidates, run.config.training.best_metric)
    while True:
        record = {
            "kind": "final",
            "step": step,
            "average_last": run.config.training.average_last,
            "weights": candidates[0].name,
            "candidates": {
                candidate.name: {"steps": candidate.steps, **candidate.metrics} for candidate in candidates
            },
        }
        try:
            _write(candidates[0].prefix, run.path / FINAL, record)
            break
        except tensor_files.DamagedError as error:
            if len(candidates) == 1:
                raise tensor_files.DamagedError(
                    f"{error}. No other weights are complete: restore the folder `checkpoints` from a copy"
                ) from error
            logger.warning(f"{error}; not considered for the final weights")
            del candidates[0]
    run.append_history(record | ending)  # not with the weights, whose files are the same in every run
    if note := missing_note(run.path / "checkpoints", chosen):
        logger.warning(note)
    logger.info(_summary_line(candidates, chosen, run.config.training))


def write_model_weights(run, model, dtype="float32"):
    """Writes the weights of a model that was trained elsewhere as the final weights of a run.

    Args:
        run: `RunFolder` that has not trained.
        model: `Transformer` of the sizes of the run.
        dtype: `"float32"` or `"float16"`, that of the file. The weights of a loaded model are float32.

    Raises:
        ValueError: another `dtype`, or a weight is above the largest float16.
        StorageError: the disk is full or not writable.
    """
    import tensorflow as tf

    if dtype not in WEIGHT_DTYPES:
        raise ValueError(f"`weight_dtype` must be {' or '.join(WEIGHT_DTYPES)}. Received: {dtype!r}")
    weights = {}
    for name, variable in tensor_files.by_path(model.weights).items():
        value = variable.numpy()
        if np.abs(value).max() > np.finfo(dtype).max:
            raise ValueError(f"{name} has weights above the largest {dtype}, {np.finfo(dtype).max:,.0f}")
        weights[name] = tf.Variable(value.astype(dtype), trainable=False)
    text = tf.Variable(json.dumps({"kind": "final", "weights": "final"}), trainable=False)
    tree = {"weights": weights, "record": {"json": text}}
    tensor_files.write(tree, run.path / FINAL)


def _has_final_weights(run, step):
    records = {record["kind"]: record for record in run.read_history() if record.get("step") == step}
    if "final" not in records:
        # Runs of earlier versions have no such record; they ended with a test of their average.
        return "test" in records
    last = run.config.training.average_last
    if records["final"].get("average_last", last) != last:
        return False
    prefix = run.path / FINAL
    try:
        if tensor_files.exists(prefix):
            tensor_files.verify(prefix)
            # The run may have trained further, and then have been resumed from this step.
            stored = tensor_files.read(prefix, "record")
            found = json.loads(stored["json"].item()).get("step") if stored else None
            if found == step:
                return True
            why = f"{prefix}: from step {found}, not {step}"
        else:
            why = f"{prefix}: missing"
    except tensor_files.DamagedError as error:
        why = str(error)
    logger.warning(f"{why}. The final weights are computed again")
    return False


def _last_and_best(run, step):
    """Returns the candidates `last` and, if an earlier validation was better, `best`."""
    history = run.read_history()
    # If a step was validated twice, the later record counts.
    metrics = {
        record["step"]: {name: record[name] for name in ("loss", *SEARCH_METRICS) if name in record}
        for record in history
        if record["kind"] == "validation"
    }
    candidates = [Candidate("last", [step], metrics.get(step, {}), run.path / "checkpoints" / f"step-{step}")]
    for best in ranked_steps(history, run.config.training.best_metric):
        prefixes = [run.path / folder / f"step-{best}" for folder in ("best", "checkpoints")]
        prefix = next((prefix for prefix in prefixes if tensor_files.exists(prefix)), None)
        if prefix:
            if best != step:
                candidates.append(Candidate("best", [best], metrics[best], prefix))
            break
    return candidates


def _write(prefix, target, record):
    import tensorflow as tf

    values = tensor_files.read(prefix, "weights")
    weights = {name: tf.Variable(value, trainable=False) for name, value in values.items()}
    # In the same file, so that weights and record always belong together.
    text = tf.Variable(json.dumps(record), trainable=False)
    tensor_files.write({"weights": weights, "record": {"json": text}}, target)


def _summary_line(candidates, chosen, training):
    others = "".join(f"; {candidate}" for candidate in candidates[1:])
    line = f"final weights: {candidates[0]}{others}"
    if chosen.steps:
        return line
    every = f"training.checkpoint_every_steps={training.checkpoint_every_steps}"
    if not training.checkpoint_every_steps:
        every = f"training.checkpoint_every_minutes={training.checkpoint_every_minutes:g}"
    return (
        f"{line}. Nothing was averaged: no checkpoint was saved on schedule ({every}) after the warm-up "
        f"(training.warmup_steps={training.warmup_steps})"
    )
