"""Training: builds the model, restores a checkpoint, runs `model.fit` with its callbacks."""

import contextlib
import functools
import logging

import keras
import tensorflow as tf

from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.checkpoints.weights import write_final_weights
from keras_transformer.config.programs import NotFiniteError
from keras_transformer.config.training import TrainingConfig
from keras_transformer.model.loss import LabelSmoothedCrossEntropy
from keras_transformer.model.metrics import Perplexity, StepCounters, TokenAccuracy
from keras_transformer.model.optimizer import Adam
from keras_transformer.model.transformer import Transformer
from keras_transformer.training.before_training import (
    out_of_memory_error,
    summarize,
    time_note,
    try_largest_batch,
)
from keras_transformer.training.callbacks import (
    CheckpointCallback,
    NonFiniteGuard,
    StopCallback,
    WorkerConsensus,
)
from keras_transformer.training.crash_report import advice, write_crash_dump
from keras_transformer.training.fine_tuning import initialize_from
from keras_transformer.training.given_callbacks import GivenCallbacks
from keras_transformer.training.progress import Clock, Events, Progress, ProgressBar, learning_rate_schedule
from keras_transformer.training.resume import batch_offset
from keras_transformer.training.validation import (
    BleuValidator,
    BracketValidator,
    Validation,
    early_stopping_reason,
)
from keras_transformer.translation.parser import Parser
from keras_transformer.translation.translator import Translator

logger = logging.getLogger(__name__)


def compile_model(
    model: Transformer,
    training: TrainingConfig,
    *,
    xla: bool = False,
    recompute: bool = False,
    towers: int = 1,
) -> None:
    """Compiles a `Transformer` with optimizer, schedule, loss and metrics of section 5.

    Args:
        model: `Transformer`.
        training: `TrainingConfig`.
        xla: whether XLA compiles the training step; see `DeviceConfig`.
        recompute: whether the backward pass recomputes the layers to save memory; see `DeviceConfig`.
        towers: number of parts of each batch that are computed side by side; see `DeviceConfig.cpu_towers`.
    """
    optimizer = Adam(
        learning_rate_schedule(model.config, training),
        beta_1=training.adam_beta_1,
        beta_2=training.adam_beta_2,
        epsilon=training.adam_epsilon,
        global_clipnorm=training.clip_norm or None,
    )
    pad_id = model.special.pad
    loss = LabelSmoothedCrossEntropy(
        training.label_smoothing, formula=training.smoothing_formula, pad_id=pad_id
    )
    metrics = [TokenAccuracy(pad_id=pad_id), Perplexity(pad_id=pad_id), StepCounters()]
    model.compile(
        optimizer,
        loss,
        metrics,
        ema_decay=training.ema_decay,
        recompute=recompute,
        towers=towers,
        jit_compile=xla,
    )


def fit_session(session, devices, signals, resume_from, callbacks=()):
    """Trains a run to its end, from scratch or from a checkpoint, and writes its final weights.

    A run ends after `max_steps` updates, after `max_minutes`, or by early stopping.

    Args:
        session: `Session`: run folder, corpus and batches.
        devices: `Devices`.
        signals: `Signals`.
        resume_from: int, step of the checkpoint to continue from; `None` for the newest, if there is one.
        callbacks: list of `keras.callbacks.Callback` given to `train`.

    Returns:
        int, the number of updates that the run has made.

    Raises:
        ValueError: the checkpoints or the initial weights cannot be used.
        TrainingError: training was stopped by a signal or by a failure, such as non-finite gradients.
    """
    run, batches = session.run, session.batches
    config, training = run.config, run.config.training
    keras.utils.set_random_seed(training.seed)
    with devices.strategy.scope():
        model = Transformer(config.model, dtype=training.precision)
        compile_model(
            model,
            training,
            xla=config.devices.xla,
            recompute=config.devices.recompute,
            towers=devices.towers,
        )
    if devices.is_chief:
        share = devices.share(config.devices.micro_batch_tokens)  # how batches are divided among devices
        # (rows, source_len, target_len) of the micro-batches of one device in the first epoch.
        shapes = {share.shape(plan)[1:] for plan in batches.planner.plan(0)}
        table = summarize(
            config,
            session.corpus,
            batches,
            shapes,
            num_parameters=model.count_params(),
            learning_rate=learning_rate_schedule(model.config, training),
            devices=devices.describe(),
        )
        logger.info(table)
    checkpoints = run.checkpoints(model, model.optimizer)
    # The chief decides for all workers: `gather(...)[0]` is its value.
    is_new = bool(devices.gather(int(not checkpoints.steps))[0])
    if is_new and training.init_from:
        source = RunFolder(training.init_from)
        summary = initialize_from(
            model, session.corpus.tokenizers, source, checkpoint=training.init_checkpoint
        )
        model.reset_ema()
        if devices.is_chief:
            logger.info(summary)
    # The other workers restore the checkpoint that the chief has chosen.
    step = checkpoints.restore(resume_from) if devices.is_chief else 0
    step = devices.gather(step)[0]
    if not devices.is_chief and not is_new:
        checkpoints.restore(step)
    run.rewind_history(step)
    # Step s is followed by batch `s + offset`, counted from epoch 0.
    offset = batch_offset(checkpoints, config, session.corpus, batches)
    clock = Clock(_seconds_before(run, step, checkpoints))
    # The chief decides this too: other workers may have read the history before the chief rewrote it.
    is_finished = bool(devices.gather(int(_is_finished(run, step, clock)))[0])
    if devices.is_chief and not is_new:
        message = f"already finished at step {step:,}. To train longer, {_how_to_prolong(run, step)}"
        logger.info(f"{run.path}: {message if is_finished else f'continuing at step {step:,}'}")
    _train_and_finish(session, devices, signals, model, checkpoints, offset, clock, is_finished, callbacks)
    return int(model.optimizer.iterations.numpy())


def _final_record(run, step):
    """Returns the record of the final weights of this step, or an empty dict."""
    records = [record for record in run.read_history() if record.get("step") == step]
    return next((record for record in reversed(records) if record.get("kind") == "final"), {})


def _seconds_before(run, step, checkpoints):
    """Returns the training time of a run when it was at this step, in seconds."""
    # A checkpoint is saved before the validation of its step, during which `max_minutes` may have ended.
    return max(float(checkpoints.seconds.numpy()), 60 * _final_record(run, step).get("minutes", 0.0))


def _is_finished(run, step, clock):
    """Whether a run has reached `max_steps` or `max_minutes`, or has stopped early."""
    training = run.config.training
    # However little time there is, one update is made: a run without any has no weights to deliver.
    time_is_up = step > 0 and training.max_minutes and clock.seconds >= 60 * training.max_minutes
    return step >= training.max_steps or bool(time_is_up or _has_stopped_early(run, step))


def _has_stopped_early(run, step):
    training = run.config.training
    if early_stopping_reason(run.read_history(), training):
        return True
    # Several workers make one more step before they stop. It is validated too, and may be a new best.
    return _final_record(run, step).get("stopped_early") == _stopping_rule(training)


def _stopping_rule(training):
    return {"patience": training.patience, "best_metric": training.best_metric}


def _how_to_prolong(run, step):
    """Returns what to do to train a finished run longer."""
    training = run.config.training
    if step >= training.max_steps:
        return "raise training.max_steps"
    if _has_stopped_early(run, step):
        return f"raise training.patience (now {training.patience}; 0 for never)"
    return "raise training.max_minutes"


def _train_and_finish(session, devices, signals, model, checkpoints, offset, clock, is_finished, callbacks):
    """Runs `model.fit`, unless the run is finished, and writes the final weights.

    If a validation is due at the restored step but not in the history, it runs first.
    """
    run, batches = session.run, session.batches
    config, training = run.config, run.config.training
    step = int(model.optimizer.iterations.numpy())
    micro_batch_tokens = config.devices.micro_batch_tokens
    consensus, events = WorkerConsensus(devices.num_workers), Events(run)
    is_single_worker = devices.num_workers == 1
    stop_callback = StopCallback(
        consensus, clock, signals, is_chief=devices.is_chief, max_minutes=training.max_minutes
    )

    def is_interrupted():
        # Several workers validate together, and a signal may reach only one of them. So a signal has no
        # effect until `stop_callback` has stopped all of them at the same step.
        return stop_callback.by_signal or (is_single_worker and signals.received is not None)

    def raise_if_interrupted():
        if is_interrupted():
            raise stop_callback.error(run.path, int(model.optimizer.iterations.numpy()))

    def finish():
        ending = {"minutes": clock.seconds / 60}
        step = int(model.optimizer.iterations.numpy())
        if validation_callback.stopped_early or _has_stopped_early(run, step):
            ending["stopped_early"] = _stopping_rule(training)
        with signals.deferred():
            write_final_weights(run, model, devices, validation_callback.measure, **ending)
        raise_if_interrupted()

    schedule = learning_rate_schedule(config.model, training)
    given = [GivenCallbacks(callbacks, training, schedule, stop_callback.stop)] if callbacks else []
    search_validator = None
    if training.validation_sentences and run.writes:
        make, validate = (Parser, BracketValidator) if config.data.parses else (Translator, BleuValidator)
        translator = make(model, session.corpus.tokenizers, config.search, threads=devices.towers)
        search_validator = validate(translator, session.corpus.validation, config, is_interrupted)
    validation_callback = Validation(
        run,
        clock,
        events,
        devices.distribute(micro_batch_tokens, lambda share: session.validation.dataset(share=share)),
        session.validation.per_epoch,
        search_validator,
        training=training,
        stop=stop_callback.stop,
        interrupted=is_interrupted,
        given=given,
    )
    validation_callback.set_model(model)
    consensus.model = model
    with signals.deferred():
        validation_callback.catch_up(always=is_finished)
    raise_if_interrupted()
    # After `catch_up`, early stopping may be due. The chief decides, because only it has written the
    # result of the validation.
    stopped_early = early_stopping_reason(run.read_history(), training) is not None
    if is_finished or devices.gather(int(stopped_early))[0]:
        finish()
        return
    progress = Progress(
        run,
        clock,
        events,
        schedule,
        log_every_steps=training.log_every_steps,
        max_steps=training.max_steps,
        max_minutes=training.max_minutes,
        time_note=functools.partial(time_note, training),
    )
    callbacks = [
        NonFiniteGuard(training.max_nonfinite_steps, is_chief=devices.is_chief),
        *given,
        progress,
        # After `Progress`, which resets the metrics: a checkpoint must contain the reset metrics. Before
        # `validation_callback`: a checkpoint that is due is then saved before a long validation at this step.
        CheckpointCallback(checkpoints, consensus, clock, training, is_chief=devices.is_chief),
        validation_callback,
        stop_callback,
    ]
    if devices.is_chief:
        logger.info("compiling and trying the largest batch")
    with signals.deferred():
        largest_shape = try_largest_batch(model, devices, batches, config)
    try:
        with signals.deferred(), contextlib.closing(ProgressBar(progress)) as bar:
            begin, end = offset + step, offset + training.max_steps
            _fit(model, batches, devices, micro_batch_tokens, begin, end, callbacks, bar)
            for each in given:
                each.end()
    except tf.errors.ResourceExhaustedError as error:
        raise out_of_memory_error(largest_shape, config, error) from error
    except NotFiniteError as error:
        failed_step = int(model.optimizer.iterations.numpy())
        batch_number = offset + failed_step - 1
        plan = batches.planner.plans(batch_number)[0]
        batch = next(batches.dataset(batch_number).as_numpy_iterator())
        folder = None  # stays so if the folder cannot be written, and on workers that do not write
        with contextlib.suppress(OSError):  # a full disk must not hide the non-finite gradient
            folder = write_crash_dump(run, model, failed_step, batch, plan.key, run.read_history())
        batch_note = f". The batch is in {folder}" if folder else ""
        raise NotFiniteError(f"{error}{batch_note}; {advice(config, failed_step)}") from error
    raise_if_interrupted()
    finish()


def _fit(model, batches, devices, micro_batch_tokens, begin, end, callbacks, bar):
    """Trains on batches `begin` to `end - 1` of the run, numbered across epochs.

    Each call of `model.fit` is one Keras epoch. It stops at the first end of a data epoch after at least
    1,000 batches, or at `end` if that comes sooner. Its batches are planned before the call, so the dataset
    runs no Python functions, except with sub-word sampling.
    """
    callbacks = _CallbacksAcrossFits(callbacks, add_history=True, model=model)
    callbacks.bar = bar
    while begin < end and not callbacks.has_stopped:
        epochs, steps = batches.count_epochs(begin, min(1000, end - begin))
        # `repeat` makes the dataset endless: with a finite one, TensorFlow checks at every step whether each
        # replica has a batch left.
        dataset = devices.distribute(
            micro_batch_tokens,
            lambda share, begin=begin, epochs=epochs: batches.dataset(begin, epochs, share).repeat(),
        )
        steps = min(steps, end - begin)
        model.fit(dataset, steps_per_epoch=steps, shuffle=False, verbose=0, callbacks=callbacks)
        begin += steps
    callbacks.finish()


class _CallbacksAcrossFits(keras.callbacks.CallbackList):
    """Callback list for several calls of `model.fit`: `on_train_begin` and `on_train_end` run only once.

    The progress bar is shown while a step runs, and hidden while callbacks do, as they may print.
    """

    has_begun = False
    bar = None

    @property
    def has_stopped(self):
        """Whether a callback has set `model.stop_training`."""
        return self.has_begun and self._model.stop_training

    def on_train_begin(self, logs=None):
        if not self.has_begun:
            self.has_begun = True
            super().on_train_begin(logs)

    def on_train_batch_begin(self, batch, logs=None):
        super().on_train_batch_begin(batch, logs)
        self.bar.show()

    def on_train_batch_end(self, batch, logs=None):
        self.bar.hide()
        super().on_train_batch_end(batch, logs)

    def on_train_end(self, logs=None):
        pass  # `finish` calls the callbacks after the last `model.fit`

    def finish(self):
        """Calls `on_train_end` of all callbacks."""
        super().on_train_end()
