"""Log-probability of each token and alignment of translations that were found."""

from typing import NamedTuple

import numpy as np

from keras_transformer.translation.alignment import default_choice, hard_alignment, soft_alignment
from keras_transformer.translation.forced_decoding import ForcedPass


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
