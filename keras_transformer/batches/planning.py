"""Which pairs share a batch: a pure function of the lengths, the seed and the epoch.

Pairs of one source and one target length form a cell. The cells are walked in serpentine
order: in bands of one side's length, up and down the other side's in turn, so that
neighbours differ little on both sides. A dynamic program cuts that walk into batches so
that the fewest positions are padding; where a shape must be one of a few (XLA,
accelerators), into that many regions first (`cutting`). All this needs only the counts of the
cells. Random numbers decide which pair of a cell goes where, and the order of the batches.
"""

import functools
import itertools
from typing import NamedTuple

import numpy as np

from keras_transformer.batches.cutting import (
    ROWS_MULTIPLE,
    Region,
    cut_into_batches,
    cut_into_regions,
    serpentine,
)

PADDINGS = ("longest", "fixed")

# Epochs take turns: how the walk bends decides which lengths share a batch.
_NUM_WALKS = 8
_PHASES = (0.5, 0.25, 0.67, 0.33)
_NUM_BANDS = (3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 26, 32)


class BatchPlan(NamedTuple):
    """Which pairs form one batch, and its shape.

    Attributes:
        indices: int64 NumPy array of pair numbers.
        rows: number of rows, at least as many as there are pairs.
        source_len: padded source length, in tokens.
        target_len: padded target length, in tokens.
        key: (seed, epoch, number within the epoch) for what is drawn within the batch.
    """

    indices: np.ndarray
    rows: int
    source_len: int
    target_len: int
    key: tuple = ()

    @property
    def shape(self):
        """(rows, source_len, target_len)."""
        return self[1:4]


class _Layout(NamedTuple):
    """The shapes of an epoch: whole batches within cells, then the regions of the walk."""

    counts: np.ndarray  # pairs of each cell
    rank: np.ndarray  # of each cell in the walk
    whole: list  # of (cell, Region), pairs of one cell that fill batches by themselves
    regions: list

    @property
    def num_batches(self):
        return sum(region.num_batches for region in self._all())

    @property
    def num_positions(self):
        return sum(region.num_positions for region in self._all())

    def _all(self):
        return itertools.chain((region for _, region in self.whole), self.regions)


class EpochPlanner:
    """Chooses the batches of every epoch.

    Of ten pairs, the two long ones share a batch, the eight short ones another; a batch has a multiple of
    8 rows, and none of more than 80 padded tokens a side:

    >>> source = np.array([2, 3, 9, 2, 3, 2, 3, 8, 2, 3])
    >>> target = np.array([3, 3, 8, 2, 3, 3, 2, 9, 3, 2])
    >>> planner = EpochPlanner(source, target, batch_tokens=80, seed=1)
    >>> for plan in planner.plan(0):
    ...     print(plan.indices, "padded to", plan.shape)
    [7 2] padded to (8, 9, 9)
    [8 0 5 3 9 6 4 1] padded to (8, 3, 3)

    Args:
        source_lengths: int NumPy array, shape `(num_pairs,)`, in tokens.
        target_lengths: int NumPy array, shape `(num_pairs,)`, in tokens.
        batch_tokens: no batch has more padded tokens than this, on either side.
        seed: with the epoch, decides the order.
        padding: `"longest"` pads to the longest of the batch; `"fixed"` to one of
            `max_shapes` shapes, the same in every epoch.
        max_shapes: number of shapes of `"fixed"`.
        sizes: number of pairs of each corpus, in the order in which they stand; `None`
            for one corpus.
        weights: how many times each corpus is seen in an epoch; `None` for once each.

    Raises:
        ValueError: no pairs, or the budget does not hold 8 rows of the longest pair.
    """

    def __init__(
        self,
        source_lengths,
        target_lengths,
        *,
        batch_tokens,
        seed=1,
        padding="longest",
        max_shapes=16,
        sizes=None,
        weights=None,
    ):
        num_pairs = len(source_lengths)
        if not num_pairs:
            raise ValueError("There are no pairs to make batches of.")
        if padding not in PADDINGS:
            raise ValueError(f"`padding` must be one of {list(PADDINGS)}. Received: {padding!r}")
        longest = int(max(source_lengths.max(), target_lengths.max()))
        if ROWS_MULTIPLE * longest > batch_tokens:
            raise ValueError(
                f"`batch_tokens` must hold {ROWS_MULTIPLE} rows of the longest pair. "
                f"Received: batch_tokens={batch_tokens}, longest={longest}"
            )
        sizes = [num_pairs] if sizes is None else list(sizes)
        weights = [1.0] * len(sizes) if weights is None else [float(weight) for weight in weights]
        if sum(sizes) != num_pairs or len(weights) != len(sizes):
            raise ValueError(
                "`sizes` must add up to the number of pairs, with one weight each. "
                f"Received: sizes={sizes}, weights={weights}, {num_pairs} pairs"
            )
        self.seed = seed
        self._batch_tokens = batch_tokens
        self._max_shapes = max_shapes if padding == "fixed" else None
        self._cell, self._source, self._target = _cells(source_lengths, target_lengths)
        if not sum(size * weight for size, weight in zip(sizes, weights, strict=True)) >= 1:
            raise ValueError(f"The weights leave no pair of the corpora. Received: weights={weights}")
        self._corpora = [
            _Draws(self._cell[end - size : end], end - size, weight, seed)
            for size, end, weight in zip(sizes, itertools.accumulate(sizes), weights, strict=True)
        ]
        # Then every epoch has its own pairs, and so its own shapes.
        self._draws = any(corpus.fraction for corpus in self._corpora)

    def plan(self, epoch):
        """Returns the `BatchPlan`s of one epoch, in order.

        Every pair is in exactly one; where a corpus has weight w, in floor(w) or
        ceil(w) of them, and over the epochs in w on average.
        """
        layout = self._layout_of(epoch)
        rng = np.random.default_rng([self.seed, epoch])
        indices = rng.permutation(self._indices(epoch))
        rank = layout.rank[self._cell[indices]]
        # Stable, so pairs of one cell stay in random order.
        indices = indices[np.argsort(rank, kind="stable")]
        begins = np.concatenate([[0], np.cumsum(np.bincount(rank, minlength=len(layout.rank)))])
        plans = []
        in_walk = np.ones(len(indices), bool)
        for cell, region in layout.whole:
            begin = begins[layout.rank[cell]]
            in_walk[begin : begin + region.num_pairs] = False
            plans += _batches(region, indices[begin : begin + region.num_pairs])
        ends = np.cumsum([region.num_pairs for region in layout.regions])
        members = np.split(indices[in_walk], ends[:-1])
        if self._max_shapes:
            self._exchange(layout.regions, members, rng)
        for region, chosen in zip(layout.regions, members, strict=True):
            plans += _batches(region, chosen)
        order = rng.permutation(len(plans)).tolist()
        return [plans[i]._replace(key=(self.seed, epoch, number)) for number, i in enumerate(order)]

    def _indices(self, epoch):
        return np.concatenate([corpus.indices(epoch) for corpus in self._corpora])

    def _exchange(self, regions, members, rng):
        """Regions that stay the same swap pairs that fit in either, and shuffle theirs."""
        lengths = self._source[self._cell], self._target[self._cell]
        for one, other in itertools.combinations(range(len(regions)), 2):
            fits = []
            for mine, theirs in ((one, other), (other, one)):
                box = regions[theirs].source_len, regions[theirs].target_len
                inside = [side[members[mine]] <= limit for side, limit in zip(lengths, box, strict=True)]
                fits.append(rng.permutation(np.flatnonzero(inside[0] & inside[1])))
            number = min(map(len, fits)) // 2
            a, b = fits[0][:number], fits[1][:number]
            members[one][a], members[other][b] = members[other][b], members[one][a]
        for chosen in members:
            rng.shuffle(chosen)

    def num_batches(self, epoch):
        """Returns the number of batches of an epoch, without making them."""
        return self._layout_of(epoch).num_batches

    def plans(self, start=0, epochs=1):
        """Returns the `BatchPlan`s of the stream of all epochs, from one batch to the end of an epoch.

        Args:
            start: number of the first batch, counted from the first batch of epoch 0.
            epochs: number of epochs; the first of them is the one that `start` is in.
        """
        first, skipped = self.locate(start)
        plans = itertools.chain.from_iterable(self.plan(first + number) for number in range(epochs))
        return list(itertools.islice(plans, skipped, None))

    def locate(self, start):
        """Returns (epoch, batch within it) of batch `start` of the whole stream."""
        first = 0
        if not self._draws:
            cycle = sum(self.num_batches(epoch) for epoch in range(_NUM_WALKS))
            first, start = start // cycle * _NUM_WALKS, start % cycle
        for epoch in itertools.count(first):
            if start < self.num_batches(epoch):
                return epoch, start
            start -= self.num_batches(epoch)

    def real_share(self, epoch=0):
        """Returns the share of an epoch's source and target positions that hold tokens."""
        layout = self._layout_of(epoch)
        return float(np.dot(layout.counts, self._source + self._target) / layout.num_positions)

    def _layout_of(self, epoch):
        # The few shapes of "fixed" are to be the same in every epoch.
        walk = 0 if self._max_shapes else epoch % _NUM_WALKS
        return self._layout(walk, epoch if self._draws else 0)

    @functools.lru_cache(maxsize=_NUM_WALKS)  # noqa: B019 - planners live as long as a run
    def _layout(self, walk, epoch):
        source, target, budget = self._source, self._target, self._batch_tokens
        counts = sum(corpus.counts(epoch, len(source)) for corpus in self._corpora)
        longest = np.maximum(source, target)
        capacity = budget // longest // ROWS_MULTIPLE * ROWS_MULTIPLE
        num_whole = np.zeros_like(counts) if self._max_shapes else np.maximum(0, counts // capacity - 1)
        whole = [
            (cell, Region(*map(int, (num * capacity[cell], capacity[cell], source[cell], target[cell]))))
            for cell, num in enumerate(num_whole)
            if num
        ]
        rest = counts - num_whole * capacity
        sides = ((source, target), (target, source))
        if self._max_shapes:
            walks = [(*side, bands, 0.5) for side in sides for bands in range(1, 8)]
            cut = functools.partial(cut_into_regions, max_regions=self._max_shapes)
        else:
            walks = [(*sides[walk % 2], bands, _PHASES[walk // 2]) for bands in _NUM_BANDS]
            cut = cut_into_batches
        best = None
        for major, minor, bands, phase in walks:
            order = serpentine(major, minor, rest * (source + target), bands, phase)
            regions, cost = cut(source[order], target[order], rest[order], budget)
            if best is None or cost < best[0]:
                best = cost, order, regions
        rank = np.empty(len(order), np.int64)
        rank[best[1]] = np.arange(len(order))
        return _Layout(counts, rank, whole, best[2])


class _Draws:
    """How often each epoch sees the pairs of one corpus.

    A whole number of times, all of them; for the fraction of a weight, a new draw in
    every epoch, spread evenly over the cells.
    """

    def __init__(self, cell, first, weight, seed):
        self._cell = cell
        self._first = first
        self._seed = seed
        self._copies, self.fraction = divmod(weight, 1)

    def counts(self, epoch, num_cells):
        """int64 NumPy array, how many pairs of each cell are in one epoch."""
        if self.fraction:
            return np.bincount(self._cell[self.indices(epoch) - self._first], minlength=num_cells)
        return int(self._copies) * np.bincount(self._cell, minlength=num_cells)

    def indices(self, epoch):
        """int64 NumPy array of the pair numbers of one epoch, in no particular order."""
        numbers = np.arange(len(self._cell))
        chosen = np.tile(numbers, int(self._copies))
        if self.fraction:
            rng = np.random.default_rng([self._seed, epoch, self._first])
            shuffled = rng.permutation(numbers)
            by_cell = shuffled[np.argsort(self._cell[shuffled], kind="stable")]
            # Every 1/fraction-th, from a random start: systematic sampling.
            steps = np.floor((np.arange(len(numbers) + 1)) * self.fraction + rng.random())
            chosen = np.concatenate([chosen, by_cell[np.diff(steps) > 0]])
        return chosen + self._first


def _batches(region, members):
    return [
        BatchPlan(members[begin : begin + region.rows], *region[1:])
        for begin in range(0, len(members), region.rows)
    ]


def _cells(source_lengths, target_lengths):
    """Returns the cell of each pair, and source and target length of each cell."""
    span = int(target_lengths.max()) + 1
    narrow = np.int32 if span * (int(source_lengths.max()) + 1) < 2**31 else np.int64
    keys = source_lengths.astype(narrow)
    keys *= span
    keys += target_lengths.astype(narrow)
    found = np.flatnonzero(np.bincount(keys))
    number = np.zeros(found[-1] + 1, np.int32)
    number[found] = np.arange(len(found))
    return number[keys], found // span, found % span
