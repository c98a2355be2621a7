"""What the start of a run leaves in its folder when it is refused, interrupted or killed."""

import contextlib
import dataclasses
import os
import pathlib
import signal

import pytest

from keras_transformer.batches import preparing
from keras_transformer.checkpoints.new_folder import check_unused
from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.config.settings import Config, DataConfig, ModelConfig, replace
from keras_transformer.text.lines import DataError
from keras_transformer.training.devices import choose_devices
from keras_transformer.training.session import open_session

PAIRS = [(f"{number} dogs run", f"{number} Hunde laufen") for number in range(300)]


def write(folder, split, pairs):
    for language, side in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
        (folder / f"{split}.{language}").write_text("\n".join(side) + "\n", encoding="utf-8")


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    write(folder, "train", PAIRS)
    write(folder, "valid", PAIRS[:9])
    return folder


@pytest.fixture
def config(corpus):
    small = ModelConfig(num_encoder_layers=1, num_decoder_layers=1, d_model=8, d_ff=8, num_heads=2)
    data = DataConfig(dataset=str(corpus), vocab_size=300, max_length=40, batch_tokens=640)
    return dataclasses.replace(Config(), model=small, data=data)


def start(config, run, allowed=()):
    with contextlib.ExitStack() as stack:
        devices = choose_devices(config.devices, precision=config.training.precision)
        return open_session(config, pathlib.Path(run), devices, allowed, stack)


def names(run):
    return {path.name for path in run.iterdir()}


def test_text_is_prepared_into_the_run_folder(config, tmp_path):
    session = start(config, tmp_path / "runs" / "new")
    assert session.corpus.train.num_pairs == len(PAIRS)
    assert names(session.run.path) == {
        *("config.json", "corpus", "corpus.sha256", "lock", "tokenizer.model", "tokenizer.sha256")
    }


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("folders", ["there", "to be made"])
def test_a_run_refused_after_its_text_was_prepared_leaves_nothing(config, corpus, tmp_path, folders):
    run = tmp_path / "runs" / "new"
    if folders == "there":
        run.mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    write(corpus, "valid", [("dogs " * 50, "Hunde " * 50)])
    with pytest.raises(DataError, match="validation: all 1 pairs exceed 40 tokens"):
        start(config, run)
    assert sorted(tmp_path.rglob("*")) == before
    write(corpus, "valid", PAIRS[:9])
    start(config, run)


@pytest.mark.slow
def test_an_interrupted_first_start_goes_on_where_it_was(config, corpus, tmp_path, monkeypatch, capsys):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(preparing, "write_shards", interrupt)
        with pytest.raises(KeyboardInterrupt):
            start(config, run)
    assert names(run) == {"corpus", "lock"}
    vocabulary = (run / "corpus" / "tokenizer.model").stat().st_mtime_ns
    assert "learning" in capsys.readouterr().out
    check_unused(run)
    start(config, run)
    assert (run / "corpus" / "tokenizer.model").stat().st_mtime_ns == vocabulary
    assert "learning" not in capsys.readouterr().out


@pytest.mark.slow
def test_an_interrupted_first_start_does_not_bind_the_next_one(config, corpus, tmp_path):
    run = tmp_path / "run"
    child = os.fork()
    if child == 0:
        preparing.write_shards = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
        start(config, run)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert names(run) == {"corpus", "lock"}
    (run / ".corpus.01234567.tmp").mkdir()  # killed again while that was removed
    write(corpus, "train", PAIRS[:200])
    session = start(replace_data(config, vocab_size=290), run)
    assert session.corpus.train.num_pairs == 200
    assert session.run.config.data.vocab_size == 290
    assert not list(run.glob(".*"))


def replace_data(config, **data):
    return dataclasses.replace(config, data=replace(config.data, **data))


def test_a_folder_that_holds_something_else_is_left_alone(config, tmp_path):
    (tmp_path / "run" / "corpus").mkdir(parents=True)
    (tmp_path / "run" / "corpus" / "precious.txt").touch()
    with pytest.raises(ValueError, match="exists and is not a run folder"):
        start(config, tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run").rglob("*")) == ["corpus", "precious.txt"]


def test_a_text_of_their_own_in_an_earlier_run_is_left_alone(config, tmp_path):
    run = tmp_path / "run"
    start(config, run)
    (run / "history.jsonl").touch()  # it has trained
    for path in (run / "corpus").iterdir():
        path.unlink()
    (run / "corpus" / "precious.txt").touch()
    with pytest.raises(DataError, match="corpus: contains other files"):
        start(config, run)
    assert names(run / "corpus") == {"precious.txt"}


@pytest.mark.slow
def test_a_change_that_is_allowed_is_kept_only_if_the_run_starts(config, corpus, tmp_path):
    run = tmp_path / "run"
    start(config, run)
    (run / "history.jsonl").touch()  # it has trained
    before = (run / "config.json").read_bytes()
    changed = replace(config, training={"warmup_steps": 7})
    valid = {path: path.read_bytes() for path in corpus.glob("valid.*")}
    write(corpus, "valid", [("dogs " * 50, "Hunde " * 50)])
    with pytest.raises(DataError, match="validation: all 1 pairs exceed 40 tokens"):
        start(changed, run, ["training.warmup_steps"])
    assert (run / "config.json").read_bytes() == before
    for path, content in valid.items():
        path.write_bytes(content)
    start(config, run)
    start(changed, run, ["training.warmup_steps"])
    assert RunFolder(run).config.training.warmup_steps == 7


def test_other_settings_are_refused_before_the_text_is_read(config, tmp_path):
    run = tmp_path / "run"
    start(config, run)
    (run / "history.jsonl").touch()
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    with pytest.raises(ValueError, match="this run has different settings: data.max_length 40 -> 30"):
        start(replace_data(config, max_length=30), run)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
