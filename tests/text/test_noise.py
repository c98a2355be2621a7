"""Noise on whole words: what it may do, how often, and on what it depends."""

import itertools
import math
import random

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from keras_transformer.text.noise import Noise, shuffled

LETTERS = st.characters(codec="utf-8", exclude_categories=["Z", "C"])
WORDS = st.lists(st.text(LETTERS, min_size=1), max_size=13)
RATES = st.builds(
    Noise,
    drop=st.floats(0, 1, exclude_max=True),
    replace=st.floats(0, 1),
    shuffle=st.integers(0, 7),
    filler=st.just("_"),
    seed=st.integers(0, 2**63),
)


def line(length, number=0):
    """A line of different words."""
    return " ".join(f"w{number}x{i}" for i in range(length))


@pytest.mark.slow
@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(words=WORDS, noise=RATES, number=st.integers(0, 10**9))
def test_words_are_dropped_replaced_and_moved_and_nothing_else(words, noise, number):
    text = " ".join(f"{i}:{word}" for i, word in enumerate(words))  # all different
    words = text.split()
    result = noise.apply(text, number)
    if not words:
        assert result == text
        return
    found = result.split()
    assert 1 <= len(found) <= len(words)  # never empty
    assert all(word in words or word == noise.filler for word in found)
    without_filler = [word for word in found if word != noise.filler]
    assert len(set(without_filler)) == len(without_filler)  # no word twice
    if not noise.drop:
        assert len(found) == len(words)
        for new, word in enumerate(found):
            assert word == noise.filler or abs(words.index(word) - new) <= noise.shuffle
    if not noise.shuffle:
        assert without_filler == [word for word in words if word in without_filler]  # in order


@pytest.mark.parametrize("distance", [0, 1, 2, 3])
def test_no_word_moves_further_than_the_distance(distance):
    rng, moves = random.Random(11), set()
    for _ in range(3000):
        order = shuffled([rng.random() for _ in range(13)], distance)
        assert sorted(order) == list(range(13))
        moves |= {old - new for new, old in enumerate(order)}
    assert moves == set(range(-distance, distance + 1))  # and each distance occurs


def test_even_the_largest_draw_moves_no_word_further():
    largest = math.nextafter(1, 0)
    for draws in itertools.product([0.0, largest], repeat=7):
        for distance in (1, 2, 3):
            order = shuffled(list(draws), distance)
            assert max(abs(old - new) for new, old in enumerate(order)) <= distance


def test_the_order_is_numpys_stable_argsort():
    rng = np.random.default_rng(5)
    for _ in range(50):
        draws = rng.random(17)
        expected = np.argsort(np.arange(17) + draws * 4, kind="stable")
        assert shuffled(draws.tolist(), 3) == expected.tolist()


@pytest.mark.parametrize(("drop", "replace"), [(0.1, 0.0), (0.0, 0.1), (0.3, 0.2), (0.05, 0.7)])
def test_rates_are_those_asked_for(drop, replace):
    noise, number_words, lines = Noise(drop=drop, replace=replace, shuffle=3), 11, 3000
    kept = replaced = 0
    for number in range(lines):
        found = noise.apply(line(number_words, number), number).split()
        kept += len(found)
        replaced += found.count(noise.filler)
    total = lines * number_words

    def margin(trials, rate):  # five standard deviations of the binomial distribution
        return 5 * math.sqrt(trials * rate * (1 - rate))

    assert abs(total - kept - total * drop) <= margin(total, drop)
    assert abs(replaced - kept * replace) <= margin(kept, replace)


def test_zero_rates_are_the_identity():
    for text in ("a b", "  two  spaces ", "", "   ", "tab\there"):
        assert Noise(0, 0, 0).apply(text, 3) == text


def test_a_line_is_never_empty_and_the_word_that_stays_is_any():
    stay = [Noise(drop=0.999, replace=0, seed=seed).apply("a b c", 0) for seed in range(300)]
    assert {text for text in stay if len(text.split()) == 1} == {"a", "b", "c"}
    assert min(map(stay.count, "abc")) > 60
    assert Noise().apply("   ", 0) == "   "


def test_order_and_shards_do_not_matter_but_number_text_and_seed_do():
    noise = Noise(seed=7)
    lines = [line(9, number % 5) for number in range(40)]  # the same text on several lines
    whole = [noise.apply(text, number) for number, text in enumerate(lines)]
    numbers = list(range(40))
    random.Random(1).shuffle(numbers)
    assert {number: noise.apply(lines[number], number) for number in numbers} == dict(enumerate(whole))
    parts = [[noise.apply(lines[i], i) for i in range(begin, begin + 8)] for begin in range(0, 40, 8)]
    assert list(itertools.chain(*parts)) == whole
    assert whole[0] != whole[5]  # another number
    assert noise.apply(lines[0] + " more", 0)[: len(whole[0])] != whole[0]
    assert [noise._replace(seed=8).apply(text, number) for number, text in enumerate(lines)] != whole


def test_one_rate_leaves_the_other_decisions_alone():
    text = line(23)
    dropped = Noise(drop=0.3, replace=0, shuffle=0).apply(text, 4).split()
    both = Noise(drop=0.3, replace=0.4, shuffle=0).apply(text, 4).split()
    assert len(both) == len(dropped)
    assert all(new in (old, "_") for new, old in zip(both, dropped, strict=True))
    assert both != dropped


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        (Noise(drop=1), "`drop` must be at least 0 and below 1"),
        (Noise(drop=-0.1), "`drop` must be"),
        (Noise(replace=1.1), "`replace` must be from 0 to 1"),
        (Noise(shuffle=-1), "`shuffle` must be a whole number"),
        (Noise(shuffle=1.5), "`shuffle` must be a whole number"),
        (Noise(filler="a b"), "`filler` must be one word"),
        (Noise(filler=""), "`filler` must be one word"),
        (Noise(filler="_\n"), "`filler` must be one word"),
    ],
)
def test_values_out_of_range_are_refused(noise, message):
    with pytest.raises(ValueError, match=message):
        noise.apply("a b", 0)
