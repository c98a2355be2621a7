"""IBM model 1 against its formulas in plain loops, and on text with known links."""

import itertools
from collections import defaultdict

import numpy as np
import pytest

from keras_transformer.analysis import heads
from keras_transformer.analysis.heads import sure_links


def by_the_book(pairs, iterations):
    """t(target | source) of Brown et al. (1993), the empty word `None` included."""
    translation = defaultdict(lambda: 1.0)
    for _ in range(iterations):
        counts, totals = defaultdict(float), defaultdict(float)
        for source, target in pairs:
            for t in target:
                norm = sum(translation[s, t] for s in [None, *source])
                for s in [None, *source]:
                    counts[s, t] += translation[s, t] / norm
                    totals[s] += translation[s, t] / norm
        translation = defaultdict(float, {(s, t): n / totals[s] for (s, t), n in counts.items()})
    return translation


def links_by_the_book(pairs):
    forward = by_the_book(pairs, heads.ITERATIONS)
    backward = by_the_book([(target, source) for source, target in pairs], heads.ITERATIONS)
    found = []
    for source, target in pairs:
        one = {
            (max(range(len(source)), key=lambda i: forward[source[i], t]), j, t) for j, t in enumerate(target)
        }
        one = {(i, j) for i, j, t in one if forward[source[i], t] > forward[None, t]}
        two = {
            (i, max(range(len(target)), key=lambda j: backward[target[j], s]), s)
            for i, s in enumerate(source)
        }
        two = {(i, j) for i, j, s in two if backward[target[j], s] > backward[None, s]}
        found.append(one & two)
    return found


def test_links_are_those_of_the_formulas():
    rng = np.random.default_rng(4)
    # Without a piece that occurs twice in a sentence, no two cells are equally probable.
    pairs = [
        (rng.permutation(9)[:n].tolist(), rng.permutation(11)[:m].tolist())
        for n, m in rng.integers(2, 7, (25, 2))
    ]
    assert sure_links(*zip(*pairs, strict=True), 25) == links_by_the_book(pairs)


def test_words_with_one_translation_find_it_in_any_order():
    rng = np.random.default_rng(0)
    sources = [rng.permutation(20)[:6] for _ in range(200)]
    orders = [rng.permutation(6) for _ in sources]
    targets = [19 - source[order] for source, order in zip(sources, orders, strict=True)]
    for links, order in zip(sure_links(sources, targets, 30), orders, strict=False):
        assert links == {(int(i), j) for j, i in enumerate(order)}


def test_of_repeated_pieces_the_nearer_one_is_linked():
    sources, targets = [[7, 1, 2, 7, 3]], [[8, 4, 5, 8, 6]]
    words = [[1], [2], [3], [7]] * 5, [[4], [5], [6], [8]] * 5
    assert sure_links(sources + words[0], targets + words[1], 1) == [{(i, i) for i in range(5)}]


@pytest.mark.parametrize("blank", [([[]], [[1, 2]]), ([[1]], [[]]), ([[]], [[]])])
def test_blank_sides_have_no_links(blank):
    assert sure_links(*blank, 1) == [set()]
    assert sure_links([*blank[0], [3]], [*blank[1], [4]], 2)[0] == set()


def test_no_pairs_have_no_links():
    assert sure_links([], [], 0) == []


def test_an_endless_corpus_is_read_up_to_the_limit(monkeypatch):
    monkeypatch.setattr(heads, "MAX_CELLS", 100)
    assert len(sure_links(itertools.repeat([1, 2]), itertools.repeat([3, 4]), 3)) == 3
