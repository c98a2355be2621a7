"""Parts of a long text: together they are the translation in one go, whatever interrupts them."""

import bz2
import gzip
import io
import lzma
import os
import pathlib
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile

import hypothesis
import hypothesis.strategies as st
import pytest

from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.cli import translate as program
from keras_transformer.config.sections import SearchConfig
from keras_transformer.files import from_checked_json, process_lock, to_checked_json
from keras_transformer.text.lines import LineReader
from keras_transformer.translation import lines, shards
from keras_transformer.translation.lines import Input, line_chunks
from keras_transformer.translation.texts import NBest, Translation
from keras_transformer.translation.translator import Translator

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMPRESS = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}
TEXT = b"".join(b"line %d\n" % number for number in range(50))


class Stub:
    """Translates a line to its number, text, prefix and phrases, and to what it shared a chunk with."""

    search = SearchConfig()
    fails_at = None  # number of a chunk

    def n_best(self, texts, prefixes=None, constraints=None, *, first_number=0, details=False, **search):
        if self.fails_at is not None:
            self.fails_at -= 1
            if self.fails_at < 0:
                raise KeyboardInterrupt
        results = []
        for index, text in enumerate(texts):
            given = prefixes and prefixes[index], constraints and constraints[index]
            words = f"{first_number + index} {text} {given} {len(texts)} {sum(map(len, texts))}"
            translations = [Translation(f"{words} {k}", 0.5, 0.5, [], [], True) for k in range(2)]
            results.append(NBest(translations, [], 1, False))
        return results


@pytest.fixture(autouse=True)
def stub(monkeypatch):
    """All programs translate with it."""
    stub = Stub()
    monkeypatch.setattr(Translator, "load", lambda *args, **options: stub)
    return stub


def call(run, *arguments):
    return program.main([str(run), *map(str, arguments)], stdin=io.BytesIO(), stdout=io.BytesIO())


def in_one_go(run, folder, *arguments):
    assert call(run, *arguments, "--output", folder / "whole") == 0
    return (folder / "whole").read_bytes()


def damage(path, rng):
    """Does to a file what a power cut may do."""
    content = path.read_bytes()
    kept = content[: rng.randint(0, len(content))]
    path.write_bytes(kept + rng.randbytes(rng.choice([0, 3, len(content) - len(kept)])))


LINES = st.one_of(
    st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")),
    st.sampled_from(
        [b"", b" ", b"\r", "\ufeffä".encode(), b"\xff\xfe", "\u2028\x85\v".encode(), b"long " * 12]
    ),
)


@hypothesis.settings(max_examples=25, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(
    text=st.lists(LINES, max_size=30),
    ends=st.booleans(),
    ending=st.sampled_from(list(COMPRESS)),
    chunk_lines=st.integers(1, 9),
    num_parts=st.integers(1, 12),
    seed=st.integers(0, 2**32),
)
def test_parts_in_any_order_interrupted_and_damaged_are_the_text_in_one_go(
    saved, stub, monkeypatch, text, ends, ending, chunk_lines, num_parts, seed
):
    monkeypatch.setattr(lines, "MAX_CHUNK_CHARACTERS", 60)
    rng = random.Random(seed)
    content = b"\n".join(text) + b"\n" * (ends and bool(text))
    hypothesis.assume(not content.startswith((b"\xff\xfe", b"\xfe\xff")))  # UTF-16 is refused
    hypothesis.assume(not ending or content)  # some formats take nothing for text
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        path = folder / f"text{ending}"
        path.write_bytes(COMPRESS[ending](content))
        stub.fails_at = None
        arguments = ["--input", path, "--chunk-lines", chunk_lines]
        whole = in_one_go(saved, folder, *arguments)
        parts = folder / "parts"
        order = rng.sample(range(1, num_parts + 1), num_parts)
        for number in order:
            shard = ["--shards", parts, "--shard", f"{number}/{num_parts}"]
            while True:
                stub.fails_at = rng.choice([None, 0, 1, 2])
                code = call(saved, *arguments, *shard)
                assert code in (0, 130)
                if code == 0:
                    break
                assert not list(parts.glob(f"part-{number:05}-*"))
                partial = parts / "progress" / f"{number:05}.txt"
                for one in rng.sample([partial, partial.with_suffix(".log")], rng.randint(0, 2)):
                    damage(one, rng)
        stub.fails_at = 0
        joined = folder / "joined"
        assert call(saved, *arguments, "--shards", parts, "--output", joined) == 0
        assert joined.read_bytes() == whole
        files = sorted(parts.glob("part-*"))
        assert [file.name for file in files] == [
            f"part-{number:05}-of-{num_parts:05}.txt" for number in range(1, num_parts + 1)
        ]
        assert b"".join(file.read_bytes() for file in files) == whole


def test_a_folder_that_an_earlier_version_began_is_continued(saved, tmp_path, capsys):
    (tmp_path / "text").write_bytes(TEXT)
    arguments = ["--input", tmp_path / "text", "--shards", tmp_path / "parts", "--shard", "1/2"]
    assert call(saved, *arguments) == 0
    path = tmp_path / "parts" / "manifest.json"
    manifest = from_checked_json(path.read_bytes(), remedy="")
    for newer in ("coverage_penalty", "mbr", "samples", "utility", "engine"):
        del manifest["settings"][newer]
    path.write_text(to_checked_json(manifest))
    assert call(saved, *arguments) == 0
    capsys.readouterr()
    assert call(saved, *arguments, "--mbr", "--samples", "9") == 2
    assert "was begun with mbr=False, not True" in capsys.readouterr().err


def test_a_manifest_that_another_process_writes_at_this_moment_is_used(saved, tmp_path, monkeypatch, capsys):
    (tmp_path / "text").write_bytes(TEXT)
    arguments = ["--input", tmp_path / "text", "--shards", tmp_path / "parts", "--num-shards", 2]
    assert call(saved, *arguments) == 0
    exists, answers = pathlib.Path.exists, [False]

    def not_yet(path):
        return answers.pop() if path.name == "manifest.json" and answers else exists(path)

    monkeypatch.setattr(pathlib.Path, "exists", not_yet)
    assert call(saved, *arguments) == 0, capsys.readouterr().err
    assert not answers


def test_a_part_continues_after_its_last_chunk(saved, stub, tmp_path, capsys):
    (tmp_path / "text").write_bytes(TEXT)
    arguments = ["--input", tmp_path / "text", "--chunk-lines", 2, "--shards", tmp_path / "parts"]
    stub.fails_at = 3
    assert call(saved, *arguments, "--shard", "2/5") == 130
    assert (tmp_path / "parts/progress/00002.txt").read_bytes().count(b"\n") == 6
    assert "there already" not in capsys.readouterr().err
    stub.fails_at = 2  # two chunks are left
    assert call(saved, *arguments, "--shard", "2/5") == 0
    said = capsys.readouterr().err
    assert re.search(r"part 2 of 5: 6 of (9|10) lines are there already; continuing\n", said), said
    stub.fails_at = 0
    assert call(saved, *arguments, "--shard", "2/5") == 0  # nothing is left
    assert [path.name for path in (tmp_path / "parts/progress").glob("00002.*")] == ["00002.log"]


@pytest.mark.parametrize("form", ["text", "jsonl", "moses"])
def test_prefixes_phrases_and_numbers_are_those_of_the_whole_text(saved, stub, tmp_path, form):
    (tmp_path / "text").write_bytes(TEXT)
    (tmp_path / "prefixes.gz").write_bytes(gzip.compress(b"".join(b"p%d\r\n" % i for i in range(50))))
    (tmp_path / "phrases").write_bytes(b"".join(b"a%d\tb\n" % i for i in range(50)))
    arguments = ["--input", tmp_path / "text", "--prefix-file", tmp_path / "prefixes.gz"]
    arguments += ["--constraints", tmp_path / "phrases", "--chunk-lines", 4, "--format", form, "--n-best", 2]
    whole = in_one_go(saved, tmp_path, *arguments)
    parts = ["--shards", tmp_path / "parts", "--num-shards", 3, "--output", tmp_path / "joined"]
    stub.fails_at = 5
    assert call(saved, *arguments, *parts) == 130
    stub.fails_at = None
    assert call(saved, *arguments, *parts) == 0
    assert (tmp_path / "joined").read_bytes() == whole
    assert b"49 line 49 ('p49', ['a49', 'b'])" in whole


@pytest.mark.slow
def test_a_translation_by_a_model_is_the_same_in_parts(saved, tmp_path, monkeypatch):
    monkeypatch.undo()
    words = ["the", "dog", "reads", "Hund", "liest", "einen", "Text"]
    rng = random.Random(3)
    text = [" ".join(rng.choices(words, k=rng.randint(0, 7))) for _ in range(40)]
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in text))
    for search in (["--beam-size", 2], ["--sampling", "--seed", 5, "--top-k", 3]):
        arguments = ["--input", tmp_path / "text", *search, "--chunk-lines", 6, "--max-length", 9]
        whole = in_one_go(saved, tmp_path, *arguments, "--scores")
        parts = tmp_path / f"parts{len(search)}"
        assert call(saved, *arguments, "--scores", "--shards", parts, "--num-shards", 3) == 0
        assert b"".join(path.read_bytes() for path in sorted(parts.glob("part-*"))) == whole


REFUSED = [
    (["--shard", "1/3"], "was begun with num_shards=2, not 3. Use the same, or choose another folder"),
    (["--alpha", "0.1"], "was begun with alpha=0.6, not 0.1. Use the same"),
    (["--format", "moses"], "was begun with format='text', not 'moses'"),
    (["--prefix-file", "{text}"], "was begun with files=['input'], not ['input', 'prefix_file']"),
    (["--input", "{longer}"], "was begun with other text than {longer} has now. Use the same"),
    (["--input", "{changed}"], "was begun with other text than {changed} has now. Use the same"),
    (["--input", "{fifo}"], "{fifo}: a pipe can be read only once"),
    (["--input", "{folder}/none"], "{folder}/none: no such file"),
    (["--shards", "{folder}/new"], "new: the number of parts is missing. Add --num-shards N"),
    (["--shards", "{folder}", "--num-shards", "2"], "{folder}: holds other files. Delete them"),
    (["--shards", "{folder}/new", "--num-shards", "2", "--prefix-file", "{longer}"], "more lines than the"),
    (["--output", "{folder}/no/x"], "its folder does not exist"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "words"), REFUSED, ids=[words[:40] for _, words in REFUSED])
def test_what_does_not_fit_the_parts_is_refused(saved, tmp_path, capsys, arguments, words):
    names = {name: tmp_path / name for name in ("text", "longer", "changed", "fifo")} | {"folder": tmp_path}
    names["text"].write_bytes(TEXT)
    names["longer"].write_bytes(TEXT + b"a\n")
    names["changed"].write_bytes(TEXT[:-2] + b"x\n")
    os.mkfifo(names["fifo"])
    given = ["--input", names["text"], "--shards", tmp_path / "parts", "--chunk-lines", 5]
    assert call(saved, *given, "--shard", "1/2") == 0
    before = sorted(path.name for path in tmp_path.rglob("*"))
    capsys.readouterr()
    assert call(saved, *given, *(argument.format(**names) for argument in arguments)) == 2
    error = capsys.readouterr().err
    assert error.startswith("keras-transformer translate: ")
    assert words.format(**names) in error
    assert error.count("\n") == 1
    after = {path.name for path in tmp_path.rglob("*")}
    assert after - {"00002.lock"} == set(before)


@pytest.mark.parametrize(
    "more", [["--shard", "1/2"], ["--num-shards", "2"], ["--output", "{folder}/joined"]], ids=str
)
def test_a_text_that_has_changed_within_a_complete_part_is_refused(saved, tmp_path, capsys, more):
    text = tmp_path / "text"
    text.write_bytes(TEXT)
    given = ["--input", text, "--shards", tmp_path / "parts", "--chunk-lines", 5]
    assert call(saved, *given, "--num-shards", 2) == 0
    more = [word.format(folder=tmp_path) for word in more]
    assert call(saved, *given, *more) == 0
    (tmp_path / "joined").unlink(missing_ok=True)
    last = TEXT.index(b"\n", len(TEXT) // 8)
    text.write_bytes(TEXT[: last - 1] + b"~" + TEXT[last:])  # of the same size, in the first part
    capsys.readouterr()
    assert call(saved, *given, *more) == 2
    said = f"keras-transformer translate: {tmp_path}/parts: was begun with other text than {text} has now. "
    assert capsys.readouterr().err == said + "Use the same, or choose another folder\n"
    assert not (tmp_path / "joined").exists()
    assert call(saved, *given, "--shard", "2/2") == 0  # the other part has the same text


def test_another_model_is_refused(saved, run, tmp_path, capsys):
    (tmp_path / "text").write_bytes(TEXT)
    arguments = ["--input", tmp_path / "text", "--shards", tmp_path / "parts"]
    assert call(saved, *arguments, "--num-shards", 2) == 0
    assert call(run.path, *arguments) == 0  # a copy of the same
    for changed in (["--checkpoint", "last"], [saved]):
        assert call(run.path, *changed, *arguments) == 2
        assert "was begun with another model, or other weights. Use the same" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--shard", "1/2"], "--shard needs --shards DIR"),
        (["--num-shards", "2"], "--num-shards needs --shards DIR"),
        (["--shards", "parts"], "--shards needs --input FILE"),
        (["--input", "t", "--shards", "parts", "--shard", "0/2"], "I from 1 to N, not 0/2"),
        (["--input", "t", "--shards", "parts", "--shard", "3/2"], "I from 1 to N, not 3/2"),
        (["--input", "t", "--shards", "parts", "--shard", "2"], "I from 1 to N, not 2"),
        (["--input", "t", "--shards", "parts", "--shard", "1/100000"], "from 1 to 99,999, not 100000"),
        (["--input", "t", "--shards", "parts", "--num-shards", "0"], "from 1 to 99,999, not 0"),
        (["--input", "t", "--shards", "p", "--shard", "1/2", "--num-shards", "3"], "another number of parts"),
        (
            ["--input", "t", "--shards", __file__, "--shard", "1/2"],
            "test_shards.py is a file. Choose a folder",
        ),
    ],
)
def test_flags_of_parts_that_cannot_be_used_are_refused(saved, capsys, arguments, words):
    with pytest.raises(SystemExit, match="2"):
        call(saved, *arguments)
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_parts_without_lines_are_counted(saved, tmp_path, capsys):
    (tmp_path / "text").write_bytes(TEXT)
    given = ["--input", tmp_path / "text", "--shards", tmp_path / "parts", "--num-shards", 3]
    assert call(saved, *given) == 0
    assert "3 of 3 parts are complete (2 without lines, as a part is" in capsys.readouterr().err
    assert sorted(path.stat().st_size > 0 for path in (tmp_path / "parts").glob("part-*")) == [
        False,
        False,
        True,
    ]


def test_a_part_is_translated_by_one_process_at_a_time(saved, tmp_path, capsys):
    (tmp_path / "text").write_bytes(TEXT)
    arguments = ["--input", tmp_path / "text", "--shards", tmp_path / "parts", "--chunk-lines", 5]
    assert call(saved, *arguments, "--shard", "1/4") == 0
    output = ["--output", tmp_path / "joined"]
    with process_lock(tmp_path / "parts/progress/00003.lock"):
        assert call(saved, *arguments, "--shard", "3/4") == 2
        assert "part-00003-of-00004.txt: another process is translating this part" in capsys.readouterr().err
        assert call(saved, *arguments, *output) == 0  # without --shard, it takes those that are free
        assert "3 of 4 parts are complete. The command that completes the last" in capsys.readouterr().err
    assert not (tmp_path / "joined").exists()
    assert call(saved, *arguments, "--shard", "3/4", *output) == 0
    assert (tmp_path / "joined").exists()
    assert not list((tmp_path / "parts/progress").glob("*.lock"))


@pytest.mark.parametrize("what", ["changed", "deleted", "manifest", "log"])
def test_what_was_changed_afterwards_is_named_and_a_deleted_part_is_made_again(saved, tmp_path, capsys, what):
    (tmp_path / "text").write_bytes(TEXT)
    arguments = ["--input", tmp_path / "text", "--shards", tmp_path / "parts", "--num-shards", 2]
    arguments += ["--chunk-lines", 5, "--output", tmp_path / "joined"]
    assert call(saved, *arguments) == 0
    joined = (tmp_path / "joined").read_bytes()
    (tmp_path / "joined").unlink()
    names = {"manifest": "manifest.json", "log": "progress/00002.log"}
    path = tmp_path / "parts" / names.get(what, "part-00002-of-00002.txt")
    path.write_bytes(path.read_bytes().replace(b"2", b"3", 1))
    part = tmp_path / "parts/part-00002-of-00002.txt"
    if what != "deleted":
        capsys.readouterr()
        assert call(saved, *arguments) == 2
        error = capsys.readouterr().err
        words = "checksum" if what == "manifest" else f"{part}: damaged, or changed since"
        assert words in error
        assert not (tmp_path / "joined").exists()
    if what != "manifest":
        part.unlink()
        assert call(saved, *arguments) == 0
        assert (tmp_path / "joined").read_bytes() == joined


def test_parts_without_their_logs_are_not_called_damaged(saved, tmp_path, capsys):
    (tmp_path / "text").write_bytes(TEXT)
    arguments = ["--input", tmp_path / "text", "--shards", tmp_path / "parts", "--num-shards", 2]
    assert call(saved, *arguments) == 0
    shutil.rmtree(tmp_path / "parts/progress")
    assert call(saved, *arguments, "--output", tmp_path / "joined") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"{tmp_path / 'parts/progress/00001.log'}: missing" in error
    assert f"cat {tmp_path / 'parts'}/part-*" in error
    assert not (tmp_path / "joined").exists()
    assert len(list((tmp_path / "parts").glob("part-*"))) == 2


def test_a_full_disk_ends_with_3_and_the_same_command_continues(saved, tmp_path, capsys):
    (tmp_path / "text").write_bytes(TEXT * 100)
    arguments = ["--input", tmp_path / "text", "--chunk-lines", 50]
    whole = in_one_go(saved, tmp_path, *arguments)
    arguments += ["--shards", tmp_path / "parts", "--num-shards", 2, "--output", tmp_path / "joined"]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, limits[1]))
        assert call(saved, *arguments) == 3
        assert call(saved, *arguments) == 3
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "progress/00001.txt: file too large. Free disk space" in capsys.readouterr().err
    assert not list((tmp_path / "parts").glob("part-*"))
    assert (tmp_path / "parts/progress/00001.log").read_bytes().count(b"\n") > 5
    assert call(saved, *arguments) == 0
    assert (tmp_path / "joined").read_bytes() == whole


def test_a_part_is_on_the_disk_before_it_appears(saved, tmp_path, renames):
    (tmp_path / "text").write_bytes(TEXT)
    assert call(saved, "--input", tmp_path / "text", "--shards", tmp_path / "parts", "--num-shards", 1) == 0
    assert renames[-1] == ("part-00001-of-00001.txt", True)


def test_the_log_of_a_part_is_on_the_disk_before_the_part_appears(saved, tmp_path, monkeypatch):
    """Otherwise a power cut could leave a part whose log is too short."""
    (tmp_path / "text").write_bytes(TEXT)
    events, fsync, replace_ = [], os.fsync, os.replace

    def record_fsync(handle):
        fsync(handle)
        events.append((os.fstat(handle).st_ino, os.fstat(handle).st_size))

    def record_replace(source, target, **options):
        replace_(source, target, **options)
        events.append(pathlib.Path(target).name)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    assert call(saved, "--input", tmp_path / "text", "--shards", tmp_path / "parts", "--num-shards", 1) == 0
    status = (tmp_path / "parts/progress/00001.log").stat()
    before = events[: events.index("part-00001-of-00001.txt")]
    assert (status.st_ino, status.st_size) in before


@pytest.mark.slow
def test_parts_do_not_load_the_text(tmp_path):
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(b"a line\n" * 10**6))
    sizes = shards.chunk_sizes(path, 1000)
    assert sizes == [1000] * 1000
    spans = shards.cut(path, shards.part_sizes(sizes, 3))
    assert [(span.begin // 7, span.end // 7) for span in spans] == [
        (0, 333_000),
        (333_000, 666_000),
        (666_000, 10**6),
    ]
    with LineReader(path, spans[2].begin, spans[2].end) as reader:
        assert sum(1 for _ in reader) == 334_000


def test_chunks_are_those_of_the_program(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "MAX_CHUNK_CHARACTERS", 40)
    rng = random.Random(0)
    path = tmp_path / "text"
    path.write_text("".join("ä" * rng.choice([0, 3, 50]) + "\n" for _ in range(200)))
    with LineReader(path) as reader:
        chunks = [len(chunk) for chunk in line_chunks(Input.of_reader(reader), 6, waits=True)]
    assert shards.chunk_sizes(path, 6) == chunks
    assert len(set(chunks)) > 3


def test_a_fingerprint_is_that_of_model_vocabulary_and_weights(run, tmp_path):
    first = run.fingerprint()
    assert first == RunFolder(run.path).fingerprint() != run.fingerprint("last")
    (path,) = (run.path / "averaged").glob("last-2.data*")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert run.fingerprint() != first


@pytest.mark.very_slow
def test_parts_that_are_killed_again_and_again_are_as_undisturbed():
    command = [sys.executable, "tests/shared/shard_kill_loop.py", "40", "--seed", "2"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert int(re.search(r"([0-9]+) kills", ended.stdout)[1]) >= 40
    assert "0 differences" in ended.stdout
