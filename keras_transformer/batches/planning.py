"""Token-bucketed batching: plans which sentence pairs share a batch, from their lengths alone.

The plan is a pure function of the lengths, the seed and the epoch, so a resumed run makes the same batches.

1. Count the pairs of each cell. A cell is the set of all pairs with the same source length and the same
   target length, such as 12 source and 14 target tokens. Steps 2 to 4 use only these counts.
2. Order the cells so that neighbours have similar lengths on both sides: sort by one side into bands, and
   within the bands by the other side, descending and ascending in turn (serpentine order).
3. Cut this order into regions, by dynamic programming (`cutting.py`). A region is a run of neighbouring pairs
   that are put into batches of one shape. The cost of a cut grows with the padding and with the number of
   batches. With `padding="fixed"`, the cut makes at most `max_shapes` regions. With `padding="longest"`, it
   makes regions of one batch each. There, a large cell, with n >= 2 full batches, first gets a region of its
   own for n - 1 full batches. Only its other pairs enter the cut.
4. Repeat 2 and 3 for several numbers of bands and keep the cut with the lowest cost.
5. Shuffle the pairs within each cell, fill the batches, and shuffle the order of the batches.

A position is one element of the padded id matrices of a batch, source or target; it holds a token or padding.
"""

import functools
import itertools
import math
from typing import NamedTuple

import numpy as np

from keras_transformer.batches import cutting

PADDINGS = ("longest", "fixed")

# With padding="longest", successive epochs cycle through 8 cell orders (2 sides to sort by first, 4 offsets
# of the bands), so that the same lengths do not share a batch in every epoch.
_NUM_ORDERS = 8
_BAND_OFFSETS = (0.5, 0.25, 0.67, 0.33)
_BAND_COUNTS = (3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 26, 32)


class BatchPlan(NamedTuple):
    """One batch: the pairs in it and its padded shape.

    Attributes:
        indices: int NumPy array, shape `(num_pairs,)`, indices of the pairs.
        rows: number of rows, a multiple of 8; rows beyond `num_pairs` are padding.
        source_len: padded source length, in tokens.
        target_len: padded target length, in tokens.
        key: (seed, epoch, batch number within the epoch), the seed of the sub-word sampling of this batch.
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
    """The shapes of an epoch's batches, computed from the counts of the cells.

    Attributes:
        rank: int NumPy array, shape `(num_cells,)`, place of each cell in the cell order, from 0.
        large_cells: list of int, the cells with enough pairs for two full batches; none for `"fixed"`.
        regions: list of `Region`: first the own region of each large cell; then the regions of the other
            pairs, in cell order.
        num_batches: int.
    """

    rank: np.ndarray
    large_cells: list
    regions: list
    num_batches: int


class EpochPlanner:
    """Plans the batches of every epoch.

    Example: ten pairs, `batch_tokens=80`. Their lengths in tokens, end of sentence included::

        pair             0  1  2  3  4  5  6  7  8  9
        source tokens    2  3  9  2  3  2  3  2  3  8
        target tokens    3  3  8  2  3  3  2  3  2  9

    >>> source = np.array([2, 3, 9, 2, 3, 2, 3, 2, 3, 8])
    >>> target = np.array([3, 3, 8, 2, 3, 3, 2, 3, 2, 9])
    >>> planner = EpochPlanner(source, target, batch_tokens=80, seed=1)
    >>> for plan in planner.plan(0):
    ...     size = plan.rows * (plan.source_len + plan.target_len)
    ...     tokens = source[plan.indices].sum() + target[plan.indices].sum()
    ...     print(plan.indices, plan.shape, f"{size} positions, {size - tokens} of them padding")
    [9 2] (8, 9, 9) 144 positions, 110 of them padding
    [7 0 5 3 8 6 4 1] (8, 3, 3) 48 positions, 7 of them padding

    The cells are ordered (2, 3) (2, 2) (3, 2) (3, 3) (8, 9) (9, 8) and hold 3, 1, 2, 2, 1 and 1 pairs. The
    cheapest cut is after (3, 3): 144 + 48 = 192 positions hold the 75 tokens. Batches in file order (pairs
    0 to 7, pairs 8 and 9) would have the shapes (8, 9, 8) and (8, 8, 9), together 272 positions. Most of the
    padding of the plan is the 6 empty rows of its first batch: the number of rows is a multiple of 8.

    Args:
        source_lengths: int NumPy array, shape `(num_pairs,)`, in tokens.
        target_lengths: int NumPy array, shape `(num_pairs,)`, in tokens.
        batch_tokens: maximum tokens of a batch on either side, padding included:
            rows x `max(source_len, target_len)`, like `max_tokens` of fairseq.
        seed: seed of the shuffling, combined with the epoch.
        padding: `"longest"` pads to the longest sentence of the batch; `"fixed"` pads to one of
            `max_shapes` shapes (for XLA and accelerators). They are the same in every epoch, but may differ
            if a weight is fractional.
        max_shapes: maximum number of shapes with `padding="fixed"`.
        sizes: list of int, number of pairs of each corpus; the pairs are the corpora concatenated in
            this order. `None` for one corpus.
        weights: list of float, how many times each corpus occurs in an epoch; `None` for once each.

    Raises:
        ValueError: there are no pairs, `batch_tokens` is less than 8 rows of the longest sentence, or `sizes`
            and `weights` do not match the pairs.
    """

    def __init__(
        self,
        source_lengths: np.ndarray,
        target_lengths: np.ndarray,
        *,
        batch_tokens: int,
        seed: int = 1,
        padding: str = "longest",
        max_shapes: int = 16,
        sizes: list[int] | None = None,
        weights: list[float] | None = None,
    ) -> None:
        num_pairs = len(source_lengths)
        if not num_pairs:
            raise ValueError("There are no pairs to batch.")
        if padding not in PADDINGS:
            raise ValueError(f"`padding` must be one of {list(PADDINGS)}. Received: {padding!r}")
        longest = int(max(source_lengths.max(), target_lengths.max()))
        if cutting.ROWS_MULTIPLE * longest > batch_tokens:
            raise ValueError(
                f"`batch_tokens` must be at least {cutting.ROWS_MULTIPLE} * the longest length. "
                f"Received: batch_tokens={batch_tokens}, longest={longest}"
            )
        sizes = [num_pairs] if sizes is None else list(sizes)
        weights = [1.0] * len(sizes) if weights is None else [float(weight) for weight in weights]
        if sum(sizes) != num_pairs or len(weights) != len(sizes):
            raise ValueError(
                "`sizes` must sum to the number of pairs and have one weight each. "
                f"Received: sizes={sizes}, weights={weights}, {num_pairs} pairs"
            )
        # Each corpus is sampled on its own, floor(weight * size) pairs or one more.
        if not sum(math.floor(size * weight) for size, weight in zip(sizes, weights, strict=True)) >= 1:
            raise ValueError(f"The weights must keep at least one pair an epoch. Received: weights={weights}")
        self.seed = seed
        self._batch_tokens = batch_tokens
        self._max_shapes = max_shapes if padding == "fixed" else None
        self._corpora = list(zip(sizes, weights, strict=True))
        # With a fractional weight, each epoch samples different pairs, so counts and shapes differ too.
        self._samples_pairs = any(weight % 1 for weight in weights)
        self._num_batches = {}  # by the arguments of `_make_layout`, which keeps only a few layouts
        base = int(target_lengths.max()) + 1
        codes = source_lengths.astype(np.int64) * base + target_lengths  # one integer for both lengths
        cell_codes = np.flatnonzero(np.bincount(codes))
        self._source_len_of_cell, self._target_len_of_cell = np.divmod(cell_codes, base)
        # The smallest dtype: `plan` sorts integers of up to 16 bits five times as fast.
        self._cell_of_pair = np.searchsorted(cell_codes, codes).astype(np.min_scalar_type(len(cell_codes)))

    def plan(self, epoch: int) -> list[BatchPlan]:
        """Returns the batches of one epoch, a list of `BatchPlan` in training order.

        Without weights, every pair is in exactly one batch. With weight w, a pair occurs floor(w) or ceil(w)
        times per epoch, perhaps twice in one batch, and w times on average over the epochs.
        """
        layout = self._layout_of(epoch)
        rng = np.random.default_rng([self.seed, epoch])
        indices = rng.permutation(self._indices(epoch))
        rank = layout.rank[self._cell_of_pair[indices]]
        # The sort is stable, so the pairs of one cell stay in random order.
        indices = indices[np.argsort(rank, kind="stable")]
        begins = np.cumsum([0, *np.bincount(rank, minlength=len(layout.rank))])
        # `members[r]`: the pairs of region r. Each large cell fills its own region; the pairs that are left
        # fill the other regions.
        members, is_left = [], np.ones(len(indices), bool)
        for cell, region in zip(layout.large_cells, layout.regions, strict=False):
            begin = begins[layout.rank[cell]]
            is_left[begin : begin + region.num_pairs] = False
            members.append(indices[begin : begin + region.num_pairs])
        ends = np.cumsum([region.num_pairs for region in layout.regions[len(members) :]])
        members += np.split(indices[is_left], ends[:-1])
        if self._max_shapes:
            self._shuffle_regions(layout.regions, members, rng)
        plans = [
            BatchPlan(pairs[begin : begin + region.rows], region.rows, region.source_len, region.target_len)
            for region, pairs in zip(layout.regions, members, strict=True)
            for begin in range(0, len(pairs), region.rows)
        ]
        order = enumerate(rng.permutation(len(plans)))
        return [plans[i]._replace(key=(self.seed, epoch, number)) for number, i in order]

    def num_batches(self, epoch: int) -> int:
        """Returns the number of batches of an epoch, without planning which pairs are in them."""
        arguments = self._layout_arguments(epoch)
        if arguments not in self._num_batches:
            self._num_batches[arguments] = self._make_layout(*arguments).num_batches
        return self._num_batches[arguments]

    def plans(self, start: int = 0, epochs: int = 1) -> list[BatchPlan]:
        """Returns the batches of several epochs from batch `start` on, a list of `BatchPlan`.

        Args:
            start: number of the first batch, counted from the first batch of epoch 0.
            epochs: number of epochs to plan, including the epoch of `start`.
        """
        first, skipped = self.locate(start)
        return [plan for epoch in range(first, first + epochs) for plan in self.plan(epoch)][skipped:]

    def locate(self, start: int) -> tuple[int, int]:
        """Returns (epoch, batch number within it) of batch `start`, counted from the first of epoch 0."""
        epoch = 0
        while start >= self.num_batches(epoch):
            start -= self.num_batches(epoch)
            epoch += 1
        return epoch, start

    def real_share(self, epoch: int = 0) -> float:
        """Returns the share of real tokens among the positions of an epoch's batches; the rest is padding."""
        num_tokens = np.dot(self._counts(epoch), self._source_len_of_cell + self._target_len_of_cell)
        return float(num_tokens / sum(region.num_positions for region in self._layout_of(epoch).regions))

    def _indices(self, epoch):
        """Returns the indices of an epoch's pairs, unordered; corpora are repeated or sampled by weight."""
        indices, first, dtype = [], 0, np.int32 if len(self._cell_of_pair) < 2**31 else np.int64
        for size, weight in self._corpora:
            pairs = np.arange(first, first + size, dtype=dtype)
            indices += [pairs] * int(weight)
            if weight % 1:
                rng = np.random.default_rng([self.seed, epoch, first])
                pairs = rng.permutation(pairs)
                by_cell = pairs[np.argsort(self._cell_of_pair[pairs], kind="stable")]
                # Systematic sampling: for a fraction of 1/n, every n-th pair from a random start. The pairs
                # are sorted by cell, so about the same fraction of each cell is sampled.
                steps = np.floor(np.arange(size + 1) * (weight % 1) + rng.random())
                indices.append(by_cell[np.diff(steps) > 0])
            first += size
        return np.concatenate(indices)

    def _counts(self, epoch):
        """Returns the number of pairs of each cell in an epoch, int NumPy array of shape `(num_cells,)`."""
        return np.bincount(self._cell_of_pair[self._indices(epoch)], minlength=len(self._source_len_of_cell))

    def _shuffle_regions(self, regions, members, rng):
        """Exchanges pairs between regions if they fit into both, then shuffles each region, in place.

        With `padding="fixed"` and integer weights, the regions are the same in every epoch. Without the
        exchange, pairs of different regions would never share a batch.
        """
        source_lengths = self._source_len_of_cell[self._cell_of_pair]
        target_lengths = self._target_len_of_cell[self._cell_of_pair]

        def fitting(pairs, region):
            source_fits = source_lengths[pairs] <= region.source_len
            target_fits = target_lengths[pairs] <= region.target_len
            return rng.permutation(np.flatnonzero(source_fits & target_fits))

        for (a, region_a), (b, region_b) in itertools.combinations(zip(members, regions, strict=True), 2):
            from_a, from_b = fitting(a, region_b), fitting(b, region_a)
            num_swaps = min(len(from_a), len(from_b)) // 2
            a[from_a[:num_swaps]], b[from_b[:num_swaps]] = b[from_b[:num_swaps]], a[from_a[:num_swaps]]
        for pairs in members:
            rng.shuffle(pairs)

    def _layout_of(self, epoch):
        """Returns the `_Layout` of an epoch."""
        return self._make_layout(*self._layout_arguments(epoch))

    def _layout_arguments(self, epoch):
        """Returns (order number, epoch), the arguments of `_make_layout`."""
        # "fixed" tries the same cell orders in every epoch, so it needs no `order_number`. Its shapes are the
        # same in every epoch unless a weight is fractional.
        order_number = 0 if self._max_shapes else epoch % _NUM_ORDERS
        return order_number, epoch if self._samples_pairs else 0

    @functools.lru_cache(maxsize=_NUM_ORDERS)  # noqa: B019 - planners live as long as a run
    def _make_layout(self, order_number, epoch):
        """Cuts the cells for several numbers of bands and returns the `_Layout` of the cheapest cut."""
        source, target, budget = self._source_len_of_cell, self._target_len_of_cell, self._batch_tokens
        counts = self._counts(epoch)
        # Largest number of rows in a batch of each cell.
        capacity = budget // np.maximum(source, target) // cutting.ROWS_MULTIPLE * cutting.ROWS_MULTIPLE
        # A large cell with n full batches keeps n - 1 of them for itself. Its other pairs and all pairs of
        # the other cells (`rest`) enter the dynamic program.
        num_own_batches = np.zeros_like(counts) if self._max_shapes else np.maximum(0, counts // capacity - 1)
        num_own_pairs = num_own_batches * capacity
        rest = counts - num_own_pairs
        large_cells = np.flatnonzero(num_own_batches)
        own_regions = np.stack([num_own_pairs, capacity, source, target], axis=1)[large_cells].tolist()
        # (major, minor): the side to sort by into bands, and the side to sort by within them.
        side_orders = ((source, target), (target, source))
        if self._max_shapes:
            attempts = [(*side_order, bands, 0.5) for side_order in side_orders for bands in range(1, 8)]
            cut = functools.partial(cutting.cut_into_regions, max_regions=self._max_shapes)
        else:
            side_order, offset = side_orders[order_number % 2], _BAND_OFFSETS[order_number // 2]
            attempts = [(*side_order, bands, offset) for bands in _BAND_COUNTS]
            cut = cutting.cut_into_batches

        def try_order(major, minor, bands, offset):
            cells = cutting.serpentine(major, minor, rest * (source + target), bands, offset)
            return cells, *cut(source[cells], target[cells], rest[cells], budget)

        cells, regions, _cost = min(itertools.starmap(try_order, attempts), key=lambda result: result[2])
        rank = np.empty(len(cells), self._cell_of_pair.dtype)
        rank[cells] = np.arange(len(cells))
        regions = [*itertools.starmap(cutting.Region, own_regions), *regions]
        return _Layout(rank, large_cells.tolist(), regions, sum(region.num_batches for region in regions))
