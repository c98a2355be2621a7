"""Batches: every pair once, within the budget, in an order that (seed, epoch) decide."""

import collections
import gc
import pathlib
import types
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.batches import dataset as dataset_module
from keras_transformer.batches.dataset import DeviceShare, token_batches
from keras_transformer.batches.ids import IdPairs, Sequences, drop_long, encode_flat, encode_pairs
from keras_transformer.batches.planning import EpochPlanner
from keras_transformer.config.settings import SpecialIds

SPECIAL = SpecialIds(pad=7, bos=5, eos=4, unk=6)  # no id is where a literal 0 would find it
PADDINGS = ("longest", "fixed")
SEEDS = (0, 3, 11)
BUDGET = 520


class WordTokenizer:
    """Every word is its own number; independent of SentencePiece."""

    special = SPECIAL

    def encode(self, texts):
        return [[int(word) for word in text.split()] for text in texts]


class Batch(NamedTuple):
    source_ids: np.ndarray
    target_ids: np.ndarray
    labels: np.ndarray


class Batches(NamedTuple):
    """Pairs and the plan of their batches."""

    pairs: IdPairs
    planner: EpochPlanner

    @property
    def per_epoch(self):
        return self.planner.num_batches(0)

    def dataset(self, start=0, epochs=1, **share):
        return token_batches(*self, start=start, epochs=epochs, special=SPECIAL, share=DeviceShare(**share))


def random_texts(seed, number, longest=30):
    """Sentences of 1 to `longest` words, their translations up to 3 words longer."""
    rng = np.random.default_rng(seed)
    source, target = [], []
    for length in rng.integers(1, longest + 1, number):
        other = max(1, length + rng.integers(-3, 4))
        source.append(" ".join(map(str, rng.integers(10, 5000, length))))
        target.append(" ".join(map(str, rng.integers(10, 5000, other))))
    return source, target


def make_batches(seed=0, number=203, padding="longest", order_seed=1, budget=BUDGET):
    pairs = encode_pairs(*random_texts(seed, number), WordTokenizer())
    planner = EpochPlanner(*pairs.lengths, batch_tokens=budget, seed=order_seed, padding=padding)
    return Batches(pairs, planner)


def take(dataset, number):
    rows = dataset.take(number).as_numpy_iterator()
    return [Batch(source, target, labels) for (source, target), labels in rows]


def text_of(row):
    """The words of one row, which ends with eos and is padded."""
    row = list(row)
    end = row.index(SPECIAL.eos)
    assert all(one == SPECIAL.pad for one in row[end + 1 :])
    return " ".join(map(str, row[:end]))


def rows_of(sequences):
    return [sequences[i].tolist() for i in range(len(sequences))]


def real_rows(batch):
    return [i for i, row in enumerate(batch.labels) if any(row != SPECIAL.pad)]


def same(first, second):
    return len(first) == len(second) and all(
        all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
        for a, b in zip(first, second, strict=True)
    )


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_pair_is_in_one_batch_of_an_epoch(seed, padding):
    batches = make_batches(seed, padding=padding)
    for epoch in range(3):
        indices = np.concatenate([plan.indices for plan in batches.planner.plan(epoch)])
        assert sorted(indices) == list(range(203))


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_batch_holds_the_sentences_that_came_in(seed, padding):
    source, target = random_texts(seed, 203)
    batches = make_batches(seed, padding=padding)
    found = collections.Counter()
    for batch in take(batches.dataset(), batches.per_epoch):
        for i in real_rows(batch):
            found[text_of(batch.source_ids[i]), text_of(batch.labels[i])] += 1
    assert found == collections.Counter(zip(source, target, strict=True))


@pytest.mark.parametrize("padding", PADDINGS)
def test_target_ids_start_with_bos_and_lag_one_behind_the_labels(padding):
    batches = make_batches(padding=padding)
    for batch in take(batches.dataset(), batches.per_epoch):
        assert set(batch.target_ids[:, 0]) == {SPECIAL.bos}
        np.testing.assert_array_equal(batch.target_ids[:, 1:], batch.labels[:, :-1])


@pytest.mark.parametrize("padding", PADDINGS)
def test_left_over_rows_are_padding(padding):
    batches = make_batches(number=203, padding=padding)
    made = take(batches.dataset(), batches.per_epoch)
    num_fillers = 0
    for batch in made:
        real = real_rows(batch)
        assert real == list(range(len(real)))
        fillers = slice(len(real), None)
        assert np.all(batch.source_ids[fillers] == SPECIAL.pad)
        assert np.all(batch.target_ids[fillers, 1:] == SPECIAL.pad)
        num_fillers += len(batch.labels) - len(real)
    assert num_fillers == sum(len(batch.labels) for batch in made) - 203 > 0


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("budget", [300, 520, 4096])
def test_no_batch_exceeds_the_budget_on_either_side(seed, padding, budget):
    batches = make_batches(seed, padding=padding, budget=max(budget, 8 * 40))
    for batch in take(batches.dataset(), batches.per_epoch):
        assert batch.source_ids.size <= max(budget, 8 * 40)
        assert batch.labels.size <= max(budget, 8 * 40)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("seed", SEEDS)
def test_rows_are_a_multiple_of_8(seed, padding):
    batches = make_batches(seed, padding=padding)
    assert all(
        len(batch.labels) % 8 == 0 and len(batch.labels) > 0
        for batch in take(batches.dataset(), batches.per_epoch)
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_longest_pads_to_the_longest_of_the_batch(seed):
    batches = make_batches(seed)
    for batch in take(batches.dataset(), batches.per_epoch):
        for ids in (batch.source_ids, batch.labels):
            assert ids.shape[1] == max(np.sum(ids != SPECIAL.pad, axis=1))


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("padding", PADDINGS)
def test_the_same_seed_and_epoch_give_the_same_batches(padding):
    first, second = (make_batches(padding=padding) for _ in range(2))
    number = 2 * first.per_epoch
    assert same(take(first.dataset(epochs=2), number), take(second.dataset(epochs=2), number))


@pytest.mark.parametrize("padding", PADDINGS)
def test_another_epoch_has_another_order_and_other_neighbours(padding):
    batches = make_batches(padding=padding)
    first, second = batches.planner.plan(0), batches.planner.plan(1)
    assert not same([plan.indices[None] for plan in first], [plan.indices[None] for plan in second])
    neighbours = [{frozenset(plan.indices) for plan in plans} for plans in (first, second)]
    assert len(neighbours[0] & neighbours[1]) < 2 / 3 * len(first)


@pytest.mark.parametrize("padding", PADDINGS)
def test_another_seed_has_another_order(padding):
    orders = [
        [list(plan.indices) for plan in make_batches(padding=padding, order_seed=seed).planner.plan(0)]
        for seed in (1, 2)
    ]
    assert orders[0] != orders[1]


@pytest.mark.parametrize("padding", PADDINGS)
def test_an_epoch_ends_with_long_and_short_batches_mixed(padding):
    lengths = [plan.target_len for plan in make_batches(padding=padding, number=600).planner.plan(0)]
    assert lengths != sorted(lengths)
    assert lengths != sorted(lengths, reverse=True)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("where", ["first epoch", "epoch border", "third epoch"])
def test_starting_later_continues_the_same_sequence(padding, where):
    batches = make_batches(padding=padding, number=120)
    epoch = batches.per_epoch
    assert epoch > 3
    start = {"first epoch": 3, "epoch border": epoch, "third epoch": 2 * epoch + 1}[where]
    whole = take(batches.dataset(epochs=5), start + epoch + 2)
    assert same(whole[start:], take(batches.dataset(start, epochs=3), epoch + 2))


@pytest.mark.slow
def test_a_dataset_says_how_long_it_is():
    batches = make_batches()
    made = list(batches.dataset())
    assert len(made) == batches.per_epoch == int(batches.dataset().cardinality())
    both = batches.per_epoch + batches.planner.num_batches(1)
    assert int(batches.dataset(epochs=2, num_replicas=3).cardinality()) == 3 * both
    assert int(batches.dataset(2, epochs=2).cardinality()) == both - 2


def test_one_graph_serves_every_shape_of_three_epochs():
    batches = make_batches(number=90)
    traces = []

    @tf.function
    def shape_of_next(iterator):  # as `fit` reads its data
        traces.append(iterator)
        return tf.shape(next(iterator)[1])

    iterator = iter(batches.dataset(epochs=3))
    shapes = [shape_of_next(iterator).numpy() for _ in range(3 * batches.per_epoch)]
    planned = [plan for epoch in range(3) for plan in batches.planner.plan(epoch)]
    assert [tuple(shape) for shape in shapes] == [(p.rows, p.target_len) for p in planned]
    assert len(set(map(tuple, shapes))) > 3
    assert len(traces) == 1


def test_no_thread_tunes_a_dataset_whose_end_would_wait_for_it():
    # TensorFlow may wait for that thread for a minute when the iterator is deleted.
    batches = make_batches()
    for dataset in (batches.dataset(), batches.dataset(num_replicas=2).repeat()):
        assert dataset.options().autotune.enabled is False


def test_dimensions_are_left_open():
    (source, target), labels = make_batches().dataset().element_spec
    for spec in (source, target, labels):
        assert spec.shape.as_list() == [None, None]
        assert spec.dtype == tf.int32


def test_encoding_ends_each_side_with_eos():
    pairs = encode_pairs(["10 11 12", ""], ["20", "21 22"], WordTokenizer())
    assert pairs.num_pairs == 2
    assert rows_of(pairs.source) == [[10, 11, 12, 4], [4]]
    assert rows_of(pairs.target) == [[20, 4], [21, 22, 4]]
    assert pairs.target.lengths.tolist() == [2, 3]


def test_sentences_without_a_partner_are_refused_at_once():
    with pytest.raises(ValueError, match="the same length. Received: 3 and 1"):
        encode_pairs(["10 11", "11", "12"], ["10"], WordTokenizer())


class Column:
    """A column of a DataFrame whose labels do not start at 0."""

    def __init__(self, texts):
        self._texts = texts

    def __len__(self):
        return len(self._texts)

    def __iter__(self):
        return iter(self._texts)

    def __getitem__(self, label):
        raise KeyError(label)

    def __bool__(self):
        raise ValueError("The truth value is ambiguous")


@pytest.mark.parametrize("kind", [Column, iter, tuple])
def test_texts_may_be_a_column_or_come_from_a_generator(kind):
    pairs = encode_pairs(kind(["10 11 12", ""]), kind(["20", "21 22"]), WordTokenizer())
    assert rows_of(pairs.source) == [[10, 11, 12, 4], [4]]
    assert rows_of(pairs.target) == [[20, 4], [21, 22, 4]]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["10", None], "`target` must hold str only. Received: None at index 1"),
        (Column([float("nan"), "1"]), "`target` must hold str only. Received: nan at index 0"),
        ("10", "`target` must be a list of str. Received: one str"),
        (
            types.SimpleNamespace(columns=["de"]),
            "`target` must be a list of str. Received: one SimpleNamespace",
        ),
    ],
)
def test_what_is_no_text_is_refused_with_its_place(texts, message):
    with pytest.raises(TypeError, match=message):
        encode_pairs(["10", "11"], texts, WordTokenizer())


def test_drop_long_looks_at_both_sides_and_counts_eos():
    # Lengths with eos: (3, 3), (4, 2), (2, 4), (3, 2).
    source, target = ["10 11", "12 13 14", "15", "16 17"], ["20 21", "22", "23 24 25", "26"]
    pairs, keep = drop_long(encode_pairs(source, target, WordTokenizer()), 3)
    assert keep.tolist() == [True, False, False, True]
    assert rows_of(pairs.source) == [[10, 11, 4], [16, 17, 4]]
    assert rows_of(pairs.target) == [[20, 21, 4], [26, 4]]


def test_drop_long_keeps_what_is_as_long_as_the_limit():
    pairs = encode_pairs(*random_texts(1, 50), WordTokenizer())
    longest = max(pairs.source.lengths.max(), pairs.target.lengths.max())
    assert drop_long(pairs, longest)[0] is pairs
    nothing, keep = drop_long(pairs, 1)
    assert nothing.num_pairs == keep.sum() == 0


def test_no_pairs_are_refused():
    nothing = Sequences([(np.zeros(0, np.int32), np.zeros(1, np.int64))])
    with pytest.raises(ValueError, match="no pairs"):
        EpochPlanner(*IdPairs(nothing, nothing).lengths, batch_tokens=100)


@pytest.mark.slow
def test_sequences_in_several_arrays_are_as_in_one():
    texts = random_texts(3, 97)[0]
    whole = encode_pairs(texts, texts, WordTokenizer()).source
    parts = Sequences(
        [
            encode_flat(texts[begin:end], WordTokenizer())
            for begin, end in ((0, 13), (13, 13), (13, 71), (71, 97))
        ]
    )
    assert rows_of(parts) == rows_of(whole)
    one, other = (
        take(Batches(pairs, EpochPlanner(*pairs.lengths, batch_tokens=BUDGET)).dataset(epochs=2), 99)
        for pairs in (IdPairs(parts, whole), IdPairs(whole, parts))
    )
    assert same(one, other)
    assert len(one) > 10
    keep = np.arange(97) % 3 == 1
    assert rows_of(parts.select(keep)) == [
        row for row, kept in zip(rows_of(whole), keep, strict=True) if kept
    ]


@pytest.fixture
def mapped(tmp_path):
    """The pairs of `make_batches()` in three files a side, mapped."""
    pairs, sides = make_batches().pairs, []
    for name, sequences in zip(("source", "target"), pairs, strict=True):
        ends, parts = np.cumsum([0, *sequences.lengths]), []
        for begin, end in ((0, 50), (50, 51), (51, 203)):
            path = tmp_path / f"{name}{begin}.npy"
            np.save(path, sequences.arrays[0][ends[begin] : ends[end]].astype(np.uint16))
            parts.append((np.load(path, mmap_mode="r"), ends[begin : end + 1] - ends[begin]))
        sides.append(Sequences(parts))
    return Batches(IdPairs(*sides), make_batches().planner)


@pytest.mark.slow
def test_ids_may_be_of_a_narrow_type_and_mapped_from_files(mapped):
    expected = make_batches()
    assert same(take(mapped.dataset(3, epochs=2), 99), take(expected.dataset(3, epochs=2), 99))
    # A part of a mapped file is no file: its ids are read.
    source, target = expected.pairs
    part = np.load(pathlib.Path(mapped.pairs.source.arrays[0].filename), mmap_mode="r")[3:]
    assert (
        token_batches(
            IdPairs(
                Sequences([(part, np.array([0, len(part)]))]), Sequences([(part, np.array([0, len(part)]))])
            ),
            EpochPlanner(np.array([len(part)]), np.array([len(part)]), batch_tokens=9999),
        )
        .as_numpy_iterator()
        .next()[1][0]
        .tolist()
        == part.tolist()
    )


@pytest.mark.slow
def test_datasets_of_the_same_pairs_share_one_copy_which_goes_with_the_pairs():
    gc.collect()
    before, batches = len(dataset_module._SIDES), make_batches()
    made = [batches.dataset(), batches.dataset(3, epochs=2)]
    assert len(dataset_module._SIDES) == before + 2
    assert len(take(made[1], 2)) == 2
    del batches, made
    gc.collect()
    assert len(dataset_module._SIDES) == before


def functions_and_nodes(dataset):
    """Names of all operations of a dataset, as it is serialised, and the size of its graph."""
    serialised = tf.raw_ops.DatasetToGraphV2(input_dataset=tf.data.experimental.to_variant(dataset)).numpy()
    graph = tf.compat.v1.GraphDef.FromString(serialised)
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    return {node.op for node in nodes}, len(serialised)


@pytest.mark.parametrize("share", [{}, {"num_replicas": 2, "device_tokens": 100, "num_workers": 3}])
def test_no_python_is_in_the_graph(mapped, share):
    for batches in (make_batches(), mapped):
        operations, _ = functions_and_nodes(batches.dataset(epochs=2, **share))
        assert {"GatherV2", "RangeDataset"} <= operations
        assert not [name for name in operations if "py" in name.lower() and "copy" not in name.lower()]
        assert not [name for name in operations if "Generator" in name]


@pytest.mark.slow
def test_mapped_ids_are_named_by_their_files_in_the_graph(tmp_path):
    ids, starts = np.full(3_000_000, 9, np.uint16), np.arange(0, 3_000_001, 30_000)
    np.save(tmp_path / "ids.npy", ids)
    for array, least, most in (
        (ids, len(ids), 10**8),
        (np.load(tmp_path / "ids.npy", mmap_mode="r"), 0, 10**5),
    ):
        side = Sequences([(array, starts)])
        planner = EpochPlanner(side.lengths, side.lengths, batch_tokens=240_000)
        operations, size = functions_and_nodes(token_batches(IdPairs(side, side), planner))
        assert least < size < most
        assert ("ImmutableConst" in operations) is (most == 10**5)


@pytest.mark.slow
def test_a_dataset_is_mapped_sharded_and_saved(mapped, tmp_path):
    dataset = mapped.dataset(epochs=2)
    whole = take(dataset, 99)
    assert [len(labels) for labels in dataset.map(lambda ids, labels: labels).as_numpy_iterator()] == [
        len(batch.labels) for batch in whole
    ]
    assert same(take(dataset.shard(3, 1), 99), whole[1::3])
    dataset.save(str(tmp_path / "saved"))
    assert same(take(tf.data.Dataset.load(str(tmp_path / "saved")), 99), whole)
