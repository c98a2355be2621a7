"""Checkpoints of a run, in `checkpoints/`: the full training state, to resume from.

step-N.index, step-N.data-*   weights, optimizer, seeds, data position, metrics of the logged interval
checkpoint                    list of the checkpoints, in TensorFlow's format
damaged/                      checkpoints that could not be read when the run was resumed
"""

import logging
import pathlib
import re

import tensorflow as tf

from keras_transformer.checkpoints import tensor_files
from keras_transformer.config.programs import NotFiniteError
from keras_transformer.files import write_text

logger = logging.getLogger(__name__)

_LIST = "checkpoint"
_LINE = re.compile(r'(?:all_)?model_checkpoint_paths?: "(?:.*/)?step-(\d+)"|\w+_timestamps?: [\d.e+]+')
# Parts that may be missing: in checkpoints of earlier versions, or after a change of settings.
_OPTIONAL = ("first_step", "first_batch", "batches", "interval/", "ema/", "optimizer/loss_scale/", "saved/")


class Checkpoints:
    """Saves, restores and deletes the checkpoints of one run.

    Keeps the `training.keep_checkpoints` newest checkpoints that were saved on schedule. Others, saved by a
    signal or at the end, fill up that number, and the newest checkpoint of all is always kept. Workers
    other than the chief only read.

    Args:
        run: `RunFolder`. If its history has records of training, there must be a checkpoint.
        model: a compiled `Transformer`.
        optimizer: its built optimizer, which counts the steps.

    Attributes:
        seconds: float64 `tf.Variable`, training time of the run when the checkpoint was saved.
        first_step: int64 `tf.Variable`; see `first_batch`.
        first_batch: int64 `tf.Variable`: step s reads batch `first_batch + s - first_step`, counted
            over all epochs.
        batches: string `tf.Variable`, JSON of the settings that decide the order of the batches.
    """

    def __init__(self, run, model, optimizer):
        self.folder, self.writes = run.path / "checkpoints", run.writes
        self.model, self.optimizer = model, optimizer
        self.keep = run.config.training.keep_checkpoints
        self._every_steps = run.config.training.checkpoint_every_steps
        self._trained = any(record.get("kind") == "train" for record in run.read_history())
        self.seconds = tf.Variable(0.0, dtype=tf.float64, trainable=False)
        self.first_step = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.first_batch = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.batches = tf.Variable("", dtype=tf.string, trainable=False)
        self._on_schedule = tf.Variable(False, trainable=False)
        self._interval = {
            name: tf.Variable(0.0, dtype=tf.float64, trainable=False) for name in model.interval_sums()
        }
        paths = [weight.path for weight in model.trainable_variables]
        self._ema = dict(zip(paths, model.ema_weights, strict=True)) if model.ema_weights else {}
        self._tree = {
            "weights": tensor_files.by_path(model.weights),
            "optimizer": _optimizer_variables(optimizer),
            # Dropout's seed states: a resumed run must draw the masks that an uninterrupted one draws.
            "seeds": _seed_states(model),
            "seconds": self.seconds,
            "first_step": self.first_step,
            "first_batch": self.first_batch,
            "batches": self.batches,
            "interval": self._interval,
            "ema": self._ema,
            "saved": {"on_schedule": self._on_schedule},
        }
        variables = tensor_files.flat(self._tree)
        self._floats = {name: value for name, value in variables.items() if value.dtype.is_floating}
        self._finite = tf.function(
            lambda: tf.stack([tf.reduce_all(tf.math.is_finite(value)) for value in self._floats.values()])
        )
        self._newest = None

    @property
    def steps(self):
        """List of int, the steps of all checkpoints, ascending."""
        return tensor_files.steps_in(self.folder)

    def restore(self, step=None):
        """Restores the newest undamaged checkpoint, or the one of a given step.

        Damaged checkpoints that were skipped are moved to `damaged/`. Checkpoints after the restored
        one are deleted.

        Args:
            step: int, or `None` for the newest.

        Returns:
            int, the step of the restored checkpoint; 0 for a new run.

        Raises:
            ValueError: there is no checkpoint of this step; it is, or all are, damaged or of another
                model; or the run has trained but has no checkpoint or no list of them: starting from
                step 0 would overwrite it.
        """
        tensor_files.check_step(self.folder, step)
        candidates = self._candidates(self.steps) if step is None else [step]
        if not candidates:
            return 0
        damaged = {}
        for restored in reversed(candidates):
            try:
                self._load(restored)
                break
            except tensor_files.DamagedError as error:
                if step is not None:
                    raise
                damaged[restored] = error
        else:
            raise ValueError(
                f"{self.folder}: all checkpoints are damaged ({_names(candidates)}). Restore them from a "
                "copy, or choose another --run-dir"
            )
        if self.writes:
            for reason in damaged.values():
                logger.warning(f"{reason}; continuing from step-{restored}")
            with tensor_files.storage_errors(self.folder):
                for damaged_step in damaged:
                    tensor_files.move(self._prefix(damaged_step), self.folder / "damaged")
                self._keep([earlier for earlier in self.steps if earlier <= restored])
        self._newest = restored
        return int(self.optimizer.iterations.numpy())

    def _candidates(self, saved):
        """Returns the steps of all checkpoints that exist or are listed, ascending; empty for a new run."""
        listed = listed_steps(self.folder)
        if not saved and not listed:
            if self._trained:
                raise ValueError(
                    f"{self.folder}: there is no checkpoint, but history.jsonl has training records. "
                    "Restore the checkpoints, or choose another --run-dir"
                )
            return []
        # Only the very first checkpoint may exist without a list, which is written just after it.
        if listed is None and (len(saved) > 1 or (self.folder / _LIST).exists()):
            whole = [step for step in saved if self._is_whole(step)]
            remedy = f"Continue with --resume-from {whole[-1]}, or " if whole else "All of them are damaged: "
            raise ValueError(
                f"{self.folder}: the file `{_LIST}` is missing or damaged, but there are "
                f"checkpoints: {_names(whole or saved)}. {remedy}choose another --run-dir"
            )
        return sorted({*saved, *(listed or ())})

    def save(self, seconds, *, on_schedule=True):
        """Saves a checkpoint, unless this step was just restored or saved.

        All workers must call this, although only the chief writes: so all of them detect non-finite
        values at the same step.

        Args:
            seconds: training time of the run so far.
            on_schedule: `False` before the first step, after a signal and at the end of training.
                Such a checkpoint is not averaged.

        Raises:
            NotFiniteError: weights, moments or averages are not finite; nothing is written.
            StorageError: the disk is full or not writable; all earlier checkpoints still exist.
        """
        step = int(self.optimizer.iterations.numpy())
        if step == self._newest:
            return
        sums = self.model.interval_sums()
        self._check_finite(step)
        self.seconds.assign(seconds)
        self._on_schedule.assign(on_schedule)
        for name, variable in self._interval.items():
            variable.assign(sums[name])
        if self.writes:
            saved = self.steps
            tensor_files.write(self._tree, self._prefix(step), kept=_newest_is(saved))
            with tensor_files.storage_errors(self.folder / _LIST, kept=_newest_is([*saved, step])):
                self._keep(self.steps)
        self._newest = step

    def _load(self, step):
        stored = tensor_files.load(self._tree, self._prefix(step), optional=_OPTIONAL)
        if self._interval and all(f"interval/{name}" in stored for name in self._interval):
            self.model.set_interval_sums(
                {name: float(variable.numpy()) for name, variable in self._interval.items()}
            )
        for name, average in self._ema.items():
            if f"ema/{name}" not in stored:  # start the moving average here
                average.assign(self._tree["weights"][name])

    def _is_whole(self, step):
        try:
            tensor_files.verify(self._prefix(step))
        except tensor_files.DamagedError:
            return False
        return True

    def _keep(self, steps):
        """Chooses which checkpoints of `steps` to keep, writes their list, and deletes all others."""
        kept = steps_to_keep(steps, scheduled_steps(self.folder, self._every_steps), self.keep)
        if kept != listed_steps(self.folder):
            names = [f'model_checkpoint_path: "step-{kept[-1]}"']
            names += [f'all_model_checkpoint_paths: "step-{step}"' for step in kept]
            write_text(self.folder / _LIST, "".join(f"{name}\n" for name in names))
        for step in set(self.steps) - set(kept):
            tensor_files.delete(self._prefix(step))

    def _check_finite(self, step):
        finite = zip(self._floats, self._finite().numpy(), strict=True)
        bad = [name for name, is_finite in finite if not is_finite]
        if bad:
            more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
            raise NotFiniteError(
                f"{self.folder}: {bad[0]}{more} not finite at step {step:,}; nothing was saved. "
                f"{tensor_files.available(self.steps)} Lower training.learning_rate_scale, or set "
                "training.clip_norm"
            )

    def _prefix(self, step):
        return self.folder / f"step-{step}"


def steps_to_keep(steps, on_schedule, keep):
    """Returns the steps of the checkpoints to keep.

    These are the n newest ones saved on schedule, as they may be averaged. If there are fewer than n, the
    newest others fill up the number. The newest checkpoint of all is always kept.

    Args:
        steps: steps of all checkpoints, ascending.
        on_schedule: steps of those saved on schedule.
        keep: n.
    """
    regular = [step for step in steps if step in set(on_schedule)][-keep:]
    others = [step for step in steps if step not in set(on_schedule)]
    room = max(keep - len(regular), int(others[-1:] == steps[-1:]))
    return sorted(regular + others[len(others) - min(room, len(others)) :])


def scheduled_steps(folder, every_steps):
    """Returns the steps of the checkpoints that were saved on schedule, ascending; never step 0.

    A checkpoint stores whether it was. For those of earlier versions, which do not, it is decided by
    their step; if the schedule is by time, all of them count.

    Args:
        folder: folder of the checkpoints.
        every_steps: steps between scheduled checkpoints; 0 if the schedule is by time.
    """

    def is_on_schedule(step):
        try:
            stored = tensor_files.read(pathlib.Path(folder) / f"step-{step}", "saved")
        except tensor_files.DamagedError:
            stored = {}  # reading the weights will raise the error
        return stored["on_schedule"] if stored else not every_steps or step % every_steps == 0

    return [step for step in tensor_files.steps_in(folder) if step and is_on_schedule(step)]


def listed_steps(folder):
    """Returns the steps in the list of checkpoints, ascending; `None` if it is missing or damaged."""
    try:
        lines = (pathlib.Path(folder) / _LIST).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    matches = [_LINE.fullmatch(line) for line in lines]
    return sorted({int(match[1]) for match in matches if match[1]}) or None if all(matches) else None


def _optimizer_variables(optimizer):
    """Returns {name: tf.Variable} of Adam (`adam/...`) and of loss scaling (`loss_scale/...`)."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    inner_ids = {id(variable) for variable in inner.variables}
    outer = [variable for variable in optimizer.variables if id(variable) not in inner_ids]
    return {
        **tensor_files.by_path(inner.variables, "adam"),
        **tensor_files.by_path(outer, "loss_scale"),
    }


def _seed_states(model):
    """Returns {name: tf.Variable} of dropout's seed states, numbered from 0.

    Keras numbers seed generators across the whole process. Without renumbering, a second model in a
    notebook could not restore a checkpoint of the first.
    """
    states = {
        int(match[1] or 0): variable.value
        for variable in model.variables
        if (match := re.match(r"seed_generator_?(\d*)/", variable.path))
    }
    return {
        f"seed_generator{f'_{i}' if i else ''}/seed_generator_state": states[number]
        for i, number in enumerate(sorted(states))
    }


def _names(steps):
    return ", ".join(f"step-{step}" for step in steps)


def _newest_is(steps):
    return f"The newest complete checkpoint is step-{steps[-1]}." if steps else "There is no checkpoint yet."
