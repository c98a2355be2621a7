"""Features of Keras' training step: losses and metrics by name, sample weights, added losses, callbacks."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from test_train_step import BATCHES, PAD, VOCAB, batch, dataset, saves_files, small_model

from keras_transformer.batches.dataset import TokenBatches
from keras_transformer.batches.ids import IdPairs, Sequences
from keras_transformer.batches.planning import EpochPlanner
from keras_transformer.config.settings import SpecialIds
from keras_transformer.model.loss import LabelSmoothedCrossEntropy
from keras_transformer.model.metrics import Perplexity, StepCounters, TokenAccuracy
from keras_transformer.model.transformer import Transformer
from keras_transformer.training.devices import mirrored

BATCH = BATCHES[0]  # rows of 7, 2 and 1 tokens
SHAPES = [labels.shape for _, labels in BATCHES]


def one_device():
    return tf.distribute.get_strategy()


def two_devices():
    return mirrored(["CPU:0", "CPU:1"])


def two_towers():
    return one_device()


def made(strategy=one_device, cls=Transformer, loss=None, metrics=None, optimizer=None, change=None, **how):
    """A compiled model with the weights of `small_model`; SGD with rate 1 moves them by the gradient.

    Most run eagerly, which for a step or two is the quicker way.
    """
    weights = small_model().get_weights()
    if strategy is two_towers:
        how = {"towers": 2, **how}
    with strategy().scope():
        model = cls(small_model().config)
        model.set_weights(weights)
        if change is not None:
            change(model)
        loss = LabelSmoothedCrossEntropy(0.0) if loss is None else loss
        metrics = metrics() if callable(metrics) else metrics
        model.compile(optimizer or keras.optimizers.SGD(1.0), loss, metrics, **{"run_eagerly": True, **how})
    return model


def parted(labelled, parts):
    """A batch, or with weights, as `parts` micro-batches, with rows of padding where they do not fit."""

    def cut(rows):
        missing = -len(rows) % parts
        padded = np.pad(rows, ((0, missing), (0, 0)))
        return padded.reshape(parts, -1, rows.shape[1])

    return keras.tree.map_structure(cut, labelled)


def gradient(model, batch, sample_weight=None, micro_batches=0):
    """What SGD moves the weights by, and the logs."""
    before = model.get_weights()
    data = batch if sample_weight is None else (*batch, sample_weight)
    if micro_batches:
        data = parted(data, micro_batches)
    stream = tf.data.Dataset.from_tensors(data)
    if micro_batches and model.distribute_strategy.num_replicas_in_sync > 1:
        empty = keras.tree.map_structure(np.zeros_like, data)
        stream = stream.concatenate(tf.data.Dataset.from_tensors(empty))
        whole = stream
        stream = model.distribute_strategy.distribute_datasets_from_function(lambda context: whole)
    logs = model.fit(stream, steps_per_epoch=1, shuffle=False, verbose=0).history
    moved = [old - new for old, new in zip(before, model.get_weights(), strict=True)]
    return np.concatenate([each.ravel() for each in moved]), {name: value[0] for name, value in logs.items()}


def nll(labels, logits):
    """-log p of every label; float64, shape of the labels."""
    logits = np.asarray(logits, "float64")
    of_label = np.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return np.log(np.exp(logits).sum(-1)) - of_label


PLACES = [
    pytest.param(one_device, 0, id="one"),
    pytest.param(two_devices, 2, id="two-micro"),
    pytest.param(two_towers, 0, id="towers"),
    pytest.param(two_devices, 0, id="two", marks=pytest.mark.very_slow),
    pytest.param(one_device, 2, id="micro", marks=pytest.mark.very_slow),
]


# --- names of losses -------------------------------------------------------------------------------------


def own_cross_entropy(labels, logits):
    assert labels.dtype == "float32"  # as Keras gives them
    return tf.nn.sparse_softmax_cross_entropy_with_logits(tf.cast(labels, "int32"), logits)


class OwnLoss(keras.losses.Loss):
    def call(self, labels, logits):
        return own_cross_entropy(labels, logits)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    "loss",
    [
        "sparse_categorical_crossentropy",
        "SparseCategoricalCrossentropy",
        "crossentropy",
        keras.losses.sparse_categorical_crossentropy,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=PAD),
        ["sparse_categorical_crossentropy"],
        own_cross_entropy,
        OwnLoss(),
    ],
)
def test_names_and_objects_of_cross_entropy_are_the_unsmoothed_one_of_real_tokens(loss):
    wanted, wanted_logs = gradient(made(), BATCH)
    found, logs = gradient(made(loss=loss), BATCH)
    np.testing.assert_allclose(found, wanted, atol=2e-6)
    assert logs["loss"] == pytest.approx(wanted_logs["loss"], rel=1e-6)


def test_keras_cross_entropy_uses_the_fused_loss():
    model = made(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert model._can_fuse_projection_and_loss()
    assert not model._needs_logits()


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(("strategy", "micro_batches"), PLACES)
def test_own_loss_is_a_mean_over_all_tokens_wherever_they_are(strategy, micro_batches):
    wanted, _ = gradient(made(), BATCH)
    found, logs = gradient(made(strategy, loss=own_cross_entropy), BATCH, micro_batches=micro_batches)
    np.testing.assert_allclose(found, wanted, atol=2e-6)
    (inputs, labels) = BATCH
    assert logs["loss"] == pytest.approx(nll(labels, small_model()(inputs))[labels != PAD].mean(), rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (keras.losses.SparseCategoricalCrossentropy(), "from_logits=False.*from_logits=True"),
        (keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1), "ignore_class=-1"),
        ("categorical_crossentropy", "one number for each token.*categorical_crossentropy, which fails"),
        ("mse", "one number for each token.*which fails"),
        ("nosuch", "Received: 'nosuch'"),
        (lambda labels, logits: tf.reduce_mean(logits), r"gives shape \(\)"),
        (["mse", "mse"], "for one output"),
        ({"a": "mse", "b": "mse"}, "for one output"),
        (
            keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none"),
            "`reduction` must be",
        ),
    ],
)
def test_losses_that_are_not_per_token_are_refused_in_one_line(loss, message):
    with pytest.raises(ValueError, match=message) as caught:
        small_model().compile("sgd", loss)
    assert "\n" not in str(caught.value)


class OwnReduction(keras.losses.Loss):
    def call(self, labels, logits):
        return own_cross_entropy(labels, logits)

    def __call__(self, labels, logits, sample_weight=None):
        return 3.0


def test_a_loss_with_its_own_reduction_is_refused():
    with pytest.raises(ValueError, match="OwnReduction changes `__call__`"):
        small_model().compile("sgd", OwnReduction())


class OwnCall(LabelSmoothedCrossEntropy):
    def __call__(self, y_true, y_pred, sample_weight=None):
        return 3.0


def test_a_loss_of_this_package_with_its_own_reduction_is_refused():
    with pytest.raises(ValueError, match="OwnCall changes `__call__`"):
        small_model().compile("sgd", OwnCall(0.1))


def test_loss_and_metrics_must_have_the_models_padding():
    model = Transformer(small_model().config, special=SpecialIds(pad=3, bos=1, eos=2, unk=0))
    loss, accuracy = LabelSmoothedCrossEntropy(0.1, pad_id=3), TokenAccuracy(pad_id=3)
    for arguments, message in (
        ({"loss": LabelSmoothedCrossEntropy(0.1)}, "`loss`: label_smoothed.* has pad_id=0.*id 3.*pad_id=3"),
        ({"loss": loss, "metrics": [accuracy, Perplexity()]}, "`metrics`: perplexity has pad_id=0"),
        ({"loss": loss, "weighted_metrics": [TokenAccuracy()]}, "`weighted_metrics`: token_accuracy"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            model.compile("sgd", **arguments)
        assert "\n" not in str(caught.value)
    model.compile("sgd", loss, [accuracy, StepCounters()])
    model.compile("sgd", None, ["accuracy"])
    assert model.loss.pad_id == 3


class TwiceTheLoss(LabelSmoothedCrossEntropy):
    def call(self, y_true, y_pred):
        return 2 * super().call(y_true, y_pred)


@pytest.mark.slow
def test_a_loss_of_this_package_with_another_call_is_used():
    wanted, _ = gradient(made(loss=LabelSmoothedCrossEntropy(0.1)), BATCH)
    found, _ = gradient(made(loss=TwiceTheLoss(0.1)), BATCH)
    np.testing.assert_allclose(found, 2 * wanted, atol=4e-6)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(("strategy", "micro_batches"), PLACES)
def test_a_sum_is_not_divided(strategy, micro_batches):
    wanted, wanted_logs = gradient(made(), BATCH)
    model = made(strategy, loss=LabelSmoothedCrossEntropy(0.0, reduction="sum"))
    found, logs = gradient(model, BATCH, micro_batches=micro_batches)
    np.testing.assert_allclose(found, 10 * wanted, atol=2e-5)
    assert logs["loss"] == pytest.approx(10 * wanted_logs["loss"], rel=1e-6)


@pytest.mark.slow
def test_loss_weights_multiply_the_loss():
    wanted, _ = gradient(made(), BATCH)
    found, logs = gradient(made(loss_weights=[0.25]), BATCH)
    np.testing.assert_allclose(found, wanted / 4, atol=2e-6)
    assert logs["loss"] == pytest.approx(made().evaluate(*BATCH, verbose=0) / 4, rel=1e-6)


# --- sample_weight ---------------------------------------------------------------------------------------

BY_SENTENCE = np.array([0.5, 3.0, 2.0], "float32")
BY_TOKEN = np.random.default_rng(3).uniform(0, 2, BATCH[1].shape).astype("float32")


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("loss", [None, own_cross_entropy], ids=["ours", "own"])
def test_weights_of_zero_train_nothing_and_of_a_half_half_as_much(loss):
    whole, _ = gradient(made(loss=loss), BATCH)
    none, logs = gradient(made(loss=loss), BATCH, np.zeros(3, "float32"))
    assert not none.any()
    assert logs["loss"] == 0
    half, _ = gradient(made(loss=loss), BATCH, np.full(BATCH[1].shape, 0.5, "float32"))
    np.testing.assert_allclose(half, whole / 2, atol=1e-6)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("weights", [BY_SENTENCE, BY_TOKEN], ids=["sentence", "token"])
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean_with_sample_weight", "sum"])
def test_weights_do_to_the_loss_what_they_do_in_keras_with_a_mask(weights, reduction):
    (inputs, labels) = BATCH
    values = keras.ops.convert_to_tensor(nll(labels, small_model()(inputs)).astype("float32"))

    class Masked(keras.losses.Loss):
        def call(self, y_true, y_pred):
            y_pred = tf.identity(y_pred)
            y_pred._keras_mask = labels != PAD
            return y_pred

    everywhere = np.broadcast_to(weights if weights.ndim == 2 else weights[:, None], labels.shape)
    keras_own = float(Masked(reduction=reduction)(labels, values, everywhere))
    model = made(loss=LabelSmoothedCrossEntropy(0.0, reduction=reduction))
    assert float(model.loss(labels, model(inputs), weights)) == pytest.approx(keras_own, rel=1e-5)
    assert model.test_on_batch(inputs, labels, weights) == pytest.approx(keras_own, rel=1e-5)
    assert model.train_on_batch(inputs, labels, weights) == pytest.approx(keras_own, rel=1e-5)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(("strategy", "micro_batches"), PLACES)
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean_with_sample_weight"])
def test_weights_act_alike_on_replicas_and_micro_batches(strategy, micro_batches, reduction):
    loss = LabelSmoothedCrossEntropy(0.1, reduction=reduction)
    plain = BY_TOKEN * (BATCH[1] != PAD)
    start = small_model()
    with tf.GradientTape() as tape:
        losses = loss.statistics(BATCH[1], start(BATCH[0])).loss
        divisor = plain.sum() if reduction == "mean_with_sample_weight" else 10.0
        wanted_loss = tf.reduce_sum(losses * plain) / divisor
    by_hand = tape.gradient(wanted_loss, start.trainable_variables)
    wanted = np.concatenate([tf.convert_to_tensor(each).numpy().ravel() for each in by_hand])
    model = made(strategy, loss=loss, run_eagerly=reduction != "sum_over_batch_size")
    found, logs = gradient(model, BATCH, BY_TOKEN, micro_batches)
    np.testing.assert_allclose(found, wanted, atol=2e-6)
    assert logs["loss"] == pytest.approx(float(wanted_loss), rel=1e-5)


@pytest.mark.parametrize("shape", [(2,), (3, 5), (3, 7, 1), ()])
def test_weights_of_another_shape_are_refused(shape):
    model = made()
    data = tf.data.Dataset.from_tensors((*BATCH, np.ones(shape, "float32")))
    with pytest.raises(ValueError, match=r"`sample_weight` must have the shape of the labels.*Received: \("):
        model.fit(data, shuffle=False, verbose=0)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fit", "evaluate", "on_batch"])
def test_weights_of_sentences_and_of_tokens_follow_each_other(method):
    """In one graph for both, nobody would know how many axes the weights have."""
    inputs, labels = BATCH
    weights = [BY_SENTENCE, BY_TOKEN, BY_SENTENCE[:, None], BY_SENTENCE]

    def loss(model, each):
        if method == "fit":
            return model.fit(inputs, labels, sample_weight=each, verbose=0).history["loss"][0]
        if method == "evaluate":
            data = tf.data.Dataset.from_tensors((inputs, labels, each))
            return model.evaluate(data, verbose=0)
        model.reset_metrics()
        return model.train_on_batch(inputs, labels, each)

    model = made(optimizer=keras.optimizers.SGD(0.0), run_eagerly=False)
    logits = model(inputs)
    wanted = [float(model.loss(labels, logits, each)) for each in weights]
    assert [loss(model, each) for each in weights] == pytest.approx(wanted, rel=1e-5)
    assert abs(wanted[0] - wanted[1]) > 0.01


@pytest.mark.slow
def test_micro_batches_follow_batches():
    model = made(optimizer=keras.optimizers.SGD(0.0), run_eagerly=False)
    batches = [tf.data.Dataset.from_tensors(data) for data in (BATCH, parted(BATCH, 3))]
    losses = [model.evaluate(data, verbose=0) for data in batches]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


# --- metrics ---------------------------------------------------------------------------------------------


def hits(labels, logits):
    return keras.ops.cast(keras.ops.argmax(logits, -1) == keras.ops.cast(labels, "int32"), "float32")


class OwnMetric(keras.metrics.Metric):
    """Share of sentences without a wrong token; wants rows as rows."""

    def __init__(self, name="sentences"):
        super().__init__(name=name)
        self.right = self.add_weight(name="right", initializer="zeros")
        self.all = self.add_weight(name="all", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        wrong = (1 - hits(y_true, y_pred)) * tf.cast(sample_weight > 0, "float32")
        right = tf.cast(tf.reduce_sum(wrong, axis=1) == 0, "float32")
        self.right.assign_add(tf.reduce_sum(right))
        self.all.assign_add(tf.cast(tf.size(right), "float32"))

    def result(self):
        return self.right / tf.maximum(self.all, 1e-6)


def with_likely_hits(batches, model):
    """Batches in which two labels of three are the model's own choice."""
    found = []
    for number, (inputs, labels) in enumerate(batches):
        best = model(inputs).numpy().argmax(-1).astype("int32")
        chosen = np.random.default_rng(number).random(labels.shape) < 2 / 3
        found.append((inputs, np.where(chosen & (labels != PAD) & (best != PAD), best, labels)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [pytest.param(one_device, marks=pytest.mark.very_slow), two_devices])
def test_standard_metrics_are_means_over_real_tokens_in_every_log(strategy):
    batches = with_likely_hits(BATCHES, small_model())

    def metrics():
        top = keras.metrics.SparseTopKCategoricalAccuracy(3, name="top")
        return ["accuracy", top, hits, TokenAccuracy(), "ce", OwnMetric()]

    model = made(strategy, metrics=metrics, optimizer=keras.optimizers.SGD(0.0), run_eagerly=False)
    shown_at = []
    seen = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: shown_at.append(dict(logs)))
    history = model.fit(dataset(batches), shuffle=False, verbose=0, callbacks=[seen]).history
    right, top, losses, sentences = [], [], [], []
    for number, (inputs, labels) in enumerate(batches):
        logits, real = small_model()(inputs).numpy(), labels != PAD
        right.extend((logits.argmax(-1) == labels)[real])
        order = np.argsort(-logits, -1)[..., :3]
        top.extend((order == labels[..., None]).any(-1)[real])
        losses.extend(nll(labels, logits)[real])
        sentences.extend(((logits.argmax(-1) == labels) | ~real).all(-1))
        wanted = {
            "accuracy": np.mean(right),
            "hits": np.mean(right),
            "token_accuracy": np.mean(right),
            "top": np.mean(top),
            "ce": np.mean(losses),
            "loss": np.mean(losses),
        }
        if strategy is one_device:  # two replicas may get rows of nothing in which nothing is wrong
            wanted["sentences"] = np.mean(sentences)
        for name, value in wanted.items():
            assert shown_at[number][name] == pytest.approx(value, rel=1e-5), name
    assert 0.2 < wanted["accuracy"] < 0.9
    for shown in (
        {name: value[0] for name, value in history.items()},
        model.evaluate(dataset(batches), verbose=0, return_dict=True),
    ):
        for name, value in wanted.items():
            assert shown[name] == pytest.approx(value, rel=1e-5), name


@pytest.mark.slow
def test_a_metric_from_outside_of_the_scope_is_refused():
    top = keras.metrics.SparseTopKCategoricalAccuracy(3, name="top")
    with pytest.raises(ValueError, match="top was made outside of the strategy's scope.*strategy.scope"):
        made(two_devices, metrics=[top])
    made(metrics=[top])


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "micro_batches"), PLACES)
def test_metrics_ignore_weights_and_weighted_metrics_do_not(strategy, micro_batches):
    ((inputs, labels),) = with_likely_hits(BATCHES[:1], small_model())
    real = labels != PAD
    right = small_model()(inputs).numpy().argmax(-1) == labels
    share = right[real].mean()
    weights = np.random.default_rng(5).uniform(0, 2, labels.shape).astype("float32")
    weighted = np.average(right[real], weights=weights[real])
    assert abs(share - weighted) > 0.01
    model = made(
        strategy,
        metrics=["accuracy", TokenAccuracy()],
        weighted_metrics=["accuracy", TokenAccuracy(name="own")],
        run_eagerly=micro_batches == 0,
    )
    _, logs = gradient(model, (inputs, labels), weights, micro_batches)
    for name, value in {
        "accuracy": share,
        "token_accuracy": share,
        "weighted_accuracy": weighted,
        "own": weighted,
    }.items():
        assert logs[name] == pytest.approx(value, rel=1e-5), name


def test_metrics_of_this_package_use_the_fused_loss():
    assert not made(metrics=[TokenAccuracy(), Perplexity(), StepCounters()])._needs_logits()
    assert made(metrics=["accuracy"])._needs_logits()


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (TokenAccuracy(), r"must be a list, such as metrics=\[TokenAccuracy\(\)\]"),
        ("accuracy", "must be a list"),
        (["nosuch"], r"Keras metrics \(names, functions or objects\). Received: 'nosuch'"),
        ([keras.metrics.SparseCategoricalCrossentropy()], "from_logits=False.*keras.metrics.SparseCat"),
        (["categorical_accuracy"], "`metrics`: categorical_accuracy must take"),
        ([lambda labels, logits: tf.reduce_mean(logits)], r"gives shape \(\)"),
        ([keras.metrics.Precision()], "`metrics`: precision.* must take"),
    ],
)
def test_metrics_that_are_not_per_token_are_refused_in_one_line(metrics, message):
    with pytest.raises(ValueError, match=message) as caught:
        small_model().compile("sgd", metrics=metrics)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@saves_files
def test_a_saved_model_keeps_the_names_it_was_compiled_with(tmp_path):
    model = made(
        loss="sparse_categorical_crossentropy", metrics=["accuracy"], weighted_metrics=["acc", Perplexity()]
    )
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    shown = loaded.evaluate(*BATCH, verbose=0, return_dict=True)
    assert shown == pytest.approx(model.evaluate(*BATCH, verbose=0, return_dict=True))
    assert shown.keys() == {"loss", "accuracy", "acc", "perplexity"}


# --- what is added to the loss ---------------------------------------------------------------------------


def regularized(model):
    model.target_embedding.embeddings.regularizer = keras.regularizers.L2(0.3)


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "micro_batches"), PLACES)
@pytest.mark.parametrize("recompute", [False, pytest.param(True, marks=pytest.mark.very_slow)])
def test_a_regularizer_counts_once(strategy, micro_batches, recompute):
    plain, plain_logs = gradient(made(), BATCH)
    model = made(strategy, change=regularized, recompute=recompute, run_eagerly=recompute)
    value = model.target_embedding.embeddings.numpy()
    evaluated = model.evaluate(*BATCH, verbose=0)
    found, logs = gradient(model, BATCH, micro_batches=micro_batches)
    wanted = [np.zeros(weight.shape) for weight in model.weights]
    (place,) = (n for n, each in enumerate(model.weights) if each is model.target_embedding.embeddings)
    wanted[place] = 0.6 * value
    added = np.concatenate([each.ravel() for each in wanted])
    np.testing.assert_allclose(found, plain + added, atol=5e-6)
    shown = plain_logs["loss"] + 0.3 * (value**2).sum()
    assert logs["loss"] == pytest.approx(shown, rel=1e-5)
    assert evaluated == pytest.approx(shown, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("micro_batches", [pytest.param(False, marks=pytest.mark.very_slow), True])
def test_a_regularizer_counts_once_if_a_replica_has_no_rows(micro_batches):
    row = keras.tree.map_structure(lambda array: array[:1], BATCH)
    plain, plain_logs = gradient(made(), row)
    wanted, _ = gradient(made(change=regularized), row)
    assert np.abs(wanted - plain).max() > 0.1
    model = made(two_devices, change=regularized, run_eagerly=False)
    shown = plain_logs["loss"] + 0.3 * (model.target_embedding.embeddings.numpy() ** 2).sum()
    data = parted(row, 1) if micro_batches else row
    assert model.evaluate(*data, verbose=0) == pytest.approx(shown, rel=1e-5)
    found, logs = gradient(model, data)  # the strategy gives the row to one replica
    np.testing.assert_allclose(found, wanted, atol=5e-6)
    assert logs["loss"] == pytest.approx(shown, rel=1e-5)


class AddsLoss(Transformer):
    def call(self, inputs, training=None):
        logits = super().call(inputs, training=training)
        self.add_loss(0.25 * tf.reduce_mean(logits))
        return logits


class AddsLossInEncoder(Transformer):
    def encode(self, source_ids, training=None):
        encoded = super().encode(source_ids, training=training)
        self.add_loss(0.25 * tf.reduce_mean(encoded.output**2))
        return encoded


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("cls", [AddsLoss, AddsLossInEncoder])
def test_losses_added_in_a_call_are_in_gradient_and_loss_of_every_step(cls):
    plain, plain_logs = gradient(made(), BATCH)
    model = made(cls=cls, run_eagerly=False)
    with tf.GradientTape() as tape:
        model(BATCH[0])
        (extra,) = model.losses
    by_hand = [
        np.zeros(weight.shape) if each is None else tf.convert_to_tensor(each).numpy()
        for each, weight in zip(
            tape.gradient(extra, model.trainable_variables), model.trainable_variables, strict=True
        )
    ]
    shown = plain_logs["loss"] + float(extra)
    assert model.evaluate(*BATCH, verbose=0) == pytest.approx(shown, rel=1e-5)
    found, logs = gradient(model, BATCH)
    np.testing.assert_allclose(found, plain + np.concatenate([each.ravel() for each in by_hand]), atol=5e-6)
    assert logs["loss"] == pytest.approx(shown, rel=1e-5)
    gradient(model, BATCH)


@pytest.mark.slow
def test_activities_of_layers_are_regularized_or_refused():
    def change(model):
        model.decoder_layers[0].activity_regularizer = keras.regularizers.L2(0.5)

    plain = made().evaluate(*BATCH, verbose=0)
    model = made(change=change)
    extra = [float(each) for each in (model(BATCH[0]), model.losses)[1]]
    assert model.evaluate(*BATCH, verbose=0) == pytest.approx(plain + sum(extra), rel=1e-5)
    assert model.train_on_batch(*BATCH) == pytest.approx(plain + sum(extra), rel=1e-5)
    with pytest.raises(ValueError, match="`recompute`.*decoder_0.*add"):
        made(change=change, recompute=True).train_on_batch(*BATCH)


class OwnLossInModel(Transformer):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return (
            0.5 * super().compute_loss(x, y, y_pred, sample_weight, training) + tf.reduce_mean(y_pred**2) * 0
        )


class LossWithoutTraining(Transformer):
    def compute_loss(self, x, y, y_pred, sample_weight):
        return tf.reduce_mean(y_pred**2)


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "micro_batches"), PLACES)
def test_an_overridden_loss_is_trained_and_logged(strategy, micro_batches):
    wanted, wanted_logs = gradient(made(), BATCH, BY_TOKEN)
    model = made(strategy, OwnLossInModel, run_eagerly=strategy is one_device)
    data = (*BATCH, BY_TOKEN)
    shown = model.evaluate(*BATCH, sample_weight=BY_TOKEN, verbose=0)
    assert shown == pytest.approx(wanted_logs["loss"] / 2, rel=1e-5)
    found, logs = gradient(model, data[:2], BY_TOKEN, micro_batches)
    np.testing.assert_allclose(found, wanted / 2, atol=2e-6)
    assert logs["loss"] == pytest.approx(wanted_logs["loss"] / 2, rel=1e-5)


@pytest.mark.slow
def test_an_overridden_loss_needs_neither_labels_nor_an_argument_for_training():
    model = made(cls=LossWithoutTraining, optimizer=keras.optimizers.SGD(0.01))
    wanted = np.mean(small_model()(BATCH[0]).numpy() ** 2)
    assert model.evaluate(*BATCH, verbose=0) == pytest.approx(wanted, rel=1e-5)
    assert model.train_on_batch(*BATCH) == pytest.approx(wanted, rel=1e-5)
    assert model.evaluate(*BATCH, verbose=0) < wanted


class VectorLoss(Transformer):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return tf.reduce_mean(y_pred, axis=-1)


class ConstantLoss(Transformer):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return tf.constant(7.0)


class OwnComputeMetrics(Transformer):
    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return {"mine": 7.0}


def test_unsupported_arguments_are_refused():
    with pytest.raises(ValueError, match="`compute_loss` must return a scalar"):
        made(cls=VectorLoss).train_on_batch(*BATCH)
    with pytest.raises(ValueError, match="`compute_loss` has no gradient"):
        made(cls=ConstantLoss).train_on_batch(*BATCH)
    with pytest.raises(ValueError, match="OwnComputeMetrics overrides `compute_metrics`"):
        made(cls=OwnComputeMetrics)
    with pytest.raises(ValueError, match="`class_weight` is not supported.*sample_weight"):
        made().fit(*BATCH, class_weight={5: 2.0}, verbose=0)


# --- what a step without a finite gradient shows ----------------------------------------------------------


@pytest.mark.slow
def test_a_loss_that_is_no_number_is_seen_by_terminate_on_nan_and_changes_no_weight():
    model = made()
    spoiled = model.source_embedding.embeddings.numpy()
    spoiled[int(BATCH[0][0][0, 0])] = np.inf
    model.source_embedding.embeddings.assign(spoiled)
    before = model.get_weights()
    stream = tf.data.Dataset.from_tensors(BATCH).repeat(5)
    batches = []
    count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: batches.append(batch))
    history = model.fit(
        stream, shuffle=False, verbose=0, callbacks=[keras.callbacks.TerminateOnNaN(), count]
    ).history
    assert np.isnan(history["loss"][0])
    assert batches == [0]
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


# --- what `fit` is given ----------------------------------------------------------------------------------


def changed(side, value):
    (source, target), labels = BATCH
    arrays = {"source": source.copy(), "target": target.copy(), "label": labels.copy()}
    arrays[side][0, 1] = value
    return (arrays["source"], arrays["target"]), arrays["label"]


@pytest.mark.parametrize("value", [VOCAB, -1])
@pytest.mark.parametrize("side", ["source", "target", "label"])
def test_an_id_outside_of_the_vocabulary_is_named(side, value):
    batch = changed(side, value)
    model = made(run_eagerly=side != "label")
    for method in (model.fit, model.evaluate):
        with pytest.raises(ValueError, match=f"{side}.* {value} is outside .* 0 to {VOCAB - 1}") as caught:
            method(*batch, verbose=0)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=f"{value} is outside the vocabulary"):
        model.fit(tf.data.Dataset.from_tensors(batch), shuffle=False, verbose=0)


def test_labels_and_weights_of_another_shape_than_the_targets_are_refused_in_one_line():
    (source, target), labels = BATCH
    one_hot = np.eye(VOCAB, dtype="float32")[labels]
    model = made(run_eagerly=False)
    for data, message in (
        (((source, target), labels[:, :-1]), r"labels of shape \(\d, 6\) for target_ids of \(\d, 7\)"),
        (((source, target), labels[:, 0]), r"labels of shape \(\d,\) for target_ids of \(\d, 7\)"),
        (((source, target[:, :1]), labels), r"labels of shape \(\d, 7\) for target_ids of \(\d, 1\)"),
        (((source, target), one_hot), r"labels.argmax\(-1\) if they are one-hot.*\(\d, 7, 23\) .* \(\d, 7\)"),
        (((source, target), labels[..., None]), r"give labels\[..., 0\]"),
        (
            ((source, target), labels, BY_TOKEN[:, :-1]),
            r"`sample_weight` .*\(\d, 6\) for labels of \(\d, 7\)",
        ),
    ):
        inputs, y, *weights = data
        for method in (model.fit, model.evaluate):
            for arguments, how in (
                ((inputs, y), {"batch_size": 1, **({"sample_weight": weights[0]} if weights else {})}),
                ((tf.data.Dataset.from_tensors(data),), {}),
            ):
                with pytest.raises(ValueError, match=message) as caught:
                    method(*arguments, verbose=0, **how)
                assert "\n" not in str(caught.value), message
        with pytest.raises(ValueError, match=message):
            model.train_step(keras.tree.map_structure(tf.constant, data))


@pytest.mark.slow
def test_labels_of_another_length_are_refused_where_no_length_is_known():
    (source, target), labels = BATCH
    ids, rows = tf.TensorSpec((None, None), tf.int32), np.arange(3)
    model = made(run_eagerly=False)
    for targets, of_labels in ((target, labels[:, :-1]), (target[:, :1], labels), (target, labels[:, :1])):

        def each(targets=targets, of_labels=of_labels):
            for row in rows:
                yield (source[row, None], targets[row, None]), of_labels[row, None]

        data = tf.data.Dataset.from_generator(each, output_signature=((ids, ids), ids))
        for method, how in ((model.fit, {"shuffle": False}), (model.evaluate, {})):
            with pytest.raises(ValueError, match="labels must have the shape of target_ids") as caught:
                method(data, verbose=0, **how)
            assert "\n" not in str(caught.value)
        with pytest.raises(ValueError, match="must have a known number of axes"):
            model.evaluate(
                tf.data.Dataset.from_generator(each, output_types=((tf.int32, tf.int32), tf.int32)), verbose=0
            )


@pytest.mark.slow
def test_logits_of_one_token_are_not_broadcast_to_many_labels():
    model, labels = made(), BATCH[1][:1]
    logits = model(BATCH[0])[:1, :1]
    for loss in (model.loss, made(loss=own_cross_entropy).loss):
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="reshape"):
            loss.statistics(labels, logits)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="reshape"):
        model.statistics((BATCH[0][0][:1], BATCH[0][1][:1, :1]), labels)


def test_arrays_that_are_no_ids_are_refused_in_one_line():
    (source, target), labels = BATCH
    words = np.array([["a", "b"]] * 3)
    model = made(run_eagerly=False)
    for inputs, message in (
        ((source + VOCAB, target), f"source id .* ids are 0 to {VOCAB - 1}"),
        ({"source_ids": source, "target_ids": target - VOCAB}, f"target id -.* ids are 0 to {VOCAB - 1}"),
        ((words, target), "`source_ids` must be .* integers.*str"),
        ((source[0], target[0]), r"`source_ids` must have the shape \(batch, length\).*\(6,\)"),
        ((source.astype("float32"), target), "`source_ids` must be .* integers.*float32"),
        (source, "must be a pair"),
    ):
        for give in (
            lambda x: model.fit(x, labels, verbose=0),
            lambda x: model.predict(x, verbose=0),
            model.predict_on_batch,
        ):
            with pytest.raises((TypeError, ValueError), match=message) as caught:
                give(inputs)
            assert "\n" not in str(caught.value), message
    with pytest.raises(TypeError, match="`labels` must be .* integers"):
        model.fit((source, target), labels.astype(str), verbose=0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_inputs_of_other_forms_are_refused_in_one_line():
    (source, target), labels = BATCH
    ragged = tf.RaggedTensor.from_tensor(source, padding=PAD)
    ids = Sequences([(np.arange(9, dtype="int32"), np.array([0, 4, 9]))])
    batches = TokenBatches(IdPairs(ids, ids), EpochPlanner(ids.lengths, ids.lengths, batch_tokens=64))
    for arguments, message in (
        (({"source_ids": source, "targets": target}, labels), r"must be a pair .* names .*'targets'"),
        ((source, labels), r"must be a pair .* Received: one of int32"),
        (((source, target),), "labels are missing"),
        (((ragged, target), labels), "`source_ids` must be padded to one length.*to_tensor"),
        ((batches,), r"not a dataset. Use fit\(batches.dataset\(epochs=10\)\)"),
        (((source[:0], target[:0]), labels[:0]), "0 rows"),
        ((dataset().take(0),), "no batch"),
        ((dataset().filter(lambda x, y: False),), "no batch"),
    ):
        for method, how in (("fit", {"shuffle": False}), ("evaluate", {})):
            with pytest.raises((TypeError, ValueError), match=message) as caught:
                getattr(made(), method)(*arguments, verbose=0, **how)
            assert "\n" not in str(caught.value), message


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_nothing_to_predict_is_refused_in_one_line():
    inputs = dataset().map(lambda inputs, labels: (inputs,))
    for stream in (inputs.take(0), inputs.filter(lambda x: False)):
        with pytest.raises(ValueError, match="^the dataset has no batches: nothing was predicted$"):
            made().predict(stream, verbose=0)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("positions", [7, VOCAB])
def test_a_sentence_longer_than_the_learned_positions_is_not_an_id_outside_the_vocabulary(positions):
    inputs, labels = batch(7, (5, positions + 1), target_length=positions + 1)
    model = small_model(positions="learned", max_positions=positions)
    model.compile("sgd")
    specs = tuple(tf.TensorSpec((None, None), tf.int32) for _ in range(3))
    stream = tf.data.Dataset.from_generator(lambda: [(*inputs, labels)], output_signature=specs)
    stream = stream.map(lambda source, target, labels: ((source, target), labels))
    message = f"a sentence has more than {positions} tokens, the `max_positions` of"
    if positions == VOCAB:
        message = f"target id or label {VOCAB} is outside the vocabulary.*; or {message}"
    with pytest.raises(ValueError, match=message) as caught:
        model.evaluate(stream, verbose=0)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_dict_of_ids_trains_as_the_pair_does():
    (source, target), labels = BATCH
    named = {"target_ids": target, "source_ids": source}
    losses = [made().train_on_batch(inputs, labels) for inputs in ((source, target), named)]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    named_batches = tf.data.Dataset.from_tensors((named, labels))
    assert made().evaluate(named_batches, verbose=0) == pytest.approx(made().evaluate(*BATCH, verbose=0))


@pytest.mark.very_slow
def test_other_arguments_of_keras_compile_work():
    model = made(
        metrics=["accuracy"], optimizer=keras.optimizers.AdamW(0.01), steps_per_execution=2, run_eagerly=False
    )
    inputs, labels = BATCH
    history = model.fit(
        inputs,
        labels,
        sample_weight=BY_TOKEN,
        batch_size=1,
        epochs=3,
        initial_epoch=1,
        validation_data=(inputs, labels, BY_TOKEN),
        validation_freq=2,
        verbose=0,
    )
    assert history.epoch == [1, 2]
    assert {name: len(values) for name, values in history.history.items()} == {
        "loss": 2, "accuracy": 2, "val_loss": 1, "val_accuracy": 1,
    }  # fmt: skip
    assert int(model.optimizer.iterations) == 6
    split = made().fit(inputs, labels, validation_split=0.4, verbose=0)
    assert split.history.keys() == {"loss", "val_loss"}
    eager, graph = made(), made(run_eagerly=False)
    assert eager.train_on_batch(*BATCH) == pytest.approx(graph.train_on_batch(*BATCH), rel=1e-5)
    for one, other in zip(eager.weights, graph.weights, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)
    assert model.predict(inputs, verbose=0).shape == (*labels.shape, VOCAB)
    assert model.test_on_batch(*BATCH, return_dict=True).keys() == {"loss", "accuracy"}
