"""Graphs that score and align given translations."""

import numpy as np
import tensorflow as tf

from keras_transformer.export.graphs import Output, in_chunks
from keras_transformer.tokenizers.base import SPACE


def pair_signatures(served, tokenizers, layer):
    """`score` and `alignment` of pairs of texts.

    Args:
        served: `ServedModel`.
        tokenizers: `Tokenizers`.
        layer: int, number of the decoder layer whose attention aligns.

    Returns:
        dict, name -> tf.function.
    """
    tables = [_PieceTable(tokenizer) for tokenizer in tokenizers]
    force = _force(served, layer)

    def encoded(source, target):
        source, target = served.checked_rows(source), served.checked_rows(target)
        numbers = tf.size(source), tf.size(target)
        message = "`source` and `target` must be as many. Received:"
        with tf.control_dependencies([tf.debugging.Assert(numbers[0] == numbers[1], [message, *numbers])]):
            source, target = tf.identity(source), tf.identity(target)
        return [served.encode(*side) for side in zip(tokenizers, (source, target), strict=True)]

    def in_pairs(sides, compute, outputs):
        """Calls `compute` with the source and target ids of some pairs, and their numbers."""
        lengths = [tf.cast(side.ids.row_lengths(), tf.int32) + 1 for side in sides]
        return in_chunks(
            tf.maximum(*lengths),
            served.max_rows,
            lambda rows: compute(*(served.padded(side.ids, rows) for side in sides)),
            outputs,
        )

    def score(source, target):
        sides = encoded(source, target)

        def compute(source_ids, target_ids):
            log_probs, _ = force(source_ids, target_ids)
            return [tf.reduce_sum(log_probs, axis=1), log_probs]

        outputs = [Output(tf.float32, (), 0.0), Output(tf.float32, (None,), 0.0)]
        log_prob, token_log_probs = in_pairs(sides, compute, outputs)
        return {
            "log_prob": log_prob,
            "token_log_probs": token_log_probs,
            "num_tokens": tf.cast(sides[1].ids.row_lengths(), tf.int32) + 1,
            "truncated": sides[0].truncated | sides[1].truncated,
        }

    def alignment(source, target):
        sides = encoded(source, target)

        def compute(source_ids, target_ids):
            _, attention = force(source_ids, target_ids)
            return _aligned(attention, tables[0](source_ids), tables[1](target_ids))

        outputs = [Output(tf.string, (), ""), Output(tf.float32, (None, None), 0.0)]
        outputs += [Output(tf.int32, (), 0)] * 2
        names = ("links", "weights", "source_words", "target_words")
        found = dict(zip(names, in_pairs(sides, compute, outputs), strict=True))
        return {**found, "truncated": sides[0].truncated | sides[1].truncated}

    specs = [tf.TensorSpec((None,), tf.string, name=name) for name in ("source", "target")]
    return {
        function.__name__: tf.function(function, input_signature=specs, autograph=False)
        for function in (score, alignment)
    }


def _force(served, layer):
    """One pass over pairs of ids, both int32 and with their ends of sentence.

    Returns:
        tf.function that gives log-probabilities, float32, shape `(batch, target_len)`, 0 at padding, and
        the attention of one layer, mean of its heads, `(batch, target_len, source_len)`.
    """
    special = served.model.special

    def force(source_ids, labels):
        first = tf.fill([tf.shape(labels)[0], 1], special.bos)
        with served.weights():
            attended = served.model.attend(
                (source_ids, tf.concat([first, labels[:, :-1]], axis=1)), cross=(layer,)
            )
        logits = tf.cast(attended.logits, tf.float32)
        log_probs = -tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        log_probs = tf.where(labels != special.pad, log_probs, 0.0)
        return log_probs, tf.reduce_mean(attended.cross[layer], axis=1)

    return tf.function(force, input_signature=[tf.TensorSpec((None, None), tf.int32)] * 2, autograph=False)


class _PieceTable:
    """Which word each piece belongs to, from its id: `alignment.word_numbers` as a graph.

    Args:
        tokenizer: `Tokenizer`.
    """

    def __init__(self, tokenizer):
        special = tokenizer.special
        self._none = [special.pad, special.bos, special.eos]
        pieces = [text for _, text in tokenizer.entries]
        self._starts = np.array([piece.startswith(SPACE) for piece in pieces])
        self._spells = np.array([bool(piece.strip(SPACE)) for piece in pieces])

    def __call__(self, ids):
        """Takes int32, shape `(batch, length)`, with end of sentence; leaves the last column out.

        Returns:
            bool, shape `(batch, length - 1)`, whether there is a piece; float32, shape
            `(batch, length - 1, words)`, 1 where the piece is of the word; int32, shape
            `(batch,)`, number of words.
        """
        is_piece = tf.reduce_all(ids[:, :-1, None] != self._none, axis=-1)
        ids = ids[:, :-1]
        spells = tf.gather(tf.constant(self._spells), ids) & is_piece
        starts = tf.gather(tf.constant(self._starts), ids)
        after_space = tf.concat([tf.ones_like(spells[:, :1]), ~spells[:, :-1]], axis=1)
        begun = tf.cumsum(tf.cast(spells & (starts | after_space), tf.int32), axis=1)
        num_words = tf.reduce_max(tf.pad(begun, [[0, 0], [1, 0]]), axis=1)
        number = begun - tf.cast(spells, tf.int32)
        widest = tf.reduce_max(tf.pad(num_words, [[1, 0]]))
        is_of_word = is_piece & (number < num_words[:, None])
        member = tf.one_hot(tf.where(is_of_word, number, -1), widest)
        return is_piece, member, num_words


def _aligned(attention, source, target):
    """Links in Pharaoh's format, weights between words, and the numbers of words of both sides."""
    is_source, source_member, num_source = source
    is_target, target_member, num_target = target
    attention = attention[:, : tf.shape(is_target)[1], : tf.shape(is_source)[1]]
    attention = tf.where(is_source[:, None], attention, 0.0)
    target_sums = tf.reduce_sum(target_member, axis=1)[..., None]
    of_words = tf.einsum("btw,bts,bsv->bwv", target_member, attention, source_member)
    weights = tf.math.divide_no_nan(of_words, target_sums)

    masked = tf.where(is_source[:, None], attention, -1.0)
    # A column more, for there may be no piece to choose from.
    best = tf.argmax(tf.pad(masked, [[0, 0], [0, 0], [0, 1]], constant_values=-1.0), axis=2)
    words_of_best = tf.gather(tf.pad(source_member, [[0, 0], [0, 1], [0, 0]]), best, batch_dims=1)
    linked = tf.einsum("btv,btw->bvw", words_of_best, target_member) > 0
    places = tf.cast(tf.where(linked), tf.int32)  # in order of pair, source word, target word
    links = tf.strings.join([tf.strings.as_string(places[:, 1]), tf.strings.as_string(places[:, 2])], "-")
    of_pair = tf.RaggedTensor.from_value_rowids(links, places[:, 0], nrows=tf.shape(attention)[0])
    return [tf.strings.reduce_join(of_pair, axis=1, separator=" "), weights, num_source, num_target]
