"""What the server refuses, and what it does with clients that leave, models that change and its own log."""

import asyncio
import base64
import gc
import http.client
import json
import os
import pathlib
import socket
import threading
import weakref

import pytest
import uvicorn
from fake_serving import (
    HOST,
    PATIENCE,
    Engines,
    FakeEngine,
    client_of,
    error_of,
    fake_client,
    fake_server,
    in_event_loop,
    send,
    until,
)
from starlette.testclient import TestClient

from keras_transformer.config.settings import SearchConfig
from keras_transformer.serving.app import create_app
from keras_transformer.serving.engines import REQUEST_SETTINGS
from keras_transformer.serving.models import Models, _stamp, check_model, freeze_objects, named_paths
from keras_transformer.serving.settings import ServerConfig

PREDICT = "/v1/models/m30k:predict"
INFER = "/v2/models/m30k/infer"
ASK = {"q": "a", "source": "en", "target": "de"}
SECURITY = {
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


@pytest.fixture
def engine():
    return FakeEngine()


def predict(client, *texts, **more):
    return client.post(PREDICT, json={"instances": list(texts), **more})


def in_threads(*functions):
    """Calls functions at once; returns a function that waits for their results."""
    results = [None] * len(functions)

    def call(index, function):
        results[index] = function()

    threads = [threading.Thread(target=call, args=pair) for pair in enumerate(functions)]
    for thread in threads:
        thread.start()

    def wait():
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        return results

    return wait


# Sizes


@pytest.mark.parametrize("has_length", [True, False])
@pytest.mark.parametrize("path", [PREDICT, INFER, "/translate", "/detect"])
def test_a_body_over_the_limit_is_refused(engine, path, has_length):
    with fake_client(engine, max_body_bytes=1009) as client:
        body = json.dumps({**ASK, "q": "x" * 1009}).encode()
        parts = (body[begin : begin + 100] for begin in range(0, len(body), 100))
        answer = client.post(path, content=body if has_length else parts)
        assert answer.status_code == 413
        assert "at most 1,009 bytes" in error_of(answer)
        assert answer.headers["connection"] == "close"
        fits = json.dumps({"instances": ["x"]}).encode().ljust(1009)
        assert client.post(PREDICT, content=fits).status_code == 200
        assert client.post(PREDICT, content=iter([fits, b" "])).status_code == 413


def test_compressed_bodies_are_refused(engine):
    with fake_client(engine) as client:
        answer = client.post(PREDICT, content=b"", headers={"Content-Encoding": "gzip"})
        assert answer.status_code == 400
        assert "Content-Encoding" in error_of(answer)


def test_too_many_texts_or_tokens_are_refused(engine):
    with fake_client(engine, max_texts=5, max_request_tokens=11) as client:
        assert predict(client, *"abcde").status_code == 200  # 10 tokens
        assert predict(client, *"abcd", "e e").status_code == 200  # 11 tokens
        many = predict(client, *"abcdef")
        assert (many.status_code, "At most 5 texts" in error_of(many)) == (413, True)
        lines = predict(client, "a\n" * 5000)  # more parts than tokens are allowed
        assert (lines.status_code, "At most 11 source tokens" in error_of(lines)) == (413, True)
        long = predict(client, "a b c d e f g h i j k")
        assert (long.status_code, "At most 11 source tokens" in error_of(long)) == (413, True)
        listed = client.post("/translate", json={**ASK, "q": list("abcdef")})
        assert listed.status_code == 413
        # The texts between tags are not texts of the request.
        html = client.post("/translate", json={**ASK, "q": "<p> </p>\n" * 6, "format": "html"})
        assert html.status_code == 200


def test_too_large_a_beam_is_refused(engine):
    with fake_client(engine, max_beam_size=7) as client:
        assert predict(client, "a", beam_size=7).status_code == 200
        refused = predict(client, "a", beam_size=8)
        assert refused.status_code == 400
        assert "`beam_size` must be from 1 to 7. Received: 8" in error_of(refused)
        assert "`beam_size` must be from 1 to 7. Received: 0" in error_of(predict(client, "a", beam_size=0))
        assert predict(client, "a", beam_size=1e300).status_code == 400
        assert (
            predict(client, "a", beam_size=8, n_best=8, signature_name="translate_nbest").status_code == 400
        )
        assert client.post("/translate", json={**ASK, "alternatives": 6}).status_code == 200
        assert client.post("/translate", json={**ASK, "alternatives": 7}).status_code == 400


def test_a_model_whose_own_beam_is_larger_is_refused_at_the_start(engine):
    engine.search = SearchConfig(beam_size=7)
    server = fake_server(engine, max_beam_size=5)
    with client_of(server) as client:
        assert "m30k: its beam size, 7, is above --max-beam-size 5" in str(server.fault)
        # The program ends; under another server, the model that was refused does not answer.
        assert client.get("/readyz").status_code == predict(client, "a").status_code == 503
    engine.max_n_best = 4  # as a SavedModel has it, whose beam is part of the graph
    server = fake_server(engine, max_beam_size=5)
    with client_of(server):
        assert "Raise that, or export it again with --beam-size 5" in str(server.fault)
    engine.max_n_best = None
    with fake_client(engine, max_beam_size=7) as client:
        assert predict(client, "a").status_code == 200


def test_numbers_that_no_computation_can_have_are_refused(engine):
    with fake_client(engine) as client:
        for name in REQUEST_SETTINGS:
            for number in ("16777217", "1e999", "-1e999", "1" + 400 * "0", "NaN", "1" + 5000 * "0"):
                body = f'{{"instances": ["a"], "{name}": {number}}}'
                answer = client.post(PREDICT, content=body)
                assert answer.status_code == 400, (name, number[:9])
                assert "sys." not in error_of(answer)
        refused = predict(client, "a", no_repeat_ngram=33)  # the graph of the search would be very large
        assert "`no_repeat_ngram` must be at most 32" in error_of(refused)
    assert not engine.batches


# The queue


def test_a_full_queue_says_when_to_come_again(engine):
    with fake_client(engine, max_queue_tokens=7, max_request_tokens=7) as client:
        engine.gate.clear()
        wait = in_threads(lambda: predict(client, "first"))
        engine.wait_until_begun()
        wait_second = in_threads(lambda: predict(client, "second text of five words"))
        while "queue_tokens 6.0" not in client.get("/metrics").text:
            pass
        busy = predict(client, "b c")
        assert busy.status_code == 429
        assert 1 <= int(busy.headers["retry-after"]) <= 60
        assert "6 tokens wait, this request has 3, and the limit is 7" in error_of(busy)
        assert 'refused_total{reason="busy"} 1.0' in client.get("/metrics").text
        engine.gate.set()
        assert [answer.status_code for answer in wait() + wait_second()] == [200, 200]
        assert engine.texts == ["first", "second text of five words"]
        assert predict(client, "b c").status_code == 200


def test_before_the_models_are_loaded_requests_are_asked_to_wait(engine):
    loading = threading.Event()

    class Slow(Engines):
        def __call__(self, path, **options):
            assert loading.wait(PATIENCE)
            return super().__call__(path, **options)

    server = fake_server(Slow(m30k=engine))
    with client_of(server, wait=False) as client:
        answers = [
            predict(client, "a"),
            client.post(INFER, json={}),
            client.post("/translate", json=ASK),
            client.post("/translate", json={**ASK, "source": "auto"}),
            client.post("/detect", json={"q": "a"}),
            client.get("/readyz"),
            client.get("/v2/health/ready"),
            client.get("/v2/models/m30k/ready"),
            client.get("/v1/models/m30k/metadata"),
        ]
        for answer in answers:
            assert answer.status_code == 503, answer.url
            assert int(answer.headers["retry-after"]) >= 1
            error_of(answer)
        assert client.get("/healthz").status_code == 200
        assert client.get("/languages").json() == []
        (version,) = client.get("/v1/models/m30k").json()["model_version_status"]
        assert version["state"] == "LOADING"
        loaded = threading.Event()
        server.on_loaded = loaded.set
        loading.set()
        assert loaded.wait(PATIENCE)
        assert client.get("/readyz").json() == {"status": "ready"}
        assert predict(client, "a").status_code == 200


@pytest.mark.parametrize("headers", [{}, {"Accept": "application/x-ndjson"}])
def test_an_answer_that_takes_too_long_is_given_up(engine, headers):
    with fake_client(engine, timeout_seconds=0.4) as client:
        engine.gate.clear()
        wait = in_threads(lambda: predict(client, "first"))
        engine.wait_until_begun()
        late = client.post(PREDICT, json={"instances": ["late"]}, headers=headers)
        engine.gate.set()
        assert (late.status_code, wait()[0].status_code) == (504, 504)
        assert "0.4 seconds" in error_of(late)
    assert engine.texts == ["first"]


@pytest.mark.parametrize(
    ("path", "values"),
    [
        (PREDICT, {"instances": ["gone", "gone, too"]}),
        (INFER, {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["gone"]}]}),
        ("/translate", {**ASK, "q": "gone"}),
    ],
)
@pytest.mark.parametrize("accept", [b"application/json", b"application/x-ndjson"])
@in_event_loop
async def test_texts_of_a_client_that_leaves_are_not_translated(path, values, accept):
    engine = FakeEngine()
    server = fake_server(engine)
    app = create_app(server)
    left = asyncio.Event()

    async def receive():
        await left.wait()
        return {"type": "http.disconnect"}

    async with app.router.lifespan_context(app):
        await until(lambda: server.is_ready)
        engine.gate.clear()
        never = asyncio.Event()
        first, sent = send(app, PREDICT, json.dumps({"instances": ["first"]}).encode(), then=never.wait)
        await until(lambda: engine.batches)
        body = json.dumps(values).encode()
        gone, _ = send(app, path, body, headers=[(b"accept", accept)], then=receive)
        await until(lambda: server.queue.num_texts)
        left.set()
        await gone
        assert server.queue.num_texts == server.queue.num_tokens == 0
        engine.gate.set()
        await first
    assert sent[0]["status"] == 200
    assert engine.texts == ["first"]


class Running:
    """uvicorn with an application in a thread, as a context manager with the port."""

    def __init__(self, server):
        config = uvicorn.Config(create_app(server), log_config=None, lifespan="on")
        self._runner = uvicorn.Server(config)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=lambda: asyncio.run(self._runner.serve([self._socket])))

    def __enter__(self):
        self._thread.start()
        return self._socket.getsockname()[1]

    def __exit__(self, *error):
        self._runner.should_exit = True
        self._thread.join(PATIENCE)
        self._socket.close()
        assert not self._thread.is_alive()


def request_bytes(values, *, headers=""):
    body = json.dumps(values).encode()
    head = f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


def wait_for(condition):
    asyncio.run(until(condition))


def test_a_socket_that_is_closed_takes_its_texts_out_of_the_queue(engine):
    records = []
    server = fake_server(engine, records=records)
    with Running(server) as port:
        wait_for(lambda: server.is_ready)
        engine.gate.clear()
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as first:
            first.sendall(request_bytes({"instances": ["first"]}, headers="Connection: close\r\n"))
            engine.wait_until_begun()
            with socket.create_connection(("127.0.0.1", port), PATIENCE) as gone:
                gone.sendall(request_bytes({"instances": ["gone", "gone, too"]}))
                wait_for(lambda: server.queue.num_texts == 2)
            wait_for(lambda: not server.queue.num_texts)
            engine.gate.set()
            answer = b""
            while part := first.recv(4096):
                answer += part
        assert b'"translation":"FIRST"' in answer
    assert engine.texts == ["first"]
    assert sorted(record["code"] for record in records) == [200, 499]


def test_a_client_that_sends_too_much_gets_the_answer(engine):
    """Closing a connection with unread data resets it, and the client would lose the answer."""
    with Running(server := fake_server(engine)) as port:
        wait_for(lambda: server.is_ready)
        for size in 5 * [4_000_000, 9_000_000]:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
            connection.request("POST", PREDICT, b" " * size)
            assert connection.getresponse().status == 413
            connection.close()
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as waiting:
            head = f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000000\r\n"
            waiting.sendall(head.encode() + b"Expect: 100-continue\r\n\r\n")  # as curl does
            assert waiting.recv(4096).startswith(b"HTTP/1.1 413 ")


# Who may ask


def test_requests_of_other_hosts_are_refused_on_a_local_address(engine):
    with fake_client(engine) as client:
        for host in ("localhost", "LOCALHOST:8501", "127.0.0.1", "127.0.0.1:3", "[::1]", "[::1]:8501"):
            assert client.get("/v2", headers={"Host": host}).status_code == 200, host
        for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8501", "", "[", "[::1",
                     "evil.example\\@localhost", "0.0.0.0", "localhost:80@evil.example"):  # fmt: skip
            answer = client.post(PREDICT, json={"instances": ["a"]}, headers={"Host": host})
            assert answer.status_code == 403, host
            error_of(answer)
    assert not engine.batches
    with fake_client(engine, host="0.0.0.0") as client:
        for host in ("evil.example", "["):
            assert client.get("/v2", headers={"Host": host}).status_code == 200


def basic(user, password):
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def test_without_the_token_nothing_is_answered_but_health(engine):
    with fake_client(engine, token="s3:cret") as client:
        rows = {"instances": ["a"]}
        for headers in ({"Authorization": "Bearer s3:cret"}, basic("anyone", "s3:cret")):
            assert client.post(PREDICT, json=rows, headers=headers).status_code == 200
        for headers in [
            {}, {"Authorization": "Bearer"}, {"Authorization": "Bearer s3:cret2"}, basic("s3:cret", ""),
            {"Authorization": "Basic ???"}, {"Authorization": "Basic /w=="},
            {"Authorization": b"Bearer \xff".decode("latin-1").encode("latin-1")},
        ]:  # fmt: skip
            answer = client.post(PREDICT, json=rows, headers=headers)
            assert answer.status_code == 401, headers
            assert answer.headers["www-authenticate"].startswith("Basic")
            assert "s3" not in error_of(answer)
        for path in ("/v1/models/m30k", "/v2", "/v2/models/m30k", "/metrics", "/openapi.json"):
            assert client.get(path).status_code == 401, path
        for path in ("/healthz", "/readyz", "/health", "/v2/health/live", "/v2/health/ready"):
            assert client.get(path).status_code == 200, path
        # Clients ask whether they need a key.
        assert client.get("/frontend/settings").json()["keyRequired"] is True
        assert client.get("/languages").status_code == 200
    assert engine.texts == ["a", "a"]


def test_the_host_of_a_request_does_not_replace_the_token(engine):
    with fake_client(engine, token="s3cret", host="0.0.0.0") as client:
        for host in ("x/healthz?", "x/healthz#", "localhost/languages?x="):
            answer = client.post(PREDICT, json={"instances": ["a"]}, headers={"Host": host})
            assert answer.status_code in (400, 401), host
    assert engine.texts == []


@pytest.mark.parametrize("path", ["/translate", "/detect"])
def test_clients_of_libretranslate_send_the_token_as_their_key(engine, path):
    values = ASK if path == "/translate" else {"q": "a"}
    with fake_client(engine, token="s3cret") as client:
        for key in ("s3cret2", "", 5, None, ["s3cret"], "\udcff"):
            content = json.dumps({**values, "api_key": key})
            assert client.post(path, content=content).status_code == 401, key
        assert client.post(path, json=values).status_code == 401
        assert client.post(path, data={**values, "api_key": "s3cre"}).status_code == 401
        assert not engine.batches
        assert client.post(path, json={**values, "api_key": "s3cret"}).status_code == 200
        assert client.post(path, data={**values, "api_key": "s3cret"}).status_code == 200
        assert client.post(path, json=values, headers={"Authorization": "Bearer s3cret"}).status_code == 200
        assert client.post(PREDICT, json={"instances": ["a"], "api_key": "s3cret"}).status_code == 401
    with fake_client(engine) as client:  # a key that nobody asked for
        assert client.post(path, json={**values, "api_key": "any"}).status_code == 200


def test_pages_of_other_origins_read_nothing_unless_allowed(engine):
    page = "https://page.example"
    with fake_client(engine) as client:
        for answer in (
            client.get("/v2", headers={"Origin": page}),
            client.options(PREDICT, headers={"Origin": page, "Access-Control-Request-Method": "POST"}),
        ):
            assert not [name for name in answer.headers if name.startswith("access-control")]
    with fake_client(engine, allow_origin=page) as client:
        headers = {"Origin": page, "Access-Control-Request-Method": "POST"}
        asked = client.options(PREDICT, headers={**headers, "Access-Control-Request-Headers": "content-type"})
        assert asked.status_code == 200
        answers = [asked, client.get("/v2", headers=headers), client.post(PREDICT, headers=headers)]
        for answer in answers:  # also of errors, so that the page can read them
            assert answer.headers["access-control-allow-origin"] == page
        other = client.get("/v2", headers={"Origin": "https://other.example"})
        assert other.headers.get("access-control-allow-origin") != "https://other.example"


def test_every_answer_has_the_headers_of_security(engine):
    engine.failing = {"bad"}
    with fake_client(engine, max_texts=2, token="t", explorer=False) as client:
        token = {"Authorization": "Bearer t"}
        answers = {
            200: client.get("/v2", headers=token),
            400: client.post(PREDICT, content=b"{", headers=token),
            401: client.get("/v2"),
            403: client.get("/v2", headers={"Host": "evil.example"}),
            404: client.get("/nothing"),
            405: client.get("/translate"),
            413: client.post(PREDICT, json={"instances": ["a"] * 3}, headers=token),
            500: client.post(PREDICT, json={"instances": ["bad"]}, headers=token),
        }
        lines = {**token, "Accept": "application/x-ndjson"}
        answers["lines"] = client.post(PREDICT, json={"instances": ["a"]}, headers=lines)
        for code, answer in answers.items():
            assert code in (answer.status_code, "lines")
            assert SECURITY.items() <= dict(answer.headers).items(), code
            assert "server" not in answer.headers


def test_a_fault_of_the_server_is_logged_and_not_told(engine, caplog, monkeypatch):
    with fake_client(engine) as client:
        monkeypatch.setattr(engine, "count_tokens", lambda texts: 1 / 0)
        answer = predict(client, "a")
        assert answer.status_code == 500
        assert "log" in error_of(answer)
        assert "zero" not in answer.text
    assert "division by zero" in caplog.text


# The log


def test_the_log_has_no_texts_unless_asked_for(engine):
    for log_texts in (False, True):
        records = []
        with fake_client(engine, records=records, log_texts=log_texts) as client:
            predict(client, "one secret", "another secret")
            client.post("/translate", json={**ASK, "q": "a third secret"})
            inputs = [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a fourth secret"]}]
            client.post(INFER, json={"inputs": inputs})
        log = json.dumps(records)
        assert log.count("secret") == 4 * log_texts
        assert [record["num_texts"] for record in records] == [2, 1, 1]
        assert {record["code"] for record in records} == {200}
        assert records[0]["model"] == "m30k"
        assert records[0]["route"] == "/v1/models/{name}:predict"


# Models


def versioned(folder, *numbers):
    for number in numbers:
        (folder / number).mkdir(parents=True)
    return {"m30k": folder}


def states(client):
    listed = client.get("/v1/models/m30k").json()["model_version_status"]
    return {entry["version"]: (entry["state"], entry["status"]["error_message"]) for entry in listed}


def reloaded(client, server):
    client.portal.call(server.models.load_newer)


def test_a_new_version_answers_as_soon_as_it_is_loaded(tmp_path):
    engines = Engines({"1": FakeEngine(), "0003": FakeEngine(), "5": ValueError("no weights in it")})
    server = fake_server(engines, paths=versioned(tmp_path, "1"))
    with client_of(server) as client:
        predict(client, "a")
        reloaded(client, server)
        assert states(client) == {"1": ("AVAILABLE", "")}
        versioned(tmp_path, "0003")
        reloaded(client, server)
        assert states(client) == {"3": ("AVAILABLE", ""), "1": ("END", "")}
        predict(client, "b")
        assert (engines["1"].texts, engines["0003"].texts) == (["a"], ["b"])
        assert 'version{model="m30k"} 3.0' in client.get("/metrics").text

        versioned(tmp_path, "5")  # it cannot be loaded
        reloaded(client, server)
        assert states(client) == {"5": ("END", "no weights in it"), "3": ("AVAILABLE", ""), "1": ("END", "")}
        assert client.get("/readyz").status_code == 200
        predict(client, "c")
        assert engines["0003"].texts == ["b", "c"]
        for number in (5, 1):
            assert client.post(f"/v1/models/m30k/versions/{number}:predict", json={}).status_code == 404
        reloaded(client, server)
        assert states(client)["5"] == ("END", "no weights in it")
        engines["5"] = FakeEngine()  # and the same number once its folder was replaced
        (tmp_path / "5/weights").touch()
        reloaded(client, server)
        assert states(client)["5"] == ("AVAILABLE", "")
        assert client.get("/v2/models/m30k").json()["versions"] == ["5"]


def test_the_newest_version_that_can_be_loaded_answers(tmp_path, caplog):
    bad = ValueError("no weights in it")
    engines = Engines({"1": FakeEngine(), "2": FakeEngine(), "3": bad, "4": bad, "7": bad})
    server = fake_server(engines, paths=versioned(tmp_path, "1", "3"))
    with client_of(server) as client:
        predict(client, "a")
        assert server.fault is None
        assert states(client) == {"3": ("END", "no weights in it"), "1": ("AVAILABLE", "")}
        assert "m30k: version 3 cannot be loaded: no weights in it" in caplog.text
        versioned(tmp_path, "2", "4", "7")
        reloaded(client, server)
        predict(client, "b")
        assert (engines["1"].texts, engines["2"].texts) == (["a"], ["b"])
        assert [number for number, state in states(client).items() if state == ("AVAILABLE", "")] == ["2"]
        assert caplog.text.count("cannot be loaded") == 3
        (tmp_path / "4").rmdir()  # what is no longer there is no longer listed
        reloaded(client, server)
        assert states(client).keys() == {"7", "3", "2", "1"}
        assert caplog.text.count("cannot be loaded") == 3


def test_no_version_that_can_be_loaded_is_a_fault_of_the_newest(tmp_path):
    engines = Engines({"1": ValueError("the oldest"), "2": OSError("the newest")})
    server = fake_server(engines, paths=versioned(tmp_path, "1", "2"))
    with client_of(server):
        assert str(server.fault) == "the newest"


def test_the_newest_version_that_has_a_model_is_checked(tmp_path):
    versioned(tmp_path, "1", "2", "3")
    with pytest.raises(ValueError, match="/3: no model"):
        check_model(tmp_path)
    for number in "12":
        (tmp_path / number / "saved_model.pb").touch()
    assert check_model(tmp_path) == tmp_path / "2"


def test_an_old_version_is_unloaded_after_its_last_request(tmp_path):
    engines = Engines({"1": FakeEngine(), "2": FakeEngine()})
    server = fake_server(engines, paths=versioned(tmp_path, "1"), workers=2, max_wait_ms=0)
    with client_of(server) as client:
        engines["1"].gate.clear()
        wait = in_threads(lambda: predict(client, "old"))
        engines["1"].wait_until_begun()
        versioned(tmp_path, "2")
        reloaded(client, server)
        reloaded(client, server)
        assert states(client) == {"2": ("AVAILABLE", ""), "1": ("UNLOADING", "")}
        assert predict(client, "new").json()["predictions"][0]["translation"] == "NEW"
        assert engines["2"].texts == ["new"]
        engines["1"].gate.set()
        assert wait()[0].json()["predictions"][0]["translation"] == "OLD"
        reloaded(client, server)
        assert states(client) == {"2": ("AVAILABLE", ""), "1": ("END", "")}
        assert server.models["m30k"].versions[1].engine is None


@pytest.mark.slow
def test_an_old_version_is_freed_though_its_objects_were_frozen(tmp_path):
    engines = Engines({"1": FakeEngine(), "2": FakeEngine()})
    engines["1"].itself = engines["1"]  # Keras' models refer to themselves, too
    old = weakref.ref(engines["1"])
    server = fake_server(engines, paths=versioned(tmp_path, "1"))
    try:
        with client_of(server) as client:
            predict(client, "a")
            freeze_objects()
            assert gc.get_freeze_count() > 10_000
            del engines["1"]
            versioned(tmp_path, "2")
            reloaded(client, server)
            assert states(client)["1"] == ("END", "")
            assert old() is None
            assert gc.get_freeze_count() > 10_000
    finally:
        gc.unfreeze()


def test_newer_versions_are_looked_for_again_and_again(tmp_path):
    engines = Engines({"1": FakeEngine(), "2": FakeEngine()})
    server = fake_server(engines, paths=versioned(tmp_path, "1"), reload_seconds=0.01)
    with client_of(server) as client:
        versioned(tmp_path, "2")
        while "2" not in states(client) or states(client)["2"][0] != "AVAILABLE":
            pass
        predict(client, "a")
    assert engines["2"].texts == ["a"]


def test_newer_versions_are_looked_for_after_a_fault(tmp_path, monkeypatch, caplog):
    engines = Engines({"1": FakeEngine(), "2": FakeEngine()})
    server = fake_server(engines, paths=versioned(tmp_path, "1"), reload_seconds=0.01)
    faults, load_newer = ["first", "second"], server.models.load_newer

    def fails():
        raise RuntimeError("in a warm-up")

    async def fails_twice():
        if faults:
            raise RuntimeError(faults.pop())
        await load_newer()

    server.warm_ups.append(fails)
    monkeypatch.setattr(server.models, "load_newer", fails_twice)
    with client_of(server) as client:
        versioned(tmp_path, "2")
        while "2" not in states(client) or states(client)["2"][0] != "AVAILABLE":
            pass
    assert [
        line for line in ("a warm-up failed", "newer versions could not") if line not in caplog.text
    ] == []


def test_a_version_has_changed_if_a_file_within_a_folder_of_it_has(tmp_path):
    (tmp_path / "variables").mkdir()
    (tmp_path / "variables/data").write_bytes(b"half")
    (tmp_path / "saved_model.pb").touch()
    before = _stamp(tmp_path)
    assert _stamp(tmp_path) == before
    os.utime(tmp_path / "variables/data", ns=(1, 1))
    assert _stamp(tmp_path) != before


def test_a_model_that_cannot_be_loaded_at_the_start_is_a_fault():
    server = fake_server(Engines(good=FakeEngine(), bad=ValueError("no weights in it")))
    with client_of(server) as client:
        assert str(server.fault) == "no weights in it"
        assert client.get("/readyz").status_code == 503


def test_under_another_server_a_fault_at_the_start_is_logged(caplog):
    server = fake_server(Engines(bad=ValueError("no weights in it")))
    with TestClient(create_app(server), base_url=HOST) as client:
        while server.fault is None:
            assert client.get("/readyz").status_code == 503
    assert "the models could not be loaded: no weights in it" in caplog.text


def test_a_server_that_ends_answers_still_but_is_not_ready_and_closes_connections(engine):
    server = fake_server(engine)
    with client_of(server) as client:
        assert "connection" not in predict(client, "a").headers
        server.is_draining = True  # as `serve.py` sets it on SIGTERM
        answer = predict(client, "a")
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        for path in ("/readyz", "/v2/health/ready"):
            assert client.get(path).status_code == 503
        assert client.get("/healthz").status_code == 200


def run_folder(path):
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    return str(path)


def test_models_have_the_names_of_their_folders_or_their_own(tmp_path):
    one, two = run_folder(tmp_path / "a" / "m30k"), run_folder(tmp_path / "b" / "m30k")
    spaced = run_folder(tmp_path / "my model=3")
    assert named_paths([one, f"other={two}"]) == {"m30k": pathlib.Path(one), "other": pathlib.Path(two)}
    assert list(named_paths([spaced])) == ["my-model-3"]
    with pytest.raises(ValueError, match="two models are called 'm30k'. Name one of them: OTHER="):
        named_paths([one, two])
    with pytest.raises(ValueError, match="two models are called 'a'"):
        named_paths([f"a={one}", f"a={two}"])
    with pytest.raises(ValueError, match="no such folder"):
        named_paths([str(tmp_path / "nothing")])
    for name in ("a b", "a/b", "", "-a"):
        with pytest.raises(ValueError, match="the name before = must be letters, digits, dots"):
            named_paths([f"{name}={one}"])
    for argument in ("", "a="):
        with pytest.raises(ValueError, match="MODEL is empty. Give a folder"):
            named_paths([argument])
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="file: is a file, not a folder"):
        named_paths([str(tmp_path / "file")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty: no model"):
        named_paths([str(tmp_path / "empty")])
    assert [model.name for model in Models(named_paths([f"x={two}", one]))] == ["x", "m30k"]


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_body_bytes": 3}, "max_body_bytes` must be at least 1000"),
        ({"max_request_tokens": 8, "max_queue_tokens": 7}, "at most `max_queue_tokens"),
        ({"token": " a"}, "ASCII without spaces"),
        ({"token": "ä"}, "ASCII without spaces"),
        ({"allow_origin": "page.example"}, "must be http:// or https:// and a host"),
        ({"allow_origin": "https://page.example/a"}, "without a path"),
        ({"timeout_seconds": 0}, "above 0"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        ServerConfig(**settings)
