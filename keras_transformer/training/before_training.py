"""Before the first step: a table of what the run will do, notes on settings, a try of the largest batch."""

import re
import textwrap

import tensorflow as tf

from keras_transformer.batches.dataset import untuned
from keras_transformer.config.programs import OutOfMemoryError

PAPER_BATCH_TOKENS = 25_000
PAPER_LAYERS = 6

# Bytes of float32: weight, gradient and Adam's two moments.
_BYTES_PER_PARAMETER = 16
_TIE_TEXTS = {
    "all": "one matrix for both embeddings and the output",
    "decoder": "one matrix for target embedding and output",
    "none": "no matrix shared",
}
_ALLOCATION = re.compile(
    r"OOM when allocating tensor with shape\[[\d,]*\] and type \w+|[Oo]ut of memory[^.\n]*bytes"
)
_ROWS_MULTIPLE = 8


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
    sizes = [f"{size:,}" for size in corpus.tokenizers.sizes[: 1 if corpus.tokenizers.shared else 2]]
    budget = f"up to {data.batch_tokens:,} tokens a side"
    if config.devices.micro_batch_tokens:
        budget += f" (a device: {config.devices.micro_batch_tokens:,})"
    minutes = f" or {_minutes(training)}" if training.max_minutes else ""
    best = min(training.warmup_steps, training.max_steps)
    how = {"precision": training.precision, "recompute": config.devices.recompute}
    shape = largest_shape(shapes, model, **how)
    still = num_parameters * (_BYTES_PER_PARAMETER + (4 if training.ema_decay else 0))
    batch = estimate_bytes(shape, model, **how)
    rows = {
        "corpus": f"{data.dataset}, {data.source} to {data.target}",
        "pairs": f"{corpus.train.num_pairs:,} training pairs, {len(corpus.validation.source):,} for "
        f"validation{tested}",
        "vocabulary": f"{' and '.join(sizes)} tokens ({data.model_type})",
        "model": f"{model.num_encoder_layers} + {model.num_decoder_layers} layers, d_model {model.d_model}, "
        f"d_ff {model.d_ff}, {model.num_heads} heads, {'pre' if model.norm_first else 'post'}-norm, "
        f"dropout {model.residual_dropout:g}",
        "parameters": f"{num_parameters:,}, {_TIE_TEXTS[model.tie_embeddings]}",
        "batches": f"{batches.per_epoch:,} an epoch, {budget}, {100 * batches.planner.real_share():.1f} % of "
        "them real",
        "updates": f"{training.max_steps:,} ({training.max_steps / batches.per_epoch:,.1f} epochs){minutes}, "
        f"learning rate at most {learning_rate(best - 1):.2e} (update {best:,})",
        "memory": f"about {_size(still + batch)} a device: weights and optimizer {_size(still)}, largest "
        f"batch ({shape[0]:,} rows of {shape[1]:,} + {shape[2]:,} tokens) {_size(batch)}",
        "devices": f"{devices}, {training.precision}",
    }
    return "\n".join(f"{name:<11} {text}" for name, text in rows.items())


def _minutes(training):
    return f"{training.max_minutes:g} minute{'' if training.max_minutes == 1 else 's'}"


def _size(number):
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{max(1, round(number / 1e6))} MB"


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
        f" (--set data.batch_tokens={PAPER_BATCH_TOKENS} --set devices.micro_batch_tokens={at_once})"
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
    return (
        f"note: at this speed about {num_steps:,} steps fit into {_minutes(training)} "
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


def estimate_bytes(shape, config, precision="float32", *, recompute=False):
    """Estimates the activations of one training step.

    Beside weights and optimizer, whose size no batch changes, a step keeps for the gradient:

        every residual and its LayerNorm   d_model * (one float32 number, two of the compute
                                           type, of which one is the dropout's mask) a position
        every attention                    d_k + d_v of all heads a query, and as much a key
        every feed-forward network         d_ff a position
        every attention's weights          heads * queries * keys, in float32 and once more in
                                           the compute type
        the loss                           two numbers of float32 for each logit (the logit while its
                                           probability is computed), and under half precision one of
                                           the compute type

    These are the arrays of the traced training step, counted. What operations need for a
    moment comes on top, so the figure is low: by 2 to 15 % of the peak measured on a CPU, by up
    to 25 % where attention's weights are nearly all of it. It is for comparing shapes;
    `pytest -s -m slow tests/training/test_memory.py` prints both.

    Args:
        shape: (rows, source_len, target_len), lengths in tokens with padding, of what one
            device computes at a time.
        config: `ModelConfig`.
        precision: as in `TrainingConfig`.
        recompute: as in `DeviceConfig`: what enters each layer is kept, and one layer at a time.

    Returns:
        int, bytes; without weights, gradients and optimizer.
    """
    width = 4 if precision == "float32" else 2
    rows, source, target = shape
    norm = config.d_model * (4 + 2 * width)
    heads = config.num_heads * (config.d_key + config.d_value) * width
    # A dropout that is on keeps its mask, and the ReLU's what went into it beside what came out.
    weights = config.num_heads * (4 + width + (4 if config.attention_dropout else 0))
    feed_forward = config.d_ff * width * (3 if config.relu_dropout else 1)

    encoder = source * (2 * norm + 2 * heads + feed_forward) + source * source * weights
    decoder = target * (3 * norm + 3 * heads + feed_forward) + source * heads
    decoder += target * (target + source) * weights
    embeddings = (source + target) * config.d_model * 2 * width
    logits = target * config.target_vocab_size * (8 if width == 4 else 8 + width)
    layers = config.num_encoder_layers * encoder + config.num_decoder_layers * decoder
    if recompute:
        entering = source * config.num_encoder_layers + target * config.num_decoder_layers
        # The logits are gone before the first layer is computed again.
        layers = entering * config.d_model * width + max(0, max(encoder, decoder) - logits)
    return rows * (layers + embeddings + logits)


def largest_shape(shapes, config, precision="float32", *, recompute=False):
    """Returns the shape that needs the most memory: what fits it fits every other.

    Args:
        shapes: iterable of (rows, source_len, target_len), at least one.
        config: `ModelConfig`.
        precision: as in `estimate_bytes`.
        recompute: as in `estimate_bytes`.

    Returns:
        (rows, source_len, target_len); the first of equals.
    """
    return max(shapes, key=lambda shape: estimate_bytes(shape, config, precision, recompute=recompute))


def out_of_memory_error(shape, config, error):
    """Says which batch did not fit and what to lower, in the order of least harm.

    A smaller `devices.micro_batch_tokens` leaves the batch as it is and only cuts it into more
    micro-batches; the others change what is learned.

    Args:
        shape: (rows, source_len, target_len) of what one device was to compute.
        config: `Config` of the run.
        error: the exception.

    Returns:
        `OutOfMemoryError` of one line.
    """
    rows, source, target = shape
    name = "devices.micro_batch_tokens" if config.devices.micro_batch_tokens else "data.batch_tokens"
    budget = config.devices.micro_batch_tokens or config.data.batch_tokens
    max_length = config.data.max_length
    # Half the budget is no help where the device's part of the batch is smaller than that.
    present = min(budget, rows * max(source, target))
    half, least = present // 2 // _ROWS_MULTIPLE, -(-max_length // _ROWS_MULTIPLE)
    suggested = max(half, least) * _ROWS_MULTIPLE
    advice = []
    if suggested < present:
        advice.append(
            f"--set devices.micro_batch_tokens={suggested} (the same batches, computed in smaller parts)"
        )
    if not config.devices.recompute:
        advice.append("--set devices.recompute=true (the same results in about a fifth more time)")
    advice += [f"a data.max_length below {max_length}", "a smaller data.vocab_size"]
    # What TensorFlow says, in one short line.
    text = str(error).strip() or type(error).__name__
    found = _ALLOCATION.search(text)
    reason = textwrap.shorten(found[0] if found else text.splitlines()[0], 160, placeholder="...")
    return OutOfMemoryError(
        f"out of memory: a batch of {rows:,} rows, {source:,} source and {target:,} target tokens each, "
        f"within {name}={budget} ({reason}). Try {', then '.join(advice)}"
    )


def try_largest_batch(model, devices, batches, config):
    """Runs one training step on the largest shape of the batches; it changes nothing.

    It is a step of the training function itself, of rows without a real target token.

    Args:
        model: a compiled `Transformer`.
        devices: `Devices`.
        batches: `TokenBatches`.
        config: `Config`.

    Returns:
        (rows, source_len, target_len), the shape on each device.

    Raises:
        OutOfMemoryError: it does not fit.
    """
    device_tokens = config.devices.micro_batch_tokens
    shapes = []

    def largest():
        return largest_shape(
            shapes, model.config, config.training.precision, recompute=config.devices.recompute
        )

    def forever(share):
        shapes.extend({share.shape(plan)[1:] for plan in batches.planner.plan(0)})
        rows, *lengths = largest()
        leading = (1, rows) if device_tokens else (rows,)
        source, target = ((*leading, length) for length in lengths)
        unk, pad = model.special.unk, model.special.pad

        def batch(source, target):  # of open shapes, as the batches of a run
            return (tf.fill(source, unk), tf.fill(target, unk)), tf.fill(target, pad)

        return untuned(tf.data.Dataset.from_tensors((source, target)).map(batch).repeat())

    # Seeds, step and loss scale go on; weights and moments do not move.
    small = [
        variable
        for variable in (*model.non_trainable_variables, *model.optimizer.variables)
        if variable.shape.num_elements() <= 2
    ]
    before = [variable.numpy() for variable in small]
    sums = model.interval_sums()
    dataset = devices.distribute(device_tokens, forever)
    try:
        model.fit(dataset, steps_per_epoch=1, shuffle=False, verbose=0)
    except tf.errors.ResourceExhaustedError as error:
        raise out_of_memory_error(largest(), config, error) from error
    for variable, value in zip(small, before, strict=True):
        variable.assign(value)
    model.set_interval_sums(sums)
    return largest()
