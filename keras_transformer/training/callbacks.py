"""Callbacks that save checkpoints, stop training and watch for non-finite gradients, on all workers alike."""

import logging

import keras

from keras_transformer.config.programs import ExitCode, NotFiniteError, StoppedError
from keras_transformer.training.signals import EXIT_CODES

logger = logging.getLogger(__name__)

SAVE, STOP, SIGNAL = range(3)


class WorkerConsensus:
    """Makes all workers save or stop after the same step.

    Each worker adds its requests to the metrics of the next step, which are summed over all workers.
    So every worker sees every request in the logs of that step. A single worker acts at once.

    Args:
        num_workers: number of processes that train together.
    """

    def __init__(self, num_workers=1):
        self._several = num_workers > 1
        self._pending = set()
        self.model = None

    def ask(self, request):
        """Requests `SAVE`, `STOP` or `SIGNAL` from all workers."""
        if request not in self._pending:
            self._pending.add(request)
            if self._several:
                self.model.requests[request].assign(1.0)

    def agreed(self, request, logs):
        """Returns whether all workers act on a request after this step, and clears it if so.

        Args:
            request: `SAVE`, `STOP` or `SIGNAL`.
            logs: dict, the Keras logs of the step.
        """
        is_due = request in self._pending
        if self._several:
            is_due = logs is not None and float(logs["requests"][request]) > 0
            if is_due:
                self.model.requests[request].assign(0.0)
        if is_due:
            self._pending.discard(request)
        return is_due


class CheckpointCallback(keras.callbacks.Callback):
    """Saves a checkpoint every n steps, every m minutes, and at the end of training.

    Args:
        checkpoints: `Checkpoints`.
        consensus: `WorkerConsensus`.
        clock: `Clock`.
        training: `TrainingConfig` with `checkpoint_every_steps` and `checkpoint_every_minutes`.
        is_chief: whether the clock of this worker decides.
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
            # From now on, a run folder without any checkpoint has lost it.
            self.checkpoints.save(self.clock.seconds, on_schedule=False)

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        minutes = (self.clock.seconds - self.saved_at) / 60
        if self.is_chief and self.every_minutes and minutes >= self.every_minutes:
            self.consensus.ask(SAVE)
        due = self.every_steps > 0 and self.step % self.every_steps == 0
        if self.consensus.agreed(SAVE, logs) or due:
            # If both are set, only checkpoints saved by step count as scheduled, and are averaged.
            self.checkpoints.save(self.clock.seconds, on_schedule=due or not self.every_steps)
            self.saved_at = self.clock.seconds

    def on_train_end(self, logs=None):
        self.checkpoints.save(self.clock.seconds, on_schedule=False)


class NonFiniteGuard(keras.callbacks.Callback):
    """Ends training after n consecutive steps with a non-finite loss or gradient.

    The training step has skipped these updates. In the list of callbacks this one must precede
    `Progress`, which resets the metrics.

    Args:
        max_nonfinite_steps: n.
        is_chief: whether this worker logs.
    """

    def __init__(self, max_nonfinite_steps, *, is_chief):
        super().__init__()
        self.max_nonfinite_steps, self.is_chief = max_nonfinite_steps, is_chief

    def on_train_begin(self, logs=None):
        self.step = int(self.model.optimizer.iterations.numpy())
        self.in_a_row = 0
        self.skipped_before = self.model.interval_sums().get("tally/skipped", 0.0)

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        skipped = round(logs["skipped"])
        if skipped == 0:
            self.skipped_before = self.in_a_row = 0
            return
        # Each logged interval counts its skipped steps from 0.
        was_skipped = skipped > self.skipped_before or (logs["steps"] < 1.5 and skipped > 0)
        self.in_a_row = self.in_a_row + 1 if was_skipped else 0
        self.skipped_before = skipped
        if not was_skipped:
            return
        if self.is_chief:
            logger.warning(
                f"step {self.step:,}: loss or gradient is not finite; the update is skipped"
                f" ({self.in_a_row} in a row; training ends at {self.max_nonfinite_steps})"
            )
        if self.in_a_row >= self.max_nonfinite_steps:
            raise NotFiniteError(
                f"step {self.step:,}: loss or gradient was not finite in {self.in_a_row} steps in a row"
            )


class StopCallback(keras.callbacks.Callback):
    """Ends training after `max_minutes`, after a signal, or when another callback requests it.

    Args:
        consensus: `WorkerConsensus`.
        clock: `Clock`.
        signals: `Signals`.
        is_chief: whether the clock of this worker decides.
        max_minutes: training time of the whole run, resumed parts included; 0 for no limit.

    Attributes:
        by_signal: whether a signal has ended training.
    """

    def __init__(self, consensus, clock, signals, *, is_chief, max_minutes):
        super().__init__()
        self.consensus, self.clock, self.signals = consensus, clock, signals
        self.is_chief, self.max_minutes = is_chief, max_minutes
        self.by_signal = False

    def stop(self, reason):
        """Ends training after this step on all workers; the chief logs the reason."""
        if self.is_chief:
            logger.warning(f"stopping: {reason}")
        self.consensus.ask(STOP)

    def on_train_batch_end(self, batch, logs=None):
        if self.is_chief and self.max_minutes and self.clock.seconds >= 60 * self.max_minutes:
            self.max_minutes, minutes = 0, self.max_minutes
            over = "1 minute is over" if minutes == 1 else f"{minutes:g} minutes are over"
            self.stop(f"{over} (training.max_minutes)")
        if self.signals.received is not None:
            self.consensus.ask(SIGNAL)
        if self.consensus.agreed(SIGNAL, logs):
            self.by_signal = True
            self.model.stop_training = True
        if self.consensus.agreed(STOP, logs):
            self.model.stop_training = True

    def error(self, run_dir, step):
        """Returns the `StoppedError` for a run that a signal has ended."""
        received = self.signals.received
        name = "a signal to another worker" if received is None else received.name
        return StoppedError(
            f"stopped by {name} after step {step:,}, which is saved. The same command with --run-dir "
            f"{run_dir} continues from there",
            EXIT_CODES.get(received, ExitCode.TERMINATED),
        )
