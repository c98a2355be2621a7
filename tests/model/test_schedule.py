"""The learning rate against equation 3."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.model.optimizer import TransformerSchedule

D_MODEL, WARMUP = 512, 4000


@pytest.mark.parametrize("step", [1, 2, 3999, 4000, 4001, 100_000])
def test_follows_equation_3(step):
    paper = D_MODEL**-0.5 * min(step**-0.5, step * WARMUP**-1.5)
    ours = float(TransformerSchedule(D_MODEL, WARMUP)(step - 1))  # Keras counts from 0
    np.testing.assert_allclose(ours, paper, rtol=1e-6)


@pytest.mark.parametrize(("d_model", "peak"), [(512, 6.99e-4), (1024, 4.94e-4)])
def test_peaks_of_base_and_big_are_the_published_ones(d_model, peak):
    rates = np.array(TransformerSchedule(d_model, WARMUP)(np.arange(10_000)))
    assert float(f"{rates.max():.2e}") == peak
    assert rates.argmax() == WARMUP - 1


def test_warm_up_of_4000_steps_is_the_default():
    assert TransformerSchedule(D_MODEL)(777) == TransformerSchedule(D_MODEL, WARMUP)(777)


@pytest.mark.parametrize("step", [0, 100, 10_000])
def test_scale_is_a_factor(step):
    scaled = TransformerSchedule(D_MODEL, WARMUP, scale=2.5)(step)
    np.testing.assert_allclose(scaled, 2.5 * TransformerSchedule(D_MODEL, WARMUP)(step), rtol=1e-6)


def test_grows_in_a_straight_line_until_warm_up_ends():
    rates = np.array(TransformerSchedule(64, 7)(np.arange(7)))
    np.testing.assert_allclose(rates, rates[0] * np.arange(1, 8), rtol=1e-5)


def test_takes_the_integer_step_of_an_optimizer():
    schedule = TransformerSchedule(D_MODEL, WARMUP)
    rate = schedule(tf.Variable(1999, dtype=tf.int64))
    assert rate.dtype == tf.float32
    np.testing.assert_allclose(rate, 2000 / 4000**1.5 / 512**0.5, rtol=1e-6)


def test_first_update_of_an_optimizer_uses_step_1_of_the_equation():
    # The first step of SGD with gradient 1 is the rate itself.
    optimizer = keras.optimizers.SGD(TransformerSchedule(64, 7))
    weight = keras.Variable(0.0)
    for step in (1, 2):
        before = float(weight.numpy())
        optimizer.apply_gradients([(tf.constant(1.0), weight)])
        wanted = 64**-0.5 * step * 7**-1.5
        np.testing.assert_allclose(before - float(weight.numpy()), wanted, rtol=1e-5)


def test_learning_rate_shown_by_adam_is_that_of_the_next_update():
    optimizer = keras.optimizers.Adam(TransformerSchedule(D_MODEL, WARMUP))
    np.testing.assert_allclose(optimizer.learning_rate, 512**-0.5 * 4000**-1.5, rtol=1e-6)
    assert float(optimizer.learning_rate) > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"d_model": 0}, "`d_model` must be at least 1. Received: d_model=0"),
        ({"d_model": 8, "warmup_steps": 0}, "`warmup_steps` .* warmup_steps=0"),
        ({"d_model": 8, "scale": 0.0}, "`scale` must be above 0. Received: scale=0.0"),
    ],
)
def test_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        TransformerSchedule(**arguments)
