"""CTranslate2 as the engine of a run: the same results, a conversion made once, choices and refusals."""

import contextlib
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import types

import numpy as np
import pytest

from keras_transformer.checkpoints import pretrained
from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.cli import translate
from keras_transformer.config.settings import SearchConfig, replace
from keras_transformer.export.conversions import conversion_path, load_conversion
from keras_transformer.export.engines import choose_engine, load_translator
from keras_transformer.translation.translator import Translator

pytestmark = pytest.mark.slow

ctranslate2 = pytest.importorskip("ctranslate2", reason="needs pip install -e '.[ctranslate2]'")

ROOT = pathlib.Path(__file__).parents[2]
TEXTS = [
    "The children are playing in the garden.",
    "",
    "I have never seen such a beautiful house.",
    "Where is the station?",
    "My sister is learning to play the piano, but she has no time. He does not believe me. It is late.",
]
SAME = [
    {"beam_size": 1},
    {"early_stop": True},
    {"early_stop": True, "length_penalty": "none", "n_best": 2},
    {"early_stop": True, "length_penalty": "average", "alpha": 1.0, "n_best": 4},
]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A copy of the model that comes with the package: trained weights, whose translations end."""
    source = pretrained.pretrained_folder("en-de-tatoeba")
    return pathlib.Path(shutil.copytree(source, tmp_path_factory.mktemp("runs") / "en-de"))


@pytest.fixture(scope="module")
def both(path):
    return Translator.load(path), Translator.load(path, engine="ctranslate2")


def conversions_of(path):
    return sorted(one.name for one in (path / "ctranslate2").iterdir() if one.name[0] != ".")


@pytest.mark.parametrize("search", SAME)
def test_results_are_those_of_tensorflow(search, both):
    for ours, theirs in zip(
        *(one.n_best(TEXTS, details=True, max_source_length=20, **search) for one in both), strict=True
    ):
        assert (theirs.flags, theirs.source_pieces) == (ours.flags, ours.source_pieces)
        assert len(theirs.translations) == len(ours.translations)
        for mine, other in zip(ours.translations, theirs.translations, strict=True):
            for field in ("text", "pieces", "ids", "finished", "alignment"):
                assert getattr(other, field) == getattr(mine, field), field
            np.testing.assert_allclose(other.token_log_probs, mine.token_log_probs, atol=1e-4)
            assert other.score == pytest.approx(mine.score, abs=1e-3)
            assert other.log_prob == pytest.approx(mine.log_prob, abs=1e-3)


def test_without_details_scores_lack_the_special_tokens_only(both):
    ours, theirs = (one.n_best(TEXTS, early_stop=True) for one in both)
    for mine, other in zip(ours, theirs, strict=True):
        assert 0 <= other.best.log_prob - mine.best.log_prob < 1e-3 * max(len(mine.best.ids), 1)


def test_each_sentence_has_its_own_length_limit(both):
    """A short text beside a long one, whose limit is far away."""
    settings = {"beam_size": 1, "max_length_ratio": 0.5, "max_length_offset": 2}
    ours, theirs = (one.n_best([TEXTS[3], TEXTS[2] * 3], **settings) for one in both)
    assert "unfinished" in ours[0].flags
    assert [one.best.ids for one in theirs] == [one.best.ids for one in ours]


def in_new_process(path, *more):
    """Output of the program in a fresh process, and which libraries it has imported."""
    code = (
        "import sys, io, os; from keras_transformer.cli import translate as program\n"
        "code = program.main(sys.argv[1:], io.BytesIO(b'I am here.\\n'), out := io.BytesIO())\n"
        "print(code, out.getvalue().decode().strip(), sorted({'tensorflow', 'keras'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, str(path), "--engine", "ctranslate2", *more]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_processes_convert_once_and_the_next_needs_no_tensorflow(path, tmp_path):
    copy = pathlib.Path(
        shutil.copytree(path, tmp_path / "copy", ignore=shutil.ignore_patterns("ctranslate2"))
    )
    (copy / "ctranslate2").mkdir()
    (copy / "ctranslate2" / ".final-0123456789abcdef.01234567.tmp").mkdir()  # of a killed process
    ended = [process.communicate() for process in [in_new_process(copy) for _ in range(2)]]
    assert [out[:15] for out, _ in ended] == ["0 Ich bin hier."] * 2, ended
    # One of them converts, with TensorFlow; the other waits for it.
    assert sorted("tensorflow" in out for out, _ in ended) == [False, True], ended
    name = conversion_path(RunFolder(copy)).name
    assert sorted(os.listdir(copy / "ctranslate2")) == [".lock", name]
    made = (copy / "ctranslate2" / name).stat().st_mtime_ns
    out, err = in_new_process(copy, "--early-stop").communicate()
    assert (out, err) == ("0 Ich bin hier. []\n", "")
    assert (copy / "ctranslate2" / name).stat().st_mtime_ns == made


def test_a_conversion_belongs_to_its_weights_and_settings(both, path, tmp_path):
    copy = pathlib.Path(shutil.copytree(path, tmp_path / "copy"))
    run, first = RunFolder(copy), conversion_path(RunFolder(copy))
    assert first.name == conversion_path(RunFolder(path)).name  # wherever the folder is
    model = run.load_model()
    model.weights[-1].assign(model.weights[-1].numpy() + 1.0)
    (copy / "averaged").mkdir()
    for kept in (copy / "final").iterdir():
        shutil.copy(kept, copy / "averaged" / kept.name.replace("weights", "last-5"))
    load_conversion(run, "last-5")
    # Other weights under the same name.
    shutil.rmtree(copy / "final")
    from keras_transformer.checkpoints.weights import write_model_weights

    write_model_weights(run, model)
    second = conversion_path(run)
    assert second.name != first.name
    changed = load_conversion(run).n_best(TEXTS[:1])[0].best
    assert changed.log_prob != both[1].n_best(TEXTS[:1])[0].best.log_prob
    assert conversions_of(copy) == sorted([second.name, conversion_path(run, "last-5").name])
    # Weights that are gone, and other settings.
    shutil.rmtree(copy / "averaged")
    run.write_config(replace(run.config, search=replace(run.config.search, beam_size=2)))
    assert load_translator(copy, engine="ctranslate2").search.beam_size == 2
    assert conversions_of(copy) == [conversion_path(run).name] != [second.name]


def test_what_a_user_keeps_beside_the_conversions_stays(path, tmp_path):
    copy = pathlib.Path(shutil.copytree(path, tmp_path / "copy"))
    kept = ["int8", "my-export", "final-0123", ".int8.01234567.tmp"]
    for name in kept:
        (copy / "ctranslate2" / name).mkdir(parents=True)
    gone = ["final-0123456789abcdef", "last-9-0123456789abcdef", ".final-0123456789abcdef.01234567.tmp"]
    for name in gone:
        (copy / "ctranslate2" / name).mkdir()
    shutil.rmtree(conversion_path(RunFolder(copy)), ignore_errors=True)
    load_conversion(RunFolder(copy))
    found = {one.name for one in (copy / "ctranslate2").iterdir()}
    assert found == {*kept, conversion_path(RunFolder(copy)).name, ".lock"}


def test_the_key_of_a_conversion_has_vocabularies_languages_and_the_version(path, tmp_path, monkeypatch):
    copy = pathlib.Path(shutil.copytree(path, tmp_path / "copy"))
    run, names = RunFolder(copy), [conversion_path(RunFolder(copy)).name]

    def changed():
        names.append(conversion_path(RunFolder(copy)).name)
        return len(set(names)) == len(names)

    run.write_config(replace(run.config, data=replace(run.config.data, target="nl")))
    assert changed()
    run.write_config(replace(run.config, model=replace(run.config.model, layer_norm_epsilon=1e-5)))
    assert changed()
    (vocabulary,) = copy.glob("tokenizer*.model")
    vocabulary.write_bytes(vocabulary.read_bytes() + b" ")
    assert changed()
    monkeypatch.setattr("keras_transformer.export.conversions.__version__", "0.0.0")
    assert changed()


def test_a_damaged_conversion_is_made_again(both, path, tmp_path):
    copy = pathlib.Path(shutil.copytree(path, tmp_path / "copy"))
    file = conversion_path(RunFolder(copy)) / "model.bin"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    calls = []
    load_conversion(RunFolder(copy), before=lambda: calls.append(1))
    assert (file.read_bytes() == content, calls) == (True, [1])
    load_conversion(RunFolder(copy), before=lambda: calls.append(1))
    assert calls == [1]


def test_a_folder_that_cannot_be_written_is_left_alone(path, capsys):
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        ignore = shutil.ignore_patterns("ctranslate2")
        copy = pathlib.Path(shutil.copytree(path, f"{name}/run", ignore=ignore))
        for folder, mode in ((name, 0o755), (copy, 0o555)):
            os.chmod(folder, mode)
        before = set(pathlib.Path(tempfile.gettempdir()).glob("ctranslate2-*"))
        if os.getuid() == 0:  # to whom every folder is open
            os.setresuid(65534, 65534, 0)
            stack.callback(os.setresuid, 0, 0, 0)
        translator = load_translator(copy, engine="ctranslate2")
        assert translator.translate(["I am here."]) == ["Ich bin hier."]
        stack.close()
        assert not (copy / "ctranslate2").exists()
        assert set(pathlib.Path(tempfile.gettempdir()).glob("ctranslate2-*")) <= before
        os.chmod(copy, 0o755)
    assert "run/ctranslate2: cannot be written (Permission denied)" in capsys.readouterr().err


def test_a_model_of_the_package_is_converted_into_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = conversion_path(RunFolder("en-de-tatoeba"))
    assert path.parent == tmp_path / "keras_transformer" / "ctranslate2" / "en-de-tatoeba"
    translator = Translator.pretrained(engine="ctranslate2")
    assert translator.translate(["I am here."]) == ["Ich bin hier."]
    assert os.listdir(tmp_path / "keras_transformer" / "ctranslate2" / "en-de-tatoeba")


LACKING = [
    ({"sampling": True}, (), "no sampling"),
    ({"mbr": True}, (), "no minimum Bayes risk decoding"),
    ({"alpha": 21.0}, (), "no alpha above 20"),
    ({"coverage_penalty": 0.2}, (), "no coverage penalty"),
    ({"max_length": 2000}, (), "no max_length above 1024, the largest length in the run's settings"),
    (
        {"max_source_length": 2000},
        (),
        "no max_source_length above 1024, the largest length in the run's settings",
    ),
    ({}, ("--constraints",), "no --constraints"),
    ({"tree_grammar": True}, (), "no parsing"),
]


@pytest.mark.parametrize(("search", "uses", "message"), LACKING)
def test_what_ctranslate2_lacks_is_refused_or_left_to_tensorflow(search, uses, message, path):
    run = RunFolder(path)
    settings = replace(run.config.search, **search)
    with pytest.raises(
        ValueError, match=rf"ctranslate2 has {message}\. Choose the engine tensorflow or auto"
    ):
        choose_engine("ctranslate2", [run], settings, uses=uses)
    assert choose_engine("auto", [run], settings, uses=uses) == ("tensorflow", f"ctranslate2 has {message}")


def test_a_model_that_ctranslate2_cannot_compute_is_left_to_tensorflow(path):
    config = replace(RunFolder(path).config, model={"qk_norm": True})
    run, greedy = types.SimpleNamespace(config=config), SearchConfig(beam_size=1)
    assert choose_engine("auto", [run], greedy) == ("tensorflow", "ctranslate2 has no qk_norm")


def test_auto_chooses_ctranslate2_for_equal_translations_only(path, monkeypatch):
    run = RunFolder(path)
    assert choose_engine("auto", [run]).name == "tensorflow"  # the run's own search is the paper's
    for search in SAME:
        settings = replace(run.config.search, **search)
        assert choose_engine("auto", [run], settings).name == "ctranslate2"
        assert choose_engine("ctranslate2", [run], settings) == ("ctranslate2", "")
    for search in ({}, {"length_penalty": "none"}, {"beam_size": 1, "min_length": 2}):
        settings = replace(run.config.search, **search)
        assert choose_engine("auto", [run], settings).name == "tensorflow"
        assert "translations may differ" in choose_engine("ctranslate2", [run], settings).reason
    greedy = SearchConfig(beam_size=1)
    assert "ensembles" in choose_engine("auto", [run, run], greedy).reason
    monkeypatch.setattr(ctranslate2, "get_cuda_device_count", lambda: 1)
    assert choose_engine("auto", [run], greedy) == ("tensorflow", "it uses the GPU")
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    assert (
        "pip install 'keras-transformer-translation[ctranslate2]'" in choose_engine("auto", [run], greedy)[1]
    )
    with pytest.raises(ValueError, match=r"pip install 'keras-transformer-translation\[ctranslate2\]'"):
        load_translator(path, engine="ctranslate2")


def test_an_unknown_engine_is_refused(path):
    with pytest.raises(ValueError, match="`engine` must be one of tensorflow, .*Received: 'ctranslate'. Did"):
        Translator.load(path, engine="ctranslate")
    with pytest.raises(ValueError, match="`threads` must be at least 1. Received: 0"):
        Translator.load(path, engine="ctranslate2", threads=0)


def called(path, *more):
    output = io.BytesIO()
    code = translate.main([str(path), *more], stdin=io.BytesIO(b"I am here.\n\n"), stdout=output)
    return code, output.getvalue().decode()


def test_the_program_says_which_engine_and_why(both, path, capsys):
    differs = "early_stop=false is approximated: a sentence ends when 8 hypotheses have ended. Equal with "
    for engine, flags, line in (
        ("auto", ["--early-stop"], "ctranslate2: the same translations, faster on a CPU"),
        ("auto", [], f"tensorflow: translations of ctranslate2 may differ: {differs}--early-stop"),
        ("ctranslate2", ["--early-stop", "--threads", "2"], None),
        ("ctranslate2", [], f"ctranslate2: translations may differ: {differs}--early-stop"),
    ):
        assert called(path, "--engine", engine, *flags) == (0, "Ich bin hier.\n\n")
        expected = f"keras-transformer translate: {line}\n" if line else ""
        assert capsys.readouterr().err == expected


def test_the_program_refuses_in_one_line(both, path, tmp_path, capsys):
    (tmp_path / "prefixes").write_text("Ich\n\n")
    for flags in (["--sampling"], ["--prefix-file", str(tmp_path / "prefixes")], [str(path)]):
        assert called(path, *flags, "--engine", "ctranslate2") == (2, "")
        assert capsys.readouterr().err.count("\n") == 1
    flags = ["--prefix-file", str(tmp_path / "prefixes"), "--engine", "auto"]
    assert called(path, *flags) == (0, "Ich bin hier.\n\n")
    assert "translate: tensorflow: ctranslate2 has no --prefix-file\n" in capsys.readouterr().err


def test_the_program_gives_the_same_details(both, path):
    found = [
        [
            json.loads(line)
            for line in called(path, *flags, "--format", "jsonl", "--early-stop")[1].splitlines()
        ]
        for flags in ([], ["--engine", "ctranslate2"])
    ]
    for ours, theirs in zip(*found, strict=True):
        assert ours.keys() == theirs.keys()
        for name in ("text", "pieces", "alignment", "finished", "source_pieces", "flags"):
            assert ours[name] == theirs[name]
        assert theirs["score"] == pytest.approx(ours["score"], abs=1e-4)
        assert theirs["token_log_probs"] == pytest.approx(ours["token_log_probs"], abs=1e-4)


def test_parts_are_translated_as_in_one_go(both, path, tmp_path, capsys):
    lines = [f"I am {number} here." for number in range(11)]
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in lines))
    flags = [str(path), "--engine", "ctranslate2", "--input", str(tmp_path / "text"), "--chunk-lines", "3"]
    assert translate.main([*flags, "--output", str(tmp_path / "whole")]) == 0
    parts = ["--shards", str(tmp_path / "parts"), "--output", str(tmp_path / "joined")]
    assert translate.main([*flags, *parts, "--shard", "2/4"]) == 0
    assert translate.main([*flags, *parts]) == 0
    assert (tmp_path / "joined").read_bytes() == (tmp_path / "whole").read_bytes()
    assert len(set((tmp_path / "whole").read_text().splitlines())) > 5
    capsys.readouterr()
    assert translate.main([*flags, *parts, "--engine", "tensorflow"]) == 2
    assert "was begun with engine='ctranslate2', not 'tensorflow'. Use" in capsys.readouterr().err
