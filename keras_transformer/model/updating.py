"""The update of the weights: clipped after the replicas' sum, left out where it is not finite."""

import keras
import tensorflow as tf

from keras_transformer.model.keras_workarounds import update_of, without_clipping


def update_weights(optimizer, weights, gradients, norm, *, finite, trains, averages=(), decay=0.0):
    """Applies gradients that are the same on all replicas; called on each of them.

    Args:
        optimizer: a Keras optimizer; its step counts in any case.
        weights: list of trainable variables.
        gradients: list of float tensors, sums over all replicas.
        norm: float scalar, their global norm.
        finite: bool scalar, the same on all replicas: whether all of it is finite.
        trains: bool scalar, the same on all replicas: whether the batch has anything to train on.
            Nothing but the step changes unless both are true, and the scale of the loss where
            there is one.
        averages: list of `tf.Variable`, exponential moving averages of the weights, or none.
        decay: of the averages.
    """
    weights = list(weights)

    def average(averaged, weight):
        averaged.assign_add((1.0 - decay) * (weight - averaged))

    def skip():
        # The step counts: it has read its batch.
        optimizer.iterations.assign_add(1)

    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):

        def apply_scaled():
            # It looks for itself whether the gradients are finite, and lowers its scale.
            before = tf.identity(optimizer.iterations.value)
            optimizer.apply(gradients, weights)
            optimizer.iterations.assign(before + 1)
            for weight, averaged in zip(weights, averages, strict=False):
                average(averaged, weight.value)

        tf.cond(trains, apply_scaled, skip)
        return
    gradients = _clipped(gradients, norm, optimizer)

    def apply_on_one():
        with without_clipping(optimizer):
            optimizer.apply(gradients, weights)
        for weight, averaged in zip(weights, averages, strict=False):
            average(averaged, weight.value)

    applies = finite & trains
    if not tf.distribute.has_strategy():
        tf.cond(applies, apply_on_one, skip)
        return

    def update(strategy, gradients, applies):
        def apply_on_all():
            rate = optimizer.learning_rate
            for weight, gradient in zip(weights, gradients, strict=True):
                strategy.extended.update(
                    weight.value, update_of(optimizer, weight), args=(gradient, rate), group=False
                )
            for weight, averaged in zip(weights, averages, strict=False):
                strategy.extended.update(averaged, average, args=(weight.value,), group=False)
            optimizer.iterations.assign_add(1)

        # All replicas found the same. A condition is possible here, between the replicas,
        # and not within one.
        tf.cond(strategy.experimental_local_results(applies)[0], apply_on_all, skip)

    tf.distribute.get_replica_context().merge_call(update, args=(gradients, applies))


def _clipped(gradients, norm, optimizer):
    """Returns the gradients as the optimizer's settings clip them."""
    if optimizer.global_clipnorm:
        return tf.clip_by_global_norm(gradients, optimizer.global_clipnorm, use_norm=norm)[0]
    if optimizer.clipnorm:
        return [tf.clip_by_norm(gradient, optimizer.clipnorm) for gradient in gradients]
    if optimizer.clipvalue:
        return [
            tf.clip_by_value(gradient, -optimizer.clipvalue, optimizer.clipvalue) for gradient in gradients
        ]
    return gradients
