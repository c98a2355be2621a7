"""The line reader: what a line is, and what is refused."""

import io
import logging
import os

import pytest

from keras_transformer.data.text import (
    DataError,
    Pairs,
    drop_empty,
    iterate_lines,
    read_lines,
)

# name: (bytes, lines)
FILES = {
    "plain": (b"one\ntwo\nthree\n", ["one", "two", "three"]),
    "no final newline": (b"one\ntwo", ["one", "two"]),
    "blank lines stay": (b"one\n\ntwo\n\n", ["one", "", "two", ""]),
    "one newline": (b"\n", [""]),
    "byte-order mark": (b"\xef\xbb\xbfone\ntwo\n", ["one", "two"]),
    "byte-order mark and newline": (b"\xef\xbb\xbf\none\n", ["", "one"]),
    "byte-order mark later is text": (b"one\n\xef\xbb\xbftwo\n", ["one", "\ufefftwo"]),
    "carriage returns": (b"one\r\ntwo\r\n", ["one", "two"]),
    "carriage return at the end": (b"one\r\ntwo\r", ["one", "two"]),
    "blank line with carriage return": (b"one\r\n\r\ntwo\r\n", ["one", "", "two"]),
    "lone carriage return": (b"one\rtwo\nthree\n", ["one two", "three"]),
    "two carriage returns": (b"one\r\r\ntwo\n", ["one ", "two"]),
    "U+2028": ("one\u2028two\nthree\n".encode(), ["one two", "three"]),
    "U+2029": ("one\u2029two\nthree\n".encode(), ["one two", "three"]),
    "U+0085": ("one\x85two\nthree\n".encode(), ["one two", "three"]),
    "vertical tab and form feed": (b"one\vtwo\fthree\nfour\n", ["one two three", "four"]),
    "file separators": (b"one\x1ctwo\x1dthree\x1efour\n", ["one two three four"]),
    "NUL": (b"one\0two\nthree\n", ["one two", "three"]),
    "other characters stay": (" ä\t\u00a0👍 \n".encode(), [" ä\t\u00a0👍 "]),
}


def write(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", FILES)
def test_lines_of_a_file(tmp_path, name):
    content, lines = FILES[name]
    assert read_lines(write(tmp_path, "text.en", content)) == lines


@pytest.mark.parametrize("name", FILES)
def test_lines_of_a_stream(name):
    content, lines = FILES[name]
    assert list(iterate_lines(io.BytesIO(content), "stdin")) == lines


@pytest.mark.parametrize("name", FILES)
def test_no_line_can_be_broken_again(tmp_path, name):
    for line in read_lines(write(tmp_path, "text.en", FILES[name][0])):
        assert len(line.splitlines()) <= 1


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf"])
def test_an_empty_stream_has_no_lines(content):
    assert list(iterate_lines(io.BytesIO(content), "stdin")) == []


def test_a_stream_is_read_line_by_line():
    def stream():
        yield b"one\n"
        raise AssertionError("read ahead")

    assert next(iterate_lines(stream(), "stdin")) == "one"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"one\ntwo\ncaf\xe9 noir\n", r"text\.de: line 3: byte 4 \(0xe9\) is not valid UTF-8"),
        (b"\xed\xa0\x80\n", r"text\.de: line 1: byte 1 \(0xed\)"),
        (b"\xff\xfeo\0n\0e\0\n\0", r"text\.de: line 1: the text is UTF-16.*iconv"),
        (b"", r"text\.de: the file is empty"),
        (b"\xef\xbb\xbf", r"text\.de: the file is empty"),
    ],
)
def test_refuses_content(tmp_path, content, message):
    path = write(tmp_path, "text.de", content)
    with pytest.raises(DataError, match=message) as info:
        read_lines(path)
    assert "\n" not in str(info.value)


def test_refuses_a_missing_file_and_a_folder(tmp_path):
    with pytest.raises(DataError, match=r"absent\.de: no such file"):
        read_lines(tmp_path / "absent.de")
    with pytest.raises(DataError, match="is a folder"):
        read_lines(tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read every file")
def test_refuses_an_unreadable_file(tmp_path):
    path = write(tmp_path, "text.de", b"one\n")
    path.chmod(0)
    with pytest.raises(DataError, match=r"text\.de: cannot be read"):
        read_lines(path)


def test_data_error_is_a_value_error():
    assert issubclass(DataError, ValueError)


def test_replaces_invalid_utf8_on_request_and_counts_lines(tmp_path, caplog):
    path = write(tmp_path, "text.de", b"one\ncaf\xe9\n\xff\xff\n")
    with caplog.at_level(logging.WARNING):
        assert read_lines(path, on_bad_utf8="replace") == ["one", "caf\ufffd", "\ufffd\ufffd"]
    assert "text.de: replaced invalid UTF-8 on 2 lines" in caplog.text


def test_refuses_an_unknown_policy(tmp_path):
    path = write(tmp_path, "text.de", b"one\n")
    with pytest.raises(ValueError, match=r"`on_bad_utf8` must be one of .*Received: 'ignore'"):
        read_lines(path, on_bad_utf8="ignore")


def test_drops_pairs_with_a_blank_side_and_counts_them(caplog):
    pairs = Pairs(["a", "", "c", " ", "e"], ["x", "y", "\t", "", "z"])
    with caplog.at_level(logging.WARNING):
        filtered = drop_empty(pairs)
    assert filtered.pairs == Pairs(["a", "e"], ["x", "z"])
    assert filtered.num_dropped == 3
    assert "dropped 3 of 5 pairs" in caplog.text


def test_drops_a_hundredth_without_a_warning(caplog):
    pairs = Pairs(["a"] * 100, ["x"] * 99 + [""])
    with caplog.at_level(logging.WARNING):
        assert drop_empty(pairs).num_dropped == 1
    assert caplog.text == ""


@pytest.mark.parametrize("pairs", [Pairs(["a", ""], ["", "x"]), Pairs([], [])])
def test_refuses_to_drop_everything(pairs):
    with pytest.raises(DataError, match=f"all {len(pairs.source)} pairs"):
        drop_empty(pairs)
