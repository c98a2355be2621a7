"""One update of Adam (section 5.3)."""

from keras import ops

from keras_transformer.model.kernels.switch import kernel


@kernel
def adam_update(weight, momentum, velocity, gradient, *, rate, step, beta_1, beta_2, epsilon):
    """Moves a weight by rate * sqrt(1 - beta_2^t) / (1 - beta_1^t) * momentum / (sqrt(velocity) + epsilon).

    Args:
        weight: `tf.Variable`, float32, which changes in place.
        momentum: the same, of the shape of `weight`.
        velocity: the same.
        gradient: float32, of the shape of `weight`.
        rate: float32 scalar, learning rate.
        step: float32 scalar, t; 1 for the first update.
        beta_1: float.
        beta_2: float.
        epsilon: float.
    """
    momentum.assign_add((1 - beta_1) * (gradient - momentum))
    velocity.assign_add((1 - beta_2) * (ops.square(gradient) - velocity))
    rate = rate * ops.sqrt(1 - beta_2**step) / (1 - beta_1**step)
    weight.assign_sub(rate * momentum / (ops.sqrt(velocity) + epsilon))


@adam_update.fast_form
def _adam_update(weight, momentum, velocity, gradient, *, rate, step, beta_1, beta_2, epsilon):
    """One operation, where the formula takes ten, each of which reads and writes all of a weight."""
    import tensorflow as tf

    tf.raw_ops.ResourceApplyAdam(
        var=weight.handle,
        m=momentum.handle,
        v=velocity.handle,
        beta1_power=beta_1**step,
        beta2_power=beta_2**step,
        lr=rate,
        beta1=beta_1,
        beta2=beta_2,
        epsilon=epsilon,
        grad=gradient,
    )
