"""Scores given translations: log-probabilities of sentences and tokens, and attention.

One pass over whole sentences, target ids forced upon the decoder, instead of a search.
"""

import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.model.loss import token_statistics
from keras_transformer.tokenizers.tokenizer_pair import as_tokenizers, check_vocabularies
from keras_transformer.translation.alignment import default_choice
from keras_transformer.translation.texts import batches_by_length


class TooLongError(ValueError):
    """A text has more tokens than are scored.

    Attributes:
        side: `"sources"` or `"targets"`.
        number: of the text, from 0.
        reason: the rest of the message.
    """

    def __init__(self, side, number, length, limit):
        self.side = side
        self.number = number
        self.reason = f"{length:,} tokens, end of sentence included, are over the limit of {limit:,}"
        super().__init__(f"`{side}`: text {number}: {self.reason} (`max_length`)")


class Forced(NamedTuple):
    """Result of forced decoding of one pair.

    Attributes:
        log_probs: float32 NumPy array, shape `(target_len,)`, log p of each target id
            after those before it, in nats.
        attention: float32 NumPy array, shape `(num_layers, target_len, source_len)`: row
            i is the attention of the decoder when it produces target id i, mean of the
            heads; `num_layers` is 0 where no layer was asked for.
    """

    log_probs: np.ndarray
    attention: np.ndarray


class Scored(NamedTuple):
    """Score of one translation.

    Attributes:
        source_pieces: list of str, without the end of sentence.
        target_pieces: list of str, without the end of sentence.
        log_probs: float32 NumPy array, shape `(len(target_pieces) + 1,)`, in nats, of
            each target piece and of the end of the sentence.
        attention: float32 NumPy array, shape `(num_layers, len(target_pieces) + 1,
            len(source_pieces) + 1)`, as `Forced` has it.
    """

    source_pieces: list
    target_pieces: list
    log_probs: np.ndarray
    attention: np.ndarray

    @property
    def log_prob(self):
        """float, log p of the whole translation, its end included, in nats."""
        return float(self.log_probs.sum(dtype=np.float64))


class Scorer:
    """Scores translations with one model, without label smoothing or length penalty.

    Args:
        model: a `Transformer`.
        tokenizers: a tokenizer of the model's vocabulary, or `Tokenizers`.
        max_length: the longest source or target text in tokens, end included; a model
            with learned positions has its own limit besides.
        batch_tokens: budget of one batch, padding included, of either side.

    Attributes:
        choice: `AlignmentChoice` of the model, `alignment.default_choice`.

    Raises:
        ValueError: as `Translator`; or a number below 1.
    """

    def __init__(self, model, tokenizers, *, max_length=1024, batch_tokens=2048):
        self.tokenizers = as_tokenizers(tokenizers)
        check_vocabularies(self.tokenizers, model.config, special=model.special)
        if max_length < 1:
            raise ValueError(f"`max_length` must be at least 1. Received: {max_length}")
        self.model = model
        self.choice = default_choice(model.config.num_decoder_layers)
        self.max_length = max_length
        if model.config.positions == "learned":
            self.max_length = min(max_length, model.config.max_positions)
        self._forced = ForcedDecoder(model, batch_tokens)

    @classmethod
    def load(cls, run_dir, *, checkpoint="final", **limits):
        """Loads the model of a run folder.

        Args:
            run_dir: folder of a training run.
            checkpoint: which weights, as `RunFolder.load_weights` takes it.
            **limits: `max_length` and `batch_tokens`, if others than the run's search has.

        Raises:
            ValueError: not a run folder, or it holds no such weights.
        """
        run = RunFolder(run_dir)
        search = run.config.search
        limits = {"max_length": search.max_source_length, "batch_tokens": search.batch_tokens, **limits}
        return cls(run.load_model(checkpoint=checkpoint), run.load_tokenizers(), **limits)

    def score(self, sources, targets, *, layers=(), heads=()):
        """Scores pairs of texts, each as if it were alone.

        A blank target is the end of the sentence alone, which has a probability, too; a
        blank source is what an encoder makes of an end of sentence alone, which no
        model has seen in training.

        Args:
            sources: list of str, one sentence each.
            targets: list of str, one for each of `sources`.
            layers: numbers of the decoder layers whose attention is returned.
            heads: numbers of the heads of which it is the mean; none for all.

        Returns:
            list of `Scored`, in the same order.

        Raises:
            ValueError: different numbers of texts; a text that is too long, never cut; no such
                layer or head.
        """
        if len(sources) != len(targets):
            raise ValueError(
                f"`sources` and `targets` must be as many. Received: {len(sources)} and {len(targets)}"
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
        return [Scored(*of_pair, *result) for *of_pair, result in zip(*pieces, forced, strict=True)]


def perplexity(scored):
    """Returns exp of the mean of -log p over all target pieces, ends included (Table 3).

    Args:
        scored: list of `Scored` or `Forced`, with one token at least.
    """
    total = math.fsum(float(pair.log_probs.sum(dtype=np.float64)) for pair in scored)
    return math.exp(-total / sum(len(pair.log_probs) for pair in scored))


class ForcedDecoder:
    """Runs a model over pairs of ids, many at a time.

    Args:
        model: a `Transformer`.
        batch_tokens: budget of one batch, padding included, of the source and of the
            target each; a pair that is longer has a batch of its own.
    """

    def __init__(self, model, batch_tokens=2048):
        if batch_tokens < 1:
            raise ValueError(f"`batch_tokens` must be at least 1. Received: {batch_tokens}")
        self.model = model
        self.batch_tokens = batch_tokens
        self._compiled = {}

    def __call__(self, source_rows, target_rows, *, layers=(), heads=()):
        """Scores pairs, each as if it were alone.

        Args:
            source_rows: list of sequences of int, as the encoder reads them, eos at the
                end included.
            target_rows: list of sequences of int, one for each source, as the decoder produces
                them: without bos, with eos unless a search was cut off before it. One without
                any id gives arrays without any entry.
            layers: numbers of the decoder layers whose attention is returned.
            heads: numbers of the heads of which the attention is the mean; none for all.

        Returns:
            list of `Forced`, in the same order.

        Raises:
            ValueError: no such layer or head.
        """
        layers, heads = tuple(layers), tuple(heads)
        config = self.model.config
        for name, numbers, limit in (
            ("layers", layers, config.num_decoder_layers),
            ("heads", heads, config.num_heads),
        ):
            if not all(0 <= number < limit for number in numbers):
                raise ValueError(f"`{name}` must hold numbers from 0 to {limit - 1}. Received: {numbers}")
        found = [
            Forced(np.zeros(0, np.float32), np.zeros((len(layers), 0, len(row)), np.float32))
            for row in source_rows
        ]
        some = [number for number, row in enumerate(target_rows) if len(row)]
        lengths = [(len(target_rows[number]), len(source_rows[number])) for number in some]
        pad = self.model.special.pad
        for batch in batches_by_length(
            lengths, lambda size, *length: size * max(length) <= self.batch_tokens
        ):
            numbers = [some[place] for place in batch]
            log_probs, attention = self._compile(layers, heads)(
                pad_rows([source_rows[number] for number in numbers], pad),
                pad_rows([target_rows[number] for number in numbers], pad),
            )
            log_probs, attention = log_probs.numpy(), attention.numpy()
            for i, number in enumerate(numbers):
                source_len, target_len = len(source_rows[number]), len(target_rows[number])
                # Copies: a view would keep the padding of its whole batch alive.
                found[number] = Forced(
                    log_probs[i, :target_len].copy(), attention[i, :, :target_len, :source_len].copy()
                )
        return found

    def _compile(self, layers, heads):
        """One graph for any number and length of sentences."""
        if (layers, heads) not in self._compiled:
            self._compiled[layers, heads] = tf.function(
                lambda source_ids, labels: self._decode(source_ids, labels, layers, heads),
                input_signature=[tf.TensorSpec((None, None), tf.int32)] * 2,
                autograph=False,  # there is no Python to be rewritten
            )
        return self._compiled[layers, heads]

    def _decode(self, source_ids, labels, layers, heads):
        special = self.model.special
        first = tf.fill((tf.shape(labels)[0], 1), special.bos)
        target_ids = tf.concat([first, labels[:, :-1]], axis=1)
        attended = self.model.attend((source_ids, target_ids), cross=layers)
        # The sums that validation makes, in float32 whatever the model computes in.
        statistics = token_statistics(labels, attended.logits, pad_id=special.pad)
        attention = tf.zeros(tf.stack([tf.shape(labels)[0], 0, tf.shape(labels)[1], tf.shape(source_ids)[1]]))
        if layers:
            of_layers = [attended.cross[layer] for layer in layers]
            if heads:
                of_layers = [tf.gather(weights, heads, axis=1) for weights in of_layers]
            attention = tf.stack([tf.reduce_mean(weights, axis=1) for weights in of_layers], axis=1)
        return -statistics.cross_entropy, attention


def pad_rows(rows, pad):
    """Returns lists of ids as an int32 array, shape `(len(rows), longest)`, filled up with `pad`."""
    padded = np.full((len(rows), max(map(len, rows))), pad, np.int32)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return padded
