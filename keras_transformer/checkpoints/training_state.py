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
from keras_transformer.checkpoints.errors import NotFiniteError
from keras_transformer.files import write_text

_LIST = "checkpoint"
_LINE = re.compile(r'(?:all_)?model_checkpoint_paths?: "(?:.*/)?step-(\d+)"|\w+_timestamps?: [\d.e+]+')
# Missing in the states of older versions, or where a setting of the run was changed.
_OPTIONAL = ("first_step", "first_batch", "batches", "interval/", "ema/", "optimizer/loss_scale/", "saved/")


class Checkpoints:
    """Training states of one run.

    Args:
        folder: where they are.
        model: a compiled `Transformer`.
        optimizer: its built optimizer; it counts the steps.
        keep: so many newest ones that were saved on schedule are kept. Others are kept while
            there are not so many, and the newest one while none was saved after it.
        every_steps: the schedule, for states of earlier versions; 0 where it is by time.
        writes: `False` on workers that are not the chief: they read, check and change nothing.
        trained: whether the history knows of training: then there must be a state.

    Attributes:
        seconds: float64 `tf.Variable`, training time of the run when the state was saved.
        first_step: int64 `tf.Variable`; see `first_batch`.
        first_batch: int64 `tf.Variable`: step s reads batch `first_batch + s - first_step` of
            the run's stream of batches.
        batches: string `tf.Variable`, the settings that this numbering belongs to.
    """

    def __init__(self, folder, model, optimizer, keep, *, every_steps=0, writes=True, trained=False):
        self.folder = pathlib.Path(folder)
        self.model = model
        self.optimizer = optimizer
        self.keep = keep
        self.every_steps = every_steps
        self.writes = writes
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
        self._finite = _finite_of(tensor_files.flat(self._tree))
        self._trained = trained
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
        there, listed = tensor_files.steps_in(self.folder), _read_list(self.folder)
        if step is not None:
            if step not in there:
                raise ValueError(f"{self.folder}: no checkpoint of step {step}. {_there_is(there)}")
            self._load(step)
            damaged = []
        elif not there and not listed:
            if self._trained:
                raise ValueError(
                    f"{self.folder}: no checkpoint, but history.jsonl has records of training. "
                    "Put the checkpoints back, or choose another --run-dir"
                )
            return 0
        else:
            if listed is None and not (len(there) == 1 and not (self.folder / _LIST).exists()):
                whole = [step for step in there if self._is_whole(step)]
                remedy = f"Continue with --resume-from {whole[-1]}, or " if whole else ""
                raise ValueError(
                    f"{self.folder}: the file `{_LIST}` is missing or damaged, but there is "
                    f"{_names(whole or there)}. {remedy or 'None of them is whole: '}choose another --run-dir"
                )
            # The first state of all appears just before the first list does.
            step, damaged = self._load_newest(sorted({*there, *(listed or ())}))
        if self.writes:
            with tensor_files.storing(self.folder):
                for one in damaged:
                    tensor_files.move(self._prefix(one), self.folder / "damaged")
                self._keep([one for one in tensor_files.steps_in(self.folder) if one <= step])
        self._newest = step
        return int(self.optimizer.iterations.numpy())

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
            there = tensor_files.steps_in(self.folder)
            tensor_files.write(self._tree, self._prefix(step), kept=_newest_is(there))
            with tensor_files.storing(self.folder / _LIST, kept=_newest_is([*there, step])):
                self._keep(tensor_files.steps_in(self.folder))
        self._newest = step

    def _load_newest(self, steps):
        """Returns the newest step that is whole, restored, and the damaged ones after it."""
        damaged, reasons = [], []
        for step in reversed(steps):
            try:
                self._load(step)
            except tensor_files.DamagedError as error:
                damaged.append(step)
                reasons.append(str(error))
                continue
            if self.writes:
                for reason in reasons:
                    print(f"{reason}; continuing from step-{step}", file=sys.stderr, flush=True)
            return step, damaged
        raise ValueError(
            f"{self.folder}: every checkpoint is damaged ({_names(steps)}). Put them back from a "
            "copy, or choose another --run-dir"
        )

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
        kept = steps_to_keep(steps, scheduled_steps(self.folder, self.every_steps), self.keep)
        if kept != _read_list(self.folder):
            self._write_list(kept)
        for step in set(tensor_files.steps_in(self.folder)) - set(kept):
            tensor_files.delete(self._prefix(step))

    def _write_list(self, kept):
        lines = [f'model_checkpoint_path: "step-{kept[-1]}"']
        lines += [f'all_model_checkpoint_paths: "step-{step}"' for step in kept]
        write_text(self.folder / _LIST, "".join(f"{line}\n" for line in lines))

    def _check_finite(self, step):
        names, finite = self._finite
        bad = [name for name, is_finite in zip(names, finite().numpy(), strict=True) if not is_finite]
        if bad:
            more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
            raise NotFiniteError(
                f"{self.folder}: {bad[0]}{more} not finite at step {step:,}; nothing is saved. "
                f"{_there_is(tensor_files.steps_in(self.folder))} Lower training.learning_rate_scale, "
                "or set training.clip_norm"
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
    return [
        step
        for step in tensor_files.steps_in(folder)
        if step and _is_on_schedule(pathlib.Path(folder) / f"step-{step}", step, every_steps)
    ]


def _is_on_schedule(prefix, step, every_steps):
    try:
        held = tensor_files.read(prefix, "saved")
    except tensor_files.DamagedError:
        held = {}  # whoever needs its weights will be told
    return bool(held["on_schedule"]) if held else not every_steps or step % every_steps == 0


def listed_steps(folder):
    """Returns the steps of the states that the list names, ascending."""
    return _read_list(folder) or []


def clean_checkpoints(folder):
    """Removes what a killed process left among the states of a run."""
    listed = _read_list(folder) or ()
    tensor_files.clean(folder, kept=[f"step-{step}" for step in listed])


def _read_list(folder):
    """Returns the steps of the file `checkpoint`; `None` where it is missing or damaged."""
    try:
        lines = (pathlib.Path(folder) / _LIST).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    found = [_LINE.fullmatch(line) for line in lines]
    if not all(found):
        return None
    return sorted({int(match[1]) for match in found if match[1]}) or None


def _finite_of(variables):
    """Returns the names of all float variables, and a function of whether each is finite."""
    floats = {name: variable for name, variable in variables.items() if variable.dtype.is_floating}

    @tf.function
    def finite():
        return tf.stack([tf.reduce_all(tf.math.is_finite(variable)) for variable in floats.values()])

    return list(floats), finite


def _optimizer_variables(optimizer):
    """{name: tf.Variable}; those of loss scaling have a name of their own."""
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is None:
        return tensor_files.by_path(optimizer.variables, "adam")
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
    numbers = {}
    for variable in model.variables:
        match = re.match(r"seed_generator_?(\d*)/", variable.path)
        if match:
            numbers[int(match[1] or 0)] = variable
    ordered = [numbers[number] for number in sorted(numbers)]
    return {
        f"seed_generator{f'_{i}' if i else ''}/seed_generator_state": variable.value
        for i, variable in enumerate(ordered)
    }


def _names(steps):
    return ", ".join(f"step-{step}" for step in steps)


def _newest_is(steps):
    return f"The newest whole checkpoint is step-{steps[-1]}." if steps else "There is no checkpoint yet."


def _there_is(steps):
    return f"There is {_names(steps)}." if steps else "There is no checkpoint."
