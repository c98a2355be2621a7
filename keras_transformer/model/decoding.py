"""Step-by-step decoding with cached keys and values, as beam search uses it."""

from typing import TYPE_CHECKING, Any, NamedTuple

import keras
from keras import ops

from keras_transformer.config.types import Tensor
from keras_transformer.model.kernels.products import transposed_copies
from keras_transformer.model.kernels.switch import decoding_step, reading_copies
from keras_transformer.model.kernels.tensor_ops import gather, take_along
from keras_transformer.model.layers.attention import KeyValue
from keras_transformer.model.layers.basics import Projection

# Largest number of elements of an embedding matrix that is transposed for a search. A matrix of this size has
# 16 MB, and the transposed copy pays off after about 8 steps. For 32,000 x 512 elements, the copy would take
# 35 ms and 65 MB and save 2 ms per step.
MAX_TRANSPOSED_ELEMENTS = 2**22


class Encoded(NamedTuple):
    """Encoder output and padding mask of the source.

    Attributes:
        output: float, shape `(batch, source_len, d_model)`.
        mask: bool, shape `(batch, 1, source_len)`; True for real tokens.
    """

    output: Any
    mask: Any


class TransformerOutput(NamedTuple):
    """Logits, and the attention weights of the selected layers.

    `cross`, `decoder` and `encoder` are dicts from layer index (from 0) to float32 weights. The weights of a
    query sum to 1 over the visible keys and are 0 for hidden keys.

    Attributes:
        logits: float, shape `(batch, target_len, target_vocab_size)`.
        cross: weights of the decoder's attention to the source, shape
            `(batch, num_heads, target_len, source_len)`.
        decoder: weights of the decoder's self-attention, shape `(batch, num_heads, target_len, target_len)`.
        encoder: weights of the encoder's self-attention, shape `(batch, num_heads, source_len, source_len)`.
    """

    logits: Any
    cross: dict
    decoder: dict
    encoder: dict


class DecoderState(NamedTuple):
    """State passed from one decoding step to the next, with n hypotheses per sentence.

    Attributes:
        self_attention: list with one `KeyValue` per layer. Slot `position * n + i` holds the key and value
            that hypothesis i of the sentence computed at that position.
        cross_attention: list with one `KeyValue` per layer, computed once per translation.
        source_mask: bool, shape `(batch, 1, source_len)`; True for real tokens.
        beam_of_position: int32, shape `(batch, n, positions)`. `beam_of_position[b, i, p]` is the beam in
            which position p of hypothesis i was computed; -1 for positions not yet decoded.
        coverage: float32, shape `(batch, n, source_len)`: the sum over the decoded positions of the attention
            to each source token, mean over the heads of one layer; 1 for padding. `()` unless requested.
    """

    self_attention: list[KeyValue]
    cross_attention: list[KeyValue]
    source_mask: Any
    beam_of_position: Any
    coverage: Any = ()


class ModelStep(NamedTuple):
    """Result of one decoding step.

    Attributes:
        logits: float, shape `(batch * n, target_vocab_size)`.
        state: `DecoderState` for the next step.
    """

    logits: Any
    state: DecoderState


class StepKernels(NamedTuple):
    """Copies of weights for the products of decoding steps.

    Attributes:
        logits: float, shape `(d_model, target_vocab_size)`, the transposed embedding matrix; or `None`.
        projections: dict, those of the decoder layers' matrices, see `transposed_copies`.
    """

    logits: Any
    projections: dict


NO_KERNELS = StepKernels(None, {})


class CachedDecoding:
    """Mix-in of `Transformer`: decodes one position at a time.

    The hypotheses of a sentence share one cache. Each slot (position, beam) is written once, and
    `beam_of_position` lists the slots that belong to each hypothesis. Example with 2 beams and 3 steps: if
    position 0 of a hypothesis was computed in beam 1, and positions 1 and 2 in beam 0, then the hypothesis
    sees the slots (0, 1), (1, 0) and (2, 0). Reordering beams changes `beam_of_position` and copies no keys
    or values.
    """

    if TYPE_CHECKING:  # what the model has besides

        def __getattr__(self, name: str) -> Any: ...

    def start(
        self, encoded: Encoded, *, max_length: Tensor, num_hypotheses: int = 1, covers: bool = False
    ) -> DecoderState:
        """Returns the initial state, with empty self-attention caches.

        Args:
            encoded: `Encoded` of `batch` sentences.
            max_length: int or scalar tensor, maximum number of steps; 0 for caches that grow (see `step`).
            num_hypotheses: int, n, hypotheses per sentence.
            covers: whether the state has a `coverage`, which `step` updates.

        Returns:
            `DecoderState`.
        """
        batch = ops.shape(encoded.output)[0]
        coverage = ()
        if covers:
            is_padding = ops.cast(ops.logical_not(encoded.mask), "float32")
            coverage = ops.repeat(is_padding, num_hypotheses, axis=1)
        return DecoderState(
            [
                layer.self_attention.empty_cache(batch, max_length * num_hypotheses)
                for layer in self.decoder_layers
            ],
            [layer.cross_attention.project(encoded.output) for layer in self.decoder_layers],
            encoded.mask,
            ops.full((batch, num_hypotheses, max_length), -1, dtype="int32"),
            coverage,
        )

    def step_kernels(self, *, num_hypotheses: int, num_sentences: Tensor = 0) -> StepKernels:
        """Returns copies of weights that speed up the products of many steps; made of the current weights.

        Args:
            num_hypotheses: int, n, hypotheses per sentence.
            num_sentences: int or scalar tensor, sentences of the batch.

        Returns:
            `StepKernels`, without a copy that would cost more than it saves.
        """
        size = self.config.target_vocab_size * self.config.d_model
        is_small = size <= MAX_TRANSPOSED_ELEMENTS and num_hypotheses > 1
        logits = self.target_embedding.kernel() if is_small and self._has_tied_logits() else None
        matrices = self._step_matrices() if self.compute_dtype == "float32" else []
        return StepKernels(logits, transposed_copies(matrices, num_sentences * num_hypotheses))

    def _step_matrices(self):
        """Returns the matrices of the projections that `step` calls in the decoder layers."""
        once = [
            getattr(layer.cross_attention, f"{name}_projection")
            for layer in self.decoder_layers
            for name in ("key", "value")
        ]
        return [
            part.kernel
            for layer in self.decoder_layers
            for part in layer._flatten_layers()
            # A layer that was replaced, as docs/extending.md does, is still tracked but has no matrix.
            if isinstance(part, Projection) and part.built and all(part is not other for other in once)
        ]

    @decoding_step()
    def step(
        self,
        ids: Tensor,
        position: Tensor,
        state: DecoderState,
        *,
        grows: bool = False,
        kernels: StepKernels = NO_KERNELS,
        coverage_layer: int | None = None,
    ) -> ModelStep:
        """Decodes one position; the logits equal those of `decode` at this position.

        Args:
            ids: int, shape `(batch * n,)`, the tokens at `position` (bos at position 0); row
                `sentence * n + i` is hypothesis i.
            position: scalar int, from 0.
            state: `DecoderState` from `start`, `reorder`, `select_sentences` or the previous step.
            grows: appends to the caches, which hold `position` positions, instead of writing into caches of
                the maximum length. The caches are then never longer than needed.
            kernels: result of `step_kernels`.
            coverage_layer: int, the decoder layer, counted from 0, whose cross-attention is added to
                `state.coverage`; `None` leaves it as it is.

        Returns:
            `ModelStep`.
        """
        batch, n, _ = ops.shape(state.beam_of_position)
        own = ops.broadcast_to(ops.arange(n, dtype="int32")[None, :, None], (batch, n, 1))
        if grows:
            beam_of_position = ops.concatenate([state.beam_of_position, own], axis=2)
        else:
            here = ops.arange(ops.shape(state.beam_of_position)[2]) == position
            beam_of_position = ops.where(here, own, state.beam_of_position)
        mask = None
        # In a growing cache, a single hypothesis sees all slots.
        if not grows or state.beam_of_position.shape[1] != 1:
            visible = beam_of_position[..., None] == ops.arange(n, dtype="int32")
            mask = ops.reshape(visible, (batch, n, -1))

        x = self.target_embedding(ids[:, None], first_position=position)
        x = ops.reshape(x, (-1, self.config.d_model))
        caches, coverage = [], state.coverage
        settings = {"num_hypotheses": n, "first_slot": None if grows else position * n}
        key_values = zip(state.self_attention, state.cross_attention, strict=True)
        for index, (layer, key_value) in enumerate(zip(self.decoder_layers, key_values, strict=True)):
            with reading_copies(kernels.projections):
                if index == coverage_layer:
                    x, cache, weights = layer.attend_step(x, *key_value, mask, state.source_mask, **settings)
                    coverage = coverage + ops.mean(weights, axis=1)
                else:
                    x, cache = layer.step(x, *key_value, mask, state.source_mask, **settings)
            caches.append(cache)
        given = {} if kernels.logits is None else {"kernel": kernels.logits}
        logits = self._logits(self._final_norm(x), **given)
        state = state._replace(self_attention=caches, beam_of_position=beam_of_position, coverage=coverage)
        return ModelStep(logits, state)

    def reorder(self, state: DecoderState, parents: Tensor) -> DecoderState:
        """Reorders beams: hypothesis i of each sentence continues hypothesis `parents[:, i]`.

        Changes only `beam_of_position` and `coverage`; no cache is copied.

        Args:
            state: `DecoderState`.
            parents: int32, shape `(batch, n)`.

        Returns:
            `DecoderState`.
        """
        coverage = state.coverage
        return state._replace(
            beam_of_position=take_along(state.beam_of_position, parents),
            coverage=() if isinstance(coverage, tuple) else take_along(coverage, parents),
        )

    def select_sentences(self, state: DecoderState, sentences: Tensor) -> DecoderState:
        """Keeps only the given sentences of the batch.

        Args:
            state: `DecoderState`.
            sentences: int32, shape `(num_kept,)`, indices of the sentences to keep.

        Returns:
            `DecoderState`.
        """
        return keras.tree.map_structure(lambda x: gather(x, sentences, axis=0), state)
