"""A real `tf.data` service on this machine: the same batches, whatever happens to it."""

import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

import data_service
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.batches import service
from keras_transformer.batches.ids import IdPairs, Sequences, drop_long
from keras_transformer.batches.prepared import PreparedCorpus
from keras_transformer.batches.preparing import prepare
from keras_transformer.batches.service import ServiceBatches
from keras_transformer.batches.token_batches import TokenBatches
from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.cli import train as train_wmt
from keras_transformer.config import settings as configs
from keras_transformer.config.settings import Config, SpecialIds
from keras_transformer.training.run import train

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOUNS = {"man": "Mann", "king": "König", "fox": "Fuchs", "tree": "Baum", "river": "Fluss"}
ENDS = ("", " today", " in the old town", " and the seven little dogs that nobody likes")
SENTENCES = [
    (f"the {a} sees {number} {b}s{end}", f"der {x} sieht {number} mal {y}{end[::-1]}")
    for (a, x), (b, y) in itertools.product(NOUNS.items(), repeat=2)
    for end in ENDS
    for number in range(9)
]
PLAN = {"special": SpecialIds(), "batch_tokens": 500, "seed": 5}


def start(*arguments):
    environment = {name: value for name, value in os.environ.items() if name[:3] != "TF_"}
    return subprocess.Popen(
        [sys.executable, ROOT / "pipelines" / "data_service.py", *arguments],
        env=environment | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A prepared corpus of 900 pairs in 9 shards."""
    raw, folder = tmp_path_factory.mktemp("raw"), tmp_path_factory.mktemp("prepared")
    for split, pairs in (("train", SENTENCES), ("valid", SENTENCES[:7])):
        for language, side in (("en", 0), ("de", 1)):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            (raw / f"{split}.{language}").write_text(text, encoding="utf-8")
    config = Config()
    data = configs.replace(config.data, dataset=str(raw), vocab_size=330, max_length=50)
    prepared = prepare(dataclasses.replace(config, data=data), folder, num_workers=1, shard_pairs=103)
    assert len(prepared.manifest["shards"]) == 9
    return folder


@pytest.fixture(scope="module")
def pairs(corpus):
    return PreparedCorpus(corpus).load_pairs()


@pytest.fixture(scope="module")
def servers():
    """Address of a dispatcher, and two processes that work for it."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    address = f"localhost:{port}"
    dispatcher = start("dispatcher", "--port", str(port))
    workers = [start("worker", "--dispatcher", address, "--host", "localhost") for _ in range(2)]
    try:
        assert dispatcher.stdout.readline().startswith("dispatcher at ")
        for worker in workers:
            assert worker.stdout.readline().startswith("worker at localhost:")
        yield address, workers
    finally:
        for process in (dispatcher, *workers):
            process.kill()
            process.communicate()


@pytest.fixture
def address(servers):
    return servers[0]


def take(batches, start, number):
    return list(itertools.islice(batches.batches(itertools.islice(batches.plans(start), number)), number))


def check_same(found, expected):
    assert len(found) == len(expected)
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        for ours, theirs in zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True):
            assert ours.dtype == theirs.dtype == np.int32
            np.testing.assert_array_equal(ours, theirs, err_msg=f"batch {number}")


@pytest.mark.parametrize(
    ("begin", "padding", "pairs_at_once"),
    [(0, "longest", 300), (7, "longest", 100_000), (0, "fixed", 100_000), (7, "fixed", 300)],
)
def test_batches_are_those_made_without_in_the_same_order(
    pairs, address, monkeypatch, begin, padding, pairs_at_once
):
    monkeypatch.setattr(service, "_PAIRS_AT_ONCE", pairs_at_once)
    local = TokenBatches(pairs, padding=padding, **PLAN)
    number = local.per_epoch + 9  # over the end of the epoch
    assert local.per_epoch > 20
    found = take(ServiceBatches(pairs, service=address, padding=padding, **PLAN), begin, number)
    check_same(found, take(local, begin, number))


def test_a_dataset_without_end_gives_them_too(pairs, address, monkeypatch):
    monkeypatch.setattr(service, "_PAIRS_AT_ONCE", 300)
    dataset = ServiceBatches(pairs, service=address, **PLAN).forever(3)
    found = list(dataset.take(40).as_numpy_iterator())
    check_same(found, take(TokenBatches(pairs, **PLAN), 3, 40))


def test_pairs_of_a_smaller_longest_length_are_found_in_the_files(pairs, address):
    filtered = drop_long(pairs, 20)
    assert 0 < filtered.num_dropped < pairs.num_pairs
    expected = TokenBatches(filtered.pairs, **PLAN)
    found = take(ServiceBatches(filtered.pairs, service=address, **PLAN), 0, expected.per_epoch)
    check_same(found, take(expected, 0, expected.per_epoch))


def test_the_other_direction_is_served(corpus, address):
    pairs = PreparedCorpus(corpus, "de", "en").load_pairs()
    found = take(ServiceBatches(pairs, service=address, **PLAN), 0, 5)
    check_same(found, take(TokenBatches(pairs, **PLAN), 0, 5))


@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_rows_are_the_ids_of_the_files(tmp_path, address, dtype):
    rows = [[5, 6, 2], [7, 2], [8, 9, 10, 2], [2]]
    starts = np.cumsum([0, *map(len, rows)])
    np.save(tmp_path / "ids.npy", np.concatenate(rows).astype(dtype))
    mapped = np.load(tmp_path / "ids.npy", mmap_mode="r")
    side = Sequences([(mapped, starts)])
    batches = ServiceBatches(IdPairs(side, side), service=address, **PLAN)
    [((source_ids, target_ids), labels)] = take(batches, 0, 1)
    assert source_ids.shape == (8, 4)
    padded = sorted(row + [0] * (4 - len(row)) for row in rows)
    assert sorted(source_ids.tolist()) == sorted(labels.tolist()) == [[0] * 4] * 4 + padded
    assert target_ids[:, 0].tolist() == [1] * 8
    np.testing.assert_array_equal(target_ids[:, 1:], labels[:, :-1])


def test_files_that_the_workers_do_not_see_are_refused(corpus, tmp_path, address):
    shutil.copytree(corpus, tmp_path / "here")
    pairs = PreparedCorpus(tmp_path / "here").load_pairs()
    (tmp_path / "here").rename(tmp_path / "elsewhere")  # mapped here, and so still readable
    batches = ServiceBatches(pairs, service=address, **PLAN)
    with pytest.raises(ValueError, match="prepared corpus at the same path") as refused:
        take(batches, 0, 3)
    assert "\n" not in str(refused.value)
    assert "train-0" in str(refused.value)


def make_config(corpus, address, **training):
    config = Config()
    return dataclasses.replace(
        config,
        model=configs.replace(
            config.model, num_encoder_layers=1, num_decoder_layers=1, d_model=8, d_ff=12, num_heads=2
        ),
        data=configs.replace(
            config.data, dataset=str(corpus), max_length=50, batch_tokens=500, service=address
        ),
        training=configs.replace(
            config.training,
            **{
                "max_steps": 6,
                "log_every_steps": 1,
                "validate_every_steps": 6,
                "validation_sentences": 0,
                "checkpoint_every_steps": 3,
                "checkpoint_every_minutes": 0.0,
                **training,
            },
        ),
        search=configs.replace(config.search, beam_size=1, extra_length=1),
    )


def losses(run):
    return [record["loss"] for record in run.read_history() if record["kind"] == "train"]


@pytest.mark.slow
def test_a_run_that_is_served_has_the_losses_of_one_that_is_not(corpus, address, tmp_path):
    expected = losses(train(make_config(corpus, ""), tmp_path / "without").run)
    assert len(set(expected)) == 6
    arguments = ["--dataset", corpus, "--run-dir", tmp_path / "run", "--data-service", address]
    config = make_config(corpus, "")
    for section in ("model", "data", "training", "search"):
        before = getattr(Config(), section)
        for name, value in dataclasses.asdict(getattr(config, section)).items():
            if value != getattr(before, name) and name != "dataset":
                arguments += ["--set", f"{section}.{name}={value}"]
    arguments = list(map(str, ["--preset", "base", *arguments]))
    assert train_wmt.main(arguments) == 0
    written = json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))
    assert written["data"]["service"] == address
    assert losses(RunFolder(tmp_path / "run")) == expected


def test_a_worker_that_is_killed_takes_no_batch_with_it(pairs, servers, monkeypatch):
    address, workers = servers
    monkeypatch.setattr(service, "_PAIRS_AT_ONCE", 2000)
    local = TokenBatches(pairs, **PLAN)
    number = 6 * local.per_epoch
    batches = ServiceBatches(pairs, service=address, **PLAN)
    found = []
    with contextlib.closing(batches.batches(itertools.islice(batches.plans(), number))) as stream:
        for batch in stream:
            found.append(batch)
            if len(found) == 3:
                workers[1].send_signal(signal.SIGKILL)
                workers[1].wait()
    check_same(found, take(local, 0, number))


@contextlib.contextmanager
def idle_dispatcher():
    """Has no worker."""
    config = tf.data.experimental.service.DispatcherConfig(port=0)
    server = tf.data.experimental.service.DispatchServer(config)
    yield server.target.removeprefix("grpc://")


@contextlib.contextmanager
def mute_server():
    """Takes connections and says nothing."""
    with socket.create_server(("localhost", 0)) as server:
        yield f"localhost:{server.getsockname()[1]}"


@pytest.mark.parametrize("silent", [idle_dispatcher, mute_server])
def test_without_an_answer_batches_are_made_here_and_it_is_said_once(pairs, monkeypatch, capsys, silent):
    monkeypatch.setattr(service, "_PAIRS_AT_ONCE", 300)
    monkeypatch.setattr(service, "_PATIENCE_SECONDS", 1)
    with silent() as address:
        found = take(ServiceBatches(pairs, service=address, **PLAN), 0, 40)
    check_same(found, take(TokenBatches(pairs, **PLAN), 0, 40))
    said = capsys.readouterr().err.splitlines()
    assert said == [f"data service at {address}: no batch for 1 seconds; making batches here"]


def test_without_a_dispatcher_training_is_refused_at_once(pairs):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
        begin = time.monotonic()
        with pytest.raises(ValueError, match=f"no data service answers at {address} .*data_service.py") as no:
            ServiceBatches(pairs, service=address, **PLAN)
    assert "\n" not in str(no.value)
    # Not as long as TensorFlow goes on asking; a busy machine takes its seconds.
    assert time.monotonic() - begin < 120


@pytest.mark.parametrize(
    "address", ["", "localhost", "5050", ":5050", "localhost:", "localhost:http", "a:70000"]
)
def test_what_is_no_address_is_refused(pairs, address):
    with pytest.raises(ValueError, match="`service` must be HOST:PORT of a dispatcher. Received: '") as no:
        ServiceBatches(pairs, service=address, **PLAN)
    assert "\n" not in str(no.value)


def test_pairs_that_are_in_no_file_are_refused(address):
    side = Sequences([(np.array([5, 2, 6, 2], np.int32), np.array([0, 2, 4]))])
    with pytest.raises(ValueError, match="needs a prepared corpus.*prepare_wmt.py"):
        ServiceBatches(IdPairs(side, side), service=address, **PLAN)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "dispatcher | worker"),
        (["dispatcher", "--port", "70000"], "must be from 0 to 65535, not '70000'"),
        (["worker", "--dispatcher", "nobody"], "must be HOST:PORT, not 'nobody'"),
        (["worker", "--dispatcher", "nobody:http"], "must be from 0 to 65535, not 'http'"),
    ],
)
def test_bad_arguments_of_a_server_are_refused(capsys, arguments, words):
    with pytest.raises(SystemExit, match="2"):
        data_service.main(arguments)
    assert words in capsys.readouterr().err


def test_an_interrupted_server_ends():
    server = start("dispatcher", "--port", "0")
    assert server.stdout.readline().startswith("dispatcher at localhost:")
    server.send_signal(signal.SIGINT)
    _, err = server.communicate(timeout=60)
    assert (server.returncode, err) == (130, "")
