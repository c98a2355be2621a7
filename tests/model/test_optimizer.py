"""Adam with its fast update against the formula in float64 and against `keras.optimizers.Adam`."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.model.optimizer import Adam

SHAPE, STEPS = (3, 5), 7
SETTINGS = {"beta_1": 0.9, "beta_2": 0.98, "epsilon": 1e-9}
RNG = np.random.default_rng(0)
START = RNG.normal(size=SHAPE).astype("float32")
GRADIENTS = RNG.normal(size=(STEPS, *SHAPE)).astype("float32")


def rate(step):
    return 0.01 * (step + 1)


class Rate(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.01 * (tf.cast(step, tf.float32) + 1)


def trained(cls, dtype="float32", **changes):
    weight = keras.Variable(START, dtype=dtype)
    optimizer = cls(Rate(), **{**SETTINGS, **changes})
    optimizer.build([weight])
    for gradient in GRADIENTS:
        optimizer.apply([tf.cast(gradient, dtype)], [weight])
    return weight.numpy(), [variable.numpy() for variable in optimizer.variables]


def test_the_weights_follow_the_formula_of_section_5_3():
    weight, momentum, velocity = START.astype("float64"), 0.0, 0.0
    for step, gradient in enumerate(GRADIENTS.astype("float64")):
        momentum = 0.9 * momentum + 0.1 * gradient
        velocity = 0.98 * velocity + 0.02 * gradient**2
        corrected = rate(step) * np.sqrt(1 - 0.98 ** (step + 1)) / (1 - 0.9 ** (step + 1))
        weight = weight - corrected * momentum / (np.sqrt(velocity) + 1e-9)
    np.testing.assert_allclose(trained(Adam)[0], weight, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("changes", [{}, {"amsgrad": True}, {"weight_decay": 0.1}, {"global_clipnorm": 0.1}])
def test_weights_and_state_are_those_of_keras(changes):
    ours, theirs = (trained(cls, **changes) for cls in (Adam, keras.optimizers.Adam))
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5, atol=1e-6)
    for one, other in zip(ours[1], theirs[1], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_other_dtypes_use_the_update_of_keras():
    ours, theirs = (trained(cls, "float64")[0] for cls in (Adam, keras.optimizers.Adam))
    np.testing.assert_array_equal(ours, theirs)


def test_state_has_the_names_and_the_order_of_keras():
    def names(cls):
        optimizer = cls(0.1, name="adam")
        optimizer.build([keras.Variable(START, name="weight")])
        return [(variable.path, variable.shape) for variable in optimizer.variables]

    assert names(Adam) == names(keras.optimizers.Adam)
