"""The line reader: what a line is, and what is refused."""

import bz2
import gzip
import io
import itertools
import logging
import lzma
import os
import random

import pytest

from keras_transformer.text.lines import (
    DataError,
    LineReader,
    Pairs,
    decode_lines,
    iterate_lines,
    read_lines,
)
from keras_transformer.text.parallel import drop_empty

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
        (b"\xef\xbb\xbfa\xe9\nb\n", r"text\.de: line 1: byte 5 \(0xe9\)"),
        (b"\xef\xbb\xbfa\nb\xe9\n", r"text\.de: line 2: byte 2 \(0xe9\)"),
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
    path = write(tmp_path, "one.de", b"\xff\xff\none\n")
    with caplog.at_level(logging.WARNING):
        read_lines(path, on_bad_utf8="replace")
    assert "one.de: replaced invalid UTF-8 on 1 line\n" in caplog.text


def test_refuses_an_unknown_policy(tmp_path):
    path = write(tmp_path, "text.de", b"one\n")
    with pytest.raises(ValueError, match=r"`on_bad_utf8` must be one of .*Received: 'ignore'"):
        read_lines(path, on_bad_utf8="ignore")


def cut(content):
    """Cuts bytes after each newline by hand."""
    return [line + b"\n" for line in content.split(b"\n")[:-1]] + [content.rpartition(b"\n")[2]] * (
        not content.endswith(b"\n") and content != b""
    )


@pytest.mark.parametrize("name", FILES)
def test_a_block_is_decoded_as_its_lines_are(name):
    content, lines = FILES[name]
    assert decode_lines(cut(content), name="text.en") == (lines, 0)


@pytest.mark.parametrize("seed", range(300))
def test_random_bytes_are_decoded_in_a_block_as_line_by_line(seed):
    rng = random.Random(seed)
    # What matters: ends of lines, odd characters, marks, pieces of characters, plain text.
    pieces = [
        b"\n",
        b"\n",
        b"\r",
        b"\r\n",
        b"\0",
        b"\v\f\x1c\x1e",
        b"\xc2\x85",
        b"\xe2\x80\xa8",
        b"a",
        b"b c",
    ]
    pieces += ["ä".encode(), "👍".encode(), b"\xef\xbb\xbf"]
    if seed % 3 == 0:
        pieces += [b"\xe2\x80", b"\xff", bytes([rng.randrange(256)])]
    content = b"".join(rng.choices(pieces, k=rng.randrange(40)))
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        content = b"a" + content
    lines = list(iterate_lines(io.BytesIO(content), "a", on_bad_utf8="replace"))
    bad = sum(line.decode("utf-8", "ignore").encode() != line for line in content.split(b"\n"))
    assert decode_lines(cut(content), name="a", on_bad_utf8="replace") == (lines, bad)
    if bad:
        with pytest.raises(DataError) as slow:
            list(iterate_lines(io.BytesIO(content), "a"))
        with pytest.raises(DataError) as fast:
            decode_lines(cut(content), name="a")
        # Only text in blocks is read by programs with this setting.
        remedy = "or replace invalid bytes: --set data.on_bad_utf8=replace"
        assert str(fast.value) == f"{slow.value}, {remedy}"


def test_a_later_block_has_no_byte_order_mark_and_counts_on():
    assert decode_lines([b"\xef\xbb\xbfa\n"], name="a", first_line=2) == (["\ufeffa"], 0)
    assert decode_lines([], name="a") == ([], 0)
    with pytest.raises(DataError, match=r"a: line 1001: byte 2 \(0xff\)"):
        decode_lines([b"a\n", b"b\xff\n"], name="a", first_line=1000)


def test_a_block_that_is_not_cut_at_newlines_is_refused():
    with pytest.raises(ValueError, match="`lines` must be cut after each newline. Received: 2 in 1"):
        decode_lines([b"a\nb\n"], name="a")
    with pytest.raises(ValueError, match="`on_bad_utf8` must be one of .*'ignore'"):
        decode_lines([b"a\n"], name="a", on_bad_utf8="ignore")


PACKERS = {"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress}


@pytest.mark.parametrize("ending", PACKERS)
@pytest.mark.parametrize("name", FILES)
def test_lines_of_a_compressed_file(tmp_path, name, ending):
    content, lines = FILES[name]
    assert read_lines(write(tmp_path, f"text.en.{ending}", PACKERS[ending](content))) == lines


@pytest.mark.parametrize("ending", PACKERS)
def test_compression_is_told_by_content_not_name(tmp_path, ending):
    packed = PACKERS[ending](b"one\n")
    assert read_lines(write(tmp_path, "text.en", packed)) == ["one"]
    assert read_lines(write(tmp_path, f"text.{ending}", b"one\n")) == ["one"]
    # Two compressed files in a row are one, as for `cat`.
    assert read_lines(write(tmp_path, "text.en", packed + PACKERS[ending](b"two\n"))) == ["one", "two"]


def test_text_that_begins_like_bzip2_is_text(tmp_path):
    assert read_lines(write(tmp_path, "text.en", b"BZh5 is a name\n")) == ["BZh5 is a name"]


def random_lines(seed=0):
    rng = random.Random(seed)
    return b"".join(b"%032x\n" % rng.getrandbits(128) for _ in range(3000))


@pytest.mark.parametrize("ending", PACKERS)
@pytest.mark.parametrize("where", [12, 0.5, -9])
def test_a_compressed_file_that_is_cut_short_is_refused(tmp_path, ending, where):
    packed = PACKERS[ending](random_lines())
    packed = packed[: int(where * len(packed)) if isinstance(where, float) else where]
    path = write(tmp_path, f"text.de.{ending}", packed)
    with pytest.raises(DataError, match=rf"text\.de\.{ending}: damaged or truncated") as info:
        read_lines(path)
    assert "\n" not in str(info.value)


@pytest.mark.parametrize("ending", PACKERS)
def test_a_compressed_file_with_a_flipped_bit_is_refused(tmp_path, ending):
    packed = bytearray(PACKERS[ending](random_lines()))
    packed[len(packed) // 2] ^= 4
    with pytest.raises(DataError, match=rf"text\.de\.{ending}: damaged or truncated"):
        read_lines(write(tmp_path, f"text.de.{ending}", packed))


@pytest.mark.parametrize(("ending", "packer"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_a_packed_file_whose_first_byte_is_damaged_is_no_text(tmp_path, ending, packer):
    content = packer(b"one\ntwo\n")
    path = tmp_path / f"train.en{ending}"
    path.write_bytes(b"A" + content[1:])
    with pytest.raises(DataError, match=rf"train\.en{ending}: ends in {ending} but is neither .* nor text"):
        LineReader(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x28\xb5\x2f\xfd\x04", "compressed with zstd. Decompress it"),
        (b"PK\x03\x04\x14", "a zip archive"),
    ],
)
def test_what_is_packed_in_another_way_is_refused_by_name(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        read_lines(write(tmp_path, "text.de", content))


@pytest.mark.parametrize("ending", ["", *PACKERS])
@pytest.mark.parametrize("content", [b"a\nb\nc\nd\n", b"a\nb\nc\nd"])
def test_a_reader_gives_raw_lines_one_after_the_other(tmp_path, ending, content):
    path = write(tmp_path, "text", PACKERS.get(ending, bytes)(content))
    for taken in range(6):
        with LineReader(path) as reader:
            assert list(itertools.islice(reader, taken)) == [b"a\n", b"b\n", b"c\n", b"d\n"][:taken]
            assert len(list(reader)) == max(4 - taken, 0)
            assert list(reader) == []


def test_drops_pairs_with_a_blank_side_and_counts_them(caplog):
    pairs = Pairs(["a", "", "c", " ", "e"], ["x", "y", "\t", "", "z"])
    with caplog.at_level(logging.WARNING):
        kept, num_dropped = drop_empty(pairs)
    assert kept == Pairs(["a", "e"], ["x", "z"])
    assert num_dropped == 3
    assert "dropped 3 of 5 pairs" in caplog.text


def test_drops_a_hundredth_without_a_warning(caplog):
    pairs = Pairs(["a"] * 100, ["x"] * 99 + [""])
    with caplog.at_level(logging.WARNING):
        assert drop_empty(pairs)[1] == 1
    assert caplog.text == ""


@pytest.mark.parametrize("pairs", [Pairs(["a", ""], ["", "x"]), Pairs([], [])])
def test_refuses_to_drop_everything(pairs):
    with pytest.raises(DataError, match=f"all {len(pairs.source)} pairs"):
        drop_empty(pairs)
