"""Training states: all of them comes back, what is damaged is passed over, nothing whole is lost."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
import tensorflow as tf
from tiny_runs import Training, assert_same, data_of, flip_a_byte, steps_on_disk, weights_of_step

from keras_transformer.checkpoints import tensor_files
from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.checkpoints.training_state import scheduled_steps
from keras_transformer.config.programs import NotFiniteError, StorageError
from keras_transformer.config.settings import replace
from keras_transformer.model.transformer import Transformer
from keras_transformer.training.devices import mirrored

ROOT = pathlib.Path(__file__).resolve().parents[2]


def files_of(run):
    return {path.relative_to(run.path): path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


def listed_steps(run):
    """What the list names, as TensorFlow reads it."""
    state = tf.train.get_checkpoint_state(run.path / "checkpoints")
    assert state.model_checkpoint_path == state.all_model_checkpoint_paths[-1]
    return [int(path.rpartition("-")[2]) for path in state.all_model_checkpoint_paths]


def test_only_the_newest_states_are_kept_and_listed(run):
    assert steps_on_disk(run) == listed_steps(run) == [6, 9, 12]
    assert tf.train.latest_checkpoint(run.path / "checkpoints").endswith("copy/checkpoints/step-12")
    assert len(list((run.path / "checkpoints").iterdir())) == 1 + 2 * 3


@pytest.mark.slow
def test_forced_states_drive_none_out_that_is_to_be_averaged(new_run):
    """Of three that are kept. Before, the states of 4, 8 and 12 would have gone."""
    training = Training(new_run)
    found = []
    for step, on_schedule in ((0, 0), (4, 1), (5, 0), (8, 1), (12, 1), (13, 0), (14, 0), (16, 1), (17, 0)):
        training.save(step, on_schedule=bool(on_schedule))
        assert steps_on_disk(new_run) == listed_steps(new_run)
        found.append(steps_on_disk(new_run))
    assert found == [
        *([0], [0, 4], [0, 4, 5], [4, 5, 8], [4, 8, 12]),
        *([4, 8, 12, 13], [4, 8, 12, 14], [8, 12, 16], [8, 12, 16, 17]),
    ]
    assert scheduled_steps(new_run.path / "checkpoints", 0) == [8, 12, 16]


@pytest.mark.slow
def test_a_state_that_was_forced_is_still_one_in_the_continued_run(new_run):
    Training(new_run).save(4, on_schedule=False)
    training = Training(new_run)
    assert training.checkpoints.restore() == 4
    training.save(8)
    assert scheduled_steps(new_run.path / "checkpoints", 0) == [8]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(("every_steps", "expected"), [(0, [7, 8, 12]), (4, [8, 12])])
def test_in_states_of_earlier_versions_the_step_tells_what_was_on_schedule(new_run, every_steps, expected):
    training = Training(new_run)
    del training.checkpoints._tree["saved"]
    for step in (0, 7, 8, 12):
        training.checkpoints.keep = 4
        training.save(step)
    assert scheduled_steps(new_run.path / "checkpoints", every_steps) == expected


def test_a_state_holds_every_weight(run):
    model = Transformer(run.config.model)
    found = weights_of_step(run, 12)
    assert {name: value.shape for name, value in found.items()} == {
        weight.path: tuple(weight.shape) for weight in model.weights
    }


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("settings", [{}, {"ema_decay": 0.9}, {"loss_scale": True}])
def test_all_of_a_state_comes_back(new_run, settings):
    first = Training(new_run, **settings)
    first.checkpoints.first_step.assign(7)
    first.checkpoints.first_batch.assign(2**40)
    if "loss_scale" in settings:
        first.optimizer.dynamic_scale.assign(512.0)
        first.optimizer.step_counter.assign(5)
    first.save(15, seconds=77.5)
    second = Training(new_run, **settings)
    assert second.checkpoints.restore() == 15
    assert_same(first.values(), second.values())
    assert float(second.checkpoints.seconds) == 77.5
    assert int(second.checkpoints.first_step) == 7
    assert int(second.checkpoints.first_batch) == 2**40
    if "loss_scale" in settings:
        assert (float(second.optimizer.dynamic_scale), int(second.optimizer.step_counter)) == (512.0, 5)


@pytest.mark.slow
def test_the_moving_average_is_under_the_names_of_the_weights(new_run):
    training = Training(new_run, ema_decay=0.9)
    training.save(1)
    found = weights_of_step(new_run, 1, part="ema")
    assert len(found) == len(training.model.trainable_variables)
    for weight, average in zip(training.model.trainable_variables, training.model.ema_weights, strict=True):
        np.testing.assert_array_equal(found[weight.path], average.numpy())


def test_a_moving_average_that_is_new_begins_with_the_weights(run):
    training = Training(run, ema_decay=0.9)
    assert training.checkpoints.restore() == 12
    for weight, average in zip(training.model.trainable_variables, training.model.ema_weights, strict=True):
        np.testing.assert_array_equal(average.numpy(), weight.numpy())


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("before", [False, True])
def test_a_change_of_precision_keeps_weights_and_moments(new_run, before):
    first = Training(new_run, loss_scale=before, ema_decay=0.9)
    first.save(4)
    second = Training(new_run, loss_scale=not before)
    assert second.checkpoints.restore() == 4
    assert_same([w.numpy() for w in first.model.weights], [w.numpy() for w in second.model.weights])
    moments = [
        [v.numpy() for v in getattr(one.optimizer, "inner_optimizer", one.optimizer).variables]
        for one in (first, second)
    ]
    assert_same(*moments)


@pytest.mark.slow
def test_dropout_continues_where_it_was(run):
    ids = np.arange(4, 12)[None]
    first = Training(run)
    first.model((ids, ids), training=True)
    first.save(15)
    expected = first.model((ids, ids), training=True).numpy()
    second = Training(run)
    second.checkpoints.restore()
    np.testing.assert_array_equal(second.model((ids, ids), training=True).numpy(), expected)
    assert not np.array_equal(second.model((ids, ids), training=True).numpy(), expected)


def test_what_two_devices_saved_one_restores_and_the_other_way_round(new_run):
    strategy = mirrored(["CPU:0", "CPU:1"])
    with strategy.scope():
        first = Training(new_run, ema_decay=0.9)
        first.save(5)
    second = Training(new_run, ema_decay=0.9)
    assert second.checkpoints.restore() == 5
    assert_same(first.values(), second.values())
    second.save(6)
    with strategy.scope():
        third = Training(new_run, ema_decay=0.9)
        assert third.checkpoints.restore() == 6
    assert_same(second.values(), third.values())
    for weight, expected in zip(third.model.weights, second.model.weights, strict=True):
        for device in strategy.experimental_local_results(weight.value):
            np.testing.assert_array_equal(device.numpy(), expected.numpy())


def old_tree(model, optimizer, seconds):
    """What states held before they knew of data positions, intervals and averages."""
    return tf.train.Checkpoint(
        weights={w.path: w.value for w in model.weights},
        optimizer={f"adam/{v.path.partition('/')[2]}": v.value for v in optimizer.variables},
        seeds={
            f"seed_generator{f'_{i}' if i else ''}/seed_generator_state": v.value
            for i, v in enumerate(v for v in model.variables if v.path.startswith("seed_generator"))
        },
        seconds=seconds,
    )


@pytest.mark.slow
def test_an_old_list_is_read_and_keeps_the_newest(new_run):
    first = Training(new_run)
    manager = tf.train.CheckpointManager(
        old_tree(first.model, first.optimizer, tf.Variable(1.5, dtype=tf.float64)),
        new_run.path / "checkpoints",
        max_to_keep=3,
        checkpoint_name="step",
    )
    for step in (2, 4, 10, 12):
        first.draw(step)
        manager.save(checkpoint_number=step)
    assert listed_steps(new_run) == [4, 10, 12]
    second = Training(new_run)
    assert second.checkpoints.restore() == 12
    assert float(second.checkpoints.seconds) == 1.5
    assert_same(
        [v.numpy() for v in [*first.model.variables, *first.optimizer.variables]],
        [v.numpy() for v in [*second.model.variables, *second.optimizer.variables]],
    )
    second.save(13)
    assert steps_on_disk(new_run) == listed_steps(new_run) == [10, 12, 13]


def test_a_new_run_has_nothing_to_restore(new_run):
    assert Training(new_run).checkpoints.restore() == 0


def test_a_state_is_saved_once(run):
    before = {path: path.stat().st_mtime_ns for path in (run.path / "checkpoints").iterdir()}
    training = Training(run)
    training.checkpoints.restore()
    training.checkpoints.save(1e9)
    assert {path: path.stat().st_mtime_ns for path in (run.path / "checkpoints").iterdir()} == before


@pytest.mark.slow
def test_a_worker_that_does_not_write_restores_and_changes_nothing(run):
    flip_a_byte(data_of(run, 12))
    before = files_of(run)
    other = RunFolder(run.path, writes=False)
    training = Training(other)
    assert training.checkpoints.restore() == 9
    training.save(20)
    assert training.checkpoints.restore(6) == 6
    assert files_of(run) == before


def break_state(run, step, damage):
    folder = run.path / "checkpoints"
    index, data = folder / f"step-{step}.index", data_of(run, step)
    if damage == "bit":
        flip_a_byte(data)
    elif damage == "index bit":
        flip_a_byte(index)
    elif damage == "truncated":
        data.write_bytes(data.read_bytes()[:100])
    elif damage == "truncated index":
        index.write_bytes(index.read_bytes()[:100])
    elif damage == "empty index":
        index.write_bytes(b"")
    elif damage == "no index":
        index.unlink()
    elif damage == "no data":
        data.unlink()


DAMAGES = ["bit", "index bit", "truncated", "truncated index", "empty index", "no index", "no data"]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_state_is_passed_over_said_and_put_aside(run, capfd, damage):
    break_state(run, 12, damage)
    training = Training(run)
    capfd.readouterr()
    assert training.checkpoints.restore() == 9
    # TensorFlow's own threads of earlier tests may have something to say, too.
    said = [line for line in capfd.readouterr().err.splitlines() if "continuing from" in line]
    assert len(said) == 1
    assert "checkpoints/step-12: damaged: " in said[0]
    assert said[0].endswith("; continuing from step-9")
    found = weights_of_step(run, 9)
    for weight in training.model.weights:
        np.testing.assert_array_equal(weight.numpy(), found[weight.path])
    assert steps_on_disk(run) == listed_steps(run) == [6, 9]
    aside = {path.name for path in (run.path / "checkpoints" / "damaged").iterdir()}
    missing = {"no index": {"step-12.index"}, "no data": {"step-12.data-00000-of-00001"}}.get(damage, set())
    assert aside == {"step-12.index", "step-12.data-00000-of-00001"} - missing
    training.save(12)
    assert Training(run).checkpoints.restore() == 12


def test_states_are_tried_in_turn(run, capfd):
    break_state(run, 12, "no data")
    break_state(run, 9, "bit")
    training = Training(run)
    capfd.readouterr()
    assert training.checkpoints.restore() == 6
    said = [line for line in capfd.readouterr().err.splitlines() if "continuing from" in line]
    assert len(said) == 2
    assert all(line.endswith("; continuing from step-6") for line in said)


def test_when_all_are_damaged_nothing_is_done(run):
    for step in (6, 9, 12):
        break_state(run, step, "bit")
    before = files_of(run)
    training = Training(run)
    values = training.values()
    with pytest.raises(
        ValueError, match=r"checkpoints: all checkpoints are damaged \(step-6, step-9, step-12"
    ):
        training.checkpoints.restore()
    assert_same(training.values(), values)
    assert files_of(run) == before


def test_one_flipped_bit_is_found_or_changes_nothing(saved, tmp_path):
    """Wherever it is in the two files."""
    folder = tmp_path / "flipped"
    expected = weights_of_step(RunFolder(saved), 12)
    rng = np.random.default_rng(5)
    found = 0
    for ending in (".index", ".data-00000-of-00001"):
        for _ in range(40):
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(saved, folder)
            path = folder / "checkpoints" / f"step-12{ending}"
            data = bytearray(path.read_bytes())
            data[rng.integers(len(data))] ^= 1 << rng.integers(8)
            path.write_bytes(data)
            try:
                values = tensor_files.read(folder / "checkpoints" / "step-12", "weights")
            except tensor_files.DamagedError:
                found += 1
                continue
            assert values.keys() == expected.keys()
            for name, value in values.items():
                np.testing.assert_array_equal(value, expected[name])
    # What is not of a weight, or fills up a block, need not be looked at to translate.
    assert found > 30


@pytest.mark.parametrize("change", [{"d_ff": 13}, {"num_encoder_layers": 2}, {"tie_embeddings": "none"}])
def test_states_of_another_model_are_refused_and_stay(run, config, change):
    run.config = replace(config, model=replace(config.model, **change))
    before = files_of(run)
    training = Training(run)
    values = training.values()
    with pytest.raises(ValueError, match=r"checkpoints/step-12: a different model: "):
        training.checkpoints.restore()
    assert_same(training.values(), values)
    assert files_of(run) == before


@pytest.mark.slow
def test_an_earlier_step_is_restored_when_asked_and_later_ones_are_dropped(run):
    training = Training(run)
    expected = weights_of_step(run, 9)
    assert training.checkpoints.restore(9) == 9
    for weight in training.model.weights:
        np.testing.assert_array_equal(weight.numpy(), expected[weight.path])
    assert steps_on_disk(run) == listed_steps(run) == [6, 9]
    training.save(10)
    assert steps_on_disk(run) == listed_steps(run) == [6, 9, 10]


def test_a_step_that_is_missing_or_damaged_is_refused(run):
    training = Training(run)
    with pytest.raises(ValueError, match=r"no checkpoint of step 7. Available: step-6, step-9, step-12"):
        training.checkpoints.restore(7)
    break_state(run, 9, "bit")
    with pytest.raises(ValueError, match=r"checkpoints/step-9: damaged"):
        training.checkpoints.restore(9)
    assert steps_on_disk(run) == [6, 9, 12]


@pytest.mark.parametrize("content", [None, b"", b"garbage", b"\xff\x00", b'model_checkpoint_path: "step-\n'])
def test_states_without_their_list_are_not_started_over(run, content):
    path = run.path / "checkpoints" / "checkpoint"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    break_state(run, 12, "truncated")
    run.clean()
    training = Training(run)
    with pytest.raises(
        ValueError, match=r"missing or damaged, but there are checkpoints: step-6, step-9\..*--resume-from 9"
    ):
        training.checkpoints.restore()
    assert training.checkpoints.restore(9) == 9
    assert listed_steps(run) == [6, 9]
    assert Training(run).checkpoints.restore() == 9


@pytest.mark.parametrize("emptied", [False, True])
def test_a_run_that_trained_is_not_started_over_without_states(run, emptied):
    shutil.rmtree(run.path / "checkpoints")
    if emptied:
        (run.path / "checkpoints").mkdir()
    with pytest.raises(ValueError, match=r"checkpoints: there is no checkpoint, but history\.jsonl"):
        Training(run).checkpoints.restore()


def test_a_state_that_was_written_but_not_yet_listed_is_the_newest(run):
    (run.path / "checkpoints" / "checkpoint").write_text(
        'model_checkpoint_path: "step-9"\nall_model_checkpoint_paths: "step-9"\n'
    )
    assert Training(run).checkpoints.restore() == 12
    assert listed_steps(run) == [6, 9, 12]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("where", "value"), [("weight", np.nan), ("weight", np.inf), ("moment", np.inf), ("average", -np.inf)]
)
def test_what_is_not_finite_is_not_saved(new_run, where, value):
    training = Training(new_run, ema_decay=0.9)
    training.save(1)
    before = files_of(new_run)
    training.draw(2)
    variable = {
        "weight": training.model.weights[1],
        "moment": training.optimizer.variables[3],
        "average": training.model.ema_weights[-1],
    }[where]
    changed = variable.numpy()
    changed.flat[-1] = value
    variable.assign(changed)
    with pytest.raises(NotFiniteError, match="not finite at step 2; nothing was saved. Available: step-1"):
        training.checkpoints.save(1.0)
    assert files_of(new_run) == before
    training.save(3)
    assert steps_on_disk(new_run) == [1, 3]


@pytest.mark.slow
def test_the_first_state_counts_without_the_list_that_follows_it(new_run):
    training = Training(new_run)
    training.save(0)
    (new_run.path / "checkpoints" / "checkpoint").unlink()  # as when it is killed between the two
    again = Training(new_run)
    assert again.checkpoints.restore() == 0
    assert_same(training.values(), again.values())
    assert listed_steps(new_run) == [0]


LIMITED = """
import resource, sys
import tiny_runs
from keras_transformer.checkpoints import tensor_files
from keras_transformer.config.programs import StorageError
from keras_transformer.checkpoints.run_folder import RunFolder

run = RunFolder(sys.argv[1])
training = tiny_runs.Training(run)
assert training.checkpoints.restore() == 12
for limit in (0, 100, 3000, 20_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        training.save(15)
    except StorageError as error:
        print(f"{error.exit_code} {error}", flush=True) if limit == 100 else None
    else:
        raise SystemExit(f"{limit} bytes were enough")
    assert tiny_runs.steps_on_disk(run) == [6, 9, 12]
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
training.save(15)
"""


def run_python(code, *arguments, **settings):
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'shared'}",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **settings
    )


@pytest.mark.slow
def test_files_that_may_not_grow_leave_all_states_of_before(run):
    before = {path.name for path in (run.path / "checkpoints").iterdir()}
    process = run_python(LIMITED, run.path)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert len(out.splitlines()) == 1
    assert out.startswith("3 ")
    for words in (
        "checkpoints/step-15: cannot be written: File too large. It needs ",
        " MB. ",
        "newest complete checkpoint is step-12",
    ):
        assert words in out
    assert steps_on_disk(run) == listed_steps(run) == [9, 12, 15]
    names = {path.name for path in (run.path / "checkpoints").iterdir()}
    assert names == {name.replace("step-6", "step-15") for name in before}


@pytest.fixture
def small_disk(tmp_path):
    """A file system of about half a megabyte."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=600k", "none", str(place)]
    try:
        made = subprocess.run(mount, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"mount: {error}")
    if made.returncode:
        pytest.skip(f"mount: {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def fill_history(run):
    for step in range(2, 4000):
        run.append_history({"kind": "train", "step": step})


@pytest.mark.slow
def test_a_full_disk_leaves_all_states_of_before_and_history_whole(small_disk, config, tokenizer):
    run = RunFolder.create(small_disk / "run", config, tokenizer)
    training = Training(run)
    training.save(1)
    run.append_history({"kind": "train", "step": 1})
    free = shutil.disk_usage(small_disk).free
    (small_disk / "filler").write_bytes(b"\0" * (free - 3 * 4096))
    with pytest.raises(
        StorageError, match=r"step-2: cannot be written: .*newest complete checkpoint is step-1"
    ):
        training.save(2)
    with pytest.raises(StorageError, match=r"history\.jsonl: cannot be written: No space left"):
        fill_history(run)
    with pytest.raises(StorageError):
        run.rewind_history(1)
    assert json.loads((run.path / "history.jsonl").read_text().splitlines()[-1])["kind"] == "train"
    assert steps_on_disk(run) == listed_steps(run) == [1]
    assert {path.name for path in (run.path / "checkpoints").iterdir()} == {
        "checkpoint",
        "step-1.index",
        "step-1.data-00000-of-00001",
    }
    (small_disk / "filler").unlink()
    training.checkpoints.save(0.0)
    assert steps_on_disk(run) == listed_steps(run) == [1, 2]
    assert Training(run).checkpoints.restore() == 2


SAVING = """
import sys
import tiny_runs
from keras_transformer.checkpoints.run_folder import RunFolder

run = RunFolder(sys.argv[1])
run.clean()
training = tiny_runs.Training(run)
step = training.checkpoints.restore()
while True:
    step += 1
    training.save(step)
    print(step, flush=True)
"""


@pytest.mark.very_slow
def test_killed_while_saving_ten_times_a_run_goes_on(run):
    rng = np.random.default_rng(11)
    for _ in range(10):
        process = run_python(SAVING, run.path)
        first = process.stdout.readline()
        time.sleep(rng.uniform(0.0, 0.3))
        process.send_signal(signal.SIGKILL)
        said, _ = process.communicate()
        run.clean()
        training = Training(run)
        step = training.checkpoints.restore()
        assert step >= int((first + said).split()[-1])
        expected = Training(run)
        expected.draw(step)
        assert_same([w.numpy() for w in training.model.weights], [w.numpy() for w in expected.model.weights])
        steps = steps_on_disk(run)
        assert steps == listed_steps(run)
        assert {path.name for path in (run.path / "checkpoints").iterdir()} == {
            "checkpoint",
            *(f"step-{n}.index" for n in steps),
            *(f"step-{n}.data-00000-of-00001" for n in steps),
        }
