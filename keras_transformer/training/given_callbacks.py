"""The Keras callbacks given to `train`: which are refused, and what they are called with."""

import collections
import logging
import math

import keras
import numpy as np

from keras_transformer.model.metrics import set_directions

logger = logging.getLogger(__name__)

_NO_EFFECT = "a callback has changed the weights after the last update: this has no effect"
_OWN_RATE = (
    "sets the learning rate, but the paper's schedule does: see training.learning_rate_scale and "
    "training.warmup_steps"
)
# Callbacks that the run cannot honour, and what to use instead.
_REFUSED = {
    keras.callbacks.ReduceLROnPlateau: _OWN_RATE,
    keras.callbacks.LearningRateScheduler: _OWN_RATE,
    keras.callbacks.BackupAndRestore: "restores weights, but a run resumes from its own checkpoints",
    keras.callbacks.SwapEMAWeights: "needs an optimizer with `use_ema`: set training.ema_decay instead",
}


def check_callbacks(callbacks, training):
    """Returns Keras callbacks as a flat list.

    Args:
        callbacks: `keras.callbacks.Callback`, or a list of them, as in `fit`; or `None`.
        training: `TrainingConfig`.

    Raises:
        TypeError: an object is no callback.
        ValueError: the run cannot honour a callback.
    """
    found = []
    for callback in [] if callbacks is None else keras.tree.flatten(callbacks):
        if isinstance(callback, keras.callbacks.CallbackList):
            found += check_callbacks(callback.callbacks, training)
            continue
        if isinstance(callback, type) and issubclass(callback, keras.callbacks.Callback):
            name = callback.__name__
            raise TypeError(f"`callbacks`: {name} is a class, not an object. Write {name}()")
        if not isinstance(callback, keras.callbacks.Callback):
            kind = f"{type(callback).__module__}.{type(callback).__qualname__}"
            raise TypeError(
                f"`callbacks` must be objects of keras.callbacks.Callback. Received: {callback!r} ({kind})"
            )
        if reason := _refusal(callback, training):
            raise ValueError(f"`callbacks`: {type(callback).__name__} {reason}")
        found.append(callback)
    return found


def _refusal(callback, training):
    """Returns why a callback is refused, or `None`."""
    for kind, reason in _REFUSED.items():
        if isinstance(callback, kind):
            return reason
    if isinstance(callback, keras.callbacks.EarlyStopping) and callback.restore_best_weights:
        return (
            "with restore_best_weights=True: the run keeps the weights of the best validation itself and "
            "chooses the final weights by training.best_metric. Use restore_best_weights=False"
        )
    if isinstance(callback, keras.callbacks.TerminateOnNaN) and training.precision == "mixed_float16":
        return (
            "with mixed_float16: overflows are normal there, and their updates are skipped. Set "
            "training.max_nonfinite_steps instead"
        )
    return None


class GivenCallbacks(keras.callbacks.Callback):
    """Calls the callbacks given to `train` as one `model.fit` from the first update to the last would.

    A batch is an update. An epoch lasts from one validation to the next, as with
    `fit(..., steps_per_epoch=validate_every_steps)`, and is numbered from the start of the run: the epoch of
    step s is `(s - 1) // validate_every_steps`. In the list of callbacks this one must precede `Progress`,
    which resets the metrics. `Validation` calls `end_epoch`; after the last `model.fit`, call `end`.

    Logs of a batch and of an epoch are means since the beginning of the epoch, or since the run was resumed:
    `loss`, `token_accuracy`, `perplexity` over target tokens, `gradient_norm` over updates; `learning_rate`
    is that of the last update. A skipped update, whose loss or gradient is not finite, has the loss NaN,
    except with mixed_float16.
    The end of an epoch adds the figures of the validation, with the prefix `val_`.

    Args:
        callbacks: list of `keras.callbacks.Callback`.
        training: `TrainingConfig`.
        schedule: a Keras learning rate schedule; `schedule(n)` is the rate of step n + 1.
        stop: function of a reason, str, that ends training after this step.
    """

    def __init__(self, callbacks, training, schedule, stop):
        super().__init__()
        self.callbacks, self.schedule, self.stop = callbacks, schedule, stop
        self.every_steps = training.validate_every_steps
        self.max_steps = training.max_steps
        self.num_epochs = math.ceil(training.max_steps / self.every_steps)
        self.overflows = training.precision == "mixed_float16"  # then skipped updates are normal
        self.list = None  # the `CallbackList` between the begin and the end of training
        self.epoch = None  # number of the epoch that has begun but not ended
        self.logs = None

    def on_train_begin(self, logs=None):
        self.step = int(self.model.optimizer.iterations.numpy())
        self.sums = self.model.interval_sums()
        self.list = keras.callbacks.CallbackList(
            self.callbacks, model=self.model, verbose=2, epochs=self.num_epochs, steps=self.every_steps
        )
        set_directions(self.callbacks, self.model.metrics)
        self.saved = None  # sums of the weights in the last checkpoint, at the end of training
        self.list.on_train_begin()
        self.model.set_interval_sums(self.sums)  # a callback may have called `evaluate`
        self._pass_on_stop()

    def on_train_batch_begin(self, batch, logs=None):
        if self.epoch is None:
            self.epoch, self.totals = self.step // self.every_steps, collections.Counter()
            self.list.on_epoch_begin(self.epoch)
        self.list.on_train_batch_begin(self.step % self.every_steps)

    def on_train_batch_end(self, batch, logs=None):
        batch = self.step % self.every_steps
        self.step += 1
        is_skipped = self._add_step()
        self.logs = self._means()
        shown = {"loss": math.nan} if is_skipped and not self.overflows else {}
        self.list.on_train_batch_end(batch, self.logs | shown)
        self._pass_on_stop()

    def on_train_end(self, logs=None):
        self.saved = self._sums_of_weights()  # `CheckpointCallback` saves the weights now

    def on_test_begin(self, logs=None):
        if self.list:
            self.list.on_test_begin(logs)

    def on_test_batch_begin(self, batch, logs=None):
        if self.list:
            self.list.on_test_batch_begin(batch, logs)

    def on_test_batch_end(self, batch, logs=None):
        if self.list:
            self.list.on_test_batch_end(batch, logs)

    def on_test_end(self, logs=None):
        if self.list:
            self.list.on_test_end(logs)

    def end_epoch(self, record=None):
        """Ends the epoch, if one has begun.

        Args:
            record: dict of the metrics of the validation; `None` if a signal has interrupted it.
        """
        if self.epoch is None:
            return
        self.logs = self.logs | {f"val_{name}": value for name, value in (record or {}).items()}
        epoch, self.epoch = self.epoch, None
        weights = self.model.get_weights() if self.step >= self.max_steps else []
        self.list.on_epoch_end(epoch, self.logs)
        if weights and any(map(np.any, map(np.not_equal, weights, self.model.get_weights()))):
            # They are validated and perhaps saved, and must stay what they were.
            self.model.set_weights(weights)
            logger.warning(_NO_EFFECT)
        self._pass_on_stop()

    def end(self):
        """Ends the epoch and the training."""
        self.end_epoch()
        ended, self.list = self.list, None
        ended.on_train_end(self.logs)
        if self._sums_of_weights() != self.saved:
            logger.warning(_NO_EFFECT)

    def _pass_on_stop(self):
        """Requests the end of training from all workers if a callback has set `model.stop_training`."""
        if self.model.stop_training and self.saved is None:
            self.model.stop_training = False
            self.stop("a callback has set model.stop_training")

    def _sums_of_weights(self):
        return [float(keras.ops.sum(weight)) for weight in self.model.trainable_weights]

    def _add_step(self):
        """Adds the sums of the last step to the totals of the epoch; returns whether the step was skipped."""
        before, self.sums = self.sums, self.model.interval_sums()
        if self.sums["tally/steps"] < before["tally/steps"] + 0.5:  # `Progress` has reset the metrics
            before = dict.fromkeys(before, 0.0)
        for name, value in self.sums.items():
            self.totals[name] += value - before[name]
        return self.sums["tally/skipped"] > before["tally/skipped"] + 0.5

    def _means(self):
        totals = self.totals
        means = {
            name: totals[f"{name}/total"] / max(totals[f"{name}/count"], 1.0)
            for name in ("loss", "token_accuracy", "perplexity")
        }
        applied = totals["tally/steps"] - totals["tally/skipped"]
        return {
            **means,
            "perplexity": math.exp(min(means["perplexity"], 709.0)),
            "gradient_norm": totals["tally/gradient_norm"] / max(applied, 1.0),
            "learning_rate": float(self.schedule(self.step - 1)),
        }
