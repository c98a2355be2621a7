"""Graphs that translate texts or ids, with all limits inside."""

import contextlib
import types
from typing import NamedTuple

import keras
import tensorflow as tf

from keras_transformer.config.settings import replace
from keras_transformer.export.chunks import Output, in_chunks
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
        dtypes = {"alpha": tf.float32, "extra_length": tf.int32}
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

        pad = self.model.special.pad
        outputs = [
            Output(tf.int32, (n_best, None), pad),
            Output(tf.float32, (n_best,), LOWEST),
            Output(tf.float32, (n_best,), LOWEST),
            Output(tf.int32, (n_best,), 0),
            Output(tf.bool, (n_best,), False),
        ]
        names = ("ids", "scores", "log_probs", "lengths", "finished")
        found = dict(zip(names, in_chunks(lengths, self.max_rows, compute, outputs), strict=True))
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
        best = {name: values[:, 0] for name, values in found.items()}
        return {
            "ids": best["ids"],
            "length": best["lengths"],
            "score": best["scores"],
            "log_prob": best["log_probs"],
            "finished": best["finished"],
            "truncated": given.truncated,
        }

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
