"""A whole training run: corpus, tokenizer, batches, model, `model.fit`, run folder."""

import pathlib
import random
import sys
from typing import NamedTuple

import keras

from keras_transformer import config as configs
from keras_transformer.data.feeding import training_batches, validation_batches
from keras_transformer.data.text import Pairs
from keras_transformer.data.training_data import load_training_data
from keras_transformer.evaluation import Scores, bleu_scorer, corpus_scores
from keras_transformer.files import write_text
from keras_transformer.losses import LabelSmoothedCrossEntropy
from keras_transformer.metrics import Perplexity, TokenAccuracy
from keras_transformer.model import Transformer
from keras_transformer.presets import with_vocab_size
from keras_transformer.schedules import TransformerSchedule
from keras_transformer.training.callbacks import Clock, Progress, Saving, TimeLimit, Validation
from keras_transformer.training.run_folder import RunFolder, check_unused
from keras_transformer.translator import Translator

CORPUS_SUM = "corpus.sha256"
# How long the run is, and where it finds its data: not what it computes.
MAY_CHANGE = (
    "training.max_steps",
    "training.max_minutes",
    "data.data_dir",
    "data.manual_dir",
    "data.service",
)


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


def compile_model(model, training):
    """Compiles a `Transformer` for the recipe of a `TrainingConfig` (section 5)."""
    schedule = TransformerSchedule(
        model.config.d_model, training.warmup_steps, scale=training.learning_rate_scale
    )
    optimizer = keras.optimizers.Adam(
        schedule,
        beta_1=training.adam_beta_1,
        beta_2=training.adam_beta_2,
        epsilon=training.adam_epsilon,
        global_clipnorm=training.clip_norm or None,
    )
    loss = LabelSmoothedCrossEntropy(
        training.label_smoothing, formula=training.smoothing_formula, pad_id=model.special.pad
    )
    pad_id = model.special.pad
    model.compile(optimizer, loss, [TokenAccuracy(pad_id=pad_id), Perplexity(pad_id=pad_id)])
    optimizer.build(model.trainable_variables)


def train(config, run_dir):
    """Trains a model, or continues the run in `run_dir`.

    Args:
        config: `Config`. Its vocabulary sizes are replaced by the tokenizer's.
        run_dir: a new or empty folder, or that of an earlier run with the same settings.

    Returns:
        `Result`, of the test split or, where there is none, of the validation split.

    Raises:
        ValueError: bad data, a folder in use, or other settings than the run's.
    """
    run_dir = pathlib.Path(run_dir)
    earlier = RunFolder(run_dir) if (run_dir / "config.json").exists() else None
    if earlier is None:
        check_unused(run_dir)
    data, training = config.data, config.training
    corpus = load_training_data(config, earlier.load_tokenizers() if earlier else None)
    print(
        f"corpus {data.dataset}: {corpus.train.num_pairs:,} training pairs,"
        f" {len(corpus.validation.source):,} for validation",
        flush=True,
    )
    config = with_vocab_size(configs.replace(config, data=corpus.data), *corpus.tokenizers.sizes)
    if earlier:
        _continue_with(earlier, config, corpus.sha256)
    batches = training_batches(config.data, corpus, seed=training.seed)
    validation, num_long = validation_batches(config.data, corpus)
    notes = list(corpus.notes)
    if num_long:
        notes.append(f"validation: left out {num_long:,} pairs of over {data.max_length} tokens")
    for note in notes:
        print(note, file=sys.stderr, flush=True)
    # The folder appears when nothing is left to refuse.
    run = earlier or RunFolder.create(run_dir, config, corpus.tokenizers)
    write_text(run.path / CORPUS_SUM, f"{corpus.sha256}\n")

    keras.utils.set_random_seed(training.seed)
    model = Transformer(run.config.model, dtype=training.precision)
    compile_model(model, training)
    print(
        f"model: {model.count_params():,} parameters, vocabulary {_sizes(corpus.tokenizers)};"
        f" {batches.per_epoch:,} batches an epoch of up to {data.batch_tokens:,} tokens a side,"
        f" {100 * batches.planner.real_share():.1f} % of them real",
        flush=True,
    )

    checkpoints = run.checkpoints(model, model.optimizer)
    step = checkpoints.restore()
    clock = Clock(float(checkpoints.seconds.numpy()))
    if earlier:
        run.rewind_history(step)
        print(f"continuing {run.path} at step {step:,}", flush=True)
    time_is_up = training.max_minutes and clock.seconds >= 60 * training.max_minutes
    if step < training.max_steps and not time_is_up:
        bleu = _validation_bleu(model, corpus.tokenizers, run.config, corpus.validation)
        model.fit(
            batches.forever(step),
            steps_per_epoch=training.max_steps - step,
            shuffle=False,
            verbose=0,
            callbacks=_callbacks(run, training, clock, checkpoints, validation.once(), bleu),
        )
    return _translate_unseen(run, model, corpus, training.average_last)


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


def _callbacks(run, training, clock, checkpoints, validation_batches, bleu):
    """What happens beside the steps, in this order: a state is saved before all else."""
    progress = Progress(
        run,
        clock,
        log_every_steps=training.log_every_steps,
        max_steps=training.max_steps,
        max_minutes=training.max_minutes,
    )
    callbacks = [
        Saving(
            checkpoints,
            clock,
            every_steps=training.checkpoint_every_steps,
            every_minutes=training.checkpoint_every_minutes,
        ),
        progress,
        Validation(
            run,
            clock,
            progress,
            validation_batches,
            bleu,
            every_steps=training.validate_every_steps,
            max_steps=training.max_steps,
        ),
    ]
    if training.max_minutes:
        callbacks.append(TimeLimit(clock, training.max_minutes))
    return callbacks


def _translate_unseen(run, model, corpus, average_last):
    """Averages the weights, translates the test (or validation) split and scores it."""
    averaged = run.average(last=average_last)
    run.load_weights(model, "averaged")
    split = corpus.test_name if corpus.test else "validation"
    pairs = corpus.test or corpus.validation
    search, target = run.config.search, run.config.data.target
    print(
        f"\ntranslating {split} with the mean of the newest checkpoints, {len(averaged)} of them"
        f" (beam {search.beam_size}, alpha {search.alpha:g})",
        flush=True,
    )
    translations = Translator(model, corpus.tokenizers, search).translate(pairs.source)
    scores = corpus_scores(translations, pairs.target, target_language=target)
    write_text(run.path / f"translations.{split}.{target}", "\n".join(translations) + "\n")
    run.append_history({"kind": "test", "split": split, **scores.to_dict()})
    return Result(run, split, pairs, translations, scores)


def _continue_with(run, config, identity):
    """Takes over what may change; refuses any other change."""
    changed = configs.differences(run.config, config)
    changed = [change for change in changed if change[0] not in MAY_CHANGE]
    if changed:
        path, before, after = changed[0]
        more = f" ({len(changed) - 1} more)" if len(changed) > 1 else ""
        raise ValueError(
            f"{run.path}: this run has {path}={before!r}, not {after!r}{more}. "
            "Continue it with its own settings or choose another --run-dir"
        )
    sums = run.path / CORPUS_SUM
    if sums.exists() and sums.read_text(encoding="utf-8").strip() != identity:
        raise ValueError(
            f"{run.path}: the training text is not the one that this run began with (see {CORPUS_SUM}). "
            "Put it back, or choose another --run-dir"
        )
    write_text(run.path / "config.json", configs.to_json(config))
    run.config = config


def _validation_bleu(model, tokenizers, config, pairs):
    limit = config.training.validation_sentences
    if not limit:
        return None
    source, target = pairs.source[:limit], pairs.target[:limit]
    translator = Translator(model, tokenizers, config.search)

    def bleu():
        translations = translator.translate(source, beam_size=1)
        return bleu_scorer(config.data.target).corpus_score(translations, [target]).score

    return bleu
