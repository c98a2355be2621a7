"""The run folder: what is written can be read with other means, what is broken is refused."""

import hashlib
import json
import subprocess
import sys

import pytest
from tiny_runs import TEXTS, Training

from keras_transformer.config import replace, to_json
from keras_transformer.data.tokenizer import SubwordTokenizer
from keras_transformer.data.vocabulary import Tokenizers
from keras_transformer.data.wordpiece import WordPieceTokenizer
from keras_transformer.files import write_text
from keras_transformer.training.run_folder import RunFolder, check_unused


def test_the_configuration_file_is_that_of_the_run(saved, config):
    assert (saved / "config.json").read_text(encoding="utf-8") == to_json(config)
    assert json.loads((saved / "config.json").read_text())["model"]["d_model"] == 8
    assert RunFolder(saved).config == config


def test_the_tokenizer_is_that_of_the_run(saved, tokenizer):
    assert (saved / "tokenizer.model").read_bytes() == tokenizer.model_bytes
    assert RunFolder(saved).load_tokenizers().source.encode(TEXTS) == tokenizer.encode(TEXTS)


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
    with pytest.raises(ValueError, match=r"tokenizer\.model"):
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
    assert [json.loads(line) for line in lines[:-1]] == records
    assert lines[-1] == ""
    assert run.read_history() == records


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


def test_a_damaged_record_is_refused_with_its_line(new_run):
    (new_run.path / "history.jsonl").write_text('{"step": 1}\n{"st\x00\n{"step": 3}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"history\.jsonl: line 2 is damaged"):
        new_run.read_history()


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
    other.best(training.model).update()
    with other.lock():
        pass
    (run.path / "checkpoints" / "step-99_temp").rmdir()
    after = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    del before[run.path / "checkpoints"], after[run.path / "checkpoints"]
    assert after == before


HOLDING = """
import sys
from keras_transformer.files import only_process

with only_process(sys.argv[1] + "/lock"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_two_processes_do_not_train_in_one_folder(new_run):
    command = [sys.executable, "-c", HOLDING, str(new_run.path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(ValueError, match=f"{new_run.path}: another process is working"), new_run.lock():
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
    (run.path / "best").mkdir()
    (run.path / "best" / "step-3_temp").mkdir()
    run.clean()
    (run.path / "best").rmdir()
    assert sorted(run.path.rglob("*")) == before


def test_a_run_may_have_a_vocabulary_for_each_side(config, tokenizer, tmp_path):
    target = WordPieceTokenizer.train(TEXTS, vocab_size=40)
    sizes = {"source_vocab_size": 300, "target_vocab_size": 40, "sharing": "target_output"}
    separate = replace(config, model=replace(config.model, **sizes))
    run = RunFolder.create(tmp_path / "run", separate, Tokenizers(tokenizer, target))
    names = sorted(path.name for path in run.path.iterdir())
    models = ["tokenizer.source.model", "tokenizer.target.model"]
    assert names == ["config.json", "tokenizer.sha256", *models]
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
    with pytest.raises(ValueError, match="the vocabulary is not the one that this run began with"):
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
