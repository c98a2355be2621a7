"""Parallel files as blocks: alignment, counts, blank tails, tabs, several files."""

import gzip
import lzma
import tracemalloc

import pytest

from keras_transformer.text import lines as text
from keras_transformer.text import parallel
from keras_transformer.text.lines import DataError, Pairs
from keras_transformer.text.parallel import (
    FilePair,
    TabSeparatedFile,
    decode_block,
    decode_blocks,
    make_blocks,
)


def write(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    return path


def read_parallel(source_path, target_path, **settings):
    return decode_blocks(make_blocks([FilePair(source_path, target_path)]), "both", **settings)


# name: (source, target, pairs)
PARALLEL = {
    "plain": (b"a\nb\n", b"x\ny\n", (["a", "b"], ["x", "y"])),
    "newline missing on one side": (b"a\nb", b"x\ny\n", (["a", "b"], ["x", "y"])),
    "carriage returns on one side": (b"a\r\nb\r\n", b"x\ny\n", (["a", "b"], ["x", "y"])),
    "byte-order mark on one side": (b"\xef\xbb\xbfa\nb\n", b"x\ny\n", (["a", "b"], ["x", "y"])),
    "U+2028 and U+0085": (
        "a\u2028a\nb\nc\n".encode(),
        "x\ny\x85y\nz\n".encode(),
        (["a a", "b", "c"], ["x", "y y", "z"]),
    ),
    "blank tail on both sides": (b"a\n\n\n", b"x\n \n\n", (["a"], ["x"])),
    "blank tail on one side stays": (b"a\nb\n", b"x\n\n", (["a", "b"], ["x", ""])),
    "blank line within stays": (b"a\n\nc\n", b"x\n\nz\n", (["a", "", "c"], ["x", "", "z"])),
}


@pytest.mark.parametrize("name", PARALLEL)
def test_pairs_of_two_files(tmp_path, name):
    source, target, pairs = PARALLEL[name]
    found = read_parallel(write(tmp_path, "t.en", source), write(tmp_path, "t.de", target))
    assert found == Pairs(*pairs)


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (b"a\nb\nc\n", b"x\ny\n", "Received: 3 and 2 lines"),
        (b"a\n\n", b"x\n", "Received: 2 and 1 lines"),
        (b"a\n\n\n", b"x\n\n", "Received: 3 and 2 lines"),
        (b"\n\n", b"\n\n", "no line has text on both sides"),
        (b"a\n\n", b"\nx\n", "no line has text on both sides"),
    ],
)
def test_refuses_files_that_are_not_parallel(tmp_path, source, target, message):
    paths = write(tmp_path, "t.en", source), write(tmp_path, "t.de", target)
    with pytest.raises(DataError, match=message) as info:
        read_parallel(*paths)
    assert "t.en" in str(info.value)
    assert "t.de" in str(info.value)
    assert "\n" not in str(info.value)


def test_parallel_files_obey_the_utf8_policy(tmp_path):
    paths = write(tmp_path, "t.en", b"a\n"), write(tmp_path, "t.de", b"\xff\n")
    with pytest.raises(DataError, match=r"t\.de: line 1"):
        read_parallel(*paths)
    assert read_parallel(*paths, on_bad_utf8="replace").target == ["\ufffd"]


def file_pair(tmp_path, name, source, target):
    return FilePair(write(tmp_path, f"{name}.en", source), write(tmp_path, f"{name}.de", target))


def side(name, number):
    return b"".join(b"%s %d\n" % (name, i) for i in range(1, number + 1))


@pytest.mark.parametrize("num_pairs", [1, 2, 3, 4, 5, 7, 12, 13, 100])
def test_blocks_have_one_size_whatever_the_files(tmp_path, num_pairs):
    files = [
        file_pair(tmp_path, "a", side(b"a", 5), side(b"A", 5)),
        file_pair(tmp_path, "b", side(b"b", 1), side(b"B", 1)[:-1]),  # no newline at its end
        file_pair(tmp_path, "c", b"\xef\xbb\xbf" + side(b"c", 6) + b"\n\n", side(b"C", 6) + b"\n \n"),
    ]
    blocks = list(make_blocks(files, num_pairs))
    assert [len(block.source) for block in blocks[:-1]] == [num_pairs] * (len(blocks) - 1)
    assert 0 < len(blocks[-1].source) <= num_pairs
    expected = [f"{n} {i}" for n, number in (("a", 5), ("b", 1), ("c", 6)) for i in range(1, number + 1)]
    found = [decode_block(block)[0] for block in blocks]
    assert [text for pairs in found for text in pairs.source] == expected
    assert [text for pairs in found for text in pairs.target] == [text.upper() for text in expected]
    for block, pairs in zip(blocks, found, strict=True):
        name, number = pairs.source[0].split()
        assert block.source_name == str(tmp_path / f"{name}.en")
        assert block.target_name == str(tmp_path / f"{name}.de")
        assert block.first_line == int(number)


@pytest.mark.parametrize("num_pairs", [1, 2, 3, 4, 9])
def test_a_bad_byte_is_named_by_its_own_file_and_line(tmp_path, num_pairs):
    files = [
        file_pair(tmp_path, "a", side(b"a", 2), side(b"A", 2)),
        file_pair(tmp_path, "b", side(b"b", 3), b"B\nB\nB\xff\n"),
    ]
    with pytest.raises(DataError, match=r"b\.de: line 3: byte 2"):
        list(map(decode_block, make_blocks(files, num_pairs)))
    replaced = [decode_block(block, on_bad_utf8="replace")[1] for block in make_blocks(files, num_pairs)]
    assert sum(replaced) == 1


@pytest.mark.parametrize("num_pairs", [1, 2, 3, 4, 5, 6, 100])
@pytest.mark.parametrize(
    ("source", "target", "counts"),
    [
        (b"a\n" * 5, b"A\n" * 2, "5 and 2"),
        (b"a\n" * 3, b"A\n" * 3 + b"A", "3 and 4"),
        (b"a\n\n", b"A", "2 and 1"),
    ],
)
def test_both_counts_are_told_whatever_the_block(tmp_path, num_pairs, source, target, counts):
    files = [file_pair(tmp_path, "a", source, target)]
    with pytest.raises(DataError, match=rf"a\.en and .*a\.de must .*Received: {counts} lines"):
        list(make_blocks(files, num_pairs))


@pytest.mark.parametrize("blank", [b"\n", b" \t\n", b"\0\n", "\u3000\u00a0\n".encode(), b"\r\n"])
@pytest.mark.parametrize("num_pairs", [1, 2, 3, 8])
def test_a_blank_tail_is_left_out_and_blanks_within_stay(tmp_path, blank, num_pairs):
    files = [file_pair(tmp_path, "a", b"a\n" + 3 * blank + b"b\n" + 4 * blank, b"A\n\n\n\nB\n\n\n\n\n")]
    blocks = list(make_blocks(files, num_pairs))
    assert sum(len(block.source) for block in blocks) == 5
    assert [line for block in blocks for line in block.target] == [b"A\n", b"\n", b"\n", b"\n", b"B\n"]


def test_each_file_must_have_text_on_both_sides(tmp_path):
    files = [
        file_pair(tmp_path, "a", b"a\n", b"A\n"),
        file_pair(tmp_path, "b", b"b\n\n", b"\nB\n"),
    ]
    with pytest.raises(
        DataError, match=r"b\.en and .*b\.de: no line has text on both sides \(2 lines read\)"
    ):
        list(make_blocks(files, 1))


def test_the_number_of_pairs_is_checked():
    with pytest.raises(ValueError, match="`num_pairs` must be at least 1. Received: num_pairs=0"):
        list(make_blocks([], 0))


# name: (bytes, source texts, target texts)
TABS = {
    "two columns": (b"a\tA\nb\tB\n", ["a", "b"], ["A", "B"]),
    "no newline at the end": (b"a\tA\nb\tB", ["a", "b"], ["A", "B"]),
    "carriage returns": (b"a\tA\r\nb\tB\r\n", ["a", "b"], ["A", "B"]),
    "byte-order mark": (b"\xef\xbb\xbfa\tA\nb\tB\n", ["a", "b"], ["A", "B"]),
    "more columns": (b"a\tA\t0.5\tCC\nb\tB\t0.7\t\n", ["a", "b"], ["A", "B"]),
    "blank line": (b"a\tA\n\nb\tB\n\n", ["a", "", "b"], ["A", "", "B"]),
    "blank first line": (b"\nb\tB\n", ["", "b"], ["", "B"]),
    "spaces": (b"a\tA\n  \n\0\xc2\xa0\r\nb\tB\n", ["a", "", "", "b"], ["A", "", "", "B"]),
    "byte-order mark on a blank first line": (b"\xef\xbb\xbf\nb\tB\n", ["", "b"], ["", "B"]),
    "byte-order mark and spaces": (b"\xef\xbb\xbf \nb\tB\n", ["", "b"], ["", "B"]),
    "blank side": (b"a\tA\n\tB\nc\tC\n", ["a", "", "c"], ["A", "B", "C"]),
    "odd characters": ("a\u2028a\tA\x85A\n".encode(), ["a a"], ["A A"]),
}


@pytest.mark.parametrize("name", TABS)
@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
@pytest.mark.parametrize("column", [0, 1])
def test_pairs_of_a_tab_separated_file(tmp_path, name, pack, column):
    content, *sides = TABS[name]
    path = write(tmp_path, "train.tsv", pack(content))
    (block,) = make_blocks([TabSeparatedFile(path, column)])
    pairs, _ = decode_block(block)
    assert [pairs[column], pairs[1 - column]] == sides


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\tA\nb\n", "line 2: 1 columns instead of 2, as before it"),
        (b"a\tA\nb\tB\nc\tC\tC\n", "line 3: 3 columns instead of 2"),
        (b"a\tA\t1\nb\tB\n", "line 2: 2 columns instead of 3"),
        (b"a\tA\n\xef\xbb\xbf\n", "line 2: 1 columns instead of 2"),
        (b"\na\nb\tB\n", "line 2: 1 columns instead of at least 2"),
        (b"", "the file is empty"),
        (b"a\t\n\tB\n", "no line has text on both sides"),
    ],
)
def test_refuses_a_tab_separated_file(tmp_path, content, message):
    path = write(tmp_path, "train.tsv", content)
    with pytest.raises(DataError, match=f"train.tsv: {message}"):
        list(make_blocks([TabSeparatedFile(path, 0)], 1))


def peak_memory(path):
    """Returns (number of pairs, most bytes that Python held) of reading a file in blocks."""
    number = 0
    tracemalloc.start()
    try:
        for block in make_blocks([FilePair(path, path)], 2000):
            number += len(decode_block(block)[0].source)
        return number, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_memory_does_not_grow_with_the_file(tmp_path, pack):
    content = b"".join(b"a sentence of some length, number %5d, and no more\n" % i for i in range(40_000))
    short = peak_memory(write(tmp_path, "short", pack(content)))
    long = peak_memory(write(tmp_path, "long", pack(3 * content)))
    assert (short[0], long[0]) == (40_000, 120_000)
    assert long[1] < short[1] + len(content) / 10


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_line_without_end_is_refused(tmp_path, monkeypatch, pack):
    monkeypatch.setattr(text, "MAX_LINE_BYTES", 50)
    source = write(tmp_path, "text.en", pack(b"one\n" + bytes(10**6)))
    target = write(tmp_path, "text.de", pack(b"eins\nzwei\n"))
    with pytest.raises(DataError, match=r"text\.en: line 2 is longer than 50 bytes"):
        list(make_blocks([FilePair(source, target)]))


def test_long_lines_make_short_blocks_of_the_same_pairs(tmp_path, monkeypatch):
    sides = [
        [b"%d %s\n" % (number, bytes([97]) * (length if number % 11 else 1)) for number in range(103)]
        for length in (300, 7)
    ]
    paths = [write(tmp_path, f"text.{i}", b"".join(lines)) for i, lines in enumerate(sides)]
    files = [FilePair(*paths), FilePair(*paths[::-1])]
    (whole,) = make_blocks(files, 1000)
    monkeypatch.setattr(parallel, "MAX_BLOCK_BYTES", 2000)
    blocks = list(make_blocks(files, 1000))
    assert len(blocks) > 20
    assert max(sum(map(len, block.source + block.target)) for block in blocks) < 2 * 2000 + 310
    assert sum((block.source for block in blocks), []) == whole.source == sides[0] + sides[1]
    assert sum((block.target for block in blocks), []) == whole.target == sides[1] + sides[0]
    for block in blocks[:10]:
        assert block.source[0].startswith(b"%d " % (block.first_line - 1))


def test_of_long_lines_too_it_is_told_that_files_have_not_as_many(tmp_path, monkeypatch):
    monkeypatch.setattr(parallel, "MAX_BLOCK_BYTES", 100)
    source = write(tmp_path, "text.en", (b"x" * 70 + b"\n") * 40)
    target = write(tmp_path, "text.de", b"y\n" * 37)
    with pytest.raises(DataError, match="Received: 40 and 37 lines"):
        list(make_blocks([FilePair(source, target)]))
    with pytest.raises(DataError, match="Received: 37 and 40 lines"):
        list(make_blocks([FilePair(target, source)]))
