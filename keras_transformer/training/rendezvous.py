"""All workers of a cluster find each other before TensorFlow starts.

TensorFlow waits for missing workers inside C++, without a word, and no signal ends it there.
Here the chief listens at its own address until all others have called, and then sends them on.
"""

import json
import socket
import sys
import time

_GO = b"go\n"
_RETRY_SECONDS = 0.5


def meet(workers, number):
    """Waits until all workers are there; Ctrl-C and SIGTERM end it as they end any program.

    Args:
        workers: list of `"HOST:PORT"`, of which the first is the chief's.
        number: int, which of them this process is.

    Raises:
        ValueError: an address is none or is in use, or another worker has other addresses.
    """
    addresses = [_address(worker) for worker in workers]
    if len(workers) < 2:
        return
    hello = json.dumps(list(workers)).encode()
    if number == 0:
        _gather(workers, addresses[0][1], hello)
    else:
        _call(workers[0], addresses[0], number, hello)


def _gather(workers, port, hello):
    """The chief's part: lets the others go when all have called."""
    missing = set(range(1, len(workers)))
    callers = []
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError as error:
            raise ValueError(
                f"TF_CONFIG: port {port} of worker 0 cannot be used: {error.strerror}"
            ) from error
        listener.listen(len(workers))
        _say("worker 0: waiting for", [workers[other] for other in sorted(missing)])
        while missing:
            caller, _ = listener.accept()
            caller.settimeout(10)
            found = _read(caller)
            if found is None or found[0] not in range(1, len(workers)):
                caller.close()  # whoever it was
                continue
            other, its_hello = found
            if its_hello != hello:
                caller.close()
                raise ValueError(
                    f"TF_CONFIG: worker {other} has other addresses than worker 0. Give all of them the same"
                )
            missing.discard(other)
            callers.append(caller)
    for caller in callers:
        caller.sendall(_GO)
    for caller in callers:
        # The others hang up first, so that this port is free for TensorFlow.
        while caller.recv(64):
            pass
        caller.close()


def _call(chief, address, number, hello):
    """The part of any other worker: calls until the chief says go."""
    said = False
    while True:
        try:
            with socket.create_connection(address, timeout=10) as connection:
                connection.sendall(b"%d " % number + hello + b"\n")
                connection.settimeout(None)
                answer = connection.recv(len(_GO))
                if answer == _GO:
                    return
        except OSError:
            pass  # not there yet, or gone again
        if not said:
            _say(f"worker {number}: waiting for", [chief])
            said = True
        time.sleep(_RETRY_SECONDS)


def _read(caller):
    """Returns (number, hello) of a caller, or `None`."""
    held = b""
    try:
        while not held.endswith(b"\n") and len(held) < 1_000_000:
            part = caller.recv(65536)
            if not part:
                return None
            held += part
        number, _, hello = held.rstrip(b"\n").partition(b" ")
        return int(number), hello
    except (OSError, ValueError):
        return None


def _say(what, whom):
    print(f"{what} {', '.join(whom)}", file=sys.stderr, flush=True)


def _address(worker):
    host, colon, port = str(worker).rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"TF_CONFIG: a worker's address must be HOST:PORT. Received: {worker!r}")
    return host.strip("[]"), int(port)
