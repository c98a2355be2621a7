"""The run folder: what is written can be read with other means, what is broken is refused."""

import hashlib
import json
import pathlib
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import Config, DataConfig, ModelConfig, TrainingConfig, replace, to_json
from keras_transformer.data.tokenizer import SubwordTokenizer
from keras_transformer.data.vocabulary import Tokenizers
from keras_transformer.data.wordpiece import WordPieceTokenizer
from keras_transformer.model import Transformer
from keras_transformer.training.run_folder import RunFolder, check_unused

STEPS = (3, 6, 9, 12)
TEXTS = ["The dog reads a text.", "Der Hund liest einen Text.", "A dog and a text."]


@pytest.fixture(scope="module")
def tokenizer():
    return SubwordTokenizer.train(TEXTS * 3, vocab_size=300)


@pytest.fixture(scope="module")
def config(tokenizer):
    return Config(
        model=ModelConfig(
            source_vocab_size=tokenizer.vocab_size,
            target_vocab_size=tokenizer.vocab_size,
            num_encoder_layers=1,
            num_decoder_layers=1,
            d_model=8,
            d_ff=12,
            num_heads=2,
        ),
        data=DataConfig(vocab_size=300, max_length=30, batch_tokens=400),
        training=TrainingConfig(keep_checkpoints=3, average_last=2),
    )


class Training:
    """A model whose weights say when they were saved; nothing is trained."""

    def __init__(self, run):
        self.model = Transformer(run.config.model)
        self.optimizer = keras.optimizers.Adam()
        self.optimizer.build(self.model.trainable_variables)
        self.checkpoints = run.checkpoints(self.model, self.optimizer)

    def save(self, step, seconds=0.0):
        rng = np.random.default_rng(step)
        for variable in [*self.model.trainable_variables, *self.optimizer.variables[2:]]:
            variable.assign(rng.normal(size=variable.shape))
        self.optimizer.iterations.assign(step)
        self.checkpoints.save(seconds)


@pytest.fixture(scope="module")
def saved(config, tokenizer, tmp_path_factory):
    """A run folder with four saves, of which three are kept."""
    path = tmp_path_factory.mktemp("saved") / "run"
    run = RunFolder.create(path, config, tokenizer)
    training = Training(run)
    for step in STEPS:
        training.save(step, seconds=10.0 * step)
    run.average(training.model, 2)
    return path


@pytest.fixture
def run(saved, tmp_path):
    """A copy that a test may break; a run folder may be moved."""
    return RunFolder(shutil.copytree(saved, tmp_path / "copy"))


def weights_of_step(run, step):
    """{name: array} of one checkpoint, read without a model."""
    reader = tf.train.load_checkpoint(str(run.path / "checkpoints" / f"step-{step}"))
    return weights_in(reader)


def weights_in(reader):
    start, end = "weights/", "/.ATTRIBUTES/VARIABLE_VALUE"
    return {
        name.removeprefix(start).removesuffix(end).replace(".S", "/"): reader.get_tensor(name)
        for name in reader.get_variable_to_shape_map()
        if name.startswith(start) and name.endswith(end)
    }


def flip_a_byte(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x40
    path.write_bytes(data)


def test_the_configuration_file_is_that_of_the_run(saved, config):
    assert (saved / "config.json").read_text(encoding="utf-8") == to_json(config)
    assert json.loads((saved / "config.json").read_text())["model"]["d_model"] == 8
    assert RunFolder(saved).config == config


def test_the_tokenizer_is_that_of_the_run(saved, tokenizer):
    assert (saved / "tokenizer.model").read_bytes() == tokenizer.model_bytes
    assert RunFolder(saved).load_tokenizers().source.encode(TEXTS) == tokenizer.encode(TEXTS)


def test_only_the_newest_checkpoints_are_kept(saved):
    names = {path.name for path in (saved / "checkpoints").iterdir()}
    assert {name.removesuffix(".index") for name in names if name.endswith(".index")} == {
        "step-6",
        "step-9",
        "step-12",
    }


def test_a_checkpoint_holds_every_weight(run):
    model = Transformer(run.config.model)
    found = weights_of_step(run, 12)
    assert {name: value.shape for name, value in found.items()} == {
        weight.path: tuple(weight.shape) for weight in model.weights
    }


def test_the_last_weights_are_those_of_the_newest_checkpoint(run):
    model = run.load_model(weights="last")
    expected = weights_of_step(run, 12)
    for weight in model.weights:
        np.testing.assert_array_equal(weight.numpy(), expected[weight.path])


def test_averaged_weights_are_the_mean_of_the_newest_checkpoints(run):
    model = run.load_model(weights="averaged")
    newest, before = weights_of_step(run, 12), weights_of_step(run, 9)
    for weight in model.weights:
        mean = (newest[weight.path].astype(np.float64) + before[weight.path]) / 2
        np.testing.assert_array_equal(weight.numpy(), mean.astype(np.float32))
        assert not np.array_equal(weight.numpy(), newest[weight.path])


def test_averaging_more_than_there_are_takes_all(run):
    model = Transformer(run.config.model)
    paths = run.average(model, 20)
    assert [pathlib.Path(path).name for path in paths] == ["step-6", "step-9", "step-12"]
    all_three = [weights_of_step(run, step) for step in (6, 9, 12)]
    for weight in model.weights:
        mean = np.mean([weights[weight.path] for weights in all_three], axis=0, dtype=np.float64)
        np.testing.assert_allclose(weight.numpy(), mean, rtol=1e-6)


def test_averaging_again_replaces_the_average(run):
    run.average(Transformer(run.config.model), 1)
    model = run.load_model(weights="averaged")
    expected = weights_of_step(run, 12)
    for weight in model.weights:
        np.testing.assert_array_equal(weight.numpy(), expected[weight.path])


def test_averaging_nothing_is_refused(config, tokenizer, tmp_path):
    run = RunFolder.create(tmp_path / "run", config, tokenizer)
    with pytest.raises(ValueError, match="checkpoints: no checkpoint to average"):
        run.average(Transformer(config.model), 5)


def test_restoring_brings_back_weights_optimizer_seeds_and_time(run):
    first = Training(run)
    first.save(15, seconds=77.5)
    second = Training(run)
    assert second.checkpoints.restore() == 15
    assert float(second.checkpoints.seconds) == 77.5
    for a, b in (
        (first.model.variables, second.model.variables),
        (first.optimizer.variables, second.optimizer.variables),
    ):
        assert [x.path.split("/")[-1] for x in a] == [x.path.split("/")[-1] for x in b]
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x.numpy(), y.numpy())


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


def test_a_new_run_has_nothing_to_restore(config, tokenizer, tmp_path):
    run = RunFolder.create(tmp_path / "run", config, tokenizer)
    assert Training(run).checkpoints.restore() == 0


def test_a_step_is_saved_once(run):
    training = Training(run)
    training.checkpoints.restore()
    before = {path: path.stat().st_mtime_ns for path in (run.path / "checkpoints").iterdir()}
    training.checkpoints.save(1e9)
    after = {path: path.stat().st_mtime_ns for path in (run.path / "checkpoints").iterdir()}
    assert before == after


@pytest.mark.parametrize("weights", ["averaged", "last"])
def test_damaged_weights_are_refused_with_the_file(run, weights):
    folder = run.path / {"averaged": "averaged", "last": "checkpoints"}[weights]
    newest = pathlib.Path(tf.train.latest_checkpoint(folder))
    flip_a_byte(newest.with_name(newest.name + ".data-00000-of-00001"))
    with pytest.raises(ValueError, match=f"{folder.name}/{newest.name}: damaged"):
        run.load_model(weights=weights)


def test_cut_off_weights_are_refused_with_the_file(run):
    path = run.path / "checkpoints" / "step-12.data-00000-of-00001"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"checkpoints/step-12: damaged"):
        run.load_model(weights="last")


def test_a_damaged_checkpoint_is_not_continued(run):
    flip_a_byte(run.path / "checkpoints" / "step-12.data-00000-of-00001")
    with pytest.raises(ValueError, match=r"checkpoints/step-12: damaged"):
        Training(run).checkpoints.restore()


def test_a_damaged_checkpoint_is_not_averaged(run):
    flip_a_byte(run.path / "checkpoints" / "step-9.data-00000-of-00001")
    with pytest.raises(ValueError, match=r"checkpoints/step-9: damaged"):
        run.average(Transformer(run.config.model), 2)


@pytest.mark.parametrize("damage", ["missing", "garbage"])
def test_checkpoints_without_their_list_are_not_started_over(run, damage):
    state = run.path / "checkpoints" / "checkpoint"
    if damage == "missing":
        state.unlink()
    else:
        state.write_text("garbage", encoding="utf-8")
    with pytest.raises(ValueError, match="checkpoints: .*step-12"):
        Training(run).checkpoints.restore()


def test_weights_of_another_model_are_refused(run, config):
    other = json.loads(to_json(config))
    other["model"]["d_ff"] = 13
    write_text(run.path / "config.json", json.dumps(other))
    with pytest.raises(ValueError, match=r"step-12: damaged, or of another model"):
        RunFolder(run.path).load_model(weights="last")


def test_missing_weights_are_refused_with_what_there_is(run):
    shutil.rmtree(run.path / "averaged")
    with pytest.raises(ValueError, match="no averaged weights yet.*`last`"):
        run.load_model()


def test_unknown_weights_are_refused(run):
    with pytest.raises(ValueError, match="'best'"):
        run.load_model(weights="best")


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


def test_history_is_one_json_object_a_line(run):
    assert run.read_history() == []
    records = [{"step": 1, "text": "größer\u2028"}, {"step": 2, "loss": 0.1}]
    for record in records:
        run.append_history(record)
    lines = (run.path / "history.jsonl").read_text(encoding="utf-8").split("\n")
    assert [json.loads(line) for line in lines[:-1]] == records
    assert lines[-1] == ""
    assert run.read_history() == records


def test_a_rewound_history_ends_at_the_restored_step(run):
    for step in (5, 10, 15):
        run.append_history({"kind": "train", "step": step})
    run.rewind_history(10)
    assert [record["step"] for record in run.read_history()] == [5, 10]


def test_a_record_that_a_crash_cut_short_is_left_out(run):
    run.append_history({"step": 5})
    with (run.path / "history.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 10, "lo')
    run.rewind_history(7)
    run.append_history({"step": 8})
    assert [record["step"] for record in run.read_history()] == [5, 8]


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
