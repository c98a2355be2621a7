"""Scores given translations by forced decoding: log-probabilities of sentences and tokens, attention.

The target ids are fed to the decoder (teacher forcing), so one pass replaces a search.
"""

import math
from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.config.types import PathLike
from keras_transformer.model.kernels.switch import require_tensorflow
from keras_transformer.model.loss import token_statistics
from keras_transformer.model.transformer import Transformer
from keras_transformer.tokenizers.base import Tokenizer
from keras_transformer.tokenizers.tokenizer_pair import Tokenizers, as_tokenizers, check_vocabularies
from keras_transformer.translation.alignment import default_alignment_choice
from keras_transformer.translation.texts import batches_by_length


class TooLongError(ValueError):
    """A text has more tokens than the limit.

    Attributes:
        side: `"sources"` or `"targets"`.
        number: int, of the text, counted from 0.
        reason: str, the message without side and number.
    """

    def __init__(self, side, number, length, limit):
        self.side = side
        self.number = number
        self.reason = f"{length:,} tokens with the end of sentence, more than the limit of {limit:,}"
        super().__init__(f"`{side}`: text {number}: {self.reason} (`max_length`)")


class Forced(NamedTuple):
    """Result of forced decoding of one pair.

    Attributes:
        log_probs: float32 NumPy array, shape `(target_len,)`, natural log-probability of each
            target id given the ids before it.
        attention: float32 NumPy array, shape `(num_layers, target_len, source_len)`, mean over
            the heads. Row i is the attention of the decoder when it produces target id i.
            `num_layers` is 0 if no layer was requested.
    """

    log_probs: np.ndarray
    attention: np.ndarray


class Scored(NamedTuple):
    """Score of one translation.

    Attributes:
        source_pieces: list of str, without the end of sentence.
        target_pieces: list of str, without the end of sentence.
        log_probs: float32 NumPy array, shape `(len(target_pieces) + 1,)`, natural
            log-probability of each target piece and of the end of sentence.
        attention: float32 NumPy array, shape `(num_layers, len(target_pieces) + 1,
            len(source_pieces) + 1)`, as in `Forced`.
    """

    source_pieces: list
    target_pieces: list
    log_probs: np.ndarray
    attention: np.ndarray

    @property
    def log_prob(self):
        """float, natural log-probability of the translation, with the end of sentence."""
        return float(self.log_probs.sum(dtype=np.float64))


class Scorer:
    """Scores translations with one model, without label smoothing or length penalty.

    Args:
        model: a `Transformer`.
        tokenizers: a tokenizer with the model's vocabulary, or `Tokenizers`.
        max_length: int, maximum number of tokens of a source or target text, with the end of
            sentence. Learned positions may limit it further.
        batch_tokens: int, maximum number of tokens of either side of a batch, with padding.

    Attributes:
        choice: `AlignmentChoice` of the model, see `alignment.default_alignment_choice`.

    Raises:
        ValueError: as `Translator`, or a number is below 1.
    """

    def __init__(
        self,
        model: Transformer,
        tokenizers: Tokenizer | Tokenizers,
        *,
        max_length: int = 1024,
        batch_tokens: int = 2048,
    ) -> None:
        self.tokenizers = as_tokenizers(tokenizers)
        check_vocabularies(self.tokenizers, model.config, special=model.special)
        if max_length < 1:
            raise ValueError(f"`max_length` must be at least 1. Received: {max_length}")
        self.model = model
        self.choice = default_alignment_choice(model.config.num_decoder_layers)
        self.max_length = max_length
        if model.config.positions == "learned":
            self.max_length = min(max_length, model.config.max_positions)
        self._forced = ForcedDecoder(model, batch_tokens)

    @classmethod
    def load(cls, run_dir: PathLike, *, checkpoint: str = "final", **limits: int) -> "Scorer":
        """Loads the model of a run folder.

        Args:
            run_dir: path of a run folder.
            checkpoint: the weights to load, as in `RunFolder.load_weights`.
            **limits: `max_length` and `batch_tokens`; by default those of the run's search settings.

        Raises:
            ValueError: the path is no run folder, or it has no such weights.
        """
        run = RunFolder(run_dir)
        search = run.config.search
        limits = {"max_length": search.max_source_length, "batch_tokens": search.batch_tokens, **limits}
        return cls(run.load_model(checkpoint=checkpoint), run.load_tokenizers(), **limits)

    def score(
        self,
        sources: list[str],
        targets: list[str],
        *,
        layers: Collection[int] = (),
        heads: Collection[int] = (),
    ) -> list[Scored]:
        """Scores pairs of texts; batches do not change the scores.

        A blank target has the probability of the end of sentence. A blank source is encoded as
        an end of sentence alone, which the model never saw in training.

        Args:
            sources: list of str, one sentence each.
            targets: list of str, one for each source.
            layers: decoder layers whose cross-attention is returned, counted from 0.
            heads: heads to average; empty for all.

        Returns:
            list of `Scored`, in the same order.

        Raises:
            ValueError: sources and targets differ in number, a text is too long (texts are never
                cut), or a layer or head does not exist.
        """
        if len(sources) != len(targets):
            raise ValueError(
                f"`sources` and `targets` differ in length. Received: {len(sources)} and {len(targets)}"
            )
        rows = []
        for side, tokenizer, texts in zip(
            ("sources", "targets"), self.tokenizers, (sources, targets), strict=True
        ):
            rows.append([[*row, tokenizer.special.eos] for row in tokenizer.encode(texts)])
            for number, row in enumerate(rows[-1]):
                if len(row) > self.max_length:
                    raise TooLongError(side, number, len(row), self.max_length)
        forced = self._forced(*rows, layers=layers, heads=heads)
        pieces = self.tokenizers.source.pieces(sources), self.tokenizers.target.pieces(targets)
        return [Scored(*pair, *result) for *pair, result in zip(*pieces, forced, strict=True)]


def perplexity(scored):
    """Returns the perplexity per target piece, ends of sentence included (Table 3).

    Args:
        scored: list of `Scored` or `Forced`, with at least one token.
    """
    total = math.fsum(float(pair.log_probs.sum(dtype=np.float64)) for pair in scored)
    return math.exp(-total / sum(len(pair.log_probs) for pair in scored))


class ForcedDecoder:
    """Computes log-probabilities and attention of pairs of id sequences, in batches.

    Args:
        model: a `Transformer`.
        batch_tokens: int, maximum number of tokens of either side of a batch, with padding. A
            longer pair is a batch of its own.
    """

    def __init__(self, model, batch_tokens=2048):
        require_tensorflow("translating and scoring of texts")
        if batch_tokens < 1:
            raise ValueError(f"`batch_tokens` must be at least 1. Received: {batch_tokens}")
        self.model = model
        self.batch_tokens = batch_tokens
        self._compiled = {}

    def __call__(self, source_rows, target_rows, *, layers=(), heads=(), batch_tokens=None):
        """Scores pairs; batches do not change the scores.

        Args:
            source_rows: list of sequences of int, encoder inputs, ending with eos.
            target_rows: list of sequences of int, one for each source, decoder outputs: without
                bos, ending with eos unless a search was cut off. An empty one gives empty arrays.
            layers: decoder layers whose cross-attention is returned, counted from 0.
            heads: heads to average; empty for all.
            batch_tokens: int, as for the constructor; `None` for its value.

        Returns:
            list of `Forced`, in the same order.

        Raises:
            ValueError: a layer or head does not exist.
        """
        layers, heads = tuple(layers), tuple(heads)
        config = self.model.config
        for name, numbers, limit in (
            ("layers", layers, config.num_decoder_layers),
            ("heads", heads, config.num_heads),
        ):
            if not all(0 <= number < limit for number in numbers):
                raise ValueError(f"`{name}` must hold numbers from 0 to {limit - 1}. Received: {numbers}")
        results = [
            Forced(np.zeros(0, np.float32), np.zeros((len(layers), 0, len(row)), np.float32))
            for row in source_rows
        ]
        nonempty = [index for index, row in enumerate(target_rows) if len(row)]
        lengths = [(len(target_rows[index]), len(source_rows[index])) for index in nonempty]
        pad = self.model.special.pad
        most = batch_tokens or self.batch_tokens
        for batch in batches_by_length(lengths, lambda size, *length: size * max(length) <= most):
            indices = [nonempty[i] for i in batch]
            log_probs, attention = self._compile(layers, heads)(
                pad_rows([source_rows[index] for index in indices], pad),
                pad_rows([target_rows[index] for index in indices], pad),
            )
            log_probs, attention = log_probs.numpy(), attention.numpy()
            for i, index in enumerate(indices):
                source_len, target_len = len(source_rows[index]), len(target_rows[index])
                # Copies: a view would keep the padding of the whole batch in memory.
                results[index] = Forced(
                    log_probs[i, :target_len].copy(), attention[i, :, :target_len, :source_len].copy()
                )
        return results

    def _compile(self, layers, heads):
        """Returns a compiled function for any batch size and length."""
        if (layers, heads) not in self._compiled:
            self._compiled[layers, heads] = tf.function(
                lambda source_ids, labels: self._decode(source_ids, labels, layers, heads),
                input_signature=[tf.TensorSpec((None, None), tf.int32)] * 2,
                autograph=False,  # no Python control flow
            )
        return self._compiled[layers, heads]

    def _decode(self, source_ids, labels, layers, heads):
        special = self.model.special
        bos = tf.fill((tf.shape(labels)[0], 1), special.bos)
        target_ids = tf.concat([bos, labels[:, :-1]], axis=1)
        attended = self.model.attend((source_ids, target_ids), cross=layers)
        # Cross-entropy as in validation: float32 for any dtype of the model.
        statistics = token_statistics(labels, attended.logits, pad_id=special.pad)
        attention = tf.zeros(tf.stack([tf.shape(labels)[0], 0, tf.shape(labels)[1], tf.shape(source_ids)[1]]))
        if layers:
            by_layer = [attended.cross[layer] for layer in layers]
            if heads:
                by_layer = [tf.gather(weights, heads, axis=1) for weights in by_layer]
            attention = tf.stack([tf.reduce_mean(weights, axis=1) for weights in by_layer], axis=1)
        return -statistics.cross_entropy, attention


def pad_rows(rows, pad):
    """Returns lists of ids as an int32 array, shape `(len(rows), longest)`, padded with `pad`."""
    padded = np.full((len(rows), max(map(len, rows))), pad, np.int32)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return padded
