"""Chunks of lines: all of them, in order, at once where the stream pauses, and few at a time."""

import gzip
import io
import os
import queue
import threading
import tracemalloc

import pytest

from keras_transformer.text import lines as text
from keras_transformer.text.lines import DataError, LineReader
from keras_transformer.translation import line_chunks as line_stream
from keras_transformer.translation.line_chunks import Input, LineChunks

TIMEOUT = 60


def lines_of(queue_of_lines):
    """Yields what is put into a queue, as a pipe yields what is written; `None` ends it."""
    while (line := queue_of_lines.get(timeout=TIMEOUT)) is not None:
        yield line


def test_all_lines_come_in_order_and_chunks_are_full_where_nothing_pauses():
    lines = [f"line {number}" for number in range(107)]
    chunks = list(LineChunks(iter(lines), 10, waits=True))
    assert [len(chunk) for chunk in chunks] == [10] * 10 + [7]
    assert sum(chunks, []) == lines


@pytest.mark.parametrize("waits", [False, True])
def test_no_lines_give_no_chunk(waits):
    assert list(LineChunks(iter([]), 10, waits=waits)) == []


def test_a_line_is_handed_out_before_the_next_is_there():
    given = queue.Queue()
    chunks = iter(LineChunks(lines_of(given), 10))
    for number in range(3):
        given.put(f"line {number}")
        assert next(chunks) == [f"line {number}"]  # would wait for ever for a full chunk
    given.put(None)
    assert list(chunks) == []


def test_lines_that_came_meanwhile_make_one_chunk():
    given = queue.Queue()
    taken = threading.Event()

    def lines():
        for line in lines_of(given):
            yield line
            if line == "last":
                taken.set()

    chunks = iter(LineChunks(lines(), 10))
    given.put("first")
    assert next(chunks) == ["first"]
    for line in ("a", "b", "last", None):
        given.put(line)
    assert taken.wait(TIMEOUT)
    assert next(chunks) == ["a", "b", "last"]


def test_no_more_is_read_ahead_than_one_chunk():
    num_read = 0

    def endless():
        nonlocal num_read
        while True:
            num_read += 1
            yield "line"

    chunks = iter(LineChunks(endless(), 10, waits=True))
    for number in range(1, 6):
        assert next(chunks) == ["line"] * 10
        assert num_read <= 10 * (number + 1) + 1


def test_long_lines_make_short_chunks(monkeypatch):
    monkeypatch.setattr(line_stream, "MAX_CHUNK_CHARACTERS", 25)
    chunks = list(LineChunks(iter(["x" * 10] * 7), 100, waits=True))
    assert [len(chunk) for chunk in chunks] == [3, 3, 1]


def test_what_was_read_before_an_error_is_handed_out():
    def lines():
        yield "good"
        raise DataError("line 2 is bad")

    chunks = iter(LineChunks(lines(), 10))
    assert next(chunks) == ["good"]
    with pytest.raises(DataError, match="line 2 is bad"):
        next(chunks)


@pytest.mark.parametrize("pack", [None, bytes, gzip.compress], ids=["stream", "file", "gzip"])
def test_a_line_without_end_is_refused(tmp_path, monkeypatch, pack):
    monkeypatch.setattr(text, "MAX_LINE_BYTES", 8)
    lines = b"1234567\n12345678\n"
    path = tmp_path / "name"
    path.write_bytes((pack or bytes)(lines))
    with LineReader(path) as reader:
        source = iter(Input.of_reader(reader) if pack else Input.of_stream(io.BytesIO(lines), "name"))
        assert next(source) == "1234567"
        with pytest.raises(DataError, match="name: line 2 is longer than 8 bytes"):
            next(source)


def test_a_file_has_the_limit_of_standard_input_and_takes_no_more_memory(tmp_path):
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"one\n" + bytes(30 * text.MAX_LINE_BYTES), 1))
    tracemalloc.start()
    try:
        with LineReader(path) as reader, pytest.raises(DataError, match="bomb.gz: line 2 is longer than"):
            list(Input.of_reader(reader))
        assert tracemalloc.get_traced_memory()[1] < 5 * text.MAX_LINE_BYTES
    finally:
        tracemalloc.stop()


def test_a_stream_is_decoded_as_every_other_text():
    data = b"\xef\xbb\xbfeins\r\nzw\xffei\ndrei\xe2\x80\xa8vier"
    source = Input.of_stream(io.BytesIO(data), "standard input")
    assert list(source) == ["eins", "zw\ufffdei", "drei vier"]
    assert (source.is_regular, source.num_bytes) == (False, None)


def test_the_size_of_a_file_is_known(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"one\ntwo\n")
    with path.open("rb") as file, LineReader(path) as reader:
        for source in (Input.of_stream(file, "standard input"), Input.of_reader(reader)):
            assert (source.is_regular, source.num_bytes) == (True, 8)
            assert list(source) == ["one", "two"]


def test_a_pipe_is_no_regular_file():
    reading, writing = os.pipe()
    os.write(writing, b"one\n")
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        source = Input.of_stream(stream, "standard input")
        assert not source.is_regular
        assert list(source) == ["one"]


def test_a_file_beside_another_must_have_as_many_lines():
    prefixes = Input.of_stream(io.BytesIO(b"1\n\n3\n"), "prefixes.de")
    assert prefixes.take(2) == ["1", ""]
    with pytest.raises(DataError, match="prefixes.de: has more than the 2 lines of the input"):
        prefixes.expect_end()
    prefixes = Input.of_stream(io.BytesIO(b"1\n2\n"), "prefixes.de")
    assert prefixes.take(1) == ["1"]
    with pytest.raises(DataError, match="prefixes.de: ends after 2 lines; the input has more"):
        prefixes.take(2)
