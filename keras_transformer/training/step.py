"""The token-weighted training step, under `model.fit` on the TensorFlow backend.

Stock Keras weights the shown loss by sentences and computes every metric from the logits
again. Here one pass over the logits gives loss, accuracy and perplexity, and each of them
is a true mean over real target tokens.
"""

import types

import keras
import tensorflow as tf

from keras_transformer.losses import LabelSmoothedCrossEntropy
from keras_transformer.metrics import TokenLoss, TokenMean


class TokenWeightedStep:
    """Mix-in for a `keras.Model` whose outputs are logits over a vocabulary."""

    def compile(self, optimizer="adam", loss=None, metrics=None, **kwargs):
        """Prepares the model for `fit` and `evaluate`.

        Args:
            optimizer: a Keras optimizer.
            loss: a `LabelSmoothedCrossEntropy`; `None` is one with the paper's 0.1.
            metrics: list of token means, such as `TokenAccuracy()` and `Perplexity()`.
            **kwargs: as in `keras.Model.compile`. `jit_compile` is off unless given:
                XLA compiles once per shape, and batches have many.

        Raises:
            ValueError: for another loss or metric: its mean would not be over tokens.
        """
        loss = LabelSmoothedCrossEntropy() if loss is None else loss
        if not isinstance(loss, LabelSmoothedCrossEntropy):
            raise ValueError(f"`loss` must be a LabelSmoothedCrossEntropy. Received: {loss!r}")
        metrics = list(metrics or ())
        for metric in metrics:
            if not isinstance(metric, TokenMean):
                raise ValueError(
                    "`metrics` must be token means such as TokenAccuracy() or Perplexity(). "
                    f"Received: {metric!r}"
                )
        kwargs.setdefault("jit_compile", False)
        super().compile(optimizer=optimizer, loss=loss, **kwargs)
        # A namespace, as Keras tracks lists and a built model takes no new members.
        self._reported = types.SimpleNamespace(metrics=[TokenLoss(pad_id=loss.pad_id), *metrics])

    @property
    def metrics(self):
        return list(self._reported.metrics) if hasattr(self, "_reported") else []

    def get_compile_config(self):
        config = super().get_compile_config()
        if config and self.compiled:
            config["metrics"] = [keras.saving.serialize_keras_object(metric) for metric in self.metrics[1:]]
        return config

    def compile_from_config(self, config):
        # Keras' own declines, with a warning, where `compile` is overridden.
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    def train_step(self, data):
        inputs, labels, _ = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            statistics = self.loss.statistics(labels, self(inputs, training=True))
            loss = self._mean_over_tokens(statistics)
        weights = self.trainable_weights
        gradients = tape.gradient(loss, weights)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return self._add_to_metrics(statistics)

    def test_step(self, data):
        inputs, labels, _ = keras.utils.unpack_x_y_sample_weight(data)
        return self._add_to_metrics(self.loss.statistics(labels, self(inputs, training=False)))

    def _mean_over_tokens(self, statistics):
        # A batch without a real token has loss 0, not 0 / 0.
        return tf.reduce_sum(statistics.loss) / tf.maximum(tf.reduce_sum(statistics.weight), 1.0)

    def _add_to_metrics(self, statistics):
        for metric in self.metrics:
            metric.add(statistics)
        return {metric.name: metric.result() for metric in self.metrics}
