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
        averages: list of (weight, `tf.Variable`), exponential moving averages of weights; may be empty.
        decay: decay of the averages.
    """
    weights = list(weights)
    if not _knows(optimizer, weights):
        raise ValueError(
            "a layer has become trainable since `compile`: call `compile` again, with a new optimizer"
        )

    def average(averaged, weight):
        averaged.assign_add((1.0 - decay) * (weight - averaged))

    def average_all():
        for weight, averaged in averages:
            average(averaged, weight.value)

    def apply():
        optimizer.apply(gradients, weights)
        average_all()

    def skip():
        # A skipped step counts, because its batch has been consumed.
        optimizer.iterations.assign_add(1)

    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):

        def apply_scaled():
            # If the gradients overflow, it only lowers its scale. So the step is counted here.
            step = tf.identity(optimizer.iterations.value)
            optimizer.apply(gradients, weights)
            tf.cond(optimizer.iterations.value > step, average_all, lambda: None)
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
            for weight, averaged in averages:
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
    """Returns a function that updates one weight on one device, with decay and constraint, as Keras does."""
    # As Keras does, it asks with the tf.Variable: its name, which `var_names` must match, is the full path.
    decays = optimizer.weight_decay and optimizer._use_weight_decay(weight.value)
    decay = optimizer.weight_decay if decays else 0

    def update(variable, gradient, rate):
        if decay:
            variable.assign_sub(variable * decay * tf.cast(rate, variable.dtype))
        optimizer.update_step(gradient, variable, rate)
        if weight.constraint is not None:
            variable.assign(weight.constraint(variable))

    return update


def build_optimizer(optimizer, weights):
    """Creates the state of an optimizer, unless it has one.

    Args:
        optimizer: a Keras optimizer; `None` if the model is evaluated only.
        weights: list of trainable variables.

    Raises:
        ValueError: the optimizer has the state of other weights.
    """
    if optimizer is None:
        return
    optimizer.build(weights)
    if not _knows(optimizer, weights):
        raise ValueError(
            "the optimizer has been used with other trainable weights: give `compile` a new optimizer"
        )


def _knows(optimizer, weights):
    """Whether the optimizer has a state for each of the weights."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return {id(weight) for weight in weights} <= {id(weight) for weight in inner._trainable_variables}


def start_at_weights(optimizer):
    """Copies the weights again into the state that `build` copied them to; call it before the first update.

    Weights may have been loaded after `build`. Only `ScheduleFreeAdamW` has such a state.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if isinstance(inner, getattr(keras.optimizers, "ScheduleFreeAdamW", ())):
        for weight, momentum in zip(inner._trainable_variables, inner._momentums, strict=True):
            momentum.assign(weight.value)


def check_optimizer(optimizer, strategy, policy):
    """Raises an error for what Keras gets wrong, or what `update_weights` would not do.

    Args:
        optimizer: a Keras optimizer, or `None`.
        strategy: `tf.distribute.Strategy`.
        policy: name of the model's dtype policy.

    Raises:
        ValueError: names the optimizer or its setting, and the alternative.
    """
    if optimizer is None:
        return
    scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    inner = optimizer.inner_optimizer if scales else optimizer
    name = type(inner).__name__
    if isinstance(inner, getattr(keras.optimizers, "MultiOptimizer", ())):
        raise ValueError(
            "`MultiOptimizer` does not count steps that are skipped, and each of its optimizers clips by the "
            "norm of its own weights. Use one optimizer"
        )
    if getattr(inner, "gradient_accumulation_steps", None):
        raise ValueError(
            "`gradient_accumulation_steps` gives all micro-batches the same weight, whatever their tokens, "
            "and fails under a strategy (keras#20582). Give batches of shape (micro_batches, rows, length)"
        )
    if getattr(inner, "use_ema", False):
        raise ValueError(
            "`use_ema` fails under a strategy (keras#20582) and replaces the weights at the end of every "
            "`fit`. Use compile(..., ema_decay=...)"
        )
    if getattr(inner, "loss_scale_factor", None):
        raise ValueError(
            "`loss_scale_factor` would divide gradients that it has not multiplied. Use the policy "
            "mixed_float16, which scales the loss by itself, or mixed_bfloat16"
        )
    if isinstance(strategy, tf.distribute.experimental.ParameterServerStrategy):
        raise ValueError(
            "ParameterServerStrategy has no code path in Keras 3 (keras#20585). Use MirroredStrategy or "
            "MultiWorkerMirroredStrategy"
        )
    with strategy.scope():
        if not tf.distribute.has_strategy():  # the default strategy
            return
    if policy == "mixed_float16" or scales:
        raise ValueError(
            "float16 needs loss scaling, which Keras checks on one replica only: an overflow on another "
            "would be applied. Use mixed_bfloat16, or one device without a strategy"
        )
    # Under a strategy, `update_weights` calls `update_step` for each weight, and nothing else of these.
    for method in ("apply", "apply_gradients", "_backend_update_step", "_apply_weight_decay"):
        if getattr(type(inner), method) is not getattr(keras.optimizers.Optimizer, method):
            raise ValueError(
                f"`{name}` overrides `{method}`, which is not called under a strategy. Use Adam or another "
                "optimizer, or one device without a strategy"
            )


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
