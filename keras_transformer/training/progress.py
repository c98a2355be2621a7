"""Progress of training: log lines, progress bar, history records, TensorBoard events; the clock of a run."""

import collections
import contextlib
import functools
import logging
import sys
import time

import keras
import tensorflow as tf
import tqdm

from keras_transformer.model.optimizer import TransformerSchedule

logger = logging.getLogger(__name__)


class Clock:
    """Training time of a run, including the time before it was resumed.

    Args:
        earlier: seconds of training before this process.

    Attributes:
        other_seconds: seconds in this process not spent on training steps, such as validation.
    """

    def __init__(self, earlier=0.0):
        self._earlier = earlier
        self._begin = time.monotonic()
        self.other_seconds = 0.0

    @property
    def seconds(self):
        """Seconds so far, resumed parts and validations included."""
        return self._earlier + time.monotonic() - self._begin

    @contextlib.contextmanager
    def outside_steps(self):
        """Context manager that counts its time as `other_seconds`, which the training speed excludes."""
        begin = self.seconds
        try:
            yield
        finally:
            self.other_seconds += self.seconds - begin


def learning_rate_schedule(model, training):
    """Returns the schedule of a `ModelConfig` and a `TrainingConfig`."""
    return TransformerSchedule(model.d_model, training.warmup_steps, scale=training.learning_rate_scale)


# The time left is estimated from the speed of the last n intervals.
RECENT_INTERVALS = 5


class Progress(keras.callbacks.Callback):
    """Logs and records mean metrics every `log_every_steps` steps.

    Intervals end at multiples of `log_every_steps` only. So a resumed or prolonged run logs the same
    numbers as an uninterrupted one, except for speed and time. The line of the last step covers the
    steps since the last multiple.

    Args:
        run: `RunFolder`, for the history.
        clock: `Clock`.
        events: `Events`.
        schedule: a Keras learning rate schedule; `schedule(n)` is the rate of step n + 1.
        log_every_steps: steps between lines.
        max_steps: the last step, which is logged too.
        max_minutes: limit of the training time; 0 for none. Used for the time left.
        time_note: function from the step that `max_minutes` will allow to a warning or `None`. Called
            once, after the first line with a representative speed.

    Attributes:
        status: text of the progress bar after the last step, if `shows_status`.
    """

    shows_status = False  # whether a `ProgressBar` shows `status`
    status = ""

    def __init__(
        self, run, clock, events, schedule, *, log_every_steps, max_steps, max_minutes, time_note=None
    ):
        super().__init__()
        self.run, self.clock, self.events, self.schedule = run, clock, events, schedule
        self.log_every_steps, self.max_steps, self.max_minutes = log_every_steps, max_steps, max_minutes
        self.time_note = time_note

    def on_train_begin(self, logs=None):
        self.step = self.first_step = int(self.model.optimizer.iterations.numpy())
        if self.step % self.log_every_steps == 0:
            self._finish_interval()
        # `fit` resets the metrics at the start of each epoch; `on_epoch_begin` restores them.
        self.interval = self.model.interval_sums()
        self.recent = collections.deque(maxlen=RECENT_INTERVALS)  # (seconds, steps, target tokens)
        self.first_other_seconds = self.clock.other_seconds
        self._start_speed(self.model.get_metrics_result())

    def on_epoch_begin(self, epoch, logs=None):
        self.model.set_interval_sums(self.interval)

    def on_epoch_end(self, epoch, logs=None):
        self.interval = self.model.interval_sums()

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        ends = self.step % self.log_every_steps == 0
        if self.shows_status:
            self.status = self._status(logs)
        if ends or self.step == self.max_steps:
            self._log(logs, self._speed(logs))
        if ends:
            self.model.reset_metrics()
        # The first step includes compilation: measure the speed from the second one on.
        if ends or self.step == self.first_step + 1:
            self._start_speed({} if ends else logs)

    def on_train_end(self, logs=None):
        self.events.flush()

    def _finish_interval(self):
        """Logs the interval of a checkpoint that was saved at its last step, before its line was written."""
        logs = {name: float(value) for name, value in self.model.get_metrics_result().items()}
        if self.run.writes and logs["steps"]:
            logged = {record["step"] for record in self.run.read_history() if record["kind"] == "train"}
            if self.step not in logged:
                self._log(logs, None)
        self.model.reset_metrics()

    def _start_speed(self, logs):
        """Starts measuring the speed, from the token counts in `logs`."""
        self.measured_step = self.step
        self.measured_at = self.clock.seconds - self.clock.other_seconds
        self.measured = {name: float(logs.get(name, 0)) for name in ("source_tokens", "target_tokens")}

    def _speed(self, logs):
        """Returns tokens per second of both sides by name, and notes the interval for `_time_left`."""
        seconds, steps, _ = interval = self._interval(logs)
        if steps:
            self.recent.append(interval)
        return {
            f"{name}_per_second": (logs[name] - before) / seconds for name, before in self.measured.items()
        }

    def _interval(self, logs):
        """Returns seconds, steps and target tokens since `_start_speed`."""
        seconds = max(self.clock.seconds - self.clock.other_seconds - self.measured_at, 1e-9)
        tokens = logs["target_tokens"] - self.measured["target_tokens"]
        return seconds, self.step - self.measured_step, tokens

    def _status(self, logs):
        """Returns the text of the progress bar after a step."""
        text = f"loss {logs['loss']:.3f} | lr {float(self.schedule(self.step - 1)):.2e}"
        if self.step == self.first_step + 1:  # it includes compilation
            return text
        recent = [*self.recent, self._interval(logs)]
        seconds, _, tokens = (sum(numbers) for numbers in zip(*recent, strict=True))
        return f"{text} | {tokens / seconds:,.0f} target tokens/s | {self._time_left(recent)} left"

    def _log(self, logs, speed):
        if not self.run.writes:
            return
        record = {
            "step": self.step,
            "minutes": self.clock.seconds / 60,
            "loss": logs["loss"],
            "token_accuracy": logs["token_accuracy"],
            "perplexity": logs["perplexity"],
            "learning_rate": float(self.schedule(self.step - 1)),
            "gradient_norm": logs["gradient_norm"],
            **(speed or {}),
            "padding_share": 1 - (logs["source_tokens"] + logs["target_tokens"]) / max(logs["positions"], 1),
            "skipped": int(logs["skipped"]),
        }
        self.run.append_history({"kind": "train", **record})
        self.events.scalars("train", self.step, record)
        parts = [
            f"step {self.step:>7,}/{self.max_steps:,}",
            f"loss {record['loss']:.3f}",
            f"ppl {record['perplexity']:.2f}",
            f"acc {100 * record['token_accuracy']:.1f} %",
            f"gradient {record['gradient_norm']:.2f}",
            f"lr {record['learning_rate']:.2e}",
        ]
        if speed:
            per_second = record["target_tokens_per_second"]
            parts += [f"{per_second:,.0f} target tokens/s", f"{self._time_left(self.recent)} left"]
        if record["skipped"]:
            parts.append(f"skipped {record['skipped']}")
        logger.info(" | ".join(parts))
        if speed and self.max_minutes and self.time_note and self.step > self.first_step + 1:
            left = 60 * self.max_minutes - self.clock.seconds
            note = self.time_note(self.step + max(0, int(left / self._seconds_per_step(self.recent))))
            self.time_note = None
            if note:
                logger.warning(note)

    def _seconds_per_step(self, recent):
        seconds, steps, _ = (sum(numbers) for numbers in zip(*recent, strict=True))
        # The remaining steps will have validations, too.
        other = (self.clock.other_seconds - self.first_other_seconds) / (self.step - self.first_step)
        return seconds / steps + other

    def _time_left(self, recent):
        """Returns the estimated time left, such as `"12 min"`, from a list of recent intervals."""
        seconds = (self.max_steps - self.step) * self._seconds_per_step(recent)
        if self.max_minutes:
            seconds = min(seconds, 60 * self.max_minutes - self.clock.seconds)
        minutes = max(seconds, 0) / 60
        if minutes >= 120:
            return f"{minutes / 60:.1f} h"
        return f"{minutes:.0f} min" if minutes >= 2 else f"{60 * minutes:.0f} s"


class ProgressBar:
    """Progress bar on standard error: step, loss, learning rate, speed, time left.

    There is none unless standard output and standard error are a terminal and messages of level INFO are on.

    Args:
        progress: `Progress`.
    """

    def __init__(self, progress):
        self._progress, self._bar = progress, None
        is_terminal = all(stream is not None and stream.isatty() for stream in (sys.stdout, sys.stderr))
        progress.shows_status = is_terminal and progress.run.writes and logger.isEnabledFor(logging.INFO)

    def show(self):
        """Draws the bar below all other output."""
        progress = self._progress
        if not progress.shows_status:
            return
        if self._bar is None:
            self._bar = tqdm.tqdm(
                total=progress.max_steps,
                bar_format="{n_fmt}/{total_fmt} {percentage:.0f} % {bar} {desc}",
                file=sys.stderr,
                dynamic_ncols=True,
                leave=False,
                miniters=1,
                delay=1e-9,
            )
        self._bar.n = progress.step
        self._bar.set_description_str(progress.status, refresh=False)
        self._bar.display()

    def hide(self):
        """Removes the bar; what is printed next begins on its line."""
        if self._bar is not None:
            self._bar.clear()

    def close(self):
        """Removes the bar for good."""
        self.hide()
        if self._bar is not None:
            self._bar.close()


class Events:
    """Writes TensorBoard event files into a run folder; does nothing on workers other than the chief.

    Args:
        run: `RunFolder`.
    """

    def __init__(self, run):
        self._run = run

    @functools.cached_property
    def _writer(self):
        # Created at first use, as it creates a file: a run that is already finished needs none.
        if not self._run.writes:
            return tf.summary.create_noop_writer()
        return tf.summary.create_file_writer(str(self._run.path / "tensorboard"))

    def scalars(self, group, step, record):
        """Writes the numbers of a history record as scalars `group/name`."""
        with self._writer.as_default():
            for name, value in record.items():
                if name not in ("step", "kind"):
                    tf.summary.scalar(f"{group}/{name}", value, step=step)

    def table(self, tag, step, header, rows):
        """Writes a table as text.

        Args:
            tag: name in TensorBoard.
            step: training step.
            header: list of str, the names of the columns.
            rows: list of lists of str, one for each line.
        """
        lines = [header, ["---"] * len(header), *rows]
        text = "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)
        with self._writer.as_default():
            tf.summary.text(tag, text, step=step)

    def flush(self):
        """Flushes pending events to the disk."""
        if "_writer" in vars(self):
            self._writer.flush()


def _cell(text):
    # In a Markdown table, a bar starts a new column and a line break a new row.
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").split())
