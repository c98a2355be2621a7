"""Models exported to CTranslate2, which is not our code: the same probabilities and translations."""

import concurrent.futures
import dataclasses
import io
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import threading
import types

import keras
import numpy as np
import pytest
from processes import code_of
from processors import has_avx512

from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.cli import export as export_model
from keras_transformer.cli import translate_ctranslate2
from keras_transformer.config.settings import (
    Config,
    DataConfig,
    ModelConfig,
    SearchConfig,
    SpecialIds,
    replace,
)
from keras_transformer.export.conversions import load_conversion
from keras_transformer.export.ctranslate2 import (
    CTranslate2Translator,
    _results_of,
    export_ctranslate2,
    max_positions,
)
from keras_transformer.export.ctranslate2_model import save_model, vocabulary_tokens
from keras_transformer.export.ctranslate2_search import beam_options, ranked, search_notes
from keras_transformer.export.engines import choose_engine
from keras_transformer.export.versions import write_manifest
from keras_transformer.model.transformer import Transformer
from keras_transformer.tokenizers.sentencepiece import SubwordTokenizer
from keras_transformer.tokenizers.tokenizer_pair import Tokenizers
from keras_transformer.tokenizers.wordpiece import WordPieceTokenizer
from keras_transformer.translation.ensemble import Ensemble
from keras_transformer.translation.rules import Rules
from keras_transformer.translation.scorer import ForcedDecoder
from keras_transformer.translation.search import Hypotheses, Step, beam_search, greedy_search
from keras_transformer.translation.translator import Translator

ctranslate2 = pytest.importorskip("ctranslate2", reason="needs pip install -e '.[ctranslate2]'")

ROOT = pathlib.Path(__file__).parents[2]
SIZES = {
    "source_vocab_size": 29,
    "target_vocab_size": 29,
    "num_encoder_layers": 1,
    "num_decoder_layers": 2,
    "d_model": 12,
    "d_ff": 17,
    "num_heads": 3,
}
KINDS = {
    "the paper's": {},
    "pre-norm": {"norm_first": True},
    "halves": {"positions": "halves"},
    "learned positions": {"positions": "learned", "max_positions": 70},
    "biases": {"attention_bias": True, "output_bias": True},
    "narrow keys": {"key_dim": 2},
    "narrow values": {"value_dim": 2, "attention_bias": True},
    "other widths": {"key_dim": 5, "value_dim": 7, "norm_first": True},
    "nothing shared": {"tie_embeddings": "none", "target_vocab_size": 31},
    "target shared": {"tie_embeddings": "decoder", "output_bias": True},
    "deepnorm": {"depth_scaling": "deepnorm", "attention_bias": True, "num_encoder_layers": 3},
    "large epsilon": {"layer_norm_epsilon": 0.5},
    "together": {"positions": "relative", "norm": "rms", "activation": "swiglu", "norm_first": True},
    "swiglu": {"activation": "swiglu"},
    "geglu": {"activation": "geglu", "depth_scaling": "deepnorm"},
    "RMSNorm": {"norm": "rms", "layer_norm_epsilon": 0.1},
    "RMSNorm, pre-norm": {"norm": "rms", "norm_first": True},
    "RMSNorm, deepnorm": {"norm": "rms", "depth_scaling": "deepnorm"},
    "relative": {"positions": "relative", "max_relative_position": 3},
    "relative, other widths": {"positions": "relative", "key_dim": 7, "value_dim": 5, "norm_first": True},
    "rotary": {"positions": "rotary", "attention_bias": True},
    "rotary, other widths": {"positions": "rotary", "key_dim": 6, "value_dim": 9, "norm_first": True},
}
# In the default suite; the others are exported in `make test-slow`.
QUICK = [
    pytest.param(kind, marks=() if kind in ("the paper's", "pre-norm", "relative") else pytest.mark.slow)
    for kind in KINDS
]
TEXTS = ["The dog reads a text.", "Der Hund liest einen Text.", "A dog and a text."]


class Names:
    """What a vocabulary says of its ids."""

    def __init__(self, vocab_size, special=SpecialIds()):
        self.vocab_size, self.special = vocab_size, special
        roles = {getattr(special, role): role for role in ("pad", "bos", "eos", "unk")}
        self.entries = [
            ("special", roles[number]) if number in roles else ("text", f"t{number}")
            for number in range(vocab_size)
        ]


def random_model(kind, seed=3):
    """A model whose every weight, biases and norms too, is its own."""
    keras.utils.set_random_seed(seed)
    model = Transformer(ModelConfig(**{**SIZES, **KINDS[kind]}))
    rng = np.random.default_rng(seed)
    for weight in model.weights:
        weight.assign(weight.numpy() + rng.normal(0, 0.3, weight.shape))
    return model


def exported(model, folder, **settings):
    """(CTranslate2's translator, names of source ids, names of target ids)."""
    tokenizers = types.SimpleNamespace(
        source=Names(model.config.source_vocab_size), target=Names(model.config.target_vocab_size)
    )
    save_model(folder, model, tokenizers, max_positions=70, **settings)
    translator = ctranslate2.Translator(str(folder), device="cpu", intra_threads=1)
    return translator, vocabulary_tokens(tokenizers.source), vocabulary_tokens(tokenizers.target)


def random_rows(lengths, vocab_size=29):
    rng = np.random.default_rng(len(lengths))
    return [rng.integers(4, vocab_size, length).tolist() for length in lengths]


def named(rows, names):
    return [[names[one] for one in row] for row in rows]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", QUICK)
def test_given_translations_have_our_log_probabilities(kind, tmp_path):
    model = random_model(kind)
    translator, source_names, target_names = exported(model, tmp_path)
    sources, targets = random_rows([3, 9, 1, 14, 60]), random_rows([5, 2, 8, 0, 50])
    scored = translator.score_batch(named(sources, source_names), named(targets, target_names))
    ours = ForcedDecoder(model)([[*row, 2] for row in sources], [[*row, 2] for row in targets])
    for theirs, expected in zip(scored, ours, strict=True):
        np.testing.assert_allclose(theirs.log_probs, expected.log_probs, atol=1e-4)


def our_search(model, rows, *, never, beam_size, length, early_stop=False, alpha=0.6, penalty="average"):
    """Hypotheses of our search, where tokens that are never produced lose their probability.

    CTranslate2 takes them out before the softmax, we after it: with a trained model, which
    gives them next to nothing, that is the same.
    """
    decoder = Ensemble([model], grows=False)
    source_ids = np.zeros((len(rows), max(map(len, rows)) + 1), "int32")
    for i, row in enumerate(rows):
        source_ids[i, : len(row) + 1] = [*row, 2]
    state = decoder.start(source_ids, max_length=length, num_hypotheses=beam_size)
    blocked = np.isin(np.arange(model.config.target_vocab_size), never)

    def step(ids, position, state):
        taken = decoder.step(ids, position, state)
        return Step(keras.ops.where(blocked, -1e9, taken.logits), taken.state)

    settings = {"max_lengths": [length] * len(rows), "max_length": length, "reorder": decoder.reorder}
    rules = Rules(eos_id=2, pad_id=0, alpha=alpha, penalty=penalty)
    first = np.full(len(rows), 1, "int32")
    if beam_size == 1:
        found = greedy_search(step, state, first, rules, **settings)
    else:
        found = beam_search(
            step,
            state,
            first,
            rules,
            beam_size=beam_size,
            n_best=beam_size,
            early_stop=early_stop,
            **settings,
        )
    return Hypotheses(*(values.numpy() for values in found))


SEARCH = {
    "length_penalty": 0.6,
    "disable_unk": True,
    "suppress_sequences": [["<pad>"], ["<s>"]],
    "return_scores": True,
    "return_end_token": True,
    "max_decoding_length": 10,
}
ROWS = [4, 7, 2, 9, 5, 6, 3, 8]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", QUICK)
def test_beams_without_end_are_ours(kind, tmp_path):
    model = random_model(kind)
    translator, source_names, target_names = exported(model, tmp_path)
    rows = random_rows(ROWS)
    found = translator.translate_batch(
        named(rows, source_names), beam_size=3, num_hypotheses=3, min_decoding_length=10, **SEARCH
    )
    ours = our_search(model, rows, never=[0, 1, 2, 3], beam_size=3, length=10)
    for i, theirs in enumerate(found):
        assert theirs.hypotheses == named(ours.ids[i], target_names)
        np.testing.assert_allclose(theirs.scores, ours.scores[i], atol=1e-4)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", ["the paper's", "biases", "learned positions"])
@pytest.mark.parametrize("beam_size", [1, 3])
def test_search_ends_where_ours_does(kind, beam_size, tmp_path):
    model = random_model(kind)
    translator, source_names, target_names = exported(model, tmp_path)
    rows = random_rows(ROWS)
    found = translator.translate_batch(
        named(rows, source_names),
        beam_size=beam_size,
        # It never stops for having enough, and keeps all that ended: ours comes before what the
        # limit cut off, whatever its score.
        patience=10,
        num_hypotheses=1 if beam_size == 1 else 10 * beam_size,
        min_decoding_length=0,
        **SEARCH,
    )
    ours = our_search(model, rows, never=[0, 1, 3], beam_size=beam_size, length=10)
    same = 0
    for i, theirs in enumerate(found):
        ended = [number for number, one in enumerate(theirs.hypotheses) if one[-1] == "</s>"]
        best = ended[0] if ended else 0
        if theirs.hypotheses[best] == named([ours.ids[i, 0, : ours.lengths[i, 0]]], target_names)[0]:
            same += 1
            assert theirs.scores[best] == pytest.approx(ours.scores[i, 0], abs=1e-4)
        else:
            # Ours also takes ends that are among twice as many candidates.
            assert beam_size > 1
            assert ours.finished[i, 0]
            assert not ended or ours.scores[i, 0] > theirs.scores[best]
    assert same >= len(rows) // 2


def stored_variables(path):
    """{name: array} of a `model.bin`; what is stored once for several has one of its names."""
    data, place = path.read_bytes(), 0

    def unpack(form):
        nonlocal place
        values = struct.unpack_from(f"<{form}", data, place)
        place += struct.calcsize(f"<{form}")
        return values if len(values) > 1 else values[0]

    def text():
        return unpack(f"{unpack('H')}s").rstrip(b"\0").decode()

    assert unpack("I") == 6  # the format's version
    text(), unpack("I")
    found = {}
    for _ in range(unpack("I")):
        name, rank = text(), unpack("B")
        shape = [unpack("I") for _ in range(rank)]
        kind, size = np.dtype(["f4", "i1", "i2", "i4", "f2"][unpack("B")]), unpack("I")
        found[name] = np.frombuffer(data, kind, size // kind.itemsize, place).reshape(shape)
        place += size
    return found


@pytest.mark.parametrize(("quantization", "largest"), [("int16", 2**10), ("int8", 127)])
def test_quantised_matrices_are_rounded_to_the_nearest_and_nothing_else_is(quantization, largest, tmp_path):
    model = random_model("pre-norm")
    stored = {}
    for name in ("float32", quantization):
        (tmp_path / name).mkdir()
        exported(model, tmp_path / name, quantization=name)
        stored[name] = stored_variables(tmp_path / name / "model.bin")
    exact, rounded = stored.values()
    matrices = {name for name, value in rounded.items() if value.dtype == quantization and value.ndim == 2}
    # 4 of the encoder's layer, 7 of each of the decoder's, and the embeddings, which all share.
    assert len(matrices) == 4 + 2 * 7 + 1
    for name in matrices:
        extent = np.abs(exact[name]).max(axis=1 if quantization == "int8" else None, keepdims=True)
        np.testing.assert_allclose(np.ravel(rounded[f"{name}_scale"]), np.ravel(largest / extent), rtol=1e-6)
        error = np.abs(rounded[name] * (extent / largest) - exact[name])
        assert (error <= 0.501 * extent / largest).all(), name
        assert error.max() > 0.3 * extent.max() / largest, name
    for name in exact.keys() - matrices:
        np.testing.assert_array_equal(rounded[name], exact[name], err_msg=name)


@pytest.mark.parametrize("kind", ["pre-norm", "together"])
@pytest.mark.parametrize(("quantization", "bound"), [("int16", 0.02), ("int8", 0.06)])
def test_quantised_weights_are_near_and_smaller(quantization, bound, kind, tmp_path):
    model = random_model(kind)
    paths = {name: tmp_path / name for name in ("float32", quantization)}
    sources, targets = random_rows([3, 9, 1, 14]), random_rows([5, 2, 8, 3])
    scores = {}
    for name, path in paths.items():
        path.mkdir()
        translator, *names = exported(model, path, quantization=name)
        # Rounded weights alone, the same on every CPU; and what this CPU makes of them, which may
        # round inputs as well, and int16 to int8: 0.1 with AVX-512, 0.7 without.
        in_float32 = ctranslate2.Translator(str(path), compute_type="float32", intra_threads=1)
        for kind, computes in (("weights", in_float32), ("all", translator)):
            scored = computes.score_batch(named(sources, names[0]), named(targets, names[1]))
            scores[name, kind] = np.concatenate([one.log_probs for one in scored])
    of_weights, of_all = (
        np.abs(scores["float32", kind] - scores[quantization, kind]).mean() for kind in ("weights", "all")
    )
    assert 0 < of_weights < bound
    assert 0 < of_all < (0.2 if has_avx512() else 1.5)
    sizes = [(path / "model.bin").stat().st_size for path in paths.values()]
    assert sizes[1] < sizes[0]


# Settings of search whose translations `search_notes` calls equal, and some that it does not.
EQUAL = [
    {"beam_size": 1},
    {"early_stop": True, "beam_size": 3},
    {"early_stop": True, "alpha": 2.0, "beam_size": 2},
    {"early_stop": True, "length_penalty": "none", "beam_size": 3},
    {"early_stop": True, "alpha": 0.0, "length_penalty": "average", "beam_size": 3},
    {"early_stop": True, "length_penalty": "average", "alpha": 0.6, "beam_size": 3, "n_best": 3},
    {"early_stop": True, "length_penalty": "average", "alpha": 1.0, "beam_size": 2},
]
EOS_BIAS = 3.0  # or they would not end
OTHER = [
    {"early_stop": False, "length_penalty": "average", "alpha": 1.0, "beam_size": 3},
    {"early_stop": False, "length_penalty": "gnmt", "alpha": 1.0, "beam_size": 3},
    {"early_stop": False, "length_penalty": "none", "beam_size": 2},
]


@pytest.fixture(scope="module")
def two_searches(tmp_path_factory):
    """A function of settings: what ours gains in score, where translations differ and both have ended."""
    model = random_model("biases")
    model.output_bias.assign(model.output_bias.numpy() + EOS_BIAS * (np.arange(29) == 2))
    translator, source_names, target_names = exported(model, tmp_path_factory.mktemp("model"))
    rows = random_rows([3 + number % 7 for number in range(106)])

    def compare(search):
        settings = SearchConfig(**search)
        options = {**SEARCH, **beam_options(settings), "max_decoding_length": 40}
        found = translator.translate_batch(
            named(rows, source_names), beam_size=settings.beam_size, min_decoding_length=0, **options
        )
        rules = {
            "early_stop": settings.early_stop,
            "alpha": settings.alpha,
            "penalty": settings.length_penalty,
        }
        never = [0, 1, 3]
        ours = our_search(model, rows, never=never, beam_size=settings.beam_size, length=40, **rules)
        gains, ended = [], 0
        for i, theirs in enumerate(found):
            lengths, finished = zip(
                *((len(one), one[-1] == "</s>") for one in theirs.hypotheses), strict=True
            )
            order = ranked(lengths, theirs.scores, finished, settings)
            if not ours.finished[i, : settings.n_best].all() or not finished[order[-1][0]]:
                continue
            ended += 1
            for place, (index, score, _) in enumerate(order):
                expected = ours.ids[i, place, : ours.lengths[i, place]]
                if theirs.hypotheses[index] != named([expected], target_names)[0]:
                    gains.append(float(ours.scores[i, place]) - score)
                else:
                    assert score == pytest.approx(ours.scores[i, place], abs=1e-4)
        assert ended > 5
        return gains

    return compare


@pytest.mark.slow
@pytest.mark.parametrize("search", EQUAL)
def test_the_settings_that_are_called_equal_give_equal_translations(search, two_searches):
    assert search_notes(SearchConfig(**search)) == []
    assert [gain for gain in two_searches(search) if abs(gain) > 1e-4] == []


@pytest.mark.slow
@pytest.mark.parametrize("search", OTHER)
def test_the_exact_rule_is_not_theirs(search, two_searches):
    assert search_notes(SearchConfig(**search)) != []
    gains = two_searches(search)
    assert max(gains) > 1e-3
    assert min(gains) > -1e-4


@pytest.mark.parametrize(
    ("search", "words"),
    [
        ({}, ["early_stop=false is approximated", "8 hypotheses", "with --early-stop,"]),
        ({"length_penalty": "none", "beam_size": 3}, ["the best 3 candidates", "with --early-stop,"]),
        ({"early_stop": True, "n_best": 2}, ["only the best translation", "with --n-best 1,"]),
        ({"early_stop": True, "min_length": 3}, ["min_length=3", "with --min-length 0,"]),
        ({"beam_size": 1, "no_repeat_ngram": 2}, ["no_repeat_ngram=2", "with --no-repeat-ngram 0,"]),
        (
            {"early_stop": True, "coverage_penalty": 0.2},
            ["coverage_penalty=0.2 is left out", "with --coverage-penalty 0,"],
        ),
    ],
)
def test_settings_that_do_not_carry_over_are_named(search, words):
    notes = " | ".join(search_notes(SearchConfig(**search)))
    assert [word for word in words if word not in notes] == []
    assert notes.endswith(", up to rounding and for translations that end before the length limit")


def test_every_setting_of_a_model_is_exported():
    """A new setting of a model fails here: export it to CTranslate2, or refuse it by name, as `qk_norm`."""
    names = (
        "num_encoder_layers num_decoder_layers d_model d_ff num_heads key_dim value_dim residual_dropout "
        "embedding_dropout attention_dropout relu_dropout norm_first layer_norm_epsilon positions "
        "max_positions tie_embeddings attention_bias output_bias source_vocab_size target_vocab_size "
        "attention_init depth_scaling max_relative_position norm activation qk_norm"
    )
    assert {field.name for field in dataclasses.fields(ModelConfig)} == set(names.split())


def test_names_of_tokens_are_unique_and_special_ones_are_themselves():
    names = Names(8, SpecialIds(pad=3, bos=5, eos=0, unk=1))
    names.entries[2], names.entries[4], names.entries[6] = ("text", "<s>"), ("text", "a"), ("byte", "a")
    names.entries[7] = ("text", "<s>#2")
    assert vocabulary_tokens(names) == ["</s>", "<unk>", "<s>#2", "<pad>", "a", "<s>", "a#6", "<s>#2#7"]


def make_run(folder, *, kind, **model):
    """A run folder with random weights."""
    if kind == "wordpiece":
        source = WordPieceTokenizer.train(TEXTS, vocab_size=48)
        tokenizers = Tokenizers(source, source)
    elif kind == "separate":
        tokenizers = Tokenizers(
            SubwordTokenizer.train(TEXTS, vocab_size=290), SubwordTokenizer.train(TEXTS[::-1], vocab_size=285)
        )
        model["tie_embeddings"] = "none"
    else:
        source = SubwordTokenizer.train(TEXTS, vocab_size=290)
        tokenizers = Tokenizers(source, source)
    sizes = dict(zip(("source_vocab_size", "target_vocab_size"), tokenizers.sizes, strict=True))
    config = Config(
        model=ModelConfig(**{**SIZES, **sizes, **model}),
        data=DataConfig(source="en", target="de", max_length=model.get("max_positions", 256)),
        search=SearchConfig(length_penalty="average", beam_size=2, max_source_length=40, max_length=30),
    )
    run = RunFolder.create(folder, config, tokenizers)
    keras.utils.set_random_seed(5)
    trained = Transformer(config.model)
    trained.compile(keras.optimizers.SGD())
    run.checkpoints(trained, trained.optimizer).save(0.0)
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "run", kind="shared")


@pytest.fixture(scope="module")
def folder(run, tmp_path_factory):
    return export_ctranslate2(run, tmp_path_factory.mktemp("out") / "exported", checkpoint="last")


@pytest.mark.parametrize("kind", ["separate", pytest.param("wordpiece", marks=pytest.mark.very_slow)])
def test_a_folder_translates_as_its_run_does(kind, tmp_path):
    run = make_run(tmp_path / "run", kind=kind)
    out = export_ctranslate2(run, tmp_path / "out", checkpoint="last")
    ours, theirs = Translator.load(run.path, checkpoint="last"), CTranslate2Translator(out)
    texts = ["The dog.", "", "A dog and a text. The dog reads a text." * 3, "  ", "Ein \ud800 Hund"]
    settings = {"beam_size": 1, "max_length": 9}
    found, expected = theirs.n_best(texts, **settings), ours.n_best(texts, **settings)
    assert [one.flags for one in found] == [one.flags for one in expected]
    assert [one.source_pieces for one in found] == [one.source_pieces for one in expected]
    assert [one.best.text for one in found] == [one.best.text for one in expected]
    assert theirs.translate(texts, **settings) == [one.best.text for one in expected]


@pytest.mark.slow
def test_n_best_translations_are_ranked_and_have_log_probabilities(folder, run):
    found = CTranslate2Translator(folder).n_best(["The dog."], n_best=2, max_length=6)[0].translations
    assert len(found) == 2
    assert found[0].score > found[1].score
    forced = ForcedDecoder(run.load_model(checkpoint="last"))
    source = [*run.load_tokenizers().source.encode(["The dog."])[0], 2]
    for one in found:
        expected = forced([source], [one.ids])[0].log_probs.sum()
        # What is never produced has lost its probability to the others: 3 of 290 tokens.
        assert one.log_prob == pytest.approx(expected, abs=0.03 * len(one.ids))
        assert one.score == pytest.approx(one.log_prob / len(one.ids) ** 0.6)


@pytest.mark.slow
def test_a_folder_is_complete_or_absent(run, tmp_path, monkeypatch):
    out = tmp_path / "deep" / "out"
    monkeypatch.setattr("keras_transformer.export.versions.write_manifest", lambda folder: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export_ctranslate2(run, out, checkpoint="last")
    assert list((tmp_path / "deep").iterdir()) == []


def test_the_same_run_gives_the_same_bytes(run, folder, tmp_path):
    again = export_ctranslate2(run, tmp_path / "again", checkpoint="last")
    assert sorted(path.name for path in again.iterdir()) == sorted(path.name for path in folder.iterdir())
    for path in folder.iterdir():
        assert path.read_bytes() == (again / path.name).read_bytes(), path.name


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quantization": "int4"}, r"`quantization` must be one of .*'int8'.*Received: 'int4'"),
        ({"checkpoint": "averaged"}, r"no 'averaged' weights"),
        ({"search": {"sampling": True}}, "Received: sampling=True. Set it to false: --no-sampling"),
        ({"search": {"mbr": True}}, "Received: mbr=True. Set it to false: --no-mbr"),
        ({"search": {"alpha": 30.0}}, "an alpha of at most 20. Received: alpha=30"),
        ({"search": {"tree_grammar": True}}, "`search.tree_grammar` is for parsing"),
    ],
)
def test_what_cannot_be_exported_is_refused(run, tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        export_ctranslate2(run, tmp_path / "out", **{"checkpoint": "last", **settings})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_query_key_norm_is_refused_by_name(tmp_path, capsys):
    run = make_run(tmp_path / "run", kind="shared", qk_norm=True)
    with pytest.raises(ValueError, match="run: CTranslate2 cannot compute model.qk_norm=true: it"):
        export_ctranslate2(run, tmp_path / "out", checkpoint="last")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    argv = [str(run.path), str(tmp_path / "out"), "--format", "ctranslate2", "--checkpoint", "last"]
    assert export_model.main(argv) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "model.qk_norm=true" in error


def test_a_run_that_samples_is_exported_and_converted_with_another_search(run, tmp_path):
    copy = RunFolder(shutil.copytree(run.path, tmp_path / "run"))
    copy.write_config(replace(copy.config, search={"sampling": True}))
    with pytest.raises(ValueError, match="Received: sampling=True. Set it to false: --no-sampling"):
        export_ctranslate2(copy, tmp_path / "out", checkpoint="last")
    out = export_ctranslate2(copy, tmp_path / "out", checkpoint="last", search={"sampling": False})
    wanted = CTranslate2Translator(out).translate(["The dog."], max_length=6)
    assert load_conversion(copy, "last").translate(["The dog."], max_length=6, sampling=False) == wanted


@pytest.mark.slow
def test_learned_positions_limit_lengths_as_in_tensorflow(tmp_path):
    run = make_run(tmp_path / "run", kind="shared", positions="learned", max_positions=33)
    search = {"beam_size": 1, "max_source_length": 2000, "max_length": 2000}
    assert choose_engine("auto", [run], replace(run.config.search, **search)).name == "ctranslate2"
    texts = ["The dog. " * 9, "A dog and a text."]
    found, wanted = (
        one.n_best(texts, **search)
        for one in (load_conversion(run, "last"), Translator.load(run.path, checkpoint="last"))
    )
    assert [one.best.ids for one in found] == [one.best.ids for one in wanted]
    assert max(len(one.best.ids) for one in found) > 30


def test_a_folder_in_use_is_refused(run, folder):
    with pytest.raises(ValueError, match="exists and is not an empty folder. Delete it"):
        export_ctranslate2(run, folder, checkpoint="last")


def test_a_run_is_told_from_an_export(run):
    with pytest.raises(
        ValueError, match="is a run folder. Export it first: keras-transformer export .* --format ctranslate2"
    ):
        CTranslate2Translator(run.path)


def test_what_ctranslate2_cannot_read_is_refused(folder, tmp_path):
    copy = pathlib.Path(shutil.copytree(folder, tmp_path / "copy"))
    (copy / "model.bin").write_bytes((folder / "model.bin").read_bytes()[:500])
    (copy / "manifest.sha256").unlink()
    write_manifest(copy)
    with pytest.raises(ValueError, match="copy: CTranslate2 cannot read it"):
        CTranslate2Translator(copy)


def test_without_ctranslate2_one_line_says_what_to_install(run, folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    for use in (lambda: export_ctranslate2(run, tmp_path / "out"), lambda: CTranslate2Translator(folder)):
        with pytest.raises(ValueError, match=r"pip install 'keras-transformer-translation\[ctranslate2\]'"):
            use()


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({"sampling": True}, "not available for CTranslate2 models here. Received: sampling=True"),
        ({"mbr": True}, "Minimum Bayes risk decoding is not available .* Received: mbr=True"),
        ({"beam_size": 0}, "`search.beam_size` must be from 1"),
        ({"alpha": 1e38}, "an alpha of at most 20. Received: alpha=1e"),
        ({"coverage_penalty": 0.2}, "coverage penalty is not available .* Received: coverage_penalty=0.2"),
        (
            {"max_source_length": 10**6},
            "the positions of the exported model. Received: max_source_length=1000000",
        ),
        (
            {"max_length": 41},
            "exceeds 40, the positions .* max_length=41. Export .* --max-length N",
        ),
        ({"tree_grammar": True}, "The tree grammar is not available .* Received: tree_grammar=True"),
    ],
)
def test_settings_that_ctranslate2_lacks_are_refused(folder, search, message):
    with pytest.raises(ValueError, match=message):
        CTranslate2Translator(folder).n_best(["x"], **search)


def test_as_many_positions_as_search_may_need():
    config = Config(search=SearchConfig(max_source_length=100, max_length=130))
    assert max_positions(config) == 130
    learned = Config(model=ModelConfig(positions="learned", max_positions=70), data=DataConfig(max_length=70))
    assert max_positions(learned) == 70


def test_the_program_exports_with_settings_of_search(run, tmp_path, capsys):
    out = tmp_path / "a b"
    argv = [str(run.path), str(out), "--format", "ctranslate2", "--checkpoint", "last"]
    assert export_model.main([*argv, "--quantization", "int8", "--beam-size", "3"]) == 0
    facts = json.loads((out / "keras_transformer.json").read_text())
    assert (facts["quantization"], facts["search"]["beam_size"], facts["weights"]) == ("int8", 3, "last")
    assert CTranslate2Translator(out).search.beam_size == 3
    printed = capsys.readouterr().out
    assert f"keras-transformer translate-ctranslate2 '{out}' < TEXT" in printed
    assert "int16" not in printed
    argv[1] = str(tmp_path / "int16")
    assert export_model.main([*argv, "--quantization", "int16"]) == 0
    assert "only Intel CPUs compute in int16; on other CPUs CTranslate2 loads" in capsys.readouterr().out
    assert export_model.main(argv) == 2
    assert "exists and is not an empty folder" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        export_model.parse_args([*argv, "--frozen"])
    assert "--frozen needs --format savedmodel, not ctranslate2" in capsys.readouterr().err


def translated(argv, text):
    output = io.BytesIO()
    code = translate_ctranslate2.main([str(one) for one in argv], io.BytesIO(text), output)
    return code, output.getvalue().decode()


def test_the_program_translates_line_by_line(folder):
    code, found = translated([folder, "--max-length", "8"], b"The dog.\n\nA \xff text.\n")
    expected = CTranslate2Translator(folder).translate(["The dog.", "", "A \ufffd text."], max_length=8)
    assert (code, found) == (0, "".join(f"{text}\n" for text in expected))
    code, found = translated([folder, "--format", "jsonl", "--max-length", "8"], b"The dog.\n\n")
    lines = [json.loads(line) for line in found.splitlines()]
    assert [line["line"] for line in lines] == [1, 2]
    wanted = CTranslate2Translator(folder).n_best(["The dog."], details=True, max_length=8)[0].best
    assert lines[0]["token_log_probs"] == pytest.approx(wanted.token_log_probs, abs=1e-4)
    assert lines[0]["alignment"] == [list(link) for link in wanted.alignment] != []
    assert len(lines[0]["token_log_probs"]) == len(wanted.ids)


def test_alignments_are_those_of_tensorflow_whatever_the_batch(folder, run):
    """CTranslate2's beam search gives a sentence another one's attention in the first step."""
    words = ["The", "dog", "reads", "a", "text", "and", "a", "hound", "reads", "a", "paper"]
    texts = [" ".join(words[i:] + words[: i % 5])[: 7 + 3 * i] for i in range(11)]
    settings = {"beam_size": 3, "n_best": 2, "early_stop": True, "length_penalty": "none", "details": True}
    theirs = CTranslate2Translator(folder)
    found = theirs.n_best(texts, max_length=5, **settings)
    links = [[each.alignment for each in one.translations] for one in found]
    alone = [theirs.n_best([text], max_length=5, **settings)[0].translations for text in texts]
    assert links == [[each.alignment for each in translations] for translations in alone]
    assert links == [
        [each.alignment for each in one.translations]
        for one in Translator.load(run.path, checkpoint="last").n_best(texts, max_length=5, **settings)
    ]
    assert len({str(one[0]) for one in links}) > 1


@pytest.mark.slow
def test_details_of_a_translation_that_is_cut_off_are_those_of_tensorflow(folder, run):
    """A forced pass has the end of sentence, too, which a translation at its limit lacks."""
    settings = {"beam_size": 1, "max_length_offset": 2, "details": True}
    ours, theirs = Translator.load(run.path, checkpoint="last"), CTranslate2Translator(folder)
    (mine,), (other,) = (one.n_best(TEXTS[:1], **settings) for one in (ours, theirs))
    assert mine.flags == other.flags == ["unfinished"]
    assert other.best.ids == mine.best.ids
    assert other.best.alignment == mine.best.alignment
    np.testing.assert_allclose(other.best.token_log_probs, mine.best.token_log_probs, atol=1e-4)
    assert other.best.log_prob == pytest.approx(mine.best.log_prob, abs=1e-3)


def test_the_program_refuses_in_one_line(folder, tmp_path, capsys):
    for argv, message in (
        ([tmp_path], "keras-transformer translate-ctranslate2: .*not an exported model"),
        ([folder, "--sampling"], "Received: sampling=True"),
        ([folder, "--beam-size", "0"], "argument --beam-size: must be from 1"),
        ([folder, "--seed", "4"], "--seed needs --sampling"),
    ):
        given = list(map(str, argv))
        assert code_of(translate_ctranslate2.main, given, io.BytesIO(b"x\n"), io.BytesIO()) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert re.search(message, error), error


@pytest.mark.slow
def test_the_program_needs_neither_tensorflow_nor_keras_nor_the_run(folder):
    code = (
        "import sys, io; from keras_transformer.cli import translate_ctranslate2 as program\n"
        f"assert program.main([{str(folder)!r}], io.BytesIO(b'The dog.\\n'), io.BytesIO()) == 0\n"
        "print(sorted({'tensorflow', 'keras', 'torch', 'jax'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_ctrl_c_ends_the_wait_for_a_translation():
    """`result` itself waits where no signal is handled."""
    wait = threading.Event()

    class Future:
        def result(self):
            os.kill(os.getpid(), signal.SIGINT)
            wait.wait()

    with pytest.raises(KeyboardInterrupt):
        _results_of([Future()])
    wait.set()


@pytest.mark.parametrize("in_main_thread", [True, False])
def test_results_are_in_order_and_an_error_is_raised(in_main_thread):
    class Future:
        def __init__(self, value):
            self._value = value

        def result(self):
            if self._value is None:
                raise RuntimeError("no memory")
            return self._value

    def found(*values):
        futures = list(map(Future, values))
        if in_main_thread:
            return _results_of(futures)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            return pool.submit(_results_of, futures).result()

    assert found(5, 3, 7) == [5, 3, 7]
    with pytest.raises(RuntimeError, match="no memory"):
        found(5, None, 7)
