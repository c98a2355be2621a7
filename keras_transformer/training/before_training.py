"""Before the first step: summary of the run, notes on risky settings, memory check with the largest batch."""

import re
import textwrap

import tensorflow as tf

from keras_transformer.batches.dataset import without_autotuning
from keras_transformer.config.programs import OutOfMemoryError
from keras_transformer.config.settings import ModelConfig
from keras_transformer.model.kernels.tensor_ops import on_cpu

PAPER_BATCH_TOKENS = 25_000
PAPER_LAYERS = 6

# float32 weight, gradient and both Adam moments.
_BYTES_PER_PARAMETER = 16
_TIE_TEXTS = {
    "all": "source embedding, target embedding and output share one matrix",
    "decoder": "target embedding and output share one matrix",
    "none": "no shared matrix",
}
_ALLOCATION = re.compile(
    r"OOM when allocating tensor with shape\[[\d,]*\] and type \w+|[Oo]ut of memory[^.\n]*bytes"
)
_ROWS_MULTIPLE = 8


def summarize(config, corpus, batches, shapes, *, num_parameters, learning_rate, devices):
    """Returns a summary of the run: corpus, model, batches, schedule, memory estimate and devices.

    Args:
        config: `Config` of the run.
        corpus: `TrainingData`.
        batches: `TokenBatches` to train on.
        shapes: iterable of (rows, source_len, target_len), the batch shapes that one device computes.
        num_parameters: int.
        learning_rate: function from a number of updates made to the rate of the next one.
        devices: str, such as `"2 GPUs"`.

    Returns:
        str, several lines of two columns.
    """
    model, data, training = config.model, config.data, config.training
    tested = f", {len(corpus.test.source):,} for testing" if corpus.test else ""
    sizes = [f"{size:,}" for size in corpus.tokenizers.sizes[: 1 if corpus.tokenizers.shared else 2]]
    budget = f"up to {data.batch_tokens:,} tokens a side"
    if config.devices.micro_batch_tokens:
        budget += f" (a device: {config.devices.micro_batch_tokens:,})"
    minutes = f" or {_minutes(training)}" if training.max_minutes else ""
    departures = [
        f", {name} {getattr(model, name)}"
        for name in ("activation", "norm", "qk_norm", "positions", "attention_init", "depth_scaling")
        if getattr(model, name) != getattr(ModelConfig(), name)
    ]
    best = min(training.warmup_steps, training.max_steps)
    options = {"precision": training.precision, "recompute": config.devices.recompute}
    shape = largest_shape(shapes, model, **options)
    fixed = num_parameters * (_BYTES_PER_PARAMETER + (4 if training.ema_decay else 0))
    batch = estimate_bytes(shape, model, **options)
    rows = {
        "corpus": f"{data.dataset}, {data.source} to {data.target}",
        "pairs": f"{corpus.train.num_pairs:,} training pairs, {len(corpus.validation.source):,} for "
        f"validation{tested}",
        "vocabulary": f"{' and '.join(sizes)} tokens ({data.model_type})",
        "model": f"{model.num_encoder_layers} + {model.num_decoder_layers} layers, d_model {model.d_model}, "
        f"d_ff {model.d_ff}, {model.num_heads} heads, {'pre' if model.norm_first else 'post'}-norm, "
        f"dropout {model.residual_dropout:g}{''.join(departures)}",
        "parameters": f"{num_parameters:,}, {_TIE_TEXTS[model.tie_embeddings]}",
        "batches": f"{batches.per_epoch:,} an epoch, {budget}, {100 * batches.planner.real_share():.1f} % of "
        "them real",
        "updates": f"{training.max_steps:,} ({training.max_steps / batches.per_epoch:,.1f} epochs){minutes}, "
        f"learning rate at most {learning_rate(best - 1):.2e} (update {best:,})",
        "memory": f"about {_size(fixed + batch)} a device: weights and optimizer {_size(fixed)}, largest "
        f"batch ({shape[0]:,} rows of {shape[1]:,} + {shape[2]:,} tokens) {_size(batch)}",
        "devices": f"{devices}, {training.precision}",
    }
    return "\n".join(f"{name:<11} {text}" for name, text in rows.items())


def _minutes(training):
    return f"{training.max_minutes:g} minute{'' if training.max_minutes == 1 else 's'}"


def _size(number):
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{max(1, round(number / 1e6))} MB"


def learning_rate_note(config):
    """Returns a warning if the paper's learning rate is used with much smaller batches than the paper's.

    Args:
        config: `Config`.

    Returns:
        str, one line with two remedies, or `None`.
    """
    scale, batch_tokens = config.training.learning_rate_scale, config.data.batch_tokens
    if config.model.d_model < 512 or scale < 1 or 4 * batch_tokens >= PAPER_BATCH_TOKENS:
        return None
    # Gradient noise is proportional to 1 / sqrt(batch size).
    lower = scale * (batch_tokens / PAPER_BATCH_TOKENS) ** 0.5
    at_once = max(batch_tokens, config.data.max_length)
    return (
        f"note: training.learning_rate_scale={scale:g} suits batches of {PAPER_BATCH_TOKENS:,} tokens a side;"
        f" with {batch_tokens:,} training may stall or diverge to NaN. Either use micro-batches"
        f" (--set data.batch_tokens={PAPER_BATCH_TOKENS} --set devices.micro_batch_tokens={at_once})"
        f" or lower the rate (--set training.learning_rate_scale={lower:.2g})"
    )


def warmup_note(config):
    """Returns a warning if the warm-up is as long as the run, or longer.

    Args:
        config: `Config`.

    Returns:
        str, one line with the remedy, or `None`.
    """
    training = config.training
    if training.warmup_steps < training.max_steps:
        return None
    return (
        f"note: training.warmup_steps={training.warmup_steps} is not below "
        f"training.max_steps={training.max_steps}: the learning rate never decays, and few "
        f"checkpoints can be averaged. {_shorter_warmup(training, training.max_steps)}"
    )


def time_note(training, num_steps):
    """Returns a warning if `max_minutes` will end the run before the warm-up ends.

    Args:
        training: `TrainingConfig`.
        num_steps: int, the step that the run will reach in `max_minutes` at its measured speed.

    Returns:
        str, one line with the remedy, or `None`.
    """
    if not training.max_minutes or training.warmup_steps < num_steps:
        return None
    return (
        f"note: at this speed about {num_steps:,} steps fit into {_minutes(training)} "
        f"(training.max_minutes), fewer than training.warmup_steps={training.warmup_steps}: no checkpoint "
        f"after the warm-up will be averaged. In a new run: {_shorter_warmup(training, num_steps)}"
    )


def _shorter_warmup(training, num_steps):
    """Returns flags for a warm-up of 1/8 of the steps with the same peak learning rate (equation 3)."""
    steps = max(1, num_steps // 8)
    scale = training.learning_rate_scale * (steps / training.warmup_steps) ** 0.5
    return (
        f"--set training.warmup_steps={steps} --set training.learning_rate_scale={scale:.2g} "
        "(the same peak rate)"
    )


def depth_note(config):
    """Returns a warning if a post-norm stack is deeper than the paper's.

    Args:
        config: `Config`.

    Returns:
        str, one line with the remedy, or `None`.
    """
    model = config.model
    layers = max(model.num_encoder_layers, model.num_decoder_layers)
    if model.norm_first or model.depth_scaling != "none" or layers <= PAPER_LAYERS:
        return None
    return (
        f"note: post-norm training of {layers} layers often fails;"
        " --set model.norm_first=true trains deep stacks, and so does model.depth_scaling=deepnorm"
    )


def estimate_bytes(shape, config, precision="float32", *, recompute=False):
    """Estimates the memory of the activations that one training step keeps for the backward pass.

    The compute type is float32, or the 16-bit type under mixed precision:

        residual and LayerNorm   d_model * (1 float32 + 2 of the compute type, one of them the
                                 dropout mask) per position
        attention                heads * (d_k + d_v) per query and the same per key
        attention weights        heads * queries * keys, once in float32 and once in the compute type
        feed-forward             d_ff per position; with a gate also its input, the other factor and the
                                 product, and 2 more arrays within GELU
        loss                     per logit 1 number of the compute type, the probability; on a GPU
                                 2 float32 numbers, and under mixed precision 1 of the compute type

    Temporary buffers of operations are not counted. So the estimate is 2 to 15 % below the peak
    measured on a CPU, and up to 30 % below it where attention weights dominate. It is meant for
    comparing batch shapes; `pytest -s -m very_slow tests/training/test_memory.py` prints estimate and peak.

    Args:
        shape: (rows, source_len, target_len) of the batch on one device, lengths in tokens with padding.
        config: `ModelConfig`.
        precision: as in `TrainingConfig`.
        recompute: as in `DeviceConfig`; only the input of each layer is kept, plus one layer's activations.

    Returns:
        int, bytes, without weights, gradients and optimizer.
    """
    width = 4 if precision == "float32" else 2
    rows, source, target = shape
    norm = config.d_model * (4 + 2 * width)
    heads = config.num_heads * (config.d_key + config.d_value) * width
    # Active dropout keeps its mask. Dropout after the ReLU also keeps both its input and its output.
    weights = config.num_heads * (4 + width + (4 if config.attention_dropout else 0))
    arrays = {"relu": 1, "swiglu": 4, "geglu": 6}[config.activation]
    if config.relu_dropout:
        arrays += 2 if config.activation == "relu" else 1
    feed_forward = config.d_ff * width * arrays

    encoder = source * (2 * norm + 2 * heads + feed_forward) + source * source * weights
    decoder = target * (3 * norm + 3 * heads + feed_forward) + source * heads
    decoder += target * (target + source) * weights
    embeddings = (source + target) * config.d_model * 2 * width
    bytes_per_logit = width if on_cpu() else 8 if width == 4 else 8 + width
    logits = target * config.target_vocab_size * bytes_per_logit
    layers = config.num_encoder_layers * encoder + config.num_decoder_layers * decoder
    if recompute:
        inputs = source * config.num_encoder_layers + target * config.num_decoder_layers
        # The logits are freed before the first layer is recomputed.
        layers = inputs * config.d_model * width + max(0, max(encoder, decoder) - logits)
    return rows * (layers + embeddings + logits)


def largest_shape(shapes, config, precision="float32", *, recompute=False):
    """Returns the batch shape with the largest memory estimate.

    Args:
        shapes: iterable of (rows, source_len, target_len), at least one.
        config: `ModelConfig`.
        precision: as in `estimate_bytes`.
        recompute: as in `estimate_bytes`.

    Returns:
        (rows, source_len, target_len); the first one if several are equal.
    """
    return max(shapes, key=lambda shape: estimate_bytes(shape, config, precision, recompute=recompute))


def out_of_memory_error(shape, config, error):
    """Returns an `OutOfMemoryError` that names the batch and the remedies.

    Remedies that keep the results come first: smaller micro-batches, then recomputation. The others
    change the training.

    Args:
        shape: (rows, source_len, target_len) of the largest batch on one device.
        config: `Config` of the run.
        error: the exception of TensorFlow.

    Returns:
        `OutOfMemoryError` with a message of one line.
    """
    rows, source, target = shape
    name = "devices.micro_batch_tokens" if config.devices.micro_batch_tokens else "data.batch_tokens"
    budget = config.devices.micro_batch_tokens or config.data.batch_tokens
    max_length = config.data.max_length
    # Start from the real size of the batch, which may be far below the budget.
    current = min(budget, rows * max(source, target))
    half, least = current // 2 // _ROWS_MULTIPLE, -(-max_length // _ROWS_MULTIPLE)
    suggested = max(half, least) * _ROWS_MULTIPLE
    advice = []
    if suggested < current:
        advice.append(
            f"--set devices.micro_batch_tokens={suggested} (the same batches in smaller micro-batches)"
        )
    if not config.devices.recompute:
        advice.append("--set devices.recompute=true (the same results, about 20 % slower)")
    advice += [f"a data.max_length below {max_length}", "a smaller data.vocab_size"]
    # TensorFlow's message, shortened to one line.
    text = str(error).strip() or type(error).__name__
    match = _ALLOCATION.search(text)
    reason = textwrap.shorten(match[0] if match else text.splitlines()[0], 160, placeholder="...")
    return OutOfMemoryError(
        f"out of memory: a batch of {rows:,} rows, {source:,} source and {target:,} target tokens each, "
        f"within {name}={budget} ({reason}). Try {', then '.join(advice)}"
    )


def try_largest_batch(model, devices, batches, config):
    """Runs one training step on the largest batch shape, to find out whether it fits into memory.

    The step is a normal training step on labels that are all padding, so no weight changes. Step
    counter, seeds, loss scale and metrics are restored afterwards.

    Args:
        model: a compiled `Transformer`.
        devices: `Devices`.
        batches: `TokenBatches`.
        config: `Config`.

    Returns:
        (rows, source_len, target_len), the largest shape on each device.

    Raises:
        OutOfMemoryError: the batch does not fit.
    """
    device_tokens = config.devices.micro_batch_tokens
    shapes = []

    def largest():
        return largest_shape(
            shapes, model.config, config.training.precision, recompute=config.devices.recompute
        )

    def repeated_batch(share):
        shapes.extend({share.shape(plan)[1:] for plan in batches.planner.plan(0)})
        rows, *lengths = largest()
        leading = (1, rows) if device_tokens else (rows,)
        source, target = ((*leading, length) for length in lengths)
        unk, pad = model.special.unk, model.special.pad

        def batch(source, target):  # in the graph, so that its shapes are unknown as in training
            return (tf.fill(source, unk), tf.fill(target, unk)), tf.fill(target, pad)

        return without_autotuning(tf.data.Dataset.from_tensors((source, target)).map(batch).repeat())

    # The step advances seeds, step counter and loss scale, which are small; weights and moments stay.
    small = [
        variable
        for variable in (*model.non_trainable_variables, *model.optimizer.variables)
        if variable.shape.num_elements() <= 2
    ]
    before = [variable.numpy() for variable in small]
    sums = model.interval_sums()
    dataset = devices.distribute(device_tokens, repeated_batch)
    try:
        model.fit(dataset, steps_per_epoch=1, shuffle=False, verbose=0)
    except tf.errors.ResourceExhaustedError as error:
        raise out_of_memory_error(largest(), config, error) from error
    for variable, value in zip(small, before, strict=True):
        variable.assign(value)
    model.set_interval_sums(sums)
    return largest()
