"""Random segmentations of one word, for sub-word regularisation.

Each function takes `chooser`, which returns floats from 0 to below 1 as
`random.Random(seed).random` does, and draws from nothing else.
"""

import bisect
import itertools
import math


def bpe_dropout(word, scores, dropout, chooser):
    """Merges the characters of a word, leaving out merges at random.

    Algorithm 1 of Provilkov et al. (2020): at each step, each possible merge is left out
    with probability `dropout`; the best of those that are left is applied, the leftmost
    among equals; the word is done when none is left.

    Args:
        word: str, with the sign for a space.
        scores: dict, piece to its score; the higher is merged first.
        dropout: from 0 to 1.
        chooser: see above.

    Returns:
        list of str.
    """
    pieces = list(word)
    # merged[i] is the score of joining pieces i and i + 1, None where they make no piece.
    merged = [scores.get(left + right) for left, right in itertools.pairwise(pieces)]
    while True:
        best = None
        for i, score in enumerate(merged):
            if score is not None and chooser() >= dropout and (best is None or score > merged[best]):
                best = i
        if best is None:
            return pieces
        pieces[best : best + 2] = [pieces[best] + pieces[best + 1]]
        del merged[best]
        if best > 0:
            merged[best - 1] = scores.get(pieces[best - 1] + pieces[best])
        if best < len(merged):
            merged[best] = scores.get(pieces[best] + pieces[best + 1])


def maxmatch_dropout(word, pieces, longest, dropout, chooser):
    """Takes the longest piece at each place, passing over pieces at random.

    MaxMatch-dropout of Hiraoka (2022): a piece that matches is passed over with
    probability `dropout`, unless it is one character.

    Args:
        word: str, of which every character is a piece.
        pieces: dict or set of the pieces.
        longest: length of the longest piece, in characters.
        dropout: from 0 to 1.
        chooser: see above.

    Returns:
        list of str.
    """
    found = []
    start = 0
    while start < len(word):
        end = min(start + longest, len(word))
        while end > start + 1 and not (word[start:end] in pieces and chooser() >= dropout):
            end -= 1
        found.append(word[start:end])
        start = end
    return found


def unigram_lattice(word, scores, longest, unknown_score, alpha):
    """Lists the pieces that may end at each place of a word, for `unigram_sample`.

    Args:
        word: str, with the sign for a space.
        scores: dict, piece to its log-probability.
        longest: length of the longest piece, in characters.
        unknown_score: log-probability of a character that is no piece.
        alpha: exponent of the probabilities (Kudo, 2018, section 3.2).

    Returns:
        list; item `end - 1` is (starts of the pieces that end there, the sums of their
        probabilities up to each but the last).
    """
    lattice = []
    log_sums = [0.0]  # of alpha times the scores of all segmentations of word[:end]
    for end in range(1, len(word) + 1):
        arcs = []
        for start in range(max(0, end - longest), end):
            score = scores.get(word[start:end], unknown_score if start == end - 1 else None)
            if score is not None:
                arcs.append((start, log_sums[start] + alpha * score))
        largest = max(one for _, one in arcs)
        total = sum(math.exp(one - largest) for _, one in arcs)
        log_sums.append(largest + math.log(total))
        bounds = list(itertools.accumulate(math.exp(one - largest) / total for _, one in arcs))
        # The last bound is 1 but for rounding, which must not lead past the end.
        lattice.append(([start for start, _ in arcs], bounds[:-1]))
    return lattice


def unigram_sample(word, lattice, chooser):
    """Draws one segmentation from the last piece to the first.

    Args:
        word: str.
        lattice: what `unigram_lattice` made of it.
        chooser: see above.

    Returns:
        list of str.
    """
    found = []
    end = len(word)
    while end > 0:
        starts, bounds = lattice[end - 1]
        start = starts[bisect.bisect_right(bounds, chooser())]
        found.append(word[start:end])
        end = start
    return found[::-1]
