"""The memory of a batch: counted by hand, and measured in processes of their own."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import tensorflow as tf

from keras_transformer.config.settings import Config, ModelConfig, override
from keras_transformer.training import before_training
from keras_transformer.training.before_training import estimate_bytes, largest_shape, out_of_memory_error

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Prime sizes; d_k and d_v are 3 and 5.
SIZES = {
    "source_vocab_size": 29,
    "target_vocab_size": 29,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "d_model": 14,
    "d_ff": 11,
    "num_heads": 2,
    "key_dim": 3,
    "value_dim": 5,
}
SHAPE = (13, 7, 17)
OUT_OF_MEMORY = """Graph execution error:

Detected at node transformer_1/MatMul defined at (most recent call last):
  File "run.py", line 3, in <module>

OOM when allocating tensor with shape[6272,37000] and type float on /GPU:0 by allocator GPU_0_bfc
  [[{{node transformer_1/MatMul}}]]
Hint: If you want to see a list of allocated tensors when OOM happens, add report_tensor_allocations_upon_oom.
"""

# Peak memory of one more training step, once the small ones have loaded and traced all there is.
MEASURE = """
import json, resource, sys
import numpy as np
from keras_transformer.config.settings import ModelConfig
from keras_transformer.model.transformer import Transformer

shape, sizes, precision = json.loads(sys.argv[1])
model = Transformer(ModelConfig(**sizes), dtype=precision)
model.compile("sgd")

def step(rows, source_len, target_len):
    source, target, labels = (np.full((rows, n), 5) for n in (source_len, target_len, target_len))
    model.train_on_batch((source, target), labels)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

step(2, 4, 5)
before = step(3, 5, 4)
print(step(*shape) - before)
"""


def model_config(**changes):
    return ModelConfig(**{**SIZES, **changes})


def hand_count(width):
    """Bytes of SHAPE, array by array; `width` is that of the compute type."""
    rows, source, target = SHAPE
    norm = 14 * 4 + 14 * width + 14 * width  # normalised, output, dropout's mask
    query, key = 2 * (3 + 5) * width, 2 * (3 + 5) * width  # query and output; key and value
    encoder = source * (2 * norm + query + key + 11 * width)
    decoder = target * (3 * norm + query + key + query + 11 * width) + source * key
    weights = 2 * (7 * 7 + 17 * 17 + 17 * 7) * (4 + width)
    embeddings = (source + target) * (14 * width + 14 * width)
    logits = target * 29 * width
    return rows * (encoder + decoder + weights + embeddings + logits)


@pytest.mark.parametrize(
    ("precision", "width"), [("float32", 4), ("mixed_bfloat16", 2), ("mixed_float16", 2)]
)
def test_the_estimate_is_the_count_of_the_arrays(precision, width):
    assert estimate_bytes(SHAPE, model_config(), precision) == hand_count(width)


@pytest.mark.parametrize(("precision", "more"), [("float32", 4), ("mixed_bfloat16", 8)])
def test_a_gpu_keeps_logits_and_probabilities(precision, more, monkeypatch):
    on_cpu = estimate_bytes(SHAPE, model_config(), precision)
    monkeypatch.setattr(before_training, "on_cpu", lambda: False)
    assert estimate_bytes(SHAPE, model_config(), precision) - on_cpu == 13 * 17 * 29 * more


def test_a_layer_more_adds_its_own_arrays_only():
    base = estimate_bytes(SHAPE, model_config())
    encoder = estimate_bytes(SHAPE, model_config(num_encoder_layers=2)) - base
    # Per position 2 * 14 * 12 for the residuals, 4 * 8 * 4 for attention, 11 * 4; 8 a weight.
    assert encoder == 13 * (7 * (336 + 128 + 44) + 2 * 7 * 7 * 8)
    decoder = estimate_bytes(SHAPE, model_config(num_decoder_layers=2)) - base
    assert decoder == 13 * (17 * (504 + 192 + 44) + 7 * 64 + 2 * (17 * 17 + 17 * 7) * 8)


def test_dropout_of_weights_and_of_the_relu_is_counted():
    base = estimate_bytes(SHAPE, model_config())
    attention = estimate_bytes(SHAPE, model_config(attention_dropout=0.1)) - base
    assert attention == 13 * 2 * (7 * 7 + 17 * 17 + 17 * 7) * 4
    relu = estimate_bytes(SHAPE, model_config(relu_dropout=0.1)) - base
    assert relu == 13 * (7 + 17) * 11 * (4 + 4)


def test_which_side_is_long_decides_by_the_vocabulary_and_the_layers():
    shapes = [(8, 64, 32), (8, 32, 64)]
    many = model_config(source_vocab_size=10_007, target_vocab_size=10_007)
    assert largest_shape(shapes, many) == (8, 32, 64)
    deep = model_config(num_encoder_layers=12)
    assert largest_shape(iter(shapes), deep) == (8, 64, 32)


def test_gates_are_counted():
    base = estimate_bytes(SHAPE, model_config())
    for activation, more in (("swiglu", 3), ("geglu", 5)):
        gated = estimate_bytes(SHAPE, model_config(activation=activation))
        # Beside the output of the gate: its input, the other factor, the product, and two within GELU.
        assert gated - base == 13 * (7 + 17) * 11 * more * 4
        dropped = estimate_bytes(SHAPE, model_config(activation=activation, relu_dropout=0.1))
        assert dropped - gated == 13 * (7 + 17) * 11 * 4  # the mask


def test_of_batches_of_equal_tokens_long_sentences_need_the_most():
    shapes = [(64, 16, 16), (4, 256, 256), (16, 64, 64)]
    assert largest_shape(shapes, model_config(), "mixed_bfloat16") == (4, 256, 256)


def settings(device_tokens, max_length, batch_tokens=25_000):
    values = {"devices.micro_batch_tokens": device_tokens, "data.max_length": max_length}
    values["data.batch_tokens"] = batch_tokens
    return override(Config(), [f"{name}={value}" for name, value in values.items()])


def test_the_message_names_shape_budget_and_what_to_lower_first():
    error = tf.errors.ResourceExhaustedError(None, None, OUT_OF_MEMORY)
    message = str(out_of_memory_error((128, 49, 52), settings(6700, 256), error))
    assert "\n" not in message
    # Half of 128 * 52, which is below half the budget: 3,328, a multiple of 8.
    assert message == (
        "out of memory: a batch of 128 rows, 49 source and 52 target tokens each, within "
        "devices.micro_batch_tokens=6700 (OOM when allocating tensor with shape[6272,37000] and type float). "
        "Try --set devices.micro_batch_tokens=3328 (the same batches in smaller micro-batches), "
        "then --set devices.recompute=true (the same results, about 20 % slower), "
        "then a data.max_length below 256, then a smaller data.vocab_size"
    )


@pytest.mark.parametrize(
    ("shape", "device_tokens", "max_length", "suggested"),
    [
        ((100, 249, 200), 0, 256, 12_448),  # half of 24,900, rounded down
        ((40, 10, 25), 0, 256, 496),  # a small batch, or part of one: half of 1,000
        ((50, 30, 40), 1000, 100, 496),  # never more than the budget: half of 1,000
        ((2, 200, 200), 450, 250, 256),  # half of 400 would not hold a sentence of 250
    ],
)
def test_the_suggested_budget_is_one_that_the_settings_allow(shape, device_tokens, max_length, suggested):
    config = settings(device_tokens, max_length)
    message = str(out_of_memory_error(shape, config, MemoryError()))
    assert f"devices.micro_batch_tokens={suggested} " in message
    assert (
        f"within {'devices.micro_' if device_tokens else 'data.'}batch_tokens={device_tokens or 25000} (Memo"
        in message
    )
    allowed = override(config, [f"devices.micro_batch_tokens={suggested}"])
    assert allowed.devices.micro_batch_tokens == suggested


def test_where_one_sentence_is_all_there_is_the_length_comes_first():
    message = str(out_of_memory_error((1, 256, 200), settings(256, 256), MemoryError("x" * 500)))
    assert "slower), then a data.max_length below 256, then a smaller data.vocab_size" in message
    assert "--set devices.micro_batch_tokens" not in message
    assert len(message) < 470


@pytest.mark.very_slow
@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize(
    ("sizes", "shapes"),
    [
        # Many heads: attention's weights; a large vocabulary: the logits.
        ({"num_heads": 16}, [(256, 32, 32), (8, 512, 512), (16, 256, 128)]),
        ({"target_vocab_size": 16_000}, [(64, 128, 32), (64, 32, 128), (64, 32, 32)]),
    ],
)
def test_the_shape_said_to_be_largest_is_the_largest_measured(sizes, shapes, precision):
    small = {"source_vocab_size": 16_000, "target_vocab_size": 500, "tie_embeddings": "none"}
    sizes = {**small, "d_model": 64, "d_ff": 256, "num_heads": 4, **sizes}
    sizes |= {"num_encoder_layers": 2, "num_decoder_layers": 2}
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    measured = {}
    for shape in shapes:
        command = [sys.executable, "-c", MEASURE, json.dumps([shape, sizes, precision])]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        measured[shape] = int(done.stdout.split()[-1])
        estimate = estimate_bytes(shape, ModelConfig(**sizes), precision)
        print(f"{shape} {precision}: measured {measured[shape]:,} bytes, estimated {estimate:,}")
    assert largest_shape(shapes, ModelConfig(**sizes), precision) == max(measured, key=measured.get)
