"""Weights in bfloat16: half as large, and nearly the same translations."""

import shutil

import keras
import numpy as np
import pytest

from keras_transformer.checkpoints.pretrained import pretrained_folder
from keras_transformer.cli import evaluate, translate
from keras_transformer.cli.engine import identity_of
from keras_transformer.export.engines import load_translator
from keras_transformer.serving.engines import load_engine, translated_by
from keras_transformer.translation.translator import Translator

TEXTS = [
    "The children are playing in the garden.",
    "Where is the station?",
    "I have never seen such a beautiful house.",
    "My sister is learning to play the piano.",
]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "en-de"
    return shutil.copytree(pretrained_folder("en-de-tatoeba"), folder)


@pytest.fixture(scope="module")
def both(path):
    return Translator.load(path), Translator.load(path, precision="bfloat16")


@pytest.mark.slow
def test_all_weights_are_rounded_to_bfloat16(both):
    plain, rounded = (translator.models[0].weights for translator in both)
    for exact, weight in zip(plain, rounded, strict=True):
        assert (exact.dtype, weight.dtype) == ("float32", "bfloat16")
        # 8 bits of significand: at most half of 2^-7, relative.
        error = np.abs(weight.numpy().astype("float32") - exact.numpy())
        assert (error <= np.abs(exact.numpy()) * 2**-8 + 1e-38).all()
    assert keras.config.dtype_policy().name == "float32"


@pytest.mark.slow
def test_translations_and_their_log_probabilities_are_nearly_the_same(both):
    exact, rounded = (translator.n_best(TEXTS, details=True) for translator in both)
    same = [one.best.text == other.best.text for one, other in zip(exact, rounded, strict=True)]
    assert sum(same) >= 3
    differences = []
    for one, other, is_same in zip(exact, rounded, same, strict=True):
        if is_same:
            difference = np.subtract(one.best.token_log_probs, other.best.token_log_probs)
            differences.append(np.abs(difference).max())
            assert one.best.alignment == other.best.alignment
    assert 1e-4 < max(differences) < 0.5  # rounded, and not wrong


@pytest.mark.slow
def test_a_search_does_not_depend_on_the_batch(both):
    together = both[1].n_best(TEXTS)
    for text, expected in zip(TEXTS, together, strict=True):
        (alone,) = both[1].n_best([text])
        assert alone.best.log_prob == pytest.approx(expected.best.log_prob, abs=0.3)


def test_rounded_weights_are_not_saved(both, tmp_path):
    for write in (both[1].save, both[1].export):
        with pytest.raises(ValueError, match="the weights were rounded to bfloat16. Load the run with"):
            write(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_what_has_float32_only_is_refused_or_not_chosen(path):
    with pytest.raises(ValueError, match="`precision` must be one of float32, bfloat16. Received: 'int8'"):
        Translator.load(path, precision="int8")
    pytest.importorskip("ctranslate2", reason="needs pip install -e '.[ctranslate2]'")
    with pytest.raises(ValueError, match="ctranslate2 has no precision bfloat16"):
        load_translator(path, engine="ctranslate2", precision="bfloat16")
    with pytest.raises(ValueError, match="en-de: ctranslate2 has no --precision bfloat16"):
        translated_by(path, "ctranslate2", {}, "bfloat16")
    settings = {"beam_size": 1}
    assert translated_by(path, "auto", settings).name == "ctranslate2"
    assert translated_by(path, "auto", settings, "bfloat16").name == "tensorflow"


@pytest.mark.slow
def test_the_programs_and_the_server_take_it(path, both, tmp_path, capsys):
    text, output = tmp_path / "text.en", tmp_path / "text.de"
    text.write_text("".join(f"{line}\n" for line in TEXTS))
    command = [str(path), "--input", str(text), "--output", str(output), "--precision", "bfloat16"]
    assert translate.main(command) == 0
    expected = both[1].translate(TEXTS)
    assert output.read_text().splitlines() == expected
    engine = load_engine(path, precision="bfloat16")
    assert engine.translator.models[0].dtype_policy.name == "bfloat16"
    args = ["--hypothesis", str(output), "--reference", str(output), "--target", "de"]
    assert evaluate.main([*args, "--precision", "bfloat16"]) == 2
    assert "--precision cannot be used with --hypothesis" in capsys.readouterr().err
    assert translate.main([*command, "--engine", "ctranslate2"]) == 2


def test_parts_know_the_precision():
    args = translate.parse_args(["RUN", "--precision", "bfloat16"])
    assert identity_of("tensorflow", args) == "tensorflow, bfloat16"
    for given in ([], ["--precision", "float32"]):
        assert identity_of("tensorflow", translate.parse_args(["RUN", *given])) == "tensorflow"
