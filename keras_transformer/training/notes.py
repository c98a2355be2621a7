"""What is worth a line before a run begins: settings that are known to end badly together."""

PAPER_BATCH_TOKENS = 25_000
PAPER_LAYERS = 6


def learning_rate_note(config):
    """Says so where the paper's learning rate meets batches far smaller than the paper's.

    Args:
        config: `Config`.

    Returns:
        str, one line with two remedies; `None` where there is nothing to say.
    """
    scale, batch_tokens = config.training.learning_rate_scale, config.data.batch_tokens
    if config.model.d_model < 512 or scale < 1 or 4 * batch_tokens >= PAPER_BATCH_TOKENS:
        return None
    # The noise of a gradient shrinks with the root of the batch.
    lower = scale * (batch_tokens / PAPER_BATCH_TOKENS) ** 0.5
    at_once = max(batch_tokens, config.data.max_length)
    return (
        f"note: training.learning_rate_scale={scale:g} suits batches of {PAPER_BATCH_TOKENS:,} tokens a side;"
        f" with {batch_tokens:,} the loss may stick or become NaN. Either keep the paper's batch and cut it"
        f" for the device (--set data.batch_tokens={PAPER_BATCH_TOKENS} --set devices.batch_tokens={at_once})"
        f" or lower the rate (--set training.learning_rate_scale={lower:.2g})"
    )


def warmup_note(config):
    """Says so where the warm-up is not shorter than the run.

    Args:
        config: `Config`.

    Returns:
        str, one line with the remedy; `None` where there is nothing to say.
    """
    training = config.training
    if training.warmup_steps < training.max_steps:
        return None
    return (
        f"note: training.warmup_steps={training.warmup_steps} is not below "
        f"training.max_steps={training.max_steps}: the learning rate rises to the end, and hardly a "
        f"checkpoint can be averaged. {_shorter_warmup(training, training.max_steps)}"
    )


def time_note(training, num_steps):
    """Says so where the warm-up does not fit into the minutes of a run, once its speed is known.

    Args:
        training: `TrainingConfig`.
        num_steps: the step that is reached when `max_minutes` are up, at this speed.

    Returns:
        str, one line with the remedy; `None` where there is nothing to say.
    """
    if not training.max_minutes or training.warmup_steps < num_steps:
        return None
    unit = "minute" if training.max_minutes == 1 else "minutes"
    return (
        f"note: at this speed about {num_steps:,} steps fit into {training.max_minutes:g} {unit} "
        f"(training.max_minutes), fewer than training.warmup_steps={training.warmup_steps}: no checkpoint "
        f"of after the warm-up will be averaged. In a new run: {_shorter_warmup(training, num_steps)}"
    )


def _shorter_warmup(training, num_steps):
    """A warm-up of an eighth of the steps, with the highest rate of equation 3 as it was."""
    steps = max(1, num_steps // 8)
    scale = training.learning_rate_scale * (steps / training.warmup_steps) ** 0.5
    return (
        f"--set training.warmup_steps={steps} --set training.learning_rate_scale={scale:.2g} "
        "(the same highest rate)"
    )


def depth_note(config):
    """Says so where a stack is deeper than the paper's and normalises after each sublayer.

    Args:
        config: `Config`.

    Returns:
        str, one line with the remedy; `None` where there is nothing to say.
    """
    model = config.model
    layers = max(model.num_encoder_layers, model.num_decoder_layers)
    if model.norm_first or layers <= PAPER_LAYERS:
        return None
    return (
        f"note: {layers} layers that normalise after each sublayer often do not train at all:"
        " --set model.norm_first=true trains deeper stacks"
    )
