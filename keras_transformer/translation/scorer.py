"""Scores given translations: log-probabilities of sentences and tokens, and alignments."""

import math
from typing import NamedTuple

import numpy as np

from keras_transformer.checkpoints.run_folder import RunFolder
from keras_transformer.tokenizers.tokenizer_pair import as_tokenizers, check_vocabularies
from keras_transformer.translation.alignment import default_choice
from keras_transformer.translation.forced_decoding import ForcedPass


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


class Scored(NamedTuple):
    """What a model says of one translation.

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
        choice: `AlignmentChoice` of the model; `None` is `alignment.default_choice`.
        max_length: the longest source or target text in tokens, end included; a model
            with learned positions has its own limit besides.
        batch_tokens: budget of one batch, padding included, of either side.

    Raises:
        ValueError: as `Translator`; or a number below 1.
    """

    def __init__(self, model, tokenizers, *, choice=None, max_length=1024, batch_tokens=2048):
        tokenizers = as_tokenizers(tokenizers)
        check_vocabularies(tokenizers, model.config, special=model.special)
        if max_length < 1:
            raise ValueError(f"`max_length` must be at least 1. Received: {max_length}")
        self.model = model
        self.tokenizers = tokenizers
        self.choice = choice or default_choice(model.config.num_decoder_layers)
        self.max_length = max_length
        if model.config.positions == "learned":
            self.max_length = min(max_length, model.config.max_positions)
        self._forced = ForcedPass(model, batch_tokens=batch_tokens)

    @classmethod
    def load(cls, run_dir, *, weights="final", **limits):
        """Loads the model of a run folder.

        Args:
            run_dir: folder of a training run.
            weights: name of weights, as `RunFolder.load_weights` takes it.
            **limits: `max_length` and `batch_tokens`, if others than the run's search has.

        Raises:
            ValueError: not a run folder, or it holds no such weights.
        """
        run = RunFolder(run_dir)
        search = run.config.search
        limits = {"max_length": search.max_source_length, "batch_tokens": search.batch_tokens, **limits}
        model = run.load_model(weights=weights)
        return cls(model, run.load_tokenizers(), **limits)

    def score(self, sources, targets, *, layers=(), heads=()):
        """Scores pairs of texts, each as if it were alone.

        A blank target is the end of the sentence alone, which has a probability, too; a
        blank source is what an encoder makes of an end of sentence alone, which no
        model has seen in training.

        Args:
            sources: list of str, one sentence each.
            targets: list of str, as many.
            layers: numbers of the decoder layers whose attention is returned.
            heads: numbers of the heads of which it is the mean; none for all.

        Returns:
            list of `Scored`, as many and in the same order.

        Raises:
            ValueError: not as many of both; a text that is too long, never cut; no such
                layer or head.
        """
        if len(sources) != len(targets):
            raise ValueError(
                f"`sources` and `targets` must be as many. Received: {len(sources)} and {len(targets)}"
            )
        rows = self._encode(sources, targets)
        for side, rows_of_side in zip(("sources", "targets"), rows, strict=True):
            for number, row in enumerate(rows_of_side):
                if len(row) > self.max_length:
                    raise TooLongError(side, number, len(row), self.max_length)
        forced = self.score_ids(*rows, layers=layers, heads=heads)
        pieces = self.tokenizers.source.pieces(sources), self.tokenizers.target.pieces(targets)
        return [Scored(*each, *found) for *each, found in zip(*pieces, forced, strict=True)]

    def score_ids(self, source_rows, target_rows, *, layers=(), heads=()):
        """Scores pairs of ids: exactly these, as `ForcedPass` takes and returns them.

        A translation may so be scored with the pieces that a search found, which need
        not be those that its text has, and without an end where it was cut off.
        """
        return self._forced(source_rows, target_rows, layers=layers, heads=heads)

    def _encode(self, sources, targets):
        """Returns two lists of rows of ids, each row with its end of sentence."""
        return [
            [[*row, tokenizer.special.eos] for row in tokenizer.encode(texts)]
            for tokenizer, texts in zip(self.tokenizers, (sources, targets), strict=True)
        ]


def perplexity(scored):
    """Returns exp of the mean of -log p over all target pieces, ends included (Table 3).

    Args:
        scored: list of `Scored` or `Forced`, with one token at least.
    """
    total = math.fsum(float(each.log_probs.sum(dtype=np.float64)) for each in scored)
    return math.exp(-total / sum(len(each.log_probs) for each in scored))
