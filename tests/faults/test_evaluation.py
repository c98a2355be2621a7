"""Every fault that the evaluation program refuses or warns of, in one table.

Refused: exit code 2, one line on standard error that says where, why and what to do, no
figure on standard output, and no file written.
"""

import itertools
import json
import os
import pathlib
import shutil
import string
import subprocess
import sys

import pytest
from babel import localedata
from sacrebleu.dataset import DATASETS

from keras_transformer.cli import evaluate as evaluate_wmt
from keras_transformer.config.sections import DataConfig
from keras_transformer.evaluation import test_sets as standard_sets
from keras_transformer.text.lines import DataError

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXT = ["Der Hund läuft.", "Zwei Katzen schlafen, so scheint es.", "Nord-Süd ist kurz."]
FILES = {
    "good.de": TEXT,
    "ref.de": TEXT,
    "short.de": TEXT[:2],
    "long.de": [*TEXT, "Mehr."],
    "blanks.de": ["", " ", TEXT[2]],
    "some_blank.de": [TEXT[0], "", TEXT[2]],
    "tokens.de": ["Der Hund läuft .", "Zwei Katzen schlafen , so scheint es .", "Nord-Süd ist kurz ."],
    "pieces.de": ["Der Hu@@ nd läuft.", *TEXT[1:]],
    "spm.de": ["▁Der ▁Hund ▁läuft.", *TEXT[1:]],
    "escaped.de": ["Der &quot;Hund&quot; läuft&apos;s.", *TEXT[1:]],
    "numeric.de": ["Der Hund läuft&#39;s.", *TEXT[1:]],
    "ref.txt": TEXT,
    "three_thousand.de": ["Ja."] * 3003,
    "filtered.de": ["Ja."] * 2737,
    "odd.de": ["Ja."] * 5,
    "good.trees": ["(S (NN a))"] * 3,
    "short.trees": ["(S (NN a))"] * 2,
    "open.trees": ["(S (NN a))", "(S (NN a)", "(S (NN a))"],
    "close.trees": ["(S (NN a)))", "(S (NN a))", "(S (NN a))"],
    "hollow.trees": ["(S (NN a))", "(S (NP))", "(S (NN a))"],
    "blank_and_open.trees": ["", "(S (NN a)", "(S (NN a))"],
}
H, R = "--hypothesis {0}/good.de", "--reference {0}/ref.de"
T, G = "--task parsing --hypothesis", "--reference {0}/good.trees"
SET = "--source en --target de --test-set"
# Command line, with the folder as {0}; words of the one line.
REFUSED = {
    # F71
    "fewer hypotheses": (
        f"--hypothesis {{0}}/short.de {R}", ["short.de: 2 lines", "ref.de has 3", "one line for each"]
    ),
    "more hypotheses": (f"--hypothesis {{0}}/long.de {R}", ["long.de: 4 lines", "ref.de has 3"]),
    "second system": (f"{H} --hypothesis {{0}}/long.de {R}", ["long.de: 4 lines"]),
    "second reference": (f"{H} {R} --reference {{0}}/short.de", ["short.de: 2 lines", "ref.de has 3"]),
    # F72
    "empty hypotheses": (f"--hypothesis {{0}}/empty.de {R}", ["empty.de: the file is empty"]),
    "empty references": (f"{H} --reference {{0}}/empty.de", ["empty.de: the file is empty"]),
    # F73
    "full for filtered": (
        f"--hypothesis {{0}}/three_thousand.de {SET} wmt14",
        ["three_thousand.de: 3,003 lines", "wmt14 en-de has 2,737", "wmt14/full", "--test-set"],
    ),
    "filtered for full": (
        f"--hypothesis {{0}}/filtered.de {SET} wmt14/full",
        ["filtered.de: 2,737 lines", "wmt14/full en-de has 3,003", "have: wmt14 (--test-set)"],
    ),
    "of no set": (f"--hypothesis {{0}}/odd.de {SET} wmt14", ["odd.de: 5 lines", "has 2,737", "same text"]),
    "unknown set": (f"{H} {SET} wmt14full", ["'wmt14full'", "wmt14/full"]),
    "unknown direction": (f"{H} --source de --target fr --test-set wmt14", ["no direction de-fr", "en-de"]),
    "set without languages": (f"{H} --test-set wmt14", ["--source en --target de"]),
    # Files and arguments
    "no such hypotheses": (f"--hypothesis {{0}}/none.de {R}", ["none.de: no such file"]),
    "no such references": (f"{H} --reference {{0}}/none.de", ["none.de: no such file"]),
    "a folder": (f"--hypothesis {{0}} {R}", ["is a folder"]),
    "not UTF-8": (f"--hypothesis {{0}}/latin.de {R}", ["latin.de: line 1: byte 6", "to UTF-8\n"]),
    "nothing to score": ("", ["RUN", "--hypothesis"]),
    "both": (f"runs/x {H} {R}", ["RUN", "--hypothesis", "give either RUN or --hypothesis FILE"]),
    "no references": (H, ["--reference", "--test-set"]),
    "two kinds of references": (f"{H} {R} {SET} wmt14", ["needs either --reference FILE or --test-set"]),
    "references of a run": (f"runs/x {R}", ["--reference cannot be used with a RUN"]),
    "languages of a run": ("runs/x --target de", ["--target cannot be used with a RUN"]),
    "split and set": ("runs/x --split test --test-set wmt14", ["--split cannot be used", "--test-set"]),
    "search without a run": (f"{H} {R} --beam-size 1 --alpha 0", ["--beam-size, --alpha cannot be used"]),
    "weights without a run": (f"{H} {R} --checkpoint last", ["--checkpoint cannot be used with --hyp"]),
    "output without a run": (f"{H} {R} --output {{0}}/out", ["--output cannot be used"]),
    "detokenize without a language": (
        f"{H} --reference {{0}}/ref.txt --detokenize both", ["--detokenize needs the language"]
    ),
    # Trees
    "fewer trees": (f"{T} {{0}}/short.trees {G}", ["short.trees: 2 trees", "good.trees has 3"]),
    "an open tree": (
        f"{T} {{0}}/open.trees {G}", ["open.trees: line 2: the brackets are not closed when line 3", "Close"]
    ),
    "an open tree after one that failed": (
        f"{T} {{0}}/blank_and_open.trees {G}",
        ["blank_and_open.trees: line 2: ", "missing at the end of the text", "Close"],
    ),
    "a bracket too many": (f"{T} {{0}}/close.trees {G}", ["close.trees: line 1: a closing bracket"]),
    "an empty constituent": (
        f"{T} {{0}}/good.trees --reference {{0}}/hollow.trees",
        ["hollow.trees: line 2: the constituent (NP) is empty", "Give it a word"],
    ),
    "text instead of trees": (f"{T} {{0}}/good.de {G}", ["good.de: line 1: 'Der' is outside of a tree"]),
    "no trees": (f"{T} {{0}}/empty.de {G}", ["empty.de: no tree. Give a file with bracketed trees"]),
    "no such trees": (f"{T} {{0}}/none.trees {G}", ["none.trees: no such file"]),
    "trees of a run": (f"{T} {{0}}/good.trees {G} runs/x", ["give either RUN or --hypothesis FILE"]),
    "parses of no run": ("runs/x --task parsing", ["runs/x: not a run folder"]),
    "two golden treebanks": (f"{T} {{0}}/good.trees {G} {G}", ["one --reference FILE"]),
    "trees without a reference": (f"{T} {{0}}/good.trees", ["--hypothesis needs either --reference FILE"]),
    "flags of translations": (
        f"{T} {{0}}/good.trees {G} --confidence --no-ter",
        ["--no-ter, --confidence cannot be used with --task parsing"],
    ),
    "flags of trees": (f"{H} {R} --labels --as-evalb", ["--as-evalb, --labels cannot be used without"]),
    "long lines of trees": (f"{H} {R} --long-lines cut", ["--long-lines cannot be used"]),
    "search for trees": (f"{T} {{0}}/good.trees {G} --beam-size 4", ["--beam-size cannot be used"]),
    "samples of nothing": (f"{H} {R} --bootstrap-samples 100", ["--bootstrap-samples needs --confidence"]),
    "a test of one system": (
        f"{H} {R} --significance randomization", ["--significance needs a second --hypothesis"]
    ),
    "a test of a run": ("runs/x --significance bootstrap", ["--significance needs a second --hypothesis"]),
    "a test of trees": (
        f"{T} {{0}}/good.trees {G} --significance bootstrap", ["--significance cannot be used with --task"]
    ),
    "too few samples": (f"{H} {R} --confidence --bootstrap-samples 1", ["-samples must be at least 40"]),
}  # fmt: skip
# Hypotheses; words of the one line that warns.
WARNED = {
    "blanks.de": ["blanks.de: 2 of 3 lines are empty and scored as they are"],
    "some_blank.de": ["some_blank.de: 1 of 3 lines are empty"],
    "tokens.de": ["tokens.de: 3 of 3 lines look tokenized (' .', first on line 1)", "--detokenize"],
    "pieces.de": ["pieces.de: 1 of 3 lines look cut into sub-words ('@@ ', first on line 1)", "join"],
    "spm.de": ["spm.de: 1 of 3 lines look cut into sub-words ('▁'", "join"],
    "escaped.de": ["escaped.de: 1 of 3 lines look escaped ('&quot;'", "unescape", "--detokenize"],
    "numeric.de": ["numeric.de: 1 of 3 lines look escaped ('&#39;'"],
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, lines in FILES.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (tmp_path / "empty.de").touch()
    (tmp_path / "latin.de").write_bytes("Der H\xfcnd\n".encode("latin-1") * 3)
    # Stands for ~/.sacrebleu with two sets in it.
    monkeypatch.setattr(standard_sets, "SACREBLEU_DIR", str(tmp_path))
    for name, number in (("wmt14", 2737), ("wmt14/full", 3003)):
        monkeypatch.setattr(DATASETS[name], "_outdir", str(tmp_path / name))
        (tmp_path / name).mkdir()
        for field in DATASETS[name].fieldnames("en-de"):
            path = tmp_path / name / f"{name.replace('/', '_')}.en-de.{field}"
            path.write_text("Ja.\n" * number, encoding="utf-8")
    return tmp_path


def contents(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_a_set_that_is_not_utf8_is_refused_without_a_flag_of_other_programs(folder):
    (folder / "test.en").write_text("The dog\n" * 3)
    (folder / "test.de").write_bytes((folder / "latin.de").read_bytes())
    args = evaluate_wmt.parse_args(["runs/x", "--dataset", str(folder)])
    with pytest.raises(DataError, match=r"test.de: line 1: byte 6 .* Convert the file to UTF-8$"):
        evaluate_wmt.load_test_set(args, DataConfig())


@pytest.mark.parametrize("kind", ["folder", "part", "archive", "link", "trees"])
def test_the_test_set_is_not_overwritten(folder, kind):
    data, output = DataConfig(), folder / "test.de"
    for place in (folder, folder / "test_parts"):
        place.mkdir(exist_ok=True)
        for language in ("en", "de", "trees"):
            (place / f"test.{language}").write_text("(S (NN a))\n" * 3)
    if kind == "part":
        (folder / "test.en").unlink()
        output.unlink()
        output = folder / "test_parts" / "test.en"
    elif kind == "archive":
        (folder / "corpus").mkdir()
        output = pathlib.Path(shutil.make_archive(folder / "corpus" / "one", "zip", folder / "test_parts"))
    elif kind == "link":
        output = folder / "link.de"
        output.symlink_to(folder / "test.de")
    elif kind == "trees":
        data, output = DataConfig(target="trees", separate_vocabularies=True), folder / "test.trees"
        (folder / "test_parts" / "test.trees").unlink()
    dataset = str(output if kind == "archive" else folder)
    args = evaluate_wmt.parse_args(["runs/x", "--dataset", dataset, "--output", str(output)])
    with pytest.raises(ValueError, match="is also an input. Write to another file"):
        evaluate_wmt.load_test_set(args, data)
    args.output = str(folder / "new.de")
    assert len(evaluate_wmt.load_test_set(args, data)[1]) == 3


@pytest.mark.parametrize("case", REFUSED)
def test_refused(folder, capsys, caplog, case):
    arguments, words = REFUSED[case]
    before = contents(folder)
    assert evaluate_wmt.main(arguments.format(folder).split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    assert captured.err.startswith("keras-transformer evaluate: ")
    for word in words:
        assert word in captured.err
    assert caplog.records == []
    assert contents(folder) == before


def test_trees_of_other_words_are_told_in_the_output(folder, capsys):
    (folder / "other.trees").write_text("(S (NN a))\n" * 2 + "(S (NN b))\n")
    arguments = f"{T} {folder}/other.trees {G} --rules new".format(folder).split()
    assert evaluate_wmt.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "rules of new.prm" in printed
    assert "other.trees: 1 sentence differs in words from the reference (first: 3)" in printed
    assert evaluate_wmt.main([*arguments, "--json", "--labels", "--as-evalb"]) == 0
    values = json.loads(capsys.readouterr().out)
    (system,) = values["systems"]
    assert (values["rules"], values["as_evalb"], system["disagreeing"]) == ("new.prm", True, [3])
    assert system["all"]["num_skipped"] == 1
    assert system["labels"]["S"] == {
        "f1": 100,
        "precision": 100,
        "recall": 100,
        "gold": 2,
        "test": 2,
        "matched": 2,
    }
    assert [each["name"] for each in values["baselines"]] == ["right-branching, all NP", "flat S"]


@pytest.mark.parametrize("name", WARNED)
def test_warned_of(folder, capsys, caplog, name):
    arguments = f"--hypothesis {folder}/{name} --reference {folder}/ref.de --no-ter --json"
    assert evaluate_wmt.main(arguments.split()) == 0
    (record,) = caplog.records
    for word in WARNED[name]:
        assert word in record.getMessage()
    assert json.loads(capsys.readouterr().out)["num_lines"] == 3


def test_references_are_warned_of_too(folder, caplog):
    arguments = f"--hypothesis {folder}/good.de --reference {folder}/tokens.de --no-ter"
    assert evaluate_wmt.main(arguments.split()) == 0
    assert [record.getMessage().split(" look")[0] for record in caplog.records] == [
        f"{folder}/tokens.de: 3 of 3 lines"
    ]


@pytest.mark.parametrize(
    ("hypothesis", "reference", "which"),
    [
        ("tokens.de", "ref.de", "hypothesis"),
        ("good.de", "tokens.de", "reference"),
        ("tokens.de", "tokens.de", "both"),
    ],
)
def test_detokenizing_mends_what_was_warned_of(folder, capsys, caplog, hypothesis, reference, which):
    files = f"--hypothesis {folder}/{hypothesis} --reference {folder}/{reference}"
    assert evaluate_wmt.main(f"{files} --detokenize {which} --no-ter --json".split()) == 0
    assert caplog.records == []
    scores = json.loads(capsys.readouterr().out)["systems"][0]["scores"]
    assert scores["bleu"]["score"] == pytest.approx(100)
    assert scores["exact_match"]["score"] == 100


@pytest.mark.slow
def test_all_lines_of_a_set_are_scored_under_its_name(folder, capsys):
    arguments = f"--hypothesis {folder}/filtered.de {SET} wmt14 --no-ter"
    assert evaluate_wmt.main(arguments.split()) == 0
    out = capsys.readouterr().out
    assert out.startswith("2,737 lines against wmt14 en-de\n")
    assert "|test:wmt14|lang:en-de|" in out


@pytest.mark.parametrize(
    ("names", "language"),
    [
        (["a/test.de"], "de"),
        (["a.de", "b.de.gz"], "de"),
        (["a.de", "b.en"], None),
        (["test.zh-CN"], "zh-CN"),
        (["a.pt_BR.xz", "b.pt_BR"], "pt_BR"),
        (["ref.qq-CN"], None),
        (["test.de-en"], None),
        (["ref.txt"], None),
        (["ref"], None),
        (["ref.xz"], None),
        (["ref.qq"], None),
        (["out.en/ref"], None),
    ],
)
def test_the_language_is_what_the_names_of_all_references_end_with(names, language):
    assert evaluate_wmt.language_of(names) == language


def test_an_ending_is_a_language_if_cldr_knows_it():
    for ending in map("".join, itertools.product(string.ascii_lowercase, repeat=2)):
        # Babel 2.17 and 2.18 have an older CLDR, without Haitian Creole or Pali.
        known = localedata.exists(ending) or ending in ("ht", "pi")
        assert evaluate_wmt.language_of([f"test.{ending}"]) == (ending if known else None)


@pytest.mark.slow
def test_files_are_scored_without_tensorflow_and_a_failed_download_is_one_line(folder):
    # The proxy is a closed port: whatever network there is, nothing is downloaded.
    env = {**os.environ, "PYTHONPATH": str(ROOT), "SACREBLEU": str(folder / "sets")}
    env |= {"https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}
    code = (
        "import sys; from keras_transformer.cli import evaluate; "
        "sys.modules['tensorflow'] = sys.modules['keras'] = None; "
        "codes = [int(evaluate.main(line.split())) for line in sys.argv[1:]]; print(codes)"
    )
    lines = [f"{H} {R} --confidence", f"{H} {SET} wmt14/full"]
    done = subprocess.run(
        [sys.executable, "-c", code, *(line.format(folder) for line in lines)],
        cwd=ROOT, env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[0, 2]"
    assert done.stderr.count("\n") == 1, done.stderr
    place = folder / "sets" / "wmt14/full/raw/wmt14_full.test-full.tgz"
    assert done.stderr.startswith(
        "keras-transformer evaluate: test set wmt14/full en-de cannot be downloaded ("
    )
    assert f"Put https://statmt.org/wmt14/test-full.tgz as {place}, and run again" in done.stderr
