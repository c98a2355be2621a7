"""Repeated pairs, against a Python set."""

import random

import numpy as np
import pytest

from keras_transformer.text.cleaning import HashSet, pair_hashes


def blocks_of(pairs, sizes):
    begin = 0
    for size in sizes:
        yield pairs[begin : begin + size]
        begin += size


def test_hashes_are_the_same_everywhere():
    # printf 'Hello.\nHallo.' | b2sum -l 64
    assert pair_hashes([" Hello. "], ["Hallo.\t"]).tobytes().hex() == "793b48e48c327c70"


def test_a_pair_is_both_sides_in_order():
    source = ["a", "b", "a b", "a", "", "ab", "a", "ä", "a\u0308", "A", "\ud800"]
    target = ["b", "a", "", "b c", "a b", "", "", "", "", "b", ""]
    hashes = pair_hashes(source, target)
    assert hashes.dtype == np.uint64
    assert len(set(hashes.tolist())) == len(source)


def test_spaces_at_the_ends_do_not_matter():
    hashes = pair_hashes(["a b", " a b", "a b\t", "\u00a0a b \u3000", "a  b"], ["c", "c ", " c", "c", "c"])
    assert len(set(hashes[:4].tolist())) == 1
    assert hashes[4] != hashes[0]


def test_sides_must_be_equally_long():
    with pytest.raises(ValueError, match="zip"):
        pair_hashes(["a"], [])


@pytest.mark.parametrize("seed", range(5))
def test_finds_what_a_set_finds(seed):
    rng = random.Random(seed)
    pairs = [(str(rng.randrange(40)), str(rng.randrange(40))) for _ in range(4000)]
    sizes = []
    while sum(sizes) < len(pairs):
        sizes.append(rng.choice([0, 1, 2, 7, 100, 501]))
    seen, known = HashSet(), set()
    for block in blocks_of(pairs, sizes):
        expected = []
        for pair in block:
            expected.append(pair in known)
            known.add(pair)
        hashes = pair_hashes([a for a, _ in block], [b for _, b in block])
        assert seen.add(hashes).tolist() == expected
        assert len(seen) == len(known)


def test_extreme_hashes():
    ends = np.array([2**64 - 1, 0, 2**64 - 1, 2**63, 0], np.uint64)
    seen = HashSet()
    assert seen.add(ends).tolist() == [False, False, True, False, True]
    assert seen.add(ends).all()


def test_memory_is_eight_bytes_a_pair_in_few_arrays():
    seen = HashSet()
    rng = np.random.default_rng(3)
    for _ in range(300):
        seen.add(rng.integers(0, 2**64, 1000, np.uint64))
    assert len(seen) == 300_000
    assert sum(run.nbytes for run in seen._runs) == 8 * 300_000
    lengths = [len(run) for run in seen._runs]
    assert all(a > 2 * b for a, b in zip(lengths, lengths[1:], strict=False))
