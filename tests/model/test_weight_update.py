"""The weight update on several devices against the formula."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.model.weight_update import update_weights
from keras_transformer.training.devices import mirrored

START = np.array([1.0, -2.0, 0.5], "float32")
GRADIENT = np.array([0.25, 0.5, -1.0], "float32")


@pytest.mark.parametrize("strategy", [tf.distribute.get_strategy, lambda: mirrored(["CPU:0", "CPU:1"])])
@pytest.mark.parametrize("excluded", ["bias", "projection/"])
def test_weights_decay_by_the_learning_rate_times_the_decay(strategy, excluded):
    strategy = strategy()
    with strategy.scope():
        weight = keras.Variable(START)
        with keras.name_scope("projection"):
            bias = keras.Variable(START, name="bias")
        optimizer = keras.optimizers.SGD(0.125, weight_decay=0.5)
        optimizer.exclude_from_weight_decay(var_names=[excluded])
        optimizer.build([weight, bias])

    @tf.function(autograph=False)
    def step():
        def update():
            gradients = [tf.constant(GRADIENT)] * 2
            update_weights(
                optimizer, [weight, bias], gradients, tf.linalg.global_norm(gradients),
                finite=tf.constant(True), has_tokens=tf.constant(True),
            )  # fmt: skip

        strategy.run(update)

    step()
    for local in strategy.experimental_local_results(weight.value):
        np.testing.assert_allclose(local.numpy(), START * (1 - 0.125 * 0.5) - 0.125 * GRADIENT, rtol=1e-6)
    for local in strategy.experimental_local_results(bias.value):
        np.testing.assert_allclose(local.numpy(), START - 0.125 * GRADIENT, rtol=1e-6)
    assert int(optimizer.iterations.numpy()) == 1
