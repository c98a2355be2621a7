"""Before the first step: a table of what the run will do, and notes on settings that end badly together."""

from keras_transformer.training.memory import estimate_bytes, largest_shape

PAPER_BATCH_TOKENS = 25_000
PAPER_LAYERS = 6

# Bytes of float32: weight, gradient and Adam's two moments.
_BYTES_A_PARAMETER = 16
_SHARING = {
    "all": "one matrix for both embeddings and the output",
    "target_output": "one matrix for target embedding and output",
    "none": "no matrix shared",
}


def summarize(config, corpus, batches, shapes, *, num_parameters, learning_rate, devices):
    """Returns the table.

    Args:
        config: `Config` of the run.
        corpus: `TrainingData`.
        batches: `TokenBatches` of the whole update.
        shapes: iterable of (rows, source_len, target_len), what one device computes at a time.
        num_parameters: int.
        learning_rate: function from a number of updates made to the rate of the next one.
        devices: str, what is trained on.

    Returns:
        str, some lines of two columns.
    """
    model, data, training = config.model, config.data, config.training
    tested = f", {len(corpus.test.source):,} for the test" if corpus.test else ""
    budget = f"up to {data.batch_tokens:,} tokens a side"
    if config.devices.batch_tokens:
        budget += f" (a device: {config.devices.batch_tokens:,})"
    best = min(training.warmup_steps, training.max_steps)
    rows = [
        ("corpus", f"{data.dataset}, {data.source} to {data.target}"),
        (
            "pairs",
            f"{corpus.train.num_pairs:,} training pairs, {len(corpus.validation.source):,} for "
            f"validation{tested}",
        ),
        ("vocabulary", f"{_sizes(corpus.tokenizers)} tokens ({data.model_type})"),
        (
            "model",
            f"{model.num_encoder_layers} + {model.num_decoder_layers} layers, d_model {model.d_model}, "
            f"d_ff {model.d_ff}, {model.num_heads} heads, {'pre' if model.norm_first else 'post'}-norm, "
            f"dropout {model.residual_dropout:g}",
        ),
        ("parameters", f"{num_parameters:,}, {_SHARING[model.sharing]}"),
        (
            "batches",
            f"{batches.per_epoch:,} an epoch, {budget}, {100 * batches.planner.real_share():.1f} % of "
            "them real",
        ),
        (
            "updates",
            f"{training.max_steps:,} ({training.max_steps / batches.per_epoch:,.1f} epochs)"
            + (
                f" or {training.max_minutes:g} {'minute' if training.max_minutes == 1 else 'minutes'}"
                if training.max_minutes
                else ""
            )
            + f", learning rate at most {learning_rate(best - 1):.2e} (update {best:,})",
        ),
        ("memory", _memory(config, shapes, num_parameters)),
        ("devices", f"{devices}, {training.precision}"),
    ]
    return "\n".join(f"{name:<11} {text}" for name, text in rows)


def _memory(config, shapes, num_parameters):
    """Estimate for one device."""
    how = {"precision": config.training.precision, "recompute": config.devices.recompute}
    shape = largest_shape(shapes, config.model, **how)
    still = num_parameters * (_BYTES_A_PARAMETER + (4 if config.training.ema_decay else 0))
    batch = estimate_bytes(shape, config.model, **how)
    rows, source, target = shape
    return (
        f"about {_size(still + batch)} a device: weights and optimizer {_size(still)}, largest batch "
        f"({rows:,} rows of {source:,} + {target:,} tokens) {_size(batch)}"
    )


def _size(number):
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{max(1, round(number / 1e6))} MB"


def _sizes(tokenizers):
    source, target = tokenizers.sizes
    return f"{source:,}" if tokenizers.shared else f"{source:,} and {target:,}"


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
