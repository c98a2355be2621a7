"""The fast form of every kernel against its plain form: values and gradients, also at odd sizes."""

import importlib
import os
import pathlib
import pkgutil
import subprocess
import sys
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import ModelConfig
from keras_transformer.model import kernels
from keras_transformer.model.kernels import products
from keras_transformer.model.kernels.attention import masked_softmax, scaled_scores
from keras_transformer.model.kernels.basics import (
    adam_update,
    add_bias,
    copies,
    dropout,
    layer_norm,
    rms_norm,
)
from keras_transformer.model.kernels.losses import projected_losses, token_losses
from keras_transformer.model.kernels.products import product, transposed_copies
from keras_transformer.model.kernels.switch import (
    decoding_step,
    reading_copies,
    uses_fast_forms,
    without_gradients,
)
from keras_transformer.model.kernels.tensor_ops import (
    add_to_rows,
    owned,
    reads_matrices_in_place,
    set_rows,
    take_along,
)
from keras_transformer.model.transformer import Transformer

BATCH, HEADS, TARGET, SOURCE, D_MODEL, D_FF, VOCAB, TOKENS = 2, 3, 5, 7, 13, 29, 23, 11
RNG = np.random.default_rng(0)
TOLERANCE = {"float32": 1e-5, "bfloat16": 0.02}  # of the largest element


def normal(*shape):
    return RNG.normal(size=shape).astype("float32")


def some_hidden(*shape):
    """A mask that hides a third, with one row that shows nothing."""
    mask = RNG.random(shape) < 0.7
    mask[..., 0] = True
    mask[-1, -1] = False
    return mask


@pytest.mark.parametrize("shape", [(4, 9), (4, 9, 3), (4, 9, 3, 2)])
def test_elements_of_rows_are_the_same_on_another_backend(shape, monkeypatch):
    x, indices = normal(*shape), RNG.integers(0, shape[1], (4, 5), dtype="int32")
    wanted = np.stack([row[index] for row, index in zip(x, indices, strict=True)])
    np.testing.assert_array_equal(take_along(x, indices), wanted)
    monkeypatch.setattr(keras.backend, "backend", lambda: "another")
    np.testing.assert_array_equal(take_along(x, indices), wanted)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_rows_are_written_in_memory_of_their_own(dtype):
    @tf.function(autograph=False)
    def compute():
        zeros = tf.zeros((7, 3), dtype)  # a constant, which TensorFlow keeps from call to call
        first = add_to_rows(zeros, [5, 2, 5], tf.ones((3, 3), dtype))
        second = set_rows(owned(zeros), [1], tf.fill((1, 3), tf.constant(4, dtype)))
        return zeros, first, second

    for _ in range(2):
        found = [tf.cast(each, tf.float32).numpy()[:, 0].tolist() for each in compute()]
        assert found == [[0.0] * 7, [0.0, 0.0, 1.0, 0.0, 0.0, 2.0, 0.0], [0.0, 4.0, 0.0, 0.0, 0.0, 0.0, 0.0]]


def first_of(compute, *inputs, **others):
    return compute(*inputs, **others)[0]


def embed_and_project(compute, matrix):
    """Uses of a matrix as a model has them, of which one lookup is not made."""
    output, source, _ = compute(matrix, 3)
    return tf.matmul(HIDDEN, output, transpose_b=True), tf.gather(source, [[4, 10, 4], [22, 0, 4]])


class Case(NamedTuple):
    """A call of a kernel.

    Attributes:
        inputs: float arrays, which have gradients.
        others: dict of what else it takes.
        half: which of `inputs` are bfloat16 under mixed precision; none where it computes in float32 always.
        use: function of a form, the inputs and the others.
    """

    kernel: object
    inputs: tuple
    others: dict
    half: tuple = ()
    use: object = lambda compute, *inputs, **others: compute(*inputs, **others)


HIDDEN = normal(TOKENS, D_MODEL)
SCORES = 3 * normal(BATCH, HEADS, TARGET, SOURCE)
LABELS = np.array([4, 10, 4, 22, 7, 9, 3, 4, 2, 2, 0], "int32")
MATRIX = normal(VOCAB, D_MODEL)
TARGETS = {e: {"labels": LABELS, "p_label": 1 - e, "p_other": e / (VOCAB - 1)} for e in (0.0, 0.1)}
QUERY_KEY = normal(BATCH, HEADS, TARGET, D_MODEL), normal(BATCH, HEADS, SOURCE, D_MODEL)
NORM = normal(D_MODEL), normal(D_MODEL)
CAUSAL = np.tril(np.ones((1, TARGET, SOURCE), bool))
LOGITS = 3 * normal(TOKENS, VOCAB)


def token_case(smoothing):
    def use(compute, logits, *, labels, **targets):
        return compute(labels, logits, **targets)[0]

    return Case(token_losses, (LOGITS,), TARGETS[smoothing], use=use)


def projected_case(smoothing, has_bias, transposed):
    def use(compute, hidden, matrix, bias=None, *, labels, **targets):
        return compute(labels, hidden, matrix, bias, **targets, transposed=transposed)[0]

    inputs = HIDDEN, MATRIX.T if transposed else MATRIX, *([normal(VOCAB)] if has_bias else [])
    return Case(projected_losses, inputs, TARGETS[smoothing], half=(0,), use=use)


CASES = [
    *(Case(scaled_scores, QUERY_KEY, {"training": training}, half=(0, 1)) for training in (False, True)),
    Case(masked_softmax, (SCORES,), {}),
    Case(masked_softmax, (SCORES[..., :1],), {}),
    *(
        Case(masked_softmax, (SCORES,), {"mask": some_hidden(*shape)})
        for shape in ((BATCH, TARGET, SOURCE), (BATCH, 1, SOURCE), (1, TARGET, SOURCE), (1, 1, SOURCE))
    ),
    Case(masked_softmax, (SCORES,), {"mask": CAUSAL, "no_empty_rows": True}),
    Case(product, (HIDDEN, normal(D_MODEL, D_FF)), {}, half=(0, 1)),
    Case(product, (normal(TOKENS, D_FF), normal(D_FF, D_MODEL)), {}, half=(0, 1)),
    Case(product, (HIDDEN, MATRIX), {"transposed": True}, half=(0, 1)),
    Case(add_bias, (HIDDEN, normal(D_MODEL)), {}, half=(0, 1)),
    Case(layer_norm, (3 * normal(BATCH, TARGET, D_MODEL) + 7, *NORM), {"epsilon": 1e-3}),
    Case(layer_norm, (HIDDEN, *NORM), {"epsilon": 1e-6}),
    Case(rms_norm, (3 * normal(BATCH, TARGET, D_MODEL) + 7, NORM[0]), {"epsilon": 1e-3}),
    Case(rms_norm, (HIDDEN, NORM[0]), {"epsilon": 1e-6}),
    Case(copies, (MATRIX,), {}, use=embed_and_project),
    *map(token_case, TARGETS),
    *(projected_case(e, bias, side) for e in TARGETS for bias in (False, True) for side in (False, True)),
]
# Cases of their own: one draws random numbers, one changes variables.
OTHERS = {dropout, adam_update}


def values_and_gradients(compute, case, dtype, in_graph):
    inputs = [
        tf.cast(each, dtype if number in case.half else "float32") for number, each in enumerate(case.inputs)
    ]

    def run(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            values = tf.nest.flatten(case.use(compute, *inputs, **case.others))
        upstream = [
            tf.cast(np.random.default_rng(1).normal(size=value.shape), value.dtype) for value in values
        ]
        return values, tape.gradient(values, inputs, upstream, unconnected_gradients="zero")

    return tf.nest.flatten((tf.function(run, autograph=False) if in_graph else run)(*inputs))


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize(
    ("number", "dtype"),
    [(i, dtype) for i, case in enumerate(CASES) for dtype in TOLERANCE if case.half or dtype == "float32"],
    ids=lambda value: f"{CASES[value].kernel.__name__}-{value}" if isinstance(value, int) else value,
)
def test_values_and_gradients_are_those_of_the_formula(number, dtype, in_graph):
    case = CASES[number]
    fast, plain = (
        values_and_gradients(form, case, dtype, in_graph) for form in (case.kernel.fast, case.kernel.plain)
    )
    for one, other in zip(fast, plain, strict=True):
        assert one.dtype == other.dtype
        one, other = (tf.convert_to_tensor(x) for x in (one, other))
        one, other = (tf.cast(x, "float64").numpy() for x in (one, other))
        np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE[dtype] * np.abs(other).max() + 1e-30)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("rows", [1, 16, 17])
@pytest.mark.parametrize(("features", "units", "transposed"), [(97, 43, False), (43, 97, True)])
def test_few_rows_of_a_decoding_step_are_multiplied_by_the_halves_of_a_matrix(
    monkeypatch, dtype, rows, features, units, transposed
):
    monkeypatch.setattr(products, "LARGE_MATRIX", 97 * 43)
    x, weights = normal(rows, features), normal(97, 43)
    halves, shapes = products._halves, []
    monkeypatch.setattr(products, "_halves", lambda *args: shapes.append(args[0].shape) or halves(*args))
    specs = [tf.TensorSpec((None, features), dtype), tf.TensorSpec((97, 43), dtype)]
    compute = tf.function(lambda x, w: product(x, w, transposed=transposed), specs, autograph=False)
    wanted = x @ (weights.T if transposed else weights)
    with decoding_step():
        found = tf.cast(compute(tf.cast(x, dtype), tf.cast(weights, dtype)), "float32").numpy()
        assert len(shapes) == 1  # in the graph, for whatever number of rows comes
        eager = product(tf.constant(x), tf.constant(weights), transposed=transposed)
        assert len(shapes) == (2 if rows <= products.FEW_ROWS else 1)
    for each in (found, eager.numpy()):
        np.testing.assert_allclose(each, wanted, rtol=0, atol=2 * TOLERANCE[dtype] * np.abs(wanted).max())
    product(tf.constant(x), tf.constant(weights), transposed=transposed)  # not in a step
    monkeypatch.setattr(products, "LARGE_MATRIX", 97 * 43 + 1)
    with decoding_step():
        product(tf.constant(x), tf.constant(weights), transposed=transposed)
    assert len(shapes) == (2 if rows <= products.FEW_ROWS else 1)


@pytest.fixture
def copied(monkeypatch):
    """Copies matrices as on a CPU without AVX-512; a list of the results."""
    monkeypatch.setattr(products, "reads_matrices_in_place", lambda: True)
    monkeypatch.setattr(products, "LARGE_MATRIX", 3 * 512)


def matrix(rows, columns):
    return keras.Variable(normal(rows, columns))


def test_matrices_whose_rows_conflict_in_the_cache_are_copied_for_a_search(copied, monkeypatch):
    matrices = [matrix(3, 512), matrix(5, 1024), matrix(7, 511), matrix(512, 512)]
    for rows, heights in ((products.COPIED_FROM_ROWS, [0, 0]), (products.COPIED_FROM_ROWS + 1, [512, 1024])):
        found = transposed_copies(matrices, tf.constant(rows))
        assert list(found) == [id(matrices[0]), id(matrices[1])]
        assert [copy.shape[0] for copy in found.values()] == heights
    for one, copy in zip(matrices[:2], found.values(), strict=True):
        np.testing.assert_array_equal(copy, one.numpy().T)
    with without_gradients():
        assert transposed_copies(matrices, 100) == {}  # the graph may run on any machine
    monkeypatch.setattr(products, "MAX_COPIED_ELEMENTS", 3 * 512 + 5 * 1024 - 1)
    assert transposed_copies(matrices, 100) == {}
    monkeypatch.setattr(products, "MAX_COPIED_ELEMENTS", 3 * 512 + 5 * 1024)
    assert len(transposed_copies(matrices, 100)) == 2
    monkeypatch.setattr(products, "reads_matrices_in_place", lambda: False)
    assert transposed_copies(matrices, 100) == {}


@pytest.mark.parametrize("start", [products.COPIED_FROM_ROWS, products.COPIED_FROM_ROWS + 1])
@pytest.mark.parametrize("rows", [products.FEW_ROWS, products.FEW_ROWS + 1, 43])
def test_a_step_multiplies_many_rows_by_the_copy(copied, rows, start):
    weights, x = matrix(67, 512), normal(rows, 67)
    read = []

    @tf.function(input_signature=[tf.TensorSpec((None, 67)), tf.TensorSpec((), "int32")])
    def compute(x, start):
        # Twice the copy, to see whether it was read.
        copies = {key: 2 * copy for key, copy in transposed_copies([weights], start).items()}
        with decoding_step(), reading_copies(copies):
            read.append(product(x, weights))
        return read[-1]

    factor = 2 if rows > products.FEW_ROWS and start > products.COPIED_FROM_ROWS else 1
    wanted = factor * (x @ weights.numpy())
    found = compute(x, start).numpy()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2 * TOLERANCE["float32"] * np.abs(wanted).max())
    assert read[0].shape == (None, 512)


@pytest.fixture
def padded(monkeypatch):
    """Pads as on a CPU without AVX-512; a list of the shapes of all padded products."""
    monkeypatch.setattr(products, "reads_matrices_in_place", lambda: True)
    shapes, concat = [], tf.concat

    def keep(parts, axis):
        if axis == 1:
            shapes.append([part.shape[1] for part in parts])
        return concat(parts, axis)

    monkeypatch.setattr(tf, "concat", keep)
    return shapes


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize(
    ("features", "units", "widths"),
    [
        (256, 29, [256]),
        (29, 512, [512]),
        (512, 256, [512, 256]),
        (13, 8192, [8192]),
        (13, 8448, []),  # the probabilities of a vocabulary would take much memory twice
        (255, 29, []),
        (768, 768, []),  # oneDNN copies the operands itself
    ],
)
def test_the_gradient_of_weights_by_padded_operands_is_the_product(padded, features, units, widths, in_graph):
    x, weights, upstream = normal(TOKENS, features), normal(features, units), normal(TOKENS, units)

    def gradients(x, weights, upstream):
        with tf.GradientTape() as tape:
            tape.watch([x, weights])
            result = product(x, weights)
        return result, *tape.gradient(result, [x, weights], upstream)

    if in_graph:
        specs = [(None, features), (features, units), (None, units)]
        gradients = tf.function(gradients, [tf.TensorSpec(shape) for shape in specs], autograph=False)
    found = gradients(*map(tf.constant, (x, weights, upstream)))
    assert padded == [[width, 16] for width in widths]
    for one, wanted in zip(found, [x @ weights, upstream @ weights.T, x.T @ upstream], strict=True):
        np.testing.assert_allclose(one, wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())


def test_operands_are_padded_where_it_pays_only(padded, monkeypatch):
    def trace(dtype="float32", transposed=False):
        x, weights = (tf.cast(normal(3, 256), dtype) for _ in range(2))
        with tf.GradientTape() as tape:
            tape.watch(weights)
            result = product(x, weights if transposed else tf.transpose(weights), transposed=transposed)
        tape.gradient(result, weights)
        found, padded[:] = len(padded), []
        return found

    assert trace() == 1
    assert trace("bfloat16") == 0
    assert trace(transposed=True) == 0
    with decoding_step():
        assert trace() == 0
    monkeypatch.setattr(products, "on_cpu", lambda: False)
    assert trace() == 0
    monkeypatch.setattr(products, "on_cpu", lambda: True)
    monkeypatch.setattr(products, "reads_matrices_in_place", lambda: False)
    assert trace() == 0


@pytest.mark.parametrize("transposed", [False, True])
def test_the_loss_has_the_gradient_of_its_matrix_by_padded_operands(padded, transposed):
    hidden, matrix = normal(TOKENS, 256), normal(VOCAB, 256) / 16
    inputs = [tf.constant(hidden), tf.constant(matrix.T if transposed else matrix)]
    found = []
    for form in (projected_losses, projected_losses.plain):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            losses = form(tf.constant(LABELS), *inputs, None, 0.9, 0.1 / (VOCAB - 1), transposed=transposed)
            total = tf.reduce_sum(losses[0])
        found.append([total, *tape.gradient(total, inputs)])
    assert [256, 16] in padded
    for one, wanted in zip(*found, strict=True):
        np.testing.assert_allclose(one, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("fma avx avx2", True), ("avx2 avx512f avx512bw", False), ("fp asimd", False), (None, False)],
)
def test_cpus_without_avx512_read_matrices_in_place(tmp_path, flags, expected):
    path = tmp_path / "cpuinfo"
    if flags:
        path.write_text(f"processor : 0\nflags\t\t: fpu {flags} bmi2\n\n")
    assert reads_matrices_in_place(str(path)) is expected


def names_before(operation):
    """Names of the operations that must end before this one begins."""
    inputs = [tensor.op for tensor in operation.inputs] + list(operation.control_inputs)
    return {each.name for each in inputs}.union(*map(names_before, inputs))


def test_the_halves_of_a_product_do_not_wait_for_each_other():
    weights, x = tf.constant(normal(97, 43)), tf.constant(normal(3, 97))
    for transposed in (False, True):
        rows = x if not transposed else x[:, :43]
        halves = tf.function(lambda x, w=transposed: products._halves(x, weights, w))
        graph = halves.get_concrete_function(rows)
        one, other = (op for op in graph.graph.get_operations() if op.type == "MatMul")
        assert other.name not in names_before(one)
        assert one.name not in names_before(other)
        assert sorted([one.inputs[1].shape[0], other.inputs[1].shape[0]]) == [32, 65]


@pytest.mark.slow
def test_only_the_large_products_of_a_decoding_step_have_halves(monkeypatch):
    monkeypatch.setattr(products, "LARGE_MATRIX", 12 * 29)
    seen = []
    halves = products._halves
    monkeypatch.setattr(products, "_halves", lambda *args: seen.append(args[1].shape) or halves(*args))
    config = ModelConfig(
        source_vocab_size=VOCAB,
        target_vocab_size=VOCAB,
        num_encoder_layers=1,
        num_decoder_layers=1,
        d_model=12,
        num_heads=3,
        d_ff=29,
    )
    model = Transformer(config)
    ids = tf.constant(RNG.integers(4, VOCAB, (2, 5)), "int32")
    model((ids, ids), training=True)
    assert not seen
    encoded = model.encode(ids)
    state = model.start(encoded, max_length=3, num_hypotheses=2)
    step = tf.function(model.step, autograph=False)
    logits = step(tf.constant([4, 5, 6, 7]), tf.constant(0), state).logits
    assert [tuple(shape) for shape in seen] == [(12, 29), (29, 12)]  # the embeddings are smaller
    monkeypatch.setattr(products, "LARGE_MATRIX", 2**18)
    plain = tf.function(model.step, autograph=False)(tf.constant([4, 5, 6, 7]), tf.constant(0), state).logits
    np.testing.assert_allclose(logits, plain, rtol=0, atol=1e-5)


def test_every_kernel_is_compared():
    modules = [
        importlib.import_module(f"{kernels.__name__}.{module.name}")
        for module in pkgutil.iter_modules(kernels.__path__)
    ]
    known = {value for module in modules for value in vars(module).values() if hasattr(value, "fast")}
    assert known == {case.kernel for case in CASES} | OTHERS


@pytest.mark.parametrize("compute", [dropout.plain, dropout.fast])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_both_forms_of_dropout_drop_a_share_and_divide_by_the_rest(compute, dtype, rate):
    # They draw other random numbers, so what must be equal is what is done with them.
    inputs = tf.cast(RNG.normal(size=(509, 257)) + 9, dtype)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = compute(inputs, rate, tf.constant([3, 4]))
    gradient = tf.cast(tape.gradient(outputs, inputs), "float32").numpy()
    kept = tf.cast(outputs, "float32").numpy() != 0
    assert abs(kept.mean() - (1 - rate)) < 5 * (rate * (1 - rate) / kept.size) ** 0.5
    tolerance = 1e-4 if dtype == "float32" else 0.01
    np.testing.assert_allclose(gradient, kept / (1 - rate), rtol=tolerance)
    wanted = gradient * tf.cast(inputs, "float32").numpy()
    np.testing.assert_allclose(tf.cast(outputs, "float32"), wanted, rtol=tolerance)
    np.testing.assert_array_equal(compute(inputs, rate, tf.constant([3, 4])), outputs)


@pytest.mark.parametrize("rate", [0.1, 0.3, 1 / 65536, 0.999999])
def test_fast_dropout_is_scaled_for_the_share_that_16_bits_can_give(rate):
    kept = dropout.fast(tf.ones((509, 257)), rate, tf.constant([3, 0])).numpy()
    number = min(round(rate * 65536), 65535)
    np.testing.assert_allclose(kept[kept > 0], 65536 / (65536 - number), rtol=1e-6)
    assert abs(number / 65536 - rate) <= 1 / 65536


def test_both_forms_of_adam_move_weights_and_state_alike():
    def moved(update):
        variables = [tf.Variable(array) for array in (MATRIX, np.zeros_like(MATRIX), np.zeros_like(MATRIX))]
        for step in range(1, 8):
            gradient = np.random.default_rng(step).normal(size=MATRIX.shape).astype("float32")
            how = {"rate": tf.constant(0.01 * step), "step": tf.constant(float(step))}
            update(*variables, tf.constant(gradient), **how, beta_1=0.9, beta_2=0.98, epsilon=1e-9)
        return variables

    for fast, plain in zip(moved(adam_update.fast), moved(adam_update.plain), strict=True):
        np.testing.assert_allclose(fast, plain, rtol=1e-5, atol=1e-6)


def weights_after_a_step():
    """Weights of a small model after one step, and the types of the operations of its graph."""
    sizes = {"source_vocab_size": VOCAB, "target_vocab_size": VOCAB, "d_model": 12, "d_ff": 17}
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1, "num_heads": 3}
    no_dropout = {"residual_dropout": 0.0, "embedding_dropout": 0.0}
    model = Transformer(ModelConfig(**sizes, **layers, **no_dropout))
    rng = np.random.default_rng(1)
    model.set_weights([rng.normal(0, 0.3, weight.shape) for weight in model.weights])
    model.compile(keras.optimizers.SGD(1.0))
    source, target, labels = (rng.integers(1, VOCAB, (3, n), dtype="int32") for n in (7, 5, 5))
    source[0, 3:], labels[1, 2:] = 0, 0
    model.train_on_batch((source, target), labels)
    return model.get_weights(), {operation.type for operation in operations(model, (source, target))}


@pytest.mark.slow
def test_the_variable_chooses_for_a_whole_training_step(monkeypatch):
    def trained(form):
        monkeypatch.setenv("KERAS_TRANSFORMER_KERNELS", form)
        assert uses_fast_forms() == (form == "fast")
        return weights_after_a_step()

    (fast, fast_types), (plain, plain_types) = trained("fast"), trained("plain")
    for one, other in zip(fast, plain, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert fast_types != plain_types


@pytest.mark.slow
def test_a_training_step_by_padded_operands_is_that_without(padded, monkeypatch):
    monkeypatch.setattr(products, "_PADDED_MULTIPLE", 1)
    by_padded, _ = weights_after_a_step()
    # Both operands for four matrices of three attentions, two of two feed-forward networks, and the tied one.
    assert len(padded) >= 2 * (3 * 4 + 2 * 2 + 1)
    monkeypatch.setattr(products, "reads_matrices_in_place", lambda: False)
    for one, other in zip(by_padded, weights_after_a_step()[0], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def operations(model, inputs):
    graph = tf.function(lambda *ids: model(ids)).get_concrete_function(*map(tf.constant, inputs)).graph
    return graph.get_operations()


@pytest.mark.parametrize("form", ["", "slow", "Fast"])
def test_an_unknown_form_is_refused(monkeypatch, form):
    monkeypatch.setenv("KERAS_TRANSFORMER_KERNELS", form)
    with pytest.raises(ValueError, match=f"KERAS_TRANSFORMER_KERNELS must be fast or plain.*'{form}'"):
        uses_fast_forms()


@pytest.mark.slow
def test_other_tests_of_the_model_pass_with_the_plain_forms():
    refusal = "test_standard_training.py::test_an_id_outside_of_the_vocabulary_is_named[label--1]"
    chosen = "layers/test_layer_norm.py", "layers/test_feed_forward.py", "test_loss.py", refusal
    folder = pathlib.Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *(str(folder / each) for each in chosen)],
        env={**os.environ, "KERAS_TRANSFORMER_KERNELS": "plain"},
        cwd=folder.parents[1],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
