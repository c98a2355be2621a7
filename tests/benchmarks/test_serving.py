"""The load benchmark of the server: its arithmetic, and its client against a server that is not ours."""

import asyncio
import contextlib
import json
import time

import pytest
import serving
import serving_load
from serving_load import Answer, Load, requests_of

TEXTS = ["one", "two words", "a third text"]


def answer(indices, translations, code=200, begin=0.0, end=1.0):
    return Answer(begin, end, code, indices, translations)


@contextlib.asynccontextmanager
async def fake_server(status="200 OK", delay=0.0, closes_after=None):
    """A server that answers in capitals; the number of its connections and the bodies it got."""
    seen, tasks = {"connections": 0, "bodies": []}, []

    async def serve(reader, writer):
        seen["connections"] += 1
        tasks.append(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.partition("content-length: ")[2].split()[0])
                request = json.loads(await reader.readexactly(length))
                seen["bodies"].append(request)
                if closes_after is not None and len(seen["bodies"]) > closes_after:
                    break
                await asyncio.sleep(delay)
                rows = [{"translation": text.upper()} for text in request["instances"]]
                body = json.dumps({"predictions": rows}).encode()
                writer.write(f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, serving_load.HOST, 0)
    async with server:
        yield server.sockets[0].getsockname()[1], seen
        await asyncio.gather(*tasks)


def sent(load, **options):
    """Sends a `Load` to a fake server; returns (answers, number not sent, what the server saw)."""

    async def run():
        async with fake_server(**options) as (port, seen):
            answers, skipped = await serving_load.send(Load(port=port, path="/x", texts=TEXTS, **load))
            return answers, skipped, seen

    return asyncio.run(asyncio.wait_for(run(), 30))


def test_clients_send_one_text_at_a_time_over_connections_that_stay_open():
    answers, skipped, seen = sent({"connections": 2, "seconds": 0.2}, delay=0.01)
    assert len(answers) == len(seen["bodies"]) > 4
    assert seen["connections"] == 2
    assert skipped == 0
    assert {each.code for each in answers} == {200}
    assert all(each.translations == [TEXTS[index].upper() for index in each.indices] for each in answers)
    assert all(0.01 <= each.end - each.begin < 30 for each in answers)


@pytest.mark.slow
def test_an_open_load_keeps_its_rate_and_counts_what_it_cannot_send():
    load = {"connections": 3, "seconds": 0.3, "rate": 100.0, "texts_per_request": 2}
    answers, skipped, seen = sent(load, delay=1.0)
    assert len(answers) == seen["connections"] == 3
    assert len(answers) + skipped <= 30
    assert skipped > 0
    assert all(len(each.translations) == 2 for each in answers)


def test_refusals_and_closed_connections_are_answers_without_translations():
    answers, *_ = sent({"connections": 1, "seconds": 0.05}, status="429 Too Many Requests", delay=0.01)
    assert {(each.code, *each.translations) for each in answers} == {(429,)}
    answers, *_ = sent({"connections": 1, "seconds": 5.0}, closes_after=2)
    assert [each.code for each in answers] == [200, 200, 0]


@pytest.mark.slow
def test_a_client_does_not_wait_for_ever():
    begin = time.monotonic()
    answers, *_ = sent({"connections": 1, "seconds": 5.0, "timeout": 0.05}, delay=2.0)
    assert [each.code for each in answers] == [0]
    assert time.monotonic() - begin < 5


def test_a_load_without_bounds_is_refused():
    with pytest.raises(ValueError, match="1000 connections"):
        asyncio.run(serving_load.send(Load(port=1, path="", texts=TEXTS, connections=1001, seconds=1)))


def test_all_texts_are_sent_before_any_is_sent_again():
    requests = requests_of(Load(port=1, path="", texts=TEXTS, connections=1, seconds=1, texts_per_request=2))
    indices = [index for _ in range(6) for index in next(requests)]
    assert [sorted(indices[begin : begin + 3]) for begin in range(0, 12, 3)] == [[0, 1, 2]] * 4


def test_percentiles_are_times_that_were_measured():
    assert serving.percentiles([number / 1000 for number in range(200, 0, -1)]) == {
        "p50_ms": 101.0,
        "p95_ms": 191.0,
        "p99_ms": 199.0,
    }
    assert serving.percentiles([0.5])["p99_ms"] == 500.0
    assert serving.percentiles([]) == {}


def test_differences_are_counted_by_text():
    answers = [answer([0, 2], ["A", "x"]), answer([1], ["b"]), answer([1], [], code=429)]
    assert serving.num_different(answers, ["A", "B", "C"]) == 2
    assert serving.codes(answers) == {200: 2, 429: 1}


def test_ratios_are_within_a_round():
    speeds = {
        (0, "merged"): 30.0,
        (0, "alone"): 10.0,
        (1, "merged"): 5.0,
        (1, "alone"): 1.0,
        (2, "alone"): 7.0,
    }
    records = [
        {"round": number, "way": way, "sentences_per_second": speed, "cpu_ms": 100 / speed}
        for (number, way), speed in speeds.items()
    ]
    assert serving.ratios(records, "merged", "alone") == [3.0, 5.0]
    lines = serving.table(records)
    assert [line.split()[:2] for line in lines[1:3]] == [["merged", "17.5"], ["alone", "7.0"]]
    assert lines[3].startswith("merged to alone: speed 3.00 / 4.00 / 5.00, processor time 0.20")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("speed", "'speed' is no part"),
        ("--rounds=0", "--rounds must be above 0"),
        ("--clients=1001", "at most"),
        ("--ways=fooo", "--ways fooo: choose from merged, unmerged"),
        ("--models=no/such", "no/such: no such folder"),
        ("--warmup=-1", "--warmup must be at least 0"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(argument, message, capsys):
    assert serving.main([argument]) == 2
    error = capsys.readouterr().err
    assert error.startswith("serving.py: ")
    assert message in error
    assert error.count("\n") == 1
