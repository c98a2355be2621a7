"""Validation within real training: what it measures, when, what it leaves, what it leaves alone."""

import keras
import numpy as np
import pytest
import sacrebleu
import tensorflow as tf

from keras_transformer.config.settings import SearchConfig, replace
from keras_transformer.model.transformer import Transformer
from keras_transformer.text.lines import Pairs
from keras_transformer.tokenizers.sentencepiece import SubwordTokenizer
from keras_transformer.training import validation as validations
from keras_transformer.training.progress import Clock, Events, Progress
from keras_transformer.training.validation import BleuValidator, Validation
from keras_transformer.translation.translator import Translator

pytestmark = pytest.mark.slow

TEXTS = ["The dog reads a text.", "Der Hund liest einen Text.", "A dog and a text.", "der Hund | die Katze"]
PAIRS = Pairs(
    [f"The dog reads {'a ' * (7 * i % 11)}text {i}." for i in range(13)],
    [f"Der Hund | liest {'a ' * (5 * i % 7)}Text {i}." for i in range(13)],
)
STEPS = 7


@pytest.fixture(scope="module")
def tokenizer():
    return SubwordTokenizer.train(TEXTS * 3, vocab_size=290)


@pytest.fixture(scope="module")
def config(tiny, tokenizer):
    sizes = {"source_vocab_size": tokenizer.vocab_size, "target_vocab_size": tokenizer.vocab_size}
    config = tiny.config(model=sizes, max_steps=STEPS, validate_every_steps=3, validation_sentences=11)
    return replace(config, search=SearchConfig(beam_size=3, max_length_offset=2))


@pytest.fixture(scope="module")
def new(tiny, config):
    """A model, and its state before the first step."""
    model = tiny.model(config)
    return model, tiny.state_of(model)


@pytest.fixture(scope="module")
def translator(new, tokenizer, config):
    return Translator(new[0], tokenizer, config.search)


def never():
    return False


class Stopper(keras.callbacks.Callback):
    """`stop`, and the state before what follows a step."""

    def __init__(self, tiny):
        super().__init__()
        self.tiny, self.reasons, self.states = tiny, [], {}

    def __call__(self, reason):
        self.reasons.append(reason)
        self.model.stop_training = True

    def on_train_batch_end(self, batch, logs=None):
        self.states[int(self.model.optimizer.iterations)] = self.tiny.state_of(self.model)


@pytest.fixture
def fit(tiny, config, new, translator):
    """Trains from a step to the last; returns the `Stopper`."""
    model, initial = new

    def fit(
        run, *, state=initial, start=0, bleu=True, interrupted=never, validates=True, more=(), **training
    ):
        settings = replace(config, training=replace(config.training, **training))
        stopper, clock, events = Stopper(tiny), Clock(), Events(run)
        last = settings.training.max_steps
        callbacks = [
            stopper,
            Progress(
                run, clock, events, lambda step: 0.01, log_every_steps=2, max_steps=last, max_minutes=0.0
            ),
            *more,
        ]
        if validates:
            bleu_validator = BleuValidator(translator, PAIRS, settings, interrupted) if bleu else None
            fit.validation = Validation(
                run,
                clock,
                events,
                tiny.stream([tiny.batch(5, (4, 2), (3, 7)), tiny.batch(6, (4,), (2,))]),
                2,
                bleu_validator,
                training=settings.training,
                stop=stopper,
                interrupted=interrupted,
            )
            callbacks.append(fit.validation)
        tiny.restore(model, state)
        batches = tiny.stream([tiny.batch(number, (3, 5), (4, 2)) for number in range(start, last)])
        model.fit(batches, steps_per_epoch=last - start, shuffle=False, verbose=0, callbacks=callbacks)
        return stopper

    return fit


def without_times(records):
    return [
        {name: value for name, value in record.items() if name != "minutes" and "per_second" not in name}
        for record in records
    ]


def test_it_is_at_its_steps_and_at_the_end(tiny, fit, tmp_path):
    run = tiny.Run(tmp_path / "run")
    fit(run, bleu=False)
    assert [record["step"] for record in run.of_kind("validation")] == [3, 6, 7]
    assert set(run.of_kind("validation")[0]) == {
        "kind",
        "step",
        "minutes",
        "loss",
        "token_accuracy",
        "perplexity",
    }


def test_the_last_step_is_validated_once(tiny, fit, tmp_path):
    run = tiny.Run(tmp_path / "run")
    fit(run, bleu=False, max_steps=6)
    assert [record["step"] for record in run.of_kind("validation")] == [3, 6]


def test_loss_and_perplexity_are_those_of_all_validation_tokens(tiny, fit, new, tmp_path):
    run, model = tiny.Run(tmp_path / "run"), new[0]
    fit(run, bleu=False)
    losses, entropies, correct = [], [], []
    for inputs, labels in (tiny.batch(5, (4, 2), (3, 7)), tiny.batch(6, (4,), (2,))):
        real = labels != 0
        log_probs = tf.nn.log_softmax(model(inputs)).numpy().astype("float64")
        of_label = np.take_along_axis(log_probs, labels[..., None], -1)[..., 0]
        others = (log_probs.sum(-1) - of_label) / (log_probs.shape[-1] - 1)
        losses += list(-(0.9 * of_label + 0.1 * others)[real])
        entropies += list(-of_label[real])
        correct += list((log_probs.argmax(-1) == labels)[real])
    assert len(losses) == 12
    record = run.of_kind("validation")[-1]
    assert record["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert record["perplexity"] == pytest.approx(np.exp(np.mean(entropies)), rel=1e-5)
    assert record["token_accuracy"] == pytest.approx(np.mean(correct), abs=1e-9)


@pytest.mark.parametrize(
    ("beam_size", "used", "label"), [(0, 3, "beam 3"), (1, 1, "greedy"), (2, 2, "beam 2")]
)
def test_bleu_is_that_of_sacrebleu_over_searched_translations(
    tiny, fit, translator, tmp_path, capsys, monkeypatch, beam_size, used, label
):
    monkeypatch.setattr(validations, "CHUNK_SENTENCES", 4)
    run = tiny.Run(tmp_path / "run")
    fit(run, max_steps=3, validation_beam_size=beam_size)
    translations = translator.translate(PAIRS.source[:11], beam_size=used)
    bleu = sacrebleu.BLEU(trg_lang="de").corpus_score(translations, [PAIRS.target[:11]]).score
    assert run.of_kind("validation")[0]["bleu"] == pytest.approx(bleu, abs=1e-9)
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("validation  3 | loss ")
    assert f" | BLEU {bleu:.2f} ({label}) | took " in line


class Parrot:
    """A translator that gives the reference, or some other text for the first sentence."""

    def __init__(self, calls=None):
        self.calls = [] if calls is None else calls

    def translate(self, texts, *, beam_size, n_best, mbr):
        assert (n_best, mbr) == (1, False)  # whatever the search settings of the run are
        self.calls.append(texts)
        reference = dict(zip(*PAIRS, strict=True))
        return ["falsch" if text == PAIRS.source[0] else reference[text] for text in texts]


def test_translations_come_back_in_the_order_of_the_references(config, monkeypatch):
    monkeypatch.setattr(validations, "CHUNK_SENTENCES", 4)
    parrot = Parrot()
    bleu, samples = BleuValidator(parrot, PAIRS, config, never)()
    assert sorted(sum(parrot.calls, [])) == sorted(PAIRS.source[:11])
    assert [len(texts) for texts in parrot.calls] == [4, 4, 3]
    expected = ["falsch", *PAIRS.target[1:11]]
    score = sacrebleu.BLEU(trg_lang="de").corpus_score(expected, [PAIRS.target[:11]]).score
    assert bleu == pytest.approx(score, abs=1e-9)
    # The first, the last, and three between.
    numbers = [0, 2, 5, 8, 10]
    assert samples == [[PAIRS.source[i], expected[i], PAIRS.target[i]] for i in numbers]


def test_few_sentences_are_each_shown_once(config):
    pairs = Pairs(PAIRS.source[:3], PAIRS.target[:3])
    _, samples = BleuValidator(Parrot(), pairs, config, never)()
    assert [row[0] for row in samples] == pairs.source


def test_tensorboard_shows_numbers_and_samples(tiny, fit, translator, tmp_path):
    run = tiny.Run(tmp_path / "run")
    fit(run, max_steps=3)
    found = tiny.events_in(run.path / "tensorboard")
    (record,) = run.of_kind("validation")
    for name in ("loss", "perplexity", "token_accuracy", "bleu"):
        assert found[f"validation/{name}", 3] == pytest.approx(record[name], rel=1e-6)
    header, ruler, *rows = found["validation/samples", 3].decode().split("\n")
    assert (header, ruler) == ("| source | translation | reference |", "| --- | --- | --- |")
    assert len(rows) == 5
    assert rows[0].startswith("| The dog reads text 0. | ")
    # The bar of the text is no border of a cell.
    assert rows[0].endswith(r" | Der Hund \| liest Text 0. |")
    assert all(row.replace(r"\|", "").count("|") == 4 for row in rows)


def test_training_goes_on_as_if_there_had_been_no_validation(tiny, fit, new, tmp_path):
    with_it, without = tiny.Run(tmp_path / "with"), tiny.Run(tmp_path / "without")
    fit(with_it)
    state = tiny.state_of(new[0])
    fit(without, validates=False)
    assert without_times(with_it.of_kind("train")) == without_times(without.history)
    for one, other in zip(state[0], tiny.state_of(new[0])[0], strict=True):
        np.testing.assert_array_equal(one, other)
    assert state[1] == tiny.state_of(new[0])[1]


def test_the_best_weights_are_updated_when_the_record_is_there(tiny, fit, new, tmp_path):
    run = tiny.Run(tmp_path / "run")
    fit(run, bleu=False)
    places = [number for number, record in enumerate(run.history) if record["kind"] == "validation"]
    assert run.updates == [(new[0], place + 1) for place in places]


def test_a_worker_that_does_not_write_computes_the_loss_alone(tiny, fit, tmp_path, capsys, monkeypatch):
    run, calls = tiny.Run(tmp_path / "run", writes=False), []
    monkeypatch.setattr(BleuValidator, "__call__", lambda self: calls.append("translated"))
    evaluate = Transformer.evaluate
    monkeypatch.setattr(
        Transformer, "evaluate", lambda *a, **k: calls.append("evaluated") or evaluate(*a, **k)
    )
    fit(run)
    assert calls == ["evaluated"] * 3
    assert (run.history, run.updates, list(run.path.iterdir())) == ([], [], [])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("stopped", [3, 6])
def test_a_validation_that_was_due_is_made_first(tiny, fit, tmp_path, stopped):
    # Killed between the checkpoint of a step and its records.
    whole, resumed = tiny.Run(tmp_path / "whole"), tiny.Run(tmp_path / "resumed")
    states = fit(whole).states
    resumed.history = [record for record in whole.history if record["step"] < stopped]
    fit(resumed, state=states[stopped], start=stopped)
    assert without_times(resumed.history) == without_times(whole.history)


@pytest.mark.parametrize("stopped", [3, 5])
def test_a_validation_that_was_made_or_not_due_is_not_made_again(tiny, fit, tmp_path, stopped):
    whole, resumed = tiny.Run(tmp_path / "whole"), tiny.Run(tmp_path / "resumed")
    states = fit(whole).states
    resumed.history = [record for record in whole.history if record["step"] <= stopped]
    fit(resumed, state=states[stopped], start=stopped)
    assert without_times(resumed.history) == without_times(whole.history)


def test_a_finished_run_can_catch_up_without_a_step(tiny, fit, new, tmp_path):
    run = tiny.Run(tmp_path / "run")
    fit(run)
    expected = run.history.pop()
    assert (expected["kind"], expected["step"]) == ("validation", STEPS)
    fit.validation.validated = 0  # as in a new process
    fit.validation.catch_up()
    fit.validation.catch_up()
    assert without_times(run.history[-1:]) == without_times([expected])
    assert len(run.of_kind("validation")) == 3


def test_the_best_weights_that_a_kill_prevented_are_made_up_for(tiny, fit, new, tmp_path):
    run = tiny.Run(tmp_path / "run")
    fit(run, bleu=False, max_steps=3)

    def catch_up(keep_best):
        run.updates.clear()
        fit.validation.training = replace(fit.validation.training, keep_best=keep_best)
        fit.validation.validated = 0  # as in a new process
        fit.validation.catch_up()
        return run.updates

    assert catch_up(keep_best=1) == [(new[0], len(run.history))]
    assert catch_up(keep_best=0) == []
    (run.path / "best").mkdir()
    (run.path / "best" / "step-3.index").touch()
    assert catch_up(keep_best=1) == []
    assert len(run.of_kind("validation")) == 1


def test_weights_that_a_finished_run_ends_with_are_validated_at_any_step(tiny, fit, tmp_path):
    run = tiny.Run(tmp_path / "run")
    fit(run, bleu=False, more=[Signal(4)])
    expected = run.history.pop()
    assert (expected["kind"], expected["step"]) == ("validation", 4)
    fit.validation.validated = 0  # as in a new process
    fit.validation.catch_up()
    assert [record["step"] for record in run.of_kind("validation")] == [3]
    fit.validation.catch_up(always=True)
    assert without_times(run.history[-1:]) == without_times([expected])


class Signal(keras.callbacks.Callback):
    """A signal at a step: `stop_training`, and True from then on; or only at the n-th question."""

    def __init__(self, step=None, question=None):
        super().__init__()
        self.step, self.question, self.asked, self.came = step, question, 0, False

    def __call__(self):
        self.asked += 1
        self.came = self.came or self.asked == self.question
        return self.came

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) == self.step:
            self.came = self.model.stop_training = True


@pytest.mark.parametrize("step", [3, 4])
def test_a_run_that_a_signal_ends_is_not_validated(tiny, fit, tmp_path, step):
    run, signal = tiny.Run(tmp_path / "run"), Signal(step)
    fit(run, interrupted=signal, more=[signal])
    assert {record["step"] for record in run.of_kind("validation")} == {3} - {step}


def test_a_run_that_ends_early_for_another_reason_is_validated(tiny, fit, tmp_path):
    run = tiny.Run(tmp_path / "run")
    fit(run, bleu=False, more=[Signal(4)])
    assert [record["step"] for record in run.of_kind("validation")] == [3, 4]


# Asked before all, after each of two batches, and before each of three chunks.
@pytest.mark.parametrize("question", [1, 2, 3, 4, 6])
def test_a_signal_ends_a_validation_between_its_parts_and_leaves_no_record(
    tiny, fit, new, tmp_path, monkeypatch, question
):
    monkeypatch.setattr(validations, "CHUNK_SENTENCES", 4)
    run, signal = tiny.Run(tmp_path / "run"), Signal(question=question)
    fit(run, interrupted=signal, max_steps=3)
    assert run.of_kind("validation") == []
    assert run.updates == []
    # Asked once more at the end of training.
    assert signal.asked == question + 1
    assert new[0].interval_sums()["tally/steps"] == 1  # step 3, after the line of step 2


def test_without_a_signal_all_parts_ask(tiny, fit, tmp_path, monkeypatch):
    monkeypatch.setattr(validations, "CHUNK_SENTENCES", 4)
    run, signal = tiny.Run(tmp_path / "run"), Signal()
    fit(run, interrupted=signal, max_steps=3)
    assert signal.asked == 6
    assert len(run.of_kind("validation")) == 1


def test_early_stopping_asks_to_stop_and_says_why(tiny, fit, tmp_path, monkeypatch):
    run, losses = tiny.Run(tmp_path / "run"), iter([3.0, 2.0, 2.5, 2.0, 1.0])
    evaluate = Transformer.evaluate

    def given(*args, **kwargs):
        return {**evaluate(*args, **kwargs), "loss": next(losses)}

    monkeypatch.setattr(Transformer, "evaluate", given)
    stopper = fit(run, bleu=False, validate_every_steps=1, patience=2)
    assert stopper.reasons == ["the last 2 validations were not better than step 2 (loss 2.000)"]
    assert [record["step"] for record in run.of_kind("validation")] == [1, 2, 3, 4]
