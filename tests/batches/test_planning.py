"""Plans: every pair as often as it should be, no batch over budget, little padding."""

import collections
import doctest
import itertools
import math

import numpy as np
import pytest

from keras_transformer.batches import cutting, planning
from keras_transformer.batches.planning import EpochPlanner

PADDINGS = ("longest", "fixed")


def random_lengths(number, seed=0, longest=37):
    """The target is up to 3 tokens off the source."""
    rng = np.random.default_rng(seed)
    source = rng.integers(2, longest - 3, number)
    return source, np.clip(source + rng.integers(-3, 4, number), 2, None)


def news_lengths(number):
    """About what news has: 25 words, log-normal; the translation is 20 % off."""
    rng = np.random.default_rng(5)
    source = rng.lognormal(3.1, 0.6, number)
    target = source * rng.lognormal(0.05, 0.2, number)
    return tuple(np.clip(np.round(x), 2, 200).astype(np.int64) for x in (source, target))


def share_of_real_tokens(source, target, shapes):
    positions = sum(rows * (source_len + target_len) for rows, source_len, target_len in shapes)
    return (source.sum() + target.sum()) / positions


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(("number", "budget"), [(1, 500), (7, 500), (203, 300), (203, 4099), (5003, 1009)])
def test_a_plan_is_complete_and_keeps_to_the_budget(number, budget, padding):
    source, target = random_lengths(number)
    planner = EpochPlanner(source, target, batch_tokens=budget, padding=padding)
    for epoch in range(6):
        plans = planner.plan(epoch)
        assert sorted(np.concatenate([plan.indices for plan in plans])) == list(range(number))
        assert len(plans) == planner.num_batches(epoch)
        for plan in plans:
            assert 0 < len(plan.indices) <= plan.rows
            assert plan.rows % 8 == 0
            assert source[plan.indices].max() <= plan.source_len
            assert target[plan.indices].max() <= plan.target_len
            assert plan.rows * max(plan.source_len, plan.target_len) <= budget
        share = share_of_real_tokens(source, target, [plan.shape for plan in plans])
        assert planner.real_share(epoch) == pytest.approx(share)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("number", "budget"), [(3001, 25_000), (3001, 2503), (40_009, 8192)])
def test_misaligned_pairs_do_not_break_the_budget(number, budget, seed):
    """Rows of a long cell come before those of a short one, of which a batch takes many."""
    rng = np.random.default_rng(seed)
    source = np.clip(np.round(rng.lognormal(2.2, 0.5, number)), 2, 250).astype(int)
    target = np.clip(source + rng.integers(-2, 3, number), 2, None)
    source[:3], target[:3] = (10, 3, 249), (250, 241, 4)
    planner = EpochPlanner(source, target, batch_tokens=budget, seed=seed)
    for epoch in range(4):
        plans = planner.plan(epoch)
        assert sorted(np.concatenate([plan.indices for plan in plans])) == list(range(number))
        assert max(plan.rows * max(plan.source_len, plan.target_len) for plan in plans) <= budget


def test_one_long_pair_before_many_short_ones_is_a_batch_of_its_own_or_of_few():
    source, target = np.array([10, 4]), np.array([250, 4])
    regions, cost = cutting.cut_into_batches(source, target, np.array([1, 3000]), 25_000)
    assert np.isfinite(cost)
    assert sum(region.num_pairs for region in regions) == 3001
    assert all(region.rows * max(region.source_len, region.target_len) <= 25_000 for region in regions)


@pytest.mark.parametrize("seed", range(3))
def test_longest_pads_no_further_than_the_longest(seed):
    source, target = random_lengths(1009, seed)
    planner = EpochPlanner(source, target, batch_tokens=997, seed=seed)
    for epoch in range(4):
        for plan in planner.plan(epoch):
            assert plan.source_len == source[plan.indices].max()
            assert plan.target_len == target[plan.indices].max()
            assert plan.rows - len(plan.indices) < 8


@pytest.mark.parametrize("max_shapes", [1, 3, 16])
def test_fixed_padding_keeps_to_its_shapes_in_every_epoch(max_shapes):
    source, target = news_lengths(20_011)
    planner = EpochPlanner(source, target, batch_tokens=4096, padding="fixed", max_shapes=max_shapes)
    epochs = [collections.Counter(plan.shape for plan in planner.plan(epoch)) for epoch in range(5)]
    assert len(epochs[0]) == max_shapes
    assert all(shapes == epochs[0] for shapes in epochs)


def exhaustive_cost(rows, source, target, budget):
    """The least cost of all ways to cut ordered parts into batches."""
    best = np.inf
    number = len(rows)
    for cuts in itertools.product((False, True), repeat=number - 1):
        edges = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), number]
        cost = 0
        for begin, end in itertools.pairwise(edges):
            padded = -(-sum(rows[begin:end]) // 8) * 8
            box = max(source[begin:end]), max(target[begin:end])
            cost += padded * sum(box) + 0.2 * budget if padded * max(box) <= budget else np.inf
        best = min(best, cost)
    return best


@pytest.mark.parametrize("seed", range(12))
def test_no_other_cut_of_the_walk_costs_less(seed):
    rng = np.random.default_rng(seed)
    source, target = rng.integers(2, 31, 11), rng.integers(2, 31, 11)
    # Every cell is one part: a 16th of this budget is below 8 rows.
    rows, budget = np.full(11, 8), 8 * 31 * 3
    regions, cost = cutting.cut_into_batches(source, target, rows, budget)
    assert cost == pytest.approx(exhaustive_cost(rows.tolist(), source.tolist(), target.tolist(), budget))
    assert cost == pytest.approx(sum(region.num_positions + 0.2 * budget for region in regions))
    assert sum(region.num_pairs for region in regions) == 88


@pytest.mark.parametrize("seed", range(6))
def test_no_other_regions_of_the_walk_cost_less(seed):
    rng = np.random.default_rng(seed)
    source, target, counts = rng.integers(2, 31, 9), rng.integers(2, 31, 9), rng.integers(1, 50, 9)
    budget, best = 8 * 31 * 2, np.inf
    for cuts in itertools.combinations(range(1, 9), 2):
        cost = 0
        for begin, end in itertools.pairwise((0, *cuts, 9)):
            box = source[begin:end].max(), target[begin:end].max()
            pairs = int(counts[begin:end].sum())
            number = -(-pairs // (budget // max(box) // 8 * 8))
            rows = math.ceil(math.ceil(pairs / number) / 8) * 8
            cost += number * (rows * sum(box) + 0.2 * budget)
        best = min(best, cost)
    regions, cost = cutting.cut_into_regions(source, target, counts, budget, 3)
    assert len(regions) <= 3
    assert cost <= best + 1e-6
    if len(regions) == 3:
        assert cost == pytest.approx(best)


@pytest.mark.slow
def test_little_of_a_batch_is_padding():
    source, target = news_lengths(20_011)
    shapes = {
        padding: [
            plan.shape for plan in EpochPlanner(source, target, batch_tokens=4096, padding=padding).plan(0)
        ]
        for padding in PADDINGS
    }
    rows = 64  # about as many as the budget holds on average
    plain = [
        (rows, source[i : i + rows].max(), target[i : i + rows].max()) for i in range(0, len(source), rows)
    ]
    assert share_of_real_tokens(source, target, plain) < 0.45
    assert share_of_real_tokens(source, target, shapes["fixed"]) > 0.75
    assert share_of_real_tokens(source, target, shapes["longest"]) > 0.93


@pytest.mark.parametrize("padding", PADDINGS)
def test_neighbours_change_from_epoch_to_epoch(padding):
    source, target = random_lengths(2003)
    planner = EpochPlanner(source, target, batch_tokens=1009, padding=padding)

    def neighbours(epoch):
        return {
            pair
            for plan in planner.plan(epoch)
            for pair in itertools.combinations(sorted(plan.indices.tolist()), 2)
        }

    first = neighbours(0)
    for epoch in range(1, 5):
        assert len(first & neighbours(epoch)) < 0.7 * len(first)


def test_big_batches_of_a_small_corpus_still_change():
    # Few batches: without turns, each would hold the same lengths in every epoch.
    source, target = random_lengths(2003)
    planner = EpochPlanner(source, target, batch_tokens=4999)
    batches = [{frozenset(plan.indices) for plan in planner.plan(epoch)} for epoch in range(4)]
    for one, other in itertools.combinations(batches, 2):
        assert len(one & other) <= 0.2 * len(one)


def test_seed_and_epoch_decide_everything():
    source, target = random_lengths(503)

    def order(seed, epoch):
        planner = EpochPlanner(source, target, batch_tokens=701, seed=seed)
        return [plan.indices.tolist() for plan in planner.plan(epoch)]

    assert order(1, 3) == order(1, 3)
    assert order(1, 3) != order(2, 3)
    assert order(1, 3) != order(1, 11)  # the same cell order, eight epochs on


def test_locate_counts_the_batches_of_the_epochs_before():
    source, target = random_lengths(611)
    planner = EpochPlanner(source, target, batch_tokens=307)
    expected = [(epoch, k) for epoch in range(11) for k in range(len(planner.plan(epoch)))]
    assert [planner.locate(start) for start in range(len(expected))] == expected


def test_the_first_epoch_is_planned_without_the_others(monkeypatch):
    # One cell order for each number of bands; once, the orders of eight epochs were cut first.
    calls, cut = [], cutting.cut_into_batches
    monkeypatch.setattr(cutting, "cut_into_batches", lambda *cells: calls.append(cells) or cut(*cells))
    EpochPlanner(*random_lengths(611), batch_tokens=307).plans(3)
    assert len(calls) == len(planning._BAND_COUNTS)


def corpus_counts(planner, sizes, epoch):
    """How often each pair is in an epoch, by corpus."""
    indices = np.concatenate([plan.indices for plan in planner.plan(epoch)])
    counts = np.bincount(indices, minlength=sum(sizes))
    return np.split(counts, np.cumsum(sizes)[:-1])


@pytest.mark.slow
def test_weights_say_how_often_each_corpus_is_seen():
    sizes, weights = (211, 503, 97), (1, 0.37, 2.5)
    source, target = random_lengths(sum(sizes))
    planner = EpochPlanner(source, target, batch_tokens=701, sizes=sizes, weights=weights)
    seen = np.zeros(sum(sizes))
    for epoch in range(40):
        found = corpus_counts(planner, sizes, epoch)
        for counts, size, weight in zip(found, sizes, weights, strict=True):
            assert abs(counts.sum() - size * weight) < 1
            assert set(counts) <= {int(weight), int(weight) + (weight % 1 > 0)}
        seen += np.concatenate(found)
    for counts, weight in zip(np.split(seen / 40, np.cumsum(sizes)[:-1]), weights, strict=True):
        assert counts.mean() == pytest.approx(weight, rel=0.01)
        assert counts.min() > 0  # no pair is left out for ever


def test_fixed_padding_plans_epochs_that_sample_no_pair_of_a_length():
    source, target = random_lengths(60)
    options = {
        "batch_tokens": 2048,
        "padding": "fixed",
        "max_shapes": 6,
        "sizes": (30, 30),
        "weights": (1, 0.5),
    }
    planner = EpochPlanner(source, target, **options)
    for epoch in range(6):
        counts = corpus_counts(planner, (30, 30), epoch)
        assert [found.sum() for found in counts] == [30, 15]
        for plan in planner.plan(epoch):
            assert max(source[plan.indices]) <= plan.source_len
            assert max(target[plan.indices]) <= plan.target_len


def test_weights_draw_other_pairs_in_other_epochs():
    source, target = random_lengths(503)
    planner = EpochPlanner(source, target, batch_tokens=701, sizes=(503,), weights=(0.5,))
    chosen = [
        set(np.concatenate([plan.indices for plan in planner.plan(epoch)]).tolist()) for epoch in range(4)
    ]
    assert all(len(pairs) in (251, 252) for pairs in chosen)
    assert len(chosen[0] & chosen[1]) < 0.7 * 252


def test_a_weight_of_one_is_no_weight():
    source, target = random_lengths(307)
    plain = EpochPlanner(source, target, batch_tokens=701)
    weighted = EpochPlanner(source, target, batch_tokens=701, sizes=(100, 207), weights=(1, 1.0))
    for one, other in zip(plain.plan(2), weighted.plan(2), strict=True):
        assert one.shape == other.shape
        assert one.indices.tolist() == other.indices.tolist()


def test_a_corpus_of_weight_zero_is_left_out():
    source, target = random_lengths(307)
    planner = EpochPlanner(source, target, batch_tokens=701, sizes=(100, 207), weights=(0, 1))
    assert [counts.sum() for counts in corpus_counts(planner, (100, 207), 0)] == [0, 207]
    two = np.array([3, 3]), np.array([3, 3])
    for lengths, sizes, weights in (
        ((source, target), (100, 207), (0, 0)),
        (two, (1, 1), (0.5, 0.5)),  # each may leave out its pair in the same epoch
    ):
        with pytest.raises(ValueError, match="must keep at least one pair"):
            EpochPlanner(*lengths, batch_tokens=701, sizes=sizes, weights=weights)
    planner = EpochPlanner(*two, batch_tokens=701, sizes=(2,), weights=(0.5,))
    assert [sum(len(plan.indices) for plan in planner.plan(epoch)) for epoch in range(9)] == [1] * 9


def test_what_cannot_be_planned_is_refused():
    source, target = np.array([33, 5]), np.array([9, 12])
    for padding in PADDINGS:
        EpochPlanner(source, target, batch_tokens=8 * 33, padding=padding)
        with pytest.raises(ValueError, match="batch_tokens=263, longest=33"):
            EpochPlanner(source, target, batch_tokens=8 * 33 - 1, padding=padding)
    with pytest.raises(ValueError, match="no pairs"):
        EpochPlanner(source[:0], target[:0], batch_tokens=800)
    with pytest.raises(ValueError, match="`padding` must be one of .*'fixed'.* Received: 'some'"):
        EpochPlanner(source, target, batch_tokens=800, padding="some")
    with pytest.raises(ValueError, match="`sizes` must sum to"):
        EpochPlanner(source, target, batch_tokens=800, sizes=(1, 2), weights=(1, 1))


def test_the_worked_example_is_true():
    found = doctest.testmod(planning, extraglobs={"np": np})
    assert found.failed == 0 < found.attempted


@pytest.mark.parametrize("padding", PADDINGS)
def test_no_epoch_is_counted_twice_where_every_epoch_samples_its_pairs(padding, monkeypatch):
    source, target = random_lengths(60)
    settings = {"batch_tokens": 300, "padding": padding, "weights": [0.4]}
    planner, numbers, cut = EpochPlanner(source, target, **settings), [], cutting.serpentine
    monkeypatch.setattr(cutting, "serpentine", lambda *args: numbers.append(1) or cut(*args))
    counts = [planner.num_batches(epoch) for epoch in range(10)]
    made = len(numbers)
    assert made
    for _ in range(2):
        assert planner.locate(sum(counts) - 1) == (9, counts[-1] - 1)
        assert [planner.num_batches(epoch) for epoch in range(10)] == counts
    assert len(numbers) == made
    fresh = EpochPlanner(source, target, **settings)
    assert [len(fresh.plan(epoch)) for epoch in range(10)] == counts
