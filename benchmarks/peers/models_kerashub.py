"""KerasHub's TransformerEncoder and TransformerDecoder, one ReversibleEmbedding for all three."""

import keras
import keras_hub
from keras import ops

from peers.work import DROPOUT, SMOOTHING


class Translator(keras.Model):
    """A Transformer of KerasHub's layers, which has none for translation.

    Args:
        size: `Size`.
    """

    def __init__(self, size):
        super().__init__()
        self.scale = size.d_model**0.5
        initializer = keras.initializers.RandomNormal(stddev=size.d_model**-0.5)
        self.embedding = keras_hub.layers.ReversibleEmbedding(
            size.vocab_size, size.d_model, tie_weights=True, embeddings_initializer=initializer
        )
        self.positions = keras_hub.layers.SinePositionEncoding()
        self.dropout = keras.layers.Dropout(DROPOUT)
        sizes = {
            "intermediate_dim": size.d_ff,
            "num_heads": size.num_heads,
            "dropout": DROPOUT,
            "layer_norm_epsilon": 1e-6,
        }
        layers = range(size.num_layers)
        self.encoder_layers = [keras_hub.layers.TransformerEncoder(**sizes) for _ in layers]
        self.decoder_layers = [keras_hub.layers.TransformerDecoder(**sizes) for _ in layers]

    def embedded(self, ids, start=0, training=None):
        """Returns float, `(batch, length, d_model)`, of int32 ids, `(batch, length)`, from a position on."""
        embedded = self.embedding(ids) * self.scale
        return self.dropout(embedded + self.positions(embedded, start_index=start), training=training)

    def encode(self, source, training=None):
        """Returns the encoder's output and which positions of int32 ids, `(batch, length)`, are tokens."""
        visible, hidden = ops.not_equal(source, 0), self.embedded(source, training=training)
        for layer in self.encoder_layers:
            hidden = layer(hidden, padding_mask=visible, training=training)
        return hidden, visible

    def call(self, inputs, training=None):
        """Returns logits, `(batch, length, vocab_size)`, of two int32 arrays, `(batch, length)`."""
        source, target = inputs
        encoded, visible = self.encode(source, training)
        hidden = self.embedded(target, training=training)
        for layer in self.decoder_layers:
            hidden = layer(hidden, encoded, encoder_padding_mask=visible, training=training)
        return self.embedding(hidden, reverse=True)


def smoothed_cross_entropy(labels, logits):
    """Label-smoothed cross-entropy; Keras' own takes one-hot labels only, at a great cost."""
    labels = ops.cast(labels, "int32")
    weights = ops.cast(ops.not_equal(labels, 0), "float32")
    total = ops.logsumexp(logits, axis=-1)
    hit = ops.squeeze(ops.take_along_axis(logits, labels[..., None], axis=-1), -1)
    each = total - (1 - SMOOTHING) * hit - SMOOTHING * ops.mean(logits, axis=-1)
    return ops.sum(each * weights) / ops.sum(weights)
