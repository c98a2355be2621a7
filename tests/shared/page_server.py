"""Serves the explorer's page from the standard library alone, for the tests of the page."""

import base64
import contextlib
import hashlib
import http.server
import json
import pathlib
import re
import threading
import time

ASSETS = pathlib.Path(__file__).parents[2] / "keras_transformer" / "explorer" / "assets"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
POLICY = "default-src 'self'; img-src 'self' data: blob:"
IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w.]+)";\n', re.MULTILINE)


def modules(name="main.js", seen=None):
    """Returns the names of the page's modules, each after those it imports."""
    seen = {} if seen is None else seen
    if name not in seen:
        seen[name] = None
        for other in IMPORT.findall((ASSETS / name).read_text(encoding="utf-8")):
            modules(other, seen)
        seen[name] = seen.pop(name)
    return list(seen)


def one_file(state):
    """Returns the page as one text that needs no server."""
    page = (ASSETS / "explorer.html").read_text(encoding="utf-8")
    style = (ASSETS / "explorer.css").read_text(encoding="utf-8")
    texts = [IMPORT.sub("", (ASSETS / name).read_text(encoding="utf-8")) for name in modules()]
    script = re.sub(r"^export ", "", "\n".join(texts), flags=re.MULTILINE)
    data = json.dumps(state)
    for mark in "<>&\u2028\u2029":
        data = data.replace(mark, f"\\u{ord(mark):04x}")
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, style)]
    policy = "default-src 'none'; img-src data: blob:; script-src 'sha256-{}'; style-src 'sha256-{}'".format(
        *hashes
    )
    rule = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    for pattern, text in {
        "<meta charset=[^>]*>": f'<meta charset="utf-8">{rule}',
        "<link rel=\"stylesheet\"[^>]*>": f"<style>{style}</style>",
        '<script type="module"[^>]*></script>': f'<script type="module">{script}</script>',
        '<script type="application/json" id="state">null</script>':
            f'<script type="application/json" id="state">{data}</script>',
    }.items():  # fmt: skip
        page, count = re.subn(pattern, lambda _, text=text: text, page)
        assert count == 1, pattern
    return page


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers as the project's server does. The attributes are set on a subclass."""

    explorers = {}
    refusals = []  # (status, message) of the next POST requests
    delays = []  # seconds by which the next POST requests are answered late

    def do_GET(self):  # noqa: N802
        path = self.path.split("?")[0]
        if path == "/explorer/models":
            models = [each.model() for each in self.explorers.values()]
            self._send(200, json.dumps({"models": models}).encode())
        elif path == "/" or path.startswith("/explorer/assets/"):
            file = ASSETS / (path.rpartition("/")[2] or "explorer.html")
            if file.is_file():
                self._send(200, file.read_bytes(), TYPES[file.suffix])
            else:
                self._send(404, b'{"error": "no such file"}')
        else:
            self._send(404, b'{"error": "not found"}')

    def do_POST(self):  # noqa: N802
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.delays:
            time.sleep(self.delays.pop(0))
        if self.refusals:
            status, message = self.refusals.pop(0)
            self._send(status, json.dumps({"error": message}).encode())
        elif self.path == "/explorer/page":
            self._send(200, one_file(body["state"]).encode(), "text/html")
        elif body.get("model") not in self.explorers:
            self._send(404, b'{"error": "no such model"}')
        else:
            explorer = self.explorers[body["model"]]
            answer = {"/explorer/search": explorer.search, "/explorer/inspect": explorer.inspect}[self.path]
            try:
                self._send(200, json.dumps(answer(body)).encode())
            except ValueError as error:
                self._send(400, json.dumps({"error": str(error)}).encode())

    def log_message(self, *_):
        pass

    def _send(self, status, data, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("Cache-Control", "no-store")
        if status in (429, 503):
            self.send_header("Retry-After", "1")
        with contextlib.suppress(ConnectionError):  # the page no longer waits for this answer
            self.end_headers()
            self.wfile.write(data)


class PageServer:
    """Serves `explorers` (objects with model, search and inspect) on a free port of this machine."""

    def __init__(self, explorers, port=0):
        names = {each.model()["name"]: each for each in explorers}
        self.handler = type("Handler", (Handler,), {"explorers": names, "refusals": [], "delays": []})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), self.handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


if __name__ == "__main__":
    import sys

    from fake_explorer import FakeExplorer

    models = [FakeExplorer("fake"), FakeExplorer("other", seed=5), FakeExplorer("large", 6, 8)]
    with PageServer(models, int(sys.argv[1]) if len(sys.argv) > 1 else 8000) as served:
        print(served.url)
        threading.Event().wait()
