"""The weights of a run by name, and which of them it delivers: the mean, the last or the best."""

import json
import math
import shlex
import sys
from typing import NamedTuple

from keras_transformer.checkpoints import tensor_files
from keras_transformer.checkpoints.averaging import missing_note, ranked_steps, steps_text
from keras_transformer.config import programs

FINAL = "final/weights"  # path within the run folder


class NamedWeights:
    """The weights of one run.

    Args:
        run: `RunFolder`.
    """

    def __init__(self, run):
        self._run = run

    def names(self, kinds):
        """Returns the names that there are: of `kinds`, a tuple of str, and all averages and steps."""
        averages = sorted(path.stem for path in (self._run.path / "averaged").glob("*-*.index"))
        steps = {*self._steps_in("checkpoints"), *self._steps_in("best")}
        names = [
            *kinds,
            *(name for name in averages if name.startswith(("last-", "best-"))),
            *(f"step-{step}" for step in sorted(steps)),
        ]
        return [name for name in names if self._locate(name)]

    def _steps_in(self, folder):
        return tensor_files.steps_in(self._run.path / folder)

    def find(self, name):
        """Returns (path of the files without ending, part of their tree) of weights.

        Raises:
            ValueError: there are none of this name; the message says which there are.
        """
        place = self._locate(name)
        if place is None:
            # Only TensorFlow can look for a moving average, and takes seconds to be imported.
            averages = ("ema",) if self._run.config.training.ema_decay else ()
            names = self.names(("final", "averaged", "best", "last", *averages))
            there = ", ".join(f"`{each}`" for each in names) or "no checkpoint"
            hint = self._how_to_make(name)
            raise ValueError(f"{self._run.path}: no {name!r} weights. There is {there}{hint}")
        return place

    def assign(self, model, prefix, part):
        """Puts the weights that `find` found into a `Transformer`.

        Raises:
            ValueError: they are damaged, or not of this model; the message says what to do.
        """
        try:
            values = tensor_files.read(prefix, "weights")
            if part != "weights":  # the moving average has the trainable ones only
                values.update(tensor_files.read(prefix, part))
        except tensor_files.DamagedError as error:
            raise tensor_files.DamagedError(f"{error}. {self._remedy(prefix)}") from error
        tensor_files.assign(tensor_files.by_path(model.weights), values, prefix)

    def _remedy(self, prefix):
        """Returns one sentence about damaged weights."""
        folder, (kind, _, number) = prefix.parent.name, prefix.name.partition("-")
        if folder == "averaged" and kind in ("last", "best"):
            return f"{_average_command(self._run.path, kind, number)} makes it anew"
        names = self.names(("averaged", "best", "last"))
        others = [name for name in names if self._locate(name)[0] != prefix]
        named = f"name others: --checkpoint {' or '.join(others)}" if others else "put it back from a copy"
        if folder == "final":
            return f"The {programs.name('train')} command of this run, given again, makes it anew; or {named}"
        return f"{named[0].upper()}{named[1:]}"

    def _how_to_make(self, name):
        kind, _, number = name.partition("-")
        if name in ("final", "averaged"):
            return f"; training writes `{name}` at its end. Until then: --checkpoint last"
        if name == "ema":
            return "; a moving average is kept where training.ema_decay is above 0"
        if kind in ("last", "best") and number.isdecimal():
            return f". Make it: {_average_command(self._run.path, kind, number)}"
        return ""

    def _locate(self, name):
        """Returns (prefix, part of its tree), or `None`."""
        kind, _, number = name.partition("-")
        places = []
        if name in ("final", "averaged"):
            # The last is of earlier versions, which kept one average and delivered it.
            places = [f"averaged/last-{self._run.config.training.average_last}", "averaged/ckpt-1"]
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
        held = tensor_files.names_of(prefix)
        return (prefix, "ema") if any(each.startswith("ema/") for each in held) else None


def _average_command(path, kind, number):
    return f"{programs.command('average')} {shlex.quote(str(path))} --{kind} {number}"


class Candidate(NamedTuple):
    """Weights that may be delivered.

    Attributes:
        name: `"averaged"`, `"last"` or `"best"`.
        steps: list of int, of the states that they are made of.
        figures: dict, their validation: `loss`, and `bleu` where it is measured; empty where
            they were not validated.
        prefix: path of their files.
    """

    name: str
    steps: list
    figures: dict
    prefix: object

    def __str__(self):
        number = len(self.steps)
        label = f"{self.name} (step {self.steps[0]})"
        if self.name == "averaged":
            of = f"{number} checkpoints (steps" if number > 1 else "1 checkpoint (step"
            label = f"mean of {of} {steps_text(self.steps)})"
        if not self.figures:
            return f"{label}: not validated"
        bleu = f", BLEU {self.figures['bleu']:.2f}" if "bleu" in self.figures else ""
        return f"{label}: validation loss {self.figures['loss']:.3f}{bleu}"


def ranked(candidates, by):
    """Returns candidates, the best first; of equal ones that of the lower loss, else in the order given.

    Args:
        candidates: list of `Candidate`.
        by: `"loss"` (lower is better) or `"bleu"` (higher). Without a finite one a candidate
            comes after those that have one.
    """

    def rank(candidate, by):
        value = candidate.figures.get(by, math.nan)
        return (value if by == "loss" else -value) if math.isfinite(value) else math.inf

    # Early in training, a BLEU of 0 says nothing.
    return sorted(candidates, key=lambda candidate: (rank(candidate, by), rank(candidate, "loss")))


def write_final_weights(run, model, devices, measure):
    """Averages, validates the average, and keeps the best of average, last and best as `final`.

    All workers of a run call it, when training has ended. What is delivered already, at this
    step, stays where its files are whole; it is made anew where they are not, which is said.
    Best weights whose files are damaged give way to the next.

    Args:
        run: `RunFolder`.
        model: the trained `Transformer`; it may hold the average afterwards.
        devices: `Devices`.
        measure: function of no argument that validates the weights which the model has: dict of
            figures, or `None` where a signal interrupted it. Nothing is delivered then.

    Raises:
        ValueError: a state that it needs is damaged.
        StorageError: there is no room.
    """
    step = int(model.optimizer.iterations.numpy())
    if devices.gather(int(run.writes and _has_final_weights(run, step)))[0]:
        return
    chosen = run.averages.write_final() if run.writes else None
    if devices.gather(len(chosen.steps) if chosen else 0)[0]:
        # The chief has written what the others read.
        run.load_weights(model, "averaged")
        figures = measure()
        if figures is None:
            return
    if not run.writes:
        return
    candidates = _last_and_best(run, step)
    if chosen.steps:
        prefix = run.path / "averaged" / f"last-{run.config.training.average_last}"
        candidates.insert(0, Candidate("averaged", chosen.steps, figures, prefix))
    candidates = ranked(candidates, run.config.training.best_metric)
    while True:
        record = {
            "kind": "final",
            "step": step,
            "weights": candidates[0].name,
            "candidates": {each.name: {"steps": each.steps, **each.figures} for each in candidates},
        }
        try:
            _write(candidates[0].prefix, run.path / FINAL, record)
            break
        except tensor_files.DamagedError as error:
            if len(candidates) == 1:
                raise tensor_files.DamagedError(
                    f"{error}. No other weights are whole: put the folder `checkpoints` back from a copy"
                ) from error
            print(f"{error}; left out of the delivery", file=sys.stderr, flush=True)
            del candidates[0]
    run.append_history(record)
    if note := missing_note(run.path / "checkpoints", chosen):
        print(note, file=sys.stderr, flush=True)
    print(_summary_line(candidates, chosen, run.config.training), flush=True)


def _has_final_weights(run, step):
    kinds = {record["kind"] for record in run.read_history() if record.get("step") == step}
    if "final" not in kinds:
        # Runs of earlier versions were tested, and delivered their average.
        return "test" in kinds
    prefix = run.path / FINAL
    try:
        if tensor_files.exists(prefix):
            tensor_files.verify(prefix)
            return True
        why = f"{prefix}: missing"
    except tensor_files.DamagedError as error:
        why = str(error)
    print(f"{why}. The delivered weights are made anew", file=sys.stderr, flush=True)
    return False


def _last_and_best(run, step):
    """The last weights and, where others validated better, the best ones of which there is a state."""
    history = run.read_history()
    # What is validated twice counts as it did the last time.
    figures = {
        record["step"]: {name: record[name] for name in ("loss", "bleu") if name in record}
        for record in history
        if record["kind"] == "validation"
    }
    found = [Candidate("last", [step], figures.get(step, {}), run.path / "checkpoints" / f"step-{step}")]
    for best in ranked_steps(history, run.config.training.best_metric):
        prefixes = [run.path / folder / f"step-{best}" for folder in ("best", "checkpoints")]
        prefix = next((prefix for prefix in prefixes if tensor_files.exists(prefix)), None)
        if prefix:
            return found if best == step else [*found, Candidate("best", [best], figures[best], prefix)]
    return found


def _write(prefix, target, record):
    import tensorflow as tf

    values = tensor_files.read(prefix, "weights")
    weights = {name: tf.Variable(value, trainable=False) for name, value in values.items()}
    # In the same file: weights and record are of one delivery.
    text = tf.Variable(json.dumps(record), trainable=False)
    tensor_files.write({"weights": weights, "record": {"json": text}}, target)


def _summary_line(candidates, chosen, training):
    others = "".join(f"; {candidate}" for candidate in candidates[1:])
    line = f"delivered weights: {candidates[0]}{others}"
    if chosen.steps:
        return line
    every = f"training.checkpoint_every_steps={training.checkpoint_every_steps}"
    if not training.checkpoint_every_steps:
        every = f"training.checkpoint_every_minutes={training.checkpoint_every_minutes:g}"
    return (
        f"{line}. Nothing was averaged: no checkpoint was saved on schedule ({every}) after the warm-up "
        f"(training.warmup_steps={training.warmup_steps})"
    )
