"""Batches of datasets that nobody has counted: every pair once, within the limit, endless ones too."""

import collections
import copy

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.batches.streaming import bucket_lengths
from keras_transformer.config.settings import SpecialIds
from keras_transformer.tokenizers.symbols import TreeTokenizer

SPECIAL = SpecialIds(pad=7, bos=5, eos=4, unk=6)  # no id is where a literal 0 would find it
PADDINGS = ("longest", "fixed")
INTS = tf.TensorSpec([None], tf.int64)


def random_pairs(seed, number, longest=28):
    """Pairs of lists of ids; with eos, the lengths are 2 to `longest` + 4."""
    rng = np.random.default_rng(seed)
    pairs = []
    for length in rng.integers(1, longest + 1, number):
        other = max(1, length + rng.integers(-3, 4))
        pairs.append((rng.integers(10, 5000, length).tolist(), rng.integers(10, 5000, other).tolist()))
    return pairs


def dataset_of(pairs):
    return tf.data.Dataset.from_generator(lambda: iter(pairs), output_signature=(INTS, INTS))


def batches_of(pairs, **settings):
    settings = {"batch_tokens": 520, "max_length": 32, "special": SPECIAL} | settings
    return kt.token_batches(pairs if isinstance(pairs, tf.data.Dataset) else dataset_of(pairs), **settings)


def arrays(dataset):
    return [(source, target, labels) for (source, target), labels in dataset.as_numpy_iterator()]


def ids_of(row, special=SPECIAL):
    """The ids of one row, which ends with eos and is padded; `None` for an unused row."""
    row = list(row)
    if set(row) == {special.pad}:
        return None
    end = row.index(special.eos)
    assert set(row[end + 1 :]) <= {special.pad}
    return tuple(row[:end])


def pairs_in(batches, special=SPECIAL):
    """The pairs of all rows that are used, in order."""
    found = []
    for source_ids, _, labels in batches:
        rows = [(ids_of(a, special), ids_of(b, special)) for a, b in zip(source_ids, labels, strict=True)]
        used = [row for row in rows if row != (None, None)]
        assert rows == used + [(None, None)] * (len(rows) - len(used))  # unused rows come last
        found += used
    return found


def as_tuples(pairs):
    return [(tuple(source), tuple(target)) for source, target in pairs]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("padding", PADDINGS)
def test_every_pair_is_in_one_batch_within_the_limit(padding):
    pairs = random_pairs(3, 300)
    batches = arrays(batches_of(pairs, padding=padding, shuffle_pairs=50))
    assert collections.Counter(pairs_in(batches)) == collections.Counter(as_tuples(pairs))
    for source_ids, target_ids, labels in batches:
        assert source_ids.dtype == target_ids.dtype == labels.dtype == np.int32
        assert len(source_ids) % 8 == 0
        assert max(source_ids.size, labels.size) <= 520
        assert set(target_ids[:, 0]) == {SPECIAL.bos}
        np.testing.assert_array_equal(target_ids[:, 1:], labels[:, :-1])
        if padding == "longest":
            assert source_ids.shape[1] == max(np.sum(source_ids != SPECIAL.pad, axis=1))
            assert labels.shape[1] == max(np.sum(labels != SPECIAL.pad, axis=1))


def test_the_elements_are_those_of_counted_pairs():
    pairs = kt.encode_pairs(
        ["a"], ["b"], type("", (), {"special": SPECIAL, "encode": lambda self, texts: [[9]]})()
    )
    counted = kt.token_batches(pairs, kt.EpochPlanner(*pairs.lengths, batch_tokens=520))
    assert batches_of(random_pairs(0, 9)).element_spec == counted.element_spec


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("padding", "shapes"),
    [
        # 143 tokens: up to 8 tokens 143 / 8 > 17, so 16 rows; 9 tokens 143 / 9 < 16, so 8 rows.
        ("longest", [(16, 3, 6), (16, 3, 6), (8, 9, 2), (8, 3, 6)]),
        ("fixed", [(16, 8, 8), (16, 8, 8), (8, 9, 9), (16, 8, 8)]),
    ],
)
def test_positions_are_counted_with_padding_as_by_hand(padding, shapes):
    # Tokens with eos: 32 x (3, 6), 8 x (9, 2) and one (3, 6) that is left.
    short, long = ([11] * 2, [12] * 5), ([13] * 8, [14])
    pairs = [short] * 32 + [long] * 8 + [short]
    settings = {"batch_tokens": 143, "max_length": 9, "padding": padding, "max_shapes": 2}
    batches = arrays(batches_of(pairs, shuffle_pairs=0, **settings))
    assert [(*source_ids.shape, labels.shape[1]) for source_ids, _, labels in batches] == shapes
    assert [len(pairs_in([batch])) for batch in batches] == [16, 16, 8, 1]


@pytest.mark.slow
def test_with_fixed_padding_there_are_few_shapes():
    batches = arrays(batches_of(random_pairs(1, 500), padding="fixed", max_shapes=4))
    shapes = {(source_ids.shape, labels.shape) for source_ids, _, labels in batches}
    lengths = bucket_lengths(32, 4)
    assert lengths == [8, 13, 20, 32]  # 8 * 4 ** (i / 3)
    assert shapes == {((rows, n), (rows, n)) for rows, n in zip((64, 40, 24, 16), lengths, strict=True)}


@pytest.mark.parametrize(("longest", "number"), [(256, 32), (30, 32), (9, 16), (8, 16), (3, 5), (100, 1)])
def test_buckets_end_with_the_longest_sentence(longest, number):
    lengths = bucket_lengths(longest, number)
    assert lengths == sorted(set(lengths))
    assert lengths[-1] == longest
    assert len(lengths) <= number


TEXTS = [("The dog reads a text.", "Der Hund liest."), ("A dog", "Ein Ünd 👍"), ("a text", "einen Text")]


@pytest.mark.slow
@pytest.mark.parametrize("separate", [False, True])  # True: the other vocabulary has word pieces
def test_texts_are_encoded_in_the_graph_as_in_python(tokenizer, separate):
    tokenizer = copy.copy(tokenizer)  # the seed below would break that of other tests
    other = kt.WordPieceTokenizer.train(["Hund und Text"] * 3, vocab_size=28) if separate else tokenizer
    dataset = tf.data.Dataset.from_tensor_slices(tuple(map(list, zip(*TEXTS, strict=True))))
    given = kt.Tokenizers(tokenizer, other) if separate else tokenizer
    batches = kt.token_batches(dataset, tokenizer=given, batch_tokens=640, max_length=64, shuffle_pairs=0)
    for side in given if separate else (given,):
        side.encode_tensor(tf.constant(["a"]))
    keras.utils.set_random_seed(1)  # TensorFlow then forgets the resources of eager tokenizers
    found = [
        (tokenizer.decode([a])[0], other.decode([b])[0]) for a, b in pairs_in(arrays(batches), SpecialIds())
    ]
    assert sorted(found) == sorted(TEXTS)
    ids = [tuple(tokenizer.encode([a])[0]) for a, _ in TEXTS]
    assert sorted(ids) == sorted(a for a, _ in pairs_in(arrays(batches), SpecialIds()))


@pytest.mark.parametrize("form", ["ragged", "uint16", "int64"])
def test_ids_may_come_in_any_form(form):
    pairs = [([11, 12, 13], [14, 15, 16]), ([17, 18, 19], [20, 21, 22])]
    if form == "ragged":
        dataset = tf.data.Dataset.from_tensor_slices(tuple(map(tf.ragged.constant, zip(*pairs, strict=True))))
    else:  # all of one length
        dataset = tf.data.Dataset.from_tensor_slices(tuple(np.array(pairs, form).transpose(1, 0, 2)))
    assert pairs_in(arrays(batches_of(dataset, shuffle_pairs=0))) == as_tuples(pairs)


@pytest.mark.slow
def test_an_endless_dataset_gives_batches_without_end():
    numbers = tf.data.Dataset.counter(10).map(lambda number: (tf.fill([number % 9 + 1], number), [number]))
    batches = batches_of(numbers, shuffle_pairs=20)
    found = [target for _, (target,) in pairs_in(arrays(batches.take(30)))]
    assert len(found) == len(set(found)) > 1000


@pytest.mark.slow
def test_loss_and_metrics_are_those_of_the_counted_form(config):
    rng = np.random.default_rng(2)
    texts = [
        (rng.integers(4, 300, a).tolist(), rng.integers(4, 300, b).tolist())
        for a, b in rng.integers(1, 20, (60, 2))
    ]
    lookup = {str(ids): ids for pair in texts for ids in pair}
    words = type(
        "", (), {"special": SpecialIds(), "encode": lambda self, keys: [lookup[key] for key in keys]}
    )()
    pairs = kt.encode_pairs([str(a) for a, _ in texts], [str(b) for _, b in texts], words)
    planner = kt.EpochPlanner(*pairs.lengths, batch_tokens=256)
    model = kt.Transformer(config.model)
    model.compile("sgd", kt.LabelSmoothedCrossEntropy(0.1), metrics=[kt.TokenAccuracy(), kt.Perplexity()])
    counted = model.evaluate(kt.token_batches(pairs, planner), verbose=0)
    for padding in PADDINGS:
        streamed = batches_of(texts, batch_tokens=256, max_length=20, special=None, padding=padding)
        steps = sum(1 for _ in streamed)
        assert steps > 1
        np.testing.assert_allclose(model.evaluate(streamed, steps=steps, verbose=0), counted, rtol=1e-5)


@pytest.mark.slow
def test_what_is_dropped_is_counted_on_standard_error(capfd):
    good, long, empty = ([11] * 31, [12] * 31), ([11] * 31, [12] * 32), ([], [12])
    pairs = [good] * 1005 + [long] * 3 + [empty] * 2 + [good] * 300
    found = pairs_in(arrays(batches_of(pairs, shuffle_pairs=0)))
    assert found == as_tuples([good] * 1305)
    lines = capfd.readouterr().err.splitlines()
    reports = [line for line in lines if "token_batches" in line]
    what = "3 with more than 32 tokens (max_length), 2 with an empty side"
    # After the first block that reaches 1,000 pairs, and at the end.
    assert reports == [f"token_batches: 5 of {number} pairs dropped: {what}" for number in (1024, 1310)]


@pytest.mark.slow
def test_nothing_is_printed_when_nothing_is_dropped(capfd):
    assert len(pairs_in(arrays(batches_of([([11], [12])] * 1100)))) == 1100
    assert "token_batches" not in capfd.readouterr().err


@pytest.mark.parametrize(("pairs", "count"), [([([11] * 40, [12])] * 3, "3 of 3"), ([], "0 of 0")])
def test_a_dataset_without_a_pair_that_fits_is_refused(pairs, count):
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"no pairs are left.*{count} pairs dropped"):
        arrays(batches_of(pairs))


@pytest.mark.slow
def test_blank_texts_are_dropped(tokenizer, capfd):
    dataset = tf.data.Dataset.from_tensor_slices((["a dog", " ", "a text"], ["Hund", "T", "\x85\u3000"]))
    batches = kt.token_batches(dataset, tokenizer=tokenizer, batch_tokens=256, max_length=32)
    assert [tokenizer.decode([a]) for a, _ in pairs_in(arrays(batches), SpecialIds())] == [["a dog"]]
    assert "2 of 3 pairs dropped: 0 with more than 32 tokens (max_length), 2 with" in capfd.readouterr().err


def orders(pairs, number=2, **settings):
    dataset = batches_of(pairs, **settings)
    return [pairs_in(arrays(dataset)) for _ in range(number)]


@pytest.mark.slow
def test_the_seed_decides_the_order_which_differs_between_iterations():
    pairs = random_pairs(5, 200)
    first = orders(pairs, seed=1)
    assert first == orders(pairs, seed=1)
    assert first[0] != first[1]
    assert orders(pairs, number=1, seed=2)[0] != first[0]
    (kept,) = orders([([i], [i]) for i in range(10, 60)], number=1, shuffle_pairs=0)
    assert kept == [((i,), (i,)) for i in range(10, 60)]


@pytest.mark.parametrize("bad", [-1, 4, 7])  # negative, eos, padding
def test_an_id_that_is_no_token_is_refused(bad):
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=rf"negative, 7 \(padding\) or 4 \(eos.*\[{bad}\]"
    ):
        arrays(batches_of([([11, 12], [13]), ([14], [15, bad])]))


def test_text_that_is_not_utf_8_is_refused(tokenizer):
    dataset = tf.data.Dataset.from_tensor_slices((["a", b"sch\xf6n"], ["A", "B"]))
    batches = kt.token_batches(dataset, tokenizer=tokenizer, batch_tokens=256, max_length=32)
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be UTF-8. Received:.*sch\ufffdn"):
        arrays(batches)


@pytest.mark.parametrize(
    "elements",
    [
        {"en": ["a"], "de": ["A"]},
        (["a"], ["A"], ["B"]),
        ([["a"]], [["A"]]),
        ([[1, 2]], [[1, 2]]),
    ],
)
def test_elements_that_are_not_two_texts_are_refused(tokenizer, elements):
    dataset = tf.data.Dataset.from_tensor_slices(elements)
    with pytest.raises(
        TypeError, match=r"two scalar strings. Select the two with dataset.map\(.*Received: .*Spec"
    ):
        kt.token_batches(dataset, tokenizer=tokenizer, batch_tokens=256, max_length=32)


@pytest.mark.parametrize("elements", [(["a"], ["A"]), ([1], [2]), ([[[1]]], [[[2]]]), ([[1.0]], [[2.0]])])
def test_elements_that_are_not_two_vectors_are_refused(elements):
    dataset = tf.data.Dataset.from_tensor_slices(elements)
    with pytest.raises(TypeError, match=r"two int vectors \(strings need `tokenizer`\)"):
        kt.token_batches(dataset, batch_tokens=256, max_length=32)


def test_a_tokenizer_that_cannot_encode_in_the_graph_is_refused(tokenizer):
    trees = TreeTokenizer.train(["(S (NP XX) (VP XX))"], keep_tags=False)
    dataset = tf.data.Dataset.from_tensor_slices((["a"], ["(S XX)"]))
    with pytest.raises(TypeError, match="`encode_tensor`.* Received: TreeTokenizer"):
        kt.token_batches(dataset, tokenizer=kt.Tokenizers(tokenizer, trees), batch_tokens=256, max_length=32)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_tokens": 255}, r"at least 8 \* `max_length`. Received: batch_tokens=255, max_length=32"),
        ({"max_length": 1}, "`max_length` must be at least 2. Received: 1"),
        ({"max_shapes": 0}, "`max_shapes` must be at least 1. Received: 0"),
        ({"shuffle_pairs": -1}, "`shuffle_pairs` must be at least 0. Received: -1"),
        ({"padding": "best"}, "`padding` must be one of .*Received: 'best'"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        batches_of([([11], [12])], **settings)


def test_special_ids_other_than_those_of_the_tokenizer_are_refused(tokenizer):
    dataset = tf.data.Dataset.from_tensor_slices((["a"], ["A"]))
    with pytest.raises(ValueError, match="`tokenizer` has different special ids"):
        kt.token_batches(dataset, tokenizer=tokenizer, batch_tokens=256, max_length=32, special=SPECIAL)


def test_no_python_is_in_the_graph_and_no_thread_tunes_it(tokenizer):
    dataset = tf.data.Dataset.from_tensor_slices((["a"], ["A"]))
    batches = kt.token_batches(dataset, tokenizer=tokenizer, batch_tokens=256, max_length=32)
    assert batches.options().autotune.enabled is False
    serialised = tf.raw_ops.DatasetToGraphV2(
        input_dataset=tf.data.experimental.to_variant(batches), external_state_policy=1
    )
    graph = tf.compat.v1.GraphDef.FromString(serialised.numpy())
    operations = {node.op for function in graph.library.function for node in function.node_def}
    assert not [name for name in operations if "PyFunc" in name or "Generator" in name]
