"""The tree grammar against all sequences and a parser on lists: no ill-formed tree, exactly the words."""

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf
from test_constraints import Everything, run, step_of
from test_ensemble import VOCAB, make_model, sources
from test_search import EOS, PAD, Listed, Toy, check_equal, check_same, ranked, to_numpy

from keras_transformer.config.settings import SearchConfig
from keras_transformer.translation.ensemble import search_ids
from keras_transformer.translation.tree_grammar import TreeGrammar

# Two labels: tokens 4 and 5 open, 6 and 7 close, 8 is a word. In the models of `test_ensemble`, the third
# label has two tokens each, and there are three words.
SMALL = {4: ("open", 0), 5: ("open", 1), 6: ("close", 0), 7: ("close", 1), 8: ("word", None)}
LARGE = {
    **{token: ("open", label) for token, label in [(4, 0), (9, 1), (12, 2), (30, 2)]},
    **{token: ("close", label) for token, label in [(5, 0), (10, 1), (13, 2), (29, 2)]},
    **{token: ("word", None) for token in (6, 8, 21)},
}


def grammar(tokens, vocab_size, num_words, **settings):
    arrays = {"open": np.full(vocab_size, -1), "close": np.full(vocab_size, -1)}
    arrays["word"] = np.zeros(vocab_size, bool)
    for token, (kind, label) in tokens.items():
        arrays[kind][token] = True if label is None else label
    return TreeGrammar(
        arrays["open"], arrays["close"], arrays["word"], eos_id=EOS, num_words=num_words, **settings
    )


def parse(ids, tokens, begin=0, row=1, depth=1):
    """Reads one constituent; returns its end, number of words, most openings in a row, and depth."""
    kind, label = tokens.get(ids[begin], (None, None))
    if kind != "open":
        raise SyntaxError(f"no constituent at {begin} of {ids}")
    place, words, most_row, most_depth, first = begin + 1, 0, row, depth, True
    while place < len(ids):
        kind, other = tokens.get(ids[place], (None, None))
        if kind == "word":
            place, words = place + 1, words + 1
        elif kind == "open":
            place, more, inner_row, inner_depth = parse(
                ids, tokens, place, row + 1 if first else 1, depth + 1
            )
            words += more
            most_row, most_depth = max(most_row, inner_row), max(most_depth, inner_depth)
        elif kind == "close" and other == label and not first:
            return place + 1, words, most_row, most_depth
        else:
            raise SyntaxError(f"wrong at {place} of {ids}")
        first = False
    raise SyntaxError(f"not closed: {ids}")


def is_tree(ids, tokens, num_words, max_openings=8, max_depth=64):
    """Whether ids are one tree with so many words, and eos."""
    if ids[-1] != EOS:
        return False
    try:
        end, words, row, depth = parse(ids[:-1], tokens)
    except (SyntaxError, IndexError):  # the second, of nothing before eos
        return False
    return end == len(ids) - 1 and words == num_words and row <= max_openings and depth <= max_depth


@pytest.mark.parametrize(
    ("ids", "number", "good"),
    [
        ([4, 8, 6, EOS], 1, True),
        ([4, 5, 8, 7, 8, 6, EOS], 2, True),
        ([4, 8, 6, EOS], 2, False),  # a word is missing
        ([4, 5, 8, 6, 7, EOS], 1, False),  # crossed
        ([4, 5, 7, 8, 6, EOS], 1, False),  # empty
        ([4, 8, 6, 4, 8, 6, EOS], 2, False),  # two roots
        ([4, 8, EOS], 1, False),
        ([8, EOS], 1, False),
        ([EOS], 0, False),
    ],
)
def test_the_oracle_by_hand(ids, number, good):
    assert is_tree(ids, SMALL, number) == good


@pytest.mark.parametrize("limits", [{}, {"max_openings": 1}, {"max_depth": 1}], ids=str)
@pytest.mark.parametrize(("num_words", "limit"), [(1, 7), (2, 7), (3, 7), (1, 4), (4, 7)])
def test_a_wide_beam_lists_exactly_the_trees_that_there_are(num_words, limit, limits):
    toy = Toy(3, 9)
    everything = itertools.chain(*(itertools.product(SMALL, repeat=n) for n in range(limit)))
    trees = [(*ids, EOS) for ids in everything if is_tree((*ids, EOS), SMALL, num_words, **limits)]
    expected = ranked(Listed(True, toy.score(5, ids, 0.6), ids) for ids in trees)
    width = 200
    assert 2 <= len(expected) < width / 2
    constraint = grammar(SMALL, 9, [num_words], **limits)
    check_same(run(toy, [5], [limit], constraint, beam_size=width, n_best=width), 0, expected)


LENGTHS = (9, 3, 7, 2, 5, 11)
NUM_WORDS = np.array([3, 1, 7, 12, 2, 5], np.int32)


def check_trees(found, num_words=NUM_WORDS, **limits):
    """All n-best hypotheses are trees; returns how many there are."""
    for row, number in enumerate(num_words):
        assert found.lengths[row, 0] > 0
        for place in range(found.scores.shape[1]):
            ids = found.ids[row, place, : found.lengths[row, place]].tolist()
            if place == 0 or found.scores[row, place] > -math.inf:
                assert is_tree(ids, LARGE, number, **limits), ids
                assert found.finished[row, place]
    return np.isfinite(found.scores).sum()


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("offset", [1, 7, pytest.param(40, marks=pytest.mark.very_slow)])
@pytest.mark.parametrize("beam_size", [1, pytest.param(2, marks=pytest.mark.very_slow), 5, 21])
def test_random_models_give_only_trees_with_all_words(beam_size, offset):
    config = SearchConfig(beam_size=beam_size, n_best=beam_size, alpha=0.3, max_length_offset=offset)
    limits = {"max_openings": 3, "max_depth": 5}
    for seed in range(2):
        model = make_model(seed, end=3.0 - 4 * seed, norm_first=bool(seed))
        found = to_numpy(
            search_ids(model, sources(LENGTHS), config, constraint=grammar(LARGE, VOCAB, NUM_WORDS, **limits))
        )
        assert check_trees(found, **limits) >= len(NUM_WORDS)


def graph_of(model, config, shape, batch):
    spec = [tf.TensorSpec(shape, tf.int32), tf.TensorSpec((batch,), tf.int32)]
    return tf.function(
        lambda ids, num_words: search_ids(
            model, ids, config, constraint=grammar(LARGE, VOCAB, num_words)
        )._asdict(),
        input_signature=spec,
        autograph=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("beam_size", [pytest.param(1, marks=pytest.mark.very_slow), 5])
def test_graphs_and_a_saved_model_give_the_same_trees(beam_size, tmp_path):
    model, ids = make_model(1, end=-1.0), sources(LENGTHS)
    config = SearchConfig(beam_size=beam_size, n_best=min(beam_size, 2), max_length_offset=20)
    eager = to_numpy(search_ids(model, ids, config, constraint=grammar(LARGE, VOCAB, NUM_WORDS)))
    check_trees(eager)
    module = tf.Module()
    module.weights = model.weights
    module.graph = graph_of(model, config, (None, None), None)
    tf.saved_model.save(module, str(tmp_path), signatures={"parse": module.graph})
    loaded = tf.saved_model.load(str(tmp_path)).signatures["parse"]

    def check(graph, rows=slice(None), extra=0):
        padded = np.pad(ids[rows], [(0, 0), (0, extra)])
        found = graph(tf.constant(padded), tf.constant(NUM_WORDS[rows]))
        found = type(eager)(**{name: np.asarray(found[name]) for name in eager._fields})
        check_trees(found, NUM_WORDS[rows])
        length = found.ids.shape[2]
        wanted = type(eager)(*(x[rows] for x in eager))
        check_equal(found, wanted._replace(ids=wanted.ids[:, :, :length]))

    check(module.graph)
    check(graph_of(model, config, ids.shape, len(ids)))
    check(lambda *values: loaded(**named(loaded, values)))
    check(module.graph, slice(3, 4))  # neither neighbours
    check(module.graph, slice(1, 5), extra=4)  # nor padding matter


def named(function, values):
    """The arguments of a signature by name, in the order of their ranks: ids, then numbers."""
    specs = function.structured_input_signature[1]
    names = sorted(specs, key=lambda name: -specs[name].shape.rank)
    return dict(zip(names, values, strict=True))


@pytest.mark.slow
def test_the_limit_is_raised_to_a_tree_without_inner_constituents():
    config = SearchConfig(beam_size=3, n_best=3, max_length=4, max_length_offset=1)
    found = to_numpy(
        search_ids(make_model(2), sources((3, 4)), config, constraint=grammar(LARGE, VOCAB, [9, 2]))
    )
    check_trees(found, [9, 2])
    assert found.lengths[0].tolist() == [12, 12, 12]


@pytest.mark.slow
def test_a_sentence_without_words_is_not_searched():
    config = SearchConfig(beam_size=3, max_length_offset=5)
    for searching in (config, SearchConfig(beam_size=1)):
        found = to_numpy(
            search_ids(make_model(2), sources((3, 4)), searching, constraint=grammar(LARGE, VOCAB, [0, 2]))
        )
        assert found.lengths[0].tolist() == [0]
        assert found.scores[0].tolist() == [0.0]
        check_trees(type(found)(*(x[1:] for x in found)), [2])


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("beam_size", [1, 3])
def test_too_many_words_for_learned_positions_have_no_tree(beam_size):
    model = make_model(2, positions="learned", max_positions=13)
    config = SearchConfig(beam_size=beam_size)
    found = to_numpy(search_ids(model, sources((3, 4)), config, constraint=grammar(LARGE, VOCAB, [11, 10])))
    assert found.scores[0, 0] == -math.inf
    assert found.lengths[0, 0] == 0
    check_trees(type(found)(*(x[1:] for x in found)), [10])


@pytest.mark.slow
def test_samples_are_trees():
    config = SearchConfig(sampling=True, n_best=5, max_length_offset=9)
    uniforms = np.random.default_rng(2).random((6, 5, 24)).astype("float32")
    constraint = grammar(LARGE, VOCAB, NUM_WORDS)
    found = search_ids(make_model(4), sources(), config, uniforms=uniforms, constraint=constraint)
    assert check_trees(to_numpy(found)) == 30


def test_a_grammar_that_changes_nothing_scores_as_the_free_search():
    # The free search of this model prefers a tree: probabilities by hand.
    table = np.full((6, 9), 0.01)
    for position, token in enumerate([4, 8, 8, 6, EOS]):
        table[position, token] = 0.9
    toy = Toy(0, 9)
    toy.step = step_of(table)
    free = run(toy, [0], [9], Everything(9), beam_size=4)
    bound = run(toy, [0], [9], grammar(SMALL, 9, [2]), beam_size=4)
    assert bound.ids[0, 0].tolist() == [4, 8, 8, 6, EOS, PAD, PAD, PAD, PAD]
    check_equal(free, bound)


def arrays(**changes):
    opening, closing, words = np.full(9, -1), np.full(9, -1), np.zeros(9, bool)
    opening[4], closing[6], words[8] = 0, 0, True
    return {"opening": opening, "closing": closing, "words": words, "eos_id": EOS, "num_words": [1]} | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"words": np.zeros(9, bool)}, "`words` must contain a token"),
        ({"words": np.zeros(8, bool)}, r"one shape.*\(9,\).*\(8,\)"),
        ({"words": np.arange(9) == 4}, "one class only.*token 4"),
        ({"words": np.arange(9) == EOS}, "no class.*eos_id=2"),
        ({"closing": np.where(np.arange(9) == 6, 1, -1)}, r"opened \[0\], closed \[1\]"),
        ({"opening": np.full(9, -1), "closing": np.full(9, -1)}, r"at least one.*opened \[\], closed \[\]"),
        ({"max_openings": 0}, "`max_openings`.*max_openings=0"),
        ({"max_depth": 0}, "`max_depth`.*max_depth=0"),
    ],
)
def test_refuses_arrays_that_contradict_each_other(changes, message):
    with pytest.raises(ValueError, match=message):
        TreeGrammar(**arrays(**changes))
