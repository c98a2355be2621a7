"""Workers that meet: in threads, over real sockets."""

import socket
import subprocess
import sys
import threading
import time

import pytest

from keras_transformer.training.devices import wait_for_workers


def free_ports(number):
    sockets = [socket.socket() for _ in range(number)]
    for each in sockets:
        each.bind(("localhost", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def start(workers, number, ended):
    def run():
        try:
            wait_for_workers(workers, number)
            ended[number] = "met"
        except ValueError as error:
            ended[number] = str(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_nobody_goes_on_before_all_are_there(order):
    workers = [f"localhost:{port}" for port in free_ports(3)]
    ended = {}
    threads = [start(workers, number, ended) for number in order[:2]]
    time.sleep(1.2)
    assert ended == {}
    threads.append(start(workers, order[2], ended))
    for thread in threads:
        thread.join(20)
    assert ended == {0: "met", 1: "met", 2: "met"}
    # The port is free again at once.
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("", int(workers[0].rpartition(":")[2])))


def when_it_listens(address):
    """A connection, however long the thread on the other side takes to begin."""
    for _ in range(600):
        try:
            return socket.create_connection(address, timeout=20)
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise AssertionError(f"nobody listens at {address}")


def test_one_worker_waits_for_nobody():
    wait_for_workers(["localhost:1"], 0)


def test_strangers_are_not_counted_and_a_worker_that_left_comes_again():
    workers = [f"localhost:{port}" for port in free_ports(2)]
    ended = {}
    chief = start(workers, 0, ended)
    address = ("localhost", int(workers[0].rpartition(":")[2]))
    for said in (b"GET / HTTP/1.0\r\n\r\n", b"7 x\n", b""):
        with when_it_listens(address) as stranger:
            stranger.sendall(said)
    time.sleep(0.3)
    assert ended == {}
    start(workers, 1, ended).join(20)
    chief.join(20)
    assert ended == {0: "met", 1: "met"}


def test_other_addresses_are_refused():
    workers = [f"localhost:{port}" for port in free_ports(2)]
    ended = {}
    chief = start(workers, 0, ended)
    start([workers[0], "localhost:9"], 1, ended)
    chief.join(20)
    assert "worker 1 and worker 0 have different addresses" in ended[0]


@pytest.mark.parametrize("address", ["localhost", "localhost:", "localhost:x", ":2222", "localhost:70000", 7])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(ValueError, match="must be HOST:PORT. Received"):
        wait_for_workers(["localhost:2222", address], 1)


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_a_signal_ends_the_wait(number):
    workers = [f"localhost:{port}" for port in free_ports(2)]
    code = "from keras_transformer.training.devices import wait_for_workers\n"
    code += f"wait_for_workers({workers!r}, {number})"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        # TensorFlow may have something to say before.
        assert f"worker {number}: waiting for {workers[1 - number]}\n" in process.stderr
        process.terminate()
        assert process.wait(20) == -15
