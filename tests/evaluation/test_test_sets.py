"""Test sets by sacreBLEU's names, from a folder filled by hand: nothing is downloaded."""

import hashlib
import io
import logging
import pathlib
import tarfile
import urllib.error

import pytest
from sacrebleu.dataset import DATASETS

from keras_transformer.evaluation import test_sets as standard_sets
from keras_transformer.evaluation.test_sets import load_standard_set, sets_with_lines


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Stands for ~/.sacrebleu; whatever is not in it cannot be downloaded."""

    def refuse(url, *args, **kwargs):
        raise urllib.error.URLError("no network")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    monkeypatch.setattr(standard_sets, "SACREBLEU_DIR", str(tmp_path))
    for name in ("wmt14", "wmt14/full", "wmt20/tworefs"):
        monkeypatch.setattr(DATASETS[name], "_outdir", str(tmp_path / name))
        monkeypatch.setattr(DATASETS[name], "_rawdir", str(tmp_path / name / "raw"))
    return tmp_path


def fill(folder, name, pair, **fields):
    """Writes the text files that sacreBLEU makes of a set; other fields are empty lines."""
    number = len(next(iter(fields.values())))
    for field in DATASETS[name].fieldnames(pair):
        lines = fields.get(field.replace(":", ""), [""] * number)
        path = folder / name / f"{name.replace('/', '_')}.{pair}.{field.replace(':', '-')}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def sgml(lines):
    segments = "".join(f'<seg id="{i}">{line}</seg>\n' for i, line in enumerate(lines, 1))
    return f'<refset setid="x"><doc docid="1" genre="news" origlang="en">\n{segments}</doc></refset>\n'


def archive(path, members):
    """Writes a .tgz of members, dict from names to text; returns its MD5."""
    path.parent.mkdir(parents=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return hashlib.md5(path.read_bytes()).hexdigest()


def test_a_set_is_read_with_its_name_and_direction(folder):
    source = [f"line {i}" for i in range(3003)]
    fill(folder, "wmt14/full", "en-de", src=source, ref=[f"Zeile {i}" for i in range(3003)])
    found = load_standard_set("wmt14/full", "en", "de")
    assert str(found) == "wmt14/full en-de"
    assert found.source == source
    assert [len(lines) for lines in found.references] == [3003]
    assert found.references[0][2] == "Zeile 2"


def test_a_set_with_two_references_has_both(folder):
    fill(folder, "wmt20/tworefs", "en-de", src=["a", "b"], ref0=["x", "y"], ref1=["u", "v"])
    assert load_standard_set("wmt20/tworefs", "en", "de").references == [["x", "y"], ["u", "v"]]


@pytest.mark.filterwarnings("ignore:Python 3.14:DeprecationWarning")  # of sacreBLEU's unpacking
def test_an_archive_put_there_by_hand_is_checked_and_unpacked(folder, monkeypatch):
    path = folder / "wmt14/full/raw/wmt14_full.test-full.tgz"
    source, target = [f"line {i}" for i in range(3003)], [f"Zeile  {i} " for i in range(3003)]
    members = {
        "test-full/newstest2014-deen-src.en.sgm": sgml(source),
        "test-full/newstest2014-deen-ref.de.sgm": sgml(target),
    }
    monkeypatch.setattr(DATASETS["wmt14/full"], "md5", [archive(path, members)])
    for _ in range(2):  # the second time from the text made of it
        found = load_standard_set("wmt14/full", "en", "de")
        assert found.source == source
        assert found.references == [[f"Zeile {i}" for i in range(3003)]]


def test_another_archive_under_that_name_is_refused_and_left(folder):
    path = folder / "wmt14/full/raw/wmt14_full.test-full.tgz"
    archive(path, {"test-full/newstest2014-deen-src.en.sgm": "something else"})
    with pytest.raises(
        ValueError, match=r"wmt14_full\.test-full\.tgz: not the file https.*MD5.*Delete it"
    ) as caught:
        load_standard_set("wmt14/full", "en", "de")
    assert "\n" not in str(caught.value)
    assert [found.name for found in path.parent.iterdir()] == [path.name]


def test_a_failed_download_says_what_to_put_where(folder, caplog):
    with caplog.at_level(logging.INFO), pytest.raises(ValueError, match="cannot be downloaded") as caught:
        load_standard_set("wmt14", "en", "de")
    path = folder / "wmt14/raw/wmt14.test-filtered.tgz"
    assert f"(<urlopen error no network>). Put https://statmt.org/wmt14/test-filtered.tgz as {path}" in str(
        caught.value
    )
    assert "\n" not in str(caught.value)
    assert caplog.records == []
    assert not path.exists()


def test_a_download_that_is_cut_short_leaves_nothing_that_looks_whole(folder, monkeypatch):
    monkeypatch.setattr("urllib.request.urlopen", lambda url: io.BytesIO(b"half of it"))
    with pytest.raises(ValueError, match=r"cannot be downloaded \(wrong checksum"):
        load_standard_set("wmt14", "en", "de")
    assert not (folder / "wmt14/raw/wmt14.test-filtered.tgz").exists()


def test_a_set_of_another_size_than_was_published_is_refused(folder):
    fill(folder, "wmt14", "en-de", src=["a"] * 5, ref=["b"] * 5)
    with pytest.raises(ValueError, match="wmt14 en-de must have 2,737 lines, and .* has 5 and 5. Delete"):
        load_standard_set("wmt14", "en", "de")


@pytest.mark.parametrize(
    ("name", "source", "target", "message"),
    [
        ("wmt14/ful", "en", "de", "no test set 'wmt14/ful'. Did you mean wmt14/full"),
        ("newstest", "en", "de", "no test set 'newstest'. Run `sacrebleu --list` for all names"),
        ("wmt14", "en", "ja", "wmt14 has no direction en-ja. Choose from: .*en-de"),
    ],
)
def test_refuses_what_sacrebleu_does_not_know(folder, name, source, target, message):
    with pytest.raises(ValueError, match=message):
        load_standard_set(name, source, target)
    assert list(pathlib.Path(folder).iterdir()) == []


def test_sets_are_found_by_their_number_of_lines():
    assert sets_with_lines(2737, "en-de") == ["wmt14"]
    assert "wmt14/full" in sets_with_lines(3003, "de-en")
    assert "wmt14" in sets_with_lines(3003, "en-fr")
    assert sets_with_lines(3003, "en-ja") == []
    names = {name for lines in standard_sets._LINES.values() for name in lines}
    assert names <= set(DATASETS)
