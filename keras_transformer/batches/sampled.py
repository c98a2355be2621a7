"""Sub-word regularisation: every batch encodes its sentences anew, at random.

Segmentations are drawn within the batch from a seed of (seed, epoch, batch), so a run
that continues draws the same. Random segmentations are longer; batches are planned for
that, and a sentence that outgrows its batch keeps its usual segmentation.
"""

import hashlib

import numpy as np

from keras_transformer.batches.ids import Sequences, flatten
from keras_transformer.batches.token_batches import TokenBatches

_MEASURED_PAIRS = 1000
_QUANTILE = 0.9


class SampledBatches(TokenBatches):
    """`TokenBatches` with random segmentations of the same texts.

    Args:
        pairs: `IdPairs`, encoded as usual.
        tokenizers: `Tokenizers` of the pairs, with `decode`, `sample` and `special`.
        dropout: rate, as `sample` takes it.
        special: `SpecialIds`.
        batch_tokens: budget of a batch in padded tokens, for each side.
        **plan: further arguments of `EpochPlanner`.
    """

    def __init__(self, pairs, tokenizers, *, dropout, special, batch_tokens, **plan):
        self._tokenizers = tokenizers
        self._dropout = dropout
        super().__init__(pairs, special=special, batch_tokens=batch_tokens, **plan)

    def _planned_lengths(self):
        return tuple(
            self._grown(sequences, tokenizer)
            for sequences, tokenizer in zip(self.pairs, self._tokenizers, strict=True)
        )

    def _sequences(self, plan):
        seed = int.from_bytes(hashlib.blake2b(repr(plan.key).encode(), digest_size=8).digest())
        boxes = plan.source_len, plan.target_len
        for side, (sequences, tokenizer, longest) in enumerate(
            zip(self.pairs, self._tokenizers, boxes, strict=True)
        ):
            usual = [sequences[i].tolist()[:-1] for i in plan.indices.tolist()]
            texts = tokenizer.decode(usual)
            drawn = tokenizer.sample(texts, dropout=self._dropout, seed=2 * seed + side)
            rows = [row if len(row) < longest else old for row, old in zip(drawn, usual, strict=True)]
            # All are drawn, and a part taken: it is the same however many parts there are.
            rows = rows[plan.part[0] :: plan.part[1]]
            yield Sequences([flatten(rows, tokenizer.special.eos)]), np.arange(len(rows))

    def _grown(self, sequences, tokenizer):
        """How long random segmentations are, nine times in ten, from a spread sample."""
        chosen = np.unique(np.linspace(0, len(sequences) - 1, _MEASURED_PAIRS).astype(int))
        texts = tokenizer.decode([sequences[i].tolist()[:-1] for i in chosen.tolist()])
        drawn = tokenizer.sample(texts, dropout=self._dropout, seed=0)
        lengths = np.array([len(row) + 1 for row in drawn])
        growth = np.quantile(lengths / sequences.lengths[chosen], _QUANTILE)
        # No longer than the longest, or the budget that held it would not.
        grown = np.ceil(sequences.lengths * max(growth, 1.0)).astype(np.int32)
        return np.maximum(sequences.lengths, np.minimum(grown, sequences.lengths.max()))
