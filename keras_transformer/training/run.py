"""A whole training run: corpus, tokenizer, batches, model, `model.fit`, run folder."""

import contextlib
import dataclasses
import pathlib
import random
import sys
from typing import NamedTuple

import keras
import tensorflow as tf

from keras_transformer import config as configs
from keras_transformer.data.feeding import training_batches, validation_batches
from keras_transformer.data.prepared import is_prepared
from keras_transformer.data.text import Pairs
from keras_transformer.data.training_data import load_training_data
from keras_transformer.evaluation import Scores, corpus_scores
from keras_transformer.files import write_text
from keras_transformer.losses import LabelSmoothedCrossEntropy
from keras_transformer.metrics import Perplexity, Tally, TokenAccuracy
from keras_transformer.model import Transformer
from keras_transformer.presets import with_vocab_size
from keras_transformer.schedules import TransformerSchedule
from keras_transformer.training.clock import Clock
from keras_transformer.training.crash import advice, write_crash_dump
from keras_transformer.training.early_stopping import early_stopping_reason
from keras_transformer.training.errors import NotFiniteError
from keras_transformer.training.events import Events
from keras_transformer.training.initial_weights import initialize_from
from keras_transformer.training.notes import depth_note, learning_rate_note
from keras_transformer.training.placement import lost_worker, place
from keras_transformer.training.position import position_after_change
from keras_transformer.training.preflight import out_of_memory, try_largest
from keras_transformer.training.progress import Progress
from keras_transformer.training.resuming import CORPUS_SUM, continue_with
from keras_transformer.training.run_folder import RunFolder, check_unused
from keras_transformer.training.signals import Signals
from keras_transformer.training.steering import Agreement, Guard, Saving, Stopping
from keras_transformer.training.validation import Validation, ValidationSearch
from keras_transformer.translator import Translator

# Other batches of the same pairs: the run goes on at the pair where it was.
_SAME_PAIRS = {
    "data.batch_tokens",
    "data.padding",
    "data.max_shapes",
    "training.seed",
    "data.subword_dropout",
}


class Result(NamedTuple):
    """What a run ends with.

    Attributes:
        run: `RunFolder`.
        split: name of the split that was translated.
        pairs: `Pairs` of that split.
        translations: list of str, one for each pair.
        scores: `Scores` of the translations.
    """

    run: RunFolder
    split: str
    pairs: Pairs
    translations: list
    scores: Scores


def compile_model(model, training, *, xla=False):
    """Compiles a `Transformer` for the recipe of a `TrainingConfig` (section 5)."""
    optimizer = keras.optimizers.Adam(
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
    metrics = [TokenAccuracy(pad_id=pad_id), Perplexity(pad_id=pad_id), Tally()]
    model.compile(optimizer, loss, metrics, ema_decay=training.ema_decay, jit_compile=xla)


def learning_rate_schedule(model, training):
    """Returns the schedule of a `ModelConfig` and a `TrainingConfig`."""
    return TransformerSchedule(model.d_model, training.warmup_steps, scale=training.learning_rate_scale)


def train(config, run_dir, *, allowed=(), resume_from=None):
    """Trains a model, or continues the run in `run_dir`.

    Args:
        config: `Config`. Its vocabulary sizes are replaced by the tokenizer's.
        run_dir: a new or empty folder, or that of an earlier run with the same settings.
        allowed: names of settings that a run that continues may change, although they
            change what is computed.
        resume_from: step of an earlier checkpoint to continue from, instead of the newest.

    Returns:
        `Result`, of the test split or, where there is none, of the validation split; `None` on
        a worker that is not the chief.

    Raises:
        ValueError: bad data, a folder in use, devices that are not there, or other settings
            than the run's.
        TrainingError: of `training.errors`: the run ended early. What is saved is whole.
    """
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(Signals().caught())
        placement = place(config.devices, precision=config.training.precision)
        # Among several workers TensorFlow has put its own handler of SIGTERM in place.
        stack.enter_context(signals.caught())
        session = _open(config, pathlib.Path(run_dir), placement, allowed, stack)
        try:
            step = _fit(session, placement, signals, resume_from)
        except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError) as error:
            if placement.num_workers == 1:
                raise
            raise lost_worker(error) from error
        return _translate_unseen(session, step) if placement.is_chief else None


class _Session(NamedTuple):
    """What a run works on."""

    run: RunFolder
    is_new: bool
    corpus: object  # TrainingData
    batches: object  # TokenBatches
    validation: object  # TokenBatches
    first_batch: object  # function from the old number of the next batch to the new, or `None`


def _open(config, run_dir, placement, allowed, stack):
    """Loads the data and makes or opens the run folder: the chief first, then the others."""
    earlier = None
    if not placement.is_chief:
        placement.gather(0)  # the chief has made the folder
        earlier = RunFolder(run_dir, writes=False)
    elif (run_dir / "config.json").exists():
        earlier = RunFolder(run_dir)
        stack.enter_context(earlier.lock())
        earlier.clean()
    else:
        check_unused(run_dir)
    tokenizers = earlier.load_tokenizers() if earlier else _initial_tokenizers(config)
    corpus = load_training_data(config, tokenizers)
    config = with_vocab_size(configs.replace(config, data=corpus.data), *corpus.tokenizers.sizes)
    changes = []
    if earlier:
        agreed = earlier.config
        changes = continue_with(earlier, config, sha256=corpus.sha256, allowed=allowed)
        if not placement.is_chief:
            # What may differ between runs may not between workers, but for the places of files.
            places = {name: getattr(config.data, name) for name in ("data_dir", "manual_dir", "service")}
            data = dataclasses.replace(agreed.data, **places)
            earlier.config = dataclasses.replace(agreed, data=data, devices=config.devices)
    batches = training_batches(config.data, corpus, seed=config.training.seed)
    validation, num_long = validation_batches(config.data, corpus)
    # The folder appears when nothing is left to refuse.
    run = earlier or RunFolder.create(run_dir, config, corpus.tokenizers)
    if placement.is_chief:
        if not earlier:
            stack.enter_context(run.lock())
            write_text(run.path / CORPUS_SUM, f"{corpus.sha256}\n")
        _tell(run.config, corpus, num_long)
        placement.gather(0)
    return _Session(run, earlier is None, corpus, batches, validation, _moved(changes, batches, corpus))


def _initial_tokenizers(config):
    """The vocabulary of the run that a new one starts from, where it is wanted."""
    training = config.training
    if not training.init_from or not training.init_vocabulary or is_prepared(config.data.dataset):
        return None
    return RunFolder(training.init_from).load_tokenizers()


def _tell(config, corpus, num_long):
    """Prints what the run reads and what is worth a note."""
    print(
        f"corpus {config.data.dataset}: {corpus.train.num_pairs:,} training pairs,"
        f" {len(corpus.validation.source):,} for validation",
        flush=True,
    )
    notes = list(corpus.notes)
    if num_long:
        notes.append(f"validation: left out {num_long:,} pairs of over {config.data.max_length} tokens")
    notes += [note for note in (learning_rate_note(config), depth_note(config)) if note]
    for note in notes:
        print(note, file=sys.stderr, flush=True)


def _moved(changes, batches, corpus):
    """Returns where a run goes on whose batches have changed; `None` where they have not."""
    names = {
        name
        for name, *_ in changes
        if name.startswith(("data.", "cleaning.", "corpus.")) or name in _SAME_PAIRS
    }
    names -= {"data.data_dir", "data.manual_dir", "data.service"}
    if not names:
        return None

    def first_batch(number, config):
        before = {name: old for name, old, _ in changes}
        if names <= _SAME_PAIRS:
            data = {path.partition(".")[2]: before[path] for path in names if path.startswith("data.")}
            old = training_batches(
                configs.replace(config.data, **data, service=""),
                corpus,
                seed=before.get("training.seed", config.training.seed),
            )
            return position_after_change(old, batches, number)
        return 0

    return first_batch


def _fit(session, placement, signals, resume_from):
    """Trains as far as the settings say; returns the step it ended at."""
    run, batches = session.run, session.batches
    config, training = run.config, run.config.training
    keras.utils.set_random_seed(training.seed)
    with placement.strategy.scope():
        model = Transformer(config.model, dtype=training.precision)
        compile_model(model, training, xla=config.devices.xla)
    if placement.is_chief:
        print(
            f"model: {model.count_params():,} parameters, vocabulary {_sizes(session.corpus.tokenizers)};"
            f" {batches.per_epoch:,} batches an epoch of up to {config.data.batch_tokens:,} tokens a side,"
            f" {100 * batches.planner.real_share():.1f} % of them real; on {placement.describe()}",
            flush=True,
        )
    if session.is_new and training.init_from:
        source = RunFolder(training.init_from)
        found = initialize_from(model, session.corpus.tokenizers, source, weights=training.init_weights)
        model.reset_ema()
        print(found.text, flush=True)

    checkpoints = run.checkpoints(model, model.optimizer)
    step = _restore(checkpoints, placement, resume_from)
    if not session.is_new:
        run.rewind_history(step)
    if session.first_batch is not None:
        read = int(checkpoints.first_batch) + step - int(checkpoints.first_step)
        checkpoints.first_step.assign(step)
        checkpoints.first_batch.assign(session.first_batch(read, config))
    clock = Clock(float(checkpoints.seconds.numpy()))
    # The chief has written what the others read.
    done = bool(placement.gather(int(_is_done(run, step, clock)))[0])
    if placement.is_chief and not session.is_new:
        print(f"{run.path}: {'trained' if done else 'continuing'} at step {step:,}", flush=True)
    _train_on(session, placement, signals, model, checkpoints, step, clock, done)
    return int(model.optimizer.iterations.numpy())


def _restore(checkpoints, placement, resume_from):
    """Restores the state that the chief chooses; all workers call it. Returns its step."""
    step = checkpoints.restore(resume_from) if placement.is_chief else 0
    step = placement.gather(step)[0]
    if not placement.is_chief and step:
        checkpoints.restore(step)
    return step


def _is_done(run, step, clock):
    training = run.config.training
    time_is_up = training.max_minutes and clock.seconds >= 60 * training.max_minutes
    stopped_early = early_stopping_reason(run.read_history(), training)
    return step >= training.max_steps or bool(time_is_up or stopped_early)


def _train_on(session, placement, signals, model, checkpoints, step, clock, done):
    """Trains, unless the run is done; in any case makes the validation that its last state lacks."""
    run, batches = session.run, session.batches
    config, training = run.config, run.config.training
    offset = int(checkpoints.first_batch) - int(checkpoints.first_step)
    tokens = config.devices.batch_tokens
    agreement, events = Agreement(placement.num_workers), Events(run)
    one_worker = placement.num_workers == 1
    stopping = Stopping(
        agreement, clock, signals, is_chief=placement.is_chief, max_minutes=training.max_minutes
    )

    def interrupted():
        # Several workers validate together, or not at all.
        return stopping.by_signal or (one_worker and signals.received is not None)

    search = None
    if training.validation_sentences and run.writes:
        translator = Translator(model, session.corpus.tokenizers, config.search)
        search = ValidationSearch(translator, session.corpus.validation, config, interrupted)
    validation = Validation(
        run,
        clock,
        events,
        placement.distribute(session.validation, tokens, lambda portions: portions.once()),
        session.validation.per_epoch,
        search,
        training=training,
        stop=stopping.stop,
        interrupted=interrupted,
    )
    validation.set_model(model)
    agreement.model = model
    with signals.deferred():
        validation.catch_up()
    if interrupted():
        raise stopping.error(run.path, step)
    # It may have been one too many without progress; the chief knows, as it wrote the record.
    stopped_early = early_stopping_reason(run.read_history(), training) is not None
    if done or placement.gather(int(stopped_early))[0]:
        return
    callbacks = [
        Guard(training.max_skipped, is_chief=placement.is_chief),
        Progress(
            run,
            clock,
            events,
            learning_rate_schedule(config.model, training),
            log_every_steps=training.log_every_steps,
            max_steps=training.max_steps,
            max_minutes=training.max_minutes,
        ),
        # After the line of the same step, which ends an interval; before what takes long.
        Saving(
            checkpoints,
            agreement,
            clock,
            is_chief=placement.is_chief,
            every_steps=training.checkpoint_every_steps,
            every_minutes=training.checkpoint_every_minutes,
        ),
        validation,
        stopping,
    ]
    dataset = placement.distribute(batches, tokens, lambda portions: portions.forever(offset + step))
    largest = try_largest(model, placement, batches, config)
    try:
        with signals.deferred():
            model.fit(
                dataset,
                steps_per_epoch=training.max_steps - step,
                shuffle=False,
                verbose=0,
                callbacks=callbacks,
            )
    except tf.errors.ResourceExhaustedError as error:
        raise out_of_memory(largest, config, error) from error
    except NotFiniteError as error:
        failed = int(model.optimizer.iterations.numpy())
        plan = next(batches.plans(offset + failed - 1))
        with contextlib.suppress(OSError):  # a full disk is not what ended this run
            write_crash_dump(run, model, failed, batches.batch(plan), plan.key, run.read_history())
        raise NotFiniteError(
            f"{error}. {run.path / 'crash'} has the batch; {advice(config, failed)}"
        ) from error
    if stopping.by_signal or interrupted():
        raise stopping.error(run.path, int(model.optimizer.iterations.numpy()))


def report(result, *, examples=10):
    """Returns the end of a run as text: unseen sentences, the score, what to do next."""
    data = result.run.config.data
    lines = []
    numbers = range(len(result.translations))
    for i in sorted(random.Random(1).sample(numbers, min(examples, len(numbers)))):
        lines += [
            f"  source      {result.pairs.source[i]}",
            f"  translation {result.translations[i]}",
            f"  reference   {result.pairs.target[i]}",
            "",
        ]
    run = result.run.path
    return "\n".join(
        [
            *lines,
            f"scores on {result.split}:",
            str(result.scores),
            "",
            "next:",
            f"  echo 'your sentence' | python pipelines/translate.py {run}",
            f"  python pipelines/evaluate_wmt.py {run} --dataset {data.dataset} --split {result.split}",
            f"  tensorboard --logdir {run / 'tensorboard'}",
        ]
    )


def _sizes(tokenizers):
    source, target = tokenizers.sizes
    return f"{source:,}" if tokenizers.shared else f"{source:,} and {target:,}"


def _translate_unseen(session, step):
    """Averages the weights, translates the test (or validation) split and scores it, once."""
    run, corpus = session.run, session.corpus
    split = corpus.test_name if corpus.test else "validation"
    pairs = corpus.test or corpus.validation
    search, target = run.config.search, run.config.data.target
    path = run.path / f"translations.{split}.{target}"
    scored = [
        (record["split"], record.get("step")) for record in run.read_history() if record["kind"] == "test"
    ]
    if (split, step) in scored and path.exists():
        print(
            f"{run.path}: finished before; nothing to do. To go on, raise training.max_steps"
            " (or max_minutes)",
            flush=True,
        )
        translations = path.read_text(encoding="utf-8").split("\n")[:-1]
        scores = corpus_scores(translations, pairs.target, target_language=target)
        return Result(run, split, pairs, translations, scores)
    averaged = run.average(last=run.config.training.average_last)
    print(
        f"\ntranslating {split} with the mean of the newest checkpoints, {len(averaged)} of them"
        f" (beam {search.beam_size}, alpha {search.alpha:g})",
        flush=True,
    )
    translations = Translator.load(run.path).translate(pairs.source)
    scores = corpus_scores(translations, pairs.target, target_language=target)
    write_text(path, "\n".join(translations) + "\n")
    run.append_history({"kind": "test", "split": split, "step": step, **scores.to_dict()})
    return Result(run, split, pairs, translations, scores)
