"""Exported files that were made to do harm, and what exporting must not give away, fault by fault."""

import ast
import importlib.util
import io
import json
import logging
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import h5py
import keras
import numpy as np
import pytest
from processes import code_of

from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.cli import export as export_model
from keras_transformer.config.settings import Config, DataConfig, ModelConfig, TrainingConfig, replace
from keras_transformer.export.ctranslate2 import export_ctranslate2
from keras_transformer.export.keras_files import (
    FILES,
    export_keras,
    load_keras,
    load_keras_file,
    load_weights_file,
)
from keras_transformer.export.versions import MANIFEST, write_manifest
from keras_transformer.files import create_folder_atomically
from keras_transformer.model.transformer import Transformer
from keras_transformer.tokenizers.sentencepiece import SubwordTokenizer

# Keras copies variables in a way that NumPy 2 warns of.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

ROOT = pathlib.Path(__file__).parents[2]
TEXTS = ["The dog reads a text.", "Der Hund liest einen Text.", "A dog and a text."]
SECRETS = {"AWS_SECRET_ACCESS_KEY": "verysecret1", "HF_TOKEN": "hf_verysecret2"}


def make_run(folder, dataset="cldr/en-de"):
    tokenizer = SubwordTokenizer.train(TEXTS, vocab_size=290)
    config = Config(
        model=ModelConfig(
            source_vocab_size=290,
            target_vocab_size=290,
            num_encoder_layers=1,
            num_decoder_layers=2,
            d_model=8,
            d_ff=12,
            num_heads=2,
        ),
        data=DataConfig(source="en", target="de", dataset=dataset),
        training=TrainingConfig(),
    )
    run = RunFolder.create(folder, config, tokenizer)
    keras.utils.set_random_seed(2)
    model = Transformer(config.model)
    model.compile(keras.optimizers.SGD())
    run.checkpoints(model, model.optimizer).save(0.0)
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module", params=FILES)
def exported(request, run, tmp_path_factory):
    """A folder of each of the two formats."""
    out = tmp_path_factory.mktemp("out") / request.param
    return export_keras(run, out, checkpoint="last", weights_only=request.param == "weights")


@pytest.fixture
def folder(exported, tmp_path):
    """A copy that a test may break."""
    return pathlib.Path(shutil.copytree(exported, tmp_path / exported.name))


def values(model):
    return [weight.numpy() for weight in model.weights]


@pytest.mark.slow_after(1)
def test_a_loaded_model_has_the_weights_of_the_run(exported, run):
    expected = values(run.load_model(checkpoint="last"))
    for one, other in zip(values(load_keras(exported)), expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_same_run_gives_the_same_bytes_of_weights(exported, run, tmp_path):
    kind = exported.name
    again = export_keras(run, tmp_path / kind, checkpoint="last", weights_only=kind == "weights")
    one, other = (folder / FILES[kind] for folder in (exported, again))
    if kind == "keras":  # the archive also has the date
        one, other = (io.BytesIO(zipfile.ZipFile(path).read("model.weights.h5")) for path in (one, other))
        assert one.getvalue() == other.getvalue()
    else:
        assert one.read_bytes() == other.read_bytes()


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", FILES)
def test_the_program_exports_both(kind, run, tmp_path, capsys):
    out = tmp_path / "out"
    argv = [str(run.path), str(out), "--format", kind, "--checkpoint", "last", "--alpha", "0.9"]
    assert export_model.main(argv) == 0
    assert capsys.readouterr().out.startswith(f"wrote {out}\nnext, in Python:\n")
    assert json.loads((out / "keras_transformer.json").read_text())["search"]["alpha"] == 0.9
    load_keras(out)
    assert code_of(export_model.main, [*argv, "--beam-size", "0"]) == 2
    assert "--beam-size: must be" in capsys.readouterr().err


@pytest.mark.slow
def test_keras_alone_loads_the_file_in_a_fresh_process(run, tmp_path):
    out = export_keras(run, tmp_path / "out", checkpoint="last")
    code = (
        "import keras, keras_transformer.model.transformer\n"
        f"model = keras.saving.load_model({str(out / 'model.keras')!r})\n"
        "print(type(model).__name__, model.count_params())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["Transformer", str(run.load_model(checkpoint="last").count_params())]


# F65: classes and functions from elsewhere.


def rewritten(path, *, config=None, extra=None, weights=None):
    """Writes a `.keras` file again, with a changed part."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    if config is not None:
        parts["config.json"] = json.dumps(config(json.loads(parts["config.json"]))).encode()
    if weights is not None:
        parts["model.weights.h5"] = weights
    parts.update(extra or {})
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)


def lambda_model():
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Lambda(lambda x: x + 1)])
    return json.loads(model.to_json())


def with_dtype(dtype):
    def change(config):
        config["config"]["dtype"] = dtype
        return config

    return change


HARMFUL_CONFIGS = {
    "a Lambda": lambda config: lambda_model(),
    "a function of another module": lambda config: {
        "module": "os",
        "class_name": "system",
        "config": {"command": "touch harmed"},
        "registered_name": "system",
    },
    "another class under our name": lambda config: {
        **config, "module": "subprocess", "class_name": "Popen", "config": {"args": ["touch", "harmed"]}
    },
    "a Lambda for a dtype": with_dtype(
        {"module": "keras.layers", "class_name": "Lambda", "config": {}, "registered_name": None}
    ),
    "a function for a dtype": with_dtype(
        {"module": "os", "class_name": "system", "config": {"command": "id"}, "registered_name": None}
    ),
    "an unknown setting": lambda config: {**config, "config": {**config["config"], "surprise": 1}},
    "no object": lambda config: [1, 2],
}  # fmt: skip


@pytest.fixture
def keras_file(run, tmp_path):
    return export_keras(run, tmp_path / "export", checkpoint="last") / "model.keras"


@pytest.mark.parametrize("fault", HARMFUL_CONFIGS)
def test_f65_nothing_but_a_transformer_is_loaded(fault, keras_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rewritten(keras_file, config=HARMFUL_CONFIGS[fault])
    with pytest.raises(ValueError, match=rf"^{re.escape(str(keras_file))}: .*") as refusal:
        load_keras_file(keras_file)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "harmed").exists()


def test_f65_the_archive_holds_three_files_and_no_more(keras_file):
    rewritten(keras_file, extra={"../../harmed": b"", "assets/x": b""})
    with pytest.raises(ValueError, match="must contain config.json, metadata.json, model.weights.h5. Rec"):
        load_keras_file(keras_file)


def test_f65_a_configuration_that_swells_is_refused(keras_file):
    rewritten(keras_file, extra={"metadata.json": b" " * (2**20 + 1)})
    with pytest.raises(ValueError, match="metadata.json is larger than 1,048,576 bytes"):
        load_keras_file(keras_file)


@pytest.mark.parametrize("name", ["config.json", "metadata.json"])
def test_f65_a_configuration_that_is_nested_without_end_is_refused(keras_file, name):
    rewritten(keras_file, extra={name: b"[" * 100_000})
    with pytest.raises(ValueError, match=rf"^{re.escape(str(keras_file))}: [^\n]*$"):
        load_keras_file(keras_file)


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"not a zip"])
def test_f65_what_is_no_archive_is_refused(keras_file, data):
    keras_file.write_bytes(data)
    with pytest.raises(ValueError, match="not a .keras file, or damaged"):
        load_keras_file(keras_file)


# F70: HDF5 files that point elsewhere.


def all_datasets(file):
    found = []
    file.visititems(lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) else None)
    return found


def external_link(file, name, elsewhere):
    del file[name]
    file[name] = h5py.ExternalLink(str(elsewhere), name)


def soft_link(file, name, elsewhere):
    del file[name]
    file[name] = h5py.SoftLink("/" + all_datasets(file)[0])


def link_of_a_group(file, name, elsewhere):
    parent = name.rpartition("/")[0]
    del file[parent]
    file[parent] = h5py.ExternalLink(str(elsewhere), parent)


def external_data(file, name, elsewhere):
    shape, dtype = file[name].shape, file[name].dtype
    size = file[name].nbytes
    del file[name]
    file.create_dataset(name, shape, dtype, external=[(str(elsewhere), 0, size)])


def virtual_data(file, name, elsewhere):
    shape, dtype = file[name].shape, file[name].dtype
    layout = h5py.VirtualLayout(shape, dtype)
    layout[:] = h5py.VirtualSource(str(elsewhere), name, shape)
    del file[name]
    file.create_virtual_dataset(name, layout)


def circle(file, name, elsewhere):
    group = file[name].parent
    group["again"] = file[group.name.split("/")[1]]


def strings(file, name, elsewhere):
    del file[name]
    file[name] = "text"


HARMFUL_WEIGHTS = {
    external_link: "is a link. Weights must be in the file itself",
    soft_link: "is a link. Weights must be in the file itself",
    link_of_a_group: "is a link. Weights must be in the file itself",
    external_data: "stores its data in another file",
    virtual_data: "stores its data in another file",
    circle: "occurs twice. Weights must be a tree",
    strings: "is not an array of numbers",
}


@pytest.mark.parametrize("harm", HARMFUL_WEIGHTS, ids=lambda harm: harm.__name__)
def test_f70_weights_that_point_elsewhere_are_refused(harm, folder, run, tmp_path):
    path = folder / FILES[folder.name]
    elsewhere = tmp_path / "elsewhere.h5"
    weights = tmp_path / "crafted.h5"
    if folder.name == "keras":
        weights.write_bytes(zipfile.ZipFile(path).read("model.weights.h5"))
    else:
        shutil.copy(path, weights)
    shutil.copy(weights, elsewhere)
    with h5py.File(weights, "r+") as file:
        harm(file, all_datasets(file)[3], elsewhere)
    if folder.name == "keras":
        rewritten(path, weights=weights.read_bytes())
    else:
        shutil.copy(weights, path)
    write_manifest(folder)  # whoever crafts a file can write its sum as well
    with pytest.raises(ValueError, match=HARMFUL_WEIGHTS[harm]) as refusal:
        load_keras(folder)
    assert str(refusal.value).startswith(str(path))


@pytest.mark.slow
def test_f70_weights_of_another_model_are_refused(run, tmp_path):
    out = export_keras(run, tmp_path / "out", checkpoint="last", weights_only=True)
    wider = Transformer(replace(run.config.model, d_ff=13))
    with pytest.raises(ValueError, match="not the weights of this model"):
        load_weights_file(wider, out / FILES["weights"])
    (out / FILES["weights"]).write_bytes(b"not HDF5")
    with pytest.raises(ValueError, match="not an HDF5 file, or damaged"):
        load_weights_file(run.load_model(checkpoint="last"), out / FILES["weights"])


# F63: a folder in which a file was changed, removed or added; F68: paths.


def changed(folder):
    path = folder / "tokenizer.model"
    path.write_bytes(path.read_bytes()[:-1] + b"x")


def removed(folder):
    (folder / "tokenizer.model").unlink()


def added(folder):
    (folder / "more").touch()


def linked(folder):
    os.symlink("/etc/passwd", folder / "tokenizer.target.model")


def path_upwards(folder):
    with (folder / MANIFEST).open("a") as file:
        file.write("0" * 64 + "  ../../etc/passwd\n")


def no_facts(folder):
    (folder / "keras_transformer.json").write_text("[]")
    write_manifest(folder)


def other_format(folder):
    (folder / "keras_transformer.json").write_text('{"format": "../../etc"}')
    write_manifest(folder)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (changed, "tokenizer.model: was changed"),
        (removed, "tokenizer.model: is missing"),
        (added, "more: is not in manifest"),
        (linked, "tokenizer.target.model: a link"),
        (path_upwards, "passwd: is missing"),
        (no_facts, "keras_transformer.json: not an exported model, or damaged"),
        (other_format, "format must be keras or weights. Received: '../../etc'"),
    ],
)
def test_f63_a_folder_that_was_changed_is_refused(folder, harm, message):
    harm(folder)
    with pytest.raises(ValueError, match=message):
        load_keras(folder)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    "name", ["a; touch harmed", "$(touch harmed)", "`touch harmed`", "a b'\"&|*?", "-rf"]
)
def test_f68_a_path_is_a_name_and_no_command(run, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    load_keras(export_keras(run, name, checkpoint="last"))
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_f68_nothing_is_written_outside_of_the_folder(run, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    (tmp_path / "beside").mkdir()
    out = export_keras(run, tmp_path / "x" / ".." / "out", checkpoint="last")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["beside", "out"]
    assert sorted(path.name for path in out.resolve().iterdir()) == [
        "keras_transformer.json", MANIFEST, "model.keras", "tokenizer.model"
    ]  # fmt: skip


# F66, F67: nothing that is read can run.


@pytest.mark.slow
def test_f66_f67_no_program_reads_pickles_or_yaml_or_asks_a_shell():
    """`test_structure.py` says the same of the package."""
    forbidden = {"pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml", "torch.load"}
    composes_only = ROOT / "keras_transformer/config/files.py"  # see `test_structure.py`
    for path in {*ROOT.glob("keras_transformer/**/*.py")} - {composes_only}:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                assert not {alias.name.split(".")[0] for alias in node.names} & forbidden, path
            if isinstance(node, ast.ImportFrom):
                assert node.module.split(".")[0] not in forbidden, path
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("eval", "exec", "os.system", "os.popen", "torch.load"), path
                if called in ("np.load", "numpy.load"):
                    assert any(
                        one.arg == "allow_pickle" and ast.unparse(one.value) == "False"
                        for one in node.keywords
                    ), path
            if isinstance(node, ast.keyword):
                assert node.arg not in ("safe_mode", "shell"), path


def test_f65_safe_mode_is_nowhere_turned_off():
    for path in ROOT.glob("keras_transformer/**/*.py"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"safe_mode\s*=|enable_unsafe_deserialization", text), path


# F69: secrets.


@pytest.mark.slow
def test_f69_no_file_and_no_log_holds_the_environment_or_passwords(tmp_path, monkeypatch, caplog):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    secrets = [*SECRETS.values(), "verysecret3", str(tmp_path)]
    run = make_run(tmp_path / "run", dataset="https://me:verysecret3@example.org/corpus")
    with caplog.at_level(logging.DEBUG):
        folders = [export_keras(run, tmp_path / "keras", checkpoint="last")]
        folders.append(export_keras(run, tmp_path / "weights", checkpoint="last", weights_only=True))
        if importlib.util.find_spec("ctranslate2"):
            folders.append(export_ctranslate2(run, tmp_path / "ctranslate2", checkpoint="last"))
    logged = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("keras_tr"))
    for folder in folders:
        for path in folder.iterdir():
            data = path.read_bytes()
            for secret in secrets:
                assert secret.encode() not in data, path
    assert not any(secret in logged for secret in secrets)


def test_two_that_write_one_folder_at_once_do_not_mix(tmp_path):
    out = tmp_path / "out"

    def write():
        with create_folder_atomically(out) as mine, create_folder_atomically(out) as other:
            (mine / "a").write_text("mine")
            (other / "b").write_text("other")

    with pytest.raises(
        ValueError, match="out: exists and is not an empty folder. Delete it, or choose another"
    ):
        write()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in out.iterdir()] == ["b"]


def test_a_link_to_an_empty_folder_is_as_good_as_the_folder(tmp_path):
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    link.symlink_to("real")
    with create_folder_atomically(link) as folder:
        (folder / "a").write_text("x")
    assert (tmp_path / "real/a").read_text() == "x"
    assert link.is_symlink()


def test_a_place_that_cannot_be_written_to_is_named_as_it_was_given():
    with pytest.raises(OSError, match="'/proc/out'"), create_folder_atomically("/proc/out"):
        pass
