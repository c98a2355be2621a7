"""Signatures that score and align given translations by forced decoding."""

import numpy as np
import tensorflow as tf

from keras_transformer.export.graphs import Output, in_chunks
from keras_transformer.tokenizers.base import SPACE


def pair_signatures(served, tokenizers, layer):
    """Returns the signatures `score` and `alignment` for pairs of texts.

    Args:
        served: `ServedModel`.
        tokenizers: `Tokenizers`.
        layer: int, decoder layer whose cross-attention gives alignments, counted from 0.

    Returns:
        dict, name -> tf.function.
    """
    tables = [_PieceTable(tokenizer) for tokenizer in tokenizers]
    force = _forced_decoder(served, layer)

    def encode(source, target):
        source, target = served.check_rows(source), served.check_rows(target)
        numbers = tf.size(source), tf.size(target)
        message = "`source` and `target` must have the same length. Received:"
        with tf.control_dependencies([tf.debugging.Assert(numbers[0] == numbers[1], [message, *numbers])]):
            source, target = tf.identity(source), tf.identity(target)
        return [served.encode(*side) for side in zip(tokenizers, (source, target), strict=True)]

    def compute_in_chunks(sides, compute, outputs):
        """Calls `compute` with the source and target ids of chunks of pairs, see `in_chunks`."""
        lengths = [tf.cast(side.ids.row_lengths(), tf.int32) + 1 for side in sides]
        return in_chunks(
            tf.maximum(*lengths),
            served.max_rows,
            lambda rows: compute(*(served.pad(side.ids, rows) for side in sides)),
            outputs,
        )

    def score(source, target):
        sides = encode(source, target)

        def compute(source_ids, target_ids):
            log_probs, _ = force(source_ids, target_ids)
            return [tf.reduce_sum(log_probs, axis=1), log_probs]

        outputs = [Output(tf.float32, (), 0.0), Output(tf.float32, (None,), 0.0)]
        log_prob, token_log_probs = compute_in_chunks(sides, compute, outputs)
        return {
            "log_prob": log_prob,
            "token_log_probs": token_log_probs,
            "num_tokens": tf.cast(sides[1].ids.row_lengths(), tf.int32) + 1,
            "truncated": sides[0].truncated | sides[1].truncated,
        }

    def alignment(source, target):
        sides = encode(source, target)

        def compute(source_ids, target_ids):
            _, attention = force(source_ids, target_ids)
            return _align(attention, tables[0](source_ids), tables[1](target_ids))

        outputs = [Output(tf.string, (), ""), Output(tf.float32, (None, None), 0.0)]
        outputs += [Output(tf.int32, (), 0)] * 2
        names = ("links", "weights", "source_words", "target_words")
        results = dict(zip(names, compute_in_chunks(sides, compute, outputs), strict=True))
        return {**results, "truncated": sides[0].truncated | sides[1].truncated}

    specs = [tf.TensorSpec((None,), tf.string, name=name) for name in ("source", "target")]
    return {
        function.__name__: tf.function(function, input_signature=specs, autograph=False)
        for function in (score, alignment)
    }


def _forced_decoder(served, layer):
    """Forced decoding of pairs of ids.

    Returns:
        tf.function: source and target ids, both int32 with end of sentence -> log-probabilities, float32,
        shape `(batch, target_len)`, 0 at padding, and the cross-attention of one layer, mean over its
        heads, shape `(batch, target_len, source_len)`.
    """
    special = served.model.special

    def force(source_ids, labels):
        bos = tf.fill([tf.shape(labels)[0], 1], special.bos)
        with served.weights():
            attended = served.model.attend(
                (source_ids, tf.concat([bos, labels[:, :-1]], axis=1)), cross=(layer,)
            )
        logits = tf.cast(attended.logits, tf.float32)
        log_probs = -tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        log_probs = tf.where(labels != special.pad, log_probs, 0.0)
        return log_probs, tf.reduce_mean(attended.cross[layer], axis=1)

    return tf.function(force, input_signature=[tf.TensorSpec((None, None), tf.int32)] * 2, autograph=False)


class _PieceTable:
    """Maps piece ids to words in the graph, like `alignment.word_numbers`.

    Args:
        tokenizer: `Tokenizer`.
    """

    def __init__(self, tokenizer):
        special = tokenizer.special
        self._special_ids = [special.pad, special.bos, special.eos]
        pieces = [text for _, text in tokenizer.entries]
        self._starts_with_space = np.array([piece.startswith(SPACE) for piece in pieces])
        self._has_text = np.array([bool(piece.strip(SPACE)) for piece in pieces])

    def __call__(self, ids):
        """Maps ids, int32, shape `(batch, length)`, with end of sentence; ignores the last column.

        Returns:
            bool, shape `(batch, length - 1)`, whether the id is a piece; float32, shape
            `(batch, length - 1, words)`, 1 if the piece belongs to the word; int32, shape
            `(batch,)`, number of words.
        """
        is_piece = tf.reduce_all(ids[:, :-1, None] != self._special_ids, axis=-1)
        ids = ids[:, :-1]
        has_text = tf.gather(tf.constant(self._has_text), ids) & is_piece
        starts_with_space = tf.gather(tf.constant(self._starts_with_space), ids)
        after_space = tf.concat([tf.ones_like(has_text[:, :1]), ~has_text[:, :-1]], axis=1)
        words_begun = tf.cumsum(tf.cast(has_text & (starts_with_space | after_space), tf.int32), axis=1)
        num_words = tf.reduce_max(tf.pad(words_begun, [[0, 0], [1, 0]]), axis=1)
        number = words_begun - tf.cast(has_text, tf.int32)
        most_words = tf.reduce_max(tf.pad(num_words, [[1, 0]]))
        is_in_word = is_piece & (number < num_words[:, None])
        member = tf.one_hot(tf.where(is_in_word, number, -1), most_words)
        return is_piece, member, num_words


def _align(attention, source, target):
    """Returns links in Pharaoh's format, attention between words, and the number of words of both sides."""
    is_source, source_member, num_source = source
    is_target, target_member, num_target = target
    attention = attention[:, : tf.shape(is_target)[1], : tf.shape(is_source)[1]]
    attention = tf.where(is_source[:, None], attention, 0.0)
    target_sums = tf.reduce_sum(target_member, axis=1)[..., None]
    word_sums = tf.einsum("btw,bts,bsv->bwv", target_member, attention, source_member)
    weights = tf.math.divide_no_nan(word_sums, target_sums)

    masked = tf.where(is_source[:, None], attention, -1.0)
    # One more column, because a sentence may have no piece to choose from.
    best = tf.argmax(tf.pad(masked, [[0, 0], [0, 0], [0, 1]], constant_values=-1.0), axis=2)
    words_of_best = tf.gather(tf.pad(source_member, [[0, 0], [0, 1], [0, 0]]), best, batch_dims=1)
    linked = tf.einsum("btv,btw->bvw", words_of_best, target_member) > 0
    indices = tf.cast(tf.where(linked), tf.int32)  # sorted by pair, source word, target word
    links = tf.strings.join([tf.strings.as_string(indices[:, 1]), tf.strings.as_string(indices[:, 2])], "-")
    links_by_pair = tf.RaggedTensor.from_value_rowids(links, indices[:, 0], nrows=tf.shape(attention)[0])
    return [tf.strings.reduce_join(links_by_pair, axis=1, separator=" "), weights, num_source, num_target]
