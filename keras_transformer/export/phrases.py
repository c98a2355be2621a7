"""Signature that translates with lexical constraints: texts and required phrases to translations."""

import tensorflow as tf

from keras_transformer.export.graphs import RowConstraint
from keras_transformer.tokenizers.base import valid_utf8
from keras_transformer.translation.phrases import Phrases

# Bounds the state of the search, which is padded to the most phrases and the longest phrase of a request.
MAX_PHRASES = 32


def constrained_signature(served, tokenizers):
    """Returns `translate_constrained`: texts and their phrases, separated by tabs, to translations.

    The graph fails if the phrases of a text cannot be used: more than `MAX_PHRASES`, too many tokens or
    characters, a blank phrase, a character that the vocabulary lacks, or phrases of a blank text.

    Args:
        served: `ServedModel`.
        tokenizers: `Tokenizers`.

    Returns:
        tf.function with the outputs of `serving_default`.
    """
    target = tokenizers.target
    special = target.special

    def constraint_of(phrases):
        return Phrases(phrases, vocab_size=target.vocab_size, eos_id=special.eos, pad_id=special.pad)

    def translate_constrained(text, constraints, *inputs):
        text, constraints = served.check_rows(text), served.check_rows(constraints)
        numbers = tf.size(text), tf.size(constraints)
        message = "`text` and `constraints` must have the same length. Received:"
        with tf.control_dependencies([tf.debugging.Assert(numbers[0] == numbers[1], [message, *numbers])]):
            source = served.encode(tokenizers.source, tf.identity(text))
        phrases = _encode(served, target, constraints)
        none = tf.zeros([tf.shape(phrases)[0]], tf.int32)
        needed = constraint_of(phrases).length_limits(none, none)  # tokens with end of sentence, or 0
        most = min(served.max_tokens, served.settings.search.max_length)
        is_blank = source.ids.row_lengths() == 0
        checks = [
            _check(needed <= most, f"The phrases of a text may have at most {most - 1} tokens", needed - 1),
            _check((needed == 0) | ~is_blank, "A blank text has a blank translation without phrases", needed),
        ]
        with tf.control_dependencies(checks):
            constraint = RowConstraint(constraint_of, (tf.identity(phrases),), tf.identity(needed))
        results = served.translate(source.ids, 1, served.check_inputs(inputs), constraint)
        return {
            "translation": served.decode(target, results["ids"])[:, 0],
            "score": results["scores"][:, 0],
            "log_prob": results["log_probs"][:, 0],
            "finished": results["finished"][:, 0],
            "truncated": source.truncated,
        }

    specs = [tf.TensorSpec((None,), tf.string, name=name) for name in ("text", "constraints")]
    return served.signature(translate_constrained, specs)


def _encode(served, tokenizer, lines):
    """Encodes lines of phrases as `translate.py --constraints` does.

    Args:
        served: `ServedModel`.
        tokenizer: `Tokenizer` of the target.
        lines: tf.string, shape `(batch,)`.

    Returns:
        int32, shape `(batch, num_phrases, phrase_length)`, padded.
    """
    lines, special, most = valid_utf8(tf, lines), tokenizer.special, served.settings.max_characters
    length = tf.strings.length(lines, unit="UTF8_CHAR")
    message = f"The phrases of a text may have at most {most} characters"
    with tf.control_dependencies([_check(length <= most, message, length)]):
        texts = tf.strings.split(lines, sep="\t")
    has_phrases = ~tf.strings.regex_full_match(lines, " *")
    texts = tf.ragged.boolean_mask(texts, texts.with_values(tf.gather(has_phrases, texts.value_rowids())))
    number, ids = texts.row_lengths(), tokenizer.encode_tensor(texts.values)
    checks = [
        _check(number <= MAX_PHRASES, f"A text may have at most {MAX_PHRASES} phrases", number),
        _check(ids.row_lengths() > 0, "A phrase is blank. Separate phrases by single tabs", number),
        _check(ids.values != special.unk, "A phrase has a character that the vocabulary lacks", number),
    ]
    with tf.control_dependencies(checks):
        ids = texts.with_values(ids.with_values(tf.identity(ids.values)))
    return ids.to_tensor(special.pad, shape=(None, None, None))


def _check(is_valid, message, received):
    """Returns an assertion that all of `is_valid` hold; the error has the largest value of `received`."""
    largest = tf.reduce_max(tf.pad(tf.cast(received, tf.int32), [[1, 0]]))
    return tf.debugging.Assert(tf.reduce_all(is_valid), [f"{message}. Received:", largest])
