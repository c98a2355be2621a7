"""What the explorer's page gets over HTTP is what the Python API computes."""

import asyncio
import base64
import gc
import json
import threading
import weakref

import numpy as np
import pytest
from fake_serving import PATIENCE, Engines, FakeEngine, client_of, fake_server, in_event_loop, send, until
from starlette.testclient import TestClient

from keras_transformer.analysis.heads import attention_maps
from keras_transformer.checkpoints.pretrained import pretrained_folder
from keras_transformer.serving.app import Server, create_app
from keras_transformer.serving.models import Models
from keras_transformer.serving.settings import ServerConfig

TEXT = "The children are playing in the garden."


@pytest.fixture(scope="module")
def server():
    models = Models({"one": pretrained_folder("en-de-tatoeba")})
    models.load()
    # Not loaded again at the start of the application.
    models.load = lambda: None
    server = Server(ServerConfig(reload_seconds=0), models)
    server.warm_ups.clear()
    return server


@pytest.fixture(scope="module")
def client(server):
    app = create_app(server)
    server.warm_ups.clear()
    with TestClient(app, base_url="http://localhost") as client:
        yield client


@pytest.fixture(scope="module")
def translator(server):
    return server.models.version("one").engine.translator


def ask(client, path, **values):
    answer = client.post(f"/explorer/{path}", json={"model": "one", "text": TEXT, **values})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.slow
@pytest.mark.parametrize(("beam_size", "alpha"), [(1, 0.6), (3, 0.0), (5, 1.1)])
def test_the_hypotheses_shown_are_those_of_the_search(client, translator, beam_size, alpha):
    shown = ask(client, "search", beam_size=beam_size, alpha=alpha)["hypotheses"]
    (result,) = translator.n_best([TEXT], beam_size=beam_size, n_best=beam_size, alpha=alpha)
    assert [one["ids"] for one in shown] == [one.ids for one in result.translations]
    assert [one["text"] for one in shown] == [one.text for one in result.translations]
    for key, tolerance in (("score", 1e-4), ("log_prob", 1e-4)):
        expected = [getattr(one, key) for one in result.translations]
        np.testing.assert_allclose([one[key] for one in shown], expected, atol=tolerance)


@pytest.mark.slow
def test_a_forced_branch_is_a_prefix_of_every_hypothesis(client, translator):
    (result,) = translator.n_best([TEXT], n_best=4)
    prefix = result.translations[2].ids[:2]
    shown = ask(client, "search", prefix=prefix)
    expected = translator.n_best([TEXT], [translator.tokenizers.target.decode([prefix])[0]], n_best=4)
    assert [one["ids"] for one in shown["hypotheses"]] == [one.ids for one in expected[0].translations]
    assert all(one["ids"][:2] == prefix for one in shown["hypotheses"])


@pytest.mark.slow
def test_the_attention_shown_is_that_of_the_model(client, translator):
    (result,) = translator.n_best([TEXT], details=True)
    shown = ask(client, "inspect", target=result.best.ids)
    source = [*translator.tokenizers.source.encode([TEXT])[0], translator.tokenizers.source.special.eos]
    maps = attention_maps(translator.models[0], [source], [result.best.ids])
    for kind, (expected,) in maps._asdict().items():
        found = shown["attention"][kind]
        shape = [found[key] for key in ("layers", "heads", "rows", "columns")]
        weights = np.frombuffer(base64.b64decode(found["data"]), "<u2").reshape(shape) / 65535
        assert tuple(shape) == expected.shape
        np.testing.assert_allclose(weights, expected, atol=2e-5)
    np.testing.assert_allclose(
        [token["log_prob"] for token in shown["tokens"]], result.best.token_log_probs, atol=1e-4
    )
    assert [tuple(link) for link in shown["alignment"]] == [tuple(link) for link in result.best.alignment]


@pytest.mark.slow
def test_a_head_that_is_off_changes_what_is_shown_and_nothing_else(client, translator):
    before = translator.translate([TEXT])
    off = [{"kind": "cross", "layer": 1, "head": head} for head in range(4)]
    shown = [
        ask(client, "inspect", target="Die Kinder spielen im Garten.", heads_off=each) for each in ([], off)
    ]
    assert shown[0]["log_prob"] > shown[1]["log_prob"] + 1
    assert translator.translate([TEXT]) == before


def test_the_page_and_its_files_have_a_policy_without_inline_scripts(client):
    page = client.get("/")
    assert page.status_code == 200
    assert page.headers["content-security-policy"].startswith("default-src 'self';")
    assert "unsafe" not in page.headers["content-security-policy"]
    for name, kind in (("main.js", "text/javascript"), ("explorer.css", "text/css")):
        assert f"explorer/assets/{name}" in page.text
        found = client.get(f"/explorer/assets/{name}")
        assert found.status_code == 200
        assert found.headers["content-type"].startswith(kind)
    for name in ("explorer.html", "no.js", "..%2Fpage.py", "%2e%2e/page.py"):
        assert client.get(f"/explorer/assets/{name}").status_code == 404, name


@pytest.mark.parametrize(
    ("path", "values", "code", "message"),
    [
        ("search", {"model": "two"}, 404, "Models here: one"),
        ("search", {"model": 3}, 400, '"model" must be the name of a model'),
        ("search", {"text": "a" * 3000}, 400, "bytes"),
        ("search", {"beam_size": 99}, 400, "beam_size"),
        ("search", {"prefix": [99999]}, 400, "prefix"),
        ("inspect", {"target": None}, 400, "target"),
        ("inspect", {"target": "a", "heads_off": [{"kind": "cross", "layer": 9, "head": 0}]}, 400, "layer"),
        ("inspect", {"target": "a", "heads": []}, 400, "heads_off"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_one_line(client, path, values, code, message):
    answer = client.post(f"/explorer/{path}", json={"model": "one", "text": TEXT, **values})
    assert answer.status_code == code, answer.text
    assert answer.json().keys() == {"error"}
    assert message in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


def test_a_page_to_keep_has_its_state_and_needs_no_server(client):
    state = {"version": 1, "models": ["one"], "text": "</script><b>", "settings": {}, "answers": {}}
    answer = client.post("/explorer/page", json={"state": state})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-disposition"].startswith("attachment")
    assert "</script><b>" not in answer.text
    assert "explorer/assets/" not in answer.text.partition("<body")[0]


@pytest.mark.slow
def test_the_largest_beam_is_that_of_the_server(server):
    narrow = Server(ServerConfig(reload_seconds=0, max_beam_size=3), server.models)
    app = create_app(narrow)
    narrow.warm_ups.clear()
    with TestClient(app, base_url="http://localhost") as client:
        assert client.get("/explorer/models").json()["models"][0]["max_beam"] == 3
        values = {"model": "one", "text": TEXT}
        assert client.post("/explorer/search", json={**values, "beam_size": 3}).status_code == 200
        assert client.post("/explorer/search", json={**values, "beam_size": 4}).status_code == 400


class Shown:
    """Stands for an `Explorer`."""

    made = []

    def __init__(self, *arguments, **options):
        self.made.append((weakref.ref(self), threading.current_thread().name))

    def search(self, body):
        return body

    inspect = search


class Slow(Shown):
    """Notes texts and waits for a test."""

    asked, gate = [], threading.Event()

    def search(self, body):
        self.asked.append(body["text"])
        assert self.gate.wait(PATIENCE)
        return {}


class Shows(FakeEngine):
    """Has a translator for the explorer."""

    is_explorable = True

    def explorable(self):
        return "a translator"


@in_event_loop
async def test_a_waiting_request_whose_client_leaves_is_not_computed(monkeypatch):
    monkeypatch.setattr("keras_transformer.serving.explorer_routes.Explorer", Slow)
    server = fake_server(Engines(m30k=Shows()), explorer=True)
    app = create_app(server)
    server.warm_ups.clear()
    left = asyncio.Event()

    async def leaves():
        await left.wait()
        return {"type": "http.disconnect"}

    def ask_for(text, **options):
        return send(app, "/explorer/search", json.dumps({"model": "m30k", "text": text}).encode(), **options)

    async with app.router.lifespan_context(app):
        await until(lambda: server.is_ready)
        first, sent = ask_for("first")
        await until(lambda: Slow.asked)
        gone = [ask_for(f"typed {number}", then=leaves) for number in range(7)]
        await asyncio.sleep(0)
        left.set()
        await asyncio.gather(*(task for task, _ in gone))
        last, sent_last = ask_for("last")
        await asyncio.sleep(0)
        Slow.gate.set()
        await asyncio.gather(first, last)
    assert [messages[0]["status"] for messages in (sent, sent_last)] == [200, 200]
    assert Slow.asked == ["first", "last"]


@pytest.mark.slow
def test_the_explorer_of_a_version_that_is_unloaded_is_freed(monkeypatch):
    monkeypatch.setattr(Shown, "made", [])  # without those of other tests
    monkeypatch.setattr("keras_transformer.serving.explorer_routes.Explorer", Shown)
    engines = Engines(m30k=Shows())
    server = fake_server(engines, explorer=True)
    with client_of(server):  # which asks each explorer once
        version = server.models["m30k"].newest
        asyncio.run(until(lambda: Shown.made))
        (first, thread), *_ = Shown.made
        assert thread.startswith("explore")  # that which answers requests
        assert first() is not None
        version.engine = Shows()  # of a newer version
        engines.clear()
        gc.collect()
        assert first() is None


def test_without_the_explorer_there_is_no_page(server):
    plain = Server(ServerConfig(explorer=False, reload_seconds=0), server.models)
    with TestClient(create_app(plain), base_url="http://localhost") as client:
        assert client.get("/").status_code == 404
        assert client.get("/explorer/models").status_code == 404
