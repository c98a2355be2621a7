"""The weight update: clips the gradient summed over replicas; skips steps that are not finite."""

import contextlib

import keras
import tensorflow as tf


def update_weights(optimizer, weights, gradients, norm, *, finite, has_tokens, averages=(), decay=0.0):
    """Applies gradients that have been summed over replicas; every replica calls this.

    The step counter of the optimizer always increases. Weights, optimizer state and averages change only if
    `finite` and `has_tokens` are both true. (A `LossScaleOptimizer` checks the gradients itself, and lowers
    its scale if they are not finite.)

    Args:
        optimizer: a Keras optimizer.
        weights: list of trainable variables.
        gradients: list of float tensors, summed over all replicas.
        norm: float scalar, global norm of the gradients.
        finite: bool scalar, the same on all replicas: whether gradients and loss are finite.
        has_tokens: bool scalar, the same on all replicas: whether the batch has a real target token.
        averages: list of `tf.Variable`, exponential moving averages of the weights; may be empty.
        decay: decay of the averages.
    """
    weights = list(weights)

    def average(averaged, weight):
        averaged.assign_add((1.0 - decay) * (weight - averaged))

    def apply():
        optimizer.apply(gradients, weights)
        for weight, averaged in zip(weights, averages, strict=False):
            average(averaged, weight.value)

    def skip():
        # A skipped step counts, because its batch has been consumed.
        optimizer.iterations.assign_add(1)

    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):

        def apply_scaled():
            # If the gradients overflow, it only lowers its scale. So the step is counted here.
            step = tf.identity(optimizer.iterations.value)
            apply()
            optimizer.iterations.assign(step + 1)

        tf.cond(has_tokens, apply_scaled, skip)
        return
    gradients = _clip(gradients, norm, optimizer)
    applies = finite & has_tokens
    if not tf.distribute.has_strategy():
        with _without_clipping(optimizer):
            tf.cond(applies, apply, skip)
        return

    def update(strategy, gradients, applies):
        def apply_on_all():
            rate = optimizer.learning_rate
            for weight, gradient in zip(weights, gradients, strict=True):
                strategy.extended.update(
                    weight.value, _variable_update(optimizer, weight), args=(gradient, rate), group=False
                )
            for weight, averaged in zip(weights, averages, strict=False):
                strategy.extended.update(averaged, average, args=(weight.value,), group=False)
            optimizer.iterations.assign_add(1)

        # `applies` is the same on all replicas. In cross-replica context, `tf.cond` may contain the update;
        # in replica context it may not.
        tf.cond(strategy.experimental_local_results(applies)[0], apply_on_all, skip)

    tf.distribute.get_replica_context().merge_call(update, args=(gradients, applies))


def _clip(gradients, norm, optimizer):
    """Clips the gradients by the optimizer's own settings."""
    if optimizer.global_clipnorm:
        return tf.clip_by_global_norm(gradients, optimizer.global_clipnorm, use_norm=norm)[0]
    if optimizer.clipnorm:
        return [tf.clip_by_norm(gradient, optimizer.clipnorm) for gradient in gradients]
    if optimizer.clipvalue:
        return [
            tf.clip_by_value(gradient, -optimizer.clipvalue, optimizer.clipvalue) for gradient in gradients
        ]
    return gradients


def _variable_update(optimizer, weight):
    """Returns a function that updates one weight on one device, with weight decay, as Keras does."""
    decay = optimizer.weight_decay if optimizer.weight_decay and optimizer._use_weight_decay(weight) else 0

    def update(variable, gradient, rate):
        if decay:
            variable.assign_sub(variable * decay * tf.cast(rate, variable.dtype))
        optimizer.update_step(gradient, variable, rate)

    return update


@contextlib.contextmanager
def _without_clipping(optimizer):
    """Context manager that disables the optimizer's clipping, because the gradients are already clipped."""
    names = ("global_clipnorm", "clipnorm", "clipvalue")
    settings = {name: getattr(optimizer, name) for name in names}
    for name in names:
        setattr(optimizer, name, None)
    try:
        yield
    finally:
        for name, value in settings.items():
            setattr(optimizer, name, value)
