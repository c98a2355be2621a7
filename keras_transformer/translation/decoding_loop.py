"""The loop of decoding: one position after another until every sentence is done; knows no search.

A sentence is frozen as soon as it is done, so its result depends neither on its neighbours in the batch
nor on how long the loop runs for them. Where the size of the batch is not part of the graph, as in a
TensorFlow function for any batch, sentences that are done leave it: the rest goes on in a smaller one.

Axes: `batch` sentences, of which `left` are not done yet; `n` hypotheses of each; `rows = batch * n`.
"""

import numbers
from typing import NamedTuple

import keras
from keras import ops

from keras_transformer.model.kernels.tensor_ops import gather, reshape_static

# A smaller batch is worth its copies from this share of sentences on that are done.
DONE_BEFORE_SHRINKING = 0.25


class Sentences(NamedTuple):
    """What differs between the sentences of a batch."""

    limits: object  # int32, (batch,)
    prefix_ids: object  # int32, (batch, prefix_length + 1): the last column is padding
    uniforms: object  # float32, (batch, n_best, max_length); (batch, 0, 0) where not needed

    def forced_ids(self, position, n):
        """The next token of each prefix, or padding: int32, `(batch * n,)`; `None` without prefixes."""
        if self.prefix_ids.shape[1] == 1:
            return None
        last = ops.shape(self.prefix_ids)[1] - 1
        return ops.repeat(gather(self.prefix_ids, ops.minimum(position, last), axis=1), n)


class LoopState(NamedTuple):
    """How far the sentences have come that are left in the batch."""

    position: object  # int32, scalar
    done: object  # bool, (left,)
    found: object  # _Paths or _Beams
    state: object  # nested tensors


class LiveBatch(NamedTuple):
    """The sentences that are left in the batch, and what was found for all of them."""

    numbers: object  # int32, (left,): which sentences are left
    sentences: Sentences
    loop: LoopState
    results: object  # _Paths or _Beams, of all; written when sentences leave


def make_sentences(max_lengths, max_length, prefix_ids, rules, uniforms=None):
    """Makes `Sentences` from the arguments of a search, which it checks."""
    rules.check()
    if isinstance(max_length, numbers.Integral) and max_length < 1:
        raise ValueError(f"`max_length` must be at least 1. Received: max_length={max_length}")
    limits = ops.minimum(ops.convert_to_tensor(max_lengths, "int32"), max_length)
    batch = ops.shape(limits)[0]
    # After its last column nothing is forced.
    ends = ops.full((batch, 1), rules.pad_id, dtype="int32")
    if prefix_ids is not None:
        ends = ops.concatenate([ops.convert_to_tensor(prefix_ids, "int32"), ends], axis=1)
    if uniforms is None:
        uniforms = ops.zeros((batch, 0, 0), dtype="float32")
    return Sentences(limits, ends, uniforms)


def decode(advance, found, sentences, state, n, select_sentences):
    """Calls `advance` until every sentence is done; a done one no longer changes."""
    select_sentences = select_rows(n) if select_sentences is None else select_sentences
    loop = LoopState(ops.zeros((), dtype="int32"), sentences.limits < 1, found, state)
    if sentences.limits.shape[0] is not None:
        # Where the graph is made for one size of batch it has to stay; so does JAX.
        return run_until(advance, sentences, loop, 1.0).found

    def body(batch):
        loop = run_until(advance, batch.sentences, batch.loop, DONE_BEFORE_SHRINKING)
        smaller = drop_finished(batch._replace(loop=loop), select_sentences)
        return (keras.tree.map_structure(_with_shape_of, batch, smaller),)

    # A loop within a loop: a condition in each step would cost more than a small step itself.
    batch = LiveBatch(ops.arange(ops.shape(sentences.limits)[0], dtype="int32"), sentences, loop, found)
    batch = keras.tree.map_structure(ops.convert_to_tensor, batch)
    (batch,) = ops.while_loop(lambda batch: ops.shape(batch.numbers)[0] > 0, body, (batch,))
    return batch.results


def run_until(advance, sentences, loop, share):
    """Calls `advance` until this share of the sentences is done."""

    def goes_on(loop):
        num_done = ops.sum(ops.cast(loop.done, "float32"))
        return num_done < share * ops.cast(ops.size(loop.done), "float32")

    def body(loop):
        found, done, state = advance(loop.position, sentences, loop.found, loop.state)
        found = keep_where_done(loop.done, loop.found, found)
        new = LoopState(loop.position + 1, loop.done | done, found, state)
        return (keras.tree.map_structure(_with_shape_of, loop, new),)

    loop = keras.tree.map_structure(ops.convert_to_tensor, loop)
    (loop,) = ops.while_loop(goes_on, body, (loop,))
    return loop


def drop_finished(batch, select_sentences):
    """Leaves the sentences that are done out of the batch, and writes what was found."""
    loop = batch.loop
    left = ops.cast(ops.nonzero(ops.logical_not(loop.done))[0], "int32")

    def take(x):
        return gather(x, left, axis=0)

    def write(results, found):
        return ops.scatter_update(results, batch.numbers[:, None], found)

    return LiveBatch(
        take(batch.numbers),
        keras.tree.map_structure(take, batch.sentences),
        LoopState(
            loop.position,
            take(loop.done),
            keras.tree.map_structure(take, loop.found),
            select_sentences(loop.state, left),
        ),
        keras.tree.map_structure(write, batch.results, loop.found),
    )


def _with_shape_of(old, new):
    # TensorFlow's loop refuses a variable that loses a statically known size.
    if None not in new.shape or new.shape == old.shape:
        return new
    sizes = zip(old.shape, new.shape, ops.shape(new), strict=True)
    return ops.reshape(
        new, [before if before is not None and after is None else size for before, after, size in sizes]
    )


def keep_where_done(done, old, new):
    """Takes `old` where done, else `new`, of nested tensors whose first axis is that of `done`."""
    return keras.tree.map_structure(lambda a, b: ops.where(_columns(done, a), a, b), old, new)


def _columns(flags, values):
    """Gives flags as many axes as `values` has, by adding some at the end."""
    return reshape_static(flags, (*ops.shape(flags), *[1] * (len(values.shape) - len(flags.shape))))


def gather_rows(state, parents):
    """`reorder` for a state whose tensors all have `rows` rows."""
    batch, n = ops.shape(parents)
    first = ops.arange(batch, dtype="int32") * n
    rows = ops.reshape(first[:, None] + parents, (-1,))
    return keras.tree.map_structure(lambda x: gather(x, rows, axis=0), state)


def select_rows(n):
    """`select_sentences` for a state whose tensors all have `rows` rows."""

    def select_sentences(state, sentences):
        rows = ops.reshape(sentences[:, None] * n + ops.arange(n, dtype="int32")[None], (-1,))
        return keras.tree.map_structure(lambda x: gather(x, rows, axis=0), state)

    return select_sentences
