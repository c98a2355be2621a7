"""The program in a process of its own: its answers, its signals, its exit codes, and foreign clients."""

import concurrent.futures
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import types
import urllib.error
import urllib.request

import numpy as np
import pytest
import tensorflow as tf
from processes import PATIENCE, ROOT, environment
from served import SENTENCES, Served, assert_same_rows, tiny_translator

from keras_transformer.cli import serve
from keras_transformer.config import preset
from keras_transformer.config.settings import to_json
from keras_transformer.export.versions import load_exported

FAKE = ROOT / "tests" / "shared" / "fake_serve.py"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A run folder, and the translator of it."""
    translator, config = tiny_translator()
    path = translator.save(tmp_path_factory.mktemp("runs") / "tiny", config=config)
    return types.SimpleNamespace(path=path, translator=translator, config=config)


@pytest.mark.slow
def test_the_program_answers_as_the_translator_does(tiny, tmp_path):
    expected = tiny.translator.n_best(SENTENCES)
    texts = [result.best.text for result in expected]
    assert len(set(texts)) == len(texts)
    with Served(tmp_path / "log", tiny.path) as server:
        assert_same_rows(server.rows("tiny", SENTENCES), expected)
        sharper = tiny.translator.n_best(SENTENCES, beam_size=1, max_length_offset=2)
        rows = server.rows("tiny", SENTENCES, beam_size=1, max_length_offset=2)
        assert_same_rows(rows, sharper)
        assert server.rows("tiny", ["a"], max_length_offset=2**24)[0]["translation"]  # no overflow
        tensor = {"name": "text", "datatype": "BYTES", "shape": [5], "data": SENTENCES}
        _, answer = server.post("/v2/models/tiny/infer", {"inputs": [tensor]})
        assert answer["outputs"][0]["data"] == texts
        _, answer = server.post("/translate", {"q": SENTENCES, "source": "en", "target": "de"})
        assert answer == {"translatedText": texts}
        found = re.search(r"^  (curl .*)$", server.log, re.MULTILINE)[1]
        if shutil.which("curl"):
            printed = subprocess.run(found, shell=True, capture_output=True, check=True, timeout=PATIENCE)
            (row,) = json.loads(printed.stdout)["predictions"]
            assert row["translation"] == tiny.translator.translate(["1 2 3"])[0]
        lines = server.log.splitlines()
        assert lines[0].endswith(f"loading tiny; listening on {server.address}")
        assert all(record["code"] == 200 for record in server.records)
        assert not any("dog" in line for line in lines)
        server.send(signal.SIGTERM)
        assert server.end() == 143
        assert [line for line in server.log.splitlines()[3:] if not line.startswith("{")] == []


# Other formats, and clients of others


@pytest.fixture(scope="module")
def exports(tiny, tmp_path_factory):
    """The run as a folder of SavedModels, whose newest version is 2, and for CTranslate2."""
    folder = tmp_path_factory.mktemp("exports")
    options = {"config": tiny.config, "warmup": False, "with_ids": False}
    saved = tiny.translator.export(folder / "saved", version=2, **options)
    pytest.importorskip("ctranslate2", reason="needs the extra ctranslate2")
    tiny.translator.export(folder / "fast", "ctranslate2", config=tiny.config)
    return types.SimpleNamespace(saved=folder / "saved", version=saved.path, fast=folder / "fast")


@pytest.mark.very_slow
def test_all_formats_are_served_together(tiny, exports, tmp_path):
    from keras_transformer.export.ctranslate2 import CTranslate2Translator

    outputs = load_exported(exports.version).signatures["serving_default"](text=tf.constant(SENTENCES))
    outputs = {name: value.numpy() for name, value in outputs.items()}
    several = load_exported(exports.version).signatures["translate_nbest"](text=tf.constant(SENTENCES))
    with Served(tmp_path / "log", f"run={tiny.path}", exports.saved, exports.fast) as server:
        assert_same_rows(server.rows("run", SENTENCES), tiny.translator.n_best(SENTENCES))
        assert_same_rows(
            server.rows("fast", SENTENCES), CTranslate2Translator(exports.fast).n_best(SENTENCES)
        )
        rows = server.rows("saved", SENTENCES)
        assert [row["translation"] for row in rows] == [text.decode() for text in outputs["translation"]]
        for name in ("score", "log_prob"):
            np.testing.assert_allclose([row[name] for row in rows], outputs[name], rtol=1e-5)
        for name in ("finished", "truncated"):
            assert [row[name] for row in rows] == outputs[name].tolist()
        rows = server.rows("saved", SENTENCES, signature_name="translate_nbest")
        found = [[text.encode() for text in row["translations"]] for row in rows]
        assert found == several["translations"].numpy().tolist()
        status, answer = server.post("/v1/models/saved:predict", {"instances": ["a"], "beam_size": 2})
        assert (status, "`beam_size` cannot be set for this model" in answer["error"]) == (400, True)
        many = [f"text {index}" for index in range(150)]  # more than the graph takes at a time
        assert len(server.rows("saved", many)) == 150
        state = json.loads(server.get("/v1/models/saved"))["model_version_status"][0]
        assert (state["version"], state["state"]) == ("2", "AVAILABLE")

        # The clients: the example, and the programs of this package.
        stdin = "".join(f"{text}\n" for text in SENTENCES).encode()
        translations = "".join(f"{row['translation']}\n" for row in server.rows("run", SENTENCES)).encode()
        client = [ROOT / "examples" / "serving_client.py", "run", "--rest", server.address[7:]]
        program = [ROOT / "pipelines" / "translate.py", tiny.path]
        for command in (client, program):
            ended = subprocess.run(
                list(map(str, [sys.executable, *command])), input=stdin, capture_output=True,
                check=True, env=environment(), timeout=PATIENCE,
            )  # fmt: skip
            assert ended.stdout == translations


@pytest.mark.very_slow
def test_a_client_of_libretranslate(tiny, tmp_path):
    package = pytest.importorskip("libretranslatepy", reason="needs libretranslatepy")
    with Served(tmp_path / "log", tiny.path, "--token", "s3cret") as server:
        client = package.LibreTranslateAPI(server.address, api_key="s3cret")
        text = "The dog reads a text."
        assert client.translate(text, "en", "de") == tiny.translator.translate([text])[0]
        (detected,) = client.detect(text)  # English or German, by its words
        assert detected["language"] == "en"
        assert 80 < detected["confidence"] <= 100
        assert [entry["code"] for entry in client.languages()] == ["en", "de"]
        with pytest.raises(urllib.error.HTTPError, match="401"):
            package.LibreTranslateAPI(server.address).translate(text, "en", "de")


@pytest.mark.very_slow
def test_a_client_of_triton(tiny, tmp_path):
    package = pytest.importorskip("tritonclient.http", reason="needs tritonclient[http]")
    with Served(tmp_path / "log", tiny.path) as server:
        client = package.InferenceServerClient(server.address.removeprefix("http://"))
        try:
            assert client.is_server_live()
            assert client.is_server_ready()
            assert client.is_model_ready("tiny")
            assert client.get_model_metadata("tiny")["inputs"][0]["name"] == "text"
            expected = tiny.translator.n_best(SENTENCES)
            for binary in (True, False):
                tensor = package.InferInput("text", [len(SENTENCES)], "BYTES")
                tensor.set_data_from_numpy(np.array(SENTENCES, object), binary_data=binary)
                asked = [
                    package.InferRequestedOutput(name, binary_data=binary)
                    for name in ("translation", "score", "finished")
                ]
                answer = client.infer("tiny", [tensor], outputs=asked, request_id="7")
                assert answer.get_response()["id"] == "7"
                texts = [
                    text.decode() if binary else text for text in answer.as_numpy("translation").tolist()
                ]
                assert texts == [result.best.text for result in expected]
                scores = [result.best.score for result in expected]
                np.testing.assert_allclose(answer.as_numpy("score"), scores, rtol=1e-4)
                assert answer.as_numpy("finished").tolist() == [result.best.finished for result in expected]
        finally:
            client.close()


# Signals and the log, with a model that translates when the test wants it


@pytest.fixture
def fake(tmp_path):
    """The program with a fake model, which translates once `gate` exists."""
    for name in ("m30k", "slow"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "checkpoints").mkdir()
        (tmp_path / name / "checkpoints/step-5.index").touch()
    gate = tmp_path / "gate"

    def start(*arguments, name="m30k", **options):
        folder = tmp_path / name
        arguments = (folder, "--checkpoint", "step-5", *arguments)
        return Served(tmp_path / "log", *arguments, program=(FAKE, gate), **options)

    return types.SimpleNamespace(start=start, gate=gate)


def is_refused(address):
    host, port = address.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port)), PATIENCE).close()
    except ConnectionRefusedError:
        return True
    return False


def start_requests(server, pool, number):
    """Sends so many texts; returns the futures of (status, answer) once the server has accepted all."""
    path = "/v1/models/m30k:predict"
    answers = [pool.submit(server.post, path, {"instances": [f"text {index}"]}) for index in range(number)]
    server.wait_for(lambda: f"keras_transformer_queue_texts {number - 1}.0" in server.get("/metrics"))
    return answers


@pytest.mark.slow
def test_the_objects_of_the_models_are_left_out_of_garbage_collections(fake):
    fake.gate.touch()
    with fake.start() as server:
        server.wait_for(lambda: int(server.rows("m30k", ["frozen"])[0]["translation"]) > 10_000)


@pytest.mark.slow
def test_what_was_accepted_is_answered_after_sigterm(fake):
    with concurrent.futures.ThreadPoolExecutor(30) as pool, fake.start("--workers", 1) as server:
        answers = start_requests(server, pool, 30)
        server.send(signal.SIGTERM)
        server.wait_for(lambda: is_refused(server.address))
        fake.gate.touch()
        found = [answer.result(PATIENCE) for answer in answers]
        assert [status for status, _ in found] == [200] * 30
        texts = [values["predictions"][0]["translation"] for _, values in found]
        assert texts == [f"TEXT {index}" for index in range(30)]
        assert server.end() == 143
        assert sum(record.get("num_texts", 0) for record in server.records) == 30
        assert "not translated" not in server.log


@pytest.mark.very_slow
def test_what_is_not_answered_in_time_is_told_and_counted(fake):
    arguments = ("--workers", 1, "--drain-seconds", 0.5)
    with concurrent.futures.ThreadPoolExecutor(7) as pool, fake.start(*arguments) as server:
        answers = start_requests(server, pool, 7)
        server.send(signal.SIGINT)
        found = [answer.result(PATIENCE) for answer in answers]
        assert [status for status, _ in found] == [503] * 7
        assert found[0][1] == {"error": "The server has shut down"}
        assert server.end() == 130
        assert "7 texts were not translated within --drain-seconds" in server.log


@pytest.mark.very_slow
def test_a_signal_while_a_model_is_loaded_ends_the_program(fake):
    with fake.start(name="slow", ready=False) as server:
        assert json.loads(server.get("/healthz")) == {"status": "ok"}
        assert server.post("/v1/models/slow:predict", {"instances": ["a"]})[0] == 503
        server.send(signal.SIGTERM)
        assert server.end() == 143


@pytest.mark.very_slow
def test_every_line_of_the_log_is_json(fake):
    fake.gate.touch()
    with fake.start() as server:
        host, port = server.address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), PATIENCE) as broken:
            broken.sendall(b"NO HTTP\r\n\r\n")
            assert b"400" in broken.recv(100)
        form = {"Content-Type": "multipart/form-data; boundary=b"}
        request = urllib.request.Request(server.address + "/translate", b"--bx", form)
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(request, timeout=PATIENCE)
        lines = server.log.splitlines()[3:]
    assert len(lines) == 3
    assert {json.loads(line).get("level") for line in lines} == {None, "warning"}


@pytest.fixture
def fails(capsys):
    """Runs the program within this process; returns its one line of error after exit code 2."""

    def run(*arguments):
        try:
            code = serve.main([*map(str, arguments), "--no-explorer"])
        except SystemExit as error:
            code = error.code
        assert code == 2
        return capsys.readouterr().err.splitlines()[-1]

    return run


@pytest.mark.slow
def test_the_token_may_be_in_the_environment(fails, tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_TRANSFORMER_TOKEN", "a b")
    assert "`token` must be ASCII without spaces" in fails(tiny.path)
    assert "no such folder" in fails(tmp_path / "nothing", "--token", "c")  # the flag is taken


def test_wrong_arguments_are_answered_with_one_line(fails, tiny, tmp_path, capsys):
    assert "--max-body-bytes: must be at least 1000. Received: 3." in fails(tiny.path, "--max-body-bytes", 3)
    assert "no such folder" in fails(tmp_path / "nothing")
    assert "no model. Give a run folder" in fails(tmp_path)
    assert "two models are called 'tiny'" in fails(tiny.path, tiny.path)
    assert "required: MODEL" in fails()
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        line = fails(tiny.path, "--port", port)
    assert f"cannot listen on 127.0.0.1:{port} (address already in use). Choose another" in line
    other = "--host", "192.0.2.1"
    assert "cannot listen on 192.0.2.1:8501" in fails(tiny.path, *other, "--token", "t")
    assert serve.main([str(tiny.path), "--no-explorer", *other]) == 2
    assert "may use it" not in capsys.readouterr().err  # nobody can

    exported = tmp_path / "exported"
    exported.mkdir()
    (exported / "saved_model.pb").touch()
    assert "--checkpoint best: it is for run folders, and none is given" in fails(
        exported, "--checkpoint", "best"
    )
    keras_export = tmp_path / "keras"
    keras_export.mkdir()
    (keras_export / "keras_transformer.json").write_text("{}")
    assert "a Keras export. Serve the run folder" in fails(keras_export)


@pytest.mark.slow
def test_a_model_that_cannot_be_loaded_is_answered_with_one_line(fails, tiny, tmp_path):
    damaged = shutil.copytree(tiny.path, tmp_path / "damaged")
    (weights,) = (path for path in damaged.rglob("*") if path.suffix == ".h5" or "data-0" in path.name)
    weights.write_bytes(weights.read_bytes()[:1000])
    assert str(damaged) in fails(damaged, "--port", 0)
    shutil.copy(tiny.path / "config.json", damaged)
    (damaged / "config.json").write_text("{")
    assert str(damaged / "config.json") in fails(damaged, "--port", 0)


def test_a_parser_is_answered_with_one_line(fails, tmp_path):
    path = tmp_path / "parser"
    (path / "checkpoints").mkdir(parents=True)
    (path / "checkpoints/step-5.index").touch()
    (path / "config.json").write_text(to_json(preset("parsing_small")))
    assert "this run parses" in fails(path, "--checkpoint", "step-5", "--port", 0)


@pytest.mark.parametrize("missing", ["uvicorn", "starlette.applications"])
def test_a_missing_extra_is_answered_with_one_line(fails, tiny, monkeypatch, missing):
    for name in list(sys.modules):
        if name == "keras_transformer.serving.app" or name.partition(".")[0] == missing.partition(".")[0]:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    line = fails(tiny.path, "--port", 0)
    assert "The server needs the extra 'serve'" in line
    assert "pip install" in line
