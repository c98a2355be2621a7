"""Token-bucketed batches of a `tf.data.Dataset` of pairs that nobody has counted, and that may never end.

`token_batches` calls `stream_batches` for a `tf.data.Dataset`. The plan of `EpochPlanner` needs all lengths.
Here, a pair waits in the bucket of its length until the bucket holds a batch, as in Tensor2Tensor. The graph
does all work, from the strings to the batches.
"""

import functools
import sys

import numpy as np
import tensorflow as tf

from keras_transformer.batches.cutting import ROWS_MULTIPLE
from keras_transformer.batches.planning import PADDINGS
from keras_transformer.config.settings import SpecialIds
from keras_transformer.tokenizers.base import check_special, valid_utf8
from keras_transformer.tokenizers.tokenizer_pair import as_tokenizers

_BLOCK_PAIRS = 256  # pairs that are encoded together
_NUM_BUCKETS = 32  # with padding="longest"; neighbouring lengths then differ by about a tenth
_SHORTEST = 8  # length of the first bucket, in tokens
_BLANK = r"^[\x00\x09-\x0d\x1c-\x20\x{85}\pZ]+$"  # white space as for `str.strip`, and NUL
_FIRST_REPORT = 1000  # pairs read; then at 10,000, 100,000, ...


def stream_batches(
    dataset,
    *,
    batch_tokens,
    max_length,
    tokenizer=None,
    shuffle_pairs=10_000,
    seed=1,
    padding="longest",
    max_shapes=16,
    special=None,
):
    """Returns a `tf.data.Dataset` of token-bucketed batches of a dataset of pairs, which may be infinite.

    Drops pairs with more than `max_length` tokens or without a token on either side. A line on standard error
    counts them after 1,000, 10,000, ... pairs, and at the end of the dataset. Iterating raises TensorFlow's
    InvalidArgumentError if a text is not UTF-8, an id is no token, or all pairs of a finite dataset were
    dropped.

    A batch holds pairs of one bucket, which the longer side decides. Compared with an `EpochPlanner`, there
    is more padding, a run cannot resume at a batch, and the order is not a function of (seed, epoch): it also
    depends on the order of `dataset`. The last batches of a finite dataset have unused rows.

    Args:
        dataset: `tf.data.Dataset` of `(source, target)`: two scalar strings in UTF-8; or two vectors of ids,
            int, of shape `(length,)`, without special ids: eos is added, as in `encode_pairs`.
        batch_tokens: maximum tokens of a batch on either side, padding included: rows x `max(source_len,
            target_len)`, as in `EpochPlanner`.
        max_length: maximum tokens of a sentence on either side, eos included.
        tokenizer: tokenizer, or `Tokenizers` of source and target, whose `encode_tensor` encodes strings;
            `None` for ids.
        shuffle_pairs: number of pairs in the shuffle buffer; 0 keeps the order. The pairs of an iteration
            are in another order than those of the one before.
        seed: seed of the shuffling; TensorFlow combines it with its global seed, if that is set.
        padding: `"longest"` pads to the longest sentence of the batch; `"fixed"` pads both sides
            to the longest length of the bucket, and to the same number of rows.
        max_shapes: maximum number of buckets, and so of shapes, with `padding="fixed"`.
        special: `SpecialIds` of ids; `None` for those of the tokenizer, or the default.

    Returns:
        `tf.data.Dataset` of `((source_ids, target_ids), labels)`, int32, of shapes `(rows, source_len)`,
        `(rows, target_len)` and `(rows, target_len)`, as in `token_batches`. It ends when `dataset` ends.

    Raises:
        TypeError: the elements of `dataset` are not such pairs.
        ValueError: `batch_tokens` is less than 8 rows of `max_length`, or another setting is out of range.
    """
    tokenizers = as_tokenizers(tokenizer) if tokenizer else None
    _check_elements(dataset, tokenizers)
    _check_settings(batch_tokens, max_length, shuffle_pairs, padding, max_shapes)
    if tokenizers:
        special = check_special(
            tokenizers.target.special, special or tokenizers.target.special, "`tokenizer`"
        )
    special = special or SpecialIds()
    fixed = padding == "fixed"
    longest = bucket_lengths(max_length, max_shapes if fixed else _NUM_BUCKETS)
    rows = [batch_tokens // length // ROWS_MULTIPLE * ROWS_MULTIPLE for length in longest]

    def encode_block(*sides):
        if tokenizers:
            encoded = [_encode(*side) for side in zip(sides, tokenizers, strict=True)]
        else:
            encoded = [_check_ids(ids, special) for ids in sides]
        lengths = [ids.row_lengths() + 1 for ids in encoded]  # with eos
        is_empty = tf.minimum(*lengths) == 1
        is_long = ~is_empty & (tf.maximum(*lengths) > max_length)
        return (
            *encoded,
            ~is_empty & ~is_long,
            tf.stack([tf.shape(is_long)[0], _count(is_long), _count(is_empty)]),
        )

    def end(source_ids, labels, _):
        return tuple(tf.concat([ids, [special.eos]], 0) for ids in (source_ids, labels))

    def longer_side(source_ids, labels):
        return tf.maximum(tf.size(source_ids), tf.size(labels))

    def make_batch(source_ids, labels):
        num_pairs, source_len = tf.unstack(tf.shape(source_ids))
        multiple = batch_tokens // source_len // ROWS_MULTIPLE * ROWS_MULTIPLE if fixed else ROWS_MULTIPLE
        unused = [[0, -num_pairs % multiple], [0, 0]]
        source_ids = tf.pad(source_ids, unused, constant_values=special.pad)
        labels = tf.pad(labels, unused, constant_values=special.pad)
        bos = tf.fill([tf.shape(labels)[0], 1], special.bos)
        return (source_ids, tf.concat([bos, labels[:, :-1]], axis=1)), labels

    with tf.device("CPU:0"):
        blocks = dataset.batch(_BLOCK_PAIRS) if tokenizers else dataset.ragged_batch(_BLOCK_PAIRS)
        blocks = blocks.map(encode_block, num_parallel_calls=tf.data.AUTOTUNE)
        nothing = tf.RaggedTensor.from_row_lengths(tf.zeros([0], tf.int32), tf.zeros([0], tf.int64))
        last = tf.data.Dataset.from_tensors((nothing, nothing, tf.zeros([0], bool), tf.zeros([3], tf.int32)))
        blocks = blocks.concatenate(last).scan(tf.zeros([3], tf.int64), _Report(max_length))
        pairs = blocks.unbatch().filter(lambda source_ids, labels, is_kept: is_kept).map(end)
        if shuffle_pairs:
            pairs = pairs.shuffle(shuffle_pairs, seed=seed)
        batches = pairs.bucket_by_sequence_length(
            longer_side,
            bucket_boundaries=[length + 1 for length in longest],
            bucket_batch_sizes=[*rows, 1],  # the last bucket, of longer pairs, stays empty
            padded_shapes=([None], [None]),
            padding_values=(special.pad, special.pad),
            pad_to_bucket_boundary=fixed,
        )
        return batches.map(make_batch, num_parallel_calls=2)


def bucket_lengths(max_length, max_buckets):
    """Returns the longest lengths of the buckets: a geometric sequence from 8 to `max_length`.

    Returns:
        list of int in ascending order, at most `max_buckets`, the last one `max_length`.
    """
    lengths = np.geomspace(max_length, min(_SHORTEST, max_length), max_buckets)
    return np.unique(lengths.round().astype(int)).tolist()


class _Report:
    """Counts pairs read and dropped, prints the counts, and passes the pairs on; for `Dataset.scan`."""

    def __init__(self, max_length):
        self._max_length = max_length

    def __call__(self, before, element):
        *block, numbers = element
        now = before + tf.cast(numbers, tf.int64)
        num_pairs, num_long, num_empty = tf.unstack(now)
        num_dropped = num_long + num_empty
        text = tf.strings.format(
            f"token_batches: {{}} of {{}} pairs dropped: {{}} with more than {self._max_length} tokens "
            "(max_length), {} with an empty side",
            [num_dropped, num_pairs, num_long, num_empty],
        )
        is_end = numbers[0] == 0
        tf.debugging.Assert(~is_end | (num_pairs > num_dropped), ["no pairs are left;", text])
        # The number of pairs has another number of digits than before.
        digits = [tf.strings.length(tf.strings.as_string(number[0])) for number in (before, now)]
        is_due = (digits[0] < digits[1]) & (num_pairs >= _FIRST_REPORT)
        report = functools.partial(tf.print, text, output_stream=sys.stderr)
        tf.cond((num_dropped > 0) & (is_due | is_end), report, tf.no_op)
        return now, tuple(block)


def _check_elements(dataset, tokenizers):
    """Raises `TypeError` unless elements are two scalar strings, or two int vectors without a tokenizer."""
    for tokenizer in tokenizers or ():
        if not hasattr(tokenizer, "encode_tensor"):
            raise TypeError(
                "`tokenizer` must have `encode_tensor`; without it, encode the texts yourself and give ids. "
                f"Received: {type(tokenizer).__name__}"
            )
    sides = dataset.element_spec

    def fits(side):
        dtype, shape = getattr(side, "dtype", tf.float32), getattr(side, "shape", tf.TensorShape(None))
        return shape.rank == 0 and dtype == tf.string if tokenizers else shape.rank == 1 and dtype.is_integer

    if not isinstance(sides, tuple) or len(sides) != 2 or not all(map(fits, sides)):
        kinds = "scalar strings" if tokenizers else "int vectors (strings need `tokenizer`)"
        raise TypeError(
            f"`dataset` must have elements (source, target), two {kinds}. Select the two with "
            "dataset.map(lambda example: (example['en'], example['de'])); unbatch what is batched. "
            f"Received: {sides}"
        )


def _check_settings(batch_tokens, max_length, shuffle_pairs, padding, max_shapes):
    """Raises `ValueError` if a setting is out of range."""
    if padding not in PADDINGS:
        raise ValueError(f"`padding` must be one of {list(PADDINGS)}. Received: {padding!r}")
    for name, value, least in (
        ("max_length", max_length, 2),
        ("max_shapes", max_shapes, 1),
        ("shuffle_pairs", shuffle_pairs, 0),
    ):
        if value < least:
            raise ValueError(f"`{name}` must be at least {least}. Received: {value}")
    if ROWS_MULTIPLE * max_length > batch_tokens:
        raise ValueError(
            f"`batch_tokens` must be at least {ROWS_MULTIPLE} * `max_length`. "
            f"Received: batch_tokens={batch_tokens}, max_length={max_length}"
        )


def _encode(texts, tokenizer):
    """Encodes one side of a block, strings of shape `(block,)`; returns a RaggedTensor `(block, None)`."""
    valid = valid_utf8(tf, texts)
    bad = tf.boolean_mask(valid, valid != texts)[:1]
    tf.debugging.Assert(tf.size(bad) == 0, ["token_batches: a text must be UTF-8. Received:", bad])
    texts = tf.strings.regex_replace(texts, _BLANK, "")
    return tokenizer.for_dataset().encode_tensor(texts)


def _check_ids(ids, special):
    """Returns one side of a block as int32 RaggedTensor of shape `(block, None)`; an id must be a token."""
    if not isinstance(ids, tf.RaggedTensor):
        ids = tf.RaggedTensor.from_tensor(ids)  # all have one length
    values = tf.cast(ids.values, tf.int64)
    is_other = (values < 0) | (values >= 2**31) | (values == special.pad) | (values == special.eos)
    bad = tf.boolean_mask(values, is_other)[:1]
    message = (
        f"token_batches: an id must not be negative, {special.pad} (padding) or {special.eos} (eos, which is "
    )
    tf.debugging.Assert(tf.size(bad) == 0, [message + "added here). Received:", bad])
    return ids.with_values(tf.cast(values, tf.int32))


def _count(flags):
    return tf.reduce_sum(tf.cast(flags, tf.int32))
