"""The examples with Apache Beam, which `make test-beam` runs: what the programs write, to the byte."""

import bz2
import gzip
import importlib.util
import json
import lzma
import pathlib
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
HOW = ["--chunk-lines", "8", "--threads", "1"]
SEARCH = ["--beam-size", "1", *HOW]


def run(*command):
    done = subprocess.run([sys.executable, *map(str, command)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def refusal(*command):
    """The message of a program that refuses its input in one line."""
    done = subprocess.run([sys.executable, *map(str, command)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr[-3000:]
    name = pathlib.Path(command[0]).name
    assert "Traceback" not in done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith(f"{name}: "))
    return line


pytestmark = [
    pytest.mark.very_slow,
    pytest.mark.skipif(importlib.util.find_spec("apache_beam") is None, reason="needs the extra beam"),
]


@pytest.mark.parametrize("search", [SEARCH, [*HOW, "--sampling", "--seed", "3"]])
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
    # Files of an earlier pipeline are not mixed with those of another text.
    (tmp_path / "out/de.json").unlink()
    error = refusal("examples/beam_translate.py", *given, *search)
    assert error == (
        f"beam_translate.py: {tmp_path}/out/de-00000.txt: exists. Delete the files {tmp_path}/out/de-* and "
        f"{tmp_path}/out/de.json, or choose another OUTPUT"
    )


def make_corpora(folder):
    """Two corpora with repeated pairs within and across shards and corpora, blank sides, a bad byte."""
    names = ["The cat", "My old friend Tom", "Nobody in this town", "She"]
    for corpus, first, number in (("one", 0, 61), ("two", 40, 37)):
        (folder / corpus).mkdir(parents=True)
        numbers = [first + i * (i % 3 != 2) for i in range(number)]  # every third pair is the same
        source = [f"{names[i % 4]} has {i} books{', and reads one' * (i % 5)}." for i in numbers]
        target = [f"{names[i % 4]} hat {i} Bücher{', und liest eins' * (i % 5)}." for i in numbers]
        source[5], target[7], target[11] = "", "  ", source[11]
        target[13] += " Und noch ein Satz, der viel zu lang ist" * 4
        for language, lines in (("en", source), ("de", target)):
            content = "".join(f"{line}\n" for line in lines).encode()
            content = content.replace("Bücher".encode(), b"B\xfccher", 1)
            (folder / corpus / f"train.{language}").write_bytes(content)
            (folder / corpus / f"valid.{language}").write_text("".join(f"{line}\n" for line in lines[:3]))
    return f"{folder}/one,{folder}/two"


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


FILTERS = ["drop_duplicates=true", "drop_identical=true", "max_length_ratio=2"]


@pytest.mark.parametrize(
    "flags",
    [
        ["--vocab-size", "320", "--shard-pairs", "7", "--partitions", "3", *FILTERS],
        ["--tokenizer", "en-de-tatoeba", "--shard-pairs", "20", *FILTERS[1:]],
    ],
    ids=["learned, without duplicates", "given"],
)
def test_a_prepared_corpus_is_that_of_the_program(tmp_path, flags):
    filters = [flag for name in flags if "=" in name for flag in ("--set", f"cleaning.{name}")]
    flags = [flag for flag in flags if "=" not in flag] + filters
    given = [make_corpora(tmp_path / "text"), "--source", "en", "--target", "de"]
    given += [*flags, "--set", "data.on_bad_utf8=replace", "--set", "data.max_length=60"]
    run("examples/beam_prepare.py", given[0], tmp_path / "beam", *given[1:])
    local = given[1:]
    if "--partitions" in local:
        del local[(at := local.index("--partitions")) : at + 2]
    run("pipelines/prepare_wmt.py", given[0], tmp_path / "local", *local, "--workers", "1")
    found, expected = contents(tmp_path / "beam"), contents(tmp_path / "local")
    assert found.keys() == expected.keys()
    assert sum(name.startswith("train-") for name in expected) > 9
    for name, content in expected.items():
        assert found[name] == content, name
    report = json.loads(expected["manifest.json"])["report"]
    assert bool(report["dropped"]["duplicate"]) == ("cleaning.drop_duplicates=true" in flags)
    assert report["dropped"]["empty"] >= 2
    assert report["dropped"]["identical"] >= 1
    assert report["dropped"]["long"] + report["dropped"]["ratio"] >= 2
    # A finished folder is not overwritten, an unfinished one not continued, and no corpus gets more files.
    again = ["examples/beam_prepare.py", given[0]]
    assert "a prepared corpus. Choose another folder" in refusal(*again, tmp_path / "beam", *given[1:])
    (tmp_path / "beam/manifest.json").unlink()
    corpus = given[0].split(",")[0]
    for folder, message in (
        (tmp_path / "beam", "exists and is not an empty folder. Choose a new folder, or delete this one"),
        (corpus, "exists and is not an empty folder. Choose a new folder"),
        (f"{corpus}/new", f"inside the corpus {corpus}. Choose a folder outside it"),
    ):
        before = contents(pathlib.Path(corpus))
        assert f"{folder}: {message}" in refusal(*again, folder, *given[1:])
        assert contents(pathlib.Path(corpus)) == before


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "text/one/train.de: line 1: byte 16 (0xfc) is not valid UTF-8"),
        (
            ["--set", "data.on_bad_utf8=replace", "--set", "cleaning.min_length=99"],
            "all 98 pairs were dropped",
        ),
    ],
)
def test_invalid_text_is_one_line_without_a_manifest(tmp_path, flags, message):
    corpora = make_corpora(tmp_path / "text")
    command = ["examples/beam_prepare.py", corpora, tmp_path / "out", "--source", "en", "--target", "de"]
    command += ["--tokenizer", "en-de-tatoeba", "--shard-pairs", "20", *flags]
    assert message in refusal(*command)
    assert not (tmp_path / "out").exists()  # so the corrected command may have the same folder


@pytest.mark.parametrize(
    ("run_folder", "text", "message"),
    [
        ("en-de-tatoeba", "no.en", "no.en: no such file. Check the path"),
        ("nowhere", "README.md", "nowhere: not a run folder"),
    ],
)
def test_a_pipeline_refuses_what_cannot_be_read(tmp_path, run_folder, text, message):
    command = ["examples/beam_translate.py", run_folder, text, tmp_path / "out/de", *SEARCH]
    assert message in refusal(*command)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress, bz2.compress])
def test_a_truncated_text_is_one_line_and_nothing_is_written(tmp_path, compress):
    content = compress("".join(f"The cat has {i} books.\n" for i in range(3001)).encode())
    (tmp_path / "text").write_bytes(content[: len(content) // 2])
    command = ["examples/beam_translate.py", "en-de-tatoeba", tmp_path / "text", tmp_path / "out/de", *SEARCH]
    assert refusal(*command).startswith(f"beam_translate.py: {tmp_path}/text: damaged or truncated (")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--mbr", "--samples", "8"], "neither this program nor Beam has the flag --mbr"),
        (["--beam-size", "-2"], "`search.beam_size` must be from 1 to 1000. Received: beam_size=-2"),
        (["--threads", "0"], "--threads must be at least 1. Received: 0"),
    ],
)
def test_flags_that_mean_nothing_are_one_line_before_anything_is_done(tmp_path, flags, message):
    command = ["examples/beam_translate.py", "en-de-tatoeba", "README.md", tmp_path / "out/de", *flags]
    assert refusal(*command) == f"beam_translate.py: {message}"
    assert not (tmp_path / "out").exists()


def test_a_misspelled_flag_of_preparation_is_refused(tmp_path):
    corpora = make_corpora(tmp_path / "text")
    command = ["examples/beam_prepare.py", corpora, tmp_path / "out", "--source", "en", "--target", "de"]
    assert "has the flag --vocabsize" in refusal(*command, "--vocabsize", "10")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("program", "seconds"),
    [
        ("beam_translate.py", 0),
        ("beam_translate.py", 5),
        ("beam_prepare.py", 0),
        ("beam_prepare.py", 1),
        ("beam_prepare.py", 1.5),
    ],
)
def test_ctrl_c_is_one_line(tmp_path, program, seconds):
    lines = [f"My old friend Tom has {i} books.\n" for i in range(60_013)]
    corpus, out = tmp_path / "corpus", tmp_path / "out"
    corpus.mkdir()
    for name in ("train.en", "train.de", "valid.en", "valid.de"):
        (corpus / name).write_text("".join(lines))
    if program == "beam_translate.py":
        given, remedy = (
            ["en-de-tatoeba", corpus / "train.en", out / "de", *SEARCH],
            f"Delete the files {out}/de-*, if any",
        )
    else:
        flags = ["--source", "en", "--target", "de", "--tokenizer", "en-de-tatoeba", "--shard-pairs", "11"]
        given, remedy = [corpus, out, *flags], f"Delete {out}, if it is there"
    process = subprocess.Popen(
        [sys.executable, f"examples/{program}", *map(str, given)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not out.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(seconds)  # 0: the pipeline begins; more: it is at work
    process.send_signal(signal.SIGINT)
    _, messages = process.communicate(timeout=100)
    assert process.returncode in (130, -signal.SIGINT), messages[-3000:]
    assert "Traceback" not in messages
    if process.returncode == 130:  # else during an import, which Ctrl-C ends at once
        assert (
            messages.splitlines()[-1] == f"{program}: stopped. {remedy}: the same command then starts again"
        )
    assert not (out / "manifest.json").exists()
    assert not (tmp_path / "out/de.json").exists()


def test_a_text_without_lines_gives_a_file_without_lines(tmp_path):
    (tmp_path / "text").touch()
    run("examples/beam_translate.py", "en-de-tatoeba", tmp_path / "text", tmp_path / "de", *SEARCH)
    assert [path.read_bytes() for path in tmp_path.glob("de-*.txt")] == [b""]
    listed = json.loads((tmp_path / "de.json").read_text())
    assert listed["num_lines"] == 0
    assert [file["num_lines"] for file in listed["files"]] == [0]
