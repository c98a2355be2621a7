"""Routes of the explorer of attention and search: its page, and what the page asks for."""

import asyncio
import concurrent.futures
import mimetypes
import weakref

from keras_transformer.explorer.checks import InvalidRequestError
from keras_transformer.explorer.explorer import Explorer
from keras_transformer.explorer.page import ASSETS, standalone_page
from keras_transformer.serving.engines import WARMUP_TEXTS
from keras_transformer.serving.errors import (
    BusyError,
    ClientLeftError,
    DeadlineError,
    NotFoundError,
    RequestError,
    UnavailableError,
)
from keras_transformer.serving.requests import client_left, parse_json, read_body

PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
}
_MAX_WAITING = 8
_MAX_STATE_BYTES = 8 * 2**20
_FILE = "explorer.html"


class _Explorers:
    """The explorers of a server's models; they answer one request at a time."""

    def __init__(self, server):
        self._server = server
        # Not by name: the explorer of a version that was unloaded would stay, with a copy of its weights.
        self._made = weakref.WeakKeyDictionary()
        self._waiting = 0
        self._pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="explore")

    def of(self, name):
        """Returns the `Explorer` of a model's newest version.

        Raises:
            NotFoundError: no such model, or none that the explorer can show.
        """
        engine = self._server.models.version(name).engine
        if engine not in self._made:
            translator = engine.explorable()
            if translator is None:
                raise NotFoundError(f"{name!r} is an exported model. The explorer shows run folders")
            most = self._server.config.max_beam_size
            self._made[engine] = Explorer(translator, name, max_beam=most)
        return self._made[engine]

    def all(self):
        """Returns list of the `Explorer`s of all models that can be shown."""
        shown = [model for model in self._server.models if model.newest and model.newest.engine.is_explorable]
        return [self.of(model.name) for model in shown]

    def warm_up(self):
        """Asks each explorer once, so that the first visitor does not wait for a compilation."""
        self._pool.submit(self._ask_all).result()  # in the thread that makes them

    def _ask_all(self):
        for explorer in self.all():
            explorer.search({"text": WARMUP_TEXTS[-1]})
            explorer.inspect({"text": WARMUP_TEXTS[-1], "target": WARMUP_TEXTS[-1]})

    async def call(self, request, function, *arguments):
        """Returns the result of a function in the explorers' thread.

        If the client leaves while the request waits, the function is not called: the page gives up a
        request for each character that is typed.

        Raises:
            BusyError: too many wait.
            ClientLeftError: the client has left.
            DeadlineError: it took too long.
            RequestError: the request is not valid.
        """
        if self._waiting >= _MAX_WAITING:
            raise BusyError("The explorer is busy. Try again", retry_after=1)
        self._waiting += 1
        answer = asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)
        try:
            async with client_left(request) as left:
                waited_for, seconds = {answer, left}, self._server.config.timeout_seconds
                await asyncio.wait(waited_for, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                if answer.done():
                    return answer.result()
                if left.done():
                    raise ClientLeftError("The client closed the connection")
                raise DeadlineError("The explorer took too long. Take a shorter sentence")
        except InvalidRequestError as error:
            raise RequestError(str(error)) from error
        finally:
            answer.cancel()
            self._waiting -= 1


def routes(server):
    """Returns list of (method, path, function), see `app`."""
    explorers = _Explorers(server)
    server.warm_ups.append(explorers.warm_up)
    files = {path.name: path for path in sorted(ASSETS.iterdir()) if path.suffix in (".css", ".js", ".svg")}

    async def page(request):
        content = (ASSETS / _FILE).read_bytes()
        return server.response(content, media_type="text/html", headers=PAGE_HEADERS)

    async def asset(request):
        path = files.get(request.path_params["file"])
        if path is None:
            raise NotFoundError("No such file")
        kind = "text/javascript" if path.suffix == ".js" else mimetypes.types_map[path.suffix]
        return server.response(path.read_bytes(), media_type=kind, headers={"Cache-Control": "no-cache"})

    async def models(request):
        if not server.models.is_ready:
            raise UnavailableError("The models are being loaded. Try again soon", retry_after=2)
        return {"models": [explorer.model() for explorer in await explorers.call(request, explorers.all)]}

    async def search(request):
        return await _answer(request, "search")

    async def inspect(request):
        return await _answer(request, "inspect")

    async def _answer(request, method):
        values = parse_json(await read_body(request, server.config))
        name = values.get("model")
        if not isinstance(name, str):
            raise RequestError('"model" must be the name of a model')
        server.models.version(name)
        server.note(request, [values.get("text")])

        def answer():
            return getattr(explorers.of(name), method)(values)

        return await explorers.call(request, answer)

    async def keep(request):
        values = parse_json(await read_body(request, server.config, limit=_MAX_STATE_BYTES))
        text = await explorers.call(request, standalone_page, values.get("state"))
        headers = {**PAGE_HEADERS, "Content-Disposition": 'attachment; filename="explorer.html"'}
        return server.response(text, media_type="text/html", headers=headers)

    return [
        ("GET", "/", page),
        ("GET", "/explorer/assets/{file}", asset),
        ("GET", "/explorer/models", models),
        ("POST", "/explorer/search", search),
        ("POST", "/explorer/inspect", inspect),
        ("POST", "/explorer/page", keep),
    ]
