"""The run folder: what is written can be read with other means, what is broken is refused."""

import hashlib
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import zlib

import numpy as np
import pytest
from tiny_runs import TEXTS, Training

from keras_transformer.checkpoints.new_folder import check_unused
from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.config.programs import StorageError
from keras_transformer.config.settings import replace, to_json
from keras_transformer.files import write_text
from keras_transformer.tokenizers.sentencepiece import SubwordTokenizer
from keras_transformer.tokenizers.tokenizer_pair import Tokenizers
from keras_transformer.tokenizers.wordpiece import WordPieceTokenizer


def test_the_configuration_file_is_that_of_the_run(saved, config):
    written = json.loads((saved / "config.json").read_text(encoding="utf-8"))
    assert len(written.pop("sha256")) == 64
    assert written == json.loads(to_json(config))
    assert written["model"]["d_model"] == 8
    assert RunFolder(saved).config == config


def test_the_tokenizer_is_that_of_the_run(saved, tokenizer):
    assert (saved / "tokenizer.model").read_bytes() == tokenizer.model_bytes
    assert RunFolder(saved).load_tokenizers().source.encode(TEXTS) == tokenizer.encode(TEXTS)


def test_an_export_is_refused_with_what_translates_by_it(tmp_path):
    for name in ("config.json", "model.bin"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(
        ValueError, match="a CTranslate2 export, not a run folder. Translate with it by .*translate.c"
    ):
        RunFolder(tmp_path)


def test_a_folder_without_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match="not a run folder.*No such file"):
        RunFolder(tmp_path)


@pytest.mark.parametrize("text", ["", "{", '{"model": {"d_modle": 8}}', '{"model": 3}'])
def test_a_damaged_configuration_is_refused_with_the_file(run, text):
    (run.path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"config\.json: "):
        RunFolder(run.path)


def test_a_damaged_tokenizer_is_refused_with_the_file(run):
    path = run.path / "tokenizer.model"
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(ValueError, match=r"tokenizer\.model.* Restore it from a copy"):
        run.load_tokenizers()


def test_a_folder_with_other_files_is_not_made_a_run(config, tokenizer, tmp_path):
    (tmp_path / "thesis.tex").write_text("precious", encoding="utf-8")
    with pytest.raises(ValueError, match="exists and is not a run folder"):
        RunFolder.create(tmp_path, config, tokenizer)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_is_not_made_a_run(tmp_path):
    (tmp_path / "run").write_text("precious", encoding="utf-8")
    with pytest.raises(ValueError, match="exists and is not a run folder"):
        check_unused(tmp_path / "run")


def test_an_empty_or_new_folder_may_be_used(tmp_path):
    check_unused(tmp_path)
    check_unused(tmp_path / "new" / "deep")
    assert list(tmp_path.iterdir()) == []


def test_written_text_is_complete_and_leaves_nothing_else(tmp_path):
    write_text(tmp_path / "file", "old")
    write_text(tmp_path / "file", "größer\n")
    assert (tmp_path / "file").read_bytes() == "größer\n".encode()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    write_text(tmp_path / "file", "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "file", "new \udcff")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "old"


def test_history_is_one_json_object_a_line(new_run):
    run = new_run
    assert run.read_history() == []
    records = [{"step": 1, "text": "größer\u2028"}, {"step": 2, "loss": 0.1}]
    for record in records:
        run.append_history(record)
    lines = (run.path / "history.jsonl").read_text(encoding="utf-8").split("\n")
    found = [json.loads(line) for line in lines[:-1]]
    for line, record in zip(lines, found, strict=False):
        # The checksum is that of the line without it.
        body = line.replace(f'"crc32": "{record["crc32"]}", ', "")
        assert record.pop("crc32") == f"{zlib.crc32(body.encode()):08x}"
    assert found == records
    assert lines[-1] == ""
    assert run.read_history() == records


def test_a_record_of_the_history_is_sent_to_the_disk(new_run, monkeypatch):
    sizes, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: sizes.append(os.fstat(handle).st_size) or fsync(handle))
    for step in (1, 2):
        new_run.append_history({"kind": "train", "step": step})
        assert sizes[-1:] == [(new_run.path / "history.jsonl").stat().st_size]


def test_a_rewound_history_ends_at_the_restored_step(new_run):
    run = new_run
    for step in (5, 10, 15):
        run.append_history({"kind": "train", "step": step})
    run.rewind_history(10)
    assert [record["step"] for record in run.read_history()] == [5, 10]


def test_a_record_that_a_crash_cut_short_is_left_out(new_run):
    run = new_run
    run.append_history({"step": 5})
    with (run.path / "history.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 10, "lo')
    run.rewind_history(7)
    run.append_history({"step": 8})
    assert [record["step"] for record in run.read_history()] == [5, 8]


def test_settings_changed_by_hand_are_refused_with_the_right_way(run):
    file = run.path / "config.json"
    file.write_text(file.read_text().replace('"num_heads": 2', '"num_heads": 4'), encoding="utf-8")
    with pytest.raises(ValueError, match=r"config\.json: .*checksum.*--set NAME=VALUE[^\n]*$"):
        RunFolder(run.path)


def test_settings_of_earlier_versions_open_and_get_a_checksum_when_the_run_goes_on(run, config):
    file = run.path / "config.json"
    sealed = file.read_text(encoding="utf-8")
    file.write_text(to_json(config), encoding="utf-8")
    old = RunFolder(run.path)
    assert old.config == config
    old.write_config(config)
    assert file.read_text(encoding="utf-8") == sealed


def test_a_damaged_record_is_left_out_said_and_put_aside(new_run, capsys):
    for step in (1, 2, 3):
        new_run.append_history({"kind": "validation", "step": step, "loss": 4.0 - step})
    file = new_run.path / "history.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    damaged = lines[2].replace(b'"loss": 1.0', b'"loss": 9.0')
    file.write_bytes(lines[0] + b"junk\n" + damaged + lines[1])
    run = RunFolder(new_run.path)
    for _ in range(2):  # said once
        assert [record["step"] for record in run.read_history()] == [1, 2]
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert said[0].startswith(f"{file}: line 2 is damaged and ignored (not JSON (")
    assert said[1] == f"{file}: line 3 is damaged and ignored (does not match its checksum)"
    run.rewind_history(1)
    assert file.read_bytes() == lines[0]
    assert (new_run.path / "history.damaged").read_bytes() == b"junk\n" + damaged
    run.rewind_history(0)
    assert (new_run.path / "history.damaged").read_bytes() == b"junk\n" + damaged


def test_translations_that_were_changed_are_said_and_not_taken(new_run, capsys):
    assert new_run.read_translations("test", 7) is None
    new_run.write_translations("test", 7, ["Der Hund.", "größer"], {"bleu": 30.0})
    assert new_run.read_translations("test", 7) == ["Der Hund.", "größer"]
    assert new_run.read_translations("test", 8) is None
    config = new_run.config
    new_run.write_config(replace(config, search={"beam_size": config.search.beam_size + 1}))
    assert new_run.read_translations("test", 7) is None  # they are of another search
    new_run.write_config(config)
    assert new_run.read_translations("test", 7) == ["Der Hund.", "größer"]
    path = new_run.path / "translations.test.de"
    for damage in (b"Der Mund.", b"Der \xffund."):
        path.write_bytes(path.read_bytes().replace(b"Der Hund.", damage))
        assert RunFolder(new_run.path).read_translations("test", 7) is None
        assert capsys.readouterr().err == f"{path}: damaged, or changed since it was written\n"
        path.write_bytes(path.read_bytes().replace(damage, b"Der Hund."))
    # Records of earlier versions have no checksum.
    new_run.append_history({"kind": "test", "split": "test", "step": 7, "bleu": 30.0})
    path.write_text("Ein Hund.\n", encoding="utf-8")
    assert new_run.read_translations("test", 7) == ["Ein Hund."]


def test_records_of_earlier_versions_are_read_and_get_a_checksum_when_the_run_goes_on(new_run, capsys):
    records = [{"kind": "train", "step": step, "loss": 0.1 * step} for step in (1, 2, 3)]
    file = new_run.path / "history.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    assert new_run.read_history() == records
    new_run.rewind_history(2)
    assert new_run.read_history() == records[:2]
    assert all(line.startswith('{"crc32": "') for line in file.read_text().splitlines())
    assert capsys.readouterr().err == ""


def test_no_bit_of_a_history_changes_a_record(new_run):
    records = [
        {"kind": "validation", "step": 7, "loss": 2.25e-07, "bleu": 31.5},
        {"kind": "test", "J*": [1]},
    ]
    for record in records:
        new_run.append_history(record)
    file = new_run.path / "history.jsonl"
    content = file.read_bytes()
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        found = new_run.read_history()
        assert all(record in records for record in found), bytes(flipped)
        # Without a newline two lines are one.
        assert len(found) >= (1 if content[bit // 8] != 10 else 0)


def test_a_worker_that_does_not_write_changes_no_file(run):
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    (run.path / "checkpoints" / "step-99_temp").mkdir()
    other = RunFolder(run.path, writes=False)
    other.append_history({"kind": "train", "step": 13})
    other.rewind_history(3)
    other.clean()
    assert other.average(last=3) == [6, 9, 12]
    training = Training(other)
    training.draw(12)
    other.keep_best(training.model)
    with other.lock():
        pass
    (run.path / "checkpoints" / "step-99_temp").rmdir()
    after = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    del before[run.path / "checkpoints"], after[run.path / "checkpoints"]
    assert after == before


HOLDING = """
import sys
from keras_transformer.files import process_lock

with process_lock(sys.argv[1] + "/lock"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_two_processes_do_not_train_in_one_folder(new_run):
    command = [sys.executable, "-c", HOLDING, str(new_run.path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"held\n"
        with (
            pytest.raises(ValueError, match=f"{new_run.path}: another process is using this folder"),
            new_run.lock(),
        ):
            pass
        with RunFolder(new_run.path, writes=False).lock():
            pass
    finally:
        process.kill()  # the lock goes with the process, however it ends
        process.communicate()
    with new_run.lock():
        pass


def test_cleaning_removes_what_a_crash_left_and_nothing_else(run):
    before = sorted(run.path.rglob("*"))
    checkpoints = run.path / "checkpoints"
    for folder in ("checkpoints/step-15_temp", "checkpoints/step-15_temp/part-00000", "averaged/last-2_temp"):
        (run.path / folder).mkdir(exist_ok=True)
    (checkpoints / "step-15_temp" / "step-15.data-00000-of-00001").write_bytes(b"half")
    (checkpoints / "step-15.data-00000-of-00001").write_bytes(b"no index")
    (checkpoints / "checkpoint.tmp0123456789abcdef").write_bytes(b"list")
    (checkpoints / ".checkpoint.abcd1234.tmp").write_bytes(b"list")
    (run.path / ".config.json.tmp").write_bytes(b"{")
    (run.path / ".tokenizer.model.a1b2c3d4").write_bytes(b"half")
    (run.path / "best").mkdir()
    (run.path / "best" / "step-3_temp").mkdir()
    (run.path / ".corpus.abcd1234.tmp" / "shards").mkdir(parents=True)
    own = [run.path / name for name in ("my_template.txt", "notes_temp", "checkpoint.tmp1", "my.data-1")]
    for path in own:
        path.write_bytes(b"the user's")
    run.clean()
    for path in own:
        path.unlink()
    (run.path / "best").rmdir()
    assert sorted(run.path.rglob("*")) == before


def killed_after(number, monkeypatch, work):
    """Ends `work` with an exception at its renaming number `number`; nothing is removed."""

    class KilledError(BaseException):
        pass

    renamings, replace_file = itertools.count(1), os.replace

    def dying(old, new):
        if next(renamings) == number:
            raise KilledError
        replace_file(old, new)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", dying)
        patched.setattr(pathlib.Path, "unlink", lambda path, missing_ok=False: None)
        with pytest.raises(KilledError):
            work()


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_folder_whose_first_start_was_killed_is_begun_anew(
    number, config, tokenizer, tmp_path, monkeypatch
):
    path = tmp_path / "run"
    killed_after(number, monkeypatch, lambda: RunFolder.create(path, config, tokenizer))
    assert list(path.glob(".*.tmp"))
    assert not (path / "config.json").exists()
    (path / ".tokenizer.model.x1y2z3_4").write_bytes(b"half")  # as earlier versions named it
    RunFolder.create(path, config, tokenizer)
    names = sorted(file.name for file in path.iterdir())
    assert names == ["config.json", "lock", "tokenizer.model", "tokenizer.sha256"]
    assert RunFolder(path).load_tokenizers().source.sha256 == tokenizer.sha256


def test_somebody_elses_vocabulary_is_no_unfinished_run(config, tokenizer, tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(b"mine")
    with pytest.raises(ValueError, match="exists and is not a run folder"):
        RunFolder.create(tmp_path, config, tokenizer)
    (tmp_path / "tokenizer.model").rename(tmp_path / "notes.txt")
    (tmp_path / "lock").touch()
    with pytest.raises(ValueError, match="exists and is not a run folder"):
        RunFolder.create(tmp_path, config, tokenizer)
    assert (tmp_path / "notes.txt").read_bytes() == b"mine"


def test_a_folder_that_cannot_be_made_is_known_before_all_work(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "run", tmp_path / ("x" * 300)):
        with pytest.raises(ValueError, match="cannot write in .*Choose another --run-dir"):
            check_unused(path)
    if pathlib.Path("/proc/self").exists():
        with pytest.raises(ValueError, match="/proc/x/y: cannot write in /proc "):
            check_unused("/proc/x/y")
    check_unused(tmp_path / "some" / "where" / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", ["run[1]", "a\\b", "[x]/run"])
def test_a_path_may_have_brackets_and_backslashes(name, saved, tmp_path):
    run = RunFolder(shutil.copytree(saved, tmp_path / name))
    training = Training(run)
    assert training.checkpoints.restore() == 12
    training.save(15)
    assert run.average(last=2) == [12, 15]
    again = Training(RunFolder(run.path))
    assert again.checkpoints.restore() == 15
    np.testing.assert_array_equal(again.values()[0], training.values()[0])
    assert run.load_model(checkpoint="last-2").count_params() == training.model.count_params()


@pytest.mark.slow
def test_a_run_whose_folder_was_renamed_says_so_and_begins_no_other(run):
    training = Training(run)
    training.checkpoints.restore()
    run.path.rename(run.path.with_name("other"))
    with pytest.raises(
        StorageError, match="step-15: cannot be written: its folder no longer exists"
    ) as caught:
        training.save(15)
    assert "room" not in str(caught.value)
    assert "MB" not in str(caught.value)
    with pytest.raises(StorageError, match=r"history\.jsonl: cannot be written: its folder no longer exists"):
        run.append_history({"kind": "train", "step": 15})
    assert not run.path.exists()


def test_a_run_may_have_a_vocabulary_for_each_side(config, tokenizer, tmp_path):
    target = WordPieceTokenizer.train(TEXTS, vocab_size=40)
    sizes = {"source_vocab_size": 300, "target_vocab_size": 40, "tie_embeddings": "decoder"}
    separate = replace(config, model=replace(config.model, **sizes))
    run = RunFolder.create(tmp_path / "run", separate, Tokenizers(tokenizer, target))
    names = sorted(path.name for path in run.path.iterdir())
    models = ["tokenizer.source.model", "tokenizer.target.model"]
    assert names == ["config.json", "lock", "tokenizer.sha256", *models]
    loaded = RunFolder(run.path).load_tokenizers()
    assert [one.sha256 for one in loaded] == [tokenizer.sha256, target.sha256]
    (run.path / "tokenizer.source.model").unlink()
    with pytest.raises(ValueError, match=r"run must hold tokenizer\.model.*Received: tokenizer\.target"):
        run.load_tokenizers()


def test_another_vocabulary_of_the_same_size_is_refused(run, tokenizer):
    digest = hashlib.sha256((run.path / "tokenizer.model").read_bytes()).hexdigest()
    assert (run.path / "tokenizer.sha256").read_text() == f"{digest}  tokenizer.model\n"
    other = SubwordTokenizer.train([text[::-1] for text in TEXTS * 3], vocab_size=tokenizer.vocab_size)
    other.save(run.path / "tokenizer.model")
    with pytest.raises(ValueError, match="the vocabulary differs from the one this run started with"):
        run.load_tokenizers()


def test_a_shared_vocabulary_is_one_object(run):
    assert run.load_tokenizers().shared


def test_vocabularies_of_another_model_are_refused(config, run, tmp_path):
    other = SubwordTokenizer.train(TEXTS * 3, vocab_size=299)
    with pytest.raises(ValueError, match="299 and 299 tokens, the model has 300"):
        RunFolder.create(tmp_path / "new", config, other)
    assert not (tmp_path / "new").exists()
    other.save(run.path / "tokenizer.model")
    with pytest.raises(ValueError, match="copy: .*299 and 299 tokens"):
        run.load_tokenizers()
