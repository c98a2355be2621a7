"""Validation during training: loss, perplexity, BLEU of searched translations; early stopping."""

import math

import keras
import numpy as np

from keras_transformer.evaluation.bleu import bleu_scorer


def early_stopping_reason(records, training):
    """Says why the run ends, if it does.

    Args:
        records: list of dict, as `RunFolder.read_history` returns.
        training: `TrainingConfig`, of which `patience` is the patience n and
            `best_metric` the measure: a lower loss or a higher BLEU.

    Returns:
        str, where the last n validations were no better than the best before them, which
        it names; else `None`.
    """
    name = training.best_metric
    validations = [record for record in records if record["kind"] == "validation"]
    if not training.patience or not validations:
        return None
    ranks = [_rank(record[name], name) for record in validations]
    best = ranks.index(min(ranks))  # the first of equals
    waited = len(ranks) - 1 - best
    if waited < training.patience:
        return None
    value = f"loss {validations[best]['loss']:.3f}"
    if name == "bleu":
        value = f"BLEU {validations[best]['bleu']:.2f}"
    times = "validation was" if waited == 1 else f"{waited} validations were"
    return f"the last {times} no better than step {validations[best]['step']:,} ({value})"


def _rank(value, name):
    """A number that is smaller for a better validation; one that is no number is the worst."""
    if not math.isfinite(value):
        return math.inf
    return value if name == "loss" else -value


METRICS = ("loss", "token_accuracy", "perplexity")
NUM_SAMPLES = 5
# Between so many sentences a translation may be given up.
CHUNK_SENTENCES = 128


class ValidationSearch:
    """Translates the first validation sentences, by the search that is used afterwards.

    Args:
        translator: `Translator` of the model in training.
        pairs: `Pairs` of the validation split.
        config: `Config`.
        interrupted: function of no argument; True once a signal asked to end.

    Attributes:
        label: text such as `"beam 4"`.
    """

    def __init__(self, translator, pairs, config, interrupted):
        number = config.training.validation_sentences
        self.translator, self.interrupted = translator, interrupted
        self.source, self.target = pairs.source[:number], pairs.target[:number]
        self.beam_size = config.training.validation_beam_size or config.search.beam_size
        self.label = "greedy" if self.beam_size == 1 else f"beam {self.beam_size}"
        self.scorer = bleu_scorer(config.data.target)
        # Alike in length in a chunk, as the translator puts them into batches.
        self.order = sorted(range(len(self.source)), key=lambda i: len(self.source[i]))

    def __call__(self):
        """Translates them, unless it is interrupted.

        Returns:
            (float, sacreBLEU of the detokenised text in percent; list of `[source, translation, reference]`,
            always of the same sentences), or `None` where it was interrupted.
        """
        translations = [""] * len(self.source)
        for begin in range(0, len(self.order), CHUNK_SENTENCES):
            if self.interrupted():
                return None
            numbers = self.order[begin : begin + CHUNK_SENTENCES]
            found = self.translator.translate([self.source[i] for i in numbers], beam_size=self.beam_size)
            for i, translation in zip(numbers, found, strict=True):
                translations[i] = translation
        last = len(self.source) - 1
        shown = sorted({round(i) for i in np.linspace(0, last, NUM_SAMPLES)})
        bleu = self.scorer.corpus_score(translations, [self.target]).score
        return bleu, [[self.source[i], translations[i], self.target[i]] for i in shown]


class Validation(keras.callbacks.Callback):
    """Validates every so many steps and at the end; asks to stop where nothing gets better.

    BLEU is always of translations that were searched, never of outputs that saw the
    reference. Loss and perplexity are computed by all workers, translations by the one that
    writes.

    Args:
        run: `RunFolder`.
        clock: `Clock`.
        events: `Events`.
        batches: `tf.data.Dataset` of the validation set, or a distributed one.
        num_batches: how many batches it has.
        search: `ValidationSearch`, or `None` for no BLEU.
        training: `TrainingConfig`.
        stop: function that takes a reason and ends the run after this step.
        interrupted: function of no argument; True once a signal asked to end. A validation
            is given up then and leaves no record: the continued run makes it first.
    """

    def __init__(self, run, clock, events, batches, num_batches, search, *, training, stop, interrupted):
        super().__init__()
        self.run, self.clock, self.events = run, clock, events
        self.batches, self.num_batches, self.search = batches, num_batches, search
        self.training, self.stop, self.interrupted = training, stop, interrupted
        self.validated = 0  # the last step that was; before the first there is nothing to see

    def on_train_begin(self, logs=None):
        self.catch_up()
        self.step = int(self.model.optimizer.iterations.numpy())

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        if self._due(self.step):
            self.validate(self.step)

    def on_train_end(self, logs=None):
        if self.step != self.validated:
            self.validate(self.step)

    def catch_up(self):
        """Makes the validation of a restored state that was saved before it.

        `fit` calls it, but takes a step thereafter in any case: who wants to know before
        whether the run is to go on calls it first, after `set_model`.
        """
        step = int(self.model.optimizer.iterations.numpy())
        if step == self.validated:
            return
        records = self.run.read_history()
        if step in {record["step"] for record in records if record["kind"] == "validation"}:
            self.validated = step
        elif self._due(step):
            self.validate(step)

    def validate(self, step):
        """Validates once, prints and records the result, unless a signal asks to end."""
        begin = self.clock.seconds
        with self.clock.outside_steps():
            record, samples = self._measure()
            if record is None:
                return
            self.validated = step
            if not self.run.writes:
                return
            self.run.append_history({"kind": "validation", "step": step, "minutes": begin / 60, **record})
            self.run.keep_best(self.model)
            self.events.scalars("validation", step, {**record, "minutes": begin / 60})
            if samples:
                self.events.table("validation/samples", step, ["source", "translation", "reference"], samples)
            self.events.flush()
        bleu = f" | BLEU {record['bleu']:.2f} ({self.search.label})" if "bleu" in record else ""
        print(
            f"validation  {step:,} | loss {record['loss']:.3f}"
            f" | ppl {record['perplexity']:.2f}"
            f" | acc {100 * record['token_accuracy']:.1f} %{bleu}"
            f" | took {self.clock.seconds - begin:.0f} s",
            flush=True,
        )
        reason = early_stopping_reason(self.run.read_history(), self.training)
        if reason:
            self.stop(reason)

    def measure(self):
        """Returns the figures of the weights that the model has; `None` where a signal asks to end.

        They are neither printed nor recorded.
        """
        return self._measure()[0]

    def _due(self, step):
        return step % self.training.validate_every_steps == 0 or step == self.training.max_steps

    def _measure(self):
        """Returns the record and the samples; `(None, [])` where it was interrupted."""
        if self.interrupted():
            return None, []
        # The means of the steps since the last line are put back afterwards.
        sums = self.model.interval_sums()
        found = self.model.evaluate(
            self.batches,
            steps=self.num_batches,
            verbose=0,
            return_dict=True,
            callbacks=[keras.callbacks.LambdaCallback(on_test_batch_end=self._stop_if_interrupted)],
        )
        self.model.set_interval_sums(sums)
        if self.model.stop_evaluating:
            return None, []
        record = {name: float(found[name]) for name in METRICS}
        if self.search is None or not self.run.writes:
            return record, []
        translated = self.search()
        if translated is None:
            return None, []
        bleu, samples = translated
        return {**record, "bleu": bleu}, samples

    def _stop_if_interrupted(self, batch, logs=None):
        """Ends an evaluation after a batch; what it returns then is not to be looked at."""
        self.model.stop_evaluating = self.interrupted()
