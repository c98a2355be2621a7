"""A server whose models are not trained: they write texts in capitals, wait and fail as a test demands."""

import asyncio
import contextlib
import functools
import threading

from starlette.testclient import TestClient

from keras_transformer.config.settings import SearchConfig
from keras_transformer.serving.app import Server, create_app
from keras_transformer.serving.engines import Engine
from keras_transformer.serving.models import Models
from keras_transformer.serving.settings import ServerConfig
from keras_transformer.translation.texts import NBest, Translation

PATIENCE = 60  # seconds after which a test that waits is given up
HOST = "http://localhost"


class FakeEngine(Engine):
    """Translates into capitals; the further translations of a text end with `!`, `!!` and so on.

    Args:
        path: of the model, unused.
        languages: (source, target).
        search: `SearchConfig`, the default settings.

    Attributes:
        batches: list of (settings, texts) of each call of `translate`.
        failing: set of str; a batch with one of these texts raises.
        begun: semaphore that is released by each call of `translate`.
        gate: event; a call of `translate` waits until it is set.
    """

    def __init__(self, path="fake", languages=("en", "de"), search=None):
        super().__init__(path, languages, search or SearchConfig())
        self.batches, self.failing = [], set()
        self.begun, self.gate = threading.Semaphore(0), threading.Event()
        self.gate.set()

    @property
    def texts(self):
        """All texts that were translated so far, in the order in which this began."""
        return [text for _, texts in self.batches for text in texts]

    def count_tokens(self, texts):
        return [len(text.split()) + 1 for text in texts]

    def translate(self, texts, settings):
        self.batches.append((settings, list(texts)))
        self.begun.release()
        assert self.gate.wait(PATIENCE)
        if self.failing.intersection(texts):
            raise ArithmeticError("the secret reason")
        return [self._n_best(text, settings.get("n_best", self.search.n_best)) for text in texts]

    def wait_until_begun(self):
        """Waits until one more batch has begun."""
        assert self.begun.acquire(timeout=PATIENCE)

    def _n_best(self, text, number):
        found = [Translation(text.upper() + "!" * rank, -0.5 - rank, -2.0 - rank, [], [], rank != 1)
                 for rank in range(number)]  # fmt: skip
        return NBest(found, text.split(), 1, text.endswith("CUT"))


class Engines(dict):
    """Loads engines by the name of their folder: `Engines(m30k=FakeEngine())`; an exception is raised."""

    def __call__(self, path, **options):
        engine = self[path.name]
        if isinstance(engine, Exception):
            raise engine
        return engine


def fake_server(engines, *, records=None, paths=None, **settings):
    """Returns a `Server`.

    Args:
        engines: `FakeEngine`, which is called `m30k`, or `Engines`.
        records: list that gets the lines of the log.
        paths: dict, name -> folder; `None` if the names of `engines` are those of their folders.
        **settings: of `ServerConfig`.
    """
    engines = engines if isinstance(engines, Engines) else Engines(m30k=engines)
    options = {"workers": 1, "explorer": False, "reload_seconds": 0, "drain_seconds": 5, **settings}
    models = Models(paths or {name: name for name in engines}, load=engines)
    log = (lambda record: None) if records is None else records.append
    return Server(ServerConfig(**options), models, log=log)


@contextlib.contextmanager
def client_of(server, *, wait=True, **options):
    """Context manager: a client of a running server, by default after its models were loaded."""
    loaded = threading.Event()
    server.on_loaded = server.on_fault = loaded.set
    with TestClient(create_app(server), base_url=HOST, raise_server_exceptions=False, **options) as client:
        if wait:
            assert loaded.wait(PATIENCE)
        yield client


@contextlib.contextmanager
def fake_client(engines, **options):
    """As `client_of`, of a `fake_server`."""
    with client_of(fake_server(engines, **options)) as client:
        yield client


def in_event_loop(test):
    """Decorator: runs a test that is a coroutine, for at most `PATIENCE` seconds."""

    @functools.wraps(test)
    def run(*arguments, **options):
        asyncio.run(asyncio.wait_for(test(*arguments, **options), PATIENCE))

    return run


def send(app, path, body, *, headers=(), then=None):
    """Calls an application as an ASGI server does, from its event loop.

    Args:
        app: the application.
        path: str.
        body: bytes.
        headers: list of (bytes, bytes), besides the host.
        then: coroutine function that returns the message after the body; `None` if the client stays.

    Returns:
        (task of the call, list that gets the messages of the answer).
    """
    received, sent = [{"type": "http.request", "body": body, "more_body": False}], []
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
        "method": "POST", "scheme": "http", "path": path, "raw_path": path.encode(errors="replace"),
        "query_string": b"", "root_path": "", "headers": [(b"host", b"localhost"), *headers],
        "client": ("127.0.0.1", 5), "server": ("127.0.0.1", 7),
    }  # fmt: skip

    async def receive():
        return received.pop() if received else await (then or asyncio.Event().wait)()

    async def collect(message):
        sent.append(message)

    return asyncio.ensure_future(app(scope, receive, collect)), sent


async def until(condition):
    """Waits until a function without arguments returns something true."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.001)


def error_of(response):
    """Returns the error of an answer, checked: a line of JSON under the one key `error`."""
    values = response.json()
    assert list(values) == ["error"], values
    assert values["error"], "an empty line"
    assert values["error"].splitlines() == [values["error"]]
    return values["error"]
