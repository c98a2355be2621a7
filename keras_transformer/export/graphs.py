"""Signatures that translate texts or ids. The graphs check all limits and batch rows by length."""

import contextlib
import types
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_transformer.config.settings import replace
from keras_transformer.tokenizers.base import valid_utf8
from keras_transformer.translation.ensemble import search_ids

# Score of an empty n-best slot: the lowest float32, because JSON has no -inf.
LOWEST = tf.float32.min
# Characters that some program takes for a line break; a translation is one line.
_LINE_BREAKS = "[\n\r\v\f\x1c\x1d\x1e\u0085\u2028\u2029\\x00]"


class Encoded(NamedTuple):
    """Rows of ids, none longer than the model accepts.

    Attributes:
        ids: tf.RaggedTensor, int32, shape `(batch, None)`, without end of sentence.
        truncated: bool, shape `(batch,)`, whether the row was cut.
    """

    ids: tf.RaggedTensor
    truncated: tf.Tensor


class RowConstraint(NamedTuple):
    """A constraint of the search with data of each row.

    Attributes:
        make: function, the tensors -> `Constraint`; it is called in the graph of the search. Signatures that
            pass the same function and the same `n_best` share this graph.
        tensors: tuple of tensors with `batch` rows. Other axes that vary must have no static size.
        lengths: int32, shape `(batch,)`, limits to which the constraint raises those of the search at least;
            or `None`. A longer one counts as the length of its row when rows are batched.
    """

    make: Any
    tensors: tuple
    lengths: Any = None


class ServedModel:
    """A model with its serving limits, as functions that signatures trace.

    Args:
        model: `Transformer`.
        settings: `ServingSettings`.
        forbidden_ids: list of int, tokens that no translation has: tags.
    """

    def __init__(self, model, settings, forbidden_ids=()):
        self.model = model
        self._forbidden_ids = tuple(forbidden_ids)
        self.settings = settings
        self.max_tokens = settings.max_tokens(model.config)
        self.max_rows = settings.max_rows(model.config)
        self._searches = {}
        self._constants = None
        if settings.frozen:
            values = [variable.numpy() for variable in model.weights]
            # A tf.function is stored once, even if several signatures call it.
            self._constants = tf.function(
                lambda: [tf.constant(value) for value in values], input_signature=[], autograph=False
            )

    @contextlib.contextmanager
    def weights(self):
        """Context in which the model uses its variables, or constants if `settings.frozen`."""
        if self._constants is None:
            yield
            return
        constants = self._constants()
        with keras.StatelessScope(state_mapping=zip(self.model.weights, constants, strict=True)):
            yield

    def input_specs(self):
        """Returns a list of `tf.TensorSpec`, one per search setting that is an input of the signatures."""
        dtypes = {"alpha": tf.float32, "max_length_offset": tf.int32}
        return [tf.TensorSpec((), dtypes[name], name=name) for name in self.settings.inputs]

    def check_inputs(self, inputs):
        """Returns the scalar inputs, with assertions on their range in the graph."""
        checks = []
        for name, value in zip(self.settings.inputs, inputs, strict=True):
            if name == "alpha":
                is_valid, condition = tf.math.is_finite(value) & (value >= 0), "finite and at least 0"
            else:
                is_valid, condition = (value >= 1) & (value <= 2**20), "from 1 to 1048576"
            checks.append(tf.debugging.Assert(is_valid, [f"`{name}` must be {condition}. Received:", value]))
        with tf.control_dependencies(checks):
            return [tf.identity(value) for value in inputs]

    def check_rows(self, rows):
        """Returns rows of a request, with an assertion on their number and shape in the graph.

        Args:
            rows: tensor of any dtype.
        """
        rows = tf.ensure_shape(rows, rows.shape)
        most = self.settings.max_sentences
        number = tf.shape(rows)[0]
        message = f"At most {most} sentences are allowed in one request. Received:"
        with tf.control_dependencies([tf.debugging.Assert(number <= most, [message, number])]):
            return tf.identity(rows)

    def encode(self, tokenizer, texts):
        """Encodes texts and cuts those over the limits.

        Args:
            tokenizer: `Tokenizer`.
            texts: tf.string, shape `(batch,)`. Invalid UTF-8 becomes U+FFFD.

        Returns:
            `Encoded`.
        """
        texts = valid_utf8(tf, texts)
        limit = self.settings.max_characters
        too_long = tf.strings.length(texts, unit="UTF8_CHAR") > limit
        ids = tokenizer.encode_tensor(tf.strings.substr(texts, 0, limit, unit="UTF8_CHAR"))
        encoded = self.cut(ids)
        return Encoded(encoded.ids, encoded.truncated | too_long)

    def cut(self, ids):
        """Cuts rows of ids so that they fit with the end of sentence; returns `Encoded`."""
        limit = self.max_tokens - 1
        return Encoded(ids[:, :limit], tf.cast(ids.row_lengths(), tf.int32) > limit)

    def check_ids(self, ids):
        """Checks and cuts the source ids of a request.

        Args:
            ids: int32, shape `(batch, length)`, with or without padding, bos and eos.

        Returns:
            `Encoded`.
        """
        special, vocab_size = self.model.special, self.model.config.source_vocab_size
        ids = self.check_rows(ids)
        is_valid = tf.reduce_all((ids >= 0) & (ids < vocab_size))
        message = f"`ids` must be at least 0 and below {vocab_size}. Received:"
        outside = [message, tf.reduce_min(ids), tf.reduce_max(ids)]
        with tf.control_dependencies([tf.debugging.Assert(is_valid, outside)]):
            is_text = tf.reduce_all(ids[..., None] != [special.pad, special.bos, special.eos], axis=-1)
        return self.cut(tf.ragged.boolean_mask(ids, is_text))

    def pad(self, ids, rows):
        """Returns some rows as a padded tensor, each with its end of sentence.

        Args:
            ids: tf.RaggedTensor, int32, shape `(batch, None)`.
            rows: int32, shape `(chunk,)`, indices of rows.

        Returns:
            int32, shape `(chunk, length)`.
        """
        special = self.model.special
        eos = tf.fill([tf.size(rows), 1], special.eos)
        with_eos = tf.concat([tf.gather(ids, rows), eos], axis=1)
        return with_eos.to_tensor(special.pad, shape=(None, None))

    def translate(self, ids, n_best, inputs, constraint=None):
        """Translates rows of ids.

        Args:
            ids: tf.RaggedTensor, int32, shape `(batch, None)`, from `encode` or `cut`.
            n_best: int.
            inputs: list of scalar tensors, as in `ServingSettings.inputs`.
            constraint: `RowConstraint` that every hypothesis obeys; or `None`.

        Returns:
            dict: `ids`, int32, shape `(batch, n_best, length)`; `scores` and `log_probs`,
            float32, `finished`, bool, and `lengths`, int32, shape `(batch, n_best)`. An empty row
            has one empty translation with score 0.
        """
        lengths = tf.cast(ids.row_lengths(), tf.int32)
        lengths = tf.where(lengths > 0, lengths + 1, 0)
        search = self._search(n_best, constraint)
        data = () if constraint is None else constraint.tensors
        sizes = lengths
        if constraint is not None and constraint.lengths is not None:
            longest = tf.minimum(tf.maximum(lengths, constraint.lengths), self.max_tokens)
            sizes = tf.where(lengths > 0, longest, 0)

        def compute(rows):
            constrained_by = [tf.gather(tensor, rows) for tensor in data]
            ids_of_rows, scores, log_probs, *others = search(self.pad(ids, rows), *inputs, *constrained_by)
            exists = scores > LOWEST
            exists = tf.concat([tf.ones_like(exists[:, :1]), exists[:, 1:]], axis=1)
            scores, log_probs = (
                tf.where(exists, tf.maximum(values, LOWEST), LOWEST) for values in (scores, log_probs)
            )
            return [ids_of_rows, scores, log_probs, *others]

        outputs = {
            "ids": Output(tf.int32, (n_best, None), self.model.special.pad),
            "scores": Output(tf.float32, (n_best,), LOWEST),
            "log_probs": Output(tf.float32, (n_best,), LOWEST),
            "lengths": Output(tf.int32, (n_best,), 0),
            "finished": Output(tf.bool, (n_best,), False),
        }
        tensors = in_chunks(sizes, self.max_rows, compute, list(outputs.values()))
        results = dict(zip(outputs, tensors, strict=True))
        longest = tf.reduce_max(tf.pad(results["lengths"], [[1, 0], [0, 0]]))
        results["ids"] = results["ids"][:, :, :longest]
        # The best translation of an empty row is empty, with probability 1.
        is_blank = (lengths == 0)[:, None] & (tf.range(n_best) == 0)
        for name, value in (("scores", 0.0), ("log_probs", 0.0), ("finished", True)):
            results[name] = tf.where(is_blank, value, results[name])
        return results

    def decode(self, tokenizer, ids):
        """Decodes ids, int32, shape `(batch, n_best, length)`, to tf.string, shape `(batch, n_best)`."""
        shape = tf.shape(ids)
        texts = tokenizer.decode_tensor(tf.reshape(ids, [shape[0] * shape[1], shape[2]]))
        texts = tf.strings.regex_replace(texts, _LINE_BREAKS, " ")
        return tf.ensure_shape(tf.reshape(texts, shape[:2]), [None, ids.shape[1]])

    def signature(self, function, specs):
        """Returns a tf.function of the specified inputs and the scalar ones of `ServingSettings.inputs`."""
        return tf.function(function, input_signature=[*specs, *self.input_specs()], autograph=False)

    def _search(self, n_best, constraint):
        """Returns the search as a cached tf.function: int32, `(batch, length)` -> `Hypotheses` as tuple."""
        make, data, _ = constraint or (None, (), None)
        key = n_best, make
        if key not in self._searches:
            config = replace(self.settings.search, n_best=n_best)

            def search(source_ids, *inputs):
                inputs, data = inputs[: len(self.settings.inputs)], inputs[len(self.settings.inputs) :]
                fields = {name: getattr(config, name) for name in config.__dataclass_fields__}
                fields.update(zip(self.settings.inputs, inputs, strict=True))
                rule = None if make is None else make(*data)
                with self.weights():
                    namespace = types.SimpleNamespace(**fields)
                    return tuple(search_ids(
                        self.model, source_ids, namespace, constraint=rule, forbidden_ids=self._forbidden_ids
                    ))  # fmt: skip

            specs = [tf.TensorSpec((None, None), tf.int32), *self.input_specs()]
            specs += [tf.TensorSpec((None, *tensor.shape[1:]), tensor.dtype) for tensor in data]
            self._searches[key] = tf.function(search, input_signature=specs, autograph=False)
        return self._searches[key]


def ids_signature(served):
    """Returns `translate_ids`: source ids to ids of the best translations, with core TensorFlow operations.

    Args:
        served: `ServedModel`.

    Returns:
        tf.function.
    """

    def translate_ids(ids, *inputs):
        source = served.check_ids(ids)
        results = served.translate(source.ids, 1, served.check_inputs(inputs))
        names = {"scores": "score", "log_probs": "log_prob", "lengths": "length"}
        best = {names.get(name, name): values[:, 0] for name, values in results.items()}
        return {**best, "truncated": source.truncated}

    return served.signature(translate_ids, [tf.TensorSpec((None, None), tf.int32, name="ids")])


def text_signatures(served, tokenizers):
    """Returns `serving_default` and `translate_nbest`: texts to translations.

    Args:
        served: `ServedModel`.
        tokenizers: `Tokenizers`.

    Returns:
        dict, name -> tf.function.
    """

    def translate(texts, n_best, inputs):
        source = served.encode(tokenizers.source, served.check_rows(texts))
        results = served.translate(source.ids, n_best, served.check_inputs(inputs))
        return {
            "translations": served.decode(tokenizers.target, results["ids"]),
            "scores": results["scores"],
            "log_probs": results["log_probs"],
            "finished": results["finished"],
            "truncated": source.truncated,
        }

    def best(text, *inputs):
        results = translate(text, 1, inputs)
        first = {name: results[f"{name}s"][:, 0] for name in ("translation", "score", "log_prob")}
        return {**first, "finished": results["finished"][:, 0], "truncated": results["truncated"]}

    def several(text, *inputs):
        return translate(text, served.settings.n_best, inputs)

    text = [tf.TensorSpec((None,), tf.string, name="text")]
    return {
        "serving_default": served.signature(best, text),
        "translate_nbest": served.signature(several, text),
    }


class Output(NamedTuple):
    """Specification of one result of `in_chunks`.

    Attributes:
        dtype: `tf.DType`.
        shape: tuple, sizes after the first axis; `None` where they vary between chunks and are
            padded with `fill`.
        fill: scalar, also the value for rows of length 0.
    """

    dtype: tf.DType
    shape: tuple
    fill: Any


def in_chunks(lengths, max_rows, compute, outputs):
    """Calls `compute` on chunks of rows of similar length, the shortest first.

    For any request, memory is bounded by the budget of one chunk and little is spent on
    padding.

    Args:
        lengths: int32, shape `(batch,)`, of the rows; rows of length 0 are not computed.
        max_rows: list of int; entry n is the maximum number of rows of length n in a chunk; not
            increasing.
        compute: function, row indices, int32, shape `(chunk,)` -> list of tensors with `chunk` rows.
        outputs: list of `Output`, one per tensor that `compute` returns.

    Returns:
        list of tensors with `batch` rows, in the order of the rows.
    """
    max_rows = tf.constant(max_rows, tf.int32)
    order = tf.argsort(lengths, stable=True)
    ordered = tf.gather(lengths, order)
    batch = tf.size(lengths)
    num_blank = tf.reduce_sum(tf.cast(ordered == 0, tf.int32))
    blank = [
        tf.fill([num_blank, *(size or 0 for size in output.shape)], tf.constant(output.fill, output.dtype))
        for output in outputs
    ]

    def body(begin, *results):
        # Lengths are sorted: after the first row that does not fit, no row fits.
        fits = tf.range(1, batch - begin + 1) <= tf.gather(max_rows, ordered[begin:])
        end = begin + tf.maximum(tf.reduce_sum(tf.cast(fits, tf.int32)), 1)
        chunk = compute(order[begin:end])
        return end, *map(_append, results, chunk, outputs)

    _, *results = tf.while_loop(
        lambda begin, *_: begin < batch,
        body,
        [num_blank, *blank],
        shape_invariants=[tf.TensorShape([]), *(tf.TensorShape([None, *output.shape]) for output in outputs)],
        parallel_iterations=1,
    )
    inverse = tf.math.invert_permutation(order)
    return [tf.gather(result, inverse) for result in results]


def _append(rows, more, output):
    """Concatenates rows, padded to the same sizes where `output.shape` varies."""
    size = tf.maximum(tf.shape(rows)[1:], tf.shape(more)[1:])

    def padded(x):
        missing = tf.concat([[0], size - tf.shape(x)[1:]], axis=0)
        paddings = tf.stack([tf.zeros_like(missing), missing], axis=1)
        return tf.pad(x, paddings, constant_values=tf.constant(output.fill, output.dtype))

    if None in output.shape:
        rows, more = padded(rows), padded(more)
    return tf.ensure_shape(tf.concat([rows, more], axis=0), [None, *output.shape])
