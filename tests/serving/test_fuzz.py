"""Requests that no client should send: each is answered, and none is a fault of the server."""

import asyncio
import importlib.util
import json
import random
import struct

import pytest
from fake_serving import PATIENCE, Engines, FakeEngine, fake_server, send, until

from keras_transformer.serving.app import create_app

LENGTH = b"inference-header-content-length"
TEXT = {"name": "text", "datatype": "BYTES", "shape": [2], "data": ["a dog", "b"]}
# Path -> bodies that are answered.
VALID = {
    "/v1/models/{name}:predict": [
        {"instances": ["a dog", {"b64": "YQ=="}]},
        {"instances": [{"text": "a"}, {"text": {"b64": "YQ=="}}], "beam_size": 3, "alpha": 0.5},
        {"inputs": {"text": ["a\nb", " "], "n_best": 2}, "signature_name": "translate_nbest"},
    ],
    "/v2/models/{name}/infer": [
        {"id": "7", "inputs": [TEXT], "outputs": [{"name": "score", "parameters": {"binary_data": True}}]},
        {"inputs": [{**TEXT, "shape": [2, 1]}], "parameters": {"n_best": 2, "binary_data_output": True}},
    ],
    "/translate": [
        {"q": "One sentence. Another one.\n", "source": "en", "target": "de", "alternatives": 2},
        {"q": ["<b>a</b> b", "c"], "source": "auto", "target": "de", "format": "html", "api_key": "k"},
    ],
    "/detect": [{"q": "a dog"}, {"q": ["un chien", "deux"]}],
    "/explorer/search": [{"model": "m30k", "text": "a dog"}],
    "/explorer/inspect": [{"model": "m30k", "text": "a dog", "target": "ein Hund"}],
    "/explorer/page": [{"state": {"text": "a"}}],
}
# fmt: off
NUMBERS = [
    "0", "-1", "1", "2.5", "1e999", "-1e400", "NaN", "-Infinity", "1" + 300 * "0", "9" * 5000, "1e-400", "16",
]
STRINGS = [
    "", " ", "a", "\ud800", "a\x00b", "\n", "\r\n\u2028", "\u202e", "é" * 50, "x" * 3000, "YQ==", "text",
    "de", "\udcff\ud83d", "😀", "<b", "<![", "&#xD800;", "auto", "translate_nbest", "../..", "'\"<>",
]
BYTES = [
    b"\x00", b"\xff", b"\xed\xa0\x80", b"\\ud800", b'"', b"{", b"]", b"\xef\xbb\xbf", b",", b"9" * 99,
]
KINDS = [
    "application/json", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ";", "\xff",
    "multipart/form-data; boundary=b", "multipart/form-data; boundary=", 'multipart/form-data; boundary="',
    "multipart/form-data; boundary=b; charset=none", "application/json; charset=utf-16",
]
# fmt: on


class Number(str):
    """A number as it is written."""


class Fuzzer:
    """Draws requests; the same ones for the same seed."""

    def __init__(self, seed, routes):
        self._rng = random.Random(seed)
        self._routes = routes

    def request(self):
        """Returns (path, body, headers)."""
        rng = self._rng
        path = rng.choice(self._routes)
        values = rng.choice(VALID[path.replace("/versions/{version}", "")])
        headers = []
        kind = rng.choice(["json", "json", "json", "bytes", "random", "deep", "form", "multipart", "binary"])
        if kind == "random":
            body = self._write(self._value())
        elif kind == "deep":
            body = self._deep(values)
        elif kind in ("form", "multipart"):
            body, content_type = (self._form if kind == "form" else self._multipart)(values)
            headers.append((b"content-type", content_type))
        else:
            for _ in range(rng.choice([0, 0, 1, 1, 2, 5])):
                values = self._mutated(values)
            body = self._write(values)
            if kind == "binary":
                body, length = self._binary(body)
                headers.append((LENGTH, length))
        if kind == "bytes" or rng.random() < 0.1:
            body = self._broken(body)
        if rng.random() < 0.1:
            headers.append((b"content-type", rng.choice(KINDS).encode("latin-1")))
        if rng.random() < 0.1:
            headers.append(
                (b"accept", rng.choice([b"application/x-ndjson", b"\xff", b"application/x-ndjson;q=1"]))
            )
        if rng.random() < 0.05:
            name = rng.choice([b"content-length", b"content-encoding", b"authorization", LENGTH])
            headers.append(
                (name, rng.choice([b"", b"7", b"-1", b"9" * 5000, b"identity", b"\xb2", b"Basic \xff"]))
            )
        return self._path(path), body, headers

    def _path(self, path):
        rng = self._rng
        odd = [
            "",
            "x",
            "m30k\n",
            "m30k:predict",
            "\x00",
            "\ufffd",
            "😀" * 50,
            "..",
            "1",
            "-1",
            "9" * 400,
            "²",
            "{}",
        ]
        name = "m30k" if rng.random() < 0.9 else rng.choice(odd)
        version = "1" if rng.random() < 0.7 else rng.choice(odd)
        return path.replace("{name}", name).replace("{version}", version)

    def _value(self, depth=0):
        rng = self._rng
        kind = rng.randrange(8 if depth < 3 else 5)
        if kind < 2:
            return Number(rng.choice(NUMBERS))
        if kind < 4:
            return rng.choice(STRINGS)
        if kind == 4:
            return rng.choice([None, True, False])
        if kind < 6:
            return [self._value(depth + 1) for _ in range(rng.choice([0, 1, 2, 7]))]
        return {rng.choice([*STRINGS, "b64"]): self._value(depth + 1) for _ in range(rng.choice([0, 1, 3]))}

    def _mutated(self, value):
        """Returns a copy with one place changed."""
        rng = self._rng
        if not isinstance(value, (dict, list)) or not value or rng.random() < 0.2:
            return self._value()
        if isinstance(value, list):
            changed, at = list(value), rng.randrange(len(value))
            if rng.random() < 0.2:
                return changed * rng.choice([0, 2, 100])
            changed[at] = self._mutated(changed[at])
            return changed
        key = rng.choice(list(value))
        changed = dict(value)
        choice = rng.random()
        if choice < 0.15:
            changed[rng.choice([key + "s", key.upper(), key[:-1], rng.choice(STRINGS)])] = changed.pop(key)
        elif choice < 0.3:
            del changed[key]
        elif choice < 0.4:
            other = rng.choice([rng.choice(STRINGS), "beam_size", "n_best", "parameters", "shape", "inputs"])
            changed[other] = self._value()
        else:
            changed[key] = self._mutated(changed[key])
        return changed

    def _write(self, value):
        """Returns JSON as bytes, with `Number` as it is written."""

        def write(value):
            if isinstance(value, Number):
                return str(value)
            if isinstance(value, dict):
                return "{" + ",".join(f"{json.dumps(key)}:{write(each)}" for key, each in value.items()) + "}"
            if isinstance(value, list):
                return "[" + ",".join(map(write, value)) + "]"
            return json.dumps(value, ensure_ascii=self._rng.random() < 0.5)

        return write(value).encode("utf-8", "surrogatepass")

    def _deep(self, values):
        rng = self._rng
        number = rng.choice([5, 900, 5000, 40_000])
        opening, closing = rng.choice([(b"[", b"]"), (b'{"text":', b"}"), (b'{"q":[', b"]}")])
        inner = opening * number + b"1" + closing * number
        return b'{"%s":%s}' % (rng.choice(list(values)).encode(), inner) if rng.random() < 0.7 else inner

    def _broken(self, body):
        rng, body = self._rng, bytearray(body)
        for _ in range(rng.choice([1, 1, 3])):
            at = rng.randrange(len(body) + 1)
            body[at : at + rng.choice([0, 0, 1, 9])] = rng.choice([b"", *BYTES])
        return bytes(body[: rng.choice([None, None, len(body) // 2])])

    def _binary(self, body):
        rng = self._rng
        sizes = [0, 1, 3, 2**31, 2**32 - 1]
        data = b"".join(struct.pack("<I", rng.choice(sizes)) + b"\xffab" for _ in range(rng.randrange(4)))
        size = rng.choice([len(data), len(data) + 1, -1])
        entry = {**TEXT, "parameters": {"binary_data_size": size}, "shape": [rng.randrange(4)]}
        if rng.random() < 0.9:
            del entry["data"]
        body = self._write({"inputs": [entry]}) if rng.random() < 0.7 else body
        wrong = [
            b"",
            b"-1",
            b"0",
            b"9" * 30,
            b"0" * 30 + b"9" * 4500,
            b"1_0",
            b"\xb2",
            str(len(body) + 1).encode(),
        ]
        return body + data, str(len(body)).encode() if rng.random() < 0.7 else rng.choice(wrong)

    def _form(self, values):
        parts = [f"{key}={json.dumps(value)}" for key, value in values.items()]
        text = "&".join([*parts, *self._rng.choices(["", "=", "q=%ff", "%", "q", "&" * 40, "a=b;c"], k=2)])
        return text.encode(), b"application/x-www-form-urlencoded"

    def _multipart(self, values):
        rng, lines = self._rng, []
        for key, value in values.items():
            odd = rng.choice(["", "", "", '; filename="f"', "; filename*=x", "; name*0=a"])
            kind = rng.choice(
                ["", "", "\r\nContent-Type: a/b", "\r\nContent-Transfer-Encoding: base64", "\r\n:"]
            )
            value = value if isinstance(value, str) else json.dumps(value)
            head = f'--b\r\nContent-Disposition: form-data; name="{key}"{odd}{kind}'
            blank = rng.choice(["\r\n\r\n"] * 5 + ["\r\n", ""])
            lines.append(f"{head}{blank}{value}\r\n")
        lines.append(rng.choice(["--b--\r\n", "--b--", "--b", "", "--c--"]))
        body = "".join(lines).encode("utf-8", "surrogatepass")
        charset = rng.choice([b"", b"", b"; charset=utf-16", b"; charset=none"])
        return body, b"multipart/form-data; boundary=b" + charset


def check_answer(messages):
    """Asserts that an answer is a translation or a refusal in one line, in the format that it says."""
    start, body = messages[0], b"".join(message.get("body", b"") for message in messages[1:])
    headers = dict(start["headers"])
    kind = headers[b"content-type"].split(b";")[0]
    if start["status"] >= 400:
        assert start["status"] < 500, body
        values = json.loads(body)
        assert list(values) == ["error"]
        assert values["error"].splitlines() == [values["error"]]
    elif kind == b"application/x-ndjson":
        assert [json.loads(line) for line in body.splitlines()]
    elif kind == b"application/octet-stream":
        json.loads(body[: int(headers[LENGTH])])
    elif kind != b"text/html":
        json.loads(body)
    return start["status"]


async def fuzz(number, seed):
    """Sends so many requests; returns the set of the status codes."""
    engines = Engines(m30k=FakeEngine(), other=FakeEngine(languages=("fr", "de")))
    explorer = importlib.util.find_spec("keras_transformer.explorer") is not None
    server = fake_server(engines, explorer=explorer, max_body_bytes=300_000, max_texts=100)
    app = create_app(server)
    routes = [route.path for route in app.routes if "POST" in route.methods]
    codes = set()
    async with app.router.lifespan_context(app):
        await until(lambda: server.is_ready)
        fuzzer = Fuzzer(seed, routes)
        for index in range(number):
            path, body, headers = fuzzer.request()
            try:
                task, messages = send(app, path, body, headers=headers)
                await asyncio.wait_for(task, PATIENCE)
                codes.add(check_answer(messages))
            except Exception as error:
                raise AssertionError(f"{index}: {path!r} {headers} {body[:2000]!r} of {len(body)}") from error
    assert server.queue.num_texts == 0
    return codes


def test_any_request_is_answered_or_refused():
    assert asyncio.run(fuzz(400, seed=1)) >= {200, 400, 404}


@pytest.mark.very_slow
@pytest.mark.parametrize("seed", [2, 3])
def test_any_of_very_many_requests_is_answered_or_refused(seed):
    assert asyncio.run(fuzz(5000, seed)) >= {200, 400, 404, 413}
