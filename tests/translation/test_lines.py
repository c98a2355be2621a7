"""Lines in and out: chunks are complete, in order and at once; formats are what their readers expect."""

import gzip
import io
import json
import math
import os
import queue
import threading
import tracemalloc

import pytest

from keras_transformer.text import lines as text
from keras_transformer.text.lines import DataError, LineReader
from keras_transformer.translation import lines as line_stream
from keras_transformer.translation.lines import Input, json_line, line_chunks, moses_lines, text_lines
from keras_transformer.translation.texts import BLANK, NBest, Translation

TIMEOUT = 60


def lines_of(queue_of_lines):
    """Yields what is put into a queue, as a pipe yields what is written; `None` ends it."""
    while (line := queue_of_lines.get(timeout=TIMEOUT)) is not None:
        yield line


def test_all_lines_come_in_order_and_chunks_are_full_where_nothing_pauses():
    lines = [f"line {number}" for number in range(107)]
    chunks = list(line_chunks(iter(lines), 10, waits=True))
    assert [len(chunk) for chunk in chunks] == [10] * 10 + [7]
    assert sum(chunks, []) == lines


@pytest.mark.parametrize("waits", [False, True])
def test_no_lines_give_no_chunk(waits):
    assert list(line_chunks(iter([]), 10, waits=waits)) == []


def test_a_line_is_handed_out_before_the_next_is_there():
    given = queue.Queue()
    chunks = iter(line_chunks(lines_of(given), 10))
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

    chunks = iter(line_chunks(lines(), 10))
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

    chunks = iter(line_chunks(endless(), 10, waits=True))
    for number in range(1, 6):
        assert next(chunks) == ["line"] * 10
        assert num_read <= 10 * (number + 1) + 1


def test_long_lines_make_short_chunks(monkeypatch):
    monkeypatch.setattr(line_stream, "MAX_CHUNK_CHARACTERS", 25)
    chunks = list(line_chunks(iter(["x" * 10] * 7), 100, waits=True))
    assert [len(chunk) for chunk in chunks] == [3, 3, 1]


def test_what_was_read_before_an_error_is_handed_out():
    def lines():
        yield "good"
        raise DataError("line 2 is bad")

    chunks = iter(line_chunks(lines(), 10))
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


def test_lines_of_a_named_pipe_are_answered_as_they_arrive(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    descriptor = os.open(tmp_path / "pipe", os.O_RDWR)
    os.write(descriptor, b"a first line\n")
    with LineReader(tmp_path / "pipe") as reader:
        source = Input.of_reader(reader)
        assert (source.is_regular, source.num_bytes) == (False, None)
        chunks = line_chunks(source, 5, waits=source.is_regular)
        assert next(chunks) == ["a first line"]  # the pipe is still open
        os.write(descriptor, b"2\n")
        assert next(chunks) == ["2"]
        os.write(descriptor, b"the end\n")
        os.close(descriptor)
        assert list(chunks) == [["the end"]]


def test_a_file_beside_another_must_have_as_many_lines():
    prefixes = Input.of_stream(io.BytesIO(b"1\n\n3\n"), "prefixes.de")
    assert prefixes.take(2) == ["1", ""]
    with pytest.raises(DataError, match="prefixes.de: more lines than the input, which has 2"):
        prefixes.expect_end()
    prefixes = Input.of_stream(io.BytesIO(b"1\n2\n"), "prefixes.de")
    assert prefixes.take(1) == ["1"]
    with pytest.raises(DataError, match="prefixes.de: only 2 lines; the input has more"):
        prefixes.take(2)


# Formats of output, against lines written by hand.

FIRST = Translation("Ein Hund ||| da.", -0.5, -1.25, ["▁Ein", "▁Hund"], [7, 8, 2], True)
SECOND = Translation("Hund", -2.0, -3.0, ["▁Hund"], [8], False)
FOUND = NBest([FIRST, SECOND], ["▁A", "▁dog"], 1, False)
EMPTY = NBest([BLANK], [], 0, False)


def test_text_has_one_line_for_each_text():
    assert text_lines(3, FOUND) == "Ein Hund ||| da.\n"
    assert text_lines(3, EMPTY) == "\n"


def test_text_of_n_best_has_always_n_lines():
    assert text_lines(3, FOUND, n_best=3) == "Ein Hund ||| da.\nHund\n\n"
    assert text_lines(3, EMPTY, n_best=2) == "\n\n"


def test_scores_come_before_a_tab():
    assert text_lines(3, FOUND, n_best=2, scores=True) == "-0.500000\tEin Hund ||| da.\n-2.000000\tHund\n"


def test_moses_lists_have_number_text_features_and_score():
    lines = moses_lines(3, FOUND, n_best=2).splitlines()
    assert [line.split(" ||| ") for line in lines] == [
        ["3", "Ein Hund &#124;&#124;&#124; da.", "F0= -1.250000", "-0.500000"],
        ["3", "Hund", "F0= -3.000000", "-2.000000"],
    ]
    assert moses_lines(0, EMPTY, n_best=2) == "0 |||  ||| F0= 0.000000 ||| 0.000000\n"


def test_moses_lists_have_alignments_where_there_are_any():
    aligned = NBest([FIRST._replace(text="Hund", alignment=[(0, 0), (1, 2)])], [], 1, False)
    assert moses_lines(1, aligned) == "1 ||| Hund ||| 0-0 1-2 ||| F0= -1.250000 ||| -0.500000\n"


def test_json_has_the_best_translation_and_flags():
    written = json_line(3, NBest([SECOND._replace(text="\u2028ü")], ["▁A"], 2, True))
    assert written.count("\n") == 1
    assert json.loads(written) == {
        "line": 4,
        "text": "\u2028ü",
        "pieces": ["▁Hund"],
        "score": -2.0,
        "log_prob": -3.0,
        "token_log_probs": None,
        "alignment": None,
        "finished": False,
        "source_pieces": ["▁A"],
        "flags": ["split", "cut", "unfinished"],
    }


def test_json_has_all_translations_where_several_were_asked_for():
    record = json.loads(json_line(0, FOUND, n_best=2))
    assert [one["text"] for one in record["n_best"]] == ["Ein Hund ||| da.", "Hund"]
    assert record["text"] == record["n_best"][0]["text"]
    assert "n_best" not in json.loads(json_line(0, FOUND))
    assert json.loads(json_line(0, EMPTY, n_best=2))["flags"] == ["blank"]


def test_json_has_no_infinity():
    lost = FIRST._replace(score=-math.inf, log_prob=math.nan, token_log_probs=[-0.25, -math.inf])
    record = json.loads(json_line(0, NBest([lost], [], 1, False)), parse_constant=lambda name: 1 / 0)
    assert (record["score"], record["log_prob"]) == (None, None)
    assert record["token_log_probs"] == [-0.25, None]
