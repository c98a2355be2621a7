"""Graphs that translate texts or ids, with all limits inside: a few rows of similar length at a time."""

import contextlib
import types
from typing import NamedTuple

import keras
import tensorflow as tf

from keras_transformer.config.settings import replace
from keras_transformer.tokenizers.base import valid_utf8
from keras_transformer.translation.ensemble import search_ids

# What a beam that holds fewer hypotheses than asked for has in the other places: minus infinity
# is no JSON.
LOWEST = tf.float32.min
# All at which some program breaks a line; a translation is one.
_LINE_BREAKS = "[\n\r\v\f\x1c\x1d\x1e\u0085\u2028\u2029\\x00]"


class Encoded(NamedTuple):
    """Rows of ids, each of the length that the model takes.

    Attributes:
        ids: tf.RaggedTensor, int32, shape `(batch, None)`, without end of sentence.
        truncated: bool, shape `(batch,)`, whether something was cut off.
    """

    ids: tf.RaggedTensor
    truncated: tf.Tensor


class ServedModel:
    """A model and its limits, as functions for graphs.

    Args:
        model: `Transformer`.
        settings: `ServingSettings`.
    """

    def __init__(self, model, settings):
        self.model = model
        self.settings = settings
        self.max_tokens = settings.max_tokens(model.config)
        self.max_rows = settings.max_rows(model.config)
        self._searches = {}
        self._constants = None
        if settings.frozen:
            values = [variable.numpy() for variable in model.weights]
            # A function is stored once, however many signatures call it.
            self._constants = tf.function(
                lambda: [tf.constant(value) for value in values], input_signature=[], autograph=False
            )

    @contextlib.contextmanager
    def weights(self):
        """Within it the model has its variables, or constants where the settings say so."""
        if self._constants is None:
            yield
            return
        constants = self._constants()
        with keras.StatelessScope(state_mapping=zip(self.model.weights, constants, strict=True)):
            yield

    def input_specs(self):
        """Returns list of `tf.TensorSpec`, of the settings that every call gives."""
        dtypes = {"alpha": tf.float32, "max_length_offset": tf.int32}
        return [tf.TensorSpec((), dtypes[name], name=name) for name in self.settings.inputs]

    def checked_inputs(self, given):
        """Refuses values out of range, in the graph; returns the tensors."""
        checks = []
        for name, value in zip(self.settings.inputs, given, strict=True):
            if name == "alpha":
                good, wanted = tf.math.is_finite(value) & (value >= 0), "finite and at least 0"
            else:
                good, wanted = (value >= 1) & (value <= 2**20), "from 1 to 1048576"
            checks.append(tf.debugging.Assert(good, [f"`{name}` must be {wanted}. Received:", value]))
        with tf.control_dependencies(checks):
            return [tf.identity(value) for value in given]

    def checked_rows(self, rows):
        """Refuses too many rows, in the graph, and rows of other shapes, which callers may send.

        Args:
            rows: tensor of any type.

        Returns:
            `rows`.
        """
        rows = tf.ensure_shape(rows, rows.shape)
        most = self.settings.max_sentences
        number = tf.shape(rows)[0]
        message = f"At most {most} sentences may be sent together. Send fewer. Received:"
        with tf.control_dependencies([tf.debugging.Assert(number <= most, [message, number])]):
            return tf.identity(rows)

    def encode(self, tokenizer, texts):
        """Encodes texts, those that are too long only so far.

        Args:
            tokenizer: `Tokenizer`.
            texts: tf.string, shape `(batch,)`; bytes that are no UTF-8 become U+FFFD.

        Returns:
            `Encoded`.
        """
        texts = valid_utf8(tf, texts)
        most = self.settings.max_characters
        too_long = tf.strings.length(texts, unit="UTF8_CHAR") > most
        ids = tokenizer.encode_tensor(tf.strings.substr(texts, 0, most, unit="UTF8_CHAR"))
        found = self.cut(ids)
        return Encoded(found.ids, found.truncated | too_long)

    def cut(self, ids):
        """Cuts rows of ids to what leaves room for the end of sentence; returns `Encoded`."""
        most = self.max_tokens - 1
        return Encoded(ids[:, :most], tf.cast(ids.row_lengths(), tf.int32) > most)

    def padded(self, ids, rows):
        """Some rows, each with its end of sentence.

        Args:
            ids: tf.RaggedTensor, int32, shape `(batch, None)`.
            rows: int32, shape `(chunk,)`.

        Returns:
            int32, shape `(chunk, length)`.
        """
        special = self.model.special
        ends = tf.fill([tf.size(rows), 1], special.eos)
        ended = tf.concat([tf.gather(ids, rows), ends], axis=1)
        return ended.to_tensor(special.pad, shape=(None, None))

    def translate(self, ids, n_best, inputs):
        """Searches translations of all rows.

        Args:
            ids: tf.RaggedTensor, int32, shape `(batch, None)`, as `cut` leaves them.
            n_best: int.
            inputs: list of scalar tensors, of `ServingSettings.inputs`.

        Returns:
            dict: `ids`, int32, shape `(batch, n_best, length)`; `scores` and `log_probs`,
            float32, `finished`, bool, and `lengths`, int32, shape `(batch, n_best)`. A row
            without ids has a translation without tokens, score 0.
        """
        lengths = tf.cast(ids.row_lengths(), tf.int32)
        lengths = tf.where(lengths > 0, lengths + 1, 0)
        search = self._search(n_best)

        def compute(rows):
            found = search(self.padded(ids, rows), *inputs)
            exists = found[1] > LOWEST
            exists = tf.concat([tf.ones_like(exists[:, :1]), exists[:, 1:]], axis=1)
            return [
                found[0],
                *(tf.where(exists, tf.maximum(values, LOWEST), LOWEST) for values in found[1:3]),
                *found[3:],
            ]

        outputs = {
            "ids": Output(tf.int32, (n_best, None), self.model.special.pad),
            "scores": Output(tf.float32, (n_best,), LOWEST),
            "log_probs": Output(tf.float32, (n_best,), LOWEST),
            "lengths": Output(tf.int32, (n_best,), 0),
            "finished": Output(tf.bool, (n_best,), False),
        }
        found = in_chunks(lengths, self.max_rows, compute, list(outputs.values()))
        found = dict(zip(outputs, found, strict=True))
        longest = tf.reduce_max(tf.pad(found["lengths"], [[1, 0], [0, 0]]))
        found["ids"] = found["ids"][:, :, :longest]
        # The translation of nothing is nothing, and certain.
        first = (lengths == 0)[:, None] & (tf.range(n_best) == 0)
        for name, value in (("scores", 0.0), ("log_probs", 0.0), ("finished", True)):
            found[name] = tf.where(first, value, found[name])
        return found

    def decode(self, tokenizer, ids):
        """Texts of ids, int32, shape `(batch, n_best, length)`: tf.string, `(batch, n_best)`."""
        shape = tf.shape(ids)
        texts = tokenizer.decode_tensor(tf.reshape(ids, [shape[0] * shape[1], shape[2]]))
        texts = tf.strings.regex_replace(texts, _LINE_BREAKS, " ")
        return tf.ensure_shape(tf.reshape(texts, shape[:2]), [None, ids.shape[1]])

    def _search(self, n_best):
        """The cached search as one function: int32, `(batch, length)` -> `Hypotheses` as a tuple."""
        if n_best not in self._searches:
            config = replace(self.settings.search, n_best=n_best)

            def search(source_ids, *inputs):
                fields = {name: getattr(config, name) for name in config.__dataclass_fields__}
                fields.update(zip(self.settings.inputs, inputs, strict=True))
                with self.weights():
                    return tuple(search_ids(self.model, source_ids, types.SimpleNamespace(**fields)))

            specs = [tf.TensorSpec((None, None), tf.int32), *self.input_specs()]
            self._searches[n_best] = tf.function(search, input_signature=specs, autograph=False)
        return self._searches[n_best]


def ids_signature(served):
    """`translate_ids`: ids to the ids of their best translations, with core operations alone.

    Args:
        served: `ServedModel`.

    Returns:
        tf.function.
    """
    special, vocab_size = served.model.special, served.model.config.source_vocab_size

    def translate_ids(ids, *inputs):
        ids = served.checked_rows(ids)
        good = tf.reduce_all((ids >= 0) & (ids < vocab_size))
        message = f"`ids` must be at least 0 and below {vocab_size}. Received:"
        outside = [message, tf.reduce_min(ids), tf.reduce_max(ids)]
        with tf.control_dependencies([tf.debugging.Assert(good, outside)]):
            # Padding, beginning and end are put where they belong, whether they were sent or not.
            is_text = tf.reduce_all(ids[..., None] != [special.pad, special.bos, special.eos], axis=-1)
        given = served.cut(tf.ragged.boolean_mask(ids, is_text))
        found = served.translate(given.ids, 1, served.checked_inputs(inputs))
        names = {"scores": "score", "log_probs": "log_prob", "lengths": "length"}
        best = {names.get(name, name): values[:, 0] for name, values in found.items()}
        return {**best, "truncated": given.truncated}

    return _signature(translate_ids, [tf.TensorSpec((None, None), tf.int32, name="ids")], served)


def text_signatures(served, tokenizers):
    """`serving_default` and `translate_nbest`: texts to their translations.

    Args:
        served: `ServedModel`.
        tokenizers: `Tokenizers`.

    Returns:
        dict, name -> tf.function.
    """

    def translated(texts, n_best, inputs):
        given = served.encode(tokenizers.source, served.checked_rows(texts))
        found = served.translate(given.ids, n_best, served.checked_inputs(inputs))
        return {
            "translations": served.decode(tokenizers.target, found["ids"]),
            "scores": found["scores"],
            "log_probs": found["log_probs"],
            "finished": found["finished"],
            "truncated": given.truncated,
        }

    def best(text, *inputs):
        found = translated(text, 1, inputs)
        of_one = {name: found[f"{name}s"][:, 0] for name in ("translation", "score", "log_prob")}
        return {**of_one, "finished": found["finished"][:, 0], "truncated": found["truncated"]}

    def several(text, *inputs):
        return translated(text, served.settings.n_best, inputs)

    text = [tf.TensorSpec((None,), tf.string, name="text")]
    return {
        "serving_default": _signature(best, text, served),
        "translate_nbest": _signature(several, text, served),
    }


def _signature(function, specs, served):
    return tf.function(function, input_signature=[*specs, *served.input_specs()], autograph=False)


class Output(NamedTuple):
    """One result of `in_chunks`.

    Attributes:
        dtype: `tf.DType`.
        shape: tuple, sizes after the first axis; `None` where chunks differ, which are
            padded with `fill` then.
        fill: scalar; also what a row of no length has.
    """

    dtype: tf.DType
    shape: tuple
    fill: object


def in_chunks(lengths, max_rows, compute, outputs):
    """Calls `compute` for all rows, the shortest first, as many at a time as there is room for.

    So memory is bounded by the budgets of one chunk and little is spent on padding,
    whatever a caller sends together.

    Args:
        lengths: int32, shape `(batch,)`, of each row; rows of 0 are not computed.
        max_rows: list of int, entry n of how many rows of length n there is room for; never
            rising.
        compute: function, numbers of rows, int32, shape `(chunk,)`, -> list of tensors
            with `chunk` rows.
        outputs: list of `Output`, of what it returns.

    Returns:
        list of tensors with `batch` rows, in the order of the rows.
    """
    room = tf.constant(max_rows, tf.int32)
    order = tf.argsort(lengths, stable=True)
    ordered = tf.gather(lengths, order)
    batch = tf.size(lengths)
    num_blank = tf.reduce_sum(tf.cast(ordered == 0, tf.int32))
    blank = [
        tf.fill([num_blank, *(size or 0 for size in output.shape)], tf.constant(output.fill, output.dtype))
        for output in outputs
    ]

    def body(begin, *found):
        # What is ordered by length stops fitting once and for all.
        fits = tf.range(1, batch - begin + 1) <= tf.gather(room, ordered[begin:])
        end = begin + tf.maximum(tf.reduce_sum(tf.cast(fits, tf.int32)), 1)
        more = compute(order[begin:end])
        return end, *map(_appended, found, more, outputs)

    _, *found = tf.while_loop(
        lambda begin, *_: begin < batch,
        body,
        [num_blank, *blank],
        shape_invariants=[tf.TensorShape([]), *(tf.TensorShape([None, *one.shape]) for one in outputs)],
        parallel_iterations=1,
    )
    back = tf.math.invert_permutation(order)
    return [tf.gather(one, back) for one in found]


def _appended(rows, more, output):
    """Concatenates rows, after padding whichever has the smaller axes."""
    size = tf.maximum(tf.shape(rows)[1:], tf.shape(more)[1:])

    def padded(x):
        missing = tf.concat([[0], size - tf.shape(x)[1:]], axis=0)
        paddings = tf.stack([tf.zeros_like(missing), missing], axis=1)
        return tf.pad(x, paddings, constant_values=tf.constant(output.fill, output.dtype))

    if None in output.shape:
        rows, more = padded(rows), padded(more)
    return tf.ensure_shape(tf.concat([rows, more], axis=0), [None, *output.shape])
