"""Given translations scored: against softmax in NumPy and against the training metric."""

import io
import json
import logging
import math
import pathlib

import keras
import numpy as np
import pytest

from keras_transformer.batches.dataset import token_batches
from keras_transformer.batches.ids import encode_pairs
from keras_transformer.batches.planning import EpochPlanner
from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.cli import score
from keras_transformer.config.settings import Config, ModelConfig, SearchConfig
from keras_transformer.model.loss import LabelSmoothedCrossEntropy
from keras_transformer.model.metrics import Perplexity
from keras_transformer.model.transformer import Transformer
from keras_transformer.tokenizers.sentencepiece import SubwordTokenizer
from keras_transformer.tokenizers.tokenizer_pair import Tokenizers
from keras_transformer.tokenizers.wordpiece import WordPieceTokenizer
from keras_transformer.translation import scorer as scorer_module
from keras_transformer.translation.alignment import (
    hard_alignment,
    soft_alignment,
)
from keras_transformer.translation.scorer import ForcedDecoder, Scorer, TooLongError, perplexity

SOURCES = [
    "The dog reads a text.",
    "a",
    "The dog reads.",
    "The dog reads the text, and the dog reads it.",
    "",
    "Dog and text",
]
TARGETS = [
    "Ein Hund liest einen Text.",
    "Hund",
    "",
    "Der Hund liest.",
    "Ein",
    "Der Hund liest den Text, und der Hund liest ihn.",
]


@pytest.fixture(scope="module")
def tokenizers():
    source = SubwordTokenizer.train([text for text in SOURCES if text] * 3, vocab_size=290)
    return Tokenizers(source, WordPieceTokenizer.train([text for text in TARGETS if text], vocab_size=44))


def make_model(tokenizers, dtype=None, **changes):
    config = {
        "num_encoder_layers": 1,
        "num_decoder_layers": 2,
        "d_model": 16,
        "d_ff": 24,
        "num_heads": 2,
        "source_vocab_size": tokenizers.sizes[0],
        "target_vocab_size": tokenizers.sizes[1],
        "tie_embeddings": "none",
        **changes,
    }
    model = Transformer(ModelConfig(**config), dtype=dtype)
    rng = np.random.default_rng(3)
    for weight in model.trainable_weights:
        weight.assign(rng.normal(0, 0.5, weight.shape))
    return model


@pytest.fixture(scope="module")
def model(tokenizers):
    return make_model(tokenizers)


@pytest.fixture(scope="module")
def scorer(model, tokenizers):
    return Scorer(model, tokenizers)


def rows_of(tokenizer, texts):
    return [[*row, tokenizer.special.eos] for row in tokenizer.encode(texts)]


def by_hand(model, source_ids, target_ids):
    """float64 log-probabilities of one pair, alone, from the logits of a call."""
    # Keras warns of a softmax over one position: padding follows.
    source = np.array([[*source_ids, model.special.pad]])
    inputs = np.array([[model.special.bos, *target_ids[:-1], model.special.pad]])
    logits = model((source, inputs), training=False).numpy().astype(np.float64)[0]
    logits -= logits.max(-1, keepdims=True)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return log_probs[np.arange(len(target_ids)), target_ids]


def test_log_probabilities_are_those_of_softmax_over_the_logits_of_each_pair_alone(scorer, tokenizers):
    rows = [rows_of(*side) for side in zip(tokenizers, (SOURCES, TARGETS), strict=True)]
    found = scorer.score(SOURCES, TARGETS)
    for scored, source_ids, target_ids in zip(found, *rows, strict=True):
        expected = by_hand(scorer.model, source_ids, target_ids)
        np.testing.assert_allclose(scored.log_probs, expected, rtol=1e-5, atol=1e-5)
        assert scored.log_prob == pytest.approx(expected.sum(), rel=1e-5)
        assert scored.log_probs.dtype == np.float32
    assert [scored.target_pieces for scored in found] == tokenizers.target.pieces(TARGETS)
    assert [scored.source_pieces for scored in found] == tokenizers.source.pieces(SOURCES)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("batch_tokens", [1, 30, 10_000])
def test_neighbours_order_and_budget_change_nothing(model, tokenizers, scorer, batch_tokens):
    alone = [scorer.score([a], [b], layers=(0, 1))[0] for a, b in zip(SOURCES, TARGETS, strict=True)]
    other = Scorer(model, tokenizers, batch_tokens=batch_tokens)
    for order in (slice(None), slice(None, None, -1)):
        together = other.score(SOURCES[order], TARGETS[order], layers=(0, 1))
        for one, another in zip(together, alone[order], strict=True):
            np.testing.assert_allclose(one.log_probs, another.log_probs, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(one.attention, another.attention, atol=1e-6)


@pytest.mark.slow
def test_no_batch_is_over_the_budget_on_either_side(model, monkeypatch):
    shapes = []
    forced = ForcedDecoder(model, batch_tokens=24)

    def pad_rows(rows, pad):
        shapes.append((len(rows), max(map(len, rows))))
        return plain(rows, pad)

    plain = scorer_module.pad_rows
    monkeypatch.setattr(scorer_module, "pad_rows", pad_rows)
    rng = np.random.default_rng(0)
    rows = [[4] * length for length in rng.integers(1, 13, 40)], [[5] * n for n in rng.integers(1, 13, 40)]
    assert len(forced(*rows)) == 40
    assert all(number * length <= 24 for number, length in shapes)
    assert len(shapes) // 2 < 30  # and they are batches


@pytest.mark.slow
def test_perplexity_is_that_of_training_without_smoothing(scorer, tokenizers):
    pairs = encode_pairs(SOURCES, TARGETS, *tokenizers)
    batches = token_batches(pairs, EpochPlanner(*pairs.lengths, batch_tokens=256))
    scorer.model.compile(loss=LabelSmoothedCrossEntropy(0.1), metrics=[Perplexity()])
    measured = scorer.model.evaluate(batches, return_dict=True, verbose=0)["perplexity"]
    assert perplexity(scorer.score(SOURCES, TARGETS)) == pytest.approx(measured, rel=1e-5)


@pytest.mark.slow
def test_log_probabilities_are_float32_under_mixed_precision(tokenizers):
    model = make_model(tokenizers, dtype="mixed_bfloat16")
    found = Scorer(model, tokenizers).score(SOURCES[:1], TARGETS[:1])[0]
    source, target = (rows_of(*side)[0] for side in zip(tokenizers, (SOURCES, TARGETS), strict=True))
    assert found.log_probs.dtype == np.float32
    # bfloat16 logits differ with the shape of the batch, by a hundredth of their size.
    np.testing.assert_allclose(found.log_probs, by_hand(model, source, target), rtol=0.05, atol=0.05)
    assert not np.array_equal(found.log_probs, keras.ops.cast(found.log_probs, "bfloat16"))


@pytest.mark.slow
def test_scores_follow_the_weights(tokenizers):
    model = make_model(tokenizers)
    scorer = Scorer(model, tokenizers)
    before = scorer.score(SOURCES[:1], TARGETS[:1])[0].log_prob
    model.set_weights([0.5 * weight for weight in model.get_weights()])
    assert abs(scorer.score(SOURCES[:1], TARGETS[:1])[0].log_prob - before) > 0.1


@pytest.mark.slow
def test_ids_are_scored_as_they_are_with_or_without_an_end(scorer, tokenizers):
    sources = rows_of(tokenizers.source, SOURCES[:3])
    letters = [tokenizers.target.encode([letter])[0][-1] for letter in "Hund"]
    rows = [[*letters, 2], letters, []]  # pieces that no text would give; cut off; nothing
    decoder = ForcedDecoder(scorer.model)
    whole, cut, nothing = decoder([sources[0]] * 3, rows, layers=(1,))
    np.testing.assert_allclose(whole.log_probs, by_hand(scorer.model, sources[0], rows[0]), rtol=1e-5)
    np.testing.assert_allclose(cut.log_probs, whole.log_probs[:-1], rtol=1e-5)
    np.testing.assert_allclose(cut.attention, whole.attention[:, :-1], atol=1e-6)
    assert (nothing.log_probs.shape, nothing.attention.shape) == ((0,), (1, 0, len(sources[0])))
    only_nothing = decoder(sources[:1], [[]])[0]
    assert (only_nothing.log_probs.shape, only_nothing.attention.shape) == ((0,), (0, 0, len(sources[0])))


@pytest.mark.slow
def test_attention_is_the_models_mean_of_the_heads_asked_for(scorer, tokenizers):
    source, target = (rows_of(*side)[0] for side in zip(tokenizers, (SOURCES, TARGETS), strict=True))
    inputs = np.array([source]), np.array([[1, *target[:-1]]])
    weights = scorer.model.attend(inputs, cross=(0, 1)).cross
    for heads, chosen in (((), [0, 1]), ((1,), [1])):
        found = scorer.score(SOURCES, TARGETS, layers=(1, 0), heads=heads)[0].attention
        expected = [np.asarray(weights[layer])[0, chosen].mean(0) for layer in (1, 0)]
        np.testing.assert_allclose(found, expected, atol=1e-6)
    assert scorer.score(SOURCES, TARGETS)[0].attention.shape == (0, len(target), len(source))


@pytest.mark.parametrize(
    ("change", "message"),
    [({"layers": (2,)}, "`layers` .* 0 to 1. Received: .2,"), ({"heads": (-1,)}, "`heads` .* 0 to 1")],
)
def test_a_layer_or_head_that_is_not_there_is_refused(scorer, change, message):
    with pytest.raises(ValueError, match=message):
        scorer.score(SOURCES, TARGETS, **change)


def test_other_numbers_of_texts_are_refused(scorer):
    with pytest.raises(ValueError, match="Received: 2 and 1"):
        scorer.score(SOURCES[:2], TARGETS[:1])


def test_a_text_that_is_too_long_is_refused_and_never_cut(model, tokenizers):
    scorer = Scorer(model, tokenizers, max_length=9)
    with pytest.raises(TooLongError, match="`sources`: text 1: [0-9]+ tokens .* more than the limit of 9"):
        scorer.score([SOURCES[1], SOURCES[3]], TARGETS[1:3])


def test_learned_positions_limit_texts(tokenizers):
    model = make_model(tokenizers, positions="learned", max_positions=9)
    with pytest.raises(TooLongError, match="`targets`: text 0: .* more than the limit of 9"):
        Scorer(model, tokenizers).score(["a"], TARGETS[-1:])


# The program.


@pytest.fixture(scope="module")
def run(model, tokenizers, tmp_path_factory):
    config = Config(model=model.config, search=SearchConfig(max_source_length=60))
    run = RunFolder.create(tmp_path_factory.mktemp("runs") / "run", config, tokenizers)
    optimizer = keras.optimizers.Adam()
    model.compile(optimizer)
    run.checkpoints(model, optimizer).save(0.0)
    return run.path


@pytest.fixture
def files(tmp_path):
    paths = tmp_path / "text.en", tmp_path / "text.de"
    for path, texts in zip(paths, (SOURCES, TARGETS), strict=True):
        path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return [str(path) for path in paths]


def run_program(run, *more, data=b""):
    stdout = io.BytesIO()
    code = score.main([str(run), "--checkpoint", "last", *more], stdin=io.BytesIO(data), stdout=stdout)
    return code, stdout.getvalue().decode("utf-8").split("\n")[:-1]


@pytest.mark.slow
def test_one_log_probability_a_line_and_the_perplexity_at_the_end(run, files, scorer, capsys):
    expected = scorer.score(SOURCES, TARGETS)
    code, lines = run_program(run, "--source", files[0], "--target", files[1])
    assert code == 0
    np.testing.assert_allclose(list(map(float, lines)), [one.log_prob for one in expected], atol=2e-5)
    summary = capsys.readouterr().err
    tokens = sum(len(one.log_probs) for one in expected)
    assert summary.startswith(f"6 sentences, {tokens} target tokens, ")
    total = sum(one.log_prob for one in expected)
    printed = float(summary.split("perplexity ")[1].split()[0])
    assert printed == pytest.approx(math.exp(-total / tokens), rel=1e-5)


@pytest.mark.slow
def test_columns_of_standard_input_and_chunks_change_nothing(run, files):
    data = "".join(f"{a}\t{b}\tmore\n" for a, b in zip(SOURCES, TARGETS, strict=True)).encode()
    _, expected = run_program(run, "--source", files[0], "--target", files[1])
    for more in ((), ("--chunk-lines", "2")):
        code, lines = run_program(run, *more, data=data)
        assert code == 0
        np.testing.assert_allclose(list(map(float, lines)), list(map(float, expected)), atol=2e-5)


@pytest.mark.slow
def test_tokens_and_alignments_follow_after_tabs(run, files, scorer):
    expected = scorer.score(SOURCES, TARGETS, layers=(0, 1))
    arguments = ["--source", files[0], "--target", files[1], "--per-token", "--alignment", "hard"]
    _, lines = run_program(run, *arguments, "--alignment-unit", "pieces")
    _, other = run_program(
        run, *arguments, "--alignment-unit", "pieces", "--alignment-layer", "1", "--alignment-step", "input"
    )
    for line, another, one in zip(lines, other, expected, strict=True):
        total, tokens, links = line.split("\t")
        np.testing.assert_allclose(list(map(float, tokens.split())), one.log_probs, atol=1e-5)
        assert float(total) == pytest.approx(one.log_prob, abs=2e-5)
        for found, layer, convention in ((links, 0, "output"), (another.split("\t")[2], 1, "input")):
            wanted = hard_alignment(
                one.attention[layer],
                one.source_pieces,
                one.target_pieces,
                convention=convention,
                unit="pieces",
            )
            assert found == " ".join(f"{source}-{target}" for source, target in wanted)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_json_lines_hold_all_that_is_known(run, files, scorer, kind):
    expected = scorer.score(SOURCES, TARGETS, layers=(0,), heads=(1,))
    arguments = ["--source", files[0], "--target", files[1], "--format", "jsonl"]
    _, lines = run_program(run, *arguments, "--alignment", kind, "--alignment-head", "1")
    make = hard_alignment if kind == "hard" else soft_alignment
    for line, source, target, one in zip(lines, SOURCES, TARGETS, expected, strict=True):
        record = json.loads(line)
        assert (record["source"], record["target"]) == (source, target)
        assert record["source_pieces"] == one.source_pieces
        assert record["target_pieces"] == one.target_pieces
        np.testing.assert_allclose(record["log_probs"], one.log_probs, atol=1e-5)
        assert record["log_prob"] == pytest.approx(one.log_prob, abs=2e-5)
        wanted = make(one.attention[0], one.source_pieces, one.target_pieces, convention="output")
        assert len(record["alignment"]) == len(wanted)
        for found, expected_row in zip(record["alignment"], wanted, strict=True):
            np.testing.assert_allclose(found, expected_row, atol=1e-4)


@pytest.mark.slow
def test_the_output_file_is_complete_or_absent(run, files, tmp_path, capsys):
    _, expected = run_program(run, "--source", files[0], "--target", files[1])
    output = tmp_path / "scores"
    code, lines = run_program(run, "--source", files[0], "--target", files[1], "--output", str(output))
    assert (code, lines) == (0, [])
    assert output.read_text(encoding="utf-8").split("\n")[:-1] == expected
    output.unlink()
    data = b"a\tb\nno tab\n"
    code, _ = run_program(run, "--output", str(output), "--chunk-lines", "1", data=data)
    assert code == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.de", "text.en"]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("data", "number"),
    [
        (b"", 0),
        (b"\n\n", 2),
        (b"a\tb", 1),
        (b"\tb\r\na\t\r\n", 2),
        (b"\xff\t\xfe\n", 1),
        ("a\tb\x85c\n".encode(), 1),
    ],
)
def test_odd_input_gives_as_many_lines(run, data, number, caplog):
    with caplog.at_level(logging.WARNING):
        code, lines = run_program(run, data=data)
    assert (code, len(lines)) == (0, number)
    assert all(map(math.isfinite, map(float, lines)))
    assert ("replaced invalid UTF-8" in caplog.text) == (b"\xff" in data)


@pytest.mark.slow
def test_bytes_in_files_that_are_not_utf_8_are_replaced_and_counted(run, files, caplog):
    pathlib.Path(files[1]).write_bytes(b"\xff\n" * 6)
    with caplog.at_level(logging.WARNING):
        code, lines = run_program(run, "--source", files[0], "--target", files[1], "--chunk-lines", "4")
    assert (code, len(lines)) == (0, 6)
    assert f"{files[1]}: replaced invalid UTF-8 on 6 lines" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--target", "{folder}/none.de"], ["none.de: no such file"]),
        (["--target", "{folder}/short.de"], ["text.en and ", "Received: 6 and 2 lines"]),
        (["--target", "{folder}/empty.de"], ["empty.de: the file is empty"]),
        (["--max-length", "12"], ["text.en: line 4: ", "more than the limit of 12", "--max-length"]),
        (["--max-length", "0"], ["`max_length` must be at least 1"]),
        (["--batch-tokens", "0"], ["`batch_tokens` must be at least 1"]),
        (["--checkpoint", "best"], ["no 'best' weights. Available: `last`"]),
        (["--alignment", "hard", "--alignment-layer", "2"], ["`layers` must hold numbers from 0 to 1"]),
        (["--alignment", "hard", "--alignment-head", "2"], ["`heads` must hold numbers from 0 to 1"]),
        (["--output", "{folder}/none/scores"], ["its folder does not exist"]),
    ],
)
def test_bad_arguments_are_refused_in_one_line_before_any_score(
    run, files, tmp_path, capsys, arguments, words
):
    (tmp_path / "short.de").write_text("eins\nzwei\n", encoding="utf-8")
    (tmp_path / "empty.de").write_bytes(b"")
    arguments = [argument.format(folder=tmp_path) for argument in arguments]
    code, lines = run_program(run, "--source", files[0], "--target", files[1], *arguments)
    captured = capsys.readouterr().err
    assert (code, lines) == (2, [])
    assert captured.startswith("keras-transformer score: ")
    assert captured.count("\n") == 1
    assert all(word in captured for word in words)


def test_a_folder_that_is_no_run_is_refused(tmp_path, capsys):
    assert score.main([str(tmp_path)]) == 2
    assert "not a run folder" in capsys.readouterr().err


@pytest.mark.slow
def test_a_line_without_a_tab_is_refused_with_its_number(run, capsys):
    code, _ = run_program(run, "--chunk-lines", "2", data=b"a\tb\n\nc\td\nno tab\n")
    assert code == 2
    assert "keras-transformer score: standard input: line 4: no tab" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--source", "x"], "give both --source and --target"),
        (["--chunk-lines", "0"], "--chunk-lines must be at least 1, not 0"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        score.main(["run", *arguments])
    assert message in capsys.readouterr().err
