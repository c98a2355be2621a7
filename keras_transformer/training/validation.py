"""Validation during training: loss, perplexity, BLEU of translations or F1 of trees, early stopping."""

import logging
import math

import keras
import numpy as np

from keras_transformer.checkpoints.averaging import ranked_steps
from keras_transformer.checkpoints.tensor_files import steps_in
from keras_transformer.config.training import SEARCH_METRICS
from keras_transformer.evaluation.bleu import bleu_scorer
from keras_transformer.evaluation.brackets import bracket_scores
from keras_transformer.text.trees import read_tree

logger = logging.getLogger(__name__)


def early_stopping_reason(records, training):
    """Returns the reason to stop early, or `None` to continue.

    Training stops after `patience` validations without a new best.

    Args:
        records: list of dict, as `RunFolder.read_history` returns.
        training: `TrainingConfig` with `patience` (0 never stops) and `best_metric`
            (`"loss"`: lower is better; `"bleu"` and `"f1"`: higher is better). Validations without
            this metric do not count.

    Returns:
        str that names the best validation, or `None`.
    """
    name = training.best_metric
    validations = [record for record in records if record["kind"] == "validation" and name in record]
    if not training.patience or not validations:
        return None
    ranks = [_rank(record[name], name) for record in validations]
    best = ranks.index(min(ranks))  # the first one if several are equal
    waited = len(ranks) - 1 - best
    if waited < training.patience:
        return None
    value = f"loss {validations[best]['loss']:.3f}"
    if name in SEARCH_METRICS:
        value = f"{SEARCH_METRICS[name]} {validations[best][name]:.2f}"
    times = "validation was" if waited == 1 else f"{waited} validations were"
    return f"the last {times} not better than step {validations[best]['step']:,} ({value})"


def _rank(value, name):
    """Returns a sort key: smaller is better, NaN and infinities last."""
    if not math.isfinite(value):
        return math.inf
    return value if name == "loss" else -value


METRICS = ("loss", "token_accuracy", "perplexity")
NUM_SAMPLES = 5
# Sentences translated between two checks for a signal.
CHUNK_SENTENCES = 128


class SearchValidator:
    """Translates the first n validation sentences with the search settings of the run, and scores the result.

    Subclasses define `metric`, `_translate` and `_score`.

    Args:
        translator: `Translator` or `Parser` of the model in training.
        pairs: `Pairs` of the validation split.
        config: `Config`; n is `training.validation_sentences`.
        interrupted: function without arguments; returns True once a signal was received.

    Attributes:
        metric: str, name of the score in records, a key of `SEARCH_METRICS`.
        label: text such as `"beam 4"`.
    """

    def __init__(self, translator, pairs, config, interrupted):
        number = config.training.validation_sentences
        self.translator, self.interrupted = translator, interrupted
        self.source, self.target = pairs.source[:number], pairs.target[:number]
        self.beam_size = config.training.validation_beam_size or config.search.beam_size
        self.label = "greedy" if self.beam_size == 1 else f"beam {self.beam_size}"
        # Sorted by length, as the translator makes batches within a chunk.
        self.order = sorted(range(len(self.source)), key=lambda i: len(self.source[i]))

    def __call__(self):
        """Translates the sentences.

        Returns:
            (float, the score in percent; list of `[source, translation, reference]` for the same few
            sentences each time), or `None` if interrupted.
        """
        translations = [""] * len(self.source)
        for begin in range(0, len(self.order), CHUNK_SENTENCES):
            if self.interrupted():
                return None
            numbers = self.order[begin : begin + CHUNK_SENTENCES]
            texts = self._translate([self.source[i] for i in numbers])
            for i, translation in zip(numbers, texts, strict=True):
                translations[i] = translation
        last = len(self.source) - 1
        shown = sorted({round(i) for i in np.linspace(0, last, NUM_SAMPLES)})
        samples = [[self.source[i], translations[i], self.target[i]] for i in shown]
        return self._score(translations), samples


class BleuValidator(SearchValidator):
    """`SearchValidator` of translation: sacreBLEU."""

    metric = "bleu"

    def __init__(self, translator, pairs, config, interrupted):
        super().__init__(translator, pairs, config, interrupted)
        self.scorer = bleu_scorer(config.data.target)

    def _translate(self, texts):
        return self.translator.translate(texts, beam_size=self.beam_size, n_best=1, mbr=False)

    def _score(self, translations):
        return self.scorer.corpus_score(translations, [self.target]).score


class BracketValidator(SearchValidator):
    """`SearchValidator` of parsing: F1 of evalb, all lengths."""

    metric = "f1"

    def _translate(self, texts):
        return [parsed.text for parsed in self.translator.parse(texts, beam_size=self.beam_size)]

    def _score(self, trees):
        gold, parses = ([read_tree(text) if text else None for text in side] for side in (self.target, trees))
        return bracket_scores(gold, parses).all.f1


class Validation(keras.callbacks.Callback):
    """Validates every `validate_every_steps` steps and at the end; stops training early.

    BLEU and F1 are computed from what search finds, never from teacher-forced output. All workers
    compute loss and perplexity; only the chief translates.

    Args:
        run: `RunFolder`.
        clock: `Clock`.
        events: `Events`.
        batches: `tf.data.Dataset` of the validation set, or a distributed one.
        num_batches: number of batches of the validation set.
        search_validator: `SearchValidator`, or `None` for no search.
        training: `TrainingConfig`.
        stop: function of a reason, str, that ends training after this step.
        interrupted: function without arguments; returns True once a signal was received. The
            validation is then abandoned without a record; the resumed run repeats it first.
        given: list of `GivenCallbacks`, whose epoch a validation ends.

    Attributes:
        stopped_early: whether a validation has stopped training.
    """

    def __init__(
        self,
        run,
        clock,
        events,
        batches,
        num_batches,
        search_validator,
        *,
        training,
        stop,
        interrupted,
        given=(),
    ):
        super().__init__()
        self.run, self.clock, self.events = run, clock, events
        self.batches, self.num_batches, self.search_validator = batches, num_batches, search_validator
        self.training, self.stop, self.interrupted, self.given = training, stop, interrupted, given
        self.validated = 0  # step of the last validation; step 0 needs none
        self.stopped_early = False

    def on_train_begin(self, logs=None):
        self.catch_up()
        self.step = int(self.model.optimizer.iterations.numpy())

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        if self._due(self.step):
            self._end_epoch(self.validate(self.step))

    def on_train_end(self, logs=None):
        if self.step != self.validated:
            self._end_epoch(self.validate(self.step))

    def catch_up(self, always=False):
        """Completes the validation of a restored checkpoint, which a killed process may not have finished.

        Validates if a validation is due at this step and has no record. With a record, saves the weights
        if they are among the best and missing.

        `on_train_begin` calls it as well, but then at least one step follows. To stop early before
        any step, call it first, after `set_model`.

        Args:
            always: whether a validation is due at any step, as at the end of training.
        """
        step = int(self.model.optimizer.iterations.numpy())
        if step == self.validated:
            return
        records = self.run.read_history()
        if step in {record["step"] for record in records if record["kind"] == "validation"}:
            self.validated = step
            best = ranked_steps(records, self.training.best_metric)[: self.training.keep_best]
            if step in best and step not in steps_in(self.run.path / "best"):
                self.run.keep_best(self.model)
        elif always or self._due(step):
            self.validate(step)

    def validate(self, step):
        """Validates once, then logs and records the result; no effect if a signal interrupts it.

        Returns:
            dict of metrics, or `None` if interrupted.
        """
        begin = self.clock.seconds
        with self.clock.outside_steps():
            record, samples = self._measure()
            if record is None:
                return None
            self.validated = step
            if not self.run.writes:
                return record
            self.run.append_history({"kind": "validation", "step": step, "minutes": begin / 60, **record})
            self.run.keep_best(self.model)
            self.events.scalars("validation", step, {**record, "minutes": begin / 60})
            if samples:
                self.events.table("validation/samples", step, ["source", "translation", "reference"], samples)
            self.events.flush()
        searched = ""
        if self.search_validator is not None and (name := self.search_validator.metric) in record:
            searched = f" | {SEARCH_METRICS[name]} {record[name]:.2f} ({self.search_validator.label})"
        logger.info(
            f"validation  {step:,} | loss {record['loss']:.3f}"
            f" | ppl {record['perplexity']:.2f}"
            f" | acc {100 * record['token_accuracy']:.1f} %{searched}"
            f" | took {self.clock.seconds - begin:.0f} s"
        )
        reason = early_stopping_reason(self.run.read_history(), self.training)
        if reason:
            self.stopped_early = True
            self.stop(reason)
        return record

    def _end_epoch(self, record):
        sums = self.model.interval_sums()  # a callback may call `evaluate`, which resets the metrics
        with self.clock.outside_steps():
            for given in self.given:
                given.end_epoch(record)
        self.model.set_interval_sums(sums)

    def measure(self):
        """Validates the current weights without logging or recording.

        Returns:
            dict of metrics, or `None` if a signal interrupts it.
        """
        return self._measure()[0]

    def _due(self, step):
        return step % self.training.validate_every_steps == 0 or step == self.training.max_steps

    def _measure(self):
        """Returns the metrics and the sample translations; `(None, [])` if interrupted."""
        if self.interrupted():
            return None, []
        # `evaluate` resets the metrics of the current training interval: save and restore them.
        sums = self.model.interval_sums()
        metrics = self.model.evaluate(
            self.batches,
            steps=self.num_batches,
            verbose=0,
            return_dict=True,
            callbacks=[
                keras.callbacks.LambdaCallback(on_test_batch_end=self._stop_if_interrupted),
                *self.given,
            ],
        )
        self.model.set_interval_sums(sums)
        if self.model.stop_evaluating:
            return None, []
        record = {name: float(metrics[name]) for name in METRICS}
        if self.search_validator is None or not self.run.writes:
            return record, []
        result = self.search_validator()
        if result is None:
            return None, []
        score, samples = result
        return {**record, self.search_validator.metric: score}, samples

    def _stop_if_interrupted(self, batch, logs=None):
        """Ends `evaluate` after a batch once a signal was received; its result is then discarded."""
        self.model.stop_evaluating = self.interrupted()
