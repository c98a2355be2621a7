"""What a model says of given target ids: their log-probabilities, and where it looks.

One pass over whole sentences, target ids forced upon the decoder, instead of a search. `DetailsPass` does
so for translations that a search found.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.model.loss import token_statistics
from keras_transformer.translation.alignment import default_choice, hard_alignment, soft_alignment


def pad_rows(rows, pad):
    """Returns lists of ids as an int32 array, shape `(len(rows), longest)`, filled up with `pad`."""
    padded = np.full((len(rows), max(map(len, rows))), pad, np.int32)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return padded


class Forced(NamedTuple):
    """What a model says of one pair.

    Attributes:
        log_probs: float32 NumPy array, shape `(target_len,)`, log p of each target id
            after those before it, in nats.
        attention: float32 NumPy array, shape `(num_layers, target_len, source_len)`: row
            i is what the decoder looks at when it produces target id i, mean of the
            heads; `num_layers` is 0 where no layer was asked for.
    """

    log_probs: np.ndarray
    attention: np.ndarray


class ForcedPass:
    """Runs a model over pairs of ids, many at a time.

    Args:
        model: a `Transformer`.
        batch_tokens: budget of one batch, padding included, of the source and of the
            target each; a pair that is longer has a batch of its own.
    """

    def __init__(self, model, *, batch_tokens=2048):
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
            target_rows: list of sequences of int, as many, as the decoder produces them:
                without bos, with eos unless a search was cut off before it. One without
                any id gives arrays without any entry.
            layers: numbers of the decoder layers whose attention is returned.
            heads: numbers of the heads of which the attention is the mean; none for all.

        Returns:
            list of `Forced`, as many and in the same order.

        Raises:
            ValueError: not as many of both, an id that the vocabulary lacks, padding, a
                source row without ids, more ids than learned positions, or no such
                layer or head.
        """
        layers, heads = tuple(layers), tuple(heads)
        self._check(source_rows, target_rows, layers, heads)
        found = [
            Forced(np.zeros(0, np.float32), np.zeros((len(layers), 0, len(row)), np.float32))
            for row in source_rows
        ]
        for numbers in _batches(source_rows, target_rows, self.batch_tokens):
            log_probs, attention = self._compile(layers, heads)(
                pad_rows([source_rows[number] for number in numbers], self.model.special.pad),
                pad_rows([target_rows[number] for number in numbers], self.model.special.pad),
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
            signature = [tf.TensorSpec((None, None), tf.int32)] * 2
            self._compiled[layers, heads] = tf.function(
                lambda source_ids, labels: self._forced(source_ids, labels, layers, heads),
                input_signature=signature,
                autograph=False,  # there is no Python to be rewritten
            )
        return self._compiled[layers, heads]

    def _forced(self, source_ids, labels, layers, heads):
        special = self.model.special
        first = tf.fill((tf.shape(labels)[0], 1), special.bos)
        target_ids = tf.concat([first, labels[:, :-1]], axis=1)
        attended = self.model.attend((source_ids, target_ids), cross=layers)
        # The sums that validation makes, in float32 whatever the model computes in.
        statistics = token_statistics(labels, attended.logits, pad_id=special.pad)
        shape = tf.stack([tf.shape(labels)[0], 0, tf.shape(labels)[1], tf.shape(source_ids)[1]])
        attention = tf.zeros(shape)
        if layers:
            of_layers = [attended.cross[layer] for layer in layers]
            if heads:
                of_layers = [tf.gather(weights, heads, axis=1) for weights in of_layers]
            attention = tf.stack([tf.reduce_mean(weights, axis=1) for weights in of_layers], axis=1)
        return -statistics.cross_entropy, attention

    def _check(self, source_rows, target_rows, layers, heads):
        config, pad = self.model.config, self.model.special.pad
        if len(source_rows) != len(target_rows):
            raise ValueError(
                "`source_rows` and `target_rows` must be as many. "
                f"Received: {len(source_rows)} and {len(target_rows)}"
            )
        for name, numbers, limit in (
            ("layers", layers, config.num_decoder_layers),
            ("heads", heads, config.num_heads),
        ):
            if not all(0 <= number < limit for number in numbers):
                raise ValueError(f"`{name}` must hold numbers from 0 to {limit - 1}. Received: {numbers}")
        for name, rows, vocab_size in (
            ("source_rows", source_rows, config.source_vocab_size),
            ("target_rows", target_rows, config.target_vocab_size),
        ):
            for number, row in enumerate(rows):
                ids = np.asarray(row)
                wrong = ids[(ids < 0) | (ids >= vocab_size) | (ids == pad)]
                if len(wrong):
                    raise ValueError(
                        f"`{name}` must hold ids below {vocab_size} and no padding ({pad}). "
                        f"Received: {wrong[0]} in row {number}"
                    )
                if config.positions == "learned" and len(row) > config.max_positions:
                    raise ValueError(
                        f"There are {config.max_positions} learned positions (`max_positions`). "
                        f"Received: {len(row)} ids in row {number} of `{name}`"
                    )
        if not all(map(len, source_rows)):
            raise ValueError("`source_rows` must end with eos. Received: a row without ids")


def _batches(source_rows, target_rows, batch_tokens):
    """Groups the numbers of pairs alike in both lengths, within the budget on either side."""
    lengths = [(len(target), len(source)) for source, target in zip(source_rows, target_rows, strict=True)]
    batches, longest = [], (0, 0)
    for number in sorted((i for i, (target, _) in enumerate(lengths) if target), key=lengths.__getitem__):
        grown = tuple(map(max, longest, lengths[number]))
        if not batches or (len(batches[-1]) + 1) * max(grown) > batch_tokens:
            batches.append([])
            grown = lengths[number]
        batches[-1].append(number)
        longest = grown
    # The longest first: memory runs short at once or not at all.
    return batches[::-1]


class Details(NamedTuple):
    """What one more pass over a translation tells.

    Attributes:
        token_log_probs: list of float, in nats, one for each token, end of sentence included.
        alignment: list of `(source piece, target piece)`, from 0.
    """

    token_log_probs: list
    alignment: list


class DetailsPass:
    """Runs one model or several over translations as they were found.

    Args:
        models: list of `Transformer`. Of several, log-probabilities and attention are the
            means of theirs.
        choices: list of `AlignmentChoice`, one for each model; `None` is `default_choice`.
        batch_tokens: budget of one batch, of either side.
    """

    def __init__(self, models, choices=None, *, batch_tokens=2048):
        self._choices = choices or [default_choice(model.config.num_decoder_layers) for model in models]
        self._passes = [ForcedPass(model, batch_tokens=batch_tokens) for model in models]

    def __call__(self, source_rows, target_rows, source_pieces, target_pieces):
        """Returns the `Details` of pairs.

        Args:
            source_rows: list of lists of int, with the end of sentence.
            target_rows: list of lists of int, with the end of sentence where there is one.
            source_pieces: list of lists of str, without the end of sentence.
            target_pieces: list of lists of str, without the end of sentence.

        Returns:
            list of `Details`.
        """
        by_model = [
            run(source_rows, target_rows, layers=[choice.layer])
            for run, choice in zip(self._passes, self._choices, strict=True)
        ]
        details = []
        for pieces, found in zip(
            zip(source_pieces, target_pieces, strict=True), zip(*by_model, strict=True), strict=True
        ):
            log_probs = np.mean([one.log_probs for one in found], axis=0)
            weights = [
                soft_alignment(one.attention[0], *pieces, convention=choice.convention, unit="pieces")
                for one, choice in zip(found, self._choices, strict=True)
            ]
            # `soft_alignment` has seen to each model's convention.
            links = hard_alignment(np.mean(weights, axis=0), *pieces, convention="output", unit="pieces")
            details.append(Details(log_probs.tolist(), links))
        return details
