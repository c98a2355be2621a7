"""Rows of different lengths, computed in the graph a few alike at a time."""

from typing import NamedTuple

import tensorflow as tf


class Output(NamedTuple):
    """One result of `in_chunks`.

    Attributes:
        dtype: `tf.DType`.
        shape: tuple, sizes after the first axis; `None` where chunks differ, which are
            padded with `fill` then.
        fill: scalar; also what a row of no length has.
    """

    dtype: tf.DType
    shape: tuple
    fill: object


def in_chunks(lengths, max_rows, compute, outputs):
    """Calls `compute` for all rows, the shortest first, with as many at once as there is room for.

    So memory is bounded by the budgets of one chunk and little is spent on padding,
    whatever a caller sends together.

    Args:
        lengths: int32, shape `(batch,)`, of each row; rows of 0 are not computed.
        max_rows: list of int, entry n of how many rows of length n there is room for; never
            rising.
        compute: function, numbers of rows, int32, shape `(chunk,)`, -> list of tensors
            with `chunk` rows.
        outputs: list of `Output`, of what it returns.

    Returns:
        list of tensors with `batch` rows, in the order of the rows.
    """
    room = tf.constant(max_rows, tf.int32)
    order = tf.argsort(lengths, stable=True)
    ordered = tf.gather(lengths, order)
    batch = tf.size(lengths)
    num_blank = tf.reduce_sum(tf.cast(ordered == 0, tf.int32))
    blank = [
        tf.fill([num_blank, *(size or 0 for size in output.shape)], tf.constant(output.fill, output.dtype))
        for output in outputs
    ]

    def body(begin, *found):
        # What is ordered by length stops fitting once and for all.
        fits = tf.range(1, batch - begin + 1) <= tf.gather(room, ordered[begin:])
        end = begin + tf.maximum(tf.reduce_sum(tf.cast(fits, tf.int32)), 1)
        more = compute(order[begin:end])
        return end, *map(_joined, found, more, outputs)

    _, *found = tf.while_loop(
        lambda begin, *_: begin < batch,
        body,
        [num_blank, *blank],
        shape_invariants=[tf.TensorShape([]), *(tf.TensorShape([None, *one.shape]) for one in outputs)],
        parallel_iterations=1,
    )
    back = tf.math.invert_permutation(order)
    return [tf.gather(one, back) for one in found]


def _joined(rows, more, output):
    """Appends rows, after padding whichever has the smaller axes."""
    size = tf.maximum(tf.shape(rows)[1:], tf.shape(more)[1:])

    def padded(x):
        missing = tf.concat([[0], size - tf.shape(x)[1:]], axis=0)
        paddings = tf.stack([tf.zeros_like(missing), missing], axis=1)
        return tf.pad(x, paddings, constant_values=tf.constant(output.fill, output.dtype))

    if None in output.shape:
        rows, more = padded(rows), padded(more)
    return tf.ensure_shape(tf.concat([rows, more], axis=0), [None, *output.shape])
