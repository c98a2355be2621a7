"""Signatures that parse: words to bracketed trees, in the graph (section 6.3).

The search is always that of the tree grammar, because mending other results is work for Python. A sentence
that is not searched, because it is too long, has a flat tree, as in `Parser`.
"""

import tensorflow as tf

from keras_transformer.export.graphs import RowConstraint
from keras_transformer.text.linearised import ROOT, WORD, is_closing, is_opening
from keras_transformer.tokenizers.base import valid_utf8
from keras_transformer.translation.tree_grammar import TreeGrammar

_NAMES = {"scores": "score", "log_probs": "log_prob", "lengths": "length"}


def tree_signatures(served, tokenizers):
    """Returns `serving_default` and `parse_nbest`: sentences to trees.

    Args:
        served: `ServedModel` of a parser.
        tokenizers: `Tokenizers`; the target is a `TreeTokenizer`.

    Returns:
        dict, name -> tf.function.
    """
    write = _TreeWriter(tokenizers.target)
    grammar_of = _grammar(tokenizers.target)

    def parse(texts, n_best, inputs):
        words = _words(served.check_rows(texts))
        texts = tf.strings.reduce_join(words.to_tensor(""), axis=-1, separator=" ")
        source = served.encode(tokenizers.source, tf.strings.strip(texts))
        num_words = tf.cast(words.row_lengths(), tf.int32)
        ids, too_long = _searchable(served, source, num_words)
        constraint = RowConstraint(grammar_of, (num_words,))
        results = served.translate(ids, n_best, served.check_inputs(inputs), constraint)
        trees = write(results["ids"], words)
        flat = write.flat(words)[:, None]
        is_flat = (results["lengths"] == 0) & (tf.range(n_best) == 0)
        return {
            "trees": tf.where(is_flat, flat, trees),
            "scores": results["scores"],
            "log_probs": results["log_probs"],
            "too_long": too_long,
        }

    def best(text, *inputs):
        results = parse(text, 1, inputs)
        first = {name: results[f"{name}s"][:, 0] for name in ("tree", "score", "log_prob")}
        return {**first, "too_long": results["too_long"]}

    def several(text, *inputs):
        return parse(text, served.settings.n_best, inputs)

    text = [tf.TensorSpec((None,), tf.string, name="text")]
    return {"serving_default": served.signature(best, text), "parse_nbest": served.signature(several, text)}


def tree_ids_signature(served, tokenizer):
    """Returns `parse_ids`: source ids and numbers of words to ids of the best trees, without TF Text.

    Args:
        served: `ServedModel` of a parser.
        tokenizer: `TreeTokenizer`.

    Returns:
        tf.function.
    """
    grammar_of = _grammar(tokenizer)

    def parse_ids(ids, num_words, *inputs):
        source = served.check_ids(ids)
        numbers = tf.shape(ids)[0], tf.size(num_words)
        message = "`num_words` must have one entry per row of `ids`. Received:"
        is_valid = tf.reduce_all(num_words >= 0)
        negative = ["`num_words` must be at least 0. Received:", num_words]
        checks = [
            tf.debugging.Assert(numbers[0] == numbers[1], [message, *numbers]),
            tf.debugging.Assert(is_valid, negative),
        ]
        with tf.control_dependencies(checks):
            num_words = tf.identity(num_words)
        ids, too_long = _searchable(served, source, num_words)
        constraint = RowConstraint(grammar_of, (num_words,))
        results = served.translate(ids, 1, served.check_inputs(inputs), constraint)
        del results["finished"]  # all are
        best = {_NAMES.get(name, name): values[:, 0] for name, values in results.items()}
        return {**best, "too_long": too_long}

    specs = [
        tf.TensorSpec((None, None), tf.int32, name="ids"),
        tf.TensorSpec((None,), tf.int32, name="num_words"),
    ]
    return served.signature(parse_ids, specs)


def _grammar(tokenizer):
    """Returns a function, numbers of words, int32, shape `(batch,)` -> `TreeGrammar`."""

    def grammar_of(num_words):
        return TreeGrammar.of(tokenizer, num_words)

    return grammar_of


def _words(texts):
    """Splits texts at white space; returns tf.RaggedTensor, tf.string, shape `(batch, None)`."""
    texts = valid_utf8(tf, texts)
    for bracket, name in (("(", "-LRB-"), (")", "-RRB-")):
        texts = tf.strings.regex_replace(texts, f"\\{bracket}", name)
    return tf.strings.split(texts)


def _searchable(served, source, num_words):
    """Empties the rows that the model cannot parse.

    Args:
        served: `ServedModel`.
        source: `Encoded`.
        num_words: int32, shape `(batch,)`.

    Returns:
        (ids, tf.RaggedTensor, int32, shape `(batch, None)`; bool, shape `(batch,)`, whether the row was
        too long).
    """
    too_long = source.truncated | (num_words > served.max_tokens)
    kept = tf.repeat(~too_long, source.ids.row_lengths())
    return tf.ragged.boolean_mask(source.ids, source.ids.with_flat_values(kept)), too_long


class _TreeWriter:
    """Writes ids of linearised trees with their words as bracketed lines, like `text.trees.write_tree`."""

    def __init__(self, tokenizer):
        words = set(tokenizer.word_ids)
        before, after = [], []
        for number, symbol in enumerate(tokenizer.symbols):
            if is_opening(symbol):
                before.append(f" {symbol}")
            elif is_closing(symbol):
                before.append(")")
            else:
                before.append(f" ({symbol} " if number in words else "")
            after.append(")" if number in words else "")
        self._before, self._after = before, after
        self._is_word = [number in words for number in range(len(before))]

    def __call__(self, ids, words):
        """Returns trees, tf.string, shape `(batch, n_best)`; "" for rows of padding.

        Args:
            ids: int32, shape `(batch, n_best, length)`, of well-formed trees over the words.
            words: tf.RaggedTensor, tf.string, shape `(batch, None)`.
        """
        is_word = tf.gather(tf.constant(self._is_word), ids)
        number = tf.cumsum(tf.cast(is_word, tf.int32), axis=-1) - 1
        words = tf.pad(words.to_tensor(""), [[0, 0], [0, 1]])  # the last column is empty
        number = tf.where(is_word, number, tf.shape(words)[1] - 1)
        before, after = (tf.gather(tf.constant(x), ids) for x in (self._before, self._after))
        parts = tf.strings.join([before, tf.gather(words, number, batch_dims=1), after])
        return tf.strings.strip(tf.strings.reduce_join(parts, axis=-1))

    @staticmethod
    def flat(words):
        """Returns trees of one constituent over all words, tf.string, shape `(batch,)`; "" without words."""
        leaves = words.with_flat_values(tf.strings.join([f" ({WORD} ", words.flat_values, ")"]))
        joined = tf.strings.reduce_join(leaves.to_tensor(""), axis=-1)
        return tf.where(words.row_lengths() > 0, tf.strings.join([f"({ROOT}", joined, ")"]), "")
