"""Weights of an earlier run in a new model, found again by the text of each piece."""

import itertools
import json
import re

import keras
import numpy as np
import pytest
import sentencepiece

from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.config.settings import (
    Config,
    DataConfig,
    ModelConfig,
    SearchConfig,
    SpecialIds,
    TrainingConfig,
)
from keras_transformer.model.transformer import Transformer
from keras_transformer.tokenizers.sentencepiece import SubwordTokenizer
from keras_transformer.tokenizers.tokenizer_pair import Tokenizers, as_tokenizers
from keras_transformer.tokenizers.wordpiece import WordPieceTokenizer
from keras_transformer.training.fine_tuning import initialize_from
from keras_transformer.translation.translator import Translator

ENGLISH = ["The dog reads a text.", "A dog and a text.", "The dog runs."] * 2
GERMAN = ["Der Hund liest einen Text.", "Ein Hund und ein Text.", "Der Hund rennt."] * 2
OTHER = ["Le chien lit un texte.", "Un chien et un chat, le dog text."] * 3
SHAPE = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 8, "d_ff": 12, "num_heads": 2}
# Weights with a vocabulary axis, by the paper's ways of sharing.
WITH_VOCABULARY = {
    "all": {"embedding/embeddings"},
    "decoder": {"source_embedding/embeddings", "target_embedding/embeddings"},
    "none": {"source_embedding/embeddings", "target_embedding/embeddings", "output_projection/kernel"},
}


def bpe(texts, vocab_size, **settings):
    return SubwordTokenizer.train(texts, vocab_size=vocab_size, **settings)


def model_config(tokenizers, **changes):
    source, target = as_tokenizers(tokenizers).sizes
    return ModelConfig(**{**SHAPE, "source_vocab_size": source, "target_vocab_size": target, **changes})


@pytest.fixture
def make_run(tmp_path):
    """Makes run folders of drawn weights: the last ones and, half as large, the averaged."""
    numbers = itertools.count()

    def make(tokenizers, *, saved=True, **changes):
        config = Config(
            model=model_config(tokenizers, **changes),
            data=DataConfig(max_length=30, batch_tokens=400),
            training=TrainingConfig(average_last=2),
        )
        run = RunFolder.create(tmp_path / f"run-{next(numbers)}", config, tokenizers)
        if not saved:
            return run
        model, optimizer = Transformer(config.model), keras.optimizers.Adam()
        model.compile(optimizer)
        checkpoints = run.checkpoints(model, optimizer)
        rng = np.random.default_rng(0)
        values = [rng.normal(size=weight.shape) for weight in model.weights]
        for step in (1, 2):
            model.set_weights([(step - 1) * value for value in values])
            optimizer.iterations.assign(step)
            checkpoints.save(0.0)
        run.average(last=2)
        return run

    return make


def weights_of(model):
    return {weight.path.partition("/")[2]: weight.numpy() for weight in model.weights}


def start(run, tokenizers, **changes):
    """(weights of the run, weights when fresh, weights now, what is reported, the model)."""
    arguments = {name: changes.pop(name) for name in ("checkpoint",) if name in changes}
    model = Transformer(model_config(tokenizers, **changes))
    fresh = weights_of(model)
    report = initialize_from(model, tokenizers, run, **arguments)
    return weights_of(run.load_model(**arguments)), fresh, weights_of(model), report, model


def counts(report):
    """(kept, new, dropped) of each side that the report names."""
    found = re.findall(r"([\d,]+) of [\d,]+ (?:\w+ )?pieces kept, ([\d,]+) new, ([\d,]+) dropped", report)
    return [tuple(int(number.replace(",", "")) for number in numbers) for numbers in found]


def sentencepiece_ids(tokenizer):
    """{piece: id}, of the library itself."""
    theirs = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model_bytes)
    return {theirs.id_to_piece(number): number for number in range(theirs.get_piece_size())}


def wordpiece_ids(tokenizer):
    """{piece: id}, of the lines of the file."""
    lines = tokenizer.model_bytes.decode().splitlines()[1:]
    return {piece: number for number, piece in enumerate(lines, start=4)} | {
        ("special", number): number for number in range(4)
    }


def check_rows(before, fresh, now, old_ids, new_ids):
    """Compares arrays of which the first axis is the vocabulary; returns the number of rows kept."""
    for piece, number in new_ids.items():
        wanted = before[old_ids[piece]] if piece in old_ids else fresh[number]
        np.testing.assert_array_equal(now[number], wanted, err_msg=str(piece))
    return len(new_ids.keys() & old_ids.keys())


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("tie_embeddings", ["all", "decoder", "none"])
def test_the_same_vocabulary_gives_the_same_weights(make_run, tie_embeddings):
    tokenizer = bpe(ENGLISH + GERMAN, 310)
    run = make_run(tokenizer, tie_embeddings=tie_embeddings, output_bias=True)
    before, _, now, report, _ = start(run, tokenizer, tie_embeddings=tie_embeddings, output_bias=True)
    assert before.keys() == now.keys()
    for path, value in before.items():
        np.testing.assert_array_equal(now[path], value, err_msg=path)
    assert report == f"started from {run.path} (final): 310 of 310 pieces kept, 0 new, 0 dropped"


@pytest.mark.slow
def test_with_the_same_vocabulary_the_translations_are_those_of_the_run(make_run):
    tokenizer = bpe(ENGLISH, 290)
    run = make_run(tokenizer)
    model = start(run, tokenizer)[-1]
    search = SearchConfig(beam_size=2, max_length_offset=3)
    theirs = Translator(run.load_model(), run.load_tokenizers(), search).translate(ENGLISH[:3])
    assert len(set(theirs)) > 1
    assert Translator(model, tokenizer, search).translate(ENGLISH[:3]) == theirs


@pytest.mark.slow
def test_the_newest_checkpoint_can_be_chosen(make_run):
    tokenizer = bpe(ENGLISH, 290)
    run = make_run(tokenizer)
    averaged = start(run, tokenizer)[2]
    last, _, now, report, _ = start(run, tokenizer, checkpoint="last")
    for path, value in last.items():
        np.testing.assert_array_equal(now[path], value)
        np.testing.assert_allclose(averaged[path], value / 2, rtol=1e-6)
    assert f"{run.path} (last): " in report


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(("model_type", "sizes"), [("bpe", (295, 320)), ("unigram", (278, 281))])
def test_pieces_keep_their_rows_whatever_their_ids(make_run, model_type, sizes):
    old = bpe(ENGLISH, sizes[0], model_type=model_type)
    new = bpe(OTHER, sizes[1], model_type=model_type)
    run = make_run(old, output_bias=True)
    before, fresh, now, report, _ = start(run, new, output_bias=True)
    old_ids, new_ids = sentencepiece_ids(old), sentencepiece_ids(new)
    assert any(old_ids[piece] != new_ids[piece] for piece in old_ids.keys() & new_ids)
    for path in ("embedding/embeddings", "output_bias"):
        kept = check_rows(before[path], fresh[path], now[path], old_ids, new_ids)
    assert counts(report)[0] == (kept, sizes[1] - kept, sizes[0] - kept)
    assert min(counts(report)[0]) > 0
    for path in before.keys() - WITH_VOCABULARY["all"] - {"output_bias"}:
        np.testing.assert_array_equal(now[path], before[path], err_msg=path)


@pytest.mark.slow
def test_a_vocabulary_that_contains_the_earlier_one_drops_nothing(make_run):
    # Merges of BPE come one after the other: the longer list begins with the shorter.
    old, new = bpe(ENGLISH, 285), bpe(ENGLISH, 295)
    before, fresh, now, report, _ = start(make_run(old), new)
    assert counts(report)[0] == (285, 10, 0)
    path = "embedding/embeddings"
    assert check_rows(before[path], fresh[path], now[path], *map(sentencepiece_ids, (old, new))) == 285
    fresh_rows = now[path][
        sorted(set(range(295)) - {sentencepiece_ids(new)[p] for p in sentencepiece_ids(old)})
    ]
    # The scale of a fresh row, not that of the run's: N(0, 1 / d_model).
    assert 0.1 < fresh_rows.std() / 8**-0.5 < 2


@pytest.mark.slow
@pytest.mark.parametrize("tie_embeddings", ["decoder", "none"])
def test_two_vocabularies_are_matched_each_on_its_side(make_run, tie_embeddings):
    old = Tokenizers(bpe(ENGLISH, 290), bpe(GERMAN, 295))
    new = Tokenizers(bpe(ENGLISH + OTHER, 298), bpe(GERMAN + OTHER, 303))
    run = make_run(old, tie_embeddings=tie_embeddings, output_bias=True)
    before, fresh, now, report, _ = start(run, new, tie_embeddings=tie_embeddings, output_bias=True)
    ids = [[sentencepiece_ids(tokenizer) for tokenizer in side] for side in zip(old, new, strict=True)]
    kept = [0, 0]
    for path in WITH_VOCABULARY[tie_embeddings] | {"output_bias"}:
        side = 0 if path.startswith("source") else 1
        arrays = [found[path].T if path.endswith("kernel") else found[path] for found in (before, fresh, now)]
        kept[side] = check_rows(*arrays, *ids[side])
    assert counts(report)[0] == (kept[0], 298 - kept[0], 290 - kept[0])
    assert counts(report)[1] == (kept[1], 303 - kept[1], 295 - kept[1])
    assert report == (
        f"started from {run.path} (final): {kept[0]} of 298 source pieces kept, {298 - kept[0]} new, "
        f"{290 - kept[0]} dropped; {kept[1]} of 303 target pieces kept, {303 - kept[1]} new, "
        f"{295 - kept[1]} dropped"
    )


@pytest.mark.slow
def test_word_pieces_are_matched_by_their_lines(make_run):
    old = WordPieceTokenizer.train(ENGLISH, vocab_size=40)
    new = WordPieceTokenizer.train(OTHER, vocab_size=44)
    before, fresh, now, report, _ = start(make_run(old), new)
    path = "embedding/embeddings"
    kept = check_rows(before[path], fresh[path], now[path], wordpiece_ids(old), wordpiece_ids(new))
    assert counts(report)[0] == (kept, 44 - kept, 40 - kept)
    assert min(counts(report)[0]) > 0


@pytest.mark.slow
def test_word_pieces_find_the_pieces_of_a_sentencepiece_vocabulary(make_run):
    old, new = bpe(ENGLISH, 300), WordPieceTokenizer.train(ENGLISH, vocab_size=40)
    before, fresh, now, report, _ = start(make_run(old), new)
    names = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3}
    old_ids = sentencepiece_ids(old)
    assert {name: old_ids[name] for name in names} == names
    old_ids = {("special", names[p]) if p in names else p: number for p, number in old_ids.items()}
    path = "embedding/embeddings"
    kept = check_rows(before[path], fresh[path], now[path], old_ids, wordpiece_ids(new))
    assert counts(report)[0][0] == kept > 10


@pytest.mark.slow
def test_entries_tell_bytes_and_roles_from_text():
    special = SpecialIds(pad=3, bos=0, eos=1, unk=2)
    texts = ["<pad> <0x41> pad <s> A"] * 9
    for tokenizer in (
        bpe(texts, 270, special=special),
        WordPieceTokenizer.train(texts, vocab_size=28, special=special),
    ):
        entries = tokenizer.entries
        assert len(entries) == len(set(entries)) == tokenizer.vocab_size
        assert entries[:4] == [("special", role) for role in ("bos", "eos", "unk", "pad")]
        assert [kind for kind, _ in entries].count("special") == 4
        [ids] = tokenizer.encode([texts[0]])
        assert [entries[number][1] for number in ids] == tokenizer.pieces(texts[:1])[0]
    found = bpe(texts, 270).entries
    assert [entry for entry in found if entry[0] == "byte"] == [("byte", f"<0x{b:02X}>") for b in range(256)]


def test_a_byte_is_not_the_text_that_its_name_spells():
    header = {"format": "word pieces 1", "vocab_size": 18, "normalization": "nfc"}
    special = {"pad": 0, "bos": 1, "eos": 2, "unk": 3}
    lines = [json.dumps({**header, "special": special}), *"\u2581\\;0123456789", "<0x41>", ""]
    spelled = WordPieceTokenizer("\n".join(lines).encode())
    assert ("text", "<0x41>") in spelled.entries
    with_bytes = bpe(ENGLISH, 290)
    assert "<0x41>" in sentencepiece_ids(with_bytes)
    shared = set(spelled.entries) & set(with_bytes.entries)
    assert shared == {("special", role) for role in special} | {("text", "\u2581")}


@pytest.mark.slow
def test_dropout_rates_unused_positions_and_initial_matrices_may_differ(make_run):
    tokenizer = bpe(ENGLISH, 290)
    run = make_run(tokenizer, key_dim=4)
    changes = {"residual_dropout": 0.3, "embedding_dropout": 0.0, "attention_dropout": 0.2}
    changes |= {"relu_dropout": 0.1, "max_positions": 7, "attention_init": "separate"}
    changes |= {"max_relative_position": 5}
    before, _, now, _, _ = start(run, tokenizer, **changes)
    for path, value in before.items():
        np.testing.assert_array_equal(now[path], value)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("earlier", "changes", "message"),
    [
        ({}, {"d_model": 16}, r"Received: model.d_model 8 -> 16\. .* --set model.d_model=8; or"),
        (
            {},
            {"d_ff": 16, "num_heads": 4},
            r"Received: model.d_ff 12 -> 16, model.num_heads 2 -> 4\. .*d_ff=12 --set model.num_heads=2; or",
        ),
        ({}, {"tie_embeddings": "decoder"}, "model.tie_embeddings all -> decoder"),
        ({"output_bias": True}, {}, "model.output_bias True -> False"),
        ({}, {"num_decoder_layers": 2}, "model.num_decoder_layers 1 -> 2"),
        ({}, {"norm_first": True}, "model.norm_first False -> True"),
        ({}, {"key_dim": 3}, "model.key_dim None -> 3"),
        (
            {"positions": "learned", "max_positions": 40},
            {"positions": "learned", "max_positions": 50},
            "model.max_positions 40 -> 50",
        ),
    ],
)
def test_another_shape_is_refused_in_one_line_and_nothing_changes(make_run, earlier, changes, message):
    tokenizer = bpe(ENGLISH, 290)
    run = make_run(tokenizer, saved=False, **earlier)
    model = Transformer(model_config(tokenizer, **changes))
    before = model.get_weights()
    with pytest.raises(ValueError, match=message) as caught:
        initialize_from(model, tokenizer, run)
    assert str(caught.value).startswith(f"{run.path}: ")
    assert "\n" not in str(caught.value)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.slow
def test_learned_positions_of_the_same_number_are_copied(make_run):
    old, new = bpe(ENGLISH, 285), bpe(ENGLISH, 295)
    changes = {"positions": "learned", "max_positions": 40}
    before, _, now, _, _ = start(make_run(old, **changes), new, **changes)
    path = "embedding/position_embeddings"
    np.testing.assert_array_equal(now[path], before[path])


@pytest.mark.slow
def test_tokenizers_of_another_model_are_refused(make_run):
    tokenizer = bpe(ENGLISH, 290)
    run = make_run(tokenizer, saved=False)
    with pytest.raises(ValueError, match="its vocabularies must have the same sizes"):
        initialize_from(Transformer(model_config(tokenizer)), bpe(ENGLISH, 285), run)


@pytest.mark.slow
def test_a_model_of_half_precision_and_another_name_takes_the_weights(make_run):
    tokenizer = bpe(ENGLISH, 290)
    run = make_run(tokenizer)
    model = Transformer(model_config(tokenizer), name="other", dtype="mixed_bfloat16")
    initialize_from(model, tokenizer, run)
    for ours, theirs in zip(model.get_weights(), run.load_model().get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
