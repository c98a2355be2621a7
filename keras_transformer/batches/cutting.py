"""Dynamic programs that cut an ordered list of length cells into batches with the least padding.

A cell is all pairs of one source and one target length. `serpentine` orders the cells so that neighbours
have similar lengths on both sides. `cut_into_batches` and `cut_into_regions` cut that order, from the lengths
and pair counts of the cells. `planning` then decides which pair goes into which batch.
"""

from typing import NamedTuple

import numpy as np

ROWS_MULTIPLE = 8
# Each batch adds this share of the budget to the cost, in positions. Without it, many small batches
# would have the least padding.
_BATCH_COST = 0.2
_PARTS_PER_BATCH = 16  # cut_into_batches can cut after every 1/16 of a batch, roughly
_MAX_PIECES = 400  # cut_into_regions can cut at about 400 places


class Region(NamedTuple):
    """Consecutive pairs in cell order, in batches of one shape.

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
        """Number of batches; the last one may have empty rows."""
        return -(-self.num_pairs // self.rows)

    @property
    def num_positions(self):
        """Number of positions on both sides together, padding included."""
        return self.num_batches * self.rows * (self.source_len + self.target_len)


def serpentine(major, minor, mass, num_bands, offset):
    """Orders cells in serpentine order.

    Cuts the cells by their `major` length into bands of equal mass, and sorts within the bands by `minor`
    length, descending and ascending in turn.

    Args:
        major: int NumPy array, shape `(num_cells,)`, length of each cell on one side.
        minor: int NumPy array, shape `(num_cells,)`, length on the other side.
        mass: int NumPy array, shape `(num_cells,)`, number of tokens of each cell.
        num_bands: number of bands.
        offset: float in [0, 1), shifts the boundaries of the bands by this fraction of a band.

    Returns:
        int NumPy array, shape `(num_cells,)`, the indices of the cells in their new order.
    """
    by_length = np.bincount(major, weights=mass)
    middle = np.cumsum(by_length) - by_length / 2
    band = np.floor(middle / by_length.sum() * num_bands + offset).astype(int)[major]
    return np.lexsort((major, np.where(band % 2, minor, -minor), band))


def cut_into_batches(source, target, counts, budget):
    """Cuts ordered cells into batches of minimal cost: positions, plus `_BATCH_COST * budget` per batch.

    Args:
        source: int NumPy array, shape `(num_cells,)`, source length of each cell, in cell order.
        target: int NumPy array, shape `(num_cells,)`, target length of each cell.
        counts: int NumPy array, shape `(num_cells,)`, number of pairs of each cell.
        budget: maximum tokens of a batch on either side, padding included.

    Returns:
        list of `Region` of one batch each, and their cost in positions, a float.
    """
    parts = _split_into_parts(source, target, counts, budget)
    rows, source, target = parts
    # cost[i, j]: cost of a batch of the parts i to i + j; infinite if it exceeds the budget.
    width = 2 * _PARTS_PER_BATCH + 2
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(parts, ((0, 0), (0, width))), width, axis=1)
    padded_rows = _round_up(np.cumsum(windows[0, :-1], axis=1))
    longest_source, longest_target = np.maximum.accumulate(windows[1:, :-1], axis=2)
    fits = padded_rows * np.maximum(longest_source, longest_target) <= budget
    cost = np.where(fits, padded_rows * (longest_source + longest_target) + _BATCH_COST * budget, np.inf)

    # best[j]: the least cost of the parts before j; previous[j]: where the last of these batches begins.
    best = np.full(len(rows) + width + 1, np.inf)
    best[0] = 0
    previous = np.zeros(len(best), np.int64)
    for begin in range(len(rows)):
        ends = slice(begin + 1, begin + 1 + width)
        total = best[begin] + cost[begin]
        better = total < best[ends]
        best[ends][better] = total[better]
        previous[ends][better] = begin
    regions, end = [], len(rows)
    while end:
        begin = previous[end]
        num_pairs = int(rows[begin:end].sum())
        regions.append(Region(num_pairs, _round_up(num_pairs), *_longest(source, target, begin, end)))
        end = begin
    return regions[::-1], float(best[len(rows)])


def cut_into_regions(source, target, counts, budget, max_regions):
    """Cuts ordered cells into at most `max_regions` regions, each of batches of one shape.

    Minimises the same cost as `cut_into_batches`.

    Args:
        source: int NumPy array, shape `(num_cells,)`, source length of each cell, in cell order.
        target: int NumPy array, shape `(num_cells,)`, target length of each cell.
        counts: int NumPy array, shape `(num_cells,)`, number of pairs of each cell.
        budget: maximum tokens of a batch on either side, padding included.
        max_regions: maximum number of regions.

    Returns:
        list of `Region`, and their cost in positions, a float.
    """
    # Merge neighbouring cells into at most `_MAX_PIECES` pieces of about the same number of pairs.
    totals = np.cumsum(counts)
    piece = np.floor((totals - counts / 2) / totals[-1] * _MAX_PIECES).astype(int)
    first = np.flatnonzero(np.diff(piece, prepend=-1))
    source, target = np.maximum.reduceat(source, first), np.maximum.reduceat(target, first)
    totals = np.concatenate([[0], totals[first[1:] - 1], totals[-1:]])

    # cost[i, j]: cost of a region of the pieces i to j - 1.
    num_pieces = len(first)
    cost = np.full((num_pieces, num_pieces + 1), np.inf)
    for i in range(num_pieces):
        source_len, target_len = np.maximum.accumulate(source[i:]), np.maximum.accumulate(target[i:])
        num_batches, rows = _equal_batches(totals[i + 1 :] - totals[i], source_len, target_len, budget)
        cost[i, i + 1 :] = num_batches * (rows * (source_len + target_len) + _BATCH_COST * budget)
    # best[k, j]: the least cost of the pieces before j in k regions; previous: where the last region begins.
    best = np.full((max_regions + 1, num_pieces + 1), np.inf)
    best[0, 0] = 0
    previous = np.zeros(best.shape, np.int64)
    for k in range(1, max_regions + 1):
        total = best[k - 1, :num_pieces, None] + cost
        previous[k], best[k] = total.argmin(axis=0), total.min(axis=0)
    k = int(best[:, num_pieces].argmin())
    regions, end = [], num_pieces
    for number in range(k, 0, -1):
        begin = previous[number, end]
        num_pairs, longest = int(totals[end] - totals[begin]), _longest(source, target, begin, end)
        regions.append(Region(num_pairs, int(_equal_batches(num_pairs, *longest, budget)[1]), *longest))
        end = begin
    return regions[::-1], float(best[k, num_pieces])


def _longest(source, target, begin, end):
    """Returns (longest source, longest target) of the parts or pieces `begin` to `end - 1`."""
    return int(source[begin:end].max()), int(target[begin:end].max())


def _equal_batches(num_pairs, source_len, target_len, budget):
    """Returns (number of batches, rows of each): the fewest within the budget, equal up to multiples of 8."""
    capacity = budget // np.maximum(source_len, target_len) // ROWS_MULTIPLE * ROWS_MULTIPLE
    num_pairs = np.maximum(num_pairs, 1)  # 0 where an epoch samples no pair of these cells
    num_batches = -(-num_pairs // capacity)
    return num_batches, _round_up(-(-num_pairs // num_batches))


def _split_into_parts(source, target, counts, budget):
    """Splits ordered cells into parts of about 1/16 batch each, between which batches may be cut.

    Returns:
        int64 NumPy array of shape `(3, num_parts)`: rows, longest source and longest target of each part.
    """
    parts, part = [], (0, 0, 0)
    for source_len, target_len, count in zip(source.tolist(), target.tolist(), counts.tolist(), strict=True):
        capacity = budget // max(source_len, target_len)
        full = max(1, capacity // _PARTS_PER_BATCH // ROWS_MULTIPLE) * ROWS_MULTIPLE
        while count:
            rows = min(count, full - part[0])
            # Rows of a short cell join those of a long one only while the part keeps to the budget.
            exceeds = _round_up(part[0] + rows) * max(*part[1:], source_len, target_len) > budget
            if part[0] and (rows <= 0 or exceeds):
                parts.append(part)
                part = (0, 0, 0)
                continue
            part = part[0] + rows, max(part[1], source_len), max(part[2], target_len)
            count -= rows
    if part[0]:
        parts.append(part)
    return np.array(parts, np.int64).reshape(-1, 3).T


def _round_up(rows):
    return -(-rows // ROWS_MULTIPLE) * ROWS_MULTIPLE
