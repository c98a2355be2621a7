"""Which batch needs the most memory in training, and what to do if it is too much.

`try_largest` runs that batch before the first step, so that memory runs short then or not at all.

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
"""

import re

import tensorflow as tf

from keras_transformer.batches.dataset import untuned
from keras_transformer.config.programs import OutOfMemoryError

_WIDTHS = {"float32": 4, "mixed_bfloat16": 2, "mixed_float16": 2}
_NORMS = {"encoder": 2, "decoder": 3}  # residuals a layer
_ALLOCATION = re.compile(
    r"OOM when allocating tensor with shape\[[\d,]*\] and type \w+|[Oo]ut of memory[^.\n]*bytes"
)
_LONGEST_REASON = 160  # characters
_ROWS_MULTIPLE = 8


def estimate_bytes(shape, config, precision="float32", *, recompute=False):
    """Estimates the activations of one training step.

    Args:
        shape: (rows, source_len, target_len), lengths in tokens with padding, of what one
            device computes at a time.
        config: `ModelConfig`.
        precision: `"float32"`, `"mixed_bfloat16"` or `"mixed_float16"`.
        recompute: as in `DeviceConfig`: what enters each layer is kept, and one layer at a time.

    Returns:
        int, bytes; without weights, gradients and optimizer.

    Raises:
        ValueError: an unknown precision.
    """
    if precision not in _WIDTHS:
        raise ValueError(f"`precision` must be one of {list(_WIDTHS)}. Received: {precision!r}")
    width = _WIDTHS[precision]
    rows, source, target = shape
    norm = config.d_model * (4 + 2 * width)
    heads = config.num_heads * (config.d_key + config.d_value) * width
    feed_forward = config.d_ff * width
    # A dropout that is on keeps its mask, and the ReLU's what went into it beside what came out.
    weights = config.num_heads * (4 + width + (4 if config.attention_dropout else 0))
    feed_forward += config.d_ff * 2 * width if config.relu_dropout else 0

    encoder = source * (_NORMS["encoder"] * norm + 2 * heads + feed_forward) + source * source * weights
    decoder = (
        target * (_NORMS["decoder"] * norm + 3 * heads + feed_forward)
        + source * heads
        + (target * target + target * source) * weights
    )
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


def out_of_memory_message(shape, config, error):
    """Says which batch did not fit and what to lower, in the order of least harm.

    A smaller `devices.batch_tokens` leaves the batch as it is and only cuts it into more
    micro-batches; the others change what is learned.

    Args:
        shape: (rows, source_len, target_len) of what one device was to compute.
        config: `Config` of the run.
        error: the exception.

    Returns:
        str, one line.
    """
    rows, source, target = shape
    name = "devices.batch_tokens" if config.devices.batch_tokens else "data.batch_tokens"
    budget = config.devices.batch_tokens or config.data.batch_tokens
    max_length = config.data.max_length
    # Half the budget is no help where the device's part of the batch is smaller than that.
    present = min(budget, rows * max(source, target))
    half, least = present // 2 // _ROWS_MULTIPLE, -(-max_length // _ROWS_MULTIPLE)
    suggested = max(half, least) * _ROWS_MULTIPLE
    advice = []
    if suggested < present:
        advice.append(f"--set devices.batch_tokens={suggested} (the same batches, computed in smaller parts)")
    if not config.devices.recompute:
        advice.append("--set devices.recompute=true (the same results in about a fifth more time)")
    advice += [f"a data.max_length below {max_length}", "a smaller data.vocab_size"]
    return (
        f"out of memory: a batch of {rows:,} rows, {source:,} source and {target:,} target tokens each, "
        f"within {name}={budget} ({_reason(error)}). Try {', then '.join(advice)}"
    )


def _reason(error):
    """What an exception says, in one short line."""
    text = str(error)
    found = _ALLOCATION.search(text)
    line = found[0] if found else next((one.strip() for one in text.splitlines() if one.strip()), "")
    line = line or type(error).__name__
    return line if len(line) <= _LONGEST_REASON else f"{line[:_LONGEST_REASON]}..."


def try_largest(model, placement, batches, config):
    """Runs one training step on the largest shape of the batches; it changes nothing.

    It is a step of the training function itself, of rows without a real target token.

    Args:
        model: a compiled `Transformer`.
        placement: `Placement`.
        batches: `TokenBatches`.
        config: `Config`.

    Returns:
        (rows, source_len, target_len), the shape on each device.

    Raises:
        OutOfMemoryError: it does not fit.
    """
    device_tokens = config.devices.batch_tokens
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
    dataset = placement.distribute(device_tokens, forever)
    try:
        model.fit(dataset, steps_per_epoch=1, shuffle=False, verbose=0)
    except tf.errors.ResourceExhaustedError as error:
        raise out_of_memory(largest(), config, error) from error
    for variable, value in zip(small, before, strict=True):
        variable.assign(value)
    model.set_interval_sums(sums)
    return largest()


def out_of_memory(shape, config, error):
    """Returns the `OutOfMemoryError` for a shape (rows, source_len, target_len)."""
    return OutOfMemoryError(out_of_memory_message(shape, config, error))
