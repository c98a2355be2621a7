"""What stock Keras honours of optimizers, weights and averages is honoured here, or refused by name."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from test_standard_training import LossWithoutTraining, gradient, made, one_device, two_devices
from test_train_step import BATCHES, saves_files, small_model

from keras_transformer.model.loss import LabelSmoothedCrossEntropy
from keras_transformer.model.transformer import Transformer
from keras_transformer.training.devices import mirrored

slow = pytest.mark.very_slow
OPTIMIZERS = [
    pytest.param(lambda: keras.optimizers.SGD(0.5, clipnorm=0.05), id="clipnorm"),
    pytest.param(lambda: keras.optimizers.SGD(0.5, clipvalue=0.003), id="clipvalue", marks=slow),
    pytest.param(lambda: keras.optimizers.RMSprop(0.01), id="RMSprop", marks=slow),
    pytest.param(lambda: keras.optimizers.Adadelta(0.5), id="Adadelta", marks=slow),
    pytest.param(lambda: keras.optimizers.Adafactor(0.01), id="Adafactor", marks=slow),
    pytest.param(lambda: keras.optimizers.Adagrad(0.1), id="Adagrad", marks=slow),
    pytest.param(lambda: keras.optimizers.Adamax(0.01), id="Adamax", marks=slow),
    pytest.param(lambda: keras.optimizers.Ftrl(0.1), id="Ftrl", marks=slow),
    pytest.param(lambda: keras.optimizers.Lamb(0.01), id="Lamb", marks=slow),
    pytest.param(lambda: keras.optimizers.Lion(0.001, weight_decay=0.1), id="Lion", marks=slow),
]


def trained(strategy, optimizer, batches=BATCHES):
    model = made(strategy, optimizer=optimizer(), run_eagerly=False)
    for batch in batches:
        found, logs = gradient(model, batch)
        assert np.isfinite(found).all()
    return model, logs


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimizer_of_keras_updates_on_two_devices_as_on_one(optimizer):
    """Rows are cut in two; Lion and others divide by the size of a gradient, which may be rounding noise."""
    one, _ = trained(one_device, optimizer)
    two, _ = trained(two_devices, optimizer)
    for wanted, found in zip(one.weights, two.weights, strict=True):
        near = np.isclose(wanted.numpy(), found.numpy(), atol=1e-4, rtol=1e-3)
        assert near.mean() > 0.97, wanted.path


@pytest.mark.slow
def test_clipping_of_each_weight_is_kerass_own():
    """SGD with rate 1 moves each weight by the clipped gradient."""
    plain = made(optimizer=keras.optimizers.SGD(1.0))
    before = [weight.numpy() for weight in plain.weights]
    gradient(plain, BATCHES[0])
    full = [old - new.numpy() for old, new in zip(before, plain.weights, strict=True)]
    clipped = {
        "clipnorm": lambda g, most: g * min(1.0, most / max(np.linalg.norm(g), 1e-12)),
        "clipvalue": lambda g, most: np.clip(g, -most, most),
    }
    for (name, clip), most in zip(clipped.items(), (0.05, 0.003), strict=True):
        assert any(np.abs(clip(each, most) - each).max() > 1e-3 for each in full)
        model = made(optimizer=keras.optimizers.SGD(1.0, **{name: most}))
        gradient(model, BATCHES[0])
        for weight, old, each in zip(model.weights, before, full, strict=True):
            np.testing.assert_allclose(old - weight.numpy(), clip(each, most), atol=1e-6, err_msg=weight.path)


def nothing():
    return mirrored(["CPU:0"])


@pytest.mark.parametrize(
    ("strategy", "optimizer", "message"),
    [
        (two_devices, lambda: keras.optimizers.Nadam(), "`Nadam` overrides `_backend_update_step`"),
        (nothing, lambda: keras.optimizers.Nadam(), "`Nadam` overrides `_backend_update_step`"),
        (two_devices, lambda: keras.optimizers.Muon(), "`Muon` overrides `_apply_weight_decay`"),
        (one_device, lambda: keras.optimizers.SGD(loss_scale_factor=8.0), "`loss_scale_factor` would divide"),
        (
            one_device,
            lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(use_ema=True)),
            "`use_ema` .*ema_decay",
        ),
        (
            one_device,
            lambda: keras.optimizers.MultiOptimizer(
                [keras.optimizers.SGD(), keras.optimizers.Adam()], ["encoder", "decoder"]
            ),
            "Use one optimizer",
        ),
        (nothing, lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), "without a strategy"),
    ],
)
def test_what_would_be_ignored_or_wrong_is_refused(strategy, optimizer, message):
    try:
        made_optimizer = optimizer()
    except (TypeError, ValueError) as error:
        pytest.skip(f"this version of Keras makes no such optimizer: {error}")
    with pytest.raises(ValueError, match=message):
        made(strategy, optimizer=made_optimizer)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [one_device, pytest.param(two_devices, marks=slow)])
def test_a_constraint_of_a_weight_holds_after_each_step(strategy):
    def constrain(model):
        model.source_embedding.embeddings.constraint = keras.constraints.NonNeg()

    model = made(strategy, change=constrain, run_eagerly=False)
    gradient(model, BATCHES[0])
    values = model.source_embedding.embeddings.numpy()
    assert (values >= 0).all()
    assert (values == 0).any()


# --- moving averages -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_averages_are_of_their_own_weights_after_a_layer_is_frozen():
    model = made(ema_decay=0.75)
    weights = list(model.trainable_variables)
    before = [weight.numpy() for weight in weights]
    model.decoder_layers[0].trainable = False
    assert len(model.trainable_variables) < len(weights)
    gradient(model, BATCHES[0])
    for weight, old, averaged in zip(weights, before, model.ema_weights, strict=True):
        wanted = 0.75 * old + 0.25 * weight.numpy()
        np.testing.assert_allclose(averaged.numpy(), wanted, atol=1e-6, err_msg=weight.path)


@pytest.mark.slow
@saves_files
def test_averages_begin_at_weights_that_are_loaded(tmp_path):
    model = made(ema_decay=0.75, run_eagerly=False)
    gradient(model, BATCHES[0])
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    before = [weight.numpy() for weight in loaded.trainable_variables]
    for old, averaged in zip(before, loaded.ema_weights, strict=True):
        np.testing.assert_array_equal(averaged.numpy(), old)
    gradient(loaded, BATCHES[1])
    for weight, old, averaged in zip(loaded.trainable_variables, before, loaded.ema_weights, strict=True):
        wanted = 0.75 * old + 0.25 * weight.numpy()
        np.testing.assert_allclose(averaged.numpy(), wanted, atol=1e-6, err_msg=weight.path)
    loaded.load_weights(tmp_path / "model.weights.h5", True)
    for weight, averaged in zip(loaded.trainable_variables, loaded.ema_weights, strict=True):
        np.testing.assert_array_equal(averaged.numpy(), weight.numpy())


@pytest.mark.slow_after(1)
@saves_files
@pytest.mark.parametrize("load", ["set_weights", "file", "checkpoint"])
def test_averages_begin_at_the_weights_of_the_first_update(load, tmp_path):
    model = made(ema_decay=0.75, optimizer=keras.optimizers.SGD(0.0))
    other = made(optimizer=keras.optimizers.SGD(0.0))
    values = [weight + 1.0 for weight in other.get_weights()]
    other.set_weights(values)
    if load == "set_weights":
        model.set_weights(values)
    elif load == "file":
        other.save_weights(tmp_path / "model.weights.h5")
        keras.saving.load_weights(model, tmp_path / "model.weights.h5")
    else:
        path = tf.train.Checkpoint(model=other).write(str(tmp_path / "weights"))
        tf.train.Checkpoint(model=model).read(path).assert_existing_objects_matched()
    gradient(model, BATCHES[0])
    for weight, averaged in zip(model.trainable_variables, model.ema_weights, strict=True):
        np.testing.assert_allclose(averaged.numpy(), weight.numpy(), atol=1e-6, err_msg=weight.path)
    before = [weight.numpy() for weight in model.trainable_variables]
    model.set_weights([value - 1.0 for value in values])
    gradient(model, BATCHES[0])
    for old, averaged in zip(before, model.ema_weights, strict=True):
        np.testing.assert_allclose(averaged.numpy(), old - 0.25, atol=1e-5)


@pytest.mark.slow
def test_an_optimizer_that_copies_the_weights_copies_those_of_the_first_update():
    model = made(optimizer=keras.optimizers.ScheduleFreeAdamW(1e-6))
    values = [weight + 5.0 for weight in model.get_weights()]
    model.set_weights(values)
    gradient(model, BATCHES[0])
    for weight, value in zip(model.weights, values, strict=True):
        np.testing.assert_allclose(weight.numpy(), value, atol=1e-4, err_msg=weight.path)


def test_an_optimizer_of_other_weights_is_refused_in_compile():
    model, optimizer = small_model(), keras.optimizers.Adam(0.1)
    model.encoder_layers[0].trainable = False
    model.compile(optimizer)
    model.encoder_layers[0].trainable = True
    with pytest.raises(ValueError, match="other trainable weights: give `compile` a new optimizer"):
        model.compile(optimizer)
    model.compile(keras.optimizers.Adam(0.1))


@pytest.mark.slow
def test_a_model_without_an_optimizer_is_evaluated_but_not_trained():
    model = small_model()
    model.compile(None, LabelSmoothedCrossEntropy(0.0), run_eagerly=True)
    assert model.evaluate(*BATCHES[0], verbose=0) == pytest.approx(made().evaluate(*BATCHES[0], verbose=0))
    with pytest.raises(ValueError, match=r"`compile\(optimizer=None\)` is for evaluation"):
        model.fit(*BATCHES[0], verbose=0)


# --- the rest --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("towers", [2, 3])
def test_an_empty_tower_does_not_count_in_a_mean(towers):
    """One row in several towers; the mean over no row would be NaN."""
    batch = keras.tree.map_structure(lambda array: array[:1], BATCHES[0])
    wanted, logs = gradient(made(cls=LossWithoutTraining, run_eagerly=False), batch)
    found, other = gradient(made(cls=LossWithoutTraining, towers=towers, run_eagerly=False), batch)
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert other["loss"] == pytest.approx(logs["loss"], rel=1e-5)
    assert np.isfinite(other["loss"])


def test_quantization_by_keras_is_refused():
    with pytest.raises(NotImplementedError, match="quantization int8"):
        small_model().quantize("int8")


@pytest.mark.slow
def test_jit_compile_of_several_replicas_is_kept_in_the_configuration():
    assert made(two_devices, jit_compile=True, run_eagerly=False).get_compile_config()["jit_compile"] is True
    assert made(one_device, run_eagerly=False).get_compile_config()["jit_compile"] is False


@pytest.mark.slow
def test_micro_batches_train_in_the_precision_of_the_weights():
    weights = [weight.astype("float64") for weight in small_model().get_weights()]
    model = Transformer(small_model().config, dtype="float64")
    model.set_weights(weights)
    model.compile(keras.optimizers.SGD(1.0), LabelSmoothedCrossEntropy(0.0))
    found, _ = gradient(model, BATCHES[0], micro_batches=3)
    wanted, _ = gradient(made(), BATCHES[0])
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_the_strategies_are_what_the_tests_need():
    assert not tf.distribute.has_strategy()
    with nothing().scope():
        assert tf.distribute.has_strategy()
