"""The decoding loop with a batch that shrinks, against a count by hand."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.translation.decoding_loop import decode, make_sentences
from keras_transformer.translation.rules import Rules

SIZES = [*range(9), *(m * 2**k for k in range(1, 6) for m in (4, 5, 6, 7))]  # 0 to 8, 10, 12, ..., 224


def counted(limits, n):
    """Decodes sentences of these lengths; returns how often each advanced, and the batch sizes."""
    sizes = []

    def record(size):
        sizes.append(int(size))
        return np.int32(size)

    def advance(position, sentences, hypotheses, state):
        tf.numpy_function(record, [tf.shape(hypotheses)[0]], tf.int32)
        own = tf.reshape(state, (-1, n))[:, 0]  # the sentence's number, which must stay with it
        return hypotheses + own, position + 1 >= sentences.limits, state

    @tf.function(input_signature=[tf.TensorSpec((None,), tf.int32)])
    def run(limits):
        batch = tf.shape(limits)[0]
        sentences = make_sentences(limits, tf.reduce_max(limits), None, Rules(2, 0))
        state = tf.repeat(tf.range(1, batch + 1), n)
        return decode(advance, tf.zeros((batch,), tf.int32), sentences, state, n, None)

    return run(np.array(limits, "int32")).numpy(), sizes


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("batch", [1, 2, 7, 8, 9, 13, 37, 131])
def test_every_sentence_advances_until_it_is_done_while_the_batch_shrinks(batch, n):
    for seed in range(3):
        limits = np.random.default_rng(seed).integers(1, 30, batch)
        found, sizes = counted(limits, n)
        np.testing.assert_array_equal(found, limits * np.arange(1, batch + 1))
        assert len(sizes) == limits.max()
        assert sizes[0] == batch
        left = [(limits > position).sum() for position in range(len(sizes))]
        for position, size in enumerate(sizes):
            assert left[position] <= size
            if size != batch:
                assert size in SIZES
            # At most a quarter is finished, and the next smaller size would not do.
            assert left[position] > max(small for small in [0, *SIZES] if small <= 0.75 * size)


@pytest.mark.slow
def test_sentences_that_end_together_are_removed_together():
    # 37 of 41 end after 2 steps: one smaller batch, not a chain of them.
    found, sizes = counted([2] * 37 + [5] * 4, 1)
    assert sizes == [41, 41, 4, 4, 4]
    found, sizes = counted([3] * 41, 1)
    assert sizes == [41] * 3
    found, sizes = counted([1] * 8 + [2] * 33, 1)  # 33 of 41 are left: more than three quarters
    assert sizes == [41, 41]
    found, sizes = counted([1] * 22 + [2] * 19, 1)  # 19 are left, and one that is finished stays
    assert sizes == [41, 20]
