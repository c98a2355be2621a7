"""The example with Apache Beam, which `make test-beam` runs: the lines of `translate.py`, in its order."""

import gzip
import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
SEARCH = ["--beam-size", "1", "--chunk-lines", "8", "--threads", "1"]


def run(*command):
    done = subprocess.run([sys.executable, *map(str, command)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("apache_beam") is None, reason="needs the extra beam")
@pytest.mark.parametrize("search", [SEARCH, [*SEARCH, "--sampling", "--seed", "3"]])
def test_a_pipeline_gives_the_lines_of_the_program(tmp_path, search):
    names = ["The cat", "My old friend Tom", "Nobody in this town", "She"]
    text = [f"{names[i % 4]} has {i} books{', and reads one of them' * (i % 3)}." for i in range(45)]
    text[3:5] = ["", "A bad \ufffd byte,\u2028 and other ends.\r"]
    content = "\n".join(text).encode().replace("\ufffd".encode(), b"\xff")
    (tmp_path / "text.gz").write_bytes(gzip.compress(content))
    given = ["en-de-tatoeba", tmp_path / "text.gz", tmp_path / "out/de", "--file-chunks", "2"]
    run("examples/beam_translate.py", *given, *search)
    files = sorted((tmp_path / "out").glob("de-*.txt"))
    assert [file.name for file in files] == ["de-00000.txt", "de-00001.txt", "de-00002.txt"]
    listed = json.loads((tmp_path / "out/de.json").read_text())
    assert [file["path"] for file in listed["files"]] == list(map(str, files))
    assert listed["num_lines"] == 45
    assert len(list((tmp_path / "out").iterdir())) == 4
    program = ["pipelines/translate.py", "en-de-tatoeba", "--input", tmp_path / "text.gz"]
    run(*program, "--output", tmp_path / "whole", *search)
    assert b"".join(file.read_bytes() for file in files) == (tmp_path / "whole").read_bytes()
