"""Sentence scores of all pairs of texts at once: chrF and BLEU as sacreBLEU computes them for one pair.

An n-gram that occurs twice in a text counts as two features, its first and its second occurrence. The
matches of two texts, the sum over n-grams of the smaller count, are then the number of common features: for
all pairs, the product of a 0-1 matrix with its transpose.

Axes: `texts` (as hypotheses), `texts` (as references).
"""

from collections.abc import Iterator, Sequence

import numpy as np

CHARACTER_ORDER = 6  # of chrF, with beta = 2
WORD_ORDER = 4  # of BLEU
# Elements of a block of the 0-1 matrix: 16 MB of float32.
_BLOCK = 2**22


def chrf_matrix(texts: Sequence[str]) -> np.ndarray:
    """Returns chrF2 of each text as hypothesis with each as reference, from 0 to 100.

    Equals `sacrebleu.sentence_chrf(texts[i], [texts[j]]).score`, up to rounding (Popović, 2015).

    Args:
        texts: sequence of str.

    Returns:
        float64, shape `(texts, texts)`.
    """
    characters = [[ord(character) for character in "".join(text.split())] for text in texts]
    precision = recall = orders = np.zeros((len(texts), len(texts)))
    for counts, matches in ngram_matches(characters, CHARACTER_ORDER):
        hypothesis, reference = np.maximum(counts, 1)[:, None], np.maximum(counts, 1)[None]
        precision = precision + matches / hypothesis  # 0 without n-grams
        recall = recall + matches / reference
        orders = orders + (counts[:, None] > 0) * (counts[None] > 0)
    precision, recall = precision / np.maximum(orders, 1), recall / np.maximum(orders, 1)
    total = 4 * precision + recall
    return 100 * np.divide(5 * precision * recall, total, out=np.zeros_like(total), where=total > 0)


def bleu_matrix(texts: Sequence[str], target_language: str | None = None) -> np.ndarray:
    """Returns sentence BLEU of each text as hypothesis with each as reference, from 0 to 100.

    Equals `sacrebleu.sentence_bleu(texts[i], [texts[j]]).score`, up to rounding, with sacreBLEU's tokenizer
    for the language: smoothed by `exp`, up to the longest n-grams of the hypothesis.

    Args:
        texts: sequence of str.
        target_language: code such as `"zh"`, see `bleu_scorer`.

    Returns:
        float64, shape `(texts, texts)`.
    """
    from keras_transformer.evaluation.bleu import bleu_scorer  # translating needs no sacreBLEU otherwise

    tokenizer = bleu_scorer(target_language).tokenizer
    number: dict[str, int] = {}
    tokens = [tokenizer(text.rstrip()).split() for text in texts]
    words = [[number.setdefault(word, len(number)) for word in row] for row in tokens]
    log_precision = orders = np.zeros((len(texts), len(texts)))
    any_match = np.zeros((len(texts), len(texts)), bool)
    misses = np.zeros((len(texts), len(texts)))  # orders without a match so far
    for counts, matches in ngram_matches(words, WORD_ORDER):
        exists = counts[:, None] > 0
        misses = misses + (exists & (matches == 0))
        smoothed = np.where(matches > 0, matches, 2.0**-misses)
        log_precision = log_precision + exists * np.log(smoothed / np.maximum(counts, 1)[:, None])
        orders = orders + exists
        any_match |= matches > 0
    lengths = np.array([len(row) for row in words], "float64")
    ratio = lengths[None] / np.maximum(lengths, 1)[:, None]
    brevity = np.exp(np.minimum(1 - ratio, 0))
    return np.where(any_match, 100 * brevity * np.exp(log_precision / np.maximum(orders, 1)), 0.0)


def ngram_matches(sequences: Sequence[Sequence[int]], order: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Counts the n-grams of sequences and those that two of them share, clipped to the smaller count.

    Args:
        sequences: sequences of int, at least 0.
        order: int, the largest n.

    Yields:
        for n = 1, 2, ..., `order`: (int64, shape `(texts,)`, the number of n-grams; float64, shape
        `(texts, texts)`, the number of matches, exact).
    """
    lengths = np.array([len(sequence) for sequence in sequences], "int64")
    text = np.repeat(np.arange(len(sequences)), lengths)
    tokens = np.fromiter((token for sequence in sequences for token in sequence), "int64", lengths.sum())
    tokens = np.unique(tokens, return_inverse=True)[1]
    # Tokens from each position to the end of its text, itself included.
    left = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(tokens))
    place, ids = np.arange(len(tokens)), tokens  # where each n-gram begins, and its number
    for n in range(1, order + 1):
        if n > 1:
            keep = left[place] >= n
            place = place[keep]
            # The number of an n-gram: that of its first n - 1 tokens, and its last token.
            pairs = ids[keep] * (len(tokens) + 1) + tokens[place + n - 1]
            ids = np.unique(pairs, return_inverse=True)[1]
        yield np.maximum(lengths - n + 1, 0), _common_features(text[place], ids, len(sequences))


def _common_features(text, ids, number):
    """Returns the matches of all pairs, float64, shape `(number, number)`.

    Args:
        text: int64, shape `(ngrams,)`, the text of each n-gram.
        ids: int64, shape `(ngrams,)`, the number of each n-gram, the same in all texts.
        number: int, of texts.
    """
    order = np.lexsort((ids, text))
    text, ids = text[order], ids[order]
    index = np.arange(len(ids))
    is_first = np.ones(len(ids), bool)
    is_first[1:] = (text[1:] != text[:-1]) | (ids[1:] != ids[:-1])
    occurrence = index - np.maximum.accumulate(np.where(is_first, index, 0))
    features = np.unique(ids * (len(ids) + 1) + occurrence, return_inverse=True)[1]
    matches, num_features = np.zeros((number, number)), int(features.max(initial=-1)) + 1
    width = min(max(_BLOCK // max(number, 1), 1), num_features)
    for begin in range(0, num_features, max(width, 1)):
        here = (features >= begin) & (features < begin + width)
        block = np.zeros((number, width), np.float32)
        block[text[here], features[here] - begin] = 1  # sums below 2 ** 24 are exact
        matches += block @ block.T
    return matches
