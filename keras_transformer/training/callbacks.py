"""When to save and when to stop, agreed upon by all workers of a run."""

import sys

import keras

from keras_transformer.config.programs import ExitCode, NotFiniteError, StoppedError
from keras_transformer.training.signals import EXIT_CODES

SAVE, STOP, SIGNAL = range(3)


class WorkerConsensus:
    """Makes all workers do the same after the same step.

    One worker alone does what it is asked at once. Of several, each adds what it wants to the
    sums of the next step, so that all find it in the logs of that step.

    Args:
        num_workers: number of processes that train together.
    """

    def __init__(self, num_workers=1):
        self._several = num_workers > 1
        self._asked = set()
        self.model = None

    def ask(self, request):
        """Asks all workers for `SAVE`, `STOP` or `SIGNAL`."""
        if request not in self._asked:
            self._asked.add(request)
            if self._several:
                self.model.requests[request].assign(1.0)

    def agreed(self, request, logs):
        """Returns whether it is to be done now, and takes it off the list.

        Args:
            request: `SAVE`, `STOP` or `SIGNAL`.
            logs: of the step.
        """
        found = request in self._asked
        if self._several:
            found = logs is not None and float(logs["requests"][request]) > 0
            if found:
                self.model.requests[request].assign(0.0)
        if found:
            self._asked.discard(request)
        return found


class CheckpointCallback(keras.callbacks.Callback):
    """Writes checkpoints every so many steps, every so many minutes, and at the end.

    Args:
        checkpoints: `Checkpoints`.
        consensus: `WorkerConsensus`.
        clock: `Clock`.
        training: `TrainingConfig`, which has the schedule.
        is_chief: whether this worker's clock decides.
    """

    def __init__(self, checkpoints, consensus, clock, training, *, is_chief):
        super().__init__()
        self.checkpoints, self.consensus, self.clock = checkpoints, consensus, clock
        self.is_chief, self.every_steps = is_chief, training.checkpoint_every_steps
        self.every_minutes = training.checkpoint_every_minutes

    def on_train_begin(self, logs=None):
        self.consensus.model = self.model
        self.step = int(self.model.optimizer.iterations.numpy())
        self.saved_at = self.clock.seconds
        if self.step == 0:
            # So that a run folder without a checkpoint is one that lost it.
            self.checkpoints.save(self.clock.seconds, on_schedule=False)

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        minutes = (self.clock.seconds - self.saved_at) / 60
        if self.is_chief and self.every_minutes and minutes >= self.every_minutes:
            self.consensus.ask(SAVE)
        due = self.every_steps > 0 and self.step % self.every_steps == 0
        if self.consensus.agreed(SAVE, logs) or due:
            # Where both are set, the minutes are for safety: what is averaged follows from the steps.
            self.checkpoints.save(self.clock.seconds, on_schedule=due or not self.every_steps)
            self.saved_at = self.clock.seconds

    def on_train_end(self, logs=None):
        self.checkpoints.save(self.clock.seconds, on_schedule=False)


class NonFiniteGuard(keras.callbacks.Callback):
    """Ends training after so many steps in a row without a finite gradient.

    Those steps changed no weight. It stands before what resets the metrics.

    Args:
        max_nonfinite_steps: so many.
        is_chief: whether this worker prints.
    """

    def __init__(self, max_nonfinite_steps, *, is_chief):
        super().__init__()
        self.max_nonfinite_steps, self.is_chief = max_nonfinite_steps, is_chief

    def on_train_begin(self, logs=None):
        self.step = int(self.model.optimizer.iterations.numpy())
        self.in_a_row = 0
        self.before = self.model.interval_sums().get("tally/skipped", 0.0)

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        skipped = round(logs["skipped"])
        if skipped == 0:
            self.before = self.in_a_row = 0
            return
        # The metrics begin anew with each logged interval.
        was_skipped = skipped > self.before or (logs["steps"] < 1.5 and skipped > 0)
        self.in_a_row = self.in_a_row + 1 if was_skipped else 0
        self.before = skipped
        if not was_skipped:
            return
        if self.is_chief:
            print(
                f"step {self.step:,}: loss or gradient is not finite; nothing changed"
                f" ({self.in_a_row} in a row, {self.max_nonfinite_steps} end the run)",
                file=sys.stderr,
                flush=True,
            )
        if self.in_a_row >= self.max_nonfinite_steps:
            raise NotFiniteError(
                f"step {self.step:,}: {self.in_a_row} steps in a row had no finite loss or gradient"
            )


class StopCallback(keras.callbacks.Callback):
    """Ends training when the time is up, a signal came, or another callback asked for it.

    Args:
        consensus: `WorkerConsensus`.
        clock: `Clock`.
        signals: `Signals`.
        is_chief: whether this worker's clock decides.
        max_minutes: of the whole run; 0 for no limit.
    """

    def __init__(self, consensus, clock, signals, *, is_chief, max_minutes):
        super().__init__()
        self.consensus, self.clock, self.signals = consensus, clock, signals
        self.is_chief, self.max_minutes = is_chief, max_minutes
        self.by_signal = False

    def stop(self, reason):
        """Asks for the end of training; the chief's reason is printed."""
        if self.is_chief:
            print(f"stopping: {reason}", file=sys.stderr, flush=True)
        self.consensus.ask(STOP)

    def on_train_batch_end(self, batch, logs=None):
        if self.is_chief and self.max_minutes and self.clock.seconds >= 60 * self.max_minutes:
            self.max_minutes, minutes = 0, self.max_minutes
            self.stop("1 minute is up" if minutes == 1 else f"{minutes:g} minutes are up")
        if self.signals.received is not None:
            self.consensus.ask(SIGNAL)
        if self.consensus.agreed(SIGNAL, logs):
            self.by_signal = True
            self.model.stop_training = True
        if self.consensus.agreed(STOP, logs):
            self.model.stop_training = True

    def error(self, run_dir, step):
        """Returns the `StoppedError` of a run that a signal ended."""
        received = self.signals.received
        name = "a signal to another worker" if received is None else received.name
        return StoppedError(
            f"stopped by {name} after step {step:,}, which is saved; the same command with --run-dir "
            f"{run_dir} goes on from there",
            EXIT_CODES.get(received, ExitCode.TERMINATED),
        )
