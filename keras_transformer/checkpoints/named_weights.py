"""The weights of a run by name: which there are, where they lie, how to replace damaged ones."""

import shlex

from keras_transformer.checkpoints import tensor_files
from keras_transformer.checkpoints.averaging import ranked_steps
from keras_transformer.checkpoints.final import FINAL
from keras_transformer.config import programs


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
        folders = [self._run.path / folder for folder in ("checkpoints", "best")]
        steps = {step for folder in folders for step in tensor_files.steps_in(folder)}
        names = [
            *kinds,
            *(name for name in averages if name.startswith(("last-", "best-"))),
            *(f"step-{step}" for step in sorted(steps)),
        ]
        return [name for name in names if self._look_for(name)]

    def best_steps(self):
        """Returns the steps of validations whose weights are kept, the best first."""
        there = tensor_files.steps_in(self._run.path / "best")
        ranked = ranked_steps(self._run.read_history(), self._run.config.training.best_by)
        return [step for step in ranked if step in there]

    def find(self, name):
        """Returns (path of the files without ending, part of their tree) of weights.

        Raises:
            ValueError: there are none of this name; the message says which there are.
        """
        place = self._look_for(name)
        if place is None:
            # Only TensorFlow can look for a moving average, and takes seconds to be imported.
            averages = ("ema",) if self._run.config.training.ema_decay else ()
            names = self.names(("final", "averaged", "best", "last", *averages))
            there = ", ".join(f"`{each}`" for each in names) or "no checkpoint"
            hint = self._how_to_get(name)
            raise ValueError(f"{self._run.path}: no {name!r} weights. There is {there}{hint}")
        return place

    def assign(self, model, prefix, part):
        """Puts the weights that `find` found into a `Transformer`.

        Raises:
            DamagedError: they are damaged, or not of this model; the message says what to do.
        """
        try:
            _assign_weights(model, prefix, part)
        except tensor_files.DamagedError as error:
            raise tensor_files.DamagedError(f"{error}. {self._remedy(prefix)}") from error

    def _remedy(self, prefix):
        """Returns one sentence about damaged weights."""
        folder, (kind, _, number) = prefix.parent.name, prefix.name.partition("-")
        if folder == "averaged" and kind in ("last", "best"):
            return f"{_average_command(self._run.path, kind, number)} makes it anew"
        names = self.names(("averaged", "best", "last"))
        others = [name for name in names if self._look_for(name)[0] != prefix]
        named = f"name others: --weights {' or '.join(others)}" if others else "put it back from a copy"
        if folder == "final":
            return f"The {programs.name('train')} command of this run, given again, makes it anew; or {named}"
        return f"{named[0].upper()}{named[1:]}"

    def _how_to_get(self, name):
        kind, _, number = name.partition("-")
        if name in ("final", "averaged"):
            return f"; training writes `{name}` at its end. Until then: --weights last"
        if name == "ema":
            return "; a moving average is kept where training.ema_decay is above 0"
        if kind in ("last", "best") and number.isdecimal():
            return f". Make it: {_average_command(self._run.path, kind, number)}"
        return ""

    def _look_for(self, name):
        """Returns (prefix, part of its tree), or `None`."""
        kind, _, number = name.partition("-")
        prefixes = []
        if name in ("final", "averaged"):
            # The last is of earlier versions, which kept one average and delivered it.
            names = f"last-{self._run.config.training.average_last}", "ckpt-1"
            prefixes = [self._run.path / "averaged" / each for each in names]
            if name == "final":
                prefixes.insert(0, self._run.path / FINAL)
        elif name in ("last", "ema"):
            folder = self._run.path / "checkpoints"
            prefixes = [folder / f"step-{step}" for step in tensor_files.steps_in(folder)[-1:]]
        elif name == "best":
            prefixes = [self._run.path / "best" / f"step-{step}" for step in self.best_steps()[:1]]
        elif number.isdecimal() and kind in ("last", "best"):
            prefixes = [self._run.path / "averaged" / name]
        elif number.isdecimal() and kind == "step":
            prefixes = [self._run.path / folder / name for folder in ("checkpoints", "best")]
        prefix = next((prefix for prefix in prefixes if tensor_files.exists(prefix)), None)
        if prefix is None:
            return None
        if name != "ema":
            return prefix, "weights"
        held = tensor_files.names_of(prefix)
        return (prefix, "ema") if any(each.startswith("ema/") for each in held) else None


def _average_command(path, kind, number):
    return f"{programs.command('average')} {shlex.quote(str(path))} --{kind} {number}"


def _assign_weights(model, prefix, part):
    values = tensor_files.read(prefix, "weights")
    if part != "weights":  # the moving average has the trainable ones only
        values.update(tensor_files.read(prefix, part))
    tensor_files.assign(tensor_files.by_path(model.weights), values, prefix)
