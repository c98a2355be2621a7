"""`serve --engine` and the server's search settings: what translates, the results, what is refused."""

import pathlib
import shutil
import sys
import types

import pytest
from processes import code_of
from served import SENTENCES, Served, assert_same_rows, tiny_translator
from starlette.testclient import TestClient

from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.cli import serve
from keras_transformer.config.settings import SearchConfig, replace
from keras_transformer.serving import engines
from keras_transformer.serving.app import Server, create_app
from keras_transformer.serving.engines import SavedModelEngine, load_engine, translated_by
from keras_transformer.serving.models import Models
from keras_transformer.serving.settings import ServerConfig
from keras_transformer.translation.translator import Translator

pytest.importorskip("ctranslate2", reason="needs the extra ctranslate2")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A run folder, and the translator of it."""
    translator, config = tiny_translator()
    path = translator.save(tmp_path_factory.mktemp("runs") / "tiny", config=config)
    return types.SimpleNamespace(path=path, translator=translator, config=config)


def texts(results):
    return [result.best.text for result in results]


def has_tensorflow(server):
    return "libtensorflow" in pathlib.Path(f"/proc/{server._process.pid}/maps").read_text()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the libraries of a process from /proc")
def test_ctranslate2_serves_a_run_without_tensorflow(tiny, tmp_path):
    path = shutil.copytree(tiny.path, tmp_path / "tiny")
    arguments = (path, "--engine", "ctranslate2", "--early-stop", "--alpha", "1.3")
    translator = Translator.load(path, engine="ctranslate2")
    search = {"early_stop": True, "alpha": 1.3}
    expected = translator.n_best(SENTENCES, **search)
    assert texts(expected) == texts(tiny.translator.n_best(SENTENCES, **search))
    shutil.rmtree(path / "ctranslate2")
    for start in range(2):
        with Served(tmp_path / "log", *arguments) as server:
            assert_same_rows(server.rows("tiny", SENTENCES), expected)
            assert ("converting the weights, once" in server.log) == (start == 0)
            # TensorFlow reads the weights that are converted, and is not needed again.
            assert has_tensorflow(server) == (start == 0)
            narrow = translator.n_best(SENTENCES, beam_size=1, **search | {"alpha": 0.2})
            assert_same_rows(server.rows("tiny", SENTENCES, beam_size=1, alpha=0.2), narrow)
            for setting, message in (
                ({"alpha": 25}, "alpha of at most 20"),
                ({"coverage_penalty": 0.2}, "`coverage_penalty` cannot be set"),
            ):
                status, answer = server.post("/v1/models/tiny:predict", {"instances": ["a"], **setting})
                assert (status, message in answer["error"]) == (400, True)
    assert len(list((path / "ctranslate2").glob("final-*"))) == 1


@pytest.mark.slow
def test_auto_takes_ctranslate2_where_translations_are_the_same(tiny):
    assert translated_by(tiny.path, "auto").name == "tensorflow"
    assert translated_by(tiny.path, "auto", {"early_stop": True}).name == "ctranslate2"
    assert translated_by(tiny.path).name == "tensorflow"
    fast = load_engine(tiny.path, engine="auto", search={"beam_size": 1})
    assert isinstance(fast, engines.ConvertedRunEngine)
    assert isinstance(load_engine(tiny.path, engine="auto"), engines.RunEngine)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["tensorflow", "ctranslate2"])
def test_the_explorer_shows_the_run_whichever_engine_translates(tiny, engine):
    search = {"early_stop": True, "alpha": 1.1, "max_length_offset": 3}
    server = Server(ServerConfig(), Models({"tiny": tiny.path}, engine=engine, search=search))
    server.models.load()
    server.models.load = lambda: None
    with TestClient(create_app(server), base_url="http://localhost") as client:
        (model,) = client.get("/explorer/models").json()["models"]
        assert model["name"] == "tiny"
        asked = {"model": "tiny", "text": SENTENCES[0]}
        shown = client.post("/explorer/search", json=asked).json()["hypotheses"]
        rows = client.post("/v1/models/tiny:predict", json={"instances": SENTENCES}).json()["predictions"]
    expected = tiny.translator.n_best(SENTENCES, **search)
    assert [row["translation"] for row in rows] == texts(expected)
    assert shown[0]["text"] == expected[0].best.text
    assert shown[0]["score"] == pytest.approx(expected[0].best.score, rel=1e-4)


@pytest.mark.slow
def test_search_settings_are_those_of_every_run_and_export(tiny, tmp_path):
    tiny.translator.export(tmp_path / "fast", "ctranslate2", config=tiny.config)
    search = {"beam_size": 1, "max_length_offset": 2}
    expected = tiny.translator.n_best(SENTENCES, **search)
    for path in (tiny.path, tmp_path / "fast"):
        engine = load_engine(path, search=search)
        found = engine.translate(SENTENCES, {})
        assert texts(found) == texts(expected)
        longer = engine.translate(SENTENCES, {"max_length_offset": 7})  # a request may change them
        assert texts(longer) == texts(tiny.translator.n_best(SENTENCES, beam_size=1, max_length_offset=7))
        assert texts(longer) != texts(expected)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", ["run", "ctranslate2"])
def test_a_model_with_several_translations_answers_requests_that_do_not_ask_for_them(tiny, tmp_path, kind):
    run = RunFolder(shutil.copytree(tiny.path, tmp_path / "run"))
    run.write_config(replace(run.config, search={"beam_size": 4, "n_best": 3}))
    path = run.path
    if kind == "ctranslate2":
        path = tmp_path / "fast"
        tiny.translator.export(path, "ctranslate2", config=run.config, search={"beam_size": 4, "n_best": 3})
    engine = load_engine(path, search={"beam_size": 2})
    assert (engine.search.n_best, engine.own_n_best) == (1, 3)
    assert engine.check_settings({"beam_size": 1}).n_best == 1
    assert texts(engine.translate(SENTENCES, {})) == texts(tiny.translator.n_best(SENTENCES, beam_size=2))


@pytest.mark.parametrize("n_best", [1.5, 99.5, True, "2", None])
def test_a_number_of_translations_that_is_no_integer_is_refused(n_best):
    engine = SavedModelEngine.__new__(SavedModelEngine)
    engine.max_n_best, engine.request_settings, engine.search = 3, ("n_best",), SearchConfig(beam_size=2)
    assert engine.check_settings({"n_best": 3}).n_best == 2  # the beam of `translate_nbest` is another
    with pytest.raises(ValueError, match="n_best"):
        engine.check_settings({"n_best": n_best})


def test_what_cannot_be_served_is_answered_with_one_line(tiny, tmp_path, capsys):
    def refusal(*arguments):
        assert code_of(serve.main, [*map(str, arguments), "--no-explorer"]) == 2
        return capsys.readouterr().err.splitlines()[-1]

    line = refusal(tiny.path, "--engine", "ctranslate2", "--coverage-penalty", 0.2)
    assert f"{tiny.path}: ctranslate2 has no coverage penalty. Choose the engine tensorflow" in line
    tiny.translator.export(tmp_path / "fast", "ctranslate2", config=tiny.config)
    assert "--engine auto: it is for run folders" in refusal(tmp_path / "fast", "--engine", "auto")
    line = refusal(tmp_path / "fast", "--coverage-penalty", 0.2)
    assert f"{tmp_path / 'fast'}: CTranslate2 has no coverage penalty. Leave out" in line
    assert "--beam-size: must be" in refusal(tmp_path / "fast", "--beam-size", 0)
    line = refusal(tiny.path, "--beam-size", 40)
    assert "--beam-size 40 is above --max-beam-size 16. Change one of them" in line
    saved = tmp_path / "saved"
    saved.mkdir()
    (saved / "saved_model.pb").touch()
    line = refusal(tiny.path, saved, "--alpha", 1.3)
    assert f"{saved}: the search settings of a SavedModel are fixed. Received: alpha=1.3" in line
    assert "--alpha: must be at least 0" in refusal(tiny.path, "--alpha", -1)
