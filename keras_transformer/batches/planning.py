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

from keras_transformer.batches import cutting

PADDINGS = ("longest", "fixed")

# Epochs take turns: how the walk bends decides which lengths share a batch.
_NUM_WALKS = 8
_PHASES = (0.5, 0.25, 0.67, 0.33)
_NUM_BANDS = (3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 26, 32)


class BatchPlan(NamedTuple):
    """Which pairs form one batch, and its shape.

    Attributes:
        indices: int NumPy array of pair numbers.
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
    """The shapes of an epoch's batches, chosen from the counts of the cells.

    Attributes:
        rank: int NumPy array, shape `(num_cells,)`, place of each cell in the walk.
        whole: list of cells with pairs enough to fill batches by themselves.
        regions: list of `Region`: one for each cell of `whole`, then those that the rest of the walk is cut
            into.
        num_batches: int.
    """

    rank: np.ndarray
    whole: list
    regions: list
    num_batches: int


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
        if cutting.ROWS_MULTIPLE * longest > batch_tokens:
            raise ValueError(
                f"`batch_tokens` must hold {cutting.ROWS_MULTIPLE} rows of the longest pair. "
                f"Received: batch_tokens={batch_tokens}, longest={longest}"
            )
        sizes = [num_pairs] if sizes is None else list(sizes)
        weights = [1.0] * len(sizes) if weights is None else [float(weight) for weight in weights]
        if sum(sizes) != num_pairs or len(weights) != len(sizes):
            raise ValueError(
                "`sizes` must add up to the number of pairs, with one weight each. "
                f"Received: sizes={sizes}, weights={weights}, {num_pairs} pairs"
            )
        if not np.dot(sizes, weights) >= 1:
            raise ValueError(f"The weights leave no pair of the corpora. Received: weights={weights}")
        self.seed = seed
        self._batch_tokens = batch_tokens
        self._max_shapes = max_shapes if padding == "fixed" else None
        self._corpora = list(zip(sizes, weights, strict=True))
        # Then every epoch has its own pairs, and so its own shapes.
        self._draws = any(weight % 1 for weight in weights)
        # The cell of each pair, and the lengths of each cell.
        span = int(target_lengths.max()) + 1
        keys = source_lengths.astype(np.int64) * span + target_lengths
        found = np.flatnonzero(np.bincount(keys))
        self._source, self._target = np.divmod(found, span)
        # Up to 16 bits, NumPy's stable sort counts, which takes a fifth of the time.
        self._cell = np.searchsorted(found, keys).astype(np.min_scalar_type(len(found)))

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
        begins = np.cumsum([0, *np.bincount(rank, minlength=len(layout.rank))])
        members, in_walk = [], np.ones(len(indices), bool)
        for cell, region in zip(layout.whole, layout.regions, strict=False):
            begin = begins[layout.rank[cell]]
            in_walk[begin : begin + region.num_pairs] = False
            members.append(indices[begin : begin + region.num_pairs])
        ends = np.cumsum([region.num_pairs for region in layout.regions[len(members) :]])
        members += np.split(indices[in_walk], ends[:-1])
        if self._max_shapes:
            self._exchange(layout.regions, members, rng)
        plans = [
            BatchPlan(chosen[begin : begin + region.rows], *region[1:])
            for region, chosen in zip(layout.regions, members, strict=True)
            for begin in range(0, len(chosen), region.rows)
        ]
        order = enumerate(rng.permutation(len(plans)))
        return [plans[i]._replace(key=(self.seed, epoch, number)) for number, i in order]

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
        return [plan for number in range(epochs) for plan in self.plan(first + number)][skipped:]

    def locate(self, start):
        """Returns (epoch, batch within it) of batch `start` of the whole stream."""
        for epoch in itertools.count():
            if start < self.num_batches(epoch):
                return epoch, start
            start -= self.num_batches(epoch)

    def real_share(self, epoch=0):
        """Returns the share of an epoch's source and target positions that hold tokens."""
        num_tokens = np.dot(self._counts(epoch), self._source + self._target)
        return float(num_tokens / sum(region.num_positions for region in self._layout_of(epoch).regions))

    def _indices(self, epoch):
        """Returns the pairs of an epoch in no particular order, each as often as its corpus is seen."""
        chosen, first, dtype = [], 0, np.int32 if len(self._cell) < 2**31 else np.int64
        for size, weight in self._corpora:
            numbers = np.arange(first, first + size, dtype=dtype)
            chosen += [numbers] * int(weight)
            if weight % 1:
                rng = np.random.default_rng([self.seed, epoch, first])
                numbers = rng.permutation(numbers)
                by_cell = numbers[np.argsort(self._cell[numbers], kind="stable")]
                # Every n-th for a fraction of 1/n, from a random start: systematic sampling.
                steps = np.floor(np.arange(size + 1) * (weight % 1) + rng.random())
                chosen.append(by_cell[np.diff(steps) > 0])
            first += size
        return np.concatenate(chosen)

    def _counts(self, epoch):
        """Returns how many pairs of each cell an epoch has."""
        return np.bincount(self._cell[self._indices(epoch)], minlength=len(self._source))

    def _exchange(self, regions, members, rng):
        """Regions that stay the same swap pairs that fit in either, and shuffle theirs."""
        source, target = self._source[self._cell], self._target[self._cell]

        def fitting(chosen, region):
            fits = (source[chosen] <= region.source_len) & (target[chosen] <= region.target_len)
            return rng.permutation(np.flatnonzero(fits))

        for (mine, region), (theirs, other) in itertools.combinations(zip(members, regions, strict=True), 2):
            a, b = fitting(mine, other), fitting(theirs, region)
            number = min(len(a), len(b)) // 2
            mine[a[:number]], theirs[b[:number]] = theirs[b[:number]], mine[a[:number]]
        for chosen in members:
            rng.shuffle(chosen)

    def _layout_of(self, epoch):
        # The few shapes of "fixed" are to be the same in every epoch.
        walk = 0 if self._max_shapes else epoch % _NUM_WALKS
        return self._layout(walk, epoch if self._draws else 0)

    @functools.lru_cache(maxsize=_NUM_WALKS)  # noqa: B019 - planners live as long as a run
    def _layout(self, walk, epoch):
        source, target, budget = self._source, self._target, self._batch_tokens
        counts = self._counts(epoch)
        capacity = budget // np.maximum(source, target) // cutting.ROWS_MULTIPLE * cutting.ROWS_MULTIPLE
        num_whole = np.zeros_like(counts) if self._max_shapes else np.maximum(0, counts // capacity - 1)
        rest = counts - num_whole * capacity
        whole = np.flatnonzero(num_whole)
        shapes = np.stack([num_whole * capacity, capacity, source, target], axis=1)[whole].tolist()
        sides = ((source, target), (target, source))
        if self._max_shapes:
            walks = [(*side, bands, 0.5) for side in sides for bands in range(1, 8)]
            cut = functools.partial(cutting.cut_into_regions, max_regions=self._max_shapes)
        else:
            walks = [(*sides[walk % 2], bands, _PHASES[walk // 2]) for bands in _NUM_BANDS]
            cut = cutting.cut_into_batches

        def tried(major, minor, bands, phase):
            order = cutting.serpentine(major, minor, rest * (source + target), bands, phase)
            return order, *cut(source[order], target[order], rest[order], budget)

        order, regions, _ = min(itertools.starmap(tried, walks), key=lambda found: found[2])
        rank = np.empty(len(order), self._cell.dtype)
        rank[order] = np.arange(len(order))
        regions = [*itertools.starmap(cutting.Region, shapes), *regions]
        return _Layout(rank, whole.tolist(), regions, sum(region.num_batches for region in regions))
