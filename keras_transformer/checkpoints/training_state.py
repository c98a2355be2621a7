"""The newest training states of a run, in `checkpoints/`.

step-N.index, step-N.data-*   weights, optimizer, seeds, and where in data and log the run is
checkpoint                    the list of them, as TensorFlow writes it
damaged/                      states that could not be read when the run continued
"""

import pathlib
import re
import sys

import tensorflow as tf

from keras_transformer.checkpoints import tensor_files
from keras_transformer.config.programs import NotFiniteError
from keras_transformer.files import write_text

_LIST = "checkpoint"
_LINE = re.compile(r'(?:all_)?model_checkpoint_paths?: "(?:.*/)?step-(\d+)"|\w+_timestamps?: [\d.e+]+')
# Missing in the states of older versions, or where a setting of the run was changed.
_OPTIONAL = ("first_step", "first_batch", "batches", "interval/", "ema/", "optimizer/loss_scale/", "saved/")


class Checkpoints:
    """Training states of one run.

    `training.keep_checkpoints` newest ones that were saved on schedule are kept. Others are kept while
    there are fewer, and the newest one while none was saved after it. Workers that are not the chief
    read, check and change nothing.

    Args:
        run: `RunFolder`. Where its history knows of training there must be a state.
        model: a compiled `Transformer`.
        optimizer: its built optimizer; it counts the steps.

    Attributes:
        seconds: float64 `tf.Variable`, training time of the run when the state was saved.
        first_step: int64 `tf.Variable`; see `first_batch`.
        first_batch: int64 `tf.Variable`: step s reads batch `first_batch + s - first_step` of
            the run's stream of batches.
        batches: string `tf.Variable`, the settings that this numbering belongs to.
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
            # Dropout's seed states: without them a resumed run is another run.
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
        """List of int, the steps of which there is a state, ascending."""
        return tensor_files.steps_in(self.folder)

    def restore(self, step=None):
        """Restores the newest state that is whole, or the one of a step.

        Damaged states that are passed over move to `damaged/`. Restoring an earlier step
        drops the states after it.

        Args:
            step: int, or `None` for the newest.

        Returns:
            int, the step it was saved at; 0 where the run never trained.

        Raises:
            ValueError: no such step; all states are damaged, or the wanted one is; they are of
                another model; or there are no states, or no list of them, though the run has
                trained: starting anew would overwrite it.
        """
        there = self.steps
        if step is not None and step not in there:
            raise ValueError(f"{self.folder}: no checkpoint of step {step}. {_there_is(there)}")
        candidates = self._candidates(there) if step is None else [step]
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
                f"{self.folder}: every checkpoint is damaged ({_names(candidates)}). Put them back from a "
                "copy, or choose another --run-dir"
            )
        if self.writes:
            for reason in damaged.values():
                print(f"{reason}; continuing from step-{restored}", file=sys.stderr, flush=True)
            with tensor_files.storage_errors(self.folder):
                for one in damaged:
                    tensor_files.move(self._prefix(one), self.folder / "damaged")
                self._keep([one for one in self.steps if one <= restored])
        self._newest = restored
        return int(self.optimizer.iterations.numpy())

    def _candidates(self, there):
        """Returns the steps of all states that there are, or should be, ascending; none for a new run."""
        listed = listed_steps(self.folder)
        if not there and not listed:
            if self._trained:
                raise ValueError(
                    f"{self.folder}: no checkpoint, but history.jsonl has records of training. "
                    "Put the checkpoints back, or choose another --run-dir"
                )
            return []
        # The first state of all appears just before the first list does.
        if listed is None and (len(there) > 1 or (self.folder / _LIST).exists()):
            whole = [step for step in there if self._is_whole(step)]
            remedy = f"Continue with --resume-from {whole[-1]}, or " if whole else "None of them is whole: "
            raise ValueError(
                f"{self.folder}: the file `{_LIST}` is missing or damaged, but there is "
                f"{_names(whole or there)}. {remedy}choose another --run-dir"
            )
        return sorted({*there, *(listed or ())})

    def save(self, seconds, *, on_schedule=True):
        """Writes the present state, unless it is the one restored or saved last.

        Every worker of a cluster calls this: those that do not write find, at the same step as
        the one that does, what is not finite.

        Args:
            seconds: training time of the run so far.
            on_schedule: `False` for the state before training, and for one that is saved
                because the run ends or is stopped: it is no part of an average.

        Raises:
            NotFiniteError: weights, moments or averages are not finite; nothing is written.
            StorageError: there is no room; all states of before are there.
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
            there = self.steps
            tensor_files.write(self._tree, self._prefix(step), kept=_newest_is(there))
            with tensor_files.storage_errors(self.folder / _LIST, kept=_newest_is([*there, step])):
                self._keep(self.steps)
        self._newest = step

    def _load(self, step):
        held = tensor_files.load(self._tree, self._prefix(step), optional=_OPTIONAL)
        if self._interval and all(f"interval/{name}" in held for name in self._interval):
            self.model.set_interval_sums(
                {name: float(variable.numpy()) for name, variable in self._interval.items()}
            )
        for name, average in self._ema.items():
            if f"ema/{name}" not in held:  # the average begins now
                average.assign(self._tree["weights"][name])

    def _is_whole(self, step):
        try:
            tensor_files.verify(self._prefix(step))
        except tensor_files.DamagedError:
            return False
        return True

    def _keep(self, steps):
        """Writes the list of the states of `steps` that are kept, and deletes every other state."""
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
                f"{self.folder}: {bad[0]}{more} not finite at step {step:,}; nothing is saved. "
                f"{_there_is(self.steps)} Lower training.learning_rate_scale, or set training.clip_norm"
            )

    def _prefix(self, step):
        return self.folder / f"step-{step}"


def steps_to_keep(steps, on_schedule, keep):
    """Returns the states to keep: one that a signal forced drives none out that is to be averaged.

    Args:
        steps: all of them, ascending.
        on_schedule: those of them that were saved on schedule.
        keep: so many of these are kept, and others while there are fewer; the newest always.
    """
    regular = [step for step in steps if step in set(on_schedule)][-keep:]
    others = [step for step in steps if step not in set(on_schedule)]
    room = max(keep - len(regular), int(others[-1:] == steps[-1:]))
    return sorted(regular + others[len(others) - min(room, len(others)) :])


def scheduled_steps(folder, every_steps):
    """Returns the steps of the states that were saved on schedule, ascending; never step 0.

    A state says so itself. Those of earlier versions do not: their step tells, or, where the
    schedule is by time, all of them count.

    Args:
        folder: where the states are.
        every_steps: the schedule; 0 where it is by time.
    """

    def is_on_schedule(step):
        try:
            held = tensor_files.read(pathlib.Path(folder) / f"step-{step}", "saved")
        except tensor_files.DamagedError:
            held = {}  # whoever needs its weights will be told
        return held["on_schedule"] if held else not every_steps or step % every_steps == 0

    return [step for step in tensor_files.steps_in(folder) if step and is_on_schedule(step)]


def listed_steps(folder):
    """Returns the steps that the list names, ascending; `None` where it is missing or damaged."""
    try:
        lines = (pathlib.Path(folder) / _LIST).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    found = [_LINE.fullmatch(line) for line in lines]
    return sorted({int(match[1]) for match in found if match[1]}) or None if all(found) else None


def _optimizer_variables(optimizer):
    """{name: tf.Variable}; those of loss scaling have a name of their own."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    inner_ids = {id(variable) for variable in inner.variables}
    outer = [variable for variable in optimizer.variables if id(variable) not in inner_ids]
    return {
        **tensor_files.by_path(inner.variables, "adam"),
        **tensor_files.by_path(outer, "loss_scale"),
    }


def _seed_states(model):
    """{name: tf.Variable} of dropout's seed states, numbered from 0.

    Keras numbers seed generators through the whole process: the second model of a
    notebook would find none of its own names in a checkpoint of the first.
    """
    found = {
        int(match[1] or 0): variable.value
        for variable in model.variables
        if (match := re.match(r"seed_generator_?(\d*)/", variable.path))
    }
    return {
        f"seed_generator{f'_{i}' if i else ''}/seed_generator_state": found[number]
        for i, number in enumerate(sorted(found))
    }


def _names(steps):
    return ", ".join(f"step-{step}" for step in steps)


def _newest_is(steps):
    return f"The newest whole checkpoint is step-{steps[-1]}." if steps else "There is no checkpoint yet."


def _there_is(steps):
    return f"There is {_names(steps)}." if steps else "There is no checkpoint."
