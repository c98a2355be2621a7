"""The client of `serving.py`: sends sentences to a server on this machine, in a process of its own.

It reads a `Load` as JSON from standard input and prints the answers as JSON. It needs no packages, so that it
takes little of the processor time that it measures.
"""

import asyncio
import dataclasses
import itertools
import json
import random
import sys
import time
from typing import NamedTuple

HOST = "127.0.0.1"
MAX_REQUESTS = 1_000_000
MAX_CONNECTIONS = 1000
MAX_SECONDS = 600


@dataclasses.dataclass(frozen=True, kw_only=True)
class Load:
    """What is sent.

    Attributes:
        port: int, of the server.
        path: str, of the requests.
        texts: list of str; they are sent in random order, again and again.
        connections: int, each with one request at a time.
        seconds: float, no request is sent later.
        rate: float, requests a second, whether or not the server keeps up; 0 to send one whenever another was
            answered.
        texts_per_request: int.
        timeout: float, seconds that a client waits for an answer.
        seed: int, of the order.
    """

    port: int
    path: str
    texts: list
    connections: int
    seconds: float
    rate: float = 0.0
    texts_per_request: int = 1
    timeout: float = 90.0
    seed: int = 1


class Answer(NamedTuple):
    """What became of a request.

    Attributes:
        begin, end: float, `time.monotonic()`, which is the same in all processes.
        code: int, the status; 0 if the connection closed without an answer, or did not open.
        indices: list of int, of the texts.
        translations: list of str; empty unless the status is 200.
    """

    begin: float
    end: float
    code: int
    indices: list
    translations: list


class Connection:
    """A connection that stays open between requests.

    Args:
        load: `Load`.
    """

    def __init__(self, load):
        self._load = load
        self._reader = self._writer = None

    async def ask(self, indices):
        """Sends the texts with these indices; returns an `Answer`."""
        body = json.dumps({"instances": [self._load.texts[index] for index in indices]}).encode()
        begin, code, translations = time.monotonic(), 0, []
        try:
            async with asyncio.timeout(self._load.timeout):
                code, content = await self._post(body)
            if code == 200:
                translations = [row["translation"] for row in json.loads(content)["predictions"]]
        except (OSError, EOFError, TimeoutError):
            self.close()
        return Answer(begin, time.monotonic(), code, list(indices), translations)

    def close(self):
        """Closes the connection; the next request opens another."""
        if self._writer:
            self._writer.close()
        self._reader = self._writer = None

    async def _post(self, body):
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(HOST, self._load.port)
        head = f"POST {self._load.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self._writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        status, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        content = await self._reader.readexactly(int(headers["content-length"]))
        if headers.get("connection") == "close":
            self.close()
        return int(status.split(" ")[1]), content


def requests_of(load):
    """Yields lists of indices of texts: all in random order, then all again."""
    generator = random.Random(load.seed)

    def indices():
        while True:
            yield from generator.sample(range(len(load.texts)), len(load.texts))

    order = indices()
    for _ in range(MAX_REQUESTS):
        yield list(itertools.islice(order, load.texts_per_request))


async def send(load):
    """Sends a `Load`; returns (list of `Answer`, number of requests for which no connection was free)."""
    if load.connections > MAX_CONNECTIONS or load.seconds > MAX_SECONDS:
        raise ValueError(f"At most {MAX_CONNECTIONS} connections and {MAX_SECONDS} seconds")
    end = time.monotonic() + load.seconds
    requests, connections = requests_of(load), [Connection(load) for _ in range(load.connections)]
    found = await (_open_loop if load.rate else _closed_loop)(load, requests, connections, end)
    for connection in connections:
        connection.close()
    await asyncio.sleep(0)  # here they close
    return found


async def _closed_loop(load, requests, connections, end):
    answers = []

    async def client(connection):
        for indices in requests:
            if time.monotonic() >= end:
                return
            answers.append(await connection.ask(indices))
            if not answers[-1].code:
                return  # the server has gone

    await asyncio.gather(*map(client, connections))
    return answers, 0


async def _open_loop(load, requests, connections, end):
    answers, tasks, free, skipped = [], set(), list(connections), 0

    async def client(connection, indices):
        answers.append(await connection.ask(indices))
        free.append(connection)

    due = time.monotonic()
    for indices in requests:
        due += 1 / load.rate
        if due >= end:
            break
        await asyncio.sleep(max(0, due - time.monotonic()))
        if not free:
            skipped += 1
            continue
        task = asyncio.ensure_future(client(free.pop(), indices))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    return answers, skipped


if __name__ == "__main__":
    print(json.dumps(asyncio.run(send(Load(**json.load(sys.stdin))))))
