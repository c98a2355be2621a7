"""Serves trained models over HTTP, with an explorer of attention and search in the browser.

    keras-transformer serve runs/m30k
    keras-transformer serve german=runs/m30k served/french --port 8000
    keras-transformer serve runs/m30k --engine ctranslate2 --early-stop
    curl -d '{"instances": ["A man is riding a horse."]}' http://localhost:8501/v1/models/m30k:predict

A MODEL is a run folder, an exported SavedModel or CTranslate2 model, a folder of numbered versions, or the
name of a model that comes with the package. Its name in requests is that of the folder, unless given as
NAME=MODEL. Ctrl-C or SIGTERM ends the server after it has answered what it has accepted.
"""

import asyncio
import contextlib
import dataclasses
import json
import logging
import math
import os
import signal
import socket
import sys
import time
import traceback

from keras_transformer.cli.command_line import (
    add_checkpoint_flag,
    add_setting_flags,
    given_settings,
    program_parser,
)
from keras_transformer.cli.early_checks import check_task, open_runs
from keras_transformer.cli.engine import add_engine_flag
from keras_transformer.cli.process import exit_code, import_quietly
from keras_transformer.config import programs
from keras_transformer.config.cores import usable_cores
from keras_transformer.config.extras import needs
from keras_transformer.config.settings import SearchConfig
from keras_transformer.export.serving import curl_command
from keras_transformer.serving.engines import SERVER_SEARCH_SETTINGS
from keras_transformer.serving.settings import ServerConfig, utc_time

logger = logging.getLogger("keras_transformer.serving")
_GRACE_SECONDS = 1.0
_TOKEN = "KERAS_TRANSFORMER_TOKEN"  # instead of --token, which everyone on the machine can see
SERVER_SETTINGS = tuple(field.name for field in dataclasses.fields(ServerConfig))


def parse_args(argv=None):
    """Parses the command line."""
    parser = program_parser("serve")
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help="FOLDER, NAME=FOLDER, or a model that comes with the package",
    )
    add_checkpoint_flag(parser)
    add_engine_flag(parser)
    add_setting_flags(parser, ServerConfig)
    group = parser.add_argument_group(
        "search",
        "what requests do not set, for run folders and CTranslate2 exports; without a flag, as in the model",
    )
    add_setting_flags(group, SearchConfig, SERVER_SEARCH_SETTINGS)
    return parser.parse_args(argv)


def main(argv=None):
    """Runs the program; returns its exit code."""
    args = parse_args(argv)
    ended_by = []

    def work():
        from keras_transformer.serving.models import Models, freeze_objects, named_paths

        given = given_settings(args, SERVER_SETTINGS)
        config = ServerConfig(**{"token": os.environ.get(_TOKEN, "")} | given)
        with needs("serve", "The server"):
            import prometheus_client  # noqa: F401 - here, before TensorFlow, which takes seconds
            import starlette  # noqa: F401
            import uvicorn  # noqa: F401
        if args.token == "":
            raise ValueError("--token is empty. Give a word, or leave it out")
        paths = named_paths(args.models)
        options = {
            "checkpoint": args.checkpoint,
            "engine": args.engine,
            "precision": args.precision,
            "search": given_settings(args, SERVER_SEARCH_SETTINGS),
        }
        size, most = options["search"].get("beam_size", 1), config.max_beam_size
        if size > most:
            raise ValueError(f"--beam-size {size} is above --max-beam-size {most}. Change one of them")
        if needs_tensorflow(paths, **options) or config.explorer:
            import_quietly("keras_transformer.serving.app", batches_at_once=config.workers != 1)
        from keras_transformer.serving.app import Server, create_app

        workers = config.workers or usable_cores()
        server = Server(config, Models(paths, workers=workers, **options), log=_log)
        app = create_app(server)
        server.warm_ups.append(freeze_objects)
        with _json_log():
            ended_by.append(_serve(server, app, config))

    code = exit_code(programs.name("serve"), work)
    if code or not ended_by:
        return code
    return programs.ExitCode.INTERRUPTED if ended_by == [signal.SIGINT] else programs.ExitCode.TERMINATED


def needs_tensorflow(paths, *, checkpoint, engine, search, precision=None):
    """Checks models; prints the engine of each run folder and the reason, if `engine` leaves a choice.

    Args:
        paths: dict, name -> folder.
        checkpoint, engine, search, precision: as in `serving.engines.load_engine`.

    Returns:
        bool, whether TensorFlow is needed to load them.

    Raises:
        ValueError: a model cannot be served with these options.
    """
    from keras_transformer.export.conversions import conversion_path
    from keras_transformer.serving.engines import kind_of, translated_by
    from keras_transformer.serving.models import check_model

    folders = {name: check_model(path) for name, path in paths.items()}
    runs = {name: path for name, path in folders.items() if kind_of(path) == "run"}
    check_task(opened := open_runs(runs.values(), checkpoint), parses=False)
    for flag, value in (
        ("--engine", engine != "tensorflow" and engine),
        ("--precision", precision),
        ("--checkpoint", checkpoint != "final" and checkpoint),
    ):
        if value and not runs:
            raise ValueError(f"{flag} {value}: it is for run folders, and none is given. Leave it out")
    needed = False
    for name, path in folders.items():
        choice = translated_by(path, engine, search, precision)
        if choice.reason:
            _say(f"{programs.name('serve')}: {name}: {choice.name}: {choice.reason}")
        needed |= choice.name != "ctranslate2"
    if not needed:
        for name, run in zip(runs, opened, strict=True):
            if not conversion_path(run, checkpoint).is_dir():
                _say(f"{programs.name('serve')}: {name}: ctranslate2: converting the weights, once")
                needed = True
    return needed


def _log(record):
    _say(json.dumps(record, ensure_ascii=False))


def _serve(server, app, config):
    """Runs the server until a signal comes; returns the number of the signal.

    Raises:
        ValueError: a model cannot be loaded.
        OSError: the address is in use or not of this machine.
    """
    with needs("serve", "The server"):
        import uvicorn

    program = programs.name("serve")
    received = []

    class Runner(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self):
            # uvicorn would send the signal again at the end; here the program has an exit code for it.
            def stop(number, frame):
                received.append(number)
                self.should_exit = True

            before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
            try:
                yield
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)

        async def shutdown(self, sockets=None):
            # uvicorn closes connections without a request at once, even if one is on its way. For a moment,
            # requests are still accepted, and each answer closes its connection.
            server.is_draining = True
            logger.info("ending: requests that were accepted are answered within %g s", config.drain_seconds)
            await asyncio.sleep(_GRACE_SECONDS)
            # uvicorn would cut off the requests that are late; here they get an answer.
            late = asyncio.get_running_loop().call_later(config.drain_seconds, server.give_up)
            await super().shutdown(sockets)
            late.cancel()

    options = {"timeout_graceful_shutdown": math.ceil(config.drain_seconds) + 2, "timeout_keep_alive": 75}
    runner = Runner(uvicorn.Config(app, log_config=None, access_log=False, server_header=False, **options))
    with _bound_socket(config) as listening:
        host, port = listening.getsockname()[:2]
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        if not config.is_local and not config.token:
            _say(f"{program}: everyone who can reach {config.host} may use it. Set {_TOKEN}")

        def on_loaded():
            seconds = time.monotonic() - begin
            _say(f"{program}: ready after {seconds:.0f} seconds. Ctrl-C ends it. Try:")
            text = curl_command(next(iter(server.models)).name, address=address)
            _say(f"  {text}")
            engines = [model.newest.engine for model in server.models if model.newest]
            if config.explorer and any(engine.is_explorable for engine in engines):
                _say(f"  or open {address}/ in a browser")

        def on_fault():
            runner.should_exit = True

        server.on_loaded, server.on_fault = on_loaded, on_fault
        _say(f"{program}: loading {', '.join(model.name for model in server.models)}; listening on {address}")
        begin = time.monotonic()
        # `asyncio.run` would wait for the thread that loads a model.
        with contextlib.closing(asyncio.new_event_loop()) as loop:
            loop.run_until_complete(runner.serve([listening]))
    if server.fault is not None:
        raise server.fault
    if server.num_lost:
        _say(f"{program}: {server.num_lost} texts were not translated within --drain-seconds")
    return received[0] if received else signal.SIGTERM


def _bound_socket(config):
    """Returns the socket on which the server will listen."""
    bound = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen()  # who reads the address can connect, and waits
    except OSError as error:
        if bound is not None:
            bound.close()
        reason = (error.strerror or str(error)).lower()
        where = f"{config.host}:{config.port}"
        raise ValueError(f"cannot listen on {where} ({reason}). Choose another --host or --port") from error
    return bound


def _say(text):
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def _json_log():
    """Context manager in which the messages of all libraries are lines of JSON."""
    handler, package = _Handler(), logging.getLogger("keras_transformer")
    before, package.handlers = package.handlers, [handler]
    logging.root.addHandler(handler)
    try:
        yield
    finally:
        logging.root.removeHandler(handler)
        package.handlers = before


class _Handler(logging.Handler):
    """Prints the messages of the server as lines of JSON, like the access log."""

    def emit(self, record):
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + "".join(traceback.format_exception(*record.exc_info)).rstrip()
        _log(
            {
                "time": utc_time(),
                "level": record.levelname.lower(),
                "message": message,
            }
        )
