"""Cuts a walk through the lengths into batches that hold the least padding.

A walk is an order of cells; a cell is all pairs of one source and one target length. `serpentine` orders
cells so that neighbours differ little in either length; `cut_into_batches` and `cut_into_regions` cut that
order by dynamic programs, which see the lengths and the counts of the cells and no pair.
"""

from typing import NamedTuple

import numpy as np

ROWS_MULTIPLE = 8
# A batch costs as much as this share of its budget in positions: without it, the least
# padding is that of many small batches.
_BATCH_COST = 0.2
_PARTS = 16  # a batch is cut to about a 16th of its budget
_PIECES = 400  # a walk is cut into regions at one of 400 places


class Region(NamedTuple):
    """Consecutive pairs of a walk, in batches of one shape.

    Attributes:
        num_pairs: number of pairs.
        rows: rows of each batch.
        source_len: padded source length, in tokens.
        target_len: padded target length, in tokens.
    """

    num_pairs: int
    rows: int
    source_len: int
    target_len: int

    @property
    def num_batches(self):
        """Number of batches; the last may have fewer pairs than rows."""
        return -(-self.num_pairs // self.rows)

    @property
    def num_positions(self):
        """Number of positions of both sides, padding included."""
        return self.num_batches * self.rows * (self.source_len + self.target_len)


def serpentine(major, minor, mass, num_bands, phase):
    """Orders cells in bands of `major` of equal mass, along `minor` up and down in turn."""
    by_length = np.bincount(major, weights=mass)
    middle = np.cumsum(by_length) - by_length / 2
    band = np.floor(middle / by_length.sum() * num_bands + phase).astype(int)[major]
    return np.lexsort((major, np.where(band % 2, minor, -minor), band))


def cut_into_batches(source, target, counts, budget):
    """Cuts a walk into batches of the least padding and number.

    Args:
        source: int NumPy array, source length of each cell of the walk.
        target: int NumPy array, target length of each cell.
        counts: int NumPy array, number of pairs of each cell.
        budget: padded tokens of a batch on either side.

    Returns:
        list of `Region` of one batch each, and their cost in positions.
    """
    parts = _parts(source, target, counts, budget)
    rows, source, target = parts
    # Cost of every batch that begins at part i and ends within the next `width` parts.
    width = 2 * _PARTS + 2
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(parts, ((0, 0), (0, width))), width, axis=1)
    padded_rows = _round_up(np.cumsum(windows[0, :-1], axis=1))
    longest_source, longest_target = np.maximum.accumulate(windows[1:, :-1], axis=2)
    fits = padded_rows * np.maximum(longest_source, longest_target) <= budget
    cost = np.where(fits, padded_rows * (longest_source + longest_target) + _BATCH_COST * budget, np.inf)

    best = np.full(len(rows) + width + 1, np.inf)
    best[0] = 0
    previous = np.zeros(len(best), np.int64)
    for begin in range(len(rows)):
        reached = slice(begin + 1, begin + 1 + width)
        through = best[begin] + cost[begin]
        better = through < best[reached]
        best[reached][better] = through[better]
        previous[reached][better] = begin
    regions, end = [], len(rows)
    while end:
        begin = previous[end]
        num_pairs = int(rows[begin:end].sum())
        regions.append(Region(num_pairs, _round_up(num_pairs), *_box(source, target, begin, end)))
        end = begin
    return regions[::-1], float(best[len(rows)])


def cut_into_regions(source, target, counts, budget, max_regions):
    """Cuts a walk into at most `max_regions` regions, each of batches of one shape.

    Args:
        source: int NumPy array, source length of each cell of the walk.
        target: int NumPy array, target length of each cell.
        counts: int NumPy array, number of pairs of each cell.
        budget: padded tokens of a batch on either side.
        max_regions: number of regions.

    Returns:
        list of `Region`, and their cost in positions.
    """
    totals = np.cumsum(counts)
    piece = np.floor((totals - counts / 2) / totals[-1] * _PIECES).astype(int)
    first = np.flatnonzero(np.diff(piece, prepend=-1))
    source, target = np.maximum.reduceat(source, first), np.maximum.reduceat(target, first)
    totals = np.concatenate([[0], totals[first[1:] - 1], totals[-1:]])

    # Cost of the region from piece i to piece j, and the shortest way through k of them.
    num_pieces = len(first)
    cost = np.full((num_pieces, num_pieces + 1), np.inf)
    for i in range(num_pieces):
        box = np.maximum.accumulate(source[i:]), np.maximum.accumulate(target[i:])
        num_batches, rows = _equal_batches(totals[i + 1 :] - totals[i], *box, budget)
        cost[i, i + 1 :] = num_batches * (rows * (box[0] + box[1]) + _BATCH_COST * budget)
    best = np.full((max_regions + 1, num_pieces + 1), np.inf)
    best[0, 0] = 0
    previous = np.zeros(best.shape, np.int64)
    for k in range(1, max_regions + 1):
        through = best[k - 1, :num_pieces, None] + cost
        previous[k], best[k] = through.argmin(axis=0), through.min(axis=0)
    k = int(best[:, num_pieces].argmin())
    total, regions, end = float(best[k, num_pieces]), [], num_pieces
    for left in range(k, 0, -1):
        begin = previous[left, end]
        num_pairs, box = int(totals[end] - totals[begin]), _box(source, target, begin, end)
        regions.append(Region(num_pairs, int(_equal_batches(num_pairs, *box, budget)[1]), *box))
        end = begin
    return regions[::-1], total


def _box(source, target, begin, end):
    return int(source[begin:end].max()), int(target[begin:end].max())


def _equal_batches(num_pairs, source_len, target_len, budget):
    """Returns number and rows of the fewest batches, as equal as multiples of 8 allow."""
    capacity = budget // np.maximum(source_len, target_len) // ROWS_MULTIPLE * ROWS_MULTIPLE
    num_batches = -(-num_pairs // capacity)
    return num_batches, _round_up(-(-num_pairs // num_batches))


def _parts(source, target, counts, budget):
    """Cuts a walk into runs of rows that are a small part of a batch each.

    Returns:
        int64 NumPy array of shape `(3, num_parts)`: rows, longest source and longest target of each run.
    """
    parts, run = [], (0, 0, 0)
    for source_len, target_len, count in zip(source.tolist(), target.tolist(), counts.tolist(), strict=True):
        part = max(1, budget // max(source_len, target_len) // _PARTS // ROWS_MULTIPLE) * ROWS_MULTIPLE
        while count:
            if run[0] >= part:
                parts.append(run)
                run = (0, 0, 0)
            taken = min(count, part - run[0])
            run = run[0] + taken, max(run[1], source_len), max(run[2], target_len)
            count -= taken
    if run[0]:
        parts.append(run)
    return np.array(parts, np.int64).reshape(-1, 3).T


def _round_up(rows):
    return -(-rows // ROWS_MULTIPLE) * ROWS_MULTIPLE
