"""Steps, metrics and frozen layers of a user: what a stock Keras model honours is honoured or refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from test_standard_training import BATCH, made, one_device, two_devices, two_towers
from test_train_step import BATCHES, dataset, saves_files, small_model

from keras_transformer.model.layers.basics import Projection
from keras_transformer.model.layers.feed_forward import FeedForward
from keras_transformer.model.loss import LabelSmoothedCrossEntropy
from keras_transformer.model.metrics import Perplexity, StepCounters, TokenAccuracy, TokenLoss
from keras_transformer.model.transformer import Transformer

pytestmark = pytest.mark.slow

WEIGHTS = np.array([0.5, 3.0, 2.0], "float32")


class CopiedSteps(Transformer):
    """Keras' own `train_step` and `test_step`, but for the scaling of the loss."""

    def train_step(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)
            self._loss_tracker.update_state(loss, sample_weight=tf.shape(y)[0])
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    def test_step(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        y_pred = self(x, training=False)
        loss = self._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=False)
        self._loss_tracker.update_state(loss, sample_weight=tf.shape(y)[0])
        return self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)


class StepOfTheGuide(Transformer):
    """As Keras' guide "Customizing what happens in `fit()`" has it."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}


def metrics():
    return [TokenAccuracy(), Perplexity(), "accuracy"]


def weighted():
    return [Perplexity(name="weighted"), keras.metrics.SparseTopKCategoricalAccuracy(3, name="top")]


@pytest.mark.parametrize("eagerly", [True, False])
def test_copies_of_keras_steps_report_what_ours_reports(eagerly):
    found = []
    for cls in (Transformer, CopiedSteps):
        model = made(cls=cls, metrics=metrics, weighted_metrics=weighted(), run_eagerly=eagerly)
        history = model.fit(*BATCH, sample_weight=WEIGHTS, verbose=0).history
        logs = model.evaluate(*BATCH, sample_weight=WEIGHTS, verbose=0, return_dict=True)
        found.append({name: values[0] for name, values in history.items()} | {"after": logs["loss"]})
    assert found[0].keys() == found[1].keys() >= {"loss", "accuracy", "top", "weighted"}
    for name, value in found[0].items():
        assert found[1][name] == pytest.approx(value, rel=1e-5), name
    assert found[0]["loss"] > found[0]["after"] > 0


def test_the_loss_of_copied_steps_is_a_mean_over_the_batches():
    model = made(cls=CopiedSteps, optimizer=keras.optimizers.SGD(0.01))
    rows = [labels.shape[0] for _, labels in BATCHES]
    losses = [model.evaluate(*batch, verbose=0) for batch in BATCHES]
    logs = model.evaluate(dataset(), verbose=0)
    assert logs == pytest.approx(np.average(losses, weights=rows), rel=1e-5)
    stop = keras.callbacks.EarlyStopping("val_loss", patience=1)
    history = model.fit(*BATCH, epochs=5, validation_data=BATCH, verbose=0, callbacks=[stop]).history
    assert len(history["val_loss"]) == 5
    assert history["val_loss"] == sorted(history["val_loss"], reverse=True)


def test_the_step_of_keras_guide_updates_every_metric():
    ours, theirs = made(metrics=[TokenAccuracy()]), made(cls=StepOfTheGuide, metrics=[TokenAccuracy()])
    expected = ours.fit(*BATCH, verbose=0).history
    found = theirs.fit(*BATCH, verbose=0).history
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert found["token_accuracy"] == expected["token_accuracy"]
    for one, other in zip(ours.weights, theirs.weights, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_loss_counts_as_often_as_it_is_told():
    loss = TokenLoss()
    loss.update_state(3.0)
    loss.update_state(7.0, sample_weight=3)
    assert float(loss.result()) == 6.0


def test_steps_cannot_be_counted_by_a_step_of_ones_own():
    with pytest.raises(ValueError, match="StepCounters counts the steps of the package's own `train_step`"):
        made(cls=CopiedSteps, metrics=[StepCounters()]).train_on_batch(*BATCH)


class CountingFeedForward(FeedForward):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.calls = keras.metrics.Sum(name="calls")

    def call(self, *args, **kwargs):
        self.calls.update_state(1.0)
        return super().call(*args, **kwargs)


class WithOwnLayers(Transformer):
    def build(self, input_shape=None):
        if not self.built:
            for layer in self.encoder_layers:
                layer.feed_forward = CountingFeedForward(self.config.d_ff, dropout=0.0)
        super().build(input_shape)


def with_own_layers(strategy=one_device, **how):
    with strategy().scope():
        model = WithOwnLayers(small_model().config)
        model.compile("sgd", metrics=[TokenAccuracy()], **{"run_eagerly": True, **how})
    return model


@pytest.mark.parametrize("eagerly", [True, False])
def test_metrics_of_layers_are_reported_and_reset(eagerly):
    model = with_own_layers(run_eagerly=eagerly)
    history = model.fit(*BATCH, epochs=3, verbose=0).history
    assert history["calls"] == [1.0, 1.0, 1.0]
    assert model.evaluate(dataset(), verbose=0, return_dict=True)["calls"] == 3.0
    assert [metric.name for metric in model.metrics] == ["loss", "token_accuracy", "calls"]


@pytest.mark.parametrize("how", [{"recompute": True}, {"towers": 2}, {"strategy": two_devices}])
def test_metrics_of_layers_that_would_count_several_times_are_refused(how):
    with pytest.raises(ValueError, match="a layer updates the metric 'calls' itself"):
        with_own_layers(**how)


class OwnResults(Transformer):
    def get_metrics_result(self):
        return {**super().get_metrics_result(), "mine": 7.0}


class OwnAccuracy(TokenAccuracy):
    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(100.0)


class OwnCounters(StepCounters):
    def update_state(self, y_true, y_pred, sample_weight=None):
        self.totals["steps"].assign_add(2.0)


def test_what_the_step_does_not_call_is_refused():
    with pytest.raises(ValueError, match="OwnResults overrides `get_metrics_result`"):
        made(cls=OwnResults)
    with pytest.raises(ValueError, match="`metrics`: OwnAccuracy changes `update_state`"):
        made(metrics=[OwnAccuracy()])
    with pytest.raises(ValueError, match="`metrics`: OwnCounters changes `update_state`"):
        made(metrics=[OwnCounters()])


@saves_files
def test_frozen_layers_are_frozen_in_the_loaded_model(tmp_path):
    model = small_model(num_encoder_layers=2)
    model.encoder_layers[0].trainable = False
    model.decoder_layers[0].cross_attention.trainable = False
    model.compile(keras.optimizers.Adam(0.1), LabelSmoothedCrossEntropy(0.1))
    model.fit(*BATCH, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert not loaded.encoder_layers[0].trainable
    assert loaded.encoder_layers[1].trainable
    numbers = [len(one.trainable_variables) for one in (model, loaded, small_model(num_encoder_layers=2))]
    assert numbers[0] == numbers[1] < numbers[2]
    for one in (model, loaded):
        one.fit(*BATCH, epochs=2, verbose=0)
    assert int(loaded.optimizer.iterations) == int(model.optimizer.iterations) == 3
    for one, other in zip(model.weights, loaded.weights, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_layer_that_is_unfrozen_after_compile_is_refused_in_one_line():
    model = small_model()
    model.encoder_layers[0].trainable = False
    model.compile("sgd", run_eagerly=True)
    model.encoder_layers[0].trainable = True
    with pytest.raises(ValueError, match=r"^a layer has become trainable since `compile`: call `compile` ag"):
        model.fit(*BATCH, verbose=0)
    model.compile("sgd", run_eagerly=True)
    model.fit(*BATCH, verbose=0)


class LossOfTheEncoder(Transformer):
    """Its loss depends on no weight of the decoder."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return tf.reduce_sum(self.encode(x[0], training=training).output ** 3)


@pytest.mark.parametrize("how", [{}, {"strategy": two_towers}, {"run_eagerly": False}])
def test_weights_without_a_gradient_do_not_decay(how):
    """As in Keras, where an optimizer gets only weights that have a gradient."""
    optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.1)
    model = made(cls=LossOfTheEncoder, optimizer=optimizer, **how)
    before = model.get_weights()
    for _ in range(2):
        model.train_on_batch(*BATCH)
    moved = {
        weight.path.split("/", 1)[1]: bool(np.any(weight != old))
        for weight, old in zip(model.weights, before, strict=True)
    }
    assert {any(part.startswith("decoder") for part in path.split("/")) for path in moved} == {True, False}
    for path, changed in moved.items():
        assert changed != path.startswith("decoder"), path


@saves_files
def test_a_part_of_a_frozen_layer_that_is_trained_is_trained_in_the_loaded_model(tmp_path):
    model = small_model()
    model.encoder_layers[0].trainable = False
    model.encoder_layers[0].feed_forward.trainable = True
    model.compile("sgd")
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    names = [[weight.path for weight in one.trainable_variables] for one in (model, loaded)]
    assert names[0] == names[1]
    assert sum("encoder_0/feed_forward" in name for name in names[0]) == 4


@pytest.mark.parametrize("how", [{"ema_decay": 0.5}, {"towers": 2}])
def test_what_a_step_of_ones_own_would_ignore_is_refused(how):
    model = made(cls=StepOfTheGuide, **how)
    with pytest.raises(ValueError, match="StepOfTheGuide overrides `train_step` without `super"):
        model.fit(*BATCH, verbose=0)


def test_a_step_that_calls_ours_has_averages():
    class Counting(Transformer):
        def train_step(self, data):
            return {**super().train_step(data), "mine": 7.0}

    model = made(cls=Counting, ema_decay=0.5)
    before = [weight.numpy() for weight in model.trainable_variables]
    assert model.fit(*BATCH, verbose=0).history["mine"] == [7.0]
    for weight, old, averaged in zip(model.trainable_variables, before, model.ema_weights, strict=True):
        np.testing.assert_allclose(averaged.numpy(), (old + weight.numpy()) / 2, atol=1e-6)


@pytest.mark.parametrize("change", [{"use_bias": True}, {"activation": "tanh"}])
def test_the_loss_is_that_of_the_logits_with_an_output_projection_of_ones_own(change):
    class Own(Transformer):
        def build(self, input_shape=None):
            if not self.built:
                self.output_projection = Projection(self.config.target_vocab_size, **change)
            super().build(input_shape)

    model = Own(small_model(tie_embeddings="none").config)
    if model.output_projection.bias is not None:
        model.output_projection.bias.assign(np.linspace(-2, 2, model.config.target_vocab_size))
    loss = LabelSmoothedCrossEntropy(0.1)
    model.compile(keras.optimizers.SGD(1.0), loss)
    (inputs, labels) = BATCH
    assert model.evaluate(*BATCH, verbose=0) == pytest.approx(float(loss(labels, model(inputs))), rel=1e-5)
    before = model.output_projection.get_weights()
    model.fit(*BATCH, verbose=0)
    for old, new in zip(before, model.output_projection.get_weights(), strict=True):
        assert np.abs(old - new).max() > 1e-3
