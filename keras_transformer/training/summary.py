"""What a run is going to do, as a table, before its first step."""

from keras_transformer.training.memory import estimate_bytes, largest_shape

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
