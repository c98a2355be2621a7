"""Files that are complete or absent, with the permissions that the user wants."""

import contextlib
import errno
import os
import pathlib
import stat
import subprocess
import sys

import pytest

from keras_transformer.files import (
    create_folder_atomically,
    explain_write_error,
    from_checked_json,
    from_checked_line,
    open_atomically,
    to_checked_json,
    to_checked_line,
    wildcard_free_path,
    write_text,
)

ROOT = pathlib.Path(__file__).resolve().parents[1]


@pytest.fixture
def umask():
    """Sets the umask of this process as long as a test lasts."""
    before = os.umask(0o077)
    os.umask(before)
    yield os.umask
    os.umask(before)


def test_a_file_reaches_the_disk_before_it_gets_its_name(tmp_path, renames):
    write_text(tmp_path / "small", "text")
    with open_atomically(tmp_path / "large") as file:
        for _ in range(3):
            file.write(b"x" * 1_000_003)
    assert renames == [("small", True), ("large", True)]


def test_the_file_that_a_link_names_is_replaced(tmp_path):
    (tmp_path / "v1").write_text("old")
    (tmp_path / "latest").symlink_to("v1")
    (tmp_path / "new").symlink_to("v2")  # does not exist yet
    for name in ("latest", "new"):
        with open_atomically(tmp_path / name) as file:
            file.write(b"text")
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / name).read_text() == "text"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "new", "v1", "v2"]


@pytest.mark.parametrize("mode", [">", ">>", "|"])
def test_standard_output_is_written_by_its_name(tmp_path, mode):
    (tmp_path / "out").write_text("before ")
    code = "from keras_transformer.files import *\nwith open_atomically('/dev/stdout') as f: f.write(b'text')"
    end = "| cat > out" if mode == "|" else f"{mode} out"
    command = ["bash", "-c", f'"$0" -c "$1" {end}', sys.executable, code]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
    assert (tmp_path / "out").read_text() == ("before text" if mode == ">>" else "text")
    assert pathlib.Path("/dev/stdout").is_symlink()


@pytest.mark.parametrize(("mask", "file", "folder"), [(0o077, 0o600, 0o700), (0o002, 0o664, 0o775)])
def test_files_and_folders_are_as_open_as_the_umask_says(tmp_path, umask, mask, file, folder):
    umask(mask)
    write_text(tmp_path / "file", "text")
    with create_folder_atomically(tmp_path / "folder") as made:
        (made / "x").touch()
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == file
    assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == folder


def test_an_error_of_writing_has_the_path_and_leaves_nothing(tmp_path):
    with (
        pytest.raises(OSError, match=r"No space left on device: '.*/report'"),
        open_atomically(tmp_path / "report"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # which is all that a full disk says
    with pytest.raises(OSError, match=r"No such file or directory: '.*/gone/report'"):
        write_text(tmp_path / "gone" / "report", "text")
    assert list(tmp_path.iterdir()) == []


def test_the_files_of_a_folder_reach_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    fsync, rename, order = os.fsync, os.rename, []

    def record_fsync(handle):
        fsync(handle)
        order.append((os.fstat(handle).st_ino, os.fstat(handle).st_size))

    def record_rename(source, target):
        order.append("renamed")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "rename", record_rename)
    with create_folder_atomically(tmp_path / "made") as folder:
        (folder / "within").mkdir()
        for path in (folder / "a", folder / "within/b"):
            path.write_bytes(b"x" * 1_003)
    *before, after = order[: (at := order.index("renamed"))], order[at + 1 :]
    inodes = {path: path.stat().st_ino for path in (tmp_path, *tmp_path.rglob("*"))}
    sent = dict(before[0])
    assert set(inodes.values()) - set(sent) == {inodes[tmp_path]}
    assert [sent[inodes[tmp_path / "made" / name]] for name in ("a", "within/b")] == [1_003, 1_003]
    assert [number for number, _ in after] == [inodes[tmp_path]]


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "Free disk space"),
        (errno.EDQUOT, "Free disk space"),
        (errno.EFBIG, "Raise the limit on file sizes"),
        (errno.EACCES, "Check the permissions of"),
        (errno.EROFS, "Make the file system writable"),
        (errno.EIO, "Check the storage"),
    ],
)
def test_only_what_is_full_needs_room(tmp_path, number, remedy):
    reason, said = explain_write_error(OSError(number, os.strerror(number)), tmp_path / "file")
    assert reason == os.strerror(number)
    assert said.startswith(remedy)
    assert ("space" in said) == (number in (errno.ENOSPC, errno.EDQUOT))


def test_of_a_folder_that_is_gone_the_error_names_what_is_left(tmp_path):
    error = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    reason, remedy = explain_write_error(error, tmp_path / "run" / "best" / "step-3")
    assert reason == f"its folder no longer exists; of the path only {tmp_path} does"
    assert "renamed" in remedy


@pytest.mark.parametrize("name", ["run[1]", "a\\b"])
def test_a_folder_with_wildcards_has_another_path_within_the_block(tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "file").write_text("text")
    with wildcard_free_path(tmp_path / name) as plain:
        assert not {"[", "]", "\\"} & set(str(plain))
        assert (plain / "file").read_text() == "text"
    assert not plain.exists()
    with wildcard_free_path(tmp_path) as plain:
        assert plain == tmp_path


VALUES = {"model": {"d_ff": 12, "dropout": 1e-09}, "data": ["größer", None, True], "x": 0.5}


@pytest.mark.parametrize(
    ("write", "read"),
    [
        (lambda values: to_checked_json(values).encode(), from_checked_json),
        (to_checked_line, lambda content: from_checked_line(content.removesuffix(b"\n"))),
    ],
)
def test_no_bit_of_sealed_json_changes_what_is_read(write, read):
    content = write(VALUES)
    assert read(content) == VALUES
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        with contextlib.suppress(ValueError):
            assert read(bytes(flipped)) == VALUES, bytes(flipped)


def test_json_of_earlier_versions_has_no_checksum():
    assert from_checked_json(b'{"model": {"d_ff": 7}}') == {"model": {"d_ff": 7}}
    assert from_checked_line(b'{"kind": "test", "step": 3}') == {"kind": "test", "step": 3}


@pytest.mark.parametrize("read", [from_checked_json, from_checked_line])
@pytest.mark.parametrize(
    ("content", "message"),
    [(b"[]", "object"), (b"[" * 100_000, "nested too deeply"), (b"{", "not JSON"), (b"\xff", "not JSON")],
)
def test_json_that_is_none_is_refused(read, content, message):
    with pytest.raises(ValueError, match=message):
        read(content)
