"""Random segmentations: the same texts within the same budget, anew in every epoch."""

import collections
import itertools
import json

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.batches.dataset import SubwordSampling, TokenBatches, training_batches
from keras_transformer.batches.ids import encode_pairs
from keras_transformer.batches.planning import EpochPlanner
from keras_transformer.batches.training_data import TrainingData
from keras_transformer.cli import train as train_wmt
from keras_transformer.config.settings import DataConfig, SpecialIds
from keras_transformer.text.lines import Pairs
from keras_transformer.tokenizers.tokenizer_pair import Tokenizers, as_tokenizers, train_tokenizer

SPECIAL = SpecialIds()
KINDS = ("bpe", "unigram", "wordpiece")
BUDGET = 800
PEOPLE = {"woman": "Frau", "bicyclist": "Radfahrer", "firefighter": "Feuerwehrmann", "girl": "Mädchen"}
KINDS_OF = {"smiling": "lächelnde", "elderly": "betagte", "young": "junge", "laughing": "lachende"}
PLACES = {"street": "Straße", "swimming pool": "Schwimmbad", "Örebro": "Örebro", "kitchen": "Küche"}
SENTENCES = [
    (f"a {how} {a} watches the {b} in {place}", f"{wie} {x} beobachtet {y} in {ort}")
    for a, x in PEOPLE.items()
    for b, y in PEOPLE.items()
    for place, ort in PLACES.items()
    for how, wie in KINDS_OF.items()
]
# Random segmentations may be as long as the longest pair.
SENTENCES += [tuple(" and ".join([one] * 2) for one in pair) for pair in SENTENCES[::40]]
SOURCE, TARGET = map(list, zip(*SENTENCES, strict=True))


@pytest.fixture(scope="module")
def vocabularies():
    """`Tokenizers` of each kind; of word pieces, two."""
    learned = {
        kind: as_tokenizers(train_tokenizer([*SOURCE, *TARGET], model_type=kind, vocab_size=size))
        for kind, size in (("bpe", 380), ("unigram", 328))
    }
    sides = (train_tokenizer(side, model_type="wordpiece", vocab_size=52) for side in (SOURCE, TARGET))
    return learned | {"wordpiece": Tokenizers(*sides)}


def make_batches(tokenizers, dropout=0.5, **plan):
    pairs = encode_pairs(SOURCE, TARGET, *tokenizers)
    return sampled(pairs, tokenizers, dropout, **{"batch_tokens": BUDGET, "seed": 3} | plan)


def sampled(pairs, tokenizers, dropout, **plan):
    sampling = SubwordSampling(tokenizers, dropout)
    return TokenBatches(pairs, EpochPlanner(*sampling.lengths(pairs), **plan), sampling)


def plain(pairs, **plan):
    return TokenBatches(pairs, EpochPlanner(*pairs.lengths, **plan))


def take(batches, number, start=0):
    made = itertools.islice(batches.dataset(start, 3).as_numpy_iterator(), number)
    return [(source, target, labels) for (source, target), labels in made]


def epoch_rows(batches, epoch):
    """(source ids, labels) of every pair of an epoch, each with its eos."""
    rows, start = [], sum(batches.planner.num_batches(before) for before in range(epoch))
    for (source_ids, _), labels in batches.dataset(start).as_numpy_iterator():
        for pair in zip(source_ids.tolist(), labels.tolist(), strict=True):
            if pair[1][0] != SPECIAL.pad:
                rows.append(tuple(tuple(row[: row.index(SPECIAL.eos) + 1]) for row in pair))
    return rows


def same(first, second):
    return len(first) == len(second) and all(
        one.shape == other.shape and np.array_equal(one, other)
        for one, other in zip(tf.nest.flatten(first), tf.nest.flatten(second), strict=True)
    )


@pytest.mark.parametrize("padding", ["longest", "fixed"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_text_is_in_an_epoch_once_whatever_its_segmentation(vocabularies, kind, padding):
    source, target = vocabularies[kind]
    rows = epoch_rows(make_batches(vocabularies[kind], padding=padding), 0)
    texts = zip(source.decode([s for s, _ in rows]), target.decode([t for _, t in rows]), strict=True)
    assert collections.Counter(texts) == collections.Counter(SENTENCES)
    usual = encode_pairs(SOURCE, TARGET, source, target)
    for side in (0, 1):
        known = {tuple(usual[side][i].tolist()) for i in range(len(SOURCE))}
        assert np.mean([pair[side] in known for pair in rows]) < 0.8


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_more_dropout_gives_more_pieces(vocabularies, kind):
    means = [
        np.mean([len(source) + len(target) for source, target in epoch_rows(batches, 0)])
        for batches in (
            plain(encode_pairs(SOURCE, TARGET, *vocabularies[kind]), batch_tokens=BUDGET),
            make_batches(vocabularies[kind], dropout=0.1),
            make_batches(vocabularies[kind], dropout=0.4),
        )
    ]
    assert means[0] < means[1] < means[2]


@pytest.mark.parametrize("padding", ["longest", "fixed"])
@pytest.mark.parametrize("dropout", [0.1, 0.9])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_stay_within_the_budget(vocabularies, kind, dropout, padding):
    lengths = encode_pairs(SOURCE, TARGET, *vocabularies[kind])
    longest = max(side.lengths.max() for side in lengths)
    batches = make_batches(vocabularies[kind], dropout, batch_tokens=int(8 * longest), padding=padding)
    for plan, ((source_ids, target_ids), labels) in zip(
        batches.planner.plan(0), batches.dataset().as_numpy_iterator(), strict=True
    ):
        assert source_ids.shape == (plan.rows, plan.source_len)
        assert target_ids.shape == labels.shape == (plan.rows, plan.target_len)
        assert max(source_ids.size, labels.size) <= 8 * longest
        assert np.all(target_ids[:, 0] == SPECIAL.bos)
        np.testing.assert_array_equal(target_ids[:, 1:], labels[:, :-1])
        for ids in (source_ids, labels):
            ends = np.sum(ids == SPECIAL.eos, axis=1)
            assert ends.tolist() == [1] * len(plan.indices) + [0] * (plan.rows - len(plan.indices))


@pytest.mark.parametrize("kind", KINDS)
def test_epochs_have_segmentations_of_their_own(vocabularies, kind):
    source, _ = vocabularies[kind]
    batches = make_batches(vocabularies[kind])
    found = []
    for epoch in (0, 1):
        rows = [ids for ids, _ in epoch_rows(batches, epoch)]
        found.append(dict(zip(source.decode(rows), rows, strict=True)))
    assert found[0].keys() == found[1].keys() == set(SOURCE)
    assert np.mean([found[0][text] == found[1][text] for text in SOURCE]) < 0.5


def test_the_sides_of_a_pair_are_drawn_apart(vocabularies):
    # Of equal texts, equal draws would make equal rows.
    pairs = encode_pairs(SOURCE, SOURCE, *vocabularies["bpe"])
    batches = sampled(pairs, vocabularies["bpe"], 0.3, batch_tokens=BUDGET, seed=3)
    assert np.mean([source == target for source, target in epoch_rows(batches, 0)]) < 0.3


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_depends_on_seed_epoch_and_place_alone(vocabularies, kind):
    number = make_batches(vocabularies[kind]).per_epoch + 4
    whole = take(make_batches(vocabularies[kind]), number)
    again = make_batches(vocabularies[kind])
    for start in (number - 3, 2, 0):  # in any order, and not only from the first on
        assert same(take(again, number - start, start), whole[start:])
    assert not same(take(make_batches(vocabularies[kind], seed=4), 3), whole[:3])


class Stretched:
    """A word is an id; at random, the first word of some texts is written as several ids."""

    special = SPECIAL

    def __init__(self, share, more):
        self.share, self.more = share, more

    def encode(self, texts):
        return [[int(word) for word in text.split()] for text in texts]

    def decode(self, ids):
        return [" ".join(map(str, row)) for row in ids]

    def sample(self, texts, *, dropout, seed):
        return [
            [row[0]] * (self.more if row[0] < 1000 * self.share else 0) + row for row in self.encode(texts)
        ]


def stretched_pairs(number=600, length=6):
    """Texts of 6 words and one of 20, the first word uniform from 10 to 1009."""
    rng = np.random.default_rng(1)
    rows = rng.integers(10, 1010, (number, length)).tolist()
    texts = [" ".join(map(str, row)) for row in [*rows, rng.integers(10, 1010, 20).tolist()]]
    return encode_pairs(texts, texts, Stretched(0, 0))


def test_a_sentence_that_outgrows_its_batch_keeps_its_usual_segmentation():
    # One in twenty grows, too few to make room for them: nothing may change at all.
    pairs, plan = stretched_pairs(), {"batch_tokens": 400, "seed": 2}
    found = sampled(pairs, as_tokenizers(Stretched(0.05, more=3)), 0.5, **plan)
    usual = plain(pairs, **plan)
    assert same(take(found, usual.per_epoch), take(usual, usual.per_epoch))


def test_there_is_room_for_what_grows_often():
    pairs = stretched_pairs()
    tokenizers = as_tokenizers(Stretched(0.5, more=3))
    batches = sampled(pairs, tokenizers, 0.5, batch_tokens=400, seed=2)
    counts = collections.Counter(len(source) for source, _ in epoch_rows(batches, 0))
    # 7 with eos, or 10 exactly as planned; the one of 21 has no room beyond.
    grown = sum(int(pairs.source[i][0]) < 500 for i in range(600))
    assert counts == {7: 600 - grown, 10: grown, 21: 1}


def corpus_of(tokenizers):
    pairs = encode_pairs(SOURCE, TARGET, *tokenizers)
    nothing = Pairs([], [])
    return TrainingData(
        tokenizers, pairs, [pairs.num_pairs], [1.0], nothing, None, "", [], DataConfig(), "0" * 64
    )


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_sampling_is_for_those_who_ask(vocabularies, dropout):
    data = DataConfig(subword_dropout=dropout, max_length=100, batch_tokens=BUDGET)
    batches = training_batches(data, corpus_of(vocabularies["bpe"]), seed=3)
    assert (batches.sampling is not None) is (dropout > 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    for split, part in (("train", slice(8, None)), ("valid", slice(0, 8))):
        for language, side in (("en", SOURCE), ("de", TARGET)):
            text = "".join(f"{line}\n" for line in side[part])
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")
    return folder


def run_program(folder, run, max_steps, *more):
    settings = {
        "model.num_encoder_layers": 1,
        "model.num_decoder_layers": 1,
        "model.d_model": 8,
        "model.d_ff": 12,
        "model.num_heads": 2,
        "data.vocab_size": 340,
        "data.max_length": 100,
        "data.batch_tokens": BUDGET,
        "training.max_steps": max_steps,
        "training.log_every_steps": 1,
        "training.validate_every_steps": 12,
        "training.validation_sentences": 0,
        "training.checkpoint_every_steps": 12,
        "search.max_length_offset": 1,
        "search.beam_size": 1,
    }
    arguments = ["--dataset", str(folder), "--run-dir", str(run), *more]
    for name, value in settings.items():
        arguments += ["--set", f"{name}={value}"]
    assert train_wmt.main(arguments) == 0
    return [
        (record["step"], record["loss"])
        for record in map(json.loads, (run / "history.jsonl").read_text(encoding="utf-8").splitlines())
        if record["kind"] == "train"
    ]


def weights(run):
    reader = tf.train.load_checkpoint(str(run / "checkpoints" / "step-12"))
    names = reader.get_variable_to_shape_map()
    return {name: reader.get_tensor(name) for name in names if name.startswith("weights/")}


@pytest.mark.very_slow
def test_a_run_with_sampling_continues_to_the_bit(folder, tmp_path):
    sampled = "--set", "data.subword_dropout=0.1"
    whole = run_program(folder, tmp_path / "whole", 12, *sampled)
    run_program(folder, tmp_path / "parts", 5, *sampled)
    assert run_program(folder, tmp_path / "parts", 12, *sampled) == whole
    assert [step for step, _ in whole] == list(range(1, 13))
    expected, found = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
