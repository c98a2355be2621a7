r"""Makes batches on other machines: the dispatcher and the workers of `tf.data` service.

    python pipelines/data_service.py dispatcher --port 5050
    python pipelines/data_service.py worker --dispatcher HOST:5050        # on each machine
    python pipelines/train_wmt.py --dataset PREPARED --data-service HOST:5050 ...

The prepared corpus must lie at the same path on every machine.
"""

import argparse
import socket
import sys
import time

from keras_transformer.cli.command_line import Parser
from keras_transformer.cli.process import import_quietly, run


def parse_args(argv=None):
    """Parses the command line."""
    parser = Parser(__doc__, prog="data_service.py")
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="dispatcher | worker")
    dispatcher = kinds.add_parser("dispatcher", help="one of it; hands out the work")
    dispatcher.add_argument("--port", type=_port, default=5050, help="0 for any that is free (5050)")
    worker = kinds.add_parser("worker", help="as many as wanted; make batches")
    worker.add_argument("--dispatcher", required=True, type=_address, metavar="HOST:PORT")
    worker.add_argument("--port", type=_port, default=0, help="0 for any that is free (0)")
    worker.add_argument(
        "--host", default=socket.gethostname(), help="this machine, as the trainer reaches it"
    )
    return parser.parse_args(argv)


def _port(text):
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be from 0 to 65535, not {text!r}")
    return int(text)


def _address(text):
    host, _, port = text.rpartition(":")
    if not host:
        raise argparse.ArgumentTypeError(f"must be HOST:PORT, not {text!r}")
    _port(port)
    return text


def _dispatcher(args):
    from tensorflow.data.experimental import service

    # Requests that are done are forgotten soon: a training makes many.
    config = service.DispatcherConfig(
        port=args.port, job_gc_check_interval_ms=10_000, job_gc_timeout_ms=10_000
    )
    server = service.DispatchServer(config)
    print(f"dispatcher at {server.target.removeprefix('grpc://')}", flush=True)
    return server


def _worker(args):
    from tensorflow.data.experimental import service

    with socket.socket() as free:  # a worker tells its address before it has a port
        free.bind(("", args.port))
        port = free.getsockname()[1]
    address = f"{args.host}:{port}"
    server = service.WorkerServer(
        service.WorkerConfig(dispatcher_address=args.dispatcher, worker_address=address, port=port)
    )
    print(f"worker at {address} for {args.dispatcher}", flush=True)
    return server


def main(argv=None):
    """Runs the program until it is stopped; returns its exit code."""
    args = parse_args(argv)
    import_quietly()
    try:
        # Kept in a name: a server stops when nothing refers to it.
        _server = _dispatcher(args) if args.kind == "dispatcher" else _worker(args)
        # `join` of a server does not hear Ctrl-C, and a wait without end not the one just before it.
        while True:
            time.sleep(0.2)
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001 - TensorFlow's errors share no base but this
        print(f"data_service.py: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    run(main)
