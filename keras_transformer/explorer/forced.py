"""One forced pass over a given target: probabilities of every token, and attention weights of all heads."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.analysis.heads import KINDS
from keras_transformer.model.transformer import Transformer


class Inspected(NamedTuple):
    """What a model says about each token of a given target; NumPy arrays.

    Attributes:
        log_probs: float32, shape `(target_len,)`, natural log-probability of each target id given those
            before it.
        ranks: int32, shape `(target_len,)`, place of the target id among all ids by probability, from 1.
        entropies: float32, shape `(target_len,)`, of the distribution over the vocabulary, in nats.
        top_ids: int32, shape `(target_len, k)`, the k most probable ids, best first.
        top_log_probs: float32, shape `(target_len, k)`, their natural log-probabilities.
        attention: dict from each of `analysis.heads.KINDS` to the weights of all heads, float32, shape
            `(num_layers, num_heads, queries, keys)`, as in `AttentionMaps`.
    """

    log_probs: np.ndarray
    ranks: np.ndarray
    entropies: np.ndarray
    top_ids: np.ndarray
    top_log_probs: np.ndarray
    attention: dict


class Inspector:
    """Runs forced passes, compiled once for all lengths.

    Args:
        model: a `Transformer`.
        k: int, number of the most probable ids to return; the vocabulary's size if that is smaller.
    """

    def __init__(self, model: Transformer, k: int) -> None:
        self._model = model
        self._k = min(k, model.config.target_vocab_size)
        row = tf.TensorSpec((1, None), tf.int32)
        # AutoGraph is not needed: no Python control flow depends on a tensor.
        self._compiled = tf.function(self._inspect, input_signature=[row, row], autograph=False)

    def __call__(self, source_ids: list[int], target_ids: list[int]) -> Inspected:
        """Returns the `Inspected` of one pair of sentences.

        Args:
            source_ids: list of int, ending with the end of sentence.
            target_ids: list of int, without begin of sentence; at least one.
        """
        rows = (np.array([ids], np.int32) for ids in (source_ids, target_ids))
        found = self._compiled(*rows)
        return Inspected(*tf.nest.map_structure(lambda tensor: tensor.numpy(), found))

    def _inspect(self, source_ids, labels):
        bos = tf.fill((1, 1), self._model.special.bos)
        inputs = source_ids, tf.concat([bos, labels[:, :-1]], axis=1)
        config = self._model.config
        layers = {kind: range(config.num_decoder_layers) for kind in KINDS}
        layers["encoder"] = range(config.num_encoder_layers)
        output = self._model.attend(inputs, **layers)
        log_probs = tf.nn.log_softmax(tf.cast(output.logits[0], tf.float32))  # --> [target_len, vocab_size]
        of_labels = tf.gather(log_probs, labels[0], batch_dims=1)
        better = tf.cast(log_probs > of_labels[:, None], tf.int32)
        top = tf.math.top_k(log_probs, self._k)
        attention = {
            kind: tf.stack([getattr(output, kind)[layer][0] for layer in layers[kind]]) for kind in KINDS
        }
        return (
            of_labels,
            1 + tf.reduce_sum(better, axis=1),
            # 0 * log 0 counts as 0.
            -tf.reduce_sum(tf.math.multiply_no_nan(log_probs, tf.exp(log_probs)), axis=1),
            top.indices,
            top.values,
            attention,
        )
