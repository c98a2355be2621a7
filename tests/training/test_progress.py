"""Lines and records of the training: hand counts, a clock that the test moves, real steps."""

import keras
import numpy as np
import pytest

from keras_transformer.model.optimizer import TransformerSchedule
from keras_transformer.training import progress as clocks
from keras_transformer.training.progress import Clock, Events, Progress

pytestmark = pytest.mark.slow

EVERY, STEPS, WARMUP = 4, 10, 3
# Source tokens, target tokens and positions of each batch, counted by hand.
LENGTHS = [((3, 5), (4, 2)), ((6,), (3,)), ((2, 2, 4), (1, 7, 2))]
COUNTS = [(8, 6, 10 + 8), (6, 3, 6 + 3), (8, 10, 12 + 21)]


@pytest.fixture
def now(monkeypatch):
    """The time, which stands still."""
    seconds = [1000.0]
    monkeypatch.setattr(clocks.time, "monotonic", lambda: seconds[0])
    return seconds


class Before(keras.callbacks.Callback):
    """Moves the clock on every step, and keeps the state that a checkpoint would."""

    def __init__(self, tiny, now, seconds):
        super().__init__()
        self.tiny, self.now, self.seconds, self.states = tiny, now, seconds, {}

    def on_train_batch_end(self, batch, logs=None):
        step = int(self.model.optimizer.iterations)
        self.now[0] += self.seconds(step)
        self.states[step] = self.tiny.state_of(self.model)


class Beside(keras.callbacks.Callback):
    """Takes 30 seconds after step 4 for something else."""

    def __init__(self, now, clock):
        super().__init__()
        self.now, self.clock = now, clock

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) == 4:
            with self.clock.outside_steps():
                self.now[0] += 30


@pytest.fixture(scope="module")
def new(tiny):
    """A model, and its state before the first step."""
    model = tiny.model(tiny.config())
    return model, tiny.state_of(model)


@pytest.fixture
def fit(tiny, now, new):
    """Trains from a step to the last, and returns {step: state before its line}."""
    model, initial = new

    def fit(run, *, state=initial, start=0, seconds=lambda step: 2.0, beside=False, earlier=0.0, **changes):
        clock = Clock(earlier)
        settings = {"log_every_steps": EVERY, "max_steps": STEPS, "max_minutes": 0.0, **changes}
        progress = Progress(run, clock, Events(run), TransformerSchedule(12, WARMUP, scale=2.0), **settings)
        before = Before(tiny, now, seconds)
        last = settings["max_steps"]
        batches = [tiny.batch(number % 3, *LENGTHS[number % 3]) for number in range(start, last)]
        tiny.restore(model, state)
        model.fit(
            tiny.stream(batches),
            steps_per_epoch=last - start,
            shuffle=False,
            verbose=0,
            callbacks=[before, progress, *([Beside(now, clock)] if beside else [])],
        )
        before.states["end"] = tiny.state_of(model)
        return before.states

    return fit


def without_times(records):
    return [
        {name: value for name, value in record.items() if name != "minutes" and "per_second" not in name}
        for record in records
    ]


def test_records_have_the_counts_of_their_interval(tiny, fit, tmp_path):
    run = tiny.Run(tmp_path / "run")
    fit(run)
    assert [record["step"] for record in run.history] == [4, 8, 10]
    for record, first, last in zip(run.history, (0, 4, 8), (4, 8, 10), strict=True):
        source, target, positions = np.sum([COUNTS[i % 3] for i in range(first, last)], axis=0)
        assert record["kind"] == "train"
        assert record["padding_share"] == pytest.approx(1 - (source + target) / positions, abs=1e-12)
        assert record["skipped"] == 0
        # Two seconds a step; the first step of all, which compiles, counts for nothing.
        begin = max(first, 1)
        source, target, _ = np.sum([COUNTS[i % 3] for i in range(begin, last)], axis=0)
        assert record["source_tokens_per_second"] == pytest.approx(source / (2 * (last - begin)))
        assert record["target_tokens_per_second"] == pytest.approx(target / (2 * (last - begin)))
        assert record["minutes"] == pytest.approx(2 * last / 60)


def test_the_learning_rate_is_that_of_the_step_itself(tiny, fit, tmp_path):
    run = tiny.Run(tmp_path / "run")
    fit(run)
    for record in run.history:
        paper = 2 * 12**-0.5 * min(record["step"] ** -0.5, record["step"] * WARMUP**-1.5)
        assert record["learning_rate"] == pytest.approx(paper, rel=1e-6)


def test_means_are_those_of_steps_logged_one_by_one(tiny, fit, tmp_path):
    together, alone = tiny.Run(tmp_path / "together"), tiny.Run(tmp_path / "alone")
    fit(together)
    fit(alone, log_every_steps=1)
    assert [record["step"] for record in alone.history] == list(range(1, STEPS + 1))
    for record, first, last in zip(together.history, (0, 4, 8), (4, 8, 10), strict=True):
        part = alone.history[first:last]
        tokens = [COUNTS[i % 3][1] for i in range(first, last)]
        for name in ("loss", "token_accuracy"):
            mean = np.average([each[name] for each in part], weights=tokens)
            assert record[name] == pytest.approx(mean, rel=1e-6)
        mean = np.exp(np.average(np.log([each["perplexity"] for each in part]), weights=tokens))
        assert record["perplexity"] == pytest.approx(mean, rel=1e-6)
        norm = np.mean([each["gradient_norm"] for each in part])
        assert record["gradient_norm"] == pytest.approx(norm, rel=1e-6)
        assert norm > 0


@pytest.mark.parametrize(("stopped", "logged"), [(3, 0), (4, 0), (4, 1), (6, 1), (8, 1), (8, 2)])
def test_a_continued_run_logs_what_one_without_a_break_does(tiny, fit, tmp_path, stopped, logged):
    # A checkpoint may fall within an interval, or just before or after the line at its end.
    whole, resumed = tiny.Run(tmp_path / "whole"), tiny.Run(tmp_path / "resumed")
    states = fit(whole)
    resumed.history = whole.history[:logged]
    fit(resumed, state=states[stopped], start=stopped)
    assert without_times(resumed.history) == without_times(whole.history)


def test_a_prolonged_run_logs_what_one_as_long_from_the_start_does(tiny, fit, tmp_path):
    whole, short = tiny.Run(tmp_path / "whole"), tiny.Run(tmp_path / "short")
    fit(whole)
    states = fit(short, max_steps=6)
    assert [record["step"] for record in short.history] == [4, 6]
    fit(short, state=states["end"], start=6)
    again = [record for record in short.history if record["step"] != 6]
    assert without_times(again) == without_times(whole.history)


def test_the_speed_of_a_continued_run_is_of_its_own_steps(tiny, fit, tmp_path):
    run = tiny.Run(tmp_path / "run")
    states = fit(run, max_steps=6)
    fit(run, state=states["end"], start=6, earlier=12.0)
    record = run.history[-2]
    assert record["step"] == 8
    assert record["target_tokens_per_second"] == pytest.approx(COUNTS[7 % 3][1] / 2)
    assert record["minutes"] == pytest.approx((12 + 4) / 60)


def lines(capsys):
    return [line.split(" | ") for line in capsys.readouterr().out.splitlines()]


def test_a_line_names_the_numbers_of_the_record(tiny, fit, tmp_path, capsys):
    run = tiny.Run(tmp_path / "run")
    fit(run, max_steps=10)
    record = run.history[0]
    assert lines(capsys)[0] == [
        "step       4/10",
        f"loss {record['loss']:.3f}",
        f"ppl {record['perplexity']:.2f}",
        f"acc {100 * record['token_accuracy']:.1f} %",
        f"gradient {record['gradient_norm']:.2f}",
        f"lr {record['learning_rate']:.2e}",
        f"{record['target_tokens_per_second']:,.0f} target tokens/s",
        "12 s left",
    ]


def test_the_time_left_follows_the_speed_now_and_what_is_beside_the_steps(tiny, fit, tmp_path, capsys):
    def seconds(step):
        return 100.0 if step == 1 else 2.0

    fit(tiny.Run(tmp_path / "run"), seconds=seconds, beside=True, max_steps=16)
    left = [parts[-1] for parts in lines(capsys)]
    # Twelve steps of 2 s; then eight, and 30 s were spent elsewhere in eight steps; ...
    assert left == ["24 s left", "46 s left", "18 s left", "0 s left"]
    assert 8 * (2 + 30 / 8) == 46
    assert round(4 * (2 + 30 / 12)) == 18


def test_the_time_left_is_at_most_that_of_the_time_limit(tiny, fit, tmp_path, capsys):
    fit(tiny.Run(tmp_path / "run"), max_minutes=5.0, earlier=281.0)
    assert lines(capsys)[0][-1] == "11 s left"


def test_the_speed_is_without_what_is_beside_the_steps(tiny, fit, tmp_path):
    run = tiny.Run(tmp_path / "run")
    fit(run, beside=True)
    tokens = sum(COUNTS[i % 3][1] for i in range(4, 8))
    assert run.history[1]["target_tokens_per_second"] == pytest.approx(tokens / 8)
    assert run.history[1]["minutes"] == pytest.approx((16 + 30) / 60)


def test_skipped_steps_are_shown_and_counted(tiny, fit, new, tmp_path, capsys):
    (values, sums), run = new[1], tiny.Run(tmp_path / "run")
    fit(run, state=([np.full_like(values[0], np.nan), *values[1:]], sums))
    assert [record["skipped"] for record in run.history] == [4, 4, 2]
    # They are read like all others.
    source, target, positions = np.sum([COUNTS[i % 3] for i in range(4)], axis=0)
    share = 1 - (source + target) / positions
    assert run.history[0]["padding_share"] == pytest.approx(share, abs=1e-12)
    assert [parts[-1] for parts in lines(capsys)] == ["skipped 4", "skipped 4", "skipped 2"]


def test_tensorboard_shows_the_numbers_of_the_records(tiny, fit, tmp_path):
    run = tiny.Run(tmp_path / "run")
    fit(run)
    expected = {
        (f"train/{name}", record["step"]): value
        for record in run.history
        for name, value in record.items()
        if name not in ("kind", "step")
    }
    assert len(expected) == 3 * 10
    assert tiny.events_in(run.path / "tensorboard") == pytest.approx(expected, rel=1e-6)


def test_a_worker_that_does_not_write_is_silent(tiny, fit, tmp_path, capsys):
    run = tiny.Run(tmp_path / "run", writes=False)
    fit(run)
    assert run.history == []
    assert list(run.path.iterdir()) == []
    assert capsys.readouterr().out == ""


def test_a_clock_counts_earlier_parts_and_what_is_beside_the_steps(now):
    clock = Clock(earlier=30.0)
    now[0] += 7.5
    with clock.outside_steps():
        now[0] += 2.5
    assert clock.seconds == 40.0
    assert clock.other_seconds == 2.5


def test_what_the_minutes_allow_is_asked_once_as_soon_as_the_speed_is_known(tiny, fit, tmp_path, capsys):
    """Two seconds a step, 70 seconds in all: 35 steps."""
    asked = []

    def time_note(step):
        asked.append(step)
        return f"note: {step} steps"

    fit(tiny.Run(tmp_path / "run"), max_minutes=70 / 60, time_note=time_note)
    assert asked == [35]
    assert capsys.readouterr().err == "note: 35 steps\n"


@pytest.mark.parametrize("changes", [{}, {"max_minutes": 1.0, "max_steps": 1}])
def test_without_a_limit_or_a_speed_nothing_is_asked(tiny, fit, tmp_path, changes):
    fit(tiny.Run(tmp_path / "run"), time_note=lambda step: pytest.fail("asked"), **changes)
