"""From a session to a trained model: `model.fit` with all that happens beside it."""

import contextlib
import functools

import keras
import tensorflow as tf

from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.checkpoints.weights import write_final_weights
from keras_transformer.config.programs import NotFiniteError
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
from keras_transformer.training.progress import Clock, Events, Progress, learning_rate_schedule
from keras_transformer.training.resume import batch_offset
from keras_transformer.training.validation import Validation, ValidationSearch, early_stopping_reason
from keras_transformer.translation.translator import Translator


def compile_model(model, training, *, xla=False, recompute=False):
    """Compiles a `Transformer` for the recipe of a `TrainingConfig` (section 5).

    Args:
        model: `Transformer`.
        training: `TrainingConfig`.
        xla: as in `DeviceConfig`.
        recompute: as in `DeviceConfig`.
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
        optimizer, loss, metrics, ema_decay=training.ema_decay, recompute=recompute, jit_compile=xla
    )


def fit_session(session, devices, signals, resume_from):
    """Trains as far as the settings say, from the newest checkpoint or from that of a step.

    Args:
        session: `Session`.
        devices: `Devices`.
        signals: `Signals`.
        resume_from: int, or `None`.

    Returns:
        int, the step it ended at.

    Raises:
        ValueError: checkpoints or initial weights are refused.
        TrainingError: the run ended early.
    """
    run, batches = session.run, session.batches
    config, training = run.config, run.config.training
    keras.utils.set_random_seed(training.seed)
    with devices.strategy.scope():
        model = Transformer(config.model, dtype=training.precision)
        compile_model(model, training, xla=config.devices.xla, recompute=config.devices.recompute)
    if devices.is_chief:
        share = devices.share(config.devices.micro_batch_tokens)
        table = summarize(
            config,
            session.corpus,
            batches,
            {share.shape(plan)[1:] for plan in batches.planner.plan(0)},
            num_parameters=model.count_params(),
            learning_rate=learning_rate_schedule(model.config, training),
            devices=devices.describe(),
        )
        print(table, flush=True)
    checkpoints = run.checkpoints(model, model.optimizer)
    is_fresh = bool(devices.gather(int(not checkpoints.steps))[0])
    if is_fresh and training.init_from:
        source = RunFolder(training.init_from)
        found = initialize_from(model, session.corpus.tokenizers, source, checkpoint=training.init_checkpoint)
        model.reset_ema()
        if devices.is_chief:
            print(found, flush=True)
    # All restore the state that the chief chooses.
    step = checkpoints.restore(resume_from) if devices.is_chief else 0
    step = devices.gather(step)[0]
    if not devices.is_chief and not is_fresh:
        checkpoints.restore(step)
    run.rewind_history(step)
    offset = batch_offset(checkpoints, config, session.corpus, batches)
    clock = Clock(float(checkpoints.seconds.numpy()))
    # The chief has written what the others read.
    done = bool(devices.gather(int(_is_done(run, step, clock)))[0])
    if devices.is_chief and not is_fresh:
        print(f"{run.path}: {'trained' if done else 'continuing'} at step {step:,}", flush=True)
    _train_and_finish(session, devices, signals, model, checkpoints, offset, clock, done)
    return int(model.optimizer.iterations.numpy())


def _is_done(run, step, clock):
    training = run.config.training
    time_is_up = training.max_minutes and clock.seconds >= 60 * training.max_minutes
    stopped_early = early_stopping_reason(run.read_history(), training)
    return step >= training.max_steps or bool(time_is_up or stopped_early)


def _train_and_finish(session, devices, signals, model, checkpoints, offset, clock, done):
    """Trains, unless the run is done; makes the validation that its last state lacks, and delivers."""
    run, batches = session.run, session.batches
    config, training = run.config, run.config.training
    step = int(model.optimizer.iterations.numpy())
    tokens = config.devices.micro_batch_tokens
    consensus, events = WorkerConsensus(devices.num_workers), Events(run)
    one_worker = devices.num_workers == 1
    stopping = StopCallback(
        consensus, clock, signals, is_chief=devices.is_chief, max_minutes=training.max_minutes
    )

    def interrupted():
        # Several workers validate together, or not at all.
        return stopping.by_signal or (one_worker and signals.received is not None)

    def stop_if_interrupted():
        if stopping.by_signal or interrupted():
            raise stopping.error(run.path, int(model.optimizer.iterations.numpy()))

    def finish():
        with signals.deferred():
            write_final_weights(run, model, devices, validation.measure)
        stop_if_interrupted()

    search = None
    if training.validation_sentences and run.writes:
        translator = Translator(model, session.corpus.tokenizers, config.search)
        search = ValidationSearch(translator, session.corpus.validation, config, interrupted)
    validation = Validation(
        run,
        clock,
        events,
        devices.distribute(tokens, lambda share: session.validation.dataset(share=share)),
        session.validation.per_epoch,
        search,
        training=training,
        stop=stopping.stop,
        interrupted=interrupted,
    )
    validation.set_model(model)
    consensus.model = model
    with signals.deferred():
        validation.catch_up()
    stop_if_interrupted()
    # It may have been one too many without progress; the chief knows, as it wrote the record.
    stopped_early = early_stopping_reason(run.read_history(), training) is not None
    if done or devices.gather(int(stopped_early))[0]:
        finish()
        return
    callbacks = [
        NonFiniteGuard(training.max_nonfinite_steps, is_chief=devices.is_chief),
        Progress(
            run,
            clock,
            events,
            learning_rate_schedule(config.model, training),
            log_every_steps=training.log_every_steps,
            max_steps=training.max_steps,
            max_minutes=training.max_minutes,
            time_note=functools.partial(time_note, training),
        ),
        # After the line of the same step, which ends an interval; before what takes long.
        CheckpointCallback(checkpoints, consensus, clock, training, is_chief=devices.is_chief),
        validation,
        stopping,
    ]
    if devices.is_chief:
        print("compiling, and trying the largest batch", flush=True)
    with signals.deferred():
        largest = try_largest_batch(model, devices, batches, config)
    try:
        with signals.deferred():
            _fit(model, batches, devices, tokens, offset + step, offset + training.max_steps, callbacks)
    except tf.errors.ResourceExhaustedError as error:
        raise out_of_memory_error(largest, config, error) from error
    except NotFiniteError as error:
        failed = int(model.optimizer.iterations.numpy())
        number = offset + failed - 1
        plan = batches.planner.plans(number)[0]
        batch = next(batches.dataset(number).as_numpy_iterator())
        with contextlib.suppress(OSError):  # a full disk is not what ended this run
            write_crash_dump(run, model, failed, batch, plan.key, run.read_history())
        raise NotFiniteError(
            f"{error}. {run.path / 'crash'} has the batch; {advice(config, failed)}"
        ) from error
    stop_if_interrupted()
    finish()


def _fit(model, batches, devices, tokens, begin, end, callbacks):
    """Trains on the batches from number `begin` to before `end`.

    Each `fit` has the epochs of about 1,000 batches: a dataset whose plan is known is all graph.
    """
    callbacks = _CallbacksAcrossFits(callbacks, add_history=True, model=model)
    while begin < end and not callbacks.has_stopped:
        epochs, steps = batches.stretch(begin, min(1000, end - begin))
        # Without end, or each step of several replicas would ask all of them whether they have a batch.
        dataset = devices.distribute(
            tokens, lambda share, begin=begin, epochs=epochs: batches.dataset(begin, epochs, share).repeat()
        )
        steps = min(steps, end - begin)
        model.fit(dataset, steps_per_epoch=steps, shuffle=False, verbose=0, callbacks=callbacks)
        begin += steps
    callbacks.finish()


class _CallbacksAcrossFits(keras.callbacks.CallbackList):
    """Callbacks for which several calls of `fit` are one training."""

    has_begun = False

    @property
    def has_stopped(self):
        """Whether a callback has ended the training."""
        return self.has_begun and self._model.stop_training

    def on_train_begin(self, logs=None):
        if not self.has_begun:
            self.has_begun = True
            super().on_train_begin(logs)

    def on_train_end(self, logs=None):
        pass  # of one `fit`; see `finish`

    def finish(self):
        """Tells the callbacks that the training is over."""
        super().on_train_end()
