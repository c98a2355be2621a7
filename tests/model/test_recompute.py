"""Recomputation of activations gives the same training steps, also with dropout."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config.settings import ModelConfig
from keras_transformer.model.transformer import Transformer

VOCAB, ROWS, SOURCE, TARGET = 23, 5, 7, 11
CONFIG = {
    "source_vocab_size": VOCAB,
    "target_vocab_size": VOCAB,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "d_model": 12,
    "d_ff": 19,
    "num_heads": 3,
    "residual_dropout": 0.3,
    "attention_dropout": 0.2,
    "relu_dropout": 0.1,
}


def trained(recompute, *, in_graph=True, steps=3, **changes):
    keras.utils.set_random_seed(1)
    model = Transformer(ModelConfig(**{**CONFIG, **changes}))
    model.compile(keras.optimizers.SGD(0.5), recompute=recompute, run_eagerly=not in_graph)
    rng = np.random.default_rng(2)
    for _ in range(steps):
        source, target, labels = (rng.integers(4, VOCAB, (ROWS, n)) for n in (SOURCE, TARGET, TARGET))
        source[1, 4:], labels[2, 3:] = 0, 0
        model.train_on_batch((source, target), labels)
    return [weight.numpy() for weight in model.weights]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("norm_first", "in_graph"),
    [
        (True, True),
        (False, False),
        pytest.param(True, False, marks=pytest.mark.very_slow),
        pytest.param(False, True, marks=pytest.mark.very_slow),
    ],
)
def test_steps_with_dropout_are_the_same(in_graph, norm_first):
    kept, recomputed = (trained(how, in_graph=in_graph, norm_first=norm_first) for how in (False, True))
    for one, other in zip(kept, recomputed, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.very_slow
def test_the_dropout_seeds_continue_as_without_recomputation():
    # A step later the masks are others, and again the same with and without.
    one, two = (trained(True, steps=steps) for steps in (1, 2))
    assert any(np.abs(a - b).max() > 1e-3 for a, b in zip(one, two, strict=True))


@pytest.mark.slow
def test_activations_inside_layers_are_not_stored():
    def layers_computed(recompute):
        model = Transformer(ModelConfig(**{**CONFIG, "num_encoder_layers": 1, "num_decoder_layers": 1}))
        model.compile(keras.optimizers.SGD(0.5), recompute=recompute)
        ids = tf.TensorSpec((None, None), tf.int32)

        @tf.function(input_signature=[ids, ids, ids])
        def step(source, target, labels):
            return model.train_step(((source, target), labels))["loss"]

        operations = step.get_concrete_function().graph.get_operations()
        # Of attention: four axes. The loss has a softmax of its own, of logits.
        return sum(each.type == "Softmax" and each.outputs[0].shape.rank == 4 for each in operations)

    # Softmax of one encoder and two decoder attentions.
    assert (layers_computed(False), layers_computed(True)) == (3, 6)
