"""Text in, text out: against greedy search by hand, with full forward passes in NumPy."""

import logging

import keras
import numpy as np
import pytest

from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.config.settings import Config, ModelConfig, SearchConfig
from keras_transformer.model.transformer import Transformer
from keras_transformer.tokenizers.sentencepiece import SubwordTokenizer
from keras_transformer.tokenizers.tokenizer_pair import Tokenizers
from keras_transformer.tokenizers.wordpiece import WordPieceTokenizer
from keras_transformer.translation import search_inputs
from keras_transformer.translation.alignment import hard_alignment
from keras_transformer.translation.ensemble import search_ids
from keras_transformer.translation.scorer import ForcedDecoder
from keras_transformer.translation.texts import Part
from keras_transformer.translation.translator import MAX_COMPILED, Translator

TEXTS = [
    "The dog reads a text.",
    "a",
    "Ein Hund liest einen Text.",
    "The dog reads.",
    "Hund und Text",
    "The dog reads the text, and the dog reads it.",
]
EXTRA = 4


@pytest.fixture(scope="module")
def tokenizer():
    return SubwordTokenizer.train(TEXTS * 3, vocab_size=310)


def make_model(tokenizer, *, seed=0, **changes):
    """A model of random weights, large enough that sentences get different words."""
    config = {
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "d_model": 16,
        "d_ff": 24,
        "num_heads": 2,
        "output_bias": True,
        "source_vocab_size": tokenizer.vocab_size,
        "target_vocab_size": tokenizer.vocab_size,
        "tie_embeddings": "none",
        **changes,
    }
    model = Transformer(ModelConfig(**config))
    rng = np.random.default_rng(seed)
    for weight in model.trainable_weights:
        weight.assign(rng.normal(0, 0.7, weight.shape))
    bias_of_eos(model, 0.0)
    model.output_projection.kernel.assign(1.5 * model.output_projection.kernel)
    return model


@pytest.fixture(scope="module")
def model(tokenizer):
    return make_model(tokenizer, seed=2)


def bias_of_eos(model, bias):
    new = np.zeros(model.output_bias.shape, np.float32)
    new[model.special.eos] = bias
    model.output_bias.assign(new)


@pytest.fixture(scope="module")
def translator(model, tokenizer):
    return Translator(model, tokenizer, SearchConfig(beam_size=3, max_length_offset=EXTRA))


@pytest.fixture(scope="module")
def translator_that_ends(tokenizer):
    """Ends some translations below the limit, and not all at one position."""
    model = make_model(tokenizer, seed=2)
    bias_of_eos(model, 11.0)
    return Translator(model, tokenizer, SearchConfig(beam_size=1, max_length_offset=EXTRA))


def log_probabilities(model, source_ids, prefix):
    """float64, shape `(len(prefix), vocab_size)`, from one pass over the whole prefix."""
    # Keras warns of a softmax over one position: padding follows.
    padding = [model.special.pad] * (len(prefix) == 1)
    inputs = np.array([source_ids]), np.array([prefix + padding])
    logits = model(inputs, training=False)[0, : len(prefix)].numpy().astype(np.float64)
    largest = logits.max(-1, keepdims=True)
    return logits - largest - np.log(np.exp(logits - largest).sum(-1, keepdims=True))


def greedy_by_hand(model, source_ids, limit, begun=()):
    special = model.special
    prefix = [special.bos, *begun]
    while len(prefix) <= limit:
        last = log_probabilities(model, source_ids, prefix)[-1]
        last[[special.pad, special.bos, special.unk]] = -np.inf
        prefix.append(int(last.argmax()))
        if prefix[-1] == special.eos:
            break
    return prefix[1:]


def with_eos(tokenizer, text):
    return [*tokenizer.encode([text])[0], tokenizer.special.eos]


def all_greedy_by_hand(translator):
    expected = []
    for text in TEXTS:
        source_ids = with_eos(translator.tokenizers.source, text)
        limit = len(source_ids) + EXTRA
        expected.append(greedy_by_hand(translator.models[0], source_ids, limit))
    return expected


def test_greedy_search_takes_the_most_probable_token_of_full_forward_passes(translator, tokenizer):
    expected = all_greedy_by_hand(translator)
    assert len({tuple(ids) for ids in expected}) == len(TEXTS)
    assert translator.translate(TEXTS, beam_size=1) == tokenizer.decode(expected)


@pytest.mark.slow
def test_greedy_search_ends_where_full_forward_passes_end(translator_that_ends, tokenizer):
    expected = all_greedy_by_hand(translator_that_ends)
    assert {ids[-1] == tokenizer.special.eos for ids in expected} == {True, False}
    assert len(set(map(len, expected))) > 2
    assert translator_that_ends.translate(TEXTS) == tokenizer.decode(expected)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("beam_size", [1, 3])
def test_the_score_is_the_penalised_log_probability_of_the_tokens(model, tokenizer, beam_size):
    source_ids = with_eos(tokenizer, TEXTS[3])
    config = SearchConfig(beam_size=beam_size, alpha=0.9, max_length_offset=5)
    found = search_ids(model, np.array([source_ids], np.int32), config)
    ids = found.ids[0, 0].numpy()[: int(found.lengths[0, 0])]
    all_log_probs = log_probabilities(model, source_ids, [model.special.bos, *ids[:-1].tolist()])
    log_prob = sum(all_log_probs[i, one] for i, one in enumerate(ids))
    paper = log_prob / ((5 + len(ids)) / 6) ** 0.9
    np.testing.assert_allclose(float(found.scores[0, 0]), paper, rtol=1e-5)


@pytest.mark.slow
def test_beam_search_finds_nothing_worse_than_greedy_search(translator, model, tokenizer):
    better = 0
    for text in TEXTS[1:5]:
        source_ids = np.array([with_eos(tokenizer, text)], np.int32)
        greedy, beam = (
            search_ids(model, source_ids, SearchConfig(beam_size=size, alpha=0, max_length_offset=1))
            for size in (1, 6)
        )
        if bool(greedy.finished[0, 0]) == bool(beam.finished[0, 0]):
            assert float(beam.scores[0, 0]) >= float(greedy.scores[0, 0]) - 1e-5
            better += float(beam.scores[0, 0]) > float(greedy.scores[0, 0]) + 1e-3
    assert better


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("beam_size", [1, 3])
def test_neighbours_in_the_batch_change_nothing(translator, beam_size):
    alone = [translator.translate([text], beam_size=beam_size)[0] for text in TEXTS]
    assert len(set(alone)) == len(TEXTS)
    assert translator.translate(TEXTS, beam_size=beam_size) == alone


@pytest.mark.slow
def test_neighbours_that_end_earlier_change_nothing(translator_that_ends):
    alone = [translator_that_ends.translate([text])[0] for text in TEXTS]
    assert len(set(map(len, alone))) > 2
    assert translator_that_ends.translate(TEXTS) == alone


def test_translations_come_in_the_order_of_the_texts(translator):
    forwards = translator.translate(TEXTS)
    assert translator.translate(TEXTS[::-1]) == forwards[::-1]
    assert translator.translate(TEXTS + TEXTS) == forwards + forwards


@pytest.mark.parametrize("batch_tokens", [1, 37])
def test_the_batch_budget_changes_nothing(translator, batch_tokens):
    assert translator.translate(TEXTS, batch_tokens=batch_tokens) == translator.translate(TEXTS)


def test_no_text_gives_no_translation(translator):
    assert translator.translate([]) == []


def test_blank_texts_give_blank_translations_and_shift_nothing(translator):
    filled = translator.translate([TEXTS[0], TEXTS[3]])
    found = translator.translate(["", TEXTS[0], "   ", TEXTS[3], ""])
    assert found == ["", filled[0], "", filled[1], ""]
    assert all(filled)


def test_only_blank_texts_give_as_many_blank_translations(translator):
    assert translator.translate(["", "  "]) == ["", ""]


def test_one_str_is_refused(translator):
    with pytest.raises(TypeError, match="list of str"):
        translator.translate("The model reads.")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"beam_size": 0}, "beam_size=0"),
        ({"alpha": -1.0}, "alpha=-1.0"),
        ({"beamsize": 2}, "no setting 'beamsize'. Did you mean 'beam_size'"),
    ],
)
def test_a_bad_setting_is_refused(translator, change, message):
    with pytest.raises(ValueError, match=message):
        translator.translate(TEXTS, **change)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_model_that_never_ends_stops_at_the_limit(tokenizer, beam_size):
    model = make_model(tokenizer)
    bias_of_eos(model, -1e4)
    rows = [with_eos(tokenizer, text) for text in TEXTS[:3]]
    source_ids = np.zeros((3, max(map(len, rows))), np.int32)
    for i, row in enumerate(rows):
        source_ids[i, : len(row)] = row
    found = search_ids(model, source_ids, SearchConfig(beam_size=beam_size, max_length_offset=5))
    # The limit counts tokens of the source, eos included, and not its padding.
    assert found.lengths[:, 0].numpy().tolist() == [len(row) + 5 for row in rows]
    assert not found.finished.numpy().any()
    for ids, row in zip(found.ids[:, 0].numpy(), rows, strict=True):
        assert np.all(ids[: len(row) + 5] > 3)  # no special id
        assert np.all(ids[len(row) + 5 :] == 0)


@pytest.mark.slow
def test_a_model_that_ends_at_once_gives_blank_translations(tokenizer):
    model = make_model(tokenizer)
    bias_of_eos(model, 1e4)
    assert Translator(model, tokenizer).translate(TEXTS[:2]) == ["", ""]


@pytest.mark.slow
def test_learned_positions_limit_source_and_translation(tokenizer, caplog):
    model = make_model(tokenizer, positions="learned", max_positions=9)
    bias_of_eos(model, -1e4)
    translator = Translator(
        model, tokenizer, SearchConfig(beam_size=1, max_length_offset=40, long_lines="cut")
    )
    with caplog.at_level(logging.WARNING):
        translated = translator.translate([TEXTS[5]])[0]
    assert "cut 1 sentences at 8 tokens" in caplog.text
    source_ids = [*tokenizer.encode([TEXTS[5]])[0][:8], tokenizer.special.eos]
    assert translated == tokenizer.decode([greedy_by_hand(model, source_ids, 9)])[0]


def test_a_text_that_is_too_long_is_cut_with_a_warning(translator, tokenizer, caplog):
    ids = tokenizer.encode([TEXTS[5]])[0]
    cut = tokenizer.decode([ids[:6]])[0]
    assert tokenizer.encode([cut])[0] == ids[:6]
    with caplog.at_level(logging.WARNING):
        found = translator.translate([TEXTS[5], "a"], max_source_length=7, long_lines="cut")
    assert "cut 1 sentences at 6 tokens" in caplog.text
    assert found == translator.translate([cut, "a"])


def test_a_text_as_long_as_the_limit_is_not_cut(translator, tokenizer, caplog):
    limit = len(with_eos(tokenizer, TEXTS[0]))
    with caplog.at_level(logging.WARNING):
        found = translator.translate([TEXTS[0]], max_source_length=limit)
    assert not caplog.records
    assert found == translator.translate([TEXTS[0]])


@pytest.mark.slow
def test_translations_follow_the_weights(tokenizer):
    first, second = make_model(tokenizer), make_model(tokenizer, seed=1)
    translators = [Translator(model, tokenizer) for model in (first, second)]
    search = {"beam_size": 1, "max_length_offset": 4}
    before, wanted = (t.translate(TEXTS[:2], **search) for t in translators)
    assert before != wanted
    first.set_weights(second.get_weights())
    assert translators[0].translate(TEXTS[:2], **search) == wanted


@pytest.mark.parametrize("side", ["source", "target"])
def test_another_vocabulary_than_the_models_is_refused(tokenizer, side):
    model = make_model(tokenizer, **{f"{side}_vocab_size": 311})
    with pytest.raises(ValueError, match="310 and 310 tokens, the model has .*311"):
        Translator(model, tokenizer)


@pytest.mark.slow
def test_separate_vocabularies_encode_the_source_and_decode_the_target(tokenizer):
    target = WordPieceTokenizer.train(TEXTS, vocab_size=45)
    model = make_model(tokenizer, seed=2, target_vocab_size=target.vocab_size)
    search = SearchConfig(beam_size=1, max_length_offset=EXTRA)
    translator = Translator(model, Tokenizers(tokenizer, target), search)
    expected = all_greedy_by_hand(translator)
    assert len({tuple(ids) for ids in expected}) > 2
    assert translator.translate(TEXTS) == target.decode(expected)


def test_vocabularies_in_the_wrong_order_are_refused(tokenizer):
    target = WordPieceTokenizer.train(TEXTS, vocab_size=45)
    model = make_model(tokenizer, target_vocab_size=target.vocab_size)
    with pytest.raises(ValueError, match="45 and 310 tokens, the model has 310 .source. and 45"):
        Translator(model, Tokenizers(target, tokenizer))


@pytest.mark.slow
def test_a_run_with_separate_vocabularies_is_loaded(tokenizer, tmp_path):
    target = WordPieceTokenizer.train(TEXTS, vocab_size=45)
    model = make_model(tokenizer, target_vocab_size=target.vocab_size)
    run = RunFolder.create(tmp_path / "run", Config(model=model.config), Tokenizers(tokenizer, target))
    optimizer = keras.optimizers.Adam()
    model.compile(optimizer)
    run.checkpoints(model, optimizer).save(0.0)
    loaded = Translator.load(run.path, checkpoint="last")
    tokenizers = Tokenizers(tokenizer, target)
    assert loaded.translate(TEXTS, beam_size=1) == Translator(model, tokenizers).translate(TEXTS, beam_size=1)


def mixed_texts():
    """64 texts of 1 to some 100 tokens, in no order of length."""
    rng = np.random.default_rng(3)
    words = " ".join(TEXTS).split()
    return [" ".join(rng.choice(words, size=size)) for size in rng.integers(1, 30, 64)]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("name", "beam_size", "distinct"), [("translator", 3, 60), ("translator_that_ends", 1, 6)]
)
def test_translations_do_not_depend_on_the_batch(request, name, beam_size, distinct):
    translator = request.getfixturevalue(name)
    texts = mixed_texts()
    search = {"beam_size": beam_size, "max_length_offset": 3}
    alone = [translator.n_best([text], **search)[0].best for text in texts]
    assert len({one.text for one in alone}) >= distinct
    by_length = sorted(range(64), key=lambda i: len(texts[i]))
    for order in (range(64), by_length, by_length[::-1]):
        for batch_tokens in (2048, 300):
            found = translator.n_best([texts[i] for i in order], batch_tokens=batch_tokens, **search)
            for i, one in zip(order, found, strict=True):
                assert one.best.text == alone[i].text
                assert one.best.ids == alone[i].ids
                assert one.best.finished == alone[i].finished
                assert one.best.score == pytest.approx(alone[i].score, abs=1e-4)
                assert one.best.log_prob == pytest.approx(alone[i].log_prob, abs=1e-4)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("beam_size", [1, 3])
def test_scores_and_log_probabilities_are_those_of_full_forward_passes(translator_that_ends, beam_size):
    model = translator_that_ends.models[0]
    found = translator_that_ends.n_best(TEXTS, details=True, beam_size=beam_size, alpha=0.9)
    for text, one in zip(TEXTS, found, strict=True):
        source_ids = with_eos(translator_that_ends.tokenizers.source, text)
        ids = one.best.ids
        by_hand = log_probabilities(model, source_ids, [model.special.bos, *ids[:-1]])
        by_hand = [by_hand[i, token] for i, token in enumerate(ids)]
        np.testing.assert_allclose(one.best.token_log_probs, by_hand, rtol=1e-4, atol=1e-5)
        assert one.best.log_prob == pytest.approx(sum(by_hand), abs=1e-4)
        assert one.best.score == pytest.approx(sum(by_hand) / ((5 + len(ids)) / 6) ** 0.9, abs=1e-4)
        assert one.best.finished == (ids[-1] == model.special.eos)
        assert one.flags == ([] if one.best.finished else ["unfinished"])


@pytest.mark.slow
def test_n_best_lists_are_sorted_and_distinct(translator_that_ends):
    found = translator_that_ends.n_best([*TEXTS, ""], beam_size=4, n_best=4)
    assert [len(one.translations) for one in found] == [4] * len(TEXTS) + [1]
    for one in found[:-1]:
        assert len({tuple(each.ids) for each in one.translations}) == 4
        keys = [(not each.finished, -each.score) for each in one.translations]
        assert keys == sorted(keys)
    best = translator_that_ends.n_best(TEXTS, beam_size=4)
    assert [one.best.text for one in found[:-1]] == [one.best.text for one in best]


def test_pieces_spell_the_text(translator, tokenizer):
    (found,) = translator.n_best([TEXTS[0]])
    ids = found.best.ids if not found.best.finished else found.best.ids[:-1]
    assert found.source_pieces == tokenizer.pieces([TEXTS[0]])[0]
    assert found.best.pieces == [tokenizer.entries[one][1] for one in ids]
    assert found.best.text == tokenizer.decode([ids])[0]


@pytest.mark.slow
def test_a_long_text_is_translated_in_parts(translator, tokenizer):
    first, second = "The dog reads the text, and the dog.", "Hund und Text und Hund und Text."
    limit = 1 + max(len(row) for row in tokenizer.encode([first, second]))
    search = {"max_source_length": limit, "details": True}
    one, two = (each.best for each in translator.n_best([first, second], **search))
    (whole,) = translator.n_best([f"{first} {second}"], n_best=3, **search)
    assert (whole.num_parts, len(whole.translations), whole.is_cut) == (2, 1, False)
    assert whole.best.text == f"{one.text} {two.text}"
    assert whole.best.ids == one.ids + two.ids
    assert whole.best.pieces == one.pieces + two.pieces
    assert whole.source_pieces == sum(tokenizer.pieces([first, second]), [])
    assert whole.best.log_prob == pytest.approx(one.log_prob + two.log_prob, abs=1e-4)
    assert whole.best.score == pytest.approx(one.score + two.score, abs=1e-4)
    np.testing.assert_allclose(
        whole.best.token_log_probs, one.token_log_probs + two.token_log_probs, atol=1e-4
    )
    begin = len(tokenizer.encode([first])[0]), len(one.pieces)
    moved = [(source + begin[0], target + begin[1]) for source, target in two.alignment]
    assert whole.best.alignment == one.alignment + moved


@pytest.mark.slow
def test_nothing_is_put_between_the_parts_of_a_chinese_translation(model, tokenizer):
    first, second = "The dog reads the text, and the dog.", "Hund und Text und Hund und Text."
    search = SearchConfig(beam_size=1, max_source_length=1 + max(map(len, tokenizer.encode([first, second]))))
    chinese = Translator(model, tokenizer, search, target_language="zh")
    assert chinese.translate([f"{first} {second}"]) == ["".join(chinese.translate([first, second]))]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("limit", [2, 7, 30])
def test_no_batch_exceeds_its_budgets(monkeypatch, limit, threads):
    parts = [
        Part([5] * length, prefix=[], number=0, index=0)
        for length in np.random.default_rng(0).integers(1, 30, 200)
    ]
    monkeypatch.setattr(search_inputs, "MAX_NUMBERS_IN_SEARCH", 1000)
    batches = search_inputs.batches_of_parts(parts, 40 * limit, lambda length: 1000 / limit, threads)
    assert sorted(sum(batches, [])) == list(range(200))
    assert max(map(len, batches)) <= max(limit // threads, 1)
    for batch in batches:
        assert len(batch) * max(len(parts[i].row) + 1 for i in batch) <= 40 * limit or len(batch) == 1


def test_prefixes_must_be_as_many_as_texts(translator):
    with pytest.raises(ValueError, match="Received: 1 prefixes, 2 texts"):
        translator.translate(TEXTS[:2], ["Der"])
    with pytest.raises(TypeError, match="`prefixes` must be a list of str"):
        translator.translate(TEXTS[:2], "Der")


@pytest.mark.slow
def test_translations_begin_with_their_prefix_and_go_on_as_the_model_says(translator_that_ends, tokenizer):
    model = translator_that_ends.models[0]
    prefixes = ["Der Hund", "", "and the", "", "Text", "reads"]
    found = translator_that_ends.n_best(TEXTS, prefixes, beam_size=1)
    for text, prefix, one in zip(TEXTS, prefixes, found, strict=True):
        begun = tokenizer.encode([prefix])[0]
        assert one.best.ids[: len(begun)] == begun
        source_ids = with_eos(tokenizer, text)
        expected = greedy_by_hand(model, source_ids, len(source_ids) + EXTRA, begun)
        assert one.best.ids == expected


def test_an_ensemble_of_one_model_twice_is_the_model(model, translator, tokenizer):
    twice = Translator([model, model], tokenizer, translator.search)
    for one, two in zip(
        translator.n_best(TEXTS, details=True), twice.n_best(TEXTS, details=True), strict=True
    ):
        assert one.best.text == two.best.text
        assert one.best.score == pytest.approx(two.best.score, abs=1e-4)
        np.testing.assert_allclose(one.best.token_log_probs, two.best.token_log_probs, atol=1e-4)
        assert one.best.alignment == two.best.alignment


@pytest.mark.slow
def test_an_ensemble_takes_the_mean_of_log_probabilities(model, tokenizer):
    models = [model, make_model(tokenizer, seed=5)]
    both = Translator(models, tokenizer, SearchConfig(beam_size=1, max_length_offset=EXTRA))
    for text in TEXTS[:3]:
        source_ids = with_eos(tokenizer, text)
        (found,) = both.n_best([text], details=True)
        special, prefix = model.special, [model.special.bos]
        means = []
        for token in found.best.ids:
            mean = np.mean([log_probabilities(each, source_ids, prefix)[-1] for each in models], axis=0)
            allowed = np.delete(mean, [special.pad, special.bos, special.unk])
            assert mean[token] == pytest.approx(allowed.max(), abs=1e-4)
            means.append(mean[token])
            prefix.append(token)
        np.testing.assert_allclose(found.best.token_log_probs, means, atol=1e-4)
        assert found.best.log_prob == pytest.approx(sum(means), abs=1e-3)


@pytest.mark.slow
def test_an_ensemble_aligns_by_its_mean_attention(model, tokenizer):
    models = [model, make_model(tokenizer, seed=5)]
    both = Translator(models, tokenizer, SearchConfig(beam_size=1, max_length_offset=EXTRA))
    differ = []
    for text, found in zip(TEXTS, both.n_best(TEXTS, details=True), strict=True):
        rows = [with_eos(tokenizer, text)], [found.best.ids]
        attention = [ForcedDecoder(each)(*rows, layers=[0])[0].attention[0] for each in models]
        pieces = tokenizer.pieces([text])[0], found.best.pieces

        def links(weights, pieces=pieces):
            return hard_alignment(weights, *pieces, convention="output", unit="pieces")

        assert found.best.alignment == links(sum(attention) / 2)
        differ += [links(each) != found.best.alignment for each in attention]
    assert any(differ[::2])
    assert any(differ[1::2])


@pytest.mark.slow
def test_details_are_computed_in_batches_of_the_setting(translator, monkeypatch):
    wanted = translator.n_best(TEXTS, n_best=2, details=True)
    (decoder,) = translator._decoders
    compile_, shapes = decoder._compile, []

    def recorded(*options):
        compiled = compile_(*options)

        def run(source_ids, labels):
            shapes.append((len(labels), max(source_ids.shape[1], labels.shape[1])))
            return compiled(source_ids, labels)

        return run

    monkeypatch.setattr(decoder, "_compile", recorded)
    found = translator.n_best(TEXTS, n_best=2, details=True, batch_tokens=50)
    assert all(size == 1 or size * length <= 50 for size, length in shapes)
    assert any(size > 1 for size, _ in shapes)
    monkeypatch.setattr("keras_transformer.translation.translator._PAIRS", 5)
    shapes.clear()
    in_slices = translator.n_best(TEXTS, n_best=2, details=True)
    assert [size for size, _ in shapes] == [5, 5, 2]
    for one, two, three in zip(wanted, found, in_slices, strict=True):
        for others in (two, three):
            for a, b in zip(one.translations, others.translations, strict=True):
                assert (a.text, a.alignment) == (b.text, b.alignment)
                np.testing.assert_allclose(a.token_log_probs, b.token_log_probs, atol=1e-4)


@pytest.mark.slow
def test_samples_of_equal_parts_of_a_line_differ(translator, tokenizer):
    text = "The dog reads a text. " * 2
    limit = len(with_eos(tokenizer, TEXTS[0]))
    search = {"sampling": True, "n_best": 3, "max_source_length": limit}
    (found,) = translator.n_best([text.strip()], **search)
    assert found.num_parts == 2
    halves = [(x.pieces[: len(x.pieces) // 2], x.pieces[len(x.pieces) // 2 :]) for x in found.translations]
    assert all(first != second for first, second in halves)


@pytest.mark.slow
def test_samples_depend_on_seed_and_number_of_the_text_only(translator):
    search = {"sampling": True, "n_best": 2, "seed": 7}
    found = translator.n_best(TEXTS, **search)
    texts = [[one.text for one in each.translations] for each in found]
    assert len({text for each in texts for text in each}) > len(TEXTS)
    for number in (0, 3):
        (alone,) = translator.n_best([TEXTS[number]], first_number=number, **search)
        assert [one.text for one in alone.translations] == texts[number]
    in_chunks = translator.n_best(TEXTS[:2], **search)
    in_chunks += translator.n_best(TEXTS[2:], first_number=2, batch_tokens=1, **search)
    assert [[one.text for one in each.translations] for each in in_chunks] == texts
    first = translator.n_best(TEXTS, sampling=True, n_best=1, seed=7)
    assert {each.best.text for each in first} <= {text for each in texts for text in each}
    assert translator.translate(TEXTS, sampling=True, seed=8) != [each[0] for each in texts]


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"sampling": True, "n_best": 3}], ids=str)
def test_batches_that_are_searched_at_the_same_time_change_nothing(model, tokenizer, settings):
    search = SearchConfig(beam_size=3, max_length_offset=EXTRA)
    one, three = (Translator(model, tokenizer, search, threads=threads) for threads in (1, 3))
    texts = [*TEXTS, "", *TEXTS[::-1]]
    wanted, found = (x.n_best(texts, batch_tokens=29, **settings) for x in (one, three))
    for a, b in zip(wanted, found, strict=True):
        assert [x.text for x in a.translations] == [x.text for x in b.translations]
        np.testing.assert_allclose(
            [x.score for x in a.translations], [x.score for x in b.translations], rtol=1e-4
        )


def test_less_than_one_thread_is_refused(model, tokenizer):
    with pytest.raises(ValueError, match="`threads` must be at least 1. Received: 0"):
        Translator(model, tokenizer, threads=0)


def test_few_sentences_are_shared_out_among_the_threads():
    parts = [Part([5] * 9, prefix=[], number=i, index=0) for i in range(32)]
    batches = search_inputs.batches_of_parts(parts, 10_000, lambda length: 1, 3)
    assert sorted(map(len, batches)) == [10, 11, 11]


def test_one_thread_searches_a_few_sentences_as_one_batch_however_their_lengths_differ():
    parts = [Part([5] * length, prefix=[], number=0, index=0) for length in (29, 3, 2, 11, 5)]
    assert search_inputs.batches_of_parts(parts, 150, lambda length: 1, 1) == [
        [2, 1, 4, 3, 0]
    ]  # 5 x 30 tokens
    assert search_inputs.batches_of_parts(parts, 149, lambda length: 1, 1) == [[0], [2, 1, 4, 3]]


@pytest.mark.slow
def test_coverage_penalties_share_a_compiled_search_and_0_has_its_own(model, tokenizer):
    translator = Translator(model, tokenizer, SearchConfig(beam_size=3, max_length_offset=EXTRA))
    penalties = (0.3, 0.0, 5.0, 0.7)
    scores = {beta: translator.n_best(TEXTS, coverage_penalty=beta)[0].best.score for beta in penalties}
    assert len(translator._compiled) == 2
    assert len(set(scores.values())) == 4
    assert scores[0.0] == translator.n_best(TEXTS)[0].best.score


def test_the_searches_that_were_used_last_stay_compiled(model, tokenizer, monkeypatch):
    translator, compiled = Translator(model, tokenizer), []

    def compile_(config, arguments):
        compiled.append(config.min_length)
        return object()

    monkeypatch.setattr(translator, "_compile", compile_)
    numbers = range(MAX_COMPILED)

    def search(*min_lengths):
        compiled.clear()
        for length in min_lengths:
            translator._search(SearchConfig(min_length=length), {})
        return compiled

    assert search(*numbers) == [*numbers]
    assert search(*numbers) == []
    assert search(0, MAX_COMPILED) == [MAX_COMPILED]  # 1 is the oldest
    assert search(0, *numbers[2:]) == []
    assert len(translator._compiled) == MAX_COMPILED
    assert search(1) == [1]
