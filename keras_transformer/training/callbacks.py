"""What happens beside the training steps: progress, validation, checkpoints, time."""

import sys
import time

import keras
import tensorflow as tf


class Clock:
    """Training time of a run, over all its parts.

    Args:
        earlier: seconds of the parts before this one.
    """

    def __init__(self, earlier=0.0):
        self._earlier = earlier
        self._begin = time.monotonic()

    @property
    def seconds(self):
        """Seconds so far."""
        return self._earlier + time.monotonic() - self._begin


class Progress(keras.callbacks.Callback):
    """Prints, and records, the means of every `log_every_steps` steps.

    Args:
        run: `RunFolder`, for history and TensorBoard.
        clock: `Clock`.
        log_every_steps: steps between lines.
        max_steps: for the time left.
        max_minutes: for the time left; 0 for none.
    """

    def __init__(self, run, clock, *, log_every_steps, max_steps, max_minutes):
        super().__init__()
        self.run = run
        self.clock = clock
        self.log_every_steps = log_every_steps
        self.max_steps = max_steps
        self.max_minutes = max_minutes
        self.writer = tf.summary.create_file_writer(str(run.path / "tensorboard"))

    def on_train_begin(self, logs=None):
        self.first_step = self.last_step = int(self.model.optimizer.iterations)
        self.first_time = self.last_time = self.clock.seconds
        # Time that is not training (validation, checkpoints) counts for the time left
        # but not for the speed.
        self.other_seconds = 0.0

    def on_train_batch_end(self, batch, logs=None):
        step = int(self.model.optimizer.iterations)
        if step % self.log_every_steps and step != self.max_steps:
            return
        now = self.clock.seconds
        tokens = float(self.model.metrics[0].count)
        record = {
            "step": step,
            "minutes": now / 60,
            **{name: float(value) for name, value in logs.items()},
            "learning_rate": float(self.model.optimizer.learning_rate),
            "target_tokens_per_second": tokens / max(now - self.last_time - self.other_seconds, 1e-9),
        }
        self.model.reset_metrics()
        self.run.append_history({"kind": "train", **record})
        self.write_scalars("train", step, record)
        print(
            f"step {step:>7,}/{self.max_steps:,} | loss {record['loss']:.3f}"
            f" | ppl {record['perplexity']:.2f}"
            f" | acc {100 * record['token_accuracy']:.1f} %"
            f" | lr {record['learning_rate']:.2e}"
            f" | {record['target_tokens_per_second']:,.0f} target tokens/s"
            f" | {self.time_left(step)} left",
            flush=True,
        )
        self.last_step, self.last_time, self.other_seconds = step, self.clock.seconds, 0.0

    def on_train_end(self, logs=None):
        self.writer.flush()

    def write_scalars(self, group, step, record):
        """Writes the numbers of `record` for TensorBoard."""
        with self.writer.as_default():
            for name, value in record.items():
                if name not in ("step", "kind"):
                    tf.summary.scalar(f"{group}/{name}", value, step=step)

    def time_left(self, step):
        """Returns text such as `"12 min"`."""
        now = self.clock.seconds
        speed = (step - self.first_step) / max(now - self.first_time, 1e-9)
        seconds = (self.max_steps - step) / max(speed, 1e-9)
        if self.max_minutes:
            seconds = min(seconds, 60 * self.max_minutes - now)
        minutes = max(seconds, 0) / 60
        if minutes >= 120:
            return f"{minutes / 60:.1f} h"
        return f"{minutes:.0f} min" if minutes >= 2 else f"{60 * minutes:.0f} s"


class Validation(keras.callbacks.Callback):
    """Loss and perplexity of the validation set, and the BLEU of its translations.

    BLEU is always of translations that were searched (greedily, for speed), never of
    outputs that saw the reference.

    Args:
        run: `RunFolder`.
        clock: `Clock`.
        progress: `Progress`.
        batches: `tf.data.Dataset` of the validation set.
        bleu: function of no argument that returns the BLEU in percent, or `None`.
        every_steps: steps between validations.
        max_steps: the last step is validated, too.
    """

    def __init__(self, run, clock, progress, batches, bleu, *, every_steps, max_steps):
        super().__init__()
        self.run = run
        self.clock = clock
        self.progress = progress
        self.batches = batches
        self.bleu = bleu
        self.every_steps = every_steps
        self.max_steps = max_steps

    def on_train_begin(self, logs=None):
        self.validated = int(self.model.optimizer.iterations)

    def on_train_batch_end(self, batch, logs=None):
        step = int(self.model.optimizer.iterations)
        if step % self.every_steps == 0 or step == self.max_steps:
            self.validate(step)

    def on_train_end(self, logs=None):
        step = int(self.model.optimizer.iterations)
        if step != self.validated:
            self.validate(step)

    def validate(self, step):
        """Validates once, prints and records the result."""
        begin = self.clock.seconds
        # The means of the steps since the last line are put back afterwards.
        sums = [(metric.total.numpy(), metric.count.numpy()) for metric in self.model.metrics]
        record = self.model.evaluate(self.batches, verbose=0, return_dict=True)
        for metric, (total, count) in zip(self.model.metrics, sums, strict=True):
            metric.total.assign(total)
            metric.count.assign(count)
        record = {name: float(value) for name, value in record.items()}
        if self.bleu is not None:
            record["bleu"] = self.bleu()
        self.validated = step
        seconds = self.clock.seconds - begin
        self.progress.other_seconds += seconds
        self.run.append_history({"kind": "validation", "step": step, "minutes": begin / 60, **record})
        self.progress.write_scalars("validation", step, record)
        bleu = f" | BLEU {record['bleu']:.2f} (greedy)" if "bleu" in record else ""
        print(
            f"validation  {step:,} | loss {record['loss']:.3f}"
            f" | ppl {record['perplexity']:.2f}"
            f" | acc {100 * record['token_accuracy']:.1f} %{bleu} | took {seconds:.0f} s",
            flush=True,
        )


class Saving(keras.callbacks.Callback):
    """Writes checkpoints every so many steps, every so many minutes, and at the end.

    Args:
        checkpoints: `Checkpoints`.
        clock: `Clock`.
        every_steps: 0 for none.
        every_minutes: 0 for none.
    """

    def __init__(self, checkpoints, clock, *, every_steps, every_minutes):
        super().__init__()
        self.checkpoints = checkpoints
        self.clock = clock
        self.every_steps = every_steps
        self.every_minutes = every_minutes

    def on_train_begin(self, logs=None):
        self.saved_at = self.clock.seconds

    def on_train_batch_end(self, batch, logs=None):
        step = int(self.model.optimizer.iterations)
        minutes = (self.clock.seconds - self.saved_at) / 60
        due = self.every_steps and step % self.every_steps == 0
        if due or (self.every_minutes and minutes >= self.every_minutes):
            self.checkpoints.save(self.clock.seconds)
            self.saved_at = self.clock.seconds

    def on_train_end(self, logs=None):
        self.checkpoints.save(self.clock.seconds)


class TimeLimit(keras.callbacks.Callback):
    """Ends training after the step in which the time is up.

    Args:
        clock: `Clock`.
        max_minutes: of the whole run.
    """

    def __init__(self, clock, max_minutes):
        super().__init__()
        self.clock = clock
        self.max_minutes = max_minutes

    def on_train_batch_end(self, batch, logs=None):
        if self.clock.seconds >= 60 * self.max_minutes:
            print(f"stopping: {self.max_minutes:g} minutes are up", file=sys.stderr)
            self.model.stop_training = True
