"""The update of the weights: clipped after the replicas' sum, left out where it is not finite."""

import contextlib

import keras
import tensorflow as tf


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

    def apply():
        optimizer.apply(gradients, weights)
        for weight, averaged in zip(weights, averages, strict=False):
            average(averaged, weight.value)

    def skip():
        # The step counts: it has read its batch.
        optimizer.iterations.assign_add(1)

    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):

        def apply_scaled():
            # It looks for itself whether the gradients are finite, and lowers its scale.
            before = tf.identity(optimizer.iterations.value)
            apply()
            optimizer.iterations.assign(before + 1)

        tf.cond(trains, apply_scaled, skip)
        return
    gradients = _clipped(gradients, norm, optimizer)
    applies = finite & trains
    if not tf.distribute.has_strategy():
        with _without_clipping(optimizer):
            tf.cond(applies, apply, skip)
        return

    def update(strategy, gradients, applies):
        def apply_on_all():
            rate = optimizer.learning_rate
            for weight, gradient in zip(weights, gradients, strict=True):
                strategy.extended.update(
                    weight.value, _update_of(optimizer, weight), args=(gradient, rate), group=False
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


def _update_of(optimizer, weight):
    """Returns what updates one weight on one device, as Keras' optimizers do it."""
    decay = optimizer.weight_decay if optimizer.weight_decay and optimizer._use_weight_decay(weight) else 0

    def update(variable, gradient, rate):
        if decay:
            variable.assign_sub(variable * decay * tf.cast(rate, variable.dtype))
        optimizer.update_step(gradient, variable, rate)

    return update


@contextlib.contextmanager
def _without_clipping(optimizer):
    """Keeps an optimizer from clipping while its update is traced: Keras clips each replica's gradient."""
    names = ("global_clipnorm", "clipnorm", "clipvalue")
    kept = {name: getattr(optimizer, name) for name in names}
    for name in names:
        setattr(optimizer, name, None)
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(optimizer, name, value)
