"""Search with a model: its limits of length, its caches, the tokens it may not produce."""

import tensorflow as tf

from keras_transformer.search import Step, beam_search, greedy_search


def search_ids(model, source_ids, config):
    """Searches translations of encoded sentences.

    A translation has at most as many tokens as its source and `config.extra_length`
    more (section 6.1), end of sentence included on both sides.

    Args:
        model: a `Transformer`.
        source_ids: int, shape `(batch, source_len)`, ending with eos, padded.
        config: `SearchConfig`.

    Returns:
        `Hypotheses` with one hypothesis a sentence.
    """
    special = model.special
    source_lengths = tf.reduce_sum(tf.cast(source_ids != special.pad, tf.int32), axis=1)
    max_lengths = source_lengths + config.extra_length
    if model.config.positions == "learned":
        max_lengths = tf.minimum(max_lengths, model.config.max_positions)
    max_length = tf.reduce_max(max_lengths)
    encoded = model.encode(source_ids)
    start = model.start(encoded, max_length=max_length, hypotheses=config.beam_size)

    def step(ids, position, caches):
        logits, state = model.step(ids, position, start._replace(self_attention=caches))
        return Step(logits, state.self_attention)

    settings = {
        "alpha": config.alpha,
        "max_lengths": max_lengths,
        "max_length": max_length,
        "eos_id": special.eos,
        "pad_id": special.pad,
        "forbidden_ids": (special.pad, special.bos, special.unk),
    }
    first_ids = tf.fill((tf.shape(source_ids)[0],), special.bos)
    if config.beam_size == 1:
        return greedy_search(step, start.self_attention, first_ids, **settings)
    return beam_search(step, start.self_attention, first_ids, beam_size=config.beam_size, **settings)
