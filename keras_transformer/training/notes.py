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
