"""Which pairs of a corpus occurred before, by 64-bit hashes of their text."""

from hashlib import blake2b

import numpy as np


def pair_hashes(source, target):
    """Hashes pairs of sentences; spaces at either end of a sentence do not matter.

    A pure function of the text, the same in every process and on every machine. Among n
    different pairs, two share a hash with a probability of about n * n / 2**65: 3e-5 for
    33 million pairs.

    Args:
        source: list of str.
        target: list of str, as many.

    Returns:
        uint64 NumPy array, shape `(num_pairs,)`.
    """
    digests = [
        # No line holds a newline, so different pairs are different bytes.
        blake2b(f"{a.strip()}\n{b.strip()}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
        for a, b in zip(source, target, strict=True)
    ]
    return np.frombuffer(b"".join(digests), "<u8")


class Seen:
    """The hashes so far: tells of each new one whether it occurred before.

    Holds sorted arrays, each more than twice as long as the next: 8 bytes a pair, twice
    that for a moment while two arrays are merged.
    """

    def __init__(self):
        self._runs = []

    def __len__(self):
        """Number of different hashes so far."""
        return sum(map(len, self._runs))

    def add(self, hashes):
        """Takes the hashes of the next block of pairs.

        Args:
            hashes: uint64 NumPy array, shape `(num_pairs,)`, as of `pair_hashes`.

        Returns:
            bool NumPy array, shape `(num_pairs,)`: True where the same hash came earlier, in
            this block or in one before.
        """
        order = np.argsort(hashes, kind="stable")
        ordered = hashes[order]
        before = np.zeros(len(hashes), bool)
        before[1:] = ordered[1:] == ordered[:-1]
        for run in self._runs:
            place = np.searchsorted(run, ordered)
            before |= run[np.minimum(place, len(run) - 1)] == ordered
        new = ordered[~before]
        while self._runs and len(self._runs[-1]) <= 2 * len(new):
            new = np.concatenate([self._runs.pop(), new])
            new.sort(kind="stable")  # merges what is sorted already
        if len(new):
            self._runs.append(new)
        found = np.empty(len(hashes), bool)
        found[order] = before
        return found
