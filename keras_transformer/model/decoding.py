"""Decoding one position at a time, with cached keys and values: what search calls at every step."""

from typing import NamedTuple

import keras
from keras import ops

from keras_transformer.model.kernels.tensor_ops import gather, take_along
from keras_transformer.model.layers.attention import KeyValue

# Elements of an embedding matrix that pays to be transposed for a search: 16 MB, after some 8 steps.
# One of 32,000 x 512 would take 35 ms and 65 MB, for 2 ms a step.
TRANSPOSED_AT_MOST = 2**22


class DecoderState(NamedTuple):
    """What one decoding step leaves to the next, for n hypotheses of each sentence.

    Attributes:
        self_attention: list of one `KeyValue` a layer. Slot `position * n + i` of a sentence
            is what its hypothesis i computed at that position.
        cross_attention: list of one `KeyValue` a layer, made once.
        source_mask: bool, shape `(batch, 1, source_len)`.
        beam_of_slot: int32, shape `(batch, n, positions)`: which hypothesis of the sentence
            computed each position of hypothesis i; -1 for a position that is still to come.
    """

    self_attention: list[KeyValue]
    cross_attention: list[KeyValue]
    source_mask: object
    beam_of_slot: object


class ModelStep(NamedTuple):
    """What one decoding step returns.

    Attributes:
        logits: float, shape `(batch * n, target_vocab_size)`.
        state: `DecoderState`.
    """

    logits: object
    state: DecoderState


class CachedDecoding:
    """The steps of decoding of a `Transformer`, which inherits from it.

    A hypothesis does not own its cache: each slot (position, hypothesis) is written once, and `beam_of_slot`
    says which slots a hypothesis sees. With two beams and three steps, a hypothesis that went on from
    beam 1, then 0, then 0 sees the slots (0, 1), (1, 0) and (2, 0). Reordering changes these numbers alone.
    """

    def start(self, encoded, *, max_length, num_hypotheses=1):
        """Makes the caches for decoding step by step.

        Args:
            encoded: `Encoded` of `batch` sentences.
            max_length: int or scalar tensor, number of steps there is room for; 0 for caches
                that grow, see `step`.
            num_hypotheses: n, hypotheses of each sentence.

        Returns:
            `DecoderState`.
        """
        batch = ops.shape(encoded.output)[0]
        return DecoderState(
            [
                layer.self_attention.empty_cache(batch, max_length * num_hypotheses)
                for layer in self.decoder_layers
            ],
            [layer.cross_attention.project(encoded.output) for layer in self.decoder_layers],
            encoded.mask,
            ops.full((batch, num_hypotheses, max_length), -1, dtype="int32"),
        )

    def step_kernel(self, *, num_hypotheses):
        """Returns the output matrix in the form that multiplies few rows quickest, for many steps.

        That is the embedding matrix transposed, which takes two thirds of the time.

        Args:
            num_hypotheses: int, of each sentence.

        Returns:
            float, shape `(d_model, target_vocab_size)`, of the present weights; `None` where it does
            not pay, or the model makes its logits in another way.
        """
        size = self.config.target_vocab_size * self.config.d_model
        if num_hypotheses == 1 or size > TRANSPOSED_AT_MOST or not self._has_tied_logits():
            return None
        return self.target_embedding.kernel()

    def step(self, ids, position, state, *, grows=False, kernel=None):
        """Decodes one position: as `decode` gives it, from the caches.

        Args:
            ids: int, shape `(batch * n,)`, the tokens at `position` (bos at first); row
                `sentence * n + i` is hypothesis i.
            position: int, scalar; 0 for the first.
            state: `DecoderState` from `start`, `reorder`, `select_sentences` or the step before.
            grows: the caches are as long as `position` and grow by this one, in place of
                being written into. They are never longer than needed then.
            kernel: from `step_kernel`, or `None`.

        Returns:
            `ModelStep`.
        """
        batch, n, _ = ops.shape(state.beam_of_slot)
        own = ops.broadcast_to(ops.arange(n, dtype="int32")[None, :, None], (batch, n, 1))
        if grows:
            beam_of_slot = ops.concatenate([state.beam_of_slot, own], axis=2)
        else:
            here = ops.arange(ops.shape(state.beam_of_slot)[2]) == position
            beam_of_slot = ops.where(here, own, state.beam_of_slot)
        mask = None
        if not grows or state.beam_of_slot.shape[1] != 1:  # one hypothesis sees all that there is
            visible = beam_of_slot[..., None] == ops.arange(n, dtype="int32")
            mask = ops.reshape(visible, (batch, n, -1))

        x = self.target_embedding(ids[:, None], first_position=position)
        x = ops.reshape(x, (-1, self.config.d_model))
        caches = []
        for layer, cache, encoder_key_value in zip(
            self.decoder_layers, state.self_attention, state.cross_attention, strict=True
        ):
            x, cache = layer.step(
                x,
                cache,
                encoder_key_value,
                mask,
                state.source_mask,
                num_hypotheses=n,
                first_slot=None if grows else position * n,
            )
            caches.append(cache)
        logits = self._logits(self._final_norm(x), **({} if kernel is None else {"kernel": kernel}))
        return ModelStep(logits, state._replace(self_attention=caches, beam_of_slot=beam_of_slot))

    def reorder(self, state, parents):
        """Lets hypothesis i of each sentence go on from hypothesis `parents[:, i]`.

        No cache is copied: only which slots a hypothesis looks at changes.

        Args:
            state: `DecoderState`.
            parents: int32, shape `(batch, n)`.

        Returns:
            `DecoderState`.
        """
        return state._replace(beam_of_slot=take_along(state.beam_of_slot, parents))

    def select_sentences(self, state, sentences):
        """Leaves only some sentences in the batch.

        Args:
            state: `DecoderState`.
            sentences: int32, shape `(left,)`.

        Returns:
            `DecoderState`.
        """
        return keras.tree.map_structure(lambda x: gather(x, sentences, axis=0), state)
