"""The averages of a run: which checkpoints they are made of, and where they are written."""

import contextlib

from keras_transformer.checkpoints import tensor_files
from keras_transformer.checkpoints.averaging import choose_states, write_average
from keras_transformer.checkpoints.named_weights import NamedWeights


class Averages:
    """The averages of one run, in its folder `averaged`.

    Args:
        run: `RunFolder`.
    """

    def __init__(self, run):
        self._run, self._named = run, NamedWeights(run)

    def choose(self, last, **options):
        """Returns the `Chosen` states of an average of the newest ones.

        Args:
            last: number of newest checkpoints.
            **options: `warmed_up` and `forced`, as `averaging.choose_states` takes them.
        """
        from keras_transformer.checkpoints.training_state import listed_steps, scheduled_steps

        folder, training = self._run.path / "checkpoints", self._run.config.training
        return choose_states(
            tensor_files.steps_in(folder),
            scheduled_steps(folder, training.checkpoint_every_steps),
            last,
            training,
            listed=listed_steps(folder),
            **options,
        )

    def at_end(self):
        """Writes the mean that training makes at its end, as `last-N` of `training.average_last`.

        It is of states that were saved on schedule, at the end of the warm-up or later. Where
        there is none, an earlier mean of this name is removed. Damaged states are left out.

        Returns:
            `Chosen`; its `missing` names damaged states, too.

        Raises:
            ValueError: all of them are damaged.
            StorageError: there is no room.
        """
        last = self._run.config.training.average_last
        chosen, target = self.choose(last, warmed_up=True), self._run.path / "averaged" / f"last-{last}"
        if not chosen.steps:
            with tensor_files.storing(target):
                tensor_files.delete(target)
            return chosen
        prefixes, damaged = [self._run.path / "checkpoints" / f"step-{step}" for step in chosen.steps], []
        with _put_back():
            write_average(prefixes, target, damaged=damaged)
        lost = [step for step, prefix in zip(chosen.steps, prefixes, strict=True) if prefix in damaged]
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
            with _put_back():
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
            steps = sorted(self._named.best_steps()[:best])
        if not steps:
            raise ValueError(f"{folder}: no checkpoint to average")
        return folder, steps


@contextlib.contextmanager
def _put_back():
    try:
        yield
    except tensor_files.DamagedError as error:
        raise tensor_files.DamagedError(f"{error}. Put it back from a copy, or average fewer") from error
