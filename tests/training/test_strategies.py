"""Replicas and micro-batches compute what one device computes with the whole batch."""

import functools
import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config.settings import ModelConfig
from keras_transformer.model.layers.basics import Dropout
from keras_transformer.model.loss import LabelSmoothedCrossEntropy
from keras_transformer.model.metrics import Perplexity, StepCounters, TokenAccuracy
from keras_transformer.model.optimizer import Adam
from keras_transformer.model.transformer import Transformer
from keras_transformer.training.devices import mirrored

VOCAB, PAD, BOS, EOS = 23, 0, 1, 2
SOURCE_LEN, TARGET_LEN = 6, 7


def drawn(weight, rng):
    """A value for a weight, kernels of about their usual size, all others off theirs too."""
    value = rng.normal(size=weight.shape).astype("float32")
    if len(weight.shape) == 2:
        return value * max(weight.shape) ** -0.5
    return 0.2 * value + (weight.name == "gamma")


def rows(seed, lengths):
    """((source, target), labels): one row for each number of labels, 0 for an empty one."""
    rng = np.random.default_rng(seed)
    source = rng.integers(4, VOCAB, (len(lengths), SOURCE_LEN), dtype="int32")
    labels = np.full((len(lengths), TARGET_LEN), PAD, "int32")
    for row, length in zip(labels, lengths, strict=True):
        if length:
            row[: length - 1] = rng.integers(4, VOCAB, length - 1)
            row[length - 1] = EOS
    target = np.concatenate([np.full((len(lengths), 1), BOS, "int32"), labels[:, :-1]], axis=1)
    source[np.array(lengths) == 0] = PAD
    return (source, target), labels


# Tokens of each row; odd numbers of rows, unequal tokens for two replicas, and one row alone:
# nothing for the second.
UNEVEN = [(7, 7, 6, 1), (5, 1, 2), (4,), (7, 1, 1, 1, 2)]
BATCHES = [rows(seed, UNEVEN[seed % 4]) for seed in range(10)]


def stream(batches):
    spec = tf.TensorSpec((None, None), tf.int32)
    return tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=((spec, spec), spec))


def in_micro_batches(batch, count):
    """The same rows as (count, rows, length), with empty ones where they do not fit."""
    (source, target), labels = batch
    missing = -len(labels) % count
    target_pad = np.pad(target, ((0, missing), (0, 0)))
    target_pad[len(target) :, 0] = BOS
    shaped = [
        each.reshape(count, -1, each.shape[1])
        for each in (
            np.pad(source, ((0, missing), (0, 0))),
            target_pad,
            np.pad(labels, ((0, missing), (0, 0))),
        )
    ]
    return (shaped[0], shaped[1]), shaped[2]


def make_model(strategy, optimizer, *, dtype="float32", dropout=0.0, **compile_arguments):
    with strategy.scope():
        arguments = {
            "source_vocab_size": VOCAB,
            "target_vocab_size": VOCAB,
            "num_encoder_layers": 1,
            "num_decoder_layers": 1,
            "d_model": 12,
            "d_ff": 17,
            "num_heads": 3,
            "residual_dropout": dropout,
            "embedding_dropout": dropout,
            "attention_dropout": dropout,
        }
        keras.utils.set_random_seed(1)  # of the dropouts
        model = Transformer(ModelConfig(**arguments), dtype=dtype)
        rng = np.random.default_rng(0)
        model.set_weights([drawn(weight, rng) for weight in model.weights])
        model.compile(
            optimizer(),
            LabelSmoothedCrossEntropy(0.1),
            [TokenAccuracy(), Perplexity(), StepCounters()],
            **compile_arguments,
        )
    return model


def one_device():
    return tf.distribute.get_strategy()


def two_devices():
    return mirrored(["CPU:0", "CPU:1"])


def fit(strategy, batches, optimizer, *, micro_batches=0, **compile_arguments):
    """Trains on the batches in order; returns the model and what was logged at the end."""
    model = make_model(strategy, optimizer, **compile_arguments)
    return model, fit_on(model, strategy, batches, micro_batches)


def fit_on(model, strategy, batches, micro_batches):
    """Trains a model on the batches in order; returns what was logged at the end."""
    if micro_batches:
        spec = tf.TensorSpec((None, None, None), tf.int32)
        # Elements go to the replicas in turn.
        replicas = strategy.num_replicas_in_sync
        pieces = []
        for (source, target), labels in batches:
            for replica in range(replicas):
                part = (source[replica::replicas], target[replica::replicas]), labels[replica::replicas]
                if not len(part[1]):
                    part = rows(0, (0,))
                pieces.append(in_micro_batches(part, micro_batches))
        dataset = tf.data.Dataset.from_generator(
            lambda: iter(pieces), output_signature=((spec, spec), spec)
        ).repeat()
        if replicas > 1:
            dataset = strategy.distribute_datasets_from_function(lambda context, made=dataset: made)
        history = model.fit(dataset, steps_per_epoch=len(batches), shuffle=False, verbose=0)
    else:
        # The first epoch of a stream of unknown length ends with a warning.
        count = tf.data.experimental.assert_cardinality(len(batches))
        history = model.fit(stream(batches).apply(count), shuffle=False, verbose=0)
    return {name: values[0] for name, values in history.history.items()}


OPTIMIZERS = {
    "sgd": (lambda: keras.optimizers.SGD(0.5), 1e-6),
    "adam": (lambda: Adam(0.01, beta_2=0.98, epsilon=1e-9), 1e-4),
    "clipped": (lambda: keras.optimizers.SGD(0.5, global_clipnorm=0.1), 1e-6),
    "decayed": (lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1), 1e-4),
}


@functools.cache
def whole(name):
    """Weights and logs of ten steps on one device with whole batches."""
    model, logs = fit(one_device(), BATCHES, OPTIMIZERS[name][0])
    return {weight.path: weight.numpy() for weight in model.weights}, logs


slow = functools.partial(pytest.param, marks=pytest.mark.very_slow)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("name", "strategy", "micro_batches", "towers"),
    [
        ("sgd", two_devices, 0, 1),
        slow("sgd", one_device, 4, 1),
        slow("sgd", two_devices, 4, 1),
        slow("adam", two_devices, 0, 1),
        slow("adam", one_device, 4, 1),
        ("adam", two_devices, 4, 1),
        slow("clipped", two_devices, 4, 1),
        slow("decayed", two_devices, 0, 1),
        ("sgd", one_device, 0, 3),  # of a batch of one row, two towers are empty
        slow("adam", one_device, 0, 2),
        slow("adam", one_device, 2, 2),
        slow("clipped", two_devices, 0, 2),
    ],
)
def test_ten_steps_are_those_of_one_device_with_whole_batches(name, strategy, micro_batches, towers):
    optimizer, tolerance = OPTIMIZERS[name]
    weights, logs = whole(name)
    parted, found = fit(strategy(), BATCHES, optimizer, micro_batches=micro_batches, towers=towers)
    for weight in parted.weights:
        np.testing.assert_allclose(
            weight.numpy(), weights[weight.path], atol=tolerance, rtol=0, err_msg=weight.path
        )
    for key in ("loss", "token_accuracy", "perplexity", "gradient_norm", "target_tokens", "source_tokens"):
        assert found[key] == pytest.approx(logs[key], rel=1e-5), key
    assert (found["steps"], found["skipped"]) == (10, 0)


def gradients(strategy, batches, *, micro_batches=0):
    """The gradient of each batch at the same weights: what a momentum of nothing becomes."""
    model = make_model(strategy, lambda: keras.optimizers.SGD(1.0, momentum=0.5))
    weights = [weight.numpy() for weight in model.weights]
    slots = [variable for variable in model.optimizer.variables if "momentum" in variable.path]
    assert len(slots) == len(model.trainable_variables)
    found = []
    for batch in batches:
        model.set_weights(weights)
        for slot in slots:
            slot.assign(np.zeros(slot.shape, "float32"))
        fit_on(model, strategy, [batch], micro_batches)
        found.append(np.concatenate([slot.numpy().ravel() for slot in slots]))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("micro_batches", [pytest.param(0, marks=pytest.mark.very_slow), 4])
def test_the_gradient_is_that_of_one_device(micro_batches):
    batches = [rows(5, lengths) for lengths in UNEVEN]
    ours = gradients(two_devices(), batches, micro_batches=micro_batches)
    for two, one in zip(ours, gradients(one_device(), batches), strict=True):
        assert np.linalg.norm(two - one) <= 1e-6 * np.linalg.norm(one)
        assert np.linalg.norm(one) > 0.1


def test_what_is_shown_is_counted_by_hand():
    model, found = fit(two_devices(), BATCHES[:4], lambda: keras.optimizers.SGD(1e-9))
    losses, right, tokens = [], 0, 0
    for (source, target), labels in BATCHES[:4]:
        logits = model((source, target), training=False).numpy().astype("float64")
        log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        for row, its in zip(labels, log_p, strict=True):
            for label, scores in zip(row, its, strict=True):
                if label != PAD:
                    others = scores.sum() - scores[label]
                    losses.append(-0.9 * scores[label] - 0.1 / (VOCAB - 1) * others)
                    right += scores.argmax() == label
                    tokens += 1
    assert tokens == sum(map(sum, UNEVEN)) == found["target_tokens"]
    assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert found["token_accuracy"] == pytest.approx(right / tokens, rel=1e-6)
    assert found["source_tokens"] == SOURCE_LEN * sum(map(len, UNEVEN))
    assert found["positions"] >= (SOURCE_LEN + TARGET_LEN) * sum(map(len, UNEVEN))


def logs_of_each_step(model, dataset, **arguments):
    seen = []
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(dict(logs)))
    model.fit(dataset, shuffle=False, verbose=0, callbacks=[callback], **arguments)
    return seen


@pytest.mark.slow
def test_every_step_shows_the_mean_so_far_of_all_replicas():
    shown = []
    for strategy in (one_device(), two_devices()):
        model = make_model(strategy, lambda: keras.optimizers.SGD(0.1))
        count = tf.data.experimental.assert_cardinality(4)
        shown.append(logs_of_each_step(model, stream(BATCHES[:4]).apply(count)))
    for one, other in zip(*shown, strict=True):
        for name in ("loss", "token_accuracy", "steps", "target_tokens", "gradient_norm"):
            assert other[name] == pytest.approx(one[name], rel=1e-5), name
    assert [step["steps"] for step in shown[1]] == pytest.approx([1, 2, 3, 4])


@pytest.mark.very_slow
def test_inf_on_one_replica_changes_nothing_anywhere():
    model = make_model(two_devices(), lambda: keras.optimizers.Adam(0.1), ema_decay=0.5)
    embedding = model.source_embedding.embeddings
    spoiled = embedding.numpy()
    spoiled[20] = np.inf  # a token of the second row only: of the second replica
    embedding.assign(spoiled)
    (source, target), labels = rows(1, (3, 3))
    source = np.where(source == 20, 5, source)
    target, labels = (np.where(ids == 20, 5, ids) for ids in (target, labels))
    source[1, 2] = 20
    before = [variable.numpy() for variable in (*model.trainable_variables, *model.optimizer.variables[2:])]
    averages = [average.numpy() for average in model.ema_weights]
    (shown,) = logs_of_each_step(model, stream([((source, target), labels)]), steps_per_epoch=1)
    assert (shown["steps"], shown["skipped"]) == (1, 1)
    assert np.isfinite(shown["loss"])
    for variable, value in zip(
        (*model.trainable_variables, *model.optimizer.variables[2:]), before, strict=True
    ):
        for local in tf.distribute.get_strategy().experimental_local_results(variable.value):
            np.testing.assert_array_equal(local.numpy(), value, err_msg=variable.path)
    for average, value in zip(model.ema_weights, averages, strict=True):
        np.testing.assert_array_equal(average.numpy(), value)
    assert int(model.optimizer.iterations.numpy()) == 1


def masks(strategy, seed):
    """What dropout leaves of ones, on each replica."""
    with strategy.scope():
        layer = Dropout(0.5, seed=seed)

    @tf.function
    def draw():
        return strategy.run(lambda: layer(tf.ones((31, 7)), training=True))

    return [[each.numpy() for each in strategy.experimental_local_results(draw())] for _ in range(2)]


@pytest.mark.slow
def test_replicas_draw_masks_of_their_own_and_the_same_ones_again():
    first, second = masks(two_devices(), 3)
    again, _ = masks(two_devices(), 3)
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first[0], second[0])
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)
    for mask in first:
        assert 0.3 < (mask == 0).mean() < 0.7


def test_towers_draw_masks_of_their_own():
    twice = [np.repeat(side, 2, axis=0) for side in keras.tree.flatten(rows(3, (7,)))]  # the same row twice
    batch = (twice[0], twice[1]), twice[2]
    found = {}
    for dropout in (0.0, 0.5):
        for _ in range(2):
            model = make_model(one_device(), lambda: keras.optimizers.SGD(1.0), dropout=dropout, towers=2)
            seen = []
            compute = model._tower_gradients

            def kept(*arguments, compute=compute, seen=seen):
                results = compute(*arguments)
                seen.append(results[1].statistics.loss)
                return results

            model._tower_gradients = kept
            model.run_eagerly = True
            model.train_on_batch(*batch)
            found.setdefault(dropout, []).append([float(loss) for loss in seen])
    (one, other), *_ = found[0.0]
    assert one == pytest.approx(other, rel=1e-6)  # the towers have the same row
    for one, other in found[0.5]:
        assert abs(one - other) > 1e-3
    assert found[0.5][0] == found[0.5][1]


@pytest.mark.slow
def test_the_towers_of_a_graph_do_not_wait_for_each_other():
    model = make_model(one_device(), lambda: keras.optimizers.SGD(1.0), dropout=0.1, towers=2)
    ids = tf.TensorSpec((None, None), tf.int32)

    @tf.function(input_signature=[ids, ids, ids])
    def step(source, target, labels):
        return model.train_step(((source, target), labels))["loss"]

    operations = step.get_concrete_function().graph.get_operations()
    products = [operation for operation in operations if operation.type == "MatMul"]
    first, last = products[0], products[-1]  # of the first tower, and of the second
    seen, waiting = set(), [last]
    while waiting:
        operation = waiting.pop()
        if operation.name not in seen:
            seen.add(operation.name)
            waiting += [tensor.op for tensor in operation.inputs] + list(operation.control_inputs)
    assert first.name not in seen
    assert sum(product.name in seen for product in products) < len(products) / 2 + 1


@pytest.mark.parametrize("how", [{"towers": 0}, {"towers": 2, "jit_compile": True}])
def test_towers_that_cannot_be_are_refused(how):
    with pytest.raises(ValueError, match="`towers` must be at least 1, and 1 with `jit_compile`"):
        make_model(one_device(), lambda: keras.optimizers.SGD(1.0), **how)


@pytest.mark.slow
def test_models_of_two_sizes_train_one_after_the_other_in_one_process():
    # Under a second strategy TensorFlow aborts: "Shape mismatch in the collective instance".
    for width in (3, 5):
        with two_devices().scope():
            model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(width), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        history = model.fit(np.ones((4, 2)), np.zeros((4, 1)), batch_size=4, verbose=0).history
        assert np.isfinite(history["loss"][0])
    assert two_devices() is two_devices()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [one_device, two_devices])
def test_the_moving_average_follows_the_weights(strategy):
    model = make_model(strategy(), lambda: keras.optimizers.SGD(0.5), ema_decay=0.75)
    expected = [weight.numpy().astype("float64") for weight in model.trainable_variables]
    for batch in BATCHES[:3]:
        model.fit(stream([batch]), steps_per_epoch=1, shuffle=False, verbose=0)
        expected = [
            0.75 * old + 0.25 * weight.numpy()
            for old, weight in zip(expected, model.trainable_variables, strict=True)
        ]
    for average, value in zip(model.ema_weights, expected, strict=True):
        np.testing.assert_allclose(average.numpy(), value, atol=1e-6)


@pytest.mark.parametrize(("strategy", "micro_batches"), [slow(one_device, 2), (two_devices, 0)])
@pytest.mark.very_slow
def test_xla_gives_the_same_steps(strategy, micro_batches):
    optimizer = OPTIMIZERS["sgd"][0]
    same_shape = [rows(seed, (7, 3, 6, 1)) for seed in range(3)]
    plain, _ = fit(one_device(), same_shape, optimizer)
    compiled, _ = fit(strategy(), same_shape, optimizer, micro_batches=micro_batches, jit_compile=True)
    for one, other in zip(plain.weights, compiled.weights, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), atol=1e-6, err_msg=one.path)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [one_device, slow(two_devices)])
@pytest.mark.parametrize("micro_batches", [0, slow(4)])
@pytest.mark.parametrize("dtype", ["float32", slow("mixed_bfloat16")])
def test_steps_computed_again_for_the_gradient_are_the_same(strategy, micro_batches, dtype):
    how = {"micro_batches": micro_batches, "dtype": dtype, "dropout": 0.3}
    kept, again = (
        fit(strategy(), BATCHES[:4], OPTIMIZERS["adam"][0], recompute=recompute, **how)[0]
        for recompute in (False, True)
    )
    for one, other in zip(kept.weights, again.weights, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), atol=1e-5, err_msg=one.path)


@pytest.mark.very_slow
def test_dropout_compiles_with_xla_and_drops_the_same():
    same_shape = [rows(seed, (7, 3, 6, 1)) for seed in range(3)]
    plain, compiled = (
        fit(one_device(), same_shape, OPTIMIZERS["sgd"][0], dropout=0.3, jit_compile=jit)[0]
        for jit in (False, True)
    )
    for one, other in zip(plain.weights, compiled.weights, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), atol=1e-5, err_msg=one.path)


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.very_slow
def test_half_precision_trains_on_one_device(precision):
    model = make_model(one_device(), lambda: keras.optimizers.Adam(0.01), dtype=precision)
    plain = make_model(one_device(), lambda: keras.optimizers.Adam(0.01))
    found = [
        logs_of_each_step(each, stream(BATCHES[:1]).repeat(), steps_per_epoch=8) for each in (model, plain)
    ]
    for ours, exact in zip(*found, strict=True):
        assert ours["loss"] == pytest.approx(exact["loss"], rel=0.03)
        assert ours["gradient_norm"] == pytest.approx(exact["gradient_norm"], rel=0.2)
    assert found[0][-1]["loss"] < found[0][0]["loss"] - 0.1
    assert int(model.optimizer.iterations.numpy()) == 8
    assert all(weight.dtype == "float32" for weight in model.trainable_variables)


@pytest.mark.very_slow
def test_an_overflow_of_float16_is_skipped_counted_and_lowers_the_scale():
    model = make_model(one_device(), lambda: keras.optimizers.Adam(0.01), dtype="mixed_float16")
    model.optimizer.dynamic_scale.assign(2.0**100)
    before = [weight.numpy() for weight in model.trainable_variables]
    (shown,) = logs_of_each_step(model, stream(BATCHES[:1]), steps_per_epoch=1)
    assert (shown["steps"], shown["skipped"]) == (1, 1)
    assert float(model.optimizer.dynamic_scale) == 2.0**99
    assert int(model.optimizer.iterations.numpy()) == 1
    for weight, value in zip(model.trainable_variables, before, strict=True):
        np.testing.assert_array_equal(weight.numpy(), value)


@pytest.mark.slow
def test_what_keras_gets_wrong_is_refused_with_the_reason():
    strategy = two_devices()
    for optimizer, reason in (
        (lambda: keras.optimizers.SGD(gradient_accumulation_steps=2), "keras#20582.*micro_batches"),
        (lambda: keras.optimizers.SGD(use_ema=True), "keras#20582.*ema_decay"),
    ):
        with pytest.raises(ValueError, match=reason):
            make_model(strategy, optimizer)
    with pytest.raises(ValueError, match="overflow on another.*mixed_bfloat16"):
        make_model(strategy, keras.optimizers.SGD, dtype="mixed_float16")


def traces(model, dataset, epochs, steps):
    """How often the training step is traced in so many epochs."""
    count = 0
    step = model.train_step

    def counted(data):
        nonlocal count
        count += 1
        return step(data)

    model.train_step = counted
    for _ in range(epochs):
        model.fit(dataset, steps_per_epoch=steps, shuffle=False, verbose=0)
    return count


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [one_device, two_devices])
def test_the_step_is_traced_once_for_all_lengths(strategy):
    rng = np.random.default_rng(4)
    longest = [
        tuple(rng.integers(4, VOCAB, (rows_, length), dtype="int32") for length in (source, target, target))
        for rows_, source, target in ((8, 3, 5), (16, 7, 2), (8, 11, 13), (24, 2, 3))
    ]
    strategy = strategy()
    model = make_model(strategy, lambda: keras.optimizers.SGD(0.1))
    dataset = stream([((s, t), y) for s, t, y in longest]).repeat()
    # A replica is traced by itself.
    assert traces(model, dataset, 3, 4) <= 2 * strategy.num_replicas_in_sync


def test_private_parts_of_keras_that_the_step_replaces_are_still_there():
    trainer = inspect.getsource(keras.Model.fit)
    assert "_maybe_symbolic_build" in trainer
    for make in (keras.Model.make_train_function, keras.Model.make_test_function):
        assert "_make_function" in inspect.getsource(make)
    assert callable(keras.optimizers.Adam()._use_weight_decay)
    assert list(inspect.signature(keras.optimizers.Adam.update_step).parameters) == [
        "self", "gradient", "variable", "learning_rate",
    ]  # fmt: skip
