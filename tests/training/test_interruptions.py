"""Runs that are killed or asked to stop, and go on as if nothing had been."""

import random
import re
import signal
import subprocess
import sys

import processes
import pytest
import stopped_runs
from processes import Process, assert_same, history, newest, state, states

STEPS = 40
TWO_REPLICAS = ("--replicas", 2, "--allow-cpu")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A folder of short sentences; an epoch has more batches than the runs have steps."""
    return processes.write_corpus(tmp_path_factory.mktemp("corpus"), 800)


@pytest.fixture(scope="module")
def prepared(corpus, tmp_path_factory):
    """The same as `prepare_wmt.py` leaves it."""
    folder = tmp_path_factory.mktemp("prepared") / "corpus"
    command = [sys.executable, processes.ROOT / "pipelines" / "prepare_wmt.py", corpus, folder]
    command += ["--source", "en", "--target", "de", "--vocab-size", "310", "--workers", "1"]
    subprocess.run(
        [str(part) for part in command], check=True, capture_output=True, env=processes.environment()
    )
    return folder


@pytest.fixture
def start(tmp_path, corpus):
    """Starts a process on a run; none of them outlives the test."""
    started = []

    def start(name, settings=None, *arguments, dataset=corpus):
        arguments = ("--dataset", dataset, "--source", "en", "--target", "de", *arguments)
        process = Process(tmp_path / name, {"training.max_steps": STEPS, **(settings or {})}, arguments)
        started.append(process)
        return process

    yield start
    for process in started:
        if not process.ended:
            process.kill()


def killed_twice(start, settings, *arguments, **options):
    """A run of `STEPS` steps that is killed twice on its way, at random moments; returns its folder."""
    for step in (15, 25):
        process = start("killed", settings, *arguments, **options)
        process.kill_after(step, delay=random.uniform(0, 0.2))
        kept = newest(process.run)
        assert step <= kept < STEPS
    process = start("killed", settings, *arguments, **options)
    assert process.end() == 0, process.err
    assert f"continuing at step {kept}" in process.out
    return process.run


def at_once(start, settings, *arguments, **options):
    process = start("whole", settings, *arguments, **options)
    assert process.end() == 0, process.err
    return process.run


@pytest.mark.very_slow
def test_a_run_that_is_killed_twice_in_an_epoch_ends_as_one_that_is_not(start):
    undisturbed = start("whole")
    killed = killed_twice(start, {})
    assert undisturbed.end() == 0, undisturbed.err
    assert batches_per_epoch(undisturbed) > STEPS
    assert_same(killed, undisturbed.run)


def batches_per_epoch(process):
    return int(re.search(r"batches +([\d,]+) an epoch", process.out)[1].replace(",", ""))


VARIANTS = {
    "two replicas": ({}, *TWO_REPLICAS),
    "micro-batches": ({"devices.micro_batch_tokens": 80},),
    "micro-batches on two replicas": ({"devices.micro_batch_tokens": 80}, *TWO_REPLICAS),
    "moving average": ({"training.ema_decay": 0.9},),
    "moving average on two replicas": ({"training.ema_decay": 0.9}, *TWO_REPLICAS),
    "sampled segmentations": ({"data.subword_dropout": 0.1},),
    "bfloat16": ({"training.precision": "mixed_bfloat16"},),
    "float16": ({"training.precision": "mixed_float16"},),
    "a state at every logged step": ({"training.checkpoint_every_steps": 7},),
    "many epochs": ({"data.batch_tokens": 2000, "training.checkpoint_every_steps": 3},),
    "many epochs, sampled, on two replicas": (
        {"data.batch_tokens": 2000, "data.subword_dropout": 0.1},
        *TWO_REPLICAS,
    ),
}


@pytest.mark.very_slow
@pytest.mark.parametrize("name", VARIANTS)
def test_killed_twice_with(name, start):
    assert_same(killed_twice(start, *VARIANTS[name]), at_once(start, *VARIANTS[name]))


@pytest.mark.very_slow
@pytest.mark.parametrize("settings", [{}, {"training.ema_decay": 0.9, "data.subword_dropout": 0.1}])
def test_killed_twice_with_a_prepared_corpus(settings, start, prepared):
    found = killed_twice(start, settings, dataset=prepared)
    assert_same(found, at_once(start, settings, dataset=prepared))


@pytest.mark.very_slow
@pytest.mark.parametrize("arguments", [(), TWO_REPLICAS], ids=["one device", "two devices"])
def test_a_validation_that_was_killed_is_made_again(start, arguments):
    settings = {"training.validation_sentences": 500}
    for _ in range(2):
        process = start("killed", settings, *arguments)
        # The state is kept before the validation, whose search takes some time to be made.
        process.kill_after(20, delay=random.uniform(0, 0.5))
        assert newest(process.run) == 20
        assert not [record for record in history(process.run) if record["kind"] == "validation"]
    process = start("killed", settings, *arguments)
    assert process.end() == 0, process.err
    assert_same(process.run, at_once(start, settings, *arguments))


@pytest.mark.very_slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_ends_a_run_after_the_step_that_it_names(start, number):
    code = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGUSR1: 143}[number]
    for logged in (7, 21):
        process = start("stopped")
        process.wait_until(lambda process=process, logged=logged: f"step {logged:>7}/" in process.out)
        process.send(number)
        assert process.end() == code
        step = newest(process.run)
        assert logged <= step < STEPS
        assert f"stopped by {number.name} after step {step}, which is saved" in process.last_line
        (counted,) = (value for name, value in state(process.run).items() if "Siteration" in name)
        assert counted == step
    process = start("stopped")
    assert process.end() == 0
    assert f"continuing at step {step}" in process.out
    assert_same(process.run, at_once(start, {}))


@pytest.mark.very_slow
def test_a_run_that_is_stopped_again_and_again_delivers_what_one_does_that_is_not(tmp_path, corpus):
    stops = stopped_runs.stop_again_and_again(tmp_path, corpus, times=3, seed=1)
    assert len(stops) == 3


LARGE = {
    "model.d_model": 256,
    "model.d_ff": 1024,
    "model.num_encoder_layers": 2,
    "model.num_decoder_layers": 2,
    "training.max_steps": 100_000,
    "training.checkpoint_every_steps": 1,
    "training.keep_checkpoints": 2,
    "training.validate_every_steps": 100_000,
    "training.validation_sentences": 0,
}


@pytest.mark.very_slow
def test_killed_while_it_writes_a_run_can_always_go_on(start):
    seen, left = -1, {}
    cut_short = 0
    for _ in range(10):
        process = start("killed", LARGE)
        process.wait_until(lambda process=process: "model: " in process.out)
        if seen >= 0:
            process.wait_until(lambda process=process: "continuing at step" in process.out)
            assert f"continuing at step {seen:,}\n" in process.out
            assert not set(left.items()) & set(stray_files(process.run).items())
        process.kill_after(seen + 2, delay=random.uniform(0, 0.3))
        assert not process.err
        seen, left = newest(process.run), stray_files(process.run)
        cut_short += bool(left)
        assert 1 <= len(states(process.run)) <= 3
    assert cut_short, "none of them was writing"
    process = start("killed", {**LARGE, "training.max_steps": seen + 1})
    assert process.end() == 0
    assert not stray_files(process.run)
    assert states(process.run) == [seen, seen + 1]


def stray_files(run):
    """{path: inode} of what is neither a whole state nor the list of them."""
    proper = {f"step-{step}.{end}" for step in states(run) for end in ("index", "data-00000-of-00001")}
    return {
        path: path.stat().st_ino
        for path in (run / "checkpoints").rglob("*")
        if path.name not in proper | {"checkpoint"} or path.parent.name != "checkpoints"
    }
