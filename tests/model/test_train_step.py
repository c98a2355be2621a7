"""The training step against one written by hand, with dense labels and a dense loss."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config.settings import ModelConfig
from keras_transformer.model.loss import LabelSmoothedCrossEntropy
from keras_transformer.model.metrics import Perplexity, TokenAccuracy
from keras_transformer.model.optimizer import Adam, TransformerSchedule
from keras_transformer.model.transformer import Transformer

# Keras hands its variables to h5py in a way that NumPy 2 is about to refuse.
saves_files = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

VOCAB, PAD, BOS, EOS = 23, 0, 1, 2


def drawn(weight, rng):
    """A value for a weight, kernels of about their usual size, all others off theirs too."""
    value = rng.normal(size=weight.shape).astype("float32")
    if len(weight.shape) == 2:
        return value * max(weight.shape) ** -0.5
    return 0.2 * value + (weight.name == "gamma")


def small_model(**changes):
    """A model whose weights depend on nothing but the configuration."""
    arguments = {
        "source_vocab_size": VOCAB,
        "target_vocab_size": VOCAB,
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "d_model": 12,
        "d_ff": 17,
        "num_heads": 3,
        "residual_dropout": 0.0,
        "embedding_dropout": 0.0,
    }
    model = Transformer(ModelConfig(**{**arguments, **changes}))
    rng = np.random.default_rng(0)
    model.set_weights([drawn(weight, rng) for weight in model.weights])
    return model


def batch(seed, lengths, source_length=6, target_length=7):
    """((source, target), labels) with so many real labels in every row."""
    rng = np.random.default_rng(seed)
    source = rng.integers(4, VOCAB, (len(lengths), source_length), dtype="int32")
    labels = np.full((len(lengths), target_length), PAD, "int32")
    for row, length in zip(labels, lengths, strict=True):
        row[: length - 1] = rng.integers(4, VOCAB, length - 1)
        row[length - 1] = EOS
    target = np.concatenate([np.full((len(lengths), 1), BOS, "int32"), labels[:, :-1]], axis=1)
    target[target == EOS] = PAD
    return (source, target), labels


# 10, 2 and 6 tokens, in three shapes.
BATCHES = [
    batch(1, (7, 2, 1)),
    batch(2, (2,), source_length=5, target_length=3),
    batch(3, (1, 5), source_length=4, target_length=5),
]


def dataset(batches=BATCHES):
    specs = tuple(tf.TensorSpec((None, None), tf.int32) for _ in range(3))
    made = tf.data.Dataset.from_generator(
        lambda: (((s, t), y) for (s, t), y in batches),
        output_signature=((specs[0], specs[1]), specs[2]),
    )
    return made.apply(tf.data.experimental.assert_cardinality(len(batches)))


def dense_losses(labels, logits, smoothing):
    """Loss of every real token, with Tensor2Tensor's smoothing; a vector."""
    one_hot = tf.one_hot(labels, VOCAB)
    wanted = one_hot * (1 - smoothing) + (1 - one_hot) * smoothing / (VOCAB - 1)
    losses = -tf.reduce_sum(wanted * tf.nn.log_softmax(logits), axis=-1)
    return tf.boolean_mask(losses, labels != PAD)


def test_one_step_equals_a_step_written_by_hand():
    ours, by_hand = small_model(), small_model()
    ours.compile(
        keras.optimizers.Adam(0.01, beta_2=0.98, epsilon=1e-9),
        LabelSmoothedCrossEntropy(0.1),
    )
    optimizer = keras.optimizers.Adam(0.01, beta_2=0.98, epsilon=1e-9)
    ours.fit(dataset(), shuffle=False, verbose=0)
    for inputs, labels in BATCHES:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(dense_losses(labels, by_hand(inputs), 0.1))
        weights = by_hand.trainable_variables
        optimizer.apply(
            [tf.convert_to_tensor(g) for g in tape.gradient(loss, [w.value for w in weights])],
            weights,
        )
    start = small_model()
    for before, mine, hand in zip(start.weights, ours.weights, by_hand.weights, strict=True):
        # Adam's first steps are as large as the rate, however small the gradient: weights
        # whose gradient is rounding noise, such as a bias that the softmax cancels, are free.
        np.testing.assert_allclose(mine, hand, atol=2e-5, err_msg=mine.path)
        assert np.abs(mine.numpy() - before.numpy()).max() > 0.005, mine.path


@pytest.mark.slow
@pytest.mark.parametrize("on_batch", [False, True])
def test_the_step_is_one_graph(on_batch, monkeypatch):
    # Keras' form, a function inside another, keeps the step twice in memory.
    traced, original = [], tf.function
    monkeypatch.setattr(
        tf, "function", lambda *args, **kwargs: traced.append(original(*args, **kwargs)) or traced[-1]
    )
    model = small_model()
    model.compile(keras.optimizers.SGD(1.0), LabelSmoothedCrossEntropy(0.1))
    model.train_on_batch(*BATCHES[0]) if on_batch else model.fit(dataset(), shuffle=False, verbose=0)
    graphs = [
        function.graph for one in traced for function in one._list_all_concrete_functions_for_serialization()
    ]
    # The one with the products calls no function, and no other graph calls it.
    assert ["MatMul" in {op.type for op in graph.get_operations()} for graph in graphs] == [True]
    assert not [op.name for op in graphs[0].get_operations() if "PartitionedCall" in op.type]


def test_gradient_is_the_sum_over_tokens_over_their_number():
    # SGD with rate 1 moves the weights by the gradient itself.
    model, start = small_model(), small_model()
    model.compile(keras.optimizers.SGD(1.0), LabelSmoothedCrossEntropy(0.0))
    inputs, labels = BATCHES[0]
    model.train_on_batch(inputs, labels)
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(dense_losses(labels, start(inputs), 0.0))
    gradients = tape.gradient(total, [w.value for w in start.trainable_variables])
    for new, old, gradient in zip(model.weights, start.weights, gradients, strict=True):
        moved = old.numpy() - new.numpy()
        gradient = tf.convert_to_tensor(gradient) / 10
        np.testing.assert_allclose(moved, gradient, atol=1e-5, err_msg=old.path)


def test_padding_changes_nothing_in_a_step():
    padded = [
        ((np.pad(s, ((0, 0), (0, 3))), np.pad(t, ((0, 0), (0, 2)))), np.pad(y, ((0, 0), (0, 2))))
        for (s, t), y in BATCHES[:1]
    ]
    models = []
    for made in (BATCHES[:1], padded):
        model = small_model()
        model.compile(keras.optimizers.SGD(1.0), LabelSmoothedCrossEntropy(0.1))
        model.train_on_batch(*made[0])
        models.append(model)
    for a, b in zip(models[0].weights, models[1].weights, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("types", [("int64", "int32", "int32"), ("int32", "int64", "int64")])
def test_ids_of_two_integer_types_train_as_those_of_one(types):
    models = []
    for kinds in (("int32",) * 3, types):
        (source, target), labels = BATCHES[0]
        source, target, labels = (
            ids.astype(kind) for ids, kind in zip((source, target, labels), kinds, strict=True)
        )
        model = small_model()
        model.compile(keras.optimizers.SGD(1.0), LabelSmoothedCrossEntropy(0.1))
        model.train_on_batch((source, target), labels)
        models.append(model)
    for a, b in zip(models[0].weights, models[1].weights, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


class StockKeras(Transformer):
    """The same model under Keras' own training step."""

    compile = keras.Model.compile
    compute_loss = keras.Model.compute_loss
    compute_metrics = keras.Model.compute_metrics
    test_step = keras.Model.test_step
    metrics = keras.Model.metrics


def token_losses(model, smoothing):
    return [dense_losses(y, model(inputs), smoothing).numpy() for inputs, y in BATCHES]


@pytest.mark.slow
def test_logged_loss_is_a_mean_over_tokens_where_keras_weights_sentences():
    model = small_model()
    model.compile("sgd", LabelSmoothedCrossEntropy(0.1))
    losses = token_losses(model, 0.1)
    over_tokens = np.concatenate(losses).mean()
    by_sentences = np.average([x.mean() for x in losses], weights=[3, 1, 2])
    assert abs(over_tokens - by_sentences) > 0.01

    shown = model.evaluate(dataset(), verbose=0, return_dict=True)
    np.testing.assert_allclose(shown["loss"], over_tokens, rtol=1e-5)

    stock = StockKeras(model.config)
    stock.set_weights(model.get_weights())
    stock.compile("sgd", LabelSmoothedCrossEntropy(0.1), jit_compile=False)
    np.testing.assert_allclose(
        stock.evaluate(dataset(), verbose=0, return_dict=True)["loss"], by_sentences, rtol=1e-5
    )


def test_logged_metrics_are_means_over_all_tokens():
    model = small_model()
    model.compile("sgd", LabelSmoothedCrossEntropy(0.1), [TokenAccuracy(), Perplexity()])
    hits = [(model(x).numpy().argmax(-1) == y)[y != PAD] for x, y in BATCHES]
    shown = model.evaluate(dataset(), verbose=0, return_dict=True)
    assert shown.keys() == {"loss", "token_accuracy", "perplexity"}
    np.testing.assert_allclose(
        shown["perplexity"], np.exp(np.concatenate(token_losses(model, 0.0)).mean()), rtol=1e-5
    )
    np.testing.assert_allclose(shown["token_accuracy"], np.concatenate(hits).mean(), rtol=1e-6)


@pytest.mark.slow
def test_training_logs_the_loss_before_each_update():
    model = small_model()
    model.compile(keras.optimizers.SGD(1e-9), LabelSmoothedCrossEntropy(0.1))
    wanted = np.concatenate(token_losses(model, 0.1)).mean()
    history = model.fit(dataset(), shuffle=False, verbose=0).history
    np.testing.assert_allclose(history["loss"], [wanted], rtol=1e-5)


@pytest.mark.slow
def test_metrics_start_again_every_epoch():
    model = small_model()
    model.compile(keras.optimizers.SGD(1e-9), LabelSmoothedCrossEntropy(0.1))
    first, second = model.fit(dataset(), epochs=2, shuffle=False, verbose=0).history["loss"]
    np.testing.assert_allclose(first, second, rtol=1e-5)


class CountsCalls(Transformer):
    traces = 0

    def encode(self, source_ids, training=None):
        self.traces += 1  # runs while a graph is made, not when it is used
        return super().encode(source_ids, training=training)


@pytest.mark.slow
def test_batches_of_all_shapes_share_one_trace():
    model = CountsCalls(small_model().config)
    model.compile("sgd")
    model.fit(dataset(BATCHES * 2), shuffle=False, verbose=0)
    assert model.traces == 1
    model.evaluate(dataset(), verbose=0)
    assert model.traces == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"tie_embeddings": "none"},
        {"tie_embeddings": "none", "output_bias": True, "norm_first": True},
        {"tie_embeddings": "decoder", "output_bias": True},
        {"positions": "learned", "norm_first": True},
    ],
)
@pytest.mark.parametrize("frozen", [False, True])
def test_statistics_and_gradients_are_those_of_the_logits(changes, frozen):
    model = small_model(**changes)
    model.compile(keras.optimizers.SGD(1.0), LabelSmoothedCrossEntropy(0.1))
    model.source_embedding.trainable = not frozen
    inputs, labels = BATCHES[0]
    assert model._can_fuse_projection_and_loss()

    def value_and_gradients(compute):
        with tf.GradientTape() as tape:
            found = compute()
            loss = tf.reduce_sum(found.loss)
        return [*found, *map(tf.convert_to_tensor, tape.gradient(loss, model.trainable_variables))]

    projected = value_and_gradients(lambda: model.statistics(inputs, labels))
    by_logits = value_and_gradients(lambda: model.loss.statistics(labels, model(inputs)))
    for one, other in zip(projected, by_logits, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5, rtol=1e-4)


class OtherLogits(Transformer):
    def _logits(self, x):
        return 2 * super()._logits(x)


class OtherDecode(Transformer):
    def decode(self, target_ids, encoded, training=None):
        return 2 * super().decode(target_ids, encoded, training=training)


class OtherCall(Transformer):
    def call(self, inputs, training=None):
        return 2 * super().call(inputs, training=training)


@pytest.mark.parametrize("cls", [OtherLogits, OtherDecode, OtherCall])
def test_a_subclass_that_overrides_the_logits_is_trained_on_them(cls):
    model = cls(small_model().config)
    model.compile("sgd")
    inputs, labels = BATCHES[0]
    wanted = model.loss.statistics(labels, model(inputs))
    np.testing.assert_allclose(model.statistics(inputs, labels).loss, wanted.loss, rtol=1e-5)


def test_adam_by_name_is_that_of_this_package_also_after_loading():
    model = small_model()
    model.compile("adam")
    assert type(model.optimizer) is Adam
    again = keras.optimizers.deserialize(keras.optimizers.serialize(model.optimizer))
    assert type(again) is Adam
    assert again.get_config() == model.optimizer.get_config()


def test_dropout_acts_in_training_and_not_in_evaluation():
    model = small_model(residual_dropout=0.5)
    model.compile(keras.optimizers.SGD(1e-9), LabelSmoothedCrossEntropy(0.1))
    wanted = np.concatenate(token_losses(model, 0.1)).mean()
    np.testing.assert_allclose(model.evaluate(dataset(), verbose=0), wanted, rtol=1e-5)
    assert abs(model.fit(dataset(), shuffle=False, verbose=0).history["loss"][0] - wanted) > 0.001


@pytest.mark.slow
def test_a_batch_of_padding_changes_no_weight():
    model = small_model()
    model.compile(keras.optimizers.SGD(1.0))
    before = model.get_weights()
    inputs, labels = BATCHES[0]
    assert model.train_on_batch(inputs, np.zeros_like(labels)) == 0
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_clipping_is_by_the_global_norm():
    model, start = small_model(), small_model()
    model.compile(keras.optimizers.SGD(1.0, global_clipnorm=0.01), LabelSmoothedCrossEntropy(0.1))
    model.train_on_batch(*BATCHES[0])
    moved = [a - b for a, b in zip(model.get_weights(), start.get_weights(), strict=True)]
    norm = np.sqrt(sum((m.astype("float64") ** 2).sum() for m in moved))
    np.testing.assert_allclose(norm, 0.01, rtol=1e-3)


def test_the_papers_loss_is_the_default():
    model = small_model()
    model.compile("sgd")
    assert model.loss.label_smoothing == 0.1
    assert model.loss.formula == "t2t"


def test_xla_is_off_unless_asked_for():
    model = small_model()
    model.compile("sgd")
    assert model.jit_compile is False
    model.compile("sgd", jit_compile=True)
    assert model.jit_compile is True
    model.compile("sgd", jit_compile="auto", towers=2)
    assert model.jit_compile is False
    assert model._compiled_state.jit_compile is False


def test_xla_is_off_in_a_model_that_was_not_compiled(monkeypatch):
    gpu = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")  # on a CPU, Keras turns XLA off
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda *kind: [gpu])
    assert small_model().jit_compile is False


@pytest.mark.slow
@saves_files
def test_a_loaded_model_continues_training_as_if_never_saved(tmp_path):
    model = small_model()
    schedule = TransformerSchedule(12, 7, scale=3.0)
    loss = LabelSmoothedCrossEntropy(0.2, formula="uniform")
    model.compile(keras.optimizers.Adam(schedule, beta_2=0.98), loss, [Perplexity()])
    model.fit(dataset(), shuffle=False, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")

    assert int(loaded.optimizer.iterations) == 3
    assert loaded.loss.get_config() == loss.get_config()
    assert [metric.name for metric in loaded.metrics] == ["loss", "perplexity"]
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    for again in (model, loaded):
        again.fit(dataset(), shuffle=False, verbose=0)
    for one, other in zip(model.weights, loaded.weights, strict=True):
        np.testing.assert_array_equal(one, other)
