"""Inputs of the compiled search: batches of parts, padded phrases, random numbers."""

import numpy as np

from keras_transformer.config.sections import MAX_NUMBERS_IN_SEARCH
from keras_transformer.translation.texts import batches_by_length


def batches_of_parts(parts, batch_tokens, elements_per_row, threads):
    """Groups parts of similar length into lists of indices, within the token and memory budgets.

    The memory budget is shared by all batches that are searched in parallel. A few parts
    are distributed evenly over the threads; one thread searches them as one batch, which costs less than
    the padding that two batches would save.
    """
    lengths = [(len(part.row) + 1,) for part in parts]
    budget = batch_tokens
    if threads > 1:
        longest = max(lengths, default=(1,))[0]
        share = -(-sum(length for (length,) in lengths) // (threads * longest)) * longest
        budget = min(batch_tokens, share)

    def fits(size, length):
        elements = size * elements_per_row(length) * threads
        return size * length <= budget and elements <= MAX_NUMBERS_IN_SEARCH

    return batches_by_length(lengths, fits)


def pad_phrases(rows, pad_id):
    """Pads lists of phrases; returns int32, shape `(batch, num_phrases, phrase_length)`."""
    number = max(map(len, rows))
    length = max(len(phrase) for row in rows for phrase in row)
    padded = np.full((len(rows), number, length), pad_id, np.int32)
    for index, row in enumerate(rows):
        for place, phrase in enumerate(row):
            padded[index, place, : len(phrase)] = phrase
    return padded


def _num_required(part):
    """Returns the number of tokens that the translation of a part must have at least, without eos."""
    return len(part.prefix) + sum(map(len, part.phrases))


def uniforms(parts, config):
    """Returns random numbers, float32, shape `(batch, n_best, max_length)`.

    Each sample has its own random stream, keyed by the seed, the number of the text, the index
    of the part and the index of the sample. So it depends neither on the batch nor on `n_best`.
    """
    longest = max(len(part.row) + 1 for part in parts)
    length = min(int(longest * config.max_length_ratio) + config.max_length_offset + 1, config.max_length)
    length = max(length, *(max(_num_required(part) + 1, part.num_words + 3) for part in parts))
    numbers = np.empty((len(parts), config.n_best, length), np.float32)
    for i, part in enumerate(parts):
        for k in range(config.n_best):
            philox = np.random.Philox(key=[config.seed, part.number], counter=[0, 0, part.index, k])
            numbers[i, k] = np.random.Generator(philox).random(length, np.float32)
    return numbers
