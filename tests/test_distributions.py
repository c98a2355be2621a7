"""What the source distribution holds and what a package index shows."""

import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Tracked files for git and for continuous integration alone.
LEFT_OUT = {".gitignore", ".ci/run", ".github/workflows/ci.yml"}
# What setuptools adds.
ADDED = re.compile(r"PKG-INFO|[^/]+\.egg-info/.+")


@pytest.fixture(scope="module")
def tracked():
    """The names of all files under version control."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("this is no clone")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(listed.stdout.splitlines())


@pytest.fixture(scope="module")
def source_distribution(tracked, tmp_path_factory):
    """A source distribution of what is under version control, unpacked."""
    clone, out = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("out")
    for name in tracked:
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, clone / name)
    for name in ("docs/_build/index.html", "keras_transformer/__pycache__/x.pyc", "runs/demo/config.json"):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).touch()
    build = f"from setuptools import build_meta; build_meta.build_sdist({str(out)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=clone, capture_output=True, check=True)
    (archive,) = out.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(out, filter="data")
    (folder,) = (path for path in out.iterdir() if path.is_dir())
    return folder


@pytest.mark.slow
def test_the_source_distribution_is_the_repository(tracked, source_distribution):
    found = {
        str(path.relative_to(source_distribution))
        for path in source_distribution.rglob("*")
        if path.is_file()
    }
    assert tracked >= LEFT_OUT
    assert {name for name in found if not ADDED.fullmatch(name)} == tracked - LEFT_OUT
    for name in tracked - LEFT_OUT - {"setup.cfg"}:  # setuptools appends to it
        assert (source_distribution / name).read_bytes() == (ROOT / name).read_bytes(), name


@pytest.mark.slow
def test_the_long_description_is_the_readme_with_absolute_links_only(source_distribution):
    shown = (source_distribution / "PKG-INFO").read_text(encoding="utf-8").partition("\n\n")[2]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)]+)\)", shown)
    assert links
    assert links == [link for link in re.findall(r"\]\(([^)]+)\)", readme) if link.startswith("https://")]
    assert "![" not in shown
    # Every word is still there, but those of pictures and of targets.
    words = re.sub(r"!\[[^]]*\]\([^)]*\)|\]\([^)]*\)", " ", readme)
    assert re.findall(r"\w+", re.sub(r"\]\([^)]*\)", " ", shown)) == re.findall(r"\w+", words)
