"""A server of the explorer's page: the real application under uvicorn, with real models."""

import asyncio
import json
import threading
import urllib.request

import pytest


class Interrupted:
    """An ASGI application that delays or refuses the next POST requests, then asks the real one.

    Attributes:
        delays: list of seconds by which the next requests are answered late.
        refusals: list of (status, message) with which the next requests are answered instead.
    """

    def __init__(self, app):
        self.app, self.delays, self.refusals = app, [], []

    async def __call__(self, scope, receive, send):
        if scope["type"] == "http" and scope["method"] == "POST":
            if self.delays:
                await asyncio.sleep(self.delays.pop(0))
            if self.refusals:
                return await _refusal(*self.refusals.pop(0))(scope, receive, send)
        return await self.app(scope, receive, send)


def _refusal(status, message):
    from starlette.responses import JSONResponse

    headers = {"Retry-After": "1"} if status in (429, 503) else {}
    return JSONResponse({"error": message}, status, headers)


class ExplorerServer:
    """The server in a thread; `delays` and `refusals` meet the next requests, see `Interrupted`.

    Attributes:
        url: address of the page.
        models: `Models` of the server.
    """

    def __init__(self, paths):
        import uvicorn

        from keras_transformer.serving.app import Server, create_app
        from keras_transformer.serving.models import Models
        from keras_transformer.serving.settings import ServerConfig

        self.models = Models(paths)
        server = Server(ServerConfig(port=0, reload_seconds=0), self.models)
        app = Interrupted(create_app(server))
        self.delays, self.refusals = app.delays, app.refusals
        is_warm = threading.Event()
        server.warm_ups.append(is_warm.set)  # the last one: all explorers have answered once
        self._runner = uvicorn.Server(uvicorn.Config(app, port=server.config.port, log_level="warning"))
        self._thread = threading.Thread(target=self._runner.run, daemon=True)
        self._thread.start()
        while not is_warm.wait(0.1):
            assert self._thread.is_alive(), "the server ended"
            assert server.fault is None, server.fault
        (listening,) = self._runner.servers[0].sockets
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}/"

    def ask(self, method, **values):
        """Returns the server's answer to a request of the page."""
        body = json.dumps({"model": "en-de-tatoeba", **values}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}explorer/{method}", body, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def translation(self, text):
        """Returns the best translation of a text."""
        return self.ask("search", text=text)["hypotheses"][0]["text"]

    def close(self):
        self._runner.should_exit = True
        self._thread.join(timeout=60)


@pytest.fixture(scope="session")
def explorer_server(tmp_path_factory):
    """An `ExplorerServer` with the model that comes with the package, a tiny one, and one of many heads."""
    from tiny_explorers import many_heads, tiny_translator

    from keras_transformer.checkpoints.pretrained import pretrained_folder

    folder = tmp_path_factory.mktemp("explorers")
    server = ExplorerServer(
        {
            "en-de-tatoeba": pretrained_folder("en-de-tatoeba"),
            "tiny": tiny_translator().save(folder / "tiny"),
            "large": many_heads().save(folder / "large"),
        }
    )
    yield server
    server.close()
