"""The application: routes, access, errors, logs, life cycle. It runs under any ASGI server."""

import asyncio
import base64
import binascii
import contextlib
import functools
import hmac
import logging
import re
import time
import urllib.parse

from keras_transformer.config.cores import usable_cores
from keras_transformer.config.extras import needs
from keras_transformer.serving import libretranslate, open_inference, openapi, tf_serving
from keras_transformer.serving.batching import BatchingQueue
from keras_transformer.serving.errors import (
    ClientLeftError,
    EngineError,
    ForbiddenError,
    RequestError,
    UnauthorizedError,
    UnavailableError,
)
from keras_transformer.serving.metrics import Metrics
from keras_transformer.serving.service import Service, run_batch
from keras_transformer.serving.settings import LOOPBACK, utc_time

with needs("serve", "The server"):
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.middleware.cors import CORSMiddleware
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route

logger = logging.getLogger(__name__)
_OPEN = ("/healthz", "/readyz", "/health", "/v2/health/live", "/v2/health/ready")
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Server:
    """What the routes share: settings, models, queue, metrics.

    Args:
        config: `ServerConfig`.
        models: `Models`.
        log: function that is called with a dict for each request.
    """

    def __init__(self, config, models, *, log=lambda record: None):
        self.config, self.models, self._log = config, models, log
        self.metrics = Metrics()
        self.queue = BatchingQueue(
            run_batch,
            workers=config.workers or usable_cores(),
            batch_tokens=config.batch_tokens,
            max_wait_ms=config.max_wait_ms,
            max_queue_tokens=config.max_queue_tokens,
            # What is accepted must be answered in time, also if the next texts take twice as long.
            max_queue_seconds=config.timeout_seconds / 2,
            on_batch=self.metrics.on_batch,
        )
        self.service = Service(models, self.queue, config, self.metrics)
        self.metrics.watch(self.queue, models)
        self.fault = None  # why the models could not be loaded
        self.on_fault = lambda: logger.error("the models could not be loaded: %s", self.fault)
        self.on_loaded = lambda: None
        self.warm_ups = []  # functions that are called after that
        self.is_draining = False  # whether it accepts its last requests
        self.num_lost = 0  # texts that were accepted and not translated at the end

    @property
    def is_ready(self):
        """Whether all models are loaded and the server is not shutting down."""
        return self.models.is_ready and not self.queue.is_closed and not self.is_draining

    def bound(self, function):
        """Returns `function(server, request)` as a function of the request."""
        return functools.partial(function, self)

    def note(self, request, texts):
        """Notes the texts of a request for the log."""
        request.state.num_texts = len(texts)
        if self.config.log_texts:
            request.state.texts = texts

    def check_access(self, request):
        """Raises `ForbiddenError` or `UnauthorizedError` for a request that may not be answered."""
        host = re.sub(r":[0-9]*$", "", request.headers.get("host", "")).strip("[]").lower()
        if self.config.is_local and host not in LOOPBACK:
            # A page elsewhere can make its own name point to this machine (DNS rebinding).
            raise ForbiddenError("This server answers requests to localhost only")
        # Not `request.url.path`, which a crafted `Host` header could change in Starlette 1.0.0.
        if not self.is_open(request.scope["path"]):
            self.check_token(request)

    def is_open(self, path):
        """Whether a path needs no token, or looks for it in the body."""
        return path in (*_OPEN, *libretranslate.OWN_ACCESS)

    def check_token(self, request, key=None):
        """Raises `UnauthorizedError` unless the header of a request or `key`, of its body, is the token."""
        is_key = isinstance(key, str) and self._is_token(key)
        if self.config.token and not is_key and not self._has_token(request):
            raise UnauthorizedError("A token is needed: Authorization: Bearer TOKEN")

    def _has_token(self, request):
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "basic":  # browsers ask for it: any user name, the token as the password
            with contextlib.suppress(binascii.Error, ValueError):
                given = base64.b64decode(given, validate=True).decode().partition(":")[2]
        return self._is_token(given)

    def _is_token(self, given):
        return hmac.compare_digest(given.encode(errors="replace"), self.config.token.encode())

    def response(self, content, **options):
        """Returns a response with a body of bytes or str."""
        return Response(content, **options)

    async def lines(self, request, lines):
        """Returns a response with a line of JSON for each of the dicts that a generator yields.

        A fault after the first line is the last line, and is noted for the log.
        """
        first = await anext(lines, None)  # an error before the first line has a status of its own

        async def body():
            try:
                if first is not None:
                    yield tf_serving.line(first)
                async for values in lines:
                    yield tf_serving.line(values)
            except RequestError as error:
                request.state.error = str(error)
                self.metrics.refused.labels(error.reason).inc()
                if not isinstance(error, ClientLeftError):
                    yield tf_serving.line({"error": str(error)})

        return _Lines(body(), media_type=tf_serving.NDJSON)

    async def form(self, request, body, kind):
        """Returns dict, the fields of a form.

        Args:
            request: the request.
            body: bytes.
            kind: str, its media type.

        Raises:
            RequestError: the form is broken or has files.
        """
        sent = False

        async def receive():
            nonlocal sent
            message = {"type": "http.request", "body": b"" if sent else body, "more_body": False}
            sent = True
            return message

        try:
            if kind == "application/x-www-form-urlencoded":  # Starlette would take its bytes for Latin-1
                text = body.decode(errors="replace")
                return dict(urllib.parse.parse_qsl(text, keep_blank_values=True, max_num_fields=20))
            async with Request(request.scope, receive).form(max_files=0, max_fields=20) as form:
                return {key: value for key, value in form.items() if isinstance(value, str)}
        except (HTTPException, ValueError, KeyError, AssertionError) as error:
            detail = getattr(error, "detail", None) or error
            raise RequestError(f"The form cannot be read: {detail}") from error

    def refusal(self, error):
        """Returns the response for a `RequestError`."""
        headers = {}
        if error.retry_after is not None:
            headers["Retry-After"] = str(error.retry_after)
        if error.status == UnauthorizedError.status:
            headers["WWW-Authenticate"] = 'Basic realm="keras-transformer"'
        if error.status == 413:
            headers["Connection"] = "close"  # the rest of the body is not read
        return JSONResponse({"error": str(error)}, status_code=error.status, headers=headers)

    def give_up(self):
        """Answers what is not translated with `UnavailableError`."""
        self.num_lost += self.queue.give_up()

    def _check_beam_sizes(self):
        """Raises `ValueError` if a model's own beam is larger than a request may ask for."""
        for model in self.models:
            size, most = model.newest.engine.search.beam_size, self.config.max_beam_size
            if size > most:
                is_fixed = model.newest.engine.max_n_best is not None  # a SavedModel
                raise ValueError(
                    f"{model.name}: its beam size, {size}, is above --max-beam-size {most}. Raise that, or "
                    f"{'export it again with' if is_fixed else 'add'} --beam-size {most}"
                )

    async def load(self):
        """Loads the models, then watches for newer versions; runs until it is cancelled."""
        try:
            await asyncio.to_thread(self.models.load)
            self._check_beam_sizes()
        except Exception as error:  # noqa: BLE001 - reported by the program
            self.fault = error
            self.queue.give_up()  # a model that was refused must not answer
            self.on_fault()
            return
        self.on_loaded()
        for warm_up in self.warm_ups:
            try:
                await asyncio.to_thread(warm_up)
            except Exception:  # noqa: BLE001 - the first visitor will see it
                logger.exception("a warm-up failed")
        while self.config.reload_seconds:
            await asyncio.sleep(self.config.reload_seconds)
            try:
                await self.models.load_newer()
            except Exception:  # noqa: BLE001 - the next attempt may succeed
                logger.exception("newer versions could not be looked for")


class _Lines(StreamingResponse):
    """Lines that are sent one by one; calls the function `on_end` after the last."""

    on_end = staticmethod(lambda: None)

    async def __call__(self, scope, receive, send):
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.on_end()


def create_app(server):
    """Returns the Starlette application of a `Server`."""
    listed = [
        ("GET", "/healthz", server.bound(_alive)),
        ("GET", "/readyz", server.bound(_ready)),
        ("GET", "/metrics", server.bound(_metrics)),
        ("GET", "/openapi.json", server.bound(openapi.document)),
        *tf_serving.routes(server),
        *open_inference.routes(server),
        *libretranslate.routes(server),
    ]
    if server.config.explorer:
        from keras_transformer.serving import explorer_routes

        listed += explorer_routes.routes(server)
    routes = [
        Route(path, _endpoint(server, path, function), methods=[method]) for method, path, function in listed
    ]

    @contextlib.asynccontextmanager
    async def lifespan(app):
        loading = asyncio.ensure_future(server.load())
        try:
            yield
        finally:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
            server.num_lost += await server.queue.close(server.config.drain_seconds)

    middleware = []
    if origin := server.config.allow_origin:
        options = {"allow_methods": ["GET", "POST"], "allow_headers": ["authorization", "content-type"]}
        middleware = [Middleware(CORSMiddleware, allow_origins=[origin], **options)]
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=middleware,
        exception_handlers={HTTPException: server.bound(_on_http_error)},
    )
    app.router.redirect_slashes = False
    return app


def _endpoint(server, path, function):
    """Returns the endpoint of a route: checks access, answers errors, counts and logs."""

    async def endpoint(request):
        begin = time.monotonic()
        try:
            server.check_access(request)
            answer = await function(request)
            response = answer if isinstance(answer, Response) else JSONResponse(answer)
        except RequestError as error:
            response = server.refusal(error)
            if request.method == "POST":
                server.metrics.refused.labels(error.reason).inc()
        except ClientDisconnect:
            response = server.refusal(ClientLeftError("The client closed the connection"))
        except Exception:
            logger.exception("%s %s failed", request.method, path)
            response = server.refusal(EngineError("A fault of the server. Its log has the reason"))
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        if server.is_draining:
            response.headers["Connection"] = "close"

        def finish():
            _finish(server, request, path, response.status_code, time.monotonic() - begin)

        if isinstance(response, _Lines):
            response.on_end = finish
        else:
            finish()
        return response

    return endpoint


def _finish(server, request, path, code, seconds):
    server.metrics.requests.labels(request.method, path, str(code)).inc()
    server.metrics.seconds.labels(path).observe(seconds)
    record = {
        "time": utc_time(),
        "method": request.method,
        "route": path,
        "code": code,
        "milliseconds": round(1000 * seconds, 1),
    }
    if "name" in request.path_params:
        record["model"] = request.path_params["name"][:100]
    record |= {
        key: getattr(request.state, key)
        for key in ("model", "num_texts", "texts", "error")
        if hasattr(request.state, key)
    }
    server._log(record)


async def _on_http_error(server, request, error):
    """Answers unknown paths and methods in JSON."""
    known = "/v1/models/NAME:predict, /v2/models/NAME/infer, /translate; all are in /openapi.json"
    code, headers = error.status_code, error.headers or {}
    if code == 405 and request.method == "POST" and request.scope["path"].startswith("/v1/models/"):
        code, headers = 404, {}  # no `:predict` at the end, or a wrong one
    message = f"Not found. Paths: {known}" if code == 404 else str(error.detail)
    _finish(server, request, "other", code, 0.0)
    return JSONResponse({"error": message}, status_code=code, headers={**_HEADERS, **headers})


async def _alive(server, request):
    """`GET /healthz`: the process answers."""
    return {"status": "ok"}


async def _ready(server, request):
    """`GET /readyz`: all models are loaded."""
    if not server.is_ready:
        raise UnavailableError("Models are being loaded, or the server is shutting down", retry_after=2)
    return {"status": "ready"}


async def _metrics(server, request):
    """`GET /metrics`: the metrics in the format of Prometheus."""
    content, kind = server.metrics.text()
    return Response(content, headers={"Content-Type": kind})
