"""Archives: what OPUS and WMT give, and what an attacker gives."""

import io
import os
import stat
import tarfile
import zipfile
import zlib

import pytest

from keras_transformer.text import folders as archives
from keras_transformer.text.datasets import load_split, open_dataset
from keras_transformer.text.folders import is_archive, unpack
from keras_transformer.text.lines import DataError

FILES = {
    "train.de-en.en": b"a\nb\n",
    "train.de-en.de": b"A\nB\n",
    "sub/valid.en": b"c\n",
    "sub/valid.de": b"C\n",
    "README": b"licence\n",
}
ENDINGS = {".zip": "", ".tar": "w", ".tgz": "w:gz", ".tar.gz": "w:gz", ".tar.xz": "w:xz", ".tar.bz2": "w:bz2"}


def write_archive(path, files):
    ending = next(ending for ending in ENDINGS if path.name.endswith(ending))
    if ending == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)
    else:
        with tarfile.open(path, ENDINGS[ending]) as archive:
            for name, content in files.items():
                archive.addfile(member(name, size=len(content)), io.BytesIO(content))
    return path


def member(name, **attributes):
    info = tarfile.TarInfo(name)
    for attribute, value in attributes.items():
        setattr(info, attribute, value)
    return info


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("kept", [False, True])
def test_an_archive_is_read_like_its_folder(tmp_path, ending, kept):
    path = write_archive(tmp_path / f"corpus{ending}", FILES)
    more = {"data_dir": tmp_path / "data"} if kept else {}
    pairs = load_split(str(path), "train", "en", "de", **more)
    assert pairs == (["a", "b"], ["A", "B"])
    assert load_split(str(path), "sub", "de", "en", **more) == (["C"], ["c"])
    assert (tmp_path / "data").exists() == kept
    (entry,) = open_dataset(str(path), "en", "de", **more).fingerprint("train")
    assert entry["path"] == str(path.resolve())
    assert entry["size"] == path.stat().st_size


def test_a_temporary_folder_goes_with_the_dataset(tmp_path):
    path = write_archive(tmp_path / "corpus.zip", FILES)
    dataset = open_dataset(str(path), "en", "de")
    folder = dataset.folder
    assert (folder / "README").exists()
    del dataset
    assert not folder.exists()


def test_a_folder_is_made_once_for_each_state_of_the_archive(tmp_path):
    path = write_archive(tmp_path / "corpus.zip", FILES)
    first = unpack(path, tmp_path / "data")
    (first / "mark").touch()
    assert (unpack(path, tmp_path / "data") / "mark").exists()
    write_archive(path, {**FILES, "train.de-en.en": b"a\nbb\n"})
    second = unpack(path, tmp_path / "data")
    assert second != first
    assert (second / "train.de-en.en").read_bytes() == b"a\nbb\n"
    assert sorted(entry.name for entry in (tmp_path / "data").iterdir()) == sorted([first.name, second.name])


@pytest.mark.parametrize("ending", [".zip", ".tgz"])
@pytest.mark.parametrize(
    ("names", "inner"),
    [
        (["training/x.de-en.en", "training/x.de-en.de"], "training"),
        (["one/two/train.en", "one/two/train.de"], "one/two"),
        (["train/a.en", "train/a.de"], ""),
        (["test/a.en", "test/a.de"], ""),
        (["one/train.en", "train.de"], ""),
    ],
)
def test_a_single_folder_within_is_entered_unless_it_is_a_split(tmp_path, ending, names, inner):
    path = write_archive(tmp_path / f"corpus{ending}", dict.fromkeys(names, b"a\n"))
    folder = unpack(path, tmp_path / "data")
    assert (folder / names[0].removeprefix(f"{inner}/")).is_file()


@pytest.mark.parametrize("ending", [".zip", ".tar", ".tgz", ".tar.xz"])
@pytest.mark.parametrize("name", ["../x.en", "a/../../x.en", "/tmp/x.en", "C:/x.en", "..\\x.en", "a/.."])
def test_a_member_that_leads_outside_is_refused(tmp_path, ending, name):
    path = write_archive(tmp_path / f"bad{ending}", {"train.en": b"a\n", name: b"b\n"})
    check_refused(path, tmp_path, "points outside the folder")
    assert not (tmp_path / "x.en").exists()


def check_refused(path, tmp_path, message):
    parent = tmp_path / "parent"
    with pytest.raises(DataError, match=message) as info:
        unpack(path, parent)
    assert path.name in str(info.value)
    assert "\n" not in str(info.value)
    assert list(parent.iterdir()) == []


KINDS = {
    "link out": {"type": tarfile.SYMTYPE, "linkname": "../../x"},
    "link to a file of the system": {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"},
    "hard link": {"type": tarfile.LNKTYPE, "linkname": "/etc/passwd"},
    "device": {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3},
    "pipe": {"type": tarfile.FIFOTYPE},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_a_link_or_device_is_refused(tmp_path, kind, mode):
    path = tmp_path / "bad.tar"
    with tarfile.open(path, mode) as archive:
        archive.addfile(member("train.de", size=2), io.BytesIO(b"a\n"))
        archive.addfile(member("train.en", **KINDS[kind]))
    check_refused(path, tmp_path, "'train.en' is a link or device. Nothing was unpacked")


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO])
def test_a_link_or_device_in_a_zip_file_is_refused(tmp_path, kind):
    path = tmp_path / "bad.zip"
    with zipfile.ZipFile(path, "w") as archive:
        info = zipfile.ZipInfo("train.en")
        info.external_attr = (kind | 0o644) << 16
        archive.writestr(info, "/etc/passwd")
    check_refused(path, tmp_path, "'train.en' is a link or device")


@pytest.mark.parametrize("ending", [".zip", ".tgz", ".tar.xz"])
def test_what_shrinks_more_than_text_is_refused(tmp_path, monkeypatch, ending):
    path = write_archive(tmp_path / f"bomb{ending}", {"train.en": bytes(2**22), "train.de": b"a\n"})
    assert path.stat().st_size < 2**22 / archives.MAX_RATIO
    monkeypatch.setattr(archives, "SMALL_BYTES", 2**20)
    check_refused(path, tmp_path, "unpacks to over 1,048,576 bytes")
    monkeypatch.setattr(archives, "SMALL_BYTES", 2**23)
    assert (unpack(path, tmp_path / "parent") / "train.en").stat().st_size == 2**22
    monkeypatch.setattr(archives, "MAX_BYTES", 2**21)
    check_refused(path, tmp_path / "again", "unpacks to over 2,097,152 bytes")


@pytest.mark.parametrize("ending", [".zip", ".tgz"])
def test_too_many_members_are_refused(tmp_path, monkeypatch, ending):
    monkeypatch.setattr(archives, "MAX_MEMBERS", 4)
    check_refused(write_archive(tmp_path / f"many{ending}", FILES), tmp_path, "or 4 files")


def test_a_zip_file_that_lies_about_its_size_is_refused(tmp_path):
    path = write_archive(tmp_path / "bomb.zip", {"train.en": bytes(2**22)})
    content = path.read_bytes().replace((2**22).to_bytes(4, "little"), (100).to_bytes(4, "little"))
    path.write_bytes(content)
    check_refused(path, tmp_path, "damaged, truncated or not an archive")


def incompressible(number):
    return b"".join(b"%08x\n" % zlib.crc32(b"%d" % i) for i in range(number))


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("share", [0.0, 0.3, 0.97])
def test_an_archive_that_is_cut_short_is_refused_and_leaves_nothing(tmp_path, ending, share):
    text = incompressible(3000)
    path = write_archive(tmp_path / f"corpus{ending}", {"a.en": text, "a.de": text})
    whole = path.read_bytes()
    # A plain tar ends with blocks of zeros that nobody misses.
    share = min(share, 0.7) if ending == ".tar" else share
    path.write_bytes(whole[: int(share * len(whole))])
    check_refused(path, tmp_path, "damaged, truncated or not an archive")
    path.write_bytes(whole)
    assert (unpack(path, tmp_path / "parent") / "a.de").read_bytes() == incompressible(3000)


@pytest.mark.parametrize("ending", [".zip", ".tgz", ".tar.xz", ".tar.bz2"])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_an_archive_with_a_flipped_bit_is_refused(tmp_path, ending, share):
    path = write_archive(tmp_path / f"corpus{ending}", {"a.en": incompressible(3000)})
    content = bytearray(path.read_bytes())
    content[int(share * len(content))] ^= 1
    path.write_bytes(content)
    check_refused(path, tmp_path, "damaged, truncated or not an archive")


def test_a_password_is_told_of(tmp_path):
    path = tmp_path / "secret.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.en", "a\n")
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1  # the flag in the table of contents
    path.write_bytes(content)
    check_refused(path, tmp_path, "protected by a password")


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    path = write_archive(tmp_path / "corpus.zip", FILES)

    def copy(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archives.shutil, "copyfileobj", copy)
    check_refused(path, tmp_path, "cannot be unpacked into .*: No space left on device")


def test_an_archive_is_a_file_with_its_ending(tmp_path):
    for name in ("a.zip", "a.TGZ", "a.tar.xz"):
        (tmp_path / name).touch()
        assert is_archive(tmp_path / name)
    (tmp_path / "a.gz").touch()
    os.mkdir(tmp_path / "b.zip")
    for name in ("a.gz", "b.zip", "absent.zip"):
        assert not is_archive(tmp_path / name)
    with pytest.raises(DataError, match=r"a\.gz: is neither a folder nor an archive"):
        open_dataset(str(tmp_path / "a.gz"), "en", "de")
