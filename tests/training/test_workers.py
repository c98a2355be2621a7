"""Two processes that train together, as on two machines; one or both of them are killed or stopped."""

import random
import re
import signal
import time

import numpy as np
import processes
import pytest
from processes import Process, assert_same, history, newest

STEPS = 40
# Until a worker has noticed that another one is gone, and has ended.
NOTICED = 120
LOST = "train_wmt.py: another worker ended or cannot be reached"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A folder of short sentences; an epoch has more batches than the runs have steps."""
    return processes.write_corpus(tmp_path_factory.mktemp("corpus"), 800)


@pytest.fixture
def start(tmp_path, corpus):
    """Starts all workers of a run; none of them outlives the test."""
    started = []

    def start(name, settings=None, *, own=({}, {}), corpora=(corpus, corpus), program=(processes.PROGRAM,)):
        arguments = ("--source", "en", "--target", "de", "--strategy", "multiworker", "--allow-cpu")
        workers = []
        for variables, its_settings, its_corpus in zip(
            processes.worker_environments(), own, corpora, strict=True
        ):
            settings_of_all = {"training.max_steps": STEPS, **(settings or {}), **its_settings}
            workers.append(
                Process(
                    tmp_path / name,
                    settings_of_all,
                    ("--dataset", its_corpus, *arguments),
                    program=program,
                    variables=variables,
                )
            )
        started.extend(workers)
        return workers

    yield start
    for process in started:
        if not process.ended:
            process.kill()


def ended(workers, seconds=processes.PATIENCE):
    """The exit codes of all workers."""
    limit = time.monotonic() + seconds
    return [worker.end(limit - time.monotonic()) for worker in workers]


def reach(workers, step, delay=0.0):
    """Waits until the state of a step is kept, and so many seconds more."""
    workers[0].wait_until(lambda: newest(workers[0].run) >= step)
    time.sleep(delay)


def whole(start, settings=None):
    workers = start("whole", settings)
    assert ended(workers) == [0, 0], workers[0].err + workers[1].err
    return workers[0].run


def gone_on(start, name, step, settings=None):
    """Starts all workers of a run again, and lets them train to the end."""
    workers = start(name, settings)
    assert ended(workers) == [0, 0], workers[0].err + workers[1].err
    assert f"continuing at step {step}\n" in workers[0].out
    return workers[0].run


def survivor_of(workers, victim, step):
    """Kills one of two workers on its way; returns the other, once it has ended as it is to."""
    reach(workers, step, random.uniform(0, 0.3))
    workers[victim].kill()
    survivor = workers[1 - victim]
    begin = time.monotonic()
    assert survivor.end(NOTICED) == 6
    print(f"noticed in {time.monotonic() - begin:.1f} s")
    assert survivor.last_line.startswith(LOST)
    assert survivor.err.count("train_wmt.py:") == 1
    assert "Traceback" not in survivor.err
    return survivor


@pytest.mark.very_slow
def test_a_worker_whose_fellow_was_killed_ends_and_both_go_on(start):
    settings = {"training.validation_sentences": 0}
    survivor = survivor_of(start("killed", settings), 1, 15)
    kept = newest(survivor.run)
    assert 15 <= kept < STEPS
    run = gone_on(start, "killed", kept, {**settings, "training.max_steps": kept + 2})
    assert newest(run) == kept + 2


@pytest.mark.very_slow
@pytest.mark.parametrize("victims", [(0, 1), (1, 0)])
def test_each_worker_killed_in_turn_loses_nothing(start, victims):
    for victim, step in zip(victims, (15, 25), strict=True):
        survivor = survivor_of(start("killed"), victim, step)
        kept = newest(survivor.run)
        assert step <= kept < STEPS
    assert_same(gone_on(start, "killed", kept), whole(start))


@pytest.mark.very_slow
@pytest.mark.parametrize("settings", [{}, {"devices.micro_batch_tokens": 80, "training.ema_decay": 0.9}])
def test_both_killed_twice_go_on_as_if_nothing_had_been(start, settings):
    for step in (15, 25):
        workers = start("killed", settings)
        reach(workers, step, random.uniform(0, 0.3))
        for worker in random.sample(workers, 2):
            worker.kill()
        kept = newest(workers[0].run)
        assert step <= kept < STEPS
    assert_same(gone_on(start, "killed", kept, settings), whole(start, settings))


@pytest.mark.very_slow
@pytest.mark.parametrize(
    ("number", "order"),
    [
        (signal.SIGTERM, (0,)),
        (signal.SIGTERM, (1,)),
        (signal.SIGTERM, (0, 1)),
        (signal.SIGTERM, (1, 0)),
        (signal.SIGINT, (1, 0)),
    ],
)
def test_a_signal_to_a_worker_ends_all_after_the_same_step(start, number, order):
    workers = start("stopped")
    workers[0].wait_until(lambda: "step       7/" in workers[0].out)
    begin = time.monotonic()
    for index in order:
        workers[index].send(number)
        time.sleep(random.uniform(0, 0.05))
    codes = ended(workers)
    print(f"ended in {time.monotonic() - begin:.1f} s")
    step = newest(workers[0].run)
    assert 7 <= step < STEPS
    own = {signal.SIGTERM: 143, signal.SIGINT: 130}[number]
    for index, (worker, code) in enumerate(zip(workers, codes, strict=True)):
        assert code == (own if index in order else 143)
        assert re.match(rf"train_wmt.py: stopped by .* after step {step}, which is saved", worker.last_line)
    assert_same(gone_on(start, "stopped", step), whole(start))


@pytest.mark.very_slow
def test_a_worker_with_other_settings_is_refused_and_ends_all(start):
    workers = start("refused", own=({}, {"training.warmup_steps": 7}))
    begin = time.monotonic()
    codes = ended(workers)
    print(f"ended in {time.monotonic() - begin:.1f} s")
    assert codes == [6, 2]
    assert re.match("train_wmt.py: .*training.warmup_steps", workers[1].last_line)
    assert workers[0].last_line.startswith(LOST)


@pytest.mark.very_slow
def test_what_runs_may_change_is_as_the_chief_has_it(start):
    settings = {"training.max_steps": 4}
    workers = start("run", settings, own=({}, {"training.max_steps": 6, "training.keep_checkpoints": 9}))
    assert ended(workers) == [0, 0], workers[0].err + workers[1].err
    assert newest(workers[0].run) == 4


@pytest.mark.very_slow
@pytest.mark.parametrize("bad", [0, 1])
def test_a_worker_with_bad_data_is_refused_and_ends_all(start, bad, corpus, tmp_path):
    corpora = [corpus, corpus]
    corpora[bad] = tmp_path / "nothing"
    workers = start("refused", corpora=corpora)
    begin = time.monotonic()
    codes = ended(workers)
    print(f"ended in {time.monotonic() - begin:.1f} s")
    assert codes[bad] == 2
    assert codes[1 - bad] == 6
    assert str(tmp_path / "nothing") in workers[bad].last_line
    assert workers[1 - bad].last_line.startswith(LOST)


@pytest.mark.very_slow
def test_workers_that_find_no_progress_end_together(start):
    settings = {
        "training.patience": 1,
        "training.validate_every_steps": 3,
        "training.learning_rate_scale": 1e-30,
        "training.checkpoint_every_steps": 0,
    }
    workers = start("stopped", settings)
    assert ended(workers) == [0, 0]
    assert "not better than step 3" in workers[0].err
    assert newest(workers[0].run) in (6, 7)
    again = start("stopped", settings)
    assert ended(again) == [0, 0]
    assert "already finished" in again[0].out


@pytest.mark.very_slow
def test_workers_whose_time_is_up_end_together(start):
    settings = {"training.max_minutes": 0.01, "training.max_steps": 1000}
    workers = start("stopped", settings)
    assert ended(workers) == [0, 0]
    assert "0.01 minutes are over" in workers[0].err
    assert 1 <= newest(workers[0].run) < 1000
    again = start("stopped", settings)
    assert ended(again) == [0, 0]
    assert "already finished" in again[0].out


# Writes the weights of each worker as it has them at the end.
WATCHED = """
import os, sys
import numpy as np
from keras_transformer.cli import train as train_wmt
from keras_transformer.cli.process import import_quietly
import_quietly()
from keras_transformer.training import callbacks as steering
end = steering.CheckpointCallback.on_train_end
def on_train_end(self, logs=None):
    end(self, logs)
    values = {{weight.path: weight.numpy() for weight in self.model.weights}}
    np.savez(f"{folder}/{{len(os.listdir({folder!r}))}}-{{os.getpid()}}.npz", **values)
steering.CheckpointCallback.on_train_end = on_train_end
sys.exit(train_wmt.main())
"""


@pytest.mark.very_slow
@pytest.mark.parametrize("device_tokens", [0, 80])
def test_two_workers_compute_what_one_process_does(start, corpus, tmp_path, device_tokens):
    settings = {
        "training.max_steps": 10,
        "training.log_every_steps": 1,
        "training.validate_every_steps": 4,
        "model.residual_dropout": 0.0,
        "model.embedding_dropout": 0.0,
        "devices.micro_batch_tokens": device_tokens,
    }
    folder = tmp_path / "weights"
    folder.mkdir()
    watched = WATCHED.format(folder=str(folder))
    workers = start("two", settings, program=("-c", watched))
    assert ended(workers) == [0, 0], workers[0].err + workers[1].err
    one, other = (dict(np.load(path)) for path in folder.iterdir())
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)

    arguments = ("--dataset", corpus, "--source", "en", "--target", "de")
    alone = Process(tmp_path / "alone", {**settings, "devices.micro_batch_tokens": 0}, arguments)
    assert alone.end() == 0, alone.err
    weights = {name: value for name, value in processes.state(alone.run).items() if "weights/" in name}
    assert len(weights) == len(one)
    for name, value in processes.state(workers[0].run).items():
        if name in weights:
            np.testing.assert_allclose(value, weights[name], atol=1e-4, rtol=0, err_msg=name)
    for found, expected in zip(history(workers[0].run), history(alone.run), strict=True):
        assert (found["kind"], found["step"]) == (expected["kind"], expected["step"])
        if found["kind"] in ("train", "validation"):
            assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
            assert found["perplexity"] == pytest.approx(expected["perplexity"], rel=1e-5)
