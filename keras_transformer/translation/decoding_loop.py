"""Decoding loop: calls one step of a search until every sentence is done; independent of the search.

A sentence is frozen as soon as it is done, so its result depends neither on the rest of the batch nor on
the number of further steps. In a TensorFlow function for any batch size, the loop continues with a smaller
batch once a quarter of the sentences is finished.

Axes: `batch` sentences, `left` sentences still in the batch, `n` hypotheses of each; `rows = batch * n`.
"""

import numbers
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.model.kernels.tensor_ops import gather, reshape_static

# A batch shrinks when at most three quarters of its sentences are left; before, the copies cost more.
# Its size is then 0 to 8, or 4, 5, 6 or 7 times a power of two, because oneDNN compiles attention's products
# for each size and length.
_POWERS_OF_TWO = [2**power for power in range(1, 24)]


class Sentences(NamedTuple):
    """Inputs of a search that differ between sentences."""

    limits: Any  # int32, (batch,)
    prefix_ids: Any  # int32, (batch, prefix_length + 1), the last column is padding
    uniforms: Any  # float32, (batch, n_best, max_length); (batch, 0, 0) unless sampling

    def forced_ids(self, position, n):
        """Returns the prefix token at `position`, int32, `(batch * n,)`; padding after the end of a prefix.

        `None` if there are no prefixes.
        """
        if self.prefix_ids.shape[1] == 1:
            return None
        last = ops.shape(self.prefix_ids)[1] - 1
        return ops.repeat(gather(self.prefix_ids, ops.minimum(position, last), axis=1), n)


class LoopState(NamedTuple):
    """Loop variables, for the sentences that are still in the batch."""

    position: Any  # int32, scalar
    done: Any  # bool, (left,)
    hypotheses: Any  # `_IndependentHypotheses` of `search`, or `Beams`
    state: Any  # nested structure of tensors, of the model


class LiveBatch(NamedTuple):
    """The sentences that are still in the batch, and the results of all sentences."""

    indices: Any  # int32, (left,), of these sentences in the original batch
    sentences: Sentences
    loop: LoopState
    results: Any  # as `hypotheses`, of the original batch; written when sentences are removed


def make_sentences(max_lengths, max_length, prefix_ids, rules, uniforms=None):
    """Checks the arguments of a search and returns them as `Sentences`."""
    rules.check()
    if isinstance(max_length, numbers.Integral) and max_length < 1:
        raise ValueError(f"`max_length` must be at least 1. Received: max_length={max_length}")
    limits = ops.minimum(ops.convert_to_tensor(max_lengths, "int32"), max_length)
    batch = ops.shape(limits)[0]
    # Positions after the prefix read this column of padding: no token is forced there.
    forced_ids = ops.full((batch, 1), rules.pad_id, dtype="int32")
    if prefix_ids is not None:
        forced_ids = ops.concatenate([ops.convert_to_tensor(prefix_ids, "int32"), forced_ids], axis=1)
    if uniforms is None:
        uniforms = ops.zeros((batch, 0, 0), dtype="float32")
    return Sentences(limits, forced_ids, uniforms)


def decode(advance, hypotheses, sentences, state, n, select_sentences):
    """Calls `advance` for position 0, 1, ... until every sentence is done.

    Args:
        advance: function, `(position, sentences, hypotheses, state)` -> `(hypotheses, done, state)`,
            with `done` bool, shape `(batch,)`. What it returns for finished sentences is ignored.
        hypotheses: nested structure of tensors whose first axis is `batch`, before the first step.
        sentences: `Sentences`.
        state: of the model, see `search`.
        n: int, number of hypotheses of each sentence.
        select_sentences: see `search`; or `None`.

    Returns:
        `hypotheses` of all sentences, each as it was when the sentence was done.
    """
    select_sentences = select_rows(n) if select_sentences is None else select_sentences
    loop = LoopState(ops.zeros((), dtype="int32"), sentences.limits < 1, hypotheses, state)
    if sentences.limits.shape[0] is not None:
        # A graph for a fixed batch size cannot shrink its batch; nor can JAX.
        return run_until(advance, sentences, loop, 0).hypotheses

    def body(batch):
        most = 3 * ops.size(batch.indices) // 4
        loop = run_until(advance, batch.sentences, batch.loop, most - most % _size_step(most))
        smaller = drop_finished(batch._replace(loop=loop), select_sentences)
        return (keras.tree.map_structure(_with_shape_of, batch, smaller),)

    # Nested loops, because a branch in every step would cost more than a small step itself.
    batch = LiveBatch(ops.arange(ops.shape(sentences.limits)[0], dtype="int32"), sentences, loop, hypotheses)
    batch = keras.tree.map_structure(ops.convert_to_tensor, batch)
    (batch,) = ops.while_loop(lambda batch: ops.shape(batch.indices)[0] > 0, body, (batch,))
    return batch.results


def run_until(advance, sentences, loop, num_left):
    """Calls `advance` until at most `num_left` sentences are not done; returns the `LoopState`."""

    def is_running(loop):
        return ops.sum(ops.cast(ops.logical_not(loop.done), "int32")) > num_left

    def body(loop):
        new, done, state = advance(loop.position, sentences, loop.hypotheses, loop.state)
        hypotheses = keep_where_done(loop.done, loop.hypotheses, new)
        new = LoopState(loop.position + 1, loop.done | done, hypotheses, state)
        return (keras.tree.map_structure(_with_shape_of, loop, new),)

    loop = keras.tree.map_structure(ops.convert_to_tensor, loop)
    (loop,) = ops.while_loop(is_running, body, (loop,))
    return loop


def _size_step(size):
    """Returns the difference between the batch sizes that are possible next to `size`, int32, scalar."""
    steps = ops.convert_to_tensor(_POWERS_OF_TWO, "int32")
    return 1 + ops.sum(ops.where(size >= 4 * steps, steps // 2, 0))


def drop_finished(batch, select_sentences):
    """Writes the results of a `LiveBatch` and returns it without the finished sentences.

    It keeps as many finished ones as its size needs.
    """
    loop = batch.loop
    left, finished = (
        ops.cast(ops.nonzero(flags)[0], "int32") for flags in (ops.logical_not(loop.done), loop.done)
    )
    step = _size_step(ops.size(left))
    kept = ops.concatenate([left, finished[: -ops.size(left) % step]], axis=0)

    def take(x):
        return gather(x, kept, axis=0)

    def write(results, hypotheses):
        return ops.scatter_update(results, batch.indices[:, None], hypotheses)

    return LiveBatch(
        take(batch.indices),
        keras.tree.map_structure(take, batch.sentences),
        LoopState(
            loop.position,
            take(loop.done),
            keras.tree.map_structure(take, loop.hypotheses),
            select_sentences(loop.state, kept),
        ),
        keras.tree.map_structure(write, batch.results, loop.hypotheses),
    )


def _with_shape_of(old, new):
    # A loop variable of TensorFlow must not lose a statically known size.
    if None not in new.shape or new.shape == old.shape:
        return new
    sizes = zip(old.shape, new.shape, ops.shape(new), strict=True)
    return ops.reshape(
        new, [before if before is not None and after is None else size for before, after, size in sizes]
    )


def keep_where_done(done, old, new):
    """Returns `old` where `done`, else `new`: nested structures whose leading axes are those of `done`."""
    return keras.tree.map_structure(lambda a, b: ops.where(_expand_to(done, a), a, b), old, new)


def _expand_to(flags, values):
    """Appends axes of size 1 to `flags` until it has the rank of `values`."""
    return reshape_static(flags, (*ops.shape(flags), *[1] * (len(values.shape) - len(flags.shape))))


def gather_rows(state, parents):
    """Default `reorder`: gathers rows, of a state whose tensors all have `rows` rows."""
    batch, n = ops.shape(parents)
    first_rows = ops.arange(batch, dtype="int32") * n
    rows = ops.reshape(first_rows[:, None] + parents, (-1,))
    return keras.tree.map_structure(lambda x: gather(x, rows, axis=0), state)


def select_rows(n):
    """Returns the default `select_sentences`: gathers rows, of a state whose tensors all have `rows` rows."""

    def select_sentences(state, sentences):
        rows = ops.reshape(sentences[:, None] * n + ops.arange(n, dtype="int32")[None], (-1,))
        return keras.tree.map_structure(lambda x: gather(x, rows, axis=0), state)

    return select_sentences
