"""Every fault of translation that the program refuses or survives, by its number.

Each goes through `translate.py`, in this process where that makes no difference. The model
has random weights: what is asked is where lines come out, how many, and that nothing breaks.
"""

import contextlib
import gzip
import io
import json
import os
import pathlib
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest
from processes import code_of

from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.cli import translate as program
from keras_transformer.config.settings import Config, DataConfig, ModelConfig, SearchConfig
from keras_transformer.model.transformer import Transformer
from keras_transformer.tokenizers.sentencepiece import SubwordTokenizer
from keras_transformer.tokenizers.tokenizer_pair import Tokenizers
from keras_transformer.translation.translator import Translator

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXTS = [
    "The dog reads a text.",
    "a",
    "Ein Hund liest einen Text.",
    "The dog reads the text, and the dog reads it. " * 3,
    "Hund und Text",
]
SEARCH = SearchConfig(beam_size=2, max_length_offset=4, max_length_ratio=0.5)


def make_run(folder, *, seed=2, texts=TEXTS, eos_bias=13.5):
    """A run folder of a small model with random weights, some translations of which end."""
    tokenizer = SubwordTokenizer.train(texts * 3, vocab_size=300)
    model = Transformer(
        ModelConfig(
            source_vocab_size=300,
            target_vocab_size=300,
            num_encoder_layers=1,
            num_decoder_layers=1,
            d_model=16,
            d_ff=24,
            num_heads=2,
            output_bias=True,
            tie_embeddings="none",
        )
    )
    rng = np.random.default_rng(seed)
    for weight in model.trainable_weights:
        weight.assign(rng.normal(0, 0.7, weight.shape))
    model.output_projection.kernel.assign(1.5 * model.output_projection.kernel)
    model.output_bias.assign([eos_bias * (i == model.special.eos) for i in range(300)])
    config = Config(model=model.config, data=DataConfig(), search=SEARCH)
    run = RunFolder.create(folder, config, Tokenizers(tokenizer, tokenizer))
    optimizer = keras.optimizers.Adam()
    model.compile(optimizer)
    run.checkpoints(model, optimizer).save(0.0)
    return run.path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def loaded():
    return {}


@pytest.fixture(autouse=True)
def load_once(loaded, monkeypatch):
    """Each run is loaded, and each of its searches traced, once for all tests."""
    original = Translator.load

    def load(run_dirs, **options):
        key = (*map(str, run_dirs), *options.items())
        if key not in loaded:
            loaded[key] = original(run_dirs, **options)
        return loaded[key]

    monkeypatch.setattr(Translator, "load", load)


def call(run, data, *arguments):
    """Returns (exit code, what was written)."""
    out = io.BytesIO()
    runs = run if isinstance(run, list) else [run]
    arguments = [*map(str, runs), "--checkpoint", "last", *map(str, arguments)]
    return program.main(arguments, stdin=io.BytesIO(data), stdout=out), out.getvalue()


def lines_of(run, data, *arguments):
    code, out = call(run, data, *arguments)
    assert code == 0
    text = out.decode("utf-8")
    assert not text or text.endswith("\n")
    return text.split("\n")[:-1]


def joined(texts):
    return "".join(f"{text}\n" for text in texts).encode()


# (number of the fault, input)
SURVIVED = [
    ("F48 blank lines", b"\n" * 5),
    ("F48 spaces", b" \n\t\n   \n\xc2\xa0\n"),
    ("F48 blank between text", b"\nHund\n\n \nText\n\n"),
    ("F48 a last line without end", b"Hund\n\nText"),
    ("F50 emoji", "😀👨‍👩‍👧🇩🇪\n🏳️‍🌈 Hund\n".encode()),
    ("F50 right to left", "שלום עולם\nمرحبا بالعالم\n\u202eHund\n".encode()),
    ("F50 combining marks", ("e" + "\u0301" * 60 + "\n").encode()),
    ("F50 private use and beyond", "\ue000\U0010fffd\uffff\n".encode()),
    ("F50 other ends of lines", "Hund\u2028Text\u0085Hund\x0bText\x00\r\n".encode()),
    ("F50 not UTF-8", b"Hund \xff\xfe\xc3\n\xed\xa0\x80\n"),
    ("F52 nothing", b""),
    ("F52 a byte-order mark", b"\xef\xbb\xbf"),
]


@pytest.mark.parametrize("form", ["text", "jsonl", "moses"])
@pytest.mark.parametrize(("fault", "data"), SURVIVED, ids=[fault for fault, _ in SURVIVED])
def test_one_line_comes_out_for_every_line(run, fault, data, form):
    out = lines_of(run, data, "--format", form)
    number = 0 if data == b"\xef\xbb\xbf" else data.count(b"\n") + (data[-1:] not in (b"\n", b""))
    assert len(out) == number
    assert all(len(line.splitlines()) <= 1 for line in out)


def test_f48_blank_lines_stay_blank_and_shift_nothing(run):
    out = lines_of(run, b"\nHund\n\n \nText\n\n")
    alone = lines_of(run, b"Hund\nText\n")
    assert out == ["", alone[0], "", "", alone[1], ""]
    assert [json.loads(line)["flags"][:1] for line in lines_of(run, b"\n \n", "--format", "jsonl")] == [
        ["blank"],
        ["blank"],
    ]


LONG = {
    "words": "Hund und Text " * 7_200,
    "sentences": "The dog reads a text. " * 4_600,
    "no space": "HundText" * 12_500,
    "one character": "x" * 100_000,
}


@pytest.mark.very_slow
@pytest.mark.parametrize("kind", LONG)
def test_f49_a_line_of_100_000_characters_is_split(run, kind, capsys):
    data = joined(["Hund", LONG[kind], "Text"])
    arguments = ["--max-source-length", 100, "--beam-size", 1]
    out = lines_of(run, data, *arguments)
    assert [out[0], out[2]] == lines_of(run, b"Hund\nText\n", *arguments)
    assert "translated in parts: 1 of 3" in capsys.readouterr().err


def test_f48_blank_lines_have_the_fields_of_all_others(run):
    out = lines_of(run, b"Hund\n\n", "--format", "moses")
    assert [len(line.split(" ||| ")) for line in out] == [4, 4]
    out = lines_of(run, b"Hund\n\n", "--format", "moses", "--alignment")
    assert [len(line.split(" ||| ")) for line in out] == [5, 5]
    record = json.loads(lines_of(run, b"\n", "--format", "jsonl")[0])
    assert (record["token_log_probs"], record["alignment"]) == ([], [])


def test_f49_a_long_line_is_translated_in_parts_or_cut_and_counted(run, capsys):
    first, second = "The dog reads the text, and the dog.", "Hund und Text und Hund und Text."
    data = joined([f"{first} {second}", "a"])
    limit = (
        max(len(row) for row in SubwordTokenizer.load(run / "tokenizer.model").encode([first, second])) + 1
    )
    arguments = ["--max-source-length", limit]
    parts = lines_of(run, joined([first, second]), *arguments)
    capsys.readouterr()
    out = lines_of(run, data, *arguments)
    assert out[0] == " ".join(part for part in parts if part)
    assert "lines over the length limit, translated in parts: 1 of 2" in capsys.readouterr().err
    out = lines_of(run, data, *arguments, "--long-lines", "cut", "--format", "jsonl")
    assert [json.loads(line)["flags"][:1] == ["cut"] for line in out] == [True, False]
    assert "lines over the length limit, truncated: 1 of 2" in capsys.readouterr().err


def test_f53_a_thousand_sentences_come_in_order(run):
    numbers = np.random.default_rng(0).integers(0, len(TEXTS), 1000)
    alone = lines_of(run, joined(TEXTS))
    assert len(set(alone)) == len(TEXTS)
    out = lines_of(run, joined(TEXTS[i] for i in numbers))
    assert out == [alone[i] for i in numbers]


def test_f54_short_and_long_lines_are_translated_as_if_alone(run):
    texts = ["a", "The dog reads the text. " * 25, "Hund", *TEXTS]
    alone = [lines_of(run, joined([text]))[0] for text in texts]
    assert lines_of(run, joined(texts)) == alone
    assert lines_of(run, joined(texts), "--chunk-lines", 3) == alone


REFUSED = [
    (["--beam-size", "0"], ["--beam-size: must be", "from 1 to 1000", "Received: 0."]),
    (["--beam-size", "-1"], ["from 1 to 1000", "Received: -1."]),
    (["--beam-size", "1000000"], ["from 1 to 1000", "Received: 1000000."]),
    (["--alpha", "nan"], ["--alpha: must be", "finite", "nan"]),
    (["--alpha", "inf"], ["--alpha: must be", "finite", "inf"]),
    (["--alpha", "-1"], ["--alpha: must be", "at least 0"]),
    (["--length-penalty", "gnmd"], ["--length-penalty: must be", "Did you mean 'gnmt'"]),
    (["--max-length", "0"], ["--max-length: must be", "from 1 to 16777216"]),
    (["--max-length", "3000000000"], ["--max-length: must be", "from 1 to 16777216"]),
    (["--min-length", "9", "--max-length", "9"], ["`min_length` must be below `max_length`"]),
    (["--max-length-offset", "0"], ["--max-length-offset: must be", "from 1 to"]),
    (["--max-length-offset", "2147483647"], ["--max-length-offset: must be", "from 1 to"]),
    (["--max-length-ratio", "-0.5"], ["--max-length-ratio: must be", "from 0 to 1000"]),
    (["--max-length-ratio", "1e9"], ["--max-length-ratio: must be", "from 0 to 1000"]),
    (["--no-repeat-ngram", "-1"], ["--no-repeat-ngram: must be", "from 0 to 32"]),
    (["--no-repeat-ngram", "1000000"], ["--no-repeat-ngram: must be", "from 0 to 32"]),
    (["--n-best", "3"], ["`n_best` must be at most `beam_size`", "n_best=3, beam_size=2"]),
    (["--temperature", "0"], ["--temperature: must be", "at least 1e-30"]),
    (["--top-k", "-1"], ["--top-k: must be", "at least 0"]),
    (["--top-p", "1.5"], ["--top-p: must be", "at most 1"]),
    (["--seed", "-1"], ["--seed: must be", "at least 0"]),
    (["--long-lines", "fold"], ["--long-lines: must be", "split, cut"]),
    (["--max-source-length", "1"], ["--max-source-length: must be", "at least 2"]),
    (["--batch-tokens", "0"], ["--batch-tokens: must be", "at least 1"]),
    (["--input", "no/such/file"], ["no/such/file: no such file"]),
    (["--prefix-file", "no/such/file"], ["no/such/file: no such file"]),
    (["--constraints", "no/such/file"], ["no/such/file: no such file"]),
    (["--output", "no/such/folder/out"], ["no/such/folder"]),
]


@pytest.mark.parametrize(("arguments", "words"), REFUSED, ids=["_".join(one) for one, _ in REFUSED])
def test_f59_a_bad_setting_is_refused_before_anything_is_loaded(run, monkeypatch, capsys, arguments, words):
    monkeypatch.setattr(Translator, "load", None)
    out = io.BytesIO()
    given = [str(run), "--checkpoint", "last", *arguments]
    code = code_of(program.main, given, stdin=io.BytesIO(joined(TEXTS)), stdout=out)
    err = capsys.readouterr().err
    assert (code, out.getvalue()) == (2, b"")
    assert err.startswith("keras-transformer translate: ")
    assert err.count("\n") == 1
    assert all(word in err for word in words), err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--beam-size", "two"],
        ["--format", "xml"],
        ["--scores", "--format", "moses"],
        ["--alignment"],
        ["--chunk-lines", "0"],
    ],
)
def test_f59_what_is_no_setting_is_refused(run, arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        call(run, joined(TEXTS), *arguments)
    error = capsys.readouterr().err
    assert error.startswith("keras-transformer translate: ")
    assert error.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "limit"),
    [
        pytest.param([], lambda n: n + 6, marks=pytest.mark.very_slow),
        (["--max-length", 9], lambda n: min(n + 6, 9)),
    ],
)
def test_f60_a_translation_that_never_ends_stops_at_the_limit_and_is_flagged(
    tmp_path, capsys, setting, limit
):
    endless = make_run(tmp_path / "run", eos_bias=-1e4)
    arguments = ["--max-length-offset", 6, "--max-length-ratio", 1, "--format", "jsonl"]
    out = [json.loads(line) for line in lines_of(endless, joined(TEXTS), *arguments, *setting)]
    for record in out:
        assert len(record["token_log_probs"]) == limit(len(record["source_pieces"]) + 1)
        assert record["flags"] == ["unfinished"]
        assert record["finished"] is False
    assert f"truncated at the length limit: {len(TEXTS)} of {len(TEXTS)}" in capsys.readouterr().err


def test_a_damaged_input_leaves_no_output(run, tmp_path, capsys):
    path = tmp_path / "text.gz"
    # More than one block, so that something has been translated when the damage is found.
    path.write_bytes(gzip.compress(joined(np.random.default_rng(0).permutation(10**5)))[:-20_000])
    code, _ = call(run, b"", "--input", path, "--output", tmp_path / "out", "--chunk-lines", 4)
    assert code == 2
    assert "text.gz: damaged or truncated" in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == ["text.gz"]


def test_files_give_what_streams_give(run, tmp_path):
    (tmp_path / "text.gz").write_bytes(gzip.compress(joined(TEXTS)))
    (tmp_path / "out").write_text("before")
    arguments = ["--input", tmp_path / "text.gz", "--output", tmp_path / "out"]
    assert call(run, b"ignored\n", *arguments) == (0, b"")
    assert (tmp_path / "out").read_text(encoding="utf-8").split("\n")[:-1] == lines_of(run, joined(TEXTS))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["out", "text.gz"]


@pytest.mark.slow
def test_models_with_other_vocabularies_are_refused(run, tmp_path, capsys):
    other = make_run(tmp_path / "other", texts=[text[::-1] for text in TEXTS])
    code, out = call([run, other], b"Hund\n")
    assert (code, out) == (2, b"")
    assert "other: the source vocabulary differs from that of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("prefixes", "words"),
    [(b"Hund\n", "only 1 lines; the input has more"), (b"\n" * 9, "more lines than the input, which has 5")],
)
def test_prefixes_must_be_as_many_as_lines(run, tmp_path, capsys, prefixes, words):
    path = tmp_path / "prefixes"
    path.write_bytes(prefixes)
    arguments = ["--prefix-file", path, "--output", tmp_path / "out"]
    assert call(run, joined(TEXTS), *arguments) == (2, b"")
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_phrases_of_a_line_occur_in_its_translation(run, tmp_path, capsys):
    path = tmp_path / "phrases.gz"
    path.write_bytes(gzip.compress(b"Hund\tder Text\r\n\n \nliest\tliest\n\n"))
    found = lines_of(run, joined(TEXTS), "--constraints", path, "--chunk-lines", 2, "--n-best", 2)
    assert "where a phrase is required. Better: --beam-size 10" in capsys.readouterr().err
    free = lines_of(run, joined(TEXTS), "--n-best", 2)
    assert "--beam-size" not in capsys.readouterr().err
    for line in found[:2]:
        assert "Hund" in line
        assert "der Text" in line
    assert all("liest" in line for line in found[6:8])
    assert [found[i] for i in (2, 3, 4, 5, 8, 9)] == [free[i] for i in (2, 3, 4, 5, 8, 9)]
    assert found != free


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"Hund\n", "only 1 lines; the input has more"),
        (b"\n" * 9, "more lines than the input, which has 5"),
        (b"\n\n\nHund\t\n\n", "line 4: phrase 2 is blank. Remove it"),
        (b"\n\n\n\t\n\n", "line 4: phrase 1 is blank. Remove it"),
        (b"\n\nH\xffund\n\n\n", "line 3: byte 2 (0xff) is not valid UTF-8. Convert the file to UTF-8"),
        (b"\n\n" + b"Hund Text " * 400 + b"\n\n\n", "line 3: the phrases have "),
        (b"\n\n\nHund\n\n", "line 4: the text has more than 29 tokens and would be split"),
    ],
)
def test_phrases_that_cannot_be_used_are_refused_by_line(run, tmp_path, capsys, content, words):
    path = tmp_path / "phrases"
    path.write_bytes(content)
    for chunk in (1, 1024):
        arguments = ["--constraints", path, "--chunk-lines", chunk, "--max-source-length", 30]
        assert call(run, joined(TEXTS), *arguments, "--output", tmp_path / "out") == (2, b"")
        error = capsys.readouterr().err
        assert f"keras-transformer translate: {path}: {words}" in error
        assert error.count("\n") == 1
        assert [one.name for one in tmp_path.iterdir()] == ["phrases"]


def test_phrases_of_a_blank_line_are_refused(run, tmp_path, capsys):
    path = tmp_path / "phrases"
    path.write_text("\n\nHund\n")
    assert call(run, b"a\nb\n \n", "--constraints", path) == (2, b"")
    assert "phrases: line 3: the text is blank, and so is its translation" in capsys.readouterr().err


def test_the_file_of_phrases_is_not_overwritten(run, tmp_path, capsys):
    path = tmp_path / "phrases"
    path.write_text("Hund\n")
    assert call(run, b"a\n", "--constraints", path, "--output", path) == (2, b"")
    assert "is also an input" in capsys.readouterr().err
    assert path.read_text() == "Hund\n"


def start(run, *arguments, shell="", **streams):
    # Without what the programs have set in this process.
    environment = {name: value for name, value in os.environ.items() if name[:3] != "TF_"}
    command = [
        sys.executable,
        "pipelines/translate.py",
        str(run),
        "--checkpoint",
        "last",
        *map(str, arguments),
    ]
    if shell:
        command = ["bash", "-c", shell, *command]
    pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    return subprocess.Popen(
        command, cwd=ROOT, env={**environment, "PYTHONPATH": str(ROOT)}, **(pipes | streams)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shell", "code", "expected"),
    [
        ("yes '' | head -1000 | \"$0\" \"$@\" | wc -l", 0, b"1000\n"),
        pytest.param('"$0" "$@" <&-', 0, b"", marks=pytest.mark.very_slow),
        ('echo Hund | "$0" "$@" >&-', 141, b""),
        pytest.param(
            "yes Hund | { \"$0\" \"$@\" --chunk-lines 2; echo $? >&2; } | head -1 | wc -l",
            0,
            b"1\n",
            marks=pytest.mark.very_slow,
        ),
        pytest.param('echo | "$0" "$@" 2>&-', 0, b"\n", marks=pytest.mark.very_slow),
        pytest.param('echo Hund | "$0" "$@" --beam-size 0 2>&-', 2, b"", marks=pytest.mark.very_slow),
    ],
)  # fmt: skip
def test_f64_streams_that_are_closed_or_left_end_it_quietly(run, shell, code, expected):
    started = start(run, shell=shell)
    out, err = started.communicate(timeout=300)
    assert (started.returncode, out) == (code, expected)
    assert err == (b"141\n" if "head -1 |" in shell else b"")


@pytest.mark.slow
def test_f64_lines_are_answered_while_the_input_is_open_and_ctrl_c_ends_it(run):
    started = start(run, "--beam-size", 1)
    for _ in range(2):
        started.stdin.write(b"Hund\n")
        started.stdin.flush()
        assert started.stdout.readline() == joined(lines_of(run, b"Hund\n", "--beam-size", 1))
    started.send_signal(signal.SIGINT)
    assert started.wait(timeout=60) == 130
    assert started.stderr.read() == b""
    with contextlib.suppress(BrokenPipeError):
        started.stdin.close()
    started.stdout.close()
    started.stderr.close()
