"""TensorFlow can compute training and search on a GPU: no operation on floats is left to the CPU.

An operation that has no kernel for GPUs in its type is computed on the CPU, after its inputs are copied
there: slow, and silent. TensorFlow's list of kernels is the same on a machine without a GPU.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import kernels
from test_departures import KINDS, model_with

from keras_transformer.config.settings import SearchConfig
from keras_transformer.model.loss import LabelSmoothedCrossEntropy
from keras_transformer.model.metrics import Perplexity, StepCounters, TokenAccuracy
from keras_transformer.model.optimizer import Adam
from keras_transformer.translation.ensemble import search_ids

# A graph takes seconds, so departures from the paper are tested with the slow tests.
of_kinds = pytest.mark.parametrize(
    "kind", ["", *(pytest.param(kind, marks=pytest.mark.very_slow) for kind in KINDS)]
)
LARGE = {tf.float32.as_datatype_enum, tf.bfloat16.as_datatype_enum, tf.float16.as_datatype_enum}


def has_gpu_kernel(op_type, types):
    """Whether a kernel for GPUs, or for any device, takes these types: dict of attributes such as `T`."""
    return any(
        all(
            types.get(one.name) in (None, *one.allowed_values.list.type)
            for one in kernel.constraint
            if one.HasField("allowed_values")
        )
        for kernel in kernels.get_registered_kernels_for_op(op_type).kernel
        if kernel.device_type in ("GPU", "DEFAULT")
    )


pytestmark = pytest.mark.skipif(
    not has_gpu_kernel("MatMul", {"T": tf.float32.as_datatype_enum}), reason="TensorFlow without GPU kernels"
)


def left_to_the_cpu(graph):
    """(operation, names of its types) of what has no kernel for GPUs, in a graph and its functions."""
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(node for one in definition.library.function for node in one.node_def)]
    typed = [
        (node.op, {name: value.type for name, value in node.attr.items() if value.type}) for node in nodes
    ]
    used = {(op, tuple(types.items())) for op, types in typed if LARGE & set(types.values())}
    return {
        (op, *(tf.dtypes.as_dtype(number).name for _, number in types))
        for op, types in used
        if not has_gpu_kernel(op, dict(types))
    }


@pytest.fixture(autouse=True)
def _a_gpu(monkeypatch):
    """The graphs are those for a GPU."""
    found = tf.config.list_physical_devices
    monkeypatch.setattr(
        tf.config, "list_physical_devices", lambda kind=None: found(kind) + (["GPU"] if kind == "GPU" else [])
    )


def test_an_operation_without_a_kernel_is_found():
    def scatter(values):
        return tf.tensor_scatter_nd_update(values, [[1]], values[:1])

    for dtype, wanted in (("float32", set()), ("bfloat16", {("TensorScatterUpdate", "bfloat16", "int32")})):
        graph = tf.function(scatter).get_concrete_function(tf.TensorSpec((None, 3), dtype)).graph
        assert {(op, *sorted(types)) for op, *types in left_to_the_cpu(graph)} == wanted


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16", "mixed_float16"])
@of_kinds
def test_a_training_step_is_computed_on_the_gpu(kind, precision):
    check_steps(kind, precision)


@pytest.mark.very_slow
@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
def test_a_training_step_with_recomputation_is_computed_on_the_gpu(precision):
    check_steps("", precision, recompute=True)


def check_steps(kind, precision, **options):
    """Of training and of validation."""
    dropout = {f"{name}_dropout": 0.1 for name in ("residual", "embedding", "attention", "relu")}
    model = model_with(kind, precision, num_encoder_layers=1, num_decoder_layers=1, **dropout)
    optimizer = Adam(1e-3, global_clipnorm=1.0)
    if precision == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    metrics = [TokenAccuracy(), Perplexity(), StepCounters()]
    model.compile(optimizer, LabelSmoothedCrossEntropy(0.1), metrics, ema_decay=0.9, **options)
    optimizer.build(model.trainable_variables)
    ids = tf.TensorSpec((None, None), tf.int32)
    for step in (model.train_step, model.test_step):
        graph = tf.function(step, autograph=False).get_concrete_function(((ids, ids), ids)).graph
        assert "MatMul" in {operation.type for operation in graph.get_operations()}
        assert left_to_the_cpu(graph) == set()


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@of_kinds
def test_a_search_is_computed_on_the_gpu(kind, precision):
    model = model_with(kind, precision, num_encoder_layers=1, num_decoder_layers=1)
    uniforms = tf.constant(np.random.default_rng(0).random((3, 1, 60), "float32"))
    for config in (
        SearchConfig(beam_size=1),
        SearchConfig(beam_size=3, coverage_penalty=0.2, no_repeat_ngram=2),
        SearchConfig(sampling=True, top_k=5),
    ):

        @tf.function(autograph=False)
        def translate(source_ids, config=config):
            return tf.nest.flatten(search_ids(model, source_ids, config, uniforms=uniforms))

        graph = translate.get_concrete_function(tf.TensorSpec((None, None), tf.int32)).graph
        assert left_to_the_cpu(graph) == set()
