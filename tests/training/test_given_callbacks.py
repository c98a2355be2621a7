"""Keras callbacks given to `train`: what they are called with, compared with stock Keras."""

import csv
import itertools
import json
import logging
import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import callbacks as stock
from processes import write_corpus

from keras_transformer.config.settings import Config, DataConfig, ModelConfig, SearchConfig, TrainingConfig
from keras_transformer.model.optimizer import TransformerSchedule
from keras_transformer.model.transformer import Transformer
from keras_transformer.training.given_callbacks import GivenCallbacks, check_callbacks
from keras_transformer.training.progress import Clock, Events, Progress
from keras_transformer.training.run import train
from keras_transformer.training.validation import Validation

# Keras' own `TensorBoard` draws histograms of variables, which NumPy 2 warns about.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

EVERY, STEPS, WARMUP = 4, 12, 6


class Recorder(stock.Callback):
    """Records every call: [(name, number or None, logs)]."""

    def __init__(self):
        super().__init__()
        self.calls, self.sets = [], []

    def set_model(self, model):
        super().set_model(model)
        self.sets.append(model)

    def set_params(self, params):
        super().set_params(params)
        self.sets.append(params)

    def of(self, name):
        return [(number, logs) for called, number, logs in self.calls if called == name]

    @property
    def sequence(self):
        return [call[:2] for call in self.calls]


def _recording(name):
    if name.endswith(("epoch_begin", "epoch_end", "batch_begin", "batch_end")):
        return lambda self, number, logs=None: self.calls.append((name, number, dict(logs or {})))
    return lambda self, logs=None: self.calls.append((name, None, dict(logs or {})))


for what, when in itertools.product(
    ("train", "epoch", "train_batch", "test", "test_batch"), ("begin", "end")
):
    setattr(Recorder, f"on_{what}_{when}", _recording(f"on_{what}_{when}"))


def make_config(corpus, **training):
    return Config(
        model=ModelConfig(
            source_vocab_size=310,
            target_vocab_size=310,
            num_encoder_layers=1,
            num_decoder_layers=1,
            d_model=16,
            d_ff=24,
            num_heads=2,
        ),
        data=DataConfig(dataset=str(corpus), vocab_size=310, max_length=40, batch_tokens=640),
        training=TrainingConfig(
            **{
                "max_steps": STEPS,
                "warmup_steps": WARMUP,
                "log_every_steps": 5,
                "validate_every_steps": EVERY,
                "validation_sentences": 0,
                "checkpoint_every_steps": 4,
                "checkpoint_every_minutes": 0.0,
                "average_last": 2,
                **training,
            }
        ),
        search=SearchConfig(beam_size=1, max_length_offset=3),
    )


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"), 200)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("given")


@pytest.fixture(scope="module")
def parts(corpus, folder):
    """The recorders of a run of 10 steps, with stock callbacks, and of its continuation to 14."""
    recorders = [Recorder(), Recorder()]
    others = [
        stock.TensorBoard(folder / "events", histogram_freq=1, update_freq="batch"),
        stock.ModelCheckpoint(folder / "{epoch:02d}.keras", monitor="val_loss"),
        stock.CSVLogger(folder / "log.csv"),
        stock.EarlyStopping("val_loss", patience=9),
        stock.TerminateOnNaN(),
    ]
    for recorder, max_steps, more in zip(recorders, (10, 14), (others, []), strict=True):
        train(make_config(corpus, max_steps=max_steps), folder / "run", callbacks=[recorder, *more])
    return recorders


def stock_fit(initial_epoch, epochs, batches, validation_batches=1):
    """The recorder of a stock `fit`."""
    recorder = Recorder()
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(loss="mse", jit_compile=False)
    data = tf.data.Dataset.from_tensors((np.ones((2, 1)), np.ones((2, 1))))
    model.fit(
        data.repeat(),
        initial_epoch=initial_epoch,
        epochs=epochs,
        steps_per_epoch=batches,
        validation_data=data.repeat(validation_batches),
        shuffle=False,
        verbose=2,
        callbacks=recorder,
    )
    return recorder


def test_a_run_calls_what_one_fit_of_keras_calls(parts):
    """10 steps: two epochs of four, and one that ends after two."""
    count = max(number for number, _ in parts[0].of("on_test_batch_end")) + 1
    whole, last = stock_fit(0, 2, EVERY, count), stock_fit(2, 3, 2, count)
    assert parts[0].sequence == whole.sequence[:-1] + last.sequence[1:]


def test_a_resumed_run_counts_epochs_and_batches_on(parts):
    """From step 10: two more batches of epoch 2, and two of epoch 3."""
    found = [(name, number) for name, number in parts[1].sequence if "test" not in name]
    expected = [("on_train_begin", None)]
    for epoch, batches in ((2, (2, 3)), (3, (0, 1))):
        expected.append(("on_epoch_begin", epoch))
        for batch in batches:
            expected += [("on_train_batch_begin", batch), ("on_train_batch_end", batch)]
        expected.append(("on_epoch_end", epoch))
    assert found == [*expected, ("on_train_end", None)]


def test_model_and_params_are_set_once_before_anything_else(parts):
    model, params = parts[0].sets
    assert isinstance(model, Transformer)
    assert params == {**stock_fit(0, 3, EVERY).params, "epochs": 3}
    assert parts[0].params is params


def test_an_epoch_ends_with_the_figures_of_its_validation(parts, folder):
    history = [json.loads(line) for line in (folder / "run" / "history.jsonl").read_text().splitlines()]
    expected = {record["step"]: record for record in history if record["kind"] == "validation"}
    ends = [*parts[0].of("on_epoch_end"), *parts[1].of("on_epoch_end")]
    for step, (_, logs) in zip((4, 8, 10, 12, 14), ends, strict=True):
        for name in ("loss", "token_accuracy", "perplexity"):
            assert logs[f"val_{name}"] == expected[step][name]
        paper = 16**-0.5 * min(step**-0.5, step * WARMUP**-1.5)
        assert logs["learning_rate"] == pytest.approx(paper, rel=1e-6)
    last = parts[0].of("on_epoch_end")[-1][1]
    assert parts[0].of("on_train_end") == [(None, last)]


def test_tensorboard_has_the_numbers_of_every_epoch_and_batch(parts, folder, tiny):
    found = tiny.events_in(folder / "events" / "train")
    validated = tiny.events_in(folder / "events" / "validation")
    for epoch, logs in parts[0].of("on_epoch_end"):
        assert found["epoch_loss", epoch] == pytest.approx(logs["loss"])
        assert validated["epoch_loss", epoch] == pytest.approx(logs["val_loss"])
    losses = [logs["loss"] for _, logs in parts[0].of("on_train_batch_end")]
    assert [found["batch_loss", step] for step in range(1, 11)] == pytest.approx(losses)


def test_files_of_stock_callbacks_are_those_of_a_fit(parts, folder):
    with (folder / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    losses = [logs["val_loss"] for _, logs in parts[0].of("on_epoch_end")]
    assert [float(row["val_loss"]) for row in rows] == pytest.approx(losses)
    assert sorted(path.name for path in folder.glob("*.keras")) == ["01.keras", "02.keras", "03.keras"]
    saved = keras.models.load_model(folder / "02.keras")
    assert isinstance(saved, Transformer)
    assert int(saved.optimizer.iterations) == 8


@pytest.mark.very_slow
def test_a_callback_that_stops_or_raises_leaves_a_run_that_goes_on(corpus, tmp_path, capsys):
    def stop(batch, logs):
        if batch == 1:
            recorder.model.stop_training = True

    def fail(batch, logs):
        if batch == 2:
            raise KeyError("mine")

    recorder, path = Recorder(), tmp_path / "run"
    result = train(
        make_config(corpus), path, callbacks=[recorder, stock.LambdaCallback(on_train_batch_end=stop)]
    )
    assert len(result.translations) == 10
    assert "stopping: a callback has set model.stop_training\n" in capsys.readouterr().err
    assert recorder.sequence[-2:] == [("on_epoch_end", 0), ("on_train_end", None)]
    assert "val_loss" in recorder.calls[-1][2]
    assert (path / "checkpoints" / "step-2.index").exists()
    recorder = Recorder()
    with pytest.raises(KeyError, match="mine"):
        train(make_config(corpus), path, callbacks=[recorder, stock.LambdaCallback(on_train_batch_end=fail)])
    assert recorder.sequence[-1] == ("on_train_batch_end", 2)  # as in a stock `fit`
    recorder = Recorder()
    train(make_config(corpus), path, callbacks=recorder)
    assert recorder.sequence[1:3] == [("on_epoch_begin", 0), ("on_train_batch_begin", 2)]
    assert recorder.of("on_epoch_end")[-1][0] == 2
    # A finished run calls nothing.
    recorder = Recorder()
    train(make_config(corpus), path, callbacks=recorder)
    assert recorder.calls == []


@pytest.fixture
def make_given(tiny):
    """Returns a function of callbacks; its result begins training, and lists why it was asked to stop."""

    def make(*given, **training):
        config = tiny.config(max_steps=STEPS, validate_every_steps=EVERY, **training)
        reasons = []
        made = GivenCallbacks(list(given), config.training, TransformerSchedule(12, WARMUP), reasons.append)
        made.set_model(tiny.model(config))
        made.reasons = reasons
        return made

    return make


LENGTHS = [((3, 5), (4, 2)), ((6,), (3,)), ((2, 2, 4), (1, 7, 2))]


def fit(tiny, made, steps, *others):
    batches = [tiny.batch(number, *LENGTHS[number % 3]) for number in range(steps)]
    made.model.fit(tiny.stream(batches), steps_per_epoch=steps, shuffle=False, verbose=0, callbacks=[*others])


def test_means_are_those_of_the_metrics_that_keras_resets_at_each_epoch(tiny, make_given, tmp_path):
    recorder, whole = Recorder(), Recorder()
    made, run = make_given(recorder), tiny.Run(tmp_path / "run")
    progress = Progress(
        run, Clock(), Events(run), made.schedule, log_every_steps=3, max_steps=STEPS, max_minutes=0
    )
    initial = tiny.state_of(made.model)
    fit(tiny, made, EVERY, made, progress)  # `Progress` resets the metrics after step 3
    tiny.restore(made.model, initial)
    fit(tiny, made, EVERY, whole)
    names = ("loss", "token_accuracy", "perplexity", "gradient_norm")
    found, expected = (
        [[logs[name] for name in names] for _, logs in each.of("on_train_batch_end")]
        for each in (recorder, whole)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert len(found) == EVERY


@pytest.mark.parametrize(("precision", "stops"), [("float32", True), ("mixed_float16", False)])
def test_a_skipped_update_has_the_loss_nan_and_terminates(make_given, precision, stops):
    recorder = Recorder()
    made = make_given(recorder, stock.TerminateOnNaN(), precision=precision)
    made.on_train_begin()
    for skipped in (0, 1, 0):
        made.on_train_batch_begin(0)
        sums = made.model.interval_sums()
        counts = {"tally/steps": 1, "tally/skipped": skipped, "loss/count": 3, "loss/total": 6}
        made.model.set_interval_sums({name: sums[name] + counts.get(name, 0) for name in sums})
        made.on_train_batch_end(0)
    losses = [logs["loss"] for _, logs in recorder.of("on_train_batch_end")]
    np.testing.assert_equal(losses, [2, math.nan if stops else 2, 2])
    assert made.reasons == ["a callback has set model.stop_training"] * stops
    assert not made.model.stop_training  # the run stops on all workers after the same step


def test_early_stopping_waits_for_its_patience(make_given):
    made = make_given(stock.EarlyStopping("val_loss", patience=2))
    made.on_train_begin()
    stopped = []
    for loss in (3.0, 2.0, 2.5, 2.5):
        made.epoch, made.logs = len(stopped), {}
        made.end_epoch({"loss": loss})
        stopped.append(len(made.reasons))
    assert stopped == [0, 0, 0, 1]


def test_weights_that_change_after_the_last_checkpoint_are_warned_about(make_given, caplog):
    def change(logs):
        made.model.trainable_weights[0].assign_add(keras.ops.ones_like(made.model.trainable_weights[0]))

    for callback, count in ((stock.Callback(), 0), (stock.LambdaCallback(on_train_end=change), 1)):
        made = make_given(callback)
        with caplog.at_level(logging.WARNING):
            made.on_train_begin()
            made.on_train_end()
            made.end()
        assert caplog.text.count("has changed the weights") == count


@pytest.mark.parametrize("is_last", [False, True])
def test_weights_that_change_in_the_last_epoch_are_what_they_were(make_given, caplog, is_last):
    """They are validated already; before the last update, a change is used from the next one on."""

    def change(epoch, logs):
        made.model.trainable_weights[0].assign_add(keras.ops.ones_like(made.model.trainable_weights[0]))

    made = make_given(stock.LambdaCallback(on_epoch_end=change))
    made.on_train_begin()
    made.epoch, made.logs, made.step = 0, {}, STEPS - (not is_last)
    before = made.model.get_weights()
    with caplog.at_level(logging.WARNING):
        made.end_epoch({"loss": 2.0})
    for number, (old, new) in enumerate(zip(before, made.model.get_weights(), strict=True)):
        np.testing.assert_array_equal(new, old + (number == 0 and not is_last))
    assert caplog.text.count("has changed the weights") == is_last


def test_a_callback_that_evaluates_leaves_the_means_of_the_log(tiny, make_given):
    class Evaluates(stock.Callback):
        count = 0

        def evaluate(self):
            self.model.evaluate(tiny.stream([tiny.batch(9, *LENGTHS[0])]), steps=1, verbose=0)
            self.count += 1

        def on_train_begin(self, logs=None):
            self.evaluate()

        def on_epoch_end(self, epoch, logs=None):
            self.evaluate()

    given = Evaluates()
    made = make_given(given)
    sums = {name: 3.0 + number for number, name in enumerate(made.model.interval_sums())}
    made.model.set_interval_sums(sums)
    made.on_train_begin()
    assert made.model.interval_sums() == sums
    made.epoch, made.logs = 0, {}
    validation = Validation.__new__(Validation)
    validation.set_model(made.model)
    validation.clock, validation.given = Clock(), [made]
    validation._end_epoch({"loss": 2.0})
    assert made.model.interval_sums() == sums
    assert given.count == 2


@pytest.mark.parametrize(
    ("callback", "error", "message"),
    [
        ("early", TypeError, "must be objects of keras.callbacks.Callback. Received: 'early' .builtins.str"),
        (len, TypeError, "Received: <built-in function len>"),
        (stock.EarlyStopping, TypeError, r"EarlyStopping is a class, not an object. Write EarlyStopping\(\)"),
        (stock.ReduceLROnPlateau(), ValueError, "ReduceLROnPlateau sets the learning rate"),
        (stock.LearningRateScheduler(lambda epoch: 0.1), ValueError, "LearningRateScheduler sets the"),
        (stock.BackupAndRestore("backup"), ValueError, "BackupAndRestore .* own checkpoints"),
        (stock.SwapEMAWeights(), ValueError, "SwapEMAWeights .* training.ema_decay"),
        (stock.EarlyStopping(restore_best_weights=True), ValueError, "Use restore_best_weights=False"),
        (stock.CallbackList([stock.ReduceLROnPlateau()]), ValueError, "ReduceLROnPlateau sets"),
    ],
)
def test_what_a_run_cannot_honour_is_refused_before_anything_is_written(tmp_path, callback, error, message):
    for given in (callback, [stock.History(), [callback]]):
        with pytest.raises(error, match=message) as caught:
            train(Config(), tmp_path / "run", callbacks=given)
        assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_terminate_on_nan_is_refused_where_overflows_are_normal():
    with pytest.raises(ValueError, match="with mixed_float16: overflows are normal"):
        check_callbacks(stock.TerminateOnNaN(), TrainingConfig(precision="mixed_float16"))


def test_a_callback_alone_or_in_a_nested_list_is_taken_as_in_fit():
    first, second = stock.History(), stock.TerminateOnNaN()
    training = TrainingConfig()
    assert check_callbacks(None, training) == check_callbacks([], training) == []
    assert check_callbacks(first, training) == [first]
    assert check_callbacks([first, [second]], training) == [first, second]
    assert check_callbacks(stock.CallbackList([first, second]), training) == [first, second]
