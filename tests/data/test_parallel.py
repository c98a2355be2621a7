"""Parallel files as blocks: alignment, counts, blank tails, tabs, several files."""

import pytest

from keras_transformer.data.parallel import read_parallel
from keras_transformer.data.text import DataError, Pairs


def write(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    return path


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
